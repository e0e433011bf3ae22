"""A framework's run in the project's own round records, for ``fedcrf show`` and the figures."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from fedcrf.errors import FedcrfError
from fedcrf.experiments.provenance import provenance
from fedcrf.experiments.recorded import (
    Description,
    LaterEvaluation,
    RecordedRun,
    rule_settings,
)
from fedcrf.experiments.store import check_folder
from fedcrf.integrations.decision import Decision
from fedcrf.integrations.replies import mean_of, small_numbers
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


class Recorder:
    """Writes the rounds of a strategy's runs, a folder for each run."""

    def __init__(self, parent: Path, framework: str, strategy: str, rule: Rule) -> None:
        """Set the folder that gets one for each run; nothing is written yet.

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
        self._run: RecordedRun | None = None
        self._trained_at = math.nan

    @property
    def name(self) -> str | None:
        """The name of the present run's folder; None before the first."""
        return None if self._run is None else self._run.path.name

    def begin(self, run: str | None) -> Path:
        """Begin the record of a run, or go on with that of an earlier one, and return its folder.

        Raises:
            FedcrfError: The folder cannot be made.
        """
        before = None if run is None else RecordedRun(self._parent / run)
        if before is not None and before.exists():
            before.go_on()
            self._run = before
            return before.path
        self._run = RecordedRun.begin(self._parent, self._description, datetime.now(UTC))
        return self._run.path

    def trained(self, decision: Decision, losses: Sequence[float]) -> None:
        """Write a round's training, with each reply's loss, NaN without one."""
        assert self._run is not None
        now = time.perf_counter()
        current, unknown = decision.round, {"loss": math.nan, "accuracy": math.nan}
        # Sites are clients of these names; ids, which may be new in every run, stand beside them.
        nodes = [reply.node for reply in decision.replies]
        named = any(isinstance(node, str) for node in nodes)
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
                nodes if named else small_numbers(decision.replies),
                decision.result,
            ),
        )
        self._run.append(record)
        self._trained_at = now

    def evaluated(self, number: int, loss: float, accuracy: float, *, by_clients: bool) -> None:
        """Write the loss and accuracy of a round's model; NaN where they were not measured."""
        assert self._run is not None
        metrics = Metrics(loss=loss, accuracy=accuracy)
        self._run.append(
            LaterEvaluation(
                evaluated_round=number,
                validation=metrics if by_clients else None,
                held_out=None if by_clients else metrics,
                seconds=time.perf_counter() - self._trained_at,
            )
        )
