"""Results on disk: one layout, of a run or of a suite of runs, loose while it is made.

::

    RUN/run.toml                     the whole resolved description
        partitions/seed-S.json       what each client holds
        cells/METHOD-seed-S/         a cell's folder, see `fedcrf.experiments.cell`
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
import shutil
import tarfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import tomli_w
from pydantic import Field

from fedcrf.data import ClientSplit, ImageDataset
from fedcrf.errors import FedcrfError
from fedcrf.experiments.cell import (
    CellStore,
    check_folder,
    check_free,
    folder_lock,
    line_of,
    read_lines,
    read_record,
)
from fedcrf.experiments.provenance import Provenance
from fedcrf.experiments.settings import differences, merge, read_toml
from fedcrf.experiments.spec import KINDS, CellKey, CellSpec, RunSpec, resolve
from fedcrf.files import append_line, atomic_write, write_text
from fedcrf.simulation.records import Client, Number, Record, RoundRecord

DESCRIPTION = "run.toml"
"""The file that says what run a folder or an archive is of."""

SCORES, DESCRIPTIONS = "cells.jsonl", "descriptions.json"
"""The files of a suite: what came of its cells, and what they were."""

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
        return (self.partition, self.condition, self.method, self.seed)


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
            packed = self.packed_runs()
            raise FedcrfError(
                f"{self.path} holds a suite: name a condition of it, such as {packed[0].path}"
                if packed
                else f"{self.path} holds a suite whose cells have kept no rounds: run them again"
            )
        described = self._loose / DESCRIPTION
        if not described.exists():
            names = ", ".join(store.path.name for store in self.runs_below())
            place = f"one of those in it: {names}" if names else "a run's folder"
            raise FedcrfError(f"{self.path} holds no run (no run.toml): name {place}")
        return resolve(read_toml(described), reading=True)

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
        wrong = (
            "is not what the clients of a seed hold: "
            "take it away, and the run's command makes it anew"
        )
        return read_record(PartitionRecord, self._loose / partition_file(seed), wrong)

    def check(self, spec: RunSpec) -> RunSpec:
        """Return the description of this folder with the methods and seeds of another run added."""
        check_folder(self.path)
        if not (self.path / DESCRIPTION).exists():
            check_free(self.path, DESCRIPTION, "run")
            return spec
        return extended(self.read(), spec, f"results folder {self.path}")

    def check_data(self, seeds: Iterable[int], fingerprint: str) -> None:
        """Raise a `FedcrfError` where earlier cells of these seeds were run on other data."""
        for seed in seeds:
            before = self.partition(seed)
            if before is not None and before.fingerprint:
                self._check_fingerprint(f"seed {seed}: ", before.fingerprint, fingerprint)

    def _check_fingerprint(self, whose: str, there: str, here: str) -> None:
        if there != here:
            raise FedcrfError(
                f"results folder {self.path} is of other data ({whose}fingerprint {there} there, "
                f"{here} here): choose another with --output"
            )

    def write(self, spec: RunSpec) -> None:
        """Save the whole resolved description."""
        with atomic_write(self.path / DESCRIPTION) as file:
            tomli_w.dump(spec.describe(), file)

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
        archives = sorted(self.path.glob("seed-*.tar.xz"), key=lambda path: (len(path.name), path))
        if not archives:
            return self.path
        _unpacked.append(TemporaryDirectory())
        whole = Store(Path(_unpacked[-1].name) / self.path.name)
        whole.path.mkdir()
        for path in archives:
            spec, files = _packed_run(path)
            there = (whole.path / DESCRIPTION).exists()
            whole.write(extended(whole.read(), spec, f"archive {path}") if there else spec)
            for name, content in files.items():
                target = whole.path / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        return whole.path

    def add_to_archive(self, path: Path, cells: Sequence[CellSpec]) -> None:
        """Pack finished cells of one seed into an archive; those of the same names are replaced.

        An archive of other settings, or one that cannot be read, is replaced as a whole.
        """
        seed, names = cells[0].seed, list(dict.fromkeys(cell.method.name for cell in cells))
        chosen = merge(self.read().describe(), {"methods": names, "seeds": [seed]})
        spec = resolve(chosen, reading=True)
        files: dict[str, bytes] = {}
        with suppress(FedcrfError):
            earlier, there = _packed_run(path)
            spec, files = extended(earlier, spec, str(path)), there
        files[DESCRIPTION] = tomli_w.dumps(spec.describe()).encode()
        if (partition := self.partition(seed)) is not None:
            files[partition_file(seed)] = line_of(partition)
        for cell in cells:
            place = self.cell(cell)
            files[f"cells/{cell.name}/rounds.jsonl"] = b"".join(map(brief_line, place.records()))
            files[f"cells/{cell.name}/summary.json"] = place.content()["summary.json"]
        write_archive(path, files)

    # A suite

    @property
    def is_suite(self) -> bool:
        """Whether the folder holds finished cells of a suite."""
        return (self.path / SCORES).is_file()

    def check_suite(self, *, begun: bool = False) -> None:
        """Raise a `FedcrfError` unless the folder is a suite's, or free for one not yet begun."""
        check_folder(self.path)
        if begun and not (self.path / SCORES).exists():
            raise FedcrfError(
                f"results folder {self.path} holds no finished cells: run them, without --no-run, "
                "or choose another with --output"
            )
        if not (self.path / SCORES).exists():
            check_free(self.path, SCORES, "cells of a suite")

    def scores(self) -> list[Score]:
        """Return the scores of what is finished; a line still being written is left out."""
        check_folder(self.path)
        wanted = "a cell's score: take the line out to run that cell anew"
        scores, damage = read_lines(self.path / SCORES, Score, wanted)
        if damage is not None:
            raise FedcrfError(damage)
        return scores

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
            if descriptions[score.description].get("data") == data:
                self._check_fingerprint("", score.fingerprint, fingerprint)

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

    def packed_runs(self) -> list[Store]:
        """Return the runs of all conditions whose cells have kept their rounds."""
        return [
            Store(path)
            for path in sorted({path.parent for path in self.path.glob("rounds/*/*/seed-*.tar.xz")})
        ]

    def pack(self, scored: Iterable[CellKey], same: Iterable[Sequence[CellKey]] = ()) -> None:
        """Move the rounds of finished cells from the runs under way into archives.

        Args:
            scored: Cells that are among the scores; others stay where they are.
            same: Groups of equal cells; of each the first was run, for all of them.
        """
        scored, places = set(scored), {keys[0]: keys for keys in same}
        runs = self.path / "runs"
        for described in sorted(runs.glob(f"*/*/seed-*/{DESCRIPTION}")):
            run = Store(described.parent)
            partition, condition = run.path.parts[-3:-1]
            packed: dict[Path, list[CellSpec]] = {}
            for cell in run.read().cells():
                key = (partition, condition, cell.method.name, cell.seed)
                if key not in scored or run.cell(cell).summary() is None:
                    continue
                for each in places.get(key, [key]):
                    place = self.packed(each[0], each[1]).path / f"seed-{cell.seed}.tar.xz"
                    packed.setdefault(place, []).append(cell)
            for path, cells in packed.items():
                run.add_to_archive(path, cells)
            for cells in packed.values():
                for cell in cells:
                    shutil.rmtree(run.cell(cell).path, ignore_errors=True)
            if packed and not any((run.path / "cells").iterdir()):
                shutil.rmtree(run.path, ignore_errors=True)
        for folder in (*runs.glob("*/*"), *runs.glob("*"), runs):
            with suppress(OSError):  # there is a run in it
                folder.rmdir()


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
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
        mend = "take it and its cells' lines away to run them anew"
        raise FedcrfError(f"archive {path} cannot be read ({error}): {mend}") from None
    return resolve(tomllib.loads(files.pop(DESCRIPTION).decode()), reading=True), files


def partition_file(seed: int) -> str:
    """Return where a run's folder has what the clients of a seed hold."""
    return f"partitions/seed-{seed}.json"


def unseeded(cell: CellSpec) -> dict[str, Any]:
    """Return what a cell is, the same for all its seeds."""
    return {key: value for key, value in cell.describe().items() if key != "seed"}


def name_of(description: Mapping[str, Any]) -> str:
    """Return the name under which a suite keeps a description; a damaged one is known by it."""
    text = json.dumps(description, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def extended(earlier: RunSpec, spec: RunSpec, place: str) -> RunSpec:
    """Return a run with the methods and seeds of another one of the same settings added.

    ``place`` is the run's, as an error calls it.
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
    """Return the part of a run's description that another run in the same folder must share.

    That is all but methods and seeds; of rules and other named things, of those that both use.
    """
    described, beside = (
        # What a rule is informed of counts as said: old folders say numbers that were defaults.
        {**each.describe(), "rules": each.informed_rules}
        for each in (spec, other)
    )
    sections = ("data", "partition", "model", "training", "rounds", "attack")
    return {section: described.get(section, {}) for section in sections} | {
        section: {
            name: settings
            for name, settings in described.get(section, {}).items()
            if name in beside.get(section, {})
        }
        for section in KINDS
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


METRICS = ("training_loss", "validation", "test")
"""Of a round's record what is kept in `METRIC_DIGITS`; the rest has `CLIENT_DIGITS`."""

METRIC_DIGITS = 4
CLIENT_DIGITS = 3
"""Pages and tables show no more, and every digit is a seventh of the archive."""


def write_archive(path: Path, files: Mapping[str, bytes]) -> None:
    """Write files as an archive; equal files make an equal archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_write(path) as file,
        lzma.open(file, "wb", preset=6 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def brief_line(record: RoundRecord) -> bytes:
    """Return a round's line with what pages and commands read of it, in few digits.

    No page shows the clients' training losses, and of the test parts none but the accuracy, round
    by round; a cell's times mean nothing where others ran beside it. What the cell came to is in
    its summary, exactly.
    """
    content = json.loads(
        record.model_dump_json(exclude_none=True, exclude={"held_out", "everyone"})
    )
    content["client_training_loss"] = [None] * len(record.clients)
    content["test"] = {**dict.fromkeys(content["test"]), "accuracy": content["test"]["accuracy"]}
    content["seconds"] = dict.fromkeys(content["seconds"])
    if "totals" in content:
        content["totals"]["seconds"] = content["seconds"]
    brief = {
        key: value
        if key == "num_examples"
        else _rounded(value, METRIC_DIGITS if key in METRICS else CLIENT_DIGITS)
        for key, value in content.items()
    }
    return json.dumps(brief, separators=(",", ":")).encode() + b"\n"


def _rounded(value: Any, digits: int) -> Any:
    """Return plain values with their floats to so many significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [_rounded(each, digits) for each in value]
    if isinstance(value, Mapping):
        return {key: _rounded(each, digits) for key, each in value.items()}
    return value
