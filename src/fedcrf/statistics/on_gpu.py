"""The passes over updates that lie on a GPU, by torch: m-sized sums alone come to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcrf.statistics.count_sketch import CountSketch
from fedcrf.statistics.inputs import bring_columns, num_numbers
from fedcrf.statistics.median import NETWORK_LIMIT, sorting_network
from fedcrf.statistics.sums import Sums

BLOCK_NUMBERS = 1 << 24
"""Numbers in a block over all clients: 128 MiB in float64, enough to keep the device busy."""


def sum_columns(
    clients: Sequence[Sequence[Any]],
    origin: Sequence[Any] | None,
    products: bool = True,
    sketch: CountSketch | None = None,
) -> tuple[NDArray[np.bool_], Sums]:
    """Sum Gram matrix, inner products with the median and distances to it, in float64.

    Args:
        clients: For each of m clients its flat layers, on one device.
        origin: Flat layers of the global model to take away; none where the layers are updates.
        products: Whether the Gram matrix is wanted.
        sketch: The sketch to make of the updates and their median; None for none.

    Returns:
        (m,) bool, whether each update is finite, and the sums, which count where all are.
    """
    m, device, first = len(clients), clients[0][0].device, 0
    gram = torch.zeros((m if products else 0, m), dtype=torch.float64, device=device)
    squares, inner, squared_distance, square = torch.zeros(
        (4, m), dtype=torch.float64, device=device
    )
    shape = (0, 0) if sketch is None else (m + 1, sketch.size)
    sketches = torch.zeros(shape, dtype=torch.float64, device=device)
    for block in blocks(clients, origin):
        if products:
            gram += block @ block.T
        squares += block.square().sum(dim=1)
        middle = coordinate_median(block)
        if sketch is not None:
            signs = torch.from_numpy(sketch.signs(first, first + block.shape[1])).to(device)
            sketch.add(torch.vstack([block, middle]) * signs, first, sketches)
            first += block.shape[1]
        inner += block @ middle
        square += middle @ middle
        block -= middle
        squared_distance += block.square().sum(dim=1)
    rows = torch.cat([torch.stack([squares, inner, squared_distance, square]), gram]).cpu()
    host: NDArray[np.float64] = rows.numpy()
    gram_there, square_there = host[4:, : len(host) - 4], float(host[3, 0])
    sums = Sums(host[0], gram_there, host[1], host[2], sketches.cpu().numpy(), square_there)
    if products:
        # The diagonal by one routine a row: equal updates get norms equal to the last bit.
        np.fill_diagonal(sums.gram, sums.squares)
    return np.isfinite(sums.squares), sums


def sum_centred(
    clients: Sequence[Sequence[Any]], origin: Sequence[Any] | None
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Sum the Gram matrix of the updates about their mean; see `sum_columns`."""
    m = len(clients)
    gram = torch.zeros((m, m), dtype=torch.float64, device=clients[0][0].device)
    squares = torch.zeros_like(gram[0])
    for block in blocks(clients, origin):
        squares += block.square().sum(dim=1)
        block -= block[0].clone()  # exact for equal updates, as their mean alone is not
        block -= block.mean(dim=0)
        gram += block @ block.T
    host: NDArray[np.float64] = torch.cat([gram, squares[None]]).cpu().numpy()
    return np.isfinite(host[-1]), host[:-1]


def coordinate_median(block: Tensor) -> Tensor:
    """Return the median of every column of (m, b); the mean of the middle two for even m."""
    m = len(block)
    low, high = (m - 1) // 2, m // 2
    if m > NETWORK_LIMIT:
        ranked: list[Tensor] = list(block.sort(dim=0).values)
    else:
        ranked = list(block)
        for i, j in sorting_network(m, low, high + 1):
            pair = ranked[i], ranked[j]
            ranked[i], ranked[j] = torch.minimum(*pair), torch.maximum(*pair)
    middle: Tensor = (ranked[low] + ranked[high]) / 2
    return middle


def weighted_average(tensors: Sequence[Any], weights: NDArray[np.float64]) -> Any:
    """Return Σ α_i w_i of tensors; as `fedcrf.statistics.weighted_average`, on their device."""
    first = tensors[0]
    total = torch.zeros(first.shape, dtype=torch.float64, device=first.device)
    for tensor, weight in zip(tensors, weights.tolist(), strict=True):
        if weight != 0.0:
            total.add_(tensor, alpha=weight)
    return (total if first.is_floating_point() else total.round_()).to(first.dtype)


def median_of(tensors: Sequence[Any]) -> Any:
    """Return the coordinate-wise median; as `fedcrf.statistics.median_of`, on their device."""
    return _reduced(tensors, coordinate_median)


def trimmed_mean_of(tensors: Sequence[Any], trim: int) -> Any:
    """Return the trimmed mean; as `fedcrf.statistics.trimmed_mean_of`, on their device."""
    kept = slice(trim, len(tensors) - trim)
    return _reduced(tensors, lambda block: block.sort(dim=0).values[kept].mean(dim=0))


def _reduced(tensors: Sequence[Any], statistic: Callable[[Tensor], Tensor]) -> Any:
    """Return a statistic of every coordinate of flat tensors, a block at a time."""
    result = torch.empty_like(tensors[0])
    start = 0
    for block in blocks([[tensor.detach()] for tensor in tensors], None):
        reduced = statistic(block)
        stop = start + len(reduced)
        result[start:stop] = reduced if result.is_floating_point() else reduced.round_()
        start = stop
    return result


def blocks(clients: Sequence[Sequence[Any]], origin: Sequence[Any] | None) -> Iterator[Tensor]:
    """Yield the updates' columns as fresh (m, b) float64 blocks."""
    width, dimension = max(1, BLOCK_NUMBERS // len(clients)), num_numbers(clients[0])
    for start in range(0, dimension, width):
        shape = len(clients), min(width, dimension - start)
        block = torch.empty(shape, dtype=torch.float64, device=clients[0][0].device)
        bring_columns(clients, start, block)
        if origin is not None:
            base = torch.empty_like(block[:1])
            bring_columns([origin], start, base)
            block -= base
        yield block
