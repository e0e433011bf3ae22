"""Weighted means with fixed weights: FedAvg and uniform averaging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedcrf.crf import base_weights
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    State,
    average_states,
    finite_reports,
)


@dataclass(frozen=True)
class FedAvg:
    """Weights n_i / Σ n_j (McMahan et al., AISTATS 2017); a report that is not finite gets none."""

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        """Return the sample-weighted mean of the clients' models; see `Rule.aggregate`."""
        return _mean(global_state, reports, by_examples=True)


@dataclass(frozen=True)
class Uniform:
    """Weights 1/m; a report that is not finite gets none."""

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        """Return the plain mean of the clients' models; see `Rule.aggregate`."""
        return _mean(global_state, reports, by_examples=False)


def _mean(
    global_state: State, reports: Sequence[ClientReport], *, by_examples: bool
) -> AggregationResult:
    finite = finite_reports(reports)
    counts = [report.num_examples for report in reports]
    shares = base_weights(counts, finite)
    weights = shares if by_examples else base_weights(counts, finite, by_examples=False)
    return AggregationResult(
        state=average_states(global_state, reports, weights),
        weights=weights,
        base_weights=shares,
        excluded=~finite,
    )
