"""What a client minimises in its local training: a task's loss, and an objective beside it.

An objective is a frozen dataclass here and a line in `OBJECTIVES`; its fields are its settings, and
a run's description may set them by name. A task is a user's loss, metrics and optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedcrf.checks import NotNegative, Settings
from fedcrf.errors import FedcrfError
from fedcrf.extensions import check_settings, find
from fedcrf.extras import naming_extras

with naming_extras():
    import torch
    from torch import Tensor, nn
    from torch.nn import functional


class Objective(Protocol):
    """A client objective: the cross-entropy, and a correction of its gradients."""

    def correct_gradients(
        self, parameters: Sequence[Tensor], global_parameters: Sequence[Tensor]
    ) -> None:
        """Add the gradient of everything but the cross-entropy to ``parameter.grad``, in place.

        It is called once a step, after the backward pass and without autograd. The correction may
        depend on the parameters but not on ``grad``, which may already hold momentum.

        Args:
            parameters: The client's parameters w, each with its ``grad``.
            global_parameters: The same parameters of the global model w_t.
        """
        ...


@dataclass(frozen=True)
class Plain(Settings):
    """Cross-entropy on the client's own examples."""

    def correct_gradients(
        self, parameters: Sequence[Tensor], global_parameters: Sequence[Tensor]
    ) -> None:
        """Add nothing; see `Objective.correct_gradients`."""


@dataclass(frozen=True)
class Proximal(Settings):
    """Cross-entropy plus (μ/2)‖w − w_t‖² over all parameters (Li et al., MLSys 2020).

    Attributes:
        mu: μ ≥ 0; the norm is squared, so the added gradient is μ(w − w_t).
    """

    mu: NotNegative = 0.01

    def correct_gradients(
        self, parameters: Sequence[Tensor], global_parameters: Sequence[Tensor]
    ) -> None:
        """Add μ(w − w_t) to the gradients; see `Objective.correct_gradients`."""
        used = [
            (parameter.grad, parameter, start)
            for parameter, start in zip(parameters, global_parameters, strict=True)
            if parameter.grad is not None  # no output may depend on it
        ]
        if not used:
            return
        gradients, ours, starts = (list(tensors) for tensors in zip(*used, strict=True))
        torch._foreach_add_(gradients, ours, alpha=self.mu)
        torch._foreach_sub_(gradients, starts, alpha=self.mu)


OBJECTIVES: Mapping[str, type[Objective]] = {
    "plain": Plain,
    "proximal": Proximal,
}


def find_objective(name: str) -> type[Objective]:
    """Return the objective of that name: one of `OBJECTIVES`, or from outside.

    A `FedcrfError` says that there is none, or that it is no such class; see `fedcrf.extensions`.
    """
    found: type[Objective] = find("objective", name, OBJECTIVES)
    check_settings("objective", name, found)
    if not hasattr(found, "correct_gradients"):
        raise FedcrfError(f"objective '{name}' lacks correct_gradients: give it that method")
    return found


Outputs = Any
"""What a network returns: a tensor, or several in tuples, lists and dictionaries."""

Loss = Callable[[Outputs, Tensor], Tensor]
"""From the outputs and targets of some examples to their mean loss, a scalar."""

Metric = Callable[[Outputs, Tensor], float | Tensor]
"""From the outputs and targets of some examples to a number."""

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""From the trained parameters to their optimizer, made anew for each client and round."""

LOSS, ACCURACY = "loss", "accuracy"
"""What is measured in every task, and has its own fields in records."""


@dataclass(frozen=True)
class Task:
    """The loss and metrics of a model; cross-entropy and accuracy by default.

    With a loss of the user's, loss and metrics are measured over each client's examples as a whole,
    and numbers over all clients are means by examples; else example by example. Without an
    optimizer it is SGD with momentum. Clients send the ``shared`` tensors, all if there is None,
    and keep the ``personal`` ones from round to round. Every tensor is in one of the two, but for
    parameters that are not trained.
    """

    loss: Loss | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    optimizer: OptimizerFactory | None = None
    shared: frozenset[str] | None = None
    personal: frozenset[str] = frozenset()

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of what a model is measured by."""
        return (LOSS, ACCURACY, *(name for name in self.metrics if name != ACCURACY))

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
        state, shared = network.state_dict(), self.shared
        return {
            name: each
            for name, each in state.items()
            if isinstance(each, Tensor) and (shared is None or name in shared)
        }

    def personal_tensors(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the tensors that a client keeps, by name in the network's order."""
        state = network.state_dict() if self.personal else {}
        return {name: each for name, each in state.items() if name in self.personal}


CLASSIFICATION = Task()
"""Cross-entropy and accuracy, SGD with momentum, and every tensor sent."""
