"""Files that are whole or not there."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.runs import full_disk
from fedcrf.files import append_line, atomic_write, lock_beside, whole_lines, write_text


def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.writelines([b"new", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_written_through_and_a_device_left_alone(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a file"), atomic_write(tmp_path / "pipe") as file:
        file.write(b"new")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", ["missing/a.txt", "file/a.txt", "folder"])
def test_what_cannot_be_written_is_called_by_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="a") as caught, atomic_write(tmp_path / name) as file:
        file.write(b"new")
    assert caught.value.filename == str(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "No space left on device: make room, and give the same command again"),
        (errno.EDQUOT, "Disk quota exceeded: make room, and give the same command again"),
        (errno.EROFS, "Read-only file system: choose another folder"),
        (errno.EIO, "Input/output error"),
    ],
    ids=errno.errorcode.get,
)
@pytest.mark.parametrize("write", [write_text, lambda path, text: append_line(path, text.encode())])
def test_a_disk_that_takes_no_more_is_named_with_the_file_and_the_mend(
    write: Callable[[Path, str], None],
    number: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "results.md"
    path.write_text("old\n")
    full_disk(monkeypatch, "results.md", number)
    with pytest.raises(OSError, match="Errno") as caught:
        write(path, "new\n")
    assert (caught.value.filename, caught.value.strerror) == (str(path), said)
    assert str(caught.value) == f"[Errno {number}] {said}: '{path}'"
    assert path.read_text() == "old\n"
    assert [*tmp_path.iterdir()] == [path]


def test_a_lock_goes_with_its_process_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    holds = (
        "import sys, time; from pathlib import Path; from fedcrf.files import lock_beside; "
        "held = lock_beside(Path(sys.argv[1])); print(held is not None, flush=True); time.sleep(60)"
    )
    (tmp_path / "link").symlink_to(path)
    command = [sys.executable, "-c", holds, tmp_path / "link"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert lock_beside(path) is None
        other.kill()
    unlock = lock_beside(path)
    assert unlock is not None
    assert lock_beside(path) is None
    child = os.fork()
    if not child:  # it has the lock's file open too, and ends as a process does
        unlock()
        os._exit(0)
    os.waitpid(child, 0)
    assert lock_beside(path) is None
    unlock()
    assert [each.name for each in tmp_path.iterdir()] == ["link"]


def test_half_a_line_is_none(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_line(path, b"one\n")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6, unlimited[1]))
        with pytest.raises(OSError, match="File too large") as caught:
            append_line(path, b"three\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"one\n"
    append_line(path, b"three\n")
    assert whole_lines(path) == [b"one", b"three"]


def test_a_line_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for content, lines in {
        b"": [],
        b"one": [],
        b"one\n": [b"one"],
        b"one\n\ntw": [b"one", b""],
        b"caf\xc3\xa9\xc2\x85\r\ntwo\n": ["café\x85\r".encode(), b"two"],
    }.items():
        path.write_bytes(content)
        assert whole_lines(path) == lines
