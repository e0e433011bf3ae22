"""The CRF as a server rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedcrf.crf import ClientCRF, base_weights
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    Memory,
    State,
    average_states,
    check_reports,
    floating_layers,
    num_examples,
)


@dataclass(frozen=True)
class CRF(ClientCRF):
    """CRF-refined FedAvg weights (the paper's algorithm 1); the settings are `ClientCRF`'s."""

    behaviour: ClassVar[int] = 1

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        """Infer the weights from the updates w_i − w_t, then average; see `Rule.aggregate`."""
        check_reports(global_state, reports)
        counts = num_examples(reports)
        statistics = self.statistics(
            [floating_layers(report.state, global_state) for report in reports],
            floating_layers(global_state),
        )
        posterior = self.infer_from_statistics(statistics, counts)
        return AggregationResult(
            state=average_states(global_state, reports, posterior.weights),
            weights=posterior.weights,
            base_weights=base_weights(counts, statistics.finite),
            excluded=posterior.excluded,
            posterior=posterior,
        )

    def with_secret_signs(self, memory: Memory, seed: int) -> CRF:
        """Return the rule with signs of its own; see `SketchingRule.with_secret_signs`."""
        if self.sketch_size is None or self.sketch_seed is not None:
            return self
        return replace(self, sketch_seed=seed)
