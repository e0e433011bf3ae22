"""Layers of all clients as compiled code takes them: columns, by the addresses of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics.inputs import Layers

CONVERTED = 1 << 13
"""Columns that are converted at a time, where layers are not contiguous or of a small dtype."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Some columns of one layer, as compiled code takes them: contiguous, float32 or float64.

    Attributes:
        rows: The clients' arrays, and the global model's after them where there is one; held here,
            since the compiled code knows them by their addresses alone.
        addresses: (rows,) where each one's first column lies.
        start: The first column.
        stop: One past the last.
    """

    rows: Layers
    addresses: NDArray[np.int64]
    start: int
    stop: int

    @property
    def like(self) -> NDArray[Any]:
        """An empty array of the rows' dtype."""
        return np.empty(0, self.rows[0].dtype)


@dataclass(frozen=True, eq=False)
class LayerRows:
    """One layer of all clients, looked at once however many tasks its columns are.

    Attributes:
        rows: As those of `Columns`.
    """

    rows: Layers

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """What is computed in."""
        return np.dtype(np.float64 if self.rows[0].dtype.itemsize == 8 else np.float32)

    @cached_property
    def addresses(self) -> NDArray[np.int64] | None:
        """Where the rows lie; None where they must be converted."""
        ready = all(
            row.dtype == self.dtype and row.flags.c_contiguous and row.flags.aligned
            for row in self.rows
        )
        return _addresses(self.rows) if ready else None

    def columns(self, start: int, stop: int) -> Iterator[Columns]:
        """Yield the columns from start to stop: as they lie where they can be, else converted."""
        if self.addresses is not None:
            where = self.addresses + start * self.dtype.itemsize
            yield Columns(self.rows, where, start, stop)
            return
        for first in range(start, stop, CONVERTED):
            last = min(first + CONVERTED, stop)
            parts = [np.require(row[first:last], self.dtype, ["C", "A"]) for row in self.rows]
            yield Columns(parts, _addresses(parts), first, last)


def _addresses(rows: Layers) -> NDArray[np.int64]:
    return np.array([row.ctypes.data for row in rows], np.int64)
