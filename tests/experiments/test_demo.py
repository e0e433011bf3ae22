"""The demonstration compares what the published tables say is worth comparing, and tells it."""

from __future__ import annotations

import csv
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedcrf.cli import app
from fedcrf.errors import FedcrfError
from fedcrf.experiments import demo
from fedcrf.experiments.demo import (
    ATTACKED,
    HONEST,
    METHODS,
    SEEDS,
    WORST,
    accuracies,
    demo_table,
    demonstration,
    verdict,
)
from fedcrf.experiments.settings import method_title
from fedcrf.experiments.study import read_suite

ROOT = Path(__file__).parents[2]
SUITE = read_suite(demo.SUITE, demo.DATASET)
OURS = ("crf-fedavg", "crf-robust", "crf-robust-evidence")


def published(method: str) -> dict[str, float]:
    """Return a method's published accuracy under each of the thirteen attacks, by condition."""
    folder = ROOT / "results" / "robustness" / f"{demo.SUITE}-{demo.DATASET}"
    with (folder / f"accuracy-{demo.PARTITION}.csv").open(encoding="utf-8") as file:
        rows = {row["condition"]: row for row in csv.DictReader(file)}
    names = SUITE.groups["13 attacks"]
    return {name: float(rows[SUITE.conditions[name].title][method_title(method)]) for name in names}


def test_the_rule_beside_ours_is_the_best_of_the_others() -> None:
    others = [name for name in SUITE.methods if name not in ("fedavg", *OURS)]
    assert max(others, key=lambda name: min(published(name).values())) == METHODS[1]
    assert set(SEEDS) < set(SUITE.seeds)


def test_the_attacks_are_the_worst_for_each_rule() -> None:
    worst = {min(found, key=found.__getitem__) for found in map(published, METHODS)}
    assert set(ATTACKED.values()) == worst


@pytest.mark.parametrize(
    ("honest", "said"),
    [
        (0.97, "CRF-robust is 1.0 points more accurate than FedAvg."),
        (0.9602, "CRF-robust is as accurate as FedAvg."),
        (0.9, "CRF-robust is 6.0 points less accurate than FedAvg."),
    ],
)
def test_the_sentence_follows_from_the_numbers(honest: float, said: str) -> None:
    found = pd.DataFrame({HONEST: 0.96}, index=[*METHODS])
    for number, name in enumerate(ATTACKED):
        found[name] = 0.5 + 0.1 * number
    found.loc["crf-robust", HONEST] = honest
    found.loc["fedavg", "scaling"] = 0.1
    found[WORST] = [0.1, 0.5, 0.5]
    assert verdict(found) == (
        f"At worst the three attackers cost FedAvg 86.0, Geom. median 46.0 and CRF-robust "
        f"{100 * (honest - 0.5):.1f} points of accuracy; where nobody attacks, {said}"
    )
    table = demo_table(found)
    assert table.header[-1] == "worst attack"
    assert [row[-1] for row in table.rows] == ["0.100", "0.500", "0.500"]
    assert len(table.header) == 2 + len(ATTACKED) + 1


def test_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = replace(SUITE, settings=({"rounds": {"maximum": 5}},))
    monkeypatch.setattr(demo, "read_suite", lambda *_: short)
    monkeypatch.setattr(demo, "SEEDS", (20,))
    monkeypatch.chdir(tmp_path)
    app(["demo", "--jobs", "1"], standalone_mode=False)
    found = accuracies(Path("runs/demo"))
    assert list(found[WORST]) == [min(row) for row in found[[*ATTACKED]].to_numpy()]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "Who was trusted, and why: runs/demo/report.html"
    assert lines[-2] == verdict(found)
    assert all(
        any(row[0] in line and row[-1] in line for line in lines) for row in demo_table(found).rows
    )
    assert sum("ended after 5 rounds" in line for line in lines) == 4 * len(METHODS)
    assert any("scaling/crf-robust-seed-20: " in line for line in lines)
    page = Path("runs/demo/report.html").read_text(encoding="utf-8")
    assert "4 runs compared" in page
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    looked = [shlex.split(line, comments=True) for line in re.findall(r"^fedcrf .*", readme, re.M)]
    shown_there = [words for words in looked if any("runs/demo" in word for word in words)]
    assert [words[1] for words in shown_there] == ["report", "explain", "show"]
    for _, *arguments in shown_there:
        app(arguments, standalone_mode=False)
    assert "Client 3 (attacks): " in capsys.readouterr().out
    app(["demo", "--jobs", "1"], standalone_mode=False)  # finished before
    assert capsys.readouterr().out.splitlines()[-2:] == lines[-2:]


def test_a_run_of_another_kind_is_left_alone(finished: Path) -> None:
    with pytest.raises(FedcrfError, match=r"holds a run.*--output"):
        demonstration(finished)
