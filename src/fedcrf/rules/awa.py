"""FedAWA: weights that the server adapts so that the models and the updates agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.checks import Positive, Share, Times
from fedcrf.rules.base import AggregationResult, Deciding, Matrix, Round, Vector
from fedcrf.statistics import projections
from fedcrf.statistics.inputs import Layers, blocks

EPSILON = 1e-8
"""Adam's ε, and the least product of norms in a cosine, as in the source."""


@dataclass(frozen=True)
class FedAWA(Deciding):
    """Weights p = softmax(T), with T moved against a loss by Adam (Shi et al., CVPR 2025).

    The loss is Σ p_i (1 − cos(w_t, w_i)) + Σ p_i ‖u_i − Σ p_j u_j‖. It follows the authors' code,
    ChanglongShi/FedAWA: T starts at the clients' shares n_i/Σn_j (not at their logarithms, so that
    the first weights are nearly equal), Adam begins anew each round, and a round uses the weights
    of before the last step; the step counts from the next round on. With one step a round, T
    moves by the learning rate, whatever the gradient's size.

    T is kept by client. In the source, with partial participation, it goes by the place in the
    round. Buffers of batch norm are part of the models here. Everything is a function of the
    updates' Gram matrix and of their inner products with w_t.

    Attributes:
        iterations: Adam's steps a round.
        learning_rate: Adam's, above 0.
        beta1: Adam's β₁ in [0, 1).
        beta2: Adam's β₂ in [0, 1).
    """

    remembers: ClassVar[bool] = True
    iterations: Times = 1
    learning_rate: Positive = 1e-3
    beta1: Share = 0.5
    beta2: Share = 0.999

    def decide(self, given: Round) -> AggregationResult:
        """Return the mean of the models with these weights."""
        gram = given.among_used(given.geometry.gram)
        before = given.recalled("logits")
        if not len(gram):
            return given.nobody(given.memory)
        logits = np.where(np.isnan(before), given.shares[given.used], before)
        dissimilarity = _dissimilarity(given.finite_layers, given.layers[1])
        first, second = np.zeros_like(logits), np.zeros_like(logits)
        for step in range(1, self.iterations + 1):
            weights = softmax(logits)
            gradient = loss_gradient(weights, dissimilarity, gram)
            first = self.beta1 * first + (1.0 - self.beta1) * gradient
            second = self.beta2 * second + (1.0 - self.beta2) * gradient**2
            mean = first / (1.0 - self.beta1**step)
            scale = np.sqrt(second / (1.0 - self.beta2**step)) + EPSILON
            logits = logits - self.learning_rate * mean / scale
        # The weights are those of before the last step.
        return given.weighted(given.spread(weights), memory=given.remembered(logits=logits))


def softmax(logits: Vector) -> Vector:
    """Return exp(T_i) / Σ exp(T_j)."""
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def loss_gradient(weights: Vector, dissimilarity: Vector, gram: Matrix) -> Vector:
    """Return the loss's gradient by T, at the weights p = softmax(T).

    The dissimilarity is (m,) 1 − cos(w_t, w_i); ``gram`` has the (m, m) inner products of the
    updates about any point, which does not matter.
    """
    inner = gram @ weights
    squared = np.diagonal(gram) - 2.0 * inner + weights @ inner
    distances = np.sqrt(np.maximum(squared, 0.0))
    # An update at the mean has no direction: torch takes a slope of 0 there, and so does this.
    met = distances <= 1e-12 * np.sqrt(np.maximum(np.diagonal(gram).max(), 0.0))
    pull = np.where(met, 0.0, weights / np.where(met, 1.0, distances))
    # Σ_i p_i ∂d_i/∂p_k = −⟨Σ_i (p_i/d_i)(u_i − ū), u_k⟩
    by_weight = dissimilarity + distances - (gram @ pull - pull.sum() * inner)
    return np.asarray(weights * (by_weight - weights @ by_weight))


def _dissimilarity(models: Sequence[Layers], origin: Layers) -> Vector:
    """Return (m,) 1 − cos(w_t, w_i)."""
    squares, along = projections(models, origin, origin)
    square = sum(float(np.vdot(block, block)) for _, block in blocks([origin]))
    inner = square + along
    norms = np.sqrt(square * np.maximum(square + 2.0 * along + squares, 0.0))
    shallow = inner > 0
    # ‖w‖²‖w_i‖² − ⟨w, w_i⟩² = ‖w‖²‖u_i‖² − ⟨w, u_i⟩², where what the models share is gone.
    sine = np.maximum(square * squares - along**2, 0.0)
    divisors = np.maximum(norms, EPSILON)
    small = sine / np.where(shallow, divisors * (norms + inner), 1.0)
    return np.asarray(np.where(shallow, small, 1.0 - inner / divisors))
