"""The second pass over d: the clients' models become one, by weights or by coordinate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import check_whole
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
        arrays: m NumPy arrays of one shape and dtype, or such tensors on a CUDA device. An array
            whose weight is zero is never read, so that it may hold NaN.
        weights: (m,) weights α.
        threads: Tasks worked on at once by compiled code; all cores by default. The result does
            not depend on it.
        out: Where to put the result, of the same shape and dtype and contiguous; it may be one of
            the arrays.

    Returns:
        An array of the same shape and dtype, or a tensor on the same device; integers are rounded
        to nearest.

    Raises:
        FedcrfError: No arrays, others than those, or ``out`` does not fit.
    """
    if _are_on_gpu(arrays):
        from fedcrf.statistics import on_gpu

        return on_gpu.weighted_average(arrays, weights, out)  # type: ignore[no-any-return]
    result = _flat_result(arrays[0], out)
    used = [(arrays[i].reshape(-1), weight) for i, weight in enumerate(weights) if weight != 0.0]
    flats = [flat for flat, _ in used]
    given = np.array([weight for _, weight in used])
    layers = [[flat] for flat in flats]
    suits = bool(used) and compiled.suits(layers)
    if not (suits and compiled.average_columns(layers, given, result, threads)):
        _average_blocks(used, result)
    return result.reshape(arrays[0].shape)


def _are_on_gpu(arrays: Sequence[Any]) -> bool:
    """Tell whether arrays are tensors on a CUDA device.

    Raises:
        FedcrfError: They are neither that nor NumPy arrays, differ in shape or dtype, or are none.
    """
    if len(arrays) == 0:
        raise FedcrfError("there are no arrays: give one for each client")
    first = arrays[0]
    of_numpy = type(first) is np.ndarray
    for client, array in enumerate(arrays):
        alike = of_numpy and type(array) is np.ndarray
        if alike and array.shape == first.shape and array.dtype == first.dtype:
            continue
        if not (isinstance(array, np.ndarray | np.generic) or is_on_gpu(array)):
            raise FedcrfError(
                f"the array of client {client} is a {type(array).__name__}: give NumPy arrays, "
                "which as_numpy makes, or tensors on a CUDA device"
            )
        if type(array) is not type(first) and is_on_gpu(array) != is_on_gpu(first):
            raise FedcrfError(
                f"the array of client {client} lies elsewhere than client 0's: "
                "give NumPy arrays alone, or tensors on a CUDA device alone"
            )
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            raise FedcrfError(
                f"the array of client {client} is {array.dtype} {tuple(array.shape)}, client 0's "
                f"{first.dtype} {tuple(first.shape)}: all must have one shape and dtype"
            )
    return is_on_gpu(first)


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
    width = max(1, min(BLOCK_NUMBERS // 4, result.size))
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
        arrays: As for `weighted_average`, all finite.
        threads: As for `weighted_average`.

    Returns:
        As `weighted_average`.

    Raises:
        FedcrfError: No arrays, or others than those.
    """
    if _are_on_gpu(arrays):
        from fedcrf.statistics import on_gpu

        return on_gpu.median_of(arrays)  # type: ignore[no-any-return]
    return _trimmed_mean_of(arrays, (len(arrays) - 1) // 2, coordinate_median, threads)


def trimmed_mean_of(
    arrays: Sequence[NDArray[Any]], trim: int, threads: int | None = None
) -> NDArray[Any]:
    """Return the mean of arrays in every coordinate without its ``trim`` least and greatest.

    Args:
        arrays: As for `median_of`.
        trim: Values cut on each side; 2 · trim < m.
        threads: As for `weighted_average`.

    Returns:
        As `weighted_average`.

    Raises:
        FedcrfError: No arrays, others than those, or nothing is left after the cut.
    """
    check_whole("trim", trim, least=0)
    on_device = _are_on_gpu(arrays)
    if 2 * trim >= len(arrays):
        raise FedcrfError(
            f"trim {trim} on each side leaves nothing of {len(arrays)} clients: "
            f"give at most {(len(arrays) - 1) // 2}"
        )
    if on_device:
        from fedcrf.statistics import on_gpu

        return on_gpu.trimmed_mean_of(arrays, trim)  # type: ignore[no-any-return]
    plain = partial(coordinate_trimmed_mean, trim=trim)
    return _trimmed_mean_of(arrays, trim, plain, threads)


def _trimmed_mean_of(
    arrays: Sequence[NDArray[Any]],
    trim: int,
    plain: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    threads: int | None,
) -> NDArray[Any]:
    """Return the trimmed mean by compiled code, or what the plain statistic of a block gives."""
    layers = [[array.reshape(-1)] for array in arrays]
    result = _flat_result(arrays[0], None)
    suits = compiled.suits(layers)
    if not (suits and compiled.trimmed_mean_columns(layers, trim, result, threads)):
        start = 0
        for block in blocks(layers, None):
            reduced = plain(block)
            stop = start + len(reduced)
            result[start:stop] = reduced if is_floating(result.dtype) else np.rint(reduced)
            start = stop
    return result.reshape(arrays[0].shape)
