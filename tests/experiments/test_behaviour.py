"""Cells of code that did something else: stale, nowhere counted, and run again."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from experiments.runs import Log, carry_out, small_spec, snapshot
from fedcrf.attacks import Attack
from fedcrf.checks import Settings
from fedcrf.cli import app
from fedcrf.data import PARTITIONS, PartitionSettings
from fedcrf.data.partition import ClientSplit
from fedcrf.experiments import provenance
from fedcrf.experiments.analysis.conditions import write_suite
from fedcrf.experiments.grid import (
    CellStarted,
    Event,
    RoundFinished,
    Workplace,
    run_grids,
    run_suite,
)
from fedcrf.experiments.results import keys_of, read_results, suite_cells
from fedcrf.experiments.spec import RunSpec
from fedcrf.experiments.store import CellStore, Store
from fedcrf.experiments.study import Suite, read_suite
from fedcrf.models import MLP
from fedcrf.objectives import Plain
from fedcrf.report.page import read_report
from fedcrf.rules import CRF, CRFRobust, FedAvg, Krum
from fedcrf.rules.server_optimizers import Adam
from fedcrf.simulation.engine import Scores
from fedcrf.simulation.local_training import LocalTraining, MLPTraining
from fedcrf.simulation.rounds import Simulation

STALE = "rule crf has behaviour 2 now and had 1"

WHOLE: RunSpec = small_spec(
    methods=["crf+plain+adam"], seeds=[0], attack={"name": "ipm", "attackers": 1}
)


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's rule does something else from here on."""
    monkeypatch.setattr(CRF, "behaviour", 2)


# What has a number


@pytest.mark.parametrize(
    ("of", "part", "said"),
    [
        (CRF, "rule", "rule crf"),
        (Plain, "objective", "objective plain"),
        (Adam, "server_optimizer", "server optimizer adam"),
        (Attack, "attack", "attack ipm"),
        (MLP, "model", "model mlp"),
        (ClientSplit, "split", "the split"),
        (MLPTraining, "training", "local training"),
        (Simulation, "rounds", "the rounds"),
        (Scores, "evaluation", "the evaluation"),
    ],
)
def test_each_part_of_a_cell_has_its_number(
    of: type, part: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = WHOLE.cells()[0]
    before = provenance.numbers(cell, "cpu")
    monkeypatch.setattr(of, "behaviour", 7)
    assert provenance.numbers(cell, "cpu") == {**before, part: 7}
    assert provenance.changes(cell, before, "cpu") == [
        f"{said} has behaviour 7 now and had {before[part]}"
    ]
    assert provenance.changes(cell, {**before, part: 7}, "cpu") == []


def test_a_partition_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = WHOLE.cells()[0]
    schemes = {name: replace(each, behaviour=3) for name, each in PARTITIONS.items()}
    monkeypatch.setattr(sys.modules[PartitionSettings.__module__], "PARTITIONS", schemes)
    said = "partition label-skew has behaviour 3 now and had 1"
    assert provenance.changes(cell, {}, "cpu") == [said]


ABSENT = ("absence", " where clients are absent")
LARGE = ("large_round", " in a large round")


@pytest.mark.parametrize(
    ("clients", "more", "each_round", "expected"),
    [
        (10, 0, None, []),
        (10, 0, 3, [ABSENT]),
        (11, 0, None, [LARGE]),
        (40, 0, 10, [ABSENT]),
        (40, 0, 11, [ABSENT, LARGE]),
        (10, 3, None, [LARGE]),
        (10, 3, 10, [ABSENT]),
        (6, 3, None, []),
    ],
)
def test_what_differs_in_some_rounds_alone_has_its_number(
    clients: int, more: int, each_round: int | None, expected: list[tuple[str, str]]
) -> None:
    changes: dict[str, Any] = {
        "rounds": {"clients_per_round": each_round},
        "partition": {"num_clients": clients},
    }
    if more:
        changes["attack"] = {"name": "ipm", "attackers": more, "additional": True}
    cell = small_spec(methods=["crf-robust"], **changes).cells()[0]
    numbers = provenance.numbers(cell, "cpu")
    kept = {part: number for part, number in numbers.items() if part not in dict((ABSENT, LARGE))}
    assert provenance.changes(cell, kept, "cpu") == [
        f"rule crf-robust{where} has behaviour {CRFRobust.behaviour_where[part]} now and had 1"
        for part, where in expected
    ]


@pytest.mark.parametrize(
    ("changes", "device", "trainer"),
    [
        ({}, "cpu", MLPTraining),
        ({}, "NVIDIA", LocalTraining),
        ({"training": {"precision": "bfloat16"}}, "cpu", LocalTraining),
        ({"model": {"name": "cnn", "hidden": 9}}, "cpu", LocalTraining),
    ],
)
def test_the_trainer_is_that_which_trains(
    changes: dict[str, Any], device: str, trainer: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = small_spec(**changes).cells()[0]
    monkeypatch.setattr(trainer, "behaviour", 5)
    assert provenance.numbers(cell, device)["training"] == 5


def test_what_says_no_number_has_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Settings, "behaviour")
    assert provenance.numbers(small_spec().cells()[0], "cpu")["rule"] == 1


def test_a_parameter_of_a_run_file_it_is_not() -> None:
    assert "behaviour" not in str(WHOLE.describe())
    assert "behaviour" not in str(WHOLE.cells()[0].describe())


# A run


def test_a_stale_cell_is_told_and_left_out(finished: Path, raised: None) -> None:
    run = read_results(Store(finished))
    assert {each.cell.name: each.stale for each in run.cells} == {
        "fedavg-seed-0": "",
        "fedavg-seed-1": "",
        "crf-fedavg-seed-0": STALE,
        "crf-fedavg-seed-1": STALE,
    }
    assert {each.method for each in run.finished} == {"fedavg"}
    assert all(len(table.rows) == 1 for table in run.tables())
    assert not any(run.records()["crf-fedavg"][0]), "and in no figure"
    (told,) = read_report([finished]).runs
    assert [line for line in told.notices if line.startswith("crf-fedavg-seed-0: stale")]
    assert {each["method"] for each in told.cells} == {"FedAvg"}


def test_the_command_line_calls_it_stale(finished: Path, raised: None) -> None:
    shown = CliRunner().invoke(app, ["show", str(finished), "--figures"])
    assert shown.exit_code == 0
    assert f"crf-fedavg-seed-1: stale, and left out until it is run again: {STALE}" in shown.output
    assert "CRF" not in (finished / "results.md").read_text()
    explained = CliRunner().invoke(app, ["explain", str(finished), "--round", "1"])
    assert explained.exit_code == 0
    assert f"stale, and explained as it was recorded: {STALE}" in explained.output


def test_the_same_command_runs_it_again_and_nothing_else(finished: Path, raised: None) -> None:
    before = snapshot(finished / "cells")
    log, failed = carry_out(small_spec(), finished)
    assert failed == []
    assert {event.cell.name for event in log.of(RoundFinished)} == {
        "crf-fedavg-seed-0",
        "crf-fedavg-seed-1",
    }
    after = snapshot(finished / "cells")
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] == before[name]} >= {
        name for name in after if name.startswith("fedavg")
    }
    run = read_results(Store(finished))
    assert not any(each.stale for each in run.cells)
    assert [each.behaviour["rule"] for each in run.finished] == [1, 2, 1, 2]
    again, _ = carry_out(small_spec(), finished)
    assert again.of(RoundFinished) == []


def interrupted(folder: Path, after: int) -> CellStore:
    """Begin a cell of the paper's rule, and stop after a round of it."""
    log = Log()

    def observe(event: Event) -> None:
        log(event)
        if len(log.of(RoundFinished)) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grids([(ONE, Store(folder))], Workplace(device="cpu"), observe)
    return Store(folder).cell(ONE.cells()[0])


ONE: RunSpec = small_spec(methods=["crf-fedavg"], seeds=[0])


@pytest.mark.parametrize("known", [True, False], ids=["begun", "begun before there were numbers"])
def test_other_code_does_not_go_on_from_a_checkpoint(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = interrupted(tmp_path, after=2)
    if not known:
        (cell.path / "begun.json").unlink()
    monkeypatch.setattr(CRF, "behaviour", 2)
    assert read_results(Store(tmp_path)).cells[0].stale == STALE
    log, failed = carry_out(ONE, tmp_path)
    assert failed == []
    assert [event.rounds_done for event in log.of(CellStarted)] == [0]
    summary = cell.summary()
    assert summary is not None
    assert summary.provenance.commits is None
    assert len(cell.records()) == summary.rounds == 3
    assert not (cell.path / "begun.json").exists()


@pytest.mark.parametrize(
    ("begun", "commits"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "b", "a"], ["a", "b"]),
        (["a", "a"], None),
        ([None, "b"], [None, "b"]),
    ],
    ids=str,
)
def test_a_resumed_cell_keeps_the_commits_of_all_its_parts(
    begun: list[str | None], commits: list[str] | None, tmp_path: Path, monkeypatch: Any
) -> None:
    now: list[str | None] = [None]
    monkeypatch.setattr(provenance, "_commit", lambda: now[0])
    for now[0] in begun[:-1]:
        cell = interrupted(tmp_path, after=1)
    now[0] = begun[-1]
    carry_out(ONE, tmp_path)
    summary = cell.summary()
    assert summary is not None
    assert summary.provenance.commit == begun[-1]
    assert summary.provenance.commits == commits
    assert summary.provenance.every_commit == (commits or [begun[-1]])


def test_a_part_of_unknown_code_is_said_to_be_so(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(provenance, "_commit", lambda: "b")
    cell = interrupted(tmp_path, after=1)
    (cell.path / "begun.json").unlink()  # as begun by a version that did not write it
    carry_out(ONE, tmp_path)
    summary = cell.summary()
    assert summary is not None
    assert summary.provenance.commits == [None, "b"]


def test_summaries_from_before_there_were_numbers_have_the_first(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in finished.rglob("summary.json"):
        content = json.loads(path.read_text())
        del content["behaviour"], content["provenance"]["commits"]
        path.write_text(json.dumps(content))
    assert len(read_results(Store(finished)).finished) == 4
    monkeypatch.setattr(CRF, "behaviour", 2)
    assert [each.stale for each in read_results(Store(finished)).cells].count(STALE) == 2


# A suite


def suite(**chosen: Any) -> Suite:
    small = {"model": {"name": "mlp", "hidden": [4]}, "rounds": {"maximum": 2}}
    parts = {"methods": ["fedavg", "krum"], "seeds": [0], "partitions": ["iid"]}
    found = read_suite("attacks", "digits")
    return found.chosen(**{**parts, "conditions": ["ipm-2"], **chosen}, settings=[small])


def run(asked: Suite, folder: Path) -> tuple[pd.DataFrame, Log]:
    store, log = Store(folder), Log()
    assert run_suite(asked, store, Workplace(device="cpu"), lambda _: nullcontext(log)) == []
    return suite_cells(asked, store), log


def test_stale_cells_of_a_suite_are_named_left_out_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(suite(), tmp_path)
    monkeypatch.setattr(Krum, "behaviour", 2)
    cells = suite_cells(suite(), Store(tmp_path))
    said = "rule krum has behaviour 2 now and had 1"
    assert dict(zip(cells["method"], cells["stale"], strict=True)) == {"fedavg": "", "krum": said}
    assert {method for _, _, method, _ in keys_of(cells)} == {"fedavg"}
    shown = CliRunner().invoke(app, ["show", str(tmp_path)])
    assert f"2 cells are stale: {said}" in " ".join(shown.output.split())
    write_suite(suite(), cells, tmp_path)
    assert f"2 cells are stale and left out: {said}; " in (tmp_path / "tables.md").read_text()
    after, log = run(suite(), tmp_path)
    assert {event.cell.method.name for event in log.of(CellStarted)} == {"krum"}
    assert keys_of(after) == suite().cells.keys()
    assert not after["stale"].any()
    scores = [Store(tmp_path).scores()[place] for place in after.index]
    assert {each.method: each.behaviour for each in scores} == {
        "fedavg": None,
        "krum": {"rule": 2},
    }
    # The next command drops what has been run again; nothing is run.
    _, log = run(suite(), tmp_path)
    assert not log.of(CellStarted)
    assert len(Store(tmp_path).scores()) == len(suite().cells)


def test_nothing_is_paired_with_a_stale_cell(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedAvg, "behaviour", 2)
    results, _ = read_results(Store(finished)).tables()
    ((method, *_, difference),) = results.rows
    assert (method, difference) == ("CRF-FedAvg", "–")


@pytest.mark.slow
def test_published_cells_are_run_again_by_a_script(finished: Path, tmp_path: Path) -> None:
    run(suite(methods=["fedavg"]), tmp_path / "suite")
    (score, *_) = Store(tmp_path / "suite").scores()
    Store(tmp_path / "suite").write_scores([score, score.model_copy(update={"seed": 1})])
    script = Path(__file__).parents[2] / "results" / "again.py"
    done = subprocess.run(
        [sys.executable, script, finished, tmp_path / "suite"], capture_output=True, text=True
    )
    header, *rows = csv.reader(done.stdout.splitlines())
    found = [dict(zip(header, row, strict=True)) for row in rows]
    assert [(row["method"], row["same"]) for row in found] == [
        ("crf-fedavg", "yes"), ("fedavg", "yes"), ("fedavg", "yes"),
    ]  # fmt: skip
    assert [row["cells"] for row in found] == ["2", "2", "2"]
    assert (done.returncode, done.stderr) == (0, "")
