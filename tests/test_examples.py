"""The scripts among the examples run, and say what they are to say."""

from __future__ import annotations

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


def test_the_least_weights() -> None:
    said = run("examples/least_weights.py", "results/limits/iid-10-sites")
    (shown,) = [line for line in said.splitlines() if line.startswith("| iid-10-sites |")]
    page = (ROOT / "results" / "limits" / "README.md").read_text(encoding="utf-8")
    assert shown in page
