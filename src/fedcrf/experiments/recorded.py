"""Runs that another framework carried out with the rules of this project, from their records.

::

    RUN/description.json    which strategy, with what settings, versions and machine
    RUN/rounds.jsonl        one record a round, appended; what the server was not told is null

What such a run was about (the data, the model, who trained how) the server does not know.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fedcrf.errors import FedcrfError
from fedcrf.experiments.figures import accuracy_figure, loss_figure, save, trust_figure
from fedcrf.experiments.provenance import Provenance
from fedcrf.experiments.settings import build
from fedcrf.experiments.store import append_record, read_records, undamaged
from fedcrf.experiments.tables import Table
from fedcrf.files import write_text
from fedcrf.rules import RULES, SERVER_OPTIMIZERS, ByzFLRule, Optimized, Rule, byzfl_rule
from fedcrf.rules.byzfl import PREFIX
from fedcrf.simulation.records import Record, RoundRecord, reported_round

T = TypeVar("T")

MEND = "take it and the lines after it away to keep the rounds before, or record the run anew"
"""What can be done about a damaged record; the server did it once, and nothing does it again."""

BEHIND = "+"
"""Stands before the name of a server optimizer."""


class Description(Record):
    """What the server knows of a run: the framework with its version, the strategy, the rule.

    ``rule`` and ``settings`` are `rule_name` and `rule_settings` of it.
    """

    framework: str
    strategy: str
    rule: str
    settings: dict[str, Any]
    provenance: Provenance

    @property
    def title(self) -> str:
        """The strategy, with its rule where it is that of any."""
        any_rule = self.strategy == "RuleStrategy"
        return f"{self.strategy}({self.rule})" if any_rule else self.strategy


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
            write_text(run._description, description.model_dump_json(indent=1) + "\n")
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
            DamagedRecordsError: A line that is no record.
        """
        return undamaged(*self.sound_records())

    def sound_records(self) -> tuple[list[RoundRecord], str | None]:
        """Return the rounds before the first damaged line, and what is wrong with that, if any."""
        return read_records(self._rounds, mend=MEND)

    def rule(self) -> Rule | None:
        """Return the rule with its settings; None where it is none of this version's."""
        description = self.description()
        try:
            return _rule(description.rule, description.settings)
        except (KeyError, TypeError, FedcrfError):
            return None

    def append(self, record: RoundRecord) -> None:
        """Keep one more round."""
        append_record(self._rounds, record)

    @property
    def _rounds(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def _description(self) -> Path:
        return self.path / "description.json"


def rule_name(rule: Rule) -> str:
    """Return what records call a rule: by its class, with those of server optimizers behind it.

    Rules of ByzFL have no class of their own and go by their names.
    """
    if isinstance(rule, Optimized):
        return f"{rule_name(rule.rule)}{BEHIND}{type(rule.optimizer).__name__}"
    return rule.name if isinstance(rule, ByzFLRule) else type(rule).__name__


def rule_settings(rule: Rule) -> dict[str, Any]:
    """Return the settings of a rule as JSON has them; what it has no form for is described."""
    settings: dict[str, Any] = dataclasses.asdict(rule) if dataclasses.is_dataclass(rule) else {}
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=repr))
    return plain


def _rule(name: str, settings: Mapping[str, Any]) -> Rule:
    """Return the rule of `rule_name` and `rule_settings`.

    Raises:
        KeyError: There is none of that name, or a setting is missing.
        TypeError: The settings are not by name.
        FedcrfError: Not such.
    """
    if BEHIND in name:
        before, _, last = name.rpartition(BEHIND)
        rule = _rule(before, settings["rule"])
        optimizer = build(_by_class(SERVER_OPTIMIZERS)[last], settings["optimizer"], last)
        return Optimized(rule, optimizer, tuple(settings["buffers"]))
    kind = byzfl_rule(name) if name.startswith(PREFIX) else _by_class(RULES)[name]
    return build(kind, settings, name)


def _by_class(registry: Mapping[str, type[T]]) -> dict[str, type[T]]:
    return {kind.__name__: kind for kind in registry.values()}


def recorded_runs(folder: Path) -> dict[str, RecordedRun]:
    """Return the recorded run in a folder, or else those in the folders within it, by name."""
    whole = RecordedRun(folder.resolve())
    if whole.exists():
        return {whole.path.name: whole}
    within = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: run for path in within if (run := RecordedRun(path)).exists()}


def readable(runs: Mapping[str, RecordedRun]) -> tuple[dict[str, RecordedRun], list[str]]:
    """Return those of some runs that say what they are, and of the others why they cannot be read.

    Raises:
        FedcrfError: There are others alone.
    """
    sound, errors = {}, {}
    for name, run in runs.items():
        try:
            run.description()
        except FedcrfError as error:
            errors[name] = str(error)
        else:
            sound[name] = run
    if errors and not sound:
        raise FedcrfError("; ".join(errors.values()))
    return sound, [f"{name} could not be read: {error}" for name, error in errors.items()]


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
                run.description().title,
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
