"""The tables of several runs are shown one after the other, each under its run's name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from integration.command_line import CommandLine

RUNS = ("first", "second")


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """Return a folder of two runs that are alike."""
    for name in RUNS:
        shutil.copytree(finished, tmp_path / "runs" / name)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("flags", "heading"),
    [((), "{}:\n"), (("--markdown",), "## {}\n\n"), (("--latex",), "% {}\n")],
)
def test_every_run_has_its_tables(
    folder: Path, command_line: CommandLine, flags: tuple[str, ...], heading: str
) -> None:
    alone = command_line("show", folder / "first", *flags)
    shown = command_line("show", folder, *flags)
    assert (alone.rc, shown.rc, shown.err) == (0, 0, "")
    first, second = (f"{heading.format(name)}{alone.out}" for name in RUNS)
    assert shown.out == f"{first}\n{second}"


def test_figures_are_written_into_every_run(folder: Path, command_line: CommandLine) -> None:
    shown = command_line("show", folder, "--figures")
    assert shown.rc == 0
    for name in RUNS:
        assert f"wrote {folder / name / 'results.md'}\n" in shown.out


def test_a_run_that_cannot_be_read_is_named_and_the_others_shown(
    folder: Path, command_line: CommandLine
) -> None:
    (folder / "first" / "run.toml").write_text("methods = [", encoding="utf-8")
    shown = command_line("show", folder)
    assert (shown.rc, shown.err) == (1, "")
    assert "first could not be read: " in shown.out
    assert "\nsecond:\n" in shown.out
    assert "CRF-FedAvg" in shown.out
    alone = command_line("show", folder / "first")
    assert (alone.rc, alone.out) == (2, "")


def test_an_explanation_is_of_one_run(folder: Path, command_line: CommandLine) -> None:
    told = command_line("explain", folder)
    assert (told.rc, told.out) == (2, "")
    assert told.err.endswith("name one of those in it: first, second\n")
