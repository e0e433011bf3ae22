"""The field's other robust rules once more, slowly, from their papers and their authors' code.

As in `baselines`: whole vectors, no inner products in place of distances, plain loops. What they
share with the library is scikit-learn's clustering, which both are defined by, and what is drawn.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.baselines import State, Vector, by_coordinate, distance, mix, weighted_mean

# --- weights --------------------------------------------------------------------------------


def bra(
    models: Sequence[Vector],
    iterations: int = 100,
    tolerance: float = 1e-3,
    scale_invariant: bool = False,
) -> list[float]:
    """Shares of the models: two loops of expectation and maximization."""
    m = len(models)

    def spread(honesty: Sequence[float]) -> tuple[Vector, list[float], float]:
        mean = mix(models, [p / math.fsum(honesty) for p in honesty])
        squared = [distance(mean, model) ** 2 for model in models]
        products = [p * s for p, s in zip(honesty, squared, strict=True)]
        return mean, squared, math.fsum(products) / math.fsum(honesty)

    honesty = [1.0] * m
    mean, squared, variance = spread(honesty)
    first = variance
    for _ in range(iterations):
        if variance <= 1e-12 * first:
            break
        unit = 2 * math.pi * (1 if scale_invariant else variance)
        density = [math.exp(-s / variance / 2) / math.sqrt(unit) for s in squared]
        inner = [0.95] * m
        for _ in range(iterations):
            dishonest = 1 - math.fsum(inner) / m
            before, odds = inner, dishonest / (1 - dishonest)
            inner = [d / (odds + d) for d in density]
            if math.dist(before, inner) < tolerance:
                break
        honesty, earlier = inner, mean
        mean, squared, variance = spread(honesty)
        if distance(mean, earlier) <= tolerance * math.sqrt(math.fsum(earlier**2)):
            break
    return [p / math.fsum(honesty) for p in honesty]


def cosine(one: Vector, other: Vector) -> float:
    """0 with a vector of zeros."""
    size = math.sqrt(math.fsum(one**2)) * math.sqrt(math.fsum(other**2))
    return math.fsum(one * other) / size if size else 0.0


class SlowFedSCS:
    """Scores by client, over rounds."""

    def __init__(self, beta: float = 0.9, epsilon: float = 1e-6) -> None:
        self.beta, self.epsilon, self.scores = beta, epsilon, dict[int, float]()

    def round(self, updates: Mapping[int, Vector]) -> list[float]:
        """Return the weights of clients in order."""
        if len(updates) == 1:
            return [1.0]
        stable = []
        for client, update in updates.items():
            others = sum(u for other, u in updates.items() if other != client)
            fresh = max(0.0, cosine(update, np.asarray(others)))
            before = self.scores.get(client)
            if before is None:
                self.scores[client] = fresh
                stable.append(fresh)
                continue
            score = self.scores[client] = self.beta * before + (1 - self.beta) * fresh
            stable.append(score / (1 + abs(score - before) / (before + self.epsilon)))
        total = math.fsum(stable)
        return [s / total if total > self.epsilon else 1 / len(stable) for s in stable]


class SlowFoolsGold:
    """Histories by client, over rounds."""

    def __init__(self) -> None:
        self.history: dict[int, Vector] = {}

    def round(self, updates: Mapping[int, Vector]) -> list[float]:
        """Return each client's α; None of them is above 0 if all histories are alike."""
        for client, update in updates.items():
            self.history[client] = self.history.get(client, 0.0) + update
        rows = [self.history[client] for client in updates]
        n = len(rows)
        cs = [[cosine(a, b) if i != j else 0.0 for j, b in enumerate(rows)]
              for i, a in enumerate(rows)]  # fmt: skip
        largest = [max(row) for row in cs]
        for i in range(n):
            for j in range(n):
                if largest[i] < largest[j]:
                    cs[i][j] *= largest[i] / largest[j]
        unlike = [min(1.0, max(0.0, 1 - max(row))) for row in cs]
        unlike = [value if value > 1e-12 else 0.0 for value in unlike]
        top = max(unlike)
        if top == 0:
            return [0.0] * n
        alpha = []
        for value in (u / top for u in unlike):
            value = 0.99 if value == 1 else value
            logit = math.log(value / (1 - value)) + 0.5 if value else -math.inf
            alpha.append(min(1.0, max(0.0, logit)))
        return alpha


def output_layer(before: State, state: State) -> Vector:
    """The update of the last floating-point tensor of two dimensions or more, or of all."""
    floats = [name for name, array in before.items() if array.dtype.kind == "f"]
    names = [name for name in floats if before[name].ndim >= 2][-1:] or floats
    parts = [state[n].ravel().astype(float) - before[n].ravel().astype(float) for n in names]
    return np.concatenate(parts)


def dnc(updates: Sequence[Vector], f: int, chosen: Sequence[NDArray[Any]]) -> list[int]:
    """Who is left, with the coordinates of each iteration as (d,) bool."""
    left = set(range(len(updates)))
    for columns in chosen:
        rows = np.stack([update[columns] for update in updates])
        rows = rows - rows.mean(axis=0)
        direction = np.linalg.svd(rows, full_matrices=False)[2][0]
        scores = [float(row @ direction) ** 2 for row in rows]
        total = sum(scores) or 1.0
        order = sorted(range(len(rows)), key=lambda i: round(scores[i] / total, 12))
        left &= set(order[: max(1, len(rows) - f)])
    return sorted(left)


# --- clipped updates ------------------------------------------------------------------------


def lengths(updates: Sequence[Vector]) -> list[float]:
    return [math.sqrt(math.fsum(update**2)) for update in updates]


def clips(updates: Sequence[Vector]) -> list[float]:
    """By what each update is shortened to the median length."""
    sizes = lengths(updates)
    median = float(np.median(sizes))
    return [min(1.0, median / size) if size > median else 1.0 for size in sizes]


def moved(
    before: State, models: Sequence[State], weights: Sequence[float], factors: Sequence[float]
) -> State:
    """w + Σ α_i c_i (w_i − w); integers are averaged."""
    steps = [w * c for w, c in zip(weights, factors, strict=True)]
    stays = math.fsum(weights) - math.fsum(steps)
    floats = weighted_mean([before, *models], [stays, *steps])
    others = weighted_mean(models, weights)
    return {n: floats[n] if a.dtype.kind == "f" else others[n] for n, a in before.items()}


def signguard(
    updates: Sequence[Vector], start: int, count: int, lower: float, upper: float
) -> list[int]:
    """Who passes the band of lengths and is in the largest cluster of mean shift."""
    from sklearn.cluster import MeanShift, estimate_bandwidth

    sizes = lengths(updates)
    median = float(np.median(sizes))
    band = [median == 0 or lower * median < size < upper * median for size in sizes]
    features = []
    for update in updates:
        signs = [float(np.sign(x)) for x in update[start : start + count]]
        features.append([signs.count(sign) / count for sign in (1.0, 0.0, -1.0)])
    rows = np.array(features)
    rows = rows / (rows.max(axis=0) + 1e-8)
    order = sorted(range(len(rows)), key=lambda i: tuple(rows[i][::-1]))
    bandwidth = estimate_bandwidth(rows[order], quantile=0.5, n_samples=50)
    cluster = [True] * len(rows)
    if bandwidth > 1e-7:  # what rounding makes of equal rows is none
        shift = MeanShift(bandwidth=bandwidth, bin_seeding=True, cluster_all=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that each point is a bin
            labels = shift.fit(rows[order]).labels_.tolist()
        sizes_of = [labels.count(k) for k in range(max(labels) + 1)]
        largest = sizes_of.index(max(sizes_of))
        for place, label in zip(order, labels, strict=True):
            cluster[place] = label == largest
    return [i for i in range(len(rows)) if band[i] and cluster[i]]


def flame(models: Sequence[Vector]) -> list[int]:
    """Who is in the cluster of more than half, by the cosine distance of whole models."""
    from sklearn.cluster import HDBSCAN

    if len(models) == 1:
        return [0]
    distances = [[0.0 if i == j else max(0.0, 1 - cosine(a, b)) for j, b in enumerate(models)]
                 for i, a in enumerate(models)]  # fmt: skip
    labels = HDBSCAN(
        min_cluster_size=len(models) // 2 + 1,
        min_samples=1,
        metric="precomputed",
        allow_single_cluster=True,
        copy=True,
    ).fit_predict(np.array(distances))
    return [i for i, label in enumerate(labels) if label == 0]


def lasa(
    before: State,
    models: Sequence[State],
    updates: Sequence[Vector],
    norm_bound: float = 1.0,
    sign_bound: float = 1.0,
    sparsity: float = 0.3,
) -> State:
    """The model, tensor by tensor; integers are averaged."""
    m, factors = len(models), clips(updates)
    floats = [name for name, array in before.items() if array.dtype.kind == "f"]
    dense = [
        {n: c * (model[n].astype(float) - before[n].astype(float)) for n in floats}
        for c, model in zip(factors, models, strict=True)
    ]
    sparse = []
    for update in dense:
        weights = [n for n in floats if update[n].ndim in (2, 4)]
        every = sorted((abs(float(x)) for n in weights for x in update[n].ravel()), reverse=True)
        cut = every[max(1, int(len(every) * (1 - sparsity))) - 1] if every and sparsity else -1.0
        sparse.append(
            {n: np.where(abs(u) > cut, u, 0.0) if n in weights else u for n, u in update.items()}
        )

    def passing(values: Sequence[float], bound: float) -> set[int]:
        middle, deviation = float(np.median(values)), float(np.std(values))
        if not max(values) - min(values) > 1e-9 * max(map(abs, values)):
            return set()
        return {i for i, x in enumerate(values) if abs(x - middle) / deviation < bound - 1e-9}

    state = dict(by_coordinate(models, lambda values: math.fsum(values) / m))
    for name in floats:
        sizes = lengths([update[name].ravel() for update in sparse])
        balances = []
        for update in sparse:
            signs = [float(np.sign(x)) for x in update[name].ravel()]
            some = len(signs) - signs.count(0.0)
            share = sum(signs) / some if some else math.nan
            balances.append(0.5 * (1 + share * (1 - sparsity)))
        kept = passing(sizes, norm_bound) & passing(balances, sign_bound) or set(range(m))
        state[name] = before[name] + sum(sparse[i][name] for i in kept) / len(kept)
    return state
