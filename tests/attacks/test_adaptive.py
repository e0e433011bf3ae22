"""Attackers that try their forgeries on the rule itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize

from attacks.scenes import (
    flat,
    honest_updates,
    model,
    next_round,
    own_updates,
    scene,
    sent,
    updates,
)
from fedcrf import FedcrfError
from fedcrf.attacks import (
    Adaptive,
    FalseResponse,
    Opportunist,
    Opposed,
    OptimalALIE,
    OptimalInnerProductManipulation,
    Scene,
    Sleeper,
    Stealthy,
)
from fedcrf.attacks.adaptive import (
    FAMILIES,
    Aim,
    Recollection,
    asked,
    harm,
    least_steps,
    sketches_of,
)
from fedcrf.rules import (
    CRF,
    RULES,
    Adam,
    CoordinateMedian,
    CRFRobust,
    FedAvg,
    Krum,
    Optimized,
    Rule,
    Uniform,
)


def served(rule: Any) -> Any:
    """The rule; if it needs a model of the server, with the mean of the honest clients' models."""
    if not rule.server_examples:
        return rule
    of = scene()
    return rule.with_server_model(
        {
            name: np.mean([each.state[name] for each in of.honest], axis=0).astype(array.dtype)
            for name, array in of.global_state.items()
        }
    )


every_rule = pytest.mark.parametrize(
    "rule", [served(kind()) for kind in RULES.values()], ids=list(RULES)
)


def harm_by_hand(rule: Any, of: Scene, forged: Any) -> float:
    reports = sorted([*of.honest, *forged], key=lambda report: report.client)
    step = flat(rule.aggregate({}, of.global_state, reports).state) - flat(of.global_state)
    mean = honest_updates(of).mean(axis=0)
    return -float(step @ mean / (mean @ mean))


@pytest.mark.slow
@every_rule
def test_it_finds_what_harms_a_rule_most_of_all_it_may_send(rule: Any) -> None:
    round_ = scene(rule=rule)
    found = harm_by_hand(rule, round_, Adaptive().forge(round_).reports)
    assert found == pytest.approx(Aim(round_).value(Adaptive().forge(scene(rule=rule)).reports))
    assert found >= harm_by_hand(rule, round_, round_.own)
    for name, family in FAMILIES.items():
        if name == "hidden-ipm":
            continue  # its noise is drawn anew
        for strength in np.geomspace(family.least, family.greatest, 6):
            forged = family.at(float(strength)).forge(round_).reports
            assert found >= harm_by_hand(rule, round_, forged) - 1e-12, (name, strength)


def test_a_mean_is_harmed_without_bound_and_a_median_is_not() -> None:
    def strength(rule: Any) -> float:
        round_ = scene(rule=rule)
        return float(np.linalg.norm(sent(Adaptive("ipm"), round_)[0]) / mean_norm(round_))

    assert strength(Uniform()) == pytest.approx(20.0), "the largest it may"
    round_ = scene(rule=CoordinateMedian())
    assert harm(round_, asked(round_, round_.own)) < 0
    assert strength(Krum(3)) < 1.0, "what is too far away is not chosen"


def mean_norm(round_: Scene) -> float:
    return float(np.linalg.norm(honest_updates(round_).mean(axis=0)))


def test_where_every_forgery_is_worse_it_reports_honestly() -> None:
    """Attackers whose own training harms more than all they may send leave it at that."""
    whole = scene(rule=FedAvg())
    ruinous = flat(whole.global_state) - 1e6 * honest_updates(whole).mean(axis=0)
    own = [replace(report, state=model(ruinous, 0, "float64")) for report in whole.own]
    round_ = replace(whole, own=own)
    assert_allclose(sent(Adaptive("ipm"), round_), own_updates(round_))


@dataclass(frozen=True)
class Trusting(Rule):
    """Follows nobody until it remembers trust, then everybody."""

    def aggregate(self, memory: Any, global_state: Any, reports: Any) -> Any:
        result = Uniform().aggregate({}, global_state, reports)
        return result if memory else replace(result, state=global_state)


def test_it_knows_what_the_rule_remembers() -> None:
    blind = scene(rule=Trusting())
    assert_allclose(sent(Adaptive("ipm"), blind), own_updates(blind))
    trusted = scene(rule=Trusting(), rule_memory={"trust": np.ones(1)})
    assert np.linalg.norm(sent(Adaptive("ipm"), trusted)[0]) > 10 * mean_norm(trusted)


def test_families_that_the_round_has_no_room_for_are_left_out() -> None:
    alone = scene(honest=1)
    assert np.isfinite(sent(Adaptive(), alone)).all()


# --- the optimal attacks of ByzFL -------------------------------------------------------------


def distance_by_hand(round_: Scene, row: Any) -> float:
    """How far from the honest mean the rule goes, where all attackers send the same."""
    forged = [
        replace(each, state=model(flat(round_.global_state) + row, 0, "float64"))
        for each in round_.own
    ]
    reports = sorted([*round_.honest, *forged], key=lambda report: report.client)
    result = round_.rule.aggregate(round_.rule_memory, round_.global_state, reports)
    step = flat(result.state) - flat(round_.global_state)
    return float(np.linalg.norm(step - honest_updates(round_).mean(axis=0)))


def searched_by_hand(value: Any, evaluations: int, ratio: float) -> float:
    """ByzFL's two phases: steps that double, and steps that shrink once one has found no more."""
    best, most, step, left = 0.0, value(0.0), 10.0, evaluations - 1
    while left > 0:
        left -= 1
        if (found := value(best + step)) <= most:
            break
        best, most, step = best + step, found, 2 * step
    step *= ratio
    while left > 0:
        left -= 1
        if (found := value(best + step)) > most:
            best, most = best + step, found
        step *= ratio
    return best


LINES: dict[Any, Any] = {
    OptimalInnerProductManipulation: lambda honest, tau: -tau * honest.mean(axis=0),
    OptimalALIE: lambda honest, tau: (
        honest.mean(axis=0)
        + tau * np.sqrt(((honest - honest.mean(axis=0)) ** 2).sum(axis=0) / (len(honest) - 1))
    ),
}


@pytest.mark.parametrize("evaluations", [1, 2, 20])
@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("rule", [Uniform(), Krum(3), CRFRobust()], ids=lambda rule: rule.name)
def test_the_optimal_factor_is_searched_on_the_rule(rule: Any, kind: Any, evaluations: int) -> None:
    round_ = scene(rule=rule)
    honest = honest_updates(round_)
    tau = searched_by_hand(
        lambda tau: distance_by_hand(round_, LINES[kind](honest, tau)), evaluations, 0.8
    )
    expected = np.tile(LINES[kind](honest, tau), (3, 1))
    assert_allclose(sent(kind(evaluations=evaluations), round_), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", LINES)
def test_a_round_without_an_attacker_is_not_searched(kind: Any) -> None:
    assert kind().forge(replace(scene(), own=[])).reports == []


# --- how much trust they keep -----------------------------------------------------------------


@dataclass(frozen=True)
class Suspicious(Rule):
    """Weights 1 and, beyond a cosine of −``tolerance`` with a direction, ``rest``; equal counts."""

    direction: Any
    tolerance: float = 0.3
    rest: float = 0.0

    def aggregate(self, memory: Any, global_state: Any, reports: Any) -> Any:
        rows = np.array([flat(report.state) - flat(global_state) for report in reports])
        cosines = rows @ self.direction / np.linalg.norm(rows, axis=1)
        weights = np.where(cosines < -self.tolerance, self.rest, 1.0)
        weights /= weights.sum()
        moved = model(flat(global_state) + weights @ rows, 0, "float64")
        return replace(Uniform().aggregate({}, global_state, reports), state=moved, weights=weights)


def suspicious(rest: float = 0.0, **changes: Any) -> Scene:
    mean = honest_updates(scene()).mean(axis=0)
    return scene(rule=Suspicious(mean / np.linalg.norm(mean), rest=rest), **changes)


def cosines_with_mean(round_: Scene, rows: Any) -> Any:
    mean = honest_updates(round_).mean(axis=0)
    return rows @ mean / np.linalg.norm(rows, axis=1) / np.linalg.norm(mean)


def test_a_stealthy_attacker_stays_just_inside_the_threshold() -> None:
    # Some weight is left beyond it, so that more harm could be done there.
    round_ = suspicious(rest=0.5)
    assert (cosines_with_mean(round_, sent(Adaptive("opposed"), round_)) < -0.9).all()
    found = sent(Stealthy(evaluations=40), round_)
    assert_allclose(cosines_with_mean(round_, found), -0.3, atol=0.01)
    assert (cosines_with_mean(round_, found) > -0.3).all()
    # What is not looked at, the length, is as large as it may be.
    assert_allclose(
        np.linalg.norm(found, axis=1), 4 * np.linalg.norm(honest_updates(round_)[:3], axis=1)
    )


@pytest.mark.parametrize("least_kept", [0.2, 0.9])
def test_how_much_weight_is_kept_decides_how_far_they_go(least_kept: float) -> None:
    round_ = suspicious(rest=0.5)
    # Beyond the threshold three attackers of nine clients have 1.5/7.5 of the weight, not 3/9.
    kept_beyond = (1.5 / 7.5) / (3 / 9)
    found = cosines_with_mean(round_, sent(Stealthy(least_kept=least_kept), round_))
    assert (found < -0.3).all() == (kept_beyond >= least_kept)


@pytest.mark.parametrize("patience", [0.0, 0.4, 5.0])
def test_the_value_of_a_forgery_by_hand(patience: float) -> None:
    round_ = suspicious(rest=0.25)
    for cosine, kept in [(0.1, 1.0), (0.9, (0.75 / 6.75) / (3 / 9))]:
        forged = Opposed(cosine).forge(round_).reports
        expected = harm_by_hand(round_.rule, round_, forged) + patience * kept
        assert Aim(round_, patience).value(forged) == pytest.approx(expected)
        assert Aim(round_, patience, 0.99 * kept).value(forged) == pytest.approx(expected)
        assert Aim(round_, patience, 1.01 * kept).value(forged) == -np.inf


def test_the_patient_keep_their_trust() -> None:
    def furthest(patience: float) -> float:
        round_ = suspicious(rest=0.5)
        found = sent(Adaptive("opposed", patience=patience), round_)
        return float(cosines_with_mean(round_, found).min())

    assert furthest(0.0) < -0.9
    assert -0.3 <= furthest(5.0) < -0.05


@pytest.mark.parametrize("kind", [Stealthy, FalseResponse, Opportunist])
@every_rule
def test_any_rule_can_be_attacked(rule: Any, kind: Any) -> None:
    round_ = scene(rule=rule)
    for number in range(3):
        forgery = kind(evaluations=4).forge(round_)
        assert np.isfinite(updates(round_, forgery.reports)).all()
        result = asked(round_, forgery.reports)
        other = scene(seed=number + 1)
        round_ = next_round(
            round_, forgery, rule_memory=result.memory, honest=other.honest, own=other.own
        )


def test_without_weights_there_is_no_trust_to_keep() -> None:
    round_ = scene(rule=CoordinateMedian())
    plain = Adaptive("opposed", stretch=4.0)
    assert_allclose(sent(Stealthy(least_kept=1.0), round_), sent(plain, round_))
    assert_allclose(sent(Opportunist(), round_), sent(Adaptive(), scene(rule=CoordinateMedian())))


# --- attackers that respond as honest clients do --------------------------------------------------


def played(attack: Any, rule: Any, rounds: int = 4, **changes: Any) -> list[tuple[Scene, Any]]:
    """Rounds in which clients pull towards goals of their own; the scene and what was sent."""
    rng = np.random.default_rng(3)
    goals, start = rng.standard_normal((9, 10)) + 2.0, np.zeros(10)
    rule_memory: Any = {}
    memory: Any = {}
    shown = []
    for number in range(1, rounds + 1):
        whole = scene(rule=rule)
        rows = 0.3 * (goals - start) + 0.1 * rng.standard_normal((9, 10))
        of = {c: model(start + row, c, "float64") for c, row in enumerate(rows)}
        round_ = replace(
            whole,
            global_state=model(start, 7, "float64"),
            honest=[replace(each, state=of[each.client]) for each in whole.honest],
            own=[replace(each, state=of[each.client]) for each in whole.own],
            round=number, rule_memory=rule_memory, memory=memory, **changes,
        )  # fmt: skip
        forgery = attack.forge(round_)
        result = asked(round_, forgery.reports)
        shown.append((round_, forgery.reports))
        start, memory = flat(result.state), forgery.memory
        rule_memory = result.memory
    return shown


def cosine(x: Any, y: Any) -> float:
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def responses(
    shown: list[tuple[Scene, Any]], now: int, view: Any
) -> tuple[list[float], list[float]]:
    """Everybody's responses between two rounds: honest clients', then attackers'."""
    (before, sent_before), (here, sent_now) = shown[now - 1], shown[now]
    moved = view(flat(here.global_state) - flat(before.global_state))
    honest = zip(honest_updates(here), honest_updates(before), strict=True)
    forged = zip(updates(here, sent_now), updates(before, sent_before), strict=True)
    return (
        [cosine(view(u - v), moved) for u, v in honest],
        [cosine(view(u - v), moved) for u, v in forged],
    )


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("family", ["opposed", "ipm", pytest.param("all", marks=pytest.mark.slow)])
def test_a_false_response_is_the_median_honest_client_s(
    family: Any, sketched: bool, share: float
) -> None:
    rule = CRFRobust(sketch_size=5)
    attack = FalseResponse(family, faked_response=share, sketched=sketched)
    shown = played(attack, rule)
    view = (lambda row: rule.sketches([[row]])[0]) if sketched else (lambda row: row)
    above = []
    for now in (1, 2, 3):
        honest, forged = responses(shown, now, view)
        assert np.median(honest) < -0.05, "there is a response to fake"
        above.append(max(forged) - share * np.median(honest))
    assert max(above) == pytest.approx(0.0, abs=1e-5), "no less, and no more than is needed"


def test_a_server_optimizer_does_not_hide_the_rule_s_sketches() -> None:
    rule = CRFRobust(sketch_size=5)
    rows = np.random.default_rng(0).standard_normal((3, 10))
    seen = sketches_of(scene(rule=Optimized(rule, Adam())))(rows)
    assert np.array_equal(seen, rule.sketches([[row] for row in rows]))


def test_without_a_false_response_they_would_be_known_by_it() -> None:
    honest, forged = responses(played(Adaptive("ipm"), FedAvg()), 2, lambda row: row)
    assert min(forged) > 0.5 * np.median(honest)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("response", [0.0, -0.2, -0.9])
def test_the_step_is_the_least_that_responds(response: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    changed, moved = rng.standard_normal((2, 7, 10))
    for x, y, step in zip(changed, moved, least_steps(changed, moved, response), strict=True):

        def missing(c: float, x: Any = x, y: Any = y) -> float:
            return cosine(x - c * y, y) - response

        root = 0.0 if missing(0.0) <= 0.0 else optimize.brentq(missing, 0.0, 1e3, xtol=1e-12)
        assert step == pytest.approx(root, rel=1e-6)


def test_who_is_new_or_meets_a_model_that_stood_still_owes_no_response() -> None:
    x, y = np.ones((3, 4)), np.ones((3, 4))
    x[0], y[0], y[1] = np.nan, np.nan, 0.0
    assert_allclose(least_steps(x, y, 0.0), [0.0, 0.0, 1.0])


def test_those_who_look_on_remember_what_they_sent() -> None:
    quiet = played(FalseResponse("ipm"), FedAvg(), rounds=1, active=False)
    round_, reports = quiet[0]
    assert reports == round_.own
    memory = FalseResponse("ipm").forge(round_).memory
    kept = dict(zip(memory["clients"].tolist(), memory["updates"], strict=True))
    for report in (*round_.honest, *round_.own):
        assert_allclose(kept[report.client], updates(round_, [report])[0], rtol=1e-6)


def test_the_absent_are_compared_with_when_they_last_took_part() -> None:
    """Client 2 and attacker 4 miss the second round; their change is over two rounds."""
    first = scene(seed=1)
    start = replace(first, memory=FalseResponse("ipm").forge(first).memory, round=2)
    absent = replace(
        scene(seed=2),
        honest=[each for each in scene(seed=2).honest if each.client != 2],
        own=[each for each in scene(seed=2).own if each.client != 4],
        memory=start.memory,
    )
    third = replace(scene(seed=3), memory=FalseResponse("ipm").forge(absent).memory)
    past = Recollection.of(third)
    changed, moved = past.change(third, third.honest, honest_updates(third))
    for row, report in enumerate(third.honest):
        then = first if report.client == 2 else absent
        (before,) = (each for each in then.honest if each.client == report.client)
        expected = honest_updates(third)[row] - updates(then, [before])[0]
        assert_allclose(changed[row], expected, rtol=1e-5, atol=1e-6)
        walked = flat(third.global_state) - flat(then.global_state)
        assert_allclose(moved[row], walked, rtol=1e-5, atol=1e-6)
    _, attackers_moved = past.change(third, third.own, own_updates(third))
    assert_allclose(
        attackers_moved[1],
        flat(third.global_state) - flat(first.global_state),
        rtol=1e-5,
        atol=1e-6,
    )
    assert len(past.models) == 2, "models nobody is compared with any more are forgotten"


# --- sleepers -------------------------------------------------------------------------------------


def test_a_sleeper_copies_the_most_agreeable_and_then_strikes() -> None:
    early = scene(rule=CRF(), round=4)
    honest = honest_updates(early)
    mean = honest.mean(axis=0)
    cosine = honest @ mean / np.linalg.norm(honest, axis=1)
    assert_allclose(sent(Sleeper(until=5), early), honest[np.argsort(-cosine)[:3]])
    late = scene(rule=CRF(), round=5)
    struck = updates(late, Sleeper(until=5).forge(late).reports)
    assert_allclose(struck, sent(Adaptive(), scene(rule=CRF(), round=5)))


@dataclass(frozen=True)
class Dictated(Rule):
    """Gives each attacker a tenth of the weight, times what its memory says."""

    def aggregate(self, memory: Any, global_state: Any, reports: Any) -> Any:
        attacks = np.array([each.client in (1, 4, 6) for each in reports])
        share = 0.1 * float(memory.get("trust", 1.0))
        weights = np.where(attacks, share, (1 - 3 * share) / (~attacks).sum())
        rows = np.array([flat(each.state) for each in reports])
        result = Uniform().aggregate({}, global_state, reports)
        return replace(result, weights=weights, state=model(weights @ rows, 0, "float64"))


@pytest.mark.parametrize(
    ("settings", "trust", "strikes"),
    [
        # It grows, and then no more; then it is lost, and won again.
        ({}, [0.5, 0.7, 0.9, 0.9, 0.6, 0.4, 0.8, 0.9, 0.9], [4, 5, 9]),
        ({"pulsing": False}, [0.5, 0.7, 0.9, 0.9, 0.6, 0.4, 0.8], [4, 5, 6, 7]),
        ({"fallen": 0.8}, [0.5, 0.5, 0.7, 0.9, 0.9, 0.85], [5, 6]),
        ({"tolerance": 0.2}, [0.5, 0.81, 0.9], [3]),
        ({}, [1.0, 1.0, 1.0], [2, 3]),
        ({}, [1.0, 0.6, 0.4, 0.5, 0.5], [2, 5]),
        ({"until": 4}, [1.0, 1.0, 1.0, 1.0], [4]),
    ],
)
def test_an_opportunist_strikes_when_its_trust_is_highest(
    settings: Any, trust: list[float], strikes: list[int]
) -> None:
    attack = Opportunist("ipm", evaluations=3, **settings)
    memory: Any = {}
    struck = []
    first = honest_updates(scene())
    liked = np.argsort(-first @ first.mean(axis=0) / np.linalg.norm(first, axis=1))[:3]
    for number, each in enumerate(trust, 1):
        round_ = replace(
            scene(seed=number - 1, rule=Dictated(), rule_memory={"trust": np.array(each)}),
            round=number, memory=memory,
        )  # fmt: skip
        forgery = attack.forge(round_)
        memory = forgery.memory
        copied = np.allclose(updates(round_, forgery.reports), honest_updates(round_)[liked])
        struck += [] if copied else [number]
    assert struck == strikes


def test_an_opportunist_copies_whom_it_knows_and_then_others() -> None:
    first, attack = scene(rule=Dictated(), rule_memory={"trust": np.array(0.5)}), Opportunist()
    forgery = attack.forge(first)
    copied = updates(first, forgery.reports)
    names = [report.client for report in first.honest]
    liked = [
        names[int(np.argmin(np.abs(honest_updates(first) - row).sum(axis=1)))] for row in copied
    ]
    later = replace(
        next_round(first, forgery, rule_memory={"trust": np.array(0.9)}),
        honest=[report for report in scene(seed=5).honest if report.client != liked[0]],
        global_state=scene(seed=5).global_state,
    )
    left = {report.client: updates(later, [report])[0] for report in later.honest}
    again = sent(attack, later)
    assert_allclose(again[:2], [left[liked[1]], left[liked[2]]])


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        (Adaptive, {"family": "ipmm"}, "family 'ipmm': choose from all, sign-flip"),
        (Adaptive, {"evaluations": 1}, "evaluations 1"),
        (Adaptive, {"stretch": 0.5}, "stretch 0.5: give a number of 1 or more"),
        (Adaptive, {"patience": -1.0}, "patience -1"),
        (Stealthy, {"least_kept": 1.5}, "least_kept 1.5: give a number from 0 to 1"),
        (FalseResponse, {"faked_response": -0.5}, "faked_response -0.5"),
        (Sleeper, {"until": 0}, "until 0"),
        (Sleeper, {"evaluations": 0}, "evaluations 0"),
        (Opportunist, {"until": 0}, "until 0"),
        (Opportunist, {"tolerance": 2.0}, "tolerance 2"),
        (Opportunist, {"fallen": -1.0}, "fallen -1"),
    ],
)
def test_settings_that_cannot_be(kind: Any, settings: dict[str, int], named: str) -> None:
    with pytest.raises(FedcrfError, match=named):
        kind(**settings)
