"""Who attacks and when, and what cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attacks.scenes import own_updates, scene, sent
from fedcrf import FedcrfError
from fedcrf.attacks import (
    ALIE,
    Adaptive,
    Attack,
    BadNets,
    HybridSparse,
    InnerProductManipulation,
    LabelFlip,
    LabelNoise,
    Opportunist,
    Opposed,
    OptimalALIE,
    OptimalInnerProductManipulation,
    Schedule,
    SignFlip,
    Threat,
)
from fedcrf.rules import FedNova


class OfThree(Attack):
    """An attack of one's own that is made from three honest updates."""

    fewest_honest = 3


def test_an_attack_that_says_nothing_is_honest() -> None:
    of, attack = scene(), Attack()
    np.testing.assert_allclose(sent(attack, of), own_updates(of), rtol=1e-12)
    assert attack.obstacle(3, 3) is None


@pytest.mark.parametrize(
    ("schedule", "rounds"),
    [
        (Schedule(), [1, 2, 3, 4, 5, 6, 7, 8]),
        (Schedule(start_round=6), [6, 7, 8]),
        (Schedule(every=3), [1, 4, 7]),
        (Schedule(start_round=3, every=2), [3, 5, 7]),
    ],
)
def test_sleepers_and_pulses(schedule: Schedule, rounds: list[int]) -> None:
    assert [number for number in range(1, 9) if schedule.active(number)] == rounds


@pytest.mark.parametrize(
    ("attackers", "clients", "count"),
    [(3, 10, 3), (3.0, 10, 3), (0.3, 10, 3), (0.25, 10, 3), (0.3, 100, 30), (0.1, 7, 1), (1, 2, 1)],
)
def test_a_number_or_a_fraction(attackers: float, clients: int, count: int) -> None:
    assert Schedule(attackers).count(clients) == count


@pytest.mark.parametrize(("attackers", "count"), [(25, 3), (35, 4), (30, 3), (1, 1)])
def test_the_attackers_of_a_tenth_of_the_clients_are_rounded_likewise(
    attackers: int, count: int
) -> None:
    assert Schedule(attackers).count_among(10, 100) == count


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"attackers": 0}, "attackers 0: give a whole number"),
        ({"attackers": -2}, "attackers -2"),
        ({"attackers": 1.5}, "attackers 1.5"),
        ({"attackers": math.nan}, "attackers nan"),
        ({"attackers": math.inf}, "attackers inf"),
        ({"attackers": "3"}, "attackers 3: give a whole number"),
        ({"attackers": None}, "attackers None: give a whole number"),
        ({"start_round": 0}, "start_round 0"),
        ({"every": 0}, "every 0"),
        ({"additional": True}, "give additional attackers as a whole number"),
        ({"attackers": 3, "additional": "no"}, "additional 'no': give True or False"),
    ],
)
def test_schedules_that_cannot_be(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(FedcrfError, match=named):
        Schedule(**settings)


@pytest.mark.parametrize(
    "make",
    [
        lambda word: LabelFlip(hides=word),
        lambda word: LabelNoise(hides=word),
        lambda word: Adaptive(sketched=word),
        lambda word: Opportunist(pulsing=word),
        lambda word: FedNova(normalise_buffers=word),
    ],
)
def test_a_word_is_no_truth_value(make: Callable[[Any], object]) -> None:
    for truth in (True, False, np.True_):
        make(truth)
    with pytest.raises(FedcrfError, match="'no': give True or False"):
        make("no")


@pytest.mark.parametrize(
    ("attack", "attackers", "clients", "named"),
    [
        (SignFlip(), 10, 10, "of 10 clients one at least must attack and one be honest"),
        (SignFlip(), 11, 10, "give from 1 to 9"),
        (LabelFlip(), 0.01, 10, "attackers 0.01"),
        (LabelFlip(), 0.99, 10, "attackers 0.99"),
        (SignFlip(), 1, 1, "more clients"),
        (ALIE(), 6, 10, "6 attackers of 10 clients leave no quantile"),
        (ALIE(), 1, 2, "leave no quantile"),
        (ALIE(estimate_from="attackers"), 1, 10, "two attackers"),
        (Opposed(), 9, 10, "two honest clients"),
        (OptimalALIE(), 9, 10, "two honest clients"),
        (HybridSparse(z=1.0), 9, 10, "two honest clients"),
        (HybridSparse(), 6, 10, "6 attackers of 10 clients leave no quantile"),
        (OfThree(), 8, 10, "it needs 3 honest clients or more in a round: give fewer"),
    ],
)
def test_what_a_federation_does_not_have(
    attack: Any, attackers: float, clients: int, named: str
) -> None:
    with pytest.raises(FedcrfError, match=named):
        Threat(attack, Schedule(attackers)).check(clients)


@pytest.mark.parametrize(
    ("attack", "attackers", "clients", "drawn"),
    [
        (ALIE(), 5, 10, None),
        (ALIE(1.0), 9, 10, None),
        (ALIE(), 30, 100, 10),
        (Adaptive(), 9, 10, None),
        (HybridSparse(z=1.0), 8, 10, None),
        (OptimalInnerProductManipulation(), 9, 10, None),
        (SignFlip(), 9, 10, 1),
        (BadNets(), 9, 10, 1),
        (LabelFlip(), 9, 10, 1),
    ],
)
def test_what_is_possible(attack: Any, attackers: int, clients: int, drawn: int | None) -> None:
    Threat(attack, Schedule(attackers)).check(clients, drawn)


@pytest.mark.parametrize("attack", [ALIE(1.0), InnerProductManipulation(), Adaptive(), Opposed()])
def test_a_round_of_one_client_has_nobody_to_hide_among(attack: Any) -> None:
    with pytest.raises(FedcrfError, match=r"honest clients.*give fewer attackers"):
        Threat(attack, Schedule(3)).check(10, 1)
