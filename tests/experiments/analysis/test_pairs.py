"""Who won and by how much, against SciPy's own paired t-test."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.runs import table_of
from fedcrf.experiments.analysis.tables import (
    Estimate,
    difference_text,
    estimate,
    interval_text,
    mean_accuracy,
    method_difference,
    paired_difference,
    worst_case,
)


def paired(values: Sequence[float], reference: Sequence[float], bound: float = 1.0) -> Estimate:
    found = paired_difference(pd.Series(values), pd.Series(reference), bound)
    assert found is not None
    return found


def worst(rows: Sequence[Sequence[float]]) -> tuple[int, Estimate]:
    return worst_case(pd.DataFrame(rows))


@pytest.mark.parametrize("n", [3, 5, 10])
def test_paired_difference_is_scipy_s(n: int) -> None:
    rng = np.random.default_rng(n)
    values, reference = rng.uniform(size=n).tolist(), rng.uniform(size=n).tolist()
    found = paired(values, reference, bound=math.inf)
    interval = stats.ttest_rel(values, reference).confidence_interval(0.95)
    assert found.seeds == n
    assert found.mean == pytest.approx(np.mean(values) - np.mean(reference))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_seeds_have_no_interval(n: int) -> None:
    found = paired([0.5, 0.75][:n], [0.25, 0.5][:n])
    assert (found.mean, found.seeds) == (0.25, n)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert difference_text(found) == "+0.250 [too few seeds]"
    _, least = worst([[0.5, 0.7][:n]])
    assert (least.seeds, math.isnan(least.low)) == (n, True)
    assert interval_text(least) == "[too few seeds]"


def test_one_seed_has_no_spread() -> None:
    alone = estimate([0.5])
    assert estimate([]) is None
    assert alone is not None
    assert (alone.mean, alone.seeds) == (0.5, 1)
    assert math.isnan(alone.sd)


def test_equal_values_differ_by_nothing() -> None:
    found = paired([0.5, 0.7, 0.2], [0.5, 0.7, 0.2])
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)


def test_an_interval_stays_where_accuracies_and_their_differences_can_be() -> None:
    found = paired([1.0, 1.0, 0.0], [0.0, 0.0, 0.4])
    assert (found.low, found.high) == (-1.0, 1.0)
    rounds = paired([20, 30, 10], [1, 2, 30], bound=math.inf)
    assert rounds.low < -1.0 < 1.0 < rounds.high
    _, least = worst([[1.0, 1.0, 0.9, 1.0, 1.0], [1.0] * 5])
    assert 0.0 <= least.low <= least.mean <= least.high <= 1.0


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_worst_case_of_few_seeds_has_no_interval(n: int) -> None:
    _, found = worst(np.random.default_rng(n).uniform(size=(3, n)).tolist())
    assert interval_text(found) == "[too few seeds]"


@pytest.mark.parametrize("n", [5, 10, 40])
def test_the_interval_of_a_worst_case_is_a_bootstrap_over_seeds_of_the_least_mean(n: int) -> None:
    rng = np.random.default_rng(n)
    grid = rng.uniform(0.4, 0.6, size=(4, n))
    grid[2] -= 0.1
    row, found = worst(grid.tolist())
    assert (row, found.seeds) == (2, n)
    assert found.mean == pytest.approx(grid[2].mean())
    drawn = grid[:, rng.integers(0, n, size=(20_000, n))].mean(axis=2).min(axis=0)  # the slow way
    # So far out that the same percentiles of a plain mean are about Student's t interval.
    outside = stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1))
    # Two sets of draws differ by the noise of an outer percentile.
    assert (found.low, found.high) == pytest.approx(
        np.quantile(drawn, [outside, 1 - outside]), abs=0.01
    )
    assert repr(worst(grid.tolist())) == repr((row, found)), "the same draws every time"


def test_the_interval_of_one_condition_is_about_that_of_its_mean() -> None:
    values = np.random.default_rng(3).normal(0.5, 0.05, 30)
    _, found = worst([values.tolist()])
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.003)


def test_means_over_seeds() -> None:
    accuracies = {"fedavg": [0.8, 0.7, 0.9], "crf-fedavg": [0.85, 0.72, 0.9]}
    cells = table_of(
        (method, seed, value)
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    )
    shuffled = cells.iloc[::-1]
    for method, values in accuracies.items():
        found = mean_accuracy(shuffled, method)
        assert found is not None
        assert found.mean == pytest.approx(np.mean(values))
        assert found.sd == pytest.approx(np.std(values, ddof=1))
        assert found.seeds == 3
    assert mean_accuracy(cells, "fedprox") is None, "it has no cell"
    assert method_difference(cells, "fedavg") is None, "the baseline has no difference to itself"
    crf = method_difference(shuffled, "crf-fedavg")
    assert crf == paired(accuracies["crf-fedavg"], accuracies["fedavg"])


@pytest.mark.parametrize(
    ("fedavg_seeds", "crf_seeds", "shared"),
    [([0, 1, 2], [1, 2, 3], [1, 2]), ([0, 1], [1], [1]), ([0], [1], []), ([], [0, 1], [])],
)
def test_only_shared_seeds_are_paired(
    fedavg_seeds: list[int], crf_seeds: list[int], shared: list[int]
) -> None:
    # By seed the difference is 0.1 exactly; unpaired it would be anything else.
    level = {0: 0.1, 1: 0.5, 2: 0.3, 3: 0.8}
    rows = [("fedavg", seed, level[seed]) for seed in fedavg_seeds]
    cells = table_of([*rows, *(("crf-fedavg", seed, level[seed] + 0.1) for seed in crf_seeds)])
    mean, difference = mean_accuracy(cells, "crf-fedavg"), method_difference(cells, "crf-fedavg")
    assert mean is not None
    assert mean.seeds == len(crf_seeds), "its own mean is over all its seeds"
    if not shared:
        assert difference is None
    else:
        assert difference is not None
        assert difference.seeds == len(shared)
        assert difference.mean == pytest.approx(0.1)


def test_what_is_not_complete_does_not_count() -> None:
    cells = table_of([("fedavg", 0, 0.5), ("fedavg", 1, 0.9)])
    cells.loc[1, "complete"] = False
    found = mean_accuracy(cells, "fedavg")
    assert found is not None
    assert (found.mean, found.seeds) == (0.5, 1)
    assert mean_accuracy(table_of([]), "fedavg") is None


def test_what_is_not_a_number_stays_so() -> None:
    found = mean_accuracy(table_of([("fedavg", 0, math.nan), ("fedavg", 1, 0.5)]), "fedavg")
    assert found is not None
    assert math.isnan(found.mean)
