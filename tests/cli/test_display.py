"""What a run looks like while it goes on: how far it is, and how long it still takes."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from experiments.runs import record, small_spec, summary
from fedcrf.cli.display import RunDisplay
from fedcrf.experiments.grid import (
    CellFailed,
    CellFinished,
    CellStarted,
    Event,
    RoundFinished,
    Workplace,
    run_grids,
)
from fedcrf.experiments.spec import CellSpec, RunSpec
from fedcrf.experiments.store import Store
from fedcrf.loggers import LoggedCell, LoggingObserver

FOLDER = Path("folder", "run")


def run_of(cell: CellSpec, done: int = 0) -> list[Event]:
    """Return the events of a cell of ten rounds that is run to its end, some of them before."""
    rounds = [RoundFinished(cell, record(number, 0.5), FOLDER) for number in range(done + 1, 11)]
    return [
        CellStarted(cell, done, FOLDER),
        *rounds,
        CellFinished(cell, summary("fedavg", 0, 0.5), FOLDER),
    ]


def shown(
    spec: RunSpec, events: Sequence[Event], *, seconds: float = 6.0, terminal: bool = False
) -> str:
    """Return what is printed of events among which every round takes so many seconds."""
    text, now = io.StringIO(), 100.0
    console = Console(file=text, width=200, force_terminal=terminal)
    run = (spec, Store(FOLDER))
    with RunDisplay([run], console, brief=not terminal, clock=lambda: now) as display:
        for event in events:
            now += seconds * isinstance(event, RoundFinished)
            display(event)
    return text.getvalue()


SPEC = small_spec(rounds={"maximum": 10, "patience": 10})  # of four cells


def test_a_pipe_is_told_how_many_cells_have_ended_and_how_long_the_others_take() -> None:
    before, first, resumed, failing = SPEC.cells()
    done: list[Event] = [CellFinished(before, summary("fedavg", 0, 0.5), FOLDER)]
    failed: list[Event] = [
        CellStarted(failing, 0, FOLDER),
        CellFailed(failing, "no room", FOLDER),
    ]
    lines = shown(SPEC, [*done, *run_of(first), *run_of(resumed, 8), *failed]).splitlines()
    told = re.compile(r"(?:ended|stopped).*(?=, )|, test.*\)")
    assert [told.sub("…", line) for line in lines] == [
        "1 cells were finished before",
        f"[2/4] {first.name}: …, about 2 min left",
        f"{resumed.name}: goes on after round 8",
        f"[3/4] {resumed.name}: …, about 60 s left",
        f"[4/4] {failing.name}: failed: no room",
    ]


@pytest.mark.parametrize(
    ("seconds", "patience", "left"),
    [(0.1, 10, "about 3 s"), (2, 5, "at most 60 s"), (60, 10, "about 30 min"),
     (1000, 10, "about 8 h 20 min")],
)  # fmt: skip
def test_time_left_is_told_in_words(seconds: float, patience: int, left: str) -> None:
    spec = small_spec(rounds={"maximum": 10, "patience": patience})
    text = shown(spec, run_of(spec.cells()[0]), seconds=seconds)
    assert text.rstrip().endswith(f", {left} left")


def test_a_record_of_several_rounds_counts_as_so_many() -> None:
    cell = SPEC.cells()[0]
    rounds = [RoundFinished(cell, record(number, 0.5), FOLDER) for number in (5, 10)]
    ended = CellFinished(cell, summary("fedavg", 0, 0.5), FOLDER)
    text = shown(SPEC, [CellStarted(cell, 0, FOLDER), *rounds, ended], seconds=5)
    assert text.rstrip().endswith(", about 30 s left")  # of thirty rounds, ten of which took ten


def test_a_terminal_has_a_bar_of_all_cells_with_the_time_left() -> None:
    text = shown(
        SPEC, [event for cell in SPEC.cells()[:2] for event in run_of(cell)], terminal=True
    )
    bar = text.rpartition("cells")[2]
    assert "2/4" in bar
    assert "about 2 min left" in bar


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_equal_cell_of_two_runs_is_shown_and_logged_of_each(tmp_path: Path, jobs: int) -> None:
    spec = small_spec(methods=["fedavg"], seeds=[0], rounds={"maximum": 2})
    runs = [(spec, Store(tmp_path / name)) for name in ("first", "second")]
    logged = []

    class Logger:
        def __init__(self, cell: LoggedCell) -> None:
            self.folder = cell.folder.name

        def log(self, values: Mapping[str, float], step: int) -> None:
            logged.append((self.folder, step))

        def finish(self, result: Mapping[str, float]) -> None:
            logged.append((self.folder, len(result)))

    text = io.StringIO()
    console = Console(file=text, width=200, force_terminal=True)
    observer = LoggingObserver({"own": Logger}, print)
    with RunDisplay(runs, console, also=observer) as display:
        assert run_grids(runs, Workplace(device="cpu", jobs=jobs), display) == []
    ended = re.findall(r"\[(\d/\d)\] (\w+)/fedavg-seed-0: ended", text.getvalue())
    assert [count for count, _ in ended] == ["1/2", "2/2"]
    assert {name for _, name in ended} == {"first", "second"}
    for name in ("first", "second"):
        assert [number for folder, number in logged if folder == name] == [1, 2, 4]
