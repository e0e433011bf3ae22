"""Every attack against its formula, written out again here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, stats

from attacks.scenes import (
    Matrix,
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
    ALIE,
    ATTACKS,
    Attack,
    BadNets,
    DataAttack,
    DistributedBackdoor,
    Drift,
    EdgeCase,
    FeatureNoise,
    FreeRider,
    GaussianNoise,
    HybridSparse,
    InflatedCount,
    InnerProductManipulation,
    LabelFlip,
    LabelNoise,
    Mimic,
    MinMax,
    MinSum,
    NotFinite,
    Opposed,
    OptimalALIE,
    OptimalInnerProductManipulation,
    PoisonedFL,
    Scaling,
    SignFlip,
    StaleFreeRider,
    StatisticalMimicry,
)
from fedcrf.attacks.statistical import largest_z
from fedcrf.rules import ClientReport

MODEL_ATTACKS = [kind for kind in ATTACKS.values() if not issubclass(kind, DataAttack)]

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "attacks.md"


def test_the_reference_lists_every_attack_and_no_other() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(ATTACKS)


def test_what_an_attack_is_listed_with_names_its_paper() -> None:
    """The list shows the first line of what is said of a class."""
    source, papers = "", 0
    for row in REFERENCE.read_text(encoding="utf-8").splitlines():
        cells = row.strip("| ").split(" | ")
        if len(cells) != 4 or not cells[0].startswith("`"):
            continue
        source = source if cells[3] == "the same" else cells[3]
        year = re.search(r"20\d\d", source)
        first = (ATTACKS[cells[0].strip("`")].__doc__ or "").splitlines()[0]
        assert year is None or f"{year.group()})" in first, first
        papers += year is not None
    assert papers == 15


# --- one row an attack ------------------------------------------------------------------------


def same(row: Matrix) -> Matrix:
    return np.tile(row, (3, 1))


FORMULAS: list[tuple[Attack, Callable[[Matrix, Matrix], Matrix]]] = [
    (SignFlip(), lambda honest, own: -own),
    (SignFlip(3.0), lambda honest, own: -3 * own),
    (Scaling(), lambda honest, own: 50 * own),
    (FreeRider(), lambda honest, own: 0 * own),
    (InnerProductManipulation(), lambda honest, own: same(-0.5 * sum(honest) / 6)),
    (InnerProductManipulation(2.0), lambda honest, own: same(-2 * sum(honest) / 6)),
    (ALIE(1.5), lambda honest, own: same(sum(honest) / 6 - 1.5 * np.sqrt(variance(honest)))),
    (
        ALIE(1.5, "attackers"),
        lambda honest, own: same(sum(own) / 3 - 1.5 * np.sqrt(variance(own))),
    ),
    # Nine clients, three attackers: two more make a majority of five, so four of six honest ones
    # are nearer to the mean than the attackers.
    (ALIE(), lambda honest, own: same(honest.mean(0) - stats.norm.ppf(4 / 6) * honest.std(0))),
    (NotFinite(), lambda honest, own: np.full((3, 10), np.nan)),
    (NotFinite("inf"), lambda honest, own: np.full((3, 10), np.inf)),
    (InflatedCount(), lambda honest, own: own),
    (InflatedCount(update_factor=-2.0), lambda honest, own: -2 * own),
]


def variance(rows: Matrix) -> Matrix:
    mean = sum(rows) / len(rows)
    result: Matrix = sum((row - mean) ** 2 for row in rows) / len(rows)
    return result


@pytest.mark.parametrize(
    ("attack", "formula"), FORMULAS, ids=lambda value: None if callable(value) else repr(value)[:60]
)
def test_updates_are_the_formula_s(
    attack: Attack, formula: Callable[[Matrix, Matrix], Matrix]
) -> None:
    round_ = scene()
    expected = formula(honest_updates(round_), own_updates(round_))
    assert_allclose(sent(attack, round_), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", MODEL_ATTACKS)
def test_a_forgery_is_a_model_like_the_others_and_nothing_is_changed(
    kind: type[Attack],
) -> None:
    round_ = scene(dtype="float32")
    before = [flat(report.state) for report in (*round_.honest, *round_.own)]
    reports = kind().forge(round_).reports
    assert [report.client for report in reports] == [1, 4, 6]
    for report, own in zip(reports, round_.own, strict=True):
        assert list(report.state) == list(round_.global_state)
        assert report.effective_steps == own.effective_steps
        for name, array in round_.global_state.items():
            assert (report.state[name].dtype, report.state[name].shape) == (
                array.dtype,
                array.shape,
            )
        assert report.state["tracked"] == 100 + report.client, "integer buffers are not forged"
    after = [flat(report.state) for report in (*round_.honest, *round_.own)]
    assert_array_equal(before, after)


@pytest.mark.parametrize("kind", MODEL_ATTACKS)
def test_the_same_draw_forges_the_same(kind: type[Attack]) -> None:
    first, second = (sent(kind(), scene()) for _ in range(2))
    assert_array_equal(first, second)


@pytest.mark.parametrize("kind", MODEL_ATTACKS)
def test_one_honest_client_that_diverged_is_not_learnt_from(kind: type[Attack]) -> None:
    whole = scene()
    lost = replace(whole.honest[2], state=model(np.full(10, np.nan), 0, "float64"))
    broken = replace(whole, honest=[*whole.honest[:2], lost, *whole.honest[3:]])
    without = scene(draw=np.random.default_rng(0))
    without = replace(without, honest=[*without.honest[:2], *without.honest[3:]])
    assert_array_equal(sent(kind(), broken), sent(kind(), without))


# --- what the formulas promise ----------------------------------------------------------------


@pytest.mark.parametrize(("m", "f"), [(10, 2), (10, 3), (10, 4), (50, 24), (51, 24), (100, 30)])
def test_largest_z_makes_a_majority(m: int, f: int) -> None:
    needed = math.floor(m / 2 + 1) - f
    z = largest_z(m, f)
    assert_allclose((m - f) * stats.norm.sf(z), needed, rtol=1e-12)


def test_gaussian_noise_is_normal_and_each_attacker_s_own() -> None:
    round_ = scene()
    drawn = np.concatenate([sent(GaussianNoise(0.3), round_) for _ in range(400)])
    assert len(np.unique(drawn[:, 0])) == 1200
    assert stats.kstest(drawn.ravel() / 0.3, "norm").pvalue > 1e-3


@pytest.mark.parametrize("cosine", [0.0, 0.2, 1.0])
def test_opposed_has_that_cosine_and_lies_in_a_client_s_plane(cosine: float) -> None:
    round_ = scene()
    honest, found = honest_updates(round_), sent(Opposed(cosine), round_)
    mean = sum(honest) / 6
    for row, victim in zip(found, honest, strict=False):
        assert_allclose(np.linalg.norm(row), np.linalg.norm(victim))
        assert_allclose(row @ mean / np.linalg.norm(row) / np.linalg.norm(mean), -cosine, atol=1e-9)
        plane = np.linalg.qr(np.stack([mean, victim]).T)[0]
        assert_allclose(plane @ (plane.T @ row), row, atol=1e-9)
        if cosine < 1:
            across = victim - (victim @ mean) / (mean @ mean) * mean
            assert row @ across > 0, "it goes with the client where it does not oppose the mean"


def test_opposed_goes_round_where_attackers_are_more_than_honest_clients() -> None:
    found = sent(Opposed(), scene(honest=2, attackers=(0, 1, 3)))
    assert_array_equal(found[0], found[2])
    assert np.abs(found[0] - found[1]).max() > 1e-3


DEVIATIONS: dict[str, Callable[[Matrix], Matrix]] = {
    "unit": lambda honest: -honest.mean(0) / np.linalg.norm(honest.mean(0)),
    "sign": lambda honest: -np.sign(honest.mean(0)),
    "std": lambda honest: -honest.std(0),
}


def most_distance(point: Matrix, honest: Matrix) -> float:
    return float(max(((point - row) ** 2).sum() for row in honest))


def total_distance(point: Matrix, honest: Matrix) -> float:
    return float(sum(((point - row) ** 2).sum() for row in honest))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize(("kind", "distance"), [(MinMax, most_distance), (MinSum, total_distance)])
def test_min_max_and_min_sum_go_as_far_as_bisection(
    kind: Any, distance: Callable[[Matrix, Matrix], float], deviation: str, seed: int
) -> None:
    round_ = scene(seed=seed)
    honest = honest_updates(round_)
    bound = max(distance(row, honest) for row in honest)
    mean, direction = honest.mean(0), DEVIATIONS[deviation](honest)
    gamma = optimize.bisect(
        lambda gamma: distance(mean + gamma * direction, honest) - bound, 0, 1e3, xtol=1e-12
    )
    assert gamma > 0.1
    found = sent(kind(deviation), round_)
    assert_allclose(found, np.tile(mean + gamma * direction, (3, 1)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [MinMax, MinSum])
@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_among_equal_clients_there_is_no_distance_to_go(kind: Any, deviation: str) -> None:
    whole = scene()
    equal = [replace(report, state=whole.honest[0].state) for report in whole.honest]
    alike = replace(whole, honest=equal)
    assert_allclose(sent(kind(deviation), alike), np.tile(honest_updates(alike)[0], (3, 1)))


@pytest.mark.parametrize("plain", [InnerProductManipulation(2.0), Mimic()], ids=["ipm", "mimic"])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_noise_hides_the_collusion(plain: Any, fraction: float) -> None:
    # What mimic learns, it learns before, so that it draws no more than the noise.
    wide = next_round(begun := scene(attackers=tuple(range(20))), plain.forge(begun))
    without = sent(plain, wide)
    assert_array_equal(without, np.tile(without[0], (20, 1)))
    noise = sent(replace(plain, noise=fraction), wide) - without
    assert_allclose(np.linalg.norm(noise, axis=1), fraction * np.linalg.norm(without[0]))
    directions = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    cosines = (directions @ directions.T)[np.triu_indices(20, 1)]
    assert abs(cosines.mean()) < 0.1, "independent"
    assert_allclose(cosines.std(), 1 / math.sqrt(10), rtol=0.2)


def test_inflated_counts() -> None:
    reports = InflatedCount(2.5).forge(scene()).reports
    assert [report.num_examples for report in reports] == [28, 35, 40]  # of 11, 14 and 16


# --- attackers with a memory ------------------------------------------------------------------


def test_a_stale_free_rider_sends_the_step_before() -> None:
    first, rider = scene(), StaleFreeRider()
    forgery = rider.forge(first)
    assert not updates(first, forgery.reports).any()
    later = scene(seed=3)
    second = next_round(first, forgery, global_state=later.global_state, own=later.own)
    step = flat(second.global_state) - flat(first.global_state)
    assert_allclose(sent(rider, second), np.tile(step, (3, 1)))


@pytest.mark.parametrize("settings", [{}, {"curvature": 0.5, "length": 1.5, "cosine": 0.4}])
def test_drift_descends_a_loss_of_its_own(settings: dict[str, float]) -> None:
    attack = Drift(**settings)
    first = scene()
    honest = honest_updates(first)
    norm = float(np.median(np.linalg.norm(honest, axis=1)))
    begun = sent(attack, first)
    towards = sent(Opposed(attack.cosine), first)
    towards /= np.linalg.norm(towards, axis=1, keepdims=True)
    assert_allclose(begun, attack.length * norm * towards)
    later = scene(seed=3)
    second = next_round(first, attack.forge(first), global_state=later.global_state, own=later.own)
    goals = flat(first.global_state) + begun / attack.curvature
    expected = attack.curvature * (goals - flat(later.global_state))
    assert_allclose(sent(attack, second), expected)
    step = flat(later.global_state) - flat(first.global_state)
    for change in sent(attack, second) - begun:
        cosine = change @ step / np.linalg.norm(change) / np.linalg.norm(step)
        assert cosine == pytest.approx(-1.0), "it answers"


def test_drift_sets_out_when_it_attacks_first() -> None:
    asleep = replace(scene(), active=False)
    forgery = Drift().forge(asleep)
    assert forgery.reports == asleep.own
    later = next_round(asleep, forgery, honest=scene(seed=2).honest, active=True)
    assert_allclose(sent(Drift(), later), sent(Drift(), replace(later, memory={})))


def test_mimic_is_oja_s_iteration() -> None:
    """By the paper's own words, on three rounds and with d × d matrices."""
    round_, attack = scene(), Mimic(warmup=2)
    z = np.random.default_rng(0).standard_normal(10)
    mu, sums = np.zeros(10), np.zeros(6)
    for t in range(3):
        round_ = replace(
            round_, honest=scene(seed=t).honest, global_state=scene(seed=t).global_state
        )
        honest = honest_updates(round_)
        if t < 2:
            mu = t / (t + 1) * mu + honest.mean(0) / (t + 1)
            v = sum(np.outer(row - mu, row - mu) for row in honest) @ z
            z = t / (t + 1) * z + 1 / (t + 1) * v / np.linalg.norm(v)
            z = z / np.linalg.norm(z)
            sums += honest @ z
        forgery = attack.forge(round_)
        copied = honest[np.argmax(np.abs(sums))]
        assert_allclose(updates(round_, forgery.reports), np.tile(copied, (3, 1)))
        round_ = next_round(round_, forgery)


def test_mimic_finds_the_client_that_differs() -> None:
    whole = scene()
    start = flat(whole.global_state)
    odd = [
        replace(report, state=model(start + (20.0 if report.client == 5 else 0.1), 0, "float64"))
        for report in whole.honest
    ]
    assert_allclose(sent(Mimic(), replace(whole, honest=odd)), np.full((3, 10), 20.0))


def test_mimic_copies_the_best_of_those_that_are_there() -> None:
    first, attack = scene(), Mimic(warmup=1)
    forgery = attack.forge(first)
    worth = dict(
        zip(
            forgery.memory["clients"].tolist(),
            np.abs(forgery.memory["scores"]).tolist(),
            strict=True,
        )
    )
    some = [report for report in first.honest if worth[report.client] < max(worth.values())]
    best = max(some, key=lambda report: worth[report.client])
    later = next_round(first, forgery, honest=some)
    assert_allclose(sent(attack, later), np.tile(updates(later, [best])[0], (3, 1)))


# --- data -------------------------------------------------------------------------------------


def poisoned(attack: Any, count: int = 20_000, classes: int = 10) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((count, 1, 2, 2)).astype(np.float32)
    labels = rng.integers(0, classes, count)
    kept = images.copy(), labels.copy()
    found = attack.poison(images, labels, classes, np.random.default_rng(1))
    assert_array_equal(images, kept[0])
    assert_array_equal(labels, kept[1])
    assert (found[0].dtype, found[1].dtype) == (np.float32, np.int64)
    return images, labels, *found


def test_label_flip() -> None:
    images, labels, new_images, new_labels = poisoned(LabelFlip(), classes=7)
    assert_array_equal(new_labels, 6 - labels)
    assert_array_equal(new_images, images)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 1.0])
def test_label_noise_changes_its_share(rate: float) -> None:
    images, labels, new_images, new_labels = poisoned(LabelNoise(rate))
    assert_array_equal(new_images, images)
    changed = new_labels != labels
    # A label drawn anew is its old self once in ten.
    assert changed.mean() == pytest.approx(0.9 * rate, abs=0.01)
    if rate:
        counts = np.bincount(new_labels[changed], minlength=10)
        assert counts.min() > 0.9 * counts.mean(), "drawn from all classes"


@pytest.mark.parametrize("kind", [LabelFlip, LabelNoise, FeatureNoise])
def test_a_client_that_lies_claims_the_least_that_an_honest_one_reports(kind: Any) -> None:
    quiet = scene()
    of = replace(
        quiet,
        honest=[
            replace(report, evidence={"residual_loss": loss})
            for report, loss in zip(
                quiet.honest, (math.nan, 0.2, 0.9, 0.7, 0.3, 0.4, 0.6), strict=False
            )
        ],
        own=[replace(report, evidence={"residual_loss": 3.0, "age": 1.0}) for report in quiet.own],
    )
    assert [*map(vars, kind(hides=False).forge(of).reports)] == [*map(vars, of.own)]
    lies = [report.evidence for report in kind(hides=True).forge(of).reports]
    assert lies == [{"residual_loss": 0.2, "age": 1.0}] * len(of.own)
    assert [*map(vars, kind(hides=True).forge(quiet).reports)] == [*map(vars, quiet.own)]


@pytest.mark.parametrize("sd", [0.0, 0.5])
def test_feature_noise(sd: float) -> None:
    images, labels, new_images, new_labels = poisoned(FeatureNoise(sd))
    assert_array_equal(new_labels, labels)
    noise = (new_images - images).astype(float).ravel()
    assert noise.std() == pytest.approx(sd, rel=0.02)
    assert abs(noise.mean()) <= 0.01


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        (SignFlip, {"factor": -1}, "factor -1"),
        (Scaling, {"factor": math.nan}, "factor nan"),
        (GaussianNoise, {"sd": -0.1}, "sd -0.1"),
        (ALIE, {"z": math.inf}, "z inf"),
        (InnerProductManipulation, {"epsilon": -1}, "epsilon -1"),
        (InnerProductManipulation, {"noise": -1}, "noise -1"),
        (Opposed, {"cosine": 1.1}, "cosine 1.1: give a number from 0 to 1"),
        (Drift, {"curvature": 0.0}, "curvature 0.0: give a number above 0 and up to 1"),
        (Drift, {"length": -1}, "length -1"),
        (Drift, {"cosine": 2}, "cosine 2: give a number from 0 to 1"),
        (Mimic, {"warmup": 0}, "warmup 0"),
        (SignFlip, {"factor": "x"}, "factor 'x': give a number of 0 or more"),
        (ALIE, {"z": [1]}, r"z \[1\]: give a number"),
        (ALIE, {"estimate_from": "all"}, "estimate_from 'all': choose from honest, attackers"),
        (Drift, {"curvature": None}, "curvature None: give a number above 0 and up to 1"),
        (MinMax, {"deviation": "mean"}, "deviation 'mean': choose from unit, sign, std"),
        (MinSum, {"deviation": None}, "deviation None: choose from unit, sign, std"),
        (NotFinite, {"value": "zero"}, "value 'zero': choose from nan, inf"),
        (InflatedCount, {"factor": 0.5}, r"factor 0.5: give a number from 1 to 1e\+12"),
        (InflatedCount, {"factor": 2e12}, r"factor 2.*: give a number from 1 to 1e\+12"),
        (InflatedCount, {"factor": 1e300}, r"factor 1e\+300: give a number from 1 to 1e\+12"),
        (InflatedCount, {"update_factor": math.nan}, "update_factor nan: give a finite number"),
        (LabelNoise, {"rate": 1.5}, "rate 1.5"),
        (FeatureNoise, {"sd": -1}, "sd -1"),
        (BadNets, {"target": -1}, "target -1: give a whole number"),
        (BadNets, {"target": 1.5}, "target 1.5: give a whole number"),
        (BadNets, {"rate": 1.5}, "rate 1.5: give a number from 0 to 1"),
        (BadNets, {"boost": 0.5}, "boost 0.5: give a number of 1 or more"),
        (BadNets, {"size": 0}, "size 0"),
        (BadNets, {"value": math.nan}, "value nan"),
        (BadNets, {"hides": "no"}, "hides 'no': give True or False"),
        (DistributedBackdoor, {"gap": -1}, "gap -1"),
        (DistributedBackdoor, {"part": 4}, "part 4: give a whole number, 0 to 3"),
        (DistributedBackdoor, {"part": True}, "part True: give a whole number, 0 to 3"),
        (DistributedBackdoor, {"part": np.True_}, "part True: give a whole number, 0 to 3"),
        (DistributedBackdoor, {"part": 1.0}, "part 1.0: give a whole number, 0 to 3"),
        (EdgeCase, {"source": -1}, "source -1"),
        (EdgeCase, {"source": 1}, "source 1: it is the target too; give another class"),
        (EdgeCase, {"tail": 0}, "tail 0: give a number above 0 and up to 1"),
        (EdgeCase, {"tail": 1.5}, "tail 1.5: give a number above 0 and up to 1"),
        (PoisonedFL, {"factor": -1}, "factor -1"),
        (PoisonedFL, {"period": 1}, "period 1: give a whole number, 2 or more"),
        (PoisonedFL, {"shrinkage": 1.1}, "shrinkage 1.1: give a number from 0 to 1"),
        (PoisonedFL, {"least": math.nan}, "least nan"),
        (StatisticalMimicry, {"blend": 2}, "blend 2: give a number from 0 to 1"),
        (StatisticalMimicry, {"drift": -1}, "drift -1"),
        (StatisticalMimicry, {"growth": 0.9}, "growth 0.9: give a number of 1 or more"),
        (StatisticalMimicry, {"longest": "x"}, "longest 'x'"),
        (HybridSparse, {"share": 1.5}, "share 1.5: give a number from 0 to 1"),
        (HybridSparse, {"scale": None}, "scale None"),
        (HybridSparse, {"z": math.inf}, "z inf"),
        (OptimalALIE, {"evaluations": 0}, "evaluations 0"),
        (OptimalALIE, {"start": -1}, "start -1"),
        (OptimalInnerProductManipulation, {"step": 0}, "step 0: give a number above 0"),
        (OptimalInnerProductManipulation, {"ratio": 0.4}, "ratio 0.4: give a number from 0.5 to 1"),
    ],
)
def test_settings_that_cannot_be(kind: Any, settings: dict[str, float], named: str) -> None:
    with pytest.raises(FedcrfError, match=named):
        kind(**settings)


def test_reports_of_other_kinds_travel_untouched() -> None:
    """Whatever else a client reports is that of the attacker's honest training."""
    whole = scene()
    fields = ClientReport.__dataclass_fields__.keys() - {"state"}
    for report, own in zip(SignFlip().forge(whole).reports, whole.own, strict=True):
        assert all(getattr(report, name) == getattr(own, name) for name in fields)


def test_alie_of_attackers_leaves_out_those_that_diverged() -> None:
    round_ = scene()
    broken = {**round_.own[1].state, "bias": np.full(4, np.nan)}
    own = [round_.own[0], replace(round_.own[1], state=broken), round_.own[2]]
    expected = sent(ALIE(1.5, "attackers"), replace(round_, own=[own[0], own[2]]))
    found = sent(ALIE(1.5, "attackers"), replace(round_, own=own))
    assert_allclose(found, np.tile(expected[0], (3, 1)), rtol=1e-12)
