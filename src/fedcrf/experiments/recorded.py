"""Runs that another framework carried out with the rules of this project, from their records.

::

    RUN/description.json    which strategy, with what settings, versions and machine
    RUN/rounds.jsonl        one record a round, appended; what the server was not told is null

What such a run was about (the data, the model, who trained how) the server does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedcrf.errors import FedcrfError
from fedcrf.experiments.figures import accuracy_figure, loss_figure, save, trust_figure
from fedcrf.experiments.provenance import Provenance
from fedcrf.experiments.store import CellStore
from fedcrf.experiments.tables import Table
from fedcrf.files import atomic_write
from fedcrf.rules import RULES, Rule
from fedcrf.simulation.records import Record, RoundRecord, reported_round


class Description(Record):
    """What the server knows of a run: the framework with its version, the strategy, the rule."""

    framework: str
    strategy: str
    rule: str
    settings: dict[str, Any]
    provenance: Provenance


@dataclass(frozen=True)
class RecordedRun:
    """The folder of one run."""

    path: Path

    @classmethod
    def create(cls, path: Path, description: Description) -> RecordedRun:
        """Start a record in a new or empty folder.

        Raises:
            FedcrfError: The folder holds something, or cannot be made.
        """
        run = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise FedcrfError(f"records folder {path} is not empty: name a new one")
            with atomic_write(run._description) as file:
                file.write(description.model_dump_json(indent=1).encode() + b"\n")
        except OSError as error:
            raise FedcrfError(f"records folder {path}: {error.strerror}") from None
        return run

    def exists(self) -> bool:
        """Tell whether the folder holds a recorded run."""
        return self._description.is_file()

    def description(self) -> Description:
        """Return what the run was.

        Raises:
            FedcrfError: The file is damaged.
        """
        try:
            return Description.model_validate_json(self._description.read_bytes())
        except (OSError, ValidationError):
            raise FedcrfError(f"{self._description} does not describe a recorded run") from None

    def records(self) -> list[RoundRecord]:
        """Return the rounds so far.

        Raises:
            FedcrfError: A line that is no record.
        """
        return CellStore(self.path).records()

    def sound_records(self) -> tuple[list[RoundRecord], str | None]:
        """Return the rounds before the first damaged line, and what is wrong with that, if any."""
        return CellStore(self.path).sound_records()

    def rule(self) -> Rule | None:
        """Return the rule with its settings; None where it is none of this version's."""
        description = self.description()
        for kind in RULES.values():
            if kind.__name__ == description.rule:
                try:
                    return kind(**description.settings)
                except (TypeError, FedcrfError):
                    return None
        return None

    def append(self, record: RoundRecord) -> None:
        """Keep one more round."""
        CellStore(self.path).append_record(record)

    @property
    def _description(self) -> Path:
        return self.path / "description.json"


def recorded_runs(folder: Path) -> dict[str, RecordedRun]:
    """Return the recorded run in a folder, or else those in the folders within it, by name."""
    whole = RecordedRun(folder.resolve())
    if whole.exists():
        return {whole.path.name: whole}
    within = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: run for path in within if (run := RecordedRun(path)).exists()}


def recorded_table(runs: Mapping[str, RecordedRun]) -> Table:
    """Return how far each run is: its strategy, sound rounds, evaluation, and who was left out.

    ``best`` is the accuracy of the round with the lowest loss of the clients' evaluation.
    """
    rows = []
    for name, run in runs.items():
        records, _ = run.sound_records()
        left_out = sum(len(record.left_out or []) + len(record.excluded) for record in records)
        rows.append(
            (
                name,
                run.description().strategy,
                str(len(records)),
                str(max((len(record.clients) for record in records), default=0)),
                _accuracy(records[-1]) if records else "–",
                _accuracy(reported_round(records)) if records else "–",
                str(left_out),
            )
        )
    header = ("run", "strategy", "rounds", "clients", "accuracy", "best", "left out")
    return Table("evaluated by the clients", header, tuple(rows))


def write_recorded_figures(folder: Path, runs: Mapping[str, RecordedRun]) -> list[Path]:
    """Draw accuracy, loss and trust over the rounds of all runs into the folder."""
    records = {name: [run.sound_records()[0]] for name, run in runs.items()}
    title = ", ".join(dict.fromkeys(run.description().framework for run in runs.values()))
    figures = {
        "accuracy": accuracy_figure(records, title),
        "loss": loss_figure(records, title),
        "trust": trust_figure(records, title),
    }
    return [
        path
        for name, figure in figures.items()
        if figure is not None
        for path in save(figure, folder / name)
    ]


def _accuracy(record: RoundRecord) -> str:
    return f"{record.validation.accuracy:.3f}"
