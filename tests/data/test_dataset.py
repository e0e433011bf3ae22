from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrf import FedcrfError
from fedcrf.data import ImageDataset, LabelledImages
from fedcrf.data.dataset import MOST_GAPS, numbered_classes


def labelled(images: np.ndarray) -> LabelledImages:
    return LabelledImages(images.copy(), np.arange(len(images), dtype=np.int64))


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    data=st.data(),
)
def test_normalisation_of_any_subset_is_the_direct_one(
    seed: int, shape: tuple[int, int, int, int], data: st.DataObject
) -> None:
    images = np.random.default_rng(seed).integers(0, 256, size=shape, dtype=np.uint8)
    indices = data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, unique=True))
    normalisation = labelled(images).normalisation(indices)
    chosen = images[indices].astype(np.float64)
    std = chosen.std(axis=(0, 2, 3))
    assert normalisation.mean == pytest.approx(chosen.mean(axis=(0, 2, 3)))
    assert normalisation.std == pytest.approx(np.where(std == 0, 1, std))


def test_normalisation_takes_a_mask_and_by_default_everything(grey: np.ndarray) -> None:
    part = labelled(grey[:, None])
    mask = np.array([True, False, True, False, False, False])
    assert part.normalisation(mask).mean == pytest.approx(grey[mask].mean())
    assert part.normalisation().mean == pytest.approx(grey.mean())


def test_normalisation_of_one_colour_divides_by_one() -> None:
    part = labelled(np.full((3, 1, 2, 2), 255, dtype=np.uint8))
    assert part.normalisation().std.tolist() == [1.0]
    assert part.normalisation().mean.tolist() == [255.0]


def test_normalisation_of_nothing_is_an_error(grey: np.ndarray) -> None:
    with pytest.raises(FedcrfError, match="no images"):
        labelled(grey[:, None]).normalisation([])


def test_normalisation_stays_exact_where_int64_would_overflow() -> None:
    images = 60_000
    part = LabelledImages(
        images=np.broadcast_to(np.uint8(255), (images, 1, 32, 32)),
        labels=np.zeros(images, dtype=np.int64),
    )
    assert part.normalisation().mean.tolist() == [255.0]
    assert part.normalisation().std.tolist() == [1.0]


def test_arrays_are_read_only(grey: np.ndarray) -> None:
    with pytest.raises(ValueError, match="read-only"):
        labelled(grey[:, None]).images[0] = 0


@pytest.mark.parametrize("changed", ["images", "labels", "shape", "held out", "nothing"])
def test_fingerprint_follows_the_arrays(grey: np.ndarray, changed: str) -> None:
    def build(images: np.ndarray, labels: np.ndarray, held_out: bool) -> ImageDataset:
        part = LabelledImages(images, labels)
        return ImageDataset("x", part, part if held_out else None, ("a", "b"))

    images, labels = grey[:, None].copy(), np.array([0, 1, 0, 1, 0, 1])
    before = build(images.copy(), labels.copy(), held_out=False).fingerprint
    if changed == "images":
        images[3, 0, 2, 1] ^= 1
    if changed == "labels":
        labels[2] = 1
    if changed == "shape":
        images = images.reshape(6, 1, 4, 5)
    after = build(images, labels, held_out=changed == "held out").fingerprint
    assert (after == before) == (changed == "nothing")
    assert len(after) == 16
    assert int(after, 16) >= 0


@pytest.mark.parametrize(
    ("labels", "count"),
    [([0], 1), ([0, 2], 3), ([7, MOST_GAPS - 1], MOST_GAPS), (range(MOST_GAPS + 9), MOST_GAPS + 9)],
    ids=["one", "a class that is missing", "few of very many", "more than a gap may hide"],
)
@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_classes_that_are_numbers_may_have_gaps(labels: Any, count: int, kind: Any) -> None:
    names = numbered_classes({"it": np.array([*labels], kind), "other": np.zeros(1, np.int64)})
    assert names == tuple(map(str, range(count)))


@pytest.mark.parametrize("largest", [MOST_GAPS, 20240101, 10**12, 2**63 - 1])
def test_labels_that_are_no_numbers_of_classes_are_refused(largest: int) -> None:
    labels = {"site 'a'": np.array([0, 3]), "site 'b'": np.array([largest, 3])}
    said = f"^site 'b' has label {largest}, and there are 3 different labels: number them from 0$"
    with pytest.raises(FedcrfError, match=said):
        numbered_classes(labels)
