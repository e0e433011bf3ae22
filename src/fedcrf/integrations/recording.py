"""A framework's run in the project's own round records, for ``fedcrf show`` and the figures."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import torch

from fedcrf.errors import FedcrfError
from fedcrf.experiments.provenance import provenance
from fedcrf.experiments.recorded import (
    Description,
    LaterEvaluation,
    RecordedRun,
    rule_settings,
)
from fedcrf.experiments.settings import differences, lasting
from fedcrf.experiments.store import check_folder
from fedcrf.integrations.decision import Decision
from fedcrf.integrations.replies import MOST_PARTITIONS, Node, mean_of
from fedcrf.rules import Rule
from fedcrf.simulation.records import (
    ClientMetrics,
    ExcludedNode,
    Metrics,
    RoundRecord,
    Seconds,
    brief,
    decided,
)


class ShownNumbers:
    """The number of each client in a run's records, small and the same in every round.

    It is the client's partition, if that is free. Others get the next numbers above all that are
    taken; numbers above 1000 and above ten times the median do not count.
    """

    def __init__(self, numbers: Mapping[int, int], taken: Iterable[int] = ()) -> None:
        """Know the numbers of some clients, and ``taken`` ones, which no other client gets."""
        self._numbers = dict(numbers)
        self._taken = {*numbers.values(), *taken}

    def of(self, clients: Iterable[int]) -> list[int]:
        """Return the numbers of a round's clients; those with a free partition come first."""
        clients = list(clients)
        new = {*clients} - self._numbers.keys()
        free = {client for client in new if client < MOST_PARTITIONS} - self._taken
        self._numbers.update(zip(free, free, strict=True))
        self._taken |= free
        most = 10 * max(100, statistics.median_low([0, *self._taken]))
        largest = max((number for number in self._taken if number <= most), default=-1)
        further = (number for number in count(largest + 1) if number not in self._taken)
        for client, number in zip(sorted(new - free), further, strict=False):
            self._numbers[client] = number
            self._taken.add(number)
        return [self._numbers[client] for client in clients]


class Recorder:
    """Writes the rounds of a strategy's runs, a folder for each run."""

    def __init__(self, parent: Path, framework: str, strategy: str, rule: Rule) -> None:
        """Set the folder in which each run gets a folder of its own; nothing is written yet.

        ``framework`` is the name and version of what carries out the runs, ``strategy`` its
        adapter's.

        Raises:
            FedcrfError: The folder is a file, or the record of one run itself, or its name is too
                long.
        """
        mend = "name another as record_to"
        try:
            is_run = RecordedRun(parent).exists()
        except OSError as error:  # a name that is too long
            raise FedcrfError(f"records folder {parent}: {error.strerror}; {mend}") from None
        if is_run:
            raise FedcrfError(
                f"records folder {parent} is itself the record of a run: name the folder above it, "
                "or a new one"
            )
        check_folder(parent, mend)
        self._parent = parent
        self._description = Description(
            framework=framework,
            strategy=strategy,
            rule=rule.name,
            settings=rule_settings(rule),
            provenance=provenance(torch.device("cpu")),
        )
        self._rule = rule
        self._run: RecordedRun | None = None
        self._numbers = ShownNumbers({})
        self._trained_at = math.nan

    @property
    def name(self) -> str | None:
        """The name of the present run's folder; None before the first."""
        return None if self._run is None else self._run.path.name

    def begin(
        self, run: str | None, clients: Mapping[Node, int] | None = None, rounds: int = 0
    ) -> Path:
        """Begin the record of a run, or go on with that of an earlier one, and return its folder.

        A record without a round yet is not begun twice: a server may choose its nodes anew.
        ``clients`` are those of the earlier run by node, after so many ``rounds``; they keep their
        numbers. Rounds after these go: the run that goes on has others in their place.

        Raises:
            FedcrfError: The folder cannot be made.
        """
        before = self._earlier(run)
        if before is not None:
            before.go_on(after=rounds)
            self._run, self._numbers = before, _numbers_in(before, clients or {}, rounds)
            return before.path
        self._numbers = ShownNumbers({})
        if self._run is None or not self._run.exists() or self._run.sound_records()[0]:
            self._run = RecordedRun.begin(self._parent, self._description, datetime.now(UTC))
        return self._run.path

    def changed(self, run: str | None) -> str | None:
        """Return why the rule cannot go on in an earlier run's record; None where it can."""
        before = self._earlier(run)
        if before is None:
            return None
        try:
            there = before.description()
        except FedcrfError as error:
            return str(error)
        known = there.known_rule
        if known == self._rule:
            return None
        if there.rule != self._description.rule:
            return f"{run} is of another rule, {there.rule}"
        here = Description.model_validate_json(self._description.model_dump_json())
        was = there.settings if known is None else rule_settings(known)
        # Names alone: a value may be a secret seed.
        names = [name for name, *_ in differences(_lasting(was), _lasting(here.settings))]
        return f"{run} is of other settings: {', '.join(names)}" if names else None

    def trained(self, decision: Decision, losses: Sequence[float]) -> None:
        """Write a round's training, with each reply's loss, NaN without one."""
        assert self._run is not None
        now, current = time.perf_counter(), decision.round
        unknown = {"loss": math.nan, "accuracy": math.nan}  # it is evaluated later, if at all
        # Sites are clients of these names; ids, which may be new in every run, stand beside them.
        nodes = [reply.node for reply in decision.replies]
        named = any(isinstance(node, str) for node in nodes)
        clients = [reply.client for reply in decision.replies]
        record = RoundRecord(
            round=current.number,
            training_loss=mean_of(losses, decision.shares),
            validation=Metrics(**unknown),
            test=ClientMetrics(**unknown, client_mean=math.nan, worst_client=math.nan),
            nodes=None if named else nodes,
            client_training_loss=brief(losses),
            excluded_nodes=[
                ExcludedNode(node=each.node, reason=each.reason) for each in decision.excluded
            ],
            kept_model=decision.kept_reason is not None,
            kept_reason=decision.kept_reason,
            seconds=Seconds(
                training=current.arrived - current.started,
                aggregation=now - current.arrived,
                evaluation=math.nan,
            ),
            **decided(
                decision.replies,
                nodes if named else self._numbers.of(clients),
                decision.result,
            ),
        )
        self._run.append(record)
        self._trained_at = now

    def evaluated(self, number: int, loss: float, accuracy: float, *, by_clients: bool) -> None:
        """Write the loss and accuracy of a round's model; NaN where they were not measured."""
        assert self._run is not None
        seconds = time.perf_counter() - self._trained_at
        self._run.append(
            _evaluation(number, Metrics(loss=loss, accuracy=accuracy), seconds, by_clients)
        )

    def evaluated_late(
        self, run: str | None, number: int, loss: float, accuracy: float, *, by_clients: bool
    ) -> None:
        """Write the same of a round of an earlier run, unless it was measured already."""
        before = self._earlier(run)
        if before is None:
            return
        for record in before.sound_records()[0]:
            known = record.validation if by_clients else record.held_out
            measured = known is not None and any(math.isfinite(value) for _, value in known)
            if record.round == number and not measured:
                before.go_on()
                metrics, seconds = Metrics(loss=loss, accuracy=accuracy), record.seconds.evaluation
                before.append(_evaluation(number, metrics, seconds, by_clients))

    def _earlier(self, run: str | None) -> RecordedRun | None:
        """Return the record of an earlier run; None if it is not there any more."""
        before = None if run is None else RecordedRun(self._parent / run)
        return before if before is not None and before.exists() else None


def _evaluation(number: int, metrics: Metrics, seconds: float, by_clients: bool) -> LaterEvaluation:
    return LaterEvaluation(
        evaluated_round=number,
        validation=metrics if by_clients else None,
        held_out=None if by_clients else metrics,
        seconds=seconds,
    )


def _lasting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as every process describes them."""
    same: dict[str, Any] = json.loads(lasting(json.dumps(settings)))
    return same


def _numbers_in(run: RecordedRun, clients: Mapping[Node, int], rounds: int) -> ShownNumbers:
    """Return the numbers that the clients of these nodes have in the first rounds of a record."""
    owners: dict[int, int | None] = {}  # by number; None where the node is not known any more
    for record in run.sound_records()[0]:
        for node, number in zip(record.nodes or [], record.clients, strict=False):
            if isinstance(number, int) and record.round <= rounds and owners.get(number) is None:
                owners[number] = clients.get(node)
    known = {client: number for number, client in owners.items() if client is not None}
    return ShownNumbers(known, owners)
