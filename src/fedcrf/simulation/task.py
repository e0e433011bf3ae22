"""A task: the loss that clients minimise, and the metrics of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Outputs = Any
"""What a network returns: a tensor, or several in tuples, lists and dictionaries."""

Loss = Callable[[Outputs, Tensor], Tensor]
"""From the outputs and targets of some examples to their mean loss, a scalar."""

Metric = Callable[[Outputs, Tensor], float | Tensor]
"""From the outputs and targets of some examples to a number."""

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""From the trained parameters to their optimizer, made anew for each client and round."""

ACCURACY = "accuracy"
"""The metric that has its own field in records."""


@dataclass(frozen=True)
class Task:
    """The loss and metrics of a model; cross-entropy and accuracy by default.

    Attributes:
        loss: The loss of outputs and targets; None for the cross-entropy of logits and labels,
            which is measured example by example together with the accuracy.
        metrics: Metrics by name, where ``loss`` is given. They and the loss are measured over each
            client's examples as a whole; numbers over all clients are means by examples.
        optimizer: Makes a client's optimizer; None for SGD with momentum.
        shared: Names of the tensors that clients send and the server averages; None for all.
        personal: Names of the tensors that each client keeps from round to round without sending
            them. Tensors in neither keep their initial values.
    """

    loss: Loss | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    optimizer: OptimizerFactory | None = None
    shared: frozenset[str] | None = None
    personal: frozenset[str] = frozenset()

    @property
    def by_client(self) -> bool:
        """Whether a model is measured client by client, instead of example by example."""
        return self.loss is not None or bool(self.personal)

    def loss_of(self, outputs: Outputs, targets: Tensor) -> Tensor:
        """Return the mean loss over some examples."""
        if self.loss is None:
            return functional.cross_entropy(outputs.float(), targets)
        return self.loss(outputs, targets)

    def shared_tensors(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the tensors that clients send, by name in the network's order."""
        state = network.state_dict()
        return {name: each for name, each in state.items() if self.shares(name)}

    def personal_tensors(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the tensors that a client keeps, by name in the network's order."""
        state = network.state_dict()
        return {name: state[name] for name in state if name in self.personal}

    def shares(self, name: str) -> bool:
        """Return whether clients send a tensor of this name."""
        return self.shared is None or name in self.shared


CLASSIFICATION = Task()
"""Cross-entropy and accuracy, SGD with momentum, and every tensor sent."""
