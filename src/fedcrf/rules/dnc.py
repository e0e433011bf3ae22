"""DnC: leave out the updates that lie furthest along the main direction of the differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Natural, NotNegative, Part, Times
from fedcrf.extras import check_installed
from fedcrf.rules.base import AggregationResult, Deciding, Matrix, Round
from fedcrf.statistics.inputs import MANY_NUMBERS, Layers, blocks
from fedcrf.statistics.one_pass import checked_dimension, excluding

PART = 1 << 15
"""Coordinates of a part from which some are drawn."""

MOST_DRAWN = 10**9
"""From so many on NumPy draws no hypergeometric number."""


@dataclass(frozen=True)
class DnC(Deciding):
    """Divide and conquer (algorithm 2 of Shejwalkar and Houmansadr, NDSS 2021).

    Coordinates are drawn; of the updates there, about their mean, the squared projection on the top
    singular vector is the score, and the c·f of the highest scores are out. The plain mean is over
    those that no iteration left out. All iterations take one pass: an iteration needs only the Gram
    matrix of its coordinates, whose first eigenvector times its singular value is the projections.

    The settings are those of FLPoison (vio1etus/FLPoison). The paper's authors published no code of
    it; a common other version (JianXu95/SignGuard) has one iteration of 1,000 coordinates.

    Attributes:
        seed: Of the draws of coordinates (see `Deciding`).
        num_byzantine: f (see `Deciding`).
        sampled: The share of coordinates in an iteration, above 0.
        iterations: How many.
        filter_fraction: c; c·f updates are out of an iteration, rounded up.
    """

    remembers: ClassVar[bool] = True

    seed: Natural | None = None
    num_byzantine: Natural | None = None
    sampled: Part = 0.2
    iterations: Times = 5
    filter_fraction: NotNegative = 1.0

    def decide(self, given: Round) -> AggregationResult:
        """Return the mean of the models that are left."""
        draws, kept = given.drawing(self.seed)
        finite, grams = self._grams(*given.layers, draws)
        given.restrict_to(finite)
        out = math.ceil(self.filter_fraction * (self.num_byzantine or 0))
        left = np.ones(len(given.used), np.bool_)
        for gram in grams if left.any() else ():
            _, vectors = np.linalg.eigh(gram)
            # Scores that are equal but for rounding, as those of two clients, tie.
            order = given.in_order(np.round(vectors[:, -1] ** 2, 12))
            left[order[max(1, len(left) - out) :]] = False
        reason = "every client is an outlier in some iteration"
        return given.weighted(given.equal_weights(left), memory=kept, reason=reason)

    def _grams(
        self, models: Sequence[Layers], origin: Layers, draws: np.random.Generator
    ) -> tuple[NDArray[np.bool_], list[Matrix]]:
        """Return who is finite, and the Gram matrix of each iteration's coordinates."""
        check_installed("threadpoolctl", wanted_by="dnc: ")
        from threadpoolctl import threadpool_limits

        dimension = checked_dimension(models)
        count = max(1, int(self.sampled * dimension))
        chosen = [drawn_columns(draws, dimension, count) for _ in range(self.iterations)]
        with threadpool_limits(1, "blas"):  # for products so small, threads only wait
            return excluding(models, lambda used: sampled_grams(used, origin, chosen))


def drawn_columns(draws: np.random.Generator, dimension: int, count: int) -> NDArray[np.bool_]:
    """Return (d,) bool, a uniform choice of so many coordinates.

    They are drawn part by part, each with its share of them, so that no permutation of d is made.
    """
    chosen = np.zeros(dimension, np.bool_)
    for start in range(0, dimension, PART):
        part = chosen[start : start + PART]
        rest = dimension - start - count
        if max(count, rest) < MOST_DRAWN:
            here = int(draws.hypergeometric(count, rest, len(part)))
        else:  # of so many, each coordinate is drawn as if alone
            here = min(count, int(draws.binomial(len(part), count / (count + rest))))
        part[draws.choice(len(part), here, replace=False, shuffle=False)] = True
        count -= here
    return chosen


def sampled_grams(
    clients: Sequence[Layers], origin: Layers, chosen: Sequence[NDArray[np.bool_]]
) -> tuple[NDArray[np.bool_], list[Matrix]]:
    """Return (m,) whether each update is finite, and the Gram matrix of each choice of columns.

    Each of ``chosen`` is (d,) bool. The matrices are of the updates about their mean; they are
    valid only where all updates are finite.
    """
    m = len(clients)
    squares, grams = np.zeros(m), [np.zeros((m, m)) for _ in chosen]
    with np.errstate(over="ignore", invalid="ignore"):
        for where, block in blocks(clients, origin, MANY_NUMBERS):
            squares += np.einsum("ij,ij->i", block, block)
            if not np.isfinite(squares).all():
                break
            block -= block[0].copy()  # exact for equal updates
            block -= block.mean(axis=0)
            for gram, columns in zip(grams, chosen, strict=True):
                part = block[:, columns[where]]
                gram += part @ part.T
    return np.isfinite(squares), grams
