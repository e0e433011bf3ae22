"""Temporal parts of a field: what the rounds before say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Settings, check_share

Matrix = NDArray[np.float64]


class TemporalPart(Protocol):
    """How a client's marginals go from round to round."""

    def transition(self, prior: Matrix, before: Matrix) -> Matrix:
        """Return the (m, L) prior of this round.

        Args:
            prior: (m, L) prior of a client of which nothing is remembered.
            before: (m, L) marginals of the round before; NaN rows where there was none.
        """
        ...


@dataclass(frozen=True)
class Chain(Settings):
    """Each client's label stays, or is drawn anew: P_t = s·Q_{t−1} + (1 − s)·P₀.

    Attributes:
        persistence: s in [0, 1), the chance that the label stays.
    """

    persistence: float = 0.9

    def __post_init__(self) -> None:
        check_share(self, "persistence")

    def transition(self, prior: Matrix, before: Matrix) -> Matrix:
        """Return P_t; P₀ for a client that is new. See `TemporalPart.transition`.

        It is linear, and so also goes from expected labels to expected labels.
        """
        stay = self.persistence
        return np.where(np.isnan(before), prior, stay * before + (1.0 - stay) * prior)
