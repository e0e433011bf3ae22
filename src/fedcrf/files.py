"""Files that are written whole or not at all, and the cache folder."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

MENDS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, and give the same command again"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "choose another folder"),
}
"""What helps where a file cannot be written, by the system's number of the error."""

CACHE_VARIABLE = "FEDCRF_CACHE"
"""Names the cache folder; else it is the user's."""


def cache_folder() -> Path:
    """Return the cache folder, for decoded images and compiled code."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("fedcrf"))


def whole_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a file that is appended to."""
    lines = path.read_bytes().split(b"\n")
    return lines[:-1]  # what stands after the last end of a line is none yet


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write a file so that a kill at any moment leaves the old one or the new one, whole.

    A link is followed, and what is no file, such as a device, is left alone.

    Raises:
        OSError: It cannot be written; the error names the file and what helps.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a file", str(path))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    with naming(path, unfinished):
        try:
            with unfinished.open("xb") as file:
                yield file
            unfinished.replace(path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise


def remove_unfinished(path: Path) -> None:
    """Remove what `atomic_write` left of a file where it was killed; call it under a lock alone.

    Whether another writer is alive, perhaps on another host, the names do not say.
    """
    path = Path(os.path.realpath(path))
    left = re.compile(rf"\.{re.escape(path.name)}\.\d+-[0-9a-f]{{8}}")
    with suppress(OSError):
        for each in path.parent.iterdir():
            if left.fullmatch(each.name):
                each.unlink()


def lock_beside(path: Path) -> Callable[[], None] | None:
    """Lock a file, by one beside it, for this process; return what unlocks it, None if it is taken.

    The lock goes with the process, however that ends. A file that is left then locks nothing.

    Raises:
        OSError: It cannot be locked here.
        ImportError: This system has no such locks.
    """
    import fcntl

    path = Path(os.path.realpath(path))
    lock, process = path.with_name(f".{path.name}.lock"), os.getpid()
    file = lock.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    if not os.fstat(file.fileno()).st_nlink:  # its holder took it away meanwhile
        file.close()
        return lock_beside(path)

    def unlock() -> None:
        if os.getpid() == process:  # not where a child of it ends
            with suppress(OSError):
                lock.unlink()
            fcntl.flock(file, fcntl.LOCK_UN)  # also where a child has it open
            file.close()

    return unlock


def append_line(path: Path, line: bytes) -> None:
    """Write a line, with its end, behind a file's others; all of it, or none where it fails.

    It raises what `atomic_write` does.
    """
    with naming(path), path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise


@contextmanager
def naming(path: Path, stand_in: Path | None = None) -> Iterator[None]:
    """Let an error of writing name the file, not the unfinished one beside it, and what helps."""
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename) == str(stand_in):
            error.filename = str(path)
            del error.filename2  # None would be said as another name
        mend = MENDS.get(error.errno or 0)
        if mend is not None and error.strerror is not None and mend not in error.strerror:
            error.strerror = f"{error.strerror}: {mend}"  # once, of files that are written together
        raise


def write_text(path: Path, text: str) -> None:
    """Write a file of UTF-8 text as `atomic_write` does."""
    with atomic_write(path) as file:
        file.write(text.encode())
