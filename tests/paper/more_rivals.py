"""Rivals once more, slowly: loops over vectors and groups, from the papers' formulas.

GAS, FLTrust, FoundationFL, centered clipping, FedAWA, FedDisco. Nothing here knows of Gram
matrices. What a rule draws at random, it draws here from the same generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from paper.baselines import State, Vector, by_coordinate, distance, mix


def _krum_order(rows: Sequence[Vector], f: int) -> list[int]:
    """Clients by their sums of distances to the m − f − 1 nearest, themselves among these."""
    nearest = max(1, len(rows) - f - 1)
    scores = [sum(sorted(distance(u, v) ** 2 for v in rows)[:nearest]) for u in rows]
    return sorted(range(len(rows)), key=lambda client: scores[client])


def robust_vector(base: str, rows: Sequence[Vector], f: int) -> Vector:
    """What the rule within a group makes of the clients' parts of it, as GAS's code has it."""
    m = len(rows)
    columns = list(zip(*rows, strict=True))
    if base == "median":
        return np.array([sorted(column)[(m - 1) // 2] for column in columns])
    if base == "trimmed-mean":
        f = min(f, (m - 1) // 2)
        return np.array([math.fsum(sorted(column)[f : m - f]) / (m - 2 * f) for column in columns])
    if base == "krum":
        f = min(f, max(0, (m - 3) // 2))
        return np.mean([rows[i] for i in _krum_order(rows, f)[: m - f]], axis=0)
    assert base == "bulyan"
    f = min(f, max(0, (m - 3) // 4))
    kept = [rows[i] for i in _krum_order(rows, f)[: m - 2 * f]]
    found = []
    for column in zip(*kept, strict=True):
        middle = sorted(column)[(len(column) - 1) // 2]
        nearest = sorted(column, key=lambda value: abs(value - middle))[: m - 4 * f]
        found.append(math.fsum(nearest) / len(nearest))
    return np.array(found)


def gas(
    vectors: Sequence[Vector], groups: int, base: str, f: int, seed: int = 0, rounds: int = 0
) -> list[float]:
    """The weights: 1 / (m − f) for the nearest to the robust vectors, summed over the groups."""
    d, m = len(vectors[0]), len(vectors)
    rows = [vector - vectors[0] for vector in vectors]  # no distance changes
    places = np.random.default_rng([seed, rounds]).permutation(d)
    size = math.ceil(d / groups)
    scores = [0.0] * m
    for start in range(0, d, size):
        part = [row[places[start : start + size]] for row in rows]
        robust = robust_vector(base, part, f)
        for client in range(m):
            scores[client] += distance(part[client], robust)
    kept = sorted(range(m), key=lambda client: scores[client])[: max(1, m - f)]
    return [(client in kept) / len(kept) for client in range(m)]


def fltrust(vectors: Sequence[Vector], server: Vector) -> tuple[list[float], Vector]:
    """The shares of trust, and the aggregate; it is 0 where nobody is trusted."""

    def cosine(u: Vector) -> float:
        lengths = float(np.linalg.norm(u) * np.linalg.norm(server))
        return float(u @ server) / lengths if lengths > 0 else 0.0

    trust = [max(0.0, cosine(u)) for u in vectors]
    total = math.fsum(trust)
    step = np.zeros(len(server))
    if total == 0:
        return [0.0] * len(vectors), step
    for share, u in zip(trust, vectors, strict=True):
        if share > 0:
            step += share / total * u / np.linalg.norm(u) * np.linalg.norm(server)
    return [share / total for share in trust], step


def least_extreme(vectors: Sequence[Vector]) -> int:
    """FoundationFL's choice: the client farthest from the nearer extreme."""
    greatest, least = np.max(vectors, axis=0), np.min(vectors, axis=0)
    scores = [min(distance(u, greatest), distance(u, least)) for u in vectors]
    return scores.index(max(scores))


def foundation(
    models: Sequence[State], vectors: Sequence[Vector], base: str, f: int, copies: int | None
) -> State:
    """The trimmed mean or median of the models and of copies of the least extreme one."""
    copies = math.ceil(len(models) / 2) if copies is None else copies
    everything = [*models, *[models[least_extreme(vectors)]] * copies]
    k = len(everything)
    f = (k - 1) // 2 if base == "median" else min(f, (k - 1) // 2)
    return by_coordinate(
        everything, lambda column: math.fsum(sorted(column)[f : k - f]) / (k - 2 * f)
    )


def clipped(
    start: Vector,
    vectors: Sequence[Vector],
    clients: Sequence[int],
    clip: float,
    iterations: int,
    bucket_size: int,
    seed: int = 0,
    rounds: int = 0,
) -> Vector:
    """Centered clipping's aggregate, from the one of before."""
    order = sorted(range(len(vectors)), key=lambda place: clients[place])
    if bucket_size > 1:
        order = [int(place) for place in np.random.default_rng([seed, rounds]).permutation(order)]
    buckets = [
        np.mean([vectors[i] for i in order[first : first + bucket_size]], axis=0)
        for first in range(0, len(order), bucket_size)
    ]
    center = start
    for _ in range(iterations):
        steps = []
        for bucket in buckets:
            apart = bucket - center
            length = float(np.linalg.norm(apart))
            steps.append(apart * min(1.0, clip / length) if length > 0 else apart)
        center = center + mix(steps, [1 / len(steps)] * len(steps))
    return center


def fedawa(
    before: Vector,
    vectors: Sequence[Vector],
    logits: Sequence[float],
    iterations: int,
    learning_rate: float,
    betas: tuple[float, float],
) -> tuple[list[float], list[float]]:
    """The weights and T after the round, by torch's gradients and its Adam."""
    t = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    updates = torch.tensor(np.array(vectors))
    origin = torch.tensor(before)
    adam = torch.optim.Adam([t], lr=learning_rate, betas=betas)
    weights = torch.softmax(t, 0)
    for _ in range(iterations):
        weights = torch.softmax(t, 0)
        unlike = 1 - torch.cosine_similarity(origin[None], origin + updates, dim=1)
        apart = torch.linalg.vector_norm(updates - weights @ updates, dim=1)
        adam.zero_grad()
        (weights @ unlike.detach() + weights @ apart).backward()
        adam.step()
    return weights.tolist(), t.tolist()


def feddisco(
    shares: Sequence[float], divergences: Sequence[float | None], a: float, b: float
) -> list[float]:
    """max(0, n_i/Σn_j − a d_i/Σd_j + b), scaled; the mean of the others for who says nothing."""
    used = [client for client, share in enumerate(shares) if share > 0]
    given = [d for client in used if (d := divergences[client]) is not None and d >= 0]
    if not given:
        return list(shares)
    mean = math.fsum(given) / len(given)
    filled = {
        client: mean if d is None or d < 0 else d for client in used for d in (divergences[client],)
    }
    total = math.fsum(filled.values()) or 1.0
    wanted = {client: max(0.0, shares[client] - a * filled[client] / total + b) for client in used}
    whole = math.fsum(wanted.values())
    if whole == 0:
        return list(shares)
    return [wanted.get(client, 0.0) / whole for client in range(len(shares))]
