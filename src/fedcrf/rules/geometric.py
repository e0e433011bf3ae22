"""Rules that move towards the geometric median of the updates: Weiszfeld's and RFA's iterations.

Both need only the Gram matrix of the updates about their mean: a vector z = Σ v_i u_i is given by
its weights v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.checks import NotNegative, Positive, Times
from fedcrf.rules.base import AggregationResult, Deciding, Matrix, Round, Vector
from fedcrf.statistics import EPSILON
from fedcrf.statistics.one_pass import scatter
from fedcrf.statistics.sums import FAR


@dataclass(frozen=True)
class GeometricMedian(Deciding):
    """The vector of least total distance to the updates (Chen, Su and Xu, POMACS 2017).

    All updates count alike. It is computed by Weiszfeld's iterations (Tôhoku Mathematical Journal,
    1937): v_i ∝ 1 / ‖z − u_i‖ with z = Σ v_j u_j, from the mean on. If z meets an update, that
    update's pull is compared with the others' (Vardi and Zhang, PNAS 2000), so that z moves on
    unless it is the median. The paper, "Distributed statistical machine learning in adversarial
    settings", first takes the means of batches of clients; here every client is a batch.

    Attributes:
        iterations: The most iterations.
        tolerance: Ends when z moves less than this, relative to the updates' typical distance
            from their mean or middle, and no update holds it.
    """

    behaviour: ClassVar[int] = 2

    iterations: Times = 50
    tolerance: NotNegative = 1e-6

    def decide(self, given: Round) -> AggregationResult:
        """Return the geometric median of the clients' models."""
        gram = given.among_used(given.geometry.gram)
        if not len(gram):
            return given.nobody()
        weights = shares = np.full(len(gram), 1.0 / len(gram))
        squares = np.diagonal(gram)
        middle = float(np.median(squares))
        if middle == 0.0:  # more than half are one point, which is the median
            return given.weighted(given.equal_weights(squares == 0.0))
        # One very long update does not choose when to end.
        typical = min(float(np.mean(squares)), FAR * middle)
        for _ in range(self.iterations):
            distances = _distances(gram, weights)
            met = distances <= EPSILON * np.sqrt(typical)
            pull = np.where(met, 0.0, shares / np.where(met, 1.0, distances))
            towards = pull / pull.sum()
            force = float(pull.sum()) * _length(gram, towards - weights)
            stay = min(1.0, float(shares[met].sum()) / force) if force > 0 else 1.0
            step = (1.0 - stay) * (towards - weights)
            weights = weights + step
            # Beside an update z moves little, however much the others pull: each by 1/m.
            held = (1.0 - stay) * force > np.sqrt(self.tolerance)
            if _length(gram, step) <= self.tolerance * np.sqrt(typical) and not held:
                break
        return given.weighted(given.spread(weights))


@dataclass(frozen=True)
class RFA(Deciding):
    """Smoothed, sample-weighted Weiszfeld from the weighted mean (Pillutla et al., IEEE TSP 2022).

    It is v_i ∝ n_i / max(ν, ‖z − u_i‖) with z = Σ v_j u_j, the paper's algorithm 2.

    Attributes:
        iterations: Number of iterations.
        smoothing: ν; distances below it count as ν.
    """

    iterations: Times = 3
    smoothing: Positive = 1e-6

    def decide(self, given: Round) -> AggregationResult:
        """Return the smoothed geometric median of the models."""
        gram, shares = given.geometry.gram, given.shares
        counted = shares > 0
        gram, shares = gram[np.ix_(counted, counted)], shares[counted]
        weights = shares
        for _ in range(self.iterations):
            pull = shares / np.maximum(self.smoothing, _distances(gram, weights))
            weights = pull / pull.sum()
        return given.weighted(scatter(weights, counted, 0.0))


def _distances(gram: Matrix, weights: Vector) -> Vector:
    """Return ‖z − u_i‖ for z = Σ v_j u_j."""
    inner = gram @ weights
    squared = weights @ inner - 2.0 * inner + np.diagonal(gram)
    return np.asarray(np.sqrt(np.maximum(squared, 0.0)))


def _length(gram: Matrix, weights: Vector) -> float:
    """Return ‖Σ v_j u_j‖."""
    return float(np.sqrt(max(0.0, float(weights @ gram @ weights))))
