"""FoundationFL: a known rule among the updates and copies of the least extreme one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcrf.checks import check_choice, check_whole
from fedcrf.crf import base_weights
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    InformedOfAttackers,
    Memory,
    models_of,
    num_examples,
)
from fedcrf.rules.state import State, merged
from fedcrf.statistics import distances_to_extremes, median_of, trimmed_mean_of
from fedcrf.statistics.inputs import finite_clients

BASES = ("trimmed-mean", "median")
"""The rules that FoundationFL strengthens in its paper."""


@dataclass(frozen=True)
class FoundationFL(InformedOfAttackers):
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

    base: str = "trimmed-mean"
    num_byzantine: int | None = None
    copies: int | None = None

    def __post_init__(self) -> None:
        check_choice("base", self.base, BASES)
        for name in ("num_byzantine", "copies"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least=0)

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the base rule's model, coordinate by coordinate; see `Rule.aggregate`."""
        models, origin = models_of(model, reports)
        finite = finite_clients(models)
        shares = base_weights(num_examples(reports), finite)
        used = np.flatnonzero(finite).tolist()
        if not used:
            return AggregationResult(model, np.zeros(len(reports)), shares, ~finite)
        apart = np.minimum(*distances_to_extremes([models[i] for i in used], origin))
        copied = reports[used[int(np.argmax(apart))]].state
        copies = -(-len(used) // 2) if self.copies is None else self.copies
        states = [*(reports[i].state for i in used), *[copied] * copies]
        trim = min(self.num_byzantine or 0, (len(states) - 1) // 2)
        pick = median_of if self.base == "median" else lambda rows: trimmed_mean_of(rows, trim)
        state = merged(model, states, pick, pick)
        return AggregationResult(state, np.where(finite, np.nan, 0.0), shares, ~finite)
