"""The plain objective: cross-entropy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedcrf.checks import Settings


@dataclass(frozen=True)
class Plain(Settings):
    """Cross-entropy on the client's own examples."""

    behaviour: ClassVar[int] = 1

    def correct_gradients(
        self, parameters: Sequence[Tensor], global_parameters: Sequence[Tensor]
    ) -> None:
        """Add nothing; see `Objective.correct_gradients`."""
