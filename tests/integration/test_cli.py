"""The command line from end to end, on data that need no download."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import fedcrf as package
from experiments.runs import snapshot
from fedcrf.experiments.analysis.tables import UNDER_ATTACK
from fedcrf.simulation.records import Reasons
from integration.command_line import CommandLine, Result, command, environment, fedcrf

METHODS = ("fedavg", "crf-fedavg")
CELLS = tuple(f"{method}-seed-{seed}" for seed in (0, 1) for method in METHODS)
ROUNDS = 10
# Every cell does all its rounds, so that a kill can be placed in the middle of one.
RUN = (
    "run", "--dataset", "digits", "--methods", ",".join(METHODS), "--seeds", "0-1",
    "--rounds", ROUNDS, "--patience", ROUNDS,
)  # fmt: skip
# Two rounds of one cell: for tests that need a run and not its numbers.
SMALL_RUN = ("run", "--methods", "fedavg", "--seeds", "0", "--rounds", "2", "--jobs", "1")


def rounds_in(folder: Path) -> int:
    """Return how many rounds of all cells are recorded."""
    records = (folder / "cells").glob("*/rounds.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in records)


def rounds_of(folder: Path, cell: str) -> list[dict[str, Any]]:
    """Return a cell's records without the wall times, which no two runs share."""
    lines = (folder / "cells" / cell / "rounds.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        assert set(record.pop("seconds")) == {"training", "aggregation", "evaluation"}
    return records


def summary_of(folder: Path, cell: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "cells" / cell / "summary.json").read_text())
    measured = ("seconds_per_round", "aggregation_share", "images_per_second", "provenance")
    for of_this_execution in measured:
        summary.pop(of_this_execution)
    return summary


# One run, looked at from all sides


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """An unbroken run in a fresh interpreter: its folder and what it printed."""
    home = tmp_path_factory.mktemp("finished")
    arguments = (*RUN, "--jobs", "1", "--output", "results")
    return home / "results", fedcrf(*arguments, cwd=home, env=environment())


def test_run_prints_every_round_and_the_table(finished: tuple[Path, Result]) -> None:
    _, result = finished
    assert (result.rc, result.err) == (0, "")
    assert "results: results\n" in result.out
    for cell in CELLS:
        assert f"{cell}: round 1/{ROUNDS}, validation loss " in result.out
        assert f"{cell}: ended after {ROUNDS} rounds, test accuracy " in result.out
    for title in ("digits, mlp, 10 clients", "FedAvg", "CRF-FedAvg", "Δ to FedAvg [95 %]"):
        assert title in result.out
    assert "\x1b" not in result.out, "a pipe gets no terminal codes"


def test_run_writes_what_it_says(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    written = [line.removeprefix("wrote ") for line in result.out.splitlines() if "wrote" in line]
    figures = [
        f"{name}.{kind}" for name in ("accuracy", "loss", "trust") for kind in ("svg", "png")
    ]
    tables = [f"{name}.{kind}" for name in ("results", "details") for kind in ("md", "csv")]
    assert sorted(written) == sorted(f"results/{name}" for name in figures + tables)
    assert all((folder.parent / name).stat().st_size > 0 for name in written)
    for cell in CELLS:
        names = {path.name for path in (folder / "cells" / cell).iterdir()} - {".lock"}
        assert names == {"rounds.jsonl", "summary.json", "model.pt"}
    assert {path.name for path in (folder / "partitions").iterdir()} == {
        "seed-0.json",
        "seed-1.json",
    }


def test_run_is_described_whole(finished: tuple[Path, Result], command_line: CommandLine) -> None:
    # The saved description alone repeats the run: same first rounds, with no flag but the output.
    folder, _ = finished
    again = command_line(
        "run", folder / "run.toml", "--jobs", 1, "-o", folder.parent / "again",
        "--rounds", 2, "--seeds", 1, "--methods", "crf-fedavg",
    )  # fmt: skip
    assert (again.rc, again.err) == (0, "")
    cell = "crf-fedavg-seed-1"
    assert rounds_of(folder.parent / "again", cell) == rounds_of(folder, cell)[:2]


def test_run_learns_and_explains_its_weights(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    for cell in CELLS:
        records = rounds_of(folder, cell)
        assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
        for record in records:
            assert sum(record["weight"]) == pytest.approx(1.0, abs=1e-4)  # six digits are kept
            assert sum(record["base_weight"]) == pytest.approx(1.0, abs=1e-4)
            reasons = record.get("reasons")
            assert (reasons is not None) == cell.startswith("crf")
            for name in ("reliability", "cosine", "distance", "norm_anomaly", "trust"):
                assert reasons is None or len(reasons[name]) == len(record["clients"])
        summary = summary_of(folder, cell)
        # Ten classes: three times chance is what no untrained model reaches.
        assert summary["test_accuracy"] > 0.3
        best = min(records, key=lambda record: record["validation"]["loss"])
        assert summary["best_round"] == best["round"]
        assert summary["test_accuracy"] == best["test"]["accuracy"]


def test_tables_on_disk_hold_the_summaries(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["FedAvg", "CRF-FedAvg"]
    for row, method in zip(rows, METHODS, strict=True):
        accuracies = [
            summary_of(folder, f"{method}-seed-{seed}")["test_accuracy"] for seed in (0, 1)
        ]
        assert row["test accuracy"].startswith(f"{sum(accuracies) / 2:.3f} ± ")


def test_show_prints_the_run_s_table(
    finished: tuple[Path, Result], command_line: CommandLine
) -> None:
    folder, ran = finished
    before = snapshot(folder)
    shown = command_line("show", folder)
    assert (shown.rc, shown.err) == (0, "")
    table = shown.out.strip()
    assert "CRF-FedAvg" in table
    assert table in ran.out, "the run printed the same table when it ended"
    markdown = command_line("show", folder, "--markdown")
    assert markdown.out.startswith((folder / "results.md").read_text(encoding="utf-8"))
    latex = command_line("show", folder, "--latex")
    assert latex.out.count(r"\begin{tabular}") == markdown.out.count("| --- |") == 2
    assert r"CRF-FedAvg & 2 & 0." in latex.out
    assert snapshot(folder) == before, "showing writes nothing"
    is_one_clear_line(command_line("show", folder, "--latex", "--markdown"), ("--latex",))


def test_a_second_run_does_nothing_new(
    finished: tuple[Path, Result], command_line: CommandLine
) -> None:
    folder, _ = finished
    cells = snapshot(folder / "cells")
    again = command_line(*RUN, "--jobs", "1", "--output", folder)
    assert (again.rc, again.err) == (0, "")
    assert "validation loss" not in again.out, "no round was run"
    assert "CRF-FedAvg" in again.out
    assert snapshot(folder / "cells") == cells


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_and_ends_as_if_never_killed(
    jobs: int, finished: tuple[Path, Result], command_line: CommandLine, tmp_path: Path
) -> None:
    unbroken, _ = finished
    folder = tmp_path / "killed"
    arguments = (*RUN, "--jobs", jobs, "--output", folder)
    running = subprocess.Popen(
        command(*arguments), env=command_line.env, stdout=subprocess.DEVNULL, cwd=tmp_path
    )
    # A cell's rounds and some more are done: the last of four has not begun, whoever runs which.
    deadline = time.monotonic() + 120
    while rounds_in(folder) < ROUNDS + 3:
        assert running.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (folder / "cells" / CELLS[-1] / "summary.json").exists()

    shown = command_line("show", folder)
    assert shown.rc == 0
    assert f"{CELLS[-1]}: not finished" in shown.out
    assert shown.err == ""
    resumed = command_line(*RUN, "--jobs", 1, "--output", folder)
    assert (resumed.rc, resumed.err) == (0, "")
    for cell in CELLS:
        assert rounds_of(folder, cell) == rounds_of(unbroken, cell)
        assert summary_of(folder, cell) == summary_of(unbroken, cell)
        assert (folder / "cells" / cell / "model.pt").exists()
        assert not (folder / "cells" / cell / "checkpoint.pt").exists()


# The other commands


def test_partition_shows_and_draws_what_each_client_holds(
    command_line: CommandLine, tmp_path: Path
) -> None:
    result = command_line("partition", "--clients", 4, "--alpha", 0.1, cwd=tmp_path)
    assert (result.rc, result.err) == (0, "")
    words = [line.split() for line in result.out.splitlines()]
    rows = [row for row in words if row and row[0].isdigit()]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert sum(int(part) for row in rows for part in row[1:4]) == 1437  # digits' training set
    stem = "runs/partition-digits-label-skew-alpha0.1-4clients-seed-0"
    for kind in ("svg", "png", "csv"):
        assert (tmp_path / f"{stem}.{kind}").stat().st_size > 0


def test_partition_names_empty_clients(command_line: CommandLine, tmp_path: Path) -> None:
    scheme = ("--partition", "label-skew-unbalanced", "--clients", 30, "--alpha", 0.001)
    result = command_line("partition", *scheme, "-o", tmp_path / "picture")
    assert (result.rc, result.err) == (0, "")
    assert "no examples and will not take part" in result.out


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        (
            "methods",
            {
                "fedavg",
                "fedprox",
                "uniform",
                "crf-fedavg",
                "crf-fedprox",
                "proximal",
                "fedadam",
                "yogi",
            },
        ),
        ("attacks", {"sign-flip", "alie", "adaptive", "label-noise", "attack.every"}),
        ("datasets", {"digits", "mnist", "cifar10", "cifar100", "label-skew-unbalanced", "iid"}),
        ("models", {"mlp", "cnn", "resnet9", "resnet18"}),
    ],
)
def test_lists_have_one_line_each(name: str, listed: set[str], command_line: CommandLine) -> None:
    result = command_line(name)
    assert (result.rc, result.err) == (0, "")
    entries = [line.split(maxsplit=1) for line in result.out.splitlines() if line.startswith("  ")]
    assert listed <= {entry[0] for entry in entries}
    assert all(len(entry) == 2 for entry in entries), "every name says what it is"
    assert not re.search(r"typing\.| at 0x", result.out)


def test_help_is_quick_to_import(tmp_path: Path) -> None:
    # What makes help slow is importing these; a test may not look at the clock.
    env = environment(PYTHONPROFILEIMPORTTIME="1")
    result = fedcrf("--help", cwd=tmp_path, env=env)
    assert result.rc == 0
    for name in ("run", "show", "partition", "methods", "datasets", "models", "demo"):
        assert name in result.out
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in result.err.splitlines()
    }
    assert "fedcrf" in imported, "the import times are there to be read"
    assert not imported & {"torch", "scipy", "sklearn", "matplotlib", "datasets", "pyarrow"}


def test_version_and_help_of_commands(command_line: CommandLine) -> None:
    version = command_line("--version")
    assert version == Result(0, f"fedcrf {package.__version__}\n", "")
    run = command_line("run", "--help")
    assert (run.rc, run.err) == (0, "")
    for flag in ("--methods", "--seeds", "--alpha", "--set", "--output", "--jobs", "--data-dir"):
        assert flag in run.out


def test_no_command_shows_the_help(command_line: CommandLine) -> None:
    result = command_line()
    assert result.rc in (0, 2)  # Click before 8.2 calls it success
    assert "Usage" in result.out + result.err
    assert "Traceback" not in result.err


# Attackers


def test_a_run_under_attack(command_line: CommandLine, tmp_path: Path) -> None:
    arguments = (
        "run", "--methods", "fedavg,coordinate-median", "--seeds", "0-1", "--rounds", 4,
        "--patience", 9, "--attack", "ipm", "--attackers", 3, "--set", "attacks.ipm.epsilon=9",
        "--set", "attack.start_round=3",
    )  # fmt: skip
    result = command_line(*arguments, "--jobs", 1, cwd=tmp_path)
    assert (result.rc, result.err) == (0, "")
    title = "10 clients, label-skew, α = 0.1, ipm by 3 from round 3"
    assert title in " ".join(result.out.split()), "over the table, in as many lines as it needs"
    folder = tmp_path / "runs/digits-mlp-label-skew-alpha0.1-10clients-ipm-3attackers"
    # A number that was chosen by knowing who is honest says so wherever it stands.
    page = command_line("report", folder, "-o", tmp_path / "page.html", cwd=tmp_path)
    assert page.rc == 0
    shown = {
        "run": result.out,
        "show": command_line("show", folder, cwd=tmp_path).out,
        "show --markdown": command_line("show", folder, "--markdown", cwd=tmp_path).out,
        "table": (folder / "results.md").read_text(),
        "page": (tmp_path / "page.html").read_text(),
    }
    said = {name: UNDER_ATTACK in " ".join(text.split()) for name, text in shown.items()}
    assert said == dict.fromkeys(shown, True)
    assert result.out.count(", which the honest clients chose)") == 4
    who = {}
    for cell in ("fedavg-seed-0", "fedavg-seed-1", "coordinate-median-seed-0"):
        records, summary = rounds_of(folder, cell), summary_of(folder, cell)
        who[cell] = summary["attackers"]
        assert len(who[cell]) == 3
        assert [record["attackers"] for record in records] == [[], [], who[cell], who[cell]]
        assert summary["description"]["attack"] == {
            "name": "ipm", "attackers": 3, "start_round": 3, "every": 1,
        }  # fmt: skip
        assert summary["description"]["attacks"] == {"ipm": {"epsilon": 9.0, "noise": 0.0}}
    assert who["fedavg-seed-0"] == who["coordinate-median-seed-0"] != who["fedavg-seed-1"]
    # Nine times the honest mean the other way, for at least a tenth of the weight.
    before, after = (rounds_of(folder, "fedavg-seed-0")[index] for index in (1, 3))
    assert after["validation"]["loss"] > before["validation"]["loss"]
    # The same again runs nothing; another attack does not go into the same folder.
    again = command_line(*arguments, "-o", folder, cwd=tmp_path)
    assert (again.rc, ", validation loss" in again.out) == (0, False)
    other = command_line(*arguments, "--set", "attack.every=2", "-o", folder, cwd=tmp_path)
    is_one_clear_line(other, ["attack.every is 1 there, 2 here", "--output"])


@pytest.mark.skipif(find_spec("byzfl") is None, reason="ByzFL is not installed")
def test_rules_of_byzfl_under_attack(command_line: CommandLine, tmp_path: Path) -> None:
    names = ("byzfl-median", "byzfl-nnm-krum", "byzfl-bucketing-centered-clipping", "byzfl-arc-caf")
    result = command_line(
        "run", "--methods", ",".join(("fedavg", *names)), "--seeds", 1, "--rounds", 3,
        "--patience", 9, "--attack", "sign-flip", "--attackers", 0.2, "--set",
        "rules.byzfl-bucketing-centered-clipping.tau=2", "-o", "run", "--jobs", 1, cwd=tmp_path,
    )  # fmt: skip
    assert (result.rc, result.err) == (0, "")
    rules = {
        name: summary_of(tmp_path / "run", f"{name}-seed-1")["description"]["rule"]
        for name in names
    }
    assert rules == {
        "byzfl-median": {"name": "byzfl-median"},
        "byzfl-nnm-krum": {"name": "byzfl-nnm-krum", "attackers": 2},
        "byzfl-bucketing-centered-clipping": {
            "name": "byzfl-bucketing-centered-clipping", "L": 1, "tau": 2.0, "attackers": 2,
            "seed": 1,
        },
        "byzfl-arc-caf": {"name": "byzfl-arc-caf", "attackers": 2, "seed": 1},
    }  # fmt: skip
    losses = {
        name: [record["validation"]["loss"] for record in rounds_of(tmp_path / "run", cell)]
        for name in ("fedavg", *names)
        for cell in (f"{name}-seed-1",)
    }
    assert len({str(each) for each in losses.values()}) == len(losses), "each rule is another"
    assert all(name in result.out for name in names)


# Crowds


def test_a_crowd_tied_to_its_nearest_neighbours(command_line: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "crowd"
    result = command_line(
        "run", "--methods", "crf-fedavg", "--seeds", 0, "--rounds", 3, "--jobs", 1, "-o", folder,
        "--clients", 200, "--clients-per-round", 20, "--partition", "iid", "--min-examples", 1,
        "--set", "rules.crf.neighbours=5", "--set", "rules.crf.sketch_size=256",
        cwd=tmp_path,
    )  # fmt: skip
    assert (result.rc, result.err) == (0, "")
    described = summary_of(folder, "crf-fedavg-seed-0")["description"]["rule"]
    assert (described["neighbours"], described["sketch_size"]) == (5, 256)
    records = rounds_of(folder, "crf-fedavg-seed-0")
    graphs = [Reasons.model_validate(record["reasons"]).affinities for record in records]
    for record, graph in zip(records, graphs, strict=True):
        assert len(record["clients"]) == 20
        tied = [value > 0 for row in graph for value in row]
        assert 20 * 5 / 2 <= sum(tied) <= 20 * 5 < len(tied)
        assert sum(record["weight"]) == pytest.approx(1, abs=1e-5)
    assert len({client for record in records for client in record["clients"]}) > 20
    client = records[1]["clients"][3]
    near = [
        other
        for j, other in enumerate(records[1]["clients"])
        if j != 3 and graphs[1][min(3, j)][abs(3 - j) - 1] > 0
    ]
    told = command_line("explain", folder, "--round", 2, "--client", client)
    assert (told.rc, told.err) == (0, "")
    table = told.out.partition("affinity\n")[2].splitlines()
    listed = [int(line.split()[0]) for line in table if line[:1].isdigit()]
    assert len(listed) == 5
    assert set(listed) <= set(near)
    page = tmp_path / "one.html"
    assert command_line("report", folder, "-o", page).rc == 0


# Bad input: one line that names the thing, a status, and nothing written


def a_file(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def a_parquet_cut_short(folder: Path) -> None:
    mine = folder / "data" / "mine"
    mine.mkdir(parents=True)
    table = pyarrow.table({"image": [b"x" * 40] * 50, "label": list(range(50))})
    pyarrow.parquet.write_table(table, mine / "train.parquet")
    whole = (mine / "train.parquet").read_bytes()
    (mine / "train.parquet").write_bytes(whole[: len(whole) // 2])


def an_empty_data_folder(folder: Path) -> None:
    (folder / "data").mkdir()


def a_foreign_folder(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "thesis.tex").write_text("years of work")


def a_run_with(text: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "out").mkdir()
        (folder / "out" / "run.toml").write_text(text)

    return make


def a_suite_of(text: str) -> Callable[[Path], None]:
    """Make a suite of one attack, and of these sections."""
    conditions = "\n".join(
        f'[[conditions]]\nname = "{name}"\ntitle = "{name}"\nattack = {{ name = "{attack}" }}'
        for name, attack in (("quiet", "none"), ("bad", "ipm"))
    )
    head = 'title = "Mine"\nmethods = ["fedavg"]\nseeds = [0]\nattackers = 1\n[run]\n'
    return a_file("mine.toml", f"{head}{text}\n{conditions}\n")


def sites_of(**arrays: object) -> Callable[[Path], None]:
    return lambda folder: np.savez(folder / "sites.npz", **arrays)  # type: ignore[arg-type]


def nothing(folder: Path) -> None:
    pass


MINE = ("run", "--dataset", "mine", "--data-dir", "data")

BAD_INPUT: dict[str, tuple[Callable[[Path], None], Sequence[object], Sequence[str]]] = {
    "data set": (nothing, ("run", "--dataset", "digit"), ("digit", "digits")),
    "method": (nothing, ("run", "--methods", "fedavgg"), ("fedavgg", "fedavg")),
    "empty method": (nothing, ("run", "--methods", ","), ("method",)),
    "rule": (nothing, ("run", "--methods", "cfr+plain"), ("cfr", "crf")),
    "rule of ByzFL": (nothing, ("run", "--methods", "byzfl-trmaen"), ("'byzfl-trmean'",)),
    "objective": (nothing, ("run", "--methods", "crf+plan"), ("plan", "plain")),
    "model": (nothing, ("run", "--model", "resnet"), ("resnet", "resnet9")),
    "model of a list": (nothing, ("run", "--set", 'model.name=["mlp"]'), ("model", "mlp")),
    "flag": (nothing, ("run", "--alhpa", "1"), ("--alhpa", "--alpha")),
    "flag without value": (nothing, ("run", "--alpha"), ("--alpha",)),
    "command": (nothing, ("rnu",), ("rnu",)),
    "data folder not there": (nothing, MINE, ("data",)),
    "data folder without files": (an_empty_data_folder, MINE, ("mine",)),
    "mnist not in data folder": (
        an_empty_data_folder,
        ("run", "--dataset", "mnist", "--data-dir", "data"),
        ("mnist", "train*.parquet"),
    ),
    "cut Parquet": (a_parquet_cut_short, MINE, ("train.parquet",)),
    "alpha 0": (nothing, ("run", "--alpha", "0"), ("alpha 0",)),
    "alpha -1": (nothing, ("run", "--alpha", "-1"), ("alpha -1",)),
    "alpha nan": (nothing, ("run", "--alpha", "nan"), ("alpha nan",)),
    "alpha inf": (nothing, ("run", "--alpha", "inf"), ("alpha inf",)),
    "alpha abc": (nothing, ("run", "--alpha", "abc"), ("--alpha", "abc")),
    "no clients": (nothing, ("run", "--clients", "0"), ("num_clients 0",)),
    "too many clients": (nothing, ("run", "--clients", "200"), ("200", "1437")),
    # Each has one example and so nothing to validate on: known before anything is written.
    "clients too small": (
        nothing,
        ("run", "--clients", "1437", "--partition", "iid", "--min-examples", "0", "--jobs", "1"),
        ("--clients",),
    ),
    "partition": (nothing, ("run", "--partition", "label-skwe"), ("label-skwe", "label-skew")),
    "seeds backwards": (nothing, ("run", "--seeds", "3-1"), ("--seeds", "3-1")),
    "very many seeds": (nothing, ("run", "--seeds", f"0-{10**20}"), ("at most",)),
    "seeds of words": (nothing, ("run", "--seeds", "one"), ("--seeds", "one")),
    "seeds empty": (nothing, ("run", "--seeds", ""), ("seeds",)),
    "seed negative": (nothing, ("run", "--seeds", "-1"), ("--seeds", "-1")),
    "rounds 0": (nothing, ("run", "--rounds", "0"), ("0",)),
    "patience 0": (nothing, ("run", "--patience", "0"), ("patience", "0")),
    "learning rate nan": (nothing, ("run", "--learning-rate", "nan"), ("learning_rate", "nan")),
    "batch size 0": (nothing, ("run", "--batch-size", "0"), ("batch_size", "0")),
    "local epochs 0": (nothing, ("run", "--local-epochs", "0"), ("local_epochs", "0")),
    "mu negative": (nothing, ("run", "--mu", "-1"), ("mu", "-1")),
    "mu negative, not in use": (
        nothing,
        ("run", "--mu", "-1", "--methods", "fedavg"),
        ("mu", "-1"),
    ),
    "mu of no method": (
        nothing,
        ("run", "--mu", "1", "--methods", "fedavg"),
        ("none of the methods uses 'proximal'", "objectives.proximal.mu"),
    ),
    "setting of another rule": (
        nothing,
        ("run", "--methods", "crf-robust", "--set", "rules.crf.neighbours=5"),
        ("none of the methods uses 'crf'", "leave rules.crf.neighbours out"),
    ),
    "setting that is gone": (
        nothing,
        ("run", "--methods", "crf-robust", "--set", "rules.crf-robust.norm_tolerance=3"),
        ("rules.crf-robust.norm_tolerance is no setting any more: give tolerance",),
    ),
    "attackers of one, or of all": (
        nothing,
        ("run", "--attack", "ipm", "--attackers", "1.0"),
        ("attackers 1.0", "a whole number"),
    ),
    "setting of another attack": (
        nothing,
        ("run", "--attack", "alie", "--set", "attacks.ipm.epsilon=2"),
        ("no attack is 'ipm'", "attacks.ipm.epsilon"),
    ),
    "skew of an even partition": (
        nothing,
        ("run", "--partition", "iid", "--alpha", "0.1"),
        ("partition iid does not use alpha", "leave partition.alpha out"),
    ),
    "skew of an even partition, shown": (
        nothing,
        ("partition", "--partition", "iid", "--alpha", "0.1"),
        ("partition iid does not use alpha",),
    ),
    "least number where clients may be empty": (
        nothing,
        ("run", "--partition", "label-skew-unbalanced", "--min-examples", "3"),
        ("label-skew-unbalanced does not use min_examples",),
    ),
    "setting of another rule in a sweep": (
        nothing,
        ("sweep", "--over", "rules.crf.iterations=1,5", "--set", "rules.rfa.iterations=3"),
        ("none of the methods uses 'rfa'",),
    ),
    "attack": (nothing, ("run", "--attack", "ipmm"), ("attack", "ipmm", "'ipm'")),
    "attack without a name": (
        nothing,
        ("run", "--attack", ""),
        ("unknown attack ''", "ipm"),
    ),
    "attackers alone": (nothing, ("run", "--attackers", "3"), ("[attack]", "--attack")),
    "attackers of words": (
        nothing,
        ("run", "--attack", "ipm", "--attackers", "some"),
        ("--attackers some", "0.3"),
    ),
    "attackers empty": (
        nothing,
        ("run", "--attack", "ipm", "--attackers", ""),
        ("--attackers", "0.3"),
    ),
    **{
        f"{command} --{flag} empty": (nothing, (command, f"--{flag}", ","), (f"--{flag}",))
        for command, flags in {
            "run": ("methods", "log"),
            "reproduce": ("methods", "seeds", "dataset", "log"),
            "robustness": ("methods", "seeds", "partitions", "conditions", "log"),
        }.items()
        for flag in flags
    },
    "evidence that nobody reports": (
        nothing,
        ("run", "--methods", "crf-evidence", "--set", "rules.crf-evidence.evidence=loss"),
        ("evidence 'loss'", "residual_loss"),
    ),
    "all attack": (
        nothing,
        ("run", "--attack", "ipm", "--attackers", "10"),
        ("attackers 10", "10 clients", "--attackers"),
    ),
    "more attackers than clients": (
        nothing,
        ("run", "--attack", "label-flip", "--attackers", "11"),
        ("attackers 11", "10 clients", "--attackers"),
    ),
    "attack without a quantile": (
        nothing,
        ("run", "--attack", "alie", "--attackers", "8"),
        ("8 attackers of 10 clients", "give z"),
    ),
    "attack among nobody": (
        nothing,
        ("run", "--attack", "mimic", "--attackers", "3", "--clients-per-round", "1"),
        ("honest clients", "fewer attackers"),
    ),
    "neighbours beyond the round": (
        nothing,
        ("run", "--clients", "30", "--clients-per-round", "9", "--set", "rules.crf.neighbours=9"),
        ("neighbours 9", "of 9 clients", "8 others"),
    ),
    "sketches of no search": (
        nothing,
        ("run", "--set", "rules.crf.sketch_size=64"),
        ("[rules.crf]", "sketch_size 64", "give neighbours too"),
    ),
    "server optimizer": (nothing, ("run", "--server-optimizer", "adm"), ("adm", "'adam'")),
    "server learning rate 0": (
        nothing,
        ("run", "--server-optimizer", "adam", "--server-learning-rate", "0"),
        ("learning_rate", "0"),
    ),
    "server learning rate of nothing": (
        nothing,
        ("run", "--server-learning-rate", "0.1"),
        ("learning_rate 0.1", "--server-optimizer"),
    ),
    "image size": (nothing, ("run", "--image-size", "0"), ("--image-size", "0")),
    "jobs 0": (nothing, ("run", "--jobs", "0"), ("--jobs", "0")),
    "device": (nothing, ("run", "--device", "gpu"), ("--device", "gpu")),
    "no CUDA": (nothing, ("run", "--device", "cuda"), ("CUDA", "--device cpu")),
    "set without value": (nothing, ("run", "--set", "training"), ("training",)),
    "set an unknown key": (
        nothing,
        ("run", "--set", "training.momentun=0.5"),
        ("momentun", "momentum"),
    ),
    "set a rule's setting": (
        nothing,
        ("run", "--set", "rules.crf.bandwidth=0"),
        ("rules.crf", "bandwidth", "0"),
    ),
    "key that does not exist": (
        a_file("run.toml", "[partition]\nalfa = 1\n"),
        ("run", "run.toml"),
        ("alfa", "alpha"),
    ),
    "section that does not exist": (
        a_file("run.toml", "[trainning]\nmomentum = 0\n"),
        ("run", "run.toml"),
        ("trainning", "training"),
    ),
    "value of another type": (
        a_file("run.toml", '[partition]\nnum_clients = "many"\n'),
        ("run", "run.toml"),
        ("partition.num_clients", "many"),
    ),
    "broken TOML": (a_file("run.toml", "methods = [\n"), ("run", "run.toml"), ("run.toml", "TOML")),
    "a name of a sign that is none": (
        a_file("run.toml", 'methods = ["fed\\u0000\\u001b[1mavg"]\n'),
        ("run", "run.toml"),
        (r"'fed\x00\x1b[1mavg'", "'fedavg'"),
    ),
    "a file whose name cannot be": (
        a_file("run.toml", 'methods = ["./a\\u0000.py:Rule"]\n'),
        ("run", "run.toml"),
        (r"there is no file ./a\x00.py",),
    ),
    "a name without end": (
        a_file("run.toml", f'methods = ["{"x" * 100_000}"]\n'),
        ("run", "run.toml"),
        (f"'{'x' * 200}…': choose from",),
    ),
    "no run file": (nothing, ("run", "gone.toml"), ("gone.toml",)),
    "run file is a folder": (an_empty_data_folder, ("run", "data"), ("data",)),
    "another run's folder": (
        a_run_with("[partition]\nalpha = 0.25\n"),
        ("run", "--alpha", "0.5"),
        ("out", "alpha", "0.25", "0.5", "--output"),
    ),
    "damaged run folder": (a_run_with("methods = ["), ("run",), ("run.toml",)),
    "foreign folder": (a_foreign_folder, ("run",), ("out", "--output")),
    "output is a file": (a_file("out", "a file"), ("run",), ("out is a file", "--output")),
    "output below a file": (
        a_file("f", "a file"),
        ("run", "--output", "f/out"),
        ("folder f/out: f is a file", "--output"),
    ),
    "a logger that does not exist": (
        nothing,
        ("robustness", "--log", "tensorbord", "--output", "none"),
        ("tensorbord", "'tensorboard'"),
    ),
    "show a foreign folder": (a_foreign_folder, ("show", "out"), ("out",)),
    "show nothing": (nothing, ("show", "out"), ("out",)),
    "show without a folder": (nothing, ("show",), ("RUN",)),
    "partition alpha": (nothing, ("partition", "--alpha", "0"), ("alpha 0",)),
    "partition clients": (nothing, ("partition", "--clients", "2000"), ("2000", "1437")),
    "partition into a folder": (nothing, ("partition", "-o", "."), ("--output .", "stem")),
    "data set of a suite": (
        a_suite_of('[partitions.iid]\nscheme = "iid"\n[datasets.mine]\ndata.dataset = "digit"'),
        ("robustness", "mine.toml", "--output", "out"),
        ("'digit'", "'digits'"),
    ),
    "too many clients of a suite": (
        a_suite_of(
            '[datasets.digits]\n[partitions.iid]\nscheme = "iid"\nnum_clients = 2000\n'
        ),
        ("robustness", "mine.toml", "--output", "out"),
        ("2000", "1437"),
    ),
    "a site without a list": (
        sites_of(a_x=1.0, a_y=2),
        ("run", "--sites", "sites.npz"),
        ("site 'a' has no inputs and no targets",),
    ),
    "a site without examples": (
        sites_of(a_x=np.ones((20, 2)), a_y=[0, 1] * 10, b_x=np.ones((0, 2)), b_y=np.ones(0, int)),
        ("run", "--sites", "sites.npz"),
        ("site 'b' has no examples",),
    ),
    "a site beyond float32": (
        sites_of(a_x=np.full((20, 2), 1e300), a_y=[0, 1] * 10),
        ("run", "--sites", "sites.npz"),
        ("inputs of site 'a'", "float32"),
    ),
    "partition seed": (nothing, ("partition", "--seed", "-1"), ("--seed", "-1")),
}  # fmt: skip


def is_one_clear_line(result: Result, named: Sequence[str]) -> None:
    assert result.rc not in (0, None)
    assert result.rc > 0, "no signal, no abort"
    lines = result.err.splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("fedcrf: error: "), result.err
    message = lines[0].removeprefix("fedcrf: error: ")
    for name in named:
        assert name in message
    assert "Traceback" not in result.out


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_clear_line_and_writes_nothing(
    case: str, command_line: CommandLine, tmp_path: Path
) -> None:
    prepare, arguments, named = BAD_INPUT[case]
    prepare(tmp_path)
    if arguments[0] == "run" and "--output" not in arguments:
        arguments = (*arguments, "--output", "out")
    before = snapshot(tmp_path)
    is_one_clear_line(command_line(*arguments, cwd=tmp_path), named)
    assert snapshot(tmp_path) == before
    assert case == "output is a file" or (tmp_path / "out").exists() == any(
        name.startswith("out") for name in before
    )


def test_bad_input_in_a_fresh_interpreter(tmp_path: Path) -> None:
    # The table above runs in forks; here is one as the shell starts it, to tie the two together.
    result = fedcrf("run", "--alpha", "abc", cwd=tmp_path, env=environment())
    is_one_clear_line(result, ("--alpha", "abc"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "ascii_alone",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["encoding", "locale"],
)
def test_a_stream_that_lacks_signs_ends_no_command(
    ascii_alone: dict[str, str], tmp_path: Path
) -> None:
    said = fedcrf("methods", cwd=tmp_path, env=environment(**ascii_alone))
    assert (said.rc, said.err) == (0, "")
    assert r"\u03a3" in said.out  # Σ


FULL = "fedcrf: error: standard output: No space left on device: make room, and give the same"


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["at the end", "at once"])
@pytest.mark.parametrize("arguments", [["run", "--describe"], ["attacks"]], ids=" ".join)
@pytest.mark.parametrize(("to", "rc", "said"), [(">/dev/full", 1, FULL), (">&9", 141, "")])
def test_what_cannot_be_printed_ends_a_command_in_a_line(
    to: str, rc: int, said: str, arguments: list[str], unbuffered: str, tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    printed = f'exec "$@" {to.replace("9", str(writer))}'
    done = subprocess.run(
        ["bash", "-c", printed, "bash", *command(*arguments)],
        cwd=tmp_path, env=environment(PYTHONUNBUFFERED=unbuffered),
        stderr=subprocess.PIPE, text=True, pass_fds=[writer],
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == rc
    assert done.stderr.count("\n") == len(said.splitlines())
    assert done.stderr.startswith(said)


def test_a_current_folder_that_is_gone_is_a_line(tmp_path: Path) -> None:
    gone = 'rmdir "$PWD" && exec "$@"'
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        ["bash", "-c", gone, "bash", *command("methods")],
        cwd=tmp_path / "here", env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    is_one_clear_line(Result(done.returncode, done.stdout, done.stderr), ("current folder", "gone"))


def test_a_closed_stream_ends_no_command(tmp_path: Path) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command(*SMALL_RUN, "-o", "run")]
    done = subprocess.run(closed, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "results.md").exists()


@pytest.mark.parametrize("width", ["0", "²"])
def test_a_width_that_is_none_does_not_count(
    width: str, finished: tuple[Path, Result], tmp_path: Path
) -> None:
    folder, _ = finished
    shown = fedcrf("show", folder, cwd=tmp_path, env=environment(COLUMNS=width))
    assert (shown.rc, shown.err) == (0, "")
    assert "CRF-FedAvg" in shown.out


def test_data_folder_of_the_environment(command_line: CommandLine, tmp_path: Path) -> None:
    an_empty_data_folder(tmp_path)
    where = {"FEDCRF_DATA": str(tmp_path / "data")}
    result = command_line("run", "--dataset", "mnist", cwd=tmp_path, **where)
    is_one_clear_line(result, ("mnist", str(tmp_path / "data"), "FEDCRF_DATA"))


def test_two_processes_on_one_folder(command_line: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with filelock.FileLock(folder / ".lock"):  # as another fedcrf holds it
        result = command_line(*SMALL_RUN, "-o", folder)
    is_one_clear_line(result, (str(folder), "another process"))
    assert {path.name for path in folder.iterdir()} <= {".lock"}


@pytest.fixture(scope="module")
def small_once(command_line: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "out"
    assert command_line(*SMALL_RUN, "-o", folder).rc == 0
    return folder


@pytest.fixture
def small(small_once: Path, tmp_path: Path) -> Path:
    """The folder of a small finished run, to do with as a test likes."""
    return Path(shutil.copytree(small_once, tmp_path / "out"))


def test_other_data_under_a_finished_run(command_line: CommandLine, small: Path) -> None:
    # A finished cell of other data must not stand in a table beside new ones.
    summary = small / "cells" / "fedavg-seed-0" / "summary.json"
    content = json.loads(summary.read_text())
    summary.write_text(json.dumps(content | {"fingerprint": "0" * 16}))
    before = snapshot(summary.parent)
    result = command_line(*SMALL_RUN, "--seeds", "0,1", "-o", small)
    is_one_clear_line(result, ("fedavg-seed-0", "--output"))
    assert snapshot(summary.parent) == before, "its files are left as they were"
    (row,) = csv.DictReader((small / "results.csv").open(encoding="utf-8"))
    assert row["seeds"] == "1", "the mean is over the cells of one and the same data"


def test_a_failed_cell_is_an_error_and_the_others_stand(
    command_line: CommandLine, small: Path
) -> None:
    cell = small / "cells" / "fedavg-seed-1"
    cell.mkdir()
    (cell / "checkpoint.pt").write_bytes(b"not a checkpoint")
    result = command_line(*SMALL_RUN, "--seeds", "1,2", "-o", small)
    is_one_clear_line(result, ("fedavg-seed-1", "checkpoint.pt"))
    assert "fedavg-seed-2: ended after 2 rounds" in result.out
    assert "FedAvg" in result.out, "what there is, is shown"
    assert (small / "cells" / "fedavg-seed-2" / "summary.json").exists()


def test_a_run_that_diverges_is_an_error(command_line: CommandLine, tmp_path: Path) -> None:
    result = command_line(*SMALL_RUN, "--learning-rate", "1e30", "-o", tmp_path / "run")
    is_one_clear_line(
        result, ("fedavg-seed-0", "training diverged by round 2", "--learning-rate, here 1e+30")
    )
    shown = command_line("show", tmp_path / "run")
    assert "fedavg-seed-0: training diverged by round 2: no client's update was " in shown.out
    assert "not finished" not in shown.out


def test_describe_prints_a_run_file_and_runs_nothing(
    command_line: CommandLine, tmp_path: Path
) -> None:
    flags = (
        "--methods", "rfa, crf-fedprox, fedadam", "--alpha", 0.2, "--mu", 0.5, "--limit", 100,
        "--server-optimizer", "yogi", "--server-learning-rate", 0.3,
    )  # fmt: skip
    printed = command_line("run", *flags, "--describe", cwd=tmp_path)
    assert (printed.rc, printed.err) == (0, "")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run.toml").write_text(printed.out)
    again = command_line("run", "run.toml", "--describe", cwd=tmp_path)
    assert again.out == printed.out
    described = tomllib.loads(printed.out)
    assert described["methods"] == ["rfa+yogi", "crf-fedprox+yogi", "fedadam"]
    assert {k: v["learning_rate"] for k, v in described["server_optimizers"].items()} == {
        "yogi": 0.3,
        "adam": 0.3,
    }
    assert described["objectives"]["proximal"] == {"mu": 0.5}
    assert described["rules"]["rfa"]["iterations"] == 3
    assert (described["partition"]["alpha"], described["data"]["limit"]) == (0.2, 100)


def test_an_earlier_name_is_noted_once(command_line: CommandLine) -> None:
    settings = ("--set", "rules.crf-robust.inclination=1.0", "--methods", "crf-robust")
    printed = command_line("run", *settings, "--attack", "flatterer", "--describe")
    assert printed.rc == 0
    assert printed.err.splitlines() == [
        "fedcrf: note: attack: flatterer is now called sleeper",
        "fedcrf: note: rules.crf-robust: inclination is now called prior_log_odds",
    ]
    described = tomllib.loads(printed.out)
    assert described["attack"]["name"] == "sleeper"
    assert described["rules"]["crf-robust"]["prior_log_odds"] == 1.0


def test_a_sweep_a_suite_and_a_reproduction_from_the_command_line(
    command_line: CommandLine, tmp_path: Path
) -> None:
    small = ("--seeds", 0, "--set", "rounds.maximum=1", "--set", "partition.num_clients=3",
             "--jobs", 1)  # fmt: skip
    axis = ("--over", "rules.crf.iterations=1,5")
    swept = command_line("sweep", *axis, *small, "-o", tmp_path / "sweep")
    assert (swept.rc, swept.err) == (0, "")
    assert "iterations" in swept.out
    assert (tmp_path / "sweep" / "sweep.csv").read_text().count("\n") == 3
    assert command_line("sweep", *axis, *small, "-o", tmp_path / "sweep").rc == 0, "goes on"
    refused = command_line("sweep", *axis, *small, "-o", tmp_path)
    assert (refused.rc, refused.err.count("\n")) == (2, 1)
    assert "is not empty and holds no sweep: choose another folder with --output" in refused.err
    other = ("--over", "rules.crf.bandwidth=0.3,0.4")
    refused = command_line("sweep", *other, *small, "-o", tmp_path / "sweep")
    assert (refused.rc, refused.err.count("\n")) == (2, 1)
    assert "sweep.csv is of a sweep over iterations: choose another folder, with -o" in refused.err
    flags = ("--rounds", 1, "--clients", 3, "--dataset", "digits", "--seeds", 0, "--jobs", 1)
    assert command_line("sweep", *axis, *flags, "-o", tmp_path / "sweep").rc == 0, "the same run"
    unused = command_line("sweep", "--over", "rules.rfa.iterations=1,2", "-o", tmp_path / "no")
    assert unused.rc == 2
    assert unused.err.count("\n") == 1
    assert "none of the methods uses 'rfa'" in unused.err
    shown = command_line(
        "robustness", "attacks", "--partitions", "iid", "--conditions", "mimic,label-flip",
        "--methods", "fedavg,crf-robust", "--seeds", 0, "--set", "rounds.maximum=1",
        "--attackers", 2, "--clients", 7, "--jobs", 1, "-o", tmp_path / "attacks",
    )  # fmt: skip
    assert (shown.rc, shown.err) == (0, "")
    assert "worst: all shown" in shown.out
    assert "Rules under attack: digits, iid, 2 of 7 clients" in shown.out
    assert "of 7 cells" in (tmp_path / "attacks" / "tables.md").read_text()
    whole = ("--attackers", 2, "--clients", 7, "--set", "rounds.maximum=1",
             "--partitions", "iid")  # fmt: skip
    for again in (
        ("sweep", *axis, *small, "-o", tmp_path / "sweep"),
        ("robustness", "attacks", "--no-run", *whole, "-o", tmp_path / "attacks"),
    ):
        latex = command_line(*again, "--latex").out
        assert latex.count("\\begin{tabular}") == latex.count("\\bottomrule") == 1, latex
    before = snapshot(tmp_path / "attacks")
    other = command_line(
        "robustness", "attacks", "--no-run", "--set", "rounds.maximum=2",
        "--attackers", 2, "--clients", 7, "-o", tmp_path / "attacks",
    )  # fmt: skip
    is_one_clear_line(other, ("tables.md is kept as it is", "move it away"))
    assert "7 finished cells of other settings (rounds.maximum is 1, not 2)" in other.out
    assert snapshot(tmp_path / "attacks") == before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "tables.md").write_text("my own")
    for kind, said in (("reproduce", "tables of the paper"), ("robustness", "finished cells")):
        refused = command_line(kind, "--no-run", "-o", mine)
        assert (refused.rc, refused.out) == (2, "")
        assert f"holds no {said}: " in refused.err
    assert [path.read_text() for path in mine.iterdir()] == ["my own"]
    refused = command_line("robustness", "--no-run", "-o", tmp_path / "mistyped")
    assert (refused.rc, (tmp_path / "mistyped").exists()) == (2, False)
    tables = command_line("reproduce", "--no-run", "-o", tmp_path / "paper")
    assert (tables.rc, tables.err) == (0, "")
    assert tables.out.count("not run") >= 40
    assert (tmp_path / "paper" / "table-noniid.tex").exists()


# What a run shows


def test_report_and_explain(finished: tuple[Path, Result], command_line: CommandLine) -> None:
    folder, _ = finished
    page = folder.parent / "pages" / "one.html"
    result = command_line("report", folder, "-o", page)
    assert (result.rc, result.err, result.out) == (0, "", f"wrote {page}\n")
    assert "CRF-FedAvg" in page.read_text(encoding="utf-8")
    assert command_line("report", folder, "-o", page).rc == 0, "a page is written anew"
    others = page.with_name("notes.md")
    others.write_text("# Notes")
    refused = command_line("report", folder, "-o", others)
    assert (refused.rc, others.read_text()) == (2, "# Notes")
    assert refused.err.endswith("notes.md: this file is no page: name another\n")
    rounds = rounds_of(folder, "crf-fedavg-seed-0")
    record = rounds[4]
    result = command_line("explain", folder, "--round", 5, "--client", 3)
    assert (result.rc, result.err) == (0, "")
    place = record["clients"].index(3)
    weight, base = record["weight"][place], record["base_weight"][place]
    assert "\nClient 3: " in result.out, "the verdict comes first"
    assert f"  - weight {weight:.3f} instead of FedAvg's {base:.3f}\n" in result.out
    assert f"{record['reasons']['cosine'][place]:z.2f}".replace("-", "−") in result.out
    everyone = command_line("explain", folder, "--round", 5, "--seed", 1, "--method", "fedavg")
    assert "\nNobody is judged in this round.\n" in everyone.out
    table = everyone.out.partition("multiple\n")[2].splitlines()
    assert len([line for line in table if line[:1].isdigit()]) == len(record["clients"])
    last = command_line("explain", folder)
    assert last.out.startswith(f"CRF-FedAvg, seed 0, round {len(rounds)} (the last)\n")
    assert (
        last.out.splitlines()[3:]
        == command_line("explain", folder, "--round", len(rounds)).out.splitlines()[3:]
    )


def test_a_report_of_damaged_runs_is_written_and_its_status_says_so(
    finished: tuple[Path, Result], command_line: CommandLine, tmp_path: Path
) -> None:
    folder, _ = finished
    result = command_line("report", folder, tmp_path / "none", cwd=tmp_path)
    assert result.rc == 1
    assert "none could not be read: " in result.out
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "RUN", "--round", 99), f"no round 99: choose from 1 to {ROUNDS}"),
        (("explain", "RUN", "--round", 1, "--client", 77), "client 77 took no part in round 1"),
        (("explain", "RUN", "--round", 1, "--method", "krum"), "unknown method of this run 'krum'"),
        (("explain", "nowhere", "--round", 1), "there is no folder nowhere, looked for from "),
        (("report", "nowhere"), "there is no folder nowhere, looked for from "),
        (("show", "nowhere"), "there is no folder nowhere, looked for from "),
        (("rum",), "No such command 'rum'. Did you mean 'run'? See --help."),
        (("run", "--log", "tensorbord"), "unknown logger 'tensorbord': did you mean 'tensorboard'"),
    ],
)
def test_what_cannot_be_shown_is_named(
    finished: tuple[Path, Result],
    command_line: CommandLine,
    tmp_path: Path,
    arguments: tuple[Any, ...],
    message: str,
) -> None:
    given = [finished[0] if each == "RUN" else each for each in arguments]
    result = command_line(*given, cwd=tmp_path)
    assert result.rc == 2
    assert message in result.err
    assert not list(tmp_path.iterdir())


def test_a_run_is_logged(command_line: CommandLine, tmp_path: Path) -> None:
    result = command_line(*SMALL_RUN, "--log", "tensorboard", "-o", tmp_path / "run")
    assert (result.rc, result.err) == (0, "")
    assert list((tmp_path / "run" / "tensorboard" / "fedavg-seed-0").glob("events.out.*"))
