"""Who won and by how much: means, paired differences and worst cases over seeds, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from fedcrf.experiments.store import CellSummary

CONFIDENCE = 0.95

FEWEST_SEEDS = 3
"""With fewer there is no interval."""

RESAMPLES = 10_000
"""How often the seeds are drawn anew for the interval of a worst case."""

BOOTSTRAP_SEED = 202_611
"""Names the generator of these draws, so that the same results have the same interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: Sample mean.
        sd: Sample standard deviation (n − 1); NaN for one seed.
        seeds: Number of seeds.
    """

    mean: float
    sd: float
    seeds: int


@dataclass(frozen=True)
class PairedDifference:
    """The mean over the seeds that two methods share of the difference of some quantity.

    Attributes:
        mean: Mean difference.
        low: Where the 95 % interval of Student's t begins; NaN for fewer than three seeds.
        high: Where it ends, likewise.
        seeds: Number of shared seeds.
    """

    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class WorstCase:
    """The least mean accuracy over seeds among some conditions.

    Attributes:
        mean: The least mean.
        condition: Number of the condition that has it.
        low: Where its 95 % interval begins; NaN for fewer than three seeds.
        high: Where it ends, likewise.
        seeds: Number of seeds, the same for all conditions.
    """

    mean: float
    condition: int
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class MethodResult:
    """What one method reached over its finished seeds.

    Attributes:
        method: Its name.
        test: Test accuracy over the union of the clients' test parts.
        held_out: Accuracy on the data set's own test set, where it has one.
        client_mean: Unweighted mean over clients of the test accuracy.
        worst_client: Lowest test accuracy of a client.
        rounds: Mean number of rounds.
        seconds_per_round: Median over seeds of the median round.
        aggregation_share: The server's share of a round, in [0, 1], likewise.
        images_per_second: Speed of local training, likewise; NaN where it was not kept.
        difference: Of the test accuracy to the baseline's, paired by seed.
    """

    method: str
    test: Estimate
    held_out: Estimate | None
    client_mean: Estimate
    worst_client: Estimate
    rounds: float
    seconds_per_round: float
    aggregation_share: float
    images_per_second: float
    difference: PairedDifference | None


def compare(
    summaries: Sequence[CellSummary], methods: Sequence[str], baseline: str = "fedavg"
) -> list[MethodResult]:
    """Compare the finished cells by method.

    Args:
        summaries: Finished cells of one run.
        methods: The methods to list, in order; those without a finished cell are left out.
        baseline: The method the paired differences are to.
    """
    return [
        _result(
            method, cells, None if method == baseline else pair_methods(summaries, method, baseline)
        )
        for method in methods
        if (cells := [each for each in summaries if each.method == method])
    ]


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean and sample standard deviation."""
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Estimate(float(np.mean(values)), sd, len(values))


def paired_difference(
    values: Sequence[float], reference: Sequence[float], bound: float = 1.0
) -> PairedDifference:
    """Return the mean of ``values − reference`` with its t interval; pairs stand side by side.

    Args:
        values: One a seed.
        reference: Of the same seeds.
        bound: The greatest difference that can be, which the interval does not leave: 1 of
            accuracies, infinity of what has no limits.
    """
    differences = estimate([a - b for a, b in zip(values, reference, strict=True)])
    mean, n = differences.mean, differences.seeds
    if n < FEWEST_SEEDS:
        return PairedDifference(mean, math.nan, math.nan, n)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * differences.sd / math.sqrt(n)
    low, high = np.clip([mean - half, mean + half], -bound, bound)
    return PairedDifference(mean, float(low), float(high), n)


def worst_case(accuracies: Sequence[Sequence[float]]) -> WorstCase:
    """Return the least mean among conditions with its bootstrap interval.

    The seeds are drawn anew, for all conditions the same, and each time the least of the means is
    taken. Few seeds make percentiles too narrow: those taken here are as far out as makes the
    interval of a plain mean that of Student's t (the expanded percentile interval of Hesterberg,
    The American Statistician 69, 2015).

    Args:
        accuracies: A row a condition, with the same seeds in the same order.
    """
    grid = np.array(accuracies, dtype=np.float64)
    means, n = grid.mean(axis=1), grid.shape[1]
    condition = int(means.argmin())
    least = float(means[condition])
    if n < FEWEST_SEEDS:
        return WorstCase(least, condition, math.nan, math.nan, n)
    quantile = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    outside = float(ndtr(-math.sqrt(n / (n - 1)) * quantile))
    drawn = (grid @ _drawn_seeds(n).T).min(axis=0).clip(0.0, 1.0)
    # Rounded, as the last digits of a matrix product are the processor's own.
    low, high = np.quantile(drawn, [outside, 1 - outside]).round(12).tolist()
    return WorstCase(least, condition, min(low, least), max(high, least), n)


@lru_cache
def _drawn_seeds(n: int) -> NDArray[np.float64]:
    """Return the share of each of n seeds in every drawing, (drawings, n)."""
    counts = np.random.default_rng(BOOTSTRAP_SEED).multinomial(n, [1 / n] * n, RESAMPLES)
    return counts / n


def pair_methods(
    summaries: Sequence[CellSummary], method: str, baseline: str
) -> PairedDifference | None:
    """Return the paired difference of two methods; None where they share no finished seed."""
    return pair_seeds(
        {each.seed: each for each in summaries if each.method == method},
        {each.seed: each for each in summaries if each.method == baseline},
    )


def pair_seeds(
    ours: Mapping[int, CellSummary], theirs: Mapping[int, CellSummary]
) -> PairedDifference | None:
    """Return the paired difference of cells by seed; None where they share no seed."""
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    return paired_difference(
        [ours[seed].test_accuracy for seed in shared],
        [theirs[seed].test_accuracy for seed in shared],
    )


def _result(
    method: str, cells: Sequence[CellSummary], difference: PairedDifference | None
) -> MethodResult:
    held_out = [cell.held_out_accuracy for cell in cells if cell.held_out_accuracy is not None]
    return MethodResult(
        method=method,
        test=estimate([cell.test_accuracy for cell in cells]),
        held_out=estimate(held_out) if held_out else None,
        client_mean=estimate([cell.client_mean for cell in cells]),
        worst_client=estimate([cell.worst_client for cell in cells]),
        rounds=float(np.mean([cell.rounds for cell in cells])),
        seconds_per_round=float(np.median([cell.seconds_per_round for cell in cells])),
        aggregation_share=float(np.median([cell.aggregation_share for cell in cells])),
        images_per_second=float(np.median([cell.images_per_second for cell in cells])),
        difference=difference,
    )
