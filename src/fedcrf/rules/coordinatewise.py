"""Rules that act on every coordinate by itself: median, trimmed mean, and both among copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from fedcrf.checks import BelowHalf, Natural
from fedcrf.rules.base import AggregationResult, Deciding, Round, check_honest_majority
from fedcrf.rules.state import Reduce, State, merged
from fedcrf.statistics import distances_to_extremes, median_of, trimmed_mean_of

DEFAULT_FRACTION = 0.1
"""The share that the trimmed mean cuts at each end if no attackers are known."""


@dataclass(frozen=True)
class CoordinateMedian(Deciding):
    """Coordinate-wise median, the mean of the middle two if even in number (Yin et al., 2018)."""

    def decide(self, given: Round) -> AggregationResult:
        """Return the median of the clients' models in every coordinate."""
        return _pick(given, given.finite_states, median_of)


@dataclass(frozen=True)
class TrimmedMean(Deciding):
    """Coordinate-wise mean without the ⌊βm⌋ smallest and largest values (Yin et al., 2018).

    Attributes:
        fraction: β in [0, 0.5). By default a run informs the rule of the attackers' share of a
            round; it is `DEFAULT_FRACTION` if nobody attacks, or outside a run.
    """

    fraction: BelowHalf | None = None

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Return the rule informed of the attackers' share; see `Rule.informed`."""
        if self.fraction is not None:
            return self
        check_honest_majority(self, "fraction", attackers, num_clients)
        return replace(self, fraction=attackers / num_clients if attackers else DEFAULT_FRACTION)

    def decide(self, given: Round) -> AggregationResult:
        """Return the trimmed mean of the clients' models."""
        m = len(given.finite_states)
        fraction = DEFAULT_FRACTION if self.fraction is None else self.fraction
        cut = math.floor(round(fraction * m, 9))  # of β as it is written: ⌊0.29 · 100⌋ is 29
        trim = min(cut, (m - 1) // 2)
        return _pick(given, given.finite_states, lambda rows: trimmed_mean_of(rows, trim))


@dataclass(frozen=True)
class FoundationFL(Deciding):
    """Trimmed mean or median of the updates and of copies of one (Fang et al., NDSS 2025).

    The copied update is the one whose distance to the nearer of the coordinate-wise maximum and
    minimum of all updates is greatest (equations 2 to 5 of arXiv 2501.17381); of equal ones the
    first. The server adds the copies as synthetic updates. Their number is the paper's default,
    n / 2 of n clients, rounded up for odd n, of which it has none; so is the trimmed mean's f on
    each side, as without copies (section VI-A, "Parameter Settings"). No code of the authors is
    known to us.

    Attributes:
        base: Which rule: those that it strengthens in its paper.
        num_byzantine: f (see `Deciding`); only the trimmed mean uses it.
        copies: How many synthetic updates; by default half of the reports, rounded up.
    """

    base: Literal["trimmed-mean", "median"] = "trimmed-mean"
    num_byzantine: Natural | None = None
    copies: Natural | None = None

    def decide(self, given: Round) -> AggregationResult:
        """Return the base rule's model, coordinate by coordinate."""
        states = given.finite_states
        if not states:
            return given.nobody()
        apart = np.minimum(*distances_to_extremes(given.finite_layers, given.layers[1]))
        copies = -(-len(states) // 2) if self.copies is None else self.copies
        states = states + [states[int(np.argmax(apart))]] * copies
        trim = min(self.num_byzantine or 0, (len(states) - 1) // 2)
        pick = median_of if self.base == "median" else lambda rows: trimmed_mean_of(rows, trim)
        return _pick(given, states, pick)


def _pick(given: Round, states: Sequence[State], statistic: Reduce) -> AggregationResult:
    """Return the model of a statistic of the states, coordinate by coordinate."""
    if not states:
        return given.nobody()
    return given.without_weights(merged(given.model, states, statistic, statistic))
