"""Results on disk: one layout, of a cell, of a run or of a suite of runs, loose while it is made.

::

    RUN/run.toml                     the whole resolved description
        partitions/seed-S.json       what each client holds
        cells/METHOD-seed-S/         a cell's folder
            begun.json               as what and by which code, until the cell is finished
            rounds.jsonl             one record an evaluated round, appended
            checkpoint.pt            to go on from; gone when the cell is finished
            model.pt                 the reported model, when the cell is finished
            summary.json             the cell's result; its presence means finished
    RUN/seed-S.tar.xz                instead of these: the same packed, without models

    SUITE/cells.jsonl                the score of each finished cell, a line each
          descriptions.json          what the cells were, once for all seeds
          rounds/PARTITION/CONDITION/          their rounds: a run, packed
          runs/PARTITION/CONDITION/seed-S/     runs under way
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import math
import shutil
import tarfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeVar

import numpy as np
import tomli_w
from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter, ValidationError

from fedcrf.data import ClientSplit, ImageDataset
from fedcrf.errors import FedcrfError, cut
from fedcrf.experiments.provenance import Provenance, changes, numbers
from fedcrf.experiments.settings import Options, differences, merge, read_toml, without_gone
from fedcrf.experiments.spec import KINDS, SHARED, CellKey, CellSpec, RunSpec, cell_of, resolve
from fedcrf.extensions import is_stand_in, short_name
from fedcrf.files import append_line, atomic_write, remove_unfinished, whole_lines, write_text
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

ANOTHER = "choose another folder with --output"
"""The mend where a folder or a cell's files are sound and of something else."""


def check_folder(path: Path, mend: str = ANOTHER) -> None:
    """Raise a `FedcrfError` where a results folder is a file, or lies below one."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise FedcrfError(f"results folder {path}: {place} is a file; {mend}")


def check_free(folder: Path, file: str, what: str) -> None:
    """Raise a `FedcrfError` where a folder lacks ``file`` and holds others: it is no ``what``."""
    ours = (LOCK_NAME, f".{file}.")  # and what a kill left half-written
    if folder.is_dir() and any(not entry.name.startswith(ours) for entry in folder.iterdir()):
        raise FedcrfError(f"results folder {folder} is not empty and holds no {what}: {ANOTHER}")


@contextmanager
def folder_lock(folder: Path, timeout: float = 0.5) -> Iterator[None]:
    """Hold a folder for writing, made where there is none; give up after ``timeout`` seconds."""
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(folder / LOCK_NAME, timeout=timeout).acquire()
    except Timeout:
        raise FedcrfError(
            f"{folder} is being written by another process: wait for it, or {ANOTHER}"
        ) from None
    except OSError as error:
        raise FedcrfError(f"results folder {folder}: {error.strerror}; {ANOTHER}") from None
    with held:
        yield


def line_of(record: Record) -> bytes:
    """Return a record as a line of a file."""
    return record.model_dump_json(exclude_none=True).encode() + b"\n"


def read_lines(path: Path, kind: Any, wanted: str) -> tuple[list[Any], str | None]:
    """Return the records in a file's lines before the first damaged one, and that one's damage.

    A line still being written is left out; a file that is not there has no records. ``kind`` is a
    class of records, or a union of some. ``wanted`` says what a damaged line is not, and the mend.
    """
    try:
        lines = whole_lines(path)
    except FileNotFoundError:
        return [], None
    except OSError as error:
        mend = "mend that, or take it away to begin anew"
        return [], f"records {path} cannot be read: {error.strerror}; {mend}"
    parse = TypeAdapter(kind).validate_json
    records: list[Any] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(parse(line))
        except ValidationError as error:
            return records, f"{path}, line {number}, {_of_later(error) or f'is not {wanted}'}"
    return records, None


def read_record(kind: type[R], path: Path, wrong: str) -> R | None:
    """Return what the JSON of a file holds; None where there is no file.

    An error on a damaged file is its path and ``wrong``; one that cannot be read may be sound.
    """
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FedcrfError(f"{path} cannot be read: {error.strerror}; mend that") from None
    except ValidationError as error:
        raise FedcrfError(f"{path} {_of_later(error) or wrong}") from None


def _of_later(error: ValidationError) -> str | None:
    """Return what a record has that this version does not know, where nothing else is wrong."""
    found = error.errors()
    if any(each["type"] != "extra_forbidden" for each in found):
        return None
    key = cut(".".join(map(str, found[0]["loc"])))
    return f"has '{key}', which this version does not know: use the version that wrote it"


def undamaged(found: tuple[list[R], str | None]) -> list[R]:
    """Return the records that `read_lines` found; a damaged line is an error."""
    records, damage = found
    if damage is not None:
        raise FedcrfError(damage)
    return records


SPACING = 1.0
"""Seconds between checkpoints of rounds without a record; longer rounds all have one."""

BEGUN, ROUNDS, SUMMARY = "begun.json", "rounds.jsonl", "summary.json"
CHECKPOINT, MODEL = "checkpoint.pt", "model.pt"
FILES = (SUMMARY, BEGUN, CHECKPOINT, ROUNDS, MODEL)
"""A cell's files. Rounds count by one of the first three, which `CellStore.replace` puts last."""

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
    """What a cell was begun as, and the code: behaviour numbers by part, and its provenance."""

    description: dict[str, Any] | None = None  # None of an earlier version
    behaviour: dict[str, int]
    provenance: Provenance


@dataclass(frozen=True)
class Course:
    """How far a cell is, or a run that another framework carried out."""

    title: str  # its method
    records: Rounds  # so far; where a record is damaged, those before it
    rule: object = None  # what weighed the clients; None where it is not known
    seed: int = 0  # of all that was drawn; 0 of a run that does not say it
    summary: CellSummary | None = None  # its result, where it is finished
    damage: str | None = None  # what is wrong with its files
    stale: str = ""  # why today's code may come to another result; empty where it would not
    unread: Sequence[str] = ()  # a line for each run beside it that could not be read

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
        rounds, done = self.cell.rounds, rounds_of(self.records)
        stopping = EarlyStopping(rounds.patience, rounds.min_improvement)
        lost = 0
        for record in self.records:
            stopping = stopping.observe(record.round, record.validation.loss)
            lost = lost_so_far(lost, record, self.cell.threat)
        accuracy = self.records[-1].validation.accuracy
        so_far = f"not finished, {done} rounds so far, validation accuracy {accuracy:.4f}"
        return divergence(lost, done, stopping.stopped or done >= rounds.maximum) or so_far


def stale_line(why: str) -> str:
    """Return that a cell is stale, and why."""
    return f"stale, and left out until it is run again: {why}"


@dataclass(frozen=True)
class CellStore:
    """The folder of one cell."""

    path: Path

    def locked(self) -> AbstractContextManager[None]:
        """Hold the cell for writing; waits a minute for the round of a process that is ending."""
        return folder_lock(self.path, timeout=60.0)

    def content(self) -> dict[str, bytes]:
        """Return the cell's files by name; empty where it was not begun."""
        paths = self.path.iterdir() if self.path.is_dir() else ()
        return {path.name: path.read_bytes() for path in paths if path.name in FILES}

    def replace(self, content: Mapping[str, bytes]) -> None:
        """Put files in the place of the cell's own, which stay where there is no room for these.

        A kill leaves the ones or the others, or rounds alone, which `begin` removes.
        """
        with ExitStack() as written:  # which is left in the opposite order
            for name in sorted(content, key=FILES.index):
                file = written.enter_context(atomic_write(self.path / name))
                file.write(content[name])
                file.flush()
            for name in (BEGUN, CHECKPOINT, SUMMARY, *({*FILES} - content.keys())):
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

    def records(self) -> list[RoundRecord]:
        """Return the rounds so far; a damaged line is an error."""
        return undamaged(self.sound_records())

    def summary(self) -> CellSummary | None:
        """Return the cell's result where it is finished."""
        return read_record(CellSummary, self.path / SUMMARY, f"is not a cell's summary: {ANEW}")

    def look(self, cell: CellSpec, fingerprint: str | None) -> CellResult:
        """Return how far the cell is. Files of another cell, or of other data, are damage too.

        ``fingerprint`` is that of the data, None if it is not known.
        """
        begun, unread = None, None
        # In the order in which a process that runs the cell leaves them.
        try:
            summary = self.summary()
            if summary is None and (begun := self._begun()) is None:
                summary = self.summary()
        except FedcrfError as error:
            summary, unread = None, str(error)
        records, damage = self.sound_records()
        if unread is not None:
            return CellResult.of(cell, records, damage=damage or unread)
        try:
            stale = self._stale(cell, summary or begun)
            if summary is not None:
                if fingerprint not in (None, summary.fingerprint):
                    raise FedcrfError(f"{self.path} holds the result of other data: {ANOTHER}")
                self._check_same(cell, summary.description, "the result")
                if (summary.method, summary.seed) != (cell.method.name, cell.seed):
                    raise FedcrfError(f"{self.path / SUMMARY} is not that of this cell: {ANEW}")
            if stale:
                return CellResult.of(cell, stale=stale)
            if begun is not None and (self.path / CHECKPOINT).exists():
                self._check_same(cell, begun.description, "rounds")
            there = rounds_of(records)
            if damage is None and summary is not None and there != summary.rounds:
                beside = f"the summary beside it speaks of {summary.rounds}: {ANEW}"
                damage = f"{self.path / ROUNDS} holds {there} rounds and {beside}"
        except FedcrfError as error:
            return CellResult.of(cell, damage=str(error))
        return CellResult.of(cell, records, damage=damage, summary=None if damage else summary)

    def _check_same(self, cell: CellSpec, description: Options | None, what: str) -> None:
        """Raise a `FedcrfError` where the cell's files were made by another description."""
        if description is None or (there := cell_of(description)) == cell:
            return
        differing = list(differences(there.describe(), cell.describe()))
        known = list(_known(differing, cell))
        if differing and not known:
            return
        said = f"{self.path} holds {what} of another description"
        if known:
            key, was, is_now = known[0]
            said += f" ({key} is {was} there, {is_now} here)"
        raise FedcrfError(f"{said}: put run.toml back as it was, or {ANOTHER}")

    def _begun(self) -> Begun | None:
        """Return what the cell was begun as, and by which code; None where that is not known."""
        wrong = f"does not say by which code the cell was begun: {ANEW}"
        return read_record(Begun, self.path / BEGUN, wrong)

    def stale(self, cell: CellSpec) -> str:
        """Return why today's code may come to another result than the cell's; empty if not."""
        return self._stale(cell, self.summary() or self._begun())

    def _stale(self, cell: CellSpec, made: CellSummary | Begun | None) -> str:
        """Return the same; ``made`` says by which code the cell was made, None if nothing does."""
        if made is None and not (self.path / ROUNDS).exists():
            return ""
        kept, device = ({}, "cpu") if made is None else (made.behaviour, made.provenance.device)
        return "; ".join(changes(cell, kept, device))

    def begin(self, cell: CellSpec, origin: Provenance) -> tuple[RunState | None, Begun]:
        """Return the state to go on from, and what says by which code; call it under the lock.

        Stale rounds are removed, and those of which nothing says it: `replace` was killed.

        ``origin`` is the provenance of the rounds that follow.
        """
        made = self.summary() or self._begun()
        alone = made is None and not (self.path / CHECKPOINT).exists()
        if alone or self._stale(cell, made):
            # In this order it stays stale wherever a kill may cut in.
            for name in (CHECKPOINT, MODEL, ROUNDS, SUMMARY, BEGUN):
                (self.path / name).unlink(missing_ok=True)
        state = self.resume()
        if state is not None:
            origin = origin.after(None if made is None else made.provenance)
        behaviour = numbers(cell, origin.device)
        begun = Begun(description=cell.describe(), behaviour=behaviour, provenance=origin)
        write_text(self.path / BEGUN, begun.model_dump_json(indent=1) + "\n")
        return state, begun

    def resume(self) -> RunState | None:
        """Return the state to go on from; call it under the lock.

        Records of a later, lost round are dropped, and files that a kill left half-written.
        """
        for name in FILES:
            remove_unfinished(self.path / name)
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
        elif checkpoint.exists() and 0.0 <= time.time() - checkpoint.stat().st_mtime < SPACING:
            return
        save_checkpoint(checkpoint, state)

    def finish(self, state: RunState, summary: CellSummary) -> None:
        """Keep the result and the reported model; the checkpoint is no longer needed."""
        save_model(self.path / MODEL, state.reported_model)
        write_text(self.path / SUMMARY, summary.model_dump_json(indent=1) + "\n")
        self.remove_unneeded()

    def remove_unneeded(self) -> None:
        """Remove what a finished cell needs no longer, which a kill may have left."""
        for name in (CHECKPOINT, BEGUN):
            (self.path / name).unlink(missing_ok=True)


DESCRIPTION = "run.toml"
"""The file that says what run a folder or an archive is of."""

SCORES, DESCRIPTIONS = "cells.jsonl", "descriptions.json"
"""The files of a suite: what came of its cells, and what they were."""

GOING = ".going-"
"""How the names of folders begin that are being removed."""

_unpacked: list[TemporaryDirectory[str]] = []
"""Where archives were unpacked to; removed when the process ends."""


class ClientHoldings(Record):
    """What one client holds: examples in each part, and training examples of each label."""

    client: Client
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


AXES = ("partition", "condition", "method", "seed")
"""What says of a suite's cell which it is, in the order of its key."""


class Score(Record):
    """The result of one cell of a suite.

    Accuracies are means over the last ``last_rounds`` rounds. ``accuracy`` is on the examples of
    clients that are right; ``everyone`` and ``worst_client`` count the attackers' too, None of an
    older line. ``separation`` has for each round in which clients were wrong the area under the
    curve, see `analysis.conditions.separation`; None where the rule infers no weights.
    ``behaviour`` has by part the behaviour numbers that are not 1. ``description`` is the name
    under which the folder keeps what the cell was, but for its seed.
    """

    partition: str
    condition: str
    method: str
    seed: Annotated[int, Field(ge=0)]
    accuracy: Annotated[float, Field(ge=0.0, le=1.0)]
    everyone: float | None = None
    worst_client: float | None = None
    held_out_accuracy: float | None = None
    attack_success: float | None = None
    last_rounds: int = 5  # of a line that does not say it
    separation: list[Number] | None = None
    description: str
    behaviour: dict[str, int] | None = None
    fingerprint: str
    provenance: Provenance

    @property
    def key(self) -> CellKey:
        """The cell of the suite's study that it is of."""
        return tuple(getattr(self, axis) for axis in AXES)


@dataclass(frozen=True)
class Store:
    """A folder of results: of a run, loose or packed, or of a suite."""

    path: Path

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder for writing; see `folder_lock`."""
        return folder_lock(self.path)

    # A run

    def read(self) -> RunSpec:
        """Return the description of the run in this folder."""
        if self.is_suite:
            if packed := self.packed_runs():
                raise FedcrfError(
                    f"{self.path} holds a suite: name a condition of it, such as {packed[0].path}"
                )
            raise FedcrfError(
                f"{self.path} holds a suite whose cells have kept no rounds: take their lines out "
                f"of {SCORES} to run them anew"
            )
        described = self._loose / DESCRIPTION
        if not described.exists():
            names = ", ".join(store.path.name for store in self.runs_below())
            place = f"one of those in it: {names}" if names else "a run's folder"
            raise FedcrfError(f"{self.path} holds no run (no run.toml): name {place}")
        description = read_toml(described)
        if not description:
            raise FedcrfError(f"{described} is empty: put it back as it was")
        try:
            return resolve(description, reading=True)
        except FedcrfError as error:
            raise FedcrfError(f"{described}: {error}") from None

    def cell(self, cell: CellSpec) -> CellStore:
        """Return the folder of a cell."""
        return CellStore(self._loose / "cells" / cell.name)

    def unknown_cells(self, spec: RunSpec) -> list[str]:
        """Return the names of the folders among the cells that are not of this run."""
        folder = self._loose / "cells"
        ours = {cell.name for cell in spec.cells()}
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        return sorted(names - ours)

    def partition(self, seed: int) -> PartitionRecord | None:
        """Return what each client of a seed holds; None where it was not saved."""
        mend = "take it away, and the run's command makes it anew"
        wrong = f"is not what the clients of a seed hold: {mend}"
        return read_record(PartitionRecord, self._loose / partition_file(seed), wrong)

    def check(self, spec: RunSpec) -> RunSpec:
        """Return the description of this folder with the methods and seeds of another run added."""
        check_folder(self.path)
        if not (self.path / DESCRIPTION).exists():
            if any(self.path.glob(f"cells/*/{ROUNDS}")):
                raise FedcrfError(
                    f"results folder {self.path} has cells and no {DESCRIPTION}: put it back as it "
                    f"was, or {ANOTHER}"
                )
            check_free(self.path, DESCRIPTION, "run")
            return spec
        kept_run = self.read()
        rules = read_toml(self.path / DESCRIPTION).get("rules", {})
        there = {short_name(name): given for name, given in rules.items()}
        for name, rule in spec.things["rules"].items():
            given = there.get(name, {})
            kept = without_gone(given, type(rule))
            gone = [key for key in given if key not in kept]
            if gone:
                raise FedcrfError(
                    f"results folder {self.path} is of an earlier version, with "
                    f"rules.{name}.{gone[0]}, which is no setting any more: {ANOTHER}"
                )
        return extended(kept_run, spec, f"results folder {self.path}")

    def check_data(self, seeds: Iterable[int], fingerprint: str) -> None:
        """Raise a `FedcrfError` where earlier cells of these seeds were run on other data."""
        for seed in seeds:
            before = self.partition(seed)
            if before is not None and before.fingerprint not in ("", fingerprint):
                raise self._of_other_data(f"seed {seed}: ", before.fingerprint, fingerprint)

    def _of_other_data(self, whose: str, there: str, here: str) -> FedcrfError:
        return FedcrfError(
            f"results folder {self.path} is of other data ({whose}fingerprint {there} there, "
            f"{here} here): {ANOTHER}"
        )

    def write(self, spec: RunSpec) -> None:
        """Save the whole resolved description."""
        write_text(self.path / DESCRIPTION, described(spec))

    def write_partition(self, record: PartitionRecord) -> None:
        """Save what each client of a seed holds."""
        path = self.path / partition_file(record.seed)
        path.parent.mkdir(exist_ok=True)
        write_text(path, record.model_dump_json() + "\n")

    # Runs, loose or packed

    def runs_below(self) -> list[Store]:
        """Return the runs in the folders right below, such as a sweep's, by name."""
        return [Store(path.parent) for path in sorted(self.path.glob(f"*/{DESCRIPTION}"))]

    @cached_property
    def _loose(self) -> Path:
        """Where the run's files lie: here, or where they have been unpacked."""
        found = self.path.glob("seed-*.tar.xz")
        archives = sorted(found, key=lambda path: (len(path.name), path))  # seed 2 before seed 10
        if not archives:
            return self.path
        _unpacked.append(TemporaryDirectory())
        whole = Path(_unpacked[-1].name) / self.path.name
        spec: RunSpec | None = None
        for path in archives:
            more, files = _packed_run(path)
            spec = more if spec is None else extended(spec, more, f"archive {path}")
            for name, content in {**files, DESCRIPTION: described(spec).encode()}.items():
                target = whole / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        return whole

    def add_to_archive(self, path: Path, cells: Sequence[CellSpec]) -> None:
        """Pack finished cells of one seed into an archive; those of the same names are replaced.

        Raises:
            FedcrfError: The archive is of other settings, or it cannot be read.
        """
        seed, names = cells[0].seed, list(dict.fromkeys(cell.method.name for cell in cells))
        chosen = merge(self.read().describe(), {"methods": names, "seeds": [seed]})
        spec = resolve(chosen, reading=True)
        files: dict[str, bytes] = {}
        if path.exists():
            earlier, files = _packed_run(path)
            spec = extended(earlier, spec, str(path))
        files[DESCRIPTION] = described(spec).encode()
        if (partition := self.partition(seed)) is not None:
            files[partition_file(seed)] = line_of(partition)
        for cell in cells:
            place = self.cell(cell)
            files[f"cells/{cell.name}/{ROUNDS}"] = b"".join(map(brief_line, place.records()))
            files[f"cells/{cell.name}/{SUMMARY}"] = place.content()[SUMMARY]
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            atomic_write(path) as file,
            lzma.open(file, "wb", preset=6 | lzma.PRESET_EXTREME) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
        ):
            for name, content in sorted(files.items()):  # equal files make an equal archive
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))

    # A suite

    @property
    def is_suite(self) -> bool:
        """Whether the folder holds finished cells of a suite."""
        return (self.path / SCORES).is_file()

    def check_suite(self, *, begun: bool = False) -> None:
        """Raise a `FedcrfError` unless the folder is a suite's, or free for one not yet begun."""
        check_folder(self.path)
        if (self.path / SCORES).exists():
            return
        if begun:
            raise FedcrfError(
                f"results folder {self.path} holds no finished cells: run them, without --no-run, "
                f"or {ANOTHER}"
            )
        check_free(self.path, SCORES, "cells of a suite")

    def scores(self) -> list[Score]:
        """Return the scores of what is finished; a line still being written is left out."""
        check_folder(self.path)
        wanted = "a cell's score: take the line out to run that cell anew"
        return undamaged(read_lines(self.path / SCORES, Score, wanted))

    def descriptions(self, scores: Iterable[Score] = ()) -> dict[str, dict[str, Any]]:
        """Return by name what cells were, but for their seeds, those of the scores among them."""
        wrong = "does not describe cells: move the folder away to begin anew"
        known = read_record(dict[str, dict[str, Any]], self.path / DESCRIPTIONS, wrong) or {}
        names = [score.description for score in scores]
        sound = {name for name in {*names} & known.keys() if name_of(known[name]) == name}
        lacking = [name for name in names if name not in sound]
        if lacking:
            raise FedcrfError(
                f"{self.path / DESCRIPTIONS} does not describe {len(lacking)} of the finished "
                f"cells ('{lacking[0]}'): put the file back, or take their lines out of {SCORES} "
                "to run them anew"
            )
        return known

    def check_scored_data(self, cell: CellSpec, fingerprint: str) -> None:
        """Raise a `FedcrfError` where the scores of a cell's data are of other images."""
        descriptions, data = self.descriptions(), cell.describe()["data"]
        for score in self.scores():
            of_data = descriptions[score.description].get("data") == data
            if of_data and score.fingerprint != fingerprint:
                raise self._of_other_data("", score.fingerprint, fingerprint)

    def write_scores(self, scores: Iterable[Score]) -> None:
        """Replace the scores by these."""
        with atomic_write(self.path / SCORES) as file:
            file.writelines(map(line_of, scores))

    def describe(self, cells: Iterable[CellSpec]) -> None:
        """Keep what cells are, before the first of them is finished."""
        known = self.descriptions()
        wanted = {name_of(each): each for each in map(unseeded, cells)}
        if not wanted.items() <= known.items():
            write_text(self.path / DESCRIPTIONS, json.dumps(known | wanted, indent=1) + "\n")

    def append(self, score: Score) -> None:
        """Keep the score of one more finished cell, of those described."""
        append_line(self.path / SCORES, line_of(score))

    def under_way(self, partition: str, condition: str, seed: int) -> Store:
        """Return the run of one seed under one condition, while it is made."""
        return Store(self.path / "runs" / partition / condition / f"seed-{seed}")

    def packed(self, partition: str, condition: str) -> Store:
        """Return the run of the finished cells under a condition."""
        return Store(self.path / "rounds" / partition / condition)

    def _archive(self, partition: str, condition: str, seed: int) -> Path:
        return self.packed(partition, condition).path / f"seed-{seed}.tar.xz"

    def check_archives(self, runs: Iterable[tuple[RunSpec, Store]]) -> None:
        """Raise a `FedcrfError` where the rounds of runs under way could not be packed.

        Each run is of one seed; see `under_way`.
        """
        for spec, run in runs:
            archive = self._archive(*_place_of(run), spec.seeds[0])
            if archive.exists():
                check_same_settings(_packed_run(archive)[0], spec, str(archive))

    def packed_runs(self) -> list[Store]:
        """Return the runs of all conditions whose cells have kept their rounds."""
        folders = {path.parent for path in self.path.glob("rounds/*/*/seed-*.tar.xz")}
        return [Store(path) for path in sorted(folders)]

    def pack(self, scored: Iterable[CellKey], equal: Iterable[Sequence[CellKey]] = ()) -> None:
        """Move the rounds of finished cells from the runs under way into archives.

        Args:
            scored: Cells that are among the scores; others stay where they are.
            equal: Groups of equal cells. Of each the first was run, for all of them.
        """
        scored, group_of = set(scored), {keys[0]: keys for keys in equal}
        runs = self.path / "runs"
        for pattern in (f"*/*/{GOING}*", f"*/*/seed-*/cells/{GOING}*"):
            for path in runs.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)
        for path in sorted(runs.glob(f"*/*/seed-*/{DESCRIPTION}")):
            run = Store(path.parent)
            finished: list[CellSpec] = []
            contents: dict[Path, list[CellSpec]] = {}  # of archives
            for cell in run.read().cells():
                key = (*_place_of(run), cell.method.name, cell.seed)
                if key not in scored or run.cell(cell).summary() is None:
                    continue
                finished.append(cell)
                for partition, condition, *_ in group_of.get(key, [key]):
                    archive = self._archive(partition, condition, cell.seed)
                    contents.setdefault(archive, []).append(cell)
            for archive, cells in contents.items():
                run.add_to_archive(archive, cells)
            for cell in finished:
                _remove(run.cell(cell).path)
            if not any(run.path.glob("cells/*")):
                _remove(run.path)
        for folder in (*runs.glob("*/*"), *runs.glob("*"), runs):
            with suppress(OSError):  # there is a run in it
                folder.rmdir()


def _remove(folder: Path) -> None:
    """Remove a folder of a suite; a kill leaves it whole, or under a name that `Store.pack` knows.

    In part it would be a cell that lost its rounds, or a folder that is no run's.
    """
    with suppress(OSError):  # what stays is packed again
        shutil.rmtree(folder.replace(folder.with_name(f"{GOING}{folder.name}")), ignore_errors=True)


def _place_of(run: Store) -> tuple[str, str]:
    """Return the partition and the condition of a run of a suite that is under way."""
    *_, partition, condition, _ = run.path.parts
    return partition, condition


def _packed_run(path: Path) -> tuple[RunSpec, dict[str, bytes]]:
    """Return what run an archive is of, and its other files by name, without any outside of it."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:xz") as archive:
            for member in archive:
                parts = Path(member.name).parts
                inside = not Path(member.name).is_absolute() and ".." not in parts
                content = archive.extractfile(member) if member.isfile() and inside else None
                if content is not None:
                    files[member.name] = content.read()
        if DESCRIPTION not in files:
            raise tarfile.TarError("it holds no run")
        description = tomllib.loads(files.pop(DESCRIPTION).decode())
    except (OSError, EOFError, ValueError, tarfile.TarError, lzma.LZMAError) as error:
        mend = "take it and its cells' lines away to run them anew"
        raise FedcrfError(f"archive {path} cannot be read ({error}): {mend}") from None
    return resolve(description, reading=True), files


def described(spec: RunSpec | CellSpec) -> str:
    """Return the whole resolved description of a run, as its file has it, or of a cell."""
    return tomli_w.dumps(spec.describe())


def partition_file(seed: int) -> str:
    """Return where a run's folder has what the clients of a seed hold."""
    return f"partitions/seed-{seed}.json"


def unseeded(cell: CellSpec) -> dict[str, Any]:
    """Return what a cell is, the same for all its seeds."""
    return {key: value for key, value in cell.describe().items() if key != "seed"}


def name_of(description: Mapping[str, Any]) -> str:
    """Return the name under which a suite keeps a description.

    It is a digest, so that a description that was changed no longer has its name.
    """
    text = json.dumps(description, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def extended(earlier: RunSpec, spec: RunSpec, place: str) -> RunSpec:
    """Return a run with the methods and seeds of another one of the same settings added.

    ``place`` is the run's, as an error calls it.
    """
    check_same_settings(earlier, spec, place)
    return resolve(
        merge(earlier.describe(), spec.describe()),
        {
            "methods": list(dict.fromkeys([*earlier.methods, *spec.methods])),
            "seeds": sorted({*earlier.seeds, *spec.seeds}),
        },
        reading=True,
    )


def check_same_settings(earlier: RunSpec, spec: RunSpec, place: str) -> None:
    """Raise a `FedcrfError` where two runs differ in more than methods and seeds.

    ``place`` is that of the earlier run, as the error calls it.
    """
    # What a rule is informed of counts as said: old folders say numbers that were defaults.
    there, here = earlier.describe_informed(), spec.describe_informed()
    for key, was, is_now in _known(differences(_shared(there, here), _shared(here, there)), spec):
        raise FedcrfError(
            f"{place} is of another run ({key} is {was} there, {is_now} here): move it away, or "
            f"{ANOTHER}"
        )


def _known(
    differing: Iterable[tuple[str, Any, Any]], spec: RunSpec | CellSpec
) -> Iterator[tuple[str, Any, Any]]:
    """Yield those of the `differences` of two descriptions that are certain.

    Where the code of a thing is gone, nobody knows the defaults of its settings. So a setting that
    only one of the two descriptions has may be no difference.
    """
    things: dict[str, Any] = {"model": spec.model, "attacks": spec.threat and spec.threat.attack}
    if isinstance(spec, CellSpec):
        things |= {"rule": spec.rule, "objective": spec.objective}
    else:
        for section, used in spec.things.items():
            things |= {f"{section}.{name}": thing for name, thing in used.items()}
    gone = tuple(f"{name}." for name, thing in things.items() if is_stand_in(thing))
    for key, was, is_now in differing:
        if not key.startswith(gone) or "unset" not in (was, is_now):
            yield key, was, is_now


def _shared(described: Options, beside: Options) -> dict[str, Any]:
    """Return the part of a run's description that another run in the same folder must share.

    Methods and seeds are no part of it, nor are settings of named things, such as rules, that only
    one of the two runs uses.
    """
    return {
        section: {
            name: value
            for name, value in described.get(section, {}).items()
            if section not in KINDS or name in beside.get(section, {})
        }
        for section in (*SHARED, "attack", *KINDS)
    }


def partition_record(
    seed: int, splits: Sequence[ClientSplit], dataset: ImageDataset
) -> PartitionRecord:
    """Count what each client of a seed holds."""
    names, labels = list(dataset.class_names), dataset.train.labels
    clients = [
        ClientHoldings(
            client=client if dataset.sites is None else dataset.sites[client],
            train=len(split.train),
            validation=len(split.validation),
            test=len(split.test),
            labels=np.bincount(labels[split.train], minlength=len(names)).tolist(),
        )
        for client, split in enumerate(splits)
    ]
    return PartitionRecord(
        seed=seed, fingerprint=dataset.fingerprint, class_names=names, clients=clients
    )


def brief_line(record: RoundRecord) -> bytes:
    """Return a round's line with what pages and commands read of it, in few digits.

    Left out is what no page shows round by round: the clients' training losses, the metrics of the
    held-out set and of everyone, and those of the test parts but for the accuracy. So are times,
    which mean nothing where other cells ran beside. What the cell came to is in its summary,
    exactly.
    """
    line = record.model_dump_json(exclude_none=True, exclude={"held_out", "everyone"})

    def rounded(digits: int) -> dict[str, Any]:
        return dict(json.loads(line, parse_float=lambda text: float(f"{float(text):.{digits}g}")))

    # Pages and tables show no more digits, and each is a seventh of the archive.
    exact, metrics = json.loads(line), rounded(4)
    content = rounded(3) | {key: metrics[key] for key in ("training_loss", "validation", "test")}
    content["num_examples"] = exact["num_examples"]
    content["client_training_loss"] = [None] * len(record.clients)
    content["test"] = {**dict.fromkeys(metrics["test"]), "accuracy": metrics["test"]["accuracy"]}
    content["seconds"] = dict.fromkeys(content["seconds"])
    if "totals" in content:
        content["totals"]["seconds"] = content["seconds"]
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"
