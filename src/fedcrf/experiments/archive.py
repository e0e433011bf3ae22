"""Finished runs packed: an archive of a run's files, with fewer digits and without models."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcrf.errors import FedcrfError
from fedcrf.files import atomic_write
from fedcrf.simulation.records import RoundRecord

METRICS = ("training_loss", "validation", "test")
"""Of a round's record what is kept in `METRIC_DIGITS`; the rest has `CLIENT_DIGITS`."""

METRIC_DIGITS = 4
CLIENT_DIGITS = 3
"""Pages and tables show no more, and every digit is a seventh of the archive."""


def read_archive(path: Path, needed: str) -> dict[str, bytes]:
    """Return an archive's files by name; those that would lie outside of it are left out.

    Args:
        path: The archive.
        needed: The name of a file that must be there.

    Raises:
        FedcrfError: There is none, it is damaged, or it lacks that file.
    """
    files: dict[str, bytes] = {}
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
    if needed not in files:
        raise _damaged(path, "it holds no run")
    return files


def _damaged(path: Path, why: object) -> FedcrfError:
    return FedcrfError(
        f"archive {path} cannot be read ({why}): take it and its cells' lines away to run them anew"
    )


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
