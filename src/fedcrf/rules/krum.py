"""Krum and Multi-Krum: keep the updates that lie closest to their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import check_whole
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    Memory,
    Rule,
    check_honest_majority,
    report_geometry,
    weighted_result,
)
from fedcrf.rules.state import State
from fedcrf.statistics import UpdateGeometry


@dataclass(frozen=True)
class _Selecting(Rule):
    """A rule that averages the updates with the best Krum scores."""

    num_byzantine: int | None = None

    def __post_init__(self) -> None:
        if self.num_byzantine is not None:
            check_whole("num_byzantine", self.num_byzantine, least=0)

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Return the rule informed of the attackers, unless it was; see `Rule.informed`."""
        rule = replace(self, num_byzantine=attackers) if self.num_byzantine is None else self
        rule.check_clients(num_clients)
        return rule

    def check_clients(self, num_clients: int) -> None:
        """Raise a `FedcrfError` where half of so many clients or more are Byzantine."""
        check_honest_majority(self, "num_byzantine", self._f, num_clients)

    @property
    def _f(self) -> int:
        """What f is; 0 where nobody has said."""
        return self.num_byzantine or 0


@dataclass(frozen=True)
class Krum(_Selecting):
    """The update with the least sum of squared distances to its nearest (Blanchard et al., 2017).

    Attributes:
        num_byzantine: f, fewer than half of the clients; the score is over the m − f − 2 nearest
            others, but at least one. Where left out, a run says its number of attackers, and it is
            0 where nobody does.
    """

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the model of the chosen client; see `Rule.aggregate`."""
        return _select(model, reports, self._f, 1)


@dataclass(frozen=True)
class MultiKrum(_Selecting):
    """The plain mean of the m − f updates with the best Krum scores (Blanchard et al., 2017).

    Attributes:
        num_byzantine: f, fewer than half of the clients; the score is over the m − f − 2 nearest
            others, but at least one. Where left out, a run says its number of attackers, and it is
            0 where nobody does: then nobody is left out, and the rule is `Uniform`.
    """

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the mean of the chosen clients' models; see `Rule.aggregate`."""
        return _select(model, reports, self._f, None)


def krum_scores(geometry: UpdateGeometry, num_byzantine: int) -> NDArray[np.float64]:
    """Return each update's sum of squared distances to its m − f − 2 nearest others.

    Args:
        geometry: Of the updates about their mean, so that what they share does not cancel.
        num_byzantine: f.

    Returns:
        (m,) scores; infinite for an update that is not finite, and m counts only the others.
    """
    used = np.flatnonzero(geometry.finite)
    gram = geometry.gram[np.ix_(used, used)]
    squares = np.diagonal(gram)
    squared = np.maximum(squares[:, None] + squares - 2.0 * gram, 0.0)
    np.fill_diagonal(squared, np.inf)
    neighbours = min(max(1, len(used) - num_byzantine - 2), max(0, len(used) - 1))
    scores = np.full(geometry.num_clients, np.inf)
    scores[used] = np.sort(squared, axis=1)[:, :neighbours].sum(axis=1)
    return scores


def _select(
    model: State,
    reports: Sequence[ClientReport],
    num_byzantine: int,
    num_selected: int | None,
) -> AggregationResult:
    geometry = report_geometry(model, reports)
    finite = geometry.finite
    available = int(finite.sum())
    count = max(1, available - num_byzantine) if num_selected is None else num_selected
    best = np.argsort(krum_scores(geometry, num_byzantine), kind="stable")[: min(count, available)]
    weights = np.zeros(len(reports))
    weights[best] = 1.0 / max(1, len(best))
    return weighted_result(model, reports, weights, finite)
