"""The protocol of client objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
