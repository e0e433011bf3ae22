"""A run under attack, by the fields past the paper's."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.runs import carry_out, small_spec

FIELDS = ["crf-robust", "crf-evidence", "crf-robust-evidence"]


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of which one client attacks from the second round on."""
    folder = tmp_path_factory.mktemp("attacked") / "run"
    spec = small_spec(
        methods=["fedavg", "crf-fedavg", *FIELDS],
        seeds=[0],
        attack={"name": "ipm", "attackers": 1, "start_round": 2},
    )
    _, failed = carry_out(spec, folder)
    assert failed == []
    return folder
