"""The second pass over d: the clients' models become one, by weights or by coordinate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics import kernel
from fedcrf.statistics.one_pass import BLOCK_NUMBERS, blocks


def weighted_average(
    arrays: Sequence[NDArray[Any]], weights: NDArray[np.float64], threads: int | None = None
) -> NDArray[Any]:
    """Return Σ α_i w_i for one array of the model; accumulates in float64.

    Args:
        arrays: m arrays of one shape and dtype. An array whose weight is zero is never read, so
            that it may hold NaN.
        weights: (m,) weights α.
        threads: Blocks worked on at once by compiled code; all cores by default. The result does
            not depend on it.

    Returns:
        An array of the same shape and dtype; integers are rounded to nearest.
    """
    first = arrays[0]
    used = [index for index, weight in enumerate(weights) if weight != 0.0]
    if used:
        # A stand-in with weight zero keeps the number of rows, for which the code was compiled.
        flats = [
            arrays[index if weight != 0.0 else used[0]].reshape(-1)
            for index, weight in enumerate(weights)
        ]
        if kernel.suits([[flat] for flat in flats]):
            threads = threads or kernel.default_threads()
            compiled = kernel.average_columns(flats, weights, threads)
            if compiled is not None:
                return compiled.reshape(first.shape)
    return _average_by_blocks([(arrays[i].reshape(-1), weights[i]) for i in used], first)


def _average_by_blocks(
    used: Sequence[tuple[NDArray[Any], float]], first: NDArray[Any]
) -> NDArray[Any]:
    result = np.empty(first.size, dtype=first.dtype)
    exact = first.dtype.kind != "f"
    width = BLOCK_NUMBERS // 4
    total = np.empty(width)
    term = np.empty(width)
    for start in range(0, first.size, width):
        columns = slice(start, min(start + width, first.size))
        size = columns.stop - columns.start
        total[:size] = 0.0
        for flat, weight in used:
            np.multiply(flat[columns], weight, out=term[:size], casting="unsafe")
            total[:size] += term[:size]
        result[columns] = np.rint(total[:size]) if exact else total[:size]
    return result.reshape(first.shape)


def coordinatewise(
    arrays: Sequence[NDArray[Any]], statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> NDArray[Any]:
    """Return one array of the model reduced coordinate by coordinate, a block at a time.

    Args:
        arrays: m arrays of one shape and dtype, finite.
        statistic: Takes an (m, b) block to (b,) numbers, such as `coordinate_median`.

    Returns:
        An array of the same shape and dtype; integers are rounded to nearest.
    """
    first = arrays[0]
    result = np.empty(first.size, dtype=first.dtype)
    start = 0
    for block in blocks([[array.reshape(-1)] for array in arrays], None):
        reduced = statistic(block)
        stop = start + len(reduced)
        result[start:stop] = reduced if first.dtype.kind == "f" else np.rint(reduced)
        start = stop
    return result.reshape(first.shape)
