"""Every server rule against an independent slow version, and the properties all of them share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from crf.slow_robust import SlowRobust, reported_trust
from fedcrf import ClientCRF, FedcrfError
from fedcrf.rules import (
    CRF,
    RFA,
    RULES,
    Adam,
    ClientReport,
    CoordinateMedian,
    CRFEvidence,
    CRFRobust,
    CRFRobustEvidence,
    FedAvg,
    FedNova,
    GeometricMedian,
    Krum,
    MultiKrum,
    Optimized,
    Rule,
    State,
    TrimmedMean,
    Uniform,
    with_secret_signs,
)
from paper import reference

DTYPES = ("float16", "float32", "float64")
# A unit in the last place or two of numbers up to 8; the iterations of Weiszfeld lose some more.
TOLERANCE = {"float16": 2**-7, "float32": 2**-20, "float64": 1e-7}


def random_state(rng: np.random.Generator, dtype: str, scale: float = 1.0) -> dict[str, Any]:
    """A model of two layers, running statistics between them and two integer buffers."""
    return {
        "first.weight": (scale * rng.standard_normal((4, 3))).astype(dtype),
        "first.bias": (scale * rng.standard_normal(4)).astype(dtype),
        "norm.running_var": rng.uniform(0.5, 2.0, 4).astype(dtype),
        # 0-d, as torch keeps num_batches_tracked.
        "norm.num_batches_tracked": np.array(rng.integers(0, 1000)),
        "last.weight": (scale * rng.standard_normal((2, 4))).astype(dtype),
        "last.table": rng.integers(-50, 50, (2, 3)),
    }


@dataclass(frozen=True)
class Round:
    global_state: State
    reports: list[ClientReport]

    @property
    def counts(self) -> list[int]:
        return [report.num_examples for report in self.reports]

    def aggregate(self, rule: Rule) -> Any:
        return rule.aggregate(self.global_state, self.reports)


def random_round(seed: int, m: int, dtype: str = "float32", zero_count: bool = False) -> Round:
    rng = np.random.default_rng(seed)
    origin = random_state(rng, dtype)
    reports = []
    for client in range(m):
        update = random_state(rng, dtype, scale=rng.uniform(0.1, 1.0))
        state = {
            name: array if array.dtype.kind == "i" else (origin[name] + update[name]).astype(dtype)
            for name, array in update.items()
        }
        count = 0 if zero_count and client == 1 else int(rng.integers(1, 500))
        steps = float(rng.uniform(0.5, 20.0))
        evidence = {"residual_loss": 0.3 * client**2} if client != 2 else {}
        reports.append(ClientReport(client * 3, state, count, steps, evidence))
    return Round(origin, reports)


def spoil(round_: Round, clients: Sequence[int], value: float) -> Round:
    """The same round, but these reports hold one number that is not finite."""
    reports = list(round_.reports)
    for client in clients:
        state = {name: array.copy() for name, array in reports[client].state.items()}
        state["norm.running_var"][2] = value
        reports[client] = replace(reports[client], state=state)
    return Round(round_.global_state, reports)


Slow = Callable[[Round], tuple[list[float], State]]
"""From a round whose reports are all finite to the weights and the model."""


# The slow versions: plain loops over Python floats, which are float64


def numbers_of(state: State) -> list[float]:
    """Return every floating-point number of a state, tensor by tensor."""
    return [
        float(number)
        for array in state.values()
        if array.dtype.kind == "f"
        for number in array.flatten()
    ]


def slow_average(states: Sequence[State], weights: Sequence[float]) -> dict[str, NDArray[Any]]:
    average = {}
    for name, first in states[0].items():
        numbers = []
        for place in range(first.size):
            total = 0.0
            for state, weight in zip(states, weights, strict=True):
                if weight != 0.0:
                    total += weight * float(state[name].flatten()[place])
            numbers.append(round(total) if first.dtype.kind == "i" else total)
        average[name] = np.array(numbers, dtype=first.dtype).reshape(first.shape)
    return average


def usable(round_: Round) -> list[bool]:
    return [all(map(math.isfinite, numbers_of(report.state))) for report in round_.reports]


def slow_shares(counts: Sequence[float], usable: Sequence[bool]) -> list[float]:
    total = sum(count for count, use in zip(counts, usable, strict=True) if use)
    return [count / total if use else 0.0 for count, use in zip(counts, usable, strict=True)]


def updates_of(round_: Round) -> list[list[float]]:
    origin = numbers_of(round_.global_state)
    return [
        [ours - theirs for ours, theirs in zip(numbers_of(report.state), origin, strict=True)]
        for report in round_.reports
    ]


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def combine(vectors: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    return [
        math.fsum(weight * number for weight, number in zip(weights, column, strict=True))
        for column in zip(*vectors, strict=True)
    ]


def slow_fedavg(round_: Round) -> list[float]:
    return slow_shares(round_.counts, usable(round_))


def slow_uniform(round_: Round) -> list[float]:
    return slow_shares([1.0] * len(round_.reports), usable(round_))


def slow_weiszfeld(
    points: list[list[float]], shares: list[float], floor: float, iterations: int, tolerance: float
) -> list[float]:
    """Move z itself, in all its d dimensions."""
    weights, z = shares, combine(points, shares)
    for _ in range(iterations):
        pull = [
            share / max(floor, distance(z, point))
            for share, point in zip(shares, points, strict=True)
        ]
        weights = [each / math.fsum(pull) for each in pull]
        before, z = z, combine(points, weights)
        if distance(z, before) <= tolerance * distance(z, [0.0] * len(z)):
            break
    return weights


def slow_geometric_median(round_: Round) -> list[float]:
    return slow_weiszfeld(updates_of(round_), slow_uniform(round_), 1e-12, 50, 1e-6)


def slow_rfa(round_: Round) -> list[float]:
    return slow_weiszfeld(updates_of(round_), slow_fedavg(round_), 1e-6, 3, 0.0)


def slow_krum(num_byzantine: int, selected: int | None) -> Callable[[Round], list[float]]:
    def weights(round_: Round) -> list[float]:
        updates = updates_of(round_)
        m = len(updates)
        scores = []
        for one in range(m):
            others = sorted(
                distance(updates[one], updates[other]) ** 2 for other in range(m) if other != one
            )
            scores.append(math.fsum(others[: max(1, m - num_byzantine - 2)]))
        count = max(1, m - num_byzantine) if selected is None else selected
        chosen = sorted(range(m), key=lambda client: scores[client])[:count]
        return [1.0 / count if client in chosen else 0.0 for client in range(m)]

    return weights


def slow_crf(**settings: Any) -> Callable[[Round], list[float]]:
    def weights(round_: Round) -> list[float]:
        found = reference.infer(updates_of(round_), round_.counts, **settings)
        return [float(weight) for weight in found.weights]

    return weights


def averaged(weights: Callable[[Round], list[float]]) -> Slow:
    """The slow version of a rule that only weighs the reports."""

    def slow(round_: Round) -> tuple[list[float], State]:
        found = weights(round_)
        return found, slow_average([report.state for report in round_.reports], found)

    return slow


def by_coordinate(pick: Callable[[list[float]], float]) -> Slow:
    """The slow version of a rule that looks at the sorted values of one coordinate at a time."""

    def slow(round_: Round) -> tuple[list[float], State]:
        state = {}
        for name, first in round_.global_state.items():
            columns = zip(*(report.state[name].flatten() for report in round_.reports), strict=True)
            numbers = [pick(sorted(map(float, column))) for column in columns]
            if first.dtype.kind == "i":
                numbers = [float(round(number)) for number in numbers]
            state[name] = np.array(numbers, dtype=first.dtype).reshape(first.shape)
        return [math.nan] * len(round_.reports), state

    return slow


def middle(values: list[float]) -> float:
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def trimmed(fraction: float) -> Callable[[list[float]], float]:
    def mean(values: list[float]) -> float:
        cut = int(fraction * len(values))
        kept = values[cut : len(values) - cut]
        return math.fsum(kept) / len(kept)

    return mean


def slow_fednova(normalise_buffers: bool) -> Slow:
    def slow(round_: Round) -> tuple[list[float], State]:
        shares = slow_fedavg(round_)
        steps = [report.effective_steps for report in round_.reports]
        effective = math.fsum(share * a for share, a in zip(shares, steps, strict=True))
        coefficients = [effective * share / a for share, a in zip(shares, steps, strict=True)]
        plain = slow_average([report.state for report in round_.reports], shares)
        state = {}
        for name, origin in round_.global_state.items():
            if name.startswith("norm.") and not normalise_buffers:
                state[name] = plain[name]
                continue
            moved = origin.astype(np.float64).copy()
            for report, coefficient in zip(round_.reports, coefficients, strict=True):
                moved += coefficient * (report.state[name].astype(np.float64) - origin)
            state[name] = (np.round(moved) if origin.dtype.kind == "i" else moved).astype(
                origin.dtype
            )
        return coefficients, state

    return slow


def slow_robust(heed_evidence: bool = False, **settings: Any) -> Slow:
    """The robust CRF's first round."""

    def slow(round_: Round) -> tuple[list[float], State]:
        clients = [report.client for report in round_.reports]
        reported = {each.client: each.evidence.get("residual_loss") for each in round_.reports}
        weights, moved = SlowRobust(**settings).round(
            numbers_of(round_.global_state),
            dict(zip(clients, updates_of(round_), strict=True)),
            dict(zip(clients, round_.counts, strict=True)),
            reported if heed_evidence else None,
        )
        found = [weights[client] for client in clients]
        state, start = slow_average([report.state for report in round_.reports], found), 0
        for name, array in round_.global_state.items():
            if array.dtype.kind == "f":
                part = np.array(moved[start : start + array.size])
                state[name] = part.astype(array.dtype).reshape(array.shape)
                start += array.size
        return found, state

    return slow


def slow_evidence(round_: Round) -> list[float]:
    trust = reported_trust([report.evidence.get("residual_loss") for report in round_.reports])
    return slow_shares([n * f for n, f in zip(round_.counts, trust, strict=True)], usable(round_))


OTHER_ROBUST: dict[str, Any] = {
    "labels": (0.0, 1.0),
    "inclination": 1.0,
    "opposition_strength": 5.0,
    "opposition_tolerance": 0.0,
    "vote_power": 2.0,
    "copy_power": 3.0,
    "spread": 0.5,
    "norm_strength": 3.0,
    "norm_exponent": 0.1,
    "norm_threshold": 0.2,
    "clip": 1.1,
    "count_cap": 1.2,
    "iterations": 4,
    "damping": 0.25,
}
OTHER_CRF: dict[str, Any] = {
    "labels": (0.0, 0.5, 2.0),
    "pairwise_strength": 1.5,
    "bandwidth": 0.2,
    "iterations": 3,
    "reliability_gate": False,
    "weight_by_examples": False,
}


@dataclass(frozen=True)
class Row:
    """A rule, and the weights and the model it must come to, slowly."""

    rule: Rule
    slow: Slow


# A new rule is a row here: a rule of RULES without one fails `test_every_rule_has_a_row`.
ROWS: Mapping[str, Row] = {
    "fedavg": Row(FedAvg(), averaged(slow_fedavg)),
    "uniform": Row(Uniform(), averaged(slow_uniform)),
    "fednova": Row(FedNova(), slow_fednova(normalise_buffers=False)),
    "fednova, buffers too": Row(
        FedNova(normalise_buffers=True), slow_fednova(normalise_buffers=True)
    ),
    "coordinate-median": Row(CoordinateMedian(), by_coordinate(middle)),
    "trimmed-mean": Row(TrimmedMean(), by_coordinate(trimmed(0.1))),
    "trimmed-mean, a third": Row(TrimmedMean(0.34), by_coordinate(trimmed(0.34))),
    "geometric-median": Row(GeometricMedian(), averaged(slow_geometric_median)),
    "rfa": Row(RFA(), averaged(slow_rfa)),
    "krum": Row(Krum(), averaged(slow_krum(0, 1))),
    "krum, two bad": Row(Krum(2), averaged(slow_krum(2, 1))),
    "multi-krum": Row(MultiKrum(3), averaged(slow_krum(3, None))),
    "crf": Row(CRF(), averaged(slow_crf())),
    "crf-robust": Row(CRFRobust(), slow_robust()),
    "crf-robust, other settings": Row(CRFRobust(**OTHER_ROBUST), slow_robust(**OTHER_ROBUST)),
    "crf-evidence": Row(CRFEvidence(), averaged(slow_evidence)),
    "crf-robust-evidence": Row(CRFRobustEvidence(), slow_robust(heed_evidence=True)),
    "crf, other settings": Row(CRF(**OTHER_CRF), averaged(slow_crf(**OTHER_CRF))),
}
every_rule = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def test_every_rule_has_a_row() -> None:
    assert set(RULES.values()) == {type(row.rule) for row in ROWS.values()}


def same_states(state: State, expected: State, tolerance: float) -> None:
    assert list(state) == list(expected)
    for name, array in expected.items():
        assert state[name].shape == array.shape
        assert state[name].dtype == array.dtype
        if array.dtype.kind == "i":
            assert_array_equal(state[name], array, err_msg=name)
        else:
            assert_allclose(state[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


@every_rule
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("seed", "m"), [(0, 1), (1, 2), (2, 3), (3, 10)])
def test_against_the_slow_version(row: Row, dtype: str, seed: int, m: int) -> None:
    round_ = random_round(seed, m, dtype, zero_count=m > 2)
    result = round_.aggregate(row.rule)
    weights, state = row.slow(round_)
    assert_allclose(result.weights, weights, rtol=1e-7, atol=1e-12)
    assert_allclose(result.base_weights, slow_fedavg(round_), rtol=1e-12)
    assert not result.excluded.any()
    same_states(result.state, state, TOLERANCE[dtype])


def test_integers_are_rounded_to_nearest() -> None:
    # Truncation would give 2 and -2.
    states = [{"w": np.zeros(1), "n": np.array([low, -low])} for low in (2, 3, 3)]
    reports = [ClientReport(client, state, 1) for client, state in enumerate(states)]
    result = FedAvg().aggregate({"w": np.zeros(1), "n": np.array([0, 0])}, reports)
    assert_array_equal(result.state["n"], [3, -3])
    assert result.state["n"].dtype == np.int64


@every_rule
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_report_that_is_not_finite_touches_nothing(row: Row, value: float) -> None:
    clean = random_round(4, 5)
    result = spoil(clean, [1, 3], value).aggregate(row.rule)
    kept = [0, 2, 4]
    without = Round(clean.global_state, [clean.reports[client] for client in kept])
    expected = without.aggregate(row.rule)
    assert_array_equal(result.excluded, [False, True, False, True, False])
    assert_array_equal(result.weights[[1, 3]], 0.0)
    assert_array_equal(result.base_weights[[1, 3]], 0.0)
    assert_allclose(result.weights[kept], expected.weights, rtol=1e-12)
    assert_allclose(result.base_weights[kept], expected.base_weights, rtol=1e-12)
    same_states(result.state, expected.state, 2**-22)


@every_rule
def test_no_usable_report_keeps_the_global_model(row: Row) -> None:
    round_ = spoil(random_round(5, 3), [0, 1, 2], math.nan)
    result = round_.aggregate(row.rule)
    assert_array_equal(result.weights, 0.0)
    assert_array_equal(result.excluded, True)
    for name, array in round_.global_state.items():
        assert_array_equal(result.state[name], array)


@every_rule
def test_no_weight_where_only_excluded_reports_hold_examples(row: Row) -> None:
    # With no examples among the usable, weights by examples have nothing to share out.
    round_ = spoil(random_round(6, 2), [0], math.nan)
    reports = [
        replace(report, num_examples=count)
        for report, count in zip(round_.reports, (7, 0), strict=True)
    ]
    result = Round(round_.global_state, reports).aggregate(row.rule)
    assert_array_equal(result.base_weights, 0.0)
    assert result.weights[0] == 0.0
    # Rules that do not count examples take the other one (a rule by coordinate says NaN).
    taken = result.weights[1] != 0.0
    same_states(result.state, reports[1].state if taken else round_.global_state, 2**-22)


@every_rule
@pytest.mark.parametrize(
    ("counts", "named"),
    [((3, -1, 2), "client 1"), ((0, 0, 0), "all zero"), ((1, math.nan, 1), "client 1")],
    ids=["negative", "all zero", "NaN"],
)
def test_counts_that_cannot_be(row: Row, counts: Sequence[Any], named: str) -> None:
    round_ = random_round(7, 3)
    reports = [
        replace(report, num_examples=count)
        for report, count in zip(round_.reports, counts, strict=True)
    ]
    with pytest.raises(FedcrfError, match=named):
        row.rule.aggregate(round_.global_state, reports)


@every_rule
@pytest.mark.parametrize("not_finite", [[], [2]], ids=["all finite", "one not"])
def test_order_of_the_reports_does_not_matter(row: Row, not_finite: Sequence[int]) -> None:
    round_ = spoil(random_round(8, 6, "float64"), not_finite, math.nan)
    order = [4, 0, 5, 2, 1, 3]
    shuffled = Round(round_.global_state, [round_.reports[place] for place in order])
    result, again = round_.aggregate(row.rule), shuffled.aggregate(row.rule)
    assert_allclose(again.weights, result.weights[order], rtol=1e-9, atol=1e-14)
    assert_allclose(again.base_weights, result.base_weights[order], rtol=1e-12)
    assert_array_equal(again.excluded, result.excluded[order])
    same_states(again.state, result.state, 1e-9)


@every_rule
def test_inputs_are_not_modified(row: Row) -> None:
    round_ = spoil(random_round(9, 4), [1], math.inf)
    arrays = [round_.global_state, *(report.state for report in round_.reports)]
    before = [{name: array.copy() for name, array in state.items()} for state in arrays]
    for state in arrays:  # writing to any of them is an error, and so is needing to
        for array in state.values():
            array.flags.writeable = False
    result = round_.aggregate(row.rule)
    for state, copy in zip(arrays, before, strict=True):
        for name, array in state.items():
            assert_array_equal(array, copy[name])
            assert not np.shares_memory(array, result.state[name])


@every_rule
def test_equal_reports_give_that_model(row: Row) -> None:
    # Weights that do not sum to 1 would scale it.
    round_ = random_round(10, 1)
    reports = [ClientReport(client, round_.reports[0].state, 5 + client) for client in range(4)]
    result = Round(round_.global_state, reports).aggregate(row.rule)
    same_states(result.state, round_.reports[0].state, 2**-22)


@pytest.mark.parametrize("weight_by_examples", [True, False])
def test_crf_is_client_crf_on_the_differences(weight_by_examples: bool) -> None:
    round_ = random_round(11, 5, "float64")
    crf = ClientCRF(weight_by_examples=weight_by_examples)
    origin = np.array(numbers_of(round_.global_state))
    updates = np.array([numbers_of(report.state) for report in round_.reports]) - origin
    posterior = crf.infer(updates, round_.counts)
    result = round_.aggregate(CRF(weight_by_examples=weight_by_examples))
    assert result.posterior is not None
    for name in ("weights", "reliability", "marginals", "expected_label", "affinity", "cosine",
                 "distance", "norm_anomaly"):  # fmt: skip
        assert_allclose(
            getattr(result.posterior, name), getattr(posterior, name), rtol=1e-9, atol=1e-12
        )
    assert_array_equal(result.weights, result.posterior.weights)
    # What FedAvg would have given stands beside it, whatever the rule itself starts from.
    assert_allclose(result.base_weights, slow_fedavg(round_), rtol=1e-12)


@every_rule
@pytest.mark.parametrize("make", [torch.tensor, list])
def test_tensors_that_are_no_numpy_arrays_are_named(row: Row, make: Callable[..., Any]) -> None:
    state = {"w": np.zeros(2, np.float32)}
    bad = {"w": make([0.0, 1.0])}
    for before, sent, who in ((bad, state, "the global model"), (state, bad, "client 7")):
        with pytest.raises(FedcrfError, match=f"'w' of {who} is a .*: give NumPy arrays"):
            row.rule.aggregate(before, [ClientReport(7, sent, 10)])


@pytest.mark.parametrize(
    ("rule", "secret"),
    [
        (CRFRobust(), CRFRobust(sketch_seed=9)),
        (CRFRobustEvidence(clip=3.0), CRFRobustEvidence(clip=3.0, sketch_seed=9)),
        (CRFRobust(sketch_seed=4), CRFRobust(sketch_seed=4)),
        (CRF(neighbours=2, sketch_size=8), CRF(neighbours=2, sketch_size=8, sketch_seed=9)),
        (CRF(neighbours=2, sketch_size=8, sketch_seed=4),) * 2,
        (CRF(), CRF()),
        (Optimized(CRFRobust(), Adam()), Optimized(CRFRobust(sketch_seed=9), Adam())),
        (FedAvg(), FedAvg()),
    ],
)
def test_signs_that_all_can_know_become_secret_ones(rule: Rule, secret: Rule) -> None:
    assert with_secret_signs(rule, {}, 9) == secret


@pytest.mark.parametrize(
    ("layout", "seed"), [([24, 64, 3, 1], 3), ([24, 64], 9), ([0.5, 1.0, 2.0, 1.0], 9), (None, 9)]
)
def test_signs_stay_those_of_the_memory(layout: Any, seed: int) -> None:
    rule, memory = CRFRobust(), {"layout": np.array(layout)}
    assert with_secret_signs(rule, memory, 9) == CRFRobust(sketch_seed=seed)
    behind = {f"rule.{name}": array for name, array in memory.items()}
    optimized = with_secret_signs(Optimized(rule, Adam()), behind, 9)
    assert optimized == Optimized(CRFRobust(sketch_seed=seed), Adam())


def test_evidence_that_nobody_reports_leaves_the_rules_without() -> None:
    round_ = random_round(12, 6)
    silent = Round(round_.global_state, [replace(report, evidence={}) for report in round_.reports])
    for rule, without in ((CRFEvidence(), FedAvg()), (CRFRobustEvidence(), CRFRobust())):
        expected = silent.aggregate(without)
        assert not np.allclose(round_.aggregate(rule).weights, expected.weights)
        assert_allclose(silent.aggregate(rule).weights, expected.weights, rtol=1e-12)
        same_states(silent.aggregate(rule).state, expected.state, 1e-6)
        assert rule.wanted_evidence == {"residual_loss"}


@pytest.mark.parametrize("value", [None, "low", [0.1], math.inf, 10**400, True])
def test_evidence_that_is_no_number_is_none(value: Any) -> None:
    round_ = random_round(12, 6)
    for rule in (CRFEvidence(), CRFRobustEvidence()):
        results = []
        for evidence in ({}, {"residual_loss": value}):
            reports = [replace(round_.reports[0], evidence=evidence), *round_.reports[1:]]
            results.append(Round(round_.global_state, reports).aggregate(rule))
        assert_array_equal(results[1].weights, results[0].weights)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {**state, "extra": state["a"]}, "'extra' is in one of them only"),
        (lambda state: {"a": state["a"]}, "'b' is in one of them only"),
        (lambda state: {**state, "b": state["b"][:-1]}, r"'b' as float32 \(2,\)"),
        (lambda state: {**state, "b": state["b"].astype(np.float64)}, "'b' as float64"),
    ],
    ids=["extra", "missing", "shape", "dtype"],
)
def test_a_report_that_is_not_of_the_model_is_named(name, change, message):
    before = {"a": np.zeros((2, 2), np.float32), "b": np.zeros(3, np.float32)}
    reports = [ClientReport(client, dict(before), 1) for client in range(3)]
    reports[1] = ClientReport(7, change(before), 1)
    with pytest.raises(FedcrfError, match=f"client 7 reports .*{message}"):
        RULES[name]().aggregate(before, reports)


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_names_in_a_report_does_not_matter(name):
    generator = np.random.default_rng(0)
    before = {"a": np.zeros(4, np.float32), "b": np.zeros(3, np.float32)}
    states = [
        {key: generator.normal(size=len(before[key])).astype(np.float32) for key in before}
        for _ in range(5)
    ]
    turned = [dict(reversed(state.items())) for state in states]
    results = [
        RULES[name]().aggregate(
            before, [ClientReport(client, state, client + 1) for client, state in enumerate(each)]
        )
        for each in (states, turned)
    ]
    for key in before:
        assert (results[0].state[key] == results[1].state[key]).all()


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (3, "a report is a int: give ClientReports"),
        (ClientReport(7, None, 10), "client 7 is a NoneType: give NumPy arrays by name"),  # type: ignore[arg-type]
        (
            ClientReport(7, {"w": np.zeros(2)}, 10, evidence=[1.0]),  # type: ignore[arg-type]
            "the evidence of client 7 is a list: give numbers by name",
        ),
    ],
)
def test_reports_that_are_none(report: Any, message: str) -> None:
    with pytest.raises(FedcrfError, match=message):
        FedAvg().aggregate({"w": np.zeros(2)}, [report])
