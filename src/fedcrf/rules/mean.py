"""Weighted means with fixed weights: FedAvg and uniform averaging."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcrf.rules.base import AggregationResult
from fedcrf.rules.round import Deciding, Round


@dataclass(frozen=True)
class FedAvg(Deciding):
    """Weights n_i / Σ n_j (McMahan et al., AISTATS 2017); 0 for a report that is not finite."""

    def decide(self, given: Round) -> AggregationResult:
        """Return the mean of the clients' models by their counts of examples."""
        return given.weighted(given.shares)


@dataclass(frozen=True)
class Uniform(Deciding):
    """Weights 1/m (Zinkevich et al., NeurIPS 2010); 0 for a report that is not finite."""

    def decide(self, given: Round) -> AggregationResult:
        """Return the plain mean of the clients' models."""
        return given.weighted(given.equal_weights(np.ones(len(given.used), np.bool_)))
