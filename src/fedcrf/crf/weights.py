"""The weights β that inference refines: each client's share of the examples, or 1/m."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.crf.potentials import median
from fedcrf.errors import FedcrfError
from fedcrf.statistics import EPSILON, as_numpy
from fedcrf.statistics.inputs import NO_ARRAY, check_filled, is_floating


def base_weights(
    num_examples: Any, usable: NDArray[np.bool_], *, by_examples: bool = True
) -> NDArray[np.float64]:
    """Return β_i = n_i / Σ n_j, or equal weights, over the usable clients.

    Args:
        num_examples: (m,) training examples n_i of each client.
        usable: (m,) bool; the clients that may have weight.
        by_examples: Whether examples count, or every usable client the same.

    Returns:
        (m,) weights that sum to 1; all 0 where no usable client has examples.

    Raises:
        FedcrfError: Counts that are negative, not finite, all zero or not m in number.
    """
    counts = _checked(num_examples, len(usable))
    shares = np.where(usable, counts if by_examples else 1.0, 0.0)
    total = shares.sum()
    return np.asarray(shares / total) if total > 0 else shares


def refined_weights(
    base: NDArray[np.float64], expected_label: NDArray[np.float64]
) -> tuple[NDArray[np.float64], bool]:
    """Return α ∝ β q̄, and whether it fell back on β because the sum is numerically zero."""
    refined = base * expected_label
    total = refined.sum()
    if total > EPSILON:
        return np.asarray(refined / total), False
    return base.copy(), bool(base.any())


@dataclass(frozen=True, eq=False)
class TrustedWeights:
    """Refined weights, or none where hardly anybody is trusted.

    Attributes:
        weights: (m,) float64; α ∝ βq̄, all 0 where the share is below the floor.
        fell_back: Whether they are β, as Σβq̄ is numerically zero.
        share: Σβq̄ as a multiple of the trust in a new client; NaN where no client counts.
        kept_reason: Why all weights are 0 though clients count; None otherwise.
    """

    weights: NDArray[np.float64]
    fell_back: bool
    share: float
    kept_reason: str | None


def trusted_weights(
    base: NDArray[np.float64], expected_label: NDArray[np.float64], unknown: float, floor: float
) -> TrustedWeights:
    """Return α ∝ β q̄, all 0 in a round whose trusted share is below a floor.

    Weights are relative: without a floor, a distrusted client that reports alone would have all of
    the weight.

    Args:
        base: (m,) base weights β.
        expected_label: (m,) expected labels q̄.
        unknown: The label expected of a client of which nothing is known.
        floor: The least Σβq̄, in parts of ``unknown``, with which the model moves.
    """
    if not base.any():
        return TrustedWeights(base.copy(), False, math.nan, None)
    share = float(base @ expected_label) / unknown if unknown > 0 else 1.0
    if share < floor:
        reason = (
            f"the round's clients are trusted {share:.2g} times as much as unknown ones, and "
            f"{floor:g} times is the least with which the model moves"
        )
        return TrustedWeights(np.zeros_like(base), False, share, reason)
    weights, fell_back = refined_weights(base, expected_label)
    return TrustedWeights(weights, fell_back, share, None)


def capped_weights(
    base: NDArray[np.float64], usable: NDArray[np.bool_], cap: float
) -> NDArray[np.float64]:
    """Return weights of which none counts as more than so many medians, summing to 1 again.

    Args:
        base: (m,) weights of the clients, 0 for one that is not usable.
        usable: (m,) bool.
        cap: The most, in medians over the usable clients that have weight.
    """
    most = _most_counted(base, usable, cap)
    if most is None:
        return base
    capped = np.minimum(base, most)
    return np.asarray(capped / capped.sum())


def counted_parts(
    base: NDArray[np.float64], usable: NDArray[np.bool_], cap: float
) -> NDArray[np.float64]:
    """Return what part of each weight counts in `capped_weights`, before they sum to 1 again.

    Arguments are those of `capped_weights`.

    Returns:
        (m,) in (0, 1]; 1 for a client without weight.
    """
    most = _most_counted(base, usable, cap)
    if most is None:
        return np.ones(len(base))
    return np.asarray(np.minimum(1.0, most / np.where(base > 0, base, most)))


def _most_counted(base: NDArray[np.float64], usable: NDArray[np.bool_], cap: float) -> float | None:
    """Return the most that a weight counts as; None where nobody has one."""
    held = base[usable & (base > 0)]
    return cap * median(held) if len(held) else None


def _checked(num_examples: Any, num_clients: int) -> NDArray[np.float64]:
    check_filled(num_examples, "num_examples are")
    try:
        given = as_numpy(num_examples)
    except NO_ARRAY:
        given = np.array(None)
    if given.dtype.kind not in "biu" and not is_floating(given.dtype):
        raise FedcrfError("num_examples are not numbers: give one count for each client")
    counts = given.astype(np.float64)
    if counts.shape != (num_clients,):
        raise FedcrfError(
            f"num_examples have shape {counts.shape} for {num_clients} updates: "
            "give one count for each client"
        )
    if not counts.any():
        raise FedcrfError("num_examples are all zero: at least one client must have examples")
    largest = counts.max()
    if not (counts.min() >= 0 and largest < np.inf):
        wrong = np.flatnonzero(~(np.isfinite(counts) & (counts >= 0)))[0]
        raise FedcrfError(
            f"num_examples of client {wrong} is {counts[wrong]:g}: give a count of 0 or more"
        )
    return np.asarray(counts / largest)  # only ratios matter; huge counts cannot overflow
