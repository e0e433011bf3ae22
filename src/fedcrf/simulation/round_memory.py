"""Where a round's models and scores lie: memory that every round uses again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcrf.rules import ClientReport, State
from fedcrf.rules.state import FlatState, Layout
from fedcrf.simulation.evaluation import Scores
from fedcrf.simulation.task import ACCURACY
from fedcrf.simulation.work import Trained, Work
from fedcrf.statistics import as_numpy


@dataclass(frozen=True)
class RoundMemory:
    """The global model, the models of a round's clients and the scores, used again every round.

    Attributes:
        model: The global model.
        layout: Where a client's tensors lie in its row.
        clients: One row for each client of a round, the numbers of its floating-point tensors.
        others: By name of any other tensor, one row for each client of a round.
        scores: By name of a set, every example's score.
        personal: By name of a tensor that clients keep to themselves, one row for each client of
            the federation.
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
        count = work.most_participants
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
                name: place(tensor.cpu().repeat(len(work.federation.clients), *[1] * tensor.dim()))
                for name, tensor in task.personal_tensors(network).items()
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
        """Return where the model of one client of the round goes."""
        row, places = self.clients[slot], self.layout.places
        return [
            row[places[name][0]].view(shape) if name in places else self.others[name][slot]
            for name, shape, _ in self.layout.tensors
        ]

    def reports(
        self, work: Work, clients: Sequence[int], trained: Sequence[Trained]
    ) -> tuple[list[ClientReport], list[float]]:
        """Return what `Engine.train` does, of the clients of a round; no model is copied."""
        rows = self.clients.numpy()
        others = {name: tensor.numpy() for name, tensor in self.others.items()}
        reports = []
        for slot, (client, each) in enumerate(zip(clients, trained, strict=True)):
            own = {name: rest[slot] for name, rest in others.items()}
            state = FlatState(self.layout, rows[slot], own) if self.layout.places else own
            reports.append(work.report(client, state, each))
        return reports, [each.loss for each in trained]


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
