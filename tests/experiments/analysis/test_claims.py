"""The paper's claims: what bears one out, what does not, and what cannot be told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedcrf.experiments.analysis.paper import claims_table
from fedcrf.experiments.results import frame

Curves = dict[tuple[str, int], Sequence[float]]


def verdicts(curves: Curves, iid: bool = False) -> dict[str, tuple[str, str]]:
    """Hold the claims against cells of these accuracies, whose loss falls with them."""
    cells = frame(
        {
            "method": method, "seed": seed, "complete": True, "accuracy": max(curve),
            "best_round": 1 + curve.index(max(curve)), "validation_loss": 1 - max(curve),
            "curve": curve,
        }
        for (method, seed), curve in curves.items()
    )  # fmt: skip
    rows = claims_table("title", cells, iid=iid).rows
    return {row[0].partition(": ")[2]: (row[2], row[3]) for row in rows}


def pairs(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Curves:
    return {
        (method, seed): values
        for method, runs in (("crf-fedavg", ours), ("fedavg", theirs))
        for seed, values in enumerate(runs)
    }


def test_a_clear_winner() -> None:
    theirs = [[0.5, 0.6, 0.7 + seed / 100] for seed in range(4)]
    ours = [[0.7, 0.75, 0.8, 0.9 + seed / 200] for seed in range(4)]
    found = verdicts(pairs(ours, theirs))
    assert found["higher accuracy"][1] == "supported"
    assert found["converges at least as fast"] == ("-2.0 [-2.0, -2.0]", "supported")
    assert found["keeps improving late"] == ("+1.0 [+1.0, +1.0]", "supported")
    assert found["lower validation loss"][1] == "supported"


NINE, THREE = [0.5] * 8 + [0.9], [0.9] * 3
EARLY_END = [0.5] * 3  # stopped early, far below
STILL_BELOW = [0.5] * 20


@pytest.mark.parametrize(
    ("ours", "theirs", "said", "verdict"),
    [
        (
            [EARLY_END] * 3, [NINE] * 3,
            "> 3 rounds (0 of 3 reached) against 9 rounds (3 of 3 reached); "
            "sooner on 0 seeds, later on 3 (p = 0.250)",
            "undecided",
        ),
        (
            [EARLY_END] * 6, [NINE] * 6,
            "> 3 rounds (0 of 6 reached) against 9 rounds (6 of 6 reached); "
            "sooner on 0 seeds, later on 6 (p = 0.031)",
            "contradicted",
        ),
        (
            [STILL_BELOW] + [THREE] * 8, [NINE] * 9,
            "1 rounds (8 of 9 reached) against 9 rounds (9 of 9 reached); "
            "sooner on 8 seeds, later on 1 (p = 0.039)",
            "supported",
        ),
        (
            [STILL_BELOW, NINE, NINE], [NINE] * 3,
            "9 rounds (2 of 3 reached) against 9 rounds (3 of 3 reached); "
            "sooner on 0 seeds, later on 1 (p = 1.000)",
            "undecided",
        ),
        (
            [EARLY_END, EARLY_END, NINE], [NINE] * 3,
            "> 3 rounds (1 of 3 reached) against 9 rounds (3 of 3 reached); "
            "sooner on 0 seeds, later on 2 (p = 0.500)",
            "undecided",
        ),
    ],
)  # fmt: skip
def test_a_target_never_reached_is_censored(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], said: str, verdict: str
) -> None:
    found = verdicts(pairs(ours, theirs))["converges at least as fast"]
    assert found == (said, verdict)


def test_a_target_is_set_and_judged_on_the_same_seed() -> None:
    # Each of our runs reaches its own seed's target in round 1, and no other seed's before round 2.
    levels = [0.5, 0.7, 0.9]
    theirs = [[0.1, level] for level in levels]
    ours = [[level, 0.95] for level in levels]
    value, verdict = verdicts(pairs(ours, theirs))["converges at least as fast"]
    assert (value, verdict) == ("-1.0 [-1.0, -1.0]", "supported")


@pytest.mark.parametrize(("seeds", "verdict"), [(2, "undecided"), (3, "supported")])
def test_two_seeds_decide_nothing(seeds: int, verdict: str) -> None:
    found = verdicts(pairs([[0.5, 0.9]] * seeds, [[0.5, 0.6]] * seeds))
    assert found["higher accuracy"][1] == found["lower validation loss"][1] == verdict
    assert ("[too few seeds]" in found["higher accuracy"][0]) == (seeds == 2)
    ours, theirs = ([[level]] * seeds for level in (0.9, 0.6))
    assert verdicts(pairs(ours, theirs), iid=True)["nothing lost"][1] == verdict


def test_what_is_not_rejected_is_not_said_to_hold() -> None:
    ours, theirs = ([[0.7], [0.8], [0.6]], [[0.8], [0.7], [0.6]])
    assert {verdict for _, verdict in verdicts(pairs(ours, theirs)).values()} == {"undecided"}
    lost = [[each[0] - 0.005] for each in theirs]
    spread = [[each[0] + step] for each, step in zip(lost, (0.01, -0.01, 0.0), strict=True)]
    assert verdicts(pairs(spread, theirs), iid=True)["nothing lost"][1] == "undecided"


@pytest.mark.parametrize(
    ("gap", "verdict"),
    [(0.0, "supported"), (-0.004, "supported"), (-0.02, "contradicted"), (0.1, "supported")],
)
def test_nothing_lost_means_half_a_point(gap: float, verdict: str) -> None:
    theirs = [[0.8], [0.82], [0.81]]
    ours = [[each[0] + gap] for each in theirs]
    assert verdicts(pairs(ours, theirs), iid=True)["nothing lost"][1] == verdict


def test_variances_are_compared_over_pairs() -> None:
    noise = [0.1, -0.1, 0.08, -0.09, 0.05, -0.06]
    theirs = [[0.7 + each] for each in noise]
    ours = [[0.8 + each / 50 * (-1) ** i] for i, each in enumerate(noise)]
    assert verdicts(pairs(ours, theirs))["less variance"][1] == "supported"
    assert verdicts(pairs(theirs, ours))["less variance"][1] == "contradicted"


def test_one_seed_shows_nothing() -> None:
    assert verdicts(pairs([[0.9]], [[0.5]])) == {}
