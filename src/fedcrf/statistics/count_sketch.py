"""The random draws of a count sketch, and how columns are added to its buckets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class CountSketch:
    """A random linear map S of vectors to k numbers; `fedcrf.statistics.sketch` tells what it does.

    Attributes:
        shifts: (r,) h of each row of k coordinates.
        bits: (r, k/8) uint8; a bit for each coordinate, 1 where its sign is negative.
        size: k.
    """

    shifts: NDArray[np.int64]
    bits: NDArray[np.uint8]
    size: int

    @classmethod
    def of(cls, dimension: int, size: int, seed: int) -> CountSketch:
        """Return that of vectors of so many numbers; the last ones drawn are kept."""
        return _drawn(dimension, size, seed)

    def signs(self, start: int, stop: int) -> NDArray[np.int8]:
        """Return the signs of the coordinates from start to stop."""
        first, last = start // self.size, -(-stop // self.size)
        bits = np.unpackbits(self.bits[first:last], axis=1, count=self.size).reshape(-1)
        chosen = bits[start - first * self.size : stop - first * self.size].view(np.int8)
        return np.asarray(1 - 2 * chosen, dtype=np.int8)

    def add(self, block: Any, first: int, total: Any) -> None:
        """Add columns of (m, b) vectors, their signs in them already, to (m, k) buckets.

        Args:
            block: An array, or a tensor.
            first: The coordinate of its first column.
            total: What is added to, likewise.
        """
        start, width = 0, block.shape[1]
        while start < width:
            row, place = divmod(first + start, self.size)
            bucket = (place + int(self.shifts[row])) % self.size
            stop = min(start + self.size - max(place, bucket), width)
            total[:, bucket : bucket + stop - start] += block[:, start:stop]
            start = stop


@lru_cache(maxsize=2)  # drawn row by row, and the same in every round
def _drawn(dimension: int, size: int, seed: int) -> CountSketch:
    draw, width = np.random.default_rng(seed), -(-size // 8)
    rows = [(int(draw.integers(size)), draw.bytes(width)) for _ in range(0, dimension, size)]
    bits = np.frombuffer(b"".join(each for _, each in rows), dtype=np.uint8)
    shifts = np.array([shift for shift, _ in rows], dtype=np.int64)
    return CountSketch(shifts, bits.reshape(len(rows), width), size)
