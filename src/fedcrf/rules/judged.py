"""A rule that judges clients by some of their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcrf.errors import FedcrfError
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    Memory,
    Wrapper,
    average_states,
    finite_reports,
)
from fedcrf.rules.state import State
from fedcrf.statistics import is_floating


@dataclass(frozen=True)
class Judged(Wrapper):
    """A rule that gets only some tensors of the model; its weights average the others too.

    The rule must give weights. A report that is not finite in any tensor gets weight 0.

    Attributes:
        rule: Weighs the clients.
        judged: Names of the tensors that it gets; at least one of floating-point numbers.
    """

    judged: frozenset[str]

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Let the rule weigh the clients, then average the other tensors; see `Rule.aggregate`.

        Raises:
            FedcrfError: Also if the rule gives no weights.
        """
        seen = [
            replace(report, state=self._seen(report.state, finite))
            for report, finite in zip(reports, finite_reports(model, reports), strict=True)
        ]
        result = self.rule.aggregate(memory, self._seen(model, True), seen)
        if np.isnan(result.weights).any():
            raise FedcrfError(
                f"{self.name} gives clients no weights, which tensors that are not judged are "
                "averaged with: leave judge= out, or choose a rule that weighs clients"
            )
        others = {name: array for name, array in model.items() if name not in self.judged}
        averaged = {**average_states(others, reports, result.weights), **result.state}
        return replace(result, state={name: averaged[name] for name in model})

    def _seen(self, state: State, finite: bool) -> State:
        """Return the judged tensors, NaN if the report is not finite in any tensor."""
        seen = {name: array for name, array in state.items() if name in self.judged}
        if not finite:
            return {
                name: np.full_like(array, np.nan) if is_floating(array.dtype) else array
                for name, array in seen.items()
            }
        return seen
