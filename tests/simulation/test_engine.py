"""Worker processes change nothing but the time it takes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedcrf import FedcrfError
from fedcrf.errors import in_a_line
from fedcrf.models import MLP
from fedcrf.objectives import Objective, Proximal
from fedcrf.rules import CRF, Adam, FLTrust, Krum, Optimized
from fedcrf.simulation.engine import Engine, engine_for, shared_out
from simulation import small
from simulation.small import (
    Asking,
    BatchNormPlan,
    Broken,
    DropoutPlan,
    HalvedPlan,
    OddlyBroken,
    federation,
)

quickly = pytest.mark.usefixtures("quick_children")

simulation = partial(small.simulation, model=BatchNormPlan(), objective=Proximal(), max_rounds=3)


@quickly
@pytest.mark.parametrize(
    ("workers", "changes"),
    [
        (2, {"rule": Asking(CRF())}),
        pytest.param(3, {"model": DropoutPlan(), "rule": Asking(Krum())}, marks=pytest.mark.slow),
        (2, {"model": HalvedPlan()}),
        pytest.param(2, {"rule": FLTrust(10), "clients_per_round": 2}, marks=pytest.mark.slow),
        (
            2,
            {
                "model": MLP((6,)),
                "rule": Optimized(Asking(CRF()), Adam()),
                "federation": federation((9, 4, 0, 6, 12, 5)),
                "clients_per_round": 3,
            },
        ),
    ],
    ids=["batch norm", "dropout, Krum", "bfloat16", "server data", "three of five"],
)
def test_any_number_of_workers_gives_the_same_bits(workers: int, changes: dict[str, Any]) -> None:
    chosen = simulation(**changes)
    (alone, first), (shared, second) = small.run(chosen), small.run(chosen, workers=workers)
    assert small.without_seconds(first) == small.without_seconds(second)
    # Read after the last round: a state must not lie in memory that later rounds write to.
    for state, expected in zip(shared, alone, strict=True):
        assert small.same_state(state.model, expected.model)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_run_with_a_clear_error() -> None:
    run = simulation()
    rounds = run.rounds(run.start(), 2)
    next(rounds)
    victim = multiprocessing.active_children()[0]
    os.kill(victim.pid or 0, signal.SIGKILL)
    with pytest.raises(FedcrfError, match=r"a training process died \(exit code -9\)"):
        list(rounds)
    assert multiprocessing.active_children() == []


@quickly
@pytest.mark.parametrize(
    ("objective", "kind", "said"),
    [
        (Broken(), ZeroDivisionError, "broken"),
        (OddlyBroken(), FedcrfError, "^OddError: no gradient in layer 3"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told(
    objective: Objective, kind: type[Exception], said: str
) -> None:
    run = simulation(objective=objective)
    with pytest.raises(kind, match=said) as raised:
        list(run.rounds(run.start(), 2))
    assert ", at small.py:" in in_a_line(raised.value)
    assert multiprocessing.active_children() == []


@quickly
def test_a_run_that_is_left_early_leaves_nothing_behind() -> None:
    def shared_memory() -> set[Path]:
        return set(Path("/dev/shm").glob(f"*_{os.getpid()}_*"))  # another test's is not looked at

    before = shared_memory()
    run = simulation(clients_per_round=2)
    rounds = run.rounds(run.start(), 2)
    next(rounds)
    del rounds
    gc.collect()
    assert multiprocessing.active_children() == []
    assert shared_memory() <= before


@pytest.mark.parametrize(("workers", "processes"), [(1, 0), (2, 2)])
def test_one_worker_is_this_process(workers: int, processes: int) -> None:
    with engine_for(simulation(), workers) as engine:
        assert engine.processes == processes == len(multiprocessing.active_children())


def test_memory_for_clients_is_that_of_one_round() -> None:
    work = simulation(federation=federation((9, 4, 0, 6, 12, 5)), clients_per_round=3)
    memory = Engine(work).memory
    assert {len(rows) for rows in (memory.clients, *memory.others.values())} == {3}


def test_there_are_no_more_workers_than_clients_in_a_round() -> None:
    with engine_for(simulation(clients_per_round=1), 2) as engine:
        assert engine.processes == 0


@pytest.mark.parametrize("num_workers", [1, 2, 7])
@pytest.mark.parametrize("sizes", [[1], [5, 1, 9], [60] * 100, [1000, *[1] * 300], [3] * 10])
def test_every_client_is_fetched_once_and_no_worker_waits_long(
    sizes: list[int], num_workers: int
) -> None:
    pieces = shared_out(sizes, num_workers)
    assert sorted(index for piece in pieces for index in piece) == list(range(len(sizes)))
    assert len(pieces) <= 8 * num_workers
    # Whoever is free fetches the next piece: the last to end is at most one piece behind.
    works = [sum(sizes[index] for index in piece) for piece in pieces]
    busy = [0] * num_workers
    for work in works:
        busy[busy.index(min(busy))] += work
    assert max(busy) <= sum(sizes) / num_workers + max(works)
    assert max(works) <= sum(sizes) / len(pieces) + max(sizes)
