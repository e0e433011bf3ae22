"""Who won and by how much: means over seeds, and differences paired by seed with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from fedcrf.experiments.store import CellSummary

CONFIDENCE = 0.95


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
    """The mean over the seeds that two methods share of the difference of their accuracies.

    Attributes:
        mean: Mean difference.
        half_width: Half the 95 % interval of Student's t; NaN for one seed.
        seeds: Number of shared seeds.
    """

    mean: float
    half_width: float
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


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> PairedDifference:
    """Return the mean of ``values − reference`` with its t interval; pairs stand side by side."""
    differences = estimate([a - b for a, b in zip(values, reference, strict=True)])
    n = differences.seeds
    half = (
        float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * differences.sd / math.sqrt(n)
        if n > 1
        else math.nan
    )
    return PairedDifference(differences.mean, half, n)


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
