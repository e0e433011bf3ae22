"""The second pass over d: the clients' models become one, by weights or by coordinate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics.one_pass import BLOCK_NUMBERS, blocks


def weighted_average(arrays: Sequence[NDArray[Any]], weights: NDArray[np.float64]) -> NDArray[Any]:
    """Return Σ α_i w_i for one array of the model; accumulates in float64.

    Args:
        arrays: m arrays of one shape and dtype. An array whose weight is zero is never read, so
            that it may hold NaN.
        weights: (m,) weights α.

    Returns:
        An array of the same shape and dtype; integers are rounded to nearest.
    """
    used = [
        (array.reshape(-1), weight)
        for array, weight in zip(arrays, weights, strict=True)
        if weight != 0.0
    ]
    first = arrays[0]
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
