"""FedSCS: the cosine of an update to its peers', smoothed over rounds, weighs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import check_positive, check_share
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    Memory,
    Rule,
    report_products,
    weighted_result,
)
from fedcrf.rules.by_client import recalled, remembered
from fedcrf.rules.state import State
from fedcrf.statistics import EPSILON, UpdateGeometry


@dataclass(frozen=True)
class FedSCS(Rule):
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

    beta: float = 0.9
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        check_share(self, "beta")
        check_positive(self, "epsilon")

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the mean of the models by their scores; see `Rule.aggregate`."""
        geometry = report_products(model, reports)
        used = np.flatnonzero(geometry.finite)
        weights = np.zeros(len(reports))
        if len(used) < 2:
            weights[used] = 1.0
            return weighted_result(model, reports, weights, geometry.finite, memory=memory)
        clients = [reports[i].client for i in used.tolist()]
        before = recalled(memory, clients, "scores", ())
        fresh = cosines_to_others(geometry)
        known = ~np.isnan(before)
        scores = np.where(known, self.beta * before + (1 - self.beta) * fresh, fresh)
        change = np.where(known, np.abs(scores - before) / (before + self.epsilon), 0.0)
        stable = scores / (1.0 + change)
        total = stable.sum()
        weights[used] = stable / total if total > self.epsilon else 1.0 / len(used)
        kept = remembered(memory, clients, scores=scores)
        return weighted_result(model, reports, weights, geometry.finite, memory=kept)


def cosines_to_others(geometry: UpdateGeometry) -> NDArray[np.float64]:
    """Return max(0, cos(u_i, Σ_{j≠i} u_j)) of the n finite updates; 0 where one has no length.

    Args:
        geometry: Of the updates themselves.
    """
    used = np.flatnonzero(geometry.finite)
    gram = geometry.gram[np.ix_(used, used)]
    squares, sums = np.diagonal(gram), gram.sum(axis=1)
    others = sums.sum() - 2.0 * sums + squares
    # What is left of a sum that cancels is rounding.
    long = (squares > 0) & (others > EPSILON * np.abs(gram).sum())
    lengths = np.sqrt(np.where(long, squares * others, 1.0))
    return np.where(long, np.clip((sums - squares) / lengths, 0.0, 1.0), 0.0)
