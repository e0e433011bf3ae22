"""The potentials of the paper's CRF, unary and pairwise, with the equations of its Method section.

`Reliability` and `Attraction` are the parts of the paper's field; the functions are their terms.
All numbers are float64. Of m clients in a round a vector has m, in the order of the updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import NotNegative, Settings, Truth, number
from fedcrf.crf.parts import Energy, Matrix, Message, Observation, Prior, Vector
from fedcrf.statistics import EPSILON, Statistics

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SCORE_TERMS: Mapping[str, float] = {"cosine": 2.0, "distance": -1.0, "norm_anomaly": -0.5}
"""The coefficient of each cause in the score whose logistic function is the reliability ρ."""

Bandwidth = Annotated[float, number(1e-6)]
"""A bandwidth far above 1e-8, by which rounding may move a cosine."""

Pairs: TypeAlias = "Matrix | csr_array[np.float64]"
"""(m, m) numbers of pairs of clients; sparse where not all pairs count."""


def agreement(inner: Vector, norms: Vector, reference_norm: float) -> Vector:
    """Return (m,) c_i = ⟨u_i, ũ⟩ / (‖u_i‖ ‖ũ‖ + ε), the cosines with the reference update ũ.

    ``inner`` are the (m,) inner products ⟨u_i, ũ⟩.
    """
    return inner / (norms * reference_norm + EPSILON)


def relative_distance(distances: Vector, finite: NDArray[np.bool_]) -> Vector:
    """Return (m,) d_i = ‖u_i − ũ‖ / (median_j ‖u_j − ũ‖ + ε), the median over finite clients."""
    return distances / (median(distances[finite]) + EPSILON)


def norm_anomaly(norms: Vector, finite: NDArray[np.bool_]) -> Vector:
    """Return (m,) h_i = |‖u_i‖ − median‖u_j‖| / (MAD + ε), the medians over finite clients."""
    deviations = np.abs(norms - median(norms[finite]))
    return np.asarray(deviations / (median(deviations[finite]) + EPSILON))


def reliability(cosine: Vector, distance: Vector, anomaly: Vector) -> Vector:
    """Return (m,) ρ_i = σ(2c_i − d_i − 0.5h_i); ε where a cause is NaN (a non-finite update).

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
    prior[:, labels.argmin()] = 1.0 - rho
    prior[:, labels.argmax()] = rho
    return np.asarray(prior / prior.sum(axis=1, keepdims=True))


def unary_energy(prior: Matrix) -> Matrix:
    """Return ψ_u(q; u_i) = −log(P_i(q) + ε); (m, L)."""
    return np.asarray(-np.log(prior + EPSILON))


def affinity(cosines: Pairs, rho: Vector, bandwidth: float, gate: bool) -> Pairs:
    """Return A_ij = exp(−(1 − cos(u_i, u_j))/θ) · min(ρ_i, ρ_j), with a zero diagonal; (m, m).

    Args:
        cosines: (m, m) cosines of the updates; NaN for a non-finite one, whose affinities are 0.
            Where they are sparse, so are the affinities.
        rho: (m,) reliabilities ρ.
        bandwidth: θ.
        gate: Whether affinities carry the factor min(ρ_i, ρ_j).
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
        pairs.data *= np.minimum(rho[cosines.tocoo(copy=False).row], rho[cosines.indices])
    return pairs


def _closeness(cosines: Matrix, bandwidth: float) -> Matrix:
    closeness = cosines - 1.0
    closeness /= bandwidth
    return np.exp(closeness, out=closeness)


def label_compatibility(labels: Vector) -> Matrix:
    """Return the label compatibility (q − q')² of the pairwise potential; (L, L)."""
    return np.asarray(np.subtract.outer(labels, labels) ** 2)


def median(values: Vector) -> float:
    """Return NumPy's median to the bit, five times as fast for few values; NaN of no values."""
    ordered = values.copy()
    ordered.sort()
    return median_of_sorted(ordered)


def median_of_sorted(ordered: Vector) -> float:
    """Return the median of sorted values, NaN last; NaN of no values."""
    count = len(ordered)
    if not count or math.isnan(ordered[-1]):
        return math.nan
    if count % 2:
        return float(ordered[count // 2])
    return float((ordered[count // 2 - 1] + ordered[count // 2]) / 2)


@dataclass(frozen=True)
class Reliability(Settings):
    """The paper's: P_i(q) ∝ 1 − ρ_i at the smallest label, ρ_i at the largest, 1 at any other.

    ρ_i = σ(2c_i − d_i − 0.5h_i) of the agreement with the reference, the distance from it and the
    anomaly of the norm.
    """

    def prior(self, seen: Observation, labels: Vector) -> Prior:
        """Return the prior and ρ, c, d, h; see `PriorPart.prior`."""
        causes = reliability_causes(seen.statistics)
        return Prior(label_prior(causes["reliability"], labels), causes)


@dataclass(frozen=True)
class Attraction(Settings):
    """The paper's: similar clients are drawn to one label, ψ(q, q') = λ·A_ij·(q − q')².

    A_ij = exp(−(1 − cos(u_i, u_j))/θ)·min(ρ_i, ρ_j), A_ii = 0. With `CrowdStatistics` only the
    pairs of neighbours have affinities.

    Attributes:
        strength: λ ≥ 0.
        bandwidth: θ, 1e-6 or more.
        reliability_gate: Whether affinities carry the factor min(ρ_i, ρ_j).
    """

    strength: NotNegative = 0.5
    bandwidth: Bandwidth = 0.5
    reliability_gate: Truth = True

    def message(self, seen: Observation, labels: Vector) -> Message:
        """Return the message λ Σ_j A_ij Σ_q' Q_j(q')(q − q')²; A is its cause ``affinity``."""
        rho = seen.measured.get("reliability")  # where the prior has computed it
        if rho is None:
            rho = reliability_causes(seen.statistics)["reliability"]
        affinities = affinity(seen.statistics.cosines, rho, self.bandwidth, self.reliability_gate)
        coupling = self.strength * affinities
        disagreement = label_compatibility(labels)
        causes: dict[str, Any] = {"affinity": affinities}
        return lambda marginals: Energy(coupling.dot(marginals.dot(disagreement)), causes)
