"""Curves over the rounds of several seeds: what figures draw and reports say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedcrf.simulation.records import RoundRecord, reported_round


def mean_curve(
    seeds: Sequence[Sequence[RoundRecord]], value: Callable[[RoundRecord], float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation over seeds, round by round; the latter NaN for one seed.

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
