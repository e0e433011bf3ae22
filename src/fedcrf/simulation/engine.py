"""Engines: a round's training and evaluation, in this process or in several.

A worker process has one thread and works for one client at a time, the largest first. Data, models
and scores are in shared memory. A client's training depends only on the global model and its own
random stream, so the results are the same to the bit for any number of workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from fedcrf.errors import FedcrfError
from fedcrf.processes import Child, in_child
from fedcrf.rules import ClientReport, State
from fedcrf.simulation.task import CLASSIFICATION, Scores
from fedcrf.simulation.worker import RoundMemory, Trained, Work, Worker

EVALUATION_BATCHES = 4
"""Batches that a worker process evaluates at a time, where there are many."""


class Engine:
    """Trains the clients of a round and scores a global model, here or in ``processes`` beside it.

    ``memory`` has models, scores and clients' personal tensors.
    """

    def __init__(self, work: Work, processes: int = 0) -> None:
        self._work, self.processes = work, processes
        self.memory = RoundMemory.of(work, shared=processes > 0)
        self._worker = None if processes else Worker(work, self.memory)
        children = [Child(_serve, work, self.memory, daemon=True) for _ in range(processes)]
        self._children = {child.connection: child for child in children}

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Return every participant's report and mean training loss, in the order of clients.

        The reports' arrays are valid until the next call.
        """
        self.memory.publish(model)
        clients = self._work.participants(number)
        sizes = [len(self._work.federation.clients[client]) for client in clients]
        shares = shared_out(sizes, self.processes) if self.processes else [[*range(len(clients))]]
        found = self._carry_out(
            [("train", [(slot, clients[slot]) for slot in share], number) for share in shares]
        )
        trained: dict[int, Trained] = {}
        for share, each in zip(shares, found, strict=True):
            trained.update(zip(share, each, strict=True))
        reports = [
            ClientReport(
                client=client,
                state=self.memory.state(slot),
                num_examples=size,
                effective_steps=self._work.effective_steps(size),
                evidence=trained[slot][1],
            )
            for slot, (client, size) in enumerate(zip(clients, sizes, strict=True))
        ]
        return reports, [trained[slot][0] for slot in range(len(clients))]

    def train_server(self, number: int) -> State:
        """Return the server's own model, trained from the global one that `train` got."""
        slot = self._work.most_participants
        self._carry_out([("train", [(slot, self._work.server)], number)])
        return self.memory.state(slot)

    def score(self, model: State) -> Mapping[str, Scores]:
        """Return the scores of a model on every evaluated set."""
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

    def close(self) -> None:
        """End the processes."""
        for child in self._children.values():
            child.end(now=True)

    def _evaluated_at_once(self, count: int) -> int:
        if not self.processes:
            return max(count, 1)
        batch_size = self._work.evaluation_batch_size
        batches = count // (batch_size * 4 * self.processes)
        return batch_size * min(max(batches, 1), EVALUATION_BATCHES)

    def _carry_out(self, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Give tasks out, one at a time to each process, and return their answers in order.

        A task is the name of a worker's method, and its arguments. If a worker dies the round is
        lost, the run is not.
        """
        if self._worker is not None:
            return [getattr(self._worker, kind)(*arguments) for kind, *arguments in tasks]
        answers: dict[int, Any] = {}
        waiting = list(enumerate(tasks))
        busy: dict[Connection, int] = {}
        idle = list(self._children)
        while waiting or busy:
            while waiting and idle:
                number, task = waiting.pop(0)
                connection = idle.pop()
                busy[connection] = number
                self._children[connection].send(task)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                try:
                    answer = ready.recv()
                except (EOFError, OSError):
                    child = self._children[ready]
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
    """Give an engine of so many processes; of none where one would do the work alone.

    A user's task is measured client by client, and what it is made of may not be sent: this process
    does its work.
    """
    num_workers = min(num_workers, work.most_participants)
    alone = num_workers <= 1 or work.on_gpu or work.task is not CLASSIFICATION
    engine = Engine(work, 0 if alone else num_workers)
    try:
        yield engine
    finally:
        engine.close()


def shared_out(sizes: Sequence[int], num_workers: int) -> list[list[int]]:
    """Return the pieces in which workers fetch clients: the largest first, many small ones at once.

    A piece is at most a quarter of a worker's share of what is left, or one client, so that few
    messages are needed and yet all workers end together (guided self-scheduling: Polychronopoulos
    and Kuck, IEEE Transactions on Computers 1987). Pieces are lists of indices into the (m,) sizes,
    how much work each client is.
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
    with in_child(), contextlib.suppress(EOFError, ConnectionError):
        worker = Worker(work, memory)
        while True:
            kind, *arguments = connection.recv()
            try:
                answer = getattr(worker, kind)(*arguments)
            except Exception as error:
                answer = error
            connection.send(answer)
