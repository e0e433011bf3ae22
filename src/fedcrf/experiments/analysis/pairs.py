"""Who won and by how much: means, paired differences and worst cases over seeds, with intervals.

The functions take the table of `fedcrf.experiments.results`, a row a cell; `mean_curve` takes the
rounds of runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.simulation.records import RoundRecord, Rounds, reported_round

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

CONFIDENCE = 0.95

FEWEST_SEEDS = 3
"""With fewer there is no interval."""

BASELINE = "fedavg"
"""The method that others are compared with."""

RESAMPLES = 10_000
"""How often the seeds are drawn again for the interval of a worst case."""

BOOTSTRAP_SEED = 202_611
"""Names the generator of these draws, so that the same results have the same interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: Sample mean.
        seeds: Number of seeds.
        sd: Sample standard deviation (n − 1); NaN for one seed, and of a worst case.
        low: Where the 95 % interval begins; NaN for fewer than three seeds, or if not asked for.
        high: Where it ends, likewise.
    """

    mean: float
    seeds: int
    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan


def by_axes(cells: pd.DataFrame, *axes: str) -> Mapping[Any, pd.DataFrame]:
    """Return the complete cells at each combination of some axes' values, by seed.

    Of one axis the keys are its values, of several tuples of them; a table without rows for others.
    """
    complete = cells[cells["complete"]].set_index("seed").sort_index()
    groups = complete.groupby(axes[0] if len(axes) == 1 else list(axes), sort=False)
    return defaultdict(lambda: complete.iloc[:0], iter(groups))


def of_method(cells: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return a method's complete cells, by seed."""
    return by_axes(cells, "method")[method]


def mean_grid(cells: pd.DataFrame, down: str, across: str) -> pd.DataFrame:
    """Return the mean accuracies of the complete cells over two axes, for a heat map."""
    complete = cells[cells["complete"]]
    return complete.pivot_table(values="accuracy", index=down, columns=across, aggfunc="mean")


def estimate(values: Sequence[float] | pd.Series) -> Estimate | None:
    """Return mean and sample standard deviation; None where there are no values."""
    found = np.asarray(values, dtype=np.float64)
    if not found.size:
        return None
    sd = float(found.std(ddof=1)) if found.size > 1 else math.nan
    return Estimate(float(found.mean()), found.size, sd)


def mean_accuracy(cells: pd.DataFrame, method: str) -> Estimate | None:
    """Return the mean accuracy of a method's complete cells; None where it has none."""
    return estimate(of_method(cells, method)["accuracy"])


def method_difference(
    cells: pd.DataFrame, method: str, baseline: str = BASELINE
) -> Estimate | None:
    """Return by how much a method is more accurate than another; None without a shared seed."""
    if method == baseline:
        return None
    return paired_difference(
        of_method(cells, method)["accuracy"], of_method(cells, baseline)["accuracy"]
    )


def paired_difference(
    values: pd.Series, baseline: pd.Series, bound: float = 1.0
) -> Estimate | None:
    """Return the mean of ``values − baseline`` with Student's t interval; None without a pair.

    Both are by seed. The interval does not leave ``bound``, the greatest possible difference: 1 for
    accuracies, infinity for what has no limits.
    """
    shared = values.index.intersection(baseline.index).sort_values()
    found = estimate(values.loc[shared].to_numpy() - baseline.loc[shared].to_numpy())
    if found is None or found.seeds < FEWEST_SEEDS:
        return found
    half = _student_quantile(found.seeds) * found.sd / math.sqrt(found.seeds)
    low, high = np.clip([found.mean - half, found.mean + half], -bound, bound)
    return Estimate(found.mean, found.seeds, found.sd, float(low), float(high))


def worst_case(grid: pd.DataFrame) -> tuple[Any, Estimate]:
    """Return the row with the least mean, and that mean with its bootstrap interval.

    The seeds are drawn again, for all rows the same, and each time the least of the means is taken.
    Few seeds make percentiles too narrow: those taken here are as far out as makes the interval of
    a plain mean that of Student's t (the expanded percentile interval of Hesterberg, The American
    Statistician 69, 2015). ``grid`` has accuracies, a column a seed.
    """
    from scipy.special import ndtr

    accuracies = grid.to_numpy(dtype=np.float64)
    means, n = accuracies.mean(axis=1), accuracies.shape[1]
    row = int(means.argmin())
    least = float(means[row])
    if n < FEWEST_SEEDS:
        return grid.index[row], Estimate(least, n)
    outside = float(ndtr(-math.sqrt(n / (n - 1)) * _student_quantile(n)))
    drawn = (accuracies @ _drawn_seeds(n).T).min(axis=0).clip(0.0, 1.0)
    # Rounded, as the last digits of a matrix product are the processor's own.
    low, high = np.quantile(drawn, [outside, 1 - outside]).round(12).tolist()
    return grid.index[row], Estimate(least, n, low=min(low, least), high=max(high, least))


def mean_curve(
    seeds: Sequence[Rounds], value: Callable[[RoundRecord], float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation over seeds, record by record; the latter NaN for one seed.

    Beyond its end a run keeps its reported round's value.
    """
    length = max(len(rounds) for rounds in seeds)
    curves = np.array(
        [
            [*map(value, rounds), *[value(reported_round(rounds))] * (length - len(rounds))]
            for rounds in seeds
        ]
    )
    with np.errstate(invalid="ignore"):  # a loss that overflowed
        sd = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.full(length, np.nan)
        return curves.mean(axis=0), sd


def curve_rounds(seeds: Sequence[Rounds]) -> list[int]:
    """Return the round of each value of `mean_curve`: those of the run that went on longest."""
    return [record.round for record in max(seeds, key=len)]


def _student_quantile(n: int) -> float:
    """Return how many standard errors an interval reaches to either side."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))


@lru_cache
def _drawn_seeds(n: int) -> NDArray[np.float64]:
    """Return the share of each of n seeds in every drawing, (drawings, n)."""
    counts = np.random.default_rng(BOOTSTRAP_SEED).multinomial(n, [1 / n] * n, RESAMPLES)
    return counts / n
