"""The passes themselves: cut into tasks for compiled functions, and their sums put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics.compiled.columns import LayerRows
from fedcrf.statistics.compiled.few import TILE
from fedcrf.statistics.compiled.loading import call, load, warn_once
from fedcrf.statistics.count_sketch import CountSketch
from fedcrf.statistics.inputs import Layers, is_floating, num_numbers
from fedcrf.statistics.sums import Sums
from fedcrf.statistics.threads import default_threads, in_order

MOST_WRITTEN_OUT = 16
"""Most clients that functions are written out for; beyond, columns do not fit in registers, and the
compiler takes its time."""

FEWEST_NUMBERS = 1_000_000
"""m · d below which loading costs more than it saves."""

FEWEST_RANKED = 1 << 17
"""Numbers of which finding the greatest is not worth loading."""

FEWEST_PRODUCTS = 1 << 12
"""Inner products that are not worth loading."""

CHUNK = 1 << 17
"""Columns in a task for few clients. Fixed, so that sums do not depend on the number of threads."""

CHUNK_OF_MANY = 1 << 14
"""Columns in a task for many clients; a task has a Gram matrix of its own."""

CHUNK_WITHOUT_PRODUCTS = 1 << 12
"""Columns in a task for many clients that has none."""

CHUNK_WITH_SKETCHES = 1 << 14
"""Columns in a task that has sketches of its own."""

MOST_SKETCHED_IN_CACHE = 4096
"""Clients up to which columns are sketched while they lie in cache; of more, a block has so few
columns that it is faster to come back to each client's."""

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
    """Sum Gram matrix, inner products with the median and distances to it, over all columns.

    Args:
        clients: m lists of flat layers that `suits` accepts.
        origin: Flat layers of the global model to take away; none where the layers are updates.
        threads: Tasks carried out at once, all cores by default; no part of the result.
        products: Whether the Gram matrix is wanted.
        sketch: What the updates and their median are sketched by; not where left out. Not together
            with products.

    Returns:
        (m,) bool, whether each update is finite, and the sums, which count where all are. None
        where there is no compiler, or where float32 would not do: a product or a distance that
        overflows, or squares that vanish. The plain way then gives the answer.
    """
    module = _module(clients) if products else load(None)
    name = "gather" if sketch is None else "gather_sketched"
    gathered = _gather(module, name, clients, origin, threads, products, sketch)
    if gathered is None:
        return None
    finite, squares, gram, inner, squared_distance, *sketched, median_square = gathered
    sketches = sketched[0] if sketched else np.zeros((0, 0))
    if sketch is not None and finite.all() and len(clients) > MOST_SKETCHED_IN_CACHE:
        theirs = sketch_columns(clients, origin, sketch, threads)
        if theirs is None:
            return None
        sketches = np.vstack([theirs, sketches])
    sums = Sums(squares, gram, inner, squared_distance, sketches, float(median_square))
    if finite.all() and not _would_do(sums, clients, origin):
        return None
    return finite, sums


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


def sum_centred(
    clients: Sequence[Layers], origin: Sequence[NDArray[Any]] | None, threads: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.float64]] | None:
    """Sum the Gram matrix of the updates about their mean, in float64; see `sum_columns`."""
    gathered = _gather(load(None), "gather_centred", clients, origin, threads)
    if gathered is None:
        return None
    finite, _, gram, *_ = gathered
    return finite, gram


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
    module = load(None)
    if module is None:
        return None
    sums = np.zeros((len(clients), sketch.size))

    def carry_out(mine: slice) -> None:
        everyone = [*clients[mine]] if origin is None else [*clients[mine], origin]
        count, before = len(clients[mine]), 0
        for rows in zip(*everyone, strict=True):
            layer, size_of_layer = LayerRows([*rows]), rows[0].size
            for start in range(0, size_of_layer, CHUNK_OF_MANY):
                stop = min(start + CHUNK_OF_MANY, size_of_layer)
                for part in layer.columns(start, stop):
                    where, first = part.addresses, before + part.start
                    base = int(where[count]) if origin is not None else 0
                    now = sketch.signs(first, before + part.stop)
                    given = where[:count], base, part.like, len(now), first, sketch.shifts, now
                    call(module, "sketch", *given, sums[mine])
            before += size_of_layer

    each = -(-len(clients) // (threads or default_threads()))
    shares = [slice(start, start + each) for start in range(0, len(clients), each)]
    return sums if _done(carry_out, shares, threads) else None


def greatest_places(block: NDArray[Any], k: int) -> NDArray[np.int64] | None:
    """Return (b, k) places of each row's k greatest numbers, in any order; of equal ones the first.

    Args:
        block: (b, n) float32 or float64, of which more than k a row are no −∞, and none is NaN.
        k: At least 1.

    Returns:
        The places; None where there is no compiler, or little to do.
    """
    module = load(None) if block.size >= FEWEST_RANKED else None
    if module is None:
        return None
    places = np.zeros((len(block), k), np.int64)
    return places if _done(lambda _: call(module, "greatest", block, places), [0], 1) else None


def products_at(
    vectors: NDArray[np.float32], rows: NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return (b, k) inner products of (b,) vectors with those at (b, k) places."""
    found = np.empty(places.shape, vectors.dtype)
    module = load(None) if places.size >= FEWEST_PRODUCTS else None
    given = vectors, rows, places, found
    if module is None or not _done(lambda _: call(module, "products", *given), [0], 1):
        for row, place, into in zip(rows, places, found, strict=True):
            into[:] = vectors[place] @ vectors[row]
    return found


def average_columns(
    flats: Layers, weights: NDArray[np.float64], result: NDArray[Any], threads: int | None
) -> bool:
    """Fill a flat result with Σ α_i w_i of flat arrays that `suits` accepts, summed in float64.

    Returns:
        Whether it could be done; not without a compiler.
    """
    return _fill(_module(flats), "average", flats, result, threads, np.array(weights, np.float64))


def median_columns(flats: Layers, result: NDArray[Any], threads: int | None) -> bool:
    """Fill a flat result with the coordinate-wise median of finite arrays, as an average."""
    return _fill(_module(flats), "median", flats, result, threads)


def trimmed_mean_columns(
    flats: Layers, trim: int, result: NDArray[Any], threads: int | None
) -> bool:
    """Fill a flat result with the coordinate-wise trimmed mean; see `median_columns`."""
    return _fill(_module(flats, trim), "trimmed_mean", flats, result, threads, trim)


def _module(clients: Sequence[Any], trim: int | None = None) -> ModuleType | None:
    """Return the functions for so many clients."""
    return load(len(clients), trim) if len(clients) <= MOST_WRITTEN_OUT else load(None)


def _gather(
    module: ModuleType | None,
    name: str,
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]] | None,
    threads: int | None,
    products: bool = True,
    sketch: CountSketch | None = None,
) -> list[Any] | None:
    """Carry out a pass: who is finite, squares, the Gram matrix, other sums, what was returned."""
    if module is None:
        return None
    m = len(clients)
    padded = -(-m // TILE) * TILE if products else 0
    everyone = [*clients] if origin is None else [*clients, origin]
    layers = [LayerRows([*rows]) for rows in zip(*everyone, strict=True)]
    sizes = [layer.size for layer in clients[0]]
    before = [sum(sizes[:number]) for number in range(len(sizes))]
    precision = np.result_type(*(layer.dtype for layer in layers))
    in_cache = m <= MOST_SKETCHED_IN_CACHE

    def carry_out(task: tuple[int, int, int]) -> list[NDArray[Any]]:
        number, start, stop = task
        sums = [np.zeros(m), np.zeros((padded, padded))]
        if name != "gather_centred":
            sums += [np.zeros(m), np.zeros(m)]
        if sketch is not None:
            sums.append(np.zeros((m + 1 if in_cache else 1, sketch.size), precision))
        returned = np.zeros(())
        for part in layers[number].columns(start, stop):
            where = part.addresses
            base = where[m] if origin is not None else 0
            size = part.stop - part.start
            given: list[Any] = [*sums]
            if sketch is not None:
                first = before[number] + part.start
                given += [sketch.shifts, sketch.signs(first, first + size), first]
            returned += call(module, name, where[:m], int(base), part.like, size, *given) or 0.0
        return [*sums, returned]

    width = CHUNK if m <= MOST_WRITTEN_OUT else CHUNK_OF_MANY
    if not products:
        width = CHUNK_WITH_SKETCHES if sketch is not None and in_cache else CHUNK_WITHOUT_PRODUCTS
    tasks = [
        (number, start, min(start + width, layer.size))
        for number, layer in enumerate(clients[0])
        for start in range(0, layer.size, width)
    ]
    totals: list[NDArray[Any]] = []
    try:
        for sums in in_order(carry_out, tasks, threads):
            totals = totals or sums
            if totals is not sums:
                for total, each in zip(totals, sums, strict=True):
                    total += each
    except Exception as error:  # an aid that fails in whatever way must not stop a round
        warn_once("compiled code", error)
        return None
    squares, gram, *others = totals
    finite = np.isfinite(squares)
    if not all(_holds_not_finite(clients[i]) for i in np.flatnonzero(~finite).tolist()):
        return None
    if products:
        gram = np.triu(gram[:m, :m], 1)
        gram += gram.T
        np.fill_diagonal(gram, squares if name != "gather_centred" else np.diagonal(totals[1])[:m])
    return [finite, squares, gram, *others]


def _holds_not_finite(layers: Layers) -> bool:
    """Tell whether a number is not finite itself, and not only what float32 makes of it."""
    return not all(np.isfinite(part).all() for part in _parts(layers))


def _parts(layers: Sequence[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield flat layers so many columns at a time that what is told of each needs little memory."""
    for layer in layers:
        for start in range(0, layer.size, CHUNK):
            yield layer[start : start + CHUNK]


def _fill(
    module: ModuleType | None,
    name: str,
    flats: Layers,
    result: NDArray[Any],
    threads: int | None,
    *settings: Any,
) -> bool:
    """Fill a flat result column by column; tell whether it could be done."""
    if module is None:
        return False

    layer = LayerRows(flats)

    def carry_out(start: int) -> None:
        for part in layer.columns(start, min(start + CHUNK, result.size)):
            filled = result[part.start : part.stop]
            fits = filled.dtype == part.like.dtype and filled.flags.carray
            into = filled if fits else np.empty(filled.size)
            call(module, name, part.addresses, *settings, part.like, filled.size, into)
            if not fits:
                filled[...] = into

    return _done(carry_out, range(0, result.size, CHUNK), threads)


def _done(task: Callable[[T], None], items: Sequence[T], threads: int | None) -> bool:
    """Carry out tasks and tell whether all of them could be."""
    try:
        for _ in in_order(task, items, threads):
            pass
    except Exception as error:  # an aid that fails in whatever way must not stop a round
        warn_once("compiled code", error)
        return False
    return True
