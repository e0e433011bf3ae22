"""The weights β that inference refines: each client's share of the examples, or 1/m."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.statistics import as_numpy


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


def _checked(num_examples: Any, num_clients: int) -> NDArray[np.float64]:
    given = as_numpy(num_examples)
    if given.dtype.kind not in "biuf":
        raise FedcrfError("num_examples are not numbers: give one count for each client")
    counts = given.astype(np.float64)
    if counts.shape != (num_clients,):
        raise FedcrfError(
            f"num_examples have shape {counts.shape} for {num_clients} updates: "
            "give one count for each client"
        )
    for client, count in enumerate(counts):
        if not math.isfinite(count) or count < 0:
            raise FedcrfError(
                f"num_examples of client {client} is {count:g}: give a count of 0 or more"
            )
    if not counts.any():
        raise FedcrfError("num_examples are all zero: at least one client must have examples")
    return np.asarray(counts / counts.max())  # only ratios matter; huge counts cannot overflow
