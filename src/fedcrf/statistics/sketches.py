"""Sketches: few numbers that keep a vector's inner products with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import check_whole
from fedcrf.statistics import compiled
from fedcrf.statistics.inputs import (
    Layers,
    Origin,
    as_numpy,
    blocks,
    is_torch_tensor,
    num_numbers,
    zeros,
)


def sketch(
    clients: Sequence[Layers],
    size: int,
    seed: int,
    origin: Origin = None,
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
    draws = _drawn(num_numbers(clients[0]) if clients else 0, size, seed)
    fast = compiled.sketches(clients, origin, draws, threads)
    if fast is not None:
        return fast
    total = zeros((len(clients), size), clients[0][0] if clients else None)
    with np.errstate(over="ignore", invalid="ignore"):
        for where, block in blocks(clients, origin):
            draws.add(block, where, total)
    return as_numpy(total)


@dataclass(frozen=True, eq=False)
class CountSketch:
    """The random draws of a linear map S of vectors to k numbers; `sketch` tells what it does.

    Attributes:
        shifts: (r,) h of each row of k coordinates.
        bits: (r, k/8) uint8; a bit for each coordinate, 1 where its sign is negative.
        size: k.
    """

    shifts: NDArray[np.int64]
    bits: NDArray[np.uint8]
    size: int

    def signs(self, start: int, stop: int) -> NDArray[np.int8]:
        """Return the signs of the coordinates from start to stop."""
        first, last = start // self.size, -(-stop // self.size)
        bits = np.unpackbits(self.bits[first:last], axis=1, count=self.size).reshape(-1)
        chosen = bits[start - first * self.size : stop - first * self.size].view(np.int8)
        return np.asarray(1 - 2 * chosen, dtype=np.int8)

    def add(self, block: Any, where: slice, total: Any) -> None:
        """Add (m, b) columns of vectors to (m, k) buckets; both are written to."""
        signs = self.signs(where.start, where.stop)
        block *= block.new_tensor(signs) if is_torch_tensor(block) else signs
        start = where.start
        while start < where.stop:
            row, place = divmod(start, self.size)
            bucket = (place + int(self.shifts[row])) % self.size
            stop = min(start + self.size - max(place, bucket), where.stop)
            part = block[:, start - where.start : stop - where.start]
            total[:, bucket : bucket + stop - start] += part
            start = stop


@lru_cache(maxsize=2)  # drawn row by row, and the same in every round
def _drawn(dimension: int, size: int, seed: int) -> CountSketch:
    """Return the draws for vectors of so many numbers."""
    draw, width = np.random.default_rng(seed), -(-size // 8)
    rows = [(int(draw.integers(size)), draw.bytes(width)) for _ in range(0, dimension, size)]
    bits = np.frombuffer(b"".join(each for _, each in rows), dtype=np.uint8)
    shifts = np.array([shift for shift, _ in rows], dtype=np.int64)
    return CountSketch(shifts, bits.reshape(len(rows), width), size)
