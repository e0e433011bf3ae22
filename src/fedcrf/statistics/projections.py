"""Passes that compare every update with a vector that is no update, block by block in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics.inputs import Layers, bring_columns
from fedcrf.statistics.one_pass import blocks


def projections(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]],
    direction: Sequence[NDArray[Any]] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return squared norms of updates, and their inner products with a vector.

    Args:
        clients: For each of m clients the flat layers of its model.
        origin: Those of the global model, which are taken away.
        direction: Those of the vector v; by default none, and the inner products are 0.

    Returns:
        (m,) ‖u_i‖² and (m,) ⟨u_i, v⟩. Those of an update that is not finite are not finite, and
        change no other's.
    """
    squares, inner = np.zeros(len(clients)), np.zeros(len(clients))
    start = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks(clients, origin):
            squares += np.einsum("ij,ij->i", block, block)
            if direction is not None:
                part = np.empty((1, block.shape[1]))
                bring_columns([direction], start, part)
                inner += block @ part[0]
            start += block.shape[1]
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
    above, below = np.zeros(len(clients)), np.zeros(len(clients))
    with np.errstate(over="ignore"):
        for block in blocks(clients, origin):
            for extreme, squares in ((block.max(axis=0), above), (block.min(axis=0), below)):
                apart = block - extreme
                squares += np.einsum("ij,ij->i", apart, apart)
    return np.sqrt(above), np.sqrt(below)
