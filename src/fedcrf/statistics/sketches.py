"""Sketches: few numbers that keep a vector's inner products with others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import check_whole
from fedcrf.statistics import compiled
from fedcrf.statistics.count_sketch import CountSketch
from fedcrf.statistics.inputs import Layers, is_on_gpu, num_numbers
from fedcrf.statistics.one_pass import BLOCK_NUMBERS, blocks


def sketch(
    clients: Sequence[Layers],
    size: int,
    seed: int,
    origin: Sequence[NDArray[Any]] | None = None,
    threads: int | None = None,
) -> NDArray[np.float64]:
    """Return the count sketch S u of every client's vector, from one pass over its numbers.

    Coordinate j is added to bucket (j + h_r) mod k with a random sign, where h_r is a random shift
    of its row r = ⌊j/k⌋. S is linear, E⟨S u, S v⟩ = ⟨u, v⟩, and the variance is at most
    (‖u‖²‖v‖² + ⟨u, v⟩²)/k whatever the vectors are, as two coordinates share a bucket with
    probability 1/k at most. Signs take a bit a coordinate; they and the shifts depend on the seed
    and on a coordinate's place alone, not on how a vector is cut into layers. Who knows the seed
    can make vectors whose sketches mislead: it is the server's.

    Args:
        clients: For each of m clients its flat layers, alike in number and size.
        size: k, the buckets.
        seed: Of signs and shifts; vectors are compared under one.
        origin: Flat layers to take away from each client's.
        threads: As for `update_statistics`.

    Returns:
        (m, k) float64. A row is not finite where a vector is not.

    Raises:
        FedcrfError: A size below 1, or a seed below 0.

    References:
        Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002.
    """
    check_whole("size", size, least=1)
    check_whole("seed", seed, least=0)
    draws = CountSketch.of(num_numbers(clients[0]) if clients else 0, size, seed)
    if clients and not is_on_gpu(clients[0][0]) and compiled.suits(clients):
        fast = compiled.sketch_columns(clients, origin, draws, threads)
        if fast is not None:
            return fast
    total = np.zeros((len(clients), size))
    first = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for block in host_blocks(clients, origin):
            block *= draws.signs(first, first + block.shape[1])
            draws.add(block, first, total)
            first += block.shape[1]
    return total


def host_blocks(
    clients: Sequence[Layers], origin: Sequence[NDArray[Any]] | None, numbers: int = BLOCK_NUMBERS
) -> Iterator[NDArray[np.float64]]:
    """Yield the vectors' columns as `blocks` does; from a GPU a large block at a time."""
    if clients and is_on_gpu(clients[0][0]):
        from fedcrf.statistics import on_gpu

        return (block.cpu().numpy() for block in on_gpu.blocks(clients, origin))
    return blocks(clients, origin, numbers)
