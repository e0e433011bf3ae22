"""Rules around another rule: a server optimizer behind it, or judgement by some tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Names
from fedcrf.errors import FedcrfError
from fedcrf.rules.base import (
    BUFFERS,
    AggregationResult,
    ClientReport,
    Memory,
    Rule,
    average_states,
    check_memory,
    finite_reports,
    informed_rule,
    is_buffer,
    named,
)
from fedcrf.rules.server_optimizers import FedExP, ServerOptimizer, Tensor
from fedcrf.rules.state import State, floating_names
from fedcrf.statistics import is_floating, projections

BEHIND = "+"
"""Joins the names of a rule and of its server optimizer."""

RULE = "rule"
"""Prefix of the names in the inner rule's memory."""


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
        return replace(self, rule=informed_rule(self.rule, attackers, num_clients, seed))

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


@dataclass(frozen=True)
class Optimized(Wrapper):
    """Any rule, with Δ = w_agg − w_t as pseudo-gradient (algorithm 2 of Reddi et al., ICLR 2021).

    Weights and reasons stay the rule's. So do integer tensors and batch norm's running statistics:
    they are estimates, not parameters, and an adaptive step could make a variance negative. A round
    in which the rule keeps the model changes neither the model nor the optimizer's moments.

    Attributes:
        rule: Computes w_agg from the reports; it may have a memory of its own.
        optimizer: Computes a step from Δ.
        buffers: Last parts of the names of tensors that are not trained.
    """

    optimizer: ServerOptimizer
    buffers: Names = BUFFERS

    @property
    def name(self) -> str:
        """The rule's name, then the optimizer's."""
        return f"{self.rule.name}{BEHIND}{type(self.optimizer).__name__}"

    def begin(self) -> Memory:
        """Return the inner rule's memory; the optimizer's needs the model's shapes."""
        return _Joined({RULE: self.rule.begin()})

    def with_secret_signs(self, memory: Memory, seed: int) -> Self:
        """Give the inner rule secret signs; see `Rule.with_secret_signs`."""
        return super().with_secret_signs(_part(memory, RULE), seed)

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the model one step further; see `Rule.aggregate`."""
        result = self.rule.aggregate(_part(memory, RULE), model, reports)
        kept = self._moments(memory, model)
        if not result.weights.any():
            return replace(result, memory=_Joined({RULE: result.memory, **kept}))
        rate, state = self._rate(model, reports, result), dict(result.state)
        for name in self._trained(model):
            before = model[name].astype(np.float64)
            moments = {moment: arrays[name] for moment, arrays in kept.items()}
            with np.errstate(over="ignore"):  # a diverging model becomes infinite, without warning
                step, renewed = self.optimizer.step(state[name] - before, moments)
                state[name] = np.asarray(before + rate * step).astype(model[name].dtype)
            for moment, array in renewed.items():
                kept[moment][name] = np.asarray(array)
        return replace(result, state=state, memory=_Joined({RULE: result.memory, **kept}))

    def _rate(
        self, model: State, reports: Sequence[ClientReport], result: AggregationResult
    ) -> float:
        """Return what steps are multiplied by: 1, but for an optimizer of the updates' norms."""
        if not isinstance(self.optimizer, FedExP):
            return 1.0
        names = self._trained(model)
        unweighed = np.isnan(result.weights)
        used = np.flatnonzero(unweighed | (result.weights != 0)).tolist()
        layers = [
            [state[name].reshape(-1) for name in names]
            for state in (model, result.state, *(reports[i].state for i in used))
        ]
        squares, _ = projections(layers[1:], layers[0])
        if unweighed.any():  # no mean of the updates: a long one must not lengthen the step
            return self.optimizer.rate(float(np.median(squares[1:])), float(squares[0]))
        share = result.weights[used] / result.weights[used].sum()
        if result.clips is not None:
            share = share * result.clips[used] ** 2
        return self.optimizer.rate(float(share @ squares[1:]), float(squares[0]))

    def _moments(self, memory: Memory, model: State) -> dict[str, dict[str, Tensor]]:
        """Return by moment what is kept of every trained tensor: the memory's, or the first.

        Raises:
            FedcrfError: The memory is of another optimizer or another model.
        """
        shapes = {name: model[name].shape for name in self._trained(model)}
        if not memory or set(memory) == set(self.begin()):  # the first round
            return {
                moment: {name: np.full(shape, initial) for name, shape in shapes.items()}
                for moment, initial in self.optimizer.initial.items()
            }
        moments = {}
        for moment in self.optimizer.initial:
            arrays = {name: np.asarray(array) for name, array in _part(memory, moment).items()}
            numbers = all(
                array.dtype.kind == "f" and np.isfinite(array).all() for array in arrays.values()
            )
            if {name: array.shape for name, array in arrays.items()} != shapes or not numbers:
                raise FedcrfError(
                    f"the memory holds no '{moment}' of this model's tensors: "
                    "give that of the same server optimizer and model, or none to begin anew"
                )
            moments[moment] = arrays
        return moments

    def _trained(self, state: State) -> list[str]:
        """Return the names of the tensors that the optimizer steps."""
        return [name for name in floating_names(state) if not is_buffer(name, self.buffers)]


class _Joined(Mapping[str, NDArray[Any]]):
    """One memory of several parts, each under its name and a dot.

    It keeps the parts as they are: a rule need not check what it returned itself.
    """

    def __init__(self, parts: Mapping[str, Memory]) -> None:
        self.parts = parts

    def __getitem__(self, name: str) -> NDArray[Any]:
        part, _, rest = name.partition(".")
        return self.parts[part][rest]

    def __iter__(self) -> Iterator[str]:
        return (f"{part}.{name}" for part, memory in self.parts.items() for name in memory)

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))


def _part(memory: Memory, part: str) -> Memory:
    """Return one part of the memory."""
    if isinstance(memory, _Joined):
        return memory.parts.get(part, {})
    check_memory(memory)
    return named(f"{part}.", memory)


@dataclass(frozen=True)
class Judged(Wrapper):
    """A rule that gets only some tensors of the model; its weights average the others too.

    The rule must give weights. A report that is not finite in any tensor gets weight 0. The
    others move by Σ α_i s_i u_i, with the rule's weights α_i, which need not sum to 1 (FedNova's),
    and its clips s_i, 1 where it has none. Those that are not trained or not of floats are averaged
    with the weights scaled to sum to 1.

    Attributes:
        rule: Weighs the clients.
        judged: Names of the tensors that it gets; at least one of floating-point numbers.
    """

    judged: frozenset[str]

    def with_server_model(self, state: State) -> Rule:
        """Give the rule the judged tensors of the server's model; see `Rule.with_server_model`."""
        return super().with_server_model(self._seen(state))

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
        result = self.rule.aggregate(memory, self._seen(model), seen)
        if np.isnan(result.weights).any():
            raise FedcrfError(
                f"{self.name} gives clients no weights, which tensors that are not judged are "
                "averaged with: leave judge= out, or choose a rule that weighs clients"
            )
        averaged = {**result.state, **self._others(model, reports, result)}
        return replace(result, state={name: averaged[name] for name in model})

    def _others(
        self, model: State, reports: Sequence[ClientReport], result: AggregationResult
    ) -> State:
        """Return the averages of the tensors that are not judged."""
        weights = result.weights
        clipped = weights if result.clips is None else weights * np.nan_to_num(result.clips)
        total = weights.sum()
        shares = weights if not total or np.isclose(total, 1.0) else weights / total
        others = {name: array for name, array in model.items() if name not in self.judged}
        buffers = {name: array for name, array in others.items() if is_buffer(name)}
        trained = {name: array for name, array in others.items() if name not in buffers}
        return {
            **average_states(buffers, reports, shares),
            **average_states(trained, reports, shares, clipped),
        }

    def _seen(self, state: State, finite: bool = True) -> State:
        """Return the judged tensors, NaN unless the report is finite in all tensors."""
        return {
            name: array if finite or not is_floating(array.dtype) else np.full_like(array, np.nan)
            for name, array in state.items()
            if name in self.judged
        }
