"""Server optimizers against slow versions and torch's, and judgement by some tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf import FedcrfError
from fedcrf.crf.memory import ARRAYS
from fedcrf.rules import (
    CRF,
    FLAME,
    RULES,
    SERVER_OPTIMIZERS,
    Adagrad,
    Adam,
    AggregationResult,
    CenteredClipping,
    ClientReport,
    CoordinateMedian,
    CRFRobust,
    FedAvg,
    FedExP,
    FedNova,
    FLTrust,
    Memory,
    Momentum,
    Optimized,
    Rule,
    ServerOptimizer,
    SignGuard,
    State,
    TrimmedMean,
    Yogi,
)
from fedcrf.rules.wrappers import Judged
from rules.rounds import SHAPES, sample, tensor

TRAINED = ("conv.weight", "norm.weight", "head.weight", "head.scale")
ROUNDS = 5


def random_state(rng: np.random.Generator, dtype: str) -> dict[str, Any]:
    return {name: tensor(rng, name, shape, dtype) for name, shape in SHAPES.items()}


def random_rounds(seed: int, m: int = 3, dtype: str = "float64") -> list[list[ClientReport]]:
    """What the clients report in several rounds, wherever they started from."""
    rng = np.random.default_rng(seed)
    return [
        [ClientReport(client, random_state(rng, dtype), 5 + client) for client in range(m)]
        for _ in range(ROUNDS)
    ]


def server_model(state: State) -> State:
    """What a server might have trained from a model."""
    return {name: np.asarray(array * 0.5 + 1, array.dtype) for name, array in state.items()}


def go_on(
    rule: Rule, state: State, rounds: Sequence[Sequence[ClientReport]], memory: Memory | None = None
) -> list[AggregationResult]:
    results = []
    memory = memory or {}
    for reports in rounds:
        served = rule.with_server_model(server_model(state))
        result = served.aggregate(memory, state, reports)
        state, memory = result.state, result.memory
        results.append(result)
    return results


# The steps, one number at a time


def slow_momentum(deltas: Sequence[float], rate: float, beta: float) -> list[float]:
    steps, momentum = [], 0.0
    for delta in deltas:
        momentum = beta * momentum + delta
        steps.append(rate * momentum)
    return steps


def slow_adaptive(
    following: Callable[[float, float], float], rate: float, beta1: float, tau: float
) -> Callable[[Sequence[float]], list[float]]:
    """Algorithm 2 of Reddi et al. for one coordinate."""

    def steps(deltas: Sequence[float]) -> list[float]:
        m, v, found = 0.0, tau**2, []
        for delta in deltas:
            m = beta1 * m + (1 - beta1) * delta
            v = following(v, delta**2)
            found.append(rate * m / (math.sqrt(v) + tau))
        return found

    return steps


def sign(number: float) -> float:
    return (number > 0) - (number < 0)


@dataclass(frozen=True)
class Row:
    optimizer: ServerOptimizer
    slow: Callable[[Sequence[float]], list[float]]


ROWS: Mapping[str, Row] = {
    "momentum": Row(Momentum(), lambda deltas: slow_momentum(deltas, 1.0, 0.9)),
    "momentum, other": Row(Momentum(0.3, 0.5), lambda deltas: slow_momentum(deltas, 0.3, 0.5)),
    "adagrad": Row(Adagrad(), slow_adaptive(lambda v, s: v + s, 0.1, 0.0, 1e-3)),
    "adagrad, other": Row(
        Adagrad(0.7, beta1=0.4, tau=0.2), slow_adaptive(lambda v, s: v + s, 0.7, 0.4, 0.2)
    ),
    "adam": Row(Adam(), slow_adaptive(lambda v, s: 0.99 * v + 0.01 * s, 0.01, 0.9, 1e-3)),
    "adam, other": Row(
        Adam(0.5, beta1=0.2, beta2=0.6, tau=0.1),
        slow_adaptive(lambda v, s: 0.6 * v + 0.4 * s, 0.5, 0.2, 0.1),
    ),
    # So large an ε that no step is longer than the aggregate; the tests below have the others.
    "fedexp": Row(FedExP(1e12), list),
    "yogi": Row(Yogi(), slow_adaptive(lambda v, s: v - 0.01 * s * sign(v - s), 0.01, 0.9, 1e-3)),
    "yogi, other": Row(
        # τ² among the squares of the steps, so that v goes down as well as up.
        Yogi(0.5, beta1=0.2, beta2=0.6, tau=1.0),
        slow_adaptive(lambda v, s: v - 0.4 * s * sign(v - s), 0.5, 0.2, 1.0),
    ),
}
every_optimizer = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def test_every_server_optimizer_has_a_row() -> None:
    assert set(SERVER_OPTIMIZERS.values()) == {type(row.optimizer) for row in ROWS.values()}


@every_optimizer
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 2**-7), ("float32", 2**-20), ("float64", 1e-12)]
)
def test_against_the_slow_version(row: Row, dtype: str, tolerance: float) -> None:
    start = random_state(np.random.default_rng(1), dtype)
    rounds = random_rounds(2, dtype=dtype)
    results = go_on(Optimized(FedAvg(), row.optimizer), start, rounds)
    for name, array in start.items():
        before = [start[name], *(result.state[name] for result in results)]
        for state in before:
            assert (state.shape, state.dtype) == (array.shape, array.dtype)
        for place in range(array.size if name in TRAINED else 0):
            # Every Δ from the model the round began with, which is rounded to the dtype.
            path = [float(state.reshape(-1)[place]) for state in before]
            aggregates = [
                sum(r.num_examples / 18 * float(r.state[name].reshape(-1)[place]) for r in reports)
                for reports in rounds
            ]
            deltas = [
                float(np.dtype(dtype).type(a)) - p for a, p in zip(aggregates, path, strict=False)
            ]
            expected = [p + step for p, step in zip(path, row.slow(deltas), strict=False)]
            assert_allclose(path[1:], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("optimizer", "theirs"),
    [
        (Momentum(0.3, 0.8), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.8)),
        (
            Adagrad(0.2, tau=0.05),
            lambda p: torch.optim.Adagrad(p, lr=0.2, initial_accumulator_value=0.05**2, eps=0.05),
        ),
    ],
    ids=["SGD", "Adagrad"],
)
def test_torch_s_optimizers_on_the_pseudo_gradients(
    optimizer: ServerOptimizer, theirs: Callable[[Any], torch.optim.Optimizer]
) -> None:
    start = random_state(np.random.default_rng(3), "float64")
    rounds = random_rounds(4)
    parameters = {name: torch.tensor(start[name], requires_grad=True) for name in TRAINED}
    stepping = theirs(list(parameters.values()))
    results = go_on(Optimized(FedAvg(), optimizer), start, rounds)
    for reports, result in zip(rounds, results, strict=True):
        aggregate = FedAvg().aggregate({}, start, reports).state
        for name, parameter in parameters.items():
            parameter.grad = parameter.detach() - torch.from_numpy(np.asarray(aggregate[name]))
        stepping.step()
        for name, parameter in parameters.items():
            assert_allclose(result.state[name], parameter.detach().numpy(), rtol=1e-12)


# FedExP, which looks at the updates


def extrapolation(
    start: State, reports: Sequence[ClientReport], weights: Sequence[float], epsilon: float
) -> tuple[float, float]:
    """FedExP's η before it is cut at 1, and the mean square of the updates, number by number."""
    mean_square, square = 0.0, 0.0
    for name in TRAINED:
        before = start[name].reshape(-1).tolist()
        rows = [report.state[name].reshape(-1).tolist() for report in reports]
        for place, value in enumerate(before):
            moves = [row[place] - value for row in rows]
            mean_square += sum(p * move**2 for p, move in zip(weights, moves, strict=True))
            square += sum(p * move for p, move in zip(weights, moves, strict=True)) ** 2
    return mean_square / (2 * (square + epsilon)), mean_square


@pytest.mark.parametrize("rule", [FedAvg(), CoordinateMedian()], ids=["weights", "none"])
@pytest.mark.parametrize(("spread", "epsilon"), [(1.0, 1e-3), (1.0, 5.0), (0.02, 1e-3)])
def test_fedexp_s_step_grows_with_the_updates_spread(
    rule: Rule, spread: float, epsilon: float
) -> None:
    start = random_state(np.random.default_rng(20), "float64")
    m = 9
    rounds = random_rounds(21, m)[0]
    reports = [
        replace(
            each,
            state={
                name: array + np.asarray(1 - spread + spread * each.state[name], array.dtype)
                for name, array in start.items()
            },
        )
        for each in rounds
    ]
    plain = rule.aggregate({}, start, reports)
    if isinstance(rule, CoordinateMedian):  # its aggregate is no weighted mean
        square = sum(float(((plain.state[name] - start[name]) ** 2).sum()) for name in TRAINED)
        alone = [extrapolation(start, [each], [1.0], epsilon)[1] for each in reports]
        rate = sorted(alone)[m // 2] / (2 * (square + epsilon))
    else:
        rate, _ = extrapolation(start, reports, plain.weights.tolist(), epsilon)
    assert (rate > 1) == (spread == 1.0), "both sides of the cut are seen"
    result = Optimized(rule, FedExP(epsilon)).aggregate({}, start, reports)
    for name in start:
        factor = max(1.0, rate) if name in TRAINED else 1.0
        expected = start[name] + factor * (plain.state[name] - start[name])
        assert_allclose(result.state[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    "rule",
    [
        CoordinateMedian(),
        TrimmedMean(0.2),
        CenteredClipping(clip=2.0, bucket_size=1),
        CRFRobust(),
        SignGuard(),
        FLAME(noise=0.0),
    ],
    ids=lambda rule: rule.name,
)
@pytest.mark.parametrize("times", [50.0, 1e6])
def test_one_long_update_does_not_lengthen_fedexp_s_step(rule: Rule, times: float) -> None:
    rng = np.random.default_rng(0)
    start = {"weight": np.zeros(50)}
    updates = 1.0 + 0.1 * rng.normal(size=(10, 50))
    updates[9] *= times
    reports = [ClientReport(i, {"weight": each}, 10) for i, each in enumerate(updates)]
    plain = rule.aggregate({}, start, reports).state["weight"]
    longer = Optimized(rule, FedExP()).aggregate({}, start, reports).state["weight"]
    assert np.linalg.norm(longer) <= 1.5 * np.linalg.norm(plain)


# What it leaves to the rule


@pytest.mark.parametrize("name", RULES)
def test_the_plain_step_is_the_rule_alone(name: str) -> None:
    start = random_state(np.random.default_rng(5), "float32")
    rule = RULES[name]()
    plain = go_on(rule, start, random_rounds(6, 5, "float32"))
    optimized = go_on(Optimized(rule, Momentum(1.0, 0.0)), start, random_rounds(6, 5, "float32"))
    for ours, theirs in zip(optimized, plain, strict=True):
        for key, array in theirs.state.items():
            assert_allclose(ours.state[key], array, rtol=1e-6, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", SERVER_OPTIMIZERS.values())
def test_weights_reasons_and_buffers_are_the_rule_s(kind: Any, name: str) -> None:
    start = random_state(np.random.default_rng(7), "float32")
    reports = random_rounds(8, 5, "float32")[0]
    broken = {**reports[2].state, "head.scale": np.array(np.nan, np.float32)}
    reports[2] = replace(reports[2], state=broken)
    rule = RULES[name]().with_server_model(server_model(start))
    plain = rule.aggregate({}, start, reports)
    result = Optimized(rule, kind()).aggregate({}, start, reports)
    assert_array_equal(result.weights, plain.weights)
    assert_array_equal(result.base_weights, plain.base_weights)
    assert_array_equal(result.excluded, [False, False, True, False, False])
    assert (result.posterior is None) == (plain.posterior is None)
    if result.posterior and plain.posterior:
        assert_array_equal(result.posterior.expected_label, plain.posterior.expected_label)
    assert list(result.state) == list(start)
    for key in set(start) - set(TRAINED):
        assert_array_equal(result.state[key], plain.state[key], err_msg=key)


@pytest.mark.parametrize("kind", SERVER_OPTIMIZERS.values())
def test_a_server_optimizer_diverges_without_a_warning(kind: Any) -> None:
    before = {"w": np.zeros(3)}
    reports = [ClientReport(i, {"w": np.full(3, 1e200 * (1 + i))}, 1) for i in range(3)]
    state = Optimized(FedAvg(), kind()).aggregate({}, before, reports).state
    assert not np.isnan(state["w"]).any()


def test_an_adaptive_step_would_make_a_running_variance_negative() -> None:
    # Which is why it takes none: the variances fall towards zero, and the step overshoots.
    variance = [np.array([value], np.float32) for value in (1e-2, 1e-4)]
    reports = [ClientReport(0, {"norm.running_var": variance[1]}, 1)]
    before = {"norm.running_var": variance[0]}
    stepped = Optimized(FedAvg(), Adam(0.1, beta1=0.0), buffers=()).aggregate({}, before, reports)
    assert stepped.state["norm.running_var"] < 0
    ours = Optimized(FedAvg(), Adam(0.1, beta1=0.0)).aggregate({}, before, reports)
    assert_array_equal(ours.state["norm.running_var"], variance[1])


@every_optimizer
def test_a_round_without_a_usable_report_did_not_happen(row: Row) -> None:
    start = random_state(np.random.default_rng(9), "float32")
    rounds = random_rounds(10, dtype="float32")
    broken = [
        replace(report, state={**report.state, "head.scale": np.array(np.inf, np.float32)})
        for report in rounds[0]
    ]
    rule = Optimized(FedAvg(), row.optimizer)
    without = go_on(rule, start, rounds)
    among = go_on(rule, start, [broken, *rounds[:2], broken, *rounds[2:]])
    assert_array_equal(among[0].weights, 0.0)
    for key, array in start.items():
        assert_array_equal(among[0].state[key], array)
        assert_array_equal(among[3].state[key], among[2].state[key])
        assert_array_equal(among[-1].state[key], without[-1].state[key])


@every_optimizer
def test_nothing_handed_in_is_changed(row: Row) -> None:
    start = random_state(np.random.default_rng(11), "float32")
    rounds = random_rounds(12, dtype="float32")
    rule = Optimized(CRF(), row.optimizer)
    memory = rule.aggregate({}, start, rounds[0]).memory
    given = [start, memory, *(report.state for report in rounds[1])]
    for arrays in given:  # writing to any of them is an error, and so is needing to
        for array in arrays.values():
            array.flags.writeable = False
    result = rule.aggregate(memory, start, rounds[1])
    for arrays in given:
        for array in arrays.values():
            for after in (*result.state.values(), *result.memory.values()):
                assert not np.shares_memory(array, after)


# Memory


@dataclass(frozen=True)
class Counting(Rule):
    """A rule that remembers how many rounds there were, and weighs the first client by it."""

    remembers: ClassVar[bool] = True

    def aggregate(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        assert set(memory) <= {"round.s"}, "it sees its own memory alone"
        done = memory.get("round.s", np.array(0)) + 1
        counted = [replace(reports[0], num_examples=int(done)), *reports[1:]]
        result = FedAvg().aggregate({}, global_state, counted)
        return replace(result, memory={"round.s": np.asarray(done)})


@dataclass(frozen=True)
class Beginning(Counting):
    """The same, but it counts from ten on."""

    def begin(self) -> Memory:
        return {"round.s": np.array(10)}


def test_a_rule_begins_with_a_memory_of_its_own() -> None:
    start = random_state(np.random.default_rng(13), "float64")
    rule, reports = Optimized(Beginning(), Adam()), random_rounds(14)[0]
    assert FedAvg().begin() == {}
    assert dict(rule.begin()) == {"rule.round.s": 10}
    first = rule.aggregate(rule.begin(), start, reports)
    assert first.memory["rule.round.s"] == 11
    assert rule.aggregate(first.memory, start, reports).memory["rule.round.s"] == 12
    assert rule.aggregate({}, start, reports).memory["rule.round.s"] == 1


def test_a_rule_that_remembers_itself_keeps_its_memory() -> None:
    start = random_state(np.random.default_rng(13), "float64")
    rounds = random_rounds(14)
    rule = Optimized(Counting(), Adam())
    assert rule.remembers
    results = go_on(rule, start, rounds)
    for result, plain in zip(results, go_on(Counting(), start, rounds), strict=True):
        assert_array_equal(result.weights, plain.weights)
        names = {f"{m}.{t}" for m in ("first_moment", "second_moment") for t in TRAINED}
        assert set(result.memory) == {"rule.round.s"} | names
    # Two optimizers, one behind the other, keep two memories.
    nested = go_on(Optimized(rule, Adam()), start, rounds)
    assert {f"rule.{name}" for name in results[-1].memory} < set(nested[-1].memory)
    assert_array_equal(nested[-1].memory["rule.rule.round.s"], ROUNDS)


@pytest.mark.parametrize(
    ("memory", "moment"),
    [
        (lambda m: {"momentum.conv.weight": np.zeros((2, 2, 3))}, "first_moment"),
        (
            lambda m: {k: v for k, v in m.items() if k != "second_moment.head.scale"},
            "second_moment",
        ),
        (lambda m: {**m, "first_moment.head.scale": np.zeros(1)}, "first_moment"),
        (lambda m: {**m, "first_moment.other": np.zeros(1)}, "first_moment"),
        (
            lambda m: {**m, "second_moment.head.scale": m["second_moment.head.scale"].astype(str)},
            "second_m",
        ),
        (
            lambda m: {**m, "second_moment.head.scale": np.nan * m["second_moment.head.scale"]},
            "second_m",
        ),
        (lambda m: {**m, "second_moment.head.scale": None}, "second_m"),
    ],
    ids=["another optimizer", "missing", "shape", "another model", "words", "NaN", "none"],
)
def test_memory_of_another_rule_is_named(memory: Callable[[Any], Memory], moment: str) -> None:
    start = random_state(np.random.default_rng(15), "float32")
    reports = random_rounds(16, dtype="float32")[0]
    rule = Optimized(FedAvg(), Adam())
    own = dict(rule.aggregate({}, start, reports).memory)
    with pytest.raises(FedcrfError, match=f"holds no '{moment}.*' of this model.*give that of"):
        rule.aggregate(memory(own), start, reports)


def test_a_memory_that_is_none_at_all() -> None:
    start = random_state(np.random.default_rng(15), "float32")
    reports = random_rounds(16, dtype="float32")[0]
    nothing: Any = None
    with pytest.raises(FedcrfError, match="memory is a NoneType: give the one"):
        Optimized(FedAvg(), Adam()).aggregate(nothing, start, reports)


POSITIVE = (0.0, -1.0, math.nan, math.inf, "x", None)
DECAY = (-0.1, 1.0, math.nan, "x", None)
CANNOT_BE = {
    "learning_rate": POSITIVE,
    "tau": POSITIVE,
    "epsilon": POSITIVE,
    "momentum": DECAY,
    "beta1": DECAY,
    "beta2": DECAY,
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (kind, field.name, value)
        for kind in SERVER_OPTIMIZERS.values()
        for field in fields(kind)  # type: ignore[arg-type]
        for value in CANNOT_BE[field.name]
    ],
)
def test_settings_that_cannot_be(kind: Any, name: str, value: float) -> None:
    with pytest.raises(FedcrfError, match=f"{name} {value!r}: give a (finite )?number"):
        kind(**{name: value})


@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_rule_remembers_is_part_of_the_memory(depth: int) -> None:
    rule: Rule = CRFRobust(sketch_size=16)
    for _ in range(depth):
        rule = Optimized(rule, Momentum())
    rounds = random_rounds(0)
    start = random_state(np.random.default_rng(1), "float64")
    expected = go_on(rule, start, rounds)[-1]
    inner = {f"{depth * 'rule.'}{name}" for name in ARRAYS}
    assert {name for name in expected.memory if "momentum" not in name} == inner
    half = go_on(rule, start, rounds[:2])[-1]
    rest = go_on(rule, half.state, rounds[2:], {**half.memory})[-1]  # as of a checkpoint
    assert_array_equal(rest.weights, expected.weights)
    for name, array in expected.memory.items():
        assert_array_equal(rest.memory[name], array, err_msg=name)


# Judged by some tensors


@pytest.mark.parametrize("judged", [{"conv.weight"}, {"head.weight", "norm.running_var"}])
@pytest.mark.parametrize("rule", [FedAvg(), FedNova()])
def test_tensors_that_are_not_judged_move_as_the_judged_ones(rule: Rule, judged: set[str]) -> None:
    """Neither rule looks at the tensors, so it makes no difference which of them it gets."""
    before, reports = sample(5)
    got = Judged(rule, frozenset(judged)).aggregate({}, before, reports)
    want = rule.aggregate({}, before, reports)
    assert_array_equal(got.weights, want.weights)
    for name in TRAINED:
        assert_allclose(got.state[name], want.state[name], rtol=1e-12, err_msg=name)


def test_buffers_that_are_not_judged_are_averaged_where_weights_sum_to_more_than_one() -> None:
    before, reports = sample(5)
    got = Judged(FedNova(), frozenset({"conv.weight"})).aggregate({}, before, reports)
    assert got.weights.sum() > 1.1
    shares = got.weights / got.weights.sum()
    for name in ("norm.running_var", "head.table"):
        mean = sum(share * r.state[name] for share, r in zip(shares, reports, strict=True))
        mean = np.rint(mean) if before[name].dtype.kind == "i" else mean
        assert_allclose(got.state[name], mean, rtol=1e-12, err_msg=name)


def test_a_rule_that_gets_some_tensors_gets_these_of_the_servers_model_too() -> None:
    before, reports = round_ = sample(5)
    seen = [replace(each, state={"conv.weight": each.state["conv.weight"]}) for each in reports]
    part = {"conv.weight": before["conv.weight"]}
    served = FLTrust().with_server_model({"conv.weight": round_.server["conv.weight"]})
    want = served.aggregate({}, part, seen)
    judged = Judged(FLTrust(), frozenset(part)).with_server_model(round_.server)
    got = judged.aggregate({}, before, reports)
    assert_array_equal(got.weights, want.weights)
    assert_array_equal(got.state["conv.weight"], want.state["conv.weight"])


@pytest.mark.parametrize(
    "rule", [FLTrust(), CRFRobust(), FLAME(noise=0.0), CenteredClipping(clip=1.0)], ids=str
)
def test_what_is_not_judged_is_clipped_as_what_is(rule: Rule) -> None:
    model = {"a": np.zeros((2, 2)), "b": np.zeros((2, 2))}
    lengths = (1.0, 1.1, 0.9, 1.0, 1e3)
    reports = [
        ClientReport(i, {k: np.full((2, 2), s) for k in model}, 1) for i, s in enumerate(lengths)
    ]
    judged = Judged(rule, frozenset({"a"})).with_server_model({k: np.ones((2, 2)) for k in model})
    state = judged.aggregate({}, model, reports).state
    assert_allclose(state["b"], state["a"], rtol=1e-9)


def test_a_report_that_is_not_finite_where_nobody_judges_has_no_weight() -> None:
    model = {"a": np.zeros(3), "b": np.zeros(2)}
    reports = [ClientReport(i, {"a": np.full(3, 1.0 + i), "b": np.ones(2)}, 10) for i in range(3)]
    reports[1].state["b"][0] = np.nan
    got = Judged(FedAvg(), frozenset({"a"})).aggregate({}, model, reports)
    assert got.weights.tolist() == [0.5, 0.0, 0.5]
    assert got.excluded.tolist() == [False, True, False]
    assert_allclose(got.state["b"], 1.0)
