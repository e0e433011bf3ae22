"""Who carries out a round's work on the clients' data: this process, or several beside it.

A worker process has one thread and works for one client at a time, the largest first; data, models
and scores lie in shared memory. Every client's training depends on nothing but the global model and
its own random stream, so the results are the same to the bit however many workers there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.models import ModelPlan
from fedcrf.objectives import Objective
from fedcrf.processes import Child, in_child
from fedcrf.rules import RESIDUAL_LOSS, ClientReport, State
from fedcrf.simulation.adversary import Adversary
from fedcrf.simulation.evaluation import Scores, evaluation_of, score
from fedcrf.simulation.federation import Examples, Federation
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.randomness import Stream, generator, torch_seed
from fedcrf.simulation.training import trainer
from fedcrf.statistics import as_numpy

EVALUATION_BATCHES = 4
"""Batches that a worker evaluates at a time, where there are many."""


EVIDENCE = (RESIDUAL_LOSS,)
"""What clients can report of themselves, by name."""


def check_evidence(names: Iterable[str]) -> None:
    """Raise a `FedcrfError` where clients cannot report evidence of one of these names."""
    for name in names:
        if name not in EVIDENCE:
            raise unknown_name("evidence", name, EVIDENCE)


@dataclass(frozen=True)
class Trained:
    """What a client's local training came to, besides its model.

    Attributes:
        loss: Mean cross-entropy over the steps.
        evidence: What the client reports of itself.
    """

    loss: float
    evidence: Mapping[str, float]


@dataclass(frozen=True)
class Work:
    """All that training and evaluating depend on, besides the global model and the round.

    ``clients_per_round`` is how many clients are drawn for a round; None for all of them.
    ``adversary`` has poisoned the training data of some; None where all are honest.
    ``evidence`` names what clients report of themselves, of `EVIDENCE`.
    """

    federation: Federation
    model: ModelPlan
    objective: Objective
    training: LocalTraining
    evaluation_batch_size: int
    seed: int
    clients_per_round: int | None = None
    adversary: Adversary | None = None
    evidence: frozenset[str] = frozenset()

    def network(self) -> nn.Module:
        """Return the seed's initial network, on the federation's device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(self.seed, Stream.MODEL))
            network = self.model.build(self.federation.image_shape, self.federation.num_classes)
        # Convolutions are fastest in this layout; torch types it for tensors only.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network.to(self.federation.validation.labels.device)

    @property
    def on_gpu(self) -> bool:
        """Whether the federation's data lie on a GPU."""
        return self.federation.validation.labels.device.type == "cuda"

    @cached_property
    def eligible(self) -> list[int]:
        """The clients that have examples to train on."""
        return self.federation.eligible

    @property
    def most_participants(self) -> int:
        """How many clients train in a round: all that could, where fewer could than are drawn."""
        return min(self.clients_per_round or len(self.eligible), len(self.eligible))

    def participants(self, number: int) -> list[int]:
        """Return the clients that train in a round, in their order; drawn anew each round."""
        if self.most_participants == len(self.eligible):
            return self.eligible
        draw = generator(self.seed, Stream.PARTICIPATION, number)
        drawn = draw.choice(self.eligible, self.most_participants, replace=False)
        return sorted(drawn.tolist())

    def examples(self, client: int, number: int) -> Examples:
        """Return what a client trains on in a round."""
        if self.adversary is not None and self.adversary.poisons(client, number):
            return self.adversary.poisoned[client]
        return self.federation.clients[client]

    def evaluated(self) -> Mapping[str, Examples]:
        """Return the sets of examples that every global model is evaluated on, by name."""
        sets: dict[str, Examples] = {
            "validation": self.federation.validation,
            "test": self.federation.test,
        }
        if self.federation.held_out is not None:
            sets["held_out"] = self.federation.held_out
        return sets

    def report(self, client: int, state: State, trained: Trained) -> ClientReport:
        """Return what a client reports after a round that left it with this model."""
        num_examples = len(self.federation.clients[client])
        return ClientReport(
            client=client,
            state=state,
            num_examples=num_examples,
            effective_steps=self.training.effective_steps(num_examples),
            evidence=trained.evidence,
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
    num_workers = min(num_workers, work.most_participants)
    if num_workers <= 1 or work.on_gpu:
        yield LocalEngine(work)
        return
    pool = WorkerPool(work, num_workers)
    try:
        yield pool
    finally:
        pool.close()


@dataclass(frozen=True)
class _Memory:
    """The global model, the models of a round's clients and the scores, used again every round.

    Attributes:
        model: The global model.
        clients: By name of a tensor, one row for each client of a round.
        scores: By name of a set, every example's score.
    """

    model: Mapping[str, Tensor]
    clients: Mapping[str, Tensor]
    scores: Mapping[str, Scores]

    @classmethod
    def of(cls, work: Work, shared: bool = False) -> _Memory:
        """Return the memory for so much work; other processes see it where it is shared."""
        place = _in_shared_memory if shared else _as_it_is
        tensors = {
            name: torch.from_numpy(array) for name, array in state_of(work.network()).items()
        }
        count = work.most_participants
        return cls(
            model={name: place(tensor) for name, tensor in tensors.items()},
            clients={
                name: place(torch.empty((count, *tensor.shape), dtype=tensor.dtype))
                for name, tensor in tensors.items()
            },
            scores={
                name: Scores(place(_numbers(each)), place(_numbers(each)))
                for name, each in work.evaluated().items()
            },
        )

    def publish(self, model: State) -> None:
        """Make this the global model."""
        for name, array in model.items():
            self.model[name].copy_(torch.from_numpy(array))

    def client(self, slot: int) -> list[Tensor]:
        """Return where the model of one client of the round goes."""
        return [rows[slot] for rows in self.clients.values()]

    def reports(
        self, work: Work, clients: Sequence[int], trained: Sequence[Trained]
    ) -> tuple[list[ClientReport], list[float]]:
        """Return what `Engine.train` does, of the clients of a round; no model is copied."""
        rows = {name: tensor.numpy() for name, tensor in self.clients.items()}
        reports = [
            work.report(client, {name: each[slot] for name, each in rows.items()}, each_trained)
            for slot, (client, each_trained) in enumerate(zip(clients, trained, strict=True))
        ]
        return reports, [each.loss for each in trained]


def _in_shared_memory(tensor: Tensor) -> Tensor:
    """Move a tensor to memory that other processes see; it is freed with the last of them."""
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _numbers(examples: Examples) -> Tensor:
    return torch.empty_like(examples.labels, dtype=torch.float32)


class LocalEngine:
    """Does everything in this process, one client after the other."""

    def __init__(self, work: Work, memory: _Memory | None = None) -> None:
        self._work = work
        self._memory = memory or _Memory.of(work)
        self._network = work.network()
        self._trainer = trainer(self._network, work.training)

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Train every participant; see `Engine.train`."""
        self._memory.publish(model)
        clients = self._work.participants(number)
        trained = self.train_clients(list(enumerate(clients)), number)
        return self._memory.reports(self._work, clients, trained)

    def score(self, model: State) -> Mapping[str, Scores]:
        """Score a model; see `Engine.score`."""
        self._memory.publish(model)
        for name, examples in self._work.evaluated().items():
            self.score_part(name, 0, len(examples))
        return self._memory.scores

    def train_clients(self, clients: Sequence[tuple[int, int]], number: int) -> list[Trained]:
        """Train clients from the published model, each into its slot of the memory.

        Args:
            clients: Slot and number of each client.
            number: The round.

        Returns:
            What each client's training came to.
        """
        work, trained = self._work, []
        with torch.random.fork_rng(devices=[]):  # dropout and the like draw from it
            for slot, client in clients:
                self._load()
                shuffle = generator(work.seed, Stream.SHUFFLE, number, client)
                self._seed(torch_seed(work.seed, Stream.TRAINING, number, client))
                examples = work.examples(client, number)
                loss = self._trainer(examples, work.objective, shuffle)
                torch._foreach_copy_(self._memory.client(slot), self._tensors())
                trained.append(Trained(loss, self._evidence(examples)))
        return trained

    def score_part(self, name: str, start: int, stop: int) -> None:
        """Score the published model on some of the examples of a set, into the memory."""
        self._load()
        examples, scores = self._work.evaluated()[name], self._memory.scores[name]
        part = Examples(examples.images[start:stop], examples.labels[start:stop])
        found = score(self._network, part, self._work.evaluation_batch_size)
        scores.losses[start:stop] = found.losses
        scores.correct[start:stop] = found.correct

    def _evidence(self, examples: Examples) -> dict[str, float]:
        """Return what a client reports of the model that it trained, which the network holds."""
        if RESIDUAL_LOSS not in self._work.evidence:
            return {}
        scores = score(self._network, examples, self._work.evaluation_batch_size)
        return {RESIDUAL_LOSS: evaluation_of(scores).loss}

    def _load(self) -> None:
        """Put the published model into the network."""
        torch._foreach_copy_(self._tensors(), list(self._memory.model.values()))

    def _seed(self, seed: int) -> None:
        # torch.manual_seed keeps a note for every device there might be, a trace of the stack each.
        torch.default_generator.manual_seed(seed)
        if self._work.on_gpu:
            torch.cuda.manual_seed(seed)

    def _tensors(self) -> list[Tensor]:
        """Return the network's tensors; asked anew, since a module may replace a buffer."""
        return list(self._network.state_dict().values())


def state_of(network: nn.Module) -> dict[str, NDArray[Any]]:
    """Copy a network's tensors out, in its order; bfloat16 becomes float32."""
    return {
        name: as_numpy(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).copy()
        for name, tensor in network.state_dict().items()
    }


class WorkerPool:
    """Worker processes of one thread each, over shared memory."""

    def __init__(self, work: Work, num_workers: int) -> None:
        self._work = work
        self._memory = _Memory.of(work, shared=True)
        children = [Child(_serve, work, self._memory, daemon=True) for _ in range(num_workers)]
        self._workers = {child.connection: child for child in children}

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Train every participant; see `Engine.train`."""
        self._memory.publish(model)
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
        return self._memory.reports(self._work, clients, in_order)

    def score(self, model: State) -> Mapping[str, Scores]:
        """Score a model; see `Engine.score`."""
        self._memory.publish(model)
        self._carry_out(
            [
                ("score", name, start, min(start + width, len(examples)))
                for name, examples in self._work.evaluated().items()
                for width in [self._evaluated_at_once(len(examples))]
                for start in range(0, len(examples), width)
            ]
        )
        return self._memory.scores

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


def _serve(connection: Connection, work: Work, memory: _Memory) -> None:
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
