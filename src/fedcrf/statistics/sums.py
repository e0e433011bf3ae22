"""The sums of a pass over the updates, the same for every form of the pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False)
class Sums:
    """Sums over the columns of m updates; what `update_statistics` is made of.

    Attributes:
        squares: (m,) ⟨u_i, u_i⟩.
        gram: (m, m) ⟨u_i, u_j⟩; (0, 0) where products were not asked for.
        inner: (m,) ⟨u_i, ũ⟩.
        squared_distance: (m,) ‖u_i − ũ‖².
        sketches: (m + 1, k) S u_i, and S ũ; (0, 0) where they were not asked for.
        median_square: ⟨ũ, ũ⟩.
    """

    squares: NDArray[np.float64]
    gram: NDArray[np.float64]
    inner: NDArray[np.float64]
    squared_distance: NDArray[np.float64]
    sketches: NDArray[Any]
    median_square: float = 0.0
