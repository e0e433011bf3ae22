"""What a client objective is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Objective(Protocol):
    """A client objective: cross-entropy plus what this adds to its gradients."""

    def correct_gradients(
        self, parameters: Sequence[Tensor], global_parameters: Sequence[Tensor]
    ) -> None:
        """Add the gradient of everything but the cross-entropy to ``parameter.grad``, in place.

        Called once a step, after the backward pass and without autograd. What is added may depend
        on the parameters but not on ``grad``, which may already hold momentum.

        Args:
            parameters: The client's parameters w, each with its ``grad``.
            global_parameters: The same parameters of the global model w_t.
        """
        ...
