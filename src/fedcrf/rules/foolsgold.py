"""FoolsGold: clients whose histories are alike are taken for one attacker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.rules.base import AggregationResult, Deciding, Matrix, Round, Vector
from fedcrf.rules.state import floating_names, update_of
from fedcrf.statistics import EPSILON


@dataclass(frozen=True)
class FoolsGold(Deciding):
    """Low weights for clients whose updates have been alike (Fung et al., RAID 2020).

    A client's history is the sum of its updates of the output layer. Its largest cosine to another
    history, after honest clients are pardoned, is taken from 1; the results are scaled to a maximum
    of 1, and their logit plus ½ is cut to [0, 1]. The model moves by Σ α_i u_i / m, so that weights
    below 1 shorten the step.

    It follows the authors' code for networks (github.com/DistributedML/FoolsGold, deep-fg), which
    keeps the weight matrix of the output layer and divides by m: here the last floating-point
    tensor with two dimensions or more, or the whole model if there is none. Their code for a linear
    model, which FLPoison follows, sums updates of length 1 at most, with an ε of 1e-5 and no
    division. If all histories point one way, the authors divide by zero; here the model stays.
    """

    remembers: ClassVar[bool] = True

    def decide(self, given: Round) -> AggregationResult:
        """Move the model by the weighted updates."""
        used = given.finite_states
        if not used:
            return given.nobody(given.memory)
        floating = floating_names(given.model)
        # The output layer's weights, or the whole model if it has no such tensor.
        names = [name for name in floating if given.model[name].ndim > 1][-1:] or floating
        updates = np.stack([update_of(state, given.model, names) for state in used])
        before = given.recalled("history", updates.shape[1:])
        with np.errstate(over="ignore", invalid="ignore"):
            history = np.where(np.isnan(before), 0.0, before) + updates
            measured = np.isfinite(np.linalg.norm(history, axis=1))
        given.restrict_to(given.spread(measured) > 0)  # without a length, it would be like nobody
        trust = foolsgold_weights(history)
        return given.weighted(
            given.spread(trust / max(trust.sum(), 1.0)),  # the largest is 1, or all are 0
            given.spread(trust / len(used)),
            memory=given.remembered(history=history),
            reason="the histories of all clients point the same way",
        )


def foolsgold_weights(history: Matrix) -> Vector:
    """Return (n,) weights α in [0, 1] of (n, k) histories; all 0 if all point one way."""
    lengths = np.linalg.norm(history, axis=1)
    scaled = history / np.where(lengths > 0, lengths, 1.0)[:, None]
    cosines = scaled @ scaled.T
    np.fill_diagonal(cosines, 0.0)
    largest = cosines.max(axis=1)
    ratio = np.divide(
        largest[:, None], largest, out=np.ones_like(cosines), where=largest[:, None] < largest
    )
    unlike = np.clip(1.0 - (cosines * ratio).max(axis=1), 0.0, 1.0)
    unlike[unlike < EPSILON] = 0.0  # rounding of equal histories
    if not unlike.any():
        return np.zeros(len(history))
    unlike = unlike / unlike.max()
    with np.errstate(divide="ignore"):
        logit = np.log(unlike / (1.0 - np.minimum(unlike, 0.99)))  # above it the weight is 1
    return np.asarray(np.clip(logit + 0.5, 0.0, 1.0))
