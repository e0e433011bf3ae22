"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedcrf.files import atomic_write, whole_lines


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
