"""The potentials of the client CRF: what one client deserves, and what two clients share.

Every function is m-sized algebra from the paper's Method section; the equation is in its docstring.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics import EPSILON

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def agreement(inner: Vector, norms: Vector, reference_norm: float) -> Vector:
    """Return c_i = ⟨u_i, ũ⟩ / (‖u_i‖ ‖ũ‖ + ε), the cosine with the reference update."""
    return inner / (norms * reference_norm + EPSILON)


def relative_distance(distances: Vector, finite: NDArray[np.bool_]) -> Vector:
    """Return d_i = ‖u_i − ũ‖ / (median_j ‖u_j − ũ‖ + ε)."""
    return distances / (_median(distances[finite]) + EPSILON)


def norm_anomaly(norms: Vector, finite: NDArray[np.bool_]) -> Vector:
    """Return h_i, how many median absolute deviations ‖u_i‖ lies from the median norm."""
    deviations = np.abs(norms - _median(norms[finite]))
    return np.asarray(deviations / (_median(deviations[finite]) + EPSILON))


def reliability(cosine: Vector, distance: Vector, anomaly: Vector) -> Vector:
    """Return ρ_i = σ(2c_i − d_i − 0.5h_i); ε where a cause is NaN (a non-finite update)."""
    score = 2.0 * cosine - distance - 0.5 * anomaly
    decay = np.exp(-np.abs(score))  # never overflows, whatever the sign of the score
    rho = np.where(score >= 0.0, 1.0, decay) / (1.0 + decay)
    return np.where(np.isnan(score), EPSILON, rho)


def label_prior(rho: Vector, labels: Vector) -> Matrix:
    """Return P_i(q) ∝ 1 − ρ_i at the smallest label, ρ_i at the largest, 1 at any other; (m, L)."""
    prior = np.ones((len(rho), len(labels)))
    prior[:, np.argmin(labels)] = 1.0 - rho
    prior[:, np.argmax(labels)] = rho
    return np.asarray(prior / prior.sum(axis=1, keepdims=True))


def unary_energy(prior: Matrix) -> Matrix:
    """Return ψ_u(q; u_i) = −log(P_i(q) + ε); (m, L)."""
    return np.asarray(-np.log(prior + EPSILON))


def affinity(cosines: Matrix, rho: Vector, bandwidth: float, gate: bool) -> Matrix:
    """Return A_ij = exp(−(1 − cos(u_i, u_j))/θ) · min(ρ_i, ρ_j), with a zero diagonal; (m, m).

    Args:
        cosines: (m, m) cosines of the updates; NaN for a non-finite one, whose affinities are 0.
        rho: (m,) reliabilities ρ.
        bandwidth: θ.
        gate: Whether the factor min(ρ_i, ρ_j) is there.
    """
    closeness = np.exp(-(1.0 - cosines) / bandwidth)
    if gate:
        closeness = closeness * np.minimum.outer(rho, rho)
    closeness = np.where(np.isnan(cosines), 0.0, closeness)
    np.fill_diagonal(closeness, 0.0)
    return np.asarray(closeness)


def label_distance(labels: Vector) -> Matrix:
    """Return the label compatibility (q − q')² of the pairwise potential; (L, L)."""
    return np.asarray(np.subtract.outer(labels, labels) ** 2)


def _median(values: Vector) -> float:
    return float(np.median(values)) if len(values) else float("nan")
