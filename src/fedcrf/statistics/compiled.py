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
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.files import CACHE_VARIABLE, cache_folder, write_text
from fedcrf.statistics.inputs import (
    Layers,
    Origin,
    bring_columns,
    finite_clients,
    is_floating,
    num_numbers,
)
from fedcrf.statistics.median import sorting_network
from fedcrf.statistics.sums import AboutMedian
from fedcrf.statistics.threads import default_threads, in_order

if TYPE_CHECKING:
    from fedcrf.statistics.sketches import CountSketch

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

GIVEN_UP: list[str] = []
"""Why this process does without compiled code: what failed once is not tried again."""

TOLD: dict[str, int] = {}
"""How often the compilation of each function has been announced."""

P = ParamSpec("P")
R = TypeVar("R")


def _where_it_can(
    work: Callable[Concatenate[ModuleType, Sequence[Layers], P], R | None],
) -> Callable[Concatenate[Sequence[Layers], P], R | None]:
    """Wrap ``work`` to return None where compiled code cannot do it; callers then do it plainly.

    Compiled code is not used for few numbers, for tensors, and for numbers other than floats of at
    most 8 bytes. Where it fails, the reason is logged once in a process, and it is not used again.
    """

    def tried(clients: Sequence[Layers], /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if GIVEN_UP or not _suits(clients):
            return None
        try:
            return work(_kernels(), clients, *args, **kwargs)
        except Exception as error:  # an aid that fails in whatever way must not stop a round
            mend = getattr(error, "__notes__", ["the plain pass does the same"])[-1]
            reason = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
            if not GIVEN_UP:
                LOGGER.warning(
                    "rounds are aggregated by the slower, plain pass (%s): %s", reason, mend
                )
            GIVEN_UP.append(reason)
            return None

    return tried


def _suits(clients: Sequence[Layers]) -> bool:
    """Tell whether there is enough to do in these layers, and nothing but floats."""
    return (
        len(clients) > 0
        and len(clients) * num_numbers(clients[0]) >= FEWEST_NUMBERS
        and all(
            isinstance(layer, np.ndarray) and is_floating(layer.dtype) and layer.dtype.itemsize <= 8
            for layer in clients[0]
        )
    )


@_where_it_can
def about_median(
    kernels: ModuleType,
    clients: Sequence[Layers],
    origin: Origin,
    threads: int | None,
    products: bool = True,
) -> AboutMedian | None:
    """Do what `AboutMedian.plain` does; the number of threads changes no bit.

    None where float32 would not do: a product or a distance overflows, or squares vanish.
    """
    m, joined = len(clients), Joined(clients, origin)
    room = partial(kernels.room, dtype=joined.dtype, like=joined.dtype)
    if products:
        median = np.empty(0, joined.dtype)
        steps, kept = _network(m, range((m - 1) // 2, m // 2 + 1), top=m + 1)
        side = m + 1 + kernels.TILE_ROWS
        squares, gram, squared_distance = _add_up(
            kernels.gather,
            joined,
            _width(m),
            threads,
            sums=(m + 1, (side, side), m + 1),
            room=partial(room, 2 * m + 3),
            given=lambda _: (steps, kept),
        )
        inner = gram[:m, m].copy()
        gram = _symmetric(gram[:m, :m])
        np.fill_diagonal(gram, squares[:m])
    else:
        gram, median = np.zeros((0, 0)), np.empty(joined.size, joined.dtype)
        whole = np.empty(0, f"i{joined.dtype.itemsize}")
        squares, inner, squared_distance = _add_up(
            kernels.gather_crowd,
            joined,
            CHUNK_WITHOUT_PRODUCTS,
            threads,
            sums=(m + 1, m, m + 1),
            room=partial(room, m),
            given=lambda where: (whole, median[where]),
        )
    sums = AboutMedian(squares[:m], gram, inner, squared_distance[:m], float(squares[m]), median)
    would_do = _are_not_numbers(clients, sums.finite) and (
        not sums.finite.all() or _nothing_is_lost(sums, clients, origin)
    )
    return sums if would_do else None


@_where_it_can
def about_mean(
    kernels: ModuleType, clients: Sequence[Layers], origin: Origin, threads: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Do what `fedcrf.statistics.sums.about_mean` does, in float64; see `about_median`."""
    m, joined = len(clients), Joined(clients, origin)
    side = m + kernels.TILE_ROWS
    squares, gram = _add_up(
        kernels.gather_centred,
        joined,
        _width(m),
        threads,
        sums=(m, (side, side)),
        room=partial(kernels.room, m, np.float64, joined.dtype),
    )
    whole = _are_not_numbers(clients, np.isfinite(squares))
    return (squares, _symmetric(gram[:m, :m])) if whole else None


@_where_it_can
def sketches(
    kernels: ModuleType,
    clients: Sequence[Layers],
    origin: Origin,
    draws: CountSketch,
    threads: int | None,
) -> NDArray[np.float64]:
    """Return the (m, size) count sketches of vectors, to the bit those of the plain way.

    Each thread takes some of the clients.
    """
    sums = np.zeros((len(clients), draws.size))

    def sketch(mine: slice) -> None:
        def given(where: slice) -> tuple[Any, ...]:
            signs = draws.signs(where.start, where.stop)
            return where.start, draws.shifts, signs, sums[mine]

        _add_up(kernels.sketch, Joined(clients[mine], origin), SKETCHED, 1, given=given)

    threads = _worthwhile(threads, len(clients) * num_numbers(clients[0]))
    each = -(-len(clients) // threads)
    list(in_order(sketch, [slice(i, i + each) for i in range(0, len(clients), each)], threads))
    return sums


@_where_it_can
def average(
    kernels: ModuleType,
    clients: Sequence[Layers],
    weights: NDArray[np.float64],
    threads: int | None,
) -> NDArray[Any]:
    """Return (d,) Σ α_i w_i of flat layers, summed in float64, in their dtype."""
    return _filled(kernels.average, clients, threads, given=(weights,))


@_where_it_can
def trimmed_mean(
    kernels: ModuleType, clients: Sequence[Layers], trim: int, threads: int | None
) -> NDArray[Any]:
    """Return (d,) the coordinate-wise trimmed mean of finite layers, as an average.

    The mean of what the largest cut leaves is the median.
    """
    m, dtype = len(clients), Joined(clients).dtype
    room = partial(kernels.room, m + 2, dtype, dtype)
    network = _network(m, range(trim, m - trim))
    return _filled(kernels.trimmed_mean, clients, threads, room, network)


def _width(m: int) -> int:
    """Return how many columns a task has in which products of m clients are summed."""
    return CHUNK if m <= MOST_IN_LONG_TASKS else CHUNK_OF_MANY


@lru_cache(maxsize=8)  # for 10,000 clients one takes 12 MiB
def _network(m: int, ranks: range, top: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a sorting network as compiled code takes it: steps, and the rows of the ranks wanted.

    It sorts m rows from ``top`` on, with two more after the last: a step (a, b, lesser, greater)
    compares two rows and writes to two others, which were compared in the step before.
    """
    rows, steps = [*range(top, top + m)], []
    spare = top + m, top + m + 1
    for i, j in sorting_network(m, ranks.start, ranks.stop):
        compared = rows[i], rows[j]
        steps.append([*compared, *spare])
        (rows[i], rows[j]), spare = spare, compared
    table = np.array(steps, np.int64).reshape(-1, 4)
    return table, np.array([rows[rank] for rank in ranks], np.int64)


Columns = tuple[tuple[NDArray[Any], ...], int, int]
"""Columns as compiled code takes them: layers by their addresses, the first column, one past it."""


class Joined:
    """The clients' layers, joined to one row of d numbers a client.

    Where all are contiguous and of one dtype, compiled code reads them as they lie; else some
    columns at a time are converted. How numbers are cut into layers changes no bit of a sum.

    Attributes:
        size: d.
        numbers: m · d.
        dtype: What is computed in: float64 where a layer of the clients is, else float32.
    """

    def __init__(self, clients: Sequence[Layers], origin: Origin = None) -> None:
        self._has_origin = origin is not None
        # Compiled code knows them by addresses alone, so they are held here.
        self._rows = [*clients] if origin is None else [*clients, origin]
        self.size = num_numbers(clients[0])
        self.numbers = len(clients) * self.size
        self.dtype = np.dtype(f"f{max(4, *(layer.dtype.itemsize for layer in clients[0]))}")
        ready = all(
            layer.dtype == self.dtype and layer.flags.c_contiguous and layer.flags.aligned
            for row in self._rows
            for layer in row
        )
        self._layers = self._of(self._rows) if ready else None

    def _of(self, rows: Sequence[Sequence[NDArray[Any]]]) -> tuple[NDArray[Any], ...]:
        """Return layers as compiled code takes them; see `fedcrf.statistics.kernels`."""
        addresses = [[layer.ctypes.data for layer in row] for row in rows]
        if not self._has_origin:
            addresses.append([0] * len(rows[0]))
        return (
            np.array(addresses, np.int64).T.copy(),
            np.cumsum([layer.size for layer in rows[0]]),
            np.empty(0, self.dtype),
        )

    def columns(self, task: slice) -> Iterator[tuple[slice, Columns]]:
        """Yield a task's columns as compiled code takes them, and which they are."""
        if self._layers is not None:
            yield task, (self._layers, task.start, task.stop)
            return
        for start in range(task.start, task.stop, CONVERTED):
            stop = min(start + CONVERTED, task.stop)
            block = np.empty((len(self._rows), stop - start), self.dtype)
            bring_columns(self._rows, start, block)
            yield slice(start, stop), (self._of([[row] for row in block]), 0, stop - start)


def _worthwhile(threads: int | None, numbers: int) -> int:
    """Return how many threads are worth starting for so many numbers."""
    return min(threads or default_threads(), max(1, numbers // NUMBERS_OF_A_THREAD))


def _add_up(
    function: Callable[..., None],
    joined: Joined,
    width: int,
    threads: int | None,
    sums: Sequence[int | tuple[int, ...]] = (),
    room: Callable[[], tuple[Any, ...]] = tuple,
    given: Callable[[slice], tuple[Any, ...]] = lambda _: (),
) -> list[NDArray[np.float64]]:
    """Carry out a compiled function over all columns; add up what tasks find, in their order.

    Args:
        function: Called as ``function(layers, start, stop, *sums, *room, *given)``; the first three
            are `Columns`.
        joined: The clients' layers.
        width: How many columns a task has.
        threads: Tasks at once.
        sums: Shapes of the arrays that a task adds to.
        room: Makes what a task works in.
        given: From columns to what else the function takes of them.
    """

    def carry_out(task: slice) -> list[NDArray[np.float64]]:
        found, working = [np.zeros(shape) for shape in sums], room()
        for where, (layers, start, stop) in joined.columns(task):
            _call(function, layers, start, stop, *found, *working, *given(where))
        return found

    totals: list[NDArray[np.float64]] = []
    tasks = [slice(i, min(i + width, joined.size)) for i in range(0, joined.size, width)]
    for found in in_order(carry_out, tasks, _worthwhile(threads, joined.numbers)):
        if not totals:
            totals = found
            continue
        # Beyond the clients' own entries a Gram matrix holds whatever lay in memory.
        with np.errstate(over="ignore", invalid="ignore"):
            for total, each in zip(totals, found, strict=True):
                total += each
    return totals


def _filled(
    function: Callable[..., None],
    clients: Sequence[Layers],
    threads: int | None,
    room: Callable[[], tuple[Any, ...]] = tuple,
    given: tuple[Any, ...] = (),
) -> NDArray[Any]:
    """Return what a compiled function makes of each column, in the clients' dtype."""
    joined, dtype = Joined(clients), clients[0][0].dtype
    result = np.empty(joined.size, dtype if dtype == joined.dtype else np.float64)
    _add_up(
        function, joined, CHUNK, threads, room=room, given=lambda where: (*given, result[where])
    )
    return result.astype(dtype, copy=False)


def _symmetric(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a matrix of which the part on and above the diagonal is known."""
    order = np.arange(len(gram))
    return np.where(np.less.outer(order, order), gram, gram.T)


def _are_not_numbers(clients: Sequence[Layers], finite: NDArray[np.bool_]) -> bool:
    """Tell whether each of the others holds a number that is not finite itself.

    Else it is only not finite by what float32 makes of it.
    """
    return not finite_clients([clients[i] for i in np.flatnonzero(~finite).tolist()]).any()


def _nothing_is_lost(sums: AboutMedian, clients: Sequence[Layers], origin: Origin) -> bool:
    """Tell whether nothing overflowed in the updates' own precision, and no square vanished."""
    all_products = sums.gram, sums.inner, sums.squared_distance, sums.median_square
    if not all(np.isfinite(products).all() for products in all_products):
        return False
    # Squares of float32 below 1e-38 vanish; a mean square of 1e-28 is safely above. The products
    # of an update that is 0 throughout, as of a client that did not move, are exactly 0.
    small = np.flatnonzero(sums.squares <= 1e-28 * num_numbers(clients[0]))
    return all(sums.squares[i] == 0.0 and _is_zero(clients[i], origin) for i in small.tolist())


def _is_zero(layers: Layers, origin: Origin) -> bool:
    """Tell whether an update's numbers are all 0 themselves, and not only what is computed of them.

    Squares of float64 may vanish, and differences to a global model of another precision.
    """
    if origin is None:
        return not any(layer.any() for layer in layers)
    return all(np.array_equal(*pair) for pair in zip(layers, origin, strict=True))


@lru_cache(maxsize=1)
def _kernels() -> ModuleType:
    """Return the compiled functions.

    Source and machine code both lie in the cache folder, by what the source is: another version of
    it does not load this one's.

    Where there is no Numba, or no place to keep them, an error's note says what helps.
    """
    try:
        import numba  # noqa: F401
    except Exception as error:  # a Numba that does not go with this NumPy may raise anything
        missing = isinstance(error, ModuleNotFoundError) and error.name == "numba"
        error.add_note("pip install 'fedcrf[fast]'" if missing else "mend or remove Numba")
        raise
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
    except Exception as error:
        error.add_note(f"name a folder that can be written in {CACHE_VARIABLE}")
        raise
    return module


def _call(function: Any, *arguments: Any) -> None:
    """Call a compiled function; say how long it took where it had to be compiled first."""
    known, started = len(function.overloads), time.perf_counter()
    try:
        function(*arguments)
    except (EOFError, pickle.UnpicklingError) as error:  # of what Numba has kept
        kept = Path(function.py_func.__code__.co_filename).parent
        error.add_note(f"remove {kept}, in which a file is damaged")
        raise
    made = sum(function.stats.cache_misses.values()) if len(function.overloads) > known else 0
    if made > TOLD.get(function.__name__, 0):  # else it was kept, or made for a task beside this
        TOLD[function.__name__] = made
        LOGGER.warning(
            "compiled the statistics (%s) in %.1f s; kept for later",
            function.__name__,
            time.perf_counter() - started,
        )
