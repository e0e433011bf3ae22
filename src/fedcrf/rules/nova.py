"""FedNova: normalised averaging for clients that took different numbers of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcrf.checks import check_truth, is_number
from fedcrf.crf import base_weights
from fedcrf.errors import FedcrfError
from fedcrf.rules.base import (
    BUFFERS,
    AggregationResult,
    ClientReport,
    Memory,
    Rule,
    finite_reports,
    is_buffer,
    num_examples,
)
from fedcrf.rules.state import State
from fedcrf.statistics import weighted_average


@dataclass(frozen=True)
class FedNova(Rule):
    """w ← w + τ_eff Σ p_i u_i / a_i with τ_eff = Σ p_i a_i (Wang et al., NeurIPS 2020).

    The result's weights are the coefficients τ_eff p_i / a_i, which need not sum to 1. The reported
    a_i are those of plain SGD with momentum, also under a proximal objective.

    Attributes:
        normalise_buffers: Whether buffers get these coefficients too. A running variance can then
            become negative. By default buffers are averaged as in FedAvg.
        buffers: Last parts of the names of tensors that are not trained.
    """

    normalise_buffers: bool = False
    buffers: tuple[str, ...] = BUFFERS

    @property
    def needs_steps(self) -> bool:
        """See `Rule.needs_steps`."""
        return True

    def __post_init__(self) -> None:
        check_truth("normalise_buffers", self.normalise_buffers)

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the normalised average of the updates; see `Rule.aggregate`.

        Raises:
            FedcrfError: Also for effective steps that are not above 0.
        """
        finite = finite_reports(model, reports)
        shares = base_weights(num_examples(reports), finite)
        used = shares > 0
        given = [
            report.effective_steps if use else 1.0
            for report, use in zip(reports, used, strict=True)
        ]
        if not all(is_number(each) and each > 0 for each in given):
            raise FedcrfError(f"effective_steps {given}: give numbers above 0")
        steps = np.array(given)
        coefficients = float(shares @ steps) * shares / steps
        # w + Σ c_i (w_i − w) is an average that the global model is part of.
        with_global = np.array([1.0 - coefficients.sum(), *coefficients])
        averaged = np.array([0.0, *shares])
        state = {}
        for name, array in model.items():
            plain = is_buffer(name, self.buffers) and not self.normalise_buffers
            state[name] = weighted_average(
                [array, *(report.state[name] for report in reports)],
                averaged if plain and shares.any() else with_global,
            )
        return AggregationResult(
            state=state, weights=coefficients, base_weights=shares, excluded=~finite
        )
