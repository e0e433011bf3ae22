"""Rules that act on every coordinate by itself: the median and the trimmed mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from fedcrf.checks import is_number
from fedcrf.errors import FedcrfError
from fedcrf.rules.base import AggregationResult, Deciding, Round, check_honest_majority
from fedcrf.rules.state import Reduce, merged
from fedcrf.statistics import median_of, trimmed_mean_of

DEFAULT_FRACTION = 0.1
"""The share that the trimmed mean cuts at each end if no attackers are known."""


@dataclass(frozen=True)
class CoordinateMedian(Deciding):
    """Coordinate-wise median, the mean of the middle two if even in number (Yin et al., 2018)."""

    def decide(self, given: Round) -> AggregationResult:
        """Return the median of the clients' models in every coordinate."""
        return _pick(given, median_of)


@dataclass(frozen=True)
class TrimmedMean(Deciding):
    """Coordinate-wise mean without the ⌊βm⌋ smallest and largest values (Yin et al., 2018).

    Attributes:
        fraction: β in [0, 0.5). By default a run informs the rule of the attackers' share of a
            round; it is `DEFAULT_FRACTION` if nobody attacks, or outside a run.
    """

    fraction: float | None = None

    def __post_init__(self) -> None:
        if self.fraction is None:
            return
        if not is_number(self.fraction) or not 0 <= self.fraction < 0.5:
            raise FedcrfError(f"fraction {self.fraction}: give a number in [0, 0.5)")

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Return the rule informed of the attackers' share; see `Rule.informed`."""
        if self.fraction is not None:
            return self
        check_honest_majority(self, "fraction", attackers, num_clients)
        return replace(self, fraction=attackers / num_clients if attackers else DEFAULT_FRACTION)

    def decide(self, given: Round) -> AggregationResult:
        """Return the trimmed mean of the clients' models."""
        return _pick(given, lambda rows: trimmed_mean_of(rows, self._trim(len(rows))))

    def _trim(self, num_rows: int) -> int:
        """Return ⌊βm⌋ for β as it is written, so that ⌊0.29 · 100⌋ is 29."""
        fraction = DEFAULT_FRACTION if self.fraction is None else self.fraction
        return min(math.floor(round(fraction * num_rows, 9)), (num_rows - 1) // 2)


def _pick(given: Round, statistic: Reduce) -> AggregationResult:
    states = [report.state for report in given.finite_reports]
    if not states:
        return given.nobody()
    return given.without_weights(merged(given.model, states, statistic, statistic))
