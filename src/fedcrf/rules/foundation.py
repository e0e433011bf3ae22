"""FoundationFL: a known rule among the updates and copies of the least extreme one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedcrf.checks import Natural, one_of
from fedcrf.rules.base import AggregationResult, Deciding, InformedOfAttackers, Round
from fedcrf.rules.state import merged
from fedcrf.statistics import distances_to_extremes, median_of, trimmed_mean_of

BASES = ("trimmed-mean", "median")
"""The rules that FoundationFL strengthens in its paper."""


@dataclass(frozen=True)
class FoundationFL(InformedOfAttackers, Deciding):
    """Trimmed mean or median of the updates and of copies of one (Fang et al., NDSS 2025).

    The copied update is the one whose distance to the nearer of the coordinate-wise maximum and
    minimum of all updates is greatest (equations 2 to 5 of arXiv 2501.17381); of equal ones the
    first. The server adds the copies as synthetic updates. Their number is the paper's default,
    n / 2 of n clients, rounded up for odd n, of which it has none; so is the trimmed mean's f on
    each side, as without copies (section VI-A, "Parameter Settings"). No code of the authors is
    known to us.

    Attributes:
        base: Which rule: of `BASES`.
        num_byzantine: f, fewer than half of the clients; only the trimmed mean uses it. By default
            a run informs the rule of its number of attackers; outside a run it is 0.
        copies: How many synthetic updates; by default half of the reports, rounded up.
    """

    base: Annotated[str, one_of(BASES)] = "trimmed-mean"
    num_byzantine: Natural | None = None
    copies: Natural | None = None

    def decide(self, given: Round) -> AggregationResult:
        """Return the base rule's model, coordinate by coordinate."""
        states = [report.state for report in given.finite_reports]
        if not states:
            return given.nobody()
        apart = np.minimum(*distances_to_extremes(given.finite_layers, given.layers[1]))
        copies = -(-len(states) // 2) if self.copies is None else self.copies
        states += [states[int(np.argmax(apart))]] * copies
        trim = min(self.num_byzantine or 0, (len(states) - 1) // 2)
        pick = median_of if self.base == "median" else lambda rows: trimmed_mean_of(rows, trim)
        return given.without_weights(merged(given.model, states, pick, pick))
