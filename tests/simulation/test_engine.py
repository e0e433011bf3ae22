"""Worker processes change nothing but the time it takes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_array_equal

from fedcrf import FedcrfError
from fedcrf.objectives import Proximal
from fedcrf.rules import CRF, Krum
from fedcrf.simulation.engine import LocalEngine, WorkerPool, engine_for
from fedcrf.simulation.rounds import Simulation
from simulation.small import BatchNormPlan, Broken, DropoutPlan, federation


def simulation(**changes: Any) -> Simulation:
    settings: dict[str, Any] = {
        "federation": federation(),
        "model": BatchNormPlan(),
        "objective": Proximal(),
        "rule": CRF(),
        "max_rounds": 3,
    }
    return Simulation(**(settings | changes))


@pytest.mark.parametrize(
    "changes", [{}, {"model": DropoutPlan(), "rule": Krum()}], ids=["batch norm", "dropout, Krum"]
)
def test_any_number_of_workers_gives_the_same_bits(changes: dict[str, Any]) -> None:
    run = simulation(**changes)
    outcomes = []
    for workers in (1, 2, 3):
        states, records = zip(*run.rounds(run.start(), workers), strict=True)
        # Read after the last round: a state must not lie in memory that later rounds write to.
        outcomes.append((states, [record.model_dump(exclude={"seconds"}) for record in records]))
    for states, records in outcomes[1:]:
        assert records == outcomes[0][1]
        for state, expected in zip(states, outcomes[0][0], strict=True):
            for name, array in expected.model.items():
                assert state.model[name].dtype == array.dtype
                assert_array_equal(state.model[name], array)
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_ends_the_run_with_a_clear_error() -> None:
    run = simulation()
    rounds = run.rounds(run.start(), 2)
    next(rounds)
    victim = multiprocessing.active_children()[0]
    os.kill(victim.pid or 0, signal.SIGKILL)
    with pytest.raises(FedcrfError, match=r"a training process died \(exit code -9\)"):
        list(rounds)
    assert multiprocessing.active_children() == []


def test_what_goes_wrong_in_a_worker_is_told() -> None:
    run = simulation(objective=Broken())
    with pytest.raises(ZeroDivisionError, match="broken"):
        list(run.rounds(run.start(), 2))
    assert multiprocessing.active_children() == []


def test_a_run_that_is_left_early_leaves_nothing_behind() -> None:
    memory = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    run = simulation()
    rounds = run.rounds(run.start(), 2)
    next(rounds)
    del rounds
    gc.collect()
    assert multiprocessing.active_children() == []
    if memory:
        assert set(Path("/dev/shm").iterdir()) <= memory


@pytest.mark.parametrize(("workers", "kind"), [(1, LocalEngine), (2, WorkerPool)])
def test_one_worker_is_this_process(workers: int, kind: type) -> None:
    with engine_for(simulation()._work, workers) as engine:
        assert isinstance(engine, kind)
