"""Results on disk: a folder for each run, and in it one for each cell of its grid.

::

    RUN/run.toml                     the whole resolved description
    RUN/partitions/seed-S.json       what each client holds
    RUN/cells/METHOD-seed-S/begun.json       by which code, until the cell is finished
                            rounds.jsonl     one record a round, appended
                            checkpoint.pt    to go on from; gone when the cell is finished
                            model.pt         the reported model, when the cell is finished
                            summary.json     the cell's result; its presence means finished
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tomli_w
from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter, ValidationError

from fedcrf.data import ClientSplit, ImageDataset
from fedcrf.errors import FedcrfError
from fedcrf.experiments.provenance import Provenance, changes, numbers
from fedcrf.experiments.settings import differences, merge, read_run_file
from fedcrf.experiments.spec import (
    REGISTRIES,
    CellSpec,
    RunSpec,
    cell_of,
    resolve,
)
from fedcrf.files import append_line, atomic_write, whole_lines, write_text
from fedcrf.simulation.checkpoint import (
    load_checkpoint,
    save_checkpoint,
    save_model,
)
from fedcrf.simulation.records import Number, Record, RoundRecord
from fedcrf.simulation.rounds import RunState

R = TypeVar("R", bound=Record)

ANEW = "move the cell's folder away to run it anew"
"""What helps where a cell's files are damaged."""


class CellSummary(Record):
    """The result of a finished cell. Accuracies are shares in [0, 1].

    ``test_accuracy``, ``client_mean``, ``worst_client`` and ``held_out_accuracy`` belong to the
    round with the lowest validation loss, ``last_test_accuracy`` to the last round;
    ``images_per_second`` is the median round's speed of local training. ``attackers`` names the
    clients that attack, whose examples no accuracy counts; None where the run has no attack.
    ``behaviour`` has the behaviour numbers of all that made it, by part; 1 where one is missing.
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
    last_test_accuracy: Number
    seconds_per_round: Number
    aggregation_share: Number
    images_per_second: Number = math.nan
    attackers: list[int | str] | None = None
    description: dict[str, Any]
    behaviour: dict[str, int] = Field(default_factory=dict)
    fingerprint: str
    provenance: Provenance


class Begun(Record):
    """By which code a cell was begun: its behaviour numbers by part, and where it came from."""

    behaviour: dict[str, int]
    provenance: Provenance


class ClientHoldings(Record):
    """What one client holds: examples in each part, and training examples of each label."""

    client: int
    train: int
    validation: int
    test: int
    labels: list[int]


class PartitionRecord(Record):
    """What the clients of one seed hold, of the data with this fingerprint."""

    seed: int
    fingerprint: str = ""
    class_names: list[str]
    clients: list[ClientHoldings]


class DamagedRecordsError(FedcrfError):
    """A line that is no round's record, and the sound rounds before it."""

    def __init__(self, damage: str, sound: Sequence[RoundRecord]) -> None:
        super().__init__(damage)
        self.sound = sound


class StaleCellError(FedcrfError):
    """A cell that other code made: what today's comes to is not known before it is run again."""

    def __init__(self, changed: Sequence[str]) -> None:
        super().__init__("; ".join(changed))


@dataclass(frozen=True)
class CellStore:
    """The folder of one cell."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        """Where the state of an unfinished cell lies."""
        return self.path / "checkpoint.pt"

    @property
    def _beginning(self) -> Path:
        return self.path / "begun.json"

    @property
    def _model(self) -> Path:
        return self.path / "model.pt"

    @property
    def _rounds(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def _summary(self) -> Path:
        return self.path / "summary.json"

    def locked(self) -> AbstractContextManager[None]:
        """Hold the cell for writing; waits a minute for the round of a process that is ending."""
        return folder_lock(self.path, timeout=60.0)

    def content(self) -> dict[str, bytes]:
        """Return the cell's files by name; empty where it was not begun."""
        paths = self.path.iterdir() if self.path.is_dir() else ()
        return {path.name: path.read_bytes() for path in paths if path.name in self._names}

    def replace(self, content: Mapping[str, bytes]) -> None:
        """Put files in the place of the cell's own; the summary, which means finished, last."""
        for name in sorted(content, key=lambda name: name == self._summary.name):
            with atomic_write(self.path / name) as file:
                file.write(content[name])
        for name in self._names - content.keys():
            (self.path / name).unlink(missing_ok=True)

    @property
    def _names(self) -> set[str]:
        files = (self.checkpoint, self._beginning, self._model, self._rounds, self._summary)
        return {path.name for path in files}

    def records(self) -> list[RoundRecord]:
        """Return the rounds so far; a line still being written is left out.

        Raises:
            DamagedRecordsError: A line that is no record.
        """
        return undamaged(*self.sound_records())

    def sound_records(self) -> tuple[list[RoundRecord], str | None]:
        """Return the rounds before the first damaged line, and what is wrong with that, if any."""
        records, damage = read_lines(self._rounds, RoundRecord, f"a round's record: {ANEW}")
        for number, record in enumerate(records, start=1):
            if record.round != number:
                damage = f"{self._rounds}, line {number}, is of round {record.round}: {ANEW}"
                return records[: number - 1], damage
        return records, damage

    def summary(self) -> CellSummary | None:
        """Return the cell's result where it is finished.

        Raises:
            FedcrfError: The file is damaged or no summary.
        """
        return _read(CellSummary, self._summary, f"is not a cell's summary: {ANEW}")

    def read(
        self, cell: CellSpec, fingerprint: str | None
    ) -> tuple[list[RoundRecord], CellSummary | None]:
        """Return the rounds so far, and the cell's result where it is finished and all there.

        Args:
            cell: What the result must be of.
            fingerprint: Of the data it must be of; None where that is not known.

        Raises:
            StaleCellError: It was made by code that did something else than today's.
            FedcrfError: Summary or records are damaged or do not belong together, or the result is
                of another description or other data.
        """
        summary = self.summary()
        if summary is None:
            self.check_current(cell)
            return self.records(), None
        of_data = fingerprint is None or summary.fingerprint == fingerprint
        named = summary.method == cell.method.name and summary.seed == cell.seed
        if not of_data or not named or cell_of(summary.description) != cell:
            raise FedcrfError(
                f"{self.path} holds the result of another description or other data: "
                "choose another folder with --output"
            )
        self.check_current(cell)
        records = self.records()
        if len(records) != summary.rounds:
            raise FedcrfError(
                f"{self._rounds} holds {len(records)} rounds and the summary beside it speaks of "
                f"{summary.rounds}: {ANEW}"
            )
        return records, summary

    def _begun(self) -> Begun | None:
        """Return by which code the cell was begun; None where that is not known."""
        wrong = f"does not say by which code the cell was begun: {ANEW}"
        return _read(Begun, self._beginning, wrong)

    def check_current(self, cell: CellSpec) -> None:
        """Check that what is here, finished or not, was made by code that does what today's does.

        Raises:
            StaleCellError: It was not.
            FedcrfError: The summary, or what says by which code the cell was begun, is damaged.
        """
        made = self.summary() or self._begun()
        if made is None and not self._rounds.exists():
            return
        kept, device = ({}, "cpu") if made is None else (made.behaviour, made.provenance.device)
        changed = changes(cell, kept, device)
        if changed:
            raise StaleCellError(changed)

    def begin(self, cell: CellSpec, origin: Provenance) -> tuple[RunState | None, Begun]:
        """Return the state to go on from, and by which code it has been; stale rounds are removed.

        Args:
            cell: What is run here.
            origin: What its next part is run with.

        Raises:
            FedcrfError: The folder is damaged.
        """
        try:
            self.check_current(cell)
        except StaleCellError:
            # In this order it stays stale wherever a kill may cut in.
            for path in (self.checkpoint, self._model, self._rounds, self._summary):
                path.unlink(missing_ok=True)
            self._beginning.unlink(missing_ok=True)
        state = self.resume()
        if state is not None:
            earlier = self._begun()
            origin = origin.after(None if earlier is None else earlier.provenance)
        begun = Begun(behaviour=numbers(cell, origin.device), provenance=origin)
        write_text(self._beginning, begun.model_dump_json(indent=1) + "\n")
        return state, begun

    def resume(self) -> RunState | None:
        """Return the state to go on from; records of a later, lost round are dropped.

        Raises:
            FedcrfError: Checkpoint or records are damaged, or do not belong together.
        """
        state = load_checkpoint(self.checkpoint) if self.checkpoint.exists() else None
        done = 0 if state is None else state.round
        records = self.records()
        # A kill between a record and its checkpoint leaves one round too many, never more.
        if len(records) not in (done, done + 1):
            raise FedcrfError(
                f"{self._rounds} does not hold rounds 1 to {done} of its checkpoint: {ANEW}"
            )
        if self._rounds.exists():
            with atomic_write(self._rounds) as file:
                for record in records[:done]:
                    file.write(_line(record))
        return state

    def append(self, state: RunState, record: RoundRecord) -> None:
        """Keep one more round: its record first, then the state that makes it count."""
        append_record(self._rounds, record)
        save_checkpoint(self.checkpoint, state)

    def finish(self, state: RunState, summary: CellSummary) -> None:
        """Keep the result and the reported model; the checkpoint is no longer needed."""
        save_model(self._model, state.reported_model)
        write_text(self._summary, summary.model_dump_json(indent=1) + "\n")
        self.checkpoint.unlink(missing_ok=True)
        self._beginning.unlink(missing_ok=True)


@dataclass(frozen=True)
class RunStore:
    """The folder of a run."""

    path: Path

    def cell(self, cell: CellSpec) -> CellStore:
        """Return the folder of a cell."""
        return CellStore(self.path / "cells" / cell.name)

    def strangers(self, spec: RunSpec) -> list[str]:
        """Return the names of what lies among the cells and is none of this run's."""
        folder = self.path / "cells"
        ours = {cell.name for cell in spec.cells()}
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        return sorted(names - ours)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the run for writing; see `folder_lock`."""
        return folder_lock(self.path)

    def read(self) -> RunSpec:
        """Return the description of the run in this folder.

        Raises:
            FedcrfError: There is none, or it is damaged.
        """
        if not self._description.exists():
            names = ", ".join(store.path.name for store in runs_below(self.path))
            place = f"one of those in it: {names}" if names else "a run's folder"
            raise FedcrfError(f"{self.path} holds no run (no run.toml): name {place}")
        return resolve(read_run_file(self._description), reading=True)

    def check(self, spec: RunSpec) -> RunSpec:
        """Return the description of this folder with the new methods and seeds added.

        Raises:
            FedcrfError: The folder holds something else, or a run of other settings.
        """
        check_folder(self.path)
        if not self._description.exists():
            check_free(self.path, self._description.name, "run")
            return spec
        return extended(self.read(), spec, f"results folder {self.path}")

    def check_data(self, seeds: Sequence[int], fingerprint: str) -> None:
        """Check that what was run here for these seeds was run on the same data.

        Raises:
            FedcrfError: It was other data, or what the clients hold cannot be read.
        """
        for seed in seeds:
            before = self.partition(seed)
            if before is not None and before.fingerprint not in ("", fingerprint):
                raise FedcrfError(
                    f"results folder {self.path} is of other data (seed {seed}: fingerprint "
                    f"{before.fingerprint} there, {fingerprint} here): choose another with --output"
                )

    def write(self, spec: RunSpec) -> None:
        """Save the whole resolved description."""
        with atomic_write(self._description) as file:
            tomli_w.dump(spec.describe(), file)

    def write_partition(self, record: PartitionRecord) -> None:
        """Save what each client of a seed holds."""
        path = self._partition(record.seed)
        path.parent.mkdir(exist_ok=True)
        write_text(path, record.model_dump_json() + "\n")

    def partition(self, seed: int) -> PartitionRecord | None:
        """Return what each client of a seed holds, where it was saved.

        Raises:
            FedcrfError: The file is damaged.
        """
        wrong = (
            "is not what the clients of a seed hold: "
            "take it away, and the run's command makes it anew"
        )
        return _read(PartitionRecord, self._partition(seed), wrong)

    def _partition(self, seed: int) -> Path:
        return self.path / "partitions" / f"seed-{seed}.json"

    @property
    def _description(self) -> Path:
        return self.path / "run.toml"


def extended(earlier: RunSpec, spec: RunSpec, place: str) -> RunSpec:
    """Return the description of a run with the methods and seeds of another one added.

    Args:
        earlier: The run.
        spec: The other, of the same settings.
        place: Of the run, as an error calls it.

    Raises:
        FedcrfError: It has other settings.
    """
    for key, was, is_now in differences(_shared(earlier, spec), _shared(spec, earlier)):
        raise FedcrfError(
            f"{place} is of another run ({key} is {was} there, {is_now} here): choose another "
            "with --output"
        )
    return resolve(
        merge(earlier.describe(), spec.describe()),
        {
            "methods": list(dict.fromkeys([*earlier.methods, *spec.methods])),
            "seeds": sorted({*earlier.seeds, *spec.seeds}),
        },
        reading=True,
    )


def _shared(spec: RunSpec, other: RunSpec) -> dict[str, Any]:
    """Return of a run's description what it must share with another run in the same folder.

    That is all but methods and seeds, and of rules and other named things the settings of those
    that both of them use.
    """
    described, beside = (
        # What a rule is told is as good as said: folders of old say numbers that were defaults.
        {**each.describe(), "rules": each.told_rules}
        for each in (spec, other)
    )
    sections = ("data", "partition", "model", "training", "rounds", "attack")
    return {section: described.get(section, {}) for section in sections} | {
        section: {
            name: settings
            for name, settings in described.get(section, {}).items()
            if name in beside.get(section, {})
        }
        for section in REGISTRIES
    }


def runs_below(folder: Path) -> list[RunStore]:
    """Return the runs right below a folder, such as a sweep's, by name."""
    return [RunStore(path.parent) for path in sorted(folder.glob("*/run.toml"))]


def undamaged(records: list[RoundRecord], damage: str | None) -> list[RoundRecord]:
    """Return what `read_lines` found, where that is all.

    Raises:
        DamagedRecordsError: A line that is no record.
    """
    if damage is not None:
        raise DamagedRecordsError(damage, records)
    return records


def read_lines(path: Path, kind: Any, wanted: str) -> tuple[list[Any], str | None]:
    """Return what the lines of a file hold before its first damaged one, and what is wrong there.

    Args:
        path: One record a line; a line still being written is left out. Where there is no file,
            there are no records.
        kind: What a line holds, a class of records or a union of some.
        wanted: What a damaged line is not, and what can be done about it.

    Returns:
        The records, and which line is none, or why the file cannot be read; None where nothing is
        wrong.
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


def _read(kind: type[R], path: Path, wrong: str) -> R | None:
    """Return the record in a file; None where there is no file.

    Raises:
        FedcrfError: It is another thing; the error says what is wrong.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise FedcrfError(f"{path} {wrong}") from None


def append_record(path: Path, record: Record) -> None:
    """Keep a record as the last line of a file."""
    append_line(path, _line(record))


def partition_record(
    seed: int, splits: Sequence[ClientSplit], dataset: ImageDataset
) -> PartitionRecord:
    """Count what each client of a seed holds."""
    names = list(dataset.class_names)
    labels = dataset.train.labels
    clients = []
    for client, split in enumerate(splits):
        counts = np.bincount(labels[split.train], minlength=len(names))
        clients.append(
            ClientHoldings(
                client=client,
                train=len(split.train),
                validation=len(split.validation),
                test=len(split.test),
                labels=counts.tolist(),
            )
        )
    return PartitionRecord(
        seed=seed, fingerprint=dataset.fingerprint, class_names=names, clients=clients
    )


def check_folder(path: Path, mend: str = "choose another with --output") -> None:
    """Raise a `FedcrfError` where a results folder is a file, or lies below one."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise FedcrfError(f"results folder {path}: {place} is a file; {mend}")


def check_free(folder: Path, file: str, what: str) -> None:
    """Raise a `FedcrfError` where a folder without its file holds something else.

    Args:
        folder: A results folder, which need not exist.
        file: The name of the file that it would be known by.
        what: It then would hold.
    """
    ours = (LOCK_NAME, f".{file}.")  # and what a kill left half-written
    if folder.is_dir() and any(not entry.name.startswith(ours) for entry in folder.iterdir()):
        raise FedcrfError(
            f"results folder {folder} is not empty and holds no {what}: "
            "choose another with --output"
        )


LOCK_NAME = ".lock"


@contextmanager
def folder_lock(folder: Path, timeout: float = 0.5) -> Iterator[None]:
    """Hold a folder for writing, which is made where there is none.

    Raises:
        FedcrfError: There cannot be one, or another process holds it after so many seconds.
    """
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedcrfError(
            f"results folder {folder}: {error.strerror}; choose another with --output"
        ) from None
    lock = FileLock(folder / LOCK_NAME, timeout=timeout)
    try:
        lock.acquire()
    except Timeout:
        raise FedcrfError(
            f"{folder} is being written by another process: wait for it, or choose another --output"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _line(record: Record) -> bytes:
    return record.model_dump_json(exclude_none=True).encode() + b"\n"
