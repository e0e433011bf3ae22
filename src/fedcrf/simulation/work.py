"""What a round is of: who takes part, trains on what, and what models are evaluated on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.models import ModelPlan
from fedcrf.objectives import Objective
from fedcrf.rules import LABEL_DIVERGENCE, RESIDUAL_LOSS
from fedcrf.simulation.adversary import Adversary
from fedcrf.simulation.federation import Examples, Federation
from fedcrf.simulation.local_training import LocalTraining, fewest_in_a_step
from fedcrf.simulation.randomness import Stream, generator, torch_seed
from fedcrf.simulation.task import CLASSIFICATION, Task

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

    ``clients_per_round`` is how many clients are drawn for a round; None for all of them.
    ``adversary`` has the attackers and their poisoned data; None if all clients are honest.
    ``evidence`` names the evidence that clients report, of `EVIDENCE`. ``task`` has the loss, the
    metrics and which tensors clients send. ``server_examples`` is how many examples the server
    trains on itself; 0 for none.
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
        images, labels = [], []
        for part, end in zip(parts, ends, strict=True):
            within = drawn[(drawn >= end - len(part)) & (drawn < end)] - (end - len(part))
            places = torch.from_numpy(within).to(part.labels.device)
            images.append(part.images[places])
            labels.append(part.labels[places])
        return Examples(torch.cat(images), torch.cat(labels))

    def examples(self, client: int, number: int) -> Examples:
        """Return what a client trains on in a round, or the server."""
        if client == self.server:
            return self.root
        if self.adversary is not None and self.adversary.poisons(client, number):
            return self.adversary.poisoned[client]
        return self.federation.clients[client]

    def evaluated(self) -> Mapping[str, Examples]:
        """Return the sets of examples that every global model is evaluated on, by name."""
        sets: dict[str, Examples] = {
            "validation": self.federation.validation,
            "test": self.federation.test,
        }
        for name in ("held_out", "set_aside"):
            examples = getattr(self.federation, name)
            if examples is not None:
                sets[name] = examples
        if self._triggered is not None:
            sets[TRIGGERED] = self._triggered
        return sets

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
