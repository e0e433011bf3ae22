"""The second pass over d: the weighted average of the clients' models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics.one_pass import BLOCK_NUMBERS


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
