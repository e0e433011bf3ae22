"""The scripts among the examples run, and say what they are to say."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

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


def test_rounds_of_one_mini_batch(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    said = run(
        "examples/mini_batches.py", "--dataset", "digits", "--seeds", 1, "--rounds", 20,
        "--similarity", 0.5, "--clients", 4, "-o", table,
    )  # fmt: skip
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["rule"] for row in rows] == ["average", "crf-robust"]
    assert all(0.1 < float(row["accuracy"]) <= 1 for row in rows)
    assert "commit" in said


def test_the_least_weights() -> None:
    said = run("examples/least_weights.py", "results/limits/iid-10-sites")
    (shown,) = [line for line in said.splitlines() if line.startswith("| iid-10-sites |")]
    page = (ROOT / "results" / "limits" / "README.md").read_text(encoding="utf-8")
    assert shown in page
