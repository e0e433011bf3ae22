"""Weighted means with fixed weights: FedAvg, uniform averaging, and FedNova of other steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.checks import Names, Truth, is_number
from fedcrf.errors import FedcrfError
from fedcrf.rules.base import BUFFERS, AggregationResult, Deciding, Round, is_buffer
from fedcrf.statistics import weighted_average


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


@dataclass(frozen=True)
class FedNova(Deciding):
    """w ← w + τ_eff Σ p_i u_i / a_i with τ_eff = Σ p_i a_i (Wang et al., NeurIPS 2020).

    The result's weights are the coefficients τ_eff p_i / a_i, which need not sum to 1. The reported
    a_i are those of plain SGD with momentum, also under a proximal objective.

    Attributes:
        normalise_buffers: Whether buffers get these coefficients too. A running variance can then
            become negative. By default buffers are averaged as in FedAvg.
        buffers: Last parts of the names of tensors that are not trained.
    """

    needs_steps: ClassVar[bool] = True

    normalise_buffers: Truth = False
    buffers: Names = BUFFERS

    def decide(self, given: Round) -> AggregationResult:
        """Return the normalised average of the updates.

        Raises:
            FedcrfError: Also for effective steps that are not above 0.
        """
        shares = given.shares
        reported = [
            report.effective_steps if used else 1.0
            for report, used in zip(given.reports, shares > 0, strict=True)
        ]
        if not all(is_number(each) and each > 0 for each in reported):
            raise FedcrfError(f"effective_steps {reported}: give numbers above 0")
        steps = np.array(reported)
        coefficients = float(shares @ steps) * shares / steps
        # w + Σ c_i (w_i − w) is an average that the global model is part of.
        with_global = np.array([1.0 - coefficients.sum(), *coefficients])
        averaged = np.array([0.0, *shares])
        state = {}
        for name, array in given.model.items():
            plain = is_buffer(name, self.buffers) and not self.normalise_buffers
            state[name] = weighted_average(
                [array, *(each[name] for each in given.states)],
                averaged if plain and shares.any() else with_global,
            )
        return AggregationResult(state, coefficients, shares, excluded=~given.finite)
