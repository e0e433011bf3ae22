"""The baselines against their slow versions in ``paper/baselines.py``, and at their edges."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf.errors import FedcrfError
from fedcrf.rules import (
    RFA,
    RULES,
    ClientReport,
    CoordinateMedian,
    FedAvg,
    FedNova,
    GeometricMedian,
    Krum,
    MultiKrum,
    TrimmedMean,
)
from fedcrf.simulation.local_training import LocalTraining
from paper import baselines as slow


def name_of(rule) -> str:
    """A rule's name in the list of tests: its class and what differs from the defaults."""
    settings = [
        f"{field.name}={getattr(rule, field.name)}"
        for field in dataclasses.fields(rule)
        if getattr(rule, field.name) != getattr(type(rule)(), field.name)
    ]
    return "-".join([type(rule).__name__, *settings])


# At most a rounding to the model's own dtype; everything before it is in float64.
ROUNDING = {np.dtype(np.float32): 6.1e-8, np.dtype(np.float64): 1e-12}

SHAPES = {
    "conv.weight": (2, 2, 3),
    "norm.weight": (3,),
    "norm.running_mean": (3,),
    "norm.running_var": (3,),
    "norm.num_batches_tracked": (),
    "head.weight": (2, 3),
    "head.scale": (),
}

BASELINES = [
    FedNova(),
    FedNova(normalise_buffers=True),
    CoordinateMedian(),
    TrimmedMean(),
    TrimmedMean(0.3),
    GeometricMedian(),
    RFA(),
    Krum(),
    Krum(1),
    MultiKrum(),
    MultiKrum(1),
]
BY_COORDINATE = (CoordinateMedian, TrimmedMean)
EVERY_RULE = [*BASELINES, *(RULES[name]() for name in ("fedavg", "uniform", "crf"))]


@pytest.mark.parametrize("name", [name for name in RULES if not name.startswith("crf")])
def test_every_rule_names_its_paper(name):
    assert re.search(r"\b(19|20)\d\d\b", RULES[name].__doc__), name


def tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    if name.endswith("num_batches_tracked"):
        return np.array(rng.integers(0, 1000, shape), dtype=np.int64)
    if name.endswith("running_var"):
        return rng.uniform(0.5, 2.0, shape).astype(dtype)
    return np.array(rng.standard_normal(shape), dtype=dtype)


def sample(
    m: int,
    seed: int = 0,
    dtype: type = np.float64,
    common: float = 1.0,
    shapes: dict[str, tuple[int, ...]] = SHAPES,
) -> tuple[slow.State, list[ClientReport]]:
    """A global model and m clients' around it: a common move of that size, and a spread of 1.

    Counts and effective steps differ, so that a rule that ignores them cannot pass for another.
    """
    rng = np.random.default_rng([seed, m])
    before = {name: tensor(rng, name, shape, dtype) for name, shape in shapes.items()}
    moved = {
        name: tensor(rng, name, array.shape, dtype) * (common if array.dtype.kind == "f" else 1)
        for name, array in before.items()
    }
    reports = []
    for client in range(m):
        state = {
            name: np.asarray(
                array + moved[name] + tensor(rng, name, array.shape, dtype), dtype=array.dtype
            )
            for name, array in before.items()
        }
        n = int(rng.integers(1, 200))
        reports.append(ClientReport(client, state, n, LocalTraining().effective_steps(16 * n)))
    return before, reports


def states(reports: Sequence[ClientReport]) -> list[slow.State]:
    return [report.state for report in reports]


def counts(reports: Sequence[ClientReport]) -> list[int]:
    return [report.num_examples for report in reports]


def expected(rule, before: slow.State, reports: Sequence[ClientReport]) -> slow.State:
    """What the slow version of ``rule`` makes of the reports, in float64 and not yet rounded."""
    models, n = states(reports), counts(reports)
    vectors = slow.updates(before, models)
    if isinstance(rule, FedNova):
        steps = [report.effective_steps for report in reports]
        return slow.fednova(before, models, n, steps, rule.normalise_buffers)
    if isinstance(rule, CoordinateMedian):
        return slow.coordinate_median(models)
    if isinstance(rule, TrimmedMean):
        return slow.trimmed_mean(models, rule.fraction)
    if isinstance(rule, GeometricMedian):
        equal = [1 / len(models)] * len(models)
        _, v, _ = slow.weiszfeld(vectors, equal, 1e-12, rule.iterations, rule.tolerance)
        return slow.weighted_mean(models, v)
    if isinstance(rule, RFA):
        _, v = slow.rfa(vectors, n, rule.iterations, rule.smoothing)
        return slow.weighted_mean(models, v)
    if isinstance(rule, Krum):
        return slow.weighted_mean([models[slow.krum(vectors, rule.num_byzantine)]], [1.0])
    assert isinstance(rule, MultiKrum)
    kept = slow.multi_krum(vectors, rule.num_byzantine)
    return slow.weighted_mean([models[i] for i in kept], [1 / len(kept)] * len(kept))


def assert_rounded(got: slow.State, want: slow.State, before: slow.State, slack: float) -> None:
    """Compare a model with float64 numbers: the same tensors, floats near, integers nearest."""
    assert list(got) == list(before)
    for name, array in before.items():
        assert got[name].dtype == array.dtype, name
        assert got[name].shape == array.shape, name
        if array.dtype.kind == "f":
            near = ROUNDING[array.dtype]
            scale = float(np.max(np.abs(want[name])))
            assert_allclose(got[name], want[name], rtol=near, atol=slack * scale, err_msg=name)
        else:  # nearest; either neighbour where the exact value is half-way
            assert np.all(np.abs(got[name] - want[name]) <= 0.5 + 1e-9), name


def assert_same(got: slow.State, want: slow.State, near: float = 1e-12) -> None:
    """Compare two models tensor by tensor, dtypes included."""
    assert list(got) == list(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype, name
        scale = float(np.max(np.abs(array)))
        assert_allclose(got[name], array, rtol=near, atol=near * scale, err_msg=name)


# --- every rule against its slow version ----------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 10, 40])
@pytest.mark.parametrize("rule", BASELINES, ids=name_of)
def test_every_rule_equals_its_slow_version(rule, m, dtype):
    # 40 clients are beyond what is ranked by a sorting network.
    before, reports = sample(m, dtype=dtype)
    # Weiszfeld's weights divide by distances, which the Gram matrix knows less well.
    slack = 1e-9 if isinstance(rule, GeometricMedian | RFA) else 1e-13
    got = rule.aggregate(before, reports).state
    assert_rounded(got, expected(rule, before, reports), before, slack)


@pytest.mark.parametrize("rule", BASELINES, ids=name_of)
@settings(max_examples=15, deadline=None)
@given(
    m=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
    common=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_every_rule_equals_its_slow_version_on_drawn_rounds(rule, m, seed, dtype, common):
    before, reports = sample(m, seed, dtype, common)
    slack = 1e-8 if isinstance(rule, GeometricMedian | RFA) else 1e-12
    if isinstance(rule, Krum | MultiKrum):
        # With one neighbour the closest two tie exactly; which is first is tested on its own.
        tied = slow.krum_neighbours(m, rule.num_byzantine) == 1 and m > 1
        if tied:
            assert_krum_chose_well(rule, before, reports)
            return
    got = rule.aggregate(before, reports).state
    assert_rounded(got, expected(rule, before, reports), before, slack)


def assert_krum_chose_well(rule, before, reports) -> None:
    """No client that was left out has a better score than one that was kept."""
    neighbours = slow.krum_neighbours(len(reports), rule.num_byzantine)
    scores = np.array(slow.krum_scores(slow.updates(before, states(reports)), neighbours))
    kept = rule.aggregate(before, reports).weights > 0
    assert kept.sum() == (1 if isinstance(rule, Krum) else len(reports) - rule.num_byzantine)
    if not kept.all():
        assert scores[kept].max() <= scores[~kept].min() * (1 + 1e-9)


@pytest.mark.parametrize("rule", BASELINES, ids=name_of)
@pytest.mark.parametrize(("m", "size"), [(5, 16500), (33, 2100)])
def test_a_layer_of_many_blocks_equals_its_slow_version(rule, m, size):
    """A layer wider than the blocks that the passes take: no column is lost or read twice."""
    before, reports = sample(m, shapes={"a.weight": (3, 7), "b.weight": (size,)})
    slack = 1e-9 if isinstance(rule, GeometricMedian | RFA) else 1e-13
    got = rule.aggregate(before, reports).state
    assert_rounded(got, expected(rule, before, reports), before, slack)


@pytest.mark.parametrize("m", [1, 2, 3, 6, 10, 11, 12, 30, 32, 33, 100, 1000])
def test_trimmed_mean_cuts_the_floor_of_the_fraction_on_each_side(m):
    # In binary 0.29 · 100 is 28.999…: the rule means 29/100, and cuts 29.
    # A selection may sort a hundred values outright: only of a thousand it leaves some unsorted.
    values = np.random.default_rng(m).permutation(np.arange(m) ** 3.0)
    reports = [ClientReport(i, {"w": np.array([x, -x])}, 1) for i, x in enumerate(values)]
    for fraction in (0.0, 0.05, 0.1, 0.2, 0.25, 0.29, 0.3, 1 / 3, 0.4, 0.49):
        got = TrimmedMean(fraction).aggregate({"w": np.zeros(2)}, reports).state["w"]
        want = slow.trimmed(values, fraction)
        assert_allclose(got, [want, -want], rtol=1e-14, err_msg=str(fraction))


@pytest.mark.parametrize("m", [2, 10])
def test_a_fraction_just_below_a_half_leaves_the_median(m):
    reports = [ClientReport(i, {"w": np.array([float(i)])}, 1) for i in range(m)]
    for fraction in (0.49999999999, float(np.nextafter(0.5, 0))):
        got = TrimmedMean(fraction).aggregate({"w": np.zeros(1)}, reports).state["w"]
        assert got == (m - 1) / 2


def test_the_default_trimmed_mean_cuts_one_of_ten_on_each_side():
    values = [1e9, -1e9, 1, 2, 3, 4, 5, 6, 7, 8]
    reports = [ClientReport(i, {"w": np.array([float(x)])}, 1) for i, x in enumerate(values)]
    assert TrimmedMean().aggregate({"w": np.zeros(1)}, reports).state["w"] == 4.5


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    reports = [ClientReport(i, {"w": np.array([x])}, 1) for i, x in enumerate([9.0, 1.0, 4.0, 2.0])]
    assert CoordinateMedian().aggregate({"w": np.zeros(1)}, reports).state["w"] == 3.0


# --- integers -------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", BASELINES, ids=name_of)
def test_integer_buffers_keep_their_dtype_and_are_rounded_not_cut(rule):
    """Three clients at 7 and 7 and 8, or 7 and 8 and 8: not always the smaller number."""
    weight = np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1]])
    for tracked in ([7, 7, 8], [7, 8, 8]):
        before = {"weight": np.zeros(2), "num_batches_tracked": np.array(0, dtype=np.int64)}
        reports = [
            ClientReport(i, {"weight": w, "num_batches_tracked": np.array(t, dtype=np.int64)}, 5)
            for i, (w, t) in enumerate(zip(weight, tracked, strict=True))
        ]
        got = rule.aggregate(before, reports).state["num_batches_tracked"]
        assert got.dtype == np.int64
        assert got.shape == ()
        if isinstance(rule, Krum | MultiKrum):
            want = expected(rule, before, reports)["num_batches_tracked"]
            assert got == round(float(want))
        elif isinstance(rule, GeometricMedian | RFA):
            assert got == 7  # all its weight is at the first client, where the angle is right
        else:
            assert got == sorted(tracked)[1]


# --- every rule at its edges ----------------------------------------------------------------


@pytest.mark.parametrize("rule", EVERY_RULE, ids=name_of)
@pytest.mark.parametrize("m", [8, 35])
def test_the_order_of_the_reports_does_not_matter(rule, m):
    before, reports = sample(m, seed=3)
    want = rule.aggregate(before, reports)
    order = np.random.default_rng(m).permutation(m)
    got = rule.aggregate(before, [reports[i] for i in order])
    assert_same(got.state, want.state, 1e-9)
    assert_allclose(got.weights, want.weights[order], rtol=1e-8)
    assert_allclose(got.base_weights, want.base_weights[order], rtol=1e-12)


@pytest.mark.parametrize(("position", "poison"), [(0, np.nan), (3, np.inf), (6, -np.inf)])
@pytest.mark.parametrize("rule", EVERY_RULE, ids=name_of)
def test_a_client_that_is_not_finite_has_no_effect(rule, position, poison):
    before, reports = sample(6, seed=1)
    want = rule.aggregate(before, reports)
    # One number is enough, and in a buffer too; the client's count is larger than all others.
    state = copy.deepcopy(dict(reports[2].state))
    state["norm.running_mean"][1] = poison
    state["norm.num_batches_tracked"] = np.array(10**6)
    broken = ClientReport(99, state, 10_000, 700.0)
    got = rule.aggregate(before, [*reports[:position], broken, *reports[position:]])

    others = np.arange(7) != position
    assert_same(got.state, want.state, 1e-9)
    assert got.weights[position] == 0.0
    assert got.base_weights[position] == 0.0
    assert_allclose(got.weights[others], want.weights, rtol=1e-8)
    assert_array_equal(got.excluded, ~others)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=name_of)
@pytest.mark.parametrize("m", [1, 5])
def test_where_no_client_is_finite_the_global_model_stays(rule, m):
    before, reports = sample(m)
    for report in reports:
        report.state["head.weight"][0, 1] = np.nan
    got = rule.aggregate(before, reports)
    for name, array in before.items():
        assert_array_equal(got.state[name], array, err_msg=name)
        assert got.state[name].dtype == array.dtype
    assert_array_equal(got.weights, np.zeros(m))
    assert got.excluded.all()


@pytest.mark.parametrize("rule", EVERY_RULE, ids=name_of)
@pytest.mark.parametrize("m", [2, 10, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_where_all_updates_are_equal_that_is_the_result(rule, m, dtype):
    before, (only, *_) = sample(1, dtype=dtype, common=1e3)
    # FedNova scales updates by the steps they took: only equal steps leave a common one as it is.
    reports = [ClientReport(i, only.state, 10 + i, 3.0) for i in range(m)]
    got = rule.aggregate(before, reports)
    assert_same(got.state, only.state, 0 if dtype is np.float32 else 1e-14)
    if not isinstance(rule, BY_COORDINATE):
        assert_allclose(got.weights.sum(), 1.0, rtol=1e-12)


@pytest.mark.parametrize("rule", [GeometricMedian(), RFA()], ids=name_of)
def test_equal_updates_get_equal_weights_from_the_geometric_medians(rule):
    """The model is right whatever the weights; but they are reported, as the share of each."""
    rng = np.random.default_rng(0)
    for d, m in ((7, 10), (1000, 10), (1000, 33), (5000, 10)):
        state = {"w": 1e3 * rng.standard_normal(d)}
        reports = [ClientReport(i, state, 1) for i in range(m)]
        got = rule.aggregate({"w": np.zeros(d)}, reports)
        assert_allclose(got.weights, 1 / m, rtol=1e-6)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=name_of)
@pytest.mark.parametrize("m", [1, 10])
def test_where_no_client_moved_the_global_model_stays(rule, m):
    before, _ = sample(1)
    reports = [ClientReport(i, copy.deepcopy(before), 10 + i, 1.0 + i) for i in range(m)]
    got = rule.aggregate(before, reports)
    assert_same(got.state, before, 1e-14)
    assert not got.excluded.any()


@pytest.mark.parametrize("rule", EVERY_RULE, ids=name_of)
def test_one_client_is_returned_as_it_is(rule):
    before, reports = sample(1, seed=4, dtype=np.float32)
    got = rule.aggregate(before, reports)
    assert_same(got.state, reports[0].state, 0)
    if not isinstance(rule, BY_COORDINATE):
        assert_allclose(got.weights, [1.0], rtol=1e-14)


@pytest.mark.parametrize("rule", BASELINES, ids=name_of)
def test_two_clients(rule):
    """The mean for rules that cannot tell two clients apart; Krum, in a tie, takes the first."""
    before = {"w": np.array([1.0, 1.0])}
    models = [np.array([3.0, 0.0]), np.array([5.0, 4.0])]
    reports = [ClientReport(i, {"w": w}, 6, 2.0) for i, w in enumerate(models)]
    first = isinstance(rule, Krum) or (isinstance(rule, MultiKrum) and rule.num_byzantine == 1)
    got = rule.aggregate(before, reports).state["w"]
    assert_allclose(got, models[0] if first else [4.0, 2.0], rtol=1e-12)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=name_of)
def test_nothing_that_goes_in_is_changed(rule):
    before, reports = sample(5)
    kept = copy.deepcopy((before, reports))
    rule.aggregate(before, reports)
    assert_same(before, kept[0], 0)
    for report, was in zip(reports, kept[1], strict=True):
        assert_same(report.state, was.state, 0)


@pytest.mark.parametrize("rule", BASELINES, ids=name_of)
@pytest.mark.parametrize("numbers", [(3, -1), (0, 0), (1, float("nan"))])
def test_impossible_counts_are_refused(rule, numbers):
    before, reports = sample(2)
    wrong = [ClientReport(r.client, r.state, n, 1.0) for r, n in zip(reports, numbers, strict=True)]
    with pytest.raises(FedcrfError, match="num_examples"):
        rule.aggregate(before, wrong)


@pytest.mark.parametrize(
    "rule",
    [CoordinateMedian(), TrimmedMean(), GeometricMedian(), *map(Krum, (0, 1)), MultiKrum()],
    ids=name_of,
)
def test_rules_that_do_not_weigh_by_examples_ignore_the_counts(rule):
    before, reports = sample(7)
    equal = [ClientReport(r.client, r.state, 1) for r in reports]
    assert_same(rule.aggregate(before, reports).state, rule.aggregate(before, equal).state, 1e-15)


@pytest.mark.parametrize("rule", [RFA(), FedNova(), FedNova(True)], ids=name_of)
def test_a_client_without_examples_does_not_pull_where_examples_weigh(rule):
    before, reports = sample(6)
    silent = ClientReport(9, sample(1, seed=8)[1][0].state, 0, effective_steps=3.0)
    got = rule.aggregate(before, [*reports, silent])
    assert got.weights[6] == 0.0
    assert not got.excluded[6]
    assert_same(got.state, rule.aggregate(before, reports).state)


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (TrimmedMean, {"fraction": -0.01}),
        (TrimmedMean, {"fraction": 0.5}),
        (TrimmedMean, {"fraction": float("nan")}),
        (GeometricMedian, {"iterations": 0}),
        (GeometricMedian, {"iterations": -3}),
        (GeometricMedian, {"tolerance": -1e-9}),
        (GeometricMedian, {"tolerance": float("inf")}),
        (GeometricMedian, {"tolerance": float("nan")}),
        (RFA, {"iterations": 0}),
        (RFA, {"smoothing": 0.0}),
        (RFA, {"smoothing": -1e-6}),
        (RFA, {"smoothing": float("inf")}),
        (RFA, {"smoothing": float("nan")}),
        (Krum, {"num_byzantine": -1}),
        (MultiKrum, {"num_byzantine": -1}),
    ],
)
def test_settings_outside_their_range_are_refused_by_name(make, setting):
    with pytest.raises(FedcrfError, match=next(iter(setting))):
        make(**setting)


def test_the_defaults_are_the_specified_ones():
    assert TrimmedMean() == TrimmedMean(fraction=0.1)
    assert GeometricMedian() == GeometricMedian(iterations=50, tolerance=1e-6)
    assert RFA() == RFA(iterations=3, smoothing=1e-6)
    assert not FedNova().normalise_buffers
    assert (Krum().num_byzantine, MultiKrum().num_byzantine) == (0, 0)


# --- geometric median and RFA ---------------------------------------------------------------


@pytest.mark.parametrize("m", [3, 4, 10, 40])
@pytest.mark.parametrize("seed", range(3))
def test_the_geometric_median_has_the_least_total_distance(m, seed):
    """Against the problem's own definition: no pull is left at z, and no point near it is better.

    Neither is true of the mean of these updates.
    """
    before, reports = sample(m, seed)
    vectors = slow.updates(before, states(reports))
    # To the end: the default's 1e-6 is about the steps, and the slack below about the point.
    rule = GeometricMedian(iterations=5000, tolerance=1e-11)
    z = slow.vector(rule.aggregate(before, reports).state) - slow.vector(before)

    def pull(point):
        return np.linalg.norm(sum((point - u) / slow.distance(point, u) for u in vectors)) / m

    mean = slow.mix(vectors, [1 / m] * m)
    assert pull(z) < 1e-6 < pull(mean)
    assert_allclose(z, slow.geometric_median(vectors), atol=1e-6)

    least = slow.total_distance(vectors, z)
    assert slow.total_distance(vectors, mean) > least
    rng = np.random.default_rng(seed)
    for size in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(10):
            direction = rng.standard_normal(len(z))
            other = z + size * direction / np.linalg.norm(direction)
            assert slow.total_distance(vectors, other) > least


def test_the_default_geometric_median_has_converged_where_training_leaves_the_updates():
    before, reports = sample(10)
    vectors = slow.updates(before, states(reports))
    z = slow.vector(GeometricMedian().aggregate(before, reports).state) - slow.vector(before)
    want = slow.geometric_median(vectors)
    mean = slow.mix(vectors, [0.1] * 10)
    assert slow.distance(z, want) < 1e-5 * np.linalg.norm(want) < slow.distance(mean, want)


@pytest.mark.parametrize("common", [1.0, 1e4])
@pytest.mark.parametrize("m", [2, 3, 10, 40])
@pytest.mark.parametrize(
    "rule",
    [
        RFA(),
        RFA(iterations=50),
        GeometricMedian(tolerance=0.0),
        GeometricMedian(iterations=3, tolerance=0.0),
    ],
    ids=name_of,
)
def test_a_large_common_part_of_the_updates_does_not_cancel(rule, m, common):
    """The error is measured against the spread, since the mean alone is right within 1e-4 of z."""
    shapes = {"weight": (40, 5), "bias": (5,)}
    before, reports = sample(m, common=common, shapes=shapes)
    got = slow.vector(rule.aggregate(before, reports).state)
    want = slow.vector(expected(rule, before, reports))
    vectors = [slow.vector(state) for state in states(reports)]
    spread = np.mean([slow.distance(u, want) for u in vectors])
    mean = slow.mix(vectors, slow.shares(counts(reports)))
    assert slow.distance(got, want) < 1e-5 * spread
    if m > 2:  # of two, the mean is a geometric median
        assert slow.distance(mean, want) > 1e-3 * spread


def test_an_update_at_the_mean_does_not_hold_the_geometric_median():
    """Plain Weiszfeld starts at the mean and would never leave an update that lies there."""
    vectors = np.random.default_rng(3).normal(size=(9, 2)) ** 3
    vectors = np.vstack([vectors, vectors.mean(axis=0)])
    before = {"w": np.zeros(2)}
    reports = [ClientReport(i, {"w": vector}, 1) for i, vector in enumerate(vectors)]
    z = GeometricMedian(iterations=500, tolerance=1e-12).aggregate(before, reports).state["w"]

    def total(point):
        return np.linalg.norm(vectors - point, axis=1).sum()

    assert total(z) < total(vectors[-1]) - 0.01
    steps = np.random.default_rng(4).normal(scale=1e-3, size=(200, 2))
    assert all(total(z) <= total(z + step) + 1e-9 for step in steps)


@pytest.mark.parametrize("common", [1.0, 1e4])
def test_the_geometric_median_ends_at_the_specified_step(common):
    """The tolerance is relative to the updates' spread: the two end after the same steps."""
    before, reports = sample(10, common=common, shapes={"weight": (40, 5)})
    vectors = slow.updates(before, states(reports))
    for tolerance in (1e-2, 1e-3, 1e-6):
        rule = GeometricMedian(tolerance=tolerance)
        _, v, at_rest = slow.weiszfeld(vectors, [0.1] * 10, 1e-12, 50, tolerance)
        assert at_rest
        assert_allclose(rule.aggregate(before, reports).weights, v, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("rule", [GeometricMedian(), Krum(1), MultiKrum(1)], ids=name_of)
def test_the_size_of_all_updates_does_not_matter(rule, scale):
    """A small learning rate is no reason to weigh differently: ε is far below any update.

    RFA's smoothing, a distance by definition, makes it an exception.
    """
    rows = np.random.default_rng(2).standard_normal((7, 20)) + 1
    rows[0] = 0.9 * rows[0] + 0.1 * rows.mean(axis=0)
    weights = [
        rule.aggregate(
            {"w": np.zeros(20)}, [ClientReport(i, {"w": u}, 1) for i, u in enumerate(factor * rows)]
        ).weights
        for factor in (1.0, scale)
    ]
    assert_allclose(weights[1], weights[0], rtol=1e-9)


def test_rfa_takes_exactly_its_iterations_and_weighs_by_examples():
    before, reports = sample(6)
    vectors, n = slow.updates(before, states(reports)), counts(reports)
    weights = [RFA(iterations=k).aggregate(before, reports).weights for k in (1, 2, 3, 4)]
    for k, got in enumerate(weights, start=1):
        assert_allclose(got, slow.rfa(vectors, n, iterations=k)[1], rtol=1e-9)
    assert_array_equal(RFA().aggregate(before, reports).weights, weights[2])
    assert np.abs(weights[3] - weights[2]).max() > 1e-5  # four are not three
    unweighted = slow.rfa(vectors, [1] * 6)[1]
    assert np.abs(weights[2] - unweighted).max() > 1e-2


def test_distances_below_the_smoothing_count_as_the_smoothing():
    # All distances are below 1e9: every pull is the same, and RFA is FedAvg.
    before, reports = sample(6)
    got = RFA(smoothing=1e9).aggregate(before, reports)
    assert_allclose(got.weights, slow.shares(counts(reports)), rtol=1e-12)
    # Three updates at one point hold the mean there but for what 1e-2 allows the fourth.
    models = [[0.0], [0.0], [0.0], [0.0], [10.0]]
    at = [ClientReport(i, {"w": np.array(w)}, 1) for i, w in enumerate(models)]
    vectors = [np.array(w) for w in models]
    got = RFA(iterations=30, smoothing=1e-2).aggregate({"w": np.zeros(1)}, at)
    assert_allclose(got.weights, slow.rfa(vectors, [1] * 5, 30, 1e-2)[1], rtol=1e-6)
    assert_allclose(got.weights[4], 1e-2 / 4 / 10, rtol=1e-2)


def test_an_outlier_moves_the_geometric_medians_little_and_the_mean_much():
    before, reports = sample(9, shapes={"weight": (30,)})
    outlier = {"weight": before["weight"] + 1e6}
    with_outlier = [*reports[:-1], ClientReport(8, outlier, reports[-1].num_examples)]
    for rule, most in ((GeometricMedian(), 10.0), (RFA(iterations=50), 10.0)):
        moved = rule.aggregate(before, with_outlier).state["weight"] - before["weight"]
        assert np.linalg.norm(moved) < most * np.sqrt(30)
    moved = FedAvg().aggregate(before, with_outlier).state["weight"] - before["weight"]
    assert np.linalg.norm(moved) > 1e4


# --- Krum -----------------------------------------------------------------------------------


def krum_round(points: Sequence[float]) -> tuple[slow.State, list[ClientReport]]:
    reports = [ClientReport(i, {"w": np.array([x, 0.0])}, 1 + i) for i, x in enumerate(points)]
    return {"w": np.zeros(2)}, reports


@pytest.mark.parametrize("f", range(8))
@pytest.mark.parametrize("m", [3, 6, 9, 10, 40])
def test_krum_scores_the_nearest_m_minus_f_minus_2(m, f):
    before, reports = sample(m, seed=20 + f)
    neighbours = max(1, min(m - 1, m - f - 2))
    scores = slow.krum_scores(slow.updates(before, states(reports)), neighbours)
    got = Krum(f).aggregate(before, reports)
    chosen = int(np.argmax(got.weights))
    assert_array_equal(np.sort(got.weights)[-2:], [0.0, 1.0])
    assert scores[chosen] <= min(scores) * (1 + 1e-9)
    assert_same(got.state, reports[chosen].state, 0)

    kept = MultiKrum(f).aggregate(before, reports).weights
    assert (kept > 0).sum() == max(1, m - f)
    assert_allclose(kept[kept > 0], 1 / max(1, m - f), rtol=1e-14)
    if f and m > f:
        assert np.max(np.array(scores)[kept > 0]) <= np.min(np.array(scores)[kept == 0]) * (
            1 + 1e-9
        )


def test_krum_chooses_by_two_neighbours_of_five_when_one_is_byzantine():
    # At 0 the two nearest are at 1 (score 2), at 3.1 and 4.3 they are at 3.1, 3.1+1.2, 3.1+1.3…
    before, reports = krum_round([0.0, 1.0, 3.1, 4.3, 4.4])
    got = Krum(1).aggregate(before, reports)
    assert_array_equal(got.weights, [0, 0, 0, 1, 0])  # 0.01 + 1.44, against 0.01 + 1.69 of 4.4
    # Of one neighbour 4.3 and 4.4 tie, and the earlier client is taken.
    assert_array_equal(Krum(2).aggregate(before, reports).weights, [0, 0, 0, 1, 0])
    kept = MultiKrum(2).aggregate(before, reports).weights
    assert_allclose(kept, [1 / 3, 0, 0, 1 / 3, 1 / 3])  # 0 and 1 tie as well


def test_krum_ignores_a_far_cluster_of_f_clients():
    before, reports = sample(10, common=0.0)
    far = {name: array + 100 for name, array in before.items()}
    attacked = [*reports[:7], *(ClientReport(i, far, 1) for i in (7, 8, 9))]
    assert np.argmax(Krum(3).aggregate(before, attacked).weights) < 7
    assert not MultiKrum(3).aggregate(before, attacked).weights[7:].any()
    # With f = 0 seven far neighbours would be scored too, but three near ones could not hide.
    assert np.argmax(Krum(0).aggregate(before, attacked).weights) < 7


def test_krum_measures_updates_so_that_a_large_common_part_does_not_cancel():
    """Float32 models of size 1e4: the choice is the one made of the exact differences."""
    rng = np.random.default_rng(5)
    base = (1e4 * rng.standard_normal(3000)).astype(np.float32)
    models = [
        (base + rng.standard_normal(3000) * s).astype(np.float32)
        for s in (1, 0.9, 0.5, 1, 1.1, 1.2)
    ]
    reports = [ClientReport(i, {"w": w}, 1) for i, w in enumerate(models)]
    assert np.argmax(Krum(1).aggregate({"w": base}, reports).weights) == 2
    vectors = slow.updates({"w": base}, states(reports))
    assert slow.krum(vectors, 1) == 2


# --- FedNova --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("normalise_buffers", [False, True])
@pytest.mark.parametrize("steps", [1.0, 7.25, 5000.0])
def test_fednova_of_equal_steps_is_fedavg(steps, normalise_buffers, dtype):
    before, reports = sample(8, dtype=dtype)
    equal = [ClientReport(r.client, r.state, r.num_examples, steps) for r in reports]
    got = FedNova(normalise_buffers).aggregate(before, equal)
    want = FedAvg().aggregate(before, equal)
    assert_same(got.state, want.state, ROUNDING[np.dtype(dtype)] * 2)
    assert_allclose(got.weights, want.weights, rtol=1e-12)
    # and of unequal steps it is not
    other = FedNova(normalise_buffers).aggregate(before, reports).state["conv.weight"]
    assert np.abs(other - want.state["conv.weight"]).max() > 1e-2


def unequal_steps(value: float, number: int) -> tuple[slow.State, list[ClientReport]]:
    """Two clients of 1 and 9 effective steps; τ_eff Σ p_i / a_i = 5 · (1/2 + 1/18) = 2.78."""
    before = {
        "weight": np.zeros(2),
        "norm.running_var": np.ones(2),
        "norm.num_batches_tracked": np.array(0, dtype=np.int64),
    }
    state = {
        "weight": np.ones(2),
        "norm.running_var": np.full(2, value),
        "norm.num_batches_tracked": np.array(number, dtype=np.int64),
    }
    return before, [ClientReport(i, state, 10, steps) for i, steps in enumerate((1.0, 9.0))]


def test_buffers_of_fednova_are_averaged_with_weights_that_sum_to_one():
    before, reports = unequal_steps(0.25, 40)
    got = FedNova().aggregate(before, reports)
    assert_allclose(got.state["weight"], 25 / 9, rtol=1e-14)  # the parameters are normalised
    assert_allclose(got.state["norm.running_var"], 0.25, rtol=1e-14)
    assert got.state["norm.num_batches_tracked"] == 40
    assert_allclose(got.weights, [2.5, 2.5 / 9], rtol=1e-14)
    assert_array_equal(got.base_weights, [0.5, 0.5])


def test_buffers_run_through_tau_make_a_running_variance_negative():
    """Both clients measured 0.25, the global model 1: 1 + 2.78 · (0.25 − 1) < 0."""
    before, reports = unequal_steps(0.25, 40)
    got = FedNova(normalise_buffers=True).aggregate(before, reports)
    assert_allclose(got.state["norm.running_var"], 1 - 0.75 * 25 / 9, rtol=1e-14)
    assert (got.state["norm.running_var"] < 0).all()
    assert got.state["norm.num_batches_tracked"] == 111  # of 40 batches
    assert got.weights.sum() > 1.1


def test_which_tensors_are_buffers_is_told_by_the_last_part_of_their_names():
    names = ("running_var", "a.b.running_var", "my_running_var", "running_var.weight", "mask")
    before = {name: np.zeros(1) for name in names}
    state = {name: np.ones(1) for name in names}
    reports = [ClientReport(i, state, 10, a) for i, a in enumerate((1.0, 9.0))]

    def averaged(rule):
        got = rule.aggregate(before, reports).state
        return {name for name in names if abs(got[name][0] - 1) < 1e-12}

    assert averaged(FedNova()) == {"running_var", "a.b.running_var"}
    assert averaged(FedNova(buffers=("mask",))) == {"mask"}
    assert averaged(FedNova(buffers=())) == set()
    assert averaged(FedNova(normalise_buffers=True)) == set()


@pytest.mark.parametrize("steps", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_steps_are_refused(steps):
    before, reports = sample(3)
    reports[1] = ClientReport(1, reports[1].state, 5, steps)
    with pytest.raises(FedcrfError, match="effective_steps"):
        FedNova().aggregate(before, reports)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3, 17, 150])
def test_effective_steps_are_what_momentum_accumulates(steps, momentum):
    training = LocalTraining(momentum=momentum, batch_size=10)
    want = slow.effective_steps(steps, momentum)
    assert_allclose(training.effective_steps(10 * steps), want, rtol=1e-10)
    assert_allclose(training.effective_steps(10 * steps - 9), want, rtol=1e-10)  # a short last one
    if momentum == 0.0:
        assert want == steps


def test_effective_steps_count_every_epoch():
    training = LocalTraining(momentum=0.9, batch_size=10, local_epochs=3)
    assert_allclose(training.effective_steps(25), slow.effective_steps(9, 0.9), rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_effective_steps_are_how_far_torchs_optimizer_goes_on_a_constant_slope(momentum):
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=momentum)
    for _ in range(12):
        optimizer.zero_grad()
        (-2.0 * weight).sum().backward()
        optimizer.step()
    steps = LocalTraining(momentum=momentum, batch_size=1).effective_steps(12)
    assert_allclose(weight.item(), 0.5 * 2.0 * steps, rtol=1e-12)
