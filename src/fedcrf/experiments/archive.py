"""Finished cells packed away: a run's folder as an archive, its rounds in fewer digits.

::

    SUITE/rounds/PARTITION/CONDITION/seed-S.tar.xz     a run's folder, without models

An archive unpacks to a run's folder. All archives of a condition are opened as one run.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedcrf.errors import FedcrfError
from fedcrf.experiments.cell import CellSpec
from fedcrf.experiments.run_file import merge
from fedcrf.experiments.spec import resolve
from fedcrf.experiments.store import RunStore
from fedcrf.files import atomic_write
from fedcrf.simulation.records import RoundRecord

SUFFIX = ".tar.xz"
"""Ends the name of an archive."""

METRICS = ("training_loss", "validation", "test")
"""Of a round's record what is kept in `METRIC_DIGITS`; the rest has `CLIENT_DIGITS`."""

METRIC_DIGITS = 4
CLIENT_DIGITS = 3
"""Pages and tables show no more, and every digit is a seventh of the archive."""

_opened: list[TemporaryDirectory[str]] = []
"""Unpacked runs; removed when the process ends."""


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
    spec = resolve(merge(described, {"methods": names, "seeds": [cells[0].seed]}))
    with TemporaryDirectory() as folder:
        packed = RunStore(Path(folder))
        try:
            _unpack(path, packed)
            spec = packed.check(spec)
        except FedcrfError:
            packed = RunStore(Path(folder) / "anew")
            packed.path.mkdir()
        packed.write(spec)
        partition = store.partition(cells[0].seed)
        if partition is not None:
            packed.write_partition(partition)
        for cell in cells:
            source, target = store.cell(cell), packed.cell(cell).path
            target.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(_brief(each), separators=(",", ":")) for each in source.records()]
            (target / "rounds.jsonl").write_text("".join(f"{line}\n" for line in lines))
            (target / "summary.json").write_bytes((source.path / "summary.json").read_bytes())
        _pack(packed.path, path)


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
    """Unpack an archive to what a folder holds of the run already; nothing where there is none.

    Raises:
        FedcrfError: It is damaged, or of another run.
    """
    if not path.exists():
        return
    files = _read(path)
    described = resolve(tomllib.loads(files.pop("run.toml").decode()))
    try:
        spec = store.check(described)
    except FedcrfError as error:
        raise FedcrfError(
            f"archive {path} is of another run than those beside it: {error}"
        ) from None
    store.path.mkdir(parents=True, exist_ok=True)
    store.write(spec)
    for name, content in files.items():
        target = store.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _read(path: Path) -> dict[str, bytes]:
    """Return the files of an archive by name, those within it alone.

    Raises:
        FedcrfError: It is damaged.
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
    if "run.toml" not in files:
        raise _damaged(path, "it holds no run")
    return files


def _damaged(path: Path, why: object) -> FedcrfError:
    return FedcrfError(
        f"archive {path} cannot be read ({why}): take it and its cells' lines away to run them anew"
    )


def _pack(folder: Path, path: Path) -> None:
    """Write all files of a folder as an archive; equal files make an equal archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_write(path) as file,
        lzma.open(file, "wb", preset=6 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for each in sorted(folder.rglob("*")):
            if each.is_file():
                content = each.read_bytes()
                member = tarfile.TarInfo(str(each.relative_to(folder)))
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
