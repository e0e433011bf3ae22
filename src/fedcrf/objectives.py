"""Client objectives: what a client minimises in its local training.

An objective is a frozen dataclass here and a line in `OBJECTIVES`; its fields are its settings, and
a run's description may set them by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedcrf.checks import NotNegative, Settings
from fedcrf.errors import FedcrfError
from fedcrf.extensions import check_settings, find
from fedcrf.extras import naming_extras

with naming_extras():
    import torch
    from torch import Tensor


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
