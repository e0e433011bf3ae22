"""What a pass over the updates sums up, and the plain passes: block by block, in float64.

The blocks are NumPy's, or torch's where the updates lie on a GPU; m-sized sums alone come to the
host. Compiled code, where there is some, sums up the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics.inputs import (
    Layers,
    Origin,
    as_numpy,
    blocks,
    bring_columns,
    library_of,
    zeros,
)
from fedcrf.statistics.median import coordinate_median


@dataclass(frozen=True, eq=False)
class AboutMedian:
    """Sums over the columns of m updates and their coordinate-wise median ũ.

    They are valid only where all updates are finite.

    Attributes:
        squares: (m,) ⟨u_i, u_i⟩.
        gram: (m, m) ⟨u_i, u_j⟩; (0, 0) where products were not asked for.
        inner: (m,) ⟨u_i, ũ⟩.
        squared_distance: (m,) ‖u_i − ũ‖².
        median_square: ⟨ũ, ũ⟩.
        median: (d,) ũ itself; (0,) where products were asked for.
    """

    squares: NDArray[np.float64]
    gram: NDArray[np.float64]
    inner: NDArray[np.float64]
    squared_distance: NDArray[np.float64]
    median_square: float
    median: NDArray[Any]

    @property
    def finite(self) -> NDArray[np.bool_]:
        """(m,) bool; whether an update is finite, and its square."""
        return np.isfinite(self.squares)

    @classmethod
    def plain(cls, clients: Sequence[Layers], origin: Origin, products: bool = True) -> AboutMedian:
        """Sum up block by block.

        Args:
            clients: For each of m clients its flat layers.
            origin: Flat layers of the global model to take away; none where the layers are updates.
            products: Whether the Gram matrix is summed up; otherwise the median is kept.
        """
        m, like = len(clients), clients[0][0] if clients else None
        library = library_of(like)
        gram = zeros((m if products else 0,) * 2, like)
        squares, inner, squared_distance = zeros((3, m), like)
        square, medians = zeros((), like), [np.zeros(0)]
        with np.errstate(over="ignore", invalid="ignore"):
            for _, block in blocks(clients, origin):
                squares += library.einsum("ij,ij->i", block, block)
                if not library.isfinite(squares).all():
                    break
                middle = coordinate_median(block)
                if products:
                    gram += block @ block.T
                else:
                    medians.append(as_numpy(middle))
                inner += library.einsum("ij,j->i", block, middle)
                square += library.einsum("j,j->", middle, middle)
                block -= middle
                squared_distance += library.einsum("ij,ij->i", block, block)
        sums = cls(
            squares=as_numpy(squares),
            gram=as_numpy(gram),
            inner=as_numpy(inner),
            squared_distance=as_numpy(squared_distance),
            median_square=float(square),
            median=np.concatenate(medians),
        )
        if products:
            # The diagonal by one routine a row: equal updates get norms equal to the last bit.
            np.fill_diagonal(sums.gram, sums.squares)
        return sums


FAR = 1e8
"""A squared length, in others', from which on a mean that it is part of hides their digits."""


def middle_of(squares: NDArray[np.float64]) -> int | None:
    """Return the place of the (lower) median of squared lengths if the largest is `FAR` times it.

    None otherwise: then the mean of all can be taken away from each.
    """
    if not len(squares):
        return None
    order = np.argsort(squares, kind="stable")
    middle = int(order[(len(order) - 1) // 2])
    return middle if squares[order[-1]] / FAR > squares[middle] else None


def about_mean(
    clients: Sequence[Layers], origin: Origin, middle: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (m,) ⟨u_i, u_i⟩ and (m, m) ⟨u_i − ū, u_j − ū⟩ of the columns of m updates.

    They are valid only where all squares are finite; arguments are those of `AboutMedian.plain`.
    Where the place of a middle update is given, that update takes the place of the mean ū.
    """
    m, like = len(clients), clients[0][0] if clients else None
    library = library_of(like)
    squares, gram = zeros((m,), like), zeros((m, m), like)
    with np.errstate(over="ignore", invalid="ignore"):
        for _, block in blocks(clients, origin):
            squares += library.einsum("ij,ij->i", block, block)
            if not library.isfinite(squares).all():
                break
            # Exact for equal updates, as their mean alone is not.
            apart = block - block[middle or 0]
            if middle is None:
                apart -= apart.mean(axis=0)
            gram += apart @ apart.T
    return as_numpy(squares), as_numpy(gram)


def projections(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]],
    direction: Sequence[NDArray[Any]] | None = None,
    numbers: int | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return squared norms of updates, and their inner products with a vector.

    Args:
        clients: For each of m clients the flat layers of its model.
        origin: Those of the global model, which are taken away.
        direction: Those of the vector v; by default none, and the inner products are 0.
        numbers: How many a block has, as for `fedcrf.statistics.inputs.blocks`.

    Returns:
        (m,) ‖u_i‖² and (m,) ⟨u_i, v⟩. Those of an update that is not finite are not finite, and
        change no other's.
    """
    squares, inner = np.zeros((2, len(clients)))
    with np.errstate(over="ignore", invalid="ignore"):
        for where, block in blocks(clients, origin, numbers):
            squares += np.einsum("ij,ij->i", block, block)
            if direction is not None:
                part = np.empty((1, block.shape[1]))
                bring_columns([direction], where.start, part)
                inner += block @ part[0]
    return squares, inner


def distances_to_extremes(
    clients: Sequence[Layers], origin: Sequence[NDArray[Any]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how far each update is from the greatest and the least values of all updates.

    Args:
        clients: For each of m clients the flat layers of its model; all are finite.
        origin: Those of the global model, which are taken away.

    Returns:
        (m,) ‖u_i − max_j u_j‖ and (m,) ‖u_i − min_j u_j‖, coordinate-wise maximum and minimum.
    """
    above, below = np.zeros((2, len(clients)))
    with np.errstate(over="ignore"):
        for _, block in blocks(clients, origin):
            for extreme, squares in ((block.max(axis=0), above), (block.min(axis=0), below)):
                apart = block - extreme
                squares += np.einsum("ij,ij->i", apart, apart)
    return np.sqrt(above), np.sqrt(below)
