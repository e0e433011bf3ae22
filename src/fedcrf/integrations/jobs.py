"""A server of a framework that runs jobs from files, and whose sites fetch the model."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcrf.checks import Settings, Text
from fedcrf.errors import FedcrfError
from fedcrf.experiments.settings import build
from fedcrf.integrations.decision import Decision
from fedcrf.integrations.replies import MetricNames, Reply
from fedcrf.integrations.server import RuleServer
from fedcrf.rules import Rule, State, find_rule

Wrap = Callable[[str, Any, State, str], Reply]
"""Makes a reply of a site's name, what it sent, the global model, and the name of its count."""


@dataclass(frozen=True)
class Job(Settings):
    """The arguments of a `RuleAggregator`, checked: all of it is JSON.

    Attributes:
        server_rule: The rule with its settings.
    """

    rule: Text
    settings: Mapping[str, Any] | None
    weighted_by: Text
    record_to: Text | None
    checkpoint_to: Text | None
    server_rule: Rule = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {} if self.settings is None else self.settings
        if not isinstance(given, Mapping):
            raise FedcrfError(f"settings is {given!r}: give the rule's settings by name")
        try:
            json.dumps(given)
        except (TypeError, ValueError):
            raise FedcrfError(
                f"settings is {given!r}: give numbers, texts and lists, which a job's file holds"
            ) from None
        built = build(find_rule(self.rule), dict(given), self.rule)
        object.__setattr__(self, "server_rule", built)


class JobServer(RuleServer):
    """A job's rounds. Sites have names, which identify them, and come one by one in threads.

    A round begins when its first site fetches the model, and ends with `end_round`. The first goes
    on from the job's checkpoint, if there is one.

    Args:
        job: What the job's file says.
        folder: The job's run folder, where relative paths begin.
        framework: As for `RuleServer`, and so are the arguments after it.
    """

    _contents: dict[str, Any] | None  # of the sites in this round; None between two rounds

    def __init__(
        self,
        job: Job,
        folder: Path,
        *,
        framework: str,
        strategy: str,
        log: logging.Logger,
        read: Callable[[Any], State],
    ) -> None:
        super().__init__(
            job.server_rule,
            MetricNames(partition_id=None),  # a site is its name, whatever it says
            framework=framework,
            strategy=strategy,
            log=log,
            record_to=None if job.record_to is None else folder / job.record_to,
            checkpoint_to=None if job.checkpoint_to is None else folder / job.checkpoint_to,
            named_nodes=True,
            read=read,
        )
        self._weighted_by = job.weighted_by
        self._lock = threading.Lock()
        self._number = 0
        self.forget()

    def fetched(self, sent: Any, sites: Iterable[str]) -> None:
        """Note that sites are sent the global model; the first time in a round begins it.

        Raises:
            FedcrfError: As `begin_round`; also, the checkpoint is damaged, or of another rule or
                model.
        """
        with self._lock:
            if self._contents is None:
                if self._number == 0 and self._checkpoint is not None:
                    self.hold()
                    saved = self.saved()
                    if saved is not None:
                        self.go_on(saved, self.model_of(sent))
                        self._log.info("Continuing after round %d with its memory", saved.round)
                self.begin_round(self._number + 1, sent, ())
                self._number += 1
                self._contents = {}
            self.ask_also(sites)

    def replied(self, site: str, content: Any) -> None:
        """Keep what a site sent for the round's end; of several results of one the last counts.

        It is refused of a site that is not asked in the round in progress: it came after the end
        of its own.
        """
        with self._lock:
            asked = self._round.asked if self._round is not None else ()
            known = site in asked or not asked  # it may not be known who was asked
            if self._contents is not None and known:
                self._contents[site] = content
                return
        self._warn([f"a result of {site} is refused: it came after the end of the round it is of"])

    def end_round(self, wrap: Wrap) -> tuple[Decision, dict[str, Any], dict[str, Any]]:
        """Return what became of the round, the next model as of `decide`, and the metrics' means.

        The round is recorded and saved before this returns.

        Raises:
            FedcrfError: No site fetched the model, it is the second round in a row without a
                usable reply, or a file cannot be written.
        """
        with self._lock:
            contents = None if self._contents is None else dict(self._contents)  # one may be late
        if contents is None:
            raise FedcrfError(
                "no site fetched the model in this round: are they connected to the server?"
            )
        assert self._round is not None
        state, weighted_by = self._round.state, self._weighted_by
        replies = [wrap(site, each, state, weighted_by) for site, each in contents.items()]
        decision, after = self.decide(replies, weighted_by)
        metrics = self.averaged(decision, weighted_by)
        self.finish(decision, after)
        self.forget()
        return decision, after, metrics

    def forget(self) -> None:
        """Forget the round and its replies; what the rule remembers stays."""
        with self._lock:
            self._contents = None
