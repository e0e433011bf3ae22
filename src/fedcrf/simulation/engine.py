"""What a round is of, one worker at it, and the engine: workers in this process or in several.

A worker process has one thread and works for one client at a time, the largest first. Data, models
and scores are in shared memory. A client's training depends only on the global model and its own
random stream, so the results are the same to the bit for any number of workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.models import ModelPlan
from fedcrf.objectives import Objective
from fedcrf.processes import Child, in_child
from fedcrf.rules import LABEL_DIVERGENCE, RESIDUAL_LOSS, ClientReport, State
from fedcrf.rules.state import FlatState, Layout
from fedcrf.simulation.adversary import Adversary
from fedcrf.simulation.federation import Examples, Federation, PooledExamples
from fedcrf.simulation.local_training import (
    Batches,
    LocalTraining,
    MLPTraining,
    fewest_in_a_step,
    momentum_of,
    trained,
    trainer,
)
from fedcrf.simulation.randomness import Stream, generator, torch_seed
from fedcrf.simulation.task import CLASSIFICATION, Scores, Task, evaluation_of, score
from fedcrf.statistics import as_numpy

TRIGGERED = "triggered"
"""The evaluated set on which accuracy is the success of a backdoor."""

EVIDENCE = (RESIDUAL_LOSS, LABEL_DIVERGENCE)
"""Names of the evidence that clients can report."""


def check_evidence(names: Iterable[str]) -> None:
    """Raise a `FedcrfError` if clients cannot report evidence of one of these names."""
    for name in names:
        if name not in EVIDENCE:
            raise unknown_name("evidence", name, EVIDENCE)


@dataclass(frozen=True)
class Work:
    """All that training and evaluation depend on, besides the global model and the round.

    ``clients_per_round`` is how many clients are drawn for a round; None for all of them. Without
    an ``adversary`` all clients are honest. ``evidence`` names what clients report, of `EVIDENCE`;
    ``task`` has the loss, the metrics and which tensors clients send. The server trains on
    ``server_examples`` itself; 0 for none.
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
    task: Task = CLASSIFICATION
    server_examples: int = 0

    def network(self) -> nn.Module:
        """Return the seed's initial network, on the federation's device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(self.seed, Stream.MODEL))
            shape: Any = self.federation.image_shape  # of any inputs for a plan that takes them
            network = self.model.build(shape, self.federation.num_classes)
        # Convolutions are fastest in this layout, which those of volumes have not.
        if all(tensor.dim() < 5 for tensor in network.state_dict().values()):
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network.to(self.federation.validation.labels.device)

    @cached_property
    def trained_names(self) -> frozenset[str]:
        """The names of the parameters that training changes."""
        named = self.network().named_parameters()
        return frozenset(name for name, each in named if each.requires_grad)

    @property
    def on_gpu(self) -> bool:
        """Whether the federation's data lie on a GPU."""
        return self.federation.validation.labels.device.type == "cuda"

    @cached_property
    def fewest_in_a_step(self) -> int:
        """How many examples a step of the network's training needs."""
        first = self.federation.clients[self.eligible[0]].images[:1]
        return fewest_in_a_step(self.network(), torch.cat([first, first]))

    def check_steps(self) -> None:
        """Raise a `FedcrfError` if some step would have one example and needs two."""
        if self.fewest_in_a_step == 1:
            return
        needs = "batch norm in this model needs two in a step"
        if self.training.batch_size == 1:
            raise FedcrfError(
                f"batch_size 1: {needs}; give two or more (--batch-size) or another model (--model)"
            )
        if self.server_examples == 1:
            raise FedcrfError(f"server_examples 1: {needs}; give two or more")
        for client in self.eligible:
            if len(self.federation.clients[client]) == 1:
                (called,) = self.federation.called([client])
                raise FedcrfError(
                    f"client {called} has one example to train on, and {needs}: give clients more "
                    "(--min-examples, --clients), or choose another model (--model)"
                )

    @cached_property
    def eligible(self) -> list[int]:
        """The clients that have examples to train on."""
        return self.federation.eligible

    @property
    def most_participants(self) -> int:
        """How many clients train in a round: at most all that have examples."""
        return min(self.clients_per_round or len(self.eligible), len(self.eligible))

    def participants(self, number: int) -> list[int]:
        """Return the clients that train in a round, in order; they are drawn anew each round."""
        if self.most_participants == len(self.eligible):
            return self.eligible
        draw = generator(self.seed, Stream.PARTICIPATION, number)
        drawn = draw.choice(self.eligible, self.most_participants, replace=False)
        return sorted(drawn.tolist())

    @property
    def server(self) -> int:
        """The number under which the server trains a model itself: that after the clients'."""
        return len(self.federation.clients)

    @cached_property
    def root(self) -> Examples:
        """The server's own examples, drawn uniformly from the union of the clean training parts.

        Clients keep them (FLTrust's root data: Cao et al., NDSS 2021, section VI).
        """
        parts = [self.federation.clients[client] for client in self.eligible]
        ends = np.cumsum([len(part) for part in parts])
        draw = generator(self.seed, Stream.SERVER)
        drawn = np.sort(draw.choice(ends[-1], self.server_examples, replace=False))
        return Examples.joined(
            [
                part.at(drawn[(drawn >= end - len(part)) & (drawn < end)] - (end - len(part)))
                for part, end in zip(parts, ends, strict=True)
            ]
        )

    def examples(self, client: int, number: int) -> Examples:
        """Return what a client trains on in a round, or the server."""
        if client == self.server:
            return self.root
        if self.adversary is not None and self.adversary.poisons(client, number):
            return self.adversary.poisoned[client]
        return self.federation.clients[client]

    def evaluated(self) -> Mapping[str, Examples]:
        """Return the sets of examples that every global model is evaluated on, by name."""
        held = self.federation
        sets: dict[str, Examples | None] = {
            "validation": held.validation,
            "test": held.test,
            "held_out": held.held_out,
            "set_aside": held.set_aside,
            TRIGGERED: self._triggered,
        }
        return {name: examples for name, examples in sets.items() if examples is not None}

    @cached_property
    def _triggered(self) -> Examples | None:
        """The test examples with a backdoor's trigger and its target as their label."""
        return None if self.adversary is None else self.adversary.triggered(self.federation.test)

    def effective_steps(self, num_examples: int) -> float:
        """Return what a client of so many examples reports as the steps of its update."""
        training, fewest = self.training, self.fewest_in_a_step
        if self.task.optimizer is None:
            return training.effective_steps(num_examples, fewest)
        return float(training.num_steps(num_examples, fewest))


MOMENTUM = "worker momentum"
"""The name of the clients' momenta among what they keep; a row is what `momentum_of` reads."""


@dataclass(frozen=True)
class RoundMemory:
    """The global model, the models of a round's clients and the scores, used again every round."""

    model: Mapping[str, Tensor]
    layout: Layout  # where a client's tensors lie in its row
    clients: Tensor  # one row for each client of a round, the numbers of its floating-point tensors
    others: Mapping[str, Tensor]  # by name of any other tensor, one row for each client of a round
    scores: Mapping[str, Scores]  # by name of a set, every example's score
    # By name of a tensor that clients keep to themselves, and for `MOMENTUM`, one row for each
    # client of the federation
    personal: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, work: Work, shared: bool = False) -> RoundMemory:
        """Return the memory for so much work; other processes see it where it is shared."""

        def place(tensor: Tensor) -> Tensor:
            if shared:  # it is freed with the last process that sees it
                tensor.share_memory_()  # type: ignore[no-untyped-call]
            return tensor

        network, task = work.network(), work.task
        state = state_of(task.shared_tensors(network))
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        layout = Layout.of(state)
        of_floats = next((tensors[name].dtype for name in layout.places), torch.float32)
        server = int(work.server_examples > 0)
        count, kept = work.most_participants + server, len(work.federation.clients) + server
        personal = task.personal_tensors(network)
        if work.training.worker_momentum:  # of a client that has not trained yet
            size = sum(each.numel() for each in trained(network))
            personal = {**personal, MOMENTUM: torch.zeros(size)}
        return cls(
            model={name: place(tensor) for name, tensor in tensors.items()},
            layout=layout,
            clients=place(torch.empty((count, layout.size), dtype=of_floats)),
            others={
                name: place(torch.empty((count, *tensor.shape), dtype=tensor.dtype))
                for name, tensor in tensors.items()
                if name not in layout.places
            },
            scores={
                name: Scores((of, place(torch.empty(len(each)))) for of in task.measured)
                for name, each in work.evaluated().items()
            },
            personal={
                name: place(tensor.cpu().repeat(kept, *[1] * tensor.dim()))
                for name, tensor in personal.items()
            },
        )

    def restore(self, personal: State) -> None:
        """Put what clients kept to themselves back, where a run goes on."""
        for name, rows in personal.items():
            self.personal[name].copy_(torch.from_numpy(rows))

    def publish(self, model: State) -> None:
        """Make this the global model."""
        for name, array in model.items():
            self.model[name].copy_(torch.from_numpy(array))

    def state(self, slot: int) -> State:
        """Return the model of one client of the round; nothing is copied."""
        others = {name: rows[slot].numpy() for name, rows in self.others.items()}
        if not self.layout.places:
            return others
        return FlatState(self.layout, self.clients[slot].numpy(), others)


Trained = tuple[float, Mapping[str, float]]
"""A client's mean loss over the steps of a round, and the evidence that it reports."""


class Worker:
    """Works for one client after the other, with one network."""

    def __init__(self, work: Work, memory: RoundMemory) -> None:
        self._work, self.memory = work, memory
        self._network = work.network()
        self._trainer = trainer(self._network, work.training, work.task)
        self._batches = Batches(work.training, work.seed, work.fewest_in_a_step)
        self._slots: dict[int, list[Tensor]] = {}
        self._fixed: list[Tensor] | None = None
        if isinstance(self._trainer, MLPTraining):
            self._fixed = self._tensors()
        self._momenta = [
            momentum_of(row, trained(self._network)) for row in memory.personal.get(MOMENTUM, ())
        ]

    def train(self, clients: Sequence[tuple[int, int]], number: int) -> list[Trained]:
        """Train clients, by slot of the memory and number, from the published model."""
        work, trained = self._work, list[Trained]()
        with torch.random.fork_rng(devices=[]):  # dropout and the like draw from it
            for slot, client in clients:
                self._load(client)
                if not isinstance(self._trainer, MLPTraining):  # which draws nothing
                    self._seed(torch_seed(work.seed, Stream.TRAINING, number, client))
                examples = work.examples(client, number)
                passes = self._batches.of(client, number, len(examples))
                momenta = self._momenta[client] if self._momenta else None
                loss = self._trainer(examples, work.objective, passes, momenta, number)
                if slot not in self._slots:
                    places = self.memory.state(slot).values()
                    self._slots[slot] = [torch.from_numpy(array) for array in places]
                torch._foreach_copy_(self._slots[slot], self._tensors())
                for name, tensor in work.task.personal_tensors(self._network).items():
                    self.memory.personal[name][client] = tensor
                trained.append((loss, self._evidence(examples)))
        return trained

    def score(self, name: str, start: int, stop: int) -> None:
        """Score the published model on some of the examples of a set, into the memory."""
        part = self._work.evaluated()[name].part(start, stop)
        owned: Iterable[tuple[int | None, slice]] = [(None, slice(0, len(part)))]
        if self._work.task.by_client and isinstance(part, PooledExamples):
            owned = part.by_owner()
        for owner, where in owned:
            self._load(owner)
            found = self._scores(part.part(where.start, where.stop))
            self.memory.scores[name].fill(slice(start + where.start, start + where.stop), found)

    def _scores(self, examples: Examples) -> Scores:
        work = self._work
        return score(self._network, examples, work.evaluation_batch_size, work.task)

    def _evidence(self, examples: Examples) -> dict[str, float]:
        """Return a client's evidence about the model that it trained, which the network holds."""
        evidence = {}
        if RESIDUAL_LOSS in self._work.evidence:
            evidence[RESIDUAL_LOSS] = evaluation_of(self._scores(examples)).loss
        if LABEL_DIVERGENCE in self._work.evidence:
            num_classes = self._work.federation.num_classes
            evidence[LABEL_DIVERGENCE] = label_divergence(examples.labels, num_classes)
        return evidence

    def _load(self, client: int | None = None) -> None:
        torch._foreach_copy_(self._tensors(), list(self.memory.model.values()))
        if client is not None and self._work.task.personal:
            for name, tensor in self._work.task.personal_tensors(self._network).items():
                tensor.copy_(self.memory.personal[name][client])

    def _seed(self, seed: int) -> None:
        # torch.manual_seed keeps a note for every device there might be, a trace of the stack each.
        torch.default_generator.manual_seed(seed)
        if self._work.on_gpu:
            torch.cuda.manual_seed(seed)

    def _tensors(self) -> list[Tensor]:
        """Return the network's tensors; asked anew, since a module may replace a buffer."""
        if self._fixed is not None:
            return self._fixed
        return list(self._work.task.shared_tensors(self._network).values())


def label_divergence(labels: Tensor, num_classes: int) -> float:
    """Return Σ p_c log(C p_c), the divergence of label shares p from uniform ones, in nats.

    The labels are (n,), from 0 to C − 1.
    """
    shares = torch.bincount(labels, minlength=num_classes).double() / len(labels)
    return float(torch.xlogy(shares, num_classes * shares).sum())


def state_of(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Copy tensors by name, such as a network's, out; bfloat16 becomes float32."""
    return {
        name: as_numpy(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).copy()
        for name, tensor in tensors.items()
    }


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
