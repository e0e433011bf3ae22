"""The passes over the updates as compiled code, where there is a compiler and much to do.

One compilation serves every number of clients, so that a later round with more of them does not
wait. The first round on a machine makes it and says how long it took. It is kept in the cache
folder.

Sums are float64 from block to block; a block has a few hundred columns. Squares are float64 within
a block too: norms are compared with each other and must not lose a digit. Other products are summed
in the updates' own precision. Differences to the global model are made in the models' own
precision, float32 at least.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.files import CACHE_VARIABLE, cache_folder, write_text
from fedcrf.statistics.count_sketch import CountSketch
from fedcrf.statistics.inputs import Layers, bring_columns, is_floating, num_numbers
from fedcrf.statistics.median import sorting_network
from fedcrf.statistics.sums import Sums
from fedcrf.statistics.threads import default_threads, in_order

LOGGER = logging.getLogger("fedcrf")

MOST_IN_LONG_TASKS = 128
"""Most clients for which a task's Gram matrix is small beside its columns."""

FEWEST_NUMBERS = 1 << 18
"""m · d below which loading costs more than it saves."""

CHUNK = 1 << 17
"""Columns in a task for few clients. Fixed, so that sums do not depend on the number of threads."""

CHUNK_OF_MANY = 1 << 14
"""Columns in a task for many clients; a task has a Gram matrix of its own."""

CHUNK_WITHOUT_PRODUCTS = 1 << 12
"""Columns in a task for many clients that has none."""

SKETCHED = 1 << 16
"""Columns that are sketched at a time; their signs stay in the second-level cache."""

NUMBERS_OF_A_THREAD = 1 << 20
"""Numbers for which another thread is worth starting: a tenth of a millisecond."""

CONVERTED = 1 << 13
"""Columns that are converted at a time, where layers are not contiguous or of a small dtype."""

EDGE = 4
"""Rows and columns of a Gram matrix beyond its vectors', which compiled tiles reach into."""

WARNED: set[str] = set()
"""What has been warned of in this process."""

TOLD: dict[str, int] = {}
"""How often the compilation of each function has been announced."""

FAILED: set[str] = set()
"""Functions that are not tried again: to compile takes seconds, also in vain."""

T = TypeVar("T")


def suits(clients: Sequence[Layers]) -> bool:
    """Tell whether there is enough to do in these layers, and nothing but floats."""
    layers = clients[0]
    return len(clients) * num_numbers(layers) >= FEWEST_NUMBERS and all(
        is_floating(layer.dtype) and layer.dtype.itemsize <= 8 for layer in layers
    )


def sum_columns(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]] | None,
    threads: int | None,
    products: bool = True,
    sketch: CountSketch | None = None,
) -> tuple[NDArray[np.bool_], Sums] | None:
    """Sum the Gram matrix, inner products with the median and distances to it, over all columns.

    Args:
        clients: m lists of flat layers that `suits` accepts.
        origin: Flat layers of the global model to take away; none where the layers are updates.
        threads: Tasks carried out at once, all cores by default; no part of the result.
        products: Whether the Gram matrix is wanted.
        sketch: The sketch to make of the updates and their median; None for none. Not together
            with products.

    Returns:
        (m,) bool, whether each update is finite, and the sums, which count where all are. None
        without a compiler. None too where float32 would not do: a product or a distance overflows,
        or squares vanish. The plain pass then gives the answer.
    """
    m, kernels = len(clients), _kernels()
    if kernels is None:
        return None
    joined = Joined(clients, origin)
    padded = m + 1 + EDGE if products else 0
    width = _width(m) if products else CHUNK_WITHOUT_PRODUCTS
    steps, kept, rows = _network(m, (m - 1) // 2, m // 2 + 1) if products else ((), (), m)
    median = np.empty(0 if sketch is None else joined.size, joined.dtype)

    def carry_out(task: slice) -> list[NDArray[Any]]:
        sums = [np.zeros(m + 1), np.zeros((padded, padded)), np.zeros(m), np.zeros(m + 1)]
        squares, gram, inner, squared_distance = sums
        room = kernels.room(rows, joined.dtype, joined.dtype)
        for where, columns in joined.columns(task):
            if products:
                given = squares, gram, squared_distance, *room, steps, kept
                _call(kernels, "gather", *columns, *given)
            else:
                given = squares, inner, squared_distance, *room, joined.whole, median[where]
                _call(kernels, "gather_crowd", *columns, *given)
        return sums

    totals = _add_up(carry_out, joined.tasks(width), joined.worthwhile(threads))
    if totals is None:
        return None
    (*_, median_square), gram, inner, squared_distance = totals
    squares, squared_distance = totals[0][:m], squared_distance[:m]
    if products:
        inner = gram[:m, m].copy()
    finite = np.isfinite(squares)
    if not _finite_but(finite, clients):
        return None
    sketches = np.zeros((0, 0))
    if sketch is not None and finite.all():
        theirs = sketch_columns(clients, origin, sketch, threads)
        own = sketch_columns([[median]], None, sketch, threads)
        if theirs is None or own is None:
            return None
        sketches = np.vstack([theirs, own])
    gram = _symmetric(gram[:m, :m]) if products else gram
    if products:
        np.fill_diagonal(gram, squares)
    sums = Sums(squares, gram, inner, squared_distance, sketches, float(median_square))
    if finite.all() and not _would_do(sums, clients, origin):
        return None
    return finite, sums


def sum_centred(
    clients: Sequence[Layers], origin: Sequence[NDArray[Any]] | None, threads: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.float64]] | None:
    """Sum the Gram matrix of the updates about their mean, in float64; see `sum_columns`."""
    m, kernels = len(clients), _kernels()
    if kernels is None:
        return None
    joined = Joined(clients, origin)

    def carry_out(task: slice) -> list[NDArray[Any]]:
        sums = [np.zeros(m), np.zeros((m + EDGE, m + EDGE))]
        room = kernels.room(m, np.float64, joined.dtype)
        for _, columns in joined.columns(task):
            _call(kernels, "gather_centred", *columns, *sums, *room)
        return sums

    totals = _add_up(carry_out, joined.tasks(_width(m)), joined.worthwhile(threads))
    if totals is None:
        return None
    finite = np.isfinite(totals[0])
    return (finite, _symmetric(totals[1][:m, :m])) if _finite_but(finite, clients) else None


def sketch_columns(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]] | None,
    sketch: CountSketch,
    threads: int | None,
) -> NDArray[np.float64] | None:
    """Return the (m, size) count sketches of vectors, to the bit those of the plain way.

    Args:
        clients: m lists of flat layers that `suits` accepts.
        origin: As for `sum_columns`.
        sketch: Its draws.
        threads: As for `sum_columns`; each takes some of the clients.

    Returns:
        The sketches; None where there is no compiler.
    """
    kernels = _kernels()
    if kernels is None:
        return None
    sums = np.zeros((len(clients), sketch.size))

    def carry_out(mine: slice) -> None:
        joined = Joined(clients[mine], origin)
        for task in joined.tasks(SKETCHED):
            for where, columns in joined.columns(task):
                signs = sketch.signs(where.start, where.stop)
                _call(
                    kernels, "sketch", *columns, where.start, sketch.shifts, signs, sums[mine]
                )  # fmt: skip

    threads = _worthwhile(threads, len(clients) * num_numbers(clients[0]))
    each = -(-len(clients) // threads)
    shares = [slice(start, start + each) for start in range(0, len(clients), each)]
    return sums if _done(carry_out, shares, threads) else None


def average_columns(
    clients: Sequence[Layers],
    weights: NDArray[np.float64],
    result: NDArray[Any],
    threads: int | None,
) -> bool:
    """Fill a flat result with Σ α_i w_i of layers that `suits` accepts, summed in float64.

    Returns:
        Whether it could be done; not without a compiler.
    """
    given = (np.array(weights, np.float64),)
    return _fill("average", Joined(clients), lambda _: given, result, threads)


def trimmed_mean_columns(
    clients: Sequence[Layers], trim: int, result: NDArray[Any], threads: int | None
) -> bool:
    """Fill a flat result with the coordinate-wise trimmed mean of finite layers, as an average.

    The mean of what the largest cut leaves is the median.
    """
    m, joined = len(clients), Joined(clients)
    steps, kept, rows = _network(m, trim, m - trim)

    def given(kernels: ModuleType) -> tuple[Any, ...]:
        return *kernels.room(rows, joined.dtype, joined.dtype), steps, kept

    return _fill("trimmed_mean", joined, given, result, threads)


def _width(m: int) -> int:
    """Return how many columns a task has in which products of m clients are summed."""
    return CHUNK if m <= MOST_IN_LONG_TASKS else CHUNK_OF_MANY


@lru_cache(maxsize=8)  # for 10,000 clients one takes 12 MiB
def _network(m: int, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return a sorting network as compiled code takes it: steps, rows of the result, all rows.

    A step (a, b, lesser, greater) compares two rows. It writes to two rows that nobody needs any
    more. Row m is left out, for the median.

    Args:
        m: Rows to sort.
        first: The first rank that is wanted.
        last: One past the last.
    """
    pairs = sorting_network(m, first, last)
    needed, wanted = set(range(first, last)), []
    for pair in reversed(pairs):
        wanted.append([place in needed for place in pair])
        needed.update(pair)
    rows, count, steps = [*range(m)], m + 1, []
    free: list[int] = []
    for pair, outputs in zip(pairs, reversed(wanted), strict=True):
        read, written = [rows[place] for place in pair], []
        for place in pair:
            if not free:
                free.append(count)
                count += 1
            rows[place] = free.pop()
            written.append(rows[place])
        steps.append([*read, *written])
        free += [row for row in read if row > m]  # the clients' own are read again
        free += [row for row, is_wanted in zip(written, outputs, strict=True) if not is_wanted]
    table = np.array(steps, np.int64).reshape(-1, 4)
    return table, np.array(rows[first:last], np.int64), count


Columns = tuple[tuple[NDArray[Any], ...], int, int]
"""Columns as compiled code takes them: layers by their addresses, the first column, one past it."""


class Joined:
    """The clients' layers, joined to one row of d numbers a client.

    Where all are contiguous and of one dtype, compiled code reads them as they lie; else some
    columns at a time are converted. How numbers are cut into layers changes no bit of a sum.

    Attributes:
        size: d.
        dtype: What is computed in: float64 where a layer of the clients is, else float32.
    """

    def __init__(
        self, clients: Sequence[Layers], origin: Sequence[NDArray[Any]] | None = None
    ) -> None:
        self._clients, self._origin = clients, origin  # known by addresses alone, and so held here
        layers = [layer for row in clients for layer in row]
        self.size = num_numbers(clients[0])
        self.dtype = np.dtype(f"f{max(4, *(layer.dtype.itemsize for layer in clients[0]))}")
        ready = all(
            layer.dtype == self.dtype and layer.flags.c_contiguous and layer.flags.aligned
            for layer in [*layers, *(origin or ())]
        )
        self._layers = self._of(clients, origin) if ready else None

    def _of(
        self, clients: Sequence[Sequence[NDArray[Any]]], origin: Sequence[NDArray[Any]] | None
    ) -> tuple[NDArray[Any], ...]:
        """Return layers as compiled code takes them; see `fedcrf.statistics.kernels`."""
        rows = [*clients, [None] * len(clients[0]) if origin is None else origin]
        addresses = [[0 if each is None else each.ctypes.data for each in row] for row in rows]
        return (
            np.array(addresses, np.int64).T.copy(),
            np.cumsum([layer.size for layer in clients[0]]),
            np.empty(0, self.dtype),
        )

    @property
    def whole(self) -> NDArray[Any]:
        """An empty array of integers of the dtype's size."""
        return np.empty(0, f"i{self.dtype.itemsize}")

    def tasks(self, width: int) -> list[slice]:
        """Cut the columns into tasks of so many."""
        return [slice(start, min(start + width, self.size)) for start in range(0, self.size, width)]

    def worthwhile(self, threads: int | None) -> int:
        """Return how many threads are worth starting."""
        return _worthwhile(threads, len(self._clients) * self.size)

    def columns(self, task: slice) -> Iterator[tuple[slice, Columns]]:
        """Yield a task's columns as compiled code takes them, and which they are."""
        if self._layers is not None:
            yield task, (self._layers, task.start, task.stop)
            return
        everyone = [*self._clients] if self._origin is None else [*self._clients, self._origin]
        for start in range(task.start, task.stop, CONVERTED):
            stop = min(start + CONVERTED, task.stop)
            rows = np.empty((len(everyone), stop - start), self.dtype)
            bring_columns(everyone, start, rows)
            clients = [[row] for row in rows[: len(self._clients)]]
            origin = None if self._origin is None else [rows[-1]]
            yield slice(start, stop), (self._of(clients, origin), 0, stop - start)


def _worthwhile(threads: int | None, numbers: int) -> int:
    """Return how many threads are worth starting for so many numbers."""
    return min(threads or default_threads(), max(1, numbers // NUMBERS_OF_A_THREAD))


def _add_up(
    carry_out: Callable[[slice], list[NDArray[Any]]], tasks: Sequence[slice], threads: int | None
) -> list[NDArray[Any]] | None:
    """Return the sums of what tasks found, in their order; None where one could not be done."""
    totals: list[NDArray[Any]] = []
    try:
        for sums in in_order(carry_out, tasks, threads):
            totals = totals or sums
            if totals is not sums:
                # Beyond the clients' own entries a Gram matrix holds whatever lay in memory.
                with np.errstate(over="ignore", invalid="ignore"):
                    for total, each in zip(totals, sums, strict=True):
                        total += each
    except Exception as error:  # an aid that fails in whatever way must not stop a round
        _warn_once("compiled code", error)
        return None
    return totals


def _symmetric(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a matrix of which the part on and above the diagonal is known."""
    order = np.arange(len(gram))
    return np.where(np.less.outer(order, order), gram, gram.T)


def _finite_but(finite: NDArray[np.bool_], clients: Sequence[Layers]) -> bool:
    """Tell whether all but the finite clients hold a number that is not finite itself.

    Else it is only not finite by what float32 makes of it.
    """
    left_out = np.flatnonzero(~finite).tolist()
    return not any(all(np.isfinite(part).all() for part in _parts(clients[i])) for i in left_out)


def _would_do(sums: Sums, clients: Sequence[Layers], origin: Sequence[NDArray[Any]] | None) -> bool:
    """Tell whether nothing overflowed in the updates' own precision, and no square vanished."""
    all_products = sums.gram, sums.inner, sums.squared_distance, sums.median_square
    if not all(np.isfinite(products).all() for products in all_products):
        return False
    # Squares of float32 below 1e-38 vanish; a mean square of 1e-28 is safely above. The products
    # of an update that is 0 throughout, as of a client that did not move, are exactly 0.
    small = np.flatnonzero(sums.squares <= 1e-28 * num_numbers(clients[0]))
    return all(sums.squares[i] == 0.0 and _is_zero(clients[i], origin) for i in small.tolist())


def _is_zero(layers: Layers, origin: Sequence[NDArray[Any]] | None) -> bool:
    """Tell whether an update's numbers are all 0 themselves, and not only what is computed of them.

    Squares of float64 may vanish, and differences to a global model of another precision.
    """
    if origin is None:
        return not any(part.any() for part in _parts(layers))
    return all(np.array_equal(*pair) for pair in zip(_parts(layers), _parts(origin), strict=True))


def _parts(layers: Sequence[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield flat layers so many columns at a time that what is told of each needs little memory."""
    for layer in layers:
        for start in range(0, layer.size, CHUNK):
            yield layer[start : start + CHUNK]


def _fill(
    name: str,
    joined: Joined,
    given: Callable[[ModuleType], tuple[Any, ...]],
    result: NDArray[Any],
    threads: int | None,
) -> bool:
    """Fill a flat result column by column; tell whether it could be done.

    Args:
        name: The compiled function.
        joined: The clients' numbers.
        given: Returns what else a task gives to the function.
        result: Where columns go.
        threads: Tasks at once.
    """
    kernels = _kernels()
    if kernels is None:
        return False
    fits = result.dtype == joined.dtype and result.flags.carray

    def carry_out(task: slice) -> None:
        settings = given(kernels)
        for where, columns in joined.columns(task):
            filled = result[where]
            into = filled if fits else np.empty(filled.size)
            _call(kernels, name, *columns, *settings, into)
            if not fits:
                filled[...] = into

    return _done(carry_out, joined.tasks(CHUNK), joined.worthwhile(threads))


def _done(task: Callable[[T], None], items: Sequence[T], threads: int | None) -> bool:
    """Carry out tasks and tell whether all of them could be."""
    try:
        for _ in in_order(task, items, threads):
            pass
    except Exception as error:  # an aid that fails in whatever way must not stop a round
        _warn_once("compiled code", error)
        return False
    return True


@lru_cache(maxsize=1)
def _kernels() -> ModuleType | None:
    """Return the compiled functions; None without Numba or a place to keep them.

    Why there are none is said once. Source and machine code both lie in the cache folder, by what
    the source is: another version of it does not load this one's.
    """
    try:
        import numba  # noqa: F401
    except Exception as error:  # a Numba that does not go with this NumPy may raise anything
        missing = isinstance(error, ModuleNotFoundError) and error.name == "numba"
        _warn_once("Numba", error, "pip install 'fedcrf[fast]'" if missing else MEND_NUMBA)
        return None
    source = Path(__file__).with_name("kernels.py").read_bytes()
    name = f"kernels_{hashlib.sha256(source).hexdigest()[:12]}"
    try:
        path = cache_folder() / "kernels" / f"{name}.py"
        # Whatever lies there otherwise is not what would be run.
        if not path.exists() or path.read_bytes() != source:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, source.decode("utf-8"))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where Numba looks for it when it loads what it has kept
        spec.loader.exec_module(module)
    except Exception as error:  # an aid that fails in whatever way must not stop a round
        _warn_once("cache", error, f"name a folder that can be written in {CACHE_VARIABLE}")
        return None
    return module


MEND_NUMBA = "mend or remove Numba"


def _warn_once(what: str, error: Exception, mend: str = "the plain pass does the same") -> None:
    """Say why there is no compiled pass; once in a process for each thing that can fail."""
    if what not in WARNED:
        WARNED.add(what)
        lines = str(error).strip().splitlines()
        reason = ": ".join([type(error).__name__, *lines[:1]])
        LOGGER.warning("rounds are aggregated by the slower, plain pass (%s): %s", reason, mend)


def _call(kernels: ModuleType, name: str, *arguments: Any) -> Any:
    """Call a compiled function; say how long it took where it had to be compiled first.

    Raises:
        Exception: Whatever the function, or its compilation, raises.
        RuntimeError: It failed before.
    """
    if name in FAILED:
        raise RuntimeError(f"{name} failed before")
    function = getattr(kernels, name)
    known, started = len(function.overloads), time.perf_counter()
    try:
        result = function(*arguments)
    except Exception:
        FAILED.add(name)
        raise
    made = sum(function.stats.cache_misses.values()) if len(function.overloads) > known else 0
    if made > TOLD.get(name, 0):  # else it was kept, or made for a task beside this one
        TOLD[name] = made
        LOGGER.warning(
            "compiled the statistics (%s) in %.1f s; kept for later",
            name,
            time.perf_counter() - started,
        )
    return result
