"""Centered clipping: steps towards the updates, of bounded length, from the last aggregate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.checks import Count, Natural, Positive, Times
from fedcrf.rules.base import (
    ROUNDS,
    AggregationResult,
    Deciding,
    Matrix,
    Round,
    Vector,
    stepped_state,
)
from fedcrf.rules.state import floating_layers, layers_alike, merged, update_of
from fedcrf.statistics import centred_geometry, weighted_average

CENTER = "center"
"""Name in the memory of the last aggregate, a step of the model."""


@dataclass(frozen=True)
class CenteredClipping(Deciding):
    """z ← z + mean of (v_i − z) min(1, τ/‖v_i − z‖), from the last aggregate z on.

    The iteration is that of Karimireddy, He and Jaggi (ICML 2021); the v_i are the means of
    buckets of updates, drawn anew each round, as in "Byzantine-Robust Learning on Heterogeneous
    Datasets via Bucketing" (Karimireddy, He and Jaggi, ICLR 2022). Settings are those of that
    paper's code, epfml/byzantine-robust-noniid-optimizer: three iterations, τ = 10, buckets of
    two. The code divides τ by 1 − β for worker momentum β if it is asked to: set ``clip`` to 100
    for β = .9. What it clips are gradients. Here updates are clipped, which are about a learning
    rate times as long.

    All updates count alike, and integer tensors are their plain mean. The iteration needs only the
    Gram matrix of the updates and z about their mean. The result's weights are those of the
    buckets' mean, and its clips what each update is multiplied by. That is above 1
    where later iterations add an update again while others are cut.

    Attributes:
        clip: τ, above 0.
        iterations: Iterations a round.
        bucket_size: Updates in a bucket; the last one holds what is left. 1 for none.
        seed: Of the draws of buckets (see `Deciding`).
    """

    behaviour: ClassVar[int] = 2
    remembers: ClassVar[bool] = True

    clip: Positive = 10.0
    iterations: Times = 3
    bucket_size: Count = 2
    seed: Natural | None = None

    def decide(self, given: Round) -> AggregationResult:
        """Return the model moved by the clipped mean."""
        model, memory = given.model, given.memory
        size = sum(len(layer) for layer in floating_layers(model))
        last = given.kept(self.name, {CENTER: (size,), ROUNDS: ()}).get(CENTER)
        center = model if last is None else stepped_state(model, last, model)
        states = [center, *given.states]
        origin, *points = layers_alike(model, [model, *states])
        geometry = centred_geometry(points, origin)
        finite = geometry.finite[1:]
        given.restrict_to(finite)
        if not finite.any():
            return given.nobody(memory)
        if not geometry.finite[0]:  # the last aggregate leads out of the model's dtype
            anew = {CENTER: np.zeros(size), ROUNDS: np.array(given.rounds)}
            return self.aggregate(anew, model, given.reports)
        used = np.flatnonzero(geometry.finite)
        draws, kept = given.drawing(self.seed)
        buckets = self._buckets(given.clients, draws)
        gram = geometry.gram[np.ix_(used, used)]
        shares = given.spread(buckets.mean(axis=0))
        coefficients = np.zeros(len(states))
        coefficients[used] = clipped_mean(gram, buckets, self.clip, self.iterations)
        plain = np.array([0.0, *(finite / finite.sum())])
        state = merged(
            model,
            states,
            lambda arrays: weighted_average(arrays, coefficients),
            lambda arrays: weighted_average(arrays, plain),
        )
        # In float32, or in what the model has if that is more.
        dtype = np.result_type(np.float32, *{layer.dtype for layer in floating_layers(model)})
        del center, states, points  # as large as a model; the step needs that room
        return AggregationResult(
            state=state,
            weights=shares,
            base_weights=given.shares,
            excluded=~finite,
            memory={CENTER: update_of(state, model, dtype=dtype), **kept},
            clips=coefficients[1:] / np.where(finite, shares, 1.0),
        )

    def _buckets(self, clients: Sequence[int], draws: np.random.Generator) -> Matrix:
        """Return (k, m) weights that make the k buckets' means of m updates."""
        # By identity, so that the order in which reports arrive changes nothing.
        order = np.argsort(clients, kind="stable")
        if self.bucket_size > 1:
            order = draws.permutation(order)
        size = self.bucket_size
        buckets = np.zeros((math.ceil(len(order) / size), len(order)))
        for number, row in enumerate(buckets):
            places = order[number * size : (number + 1) * size]
            row[places] = 1.0 / len(places)
        return buckets


def clipped_mean(gram: Matrix, buckets: Matrix, clip: float, iterations: int) -> Vector:
    """Run z ← z + mean of (v_i − z) min(1, τ/‖v_i − z‖), on the Gram matrix alone.

    ``gram`` has the (1 + m, 1 + m) inner products of the first z and the updates, about any point;
    ``buckets`` the (k, m) weights of the updates in each v_i. Returned are the (1 + m,)
    coefficients of the first z and of the updates in the last z; they sum to 1.
    """
    points = np.hstack([np.zeros((len(buckets), 1)), buckets])
    center = np.zeros(len(gram))
    center[0] = 1.0
    for _ in range(iterations):
        apart = points - center
        squared = np.einsum("ij,ij->i", apart @ gram, apart)
        lengths = np.sqrt(np.maximum(squared, 0.0))
        kept = np.minimum(1.0, clip / np.maximum(lengths, clip))
        center = center + kept @ apart / len(points)
    return center
