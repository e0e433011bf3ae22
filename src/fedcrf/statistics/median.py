"""Coordinate-wise order statistics over the client rows of a block that fits in cache."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fedcrf.statistics.inputs import is_torch_tensor, library_of

NETWORK_LIMIT = 32
"""Most rows for which the network's m·log²m min/max passes beat a selection per column."""


@lru_cache(maxsize=8)
def sorting_network(num_rows: int, first: int, last: int) -> tuple[tuple[int, int], ...]:
    """Return Batcher's merge-exchange network, cut to what some of its outputs need.

    Args:
        num_rows: Rows to sort.
        first: First output position that is wanted.
        last: One past the last wanted position.

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
    needed = set(range(first, last))
    kept: list[tuple[int, int]] = []
    for i, j in reversed(pairs):
        if i in needed or j in needed:
            needed.update((i, j))
            kept.append((i, j))
    return tuple(reversed(kept))


def coordinate_median(block: Any) -> Any:
    """Return (b,) medians of columns; for an even number of rows the mean of the middle two.

    The (m, b) finite numbers are an array or a tensor, which is not changed.
    """
    num_rows = len(block)
    ranked = ranks(block, (num_rows - 1) // 2, num_rows // 2 + 1)
    # A middle one is no mean: the sum of it and itself may overflow. The quotient is a copy.
    return ranked[0] / 1 if num_rows % 2 else (ranked[0] + ranked[-1]) / 2


def coordinate_trimmed_mean(block: Any, trim: int) -> Any:
    """Return (b,) means of columns without their ``trim`` smallest and largest values.

    As for `coordinate_median`; 2 · trim < m.
    """
    kept = ranks(block, trim, len(block) - trim)
    return sum(kept) / len(kept)


def ranks(block: Any, first: int, last: int) -> list[Any]:
    """Return every column's values of ranks ``first`` to ``last``.

    They are in order up to `NETWORK_LIMIT` rows; beyond, only the outer two are in their place.
    """
    if len(block) > NETWORK_LIMIT:
        if is_torch_tensor(block):
            return list(block.sort(dim=0).values[first:last])
        return list(np.partition(block, (first, last - 1), axis=0)[first:last])
    library, rows = library_of(block), list(block)
    for i, j in sorting_network(len(block), first, last):
        rows[i], rows[j] = library.minimum(rows[i], rows[j]), library.maximum(rows[i], rows[j])
    return rows[first:last]
