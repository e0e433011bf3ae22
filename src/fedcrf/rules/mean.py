"""Weighted means with fixed weights: FedAvg and uniform averaging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

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
class _Mean(Rule):
    """A mean of the finite reports with weights that are known before the round."""

    by_examples: ClassVar[bool]

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the mean of the clients' models; see `Rule.aggregate`."""
        finite = finite_reports(model, reports)
        weights = base_weights(num_examples(reports), finite, by_examples=self.by_examples)
        return weighted_result(model, reports, weights, finite)


@dataclass(frozen=True)
class FedAvg(_Mean):
    """Weights n_i / Σ n_j (McMahan et al., AISTATS 2017); 0 for a report that is not finite."""

    by_examples: ClassVar[bool] = True


@dataclass(frozen=True)
class Uniform(_Mean):
    """Weights 1/m (Zinkevich et al., NeurIPS 2010); 0 for a report that is not finite."""

    by_examples: ClassVar[bool] = False
