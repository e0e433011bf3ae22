"""Attacks that go by the global models or by earlier rounds, written out again here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from attacks.scenes import (
    ATTACKING,
    Matrix,
    flat,
    honest_updates,
    model,
    next_round,
    own_updates,
    scene,
    updates,
)
from fedcrf.attacks import Attack, HybridSparse, PoisonedFL, Scene, StatisticalMimicry
from fedcrf.attacks.simple import agreements_by_chance
from fedcrf.attacks.statistical import largest_z


def played(attack: Attack, scenes: Sequence[Scene]) -> Iterator[tuple[Scene, Matrix, Any]]:
    """Rounds from the first one on: the scene, what was sent, and what is remembered."""
    memory: Any = {}
    for number, each in enumerate(scenes, 1):
        round_ = replace(each, round=number, memory=memory)
        forgery = attack.forge(round_)
        memory = forgery.memory
        yield round_, updates(round_, forgery.reports), memory


# --- PoisonedFL -------------------------------------------------------------------------------


def at(place: Matrix, **changes: Any) -> Scene:
    return scene(global_state=model(place, 7, "float64"), **changes)


def poisoned_by_hand(
    places: Sequence[Matrix], signs: Matrix, attack: PoisonedFL, active: Sequence[bool]
) -> list[tuple[list[float], float]]:
    """The authors' algorithm, number by number: what is sent in each round, and the factor."""
    found: list[tuple[list[float], float]] = []
    factor, last, marked = attack.factor, [0.0] * 10, places[0]
    for e, place in enumerate(places):
        sent = [0.0] * 10
        if e > 0:
            step = [a - b for a, b in zip(place, places[e - 1], strict=True)]
            length, before = math.hypot(*step), math.hypot(*last)
            rest = [
                abs(g - k * length / (before + 1e-300)) for g, k in zip(step, last, strict=True)
            ]
            if e % attack.period == 0:
                moved = [a - b if a != b else a for a, b in zip(place, marked, strict=True)]
                agreeing = sum(np.sign(x) == s for x, s in zip(moved, signs, strict=True))
                smaller = attack.shrinkage * factor
                if agreeing < stats.binom.ppf(0.99, 10, 0.5) and smaller >= attack.least:
                    factor = smaller
            sent = [
                factor * length * r / math.hypot(*rest) * s
                for r, s in zip(rest, signs, strict=True)
            ]
        if e % attack.period == 1:
            marked = place  # the model after the round of the last feedback
        last = sent if active[e] else [0.0] * 10
        found.append((sent, factor))
    return found


@pytest.mark.parametrize("active", [[True] * 12, [False] * 4 + [True] * 8, [True, False] * 6])
@pytest.mark.parametrize("period", [2, 3, 5])
@pytest.mark.parametrize("along", [False, True])
def test_poisonedfl_is_the_authors_algorithm(along: bool, period: int, active: list[bool]) -> None:
    attack = PoisonedFL(period=period, least=3.0)
    signs = attack.forge(at(np.zeros(10))).memory["signs"]
    draw = np.random.default_rng(5)
    steps = np.abs(draw.standard_normal((12, 10))) * signs if along else draw.normal(size=(12, 10))
    steps[:, 4] = 0.0  # a coordinate that stays has the sign of the model
    places = [np.full(10, -0.5) + sum(steps[:e], np.zeros(10)) for e in range(12)]
    expected = poisoned_by_hand(places, signs, attack, active)
    scenes = [at(place, active=each) for place, each in zip(places, active, strict=True)]
    for (_, sent, memory), (row, factor) in zip(played(attack, scenes), expected, strict=True):
        # It keeps float32, and from round to round a difference of nearly equal numbers grows.
        assert_allclose(sent, np.tile(row, (3, 1)), rtol=1e-3, atol=1e-3)
        assert float(memory["factor"]) == pytest.approx(factor)
        assert_array_equal(memory["signs"], signs)
    assert (factor < attack.factor) != along, "feedback acts where the model does not follow alone"
    assert factor >= attack.least


def test_whoever_is_not_drawn_keeps_what_was_sent_last() -> None:
    scenes = [at(np.full(10, float(e * e))) for e in range(4)]
    scenes[2] = replace(scenes[2], own=[])
    *_, (_, _, before), (_, sent, after), _ = played(PoisonedFL(), scenes)
    assert sent.shape == (0,)
    assert_array_equal(after["sent"], before["sent"])


def test_the_signs_are_random_and_few_bytes() -> None:
    drawn = [
        PoisonedFL().forge(at(np.zeros(10), draw=np.random.default_rng(s))).memory["signs"]
        for s in range(300)
    ]
    assert set(np.unique(drawn)) == {-1, 1}
    assert drawn[0].dtype == np.int8
    assert abs(np.mean(drawn)) < 0.06, "3 standard deviations of 3,000 signs"


def test_a_model_that_stands_still_is_not_pushed() -> None:
    (_, _, _), (_, sent, _) = played(PoisonedFL(), [at(np.ones(10)), at(np.ones(10))])
    assert_array_equal(sent, np.zeros((3, 10)))


@pytest.mark.parametrize(
    ("size", "authors"),
    [(1204682, 603618), (139960, 70415), (717924, 359948), (145212, 73049), (50, None), (9, None)],
)
def test_what_chance_allows_is_the_binomial_quantile(size: int, authors: int | None) -> None:
    """Also the numbers of the authors' code, for their four networks."""
    assert abs(agreements_by_chance(size) - stats.binom.ppf(0.99, size, 0.5)) <= 1
    assert authors in (None, agreements_by_chance(size))


# --- statistical mimicry ----------------------------------------------------------------------


def test_mimicry_drifts_along_a_direction_of_each_attacker_s_own() -> None:
    attack = StatisticalMimicry(blend=0.0, longest=0.15)
    scenes = [scene(seed=seed) for seed in range(6)]
    scenes[1] = replace(scenes[1], active=False)
    drifts = [
        sent - own_updates(round_) for round_, sent, _ in played(attack, scenes) if round_.active
    ]
    directions = drifts[0] / 0.1
    assert_allclose(np.linalg.norm(directions, axis=1), 1.0)
    assert np.abs(directions @ directions.T - np.eye(3)).max() < 0.95
    for drift, length in zip(drifts, (0.1, 0.12, 0.144, 0.15, 0.15), strict=True):
        assert_allclose(drift, length * directions, atol=1e-6)


@pytest.mark.parametrize("rounds", [1, 4])
def test_mimicry_s_noise_has_mean_and_spread_of_the_attacker_s_own_past(rounds: int) -> None:
    attack = StatisticalMimicry(blend=1.0, drift=0.0)
    *_, (last, _, _) = played(attack, [scene(seed=seed) for seed in range(rounds)])
    past = np.array([own_updates(scene(seed=seed)) for seed in range(rounds)])
    drawn = np.array(
        [
            updates(last, attack.forge(replace(last, draw=np.random.default_rng(s))).reports)
            for s in range(1000)
        ]
    )
    spread = np.array([[np.std(past[:, i, j]) for j in range(10)] for i in range(3)])
    assert_allclose(drawn.mean(axis=0), past.mean(axis=0), atol=5 * spread.max() / 1000**0.5 + 1e-6)
    assert_allclose(drawn.std(axis=0), spread, rtol=0.12, atol=1e-6)


@pytest.mark.parametrize("blend", [0.2, 0.9])
def test_mimicry_blends_its_update_with_the_noise(blend: float) -> None:
    *_, (last, _, _) = played(StatisticalMimicry(), [scene(seed=seed) for seed in range(3)])

    def sent(**settings: float) -> Matrix:
        drawn_anew = replace(last, draw=np.random.default_rng(0))
        return updates(last, StatisticalMimicry(**settings).forge(drawn_anew).reports)

    drift = sent(blend=0.0) - own_updates(last)
    noise = sent(blend=1.0) - drift
    assert_allclose(sent(blend=blend), (1 - blend) * own_updates(last) + blend * noise + drift)


def test_mimicry_learns_of_each_attacker_alone_and_of_finite_updates_alone() -> None:
    rounds = [scene(seed=seed) for seed in range(3)]
    alone = [replace(each, own=[each.own[1]]) for each in rounds]
    lost = replace(rounds[1].own[0], state=model(np.full(10, np.nan), 0, "float64"))
    some = [rounds[0], replace(rounds[1], own=[lost, rounds[1].own[1]]), rounds[2]]
    *_, (_, _, by_itself) = played(StatisticalMimicry(), alone)
    *_, (_, sent, among) = played(StatisticalMimicry(), some)
    assert np.isfinite(sent).all()
    assert among["clients"].tolist() == list(ATTACKING)
    assert among["rounds"].tolist() == [2, 3, 2]
    for name in ("means", "squares"):
        assert_allclose(among[name][1], by_itself[name][0])


# --- hybrid sparse ----------------------------------------------------------------------------


def hybrid_by_hand(round_: Scene, chosen: set[int], scale: float, z: float) -> list[float]:
    honest = honest_updates(round_)
    sent = []
    for j in range(10):
        mean = sum(honest[:, j]) / 6
        spread = math.sqrt(sum((x - mean) ** 2 for x in honest[:, j]) / 5)
        sent.append(mean - (scale if j in chosen else z) * spread)
    return sent


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.34, 2), (0.5, 3), (1.0, 6)])
@pytest.mark.parametrize("asleep", [False, True])
def test_hybrid_sparse_moves_sensitive_coordinates_further(
    asleep: bool, share: float, count: int
) -> None:
    first = replace(scene(), active=not asleep)
    saliency = np.abs(flat(first.global_state) * honest_updates(first).mean(axis=0))[:6]
    # The model's first six numbers are weights, and four biases follow, which all are sensitive.
    chosen = {*sorted(range(6), key=lambda j: -saliency[j])[:count], 6, 7, 8, 9}
    attack = HybridSparse(share=share)
    z = stats.norm.ppf(4 / 6)
    for round_, sent, _ in played(attack, [first, scene(seed=1), scene(seed=2)]):
        expected = hybrid_by_hand(round_, chosen, 1.5, z)
        assert_allclose(sent, own_updates(round_) if not round_.active else [expected] * 3)
    assert largest_z(9, 3) == pytest.approx(z)


def test_hybrid_sparse_takes_the_z_that_is_given() -> None:
    ((round_, sent, _),) = played(HybridSparse(scale=0.7, z=0.7), [scene()])
    assert_allclose(sent, [hybrid_by_hand(round_, set(), 0.0, 0.7)] * 3)


def test_what_is_sensitive_is_a_bit_a_number() -> None:
    memory = HybridSparse().forge(scene()).memory
    assert {name: array.dtype for name, array in memory.items()} == {"sensitive": np.bool_}
    later = HybridSparse().forge(next_round(scene(seed=3), HybridSparse().forge(scene())))
    assert_array_equal(later.memory["sensitive"], memory["sensitive"])
