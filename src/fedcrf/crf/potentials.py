"""The potentials of the client CRF: what one client deserves, and what two clients share.

Every function is m-sized algebra; its equation, of the paper's Method section or past it, is in its
docstring.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics import EPSILON, Statistics
from fedcrf.statistics.crowds import pair_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LARGEST_REPORTED = 1e300
"""Numbers beyond it count as it: the sum of two would not be finite."""

MOST_SHRUNK = 2.0
"""Updates that have become shorter by a larger logarithm count as if by this: a round that most of
its clients made long must not excuse everything in the rounds after it."""

SCORE_TERMS: Mapping[str, float] = {"cosine": 2.0, "distance": -1.0, "norm_anomaly": -0.5}
"""What each cause counts in the score whose logistic function is the reliability ρ."""

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Pairs: TypeAlias = "Matrix | csr_array[np.float64]"
"""(m, m) numbers of pairs of clients; sparse where not all pairs count."""


def agreement(inner: Vector, norms: Vector, reference_norm: float) -> Vector:
    """Return c_i = ⟨u_i, ũ⟩ / (‖u_i‖ ‖ũ‖ + ε), the cosine with the reference update."""
    return inner / (norms * reference_norm + EPSILON)


def relative_distance(distances: Vector, finite: NDArray[np.bool_]) -> Vector:
    """Return d_i = ‖u_i − ũ‖ / (median_j ‖u_j − ũ‖ + ε)."""
    return distances / (_median(distances[finite]) + EPSILON)


def norm_anomaly(norms: Vector, finite: NDArray[np.bool_]) -> Vector:
    """Return h_i, how many median absolute deviations ‖u_i‖ lies from the median norm."""
    deviations = np.abs(norms - median_norm(norms, finite))
    return np.asarray(deviations / (_median(deviations[finite]) + EPSILON))


def reliability(cosine: Vector, distance: Vector, anomaly: Vector) -> Vector:
    """Return ρ_i = σ(2c_i − d_i − 0.5h_i); ε where a cause is NaN (a non-finite update).

    The coefficients are `SCORE_TERMS`.
    """
    score = (
        SCORE_TERMS["cosine"] * cosine
        + SCORE_TERMS["distance"] * distance
        + SCORE_TERMS["norm_anomaly"] * anomaly
    )
    decay = np.exp(-np.abs(score))  # never overflows, whatever the sign of the score
    rho = np.where(score >= 0.0, 1.0, decay) / (1.0 + decay)
    return np.where(np.isnan(score), EPSILON, rho)


def reliability_causes(statistics: Statistics) -> dict[str, Vector]:
    """Return (m,) ρ, c, d, h by ``reliability``, ``cosine``, ``distance``, ``norm_anomaly``."""
    finite = statistics.finite
    cosine = agreement(statistics.median_inner, statistics.norms, statistics.median_norm)
    distance = relative_distance(statistics.median_distance, finite)
    anomaly = norm_anomaly(statistics.norms, finite)
    return {
        "reliability": reliability(cosine, distance, anomaly),
        "cosine": cosine,
        "distance": distance,
        "norm_anomaly": anomaly,
    }


def label_prior(rho: Vector, labels: Vector) -> Matrix:
    """Return P_i(q) ∝ 1 − ρ_i at the smallest label, ρ_i at the largest, 1 at any other; (m, L)."""
    prior = np.ones((len(rho), len(labels)))
    prior[:, np.argmin(labels)] = 1.0 - rho
    prior[:, np.argmax(labels)] = rho
    return np.asarray(prior / prior.sum(axis=1, keepdims=True))


def unary_energy(prior: Matrix) -> Matrix:
    """Return ψ_u(q; u_i) = −log(P_i(q) + ε); (m, L)."""
    return np.asarray(-np.log(prior + EPSILON))


def affinity(cosines: Pairs, rho: Vector, bandwidth: float, gate: bool) -> Pairs:
    """Return A_ij = exp(−(1 − cos(u_i, u_j))/θ) · min(ρ_i, ρ_j), with a zero diagonal; (m, m).

    Args:
        cosines: (m, m) cosines of the updates; NaN for a non-finite one, whose affinities are 0.
            Where they are sparse, those of the pairs that there are, and so are the affinities.
        rho: (m,) reliabilities ρ.
        bandwidth: θ.
        gate: Whether the factor min(ρ_i, ρ_j) is there.
    """
    if isinstance(cosines, np.ndarray):
        closeness = _closeness(cosines, bandwidth)
        if gate:
            closeness *= np.minimum.outer(rho, rho)
        closeness[np.isnan(cosines)] = 0.0
        np.fill_diagonal(closeness, 0.0)
        return closeness
    pairs = cosines.copy()
    pairs.data = _closeness(cosines.data, bandwidth)
    if gate:
        pairs.data *= np.minimum(rho[pair_rows(cosines)], rho[cosines.indices])
    return pairs


def _closeness(cosines: Matrix, bandwidth: float) -> Matrix:
    closeness = cosines - 1.0
    closeness /= bandwidth
    return np.exp(closeness, out=closeness)


def label_distance(labels: Vector) -> Matrix:
    """Return the label compatibility (q − q')² of the pairwise potential; (L, L)."""
    return np.asarray(np.subtract.outer(labels, labels) ** 2)


def votes(cosines: Matrix, power: float) -> Vector:
    """Return 1/k_j, k_j = 1 + Σ_{i≠j} max(0, cos(u_i, u_j))^p: copies share one vote.

    Args:
        cosines: (m, m) cosines of the updates; NaN for a non-finite one.
        power: p.
    """
    alike = np.maximum(0.0, np.where(np.isnan(cosines), 0.0, cosines)) ** power
    np.fill_diagonal(alike, 0.0)
    return np.asarray(1.0 / (1.0 + alike.sum(axis=0)))


def conflict(cosines: Matrix, agreement: float = 0.0) -> Matrix:
    """Return max(0, −cos(u_i, u_j)) − agreement · max(0, cos(u_i, u_j)) of two clients; (m, m).

    Args:
        cosines: (m, m) cosines of the updates; NaN for a non-finite one, which meets none.
        agreement: How much of it makes up for conflict.
    """
    met = np.where(np.isnan(cosines), 0.0, -cosines)
    np.fill_diagonal(met, 0.0)
    return np.where(met > 0.0, met, agreement * met)


def norm_excess(
    norms: Vector, num_examples: Vector, finite: NDArray[np.bool_], exponent: float
) -> Vector:
    """Return z_i = log‖u_i‖ − a·log n_i less its median.

    A zero update lies as far below as can be. Of a client that is not finite or has no examples
    nothing is known: 0.

    Args:
        norms: (m,) norms.
        num_examples: (m,) training examples n_i.
        finite: (m,) bool; who is finite.
        exponent: a.
    """
    known = finite & (num_examples > 0)
    excess = np.zeros(len(norms))
    lengths = np.log(np.maximum(norms[known], np.finfo(np.float64).tiny))
    excess[known] = lengths - exponent * np.log(num_examples[known])
    excess[known] -= _median(excess[known])
    return excess


def crowdedness(finite: NDArray[np.bool_], crowd: float) -> float:
    """Return 1 − crowd/m of a round of m clients that are finite, 0 where it is no crowd."""
    return 1.0 - min(1.0, crowd / max(1, int(finite.sum())))


def usual(values: Vector) -> tuple[float, float]:
    """Return the median and the usual deviation: the median one of those that are not above it.

    Above it are attackers, who would make the spread what suits them.
    """
    middle = _median(values)
    return middle, _median(middle - values[values <= middle])


def excess(values: Vector, softening: float) -> Vector:
    """Return z_i = (x_i − median(x)) / (median|x − median(x)| + softening) of finite values."""
    values = np.clip(values, -LARGEST_REPORTED, LARGEST_REPORTED)
    deviations = values - _median(values)
    return np.asarray(deviations / (_median(np.abs(deviations)) + softening))


def trust(reported: Vector) -> Vector:
    """Return f_i = exp(−e_i), the reliability that reported evidence leaves; 1 where e is NaN."""
    return np.where(np.isnan(reported), 1.0, np.exp(-reported))


def median_norm(norms: Vector, finite: NDArray[np.bool_]) -> float:
    """Return the median norm of the (m,) finite updates; 0 of none."""
    return _median(norms[finite]) if finite.any() else 0.0


def standing(trusted: Vector, unknown: float) -> Vector:
    """Return min(1, trusted_i / unknown), how far clients were trusted last; 1 for who is new.

    Args:
        trusted: (m,) labels expected when the clients last took part; NaN for who is new.
        unknown: The label expected of a client of which nothing is known. Of 0 nobody can be short.
    """
    known = ~np.isnan(trusted) & (unknown > 0.0)
    return np.minimum(1.0, np.divide(trusted, unknown, out=np.ones_like(trusted), where=known))


def shrinkage(median: float, longest: float) -> float:
    """Return log(longest / median), within 0 and 2; 0 where either is 0: nothing is known then."""
    if not (longest > 0 and median > 0):
        return 0.0
    return min(MOST_SHRUNK, max(0.0, math.log(longest) - math.log(median)))


def clip_factors(norms: Vector, finite: NDArray[np.bool_], longest: float) -> Vector:
    """Return s_i = min(1, longest / ‖u_i‖); NaN for a non-finite update.

    Args:
        norms: (m,) norms.
        finite: (m,) bool; who is finite.
        longest: What updates are clipped to.
    """
    longer = finite & (norms > longest)
    factors = np.where(finite, 1.0, np.nan)
    factors[longer] = longest / norms[longer]
    return factors


def response(change: Matrix, movement: Matrix) -> Vector:
    """Return r_i, the cosine of how an update changed with how the model moved meanwhile.

    Args:
        change: (m, k) sketches of u_i(t) − u_i(t'), t' being when client i last took part; a row
            is NaN where it never did.
        movement: (m, k) sketches of w_t − w_t'.

    Returns:
        (m,) cosines; 0 for an update that did not change, NaN where the model did not move or
        the client is new.
    """
    return np.where(movement.any(axis=1), _row_cosines(change, movement), np.nan)


def steadiness(update: Matrix, last_update: Matrix) -> Vector:
    """Return the cosine of each client's update with its last one.

    Args:
        update: (m, k) sketches of u_i(t).
        last_update: (m, k) sketches of u_i(t'), as in `response`; a row is NaN likewise.

    Returns:
        (m,) cosines; 0 where one of the two is zero, NaN where the client is new.
    """
    return _row_cosines(update, last_update)


def _row_cosines(left: Matrix, right: Matrix) -> Vector:
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    inner: Vector = np.einsum("ij,ij->i", left, right)
    return inner / np.where(lengths == 0.0, 1.0, lengths)


def _median(values: Vector) -> float:
    """Return the median: NumPy's to the bit, in a fifth of its time where values are few."""
    if not len(values):
        return float("nan")
    ordered = np.sort(values)
    middle = len(values) // 2
    if len(values) % 2 or np.isnan(ordered[-1]):
        return float(ordered[-1] if np.isnan(ordered[-1]) else ordered[middle])
    return float((ordered[middle - 1] + ordered[middle]) / 2)
