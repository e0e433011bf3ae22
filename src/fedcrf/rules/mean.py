"""Weighted means with fixed weights: FedAvg and uniform averaging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedcrf.crf import base_weights
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    Memory,
    Rule,
    finite_reports,
    num_examples,
    weighted_result,
)
from fedcrf.rules.state import State


@dataclass(frozen=True)
class FedAvg(Rule):
    """Weights n_i / Σ n_j (McMahan et al., AISTATS 2017); a report that is not finite gets none."""

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the sample-weighted mean of the clients' models; see `Rule.aggregate`."""
        finite = finite_reports(model, reports)
        weights = base_weights(num_examples(reports), finite)
        return weighted_result(model, reports, weights, finite)


@dataclass(frozen=True)
class Uniform(Rule):
    """Weights 1/m (Zinkevich et al., NeurIPS 2010); a report that is not finite gets none."""

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the plain mean of the clients' models; see `Rule.aggregate`."""
        finite = finite_reports(model, reports)
        weights = base_weights(num_examples(reports), finite, by_examples=False)
        return weighted_result(model, reports, weights, finite)
