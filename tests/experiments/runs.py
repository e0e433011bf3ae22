"""Runs on the digits that take a second, and finished cells made up out of hand."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import pytest

from fedcrf.experiments.grid import Event, Workplace, run_grids
from fedcrf.experiments.provenance import Provenance
from fedcrf.experiments.results import frame
from fedcrf.experiments.spec import RunSpec, resolve
from fedcrf.experiments.store import CellSummary, Store
from fedcrf.simulation.records import ClientMetrics, Metrics, Reasons, RoundRecord, Seconds


def small_spec(**changes: Any) -> RunSpec:
    base = {
        "methods": ["fedavg", "crf-fedavg"],
        "seeds": [0, 1],
        "partition": {"num_clients": 4},
        "model": {"name": "mlp", "hidden": [4]},
        "rounds": {"maximum": 3},
    }
    return resolve(base, changes)


class Log:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def carry_out(spec: RunSpec, folder: Path, jobs: int = 1) -> tuple[Log, list[Any]]:
    log = Log()
    failed = run_grids([(spec, Store(folder))], Workplace(device="cpu", jobs=jobs), log)
    return log, failed


def full_disk(monkeypatch: pytest.MonkeyPatch, name: str, number: int = errno.ENOSPC) -> None:
    """Let what is written to files of that name fail with the system's error of that number."""
    opened = Path.open

    def opened_full(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        file = opened(path, mode, *arguments, **named)
        if name not in path.name or mode[0] not in "wxa":
            return file
        full = MagicMock(wraps=file)
        full.write.side_effect = OSError(number, os.strerror(number))
        full.__enter__.return_value = full
        full.__exit__.side_effect = lambda *_: file.close()
        return full

    monkeypatch.setattr(Path, "open", opened_full)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file of a folder with its time of change and content; empty where none is."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def record(number: int, loss: float, accuracy: float = 0.5, crf: bool = False) -> RoundRecord:
    return RoundRecord(
        round=number,
        training_loss=loss,
        validation=Metrics(loss=loss, accuracy=accuracy),
        test=ClientMetrics(loss=loss, accuracy=accuracy, client_mean=0.4, worst_client=0.1),
        clients=[0, 2],
        num_examples=[10, 20],
        client_training_loss=[loss, loss],
        weight=[0.5, 0.5],
        base_weight=[1 / 3, 2 / 3],
        reasons=Reasons(
            reliability=[0.5, 0.5],
            cosine=[0.5, 0.5],
            distance=[1.0, 1.0],
            norm_anomaly=[1.0, 1.0],
            trust=[0.6, 0.3],
        )
        if crf
        else None,
        seconds=Seconds(training=0.1, aggregation=0.01, evaluation=0.05),
    )


def table_of(cells: Iterable[tuple[str, int, float]], **columns: Any) -> pd.DataFrame:
    """Finished cells as a table: method, seed and accuracy of each."""
    return frame(
        {"method": method, "seed": seed, "accuracy": accuracy, "complete": True, **columns}
        for method, seed, accuracy in cells
    )


def summary(method: str, seed: int, accuracy: float, **changes: Any) -> CellSummary:
    fields: dict[str, Any] = {
        "method": method,
        "seed": seed,
        "rounds": 10,
        "best_round": 8,
        "stopped_early": True,
        "validation_loss": 0.5,
        "test_accuracy": accuracy,
        "client_mean": accuracy - 0.1,
        "worst_client": accuracy - 0.3,
        "held_out_accuracy": accuracy + 0.05,
        "last_test_accuracy": accuracy - 0.01,
        "seconds_per_round": 0.2,
        "aggregation_share": 0.05,
        "description": {},
        "fingerprint": "0" * 16,
        "provenance": Provenance(
            fedcrf="0", commit=None, python="3", torch="2", numpy="2", system="", processor="",
            cores=2, device="cpu",
        ),
    }  # fmt: skip
    return CellSummary(**(fields | changes))
