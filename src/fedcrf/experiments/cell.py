"""The results folder of one cell: its rounds as they come, and its result.

::

    METHOD-seed-S/begun.json       by which code, until the cell is finished
                  rounds.jsonl     one record an evaluated round, appended
                  checkpoint.pt    to go on from; gone when the cell is finished
                  model.pt         the reported model, when the cell is finished
                  summary.json     the cell's result; its presence means finished
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter, ValidationError

from fedcrf.errors import FedcrfError
from fedcrf.experiments.provenance import Provenance, changes, numbers
from fedcrf.experiments.spec import CellSpec, cell_of
from fedcrf.files import append_line, atomic_write, whole_lines, write_text
from fedcrf.simulation.records import (
    Client,
    Number,
    Record,
    RoundRecord,
    Rounds,
    in_order,
    rounds_of,
)
from fedcrf.simulation.rounds import (
    EarlyStopping,
    RunState,
    divergence,
    load_checkpoint,
    lost_so_far,
    save_checkpoint,
    save_model,
)

R = TypeVar("R")

LOCK_NAME = ".lock"


def check_folder(path: Path, mend: str = "choose another with --output") -> None:
    """Raise a `FedcrfError` where a results folder is a file, or lies below one."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise FedcrfError(f"results folder {path}: {place} is a file; {mend}")


def check_free(folder: Path, file: str, what: str) -> None:
    """Raise a `FedcrfError` where a folder lacks ``file`` and holds others: it is no ``what``."""
    ours = (LOCK_NAME, f".{file}.")  # and what a kill left half-written
    if folder.is_dir() and any(not entry.name.startswith(ours) for entry in folder.iterdir()):
        raise FedcrfError(
            f"results folder {folder} is not empty and holds no {what}: "
            "choose another with --output"
        )


@contextmanager
def folder_lock(folder: Path, timeout: float = 0.5) -> Iterator[None]:
    """Hold a folder for writing, made where there is none; give up after ``timeout`` seconds."""
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedcrfError(
            f"results folder {folder}: {error.strerror}; choose another with --output"
        ) from None
    try:
        held = FileLock(folder / LOCK_NAME, timeout=timeout).acquire()
    except Timeout:
        raise FedcrfError(
            f"{folder} is being written by another process: wait for it, or choose another --output"
        ) from None
    with held:
        yield


def line_of(record: Record) -> bytes:
    """Return a record as a line of a file."""
    return record.model_dump_json(exclude_none=True).encode() + b"\n"


def read_lines(path: Path, kind: Any, wanted: str) -> tuple[list[Any], str | None]:
    """Return the records in a file's lines before the first damaged one, and that one's damage.

    A line still being written is left out; a file that is not there has no records. ``kind`` is a
    class of records, or a union of some; ``wanted`` is what a damaged line is not, and the mend.
    """
    try:
        lines = whole_lines(path)
    except FileNotFoundError:
        return [], None
    except OSError as error:
        return [], f"records {path} cannot be read: {error}"
    parse = TypeAdapter(kind).validate_json
    records: list[Any] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(parse(line))
        except ValidationError:
            return records, f"{path}, line {number}, is not {wanted}"
    return records, None


def read_record(kind: type[R], path: Path, wrong: str) -> R | None:
    """Return what the JSON of a file holds; None where there is no file. ``wrong`` words damage."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise FedcrfError(f"{path} {wrong}") from None


@dataclass(frozen=True)
class RoundsFolder(ABC):
    """A folder with the records of some rounds."""

    path: Path

    @abstractmethod
    def sound_records(self) -> tuple[list[RoundRecord], str | None]:
        """Return the rounds before the first damaged line, and what is wrong with that, if any."""

    def records(self) -> list[RoundRecord]:
        """Return the rounds so far; a damaged line is an error."""
        records, damage = self.sound_records()
        if damage is not None:
            raise FedcrfError(damage)
        return records


SPACING = 1.0
"""Seconds between checkpoints of rounds without a record; longer rounds all have one."""
BEGUN, ROUNDS, SUMMARY = "begun.json", "rounds.jsonl", "summary.json"
CHECKPOINT, MODEL = "checkpoint.pt", "model.pt"
FILES = frozenset((BEGUN, ROUNDS, CHECKPOINT, MODEL, SUMMARY))

ANEW = "move the cell's folder away to run it anew"
"""The mend where a cell's files are damaged."""


class CellSummary(Record):
    """The result of a finished cell. Accuracies are shares in [0, 1].

    Those of test, client mean, worst client, held-out set and backdoor are of the round with the
    lowest validation loss; the examples of ``attackers`` count in none. ``images_per_second`` is
    the median round's speed of local training. ``behaviour`` has the numbers of all that made it,
    by part; 1 where one is missing. None stands where the run has no attack or no backdoor.
    """

    method: str
    seed: int
    rounds: int
    best_round: int
    stopped_early: bool
    validation_loss: Number
    test_accuracy: Number
    client_mean: Number
    worst_client: Number
    held_out_accuracy: Number | None
    attack_success: Number | None = None
    last_test_accuracy: Number
    seconds_per_round: Number
    aggregation_share: Number
    images_per_second: Number = math.nan
    attackers: list[Client] | None = None
    description: dict[str, Any]
    behaviour: dict[str, int] = Field(default_factory=dict)
    fingerprint: str
    provenance: Provenance


class Begun(Record):
    """The code that a cell was begun by: behaviour numbers by part, and its provenance."""

    behaviour: dict[str, int]
    provenance: Provenance


@dataclass(frozen=True)
class Course:
    """How far a cell is, or a run that another framework carried out.

    Attributes:
        title: What it is called: its method.
        records: Its rounds so far; where a record is damaged, those before it.
        rule: What weighed the clients; None where it is not known.
        seed: Of all that was drawn; 0 of a run that does not say it.
        summary: Its result, where it is finished.
        damage: What is wrong with its files.
        stale: Why today's code may come to another result; empty where it would not.
        unread: A line for each run beside it that could not be read.
    """

    title: str
    records: Rounds
    rule: object = None
    seed: int = 0
    summary: CellSummary | None = None
    damage: str | None = None
    stale: str = ""
    unread: Sequence[str] = ()

    @property
    def attackers(self) -> list[Client]:
        """Who attacks: whom its result names, else who has attacked so far."""
        if self.summary is not None:
            return self.summary.attackers or []
        return in_order(client for record in self.records for client in record.attackers or ())

    @property
    def notice(self) -> str | None:
        """What is not as it should be; of damage also how far it is shown all the same."""
        if self.damage is None:
            return None if self.records else "it has no rounds yet"
        last = f"shown up to round {rounds_of(self.records)}"
        return f"{last if self.records else 'no rounds are shown'}: {self.damage}"


@dataclass(frozen=True, kw_only=True)
class CellResult(Course):
    """How far a cell is; of a stale one there are neither records nor summary."""

    cell: CellSpec

    @classmethod
    def of(cls, cell: CellSpec, records: Rounds = (), **more: Any) -> CellResult:
        """Return how far a cell is: its rounds, and what else is known."""
        title, rule, seed = cell.method.title, cell.rule, cell.seed
        return cls(title=title, records=records, rule=rule, seed=seed, cell=cell, **more)

    @property
    def diverged(self) -> str | None:
        """A line that says that its training has diverged; None where it has not."""
        rounds = self.cell.rounds
        stopping, lost = EarlyStopping(rounds.patience, rounds.min_improvement), 0
        for record in self.records:
            stopping = stopping.observe(record.round, record.validation.loss)
            lost = lost_so_far(lost, record, self.cell.threat)
        done = rounds_of(self.records)
        return divergence(lost, done, stopping.stopped or done >= rounds.maximum)

    @property
    def notice(self) -> str | None:
        """Why it has no result that counts, and how far it is; None where it has one."""
        if self.damage is not None:
            return super().notice
        if self.stale:
            return stale_line(self.stale)
        if self.summary is not None:
            return None
        if not self.records:
            return "not finished, not started"
        done, accuracy = rounds_of(self.records), self.records[-1].validation.accuracy
        so_far = f"not finished, {done} rounds so far, validation accuracy {accuracy:.4f}"
        return self.diverged or so_far


def stale_line(why: str) -> str:
    """Return that a cell is stale, and why."""
    return f"stale, and left out until it is run again: {why}"


@dataclass(frozen=True)
class CellStore(RoundsFolder):
    """The folder of one cell."""

    def locked(self) -> AbstractContextManager[None]:
        """Hold the cell for writing; waits a minute for the round of a process that is ending."""
        return folder_lock(self.path, timeout=60.0)

    def content(self) -> dict[str, bytes]:
        """Return the cell's files by name; empty where it was not begun."""
        paths = self.path.iterdir() if self.path.is_dir() else ()
        return {path.name: path.read_bytes() for path in paths if path.name in FILES}

    def replace(self, content: Mapping[str, bytes]) -> None:
        """Put files in the place of the cell's own; the summary, which means finished, last."""
        for name in sorted(content, key=lambda name: name == SUMMARY):
            with atomic_write(self.path / name) as file:
                file.write(content[name])
        for name in FILES - content.keys():
            (self.path / name).unlink(missing_ok=True)

    def sound_records(self) -> tuple[list[RoundRecord], str | None]:
        """Return the rounds before the first damaged line, and what is wrong with that, if any."""
        path, done = self.path / ROUNDS, 0
        records, damage = read_lines(path, RoundRecord, f"a round's record: {ANEW}")
        for number, record in enumerate(records, start=1):
            if record.first != done + 1:
                damage = f"{path}, line {number}, is of round {record.round}: {ANEW}"
                return records[: number - 1], damage
            done = record.round
        return records, damage

    def summary(self) -> CellSummary | None:
        """Return the cell's result where it is finished."""
        return read_record(CellSummary, self.path / SUMMARY, f"is not a cell's summary: {ANEW}")

    def look(self, cell: CellSpec, fingerprint: str | None) -> CellResult:
        """Return how far the cell is; that its files are of something else is damage too.

        ``fingerprint`` is that of the data, where it is known.
        """
        records, damage = self.sound_records()
        try:
            summary, stale = self.summary(), self.stale(cell)
        except FedcrfError as error:
            return CellResult.of(cell, damage=str(error))
        if summary is not None:
            of_data = fingerprint is None or summary.fingerprint == fingerprint
            named = summary.method == cell.method.name and summary.seed == cell.seed
            if not of_data or not named or cell_of(summary.description) != cell:
                other = f"{self.path} holds the result of another description or other data: "
                return CellResult.of(cell, damage=f"{other}choose another folder with --output")
        if stale:
            return CellResult.of(cell, stale=stale)
        if damage is not None:
            return CellResult.of(cell, records, damage=damage)
        if summary is not None and (there := rounds_of(records)) != summary.rounds:
            beside = f"the summary beside it speaks of {summary.rounds}: {ANEW}"
            damage = f"{self.path / ROUNDS} holds {there} rounds and {beside}"
            return CellResult.of(cell, damage=damage)
        return CellResult.of(cell, records, summary=summary)

    def _begun(self) -> Begun | None:
        """Return the code that the cell was begun by; None where that is not known."""
        wrong = f"does not say by which code the cell was begun: {ANEW}"
        return read_record(Begun, self.path / BEGUN, wrong)

    def stale(self, cell: CellSpec) -> str:
        """Return why today's code may come to another result than made the cell, finished or not.

        Empty where it does not.
        """
        made = self.summary() or self._begun()
        if made is None and not (self.path / ROUNDS).exists():
            return ""
        kept, device = ({}, "cpu") if made is None else (made.behaviour, made.provenance.device)
        return "; ".join(changes(cell, kept, device))

    def begin(self, cell: CellSpec, origin: Provenance) -> tuple[RunState | None, Begun]:
        """Return the state to go on from, and the code behind it; stale rounds are removed.

        ``origin`` is what the next part is run with.
        """
        if self.stale(cell):
            # In this order it stays stale wherever a kill may cut in.
            for name in (CHECKPOINT, MODEL, ROUNDS, SUMMARY, BEGUN):
                (self.path / name).unlink(missing_ok=True)
        state = self.resume()
        if state is not None:
            earlier = self._begun()
            origin = origin.after(None if earlier is None else earlier.provenance)
        begun = Begun(behaviour=numbers(cell, origin.device), provenance=origin)
        write_text(self.path / BEGUN, begun.model_dump_json(indent=1) + "\n")
        return state, begun

    def resume(self) -> RunState | None:
        """Return the state to go on from; records of a later, lost round are dropped."""
        checkpoint, rounds = self.path / CHECKPOINT, self.path / ROUNDS
        state = load_checkpoint(checkpoint) if checkpoint.exists() else None
        done = 0 if state is None else state.round
        recorded = done if state is None or state.totals is None else done - state.totals.rounds
        records = self.records()
        counted = [record for record in records if record.round <= done]
        # A kill between a record and its checkpoint leaves one record too many, never more.
        if rounds_of(counted) != recorded or len(records) - len(counted) > 1:
            raise FedcrfError(
                f"{rounds} does not hold rounds 1 to {recorded} of its checkpoint: {ANEW}"
            )
        if rounds.exists():
            with atomic_write(rounds) as file:
                file.writelines(map(line_of, counted))
        return state

    def append(self, state: RunState, record: RoundRecord | None) -> None:
        """Keep one more round: its record first, then the state that makes it count.

        A round without a record is kept only if no checkpoint was written within `SPACING`. A kill
        loses no more than that, and the run repeats it to the same bits.
        """
        checkpoint = self.path / CHECKPOINT
        if record is not None:
            append_line(self.path / ROUNDS, line_of(record))
        elif checkpoint.exists():
            age = time.time() - checkpoint.stat().st_mtime
            if 0.0 <= age < SPACING:
                return
        save_checkpoint(checkpoint, state)

    def finish(self, state: RunState, summary: CellSummary) -> None:
        """Keep the result and the reported model; the checkpoint is no longer needed."""
        save_model(self.path / MODEL, state.reported_model)
        write_text(self.path / SUMMARY, summary.model_dump_json(indent=1) + "\n")
        (self.path / CHECKPOINT).unlink(missing_ok=True)
        (self.path / BEGUN).unlink(missing_ok=True)
