"""Results folders and the records in them: who may write, and what a line or a file holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from fedcrf.errors import FedcrfError
from fedcrf.files import whole_lines
from fedcrf.simulation.records import Record, RoundRecord

R = TypeVar("R")

LOCK_NAME = ".lock"


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


def line_of(record: Record) -> bytes:
    """Return a record as a line of a file."""
    return record.model_dump_json(exclude_none=True).encode() + b"\n"


def read_lines(path: Path, kind: Any, wanted: str) -> tuple[list[Any], str | None]:
    """Return the records in a file's lines before the first damaged one, and that one's damage.

    Args:
        path: One record a line; a line still being written is left out. Where there is no file,
            there are no records.
        kind: What a line holds, a class of records or a union of some.
        wanted: What a damaged line is not, and the mend, as the damage is worded.

    Returns:
        The records; and which line is damaged, or why the file cannot be read, None where all is
        well.
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
    """Return what the JSON of a file holds; None where there is no file.

    Raises:
        FedcrfError: It is another thing; the error says what is wrong.
    """
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise FedcrfError(f"{path} {wrong}") from None


class DamagedRecordsError(FedcrfError):
    """A line that is no round's record, and the sound rounds before it."""

    def __init__(self, damage: str, sound: Sequence[RoundRecord]) -> None:
        super().__init__(damage)
        self.sound = sound


@dataclass(frozen=True)
class RoundsFolder(ABC):
    """A folder with the records of some rounds."""

    path: Path

    @abstractmethod
    def sound_records(self) -> tuple[list[RoundRecord], str | None]:
        """Return the rounds before the first damaged line, and what is wrong with that, if any."""

    def records(self) -> list[RoundRecord]:
        """Return the rounds so far; a line still being written is left out.

        Raises:
            DamagedRecordsError: A line that is no record.
        """
        records, damage = self.sound_records()
        if damage is not None:
            raise DamagedRecordsError(damage, records)
        return records
