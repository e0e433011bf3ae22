"""A rule that judges clients by some of their tensors, and averages all with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from fedcrf.errors import FedcrfError
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    Memory,
    Rule,
    average_states,
    finite_reports,
)
from fedcrf.rules.state import State
from fedcrf.statistics import is_floating


@dataclass(frozen=True)
class Judged(Rule):
    """Any rule that weighs clients, over some tensors of the model; the others get its weights.

    A report that is not finite in any tensor has no weight.

    Attributes:
        rule: Judges the clients.
        judged: Names of the tensors it sees, one of floating point at least.
    """

    rule: Rule
    judged: frozenset[str]

    remembers: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The inner rule's."""
        return self.rule.name

    @property
    def wanted_evidence(self) -> frozenset[str]:
        """What the inner rule looks at."""
        return self.rule.wanted_evidence

    @property
    def needs_steps(self) -> bool:
        """As of the inner rule."""
        return self.rule.needs_steps

    def begin(self) -> Memory:
        """Return the inner rule's memory before the first round."""
        return self.rule.begin()

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Return it with the inner rule informed; see `Rule.informed`."""
        return replace(self, rule=self.rule.informed(attackers, num_clients, seed))

    def with_secret_signs(self, memory: Memory, seed: int) -> Self:
        """Return it with the inner rule's secret signs; see `Rule.with_secret_signs`."""
        return replace(self, rule=self.rule.with_secret_signs(memory, seed))

    def check_clients(self, num_clients: int) -> None:
        """Ask the inner rule; see `Rule.check_clients`."""
        self.rule.check_clients(num_clients)

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Let the rule judge, then average the other tensors; see `Rule.aggregate`.

        Raises:
            FedcrfError: As the rule does; and where it gives clients no weights of their own.
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
        """Return the judged tensors; NaN where a report is not finite in another."""
        seen = {name: array for name, array in state.items() if name in self.judged}
        if not finite:
            return {
                name: np.full_like(array, np.nan) if is_floating(array.dtype) else array
                for name, array in seen.items()
            }
        return seen
