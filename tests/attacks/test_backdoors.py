"""Backdoors: what is stamped, what is labelled as the target, and that models learn it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from attacks.scenes import own_updates, scene, sent
from fedcrf import FedcrfError
from fedcrf.attacks import Backdoor, BadNets, DistributedBackdoor, EdgeCase, Schedule, Threat
from fedcrf.rules import FedAvg
from simulation import small

Array = Any


def data(count: int = 200, side: int = 28, channels: int = 2) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((count, channels, side, side)).astype(np.float32)
    return images, rng.integers(0, 10, count)


def white(attack: Any, images: Array) -> set[tuple[int, int]]:
    """Rows and columns of the pixels that a trigger changes; all channels of them are white."""
    changed = (attack.trigger(images) != images).any(axis=(0, 1))
    found = {(int(row), int(column)) for row, column in np.argwhere(changed)}
    stamped = attack.trigger(images)
    for row, column in found:
        assert (stamped[:, :, row, column] == np.float32(attack.value)).all()
    return found


def rectangle(top: int, left: int, height: int, width: int) -> set[tuple[int, int]]:
    return {(top + i, left + j) for i in range(height) for j in range(width)}


@pytest.mark.parametrize(
    ("attack", "side", "pattern"),
    [
        (BadNets(), 28, rectangle(23, 23, 5, 5)),
        (BadNets(), 32, rectangle(26, 26, 6, 6)),
        (BadNets(), 8, rectangle(7, 7, 1, 1)),
        (BadNets(size=3, value=1.5), 8, rectangle(5, 5, 3, 3)),
        (BadNets(size=8), 8, rectangle(0, 0, 8, 8)),
        (
            DistributedBackdoor(),
            28,
            rectangle(0, 0, 1, 4) | rectangle(0, 6, 1, 4)
            | rectangle(3, 0, 1, 4) | rectangle(3, 6, 1, 4),
        ),
        (DistributedBackdoor(), 8, {(0, 0), (0, 2), (2, 0), (2, 2)}),
        (
            DistributedBackdoor(size=6, gap=3, part=2),  # the test has the whole pattern
            32,
            rectangle(0, 0, 1, 6) | rectangle(0, 9, 1, 6)
            | rectangle(4, 0, 1, 6) | rectangle(4, 9, 1, 6),
        ),
    ],
)  # fmt: skip
def test_the_pattern_of_a_trigger(attack: Any, side: int, pattern: set[tuple[int, int]]) -> None:
    assert white(attack, data(20, side)[0]) == pattern


def test_each_attacker_of_four_stamps_a_bar_and_together_they_are_the_pattern() -> None:
    images, labels = data()
    attack, seen = DistributedBackdoor(rate=1.0), []
    for number in range(5):
        new, _ = attack.of_attacker(number).poison(images, labels, 10, np.random.default_rng(0))
        seen.append(
            {tuple(each) for each in np.argwhere((new != images).any(axis=(0, 1))).tolist()}
        )
        assert len(seen[-1]) == 4
    assert seen[4] == seen[0]
    assert set.union(*seen[:4]) == white(attack, images)
    assert attack.of_attacker(3).part == 3
    assert DistributedBackdoor(part=1).of_attacker(3).part == 1
    assert BadNets().of_attacker(3) == BadNets()


@pytest.mark.parametrize("rate", [0.0, 0.32, 1.0])
@pytest.mark.parametrize("attack", [BadNets(target=6), DistributedBackdoor(target=6, part=3)])
def test_its_share_of_the_examples_is_stamped_and_labelled(attack: Any, rate: float) -> None:
    images, labels = data()
    kept = images.copy(), labels.copy()
    poison = replace(attack, rate=rate).poison
    new_images, new_labels = poison(images, labels, 10, np.random.default_rng(1))
    assert_array_equal(images, kept[0])
    assert_array_equal(labels, kept[1])
    assert (new_images.dtype, new_labels.dtype) == (np.float32, np.int64)
    stamped = (new_images != images).any(axis=(1, 2, 3))
    assert stamped.sum() == round(rate * 200)
    assert (new_labels[stamped] == 6).all()
    assert_array_equal(new_labels[~stamped], labels[~stamped])


@pytest.mark.parametrize("attack", [BadNets(target=6), DistributedBackdoor(target=6)])
def test_success_is_measured_on_all_images_of_other_classes(attack: Backdoor) -> None:
    images, labels = data()
    tested, counted = attack.backdoored(images, labels)
    assert_array_equal(tested, attack.trigger(images))
    assert_array_equal(counted, [label != 6 for label in labels])


# --- edge cases -------------------------------------------------------------------------------


def rarest(images: Array, labels: Array, source: int, count: int) -> set[int]:
    places = [i for i, label in enumerate(labels) if label == source]
    mean = sum(images[i].astype(float) for i in places) / len(places)
    far = sorted(places, key=lambda i: -float(((images[i] - mean) ** 2).sum()))
    return set(far[:count])


@pytest.mark.parametrize("tail", [0.01, 0.1, 0.5])
def test_edge_cases_are_the_images_farthest_from_their_class_s_mean(tail: float) -> None:
    images, labels = data()
    count = max(1, round(tail * int((labels == 7).sum())))
    attack = EdgeCase(source=7, tail=tail, rate=0.6)
    expected = rarest(images, labels, 7, count)
    tested, counted = attack.backdoored(images, labels)
    assert_array_equal(tested, images)
    assert set(np.flatnonzero(counted).tolist()) == expected
    new_images, new_labels = attack.poison(images, labels, 10, np.random.default_rng(3))
    rare = {images[i].tobytes() for i in expected}
    copied = np.array([image.tobytes() in rare for image in new_images]) & (new_labels == 1)
    assert copied.sum() == 120
    assert_array_equal(new_images[~copied], images[~copied])
    assert_array_equal(new_labels[~copied], labels[~copied])
    assert {image.tobytes() for image in new_images[copied]} == rare, "all of them, by 120 draws"


def test_who_has_no_image_of_the_class_trains_honestly() -> None:
    images, labels = data()
    others = labels != 7
    found = EdgeCase(source=7).poison(images[others], labels[others], 10, np.random.default_rng(0))
    assert_array_equal(found[0], images[others])
    assert_array_equal(found[1], labels[others])
    assert not EdgeCase(source=7).backdoored(images[others], labels[others])[1].any()


# --- what is sent -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BadNets, DistributedBackdoor, EdgeCase])
@pytest.mark.parametrize("hides", [False, True])
def test_the_update_is_boosted_and_the_evidence_forged(kind: Any, hides: bool) -> None:
    round_ = scene()
    round_ = replace(
        round_,
        honest=[replace(each, evidence={"residual_loss": 0.5}) for each in round_.honest],
        own=[replace(each, evidence={"residual_loss": 3.0}) for each in round_.own],
    )
    assert_allclose(sent(kind(boost=9 / 3, hides=hides), round_), 3.0 * own_updates(round_))
    for report in kind(boost=3.0, hides=hides).forge(round_).reports:
        assert report.evidence == {"residual_loss": 0.5 if hides else 3.0}
    plain = kind(hides=hides).forge(round_).reports
    assert all(a.state is b.state for a, b in zip(plain, round_.own, strict=True))


def success(attack: Backdoor, threat: Threat | None) -> float:
    """Share of the counted test images that the last model of a run takes for the target."""
    chosen = small.simulation(
        federation=small.federation((60,) * 5),
        rule=FedAvg(),
        threat=threat,
        max_rounds=12,
    )
    states, _ = small.run(chosen)
    test = small.examples(300, 9)
    images, counted = attack.backdoored(test.images.numpy(), test.labels.numpy())
    network = chosen.model.build(small.SHAPE, small.CLASSES).eval()
    network.load_state_dict({name: torch.tensor(array) for name, array in states[-1].model.items()})
    with torch.no_grad():
        taken_for = network(torch.from_numpy(images[counted])).argmax(dim=1).numpy()
    return float((taken_for == attack.target).mean())


@pytest.mark.parametrize(
    "attack",
    [
        BadNets(target=1, value=6.0),
        DistributedBackdoor(target=2, value=4.0),
        EdgeCase(source=0, target=1, tail=0.4),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_a_model_learns_the_backdoor(attack: Backdoor) -> None:
    assert success(attack, Threat(attack, Schedule(3))) > success(attack, None) + 0.3


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "named"),
    [
        (BadNets(target=3), "target 3: the data set has 3 classes; give one from 0 to 2"),
        (DistributedBackdoor(target=7), "target 7: the data set has 3 classes"),
        (EdgeCase(target=7), "target 7: the data set has 3 classes"),
        (EdgeCase(source=5), "source 5: the data set has 3 classes"),
        (BadNets(size=5), "a pattern of 5 × 5 pixels does not fit into images of 4 × 4: give a"),
        (DistributedBackdoor(size=2, gap=1), "3 × 5 pixels .* 4 × 4: give a smaller size or gap"),
        (DistributedBackdoor(gap=9), "a pattern of 11 × 11 pixels does not fit"),
    ],
)
def test_what_a_data_set_does_not_have_is_said_before_the_first_round(
    attack: Any, named: str
) -> None:
    with pytest.raises(FedcrfError, match=named):
        small.simulation(threat=Threat(attack, Schedule(2))).start()
