"""Approximate inference in the client CRF by parallel mean-field updates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrf.crf.potentials import label_distance


def mean_field(
    initial: NDArray[np.float64],
    unary: NDArray[np.float64],
    affinity: NDArray[np.float64],
    labels: NDArray[np.float64],
    *,
    pairwise_strength: float,
    iterations: int,
) -> NDArray[np.float64]:
    """Run R parallel updates Q_i(q) ∝ exp(−ψ_u(q; u_i) − M_i(q)).

    Here M_i(q) = λ Σ_j A_ij Σ_q' Q_j(q')(q − q')² is the expected pairwise cost.

    Args:
        initial: (m, L) marginals to start from, Q⁰.
        unary: (m, L) energies ψ_u.
        affinity: (m, m) affinities A with a zero diagonal.
        labels: (L,) labels q.
        pairwise_strength: λ.
        iterations: R; with 0 the initial marginals are returned.

    Returns:
        (m, L) marginals; rows sum to 1.
    """
    coupling = pairwise_strength * affinity
    disagreement = label_distance(labels)
    marginals = initial
    for _ in range(iterations):
        energy = unary + coupling @ (marginals @ disagreement)
        marginals = np.exp(energy.min(axis=1, keepdims=True) - energy)
        marginals = marginals / marginals.sum(axis=1, keepdims=True)
    return marginals
