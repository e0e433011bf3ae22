"""Krum and Multi-Krum: keep the updates that lie closest to their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.checks import Natural
from fedcrf.rules.base import AggregationResult, Deciding, Matrix, Round, Vector


@dataclass(frozen=True)
class Krum(Deciding):
    """The update with the least sum of squared distances to its nearest (Blanchard et al., 2017).

    Attributes:
        num_byzantine: f (see `Deciding`); the score is over the m − f − 2 nearest others, but at
            least one.
    """

    single: ClassVar[bool] = True
    num_byzantine: Natural | None = None

    def decide(self, given: Round) -> AggregationResult:
        """Return the mean of the chosen clients' models."""
        f = self.num_byzantine or 0
        scores = krum_scores(given.among_used(given.geometry.gram), f)
        count = 1 if self.single else max(1, len(scores) - f)
        chosen = np.zeros(len(scores), np.bool_)
        chosen[given.in_order(scores)[:count]] = True
        return given.weighted(given.equal_weights(chosen))


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The plain mean of the m − f updates with the best Krum scores (Blanchard et al., 2017).

    Attributes:
        num_byzantine: f, as of `Krum`. With f = 0 nobody is excluded, and the rule is `Uniform`.
    """

    single: ClassVar[bool] = False


def krum_scores(gram: Matrix, num_byzantine: int) -> Vector:
    """Return (n,) sums of an update's squared distances to its n − f − 2 nearest others.

    The (n, n) inner products are those of finite updates about their mean, which keeps the digits
    of their differences.
    """
    squares = np.diagonal(gram)
    squared = np.maximum(squares[:, None] + squares - 2.0 * gram, 0.0)
    np.fill_diagonal(squared, np.inf)
    neighbours = min(max(1, len(gram) - num_byzantine - 2), max(0, len(gram) - 1))
    return np.asarray(np.sort(squared, axis=1)[:, :neighbours].sum(axis=1))
