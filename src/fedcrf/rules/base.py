"""What a server rule is: the global model and the clients' reports in, the next model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcrf.crf import Posterior, base_weights
from fedcrf.errors import FedcrfError
from fedcrf.statistics import UpdateGeometry, centred_geometry, weighted_average
from fedcrf.statistics.inputs import Layers

State = Mapping[str, NDArray[Any]]
"""A model's tensors by name, as in torch's ``state_dict``; integer buffers keep their dtype."""


@dataclass(frozen=True)
class ClientReport:
    """What one client sent back after its local training.

    Attributes:
        client: The client's stable identity.
        state: Its model, with the names, shapes and dtypes of the global model.
        num_examples: Its training examples n_i.
        effective_steps: ‖a_i‖₁ of its local solver, the steps that its update is worth (FedNova);
            above 0.
    """

    client: int
    state: State
    num_examples: int
    effective_steps: float = 1.0


@dataclass(frozen=True)
class AggregationResult:
    """What a rule decided.

    Attributes:
        state: The next global model; the present one where no report was usable.
        weights: (m,) float64; the share of each report in the model. All 0 where none was usable;
            NaN where the rule picks coordinate by coordinate and no report has one weight.
        base_weights: (m,) float64; FedAvg's shares of the same reports, to compare with.
        excluded: (m,) bool; True where a report was left out because it is not finite.
        posterior: The CRF's reasons, where the rule is one.
    """

    state: State
    weights: NDArray[np.float64]
    base_weights: NDArray[np.float64]
    excluded: NDArray[np.bool_]
    posterior: Posterior | None = None


class Rule(Protocol):
    """A server rule: a small immutable value with one pure method."""

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        """Return the next global model and how it came about.

        Args:
            global_state: The model w_t that the clients started from.
            reports: At least one report; none is changed.

        Raises:
            FedcrfError: No reports, or counts that are negative or all zero.
        """
        ...


def floating_layers(state: State) -> Layers:
    """Return the floating-point tensors of a state, flat, in its order; buffers are among them."""
    return [array.reshape(-1) for array in state.values() if array.dtype.kind == "f"]


def finite_reports(reports: Sequence[ClientReport]) -> NDArray[np.bool_]:
    """Return (m,) bool: whether every number a client sent is finite.

    Raises:
        FedcrfError: No reports.
    """
    check_any(reports)
    return np.array(
        [
            all(bool(np.isfinite(layer).all()) for layer in floating_layers(report.state))
            for report in reports
        ]
    )


def num_examples(reports: Sequence[ClientReport]) -> list[int]:
    """Return the counts n_i of the reports."""
    return [report.num_examples for report in reports]


def report_geometry(global_state: State, reports: Sequence[ClientReport]) -> UpdateGeometry:
    """Return lengths and angles of the updates w_i − w_t about their mean.

    Raises:
        FedcrfError: No reports.
    """
    check_any(reports)
    return centred_geometry(
        [floating_layers(report.state) for report in reports], floating_layers(global_state)
    )


def average_states(
    global_state: State, reports: Sequence[ClientReport], weights: NDArray[np.float64]
) -> State:
    """Return Σ α_i w_i over every tensor of the model; the global model where all weights are 0.

    Integer tensors are averaged with the same weights and rounded to nearest.
    """
    if not weights.any():
        return global_state
    return {
        name: weighted_average([report.state[name] for report in reports], weights)
        for name in global_state
    }


def weighted_result(
    global_state: State,
    reports: Sequence[ClientReport],
    weights: NDArray[np.float64],
    finite: NDArray[np.bool_],
) -> AggregationResult:
    """Return what a rule that only weighs the reports decided."""
    return AggregationResult(
        state=average_states(global_state, reports, weights),
        weights=weights,
        base_weights=base_weights(num_examples(reports), finite),
        excluded=~finite,
    )


def check_any(reports: Sequence[ClientReport]) -> None:
    """Raise a `FedcrfError` where there are no reports."""
    if not reports:
        raise FedcrfError("there are no reports to aggregate: give at least one")
