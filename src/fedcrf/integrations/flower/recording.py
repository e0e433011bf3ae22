"""A Flower run in the project's own round records, for ``fedcrf show`` and the figures."""

from __future__ import annotations

import math
from pathlib import Path

import flwr
import numpy as np
import torch
from flwr.app import MetricRecord

from fedcrf.errors import FedcrfError
from fedcrf.experiments.provenance import provenance
from fedcrf.experiments.recorded import Description, RecordedRun, rule_name, rule_settings
from fedcrf.integrations.flower.decision import Decision, TrainingRound
from fedcrf.integrations.flower.replies import MetricNames, number, small_numbers
from fedcrf.rules import Rule
from fedcrf.simulation.records import (
    ClientMetrics,
    LeftOutRecord,
    Metrics,
    RoundRecord,
    Seconds,
    brief,
    evidence_of,
    reasons_of,
)


class Recorder:
    """Writes a round's record once its model has been evaluated."""

    def __init__(self, folder: Path, strategy: str, rule: Rule) -> None:
        """Start a record.

        Args:
            folder: New or empty.
            strategy: Name of the strategy.
            rule: Its server rule.

        Raises:
            FedcrfError: The folder holds something, or cannot be made.
        """
        self._run = RecordedRun.create(
            folder,
            Description(
                framework=f"flwr {flwr.__version__}",
                strategy=strategy,
                rule=rule_name(rule),
                settings=rule_settings(rule),
                provenance=provenance(torch.device("cpu")),
            ),
        )
        self._trained: RoundRecord | None = None
        self._trained_at = math.nan

    def begin(self) -> None:
        """Check that the folder is that of the run that begins.

        Raises:
            FedcrfError: It holds the rounds of another.
        """
        if self._run.records():
            raise FedcrfError(
                f"records folder {self._run.path} holds an earlier run: give this one a strategy "
                "with a record_to of its own"
            )
        self._trained = None

    def trained(
        self, current: TrainingRound, decision: Decision, arrived: float, now: float
    ) -> None:
        """Take note of a round's training; what was measured in seconds of one clock.

        Args:
            current: What was sent.
            decision: What became of the replies.
            arrived: When they were all there.
            now: When the next model was.
        """
        replies, result = decision.replies, decision.result
        counts = [reply.num_examples for reply in replies]
        losses = [reply.training_loss for reply in replies]
        clients = small_numbers(decision.reports)
        unknown = Metrics(loss=math.nan, accuracy=math.nan)
        self._trained = RoundRecord(
            round=current.number,
            training_loss=float(np.average(losses, weights=counts)) if replies else math.nan,
            validation=unknown,
            test=ClientMetrics(
                loss=math.nan, accuracy=math.nan, client_mean=math.nan, worst_client=math.nan
            ),
            clients=clients,
            nodes=[reply.node for reply in replies],
            num_examples=counts,
            client_training_loss=brief(losses),
            evidence=evidence_of(decision.reports),
            weight=[] if result is None else brief(result.weights),
            base_weight=[] if result is None else brief(result.base_weights),
            excluded=[]
            if result is None
            else [client for client, out in zip(clients, result.excluded, strict=True) if out],
            left_out=[
                LeftOutRecord(node=each.node, reason=each.reason) for each in decision.left_out
            ],
            kept_model=decision.kept_model,
            kept_reason=None if result is None else result.kept_reason,
            reasons=None if result is None else reasons_of(result),
            seconds=Seconds(
                training=arrived - current.started, aggregation=now - arrived, evaluation=math.nan
            ),
        )
        self._trained_at = now

    def evaluated(self, metrics: MetricRecord | None, names: MetricNames, now: float) -> None:
        """Write the round, with what the clients' evaluation of its model gave, if anything."""
        if self._trained is None:
            return
        given = metrics or MetricRecord()
        record = self._trained.model_copy(
            update={
                "validation": Metrics(
                    loss=number(given, names.evaluation_loss),
                    accuracy=number(given, names.evaluation_accuracy),
                ),
                "seconds": self._trained.seconds.model_copy(
                    update={"evaluation": now - self._trained_at}
                ),
            }
        )
        self._run.append(record)
        self._trained = None
