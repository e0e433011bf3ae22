"""Runs that another framework carried out with the rules of this project, from their records.

::

    RUN/description.json    which strategy, with what settings, versions and machine, and when
    RUN/rounds.jsonl        one record a round, appended; what the server does not know is null
                            and behind it what was measured of its model later, a line each

Each run has a folder of its own within the one that a strategy is given, named by when it began.
What such a run was about (the data, the model, who trained how) the server does not know.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.tables import NO_NUMBER, Table
from fedcrf.experiments.provenance import Provenance
from fedcrf.experiments.settings import build
from fedcrf.experiments.store import ROUNDS, Course, line_of, read_lines, read_record, undamaged
from fedcrf.files import MENDS, append_line, atomic_write, whole_lines, write_text
from fedcrf.rules import RULES, SERVER_OPTIMIZERS, Optimized, Rule, byzfl_rule
from fedcrf.rules.byzfl import PREFIX
from fedcrf.rules.wrappers import BEHIND
from fedcrf.simulation.records import Metrics, Number, Record, RoundRecord, Rounds, reported_round

T = TypeVar("T")
M = TypeVar("M", bound=Metrics)

DESCRIPTION = "description.json"

ANY_RULE = ("RuleStrategy", "RuleAggregator")
"""The strategies whose names do not say their rule: Flower's and NVFlare's."""

UNKNOWN = Metrics(loss=math.nan, accuracy=math.nan)
"""Where nothing was measured."""

ROUNDING = 1e-6
"""A mean of accuracies in [0, 1] may lie outside by so much, as a mean of ones may be above 1."""

MEND = "take it and the lines after it away to keep the rounds before, or record the run anew"
"""What can be done about a damaged record; the server did it once, and nothing does it again."""


class Description(Record):
    """What the server knows of a run: the framework with its version, the strategy, the rule.

    ``rule`` and ``settings`` are `Rule.name` and `rule_settings` of it; ``started`` is in UTC,
    missing from older records. Runs of `fedcrf.simulate` alone have ``about``, terms and what
    stands behind them, and ``made_of``, by part what tells them from any other.
    """

    framework: str
    strategy: str
    rule: str
    settings: dict[str, Any]
    provenance: Provenance
    started: str | None = None
    about: list[tuple[str, str]] | None = None
    made_of: dict[str, str] | None = None

    @property
    def title(self) -> str:
        """The strategy, with its rule where it is that of any."""
        any_rule = self.strategy in ANY_RULE
        return f"{self.strategy}({self.rule})" if any_rule else self.strategy

    @property
    def known_rule(self) -> Rule | None:
        """The rule with its settings; None where it is none of this version's."""
        try:
            return _rule(self.rule, self.settings)
        except (KeyError, TypeError, FedcrfError):
            return None


class LaterEvaluation(Record):
    """What clients or the server measured of a round's model after its record had been written."""

    evaluated_round: int
    validation: Metrics | None = None
    held_out: Metrics | None = None
    seconds: Number

    def added_to(self, record: RoundRecord) -> RoundRecord:
        """Return the round's record with what was measured."""
        seconds = record.seconds.model_copy(update={"evaluation": self.seconds})
        found = {
            "validation": _merged(record.validation, self.validation),
            "held_out": _merged(record.held_out, self.held_out),
        }
        return record.model_copy(update={**found, "seconds": seconds})


def _merged(before: Metrics | None, later: Metrics | None) -> Metrics | None:
    """Return what was measured; what was measured again replaces it, if it is finite."""
    if before is None or later is None:
        return later or before
    known = {name: value for name, value in later if math.isfinite(value)}
    return before.model_copy(update=known)


@dataclass(frozen=True)
class RecordedRun:
    """The folder of one run."""

    path: Path

    @classmethod
    def begin(cls, parent: Path, description: Description, started: datetime) -> RecordedRun:
        """Start the record of one more run, in a folder of its own within ``parent``.

        It is named by when the run began; a second run within one second has a number behind it.
        """
        name = f"{started.astimezone(UTC):%Y%m%d-%H%M%S}"
        with _writing(parent):
            parent.mkdir(parents=True, exist_ok=True)
            for number in count(1):
                run = cls(parent / (name if number == 1 else f"{name}-{number}"))
                with suppress(FileExistsError):
                    run.path.mkdir()
                    break
        run.describe(description, started)
        return run

    def describe(self, description: Description, started: datetime) -> None:
        """Write what the run is, and that it began at that time."""
        begun = description.model_copy(update={"started": started.astimezone(UTC).isoformat()})
        with _writing(self.path):
            write_text(self.path / DESCRIPTION, begun.model_dump_json(indent=1) + "\n")

    def go_on(self, after: float = math.inf) -> None:
        """Prepare for more rounds of a run that was stopped, after one of its rounds.

        An unfinished last line goes, and so do later rounds, which are not of the run that goes on.
        """
        with _writing(self.path):
            rounds = self.path / ROUNDS
            lines = whole_lines(rounds) if rounds.exists() else []
            with atomic_write(rounds) as file:
                file.writelines(line + b"\n" for line in lines if _round_of(line) <= after)

    def exists(self) -> bool:
        """Tell whether the folder holds a recorded run."""
        return (self.path / DESCRIPTION).is_file()

    def description(self) -> Description:
        """Return what the run was."""
        path, wrong = self.path / DESCRIPTION, "does not describe a recorded run"
        if (found := read_record(Description, path, wrong)) is None:
            raise FedcrfError(f"{path} {wrong}: put it back as it was, or name another folder")
        return found

    def sound_records(self) -> tuple[list[RoundRecord], str | None]:
        """Return the rounds before the first damaged line, and what is wrong with that, if any.

        Of a round that was done again, since the run had stopped in it, the last one counts.
        """
        lines, damage = read_lines(
            self.path / ROUNDS, RoundRecord | LaterEvaluation, f"a round's record: {MEND}"
        )
        rounds: dict[int, RoundRecord] = {}
        for line in lines:
            if isinstance(line, RoundRecord):
                rounds[line.round] = line
            elif line.evaluated_round in rounds:
                rounds[line.evaluated_round] = line.added_to(rounds[line.evaluated_round])
        return list(rounds.values()), damage

    def records(self) -> list[RoundRecord]:
        """Return the rounds so far; a damaged line is an error."""
        return undamaged(self.sound_records())

    def course(self) -> Course:
        """Return how far the run is."""
        records, damage = self.sound_records()
        description = self.description()
        return Course(description.title, records, description.known_rule, damage=damage)

    def append(self, record: RoundRecord | LaterEvaluation) -> None:
        """Keep one more round, or what was measured of one."""
        with _writing(self.path):
            append_line(self.path / ROUNDS, line_of(record))


def _round_of(line: bytes) -> float:
    """Return which round a line is of, or measured of; minus infinity where it is damaged."""
    try:
        found: Mapping[str, float] = json.loads(line)
        return float(found.get("round", found.get("evaluated_round", -math.inf)))
    except (ValueError, TypeError, AttributeError):
        return -math.inf


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into a `FedcrfError` that names the folder and what helps."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        said = why.endswith(tuple(MENDS.values()))
        mend = "" if said else "; name another as record_to"
        raise FedcrfError(f"records folder {folder}: {why}{mend}") from None


def rule_settings(rule: Rule) -> dict[str, Any]:
    """Return the settings of a rule as JSON has them; what it has no form for is described."""
    settings: dict[str, Any] = dataclasses.asdict(rule) if dataclasses.is_dataclass(rule) else {}
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=repr))
    return plain


def _rule(name: str, settings: Mapping[str, Any]) -> Rule:
    """Return the rule of `Rule.name` and `rule_settings`; any error where there is none such."""
    if BEHIND in name:
        before, _, last = name.rpartition(BEHIND)
        rule = _rule(before, settings["rule"])
        optimizer = build(_by_class(SERVER_OPTIMIZERS)[last], settings["optimizer"], last)
        return Optimized(rule, optimizer, tuple(settings["buffers"]))
    kind = byzfl_rule(name) if name.startswith(PREFIX) else _by_class(RULES)[name]
    return build(kind, settings, name, stored=True)


def _by_class(registry: Mapping[str, type[T]]) -> dict[str, type[T]]:
    return {kind.__name__: kind for kind in registry.values()}


def check_there(folder: Path) -> None:
    """Raise a `FedcrfError` where there is no folder at all."""
    if not os.path.lexists(folder):
        raise FedcrfError(
            f"there is no folder {folder}, looked for from {Path.cwd()}: mend the path"
        )


def recorded_runs(folder: Path) -> dict[str, RecordedRun]:
    """Return the recorded run in a folder, or else those in the folders within it, by name.

    The folders of runs may themselves lie in folders, one for each strategy that recorded them.
    """
    whole = RecordedRun(Path(os.path.realpath(folder)))  # also of a link to itself
    if whole.exists():
        return {whole.path.name: whole}
    return {name: RecordedRun(path) for name, path in runs_within(folder, DESCRIPTION).items()}


def runs_within(folder: Path, description: str) -> dict[str, Path]:
    """Return the folders up to two below that have a file of that name, by their relative path."""
    found = (
        path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{description}")
    )
    return {path.relative_to(folder).as_posix(): path for path in sorted(found)}


def readable(runs: Mapping[str, RecordedRun]) -> tuple[dict[str, RecordedRun], list[str]]:
    """Return the runs that say what they are, and of the others why not; an error if none does."""
    sound, errors = dict(runs), {}
    for name, run in runs.items():
        try:
            run.description()
        except FedcrfError as error:
            errors[name] = str(error)
            del sound[name]
    if errors and not sound:
        raise FedcrfError("; ".join(errors.values()))
    return sound, [f"{name} could not be read: {error}" for name, error in errors.items()]


def recorded_rows(runs: Mapping[str, RecordedRun]) -> Iterator[dict[str, Any]]:
    """Yield a row of the table of results for each run, over its sound rounds.

    Behind the columns of every table are the ``run``'s name, its ``clients``, how often one was
    ``excluded``, and the ``last_accuracy`` and ``last_loss``. Nothing says whether it is complete,
    nor of which seed.
    """
    for name, run in runs.items():
        course = run.course()
        records = evaluated(course.records)
        row = {
            "method": course.title,
            "rounds": records[-1].round if records else 0,
            "commit": run.description().provenance.commit,
            "damage": course.damage,
            "folder": str(run.path),
            "run": name,
            "clients": len({client for record in records for client in record.clients}),
            "excluded": sum(
                len(each.excluded_nodes or []) + len(each.excluded) for each in records
            ),
        }
        if records:
            best = reported_round(records)
            row |= {
                "curve": [record.validation.accuracy for record in records],
                "validation_accuracy": best.validation.accuracy,
                "validation_loss": best.validation.loss,
                "best_round": best.round,
                "last_accuracy": records[-1].validation.accuracy,
                "last_loss": records[-1].validation.loss,
            }
        yield row


def recorded_table(runs: Mapping[str, RecordedRun]) -> Table:
    """Return how far each run is: its strategy, sound rounds, evaluation, and exclusions.

    ``at lowest loss`` is the accuracy of the round with the lowest loss; losses are shown if no run
    has an accuracy.
    """
    found = list(recorded_rows(runs))
    known = [math.isfinite(value) for row in found for value in row.get("curve", ())]
    what, form = ("accuracy", ".3f") if any(known) or not known else ("loss", ".4g")

    def text(value: object) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:{form}}" if math.isfinite(value) else NO_NUMBER

    measured = (f"last_{what}", f"validation_{what}")
    keys = ("run", "method", "rounds", "clients", *measured, "excluded")
    rows = [tuple(text(row.get(key, math.nan)) for key in keys) for row in found]
    header = ("run", "strategy", "rounds", "clients", what, "at lowest loss", "excluded")
    title = "validation by the server, else by the clients"
    return Table(title, header, tuple(rows))


def evaluated(records: Rounds) -> list[RoundRecord]:
    """Return a run's rounds with what is shown as validation: the server's own, or the clients'.

    If the server measured a loss in any round, the loss is the server's in all rounds; else it is
    what the clients sent. The accuracy is chosen likewise. One outside [0, 1] counts as unknown.
    """
    shown = [_sound(record.validation) for record in records]
    own = [UNKNOWN if record.held_out is None else _sound(record.held_out) for record in records]
    for what in Metrics.model_fields:
        values = [getattr(each, what) for each in own]
        if any(map(math.isfinite, values)):
            shown = [
                each.model_copy(update={what: value})
                for each, value in zip(shown, values, strict=True)
            ]
    return [
        record.model_copy(update={"validation": each, "test": _sound(record.test)})
        for record, each in zip(records, shown, strict=True)
    ]


def _sound(measured: M) -> M:
    """Return the same, with NaN for an accuracy outside [0, 1]; means may be off by `ROUNDING`."""
    if -ROUNDING <= measured.accuracy <= 1 + ROUNDING:
        return measured
    return measured.model_copy(update={"accuracy": math.nan})


def write_recorded_figures(folder: Path, runs: Mapping[str, RecordedRun]) -> list[Path]:
    """Draw accuracy, loss and trust over the rounds of all runs into the folder."""
    from fedcrf.experiments.analysis.figures import save_run_figures

    records = {name: [evaluated(run.course().records)] for name, run in runs.items()}
    title = ", ".join(dict.fromkeys(run.description().framework for run in runs.values()))
    return save_run_figures(folder, records, title)
