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
from fedcrf.statistics.inputs import Layers, blocks, is_floating, is_on_gpu, library_of
from fedcrf.statistics.median import coordinate_median, coordinate_trimmed_mean

EXACT = 1 << 53
"""Beyond it float64 does not hold all integers. One that all clients have alike stays as it is."""


def weighted_average(
    arrays: Sequence[NDArray[Any]], weights: NDArray[np.float64], threads: int | None = None
) -> NDArray[Any]:
    """Return Σ α_i w_i; accumulates in float64.

    Args:
        arrays: m NumPy arrays of one shape and dtype, or such tensors on a CUDA device. An array
            whose weight is zero is never read, so that it may hold NaN.
        weights: (m,) weights α.
        threads: Tasks worked on at once by compiled code; all cores by default. The result does
            not depend on it.

    Returns:
        An array of the same shape and dtype, or a tensor on the same device; integers are rounded
        to nearest.

    Raises:
        FedcrfError: No arrays, others than those, or not one weight for each.
    """
    flats, shape = _flat(arrays)
    if len(weights) != len(flats):
        raise FedcrfError(f"{len(weights)} weights for {len(flats)} arrays: give one for each")
    used = np.flatnonzero(weights).tolist()
    if not used:
        return library_of(flats[0]).zeros_like(flats[0]).reshape(shape)  # type: ignore[no-any-return]
    chosen, given = [flats[i] for i in used], np.asarray(weights, np.float64)[used]
    fast, plain = partial(compiled.average, weights=given), partial(_sum, weights=given)
    return _by_coordinate(chosen, fast, plain, threads).reshape(shape)


def median_of(arrays: Sequence[NDArray[Any]], threads: int | None = None) -> NDArray[Any]:
    """Return the coordinate-wise median of arrays; the mean of the middle two for an even number.

    Arguments, result and errors are those of `weighted_average`; all arrays are finite.
    """
    flats, shape = _flat(arrays)
    fast = partial(compiled.trimmed_mean, trim=(len(flats) - 1) // 2)
    return _by_coordinate(flats, fast, coordinate_median, threads).reshape(shape)


def trimmed_mean_of(
    arrays: Sequence[NDArray[Any]], trim: int, threads: int | None = None
) -> NDArray[Any]:
    """Return the mean of arrays in every coordinate without its ``trim`` least and greatest.

    Arguments, result and errors are those of `median_of`.

    Raises:
        FedcrfError: Nothing is left after the cut, as 2 · trim ≥ m.
    """
    check_whole("trim", trim, least=0)
    flats, shape = _flat(arrays)
    if 2 * trim >= len(flats):
        raise FedcrfError(
            f"trim {trim} on each side leaves nothing of {len(flats)} clients: "
            f"give at most {(len(flats) - 1) // 2}"
        )
    fast = partial(compiled.trimmed_mean, trim=trim)
    plain = partial(coordinate_trimmed_mean, trim=trim)
    return _by_coordinate(flats, fast, plain, threads).reshape(shape)


def _flat(arrays: Sequence[Any]) -> tuple[Layers, tuple[int, ...]]:
    """Return arrays or tensors flat, and their shape.

    Raises:
        FedcrfError: They are neither NumPy arrays nor tensors on a CUDA device, differ in shape or
            dtype, or are none.
    """
    if len(arrays) == 0:
        raise FedcrfError("there are no arrays: give one for each client")
    first, of_tensors = arrays[0], is_on_gpu(arrays[0])
    for client, array in enumerate(arrays):
        on_gpu = is_on_gpu(array)
        if not (on_gpu or isinstance(array, (np.ndarray, np.generic))):
            raise FedcrfError(
                f"the array of client {client} is a {type(array).__name__}: give NumPy arrays, "
                "which as_numpy makes, or tensors on a CUDA device"
            )
        if on_gpu != of_tensors:
            raise FedcrfError(
                f"the array of client {client} lies elsewhere than client 0's: "
                "give NumPy arrays alone, or tensors on a CUDA device alone"
            )
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            raise FedcrfError(
                f"the array of client {client} is {array.dtype} {tuple(array.shape)}, client 0's "
                f"{first.dtype} {tuple(first.shape)}: all must have one shape and dtype"
            )
    return [array.reshape(-1) for array in arrays], tuple(first.shape)


def _by_coordinate(
    flats: Layers,
    fast: Callable[..., NDArray[Any] | None],
    plain: Callable[[Any], Any],
    threads: int | None,
) -> NDArray[Any]:
    """Return m flat arrays reduced to one, (d,), coordinate by coordinate.

    ``fast`` is compiled code for whole arrays, and returns None where it cannot be used. Then
    ``plain`` makes (b,) numbers of each (m, b) block of columns.
    """
    clients = [[flat] for flat in flats]
    found = fast(clients, threads=threads)
    if found is not None:
        return found
    result: NDArray[Any] = library_of(flats[0]).empty_like(flats[0])
    for where, block in blocks(clients):
        columns = plain(block)
        with np.errstate(over="ignore", invalid="ignore"):  # infinity shows that a model diverges
            result[where] = columns if is_floating(result.dtype) else columns.round()
    if isinstance(result, np.ndarray) and result.dtype in (np.int64, np.uint64):
        alike = np.logical_and.reduce([flat == flats[0] for flat in flats])
        beyond = (flats[0] > EXACT) | (flats[0] < -EXACT)
        np.copyto(result, flats[0], where=alike & beyond)
    return result


def _sum(block: Any, weights: NDArray[np.float64]) -> Any:
    """Return Σ α_i times row i of a block, added up in their order."""
    total: Any = 0.0
    for row, weight in zip(block, weights.tolist(), strict=True):
        total += row * weight
    return total
