"""The robust CRF over rounds: against the slow version, and what it promises of its memory."""

from __future__ import annotations

import copy
import doctest
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from crf.slow_robust import SlowRobust
from fedcrf import ClientCRF, EvidenceCRF, FedcrfError, RobustCRF
from fedcrf.crf import client_crf, evidence_crf, field, robust_crf
from fedcrf.crf.evidence import SuspectNorm, goal_distance
from fedcrf.crf.memory import ADDED, identities
from fedcrf.crf.window import Window
from fedcrf.statistics import as_layers, sketch

D = 30
SMALL = RobustCRF(sketch_size=64)  # keeps 30 numbers exactly


def goals(clients: int = 9) -> np.ndarray:
    """Where each client pulls the model; what it has of its own and what all share."""
    return 1.0 + np.random.default_rng(3).standard_normal((clients, D))


def update(client: int, model: np.ndarray, number: int) -> np.ndarray:
    """An honest client's step; clients 7 and 8 go the other way."""
    noise = np.random.default_rng([number, client]).standard_normal(D)
    honest = 0.3 * (goals()[client] - model) + 0.05 * noise
    return -honest if client >= 7 else honest


ROUNDS: Mapping[str, Sequence[Sequence[int]]] = {
    "everybody": [range(9)] * 4,
    "some": [[0, 1, 7], [2, 8, 3, 4], [1, 7, 0], [8, 5, 0, 2], [6, 7, 1, 2]],
    "one": [[3]] * 3,
    "two": [[3, 7]] * 4,
    "always new": [[0, 1, 2], [3, 4, 5], [6, 7, 8]],
    "longest first": [[8, 7, 6, 5], [5, 6, 7, 8]],
    "attackers alone": [range(9), range(9), range(9), [8], [8], [7, 8], [8], range(9)],
}


def counts_of(clients: Sequence[int]) -> list[int]:
    return [10 + 7 * client for client in clients]


def play(
    crf: RobustCRF,
    rounds: Sequence[Sequence[int]],
    spoilt: Sequence[tuple[int, int]] = (),
    value: float = math.nan,
) -> list[Any]:
    """Let the server infer round after round; in ``spoilt`` rounds a client sends this value."""
    model, memory, posteriors = np.zeros(D), None, []
    for number, clients in enumerate(rounds):
        rows = np.stack([update(client, model, number) for client in clients])
        for row, client in zip(rows, clients, strict=True):
            row[4] = value if (number, client) in spoilt else row[4]
        posterior = crf.infer(
            rows, counts_of(clients), clients=list(clients), memory=memory, model=model
        )
        model = model + posterior.coefficients @ np.where(np.isfinite(rows), rows, 0.0)
        memory = posterior.memory
        posteriors.append(posterior)
    return posteriors


def of_large_rounds(crf: RobustCRF, large_round: float) -> RobustCRF:
    """Return a CRF for which rounds are large from so many clients on."""

    def changed(part: Any) -> Any:
        if isinstance(part, SuspectNorm):
            return replace(part, opposition=changed(part.opposition))
        return replace(part, large_round=large_round) if hasattr(part, "large_round") else part

    crf = replace(crf)
    was = crf.field
    changes = {name: tuple(map(changed, getattr(was, name))) for name in ("evidence", "pairwise")}
    vars(crf)["field"] = replace(was, **changes)  # where it is cached
    return crf


@pytest.mark.parametrize("rounds", ROUNDS.values(), ids=ROUNDS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("large_round", [10.0, 2.5])
@pytest.mark.parametrize(
    "settings",
    [{}, {"tolerance": 0.2}, {"tolerance": 0.0}, {"tolerance": 2.2}, {"counts": "attested"}],
    ids=str,
)
def test_against_the_slow_version(rounds, value, large_round, settings):
    spoilt = () if value is None else ((0, 7), (1, 3), (2, 0))
    slow, model = SlowRobust(large_round=large_round, **settings), [0.0] * D
    played = play(of_large_rounds(replace(SMALL, **settings), large_round), rounds, spoilt, value)
    for number, (clients, found) in enumerate(zip(rounds, played, strict=True)):
        updates = {c: update(c, np.array(model), number).tolist() for c in clients}
        for client in clients:
            if (number, client) in spoilt:
                updates[client][4] = value
        weights, model = slow.round(model, updates, dict(zip(clients, counts_of(clients))))  # noqa: B905
        assert_allclose(found.weights, [weights[c] for c in clients], atol=1e-6)
        assert_allclose(found.causes["curvature_response"], answers_of(slow, clients), atol=1e-5)
        steady = [slow.steadiness.get(c, math.nan) for c in clients]
        assert_allclose(found.causes["update_consistency"], steady, atol=1e-5)


def answers_of(slow: SlowRobust, clients: Sequence[int]) -> np.ndarray:
    """Return what counts of the responses: nothing where most clients do not respond."""
    answers = np.array([slow.response.get(c, math.nan) for c in clients])
    known = answers[np.isfinite(answers)]
    return answers if len(known) and np.median(known) < 0 else math.nan * answers


@pytest.mark.parametrize("counts", ["attested", "claimed"])
@pytest.mark.parametrize("rounds", [[range(9)] * 16, [[0, 1, 2, 3, 7], [4, 5, 6, 0, 8]] * 8])
def test_windows_against_the_slow_version(rounds, counts):
    """Updates are mostly noise, so that a window grows; the model moves on by itself too."""
    settings = {"counts": counts, "tolerance": 0.1}
    crf = replace(SMALL, **settings)
    slow, model, memory, lengths = SlowRobust(**settings), np.zeros(D), None, []
    distant: list[float] = []
    for number, clients in enumerate(rounds):
        noise = np.random.default_rng(number).standard_normal((len(clients), D))
        rows = np.stack([0.2 * update(client, model, number) for client in clients]) + noise
        found = crf.infer(
            rows, counts_of(clients), clients=list(clients), memory=memory, model=model
        )
        given = dict(zip(clients, rows.tolist(), strict=True))
        counts = dict(zip(clients, counts_of(clients), strict=True))
        window = slow.window
        weights, _ = slow.round(model.tolist(), given, counts)
        held = [slow.history[c].held(window, number + 1) for c in clients]
        assert_allclose(found.causes["window"], held, rtol=1e-6)
        lengths += held
        assert_allclose(found.weights, [weights[c] for c in clients], atol=1e-5)
        assert_allclose(found.causes["curvature_response"], answers_of(slow, clients), atol=1e-5)
        steady = [slow.steadiness.get(c, math.nan) for c in clients]
        assert_allclose(found.causes["update_consistency"], steady, atol=1e-5)
        goals = [slow.goal.get(c, math.nan) for c in clients]
        assert_allclose(found.causes["goal_distance"], goals, atol=1e-5)
        distant += found.causes["distant"].tolist()
        memory, model = found.memory, model + 0.1 * rows.mean(axis=0)
    assert lengths[0] == 1.0
    assert max(lengths) > 1.5
    assert max(distant) > 0.1


NINE_ROUNDS = {"counts": np.array([9]), "last": np.array([9])}
"""A memory's path after nine rounds, beginning with the first."""


def test_a_window_is_no_longer_than_the_longest():
    window = np.array([9.0, 9.0, -1.0, 0.0, 0.0])
    memory = {**SMALL.infer(np.eye(3, D)).memory, "window": window, **NINE_ROUNDS}
    for longest in (1.0, 4.0):
        found = replace(SMALL, longest_window=longest).infer(np.eye(3, D), memory=memory)
        assert (found.causes["window"] == longest).all()


def test_an_average_of_few_rounds_counts_as_so_many():
    """In a window of ten a known attacker is in its tenth round, a newcomer in its first."""
    window = np.array([10.0, 9.0, -1.0, 0.0, 0.0])
    push = np.eye(1, D)[0]
    rows = np.stack([push, push, push, -push])
    memory = SMALL.infer(rows[:3], clients=[0, 1, 2]).memory
    memory = {**memory, "window": window, **NINE_ROUNDS}
    new = SMALL.infer(rows, clients=[0, 1, 2, 3], memory=memory)
    assert new.causes["window"].tolist() == [10.0, 10.0, 10.0, 1.0]
    old = SMALL.infer(rows, clients=[0, 1, 2, 3]).memory
    old = SMALL.infer(rows, memory={**old, "window": window, **NINE_ROUNDS})
    assert old.causes["window"].tolist() == [10.0] * 4
    assert_allclose(10 * old.causes["opposed"][3], new.causes["opposed"][3], rtol=0.1)


@pytest.mark.parametrize(("rounds", "held"), [(4, 4.0), (7, 2.0), (10, 4 / 3), (31, 1.0)])
def test_a_window_holds_few_rounds_of_a_client_that_is_often_absent(rounds, held):
    """Clients 0 and 1 take part in every round, 2 and 3 in four, the last one among them."""
    window, memory = np.array([4.0, 9.0, -1.0, 0.0, 0.0]), None
    for number in range(rounds):
        clients = range(2 if number % (rounds // 3) else 4)
        given = None if memory is None else {**memory, "window": window}
        found = SMALL.infer(np.eye(4, D)[clients], clients=clients, memory=given)
        memory = found.memory
    assert_allclose(found.causes["window"], [4.0, 4.0, held, held])


@pytest.mark.parametrize("length", [1.0, 2.5, 10.0])
def test_averages_respond_as_the_updates_that_they_are_of(length):
    """Updates are −H(w − w*) with H = 0.3, so U − V is −0.3 times the model's step, whatever k."""
    crf, model, memory = replace(SMALL, longest_window=20.0), np.zeros(D), None
    for number in range(12):
        clients = range(9) if number % 3 else range(6)
        rows = 0.3 * (goals()[clients] - model)
        found = crf.infer(rows, clients=list(clients), memory=memory, model=model)
        known = np.isfinite(found.causes["curvature_response"])
        assert_allclose(found.causes["curvature_response"][known], -1.0, atol=1e-5)
        assert known.all() == (number > 1)
        window = np.array([length, 9.0, -1.0, 0.0, 0.0])
        memory = {**found.memory, "window": window}
        model = model + np.random.default_rng(number).standard_normal(D)


def test_who_pushes_is_found_among_who_pulls():
    last = play(SMALL, [range(9)] * 6)[-1]
    assert (last.causes["curvature_response"][:7] < -0.1).all()
    assert (last.causes["curvature_response"][7:] > 0.1).all()
    assert last.weights[7:].max() < 0.05 * last.weights[:7].min()
    assert (last.causes["remembered"][7:] < 0.1).all()


def test_who_fakes_the_answer_is_found_by_turning_with_the_model():
    """The last two of nine send something new in every round, and go against the model's step."""
    rng, size = np.random.default_rng(0), 2000
    goals, model, memory = 10.0 + rng.normal(size=(9, size)), np.zeros(size), None
    for number in range(4):
        step = rng.normal(size=size)
        model = model + (step if number else 0.0)
        rows = 0.1 * (goals - model)
        rows[7:] = 0.3 * rng.normal(size=(2, size)) - 0.9 * step
        found = RobustCRF().infer(rows, [9] * 9, memory=memory, model=model)
        memory = found.memory
    assert (found.causes["unresponsive"] == 0).all(), "the answer alone is fooled"
    assert (found.causes["inconsistent"][:7] == 0).all()
    assert found.causes["inconsistent"][7:].min() > 0.3
    assert found.weights[7:].max() < 0.2 * found.weights[:7].min()


@pytest.mark.parametrize(("tolerance", "spared"), [(1.0, False), (3.0, True)])
def test_honest_clients_of_two_kinds_are_spared_by_a_tolerance_of_three(tolerance, spared):
    """Four of ten pull one way and six the other; at last one of the six turns its update round."""
    rng, kind = np.random.default_rng(0), np.repeat([1.0, -1.0], [4, 6])
    pulls = kind[:, None] * rng.standard_normal(D) + 0.7 * rng.standard_normal((10, D))
    crf, model, memory, shares = replace(SMALL, tolerance=tolerance), np.zeros(D), None, []
    for turned in [0] * 5 + [1] * 4:
        rows = 0.3 * (pulls - model)
        rows[9] *= 1 - 2 * turned
        found = crf.infer(rows, [9] * 10, memory=memory, model=model)
        model, memory = found.next_model(model, rows), found.memory
        shares.append(found.weights)
    assert (shares[4][:4] > 0.09).all() == spared
    assert (shares[4][:4] < 0.03).all() != spared
    assert shares[-1][9] < 0.02
    assert (shares[-1][4:9] > 0.08).all()


@pytest.mark.parametrize(("share", "spared"), [(0.3, True), (-0.3, False)])
def test_who_agrees_less_than_most_of_a_large_round_is_not_opposed(share, spared):
    """Nine of thirty pull elsewhere, and a little as the others do, or a little against them."""
    rng = np.random.default_rng(0)
    elsewhere, common = np.linalg.qr(rng.standard_normal((D, 2)))[0].T * math.sqrt(D)
    pulls = 0.6 * rng.standard_normal((30, D))
    pulls[:9] += elsewhere + share * common
    pulls[9:] += common
    model, memory = np.zeros(D), None
    for _ in range(6):
        rows = 0.05 * (pulls - model)
        found = SMALL.infer(rows, [9] * 30, memory=memory, model=model)
        model, memory = found.next_model(model, rows), found.memory
    assert (found.weights[:9] > 0.03).all() == spared
    assert (found.weights[:9] < 0.01).all() != spared
    assert (found.weights[9:] > 0.03).all()


def without_goals() -> RobustCRF:
    crf = RobustCRF()
    parts = tuple(each for each in crf.field.evidence if each.cause != "goal_distance")
    vars(crf)["field"] = replace(crf.field, evidence=parts)
    return crf


def test_who_drives_the_model_on_is_found_by_how_far_away_its_goal_is():
    """The last two of nine pull towards points ten times as far away, a tenth as strongly."""
    rng, size = np.random.default_rng(0), 2000
    goals, model, memory, known = 1.0 + rng.normal(size=(9, size)), np.zeros(size), None, None
    goals[7:] *= 10.0
    pull = np.where(np.arange(9) < 7, 0.3, 0.03)[:, None]
    for _ in range(6):
        rows = pull * (goals - model)
        found = RobustCRF().infer(rows, memory=memory, model=model)
        plain = without_goals().infer(rows, memory=known, model=model)
        memory, known, model = found.memory, plain.memory, found.next_model(model, rows)
    away = np.linalg.norm(goals - model + found.coefficients @ rows, axis=1)
    assert_allclose(
        np.exp(found.causes["goal_distance"]), away / np.median(away), rtol=0.05, err_msg="sketched"
    )
    assert (found.causes["unresponsive"] == 0).all(), "the response alone is fooled"
    assert (found.causes["distant"][:7] == 0).all()
    assert found.weights[7:].max() < 0.01 < 0.1 < plain.weights[7:].min()


def test_goals_that_cannot_be_known_are_no_evidence():
    update = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [3.0, 0.0]])
    change = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [np.nan, np.nan]])
    moved = np.array([[0.0, 2.0]])
    half = math.log(2.0) / 2
    assert_allclose(goal_distance(update, change, moved), [half, -half, *[math.nan] * 3])
    assert np.isnan(goal_distance(update, change, 0.0 * moved)).all()


ALONE: Sequence[Sequence[int]] = [*[range(9)] * 4, *[[8]] * 5, range(9)]
"""Client 8 is found out, and then alone for five rounds."""


def test_while_the_model_stays_trust_may_fall():
    first = SMALL.infer(np.stack([update(client, np.zeros(D), 0) for client in range(9)]))
    beliefs = np.array(first.memory["beliefs"])
    beliefs[7:] = [0.95, 0.0, 0.05]
    pushed = np.stack([-10 * update(0, np.zeros(D), 0)] * 2)
    memory = {**first.memory, "beliefs": beliefs}
    found = SMALL.infer(pushed, clients=[7, 8], memory=memory)
    assert found.kept_reason is not None
    fell = found.expected_label < found.causes["remembered"]
    assert fell.any()
    assert ((found.memory["beliefs"] @ SMALL.labels)[[7, 8]][fell] < 0.05).all()


def test_trusted_clients_that_send_no_numbers_are_waited_for():
    memory, model = None, np.zeros(D)
    for number in range(24):
        rows = np.stack([update(client, model, number) for client in range(9)])
        if number >= 12:
            rows[:7] = math.nan
        found = SMALL.infer(rows, memory=memory, model=model)
        memory, model = found.memory, found.next_model(model, rows)
        if number >= 12:
            assert not found.weights.any(), "known attackers alone do not move the model"


@pytest.mark.parametrize("camp", [6, 10, 13])
def test_of_equal_camps_none_is_wrong_in_any_order(camp):
    rng = np.random.default_rng(1)
    goal = rng.normal(size=300)
    noise = 1.2 * rng.normal(size=(2, camp, 300))
    rows = np.concatenate([goal + noise[0], noise[1] - goal])
    for seed in range(12):
        order = np.random.default_rng(seed).permutation(len(rows))
        weights = np.empty(len(rows))
        weights[order] = RobustCRF().infer(rows[order]).weights
        assert_allclose(weights[:camp].sum(), 0.5, atol=1e-9)


@pytest.mark.parametrize("idle", [1, 2, 3])
def test_who_did_not_move_decides_between_no_camps(idle):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        goal, noise = rng.normal(size=300), 1.2 * rng.normal(size=(29, 300))
        rows = np.concatenate([goal + noise[:15], noise[15:] - goal, np.zeros((idle, 300))])
        found = RobustCRF().infer(rows)
        assert found.trust[:15].min() > found.trust[15:29].max() + 0.2
        order = rng.permutation(len(rows))
        assert_allclose(RobustCRF().infer(rows[order]).trust, found.trust[order], atol=1e-9)
        assert np.isnan(found.causes["camp_fit"][29:]).all()


@pytest.mark.filterwarnings("error")
def test_without_a_tolerance_nothing_overflows():
    rows = np.random.default_rng(0).normal(size=(6, 50))
    crf = RobustCRF(tolerance=0.0)
    before = crf.infer(rows, model=np.zeros(50)).memory
    rows[0] *= 100.0
    weights = crf.infer(rows, memory=before, model=np.ones(50)).weights
    assert weights.argmin() == 0
    assert weights.sum() == pytest.approx(1.0)


def test_who_is_hardly_trusted_is_not_waited_for():
    rows = np.stack([update(client, np.zeros(D), 0) for client in range(3)])
    beliefs = np.tile([0.99, 0.0, 0.01], (3, 1))
    memory = {**SMALL.infer(rows).memory, "beliefs": beliefs}
    found = replace(SMALL, trust_floor=0.5).infer(rows[:2], clients=[0, 1], memory=memory)
    assert found.kept_reason is not None
    assert (found.memory["beliefs"][:2, 2] > 0.05).all(), "client 2 is trusted as little"


def test_a_known_attacker_that_is_alone_does_not_rule():
    played = play(SMALL, ALONE)
    known = played[3]
    assert known.expected_label[8] < 0.01
    assert known.kept_reason is None
    assert 0.6 < known.trusted_share < 1.0
    for alone in played[4:9]:
        assert not alone.weights.any()
        assert not alone.coefficients.any()
        assert alone.trusted_share < 0.15
        assert "times as much as unknown ones, and 0.15 times is the least" in alone.kept_reason
        assert alone.memory["beliefs"][8, 2] < 0.1, "it is not forgiven for waiting"
        assert len(alone.memory["positions"]) == 2, "the round is remembered all the same"
    again = played[9]
    assert again.kept_reason is None
    assert again.weights[7:].max() < 0.05, "it is tested again"


def test_without_a_floor_who_is_alone_rules():
    alone = play(replace(SMALL, trust_floor=0.0), ALONE)[4]
    assert alone.kept_reason is None
    assert alone.weights.tolist() == [1.0]


def test_clients_that_are_as_trusted_as_new_ones_reach_a_floor_of_all_trust():
    rows = np.random.default_rng(0).normal(1.0, 0.01, (5, 50))
    found = RobustCRF(trust_floor=1.0).infer(rows)
    assert found.kept_reason is None
    assert_allclose(found.weights, np.full(5, 0.2), atol=0.01)


def test_where_nobody_else_is_trusted_trust_comes_back():
    """Both of two are distrusted: if the model waited for others, it would wait for ever."""
    crf, memory = replace(SMALL, trust_floor=0.5), None
    rows = np.stack([update(client, np.zeros(D), 0) for client in range(2)])
    first = SMALL.infer(rows)
    beliefs = np.tile([0.99, 0.0, 0.01], (2, 1))
    memory, shares = {**first.memory, "beliefs": beliefs}, []
    for _ in range(12):
        found = crf.infer(rows, memory=memory)
        memory = found.memory
        shares.append(found.trusted_share)
        assert (found.kept_reason is None) == (found.trusted_share >= 0.5) == found.weights.any()
    assert shares == sorted(shares)
    assert shares[0] < 0.2 < 0.5 < shares[-1]


def test_sketches_find_what_whole_vectors_find():
    whole = play(SMALL, [range(9)] * 4)[-1]
    folded = play(RobustCRF(sketch_size=16), [range(9)] * 4)[-1]
    assert_allclose(folded.weights, whole.weights, atol=0.02)


@pytest.mark.parametrize("spoilt", [(), ((1, 2), (3, 0))])
def test_the_order_of_clients_does_not_matter(spoilt):
    rng = np.random.default_rng(0)
    shuffled = [rng.permutation(9).tolist() for _ in range(5)]
    plain = play(SMALL, [range(9)] * 5, spoilt)
    for clients, one, other in zip(shuffled, plain, play(SMALL, shuffled, spoilt), strict=True):
        assert_allclose(other.weights, one.weights[clients], rtol=1e-6, atol=1e-9)
        for name, values in one.causes.items():
            assert_allclose(other.causes[name], values[clients], atol=1e-5, err_msg=name)
    assert_array_equal(plain[-1].memory["clients"], range(9))


def test_who_is_absent_opposes_newcomers_that_are_the_most_in_a_round():
    honest, pushes = np.random.default_rng(0).normal(1.0, 1.0, (2, 9, D))
    memory = SMALL.infer(honest[:8], clients=range(8)).memory
    memory = SMALL.infer(honest[8:], clients=[8], memory=memory).memory
    rows = np.concatenate([honest[8:], -pushes[:2]])
    heard = SMALL.infer(rows, clients=[8, 9, 10], memory=memory)
    assert heard.weights[0] > 0.9
    # Where nobody is heard who is absent for two rounds, the two that agree oppose the one.
    for crf, known in ((replace(SMALL, longest_window=1.0), memory), (SMALL, None)):
        assert crf.infer(rows, clients=[8, 9, 10], memory=known).weights.argmin() == 0


def test_absent_clients_are_heard_unless_there_are_too_many_of_them():
    good, bad = np.random.default_rng(0).normal(1.0, 1.0, (2, 31, D))
    rows = np.concatenate([good[:1], -bad[:2]])
    for longest, heard in ((2.0, False), (3.0, True)):
        crf = replace(SMALL, longest_window=longest)
        memory = crf.infer(good[1:], clients=range(30)).memory
        found = crf.infer(rows, clients=[40, 41, 42], memory=memory)
        assert (found.weights[0] > 0.9) == heard


def test_who_is_there_and_not_finite_is_heard_as_who_is_absent():
    good, bad = np.random.default_rng(0).normal(1.0, 1.0, (2, 7, D))
    memory = SMALL.infer(good[:6], clients=range(6)).memory
    rows = np.concatenate([good[6:], -bad[:2]])
    absent = SMALL.infer(rows, clients=[6, 7, 8], memory=memory)
    nothing = np.full((6, D), math.nan)
    there = SMALL.infer(np.concatenate([nothing, rows]), clients=range(9), memory=memory)
    assert_allclose(there.weights[6:], absent.weights)
    assert absent.weights[0] > 0.8


def test_who_reports_evidence_against_itself_opposes_nobody_when_it_is_absent():
    good, bad = np.random.default_rng(0).normal(1.0, 1.0, (2, 9, D))
    rows, memory = np.concatenate([good[:5], -bad[:4]]), None
    losses = {"residual_loss": np.array([0.1] * 5 + [9.0] * 4)}
    for _ in range(2):
        memory = SMALL.infer(rows, memory=memory, evidence=losses).memory
    new = SMALL.infer(good[5:7], clients=[20, 21], memory=memory)
    assert_allclose(new.trust, SMALL.unknown_label, rtol=1e-3)


def test_who_is_absent_or_not_finite_is_kept_as_it_was():
    first, second, third = play(SMALL, [range(9), [0, 1, 2, 7], [0, 1, 8]], [(1, 2)])
    for name in ("clients", "beliefs", "sketches", "before"):
        for client in (2, 3, 4, 5, 6, 8):
            assert_array_equal(second.memory[name][client], first.memory[name][client])
    assert third.causes["curvature_response"][2] > 0.5, "by what it was two rounds ago"
    assert len(third.memory["positions"]) == 4, "one for those who took part in the same rounds"
    assert len(play(SMALL, [range(9)] * 5)[-1].memory["positions"]) == 1


def test_a_memory_of_other_clients_is_a_first_round():
    rows = np.stack([update(client, np.zeros(D), 0) for client in range(5)])
    fresh = SMALL.infer(rows, clients=range(5))
    others = SMALL.infer(rows + 1, clients=range(100, 105)).memory
    later = SMALL.infer(rows, clients=range(5), memory=others)
    assert_array_equal(later.weights, fresh.weights)
    assert np.isnan(later.causes["remembered"]).all()
    assert_array_equal(later.memory["clients"], [*range(5), *range(100, 105)])


@pytest.mark.parametrize(
    ("most", "known"),
    [
        (9, [[3, 4], [1, 3, 4, 7], [0, 1, 3, 4, 7], [1, 3, 4, 5, 6, 7, 0]]),
        (4, [[3, 4], [1, 3, 4, 7], [0, 1, 4, 7], [0, 5, 6, 7]]),
        (3, [[3, 4], [1, 4, 7], [0, 1, 7], [5, 6, 7]]),
        (1, [[3, 4], [1, 7], [0, 7], [5, 6, 7]]),
    ],
)
def test_the_longest_absent_are_forgotten_first(most, known):
    rounds = [[4, 3], [1, 7], [7, 0], [7, 6, 5]]
    crf = replace(SMALL, remember=most)
    found = play(crf, rounds)
    assert [each.memory["clients"].tolist() for each in found] == [sorted(each) for each in known]
    for each in found:
        assert len(each.memory["positions"]) == len(np.unique(each.memory["rounds"]))
    again = play(crf, [*rounds, [3, 7]])[-1]
    assert np.isnan(again.causes["remembered"]).tolist() == [most < 9, False]


def test_memories_compare_by_identity():
    memory = SMALL.infer(np.eye(3, D)).memory
    other = copy.deepcopy(memory)
    assert memory == memory
    assert memory != other
    assert len({memory, other, memory}) == 2


def test_a_memory_stays_as_it_is():
    model, rows = np.zeros(D), np.stack([update(client, np.zeros(D), 0) for client in range(9)])
    memory = SMALL.infer(rows, clients=range(9), model=model).memory
    before = {**memory}
    first, again = (
        SMALL.infer(1.1 * rows[1:3], clients=[1, 2], memory=memory, model=model + 1)
        for _ in range(2)
    )
    for array in memory.values():
        array[...] = 7  # of a copy
    written_to = SMALL.infer(1.1 * rows[1:3], clients=[1, 2], memory=memory, model=model + 1)
    for name, array in before.items():
        assert_array_equal(memory[name], array, err_msg=name)
        assert_array_equal(again.memory[name], first.memory[name], err_msg=name)
        assert_array_equal(written_to.memory[name], first.memory[name], err_msg=name)


def test_plain_arrays_stay_as_they_are():
    plain = {**SMALL.infer(np.eye(3, D)).memory}
    for array in plain.values():
        array.flags.writeable = False
    later = SMALL.infer(2 * np.eye(3, D), memory=plain).memory
    for array in plain.values():
        for after in later.arrays.values():
            assert not np.shares_memory(array, after)


@pytest.mark.parametrize("hand_over", [dict, lambda memory: pickle.loads(pickle.dumps(memory))])
@pytest.mark.parametrize("most", [3, 9])
@pytest.mark.parametrize("longest", [1.0, 4.0])
def test_a_memory_read_from_its_plain_arrays_is_the_same(most, hand_over, longest):
    crf = replace(SMALL, remember=most, longest_window=longest)
    memory, other = None, None
    for number, clients in enumerate(ROUNDS["some"]):
        rows = np.stack([update(client, np.zeros(D), number) for client in clients])
        one, same = (
            crf.infer(rows, clients=clients, memory=each, model=np.full(D, number / 9))
            for each in (memory, other)
        )
        assert_array_equal(one.weights, same.weights)
        for name, array in one.memory.items():
            assert_array_equal(same.memory[name], array, err_msg=name)
        memory, other = one.memory, hand_over(same.memory)


def of_earlier_versions(memory: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a memory as version 0.1 had it, and as rules without windows had it later."""
    longest = {"longest": np.ones(1)}
    heard, counted, first = (
        {name: memory[name] for name in memory if name not in each} for each in ADDED
    )
    _, shown, rounds = np.unique(memory["last"], return_index=True, return_inverse=True)
    one_a_round = {"positions": memory["positions"][shown], "rounds": rounds[memory["rounds"]]}
    return {
        "0.1": {**first, **one_a_round, **longest},
        "without windows": {
            **counted,
            "before": memory["before"][:, :0],
            "earlier": memory["earlier"][:, :0],
            **longest,
        },
        "with the longest norm": {**counted, **longest},
        "without first rounds": counted,
        "without credit": heard,
    }


@pytest.mark.parametrize("version", of_earlier_versions(SMALL.infer(np.eye(3, D)).memory))
def test_a_memory_of_an_earlier_version_is_gone_on_from(version):
    crf, memory = replace(SMALL, longest_window=1.0), None
    for number, clients in enumerate(ROUNDS["some"]):
        rows = np.stack([update(client, np.zeros(D), number) for client in clients])
        model = np.full(D, number / 9)
        now = crf.infer(rows, clients=clients, memory=memory, model=model)
        earlier = None if memory is None else of_earlier_versions(memory)[version]
        then = crf.infer(rows, clients=clients, memory=earlier, model=model)
        assert_array_equal(then.weights, now.weights)
        memory = now.memory


def test_names_have_the_numbers_that_stand_in_checkpoints():
    numbers = [6164347370713582292, -3957049159664009186, 7497787021708494914, -1]
    assert identities(["north", "süd", "\ud800", 2**64 - 1], 4).tolist() == numbers


def test_the_seed_of_the_sketches_is_used():
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.standard_normal((4, 400)), 3, axis=0)
    rows += 0.3 * rng.standard_normal((12, 400))
    crf = ClientCRF(neighbours=2, sketch_size=64)
    one, two = (replace(crf, sketch_seed=seed).infer(rows).affinity for seed in (1, 2))
    assert abs(one - two).max() > 0
    sketches = RobustCRF(sketch_size=16, sketch_seed=5).sketches(as_layers(rows))
    assert_array_equal(sketches, sketch(as_layers(rows), 16, 5))


def test_node_ids_of_64_bits_are_identities():
    rows = np.stack([update(client, np.zeros(D), 0) for client in range(3)])
    nodes = [2**64 - 1, 5, 2**63]
    first = SMALL.infer(rows, clients=nodes, model=np.zeros(D))
    later = SMALL.infer(rows[::-1], clients=nodes[::-1], memory=first.memory, model=np.ones(D))
    assert_allclose(later.causes["update_consistency"], 1.0, err_msg="each sends the same again")


@pytest.mark.parametrize("hand_over", [lambda memory: memory, dict], ids=["as it is", "arrays"])
def test_names_are_identities(hand_over):
    rows = np.stack([update(client, np.zeros(D), 0) for client in range(3)])
    names = ["north", "süd", np.str_("3")]
    first = SMALL.infer(rows, clients=names, model=np.zeros(D))
    memory = hand_over(first.memory)
    later = SMALL.infer(rows[::-1], clients=names[::-1], memory=memory, model=np.ones(D))
    assert_allclose(later.causes["update_consistency"], 1.0, err_msg="each sends the same again")
    other = SMALL.infer(rows, clients=[*names[:2], 3], memory=memory, model=np.ones(D))
    assert_array_equal(np.isnan(other.causes["remembered"]), [False, False, True])


def test_without_the_model_it_is_taken_to_move_as_proposed():
    model, memory, given = np.zeros(D), None, None
    for number in range(4):
        rows = np.stack([update(client, model, number) for client in range(9)])
        guessed = SMALL.infer(rows, memory=memory)
        told = SMALL.infer(rows, memory=given, model=model)
        assert_allclose(guessed.weights, told.weights, atol=1e-5)
        model, memory, given = model + told.coefficients @ rows, guessed.memory, told.memory


@pytest.mark.parametrize(
    "form",
    [
        np.float32,
        np.float64,
        lambda model: [model[:7], model[7:]],
        lambda model: torch.from_numpy(model.astype(np.float32)),
    ],
    ids=["that of an update", "other dtype", "other layers", "other framework"],
)
def test_the_form_of_the_model_changes_no_bit(form):
    rows = np.stack([update(client, np.zeros(D), 0) for client in range(5)]).astype(np.float32)
    first, memory = np.arange(D, dtype=np.float64), None
    for model in (first, first + 1.0):
        told = SMALL.infer(rows, memory=memory, model=form(model))
        memory = told.memory
        [position, *sketches] = SMALL.sketches([[model], *([row] for row in rows)])
        assert_array_equal(memory["positions"][-1], position)
        assert_array_equal(memory["sketches"], np.float32(sketches))


def test_a_model_that_stays_asks_nothing():
    rows = np.stack([update(client, np.zeros(D), 0) for client in range(5)])
    first = SMALL.infer(rows, model=np.ones(D))
    second = SMALL.infer(rows[::-1], memory=first.memory, model=np.ones(D))
    assert np.isnan(second.causes["curvature_response"]).all()


def test_counts_are_capped():
    rows = np.stack([update(client, np.zeros(D), 0) for client in range(5)])
    posterior = SMALL.infer(rows, [10, 10, 10, 10, 10_000])
    assert_allclose(posterior.base_weights, np.array([1, 1, 1, 1, 3]) / 7)


@pytest.mark.parametrize(
    ("counts", "length", "turn", "believed"),
    [
        ("attested", 1.0, -1.0, 100.0),
        ("claimed", 1.0, 1.0, 3.0),  # three times what its length supports
        ("claimed", 10.0**0.7, 1.0, 30.0),
        ("claimed", 100.0**0.7, 1.0, 100.0),  # as long as so many examples make it
        ("claimed", 100.0**0.7, -1.0, 3.0),  # it does not respond
        ("claimed", 1e-20, 1.0, 0.0),
    ],
)
def test_a_count_is_believed_if_it_is_attested_or_as_far_as_its_length_supports_it(
    counts, length, turn, believed
):
    crf, model, memory = replace(SMALL, counts=counts), np.zeros(D), None
    goals = np.linalg.qr(np.random.default_rng(0).normal(size=(D, 5)))[0].T  # no copies
    for _ in range(2):
        rows = goals - model
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        rows[4] *= length * turn
        posterior = crf.infer(rows, [10, 10, 10, 10, 1000], model=model, memory=memory)
        model, memory = model + 0.5 * rows[:4].sum(axis=0), posterior.memory
    wanted = np.array([1, 1, 1, 1, believed]) / (4 + believed)
    assert_allclose(posterior.base_weights, wanted, atol=1e-12)
    parts = posterior.causes.get("counted", np.ones(5))
    assert_allclose(parts, [1, 1, 1, 1, believed / 100.0], atol=1e-12)


@pytest.mark.parametrize("counts", ["claimed", "attested"])
def test_a_large_site_is_opposed_by_small_ones_without_harm(counts):
    """It has 16 times their examples, and its update is as long as that makes it."""
    rows = np.random.default_rng(0).normal(size=(7, D)) + 1.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[6] = -(16.0**0.7) * rows[:6].mean(axis=0) / np.linalg.norm(rows[:6].mean(axis=0))
    crf = replace(SMALL, counts=counts, tolerance=3.0)
    # Everybody's update changes against the model's step, which leads to 0.
    model = np.random.default_rng(1).normal(size=D)
    memory = crf.infer(rows - 0.1 * model, [10] * 6 + [160], model=model).memory
    posterior = crf.infer(rows, [10] * 6 + [160], model=0.0 * model, memory=memory)
    met = posterior.causes["opposition"]
    assert met[6] - np.median(met) > 2.0
    assert posterior.causes["opposed"][6] == 0.0


@pytest.mark.parametrize("clip", [0.5, 1.0, 3.0])
def test_updates_are_clipped_to_so_many_median_norms(clip):
    rows = np.stack([update(client, np.zeros(D), 0) for client in range(5)])
    rows[2] *= 50.0
    rows[3] = 0.0
    norms = np.linalg.norm(rows, axis=1)
    posterior = RobustCRF(sketch_size=64, clip=clip).infer(rows)
    middle = clip * np.median(norms)
    assert_allclose(posterior.clip, [min(1.0, middle / n) if n else 1.0 for n in norms])
    assert_allclose(posterior.coefficients, posterior.weights * posterior.clip)


@pytest.mark.parametrize("scale", [1e30, 1e150, 1e200, 1e307])
def test_huge_models_need_no_squares(scale):
    memory: Any = None
    for number in range(3):
        rows = np.random.default_rng(number).normal(size=(4, D))
        posterior = SMALL.infer(rows, memory=memory, model=np.full(D, scale * (1 + number)))
        memory = {name: np.array(posterior.memory[name]) for name in posterior.memory}
        assert posterior.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1e-150, 1e-6, 1e30, 1e40, 1e100])
def test_one_huge_or_tiny_update_spoils_no_later_round(scale):
    memory, model = None, np.zeros(D)
    for number in range(4):
        rows = np.stack([update(client, model, number) for client in range(7)])
        rows[6] *= scale
        posterior = SMALL.infer(rows, memory=memory, model=model)
        model, memory = model + posterior.coefficients @ rows, posterior.memory
        assert np.isfinite(model).all()
        assert np.isfinite(posterior.causes["curvature_response"]).all() or number == 0
    assert np.isfinite(posterior.weights).all()


def test_nobody_finite_keeps_everything():
    first = SMALL.infer(np.eye(3, D))
    later = SMALL.infer(np.full((3, D), math.nan), memory=first.memory)
    assert not later.weights.any()
    assert not later.coefficients.any()
    for name in ("clients", "beliefs", "sketches", "positions"):
        assert_array_equal(later.memory[name], first.memory[name])


def test_of_an_excluded_client_nothing_is_seen_but_what_is_remembered():
    spoilt = play(SMALL, ROUNDS["everybody"], spoilt=[(3, 2)])[-1]
    assert spoilt.excluded.tolist() == [client == 2 for client in range(9)]
    for name, values in spoilt.causes.items():
        known = [client != 2 or name == "remembered" for client in range(9)]
        assert_array_equal(np.isfinite(values), known, err_msg=name)


def test_arrays_are_read_only_but_for_the_memory():
    posterior = SMALL.infer(np.eye(3, D))
    for values in (posterior.weights, posterior.marginals, posterior.causes["vote"]):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1.0
    assert all(array.flags.writeable for array in posterior.memory.values())


def test_reported_evidence_multiplies_what_is_inferred():
    rows = np.stack([update(client, np.zeros(D), 0) for client in range(5)])
    losses = [0.1, 0.2, 3.0, math.nan, 0.4]
    plain, told = SMALL.infer(rows), SMALL.infer(rows, evidence={"residual_loss": losses})
    alone = EvidenceCRF().infer(rows, evidence={"residual_loss": losses})
    assert alone.expected_label[2] < 0.05
    assert_allclose(told.expected_label, plain.expected_label * alone.expected_label)
    assert_array_equal(
        np.isnan(told.causes["reported residual_loss"]), [False, False, False, True, False]
    )
    assert_array_equal(told.memory["beliefs"], plain.memory["beliefs"])


@pytest.mark.parametrize("losses", [[1.7e308] * 3, [1.7e308, 0.2, 1.7e308, 1.7e308]])
def test_huge_evidence_of_most_clients_is_evidence(losses):
    smaller = np.minimum(losses, 1e9)
    found, like = (
        EvidenceCRF().infer(np.eye(len(losses), D), evidence={"residual_loss": each})
        for each in (losses, smaller)
    )
    assert_array_equal(found.weights, like.weights)
    assert not found.fell_back


def test_who_speaks_against_itself_has_no_vote():
    rows = np.random.default_rng(5).standard_normal((7, D))
    rows[4:] -= 1.5 * rows[0]
    losses = [0.1, 0.2, 0.3, 0.2, 5.0, 6.0, 5.0]
    plain, told = SMALL.infer(rows), SMALL.infer(rows, evidence={"residual_loss": losses})
    assert plain.causes["opposed"][0] > 0.3
    assert told.causes["opposed"][0] < 0.1
    assert_array_equal(told.causes["vote"], plain.causes["vote"])


FIRST = SMALL.infer(np.eye(3, D)).memory
BAD: dict[str, tuple[Any, str]] = {
    "another rule": ({"rule.momentum": np.zeros(3)}, "memory is of another rule .*'before'"),
    "another model": (
        RobustCRF(sketch_size=64).infer(np.eye(3, D + 1)).memory,
        r"another federation .*\(model size 31, here 30\)",
    ),
    "another size": (RobustCRF(sketch_size=65).infer(np.eye(3, D)).memory, "sketch size"),
    "another seed": (
        RobustCRF(sketch_size=64, sketch_seed=4).infer(np.eye(3, D)).memory,
        "another sketch seed",
    ),
    "fewer labels": (
        {**FIRST, "labels": np.array([0.0, 1.0]), "beliefs": FIRST["beliefs"][:, :2]},
        r"labels \[0\.0, 1\.0\], here \[0\.0, 0\.25, 1\.0\]",
    ),
    "labels turned round": (
        {**FIRST, "labels": FIRST["labels"][::-1]},
        r"labels \[1\.0, 0\.25, 0\.0\], here",
    ),
    **{
        f"{name} of {values}": ({**FIRST, name: np.array(values)}, "memory is damaged")
        for name, values in (
            ("rounds", [0, 0, 1]),
            ("rounds", [-1, 0, 0]),
            ("credit", [50.0, 1.0, 1.0]),
            ("credit", [-1.0, 1.0, 1.0]),
            ("credit", [math.nan, 1.0, 1.0]),
            ("counts", [2]),
            ("first", [2]),
        )
    },
    "labels that are none": ({**FIRST, "labels": None}, "labels None, here"),
    "no mapping": ([1, 2], "memory is a list: give the memory"),
    "a posterior": (SMALL.infer(np.eye(3, D)), r"memory is a Posterior: .*posterior\.memory"),
    "names that are none": ({**FIRST, 3: np.zeros(3)}, "memory is of another rule .*'3'"),
    "torn": ({**FIRST, "beliefs": FIRST["beliefs"][:1]}, "memory is damaged"),
    "ragged": ({**FIRST, "positions": [[0.0], [0.0, 1.0]]}, "memory is damaged"),
    "one client twice": ({**FIRST, "clients": np.zeros(3, dtype=np.int64)}, "memory is damaged"),
    "words for clients": ({**FIRST, "clients": np.array(list("abc"))}, "memory is damaged"),
    "rounds that are not whole": ({**FIRST, "rounds": np.zeros(3)}, "memory is damaged"),
    "beliefs below 0": ({**FIRST, "beliefs": -FIRST["beliefs"]}, "memory is damaged"),
    "beliefs of no chances": ({**FIRST, "beliefs": 5 * FIRST["beliefs"]}, "memory is damaged"),
    "beliefs without rows": ({**FIRST, "beliefs": np.float64(1.0)}, "memory is damaged"),
    "beliefs of nothing": ({**FIRST, "beliefs": None}, "memory is damaged"),
    "sketches not finite": ({**FIRST, "sketches": math.nan * FIRST["sketches"]}, "is damaged"),
    "positions not finite": ({**FIRST, "positions": np.full((1, 64), math.inf)}, "is damaged"),
    "expected not finite": ({**FIRST, "expected": np.full(64, math.nan)}, "is damaged"),
    "a model until now": (
        SMALL.infer(np.eye(3, D), model=np.zeros(D)).memory,
        r"\(model given 1, here 0\): give model= in every round, or in none",
    ),
    "averages missing from a window": (
        {
            **FIRST,
            "before": FIRST["before"][:, :0],
            "earlier": FIRST["earlier"][:, :0],
            "window": np.array([4.0, 9.0, -1.0, 0.0, 0.0]),
        },
        "memory is damaged",
    ),
    "a huge window": (
        {**FIRST, "window": np.array([2.0, 9.0, -1e308, 1e308, 0.0])},
        "memory is damaged",
    ),
    "a window below 1": (
        {**FIRST, "window": np.array([0.5, 1.0, -1.0, 0.0, 0.0])},
        "memory is damaged",
    ),
    "sketches beyond float32": ({**FIRST, "sketches": np.full((3, 64), 1e300)}, "is damaged"),
    "a last round beyond all": ({**FIRST, "last": np.array([2**63 - 1])}, "memory is damaged"),
    "counts beyond 64 bits": (
        {**FIRST, "counts": np.array([2**64 - 1], np.uint64)},
        "memory is damaged",
    ),
    "complex sketches": ({**FIRST, "sketches": 1j * FIRST["sketches"]}, "memory is damaged"),
}


@pytest.mark.parametrize(("memory", "message"), BAD.values(), ids=BAD)
def test_a_memory_that_is_not_its_own(memory, message):
    with pytest.raises(FedcrfError, match=message):
        SMALL.infer(np.eye(3, D), memory=memory)


CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "too few clients": ({"clients": [1, 2]}, "2 clients for 3 updates"),
    "no names": ({"clients": [1.5, 2, 3]}, "client 1.5: give identities that are names or whole"),
    "spans of time": (
        {"clients": np.arange(3).astype("m8[s]")},
        r"client np\.timedelta64\(0,'s'\): give identities that are names or whole",
    ),
    "a name twice": ({"clients": ["a", "b", "a"]}, "client a reports twice"),
    "a generator": ({"clients": (i for i in range(3))}, "clients are a generator: give a seq"),
    "one number": ({"clients": 3}, "clients are a int: give a sequence"),
    "one number as an array": ({"clients": np.array(3)}, "clients are a ndarray: give a sequence"),
    "twice": ({"clients": [4, 5, 4]}, "client 4 reports twice"),
    "beyond 64 bits": ({"clients": [2**64 + 1, 1, 2]}, "a client's number is beyond 64 bits"),
    "below 64 bits": ({"clients": [-(2**63) - 1, 1, 2]}, "a client's number is beyond 64 bits"),
    "model": ({"model": np.zeros(4)}, "model has 4 numbers, an update 30"),
    "model by name": ({"model": {"weight": np.zeros(D)}}, "^the model is a dict: give its values"),
    "model that is a network": (
        {"model": torch.nn.Linear(2, 3)},
        "^the model is a Linear: give a vector, or its layers$",
    ),
    "model of one number": (
        {"model": np.float64(1.0)},
        "^the model is a single number: give a",
    ),
    "model of words": ({"model": np.array(["a"] * D)}, "^the model has dtype <U1: give real numb"),
    "model masked": ({"model": np.ma.masked_less(np.zeros(D), 1.0)}, "^the model is masked: fill"),
    "model not finite": ({"model": np.full(D, np.nan)}, "the model is not finite"),
    "evidence length": ({"evidence": {"residual_loss": [1, 2]}}, r"shape \(2,\) for 3 clients"),
    "evidence name": ({"evidence": {"loss": [1, 2, 3]}}, "no evidence named 'residual_loss'"),
    "evidence list": ({"evidence": [1, 2, 3]}, "evidence is a list: give it by name"),
    "evidence words": ({"evidence": {"residual_loss": ["a"] * 3}}, "is not numbers"),
    "evidence of words and none": (
        {"evidence": {"residual_loss": ["1", None, "2"]}},
        "is not numbers",
    ),
    "evidence in digits": ({"evidence": {"residual_loss": ["1"] * 3}}, "is not numbers"),
    "evidence beyond floats": ({"evidence": {"residual_loss": [10**400] * 3}}, "is not numbers"),
    "evidence complex": ({"evidence": {"residual_loss": [1j] * 3}}, "is not numbers"),
    "evidence of a generator": (
        {"evidence": {"residual_loss": (1.0 for _ in range(3))}},
        "^evidence 'residual_loss' is a generator: give a list$",
    ),
    "evidence of a name of two lines": (
        {"evidence": {"loss\nof all": [1]}},
        r"^evidence 'loss\\nof all' is of shape \(1,\) for 3",
    ),
    "evidence of a long name": ({"evidence": {"a" * 10**6: [1, 2]}}, r"^evidence .{1,60} is of sh"),
    "evidence of another name, in lines": (
        {"evidence": {"loss\nof all": [1, 2, 3]}},
        "only loss of all: give it, or name another",
    ),
    "evidence masked": (
        {"evidence": {"residual_loss": np.ma.masked_less([1.0, 2.0, 3.0], 2.0)}},
        "'residual_loss' is masked: fill it",
    ),
    "counts": ({"num_examples": [1, 2]}, "num_examples"),
    "counts by name": (
        {"num_examples": {"a": 1}},
        "^num_examples are a dict: give its values\\(\\) as a list$",
    ),
    "counts of a dictionary": (
        {"num_examples": {"a": 1, "b": 2, "c": 3}.values()},
        "^num_examples are a dict_values: give a list$",
    ),
    "counts as one text": (
        {"num_examples": "123"},
        "^num_examples are not numbers: give one",
    ),
    "counts masked": (
        {"num_examples": np.ma.masked_less([1.0, 2.0, 3.0], 2.0)},
        "num_examples are masked",
    ),
    "counts ragged": ({"num_examples": [[1], [1, 2], 1]}, "num_examples are not numbers"),
}


@pytest.mark.parametrize(("given", "message"), CALLS.values(), ids=CALLS)
def test_calls_that_cannot_be(given, message):
    with pytest.raises(FedcrfError, match=message):
        SMALL.infer(np.eye(3, D), **given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tolerance": -1}, "^tolerance -1: give a number from 0 to 100"),
        ({"prior_log_odds": math.nan}, "^prior_log_odds nan"),
        ({"persistence": 1}, "persistence 1"),
        ({"longest_window": 0.5}, "^longest_window 0.5: give a number of 1 or more"),
        ({"longest_window": None}, "^longest_window None: give a number of 1 or more"),
        ({"counts": "true"}, "^counts 'true': choose from claimed, attested$"),
        ({"clip": 0}, "clip 0"),
        ({"clip": "2.0"}, "clip '2.0': give a number"),
        ({"sketch_size": 0}, "sketch_size 0"),
        ({"sketch_seed": -1}, "sketch_seed -1"),
        ({"sketch_seed": 2**63}, "sketch_seed 9223372036854775808: give a whole number, 0 to 922"),
        ({"trust_floor": 1.5}, "trust_floor 1.5: give a number from 0 to 1"),
        ({"remember": 0}, "remember 0: give a whole number, 1 or more"),
        (
            {"norm_tolerance": 1.0},
            "^RobustCRF.norm_tolerance is no setting any more: give tolerance, on which it dep",
        ),
        ({"crowd": 1.0}, "^RobustCRF.crowd is no setting any more: it is fixed, leave it out$"),
        ({"evidence_limit": 6.0}, "^RobustCRF.evidence_limit is no setting any more: EvidenceCRF"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(FedcrfError, match=message):
        RobustCRF(**settings)


@pytest.mark.parametrize("module", [client_crf, robust_crf, evidence_crf, field])
def test_examples_in_the_docstrings(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(("response", "length"), [(-1.0, 1.25), (0.0, 20.0), (1.0, 20.0)])
def test_without_scatter_a_window_shrinks_only_if_clients_respond(response, length):
    window = Window(length=10.0)
    for _ in range(7):
        window = window.after(np.full(5, response), 20.0)
    assert window.length == pytest.approx(length)
