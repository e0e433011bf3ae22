"""What the baselines promise beyond what every rule does, and where they are easily wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf.errors import FedcrfError
from fedcrf.rules import (
    GAS,
    RFA,
    CenteredClipping,
    ClientReport,
    CoordinateMedian,
    FedAvg,
    FedAWA,
    FedDisco,
    FedNova,
    FLTrust,
    FoundationFL,
    GeometricMedian,
    Krum,
    MultiKrum,
    TrimmedMean,
)
from paper import baselines as slow
from rules.rounds import (
    ROUNDING,
    Round,
    assert_same,
    counts,
    every_baseline,
    name_of,
    sample,
    slow_version,
    states,
)

# --- the rules by coordinate -----------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3, 6, 10, 11, 12, 30, 32, 33, 100, 1000])
def test_trimmed_mean_cuts_the_floor_of_the_fraction_on_each_side(m):
    # In binary 0.29 · 100 is 28.999…: the rule means 29/100, and cuts 29.
    # A selection may sort a hundred values outright: only of a thousand it leaves some unsorted.
    values = np.random.default_rng(m).permutation(np.arange(m) ** 3.0)
    reports = [ClientReport(i, {"w": np.array([x, -x])}, 1) for i, x in enumerate(values)]
    for fraction in (0.0, 0.05, 0.1, 0.2, 0.25, 0.29, 0.3, 1 / 3, 0.4, 0.49):
        got = TrimmedMean(fraction).aggregate({}, {"w": np.zeros(2)}, reports).state["w"]
        want = slow.trimmed(values, fraction)
        assert_allclose(got, [want, -want], rtol=1e-14, err_msg=str(fraction))


@pytest.mark.parametrize("m", [2, 10])
def test_a_fraction_just_below_a_half_leaves_the_median(m):
    reports = [ClientReport(i, {"w": np.array([float(i)])}, 1) for i in range(m)]
    for fraction in (0.49999999999, float(np.nextafter(0.5, 0))):
        got = TrimmedMean(fraction).aggregate({}, {"w": np.zeros(1)}, reports).state["w"]
        assert got == (m - 1) / 2


def test_the_default_trimmed_mean_cuts_one_of_ten_on_each_side():
    values = [1e9, -1e9, 1, 2, 3, 4, 5, 6, 7, 8]
    reports = [ClientReport(i, {"w": np.array([float(x)])}, 1) for i, x in enumerate(values)]
    assert TrimmedMean().aggregate({}, {"w": np.zeros(1)}, reports).state["w"] == 4.5


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    reports = [ClientReport(i, {"w": np.array([x])}, 1) for i, x in enumerate([9.0, 1.0, 4.0, 2.0])]
    assert CoordinateMedian().aggregate({}, {"w": np.zeros(1)}, reports).state["w"] == 3.0


# --- every baseline at its edges ---------------------------------------------------------------


@every_baseline
def test_two_clients(rule):
    """The mean for rules that cannot tell two clients apart; Krum, in a tie, takes the first."""
    before = {"w": np.array([1.0, 1.0])}
    models = [np.array([3.0, 0.0]), np.array([5.0, 4.0])]
    reports = [ClientReport(i, {"w": w}, 6, 2.0) for i, w in enumerate(models)]
    first = isinstance(rule, Krum) and (rule.single or rule.num_byzantine)
    got = rule.aggregate({}, before, reports).state["w"]
    assert_allclose(got, models[0] if first else [4.0, 2.0], rtol=1e-12)


@pytest.mark.parametrize(
    "rule",
    [
        CoordinateMedian(),
        TrimmedMean(),
        GeometricMedian(),
        *map(Krum, (0, 1)),
        MultiKrum(),
        GAS(num_byzantine=2),
        FoundationFL(num_byzantine=2),
        CenteredClipping(clip=0.5),
    ],
    ids=name_of,
)
def test_rules_that_do_not_weigh_by_examples_ignore_the_counts(rule):
    before, reports = sample(7)
    equal = [ClientReport(r.client, r.state, 1) for r in reports]
    assert_same(
        rule.aggregate({}, before, reports).state, rule.aggregate({}, before, equal).state, 1e-15
    )


@pytest.mark.parametrize("rule", [RFA(), FedNova(), FedNova(True), FedDisco()], ids=name_of)
def test_a_client_without_examples_does_not_pull_where_examples_weigh(rule):
    before, reports = sample(6)
    silent = ClientReport(9, sample(1, seed=8).reports[0].state, 0, effective_steps=0.0)
    got = rule.aggregate({}, before, [*reports, silent])
    assert got.weights[6] == 0.0
    assert not got.excluded[6]
    assert_same(got.state, rule.aggregate({}, before, reports).state)


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
        (GAS, {"groups": 0}),
        (GAS, {"base": "mean"}),
        (GAS, {"num_byzantine": -1}),
        (GAS, {"seed": -1}),
        (FLTrust, {"server_examples": 0}),
        (FoundationFL, {"base": "krum"}),
        (FoundationFL, {"num_byzantine": -1}),
        (FoundationFL, {"copies": -1}),
        (CenteredClipping, {"clip": 0.0}),
        (CenteredClipping, {"iterations": 0}),
        (CenteredClipping, {"bucket_size": 0}),
        (CenteredClipping, {"seed": -1}),
        (FedAWA, {"iterations": 0}),
        (FedAWA, {"learning_rate": 0.0}),
        (FedAWA, {"beta1": 1.0}),
        (FedAWA, {"beta2": -0.1}),
        (FedDisco, {"discrepancy": -0.1}),
        (FedDisco, {"offset": float("nan")}),
    ],
)
def test_settings_outside_their_range_are_refused_by_name(make, setting):
    with pytest.raises(FedcrfError, match=next(iter(setting))):
        make(**setting)


def test_the_defaults_are_the_specified_ones():
    assert GeometricMedian() == GeometricMedian(iterations=50, tolerance=1e-6)
    assert RFA() == RFA(iterations=3, smoothing=1e-6)
    assert not FedNova().normalise_buffers


TOLD = [
    (Krum(), 3, Krum(3)),
    (MultiKrum(), 4, MultiKrum(4)),
    (TrimmedMean(), 3, TrimmedMean(0.3)),
    (Krum(), 0, Krum(0)),
    (TrimmedMean(), 0, TrimmedMean(0.1)),
    (MultiKrum(1), 3, MultiKrum(1)),
    (Krum(0), 3, Krum(0)),
    (TrimmedMean(0.0), 3, TrimmedMean(0.0)),
    (TrimmedMean(0.2), 9, TrimmedMean(0.2)),
    (GAS(), 3, GAS(num_byzantine=3, seed=5)),
    (GAS(num_byzantine=1, seed=2), 3, GAS(num_byzantine=1, seed=2)),
    (FoundationFL(), 3, FoundationFL(num_byzantine=3)),
    (FoundationFL(num_byzantine=0), 3, FoundationFL(num_byzantine=0)),
    (CenteredClipping(), 3, CenteredClipping(seed=5)),
    (CenteredClipping(seed=0), 3, CenteredClipping(seed=0)),
]


@pytest.mark.parametrize(("rule", "attackers", "expected"), TOLD, ids=str)
def test_a_rule_is_told_of_the_attackers_unless_its_settings_say_otherwise(
    rule, attackers, expected
):
    assert rule.informed(attackers, num_clients=10, seed=5) == expected


@pytest.mark.parametrize("rule", [Krum(), MultiKrum(), TrimmedMean()], ids=name_of)
def test_a_rule_that_nobody_tells_expects_no_attackers(rule):
    before, reports = sample(10)
    told = rule.informed(0, num_clients=10, seed=0)
    assert_same(
        rule.aggregate({}, before, reports).state, told.aggregate({}, before, reports).state
    )


@pytest.mark.parametrize(
    ("rule", "attackers", "said"),
    [
        (Krum(), 5, "Krum: 5 attackers of 10 .* give 4 at most .num_byzantine, --attackers"),
        (MultiKrum(), 9, "MultiKrum: 9 attackers of 10 clients are half or more"),
        (MultiKrum(9), 0, "MultiKrum: 9 attackers of 10 clients are half or more"),
        (TrimmedMean(), 5, "TrimmedMean: 5 attackers of 10 .* give 4 at most .fraction"),
        (GAS(), 5, "GAS: 5 attackers of 10 .* give 4 at most .num_byzantine"),
        (FoundationFL(), 5, "FoundationFL: 5 attackers of 10 .* give 4 at most .num_byzantine"),
    ],
    ids=str,
)
def test_a_rule_that_half_of_the_clients_attack_is_refused(rule, attackers, said):
    with pytest.raises(FedcrfError, match=said):
        rule.informed(attackers, num_clients=10, seed=0)


# --- geometric median and RFA ---------------------------------------------------------------


@pytest.mark.parametrize("rule", [GeometricMedian(), RFA()], ids=name_of)
def test_equal_updates_get_equal_weights_from_the_geometric_medians(rule):
    """The model is right whatever the weights; but they are reported, as the share of each."""
    rng = np.random.default_rng(0)
    for d, m in ((7, 10), (1000, 10), (1000, 33), (5000, 10)):
        state = {"w": 1e3 * rng.standard_normal(d)}
        reports = [ClientReport(i, state, 1) for i in range(m)]
        got = rule.aggregate({}, {"w": np.zeros(d)}, reports)
        assert_allclose(got.weights, 1 / m, rtol=1e-6)


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
    z = slow.vector(rule.aggregate({}, before, reports).state) - slow.vector(before)

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
    z = slow.vector(GeometricMedian().aggregate({}, before, reports).state) - slow.vector(before)
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
    _, reports = round_ = sample(m, common=common, shapes=shapes)
    got = slow.vector(round_.aggregate(rule).state)
    want = slow.vector(slow_version(rule, round_)[1])
    vectors = [slow.vector(state) for state in states(reports)]
    spread = np.mean([slow.distance(u, want) for u in vectors])
    mean = slow.mix(vectors, slow.shares(counts(reports)))
    assert slow.distance(got, want) < 1e-5 * spread
    if m > 2:  # of two, the mean is a geometric median
        assert slow.distance(mean, want) > 1e-3 * spread


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("copies", [1, 2])
def test_an_update_at_the_mean_does_not_hold_the_geometric_median(copies, dtype):
    """Plain Weiszfeld starts at the mean and would never leave an update that lies there.

    So do all attackers that send the mean of the others, as ALIE's where its z is 0.
    """
    vectors = np.random.default_rng(3).normal(size=(9, 2)) ** 3
    vectors = np.vstack([vectors, *[vectors.mean(axis=0)] * copies]).astype(dtype)
    before = {"w": np.zeros(2, dtype)}
    reports = [ClientReport(i, {"w": vector}, 1) for i, vector in enumerate(vectors)]
    rough, z = (
        rule.aggregate({}, before, reports).state["w"].astype(float)
        for rule in (GeometricMedian(), GeometricMedian(iterations=500, tolerance=1e-12))
    )
    vectors = vectors.astype(float)

    def total(point):
        return np.linalg.norm(vectors - point, axis=1).sum()

    assert total(rough) < total(vectors[-1]) - 0.01
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
        assert_allclose(rule.aggregate({}, before, reports).weights, v, atol=1e-8)


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
            {},
            {"w": np.zeros(20)},
            [ClientReport(i, {"w": u}, 1) for i, u in enumerate(factor * rows)],
        ).weights
        for factor in (1.0, scale)
    ]
    assert_allclose(weights[1], weights[0], rtol=1e-9)


def test_rfa_takes_exactly_its_iterations_and_weighs_by_examples():
    before, reports = sample(6)
    vectors, n = slow.updates(before, states(reports)), counts(reports)
    weights = [RFA(iterations=k).aggregate({}, before, reports).weights for k in (1, 2, 3, 4)]
    for k, got in enumerate(weights, start=1):
        assert_allclose(got, slow.rfa(vectors, n, iterations=k)[1], rtol=1e-9)
    assert_array_equal(RFA().aggregate({}, before, reports).weights, weights[2])
    assert np.abs(weights[3] - weights[2]).max() > 1e-5  # four are not three
    unweighted = slow.rfa(vectors, [1] * 6)[1]
    assert np.abs(weights[2] - unweighted).max() > 1e-2


def test_distances_below_the_smoothing_count_as_the_smoothing():
    # All distances are below 1e9: every pull is the same, and RFA is FedAvg.
    before, reports = sample(6)
    got = RFA(smoothing=1e9).aggregate({}, before, reports)
    assert_allclose(got.weights, slow.shares(counts(reports)), rtol=1e-12)
    # Three updates at one point hold the mean there but for what 1e-2 allows the fourth.
    models = [[0.0], [0.0], [0.0], [0.0], [10.0]]
    at = [ClientReport(i, {"w": np.array(w)}, 1) for i, w in enumerate(models)]
    vectors = [np.array(w) for w in models]
    got = RFA(iterations=30, smoothing=1e-2).aggregate({}, {"w": np.zeros(1)}, at)
    assert_allclose(got.weights, slow.rfa(vectors, [1] * 5, 30, 1e-2)[1], rtol=1e-6)
    assert_allclose(got.weights[4], 1e-2 / 4 / 10, rtol=1e-2)


def test_an_outlier_moves_the_geometric_medians_little_and_the_mean_much():
    before, reports = sample(9, shapes={"weight": (30,)})
    outlier = {"weight": before["weight"] + 1e6}
    with_outlier = [*reports[:-1], ClientReport(8, outlier, reports[-1].num_examples)]
    for rule, most in ((GeometricMedian(), 10.0), (RFA(iterations=50), 10.0)):
        moved = rule.aggregate({}, before, with_outlier).state["weight"] - before["weight"]
        assert np.linalg.norm(moved) < most * np.sqrt(30)
    moved = FedAvg().aggregate({}, before, with_outlier).state["weight"] - before["weight"]
    assert np.linalg.norm(moved) > 1e4


# --- Krum -----------------------------------------------------------------------------------


def krum_round(points: Sequence[float]) -> Round:
    reports = [ClientReport(i, {"w": np.array([x, 0.0])}, 1 + i) for i, x in enumerate(points)]
    return Round({"w": np.zeros(2)}, reports)


@pytest.mark.parametrize("f", range(8))
@pytest.mark.parametrize("m", [3, 6, 9, 10, 40])
def test_krum_scores_the_nearest_m_minus_f_minus_2(m, f):
    before, reports = sample(m, seed=20 + f)
    neighbours = max(1, min(m - 1, m - f - 2))
    scores = slow.krum_scores(slow.updates(before, states(reports)), neighbours)
    got = Krum(f).aggregate({}, before, reports)
    chosen = int(np.argmax(got.weights))
    assert_array_equal(np.sort(got.weights)[-2:], [0.0, 1.0])
    assert scores[chosen] <= min(scores) * (1 + 1e-9)
    assert_same(got.state, reports[chosen].state, 0)

    kept = MultiKrum(f).aggregate({}, before, reports).weights
    assert (kept > 0).sum() == max(1, m - f)
    assert_allclose(kept[kept > 0], 1 / max(1, m - f), rtol=1e-14)
    if f and m > f:
        assert np.max(np.array(scores)[kept > 0]) <= np.min(np.array(scores)[kept == 0]) * (
            1 + 1e-9
        )


def test_krum_chooses_by_two_neighbours_of_five_when_one_is_byzantine():
    # At 0 the two nearest are at 1 (score 2), at 3.1 and 4.3 they are at 3.1, 3.1+1.2, 3.1+1.3…
    before, reports = krum_round([0.0, 1.0, 3.1, 4.3, 4.4])
    got = Krum(1).aggregate({}, before, reports)
    assert_array_equal(got.weights, [0, 0, 0, 1, 0])  # 0.01 + 1.44, against 0.01 + 1.69 of 4.4
    # Of one neighbour 4.3 and 4.4 tie, and the earlier client is taken.
    assert_array_equal(Krum(2).aggregate({}, before, reports).weights, [0, 0, 0, 1, 0])
    kept = MultiKrum(2).aggregate({}, before, reports).weights
    assert_allclose(kept, [1 / 3, 0, 0, 1 / 3, 1 / 3])  # 0 and 1 tie as well


def test_krum_ignores_a_far_cluster_of_f_clients():
    before, reports = sample(10, common=0.0)
    far = {name: array + 100 for name, array in before.items()}
    attacked = [*reports[:7], *(ClientReport(i, far, 1) for i in (7, 8, 9))]
    assert np.argmax(Krum(3).aggregate({}, before, attacked).weights) < 7
    assert not MultiKrum(3).aggregate({}, before, attacked).weights[7:].any()
    # With f = 0 seven far neighbours would be scored too, but three near ones could not hide.
    assert np.argmax(Krum(0).aggregate({}, before, attacked).weights) < 7


def test_krum_measures_updates_so_that_a_large_common_part_does_not_cancel():
    """Float32 models of size 1e4: the choice is the one made of the exact differences."""
    rng = np.random.default_rng(5)
    base = (1e4 * rng.standard_normal(3000)).astype(np.float32)
    models = [
        (base + rng.standard_normal(3000) * s).astype(np.float32)
        for s in (1, 0.9, 0.5, 1, 1.1, 1.2)
    ]
    reports = [ClientReport(i, {"w": w}, 1) for i, w in enumerate(models)]
    assert np.argmax(Krum(1).aggregate({}, {"w": base}, reports).weights) == 2
    vectors = slow.updates({"w": base}, states(reports))
    assert slow.krum(vectors, 1) == 2


# --- FedNova --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("normalise_buffers", [False, True])
@pytest.mark.parametrize("steps", [1.0, 7.25, 5000.0])
def test_fednova_of_equal_steps_is_fedavg(steps, normalise_buffers, dtype):
    before, reports = sample(8, dtype=dtype)
    equal = [ClientReport(r.client, r.state, r.num_examples, steps) for r in reports]
    got = FedNova(normalise_buffers).aggregate({}, before, equal)
    want = FedAvg().aggregate({}, before, equal)
    assert_same(got.state, want.state, ROUNDING[np.dtype(dtype)] * 2)
    assert_allclose(got.weights, want.weights, rtol=1e-12)
    # and of unequal steps it is not
    other = FedNova(normalise_buffers).aggregate({}, before, reports).state["conv.weight"]
    assert np.abs(other - want.state["conv.weight"]).max() > 1e-2


def unequal_steps(value: float, number: int) -> Round:
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
    reports = [ClientReport(i, state, 10, steps) for i, steps in enumerate((1.0, 9.0))]
    return Round(before, reports)


def test_buffers_of_fednova_are_averaged_with_weights_that_sum_to_one():
    before, reports = unequal_steps(0.25, 40)
    got = FedNova().aggregate({}, before, reports)
    assert_allclose(got.state["weight"], 25 / 9, rtol=1e-14)  # the parameters are normalised
    assert_allclose(got.state["norm.running_var"], 0.25, rtol=1e-14)
    assert got.state["norm.num_batches_tracked"] == 40
    assert_allclose(got.weights, [2.5, 2.5 / 9], rtol=1e-14)
    assert_array_equal(got.base_weights, [0.5, 0.5])


def test_buffers_run_through_tau_make_a_running_variance_negative():
    """Both clients measured 0.25, the global model 1: 1 + 2.78 · (0.25 − 1) < 0."""
    before, reports = unequal_steps(0.25, 40)
    got = FedNova(normalise_buffers=True).aggregate({}, before, reports)
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
        got = rule.aggregate({}, before, reports).state
        return {name for name in names if abs(got[name][0] - 1) < 1e-12}

    assert averaged(FedNova()) == {"running_var", "a.b.running_var"}
    assert averaged(FedNova(buffers=("mask",))) == {"mask"}
    assert averaged(FedNova(buffers=())) == set()
    assert averaged(FedNova(normalise_buffers=True)) == set()


@pytest.mark.parametrize("steps", [0.0, -1.0, float("nan"), float("inf"), None, "1"])
def test_impossible_steps_are_refused(steps):
    before, reports = sample(3)
    reports[1] = ClientReport(1, reports[1].state, 5, steps)
    with pytest.raises(FedcrfError, match="effective_steps"):
        FedNova().aggregate({}, before, reports)
