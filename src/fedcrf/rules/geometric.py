"""Rules that move towards the geometric median of the updates: Weiszfeld's and RFA's iterations.

Both need the updates' Gram matrix and nothing else: a point z = Σ v_i u_i is known by
its weights v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrf.crf import base_weights
from fedcrf.errors import FedcrfError
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    State,
    num_examples,
    report_geometry,
    weighted_result,
)
from fedcrf.statistics import EPSILON


@dataclass(frozen=True)
class GeometricMedian:
    """Point of least total distance to the updates, unweighted, by Weiszfeld's iterations.

    Attributes:
        iterations: At most so many.
        tolerance: Ends when z moves less than this, relative to its own length.
    """

    iterations: int = 50
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)
        if not 0 <= self.tolerance < float("inf"):
            raise FedcrfError(f"tolerance {self.tolerance}: give a number of 0 or more")

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        """Return the geometric median of the clients' models; see `Rule.aggregate`."""
        geometry = report_geometry(global_state, reports)
        start = base_weights(num_examples(reports), geometry.finite, by_examples=False)
        weights = weiszfeld(geometry.gram, start, start, EPSILON, self.iterations, self.tolerance)
        return weighted_result(global_state, reports, weights, geometry.finite)


@dataclass(frozen=True)
class RFA:
    """Smoothed, sample-weighted Weiszfeld from the weighted mean (Pillutla et al., IEEE TSP 2022).

    Attributes:
        iterations: Number of iterations.
        smoothing: ν; distances below it count as ν.
    """

    iterations: int = 3
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)
        if not 0 < self.smoothing < float("inf"):
            raise FedcrfError(f"smoothing {self.smoothing}: give a number above 0")

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        """Return the smoothed geometric median of the models; see `Rule.aggregate`."""
        geometry = report_geometry(global_state, reports)
        shares = base_weights(num_examples(reports), geometry.finite)
        weights = weiszfeld(
            geometry.gram, shares, shares, self.smoothing, self.iterations, tolerance=0.0
        )
        return weighted_result(global_state, reports, weights, geometry.finite)


def weiszfeld(
    gram: NDArray[np.float64],
    start: NDArray[np.float64],
    shares: NDArray[np.float64],
    smoothing: float,
    iterations: int,
    tolerance: float,
) -> NDArray[np.float64]:
    """Run v_i ∝ s_i / max(ν, ‖z − u_i‖) with z = Σ v_i u_i, on the Gram matrix alone.

    Args:
        gram: (m, m) inner products of the updates; NaN where the share is 0.
        start: (m,) weights of the first z.
        shares: (m,) weights s of the distances; 0 leaves an update out.
        smoothing: ν > 0.
        iterations: At most so many.
        tolerance: Ends when z moves less than this times its own length.

    Returns:
        (m,) weights of the last z; they sum to 1, or are all 0 where the shares are.
    """
    used = np.flatnonzero(shares)
    if len(used) == 0:
        return start
    products = gram[np.ix_(used, used)]
    # About the mean of the updates, so that what they have in common does not cancel.
    centred = products - products.mean(axis=0) - products.mean(axis=1)[:, None] + products.mean()
    weights, s = start[used], shares[used]
    for _ in range(iterations):
        inner = centred @ weights
        squared = weights @ inner - 2.0 * inner + np.diagonal(centred)
        pull = s / np.maximum(smoothing, np.sqrt(np.maximum(squared, 0.0)))
        after = pull / pull.sum()
        step = after - weights
        weights = after
        moved = float(step @ centred @ step)
        if moved <= tolerance**2 * float(weights @ products @ weights):
            break
    whole = np.zeros(len(shares))
    whole[used] = weights
    return whole


def _check_iterations(iterations: int) -> None:
    if iterations < 1:
        raise FedcrfError(f"iterations {iterations}: give 1 or more")
