"""The baselines once more, slowly: plain loops in float64, from their definitions.

Written from the definitions of the rules and from nothing in the library, so that the two can only
agree by both being right. Distances are taken between whole vectors, never by way of inner
products; sums over clients go through ``math.fsum``, which rounds once.

A state is a mapping from names to arrays. Results are float64, also where the model is not, and
integer tensors are not rounded yet: the tests judge the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.reference import median

State = Mapping[str, NDArray[Any]]
Vector = NDArray[np.float64]

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


# --- states and vectors ---------------------------------------------------------------------


def vector(state: State) -> Vector:
    """Every floating-point tensor of a state, one after another, in float64."""
    numbers: list[float] = []
    for array in state.values():
        if np.issubdtype(array.dtype, np.floating):
            numbers.extend(float(x) for x in array.reshape(-1))
    return np.array(numbers)


def updates(before: State, states: Sequence[State]) -> list[Vector]:
    """The vectors u_i = vec(w_i − w)."""
    return [vector(state) - vector(before) for state in states]


def by_coordinate(
    states: Sequence[State], pick: Callable[[list[float]], float]
) -> dict[str, NDArray[np.float64]]:
    """Reduce the clients' values to one, number by number."""
    result = {}
    for name, first in states[0].items():
        flat = [state[name].reshape(-1) for state in states]
        values = [pick([float(row[k]) for row in flat]) for k in range(first.size)]
        result[name] = np.array(values, dtype=np.float64).reshape(first.shape)
    return result


def weighted_mean(
    states: Sequence[State], weights: Sequence[float]
) -> dict[str, NDArray[np.float64]]:
    """Σ α_i w_i."""
    return by_coordinate(
        states, lambda values: math.fsum(a * x for a, x in zip(weights, values, strict=True))
    )


def shares(counts: Sequence[float]) -> list[float]:
    """n_i / Σ n_j."""
    return [count / sum(counts) for count in counts]


def fedavg(states: Sequence[State], counts: Sequence[float]) -> dict[str, NDArray[np.float64]]:
    """The mean of the clients' models by their numbers of examples."""
    return weighted_mean(states, shares(counts))


# --- FedNova --------------------------------------------------------------------------------


def fednova_weights(counts: Sequence[float], steps: Sequence[float]) -> list[float]:
    """What each update counts for: τ_eff p_i / a_i with τ_eff = Σ p_i a_i."""
    p = shares(counts)
    tau = math.fsum(p_i * a_i for p_i, a_i in zip(p, steps, strict=True))
    return [tau * p_i / a_i for p_i, a_i in zip(p, steps, strict=True)]


def fednova(
    before: State,
    states: Sequence[State],
    counts: Sequence[float],
    steps: Sequence[float],
    normalise_buffers: bool = False,
) -> dict[str, NDArray[np.float64]]:
    """w + Σ (τ_eff p_i / a_i) u_i; buffers as FedAvg does, or likewise."""
    weights = fednova_weights(counts, steps)
    averaged = fedavg(states, counts)
    result = {}
    for name, array in before.items():
        if name.split(".")[-1] in BUFFERS and not normalise_buffers:
            result[name] = averaged[name]
            continue
        flat = np.empty(array.size)
        for k in range(array.size):
            w = float(array.reshape(-1)[k])
            moves = [float(state[name].reshape(-1)[k]) - w for state in states]
            flat[k] = w + math.fsum(c * u for c, u in zip(weights, moves, strict=True))
        result[name] = flat.reshape(array.shape)
    return result


# --- by coordinate --------------------------------------------------------------------------


def trimmed(values: Sequence[float], fraction: float) -> float:
    """The mean without the ⌊βm⌋ smallest and largest; β is the simple fraction it stands for."""
    cut = math.floor(Fraction(fraction).limit_denominator(1000) * len(values))
    kept = sorted(values)[cut : len(values) - cut]
    return math.fsum(kept) / len(kept)


def coordinate_median(states: Sequence[State]) -> dict[str, NDArray[np.float64]]:
    """The median of every number of the model."""
    return by_coordinate(states, median)


def trimmed_mean(states: Sequence[State], fraction: float) -> dict[str, NDArray[np.float64]]:
    """The trimmed mean of every number of the model."""
    return by_coordinate(states, lambda values: trimmed(values, fraction))


# --- geometric median -----------------------------------------------------------------------


def distance(a: Vector, b: Vector) -> float:
    """‖a − b‖, summed over the differences."""
    return math.sqrt(math.fsum(float(x) ** 2 for x in a - b))


def total_distance(vectors: Sequence[Vector], point: Vector) -> float:
    """Σ ‖z − u_i‖, what the geometric median makes least."""
    return math.fsum(distance(point, u) for u in vectors)


def mix(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Σ v_i u_i."""
    result = np.zeros(len(vectors[0]))
    for weight, u in zip(weights, vectors, strict=True):
        result = result + weight * u
    return result


def weiszfeld(
    vectors: Sequence[Vector],
    weights: Sequence[float],
    smoothing: float,
    iterations: int,
    tolerance: float = 0.0,
) -> tuple[Vector, list[float], bool]:
    """Weiszfeld's iterations on whole vectors, from their weighted mean.

    Returns:
        The point z, the weights that make it of the vectors, and whether it came to rest: moved
        no more than ``tolerance`` times the root mean square distance of the vectors from their
        mean, which is what the updates differ by, whatever they have in common.
    """
    z, v = mix(vectors, weights), list(weights)
    middle = mix(vectors, [1.0 / len(vectors)] * len(vectors))
    typical = math.sqrt(math.fsum(distance(u, middle) ** 2 for u in vectors) / len(vectors))
    for _ in range(iterations):
        pulls = [a / max(smoothing, distance(z, u)) for a, u in zip(weights, vectors, strict=True)]
        v = [pull / math.fsum(pulls) for pull in pulls]
        after = mix(vectors, v)
        moved, z = distance(after, z), after
        if moved <= tolerance * typical:
            return z, v, True
    return z, v, False


def geometric_median(vectors: Sequence[Vector]) -> Vector:
    """The geometric median, iterated until it moves less than 1e-12 of their distance."""
    equal = [1.0 / len(vectors)] * len(vectors)
    z, _, at_rest = weiszfeld(vectors, equal, 1e-300, 20_000, 1e-12)
    assert at_rest, "Weiszfeld did not come to rest: choose other vectors"
    return z


def rfa(
    vectors: Sequence[Vector],
    counts: Sequence[float],
    iterations: int = 3,
    smoothing: float = 1e-6,
) -> tuple[Vector, list[float]]:
    """Smoothed, sample-weighted Weiszfeld: exactly so many iterations from the weighted mean."""
    z, v, _ = weiszfeld(vectors, shares(counts), smoothing, iterations, tolerance=-1.0)
    return z, v


# --- Krum -----------------------------------------------------------------------------------


def krum_scores(vectors: Sequence[Vector], neighbours: int) -> list[float]:
    """For each update the sum of the squared distances to so many of its nearest others."""
    scores = []
    for i, u in enumerate(vectors):
        squared = [distance(u, other) ** 2 for j, other in enumerate(vectors) if j != i]
        scores.append(math.fsum(sorted(squared)[:neighbours]))
    return scores


def krum_neighbours(num_clients: int, num_byzantine: int) -> int:
    """n − f − 2 others, at least one."""
    return max(1, num_clients - num_byzantine - 2)


def best(scores: Sequence[float], count: int) -> list[int]:
    """The ``count`` clients of least score, the earlier one first where scores are equal."""
    return sorted(range(len(scores)), key=lambda client: (scores[client], client))[:count]


def krum(vectors: Sequence[Vector], num_byzantine: int) -> int:
    """The client whose update Krum returns."""
    return best(krum_scores(vectors, krum_neighbours(len(vectors), num_byzantine)), 1)[0]


def multi_krum(vectors: Sequence[Vector], num_byzantine: int) -> list[int]:
    """The n − f clients whose updates Multi-Krum averages."""
    scores = krum_scores(vectors, krum_neighbours(len(vectors), num_byzantine))
    return best(scores, max(1, len(vectors) - num_byzantine))
