"""The attacks beside ByzFL's of the same name, on the same updates.

Where ByzFL's is another attack the test says how, and shows that it is just that by changing the
settings until the two agree.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from attacks.scenes import honest_updates, scene, sent
from fedcrf.attacks import (
    ALIE,
    GaussianNoise,
    InnerProductManipulation,
    LabelFlip,
    Mimic,
    NotFinite,
    OptimalALIE,
    OptimalInnerProductManipulation,
    SignFlip,
)
from fedcrf.attacks.adaptive import asked, distance
from fedcrf.attacks.base import Attack
from fedcrf.rules import CoordinateMedian, Rule, Uniform, find_rule


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_inner_product_manipulation_is_byzfls(byzfl: SimpleNamespace, tau: float) -> None:
    round_ = scene()
    theirs = byzfl.InnerProductManipulation(tau)(honest_updates(round_))
    assert_allclose(sent(InnerProductManipulation(tau), round_), np.tile(theirs, (3, 1)))


def test_byzfls_sign_flipping_is_inner_product_manipulation_of_one(
    byzfl: SimpleNamespace,
) -> None:
    """It turns the honest mean around, which no client knows; ours the attacker's own update."""
    round_ = scene()
    theirs = np.tile(byzfl.SignFlipping()(honest_updates(round_)), (3, 1))
    assert_allclose(sent(InnerProductManipulation(1.0), round_), theirs)
    assert np.abs(sent(SignFlip(), round_) - theirs).max() > 0.1


def test_alie_is_byzfls_the_other_way_and_with_the_sample_s_spread(byzfl: SimpleNamespace) -> None:
    """ByzFL adds, and divides the squares by k − 1; the authors' code subtracts, and by k."""
    round_ = scene()
    z = 1.5
    theirs = byzfl.ALittleIsEnough(-z * np.sqrt(5 / 6))(honest_updates(round_))
    assert_allclose(sent(ALIE(z), round_), np.tile(theirs, (3, 1)))


@pytest.mark.parametrize("name", ["Optimal_InnerProductManipulation", "Optimal_ALittleIsEnough"])
@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        (Uniform(), lambda byzfl: ([], byzfl.Average())),
        (CoordinateMedian(), lambda byzfl: ([], byzfl.Median())),
        (
            find_rule("byzfl-nnm-trmean")(attackers=3),
            lambda byzfl: ([byzfl.NNM(3)], byzfl.TrMean(3)),
        ),
    ],
    ids=["average", "median", "nnm-trmean"],
)
def test_optimal_attacks_are_byzfls(
    byzfl: SimpleNamespace, rule: Rule, theirs: Any, name: str
) -> None:
    """The same distance: beyond some τ a median stays, and rounding decides which τ it is."""
    before, rule_of_theirs = theirs(byzfl)
    kind = OptimalALIE if "ALittle" in name else OptimalInnerProductManipulation
    for seed in range(3):
        round_ = scene(rule=rule, seed=seed)
        attack = getattr(byzfl, name)(agg=rule_of_theirs, pre_agg_list=before, f=3)
        found = round_.reports(attack(honest_updates(round_)))
        ours = distance(round_, asked(round_, kind().forge(round_).reports))
        assert_allclose(ours, distance(round_, asked(round_, found)), rtol=1e-9)


def test_mimic_is_byzfls_of_the_client_it_chose(byzfl: SimpleNamespace) -> None:
    """ByzFL is told whom to copy."""
    round_ = scene()
    ours = sent(Mimic(), round_)
    theirs = [byzfl.Mimic(client)(honest_updates(round_)) for client in range(6)]
    assert sum(np.allclose(ours, each) for each in theirs) == 1


def test_infinity_is_byzfls(byzfl: SimpleNamespace) -> None:
    round_ = scene()
    theirs: Attack = NotFinite("inf")
    assert_allclose(sent(theirs, round_), np.tile(byzfl.Inf()(honest_updates(round_)), (3, 1)))


def test_gaussian_noise_is_distributed_as_byzfls(byzfl: SimpleNamespace) -> None:
    round_ = scene()
    ours = np.concatenate([sent(GaussianNoise(2.0), round_) for _ in range(300)]).ravel()
    theirs = byzfl.Gaussian(0.0, 2.0)(np.zeros((2, len(ours))))
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3


def test_byzfls_label_flipping_is_done_in_its_clients(byzfl: SimpleNamespace) -> None:
    """Its clients turn the labels around, q to 9 − q; the attack of that name sends their mean."""
    rows = np.arange(6.0).reshape(2, 3)
    assert_allclose(byzfl.LabelFlipping()(rows), rows.mean(axis=0))
    labels = np.arange(10)
    images = np.zeros((10, 1, 1, 1), np.float32)
    _, flipped = LabelFlip().poison(images, labels, 10, np.random.default_rng(0))
    assert flipped.tolist() == [9 - q for q in range(10)]
