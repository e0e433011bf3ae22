"""Krum and Multi-Krum: keep the updates that lie closest to their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.checks import Natural
from fedcrf.rules.base import AggregationResult, Deciding, Round, Vector
from fedcrf.statistics import UpdateGeometry


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
        scores = krum_scores(given.geometry, f)
        used = given.used
        order = used[np.argsort(scores[used], kind="stable")]
        best = order[: 1 if self.single else max(1, len(used) - f)]
        weights = np.zeros(len(given.reports))
        weights[best] = 1.0 / max(1, len(best))
        return given.weighted(weights)


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The plain mean of the m − f updates with the best Krum scores (Blanchard et al., 2017).

    Attributes:
        num_byzantine: f, as of `Krum`. With f = 0 nobody is excluded, and the rule is `Uniform`.
    """

    single: ClassVar[bool] = False


def krum_scores(geometry: UpdateGeometry, num_byzantine: int) -> Vector:
    """Return (m,) sums of an update's squared distances to its m − f − 2 nearest others.

    They are infinite for updates that are not finite, which m does not count. The geometry is that
    of the updates about their mean, which keeps the digits of their differences.
    """
    used = np.flatnonzero(geometry.finite)
    gram = geometry.gram[np.ix_(used, used)]
    squares = np.diagonal(gram)
    squared = np.maximum(squares[:, None] + squares - 2.0 * gram, 0.0)
    np.fill_diagonal(squared, np.inf)
    neighbours = min(max(1, len(used) - num_byzantine - 2), max(0, len(used) - 1))
    scores = np.full(geometry.num_clients, np.inf)
    scores[used] = np.sort(squared, axis=1)[:, :neighbours].sum(axis=1)
    return scores
