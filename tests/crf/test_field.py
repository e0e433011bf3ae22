"""The parts a field is made of, each by its equation, and what composing them comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from crf.slow_robust import cosine, reported_trust, usual
from fedcrf import ClientCRF, EvidenceCRF, FedcrfError, exact_marginals
from fedcrf.crf import (
    Attraction,
    Camps,
    ConsistencyEvidence,
    Energy,
    Field,
    GoalEvidence,
    LogOddsPrior,
    NormEvidence,
    Observation,
    Opposition,
    Reliability,
    ResponseEvidence,
    RobustCRF,
    SuspectNorm,
    mean_field,
)
from fedcrf.crf.evidence import MeasuredEvidence
from fedcrf.crf.field import transition
from fedcrf.crf.window import Averages
from fedcrf.statistics import as_layers, update_statistics

LABELS = np.array([0.0, 0.25, 1.0])


def updates(m: int = 7, seed: int = 0) -> np.ndarray:
    """Updates that share a little, a copy, an opponent and a long one."""
    rng = np.random.default_rng(seed)
    rows = 0.5 * rng.standard_normal(24) + rng.standard_normal((m, 24))
    if m > 3:
        rows[1] = rows[0]
        rows[-1] *= -1.0
        rows[-2] *= 30.0
    return rows


def observe(rows: np.ndarray, counts: Any = None, **known: Any) -> Observation:
    counts = np.ones(len(rows)) if counts is None else np.asarray(counts, float)
    return Observation(update_statistics(as_layers(rows)), counts, **known)


def test_the_papers_parts_are_the_papers_crf():
    rows, counts = updates(), np.arange(1, 8)
    rows[3, 2] = np.nan
    crf = ClientCRF(labels=(0, 0.5, 1), pairwise_strength=2, bandwidth=0.3, iterations=4)
    field = Field((0, 0.5, 1), Reliability(), pairwise=(Attraction(2, 0.3, True),), iterations=4)
    found, expected = field.infer(observe(rows)), crf.infer(rows, counts)
    for name in ("marginals", "expected_label", "unary"):
        assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    for name in ("reliability", "cosine", "distance", "norm_anomaly", "affinity"):
        assert_array_equal(found.causes[name], getattr(expected, name), err_msg=name)


@pytest.mark.parametrize("damping", [0.0, 0.5, 0.9])
def test_damping_does_not_change_where_mean_field_ends(damping):
    parts = {"prior": LogOddsPrior(1.0), "pairwise": (Attraction(0.5), Opposition(0.5))}
    end = Field(LABELS, **parts, iterations=500, damping=damping).infer(observe(updates()))
    plain = Field(LABELS, **parts, iterations=500).infer(observe(updates()))
    assert_allclose(end.marginals, plain.marginals, atol=1e-9)


def test_weak_ties_are_inferred_as_by_brute_force():
    rows = updates(6)
    field = Field(LABELS, Reliability(), pairwise=(Attraction(0.02),), iterations=50)
    found = field.infer(observe(rows))
    exact = exact_marginals(found.unary, found.causes["affinity"], LABELS, 0.02)
    assert_allclose(found.marginals, exact, atol=1e-3)
    assert not np.allclose(found.marginals, np.exp(-found.unary), atol=1e-3), "ties count"


@pytest.mark.parametrize("strength", [-3.0, 0.0, 2.0, 800.0])
def test_inclination(strength):
    found = LogOddsPrior(strength).prior(observe(updates(2)), LABELS).probabilities
    factors = [math.exp(strength * (q - (strength > 0))) for q in LABELS]
    assert_allclose(found, [np.array(factors) / sum(factors)] * 2, rtol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [{}, {"threshold": 0.5, "softening": 0.1, "strength": 1.0, "limit": 4.0}],
)
@pytest.mark.parametrize(
    "values",
    [
        [0.2, 0.3, 0.1, 2.0, 0.5],
        [0.2, 0.3, 0.1, 0.85, 0.5],
        [0.2, math.nan, 0.1, 2.0, math.inf],
        [math.nan] * 5,
        [1.0] * 5,
        [0.0, 0.0, 0.0, 0.0, 1e300],
    ],
)
def test_reported_reliability(values, settings):
    seen = observe(updates(5), evidence={"residual_loss": np.array(values)})
    crf = EvidenceCRF(**{f"evidence_{name}": value for name, value in settings.items()})
    found = crf.prior(seen, np.array([0.0, 1.0]))
    trust = reported_trust(values, **settings)
    assert_allclose(found.probabilities @ [0, 1], trust, rtol=1e-12)
    cause = found.causes["reported residual_loss"]
    assert_array_equal(np.isnan(cause), ~np.isfinite(values))
    assert_allclose(np.exp(-np.nan_to_num(cause)), trust, rtol=1e-12)


def test_honest_clients_a_little_above_liars_keep_their_weight():
    losses = np.array([0.01] * 4 + [0.01, 0.05, 0.1, 0.2, 0.3, 0.4])  # four claim the least
    seen = observe(updates(10), evidence={"residual_loss": losses})
    found = EvidenceCRF().prior(seen, np.array([0.0, 1.0]))
    assert_array_equal(found.probabilities[:, 1], 1.0)


def test_a_client_out_of_the_round_does_not_move_the_others_evidence():
    rows, losses = updates(5), np.array([0.2, 0.3, 50.0, 2.0, 0.5])
    rows[2, 0] = np.nan
    found = EvidenceCRF().prior(
        observe(rows, evidence={"residual_loss": losses}), np.array([0.0, 1.0])
    )
    trust = reported_trust(np.delete(losses, 2).tolist())
    assert_allclose(np.delete(found.probabilities @ [0, 1], 2), trust)


def test_evidence_of_another_name_is_named():
    seen = observe(updates(2), evidence={"train_loss": np.zeros(2)})
    with pytest.raises(FedcrfError, match="no evidence named 'residual_loss', only train_loss"):
        EvidenceCRF().prior(seen, LABELS)


@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_norm_evidence(spread):
    rows, counts = updates(), [10, 20, 0, 40, 50, 60, 70]
    rows[0, 0] = np.nan
    rows[3] = 0.0
    rows[4] *= 4.0
    part = NormEvidence(strength=3.0, exponent=0.5, tolerance=0.5, spread=spread)
    found = part.energy(observe(rows, counts), LABELS)
    known = [i for i in range(7) if i not in (0, 2)]
    z = {
        i: math.log(max(np.linalg.norm(rows[i]), 1e-300)) - 0.5 * math.log(counts[i]) for i in known
    }
    middle, deviation = usual(z.values())
    tolerated = max(0.5, spread * deviation)
    evidence = [min(2.0, max(0.0, z.get(i, middle) - middle - tolerated)) for i in range(7)]
    assert evidence[5] == 2.0
    assert 0 < evidence[4] < 2.0
    assert_allclose(found.causes["norm"], evidence, atol=1e-12)
    assert_allclose(found.values, 3.0 * np.outer(evidence, LABELS), atol=1e-12)


@pytest.mark.parametrize(
    ("degrees", "wrong", "growth", "counted"),
    [
        (90, 0.1, 0.0, 0.0),
        (90, 0.5, 0.0, 0.0),
        (90, 0.8, 0.0, 0.6),
        (90, 1.0, 0.0, 1.0),
        (97, 0.1, 0.0, 0.3516),  # four oppose it, it opposes each: 2·(4 − 0.9)·0.10900/0.5 − 1
        (180, 0.1, 0.0, 1.0),
        (90, 0.1, 0.8, 0.4),  # the tolerance is 2
        (90, 0.1, 9.0, 1.0),
        (90, 0.1, math.nan, 1.0),
    ],
)
def test_length_counts_as_far_as_more_speaks_against_a_client(degrees, wrong, growth, counted):
    angle = math.radians(degrees)
    rows = np.zeros((5, 6))
    rows[:4] = np.column_stack([np.ones(4), np.zeros(4), 0.5 * np.eye(4)])
    rows[4, :2] = 99.0 * math.cos(angle), 99.0 * math.sin(angle)
    initial = np.full((5, 3), [0.0, 0.0, 1.0])
    initial[4] = wrong, 0.0, 1.0 - wrong
    part = SuspectNorm(tolerance=2.0, opposition=Opposition(vote_power=1e9))
    seen = observe(rows, measured={"norm": np.array([-0.3, 0.0, 0.0, 0.2, growth])})
    energy = part.message(replace(seen, initial=initial), LABELS)(initial)
    assert_allclose(energy.causes["norm"], [0, 0, 0, 0, 2 * counted], atol=1e-4)


@pytest.mark.parametrize(
    ("agreement", "alone", "share", "evidence"),
    [
        (0.6, True, 0.5, 0.5),  # the others' cosines are 0.5; of log-lengths above 2 it is evidence
        (0.3, True, 0.5, 0.5),
        (0.2, True, 0.5, 1.5),
        (0.3, True, 0.7, 1.5),
        (0.0, True, 0.0, 0.5),
        (-0.1, True, 0.0, 1.5),
        (0.2, False, 0.5, 1.5),  # its copy agrees with it
        (-0.4, True, 0.0, 1.5),
    ],
)
def test_more_length_is_tolerated_of_who_is_new_and_agrees(agreement, alone, share, evidence):
    rows = np.zeros((7, 9))
    rows[:, 0] = math.sqrt(0.5)
    rows[:, 1:8] = math.sqrt(0.5) * np.eye(7)
    long = slice(6, 7) if alone else slice(5, 7)
    rows[long] = 0.0
    rows[long, 0] = math.sqrt(2.0) * agreement
    rows[long, 8] = math.sqrt(1.0 - 2.0 * agreement**2)
    rows[6] *= math.exp(2.5)
    part = SuspectNorm(tolerance=1.0, share=share)
    initial = np.full((7, 3), [1.0, 0.0, 0.0])
    for grown, causes in ((math.nan, evidence), (1.0, 1.5)):  # who is not new has grown
        measured = {"norm": np.array([0, 0, 0, 0, 0, 0, grown])}
        seen = observe(rows, initial=initial, measured=measured)
        found = part.message(seen, LABELS)(initial)
        assert_allclose(found.causes["norm"], [0, 0, 0, 0, 0, 0, causes], atol=1e-12)


@pytest.mark.parametrize(
    ("response", "spread", "evidence"),
    [
        ([-0.6, -0.4, 0.2, 0.0, math.nan], 0.0, [0, 0, 0.3, 0.1, 0]),  # the median is −0.2
        ([-0.6, -0.4, 0.2, 0.0, math.nan], 2.0, [0, 0, 0.1, 0, 0]),  # half of 2 · 0.3 is nothing
        ([0.4, 0.4, 0.2, 0.0, math.nan], 0.0, [0.4, 0.4, 0.2, 0, 0]),  # nobody is asked for more
        ([math.nan] * 5, 4.0, [0] * 5),
    ],
)
def test_response_evidence(response, spread, evidence):
    seen = observe(updates(5), measured={"curvature_response": np.array(response)})
    part = ResponseEvidence(strength=4.0, share=0.5, spread=spread, large_round=2.5)
    found = part.energy(seen, LABELS)
    assert_allclose(found.causes["unresponsive"], evidence, atol=1e-12)
    assert_allclose(found.values, 4.0 * np.outer(evidence, LABELS), atol=1e-12)


@pytest.mark.parametrize(
    ("steadiness", "crowd", "spread", "evidence"),
    [
        ([0.8, 0.4, 0.1, -0.5, math.nan], 10.0, 4.0, [0, 0, 0.025, 0.625, 0]),  # the median is 0.25
        ([-0.9, -0.4, 0.2, -0.4, math.nan], 10.0, 4.0, [0.3, 0, 0, 0, 0]),  # the median is −0.4
        ([0.8, 0.8, 0.8, 0.4, math.nan], 2.5, 4.0, [0, 0, 0, 0.1, 0]),  # 0.3 may be missing
        ([0.8, 0.9, 0.7, 0.1, math.nan], 2.5, 5.0, [0, 0, 0, 0.36875, 0]),  # half of 0.5 is less
        ([0.8, 0.9, 0.7, 0.1, math.nan], 2.5, 10.0, [0, 0, 0, 0.15, 0]),  # half of 1.0 is more
        ([math.nan] * 5, 2.5, 4.0, [0] * 5),
    ],
)
def test_steadiness_evidence(steadiness, crowd, spread, evidence):
    seen = observe(updates(5), measured={"update_consistency": np.array(steadiness)})
    part = ConsistencyEvidence(strength=4.0, share=0.5, spread=spread, large_round=crowd)
    found = part.energy(seen, LABELS)
    assert_allclose(found.causes["inconsistent"], evidence, atol=1e-12)
    assert_allclose(found.values, 4.0 * np.outer(evidence, LABELS), atol=1e-12)


@pytest.mark.parametrize("crowd", [3.0, 50.0])
def test_opposition(crowd):
    rows, m = updates(), 7
    rows[2, 0] = np.nan
    rows[4] = 0.0
    belief = np.random.default_rng(1).dirichlet([1, 1, 1], m)
    part = Opposition(1.5, 0.01, vote_power=4.0, large_round=crowd, spread=0.5)
    found = part.message(observe(rows), LABELS)(belief)
    used = [i for i in range(m) if i != 2]
    met, share = np.zeros(m), min(1, crowd / 6)
    for j in used:
        others = [i for i in used if i != j]
        alike = [max(0.0, cosine(rows[i], rows[j])) ** 4 for i in others]
        for i in others:
            against = -cosine(rows[i], rows[j])
            counted = against if against > 0 else (1 - share) * against
            met[i] += share * counted / (1 + sum(alike)) * (belief[j] @ LABELS)
    middle, deviation = usual(met[used])
    beyond = middle + share * 0.01 + (1 - share) * 0.5 * deviation
    opposed = np.maximum(0.0, met - max(0.0, beyond))
    assert opposed[-1] > 0
    assert found.causes["vote"][0] < 0.6, "a copy is half a witness"
    assert_allclose(found.causes["opposition"], met, atol=1e-9)
    assert_allclose(found.values, 3.0 * np.outer(opposed, LABELS), atol=1e-9)


def camps(*sizes: int, noise: float = 1.5) -> np.ndarray:
    """Updates of two camps: one direction forth and back, and noise in all others."""
    side = np.repeat([1.0, -1.0], sizes)[:, None]
    rng = np.random.default_rng(5)
    return side * rng.standard_normal(40) + noise * rng.standard_normal((len(side), 40))


@pytest.mark.parametrize(
    ("rows", "lighter"),
    [
        (camps(8, 4), range(8, 12)),
        (camps(4, 8), range(4)),
        (camps(26, 24), range(26, 50)),
        (camps(70, 30, noise=2.0), range(70, 100)),
        (camps(4, 1)[[0, 1, 2, 3, *[4] * 9]], range(4, 13)),  # nine copies have one vote
        (camps(11, 1), []),  # one against all others is opposed, and no camp
        (camps(12, 0), []),
        (camps(8, 4, noise=0.3), []),  # there is one direction, as with two classes
        (camps(8, 4, noise=9.0), []),
        (camps(6, 4), []),  # a small round
        (camps(0, 1), []),
        (np.eye(12) - 0.1, []),  # everybody opposes everybody
        (np.zeros((12, 5)), []),
    ],
)
def test_the_lighter_of_two_camps(rows, lighter):
    part = Camps(strength=3.0)
    found = part.energy(observe(rows), LABELS)
    nothing = np.zeros(len(rows))
    evidence, fit = (found.causes.get(name, nothing) for name in ("minority", "camp_fit"))
    assert np.flatnonzero(evidence).tolist() == list(lighter)
    assert evidence.max() <= 2.0 * (1.0 - 10.0 / max(10, len(rows)))
    assert ((fit < 0) == (evidence > 0)).all() or not evidence.any()
    assert_array_equal(found.values, 3.0 * np.outer(evidence, LABELS))
    order = np.random.default_rng(0).permutation(len(rows))
    moved = part.energy(observe(rows[order]), LABELS).causes.get("minority", nothing)
    assert_allclose(moved, evidence[order], atol=1e-9)


@pytest.mark.parametrize(
    ("trusted", "lighter"), [((0.9, 0.9), range(8, 12)), ((0.1, 0.9), range(8))]
)
def test_the_lighter_camp_is_the_less_trusted_one(trusted, lighter):
    label = np.repeat(trusted, [8, 4])
    initial = np.column_stack([1 - label, 0 * label, label])
    rows, credit = camps(8, 4), np.ones(12)
    rows[9, 3], rows[2], credit[10] = np.nan, 0.0, 0.1
    found = Camps().energy(observe(rows, initial=initial, credit=credit), LABELS)
    evidence = found.causes["minority"]
    assert set(np.flatnonzero(evidence)) == set(lighter) - {2, 9, 10}, "who does not count"
    assert np.flatnonzero(np.isnan(found.causes["camp_fit"])).tolist() == [2, 9, 10]


def test_linear_parts_tell_their_energies():
    field = RobustCRF(tolerance=0.2).field
    known = np.linspace(-0.9, 0.9, 12)
    measured = {
        "curvature_response": known,
        "update_consistency": known[::-1],
        "goal_distance": 2.0 * known,
    }
    marginals = np.full((12, 3), 1 / 3)
    rows = updates(12) + 1.0
    rows[:4] *= -1.0  # a camp of their own
    seen = observe(rows, measured=measured)
    energies = [part.energy(seen, LABELS) for part in field.evidence]
    energies += [part.message(seen, LABELS)(marginals) for part in field.pairwise]
    causes = [part.cause for part in field.linear_parts]
    assert causes == [*measured, "camp_fit", "norm", "opposition"]
    for part, energy in zip(field.linear_parts, energies, strict=True):
        assert part.cause in energy.causes
        evidence = energy.causes[part.evidence]
        assert evidence.any()
        assert_array_equal(energy.values, part.slope * np.outer(evidence, LABELS))
    assert Field(LABELS, Reliability(), pairwise=(Attraction(),)).linear_parts == ()


@pytest.mark.parametrize(("window", "stay"), [(1.0, 0.64), (2.0, 0.8)])
def test_a_label_stays_or_is_drawn_from_the_prior(window, stay):
    prior, before = np.full((3, 2), 0.5), np.array([[1.0, 0.0], [np.nan, np.nan], [0.25, 0.75]])
    found = transition(prior, before, 0.64, window)
    half = (1.0 - stay) / 2
    assert_allclose(found, [[stay + half, half], [0.5, 0.5], [stay / 4 + half, stay * 0.75 + half]])
    field = Field((0.0, 1.0), LogOddsPrior(0.0), persistence=0.64, iterations=0)
    seen = observe(updates(3), before=before, window=window)
    assert_allclose(field.infer(seen).marginals, found)
    each = replace(seen, window=np.full(3, window))
    assert_allclose(field.infer(each).marginals, found)
    assert_allclose(replace(field, persistence=0.0).infer(seen).marginals, 0.5)


@pytest.mark.parametrize("m", [1, 2])
def test_the_smallest_rounds(m):
    field = Field(
        LABELS, LogOddsPrior(), (NormEvidence(), ResponseEvidence()), (Opposition(),), 0.9
    )
    found = field.infer(observe(updates(m)))
    assert np.isfinite(found.marginals).all()
    assert_allclose(found.marginals.sum(axis=1), 1.0)


class Distrusting:
    """A part of one's own, which looks at nothing."""

    def energy(self, seen: Observation, labels: np.ndarray) -> Energy:
        return Energy(np.outer(np.arange(seen.num_clients), labels), {"place": np.arange(7.0)})


def test_a_part_of_ones_own():
    found = Field(LABELS, LogOddsPrior(0.0), (Distrusting(),)).infer(observe(updates()))
    factors = np.exp(-np.outer(np.arange(7), LABELS))
    assert_allclose(found.marginals, factors / factors.sum(axis=1, keepdims=True))
    assert_array_equal(found.causes["place"], np.arange(7))


EVEN = np.full((2, 2), 0.5)

BAD: dict[str, Any] = {
    "labels 1": (lambda: Field((1.0,), Reliability()), "at least two"),
    "iterations": (lambda: Field(LABELS, Reliability(), iterations=-1), "iterations -1"),
    "damping": (lambda: Field(LABELS, Reliability(), damping=1.0), "damping 1.0"),
    "prior_log_odds": (lambda: LogOddsPrior(math.nan), "strength nan"),
    "norm": (lambda: NormEvidence(tolerance=-1), "tolerance -1"),
    "response": (lambda: ResponseEvidence(strength="x"), "strength 'x'"),
    "steadiness": (lambda: ConsistencyEvidence(share=-1), "share -1"),
    "steadier than most": (
        lambda: ConsistencyEvidence(share=1.5),
        r"share 1\.5: give a number from 0 to 1",
    ),
    "opposition": (lambda: Opposition(vote_power=0), "vote_power 0"),
    "attraction": (lambda: Attraction(bandwidth=0), "bandwidth 0"),
    "mean field's rounds": (lambda: mean_field(EVEN, EVEN, [], iterations=-1), "iterations -1"),
    "mean field's damping": (
        lambda: mean_field(EVEN, EVEN, [], iterations=1, damping=1),
        r"damping 1: give a number in \[0, 1\)",
    ),
    "a word for a truth": (
        lambda: Attraction(reliability_gate="no"),
        "reliability_gate 'no': give T",
    ),
    "more answer than most": (
        lambda: ResponseEvidence(share=2),
        "share 2: give a number from 0 to 1",
    ),
    "evidence's name": (lambda: EvidenceCRF(""), "evidence is '': give a text"),
    "chain": (lambda: Field(LABELS, Reliability(), persistence=1.0), "persistence 1.0"),
    "reported": (lambda: EvidenceCRF(evidence_softening=0), "evidence_softening 0"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_settings_out_of_range(make, message):
    with pytest.raises(FedcrfError, match=message):
        make()


@dataclass(frozen=True)
class Moving(MeasuredEvidence):
    """A robust potential that the package lacks: an update that is not the last one's length."""

    cause, evidence, limit = "moved", "moving", 0.3

    strength: float = 3.0
    tolerance: float = 0.1
    spread: float = 1.0

    def compare(self, averages: Averages) -> np.ndarray:
        return np.log(np.linalg.norm(averages.updates, axis=1)) - np.log(
            np.linalg.norm(averages.before, axis=1)
        )

    def threshold(self, seen: Observation, middle: float, deviation: float) -> float:
        return middle + max(self.tolerance, self.spread * deviation)


@dataclass(frozen=True)
class WithMoving(RobustCRF):
    @cached_property
    def field(self) -> Field:
        usual = super().field
        return replace(usual, evidence=(*usual.evidence, Moving(tolerance=0.2, spread=0.0)))


def test_a_robust_potential_is_one_class_and_one_line():
    crf, rows = WithMoving(sketch_size=24), updates(5)
    first = crf.infer(rows, model=np.zeros(24))
    assert np.isnan(first.causes["moved"]).all()
    grown = np.array([1.0, 1.2, 1.5, 2.0, 1.0])[:, None] * rows
    found = crf.infer(grown, memory=first.memory, model=np.ones(24))
    assert_allclose(found.causes["moved"], np.log([1.0, 1.2, 1.5, 2.0, 1.0]), atol=1e-6)
    evidence = [0.0, 0.0, math.log(1.5) - math.log(1.2) - 0.2, 0.3, 0.0]
    assert_allclose(found.causes["moving"], np.maximum(0.0, evidence), atol=1e-6)


@pytest.mark.parametrize(("tolerance", "response", "half"), [(0, 1, 1), (1, 0.25, 0.5), (9, 0, 0)])
def test_the_tolerance_sets_all_that_is_tolerated(tolerance, response, half):
    field = RobustCRF(tolerance=tolerance).field
    opposition = Opposition(tolerance=tolerance / 2, spread=4 * tolerance)
    assert field.pairwise == (
        SuspectNorm(tolerance=tolerance, spread=4 * tolerance, share=half, opposition=opposition),
        opposition,
    )
    assert field.evidence == (
        ResponseEvidence(share=response, spread=4 * tolerance),
        ConsistencyEvidence(share=half, spread=4 * tolerance),
        GoalEvidence(tolerance=tolerance),
        Camps(tolerance=tolerance),
    )
