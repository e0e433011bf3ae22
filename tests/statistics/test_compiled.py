"""The compiled passes give what the plain ones give, whoever the clients are."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf.statistics import (
    as_layers,
    centred_geometry,
    compiled,
    median_of,
    one_pass,
    trimmed_mean_of,
    update_statistics,
    weighted_average,
)
from fedcrf.statistics.median import coordinate_median, coordinate_trimmed_mean
from fedcrf.statistics.sums import AboutMedian, about_mean, middle_of

pytest.importorskip("numba", reason="the compiled passes need fedcrf[fast]")

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)

many_examples = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.fixture(scope="module", autouse=True)
def small_rounds_too() -> Iterator[None]:
    """Send rounds of any size through the compiled passes, in several tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "FEWEST_NUMBERS", 0)
        patch.setattr(compiled, "CHUNK", 1024)
        patch.setattr(compiled, "CHUNK_OF_MANY", 1024)
        patch.setattr(compiled, "SKETCHED", 1024)
        patch.setattr(compiled, "CONVERTED", 512)
        yield


@pytest.fixture(autouse=True)
def no_silent_way_out(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which the compiled code failed and the plain one answered for it."""
    compiled.GIVEN_UP.clear()
    yield
    assert not [text for text in caplog.messages if "plain pass" in text]


def medians_of_a_crowd(arrays):
    """Return the medians that a crowd's sums are made with."""
    m, joined = len(arrays), compiled.Joined([[array] for array in arrays])
    medians, kernels = np.empty(joined.size, joined.dtype), compiled._kernels()
    for where, columns in joined.columns(slice(0, joined.size)):
        sums = np.zeros(m + 1), np.zeros(m), np.zeros(m)
        room = kernels.room(m, joined.dtype, joined.dtype)
        whole = np.empty(0, f"i{joined.dtype.itemsize}")
        kernels.gather_crowd(*columns, *sums, *room, whole, medians[where])
    return medians


def draw_clients(generator, m, sizes, dtype, kind="normal", strided=False):
    """Draw layers for m clients: ordinary, tied, with denormals, or spread over many magnitudes."""
    clients = []
    for _ in range(m):
        layers = []
        for size in sizes:
            values = generator.normal(size=size * (2 if strided else 1))
            if kind == "ties":
                values = np.round(values)
            if kind == "denormals":
                values *= np.where(generator.random(values.shape) < 0.5, 1e-41, 1.0)
            if kind == "magnitudes":
                values *= 10.0 ** generator.integers(-8, 4, values.shape)
            layer = values.astype(dtype)
            layers.append(layer[::2] if strided else layer)
        clients.append(layers)
    return clients


def plain_sums(clients, origin=None):
    sums = AboutMedian.plain(clients, origin)
    assert sums.finite.all()
    return sums


def assert_same_statistics(clients, origin=None):
    sums = plain_sums(clients, origin)
    size = np.diagonal(sums.gram)
    scale = np.sqrt(np.outer(size, size))
    assert (np.abs(update_statistics(clients, origin).gram - sums.gram) <= 1e-6 * scale).all()
    for products in (True, False):
        finite, found = one_pass.finite_sums(clients, origin, None, products)
        assert finite.all()
        assert_allclose(found.squares, size, rtol=1e-6, atol=1e-300)
        # Differences to the global model are rounded to float32, as the models themselves were.
        rounding = 1e-20 if origin is None else 1e-7 * np.sqrt(size).max()
        distances = np.sqrt(found.squared_distance), np.sqrt(sums.squared_distance)
        assert_allclose(*distances, rtol=1e-6, atol=rounding)
        norms = np.sqrt(found.median_square), np.sqrt(sums.median_square)
        assert_allclose(*norms, rtol=1e-6, atol=1e-20)
        bound = 1e-6 * np.sqrt(size * max(sums.median_square, size.min() * 1e-12))
        assert (np.abs(found.inner - sums.inner) <= bound).all()


some_sizes = st.lists(st.sampled_from([0, 1, 7, 511, 512, 513, 1300]), min_size=1, max_size=3)
some_kind = st.sampled_from(["normal", "ties", "denormals", "magnitudes"])
some_seed = st.integers(0, 2**32 - 1)


@many_examples
@given(
    m=st.integers(1, 300),
    sizes=some_sizes,
    dtype=st.sampled_from(DTYPES),
    kind=some_kind,
    with_origin=st.booleans(),
    strided=st.booleans(),
    seed=some_seed,
)
def test_statistics_equal_the_plain_pass(m, sizes, dtype, kind, with_origin, strided, seed):
    generator = np.random.default_rng(seed)
    sizes = [*sizes, 3]
    clients = draw_clients(generator, m, sizes, dtype, kind, strided)
    origin = draw_clients(generator, 1, sizes, dtype)[0] if with_origin else None
    assert compiled.about_median(clients, origin, None) is not None or kind != "normal"
    assert_same_statistics(clients, origin)


@many_examples
@given(
    m=st.integers(1, 300),
    sizes=some_sizes,
    dtype=st.sampled_from(DTYPES),
    kind=some_kind,
    with_origin=st.booleans(),
    seed=some_seed,
)
def test_the_geometry_about_the_mean_equals_the_plain_one(m, sizes, dtype, kind, with_origin, seed):
    generator = np.random.default_rng(seed)
    sizes = [*sizes, 3]
    clients = draw_clients(generator, m, sizes, dtype, kind)
    origin = draw_clients(generator, 1, sizes, dtype)[0] if with_origin else None
    squares, plain = about_mean(clients, origin)
    assert np.isfinite(squares).all()
    fast = compiled.about_mean(clients, origin, None)
    assert fast is not None
    size = np.sqrt(np.diagonal(plain))
    assert (np.abs(fast[1] - plain) <= 1e-12 * np.outer(size, size) + 1e-300).all()
    middle = middle_of(fast[0])  # one is very long: the products are about another one
    expected = fast[1] if middle is None else about_mean(clients, origin, middle)[1]
    assert_array_equal(centred_geometry(clients, origin).gram, expected)


def test_equal_updates_are_at_distance_zero_to_the_bit():
    generator = np.random.default_rng(0)
    clients = draw_clients(generator, 7, [1300], np.float32)
    clients[5] = [layer.copy() for layer in clients[1]]
    gram = centred_geometry(clients).gram
    assert gram[1, 1] + gram[5, 5] - 2 * gram[1, 5] == 0.0


@many_examples
@given(
    m=st.integers(1, 300),
    size=st.sampled_from([1, 31, 512, 1300]),
    dtype=st.sampled_from(DTYPES),
    kind=some_kind,
    trim=st.integers(0, 3),
    seed=some_seed,
)
def test_medians_are_exact_and_trimmed_means_close(m, size, dtype, kind, trim, seed):
    generator = np.random.default_rng(seed)
    arrays = [layers[0] for layers in draw_clients(generator, m, [size], dtype, kind)]
    block = np.stack(arrays).astype(np.float64)
    assert (median_of(arrays) == coordinate_median(block).astype(dtype)).all()
    assert (medians_of_a_crowd(arrays).astype(dtype) == median_of(arrays)).all()
    trim = min(trim, (m - 1) // 2)
    expected = coordinate_trimmed_mean(block, trim).astype(dtype).astype(np.float64)
    got = trimmed_mean_of(arrays, trim).astype(np.float64)
    precision = float(ml_dtypes.finfo(dtype).eps)
    assert_allclose(got, expected, rtol=precision, atol=1e-15 * np.abs(block).max() + 1e-40)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 2, 3, 10, 64, 66, 128, 129, 195, 301])
def test_few_and_many_clients_are_alike(m, dtype):
    generator = np.random.default_rng(m)
    for kind in ("normal", "ties"):
        clients = draw_clients(generator, m, [700, 5], dtype, kind)
        assert_same_statistics(clients, draw_clients(generator, 1, [700, 5], dtype)[0])
        arrays = [layers[0] for layers in clients]
        assert (median_of(arrays) == np.median(arrays, axis=0)).all()
        assert (medians_of_a_crowd(arrays) == np.median(arrays, axis=0)).all()
        trim = (m - 1) // 3
        trimmed = coordinate_trimmed_mean(np.stack(arrays).astype(np.float64), trim).astype(dtype)
        found = trimmed_mean_of(arrays, trim)
        assert_allclose(found, trimmed, rtol=np.finfo(dtype).eps, atol=m * 1e-16)


def test_a_median_of_extreme_numbers_is_exact():
    """The range overflows float32, and between two of its numbers lie many more."""
    rows = np.float32([-3e38, -1e-45, 0.0, 1e-45, 3e38, 3.1e38, -3.1e38])[:, None]
    rows = np.hstack([rows, rows[[0, 0, 0, 0, 6, 6, 6]], rows[:1].repeat(7, 0), -rows])
    for m in (4, 5, 6, 7):
        expected = np.median(rows[:m].astype(np.float64), axis=0).astype(np.float32)
        assert (median_of([*rows[:m]]) == expected).all()
        if m % 2:  # the sum of two may overflow: then the plain pass answers
            assert (medians_of_a_crowd([*rows[:m]]) == expected).all()


@pytest.mark.parametrize("m", [1, 3, 5, 33])
def test_the_middle_of_huge_numbers_is_one_of_them(m):
    rows = np.linspace(0.8, 1.7, m)[:, None] * [1e308, -1e308]
    for found in (coordinate_median(rows), median_of([*rows])):
        assert (found == rows[m // 2]).all()
        assert not np.shares_memory(found, rows)


def test_one_compilation_serves_every_number_of_clients(caplog):
    generator = np.random.default_rng(0)
    update_statistics(draw_clients(generator, 2, [700], np.float32))
    caplog.clear()
    for m in (3, 10, 17, 100, 129, 300):
        update_statistics(draw_clients(generator, m, [700], np.float32))
    assert not caplog.messages


def test_what_the_updates_share_does_not_hide_how_they_differ():
    """Norms that agree in six digits are still compared by the rest of them."""
    generator = np.random.default_rng(0)
    common = generator.normal(size=200_000)
    clients = [
        [(common + 1e-6 * generator.normal(size=common.size)).astype(np.float32)] for _ in range(3)
    ]
    fast, slow = update_statistics(clients), plain_sums(clients)
    assert_allclose(fast.norms, np.sqrt(np.diagonal(slow.gram)), rtol=1e-14)
    assert_allclose(fast.median_distance, np.sqrt(slow.squared_distance), rtol=1e-6)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38, 1e30, 1e20, 1e-30])
def test_what_float32_cannot_square_goes_the_plain_way(special):
    generator = np.random.default_rng(0)
    clients = [[generator.normal(size=700).astype(np.float32)] for _ in range(3)]
    clients[1][0][:] = special
    origin = [np.full(700, -special if special == 3e38 else 0.0, np.float32)]
    statistics = update_statistics(clients, origin)
    finite = np.array([True, bool(np.isfinite(special)), True])
    sums = plain_sums([clients[i] for i in np.flatnonzero(finite)], origin)
    assert statistics.finite.tolist() == finite.tolist()
    kept = np.ix_(finite, finite)
    assert_allclose(statistics.gram[kept], sums.gram, rtol=1e-6)
    assert_allclose(statistics.median_distance[finite], np.sqrt(sums.squared_distance), rtol=1e-6)
    assert centred_geometry(clients, origin).finite.tolist() == finite.tolist()
    if np.isfinite(special):
        assert compiled.about_median(clients, origin, None) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zeros", [1, 2, 3])
@pytest.mark.parametrize("with_origin", [False, True])
def test_updates_that_are_zero_keep_no_round_from_the_compiled_pass(dtype, zeros, with_origin):
    """One client that did not move must not cost the others the fast way."""
    generator = np.random.default_rng(0)
    clients = draw_clients(generator, 3, [700, 5], dtype)
    origin = draw_clients(generator, 1, [700, 5], dtype)[0] if with_origin else None
    still = [np.zeros_like(layer) for layer in clients[0]] if origin is None else origin
    clients[:zeros] = [[layer.copy() for layer in still] for _ in range(zeros)]
    found = compiled.about_median(clients, origin, None)
    assert found is not None
    assert found.finite.all()
    assert not found.gram[:zeros].any()
    assert not found.squares[:zeros].any()
    assert not found.inner[:zeros].any()
    assert_same_statistics(clients, origin)


def test_updates_whose_squares_alone_are_zero_go_the_plain_way():
    """Squares that vanish in float64, and differences that do in the models' own precision."""
    generator = np.random.default_rng(0)
    tiny = draw_clients(generator, 3, [700], np.float64)
    tiny[1][0] *= 1e-170
    assert compiled.about_median(tiny, None, None) is None
    origin = [np.ones(700)]
    near = draw_clients(generator, 3, [700], np.float32)
    near[1][0][:] = 1.0
    assert compiled.about_median(near, origin, None) is not None
    origin[0] += 1e-10
    assert compiled.about_median(near, origin, None) is None
    assert_allclose(update_statistics(near, origin).norms[1], 1e-10 * np.sqrt(700), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [3, 30])
def test_threads_change_no_bit(m, dtype):
    generator = np.random.default_rng(m)
    clients = draw_clients(generator, m, [9000], dtype)
    one, two = (update_statistics(clients, threads=threads) for threads in (1, 2))
    assert (one.gram == two.gram).all()
    assert (one.median_distance == two.median_distance).all()
    assert (one.median_inner == two.median_inner).all()
    assert one.median_norm == two.median_norm
    about_mean = [centred_geometry(clients, threads=threads).gram for threads in (1, 2)]
    assert (about_mean[0] == about_mean[1]).all()
    flats = [layers[0] for layers in clients]
    weights = generator.dirichlet(np.ones(m))
    for reduce in (
        lambda threads: weighted_average(flats, weights, threads),
        lambda threads: median_of(flats, threads),
        lambda threads: trimmed_mean_of(flats, 1, threads),
    ):
        assert (reduce(1) == reduce(2)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [3, 30])
def test_the_average_equals_the_plain_one_to_the_bit(m, dtype):
    generator = np.random.default_rng(1)
    arrays = [generator.normal(size=(40, 50)).astype(dtype) for _ in range(m)]
    weights = generator.dirichlet(np.ones(m))
    weights[2], arrays[2] = 0.0, np.full((40, 50), np.nan, dtype)
    expected = np.zeros((40, 50))
    for array, weight in zip(arrays, weights, strict=True):
        if weight != 0.0:
            expected += array.astype(np.float64) * weight
    assert (weighted_average(arrays, weights) == expected.astype(dtype)).all()


def test_bfloat16_tensors_are_read_where_they_lie():
    torch = pytest.importorskip("torch")
    tensor = torch.randn(3, 50, dtype=torch.bfloat16)
    layers = as_layers(tensor)
    assert layers[0][0].dtype == ml_dtypes.bfloat16
    assert layers[1][0].ctypes.data == tensor[1].data_ptr()
    assert (np.stack([row[0] for row in layers]).astype(np.float32) == tensor.float().numpy()).all()


def test_rows_that_may_not_be_written_or_lie_askew_are_read_all_the_same():
    generator = np.random.default_rng(0)
    raw = [generator.normal(size=3000).astype(np.float32) for _ in range(3)]
    askew = [[np.frombuffer(b"x" + row.tobytes(), np.float32, offset=1)] for row in raw]
    assert not askew[0][0].flags.aligned
    expected = update_statistics([[row] for row in raw])
    assert (update_statistics(askew).gram == expected.gram).all()


def test_a_second_process_need_not_compile() -> None:
    clients = [[np.arange(5, dtype=np.float32)]] * 3
    assert compiled.about_median(clients, None, None) is not None
    program = (
        "import numpy as np\n"
        "from fedcrf.statistics import compiled\n"
        "compiled.FEWEST_NUMBERS = 0\n"
        "clients = [[np.arange(5, dtype=np.float32)]] * 3\n"
        "print(compiled.about_median(clients, None, None) is not None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "True\n", done.stderr
    assert "compiled" not in done.stderr, "which it would say"


def no_numba(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setitem(sys.modules, "numba", None)


def broken_numba(patch: pytest.MonkeyPatch, folder: Path) -> None:
    finder = SimpleNamespace(find_spec=lambda *_: 1 / 0)
    patch.delitem(sys.modules, "numba")
    patch.setattr(sys, "meta_path", [finder, *sys.meta_path])


def no_cache_folder(patch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "file").write_text("in the way")
    patch.setenv("FEDCRF_CACHE", str(folder / "file"))


def no_compilation(patch: pytest.MonkeyPatch, folder: Path) -> None:
    source = Path(compiled.__file__).with_name("kernels.py").read_text("utf-8")
    broken = "\n@njit\ndef gather(*arguments):\n    return undefined\n"
    (folder / "kernels.py").write_text(source + broken, "utf-8")
    patch.setattr(compiled, "__file__", str(folder / "compiled.py"))


def damaged_code(patch: pytest.MonkeyPatch, folder: Path) -> None:
    source = Path(compiled.__file__).with_name("kernels.py").read_text("utf-8")
    quick = "\n@njit(cache=True)\ndef gather(*arguments):\n    return None\n"
    (folder / "kernels.py").write_text(source + quick, "utf-8")
    patch.setattr(compiled, "__file__", str(folder / "compiled.py"))
    patch.setenv("FEDCRF_CACHE", str(folder / "cache"))
    compiled._kernels.cache_clear()
    compiled.about_median([[np.ones(5, np.float32)]] * 2, None, None)
    assert not compiled.GIVEN_UP
    kept = [*folder.rglob("*.nbi"), *folder.rglob("*.nbc")]
    assert kept
    for each in kept:
        each.write_bytes(each.read_bytes()[:10])


@pytest.mark.parametrize(
    ("spoil", "reason", "mend"),
    [
        (no_numba, "ModuleNotFoundError: .*numba", r"pip install 'fedcrf\[fast\]'"),
        (broken_numba, "ZeroDivisionError: division by zero", "mend or remove Numba"),
        (
            no_cache_folder,
            "NotADirectoryError: .*file",
            "can be written in FEDCRF_CACHE",
        ),
        (no_compilation, "TypingError: ", "the plain pass does the same"),
        (damaged_code, "UnpicklingError: ", r"remove \S*/cache/kernels, in which a file is dam"),
    ],
)
def test_without_compiled_code_the_plain_pass_answers_and_says_why_once(
    spoil: Callable[[pytest.MonkeyPatch, Path], None],
    reason: str,
    mend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = [[np.ones(5, np.float32)], [np.zeros(5, np.float32)]]
    with monkeypatch.context() as patch:
        spoil(patch, tmp_path)
        compiled._kernels.cache_clear()
        for several in (clients, clients[::-1], clients * 2, clients):
            squares = np.diagonal(update_statistics(several).gram)
            assert squares.tolist() == [5.0 * each[0][0] for each in several]
    compiled._kernels.cache_clear()
    compiled.GIVEN_UP.clear()
    said = [text for text in caplog.messages if "plain pass" in text]
    assert len(said) == 1
    assert re.search(rf"slower, plain pass \({reason}.*\): .*{mend}", said[0], re.DOTALL)
    caplog.clear()
