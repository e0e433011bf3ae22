"""Early stopping, from sequences of validation losses written out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from fedcrf.simulation.rounds import EarlyStopping

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("losses", "rounds", "best_round"),
    [
        # Patience 3, improvement 0.1: how many rounds are run of these, and which is the best.
        ([5, 4, 3, 2, 1], 5, 5),
        ([1, 2, 2, 2, 0], 4, 1),
        ([1, 2, 2, 0.5, 2, 2, 2, 0], 7, 4),
        # Just short of an improvement (binary fractions, so that 0.875 is exact).
        ([1, 0.9375, 0.9375, 0.9375, 0], 4, 2),
        # A slow drift adds up: the comparison is to the last improvement, not the last round.
        ([1, 0.95, 0.89, 0.85, 0.78, 0.75], 6, 6),
        # The best round may be one that was no improvement.
        ([1, 0.95, 1, 1, 0], 4, 2),
        # The first of equals.
        ([1, 1, 1, 1], 4, 1),
        ([NAN, NAN, NAN, 1], 3, 0),
        ([NAN, 1, NAN, NAN, NAN, 0], 5, 2),
        ([INF, INF, INF, 1], 3, 0),
        ([INF, 3, 2, 1], 4, 4),
    ],
)
def test_when_it_stops_and_what_was_best(
    losses: Sequence[float], rounds: int, best_round: int
) -> None:
    stopping = EarlyStopping(patience=3, min_improvement=0.1)
    run = 0
    for loss in losses:
        if stopping.stopped:
            break
        run += 1
        stopping = stopping.observe(run, loss)
    assert (run, stopping.best_round) == (rounds, best_round)
    assert stopping.stopped or run == len(losses)
    assert stopping.best_loss == (losses[best_round - 1] if best_round else INF)


def test_an_improvement_is_strictly_more_than_the_threshold() -> None:
    after = EarlyStopping(patience=2, min_improvement=0.25).observe(1, 1.0).observe(2, 0.75)
    assert (after.rounds_without, after.reference_loss, after.best_loss) == (1, 1.0, 0.75)


def test_it_is_a_value() -> None:
    before = EarlyStopping()
    assert (before.patience, before.min_improvement) == (5, 1e-4), "method.md's"
    before.observe(1, 0.5)
    assert before == EarlyStopping()
