"""Cosines from sketches: what is exact is exact, what stands out of noise is found, and no more."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf.statistics import (
    NeighbourSearch,
    as_layers,
    compiled,
    crowd_statistics,
    crowds,
    sketch,
    update_statistics,
)
from fedcrf.statistics.crowds import estimated_cosines, principal_directions
from fedcrf.statistics.one_pass import finite_sums

GENERATOR = np.random.default_rng


def groups(m: int, num_groups: int, d: int, spread: float = 1.0, shared: float = 1.0) -> np.ndarray:
    """Clients in groups around what all of them share."""
    rng = GENERATOR(m)
    rows = (
        shared * rng.standard_normal(d)
        + rng.standard_normal((num_groups, d))[np.arange(m) % num_groups]
    )
    return rows + spread * rng.standard_normal((m, d))


def estimated(rows: np.ndarray, size: int) -> np.ndarray:
    _, sums = finite_sums(as_layers(rows), None, 1, products=False)
    sketches = sketch(as_layers(np.vstack([rows, sums.median])), size, seed=0)
    norms, middle = np.sqrt(sums.squares), float(np.sqrt(sums.median_square))
    return estimated_cosines(sketches, sums.inner, norms, middle, GENERATOR(0))(0, len(rows))


@pytest.mark.parametrize("way", ["plain", "compiled"])
def test_a_pass_without_products_keeps_the_median(way, monkeypatch):
    rows, origin = GENERATOR(0).standard_normal((7, 700)), np.linspace(-1, 1, 700)
    if way != "plain":
        pytest.importorskip("numba", reason="the compiled passes need fedcrf[fast]")
        monkeypatch.setattr(compiled, "FEWEST_NUMBERS", 0)
        monkeypatch.setattr(compiled, "CHUNK_WITHOUT_PRODUCTS", 300)
    layers = [[row[:333], row[333:]] for row in rows + origin]
    start = [origin[:333], origin[333:]]
    first, *others = (
        finite_sums(layers, start, threads, products=False)[1].median for threads in (1, 2, 3)
    )
    assert_allclose(first, np.median(rows, axis=0), atol=1e-12)
    for other in others:
        assert_array_equal(other, first)


def test_without_collisions_the_cosines_are_exact_but_for_what_could_be_chance(monkeypatch):
    rows = groups(40, 4, d=64)
    found, exact = estimated(rows, size=64), update_statistics(as_layers(rows))
    monkeypatch.setattr(crowds, "BEYOND_CHANCE", 0.0)
    whole = estimated(rows, size=64)
    assert_allclose(whole, exact.cosines, atol=1e-5)
    monkeypatch.setattr(crowds, "BEYOND_CHANCE", np.inf)
    known = estimated(rows, size=64)
    off = np.sqrt(1 - (exact.median_inner / exact.norms / exact.median_norm) ** 2)
    besides = whole - known
    kept = np.where(np.abs(besides) > 5 * np.outer(off, off) / 8, besides, 0.0)
    assert_allclose(found, known + kept, atol=1e-5)
    assert 0 < np.count_nonzero(kept) < kept.size


def test_the_median_is_taken_out_exactly():
    # Everybody is one direction, longer or shorter, this way or that: there is nothing to estimate.
    along = GENERATOR(0).standard_normal(500)
    factors = np.array([1.0, 2.0, 3.0, 0.5, 1e-3, -1.0, 4.0])
    assert_allclose(
        estimated(np.outer(factors, along), 8), np.outer(*[np.sign(factors)] * 2),
        atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("num_groups", [0, 3, 8])
def test_directions_are_those_that_stand_out_of_noise(num_groups):
    rng = GENERATOR(num_groups)
    rows = 0.05 * rng.standard_normal((300, 200))
    planted = np.linalg.qr(rng.standard_normal((200, num_groups)))[0]
    rows += rng.standard_normal((300, num_groups)) @ planted.T
    found = principal_directions(rows.astype(np.float32), GENERATOR(1))
    assert found.shape == (200, num_groups)
    assert_allclose(found.T @ found, np.eye(num_groups), atol=1e-5)
    assert_allclose(np.linalg.norm(planted.T @ found, axis=0), 1, atol=0.05)


def test_one_copy_among_many_is_found():
    rows = GENERATOR(0).standard_normal((200, 3000))
    rows[150] = 2 * rows[20]
    cosines = crowd_statistics(as_layers(rows), NeighbourSearch(2, 256)).cosines.toarray()
    assert cosines[20].argmax() == 150
    assert cosines[20, 150] == pytest.approx(1.0, abs=1e-5)


def test_directions_find_more_neighbours_than_the_sketches_alone():
    rows = groups(400, 8, d=4000, spread=2.5)
    size, near = 256, 20
    exact = update_statistics(as_layers(rows)).cosines
    sketches = sketch(as_layers(rows), size, seed=0)
    unit = sketches / np.linalg.norm(sketches, axis=1, keepdims=True)

    def same_group(cosines: np.ndarray) -> float:
        np.fill_diagonal(cosines, -np.inf)
        nearest = np.argsort(-cosines, axis=1)[:, :near]
        return float(np.mean(nearest % 8 == np.arange(400)[:, None] % 8))

    assert same_group(exact.copy()) == 1.0
    assert same_group(estimated(rows, size).astype(np.float64)) > 0.98
    assert same_group(unit @ unit.T) < 0.9


@pytest.mark.parametrize("m", [4099, 5000])
def test_medians_of_very_many_are_exact(m, monkeypatch):
    pytest.importorskip("numba", reason="the compiled passes need fedcrf[fast]")
    monkeypatch.setattr(compiled, "FEWEST_NUMBERS", 0)
    rng = GENERATOR(m)
    rows = rng.standard_normal((m, 45)).astype(np.float32)
    rows[:, :9] = rows[:, :9] ** 5  # far from even
    rows[:, 9:12] = rng.integers(-2, 3, (m, 3))
    found = compiled.trimmed_mean([[row] for row in rows], (m - 1) // 2, 1)
    assert_array_equal(found, np.median(rows.astype(np.float64), axis=0).astype(np.float32))
