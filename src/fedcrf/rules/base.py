"""A server rule: from the global model and the clients' reports to the next model.

`Rule` is the base of all; `Deciding` that of the package's, which decide on a `Round`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Settings, is_number
from fedcrf.crf import Posterior, base_weights
from fedcrf.crf.evidence import clip_factors
from fedcrf.crf.parts import Matrix as Matrix
from fedcrf.crf.parts import Vector as Vector
from fedcrf.errors import FedcrfError, failing, in_a_line
from fedcrf.rules.state import (
    FlatState,
    Layout,
    State,
    flattened,
    floating_layers,
    floating_names,
    layers_alike,
    merged,
)
from fedcrf.statistics import (
    ModelGeometry,
    UpdateGeometry,
    centred_geometry,
    model_geometry,
    projections,
    weighted_average,
)
from fedcrf.statistics.inputs import MANY_NUMBERS, Layers, finite_clients, is_real, is_torch_tensor
from fedcrf.statistics.one_pass import scatter

Memory = Mapping[str, NDArray[Any]]
"""What a rule keeps from one round for the next: arrays by name, which a checkpoint holds."""

CLIENTS = "clients"
"""Name in the memory of the array of identities; others have a row for each."""

ROUNDS = "rounds"
"""Name in the memory of the number of rounds that a rule drew for."""

RESIDUAL_LOSS = "residual_loss"
"""Evidence: the mean cross-entropy of a client's model on its own examples after training."""

LABEL_DIVERGENCE = "label_divergence"
"""Evidence: Σ p_c log(C p_c) of the label shares p of a client's own examples, over C classes."""

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Last parts of the names of tensors that are not trained, batch norm's."""


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
        clips: (m,) float64; what updates are multiplied by before they are weighed; None for 1.
    """

    state: State
    weights: Vector
    base_weights: Vector
    excluded: NDArray[np.bool_]
    posterior: Posterior | None = None
    memory: Memory = field(default_factory=dict)
    kept_reason: str | None = None
    clips: Vector | None = None

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
        """Return the rule, its unset settings filled with what only a simulation knows.

        So rules that need the number of attackers are compared at their best. ``attackers`` is how
        many of a round's ``num_clients`` attack, on average if they are drawn.

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

        ``state`` is the global model after local training on the server's examples. A rule that
        needs no `server_examples` is returned as it is.
        """
        return self

    def check_clients(self, num_clients: int) -> None:
        """Raise a `FedcrfError` if the rule cannot be used with so many clients a round.

        A simulation calls it before the first round. If fewer report in a round, the rule uses
        those; a server then logs the error once.
        """


def reported_evidence(
    reports: Sequence[ClientReport], wanted: Collection[str] | None = None
) -> dict[str, Vector]:
    """Return by name the (m,) evidence of the reports, NaN where a client gave no number.

    ``wanted`` are the names to return, since clients may report more; by default all.
    """
    names = {name for report in reports for name in report.evidence}
    if wanted is not None:
        names &= set(wanted)

    def number(value: Any) -> float:  # as it was given, also where it is not finite
        return value if isinstance(value, float) or is_number(value) else np.nan

    return {
        name: np.array([number(report.evidence.get(name)) for report in reports], np.float64)
        for name in sorted(names)
    }


def aggregate_or_keep(
    rule: Rule, memory: Memory, model: State, reports: Sequence[ClientReport]
) -> AggregationResult:
    """Let a rule decide; if that fails, or its model is not finite, keep model and memory.

    It is for servers, which must survive a round in which a rule fails. `kept_reason` is then the
    rule's error, all weights are 0, and only reports that are not finite are excluded.
    """
    try:
        result = rule.aggregate(memory, model, reports)
        check_result(result, model, len(reports))
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


def check_result(result: object, model: State, num_reports: int, *, kept: str = "") -> None:
    """Raise an error unless a rule returned a next model of the same form, and the weights.

    ``kept`` are the kinds of dtypes that its memory may hold beside real numbers; any by default.
    """
    if not isinstance(result, AggregationResult):
        raise TypeError(f"it returned a {type(result).__name__}: return weighted_result(…)")
    wrong = misfit_of(result.state, model)
    if wrong is not None:
        raise TypeError(f"its next model has {wrong}")
    check_kept(result.memory, kept)
    for name, kinds in (("weights", "fiu"), ("base_weights", "fiu"), ("excluded", "b")):
        given = getattr(result, name)
        if not isinstance(given, np.ndarray) or given.dtype.kind not in kinds:
            values = "truth values" if kinds == "b" else "numbers"
            raise TypeError(f"its {name} are no array of {values}: return one")
        if given.shape != (num_reports,):
            raise ValueError(f"its {name} have shape {given.shape}: give one for each report")


def check_kept(memory: object, kept: str = "") -> None:
    """Raise an error unless what a rule or an attack keeps are arrays by name.

    ``kept`` is as in `check_result`.
    """
    if not isinstance(memory, Mapping):
        raise TypeError(f"its memory is a {type(memory).__name__}: keep arrays by name")
    # Of other mappings, those of the package's rules, every array would be copied.
    for name, each in memory.items() if isinstance(memory, dict) else ():
        dtype = np.asarray(0.0 if is_torch_tensor(each) else each).dtype
        if kept and not is_real(dtype) and dtype.kind not in kept:
            of = f" of {dtype}" if isinstance(each, np.ndarray) else ""
            raise TypeError(
                f"its memory '{name}' is a {type(each).__name__}{of}: keep an array of numbers"
            )


def informed_rule(rule: Rule, attackers: int, num_clients: int, seed: int) -> Rule:
    """Return ``rule.informed(attackers, num_clients, seed)``; whatever it raises names the rule."""
    name = type(rule).__name__
    with failing(f"rule {name} failed ({{}})"):
        informed = rule.informed(attackers, num_clients, seed)
    if not isinstance(informed, Rule):
        raise FedcrfError(
            f"rule {name} failed (its informed() returns a {type(informed).__name__}): return a "
            "rule, such as self"
        )
    return informed


def by_client(memory: Memory, name: str) -> dict[int, Any]:
    """Return what a memory has under a name for each of its clients; nothing at first."""
    return dict(zip(memory[CLIENTS].tolist(), memory[name], strict=True)) if memory else {}


def kept_by_client(**kept: Mapping[int, Any]) -> Memory:
    """Return a memory of values by client, all of the same clients; without any an empty one."""
    clients = list(next(iter(kept.values())))
    if not clients:
        return {}
    values = {name: np.stack([*each.values()]) for name, each in kept.items()}
    return {CLIENTS: np.array(clients), **values}


def named(prefix: str, arrays: Memory) -> Memory:
    """Return the arrays whose names have this prefix, without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def is_buffer(name: str, buffers: Sequence[str] = BUFFERS) -> bool:
    """Tell whether a tensor of this name is not trained."""
    return name.rpartition(".")[2] in buffers


def finite_reports(model: State, reports: Sequence[ClientReport]) -> NDArray[np.bool_]:
    """Return (m,) bool: whether every number a client sent is finite; see `check_reports`."""
    return Round({}, model, reports).finite


def num_examples(reports: Sequence[ClientReport]) -> list[float]:
    """Return the counts n_i of the reports."""
    return [report.num_examples for report in reports]


def average_states(
    model: State,
    reports: Sequence[ClientReport],
    weights: Vector,
    coefficients: Vector | None = None,
) -> State:
    """Return w_t + Σ c_i (w_i − w_t) over every tensor of the model; w_t where all weights are 0.

    Args:
        model: w_t.
        reports: The w_i.
        weights: (m,) α, with which integer tensors are averaged, and rounded to nearest.
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
    """Return w_t moved by a (d,) step over its floating-point tensors, in the model's order.

    The integer tensors are those of another model.
    """
    state, start = dict(others), 0
    for name in floating_names(model):
        array = model[name]
        part = step[start : start + array.size].reshape(array.shape)
        start += array.size
        with np.errstate(over="ignore"):  # a step may leave what the dtype holds
            state[name] = np.asarray(array + part).astype(array.dtype)
    return flattened({name: state[name] for name in model})


def weighted_result(
    model: State,
    reports: Sequence[ClientReport],
    weights: Vector,
    finite: NDArray[np.bool_],
    coefficients: Vector | None = None,
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
    if weights.any() and not abs(total - 1) <= 1e-5:  # those of float32 are rounded
        raise FedcrfError(
            f"the weights sum to {total:g}, not to 1: divide them by their sum, or give 0 for all "
            "to keep the model"
        )
    kept = finite.any() and not weights.any()
    weighed = weights != 0
    clips = None
    if coefficients is not None:
        clips = np.where(weighed, coefficients / np.where(weighed, weights, 1.0), 1.0)
    return AggregationResult(
        state=average_states(model, reports, weights, coefficients),
        weights=weights,
        base_weights=base_weights(num_examples(reports), finite),
        excluded=~finite,
        memory=memory or {},
        kept_reason=reason if kept else None,
        clips=clips,
    )


def check_memory(memory: object) -> None:
    """Raise a `FedcrfError` unless a memory is arrays by name."""
    if not isinstance(memory, Mapping):
        raise FedcrfError(
            f"the memory is a {type(memory).__name__}: give the one that this rule returned, or "
            "an empty one to begin anew"
        )


def check_reports(model: State, reports: Sequence[ClientReport]) -> None:
    """Check that every report fits the global model.

    Raises:
        FedcrfError: No reports, or one whose tensors differ in name, shape or dtype; tensors that
            are not NumPy arrays of real numbers; states or evidence that are not by name.
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
            if not is_real(tensor.dtype):
                raise FedcrfError(f"'{name}' of {who} holds {tensor.dtype}: give real numbers")
        misfit = misfit_of(state, model)
        if misfit is not None:
            raise FedcrfError(f"{who} reports {misfit}")


def misfit_of(state: State, model: State) -> str | None:
    """Return what a model has that is not of the global model's form; None if all is."""
    if isinstance(state, FlatState) and state.layout == Layout.of(model):
        return None
    if state.keys() != model.keys():
        odd = sorted(state.keys() ^ model.keys())[0]
        return f"other tensors than the global model has: '{odd}' is in one of them only"
    for name, expected in model.items():
        got = state[name]
        if (got.shape, got.dtype) != (expected.shape, expected.dtype):
            return (
                f"'{name}' as {got.dtype} {got.shape}, "
                f"the global model has {expected.dtype} {expected.shape}"
            )
    return None


class _LateExclusionError(Exception):
    """A statistic excludes a report after a rule has asked who is finite."""

    def __init__(self, finite: NDArray[np.bool_]) -> None:
        super().__init__(finite)
        self.finite = finite


class Round:
    """A round as a rule sees it: its reports, and what is computed of them on first use.

    Its attributes ``memory``, ``model`` and ``reports`` are what it is given; ``states`` are the m
    models.

    Args:
        memory: See `Rule.aggregate`; None is taken for an empty one.
        model: The model w_t that the clients started from.
        reports: At least one report.
        finite: (m,) bool; who may have weight, as far as is known. By default it is found out when
            a rule asks.

    Raises:
        FedcrfError: No reports, one that does not fit the global model, or no memory by names.
    """

    def __init__(
        self,
        memory: Memory | None,
        model: State,
        reports: Sequence[ClientReport],
        finite: NDArray[np.bool_] | None = None,
    ) -> None:
        check_reports(model, reports)
        memory = {} if memory is None else memory
        check_memory(memory)
        self.memory, self.model, self.reports = memory, model, reports
        self.states = [report.state for report in reports]
        self._finite, self._asked = finite, False

    @cached_property
    def layers(self) -> tuple[list[Layers], Layers]:
        """The layers of the clients' models and those of the global one."""
        origin, *models = layers_alike(self.model, [self.model, *self.states])
        return models, origin

    @property
    def finite(self) -> NDArray[np.bool_]:
        """(m,) who may have weight.

        `geometry`, `products` and `norms` also exclude reports whose length overflows.
        """
        self._asked = True
        if self._finite is None:
            layers = [floating_layers(state, self.model) for state in self.states]
            self._finite = finite_clients(layers)
        return self._finite

    def restrict_to(self, finite: NDArray[np.bool_]) -> None:
        """Exclude all other reports, (m,) bool, beside those that are excluded already.

        A rule that has asked who is finite may have counted on them. So this raises then, and
        `Deciding.aggregate` asks the rule again, without them.
        """
        before = finite if self._finite is None else self._finite
        self._finite = before & finite
        if self._asked and (before & ~finite).any():
            raise _LateExclusionError(self._finite)

    @cached_property
    def geometry(self) -> UpdateGeometry:
        """Lengths and angles of the updates about their mean, which is all that distances need."""
        geometry = centred_geometry(*self.layers)
        self.restrict_to(geometry.finite)
        return geometry

    @cached_property
    def products(self) -> ModelGeometry:
        """The inner products of the updates and of the global model."""
        products = model_geometry(*self.layers)
        self.restrict_to(products.finite)
        return products

    @cached_property
    def norms(self) -> Vector:
        """(m,) the updates' lengths; NaN of those that are not finite."""
        squares, _ = projections(*self.layers, numbers=MANY_NUMBERS)
        finite = np.isfinite(squares)
        self.restrict_to(finite)
        return np.sqrt(squares, out=np.full(len(squares), np.nan), where=finite)

    @property
    def used(self) -> NDArray[np.intp]:
        """(n,) the places of the finite reports."""
        return np.flatnonzero(self.finite)

    @property
    def clients(self) -> list[int]:
        """The identities of the n finite clients."""
        return [self.reports[i].client for i in self.used.tolist()]

    @property
    def finite_states(self) -> list[State]:
        """The n finite models."""
        return [self.states[i] for i in self.used.tolist()]

    @property
    def finite_layers(self) -> list[Layers]:
        """The layers of the n finite models."""
        return [self.layers[0][i] for i in self.used.tolist()]

    @property
    def shares(self) -> Vector:
        """(m,) FedAvg's weights."""
        return base_weights(num_examples(self.reports), self.finite)

    def among_used(self, gram: Matrix) -> Matrix:
        """Return the (n, n) part of an (m, m) matrix that is of the finite clients."""
        return gram[np.ix_(self.used, self.used)]

    def spread(self, values: Vector) -> Vector:
        """Return (m,) what the n finite clients have; 0 for the others."""
        return scatter(values, self.finite, 0.0)

    def in_order(self, scores: Vector) -> NDArray[np.intp]:
        """Return the places of the n finite clients by their scores, equal ones by identity."""
        return np.lexsort((np.array(self.clients), scores))

    def equal_weights(self, chosen: NDArray[np.bool_]) -> Vector:
        """Return (m,) equal weights of those chosen, (n,), of the finite clients."""
        return self.spread(chosen / max(1, chosen.sum()))

    def recalled(self, name: str, shape: tuple[int, ...] = ()) -> Vector:
        """Return (n, *shape) what the memory keeps of the finite clients; NaN of one that is new.

        Raises:
            FedcrfError: The memory is of another rule or model.
        """
        known, kept = (np.asarray(self.memory.get(each)) for each in (CLIENTS, name))
        fits = known.ndim == 1 and kept.shape == (len(known), *shape) and kept.dtype.kind in "iuf"
        if self.memory and not fits:
            raise FedcrfError(
                f"the memory holds no '{name}' of clients of this model: give that of the round "
                "before, or none to begin anew"
            )
        before, new = by_client(self.memory, name), np.full(shape, np.nan)
        rows = [before.get(client, new) for client in self.clients]
        return np.array(rows).reshape(len(rows), *shape)

    def remembered(self, **renewed: Vector) -> Memory:
        """Return the memory with new rows, (n, …) by name, of the finite clients."""
        kept = {}
        for name, rows in renewed.items():
            known = by_client(self.memory, name) | dict(zip(self.clients, rows, strict=True))
            kept[name] = dict(sorted(known.items()))
        return kept_by_client(**kept)

    def kept(self, rule: str, shapes: Mapping[str, tuple[int, ...]]) -> Memory:
        """Return the memory as a rule of that name keeps it; an empty one in the first round.

        Raises:
            FedcrfError: Its arrays have other names or shapes, or hold no numbers.
        """
        memory = {name: np.asarray(array) for name, array in self.memory.items()}
        fits = {name: array.shape for name, array in memory.items()} == dict(shapes) and all(
            array.dtype.kind in "iuf" for array in memory.values()
        )
        if memory and not fits:
            raise FedcrfError(
                f"the memory is not of {rule} and this model: give that of the round before, or "
                "none to begin anew"
            )
        return memory

    @property
    def rounds(self) -> int:
        """How many rounds a rule has drawn for, as it remembers; 0 in the first.

        Raises:
            FedcrfError: The memory is of another rule.
        """
        rounds = np.asarray(self.memory.get(ROUNDS, 0))
        if rounds.shape or rounds.dtype.kind not in "iu" or rounds < 0:
            raise FedcrfError(
                "the memory does not count rounds: give that of the round before, or none to begin "
                "anew"
            )
        return int(rounds)

    def drawing(self, seed: int | None) -> tuple[np.random.Generator, Memory]:
        """Return a generator that is new in every round, and the memory for the next round."""
        rounds = self.rounds
        draws = np.random.default_rng(np.random.SeedSequence([seed or 0, rounds]))
        return draws, {ROUNDS: np.array(rounds + 1)}

    def weighted(
        self,
        weights: Vector,
        coefficients: Vector | None = None,
        memory: Memory | None = None,
        reason: str | None = None,
    ) -> AggregationResult:
        """Return the result of weights; see `weighted_result`."""
        return weighted_result(
            self.model, self.reports, weights, self.finite, coefficients, memory, reason
        )

    def clipped(
        self, chosen: NDArray[np.bool_], norms: Vector, longest: float, memory: Memory, reason: str
    ) -> AggregationResult:
        """Return the plain mean of the chosen, (n,), of (m,) updates clipped to a length."""
        weights = self.equal_weights(chosen)
        clips = np.where(weights > 0, clip_factors(norms, self.finite, longest), 0.0)
        return self.weighted(weights, weights * clips, memory, reason)

    def nobody(self, memory: Memory | None = None) -> AggregationResult:
        """Return the result where no report is finite: the model stays."""
        return self.weighted(np.zeros(len(self.reports)), memory=memory)

    def without_weights(self, state: State, memory: Memory | None = None) -> AggregationResult:
        """Return the result of a rule for which a report has no single weight."""
        return AggregationResult(
            state=state,
            weights=np.where(self.finite, np.nan, 0.0),
            base_weights=self.shares,
            excluded=~self.finite,
            memory=memory or {},
        )


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


class Deciding(Rule):
    """A rule that decides on a `Round`.

    If its settings ``num_byzantine`` or ``attackers`` (f) and ``seed`` are None, a run gives them
    its number of attackers and its seed; outside a run they are 0. Half of the clients or more
    cannot be Byzantine.
    """

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Return the rule informed of f and the seed; see `Rule.informed`."""
        known = {"num_byzantine": attackers, "attackers": attackers, "seed": seed}
        names = {each.name for each in fields(self)} & known.keys()
        missing = {name: known[name] for name in names if getattr(self, name) is None}
        rule = replace(self, **missing) if missing else self
        if names - {"seed"}:
            rule.check_clients(num_clients)
        return rule

    def check_clients(self, num_clients: int) -> None:
        """Raise a `FedcrfError` if half of so many clients or more are Byzantine."""
        attackers = getattr(self, "num_byzantine", None) or 0
        check_honest_majority(self, "num_byzantine", attackers, num_clients)

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the next global model, with weights and reasons; see `Rule.aggregate`."""
        finite = None
        while True:  # ends, since each time fewer reports are left
            try:
                return self.decide(Round(memory, model, reports, finite))
            except _LateExclusionError as late:
                finite = late.finite  # of the round that excludes it, which the rule may have made

    @abstractmethod
    def decide(self, given: Round) -> AggregationResult:
        """Return the next global model, with weights and reasons.

        If a statistic excludes a report after ``given.finite`` was asked for, this is called again
        without that report.
        """
