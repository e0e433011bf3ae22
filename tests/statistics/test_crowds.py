"""Nearest neighbours: against a slow version, whoever the clients are and however sought."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf.errors import FedcrfError
from fedcrf.statistics import (
    NeighbourSearch,
    as_layers,
    compiled,
    crowd_statistics,
    crowds,
    sketch,
    update_statistics,
    with_nearest,
)

LINEAR = ("norms", "median_inner", "median_distance", "median_norm", "finite", "dimension")


def updates(m: int, d: int = 60, seed: int = 0) -> np.ndarray:
    """Updates with a direction in common."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(d) + rng.standard_normal((m, d))


def slow_pairs(cosines: np.ndarray, k: int) -> set[tuple[int, int]]:
    """Pairs of whom one is among the other's k nearest; of equally near ones the first counts."""
    usable = [i for i in range(len(cosines)) if not np.isnan(cosines[i]).all()]
    pairs = set()
    for i in usable:
        others = sorted((j for j in usable if j != i), key=lambda j: (-cosines[i, j], j))
        pairs |= {(i, j) for j in others[:k]} | {(j, i) for j in others[:k]}
    return pairs


def stored(cosines) -> dict[tuple[int, int], float]:
    """The stored numbers of a sparse matrix, zeros among them, by place."""
    found = cosines.tocoo()
    return dict(zip(zip(found.row.tolist(), found.col.tolist(), strict=True), found.data.tolist(),
                    strict=True))  # fmt: skip


@pytest.fixture(params=["gram", "blocks", "one by one"])
def blockwise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take exact neighbours from the Gram matrix, or from blocks of the updates."""
    if request.param in ("blocks", "one by one"):
        monkeypatch.setattr(crowds, "MOST_WITH_ALL_PAIRS", 0)
    if request.param == "one by one":
        monkeypatch.setattr(crowds, "EXACT_NUMBERS", 1)
        monkeypatch.setattr(crowds, "ROWS_NUMBERS", 1)
    return request.param


@pytest.mark.parametrize(("m", "k"), [(1, 1), (2, 1), (3, 1), (9, 2), (40, 5), (40, 39), (9, 99)])
@pytest.mark.parametrize("broken", [False, True])
def test_exact_neighbours_are_the_slow_versions(blockwise, m, k, broken):
    rows = updates(m)
    if broken:
        rows[0, 3] = np.nan
        rows[m // 2, 1] = np.inf
    expected = update_statistics(as_layers(rows))
    found = crowd_statistics(as_layers(rows), NeighbourSearch(k))
    values = stored(found.cosines)
    assert values.keys() == slow_pairs(expected.cosines, k)
    for place, value in values.items():
        assert value == pytest.approx(expected.cosines[place], abs=1e-13)
    for name in LINEAR:
        assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-13, err_msg=name)
    assert found.num_clients == m


def test_the_origin_is_taken_away(blockwise):
    rows, origin = updates(12), np.linspace(-3, 3, 60)
    for size in (None, 32):
        search = NeighbourSearch(3, size)
        found = crowd_statistics(as_layers(rows + origin), search, [origin])
        expected = crowd_statistics(as_layers(rows), search)
        assert stored(found.cosines).keys() == stored(expected.cosines).keys()
        assert_allclose(found.norms, expected.norms, rtol=1e-13)


@pytest.mark.parametrize("size", [None, 16])
def test_the_graph_is_symmetric_and_everybody_has_k_neighbours(blockwise, size):
    cosines = crowd_statistics(as_layers(updates(50)), NeighbourSearch(4, size)).cosines
    assert (cosines != cosines.T).nnz == 0
    assert cosines.diagonal().tolist() == [0.0] * 50
    degrees = np.diff(cosines.indptr)
    assert degrees.min() >= 4
    assert degrees.sum() <= 2 * 4 * 50


@pytest.mark.parametrize("size", [None, 16])
def test_the_order_of_clients_does_not_matter(blockwise, size):
    rows, order = updates(30), np.random.default_rng(1).permutation(30)
    search = NeighbourSearch(3, size)
    plain = crowd_statistics(as_layers(rows), search).cosines.toarray()
    moved = crowd_statistics(as_layers(rows[order]), search).cosines.toarray()
    assert_allclose(moved, plain[np.ix_(order, order)], rtol=1e-6)


def test_of_equally_near_clients_the_first_count(blockwise):
    # Angles of 0 and 90 degrees alone; exact in every way of computing them.
    rows = np.eye(3)[[0, 0, 1, 0, 1, 2]]
    for k in (1, 2, 3):
        cosines = update_statistics(as_layers(rows)).cosines.round(6)
        found = stored(crowd_statistics(as_layers(rows), NeighbourSearch(k)).cosines)
        assert found.keys() == slow_pairs(cosines, k)
    # The last is at a right angle to everybody: it has a neighbour, with a cosine of 0.
    assert found[0, 5] == 0.0


def test_nobody_has_neighbours_where_nobody_else_is_finite():
    rows = np.full((3, 4), np.nan)
    for finite in (0, 1):
        rows[:finite] = 1.0
        for size in (None, 8):
            found = crowd_statistics(as_layers(rows), NeighbourSearch(2, size))
            assert found.cosines.shape == (3, 3)
            assert found.cosines.nnz == 0
            assert found.finite.sum() == finite


def test_zero_and_tiny_updates_have_the_cosines_that_epsilon_leaves_them():
    rows = updates(6) * np.array([1.0, 0.0, 1e-7, 1e-7, 1.0, 1.0])[:, None]
    expected = update_statistics(as_layers(rows)).cosines
    for search in (NeighbourSearch(5), NeighbourSearch(5, 4096)):  # no two share a bucket
        found = crowd_statistics(as_layers(rows), search).cosines.toarray()
        assert_allclose(found + np.diag(np.diag(expected)), expected, atol=1e-6)


def test_sketches_find_neighbours_that_are_much_nearer_than_others():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((10, 2000))
    rows = np.repeat(centres, 6, axis=0) + 0.3 * rng.standard_normal((60, 2000))
    found = crowd_statistics(as_layers(rows), NeighbourSearch(5, 512)).cosines
    exact = crowd_statistics(as_layers(rows), NeighbourSearch(5)).cosines
    assert stored(found).keys() == stored(exact).keys()
    assert abs(found - exact).max() < 0.05
    other = crowd_statistics(as_layers(rows), NeighbourSearch(5, 512, sketch_seed=1)).cosines
    assert abs(other - found).max() > 0


def test_statistics_of_all_pairs_can_be_thinned_out():
    rows = as_layers(updates(20))
    thinned = with_nearest(update_statistics(rows), 4)
    expected = crowd_statistics(rows, NeighbourSearch(4))
    assert stored(thinned.cosines) == stored(expected.cosines)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("m", [3, 30, 1100])
def test_compiled_is_as_plain_and_threads_change_no_bit(m, dtype, monkeypatch):
    pytest.importorskip("numba", reason="the compiled passes need fedcrf[fast]")
    rng = np.random.default_rng(m)
    rows, origin = rng.standard_normal((m, 900)).astype(dtype), np.ones(900, dtype)
    layers, start = [[row[:500], row[500:]] for row in rows], [origin[:500], origin[500:]]
    plain = crowd_statistics(layers, NeighbourSearch(2, 64), start)
    slow = sketch(layers, 24, 5, start)
    monkeypatch.setattr(compiled, "FEWEST_NUMBERS", 0)
    monkeypatch.setattr(compiled, "CHUNK_OF_MANY", 300)
    monkeypatch.setattr(compiled, "CHUNK_WITHOUT_PRODUCTS", 300)
    monkeypatch.setattr(compiled, "CONVERTED", 128)
    assert compiled.about_median(layers, start, 1, False) is not None
    assert_array_equal(sketch(layers, 24, 5, start), slow)
    fast, *more = (
        crowd_statistics(layers, NeighbourSearch(2, 64), start, threads) for threads in (1, 2, 5)
    )
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    for name in LINEAR:
        assert_allclose(getattr(fast, name), getattr(plain, name), rtol=rtol, err_msg=name)
        for other in more:
            assert_array_equal(getattr(fast, name), getattr(other, name), err_msg=name)
    assert all(stored(other.cosines) == stored(fast.cosines) for other in more)
    assert stored(fast.cosines) == pytest.approx(stored(plain.cosines), rel=rtol)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"neighbours": 0}, "neighbours 0: give a whole number, 1 or more"),
        ({"neighbours": 2.5}, "neighbours 2.5: give a whole number, 1 or more"),
        ({"neighbours": True}, "neighbours True"),
        ({"neighbours": 3, "sketch_size": 0}, "sketch_size 0: give a whole number, 1 or more"),
        ({"neighbours": 3, "sketch_seed": -1}, "sketch_seed -1: give a whole number, 0 or more"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, named):
    with pytest.raises(FedcrfError, match=named):
        NeighbourSearch(**settings)
    with pytest.raises(FedcrfError, match="d = 0"):
        crowd_statistics([[np.zeros(0)]], NeighbourSearch(1, 4))
