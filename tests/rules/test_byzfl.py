"""The rules of ByzFL beside its classes, called by hand, and what they are told of a run."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from experiments.runs import carry_out, small_spec
from fedcrf.errors import FedcrfError
from fedcrf.experiments.settings import find_method
from fedcrf.experiments.spec import cell_of, resolve
from fedcrf.rules import (
    BYZFL_RULES,
    AggregationResult,
    ByzFLRule,
    ClientReport,
    Optimized,
    State,
    Yogi,
    byzfl_rule,
    find_rule,
)
from fedcrf.rules.byzfl import bucket_size, byzfl_part, warn_once
from simulation.small import assert_resumes, federation, simulation

CHAINS = ("byzfl-arc-nnm-trmean", "byzfl-clipping-bucketing-geometric-median")
every_name = pytest.mark.parametrize("name", [*BYZFL_RULES, *CHAINS])


@pytest.fixture
def without_byzfl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    byzfl_part.cache_clear()
    monkeypatch.setitem(sys.modules, "byzfl", None)
    yield
    byzfl_part.cache_clear()


def a_round(m: int, seed: int = 0, dtype: str = "float32") -> tuple[State, list[ClientReport]]:
    """A model of three tensors, one of them of integers, and m clients around it."""
    rng = np.random.default_rng([seed, m])
    state: State = {
        "a": rng.normal(size=(3, 4)).astype(dtype),
        "n": np.array(7),
        "b": rng.normal(size=5).astype(dtype),
    }
    reports = [
        ClientReport(
            client,
            {
                "a": (state["a"] + 0.1 * rng.normal(size=(3, 4)) + 0.1).astype(dtype),
                "n": np.array(8 + client),
                "b": (state["b"] + 0.1 * rng.normal(size=5) - 0.1).astype(dtype),
            },
            num_examples=1.0 + client,
        )
        for client in range(m)
    ]
    return state, reports


def updates_of(state: State, reports: Sequence[ClientReport]) -> torch.Tensor:
    rows = [
        np.concatenate([(report.state[name] - state[name]).ravel() for name in ("a", "b")])
        for report in reports
    ]
    return torch.tensor(np.array(rows, np.float32))


def step_of(state: State, result: AggregationResult) -> NDArray[np.float64]:
    """Return what the rule added to the model."""
    return np.concatenate(
        [np.asarray(result.state[name] - state[name], np.float64).ravel() for name in ("a", "b")]
    )


def by_hand(byzfl: SimpleNamespace, name: str, f: int, m: int) -> list[Any]:
    """Return ByzFL's own objects, in the order in which a name says they work."""
    made = {
        "clipping": lambda: byzfl.Clipping(),
        "arc": lambda: byzfl.ARC(f=f),
        "nnm": lambda: byzfl.NNM(f=f),
        "bucketing": lambda: byzfl.Bucketing(s=(m - 1) // (2 * f)),
        "average": lambda: byzfl.Average(),
        "median": lambda: byzfl.Median(),
        "trmean": lambda: byzfl.TrMean(f=f),
        "geometric-median": lambda: byzfl.GeometricMedian(),
        "krum": lambda: byzfl.Krum(f=f),
        "multi-krum": lambda: byzfl.MultiKrum(f=f),
        "centered-clipping": lambda: byzfl.CenteredClipping(),
        "mda": lambda: byzfl.MDA(f=f),
        "monna": lambda: byzfl.MoNNA(f=f),
        "meamed": lambda: byzfl.Meamed(f=f),
        "caf": lambda: byzfl.CAF(f=f),
        "smea": lambda: byzfl.SMEA(f=f),
    }
    parts, rest = [], name.removeprefix("byzfl-")
    while rest not in made:
        first, _, rest = rest.partition("-")
        parts.append(made[first]())
    return [*parts, made[rest]()]


def seeded(seed: int, rounds: int) -> None:
    torch.manual_seed(int(np.random.SeedSequence([seed, rounds]).generate_state(1)[0]))


def settings_of(name: str, **values: Any) -> dict[str, Any]:
    """Return those of the values that are settings of the rule."""
    known = {each.name for each in fields(find_rule(name))}
    return {key: value for key, value in values.items() if key in known}


def rule_of(name: str, **values: Any) -> ByzFLRule:
    return byzfl_rule(name)(**settings_of(name, **values))


# --- the same numbers -----------------------------------------------------------------------


def test_every_aggregator_and_pre_aggregator_of_the_package_has_a_name(
    byzfl: SimpleNamespace,
) -> None:
    modules = [
        sys.modules[f"byzfl.aggregators.{each}"] for each in ("aggregators", "preaggregators")
    ]
    kinds = [
        {each for each in vars(module).values() if isinstance(each, type)} for module in modules
    ]
    used = {type(part) for name in BYZFL_RULES for part in by_hand(byzfl, name, f=1, m=5)}
    assert used == kinds[0] | kinds[1]
    assert len(set(BYZFL_RULES)) == len(kinds[0]) * (1 + len(kinds[1])) == 60


@every_name
@pytest.mark.parametrize(("m", "f"), [(10, 2), (5, 1)])  # whole buckets, and one of what is left
def test_against_byzfl(byzfl: SimpleNamespace, name: str, m: int, f: int) -> None:
    state, reports = a_round(m)
    rule = rule_of(name, attackers=f, seed=4)
    result = rule.aggregate({}, state, reports)
    vectors = updates_of(state, reports)
    seeded(4, 0)
    for part in by_hand(byzfl, name, f, m):
        vectors = part(vectors)
    for key, array in state.items():
        assert (result.state[key].shape, result.state[key].dtype) == (array.shape, array.dtype)
    assert_allclose(step_of(state, result), vectors.numpy(), rtol=0, atol=5e-7)
    assert result.state["n"] == round(np.mean([report.state["n"] for report in reports]))
    assert np.isnan(result.weights).all()
    assert not result.excluded.any()
    assert_allclose(result.base_weights, np.arange(1, m + 1) / sum(range(1, m + 1)))


@pytest.mark.parametrize(
    ("name", "settings", "make"),
    [
        ("byzfl-clipping-average", {"c": 0.2}, lambda b: (b.Clipping(c=0.2), b.Average())),
        (
            "byzfl-geometric-median",
            {"nu": 0.4, "T": 7},
            lambda b: (b.GeometricMedian(nu=0.4, T=7),),
        ),
        (
            "byzfl-centered-clipping",
            {"L": 3, "tau": 0.1},
            lambda b: (b.CenteredClipping(L=3, tau=0.1),),
        ),
        ("byzfl-monna", {"idx": 3, "attackers": 4}, lambda b: (b.MoNNA(f=4, idx=3),)),
        ("byzfl-bucketing-median", {"s": 3, "seed": 0}, lambda b: (b.Bucketing(s=3), b.Median())),
        (
            "byzfl-bucketing-nnm-krum",
            {"s": 2, "attackers": 1},
            lambda b: (b.Bucketing(s=2), b.NNM(f=1), b.Krum(f=1)),
        ),
    ],
    ids=lambda value: None if callable(value) else str(value),
)
def test_settings_are_byzfls(
    byzfl: SimpleNamespace, name: str, settings: dict[str, Any], make: Any
) -> None:
    state, reports = a_round(10)
    result = byzfl_rule(name)(**settings).aggregate({}, state, reports)
    vectors = updates_of(state, reports)
    seeded(0, 0)
    for part in make(byzfl):
        vectors = part(vectors)
    assert_allclose(step_of(state, result), vectors.numpy(), rtol=0, atol=5e-7)


@pytest.mark.parametrize(
    ("trusted", "not_finite", "led"),
    [
        (0, [], 0),
        (5, [], 5),
        (5, [1, 2], 5),  # else they would have chosen the attacker, who is at place 7
        (5, [7], 5),
        (5, [5], 6),
        (5, [4, 5, 6], 7),
        (9, [9, 8], 7),
    ],
)
def test_whom_monna_trusts_does_not_hang_on_who_is_not_finite(
    byzfl: SimpleNamespace, trusted: int, not_finite: list[int], led: int
) -> None:
    state, reports = a_round(10)
    reports[7] = replace(reports[7], state={**reports[7].state, "a": state["a"] + 100})
    vectors = updates_of(state, reports)
    finite = [place for place in range(10) if place not in not_finite]
    nearest = sorted(finite, key=lambda place: float((vectors[place] - vectors[led]).norm()))
    for place in not_finite:
        lost = np.full((3, 4), np.nan, np.float32)
        reports[place] = replace(reports[place], state={**reports[place].state, "a": lost})
    result = byzfl_rule("byzfl-monna")(idx=trusted, attackers=3).aggregate({}, state, reports)
    expected = vectors[nearest[:7]].mean(dim=0).numpy()  # those not finite are some of the three
    assert_allclose(step_of(state, result), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_model_keeps_its_dtype(byzfl: SimpleNamespace, dtype: str) -> None:
    state, reports = a_round(6, dtype=dtype)
    result = rule_of("byzfl-trmean", attackers=1).aggregate({}, state, reports)
    expected = byzfl.TrMean(f=1)(updates_of(state, reports)).numpy()
    assert {result.state[name].dtype for name in ("a", "b")} == {np.dtype(dtype)}
    tolerance = 4e-3 if dtype == "float16" else 1e-7
    assert_allclose(step_of(state, result), expected, rtol=0, atol=tolerance)


# --- nobody attacks, few report, some are not finite ----------------------------------------


@every_name
@pytest.mark.parametrize("m", [1, 2, 7])
def test_without_attackers(byzfl: SimpleNamespace, name: str, m: int) -> None:
    state, reports = a_round(m)
    step = step_of(state, find_rule(name)().aggregate({}, state, reports))
    mean = updates_of(state, reports).numpy().mean(axis=0)
    mixed = "nnm" in name or "bucketing" in name  # every vector is the mean already
    picks = name.endswith(("-krum", "-median")) and "multi" not in name
    if m == 1 or mixed or not picks:
        assert_allclose(step, mean, rtol=0, atol=1e-6)
    else:
        assert np.isfinite(step).all()
        assert np.linalg.norm(step) < 2


@every_name
def test_a_report_that_is_not_finite_is_left_out_and_is_one_of_the_attackers(
    byzfl: SimpleNamespace, name: str
) -> None:
    state, reports = a_round(9)
    for client, value in ((1, math.nan), (4, math.inf)):
        bad = {**reports[client].state, "b": np.full(5, value, np.float32)}
        reports[client] = replace(reports[client], state=bad)
    result = rule_of(name, attackers=3).aggregate({}, state, reports)
    kept = [report for report in reports if report.client not in (1, 4)]
    expected = rule_of(name, attackers=1).aggregate({}, state, kept)
    assert_array_equal(np.flatnonzero(result.excluded), [1, 4])
    assert_array_equal(result.weights[[1, 4]], 0.0)
    assert_array_equal(result.base_weights[[1, 4]], 0.0)
    for key in state:
        assert_array_equal(result.state[key], expected.state[key])


def test_no_usable_report_keeps_model_and_memory(byzfl: SimpleNamespace) -> None:
    state, reports = a_round(3)
    rule = rule_of("byzfl-bucketing-centered-clipping")
    memory = rule.aggregate({}, state, reports).memory
    bad = {**state, "a": np.full((3, 4), np.nan, np.float32)}
    result = rule.aggregate(memory, state, [replace(each, state=bad) for each in reports])
    assert result.state is state
    assert_array_equal(result.weights, 0.0)
    assert_array_equal(result.excluded, True)
    assert result.memory is memory


@pytest.mark.parametrize("name", ["byzfl-smea", "byzfl-caf", "byzfl-krum", "byzfl-mda"])
def test_of_equal_updates(byzfl: SimpleNamespace, name: str) -> None:
    state, reports = a_round(5)
    reports = [replace(reports[0], client=client) for client in range(5)]
    step = step_of(state, rule_of(name, attackers=1).aggregate({}, state, reports))
    assert_allclose(step, updates_of(state, reports)[0].numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("m", range(1, 40))
def test_buckets_are_the_largest_that_keep_an_honest_majority(m: int) -> None:
    assert bucket_size(m, 0) == m
    for f in range(1, (m + 1) // 2):
        s = bucket_size(m, f)
        assert math.ceil(m / s) > 2 * f
        assert math.ceil(m / (s + 1)) <= 2 * f


# --- what is kept, and what is random -------------------------------------------------------


def test_centered_clipping_goes_on_from_its_last_result(byzfl: SimpleNamespace) -> None:
    rule = rule_of("byzfl-centered-clipping", tau=0.2)
    assert rule.remembers
    theirs = byzfl.CenteredClipping(tau=0.2)
    memory: Any = {}
    for number in range(3):
        state, reports = a_round(6, seed=number)
        result = rule.aggregate(memory, state, reports)
        memory = result.memory
        expected = theirs(updates_of(state, reports)).numpy()
        assert_allclose(step_of(state, result), expected, rtol=0, atol=5e-7)
        assert_allclose(memory["m"], expected, rtol=0, atol=1e-7)
        assert list(memory) == ["m"]


@pytest.mark.parametrize("name", ["byzfl-bucketing-krum", "byzfl-smea", "byzfl-nnm-caf"])
def test_what_is_random_is_of_the_seed_and_the_round_alone(
    byzfl: SimpleNamespace, name: str
) -> None:
    state, reports = a_round(10)

    def steps(seed: int, noise: int) -> list[NDArray[np.float64]]:
        rule, memory, found = rule_of(name, attackers=2, seed=seed), {}, []
        for _ in range(6):
            torch.manual_seed(noise)
            torch.rand(noise)
            before = torch.get_rng_state()
            result = rule.aggregate(memory, state, reports)
            assert torch.equal(torch.get_rng_state(), before)
            memory = dict(result.memory)
            found.append(step_of(state, result))
        assert memory == {"rounds": 6}
        return found

    first = steps(0, 1)
    assert_array_equal(first, steps(0, 2))
    if "bucketing" in name:
        assert len({step.tobytes() for step in first}) > 1, "another draw each round"
        assert not np.array_equal(first, steps(1, 1))


@pytest.mark.parametrize("name", ["byzfl-bucketing-centered-clipping", "byzfl-smea"])
def test_a_run_goes_on_from_its_checkpoint_to_the_bit(
    byzfl: SimpleNamespace, name: str, tmp_path: Path
) -> None:
    whole = simulation(
        federation=federation((20, 7, 33, 9, 12)),
        rule=rule_of(name, attackers=1, tau=0.5, seed=3),
    )
    states, _ = assert_resumes(whole, tmp_path)
    assert states[-1].memory["rounds"] == 4


@pytest.mark.parametrize("name", ["byzfl-krum", "byzfl-bucketing-centered-clipping"])
def test_memory_of_another_rule_or_model(byzfl: SimpleNamespace, name: str) -> None:
    state, reports = a_round(4)
    rule = find_rule(name)()
    assert isinstance(rule, ByzFLRule)
    for memory in ({"trust": np.zeros(4)}, {"m": np.zeros(3), "rounds": np.array(1)}):
        with pytest.raises(FedcrfError, match=f"not of {name}"):
            rule.aggregate(memory, state, reports)


def test_a_server_optimizer_goes_behind_them(byzfl: SimpleNamespace) -> None:
    state, reports = a_round(5)
    rule = Optimized(rule_of("byzfl-bucketing-average"), Yogi())
    first = rule.aggregate({}, state, reports)
    second = rule.aggregate(first.memory, state, reports)
    assert second.memory["rule.rounds"] == 2
    # NaN weights are no weights of 0: the optimizer has made its step.
    assert np.abs(step_of(state, second)).min() > 0


# --- what a run tells them ------------------------------------------------------------------


@every_name
def test_a_cell_comes_back_from_its_description_and_through_a_pipe(name: str) -> None:
    layers = {"methods": [name], "attack": {"name": "ipm", "attackers": 3}}
    spec = resolve(layers)
    cell = spec.cell(name, 5)
    rule = cell.rule
    assert isinstance(rule, ByzFLRule)
    assert (rule.name, cell.method.rule, cell.name) == (name, name, f"{name}-seed-5")
    assert settings_of(name, attackers=3, seed=5).items() <= vars(rule).items()
    described = cell.describe()
    assert described["rule"]["name"] == name
    assert cell_of(json.loads(json.dumps(described))) == cell
    assert pickle.loads(pickle.dumps(rule)) == rule
    # The run's own file leaves open what the run tells: another attack tells it something else.
    again = tomllib.loads(tomli_w.dumps(spec.describe()))
    assert resolve(again).cells() == spec.cells()
    other = resolve(again, {"attack": {"attackers": 2}}).cell(name, 5).rule
    assert settings_of(name, attackers=2, seed=5).items() <= vars(other).items()


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ({}, 0),
        ({"attack": {"name": "ipm", "attackers": 4}}, 4),
        ({"attack": {"name": "label-flip", "attackers": 0.2}}, 2),
        ({"attack": {"name": "ipm", "attackers": 2, "start_round": 5, "every": 3}}, 2),
        ({"attack": {"name": "ipm", "attackers": 4}, "rounds": {"clients_per_round": 5}}, 2),
        (
            {
                "attack": {"name": "ipm", "attackers": 30},
                "partition": {"num_clients": 100},
                "rounds": {"clients_per_round": 10},
            },
            3,
        ),
        (
            {"attack": {"name": "ipm", "attackers": 4}, "rules": {"byzfl-krum": {"attackers": 1}}},
            1,
        ),
        ({"rules": {"byzfl-krum": {"attackers": 2}}}, 2),
    ],
    ids=str,
)
def test_the_number_of_attackers_is_the_run_s_true_one(
    layers: dict[str, Any], expected: int
) -> None:
    cell = resolve(layers, {"methods": ["byzfl-krum"]}).cells()[0]
    assert cell.describe()["rule"] == {"name": "byzfl-krum", "attackers": expected}


def test_names_are_methods() -> None:
    assert find_method("byzfl-nnm-krum").objective == "plain"
    assert find_method("byzfl-nnm-krum+proximal").objective == "proximal"
    assert find_method("byzfl-nnm-krum+yogi").server_optimizer == "yogi"
    assert find_method("byzfl-nnm-krum+proximal+yogi").rule == "byzfl-nnm-krum"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"methods": ["byzfl-nmn-krum"]}, ["rule of ByzFL", "byzfl-nmn-krum", "'byzfl-nnm-krum'"]),
        ({"methods": ["byzfl-krum-nnm"]}, ["rule of ByzFL", "byzfl-krum-nnm"]),
        ({"methods": ["byzfl-nnm-nnm-krum"]}, ["byzfl-nnm-nnm-krum", "'byzfl-nnm-krum'"]),
        ({"methods": ["byzfl-krum+plan"]}, ["plan", "'plain'"]),
        ({"rules": {"byzfl-krumm": {}}}, ["byzfl-krumm", "'byzfl-krum'"]),
        ({"rules": {"byzfl-krum": {"f": 1}}}, ["[rules.byzfl-krum]", "'f'", "attackers"]),
        ({"rules": {"byzfl-median": {"attackers": 1}}}, ["byzfl-median", "no settings"]),
        ({"rules": {"byzfl-krum": {"attackers": -1}}}, ["[rules.byzfl-krum]", "attackers -1"]),
        ({"rules": {"byzfl-geometric-median": {"nu": 0}}}, ["nu 0"]),
        ({"rules": {"byzfl-geometric-median": {"T": 2.5}}}, ["byzfl-geometric-median.T", "2.5"]),
        ({"rules": {"byzfl-geometric-median": {"T": 0}}}, ["T 0", "1 to 1000000"]),
        ({"rules": {"byzfl-bucketing-krum": {"s": 0}}}, ["s 0", "1 or more"]),
        (
            {"methods": ["byzfl-krum"], "attack": {"name": "ipm", "attackers": 5}},
            ["byzfl-krum", "5 attackers", "10 reports", "rules.byzfl-krum.attackers"],
        ),
        (
            {
                "methods": ["byzfl-bucketing-mda"],
                "attack": {"name": "ipm", "attackers": 3},
                "rules": {"byzfl-bucketing-mda": {"s": 2}},
            },
            ["byzfl-bucketing-mda", "3 attackers", "in 5 buckets"],
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_named(given: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(FedcrfError) as caught:
        resolve(given)
    assert [name for name in named if name not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_rules_that_are_not_told_stand_any_number() -> None:
    resolve({"methods": ["byzfl-median"], "attack": {"name": "ipm", "attackers": 9}})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("byzfl-monna", {"idx": 6}, "byzfl-monna: ByzFL refuses the round: idx"),
    ],
)
def test_what_byzfl_refuses_of_a_round_is_named(
    byzfl: SimpleNamespace, name: str, settings: dict[str, int], message: str
) -> None:
    with pytest.raises(FedcrfError, match=message):
        byzfl_rule(name)(**settings).aggregate({}, *a_round(6))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("byzfl-nnm-median", {"attackers": 6}, "byzfl-nnm-median: 6 attackers among 6 reports"),
        ("byzfl-trmean", {"attackers": 3}, "byzfl-trmean: 3 attackers among 6 reports are half"),
        ("byzfl-bucketing-mda", {"attackers": 2, "s": 2}, "2 attackers among 6 reports in 3 bu"),
    ],
)
def test_settings_that_byzfl_refuses_are_refused_before_the_first_round(
    name: str, settings: dict[str, int], message: str
) -> None:
    rule = byzfl_rule(name)(**settings)
    with pytest.raises(FedcrfError, match=message):
        simulation(federation=federation([4] * 6), rule=rule)
    simulation(federation=federation([4] * 10), rule=rule)


@pytest.mark.parametrize(
    ("name", "told", "answering", "allowed"),
    [
        ("byzfl-trmean", 3, 6, 2),
        ("byzfl-krum", 4, 3, 1),
        ("byzfl-mda", 1, 1, 0),
        ("byzfl-nnm-median", 6, 6, 5),
        ("byzfl-nnm-trmean", 3, 6, 2),
        ("byzfl-arc-nnm-meamed", 4, 5, 2),
        ("byzfl-bucketing-smea", 3, 6, 2),
        ("byzfl-caf", 2, 4, 1),
    ],
)
def test_where_few_answer_f_is_the_most_that_byzfl_takes_of_them(
    byzfl: SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
    name: str,
    told: int,
    answering: int,
    allowed: int,
) -> None:
    warn_once.cache_clear()
    rule = rule_of(name, attackers=told, seed=1)
    rounds = [a_round(answering, seed=number) for number in range(2)]
    results = [rule.aggregate({}, *each) for each in rounds]
    expected = [rule_of(name, attackers=allowed, seed=1).aggregate({}, *each) for each in rounds]
    for result, other in zip(results, expected, strict=True):
        assert all(
            np.array_equal(array, other.state[key]) for key, array in result.state.items()
        ), "the same computation"
    said = f"{name}: {told} attackers among {answering} reports"
    assert [line.startswith(said) for line in caplog.messages] == [True], "once for both rounds"
    assert caplog.messages[0].endswith(f"going on with {allowed}")


# Not the mean of all, nor that of those nearest to the first client, who attacks here.
@pytest.mark.parametrize(
    "name", [name for name in BYZFL_RULES if not name.endswith(("-average", "-monna"))]
)
def test_attackers_whose_squares_overflow_break_nothing_that_is_told_of_them(
    byzfl: SimpleNamespace, name: str
) -> None:
    state, reports = a_round(10)
    for client in range(3):
        far = {key: 1e25 * array for key, array in reports[client].state.items() if key != "n"}
        reports[client] = replace(reports[client], state={**reports[client].state, **far})
    result = rule_of(name, attackers=3).aggregate({}, state, reports)
    assert all(np.isfinite(array).all() for array in result.state.values())
    assert not result.excluded.any()


@pytest.mark.parametrize("name", ["byzfl-mda", "byzfl-smea"])
def test_where_all_distances_overflow_the_rule_is_named(byzfl: SimpleNamespace, name: str) -> None:
    state, reports = a_round(4)
    far = [
        replace(each, state={**each.state, "b": (1 + each.client) * np.full(5, 1e25, np.float32)})
        for each in reports
    ]
    with pytest.raises(FedcrfError, match=f"^{name}: ByzFL refuses the round: "):
        find_rule(name)().aggregate({}, state, far)


# --- the package ----------------------------------------------------------------------------


def test_without_the_package_one_line_says_how_to_install_it(
    without_byzfl: None, tmp_path: Path
) -> None:
    mend = r"^byzfl is not installed: pip install 'fedcrf\[byzfl\]'$"
    with pytest.raises(FedcrfError, match=mend):
        find_rule("byzfl-median")().aggregate({}, *a_round(3))
    with pytest.raises(FedcrfError, match=mend):
        carry_out(small_spec(methods=["fedavg", "byzfl-median"]), tmp_path / "run")
    assert not (tmp_path / "run").exists(), "known before anything is written"


@pytest.mark.slow
def test_its_aggregators_alone_are_imported(byzfl: SimpleNamespace) -> None:
    # A fresh interpreter, in which nothing stands in for torchvision.
    program = (
        "import sys\n"
        "from fedcrf.rules.byzfl import byzfl_part\n"
        "assert 'torch' not in sys.modules\n"
        "print(byzfl_part().TrMean(1).f)\n"
        "print([name for name in ('torchvision', 'matplotlib', 'byzfl') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["1", "[]"]
