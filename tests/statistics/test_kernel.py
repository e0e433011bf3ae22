"""The compiled pass gives what the plain one gives, whoever the clients are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedcrf.statistics import average, kernel, one_pass, update_statistics, weighted_average

pytest.importorskip("numba", reason="the compiled pass needs fedcrf[fast]")

CLIENTS = (1, 3, 10)
"""Odd and even, one tile and several; each is compiled once."""


@pytest.fixture(scope="module", autouse=True)
def small_rounds_too(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile into a cache of our own, and send rounds of any size through it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCRF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(kernel, "FEWEST_NUMBERS", 0)
        patch.setattr(kernel, "CHUNK", 2 * kernel.BLOCK)
        kernel.load.cache_clear()
        yield
    kernel.load.cache_clear()


def plain(clients, origin=None):
    finite, sums = one_pass._sum_over_blocks(clients, origin)
    assert finite.all()
    return sums


def assert_same(clients, origin=None):
    statistics = update_statistics(clients, origin)
    assert kernel.suits(clients)
    sums = plain(clients, origin)
    size = np.diagonal(sums.gram)
    scale = np.sqrt(np.outer(size, size))
    assert (np.abs(statistics.gram - sums.gram) <= 1e-6 * scale).all()
    distance = np.sqrt(sums.squared_distance)
    # Differences to the global model are rounded to float32, as the models themselves were.
    rounding = 1e-20 if origin is None else 1e-7 * np.sqrt(size).max()
    assert_allclose(statistics.median_distance, distance, rtol=1e-6, atol=rounding)
    assert_allclose(statistics.median_norm, np.sqrt(sums.median_square), rtol=1e-6, atol=1e-20)
    bound = 1e-6 * np.sqrt(size * max(sums.median_square, size.min() * 1e-12))
    assert (np.abs(statistics.median_inner - sums.inner) <= bound).all()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    m=st.sampled_from(CLIENTS),
    sizes=st.lists(st.sampled_from([0, 1, 7, 511, 512, 513, 2600]), min_size=1, max_size=3),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    ties=st.booleans(),
    with_origin=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_statistics_equal_the_plain_pass(m, sizes, scale, ties, with_origin, seed):
    generator = np.random.default_rng(seed)
    if sum(sizes) == 0:
        sizes = [3]
    clients = []
    for _ in range(m):
        layers = [generator.normal(size=size) * scale for size in sizes]
        if ties:
            layers = [np.round(layer / scale) * scale for layer in layers]
        clients.append([layer.astype(np.float32) for layer in layers])
    origin = (
        [(generator.normal(size=size) * scale).astype(np.float32) for size in sizes]
        if with_origin
        else None
    )
    assert_same(clients, origin)


def test_what_the_updates_share_does_not_hide_how_they_differ():
    """Norms that agree in six digits are still compared by the rest of them."""
    generator = np.random.default_rng(0)
    common = generator.normal(size=200_000)
    clients = [
        [(common + 1e-6 * generator.normal(size=common.size)).astype(np.float32)] for _ in range(3)
    ]
    fast, slow = update_statistics(clients), plain(clients)
    assert_allclose(fast.norms, np.sqrt(np.diagonal(slow.gram)), rtol=1e-14)
    assert_allclose(fast.median_distance, np.sqrt(slow.squared_distance), rtol=1e-6)


@pytest.mark.parametrize("special", [np.nan, np.inf, 1e30, 1e-30, 0.0])
def test_what_float32_cannot_square_goes_the_plain_way(special):
    generator = np.random.default_rng(0)
    clients = [[generator.normal(size=700).astype(np.float32)] for _ in range(3)]
    clients[1][0][:] = special
    statistics = update_statistics(clients)
    finite, sums = one_pass._excluding(
        3, lambda used: one_pass._sum_over_blocks([clients[i] for i in used], None)
    )
    assert statistics.finite.tolist() == finite.tolist()
    kept = np.ix_(finite, finite)
    assert_allclose(statistics.gram[kept], sums.gram, rtol=1e-6)
    assert finite.tolist() == [True, bool(np.isfinite(special)), True]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [3])
def test_threads_change_no_bit(m, dtype):
    generator = np.random.default_rng(m)
    clients = [[generator.normal(size=9000).astype(dtype)] for _ in range(m)]
    one, two = (update_statistics(clients, threads=threads) for threads in (1, 2))
    assert (one.gram == two.gram).all()
    assert (one.median_distance == two.median_distance).all()
    assert (one.median_inner == two.median_inner).all()
    assert one.median_norm == two.median_norm
    weights = generator.dirichlet(np.ones(m))
    flats = [layers[0] for layers in clients]
    averages = [weighted_average(flats, weights, threads) for threads in (1, 2)]
    assert (averages[0] == averages[1]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_average_equals_the_plain_one_to_the_bit(dtype):
    generator = np.random.default_rng(1)
    flats = [generator.normal(size=(40, 50)).astype(dtype) for _ in range(3)]
    weights = generator.dirichlet(np.ones(3))
    weights[2], flats[2] = 0.0, np.full((40, 50), np.nan, dtype)
    used = [(flat.reshape(-1), weight) for flat, weight in zip(flats, weights, strict=True)
            if weight != 0.0]  # fmt: skip
    expected = average._average_by_blocks(used, flats[0])
    assert (weighted_average(flats, weights) == expected).all()


def test_a_second_process_need_not_compile(caplog: pytest.LogCaptureFixture):
    kernel.load(3)
    kernel.load.cache_clear()
    with caplog.at_level("WARNING", logger="fedcrf"):
        module = kernel.load(3)
    assert module is not None
    assert caplog.messages == []
    assert list((kernel.cache_folder() / "kernels").glob("kernel_3_*.py"))


def test_without_a_cache_folder_the_plain_pass_answers(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDCRF_CACHE", str(tmp_path / "file"))
    kernel.load.cache_clear()
    clients = [[np.ones(5, np.float32)], [np.zeros(5, np.float32)]]
    assert kernel.load(2) is None
    assert update_statistics(clients).gram.tolist() == [[5.0, 0.0], [0.0, 0.0]]
    kernel.load.cache_clear()
