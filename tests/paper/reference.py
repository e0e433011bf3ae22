"""The method's equations once more, slowly: plain loops over Python floats, no vectorisation.

Everything here is written from the paper's Method section and from nothing else, so that the
library and this file can only agree by both being right. Sums go through ``math.fsum``, which
rounds once, so that a disagreement is the library's rounding and not this file's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

EPSILON = 1e-12

Vector = Sequence[float]


@dataclass(frozen=True)
class Result:
    """What the reference computes, one list entry per client."""

    cosine: list[float]
    distance: list[float]
    norm_anomaly: list[float]
    reliability: list[float]
    unary: list[list[float]]
    affinity: list[list[float]]
    marginals: list[list[float]]
    expected_label: list[float]
    normaliser: float  # sum of beta * qbar over the clients that count
    weights: list[float]
    fell_back: bool
    excluded: list[bool]


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number of values the mean of the two middle ones."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def dot(a: Vector, b: Vector) -> float:
    """The inner product <a, b>."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def norm(a: Vector) -> float:
    """The Euclidean norm of a."""
    return math.sqrt(dot(a, a))


def cosine(a: Vector, b: Vector) -> float:
    """<a, b> / (|a| |b| + epsilon), the paper's guarded cosine (equation of c_i)."""
    return dot(a, b) / (norm(a) * norm(b) + EPSILON)


def sigmoid(x: float) -> float:
    """The logistic sigmoid, on the branch that cannot overflow."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


def coordinate_median(updates: Sequence[Vector]) -> list[float]:
    """The robust reference: coordmed of the updates."""
    return [median(column) for column in zip(*updates, strict=True)]


def agreement(updates: Sequence[Vector]) -> tuple[list[float], list[float], list[float]]:
    """The three statistics c_i, d_i and h_i, the normalised ones below the coordinate median."""
    centre = coordinate_median(updates)
    c = [cosine(u, centre) for u in updates]

    distances = [norm([x - y for x, y in zip(u, centre, strict=True)]) for u in updates]
    d = [distance / (median(distances) + EPSILON) for distance in distances]

    norms = [norm(u) for u in updates]
    deviations = [abs(n - median(norms)) for n in norms]
    h = [deviation / (median(deviations) + EPSILON) for deviation in deviations]
    return c, d, h


def prior(reliability: float, labels: Sequence[float]) -> list[float]:
    """P_i(q): 1 - rho at the smallest label, rho at the largest, 1 elsewhere; then normalised."""
    raw = []
    for q in labels:
        if q == min(labels):
            raw.append(1 - reliability)
        elif q == max(labels):
            raw.append(reliability)
        else:
            raw.append(1.0)
    total = math.fsum(raw)
    return [value / total for value in raw]


def softmax_of_negative(energies: Sequence[float]) -> list[float]:
    """exp(-energy), normalised; the least energy is taken off first so that nothing underflows."""
    least = min(energies)
    raw = [math.exp(least - energy) for energy in energies]
    total = math.fsum(raw)
    return [value / total for value in raw]


def mean_field(
    initial: Sequence[Vector],
    unary: Sequence[Vector],
    affinity: Sequence[Vector],
    labels: Sequence[float],
    pairwise_strength: float,
    iterations: int,
) -> list[list[float]]:
    """R parallel updates (eq:mean-field-message and eq:mean-field-crf) from Q^0 = ``initial``."""
    marginals = [list(row) for row in initial]
    clients = range(len(marginals))
    for _ in range(iterations):
        previous = marginals
        marginals = []
        for i in clients:
            energies = []
            for a, q in enumerate(labels):
                message = pairwise_strength * math.fsum(
                    affinity[i][j]
                    * math.fsum(previous[j][b] * (q - other) ** 2 for b, other in enumerate(labels))
                    for j in clients
                    if j != i
                )
                energies.append(unary[i][a] + message)
            marginals.append(softmax_of_negative(energies))
    return marginals


def infer(
    updates: Sequence[Vector],
    num_examples: Sequence[float] | None = None,
    *,
    labels: Sequence[float] = (0.0, 0.25, 1.0),
    pairwise_strength: float = 0.5,
    bandwidth: float = 0.5,
    iterations: int = 5,
    reliability_gate: bool = True,
    weight_by_examples: bool = True,
) -> Result:
    """The whole rule (alg:crf-aggregation) with a non-finite update left out of everything."""
    m = len(updates)
    counts = [1.0] * m if num_examples is None else list(num_examples)
    finite = [all(math.isfinite(x) for x in u) for u in updates]
    kept = [i for i in range(m) if finite[i]]

    c, d, h = [math.nan] * m, [math.nan] * m, [math.nan] * m
    reliability = [EPSILON] * m
    if kept:
        statistics = zip(kept, *agreement([updates[i] for i in kept]), strict=True)
        for i, c_i, d_i, h_i in statistics:
            c[i], d[i], h[i] = c_i, d_i, h_i
            reliability[i] = sigmoid(2 * c_i - d_i - 0.5 * h_i)  # eq:rho

    priors = [prior(rho, labels) for rho in reliability]
    unary = [[-math.log(p + EPSILON) for p in row] for row in priors]

    affinity = [[0.0] * m for _ in range(m)]  # eq:affinity
    for i, j in itertools.permutations(kept, 2):
        affinity[i][j] = math.exp(-(1 - cosine(updates[i], updates[j])) / bandwidth)
        if reliability_gate:
            affinity[i][j] *= min(reliability[i], reliability[j])

    marginals = mean_field(priors, unary, affinity, labels, pairwise_strength, iterations)
    expected = [math.fsum(p * q for p, q in zip(row, labels, strict=True)) for row in marginals]

    base = [0.0] * m
    for i in kept:
        if weight_by_examples:
            base[i] = counts[i] / math.fsum(counts[j] for j in kept)
        else:
            base[i] = 1 / len(kept)
    normaliser = math.fsum(base[i] * expected[i] for i in kept)
    fell_back = bool(kept) and normaliser <= EPSILON
    if fell_back or not kept:
        weights = base
    else:
        weights = [base[i] * expected[i] / normaliser for i in range(m)]  # eq:crf-weight

    return Result(
        cosine=c,
        distance=d,
        norm_anomaly=h,
        reliability=reliability,
        unary=unary,
        affinity=affinity,
        marginals=marginals,
        expected_label=expected,
        normaliser=normaliser,
        weights=weights,
        fell_back=fell_back,
        excluded=[not flag for flag in finite],
    )


def exact_marginals(
    unary: Sequence[Vector],
    affinity: Sequence[Vector],
    labels: Sequence[float],
    pairwise_strength: float,
) -> list[list[float]]:
    """Marginals of the Gibbs distribution itself, by visiting each of the L**m labellings.

    The energy is the sum of psi_u over the clients plus the sum of psi_p (eq:pairwise) over the
    pairs i < j.
    """
    m, size = len(unary), len(labels)
    labellings = list(itertools.product(range(size), repeat=m))
    energies = []
    for z in labellings:
        energy = [unary[i][z[i]] for i in range(m)]
        for i, j in itertools.combinations(range(m), 2):
            gap = labels[z[i]] - labels[z[j]]
            energy.append(pairwise_strength * affinity[i][j] * gap**2)
        energies.append(math.fsum(energy))
    probabilities = softmax_of_negative(energies)
    return [
        [
            math.fsum(p for p, z in zip(probabilities, labellings, strict=True) if z[i] == a)
            for a in range(size)
        ]
        for i in range(m)
    ]
