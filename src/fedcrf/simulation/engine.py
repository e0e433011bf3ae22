"""Who carries out a round's work on the clients' data: this process, or several beside it.

A worker process has one thread and works for one client at a time, the largest first; data, models
and scores lie in shared memory. Every client's training depends on nothing but the global model and
its own random stream, so the results are the same to the bit however many workers there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcrf.errors import FedcrfError
from fedcrf.models import ModelPlan
from fedcrf.objectives import Objective
from fedcrf.processes import Child, in_child
from fedcrf.rules import ClientReport, State
from fedcrf.simulation.evaluation import Scores, score
from fedcrf.simulation.federation import Examples, Federation
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.randomness import Stream, generator, torch_seed
from fedcrf.simulation.training import trainer
from fedcrf.statistics import as_numpy

EVALUATION_BATCHES = 8
"""Batches that a worker evaluates at a time."""


@dataclass(frozen=True)
class Work:
    """All that training and evaluating depend on, besides the global model and the round."""

    federation: Federation
    model: ModelPlan
    objective: Objective
    training: LocalTraining
    evaluation_batch_size: int
    seed: int

    def network(self) -> nn.Module:
        """Return the seed's initial network, on the federation's device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(self.seed, Stream.MODEL))
            network = self.model.build(self.federation.image_shape, self.federation.num_classes)
        device = self.federation.validation.labels.device
        if device.type == "cuda" or self.training.precision == "bfloat16":
            # Convolutions are fastest in this layout there; torch types it for tensors only.
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network.to(device)

    @property
    def participants(self) -> list[int]:
        """The clients that have examples to train on."""
        return [client for client, each in enumerate(self.federation.clients) if len(each)]

    def evaluated(self) -> Mapping[str, Examples]:
        """Return the sets of examples that every global model is evaluated on, by name."""
        sets: dict[str, Examples] = {
            "validation": self.federation.validation,
            "test": self.federation.test,
        }
        if self.federation.held_out is not None:
            sets["held_out"] = self.federation.held_out
        return sets

    def report(self, client: int, state: State) -> ClientReport:
        """Return what a client reports after a round that left it with this model."""
        num_examples = len(self.federation.clients[client])
        return ClientReport(
            client=client,
            state=state,
            num_examples=num_examples,
            effective_steps=self.training.effective_steps(num_examples),
        )


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
    num_workers = min(num_workers, len(work.participants))
    on_cpu = work.federation.validation.labels.device.type == "cpu"
    if num_workers <= 1 or not on_cpu:
        yield LocalEngine(work)
        return
    pool = WorkerPool(work, num_workers)
    try:
        yield pool
    finally:
        pool.close()


class LocalEngine:
    """Does everything in this process, one client after the other."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._network = work.network()
        self._trainer = trainer(self._network, work.training)

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Train every participant; see `Engine.train`."""
        reports, losses = [], []
        for client in self._work.participants:
            self.load(model)
            losses.append(self.train_client(client, number))
            reports.append(self._work.report(client, self.state()))
        return reports, losses

    def score(self, model: State) -> Mapping[str, Scores]:
        """Score a model; see `Engine.score`."""
        self.load(model)
        batch_size = self._work.evaluation_batch_size
        return {
            name: score(self._network, examples, batch_size)
            for name, examples in self._work.evaluated().items()
        }

    def train_client(self, client: int, number: int) -> float:
        """Train the network, which holds the global model, as one client in one round."""
        work = self._work
        shuffle = generator(work.seed, Stream.SHUFFLE, number, client)
        with torch.random.fork_rng(devices=[]):  # dropout and the like draw from it
            torch.manual_seed(torch_seed(work.seed, Stream.TRAINING, number, client))
            return self._trainer(work.federation.clients[client], work.objective, shuffle)

    def score_part(self, name: str, start: int, stop: int) -> Scores:
        """Score the model that the network holds on some of the examples of a set."""
        whole = self._work.evaluated()[name]
        part = Examples(whole.images[start:stop], whole.labels[start:stop])
        return score(self._network, part, self._work.evaluation_batch_size)

    def load(self, model: State) -> None:
        """Put a model into the network."""
        self._network.load_state_dict(
            {name: torch.from_numpy(array) for name, array in model.items()}
        )

    def state(self) -> State:
        """Copy the network's model out."""
        return state_of(self._network)


def state_of(network: nn.Module) -> dict[str, NDArray[Any]]:
    """Copy a network's tensors out, in its order; bfloat16 becomes float32."""
    return {name: as_numpy(tensor).copy() for name, tensor in network.state_dict().items()}


@dataclass(frozen=True)
class _Shared:
    """What parent and workers both see: the global model, the clients' models, the scores."""

    model: Mapping[str, Tensor]
    clients: Mapping[str, Tensor]
    scores: Mapping[str, Scores]

    @classmethod
    def of(cls, work: Work) -> _Shared:
        tensors = {
            name: torch.from_numpy(array) for name, array in state_of(work.network()).items()
        }
        count = len(work.participants)
        return cls(
            model={name: _in_shared_memory(tensor) for name, tensor in tensors.items()},
            clients={
                name: _in_shared_memory(torch.empty((count, *tensor.shape), dtype=tensor.dtype))
                for name, tensor in tensors.items()
            },
            scores={
                name: Scores(
                    _in_shared_memory(torch.empty(len(each))),
                    _in_shared_memory(torch.empty(len(each))),
                )
                for name, each in work.evaluated().items()
            },
        )


def _in_shared_memory(tensor: Tensor) -> Tensor:
    """Move a tensor to memory that other processes see; it is freed with the last of them."""
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


class WorkerPool:
    """Worker processes of one thread each, over shared memory."""

    def __init__(self, work: Work, num_workers: int) -> None:
        self._work = work
        self._shared = _Shared.of(work)
        children = [Child(_serve, work, self._shared, daemon=True) for _ in range(num_workers)]
        self._workers = {child.connection: child for child in children}

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Train every participant; see `Engine.train`."""
        self._publish(model)
        clients = self._work.participants
        sizes = [len(self._work.federation.clients[client]) for client in clients]
        order = sorted(range(len(clients)), key=lambda slot: -sizes[slot])
        losses = self._carry_out([("train", slot, clients[slot], number) for slot in order])
        reports = [
            self._work.report(
                client, {name: rows[slot].numpy() for name, rows in self._shared.clients.items()}
            )
            for slot, client in enumerate(clients)
        ]
        by_slot = dict(zip(order, losses, strict=True))
        return reports, [by_slot[slot] for slot in range(len(clients))]

    def score(self, model: State) -> Mapping[str, Scores]:
        """Score a model; see `Engine.score`."""
        self._publish(model)
        width = EVALUATION_BATCHES * self._work.evaluation_batch_size
        self._carry_out(
            [
                ("score", name, start, min(start + width, len(examples)))
                for name, examples in self._work.evaluated().items()
                for start in range(0, len(examples), width)
            ]
        )
        return self._shared.scores

    def close(self) -> None:
        """End the workers."""
        for child in self._workers.values():
            child.end(now=True)

    def _publish(self, model: State) -> None:
        for name, array in model.items():
            self._shared.model[name].copy_(torch.from_numpy(array))

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


def _serve(connection: Connection, work: Work, shared: _Shared) -> None:
    """Carry out tasks until the connection closes."""
    with in_child(), contextlib.suppress(EOFError, ConnectionError):
        engine = LocalEngine(work)
        while True:
            kind, *arguments = connection.recv()
            try:
                engine.load({name: tensor.numpy() for name, tensor in shared.model.items()})
                connection.send(TASKS[kind](engine, shared, *arguments))
            except ConnectionError:
                raise
            except Exception as error:
                connection.send(error)


def _train(engine: LocalEngine, shared: _Shared, slot: int, client: int, number: int) -> float:
    loss = engine.train_client(client, number)
    for name, array in engine.state().items():
        shared.clients[name][slot].copy_(torch.from_numpy(array))
    return loss


def _score(engine: LocalEngine, shared: _Shared, name: str, start: int, stop: int) -> None:
    part, whole = engine.score_part(name, start, stop), shared.scores[name]
    whole.losses[start:stop] = part.losses
    whole.correct[start:stop] = part.correct


TASKS: Mapping[str, Callable[..., float | None]] = {"train": _train, "score": _score}
"""What a worker can be asked to do."""
