"""A server outlasts a round that its rule cannot decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedcrf.errors import FedcrfError
from fedcrf.rules import (
    AggregationResult,
    ClientReport,
    CRFRobust,
    FedAvg,
    Memory,
    Rule,
    State,
    aggregate_or_keep,
)
from fedcrf.rules.base import weighted_result

MODEL = {"w": np.zeros(3, np.float32)}


def reports(*sizes: float) -> list[ClientReport]:
    return [
        ClientReport(client, {"w": np.full(3, 1.0 + client, np.float32)}, size)
        for client, size in enumerate(sizes)
    ]


@dataclass(frozen=True)
class Failing(Rule):
    """A rule with a mistake in it, which remembers."""

    error: Exception

    def aggregate(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        raise self.error


@pytest.mark.parametrize("rule", [FedAvg(), CRFRobust()], ids=lambda rule: type(rule).__name__)
def test_what_a_rule_decides_is_as_it_is(rule: Rule) -> None:
    kept = aggregate_or_keep(rule, rule.begin(), MODEL, reports(10, 30))
    plain = rule.aggregate(rule.begin(), MODEL, reports(10, 30))
    assert kept.kept_reason is None
    assert_array_equal(kept.state["w"], plain.state["w"])
    assert kept.memory.keys() == plain.memory.keys()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FedcrfError("too few\n of them"), "the rule failed: too few of them"),
        (
            ZeroDivisionError("by nothing"),
            "the rule failed: ZeroDivisionError: by nothing, at test_keep.py:"
            f"{Failing.aggregate.__code__.co_firstlineno + 3}",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_where_a_rule_raises_model_and_memory_stay(error: Exception, reason: str) -> None:
    memory = {"rounds": np.array(3)}
    some = reports(10, 30, 60)
    some[2] = replace(some[2], state={"w": np.array([1, np.nan, 1], np.float32)})
    result = aggregate_or_keep(Failing(error), memory, MODEL, some)
    assert result.kept_reason == reason
    assert result.state is MODEL
    assert result.memory is memory
    assert_array_equal(result.weights, [0, 0, 0])
    assert_array_equal(result.base_weights, [0.25, 0.75, 0])
    assert_array_equal(result.excluded, [False, False, True])


class Growing(FedAvg):
    """A rule whose step overflows."""

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        result = super().aggregate(memory, model, reports)
        return replace(
            result, state={"w": np.array([1, np.inf, 1], np.float32)}, memory={"a": MODEL["w"]}
        )


def test_a_next_model_that_is_not_finite_is_not_taken() -> None:
    memory = {"rounds": np.array(3)}
    result = aggregate_or_keep(Growing(), memory, MODEL, reports(10, 30))
    assert result.kept_reason == "the rule failed: its next model is not finite"
    assert result.state is MODEL
    assert result.memory is memory
    assert_array_equal(result.weights, [0, 0])
    assert_array_equal(result.base_weights, [0.25, 0.75])


@dataclass(frozen=True)
class Odd(FedAvg):
    """FedAvg that returns something else than a result has."""

    name_: str = ""
    value: object = None

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        result = super().aggregate(memory, model, reports)
        if not self.name_:
            return None  # type: ignore[return-value]
        return replace(result, **{self.name_: self.value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("", None, "TypeError: it returned a NoneType: return weighted_result"),
        ("state", {"w": np.ones(3)}, "its next model has 'w' as float64 (3,), the global model"),
        ("state", {}, "its next model has other tensors than the global model has: 'w'"),
        ("memory", None, "its memory is a NoneType: keep arrays by name"),
        ("memory", {"a": [[1], [1, 2]]}, "ValueError: setting an array element"),
        ("weights", np.ones((2, 1)), "its weights have shape (2, 1): give one for each report"),
        ("base_weights", [0.5, 0.5], "its base_weights are no array of numbers: return one"),
        ("base_weights", np.ones(1), "its base_weights have shape (1,)"),
        ("excluded", [False, False], "its excluded are no array of truth values: return one"),
    ],
)
def test_a_result_of_another_form_is_not_taken(name: str, value: object, reason: str) -> None:
    result = aggregate_or_keep(Odd(name_=name, value=value), {}, MODEL, reports(10, 30))
    assert result.kept_reason is not None
    assert reason in result.kept_reason
    assert result.state is MODEL
    assert_array_equal(result.weights, [0, 0])


@pytest.mark.parametrize(
    ("some", "reason"),
    [
        ([], "the rule failed: there are no reports to aggregate: give at least one"),
        (reports(-1, 2), "the rule failed: num_examples "),
        ([ClientReport(4, {"v": np.zeros(3, np.float32)}, 1)], "the rule failed: client 4 reports"),
        ([None], "the rule failed: a report is a NoneType"),
    ],
    ids=["none", "counts", "tensors", "no report"],
)
def test_reports_that_no_rule_takes_keep_the_model(some: list[ClientReport], reason: str) -> None:
    result = aggregate_or_keep(FedAvg(), {}, MODEL, some)
    assert result.kept_reason is not None
    assert result.kept_reason.startswith(reason)
    assert result.state is MODEL
    assert len(result.weights) == len(result.base_weights) == len(result.excluded) == len(some)
    assert not result.weights.any()


@dataclass(frozen=True)
class Weighing(Rule):
    """A rule of given weights."""

    weights: tuple[float, ...]

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        return weighted_result(model, reports, np.array(self.weights), np.ones(2, bool))


@pytest.mark.parametrize(
    ("weights", "total"),
    [((15.0, 5.0), "20"), ((0.2, 0.3), "0.5"), ((1.0, -1.0), "0"), ((np.nan, 1.0), "nan")],
)
def test_weights_that_do_not_sum_to_1_are_refused(weights: tuple[float, ...], total: str) -> None:
    said = (
        f"the weights sum to {total}, not to 1: divide them by their sum, or give 0 for all to "
        "keep the model"
    )
    with pytest.raises(FedcrfError) as caught:
        Weighing(weights).aggregate({}, MODEL, reports(1, 1))
    assert str(caught.value) == said
    kept = aggregate_or_keep(Weighing(weights), {}, MODEL, reports(1, 1))
    assert (kept.state, kept.kept_reason) == (MODEL, f"the rule failed: {said}")


@pytest.mark.parametrize("weights", [(0.0, 0.0), (1.5, -0.5), (0.1, np.float32(0.9))])
def test_weights_that_sum_to_1_or_are_all_0_are_taken(weights: tuple[float, ...]) -> None:
    result = Weighing(weights).aggregate({}, MODEL, reports(1, 1))
    assert_array_equal(result.weights, weights)


def test_what_is_no_error_of_the_rule_goes_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        aggregate_or_keep(Failing(KeyboardInterrupt()), {}, MODEL, reports(1))  # type: ignore[arg-type]
