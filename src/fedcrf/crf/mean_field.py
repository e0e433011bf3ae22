"""Approximate inference in a client field by parallel mean-field updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import check_whole, checked_share
from fedcrf.crf.parts import Message


def mean_field(
    initial: NDArray[np.float64],
    unary: NDArray[np.float64],
    messages: Sequence[Message],
    *,
    iterations: int,
    damping: float = 0.0,
) -> NDArray[np.float64]:
    """Run R parallel updates Q_i(q) ← δ·Q_i(q) + (1 − δ)·Q'_i(q), Q'_i(q) ∝ exp(−ψ_u(q) − M_i(q)).

    M_i(q) is the energy that the pairwise parts expect under Q; the paper's is
    λ Σ_j A_ij Σ_q' Q_j(q')(q − q')².

    Args:
        initial: (m, L) marginals to start from, Q⁰.
        unary: (m, L) energies ψ_u.
        messages: From marginals to the expected energies of each pairwise part.
        iterations: R ≥ 0; with 0 the initial marginals are returned.
        damping: δ in [0, 1); 0 is the paper's.

    Returns:
        (m, L) marginals; rows sum to 1.

    Raises:
        FedcrfError: Iterations or a damping outside their ranges.
    """
    check_whole("iterations", iterations, least=0)
    checked_share("damping", damping)
    marginals = initial
    for _ in range(iterations):
        energy = unary
        for message in messages:
            energy = energy + message(marginals).values
        # Of small arrays calls are what takes time, and a ufunc's own are the shortest.
        updated = np.exp(np.minimum.reduce(energy, axis=1, keepdims=True) - energy)
        updated /= np.add.reduce(updated, axis=1, keepdims=True)
        if damping != 0.0:
            updated *= 1.0 - damping
            updated += damping * marginals
        marginals = updated
    return marginals
