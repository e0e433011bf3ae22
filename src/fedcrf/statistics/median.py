"""Coordinate-wise order statistics over the client rows of a block that fits in cache."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

NETWORK_LIMIT = 32
"""Most rows for which the network's m·log²m min/max passes beat a selection per column."""


@lru_cache(maxsize=8)
def sorting_network(
    num_rows: int, first: int = 0, last: int | None = None
) -> tuple[tuple[int, int], ...]:
    """Return Batcher's merge-exchange network, cut to what some of its outputs need.

    Args:
        num_rows: Rows to sort.
        first: First output position that is wanted.
        last: One past the last wanted position; all of them by default.

    Returns:
        Pairs (i, j), i < j, in order: put the smaller of rows i and j in i, the larger in j.
        Positions ``first`` to ``last`` then hold what a full sort would put there.

    References:
        D. E. Knuth, The Art of Computer Programming 3, section 5.2.2, algorithm M.
    """
    pairs: list[tuple[int, int]] = []
    top = 1 << max(0, (num_rows - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while d > 0:
            pairs.extend((i, i + d) for i in range(num_rows - d) if i & p == r)
            d, q, r = q - p, q >> 1, p
        p >>= 1
    needed = set(range(first, num_rows if last is None else last))
    kept: list[tuple[int, int]] = []
    for i, j in reversed(pairs):
        if i in needed or j in needed:
            needed.update((i, j))
            kept.append((i, j))
    return tuple(reversed(kept))


def coordinate_median(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of every column; for an even number of rows the mean of the middle two.

    Args:
        block: (m, b) finite numbers; not changed.

    Returns:
        (b,) medians.
    """
    num_rows = block.shape[0]
    low, high = (num_rows - 1) // 2, num_rows // 2
    ranked = _ranks(block, low, high + 1)
    return np.asarray((ranked[0] + ranked[-1]) / 2)


def coordinate_trimmed_mean(block: NDArray[np.float64], trim: int) -> NDArray[np.float64]:
    """Return the mean of every column without its ``trim`` smallest and largest values.

    Args:
        block: (m, b) finite numbers; not changed.
        trim: Values cut on each side; 2 · trim < m.

    Returns:
        (b,) means.
    """
    kept = _ranks(block, trim, block.shape[0] - trim)
    return np.asarray(np.sum(kept, axis=0) / len(kept))


def _ranks(block: NDArray[np.float64], first: int, last: int) -> list[NDArray[np.float64]]:
    """Return every column's values of ranks ``first`` to ``last``; the outer two in their place."""
    num_rows = block.shape[0]
    if num_rows > NETWORK_LIMIT:
        return list(np.partition(block, (first, last - 1), axis=0)[first:last])
    rows = list(block.copy())
    spare = np.empty_like(block[0])
    for i, j in sorting_network(num_rows, first, last):
        np.minimum(rows[i], rows[j], out=spare)
        np.maximum(rows[i], rows[j], out=rows[j])
        rows[i], spare = spare, rows[i]
    return rows[first:last]
