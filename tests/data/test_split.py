from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcrf import FedcrfError
from fedcrf.data import split_client


@given(
    labels=st.lists(st.integers(0, 4), max_size=150).map(lambda v: np.array(v, dtype=np.int64)),
    share=st.floats(0, 1),
    validation=st.sampled_from([0.0, 0.1, 0.29, 0.45]),
    test=st.sampled_from([0.0, 0.1, 0.2, 0.45]),
    seed=st.integers(0, 99),
)
def test_every_example_is_in_exactly_one_part_the_same_one_every_time(
    labels: np.ndarray, share: float, validation: float, test: float, seed: int
) -> None:
    indices = np.flatnonzero(np.random.default_rng(seed).random(len(labels)) < share)
    first, second = (
        split_client(indices, labels, np.random.default_rng(seed), validation, test)
        for _ in range(2)
    )
    parts = (first.train, first.validation, first.test)
    assert np.array_equal(np.sort(np.concatenate(parts)), indices)
    assert all(part.dtype == np.int64 for part in parts)
    for part, again in zip(parts, (second.train, second.validation, second.test), strict=True):
        assert np.array_equal(part, again)


@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_large_classes_are_stratified_and_small_ones_pooled(sizes: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    split = split_client(np.arange(len(labels)), labels, np.random.default_rng(seed))
    for part in (split.validation, split.test):
        in_part = np.bincount(labels[part], minlength=len(sizes))
        pooled = 0
        for size, taken in zip(sizes, in_part, strict=True):
            if size >= 10:
                assert taken == (size + 5) // 10
            else:
                pooled += taken
        assert pooled == (sum(size for size in sizes if size < 10) + 5) // 10


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (0, (0, 0, 0)),
        (1, (1, 0, 0)),
        (4, (4, 0, 0)),
        (5, (3, 1, 1)),
        (9, (7, 1, 1)),
        (10, (8, 1, 1)),
        (14, (12, 1, 1)),
        (15, (11, 2, 2)),
        (100, (80, 10, 10)),
    ],
)
def test_sizes(count: int, sizes: tuple[int, int, int]) -> None:
    labels = np.zeros(count, dtype=np.int64)
    split = split_client(np.arange(count), labels, np.random.default_rng(0))
    assert (len(split.train), len(split.validation), len(split.test)) == sizes


def test_a_share_that_means_a_half_rounds_up() -> None:
    labels = np.zeros(50, dtype=np.int64)
    split = split_client(np.arange(50), labels, np.random.default_rng(0), validation=0.29)
    assert len(split.validation) == 15


def test_the_shuffle_follows_the_generator() -> None:
    labels = np.zeros(100, dtype=np.int64)
    tests = {
        tuple(split_client(np.arange(100), labels, np.random.default_rng(seed)).test)
        for seed in range(5)
    }
    assert len(tests) == 5


@pytest.mark.parametrize(
    ("validation", "test"), [(-0.1, 0.1), (0.1, -0.1), (0.5, 0.5), (float("nan"), 0.1)]
)
def test_bad_shares(validation: float, test: float) -> None:
    labels = np.zeros(10, dtype=np.int64)
    with pytest.raises(FedcrfError, match="validation and test shares"):
        split_client(np.arange(10), labels, np.random.default_rng(0), validation, test)
