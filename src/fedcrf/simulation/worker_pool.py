"""The engine of several processes, each of one thread, over shared memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from fedcrf.errors import FedcrfError
from fedcrf.processes import Child, in_child
from fedcrf.rules import ClientReport, State
from fedcrf.simulation.engine import Engine, LocalEngine
from fedcrf.simulation.evaluation import Scores
from fedcrf.simulation.round_memory import RoundMemory
from fedcrf.simulation.task import CLASSIFICATION
from fedcrf.simulation.work import Work

EVALUATION_BATCHES = 4
"""Batches that a worker evaluates at a time, where there are many."""


class WorkerPool:
    """Worker processes of one thread each, over shared memory."""

    def __init__(self, work: Work, num_workers: int) -> None:
        self._work = work
        self.memory = RoundMemory.of(work, shared=True)
        children = [Child(_serve, work, self.memory, daemon=True) for _ in range(num_workers)]
        self._workers = {child.connection: child for child in children}

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Train every participant; see `Engine.train`."""
        self.memory.publish(model)
        clients = self._work.participants(number)
        sizes = [len(self._work.federation.clients[client]) for client in clients]
        shares = shared_out(sizes, len(self._workers))
        answers = self._carry_out(
            [("train", [(slot, clients[slot]) for slot in share], number) for share in shares]
        )
        trained = {
            slot: each
            for share, found in zip(shares, answers, strict=True)
            for slot, each in zip(share, found, strict=True)
        }
        in_order = [trained[slot] for slot in range(len(clients))]
        return self.memory.reports(self._work, clients, in_order)

    def score(self, model: State) -> Mapping[str, Scores]:
        """Score a model; see `Engine.score`."""
        self.memory.publish(model)
        self._carry_out(
            [
                ("score", name, start, min(start + width, len(examples)))
                for name, examples in self._work.evaluated().items()
                for width in [self._evaluated_at_once(len(examples))]
                for start in range(0, len(examples), width)
            ]
        )
        return self.memory.scores

    def _evaluated_at_once(self, count: int) -> int:
        batch_size = self._work.evaluation_batch_size
        batches = count // (batch_size * 4 * len(self._workers))
        return batch_size * min(max(batches, 1), EVALUATION_BATCHES)

    def close(self) -> None:
        """End the workers."""
        for child in self._workers.values():
            child.end(now=True)

    def _carry_out(self, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Give the tasks out, one at a time to each worker, and return their answers in order.

        Raises:
            FedcrfError: A worker died; the round is lost, the run is not.
        """
        answers: dict[int, Any] = {}
        waiting = list(enumerate(tasks))
        busy: dict[Connection, int] = {}
        idle = list(self._workers)
        while waiting or busy:
            while waiting and idle:
                number, task = waiting.pop(0)
                connection = idle.pop()
                busy[connection] = number
                self._workers[connection].send(task)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                try:
                    answer = ready.recv()
                except (EOFError, OSError):
                    child = self._workers[ready]
                    child.end()
                    raise FedcrfError(
                        f"a training process died (exit code {child.exit_code}): "
                        "give the same command again to go on from the last round"
                    ) from None
                if isinstance(answer, Exception):
                    raise answer
                answers[busy.pop(ready)] = answer
                idle.append(ready)
        return [answers[number] for number in range(len(tasks))]


@contextlib.contextmanager
def engine_for(work: Work, num_workers: int) -> Iterator[Engine]:
    """Give an engine of so many worker processes; of none where one would do the work alone.

    A user's task is measured client by client, and what it is made of may not be sent: this process
    does its work.
    """
    num_workers = min(num_workers, work.most_participants)
    if num_workers <= 1 or work.on_gpu or work.task is not CLASSIFICATION:
        yield LocalEngine(work)
        return
    pool = WorkerPool(work, num_workers)
    try:
        yield pool
    finally:
        pool.close()


def shared_out(sizes: Sequence[int], num_workers: int) -> list[list[int]]:
    """Return the pieces in which workers fetch clients: the largest first, many small ones at once.

    A piece is at most a quarter of a worker's share of what is left, or one client, so that few
    messages are needed and yet all workers end together (guided self-scheduling: Polychronopoulos
    and Kuck, IEEE Transactions on Computers 1987).

    Args:
        sizes: (m,) how much work each client is.
        num_workers: How many workers fetch.

    Returns:
        Lists of indices into ``sizes``, each index once.
    """
    pieces: list[list[int]] = []
    left, room = sum(sizes), 0.0
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        if not pieces or sizes[index] > room:
            pieces.append([])
            room = left / (4 * num_workers)
        pieces[-1].append(index)
        room -= sizes[index]
        left -= sizes[index]
    return pieces


def _serve(connection: Connection, work: Work, memory: RoundMemory) -> None:
    """Carry out tasks until the connection closes."""
    with in_child(), contextlib.suppress(EOFError, ConnectionError):
        engine = LocalEngine(work, memory)
        tasks: Mapping[str, Callable[..., Any]] = {
            "train": engine.train_clients,
            "score": engine.score_part,
        }
        while True:
            kind, *arguments = connection.recv()
            try:
                answer = tasks[kind](*arguments)
            except Exception as error:
                answer = error
            connection.send(answer)
