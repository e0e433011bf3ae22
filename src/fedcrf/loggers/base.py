"""What a logger is, and what it is given."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedcrf.experiments.spec import CellSpec
from fedcrf.experiments.store import CellSummary
from fedcrf.simulation.records import LARGEST_AFFINITY, RoundRecord


@dataclass(frozen=True)
class LoggedCell:
    """The cell that a logger is made for.

    Attributes:
        folder: Of the run.
        cell: What is run.
        rounds_done: Rounds of an earlier execution, after which it goes on.
    """

    folder: Path
    cell: CellSpec
    rounds_done: int = 0

    @property
    def identity(self) -> str:
        """The same whenever this cell of this folder goes on, and different for any other."""
        place = f"{self.folder.resolve()}/{self.cell.name}"
        return hashlib.sha256(place.encode()).hexdigest()[:16]


class CellLogger(Protocol):
    """Takes the numbers of one cell. Several exist at once where several cells run at once."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the finite numbers of a round by name; ``step`` is the round."""
        ...

    def finish(self, result: Mapping[str, float]) -> None:
        """Take the cell's result, empty where it failed; nothing comes after it."""
        ...


class MakeLogger(Protocol):
    """Begins to log a cell.

    Raises:
        ImportError: The tool is not installed.
    """

    def __call__(self, logged: LoggedCell) -> CellLogger:
        """Return the logger of one cell."""
        ...


def round_values(record: RoundRecord) -> dict[str, float]:
    """Return the finite numbers of a round by name; those of clients where they are few."""
    values = {
        "training/loss": record.training_loss,
        "validation/loss": record.validation.loss,
        "validation/accuracy": record.validation.accuracy,
        "test/accuracy": record.test.accuracy,
        "test/client_mean": record.test.client_mean,
        "test/worst_client": record.test.worst_client,
        "seconds/round": record.seconds.total,
        "seconds/aggregation": record.seconds.aggregation,
        "clients/excluded": float(len(record.excluded)),
    }
    if record.held_out is not None:
        values["held_out/accuracy"] = record.held_out.accuracy
    if len(record.clients) <= LARGEST_AFFINITY:
        by_client = {"weight": record.weight}
        if record.reasons is not None:
            by_client["reliability"] = record.reasons.reliability
            by_client["trust"] = record.reasons.expected_label
        for name, numbers in by_client.items():
            if numbers:  # a field past the paper's infers no reliability
                for client, number in zip(record.clients, numbers, strict=True):
                    values[f"{name}/client_{client}"] = number
    return _finite(values)


def result_values(summary: CellSummary) -> dict[str, float]:
    """Return the finite numbers of a cell's result by name."""
    values = {
        "result/test_accuracy": summary.test_accuracy,
        "result/validation_loss": summary.validation_loss,
        "result/worst_client": summary.worst_client,
        "result/best_round": float(summary.best_round),
    }
    return _finite(values)


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
