"""The scripts among the examples run, and say what they are to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from examples import frameworks
from examples.more_epochs import MoreEpochs
from examples.scanners import BY_SCANNER, dim, mixed, negative, turned
from examples.two_classes import odd_or_even
from examples.two_kinds import TWO_KINDS

from fedcrf.data import PartitionSettings

ROOT = Path(__file__).parents[1]


def run(*arguments: object) -> str:
    """Run a script as a person does, and return what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_least_weights() -> None:
    said = run("examples/least_weights.py", "results/limits/iid-10-sites")
    (shown,) = [line for line in said.splitlines() if line.startswith("| iid-10-sites |")]
    page = (ROOT / "results" / "limits" / "README.md").read_text(encoding="utf-8")
    assert shown in page


def test_the_two_kinds_of_sites_hold_all_and_no_class_together() -> None:
    labels = np.arange(97) % 10
    parts = TWO_KINDS.assign(labels, PartitionSettings(), np.random.default_rng(0))
    assert sorted(np.concatenate(parts)) == list(range(97))
    assert [set(labels[part] > 4) for part in parts] == [{False}] * 4 + [{True}] * 6


def test_the_digits_are_odd_or_even() -> None:
    images, labels, others, further = odd_or_even()
    assert (images.shape, others.shape) == ((1400, 8, 8), (397, 8, 8))
    assert set(labels) == set(further) == {0, 1}
    assert images.max() == 240


def test_more_epochs_are_the_same_examples_again() -> None:
    images, labels = np.zeros((3, 1, 8, 8), np.float32), np.array([4, 0, 9])
    more, again = MoreEpochs(times=2).poison(images, labels, 10, np.random.default_rng(0))
    assert more.shape == (6, 1, 8, 8)
    assert again.tolist() == [4, 0, 9, 4, 0, 9]


def test_three_of_ten_sites_have_the_other_scanner() -> None:
    images, labels, others, further = turned()
    assert (images.shape, others.shape) == ((1400, 8, 8), (397, 8, 8))
    for changed in (negative, mixed, dim):
        again, same, tests, _ = changed()
        assert (labels == same).all()
        assert (images[420:] == again[420:]).all()
        assert (others[119:] == tests[119:]).all()
        assert (images[:420] != again[:420]).any(axis=(1, 2)).all()
    assert set(further) == set(range(10))
    parts = BY_SCANNER.assign(labels, PartitionSettings(), np.random.default_rng(0))
    assert sorted(np.concatenate(parts)) == list(range(1400))
    assert [set(part < 420) for part in parts] == [{True}] * 3 + [{False}] * 7


def test_a_run_of_a_framework_is_repeated_only_where_its_rule_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frameworks, "RESULTS", tmp_path)
    every = [*frameworks.wanted("nvflare", range(2))]
    assert len(every) == 2 * 3 * 2
    stale = {**every[3], "behaviour": every[3]["behaviour"] - 1}
    lines = [json.dumps(run | {"accuracy": 0.5}) for run in (*every[:3], stale)]
    (tmp_path / "nvflare.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert [*frameworks.wanted("nvflare", range(2))] == every[3:]
    assert [run["seed"] for run in frameworks.runs_of("nvflare")] == [0, 0, 0]


@pytest.mark.parametrize(("framework", "seeds"), [("flower", 3), ("nvflare", 5)])
def test_every_published_run_of_a_framework_is_by_the_present_code(
    framework: str, seeds: int
) -> None:
    assert [*frameworks.wanted(framework, range(seeds))] == []
