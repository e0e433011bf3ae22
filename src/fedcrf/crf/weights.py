"""The base weights β, and the weights α that trust makes of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.crf.parts import Vector
from fedcrf.errors import FedcrfError
from fedcrf.statistics import EPSILON
from fedcrf.statistics.inputs import check_filled, client_numbers

ROUNDING = 1e-9
"""A trusted share may be below its floor by this part of it, since sums are rounded."""

COUNT_CAP = 3.0
"""The cap of an unsupported count of examples, in median counts."""


def base_weights(
    num_examples: Any, usable: NDArray[np.bool_], *, by_examples: bool = True
) -> Vector:
    """Return β_i = n_i / Σ n_j, or equal weights, over the usable clients.

    Args:
        num_examples: (m,) training examples n_i of each client.
        usable: (m,) bool; the clients that may have weight.
        by_examples: Whether weights are ∝ n_i, or equal.

    Returns:
        (m,) weights that sum to 1; all 0 where no usable client has examples.

    Raises:
        FedcrfError: Counts that are negative, not finite, all zero or not m in number.
    """
    counts = _checked(num_examples, len(usable))
    shares = np.where(usable, counts if by_examples else 1.0, 0.0)
    total = shares.sum()
    return np.asarray(shares / total) if total > 0 else shares


def refined_weights(base: Vector, expected_label: Vector) -> tuple[Vector, bool]:
    """Return α ∝ β q̄, or β where Σβq̄ is numerically zero, and whether that is so."""
    refined = base * expected_label
    total = refined.sum()
    if total > EPSILON:
        return np.asarray(refined / total), False
    return base.copy(), bool(base.any())


def trusted_weights(
    base: Vector, expected_label: Vector, unknown: float, floor: float
) -> tuple[Vector, bool, float, str | None]:
    """Return α ∝ β q̄, all 0 in a round whose trusted share is below a floor.

    Weights are relative: without a floor, a distrusted client that reports alone would have all of
    the weight.

    Args:
        base: (m,) base weights β.
        expected_label: (m,) expected labels q̄.
        unknown: The expected label of a new client.
        floor: The smallest Σβq̄ with which the model moves, as a multiple of ``unknown``.

    Returns:
        The weights; whether they are β, because Σβq̄ is numerically zero; Σβq̄ as a multiple of
        ``unknown``, NaN where all β are 0; and why all weights are 0 though some β is not, None
        otherwise.
    """
    if not base.any():
        return base.copy(), False, math.nan, None
    share = float(base @ expected_label) / unknown if unknown > 0 else 1.0
    if share < floor * (1.0 - ROUNDING):
        reason = (
            f"the round's clients are trusted {share:.2g} times as much as unknown ones, and "
            f"{floor:g} times is the least with which the model moves"
        )
        return np.zeros_like(base), False, share, reason
    weights, fell_back = refined_weights(base, expected_label)
    return weights, fell_back, share, None


def _checked(num_examples: Any, num_clients: int) -> Vector:
    check_filled(num_examples, "num_examples are")
    counts = client_numbers(
        num_examples, num_clients, "num_examples are", "give one count for each client"
    )
    if not counts.any():
        raise FedcrfError("num_examples are all zero: at least one client must have examples")
    largest = counts.max()
    if not (counts.min() >= 0 and largest < np.inf):
        wrong = np.flatnonzero(~(np.isfinite(counts) & (counts >= 0)))[0]
        raise FedcrfError(
            f"num_examples of client {wrong} is {counts[wrong]:g}: give a finite count, 0 or more"
        )
    return np.asarray(counts / largest)  # only ratios matter; huge counts cannot overflow
