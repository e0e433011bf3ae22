"""Sketches keep inner products: on average exactly, each within the bound, however cut."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf.errors import FedcrfError
from fedcrf.statistics import as_layers, inputs, sketch


def vectors(d: int, kind: str) -> np.ndarray:
    """Two vectors; spread out, or all their weight where a plain fold would put it together."""
    rng = np.random.default_rng(d)
    both = rng.standard_normal((2, d))
    if kind == "in one column":
        both[:, np.arange(d) % 32 != 3] = 0.0
    return both / np.linalg.norm(both, axis=1, keepdims=True)


def slow_sketch(vector: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Coordinate by coordinate, from the same draws."""
    draw, buckets = np.random.default_rng(seed), [0.0] * size
    for start in range(0, len(vector), size):
        shift, signs = int(draw.integers(size)), draw.bytes((size + 7) // 8)
        for j, number in enumerate(vector[start : start + size]):
            negative = signs[j // 8] >> (7 - j % 8) & 1
            buckets[(j + shift) % size] += -number if negative else number
    return np.array(buckets)


@pytest.mark.parametrize(("d", "size"), [(1, 8), (7, 8), (8, 8), (9, 8), (1000, 12), (300, 1)])
def test_against_the_slow_version(d, size):
    found = sketch(as_layers(vectors(d, "spread")), size, seed=3)
    for row, vector in zip(found, vectors(d, "spread"), strict=True):
        assert_allclose(row, slow_sketch(vector, size, seed=3), atol=1e-12)


@pytest.mark.parametrize("kind", ["spread", "in one column"])
def test_inner_products_are_kept_on_average_and_within_the_bound(kind):
    size, seeds = 32, range(600)
    u, v = vectors(2000, kind)
    errors = []
    for seed in seeds:
        first, second = sketch(as_layers([u, v]), size, seed)
        errors.append(first @ second - u @ v)
    bound = (1 + (u @ v) ** 2) / size
    assert abs(np.mean(errors)) < 4 * np.sqrt(bound / len(seeds))
    assert np.mean(np.square(errors)) < 1.2 * bound


def test_few_numbers_are_kept_exactly():
    updates = np.random.default_rng(0).standard_normal((5, 40))
    sketches = sketch(as_layers(updates), 64, seed=1)
    assert_allclose(sketches @ sketches.T, updates @ updates.T, rtol=1e-12)


def test_it_is_linear():
    u, v = vectors(500, "spread")
    first, second, both = sketch(as_layers([u, v, 2 * u - 3 * v]), 64, seed=1)
    assert_allclose(both, 2 * first - 3 * second, atol=1e-12)


@pytest.mark.parametrize("cuts", [[250], [1, 2, 63, 64, 65], [0, 500]])
@pytest.mark.parametrize("block_numbers", [2, 130, 1 << 16])
def test_neither_layers_nor_blocks_change_a_bit(cuts, block_numbers, monkeypatch):
    updates = vectors(500, "spread")
    whole = sketch(as_layers(updates), 64, seed=1)
    monkeypatch.setattr(inputs, "BLOCK_NUMBERS", block_numbers)
    layers = [np.split(update, cuts) for update in updates]
    assert_array_equal(sketch(as_layers(layers), 64, seed=1), whole)


def test_seeds_differ_and_one_seed_does_not():
    updates = as_layers(vectors(500, "spread"))
    assert_array_equal(sketch(updates, 64, seed=1), sketch(updates, 64, seed=1))
    assert not np.allclose(sketch(updates, 64, seed=1), sketch(updates, 64, seed=2))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308])
def test_who_is_not_finite_touches_nobody(value):
    updates = vectors(500, "spread")
    spoilt = np.vstack([updates, updates[:1]])
    spoilt[2, ::7] = value
    assert_array_equal(sketch(as_layers(spoilt), 4, seed=1)[:2], sketch(as_layers(updates), 4, 1))


@pytest.mark.parametrize(
    ("size", "seed", "named"),
    [
        (0, 1, "size 0: give a whole number, 1 or more"),
        (-4, 1, "size -4: give a whole number"),
        (2.5, 1, "size 2.5: give a whole number"),
        (4, -1, "seed -1: give a whole number, 0 or more"),
    ],
)
def test_settings_that_cannot_be_are_named(size, seed, named):
    with pytest.raises(FedcrfError, match=named):
        sketch(as_layers(np.eye(3)), size, seed)
