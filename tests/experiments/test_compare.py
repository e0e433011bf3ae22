"""Who won and by how much, against SciPy's own paired t-test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from experiments.runs import summary
from fedcrf.experiments.compare import compare, estimate, paired_difference, worst_case
from fedcrf.experiments.tables import difference_text, interval_text


@pytest.mark.parametrize("n", [3, 5, 10])
def test_paired_difference_is_scipy_s(n: int) -> None:
    rng = np.random.default_rng(n)
    values, reference = rng.uniform(size=n).tolist(), rng.uniform(size=n).tolist()
    found = paired_difference(values, reference, bound=math.inf)
    interval = stats.ttest_rel(values, reference).confidence_interval(0.95)
    assert found.seeds == n
    assert found.mean == pytest.approx(np.mean(values) - np.mean(reference))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_seeds_have_no_interval(n: int) -> None:
    found = paired_difference([0.5, 0.75][:n], [0.25, 0.5][:n])
    assert (found.mean, found.seeds) == (0.25, n)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert difference_text(found) == "+0.250 [too few seeds]"
    worst = worst_case([[0.5, 0.7][:n]])
    assert (worst.seeds, math.isnan(worst.low)) == (n, True)
    assert interval_text(worst) == "[too few seeds]"


def test_one_seed_has_no_spread() -> None:
    alone = estimate([0.5])
    assert (alone.mean, alone.seeds) == (0.5, 1)
    assert math.isnan(alone.sd)


def test_equal_values_differ_by_nothing() -> None:
    found = paired_difference([0.5, 0.7, 0.2], [0.5, 0.7, 0.2])
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)


def test_an_interval_stays_where_accuracies_and_their_differences_can_be() -> None:
    found = paired_difference([1.0, 1.0, 0.0], [0.0, 0.0, 0.4])
    assert (found.low, found.high) == (-1.0, 1.0)
    rounds = paired_difference([20, 30, 10], [1, 2, 30], bound=math.inf)
    assert rounds.low < -1.0 < 1.0 < rounds.high
    worst = worst_case([[1.0, 1.0, 0.9], [1.0, 1.0, 1.0]])
    assert 0.0 <= worst.low <= worst.mean <= worst.high <= 1.0


@pytest.mark.parametrize("n", [3, 5, 40])
def test_the_interval_of_a_worst_case_is_a_bootstrap_over_seeds_of_the_least_mean(n: int) -> None:
    rng = np.random.default_rng(n)
    grid = rng.uniform(0.4, 0.6, size=(4, n))
    grid[2] -= 0.1
    found = worst_case(grid.tolist())
    assert (found.condition, found.seeds) == (2, n)
    assert found.mean == pytest.approx(grid[2].mean())
    drawn = grid[:, rng.integers(0, n, size=(20_000, n))].mean(axis=2).min(axis=0)  # the slow way
    # So far out that the same percentiles of a plain mean are about Student's t interval.
    outside = stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1))
    # Two sets of draws differ by the noise of an outer percentile.
    assert (found.low, found.high) == pytest.approx(
        np.quantile(drawn, [outside, 1 - outside]), abs=0.01
    )
    assert worst_case(grid.tolist()) == found, "the same draws every time"


def test_the_interval_of_one_condition_is_about_that_of_its_mean() -> None:
    values = np.random.default_rng(3).normal(0.5, 0.05, 30)
    found = worst_case([values.tolist()])
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.003)


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        paired_difference([1.0, 2.0], [1.0])


def test_means_over_seeds() -> None:
    accuracies = {"fedavg": [0.8, 0.7, 0.9], "crf-fedavg": [0.85, 0.72, 0.9]}
    cells = [
        summary(method, seed, accuracy, rounds=10 + seed, seconds_per_round=0.1 * 10**seed)
        for method, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]
    fedavg, crf = compare(cells[::-1], ["fedavg", "fedprox", "crf-fedavg"])
    assert (fedavg.method, crf.method) == ("fedavg", "crf-fedavg"), "none without a cell"
    for found, values in ((fedavg, accuracies["fedavg"]), (crf, accuracies["crf-fedavg"])):
        assert found.test.mean == pytest.approx(np.mean(values))
        assert found.test.sd == pytest.approx(np.std(values, ddof=1))
        assert found.test.seeds == 3
        assert found.client_mean.mean == pytest.approx(np.mean(values) - 0.1)
        assert found.worst_client.mean == pytest.approx(np.mean(values) - 0.3)
        assert found.held_out is not None
        assert found.held_out.mean == pytest.approx(np.mean(values) + 0.05)
        assert found.rounds == pytest.approx(11)
        assert found.seconds_per_round == pytest.approx(1.0), "the median of 0.1, 1 and 10"
    assert fedavg.difference is None, "the baseline has no difference to itself"
    assert crf.difference == paired_difference(accuracies["crf-fedavg"], accuracies["fedavg"])


@pytest.mark.parametrize(
    ("fedavg_seeds", "crf_seeds", "shared"),
    [([0, 1, 2], [1, 2, 3], [1, 2]), ([0, 1], [1], [1]), ([0], [1], []), ([], [0, 1], [])],
)
def test_only_shared_seeds_are_paired(
    fedavg_seeds: list[int], crf_seeds: list[int], shared: list[int]
) -> None:
    # By seed the difference is 0.1 exactly; unpaired it would be anything else.
    level = {0: 0.1, 1: 0.5, 2: 0.3, 3: 0.8}
    cells = [summary("fedavg", seed, level[seed]) for seed in fedavg_seeds]
    cells += [summary("crf-fedavg", seed, level[seed] + 0.1) for seed in crf_seeds]
    found = compare(cells, ["fedavg", "crf-fedavg"])[-1]
    assert found.test.seeds == len(crf_seeds), "its own mean is over all its seeds"
    if not shared:
        assert found.difference is None
    else:
        assert found.difference is not None
        assert found.difference.seeds == len(shared)
        assert found.difference.mean == pytest.approx(0.1)


@pytest.mark.parametrize(
    "changes", [{"held_out_accuracy": None}, {"test_accuracy": math.nan, "worst_client": math.nan}]
)
def test_what_is_missing_stays_missing(changes: dict[str, Any]) -> None:
    (found,) = compare([summary("fedavg", 0, 0.5, **changes)], ["fedavg"])
    assert (found.held_out is None) == ("held_out_accuracy" in changes)
    assert math.isnan(found.test.mean) == ("test_accuracy" in changes)
