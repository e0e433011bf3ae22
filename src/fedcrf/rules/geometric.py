"""Rules that move towards the geometric median of the updates: Weiszfeld's and RFA's iterations.

Both need only the Gram matrix of the updates about their mean: a vector z = Σ v_i u_i is given by
its weights v.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Count, NotNegative, Positive
from fedcrf.rules.base import AggregationResult, Deciding, Round
from fedcrf.statistics import EPSILON
from fedcrf.statistics.one_pass import scatter


@dataclass(frozen=True)
class GeometricMedian(Deciding):
    """The vector of least total distance to the updates (Chen, Su and Xu, POMACS 2017).

    All updates count alike. It is computed by Weiszfeld's iterations (Tôhoku Mathematical Journal,
    1937). The paper, "Distributed statistical machine learning in adversarial settings", first
    takes the means of batches of clients; here every client is a batch.

    Attributes:
        iterations: The most iterations.
        tolerance: Ends when z moves less than this, relative to the updates' typical distance
            from their mean.
    """

    iterations: Count = 50
    tolerance: NotNegative = 1e-6

    def decide(self, given: Round) -> AggregationResult:
        """Return the geometric median of the clients' models."""
        gram = given.geometry.gram
        shares = given.equal_weights(np.ones(len(given.used), np.bool_))
        return given.weighted(weiszfeld(gram, shares, self.iterations, self.tolerance))


@dataclass(frozen=True)
class RFA(Deciding):
    """Smoothed, sample-weighted Weiszfeld from the weighted mean (Pillutla et al., IEEE TSP 2022).

    Attributes:
        iterations: Number of iterations.
        smoothing: ν; distances below it count as ν.
    """

    iterations: Count = 3
    smoothing: Positive = 1e-6

    def decide(self, given: Round) -> AggregationResult:
        """Return the smoothed geometric median of the models."""
        gram = given.geometry.gram
        return given.weighted(
            smoothed_weiszfeld(gram, given.shares, self.iterations, self.smoothing)
        )


def weiszfeld(
    gram: NDArray[np.float64],
    shares: NDArray[np.float64],
    iterations: int,
    tolerance: float,
) -> NDArray[np.float64]:
    """Run v_i ∝ s_i / ‖z − u_i‖ with z = Σ v_j u_j from v = s, on the Gram matrix alone.

    If z meets an update, that update's pull is compared with the others' (Vardi and Zhang, PNAS
    2000), so that z moves on unless it is the median.

    Args:
        gram: (m, m) inner products of the updates about their mean; NaN where the share is 0.
        shares: (m,) weights s of the distances; an update of share 0 is excluded.
        iterations: The most iterations.
        tolerance: Ends when z moves less than this, relative to the updates' typical distance
            from their mean.

    Returns:
        (m,) weights v; they sum to 1, or are all 0 where the shares are.
    """
    used = np.flatnonzero(shares)
    products, s = gram[np.ix_(used, used)], shares[used]
    weights = s
    typical = float(np.mean(np.diagonal(products))) if len(used) else 0.0
    for _ in range(iterations if typical > 0 else 0):
        distances = _distances(products, weights)
        met = distances <= EPSILON * np.sqrt(typical)
        pull = np.where(met, 0.0, s / np.where(met, 1.0, distances))
        towards = pull / pull.sum()
        force = float(pull.sum()) * _length(products, towards - weights)
        stay = min(1.0, float(s[met].sum()) / force) if force > 0 else 1.0
        step = (1.0 - stay) * (towards - weights)
        weights = weights + step
        if _length(products, step) <= tolerance * np.sqrt(typical):
            break
    return scatter(weights, shares != 0, 0.0)


def smoothed_weiszfeld(
    gram: NDArray[np.float64],
    shares: NDArray[np.float64],
    iterations: int,
    smoothing: float,
) -> NDArray[np.float64]:
    """Run v_i ∝ s_i / max(ν, ‖z − u_i‖) with z = Σ v_j u_j from v = s (RFA's algorithm 2).

    Arguments and result are those of `weiszfeld`; ``smoothing`` is ν > 0.
    """
    used = np.flatnonzero(shares)
    products, s = gram[np.ix_(used, used)], shares[used]
    weights = s
    for _ in range(iterations if len(used) else 0):
        pull = s / np.maximum(smoothing, _distances(products, weights))
        weights = pull / pull.sum()
    return scatter(weights, shares != 0, 0.0)


def _distances(products: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ‖z − u_i‖ for z = Σ v_j u_j, from the Gram matrix."""
    inner = products @ weights
    squared = weights @ inner - 2.0 * inner + np.diagonal(products)
    return np.asarray(np.sqrt(np.maximum(squared, 0.0)))


def _length(products: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Return ‖Σ v_j u_j‖, from the Gram matrix."""
    return float(np.sqrt(max(0.0, float(weights @ products @ weights))))
