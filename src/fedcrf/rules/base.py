"""What a server rule is: the global model and the clients' reports in, the next model out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Settings, is_number
from fedcrf.crf import Posterior, base_weights
from fedcrf.errors import FedcrfError, in_a_line
from fedcrf.rules.state import (
    FlatState,
    Layout,
    State,
    flattened,
    layers_alike,
    merged,
)
from fedcrf.statistics import UpdateGeometry, centred_geometry, is_floating, weighted_average
from fedcrf.statistics.inputs import Layers, finite_clients

Memory = Mapping[str, NDArray[Any]]
"""What a rule keeps from one round for the next: arrays by name, as a checkpoint holds them."""


RESIDUAL_LOSS = "residual_loss"
"""Evidence: mean cross-entropy that a client's model has on its own examples after training."""

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Last parts of the names of tensors that are not trained: batch norm's."""


@dataclass(frozen=True, eq=False)
class ClientReport:
    """What one client sent back after its local training.

    Attributes:
        client: The client's stable identity.
        state: Its model, with the names, shapes and dtypes of the global model.
        num_examples: Its training examples n_i, or whatever else it counts for.
        effective_steps: ‖a_i‖₁ of its local solver, the steps that its update is worth (FedNova);
            above 0.
        evidence: What it says of itself, by name, such as `RESIDUAL_LOSS`. A client may lie, not
            report what others do, or report NaN: rules must tolerate that.
    """

    client: int
    state: State
    num_examples: float
    effective_steps: float = 1.0
    evidence: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AggregationResult:
    """What a rule decided.

    Attributes:
        state: The next global model; the present one where no report was usable.
        weights: (m,) float64; the share of each report in the model. All 0 where none was usable;
            NaN where no report has one weight, as where the rule picks coordinate by coordinate.
            Of a rule that clips updates, the share that the clipped update has.
        base_weights: (m,) float64; FedAvg's shares of the same reports, to compare with.
        excluded: (m,) bool; True where a report was excluded because it is not finite.
        posterior: The CRF's reasons, where the rule is one.
        memory: What the rule keeps for the next round; empty where it remembers nothing.
        kept_reason: Why the global model stays as it is, in one sentence; None where it moves. A
            rule that gives all weights 0 and no reason had no report to average.
    """

    state: State
    weights: NDArray[np.float64]
    base_weights: NDArray[np.float64]
    excluded: NDArray[np.bool_]
    posterior: Posterior | None = None
    memory: Memory = field(default_factory=dict)
    kept_reason: str | None = None

    def __post_init__(self) -> None:
        if self.kept_reason is None and not self.weights.any():
            what = "is finite" if self.excluded.all() else "is finite and has examples"
            if self.posterior is not None and self.posterior.overflowed.any():
                what = "is finite and short enough to be squared"
            object.__setattr__(self, "kept_reason", f"no client's update {what}")


@dataclass(frozen=True)
class Rule(Settings, ABC):
    """A server rule: a small immutable value whose fields are its settings.

    A rule gives `aggregate`; everything else has a default that suits most rules.

    Attributes:
        behaviour: Rises where the rule decides otherwise than before; see the golden table.
        remembers: Whether decisions depend on earlier rounds.
    """

    behaviour: ClassVar[int] = 1
    remembers: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """What records and memories call the rule."""
        return type(self).__name__

    @property
    def wanted_evidence(self) -> frozenset[str]:
        """Names of the evidence it looks at, which clients are asked for."""
        return frozenset()

    @property
    def needs_steps(self) -> bool:
        """Whether a report without effective steps is of no use."""
        return False

    def begin(self) -> Memory:
        """Return the memory before the first round."""
        return {}

    @abstractmethod
    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the next global model and how it came about.

        Args:
            memory: `AggregationResult.memory` of the round before; that of `begin`, or an empty
                one, in the first.
            model: The model w_t that the clients started from.
            reports: At least one report; none is changed. Clients may be others than in the round
                before; what is remembered of a client is kept under its identity.

        Raises:
            FedcrfError: No reports, one whose tensors differ from the global model's in name,
                shape or dtype, or counts that are negative or all zero; a memory that is not of
                this rule.
        """

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Return the rule with what its settings leave open and only a simulation knows.

        Peers that have to know how many attack are seen at their best so. What the settings say
        counts.

        Args:
            attackers: How many of a round's clients attack, on average where they are drawn.
            num_clients: Clients of a round.
            seed: The run's seed.

        Raises:
            FedcrfError: It cannot stand so many attackers.
        """
        return self

    def with_secret_signs(self, memory: Memory, seed: int) -> Self:
        """Return the rule with secret signs of its sketches where its settings give no seed.

        Attackers who know the random signs can send what sketches do not show. A rule whose
        settings give a seed, be it 0, is returned as it is, and so is one without sketches.

        Args:
            memory: Of the run it goes on from, whose signs it keeps; else empty.
            seed: Of the signs where nothing is remembered; above 0, below 2⁶³.
        """
        return self

    def check_clients(self, num_clients: int) -> None:
        """Raise a `FedcrfError` where it cannot be used with so many clients a round.

        It is asked before the first round. In a round that fewer report in, a rule does with those.
        """


def check_honest_majority(rule: Rule, setting: str, attackers: int, num_clients: int) -> None:
    """Raise a `FedcrfError` where a rule is informed that half of its clients attack, or more.

    Args:
        rule: The rule.
        setting: Which of its settings says so, or could say otherwise.
        attackers: How many.
        num_clients: Clients of a round.
    """
    most = (num_clients - 1) // 2
    if attackers > most:
        raise FedcrfError(
            f"{type(rule).__name__}: {attackers} attackers of {num_clients} clients are half or "
            f"more, which it cannot stand: give {most} at most ({setting}, --attackers)"
        )


def reported_evidence(
    reports: Sequence[ClientReport], wanted: Collection[str] | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return by name the (m,) evidence of the reports, NaN where a client gave no number.

    Args:
        reports: The clients' reports.
        wanted: Names of what counts, as clients may report what nobody asked for; else all.
    """
    names = {name for report in reports for name in report.evidence}
    names = names if wanted is None else names & set(wanted)
    given = {name: [report.evidence.get(name) for report in reports] for name in sorted(names)}

    def number(value: Any) -> float:  # as it was given, also where it is not finite
        return value if isinstance(value, float) or is_number(value) else np.nan

    return {name: np.array([*map(number, values)], np.float64) for name, values in given.items()}


def aggregate_or_keep(
    rule: Rule, memory: Memory, model: State, reports: Sequence[ClientReport]
) -> AggregationResult:
    """Let a rule decide; where it raises, keep model and memory.

    It is for servers, which must outlast a round that a rule cannot decide. `kept_reason` then is
    the rule's error, all weights are 0, and no report is called excluded unless it is not finite.
    """
    try:
        return rule.aggregate(memory, model, reports)
    except Exception as error:  # whatever it is, it is this round's alone
        try:
            finite = finite_reports(model, reports)
            shares = base_weights(num_examples(reports), finite)
        except Exception:  # then nothing is known of them
            finite = np.ones(len(reports), bool)
            shares = np.zeros(len(reports))
        said = str(error) if isinstance(error, FedcrfError) else in_a_line(error)
        return AggregationResult(
            state=model,
            weights=np.zeros(len(reports)),
            base_weights=shares,
            excluded=~finite,
            memory=memory,
            kept_reason=f"the rule failed: {' '.join(said.split())}",
        )


def is_buffer(name: str, buffers: Sequence[str] = BUFFERS) -> bool:
    """Tell whether a tensor of this name is not trained."""
    return name.rpartition(".")[2] in buffers


def finite_reports(model: State, reports: Sequence[ClientReport]) -> NDArray[np.bool_]:
    """Return (m,) bool: whether every number a client sent is finite.

    Raises:
        FedcrfError: No reports, or one that does not fit the global model.
    """
    return finite_clients(models_of(model, reports)[0])


def models_of(model: State, reports: Sequence[ClientReport]) -> tuple[list[Layers], Layers]:
    """Return the layers of the clients' models and those of the global one.

    Raises:
        FedcrfError: No reports, or one that does not fit the global model.
    """
    check_reports(model, reports)
    origin, *models = layers_alike(model, [model, *(report.state for report in reports)])
    return models, origin


def num_examples(reports: Sequence[ClientReport]) -> list[float]:
    """Return the counts n_i of the reports."""
    return [report.num_examples for report in reports]


def report_geometry(model: State, reports: Sequence[ClientReport]) -> UpdateGeometry:
    """Return lengths and angles of the updates w_i − w_t about their mean.

    Raises:
        FedcrfError: No reports, or one that does not fit the global model.
    """
    return centred_geometry(*models_of(model, reports))


def average_states(
    model: State,
    reports: Sequence[ClientReport],
    weights: NDArray[np.float64],
    coefficients: NDArray[np.float64] | None = None,
) -> State:
    """Return w_t + Σ c_i (w_i − w_t) over every tensor of the model; w_t where all weights are 0.

    Args:
        model: w_t.
        reports: The w_i.
        weights: (m,) weights α, with which integer tensors are averaged; these are rounded to
            nearest.
        coefficients: (m,) c, the weights of clipped updates; α where left out, which is Σ α_i w_i
            for weights that sum to 1.
    """
    if not weights.any():
        return model
    moving = weights if coefficients is None else coefficients
    kept = float(weights.sum() - moving.sum())
    return merged(
        model,
        [model, *(report.state for report in reports)],
        lambda models: weighted_average(models, np.array([kept, *moving])),
        lambda models: weighted_average(models, np.array([0.0, *weights])),
    )


def stepped_state(model: State, step: NDArray[np.floating], others: State) -> State:
    """Return w_t moved by a flat step, with the tensors of another model that are not floating.

    Args:
        model: w_t.
        step: (d,) over the floating-point tensors, in the order of their names.
        others: The integer tensors by name; what else it holds is not read.
    """
    state: dict[str, NDArray[Any]] = {}
    start = 0
    for name, array in model.items():
        if not is_floating(array.dtype):
            state[name] = others[name]
            continue
        part = step[start : start + array.size].reshape(array.shape)
        start += array.size
        with np.errstate(over="ignore"):  # a step may leave what the dtype holds
            state[name] = np.asarray(array + part).astype(array.dtype)
    return flattened(state)


def weighted_result(
    model: State,
    reports: Sequence[ClientReport],
    weights: NDArray[np.float64],
    finite: NDArray[np.bool_],
) -> AggregationResult:
    """Return what a rule that only weighs the reports decided."""
    return AggregationResult(
        state=average_states(model, reports, weights),
        weights=weights,
        base_weights=base_weights(num_examples(reports), finite),
        excluded=~finite,
    )


def check_reports(model: State, reports: Sequence[ClientReport]) -> None:
    """Check that every report is of the global model.

    Raises:
        FedcrfError: No reports, or one whose tensors differ in name, shape or dtype; tensors that
            are no NumPy arrays; states or evidence that are not by name.
    """
    if not reports:
        raise FedcrfError("there are no reports to aggregate: give at least one")
    for report in reports:
        if not isinstance(report, ClientReport):
            raise FedcrfError(f"a report is a {type(report).__name__}: give ClientReports")
        if not isinstance(report.evidence, Mapping):
            raise FedcrfError(
                f"the evidence of client {report.client} is a {type(report.evidence).__name__}: "
                'give numbers by name, such as {"residual_loss": 0.3}'
            )
    states = [(f"client {report.client}", report.state) for report in reports]
    for who, state in [("the global model", model), *states]:
        if not isinstance(state, Mapping):
            raise FedcrfError(f"{who} is a {type(state).__name__}: give NumPy arrays by name")
        for name, tensor in {} if isinstance(state, FlatState) else state.items():
            if not isinstance(tensor, np.ndarray | np.generic):
                raise FedcrfError(
                    f"'{name}' of {who} is a {type(tensor).__name__}: give NumPy arrays, those of "
                    "torch tensors with .numpy()"
                )
    for report in reports:
        misfit = misfit_of(report.state, model)
        if misfit is not None:
            raise FedcrfError(f"client {report.client} {misfit}")


def misfit_of(state: State, model: State) -> str | None:
    """Return what a client reports that is not of the global model; None where all of it is."""
    if isinstance(state, FlatState) and state.layout == Layout.of(model):
        return None
    if state.keys() != model.keys():
        odd = sorted(state.keys() ^ model.keys())[0]
        return f"reports other tensors than the global model has: '{odd}' is in one of them only"
    for name, expected in model.items():
        got = state[name]
        if (got.shape, got.dtype) != (expected.shape, expected.dtype):
            return (
                f"reports '{name}' as {got.dtype} {got.shape}, "
                f"the global model has {expected.dtype} {expected.shape}"
            )
    return None
