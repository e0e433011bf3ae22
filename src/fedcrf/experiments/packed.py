"""A suite's finished cells on disk: a line each, what they were, and their rounds as archives.

::

    SUITE/cells.jsonl           the score of each cell, a line each
          descriptions.json     what the cells were, once for all seeds
          rounds/PARTITION/CONDITION/seed-S.tar.xz     a run's folder, without models
          runs/                 working folders of cells that are not finished

An archive unpacks to a run's folder, whose rounds have fewer digits. All archives of a condition
are opened as one run.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import shutil
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import tomli_w
from pydantic import Field

from fedcrf.errors import FedcrfError
from fedcrf.experiments.provenance import Provenance, changes
from fedcrf.experiments.settings import merge
from fedcrf.experiments.spec import CellSpec, RunSpec, cell_of, resolve
from fedcrf.experiments.store import (
    RunStore,
    check_folder,
    check_free,
    extended,
    folder_lock,
    read_lines,
)
from fedcrf.experiments.study import CellKey
from fedcrf.files import append_line, atomic_write, write_text
from fedcrf.simulation.records import Number, Record, RoundRecord

SUFFIX = ".tar.xz"
"""Ends the name of an archive."""

DESCRIPTION = "run.toml"
"""The file of an archive that says what run it is of."""

METRICS = ("training_loss", "validation", "test")
"""Of a round's record what is kept in `METRIC_DIGITS`; the rest has `CLIENT_DIGITS`."""

METRIC_DIGITS = 4
CLIENT_DIGITS = 3
"""Pages and tables show no more, and every digit is a seventh of the archive."""

_opened: list[TemporaryDirectory[str]] = []
"""Unpacked runs; removed when the process ends."""


class Score(Record):
    """The result of one cell of a suite.

    ``accuracy`` is the mean test accuracy of the last rounds, of so many as ``last_rounds`` says.
    ``everyone`` and ``worst_client`` are, over the same rounds, the accuracy over all clients, the
    attackers and all that they hold included, and that of the client with the lowest; None of a
    line that does not say it.
    ``separation`` has for each round in which clients were wrong the chance that one of them has a
    smaller share of its FedAvg weight than one that is right, the area under the curve; None where
    the rule infers no weights. ``behaviour`` has by part the behaviour numbers that are not 1.
    ``description`` is the name under which the folder keeps what the cell was, but for its seed;
    ``fingerprint`` is of its data.
    """

    partition: str
    condition: str
    method: str
    seed: Annotated[int, Field(ge=0)]
    accuracy: Annotated[float, Field(ge=0.0, le=1.0)]
    everyone: float | None = None
    worst_client: float | None = None
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
class Ledger:
    """A folder's finished cells, and the working folders of those to come.

    Attributes:
        path: The folder.
    """

    path: Path

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder for writing.

        Raises:
            FedcrfError: Another process holds it, it cannot be a folder, or holds something else.
        """
        check_folder(self.path)
        if not self._lines.exists():
            check_free(self.path, self._lines.name, "cells of a suite")
        return folder_lock(self.path)

    def exists(self) -> bool:
        """Tell whether the folder holds finished cells."""
        return self._lines.is_file()

    def check_begun(self) -> None:
        """Raise a `FedcrfError` where the folder holds no finished cells."""
        check_folder(self.path)
        if not self._lines.exists():
            raise FedcrfError(
                f"results folder {self.path} holds no finished cells: run them, without --no-run, "
                "or choose another with --output"
            )

    def scores(self) -> list[Score]:
        """Return what is finished; a line still being written is left out.

        Raises:
            FedcrfError: A line that is no score, or a file where the folder should be.
        """
        check_folder(self.path)
        wanted = "a cell's score: take the line out to run that cell anew"
        scores, damage = read_lines(self._lines, Score, wanted)
        if damage is not None:
            raise FedcrfError(damage)
        return scores

    def told(self) -> list[str]:
        """Return how many finished cells there are, which are stale and where rounds are, in lines.

        Raises:
            FedcrfError: The cells or their descriptions are damaged.
        """
        scores = self.scores()
        today = cells_today(scores, self.descriptions(scores))
        counts = Counter(said for cell, said in today if cell and said)
        stale = [f"{count} cells are stale: {reason}" for reason, count in counts.items()]
        packed = conditions(self.path)
        return [
            f"{self.path} holds {len(scores)} finished cells of a suite; fedcrf robustness makes "
            "its tables, and runs again what is stale",
            *stale,
            f"for the rounds of its cells name a condition, such as {packed[0]}"
            if packed
            else "its cells have kept no rounds; those that are run from now on do",
        ]

    def descriptions(self, scores: Iterable[Score] = ()) -> dict[str, dict[str, Any]]:
        """Return by name what cells were, but for their seeds.

        Args:
            scores: Those whose descriptions must be there.

        Raises:
            FedcrfError: The file is damaged, or lacks what one of the scores is of.
        """
        known = self._known_descriptions()
        names = [score.description for score in scores]
        sound = {name for name in {*names} & known.keys() if name_of(known[name]) == name}
        lacking = [name for name in names if name not in sound]
        if lacking:
            raise FedcrfError(
                f"{self._descriptions} does not describe {len(lacking)} of the finished cells "
                f"('{lacking[0]}'): put the file back, or take their lines out of "
                f"{self._lines.name} to run them anew"
            )
        return known

    def _known_descriptions(self) -> dict[str, dict[str, Any]]:
        damaged = FedcrfError(
            f"{self._descriptions} does not describe cells: move the folder away to begin anew"
        )
        try:
            found = json.loads(self._descriptions.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            raise damaged from None
        if not isinstance(found, dict) or any(
            not isinstance(each, dict) for each in found.values()
        ):
            raise damaged
        return found

    def check_data(self, cell: CellSpec, fingerprint: str, scores: Iterable[Score]) -> None:
        """Check that those scores of this folder that are of a cell's data are of the same images.

        Raises:
            FedcrfError: They are of others, or the folder's descriptions are damaged.
        """
        descriptions, data = self.descriptions(), cell.describe()["data"]
        for score in scores:
            same = descriptions[score.description].get("data") == data
            if same and score.fingerprint != fingerprint:
                raise FedcrfError(
                    f"results folder {self.path} is of other data (fingerprint "
                    f"{score.fingerprint} there, {fingerprint} here): choose another with --output"
                )

    def write(self, scores: Sequence[Score]) -> None:
        """Replace the finished cells by these."""
        with atomic_write(self._lines) as file:
            for score in scores:
                file.write(_line(score))

    def describe(self, cells: Iterable[CellSpec]) -> None:
        """Keep what cells are, before the first of them is finished."""
        known = self.descriptions()
        wanted = {name_of(each): each for each in map(_unseeded, cells)}
        if not wanted.items() <= known.items():
            write_text(self._descriptions, json.dumps(known | wanted, indent=1) + "\n")

    def append(self, score: Score) -> None:
        """Keep one more finished cell, of those described."""
        append_line(self._lines, _line(score))

    def run(self, partition: str, condition: str, seed: int) -> RunStore:
        """Return the working folder of one seed under one condition."""
        return RunStore(self._runs / partition / condition / f"seed-{seed}")

    def rounds(self, partition: str, condition: str) -> Path:
        """Return the folder of the archives of a condition, one a seed."""
        return self.path / "rounds" / partition / condition

    def pack(self, scored: Iterable[CellKey], same: Iterable[Sequence[CellKey]] = ()) -> None:
        """Move the rounds of finished cells from their working folders into archives.

        Args:
            scored: Cells that are among the scores; others stay where they are.
            same: Cells that are one cell, which was run in the place of the first.

        Raises:
            FedcrfError: The records of such a cell are damaged.
        """
        scored, places = set(scored), {keys[0]: keys for keys in same}
        for described in sorted(self._runs.glob("*/*/seed-*/run.toml")):
            folder = described.parent
            store, (partition, condition) = RunStore(folder), folder.parts[-3:-1]
            packed: dict[Path, list[CellSpec]] = {}
            for cell in store.read().cells():
                key = (partition, condition, cell.method.name, cell.seed)
                if key not in scored or store.cell(cell).summary() is None:
                    continue
                for each in places.get(key, [key]):
                    place = self.rounds(each[0], each[1])
                    packed.setdefault(place / f"seed-{cell.seed}{SUFFIX}", []).append(cell)
            for path, cells in packed.items():
                add(path, store, cells)
            for cells in packed.values():
                for cell in cells:
                    shutil.rmtree(store.cell(cell).path, ignore_errors=True)
            if packed and not any((folder / "cells").iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
        for folder in (*self._runs.glob("*/*"), *self._runs.glob("*"), self._runs):
            with suppress(OSError):  # there is a working folder in it
                folder.rmdir()

    @property
    def _descriptions(self) -> Path:
        return self.path / "descriptions.json"

    @property
    def _lines(self) -> Path:
        return self.path / "cells.jsonl"

    @property
    def _runs(self) -> Path:
        return self.path / "runs"


def cells_today(
    scores: Iterable[Score], descriptions: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[CellSpec | None, str]]:
    """Yield for each score the cell that it is of, and why it is stale; empty where it is not.

    Settings that are new since it was run have their defaults. It is None, with the reason, where
    there are no such cells now.
    """
    cells: dict[str, CellSpec | FedcrfError] = {}
    reasons: dict[tuple[str, str, str], str] = {}
    for score in scores:
        name, kept, device = score.description, score.behaviour or {}, score.provenance.device
        if name not in cells:
            try:
                cells[name] = cell_of({**descriptions.get(name, {}), "seed": 0})
            except FedcrfError as error:
                cells[name] = error
        cell, key = cells[name], (name, str(kept), device)
        if isinstance(cell, FedcrfError):
            yield None, str(cell)
            continue
        if key not in reasons:
            reasons[key] = "; ".join(changes(cell, kept, device))
        yield replace(cell, seed=score.seed), reasons[key]


def _unseeded(cell: CellSpec) -> dict[str, Any]:
    description = cell.describe()
    del description["seed"]
    return description


def digest(cell: CellSpec) -> str:
    """Return the name under which a ledger keeps what a cell is, the same for all its seeds."""
    return name_of(_unseeded(cell))


def name_of(description: Mapping[str, Any]) -> str:
    """Return the name of a description, by which a damaged one is known."""
    text = json.dumps(description, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _line(score: Score) -> bytes:
    return score.model_dump_json(exclude_none=True).encode() + b"\n"


def add(path: Path, store: RunStore, cells: Iterable[CellSpec]) -> None:
    """Pack finished cells of a run into an archive, in the place of those of their names.

    Args:
        path: The archive. One of other settings, or one that cannot be read, is replaced.
        store: The run.
        cells: Which of its cells; of one seed.

    Raises:
        FedcrfError: A cell's records are damaged.
        OSError: The archive cannot be written.
    """
    cells = list(cells)
    names = list(dict.fromkeys(cell.method.name for cell in cells))
    described = store.read().describe()
    spec = resolve(merge(described, {"methods": names, "seeds": [cells[0].seed]}), reading=True)
    files: dict[str, bytes] = {}
    with suppress(FedcrfError):
        earlier, there = _read(path)
        spec, files = extended(earlier, spec, str(path)), there
    files[DESCRIPTION] = tomli_w.dumps(spec.describe()).encode()
    if (partition := store.partition(cells[0].seed)) is not None:
        files[f"partitions/seed-{partition.seed}.json"] = (
            partition.model_dump_json().encode() + b"\n"
        )
    for cell in cells:
        source = store.cell(cell)
        lines = [json.dumps(_brief(each), separators=(",", ":")) for each in source.records()]
        files[f"cells/{cell.name}/rounds.jsonl"] = "".join(f"{line}\n" for line in lines).encode()
        files[f"cells/{cell.name}/summary.json"] = source.content()["summary.json"]
    _pack(files, path)


def open_run(folder: Path) -> RunStore:
    """Return the run in a folder, unpacked where it is packed.

    Args:
        folder: Of a run, or of the archives of one.

    Raises:
        FedcrfError: An archive is damaged, they are not of one run, or the folder is a whole suite.
    """
    archives = sorted(folder.glob(f"seed-*{SUFFIX}"), key=lambda path: (len(path.name), path))
    if (folder / "cells.jsonl").exists():
        within = conditions(folder)
        raise FedcrfError(
            f"{folder} holds a suite: name a condition of it, such as {within[0]}"
            if within
            else f"{folder} holds a suite whose cells have kept no rounds: run them again"
        )
    if not archives:
        return RunStore(folder)
    _opened.append(TemporaryDirectory())
    whole = RunStore(Path(_opened[-1].name) / folder.name)
    for path in archives:
        _unpack(path, whole)
    return whole


def conditions(folder: Path) -> list[Path]:
    """Return the folders of archives that a suite's folder has."""
    return sorted({path.parent for path in folder.glob(f"rounds/*/*/seed-*{SUFFIX}")})


def _unpack(path: Path, store: RunStore) -> None:
    """Unpack an archive to what a folder holds of the run already.

    Raises:
        FedcrfError: It is damaged, or of another run.
    """
    spec, files = _read(path)
    if (store.path / DESCRIPTION).exists():
        spec = extended(store.read(), spec, f"archive {path}")
    store.path.mkdir(parents=True, exist_ok=True)
    store.write(spec)
    for name, content in files.items():
        target = store.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _read(path: Path) -> tuple[RunSpec, dict[str, bytes]]:
    """Return what run an archive is of, and its other files by name, those within it alone.

    Raises:
        FedcrfError: There is none, or it is damaged.
    """
    files = {}
    try:
        with tarfile.open(path, "r:xz") as archive:
            for member in archive:
                parts = Path(member.name).parts
                inside = not Path(member.name).is_absolute() and ".." not in parts
                content = archive.extractfile(member) if member.isfile() and inside else None
                if content is not None:
                    files[member.name] = content.read()
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
        raise _damaged(path, error) from None
    if DESCRIPTION not in files:
        raise _damaged(path, "it holds no run")
    return resolve(tomllib.loads(files.pop(DESCRIPTION).decode()), reading=True), files


def _damaged(path: Path, why: object) -> FedcrfError:
    return FedcrfError(
        f"archive {path} cannot be read ({why}): take it and its cells' lines away to run them anew"
    )


def _pack(files: Mapping[str, bytes], path: Path) -> None:
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


def _brief(record: RoundRecord) -> dict[str, Any]:
    """Return a round's record with what pages and commands read of it, in few digits.

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
    return {
        key: value
        if key == "num_examples"
        else _rounded(value, METRIC_DIGITS if key in METRICS else CLIENT_DIGITS)
        for key, value in content.items()
    }


def _rounded(value: Any, digits: int) -> Any:
    """Return plain values with their floats to so many significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [_rounded(each, digits) for each in value]
    if isinstance(value, Mapping):
        return {key: _rounded(each, digits) for key, each in value.items()}
    return value
