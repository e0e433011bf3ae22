"""The second pass over d: the clients' models become one, by weights or by coordinate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.statistics import compiled
from fedcrf.statistics.inputs import is_floating, is_on_gpu
from fedcrf.statistics.median import coordinate_median, coordinate_trimmed_mean
from fedcrf.statistics.one_pass import BLOCK_NUMBERS, blocks


def weighted_average(
    arrays: Sequence[NDArray[Any]],
    weights: NDArray[np.float64],
    threads: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return Σ α_i w_i for one array of the model; accumulates in float64.

    Args:
        arrays: m arrays of one shape and dtype, or tensors on a CUDA device. An array whose weight
            is zero is never read, so that it may hold NaN.
        weights: (m,) weights α.
        threads: Tasks worked on at once by compiled code; all cores by default. The result does
            not depend on it.
        out: Where to put the result, of the same shape and dtype and contiguous; it may be one of
            the arrays.

    Returns:
        An array of the same shape and dtype; integers are rounded to nearest.

    Raises:
        FedcrfError: ``out`` does not fit.
    """
    if is_on_gpu(arrays[0]):
        from fedcrf.statistics import on_gpu

        return on_gpu.weighted_average(arrays, weights, out)  # type: ignore[no-any-return]
    result = _flat_result(arrays[0], out)
    used = [index for index, weight in enumerate(weights) if weight != 0.0]
    if used:
        # A stand-in with weight zero keeps the number of rows, for which the code was compiled.
        flats = [
            arrays[index if weight != 0.0 else used[0]].reshape(-1)
            for index, weight in enumerate(weights)
        ]
        suits = compiled.suits([[flat] for flat in flats])
        if suits and compiled.average_columns(flats, weights, result, threads):
            return result.reshape(arrays[0].shape)
    _average_blocks([(arrays[i].reshape(-1), weights[i]) for i in used], result)
    return result.reshape(arrays[0].shape)


def _flat_result(like: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
    """Return flat memory for a result, that of ``out`` where it is given."""
    if out is None:
        return np.empty(like.size, dtype=like.dtype)
    if (out.shape, out.dtype) != (like.shape, like.dtype) or not out.flags.c_contiguous:
        raise FedcrfError(
            f"out is {out.dtype} {out.shape}: give a contiguous {like.dtype} array of {like.shape}"
        )
    return out.reshape(-1)


def _average_blocks(used: Sequence[tuple[NDArray[Any], float]], result: NDArray[Any]) -> None:
    exact = not is_floating(result.dtype)
    width = BLOCK_NUMBERS // 4
    total = np.empty(width)
    term = np.empty(width)
    for start in range(0, result.size, width):
        columns = slice(start, min(start + width, result.size))
        size = columns.stop - columns.start
        total[:size] = 0.0
        for flat, weight in used:
            np.multiply(flat[columns], weight, out=term[:size], casting="unsafe")
            total[:size] += term[:size]
        result[columns] = np.rint(total[:size]) if exact else total[:size]


def median_of(arrays: Sequence[NDArray[Any]], threads: int | None = None) -> NDArray[Any]:
    """Return the coordinate-wise median of arrays; the mean of the middle two for an even number.

    Args:
        arrays: m finite arrays of one shape and dtype.
        threads: As for `weighted_average`.

    Returns:
        An array of the same shape and dtype; integers are rounded to nearest.
    """
    flats = [array.reshape(-1) for array in arrays]
    result = _flat_result(arrays[0], None)
    suits = compiled.suits([[flat] for flat in flats])
    if not (suits and compiled.median_columns(flats, result, threads)):
        _reduce_blocks(flats, coordinate_median, result)
    return result.reshape(arrays[0].shape)


def trimmed_mean_of(
    arrays: Sequence[NDArray[Any]], trim: int, threads: int | None = None
) -> NDArray[Any]:
    """Return the mean of arrays in every coordinate without its ``trim`` least and greatest.

    Args:
        arrays: As for `median_of`.
        trim: Values cut on each side; 2 · trim < m.
        threads: As for `weighted_average`.

    Returns:
        An array of the same shape and dtype; integers are rounded to nearest.
    """
    flats = [array.reshape(-1) for array in arrays]
    result = _flat_result(arrays[0], None)
    suits = compiled.suits([[flat] for flat in flats])
    if not (suits and compiled.trimmed_mean_columns(flats, trim, result, threads)):
        _reduce_blocks(flats, lambda block: coordinate_trimmed_mean(block, trim), result)
    return result.reshape(arrays[0].shape)


def _reduce_blocks(
    flats: Sequence[NDArray[Any]],
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    result: NDArray[Any],
) -> None:
    """Fill the result with a statistic of every coordinate, a block at a time."""
    start = 0
    for block in blocks([[flat] for flat in flats], None):
        reduced = statistic(block)
        stop = start + len(reduced)
        result[start:stop] = reduced if is_floating(result.dtype) else np.rint(reduced)
        start = stop
