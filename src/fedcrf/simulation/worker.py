"""One process at work: it trains clients and scores models, in memory that it may share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcrf.rules import LABEL_DIVERGENCE, RESIDUAL_LOSS, State
from fedcrf.rules.state import FlatState, Layout
from fedcrf.simulation.evaluation import Scores, evaluation_of, score
from fedcrf.simulation.federation import Examples, PooledExamples
from fedcrf.simulation.local_training import Batches, momentum_of, trained
from fedcrf.simulation.mlp_training import MLPTraining, trainer
from fedcrf.simulation.randomness import Stream, torch_seed
from fedcrf.simulation.task import ACCURACY
from fedcrf.simulation.work import Work
from fedcrf.statistics import as_numpy

MOMENTUM = "worker momentum"
"""The name of the clients' momenta among what they keep; a row is what `momentum_of` reads."""


@dataclass(frozen=True)
class RoundMemory:
    """The global model, the models of a round's clients and the scores, used again every round.

    Attributes:
        model: The global model.
        layout: Where a client's tensors lie in its row.
        clients: One row for each client of a round, the numbers of its floating-point tensors.
        others: By name of any other tensor, one row for each client of a round.
        scores: By name of a set, every example's score.
        personal: By name of a tensor that clients keep to themselves, and for `MOMENTUM`, one row
            for each client of the federation.
    """

    model: Mapping[str, Tensor]
    layout: Layout
    clients: Tensor
    others: Mapping[str, Tensor]
    scores: Mapping[str, Scores]
    personal: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, work: Work, shared: bool = False) -> RoundMemory:
        """Return the memory for so much work; other processes see it where it is shared."""
        place = _in_shared_memory if shared else _as_it_is
        network, task = work.network(), work.task
        state = state_of(task.shared_tensors(network))
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        layout = Layout.of(state)
        of_floats = next((tensors[name].dtype for name in layout.places), torch.float32)
        others = [name for name in task.metrics if name != ACCURACY]
        server = int(work.server_examples > 0)
        count, kept = work.most_participants + server, len(work.federation.clients) + server
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
                name: Scores(
                    place(torch.empty(len(each))),
                    place(torch.empty(len(each))),
                    {other: place(torch.empty(len(each))) for other in others},
                )
                for name, each in work.evaluated().items()
            },
            personal={
                name: place(tensor.cpu().repeat(kept, *[1] * tensor.dim()))
                for name, tensor in (
                    *task.personal_tensors(network).items(),
                    *_no_momentum(work, network),
                )
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

    def client(self, slot: int) -> list[Tensor]:
        """Return where the tensors of one client of the round go."""
        row, places = self.clients[slot], self.layout.places
        return [
            row[places[name][0]].view(shape) if name in places else self.others[name][slot]
            for name, shape, _ in self.layout.tensors
        ]

    def state(self, slot: int) -> State:
        """Return the model of one client of the round; nothing is copied."""
        others = {name: rows[slot].numpy() for name, rows in self.others.items()}
        if not self.layout.places:
            return others
        return FlatState(self.layout, self.clients[slot].numpy(), others)


@dataclass(frozen=True)
class Trained:
    """The result of a client's local training, besides its model.

    Attributes:
        loss: Mean loss over the steps.
        evidence: The evidence that the client reports.
    """

    loss: float
    evidence: Mapping[str, float]


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
        """Train clients from the published model, each into its slot of the memory.

        Args:
            clients: Slot and number of each client.
            number: The round.

        Returns:
            Each client's loss and evidence.
        """
        work, trained = self._work, []
        with torch.random.fork_rng(devices=[]):  # dropout and the like draw from it
            for slot, client in clients:
                self._load(client)
                if not isinstance(self._trainer, MLPTraining):  # which draws nothing
                    self._seed(torch_seed(work.seed, Stream.TRAINING, number, client))
                examples = work.examples(client, number)
                passes = self._batches.of(client, number, len(examples))
                momenta = self._momenta[client] if self._momenta else None
                loss = self._trainer(examples, work.objective, passes, momenta, number)
                torch._foreach_copy_(self._slot(slot), self._tensors())
                self._keep(client)
                trained.append(Trained(loss, self._evidence(examples)))
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
        """Load the published model into the network, and a client's personal tensors."""
        torch._foreach_copy_(self._tensors(), list(self.memory.model.values()))
        if client is not None and self._work.task.personal:
            for name, tensor in self._work.task.personal_tensors(self._network).items():
                tensor.copy_(self.memory.personal[name][client])

    def _keep(self, client: int) -> None:
        """Store a client's personal tensors from the network."""
        if not self._work.task.personal:
            return
        for name, tensor in self._work.task.personal_tensors(self._network).items():
            self.memory.personal[name][client] = tensor

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

    def _slot(self, slot: int) -> list[Tensor]:
        """Return where the tensors of one client of the round go."""
        if slot not in self._slots:
            self._slots[slot] = self.memory.client(slot)
        return self._slots[slot]


def _no_momentum(work: Work, network: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the momentum of a client that has not trained yet; nothing where none is kept."""
    if not work.training.worker_momentum:
        return []
    return [(MOMENTUM, torch.zeros(sum(each.numel() for each in trained(network))))]


def label_divergence(labels: Tensor, num_classes: int) -> float:
    """Return Σ p_c log(C p_c), the divergence of label shares p from uniform ones, in nats.

    Args:
        labels: (n,) labels from 0 to C − 1.
        num_classes: C.
    """
    shares = torch.bincount(labels, minlength=num_classes).double() / len(labels)
    return float(torch.xlogy(shares, num_classes * shares).sum())


def state_of(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Copy tensors by name, such as a network's, out; bfloat16 becomes float32."""
    return {
        name: as_numpy(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).copy()
        for name, tensor in tensors.items()
    }


def _in_shared_memory(tensor: Tensor) -> Tensor:
    """Move a tensor to memory that other processes see; it is freed with the last of them."""
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
