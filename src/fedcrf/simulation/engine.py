"""Who carries out a round's work on the clients' data: this process, or several beside it.

A worker process has one thread and works for one client at a time, the largest first; data, models
and scores lie in shared memory. Every client's training depends on nothing but the global model and
its own random stream, so the results are the same to the bit however many workers there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from fedcrf.rules import ClientReport, State
from fedcrf.simulation.evaluation import Scores
from fedcrf.simulation.local_engine import LocalEngine
from fedcrf.simulation.work import Work
from fedcrf.simulation.worker_pool import WorkerPool


class Engine(Protocol):
    """Trains the clients of a round and scores a global model."""

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Return every participant's report and mean training loss, in the order of clients.

        The reports' arrays hold until the next call.
        """
        ...

    def score(self, model: State) -> Mapping[str, Scores]:
        """Return the scores of a model on every evaluated set."""
        ...


@contextmanager
def engine_for(work: Work, num_workers: int) -> Iterator[Engine]:
    """Give an engine of so many worker processes; of none where one would do the work alone."""
    num_workers = min(num_workers, work.most_participants)
    if num_workers <= 1 or work.on_gpu:
        yield LocalEngine(work)
        return
    pool = WorkerPool(work, num_workers)
    try:
        yield pool
    finally:
        pool.close()
