"""The proximal objective of FedProx."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcrf.checks import NotNegative, Settings


@dataclass(frozen=True)
class Proximal(Settings):
    """Cross-entropy plus (μ/2)‖w − w_t‖² over all parameters (Li et al., MLSys 2020).

    Attributes:
        mu: μ ≥ 0; the norm is squared, so the added gradient is μ(w − w_t).
    """

    behaviour: ClassVar[int] = 1
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
