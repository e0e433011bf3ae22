"""A rule whose aggregate is a step for a server optimizer (FedOpt)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Settings
from fedcrf.errors import FedcrfError
from fedcrf.rules.base import (
    BUFFERS,
    AggregationResult,
    ClientReport,
    Memory,
    Rule,
    State,
    aggregate_round,
    check_clients,
    is_buffer,
    wanted_evidence,
    with_secret_signs,
)
from fedcrf.rules.server_optimizers import ServerOptimizer
from fedcrf.statistics import is_floating

RULE = "rule"
"""Stands before the names of what the inner rule remembers."""


@dataclass(frozen=True)
class Optimized(Settings):
    """Any rule, with Δ = w_agg − w_t as pseudo-gradient (algorithm 2 of Reddi et al., ICLR 2021).

    Weights and reasons stay the rule's. Integer tensors and batch norm's running statistics are
    the rule's too: they are estimates and no parameters, and an adaptive step could make a variance
    negative. A round in which the rule keeps the model moves nothing, and the optimizer forgets it.

    Attributes:
        rule: Makes w_agg of the reports; may remember itself.
        optimizer: Makes a step of Δ.
        buffers: Last parts of the names of tensors that are not trained.
    """

    rule: Rule
    optimizer: ServerOptimizer
    buffers: tuple[str, ...] = BUFFERS

    @property
    def wanted_evidence(self) -> frozenset[str]:
        """What the rule looks at; see `EvidenceRule.wanted_evidence`."""
        return wanted_evidence(self.rule)

    def with_secret_signs(self, memory: Memory, seed: int) -> Optimized:
        """Ask the rule; see `SketchingRule.with_secret_signs`."""
        return replace(self, rule=with_secret_signs(self.rule, _named(memory, RULE), seed))

    def check_clients(self, num_clients: int) -> None:
        """Ask the rule; see `CountingRule.check_clients`."""
        check_clients(self.rule, num_clients)

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        """Return the model after the first step; see `Rule.aggregate`."""
        return self.aggregate_after({}, global_state, reports)

    def aggregate_after(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the model one step further; see `RememberingRule.aggregate_after`."""
        result = aggregate_round(self.rule, _named(memory, RULE), global_state, reports)
        kept = self._moments(memory, global_state)
        state = result.state
        if result.weights.any():
            state, kept = self._step(global_state, result.state, kept)
        return replace(result, state=state, memory=_Joined({RULE: result.memory, **kept}))

    def _step(
        self, global_state: State, aggregate: State, kept: Mapping[str, Memory]
    ) -> tuple[State, Mapping[str, Memory]]:
        """Return the next model, and by moment what is kept of every trained tensor."""
        state = dict(aggregate)
        after: dict[str, dict[str, NDArray[np.float64]]] = {moment: {} for moment in kept}
        for name in self._trained(global_state):
            before = global_state[name].astype(np.float64)
            moments = {moment: arrays[name] for moment, arrays in kept.items()}
            step, renewed = self.optimizer.step(aggregate[name] - before, moments)
            with np.errstate(over="ignore"):  # a model that diverges says so itself
                state[name] = np.asarray(before + step).astype(global_state[name].dtype)
            for moment, array in renewed.items():
                after[moment][name] = np.asarray(array)
        return state, after

    def _moments(self, memory: Memory, global_state: State) -> Mapping[str, Memory]:
        """Return by moment what is kept of every trained tensor: the memory's, or the first.

        Raises:
            FedcrfError: The memory is of another optimizer or another model.
        """
        shapes = {name: global_state[name].shape for name in self._trained(global_state)}
        moments = {}
        for moment, initial in self.optimizer.initial.items():
            arrays = {name: np.asarray(array) for name, array in _named(memory, moment).items()}
            if not memory:
                arrays = {name: np.full(shape, initial) for name, shape in shapes.items()}
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
        return [
            name
            for name, array in state.items()
            if is_floating(array.dtype) and not is_buffer(name, self.buffers)
        ]


def plain_rule(rule: object) -> object:
    """Return the rule behind any server optimizers; what is none of them as it is."""
    return plain_rule(rule.rule) if isinstance(rule, Optimized) else rule


class _Joined(Mapping[str, NDArray[Any]]):
    """One memory of several parts, each under its name and a dot; what they hold is not copied."""

    def __init__(self, parts: Mapping[str, Memory]) -> None:
        self.parts = parts

    def __getitem__(self, name: str) -> NDArray[Any]:
        part, _, rest = name.partition(".")
        return self.parts[part][rest]

    def __iter__(self) -> Iterator[str]:
        return (f"{part}.{name}" for part, memory in self.parts.items() for name in memory)

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))


def _named(memory: Memory, part: str) -> Memory:
    """Return what stands in the memory under a part's name."""
    if isinstance(memory, _Joined):
        return memory.parts.get(part, {})
    if not isinstance(memory, Mapping):
        raise FedcrfError(
            f"the memory is a {type(memory).__name__}: give the one this rule handed back, or "
            "an empty one to begin anew"
        )
    start = f"{part}."
    return {
        name.removeprefix(start): array for name, array in memory.items() if name.startswith(start)
    }
