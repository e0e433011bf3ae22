"""A server rule: from the global model and the clients' reports to the next model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    floating_layers,
    layers_alike,
    merged,
)
from fedcrf.statistics import is_floating, weighted_average
from fedcrf.statistics.inputs import Layers, finite_clients

Memory = Mapping[str, NDArray[Any]]
"""What a rule keeps from one round for the next: arrays by name, which a checkpoint holds."""


RESIDUAL_LOSS = "residual_loss"
"""Evidence: the mean cross-entropy of a client's model on its own examples after training."""

LABEL_DIVERGENCE = "label_divergence"
"""Evidence: Σ p_c log(C p_c) of the label shares p of a client's own examples, over C classes."""

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Last parts of the names of tensors that are not trained, batch norm's."""

SUM_TOLERANCE = 1e-5
"""How far a sum of weights may be from 1: those of float32 are rounded."""


@dataclass(frozen=True, eq=False)
class ClientReport:
    """What one client sent back after its local training.

    Attributes:
        client: The client's stable identity.
        state: Its model, with the names, shapes and dtypes of the global model.
        num_examples: The count n_i of its training examples, or another base for its weight.
        effective_steps: ‖a_i‖₁ of its local solver, the steps that its update is worth (FedNova);
            above 0.
        evidence: By name what it reports of itself, such as `RESIDUAL_LOSS`. It may be false,
            missing or NaN: rules must tolerate that.
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
        state: The next global model; the present one if no report was usable.
        weights: (m,) float64; the share of each report in the model. All 0 if none was usable; NaN
            if reports have no single weight, as in rules that act coordinate by coordinate. If the
            rule clips updates, the shares of the clipped ones.
        base_weights: (m,) float64; FedAvg's shares of the same reports, for comparison.
        excluded: (m,) bool; True for a report that is not finite.
        posterior: The posterior, if the rule is a CRF.
        memory: What the rule keeps for the next round; empty if it remembers nothing.
        kept_reason: Why the global model stays as it is, in one sentence; None if it moves. If a
            rule gives all weights 0 and no reason, it had no report to average.
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

    A rule implements `aggregate`; everything else has a default that suits most rules.

    Attributes:
        remembers: Whether decisions depend on earlier rounds.
    """

    remembers: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The rule's name in records and memories."""
        return type(self).__name__

    @property
    def wanted_evidence(self) -> frozenset[str]:
        """Names of the evidence that it uses, which clients are asked for."""
        return frozenset()

    @property
    def needs_steps(self) -> bool:
        """Whether a report without effective steps cannot be used."""
        return False

    @property
    def server_examples(self) -> int:
        """How many examples of its own the server trains on; 0 if it needs none."""
        return 0

    def begin(self) -> Memory:
        """Return the memory before the first round."""
        return {}

    @abstractmethod
    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the next global model, with weights and reasons.

        Args:
            memory: `AggregationResult.memory` of the round before; in the first that of `begin`,
                or an empty one.
            model: The model w_t that the clients started from.
            reports: At least one report; none is changed. The clients need not be those of the
                round before; memory is kept by identity.

        Raises:
            FedcrfError: No reports; one whose tensors differ from the global model's in name, shape
                or dtype; counts that are negative or all zero; or a memory of another rule.
        """

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Return the rule informed of what only a simulation knows, for settings without a value.

        So rules that need the number of attackers are compared at their best. Given settings stay.

        Args:
            attackers: How many of a round's clients attack, on average if they are drawn.
            num_clients: Clients of a round.
            seed: The run's seed.

        Raises:
            FedcrfError: It does not tolerate so many attackers.
        """
        return self

    def with_secret_signs(self, memory: Memory, seed: int) -> Self:
        """Return the rule with secret signs of its sketches, if its settings give no seed.

        An attacker that knows the signs can send an update whose sketch hides it. A rule with a
        given seed, 0 too, is returned as it is, and so is a rule without sketches.

        Args:
            memory: That of the run that is continued, whose signs are kept; else empty.
            seed: The seed of the signs if the memory has none; above 0, below 2⁶³.
        """
        return self

    def with_server_model(self, state: State) -> Rule:
        """Return the rule for one round, in which the server has trained a model itself.

        A rule that needs no `server_examples` is returned as it is.

        Args:
            state: The global model after local training on the server's examples.
        """
        return self

    def check_clients(self, num_clients: int) -> None:
        """Raise a `FedcrfError` if the rule cannot be used with so many clients a round.

        It is called before the first round. If fewer report in a round, the rule uses those.
        """


@dataclass(frozen=True)
class Wrapper(Rule):
    """A rule around another one, whose answers it passes on.

    Attributes:
        rule: The inner rule; it may have a memory of its own.
    """

    rule: Rule

    remembers: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The inner rule's name."""
        return self.rule.name

    @property
    def wanted_evidence(self) -> frozenset[str]:
        """The evidence that the inner rule uses."""
        return self.rule.wanted_evidence

    @property
    def needs_steps(self) -> bool:
        """Whether the inner rule needs steps."""
        return self.rule.needs_steps

    @property
    def server_examples(self) -> int:
        """How many examples the inner rule needs on the server."""
        return self.rule.server_examples

    def begin(self) -> Memory:
        """Return the inner rule's memory before the first round."""
        return self.rule.begin()

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Inform the inner rule; see `Rule.informed`."""
        return replace(self, rule=self.rule.informed(attackers, num_clients, seed))

    def with_secret_signs(self, memory: Memory, seed: int) -> Self:
        """Give the inner rule secret signs; see `Rule.with_secret_signs`."""
        return replace(self, rule=self.rule.with_secret_signs(memory, seed))

    def with_server_model(self, state: State) -> Rule:
        """Give the inner rule the server's model; see `Rule.with_server_model`."""
        return replace(self, rule=self.rule.with_server_model(state))

    def check_clients(self, num_clients: int) -> None:
        """Check the inner rule; see `Rule.check_clients`."""
        self.rule.check_clients(num_clients)


def plain_rule(rule: object) -> object:
    """Return the rule within any wrappers; another object as it is."""
    return plain_rule(rule.rule) if isinstance(rule, Wrapper) else rule


def check_honest_majority(rule: Rule, setting: str, attackers: int, num_clients: int) -> None:
    """Raise a `FedcrfError` if a rule is informed that half of its clients attack, or more.

    ``setting`` is the name of its setting for their number.
    """
    most = (num_clients - 1) // 2
    if attackers > most:
        raise FedcrfError(
            f"{type(rule).__name__}: {attackers} attackers of {num_clients} clients are half or "
            f"more, which it cannot tolerate: give {most} at most ({setting}, --attackers)"
        )


class InformedOfAttackers(Rule):
    """A rule with a setting ``num_byzantine``, f; without a value a run informs it of f."""

    num_byzantine: int | None

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Return the rule informed of the attackers' number; see `Rule.informed`."""
        rule, known = super().informed(attackers, num_clients, seed), {"num_byzantine": attackers}
        rule = replace(rule, **known) if rule.num_byzantine is None else rule
        rule.check_clients(num_clients)
        return rule

    def check_clients(self, num_clients: int) -> None:
        """Raise a `FedcrfError` if half of so many clients or more are Byzantine."""
        check_honest_majority(self, "num_byzantine", self.num_byzantine or 0, num_clients)


def reported_evidence(
    reports: Sequence[ClientReport], wanted: Collection[str] | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return by name the (m,) evidence of the reports, NaN where a client gave no number.

    Args:
        reports: The clients' reports.
        wanted: Names of the evidence to return, since clients may report more; by default all.
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
    """Let a rule decide; if it raises, or its model is not finite, keep model and memory.

    It is for servers, which must survive a round in which a rule fails. `kept_reason` is then the
    rule's error, all weights are 0, and only reports that are not finite are excluded.
    """
    try:
        result = rule.aggregate(memory, model, reports)
        if not finite_clients([floating_layers(result.state)]).all():
            raise FedcrfError("its next model is not finite")
        return result
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
        coefficients: (m,) c, the weights of clipped updates; by default α, which gives Σ α_i w_i
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
    """Return w_t moved by a flat step, with the integer tensors of another model.

    The (d,) step is over the floating-point tensors, in the order of their names.
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
    coefficients: NDArray[np.float64] | None = None,
    memory: Memory | None = None,
    reason: str | None = None,
) -> AggregationResult:
    """Return the result of a rule that only weighs the reports, or clips them too.

    Args:
        model: w_t.
        reports: The w_i.
        weights: (m,) their shares, which sum to 1; all 0 keep the model.
        finite: (m,) bool; who may have weight.
        coefficients: As for `average_states`.
        memory: What the rule keeps; nothing by default.
        reason: Why the model stays, if some report is finite and no weight is above 0.

    Raises:
        FedcrfError: The weights do not sum to 1, and are not all 0.
    """
    total = float(weights.sum())
    if weights.any() and not abs(total - 1) <= SUM_TOLERANCE:
        raise FedcrfError(
            f"the weights sum to {total:g}, not to 1: divide them by their sum, or give 0 for all "
            "to keep the model"
        )
    kept = finite.any() and not weights.any()
    return AggregationResult(
        state=average_states(model, reports, weights, coefficients),
        weights=weights,
        base_weights=base_weights(num_examples(reports), finite),
        excluded=~finite,
        memory=memory or {},
        kept_reason=reason if kept else None,
    )


def check_reports(model: State, reports: Sequence[ClientReport]) -> None:
    """Check that every report fits the global model.

    Raises:
        FedcrfError: No reports, or one whose tensors differ in name, shape or dtype; tensors that
            are not NumPy arrays; states or evidence that are not by name.
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
    """Return how a reported model differs from the global model in form; None if it does not."""
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
