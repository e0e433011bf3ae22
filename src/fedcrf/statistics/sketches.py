"""Sketches: few numbers that keep a vector's inner products with others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics import compiled
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

    References:
        Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002.
    """
    draws = _Draws.of(num_numbers(clients[0]) if clients else 0, size, seed)
    if clients and not is_on_gpu(clients[0][0]) and compiled.suits(clients):
        fast = compiled.sketch_columns(clients, origin, draws.shifts, draws.signs, size, threads)
        if fast is not None:
            return fast
    total = np.zeros((len(clients), size))
    first = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for block in host_blocks(clients, origin):
            block *= draws.signs(first, first + block.shape[1])
            _add(block, first, draws.shifts, total)
            first += block.shape[1]
    return total


@dataclass(frozen=True, eq=False)
class _Draws:
    """The random shifts and signs of a count sketch.

    Attributes:
        shifts: (r,) h of each row of k coordinates.
        bits: (r, k/8) uint8; a bit for each coordinate, 1 where its sign is negative.
        size: k.
    """

    shifts: NDArray[np.int64]
    bits: NDArray[np.uint8]
    size: int

    @classmethod
    def of(cls, dimension: int, size: int, seed: int) -> _Draws:
        """Draw those of vectors of so many numbers."""
        draw, width = np.random.default_rng(seed), -(-size // 8)
        rows = [(int(draw.integers(size)), draw.bytes(width)) for _ in range(0, dimension, size)]
        bits = np.frombuffer(b"".join(each for _, each in rows), dtype=np.uint8)
        shifts = np.array([shift for shift, _ in rows], dtype=np.int64)
        return cls(shifts, bits.reshape(len(rows), width), size)

    def signs(self, start: int, stop: int) -> NDArray[np.int8]:
        """Return the signs of the coordinates from start to stop."""
        first, last = start // self.size, -(-stop // self.size)
        bits = np.unpackbits(self.bits[first:last], axis=1, count=self.size).reshape(-1)
        chosen = bits[start - first * self.size : stop - first * self.size].view(np.int8)
        return np.asarray(1 - 2 * chosen, dtype=np.int8)


def _add(
    block: NDArray[np.float64],
    first: int,
    shifts: NDArray[np.int64],
    total: NDArray[np.float64],
) -> None:
    """Add columns of all vectors, the signs theirs already, to the buckets."""
    size, start = total.shape[1], 0
    while start < block.shape[1]:
        row, place = divmod(first + start, size)
        bucket = (place + int(shifts[row])) % size
        stop = min(start + size - max(place, bucket), block.shape[1])
        total[:, bucket : bucket + stop - start] += block[:, start:stop]
        start = stop


def host_blocks(
    clients: Sequence[Layers], origin: Sequence[NDArray[Any]] | None, numbers: int = BLOCK_NUMBERS
) -> Iterator[NDArray[np.float64]]:
    """Yield the vectors' columns as `blocks` does; from a GPU a large block at a time."""
    if clients and is_on_gpu(clients[0][0]):
        from fedcrf.statistics import on_gpu

        return (block.cpu().numpy() for block in on_gpu.blocks(clients, origin))
    return blocks(clients, origin, numbers)
