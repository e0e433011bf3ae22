"""FedSCS: the cosine of an update to its peers', smoothed over rounds, weighs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.checks import Positive, Share
from fedcrf.rules.base import AggregationResult, Deciding, Matrix, Round, Vector
from fedcrf.statistics import EPSILON


@dataclass(frozen=True)
class FedSCS(Deciding):
    """Stable cosine similarity (Haque and Markopoulos, IEEE ICCST 2025).

    The score ρ_i is the cosine of an update to the sum of the others', or 0 if that is negative.
    It is smoothed over the rounds in which the client took part, s = βs' + (1−β)ρ, and divided by
    1 + |s − s'|/(s' + ε). Weights are proportional to the results; they are equal if the results
    sum to ε at most. A client alone has weight 1, and its score is not renewed.

    The authors sent two versions: to Flower (flwrlabs/flower, pull request 8035) and to NVFlare
    (NVIDIA/NVFlare, pull request 5240). This is the first, which has the smoothing. The second has
    none, compares ρ with the last round's corrected score instead, and clips updates to length 10.

    Attributes:
        beta: β, in [0, 1].
        epsilon: ε.
    """

    remembers: ClassVar[bool] = True

    beta: Share = 0.9
    epsilon: Positive = 1e-6

    def decide(self, given: Round) -> AggregationResult:
        """Return the mean of the models by their scores."""
        fresh = cosines_to_others(given.among_used(given.products.gram))
        alike = np.full(len(fresh), 1.0 / max(1, len(fresh)))
        if len(fresh) < 2:  # nobody, or a client alone
            return given.weighted(given.spread(alike), memory=given.memory)
        before = given.recalled("scores")
        known = ~np.isnan(before)
        scores = np.where(known, self.beta * before + (1 - self.beta) * fresh, fresh)
        change = np.where(known, np.abs(scores - before) / (before + self.epsilon), 0.0)
        stable = scores / (1.0 + change)
        total = stable.sum()
        weights = stable / total if total > self.epsilon else alike
        return given.weighted(given.spread(weights), memory=given.remembered(scores=scores))


def cosines_to_others(gram: Matrix) -> Vector:
    """Return (n,) max(0, cos(u_i, Σ_{j≠i} u_j)) of (n, n) inner products; 0 without a length."""
    squares, sums = np.diagonal(gram), gram.sum(axis=1)
    others = sums.sum() - 2.0 * sums + squares
    # What is left of a sum that cancels is rounding.
    long = (squares > 0) & (others > EPSILON * np.abs(gram).sum())
    lengths = np.sqrt(np.where(long, squares * others, 1.0))
    return np.where(long, np.clip((sums - squares) / lengths, 0.0, 1.0), 0.0)
