"""BRA: each client's posterior probability of honesty weighs its model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.checks import Positive, Times, Truth
from fedcrf.rules.base import AggregationResult, Deciding, Matrix, Round, Vector
from fedcrf.statistics import EPSILON


@dataclass(frozen=True)
class BRA(Deciding):
    """Bayesian robust aggregation (Karakulev et al., arXiv 2505.02490, 2025).

    Honest models have one Gaussian density round their mean, others the density 1. Iterations take
    turns: probabilities of honesty and their mean, given the distances; then the weighted mean and
    variance. It follows the authors' code of May 2025 (github.com/SciML-FL/bra-fl), in which the
    variance σ² enters as that of a single number, and counts of examples are not used. Where all
    models are equal, or σ² is below 1e-12 of its first value, the source divides by zero; here the
    weights stay as they are. Later code of the authors is another rule: the share of honest clients
    is one half at least ("v2" is without that bound), and is renewed once an iteration.

    Attributes:
        iterations: The most iterations, outer and inner.
        tolerance: Ends where the mean model moves less than this, relative to its length, and
            where the probabilities move less than this.
        scale_invariant: Whether the density leaves out 1/σ, as the code's variant "v2"; by default
            it is the code's default, "v1", for which the models' unit matters.
    """

    behaviour: ClassVar[int] = 2

    iterations: Times = 100
    tolerance: Positive = 1e-3
    scale_invariant: Truth = False

    def decide(self, given: Round) -> AggregationResult:
        """Return the mean of the models by their honesty."""
        geometry = given.products
        gram, inner = given.among_used(geometry.gram), geometry.origin_inner[given.used]
        if not len(gram):
            return given.nobody()
        honesty = np.ones(len(gram))
        about = gram - gram[0] - gram[:, :1] + gram[0, 0]  # equal updates are 0 to the bit
        shares = honesty / len(gram)
        squared, variance = _spread(about, shares)
        least = EPSILON * variance
        for _ in range(self.iterations):
            if variance <= least:
                break
            unit = 1.0 if self.scale_invariant else variance
            losses = 0.5 * (squared / variance + math.log(2 * math.pi * unit))
            honesty = self._updated(losses, honesty)
            length = geometry.origin_square + 2 * shares @ inner + shares @ gram @ shares
            before, shares = shares, honesty / honesty.sum()
            squared, variance = _spread(about, shares)
            step = shares - before
            moved = max(0.0, float(step @ about @ step))
            if math.sqrt(moved) <= self.tolerance * math.sqrt(max(0.0, float(length))):
                break
        return given.weighted(given.spread(honesty / honesty.sum()))

    def _updated(self, losses: Vector, before: Vector) -> Vector:
        """Return the probabilities that agree with their own mean; those before if all vanish."""
        honesty = np.full(len(losses), 0.95)  # where the source starts
        for _ in range(self.iterations):
            share = honesty.mean()
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                renewed = 1.0 / (1.0 + (1.0 - share) / share * np.exp(losses))
            renewed = np.nan_to_num(renewed, nan=1.0)  # 0 · ∞: nobody else is left
            if not renewed.any():
                return before
            step, honesty = float(np.linalg.norm(renewed - honesty)), renewed
            if step < self.tolerance:
                break
        return honesty


def _spread(gram: Matrix, shares: Vector) -> tuple[Vector, float]:
    """Return (m,) squared distances to the mean Σ s_i u_i, and their mean by the shares."""
    products = gram @ shares
    squared = np.maximum(np.diagonal(gram) - 2.0 * products + shares @ products, 0.0)
    return squared, float(shares @ squared)
