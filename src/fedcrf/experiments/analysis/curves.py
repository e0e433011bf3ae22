"""Curves over the rounds of several seeds: what figures draw and reports say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedcrf.simulation.records import RoundRecord, reported_round

if TYPE_CHECKING:
    from fedcrf.experiments.results import CellResult


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


def accuracy_curves(cells: Iterable[CellResult]) -> dict[tuple[str, int], list[float]]:
    """Return the validation accuracies of finished cells, round by round, by method and seed."""
    return {
        (each.cell.method.name, each.cell.seed): [
            record.validation.accuracy for record in each.records
        ]
        for each in cells
        if each.summary is not None and each.records
    }
