"""FLAME: cluster the models by their angles, clip the updates and add noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Natural, NotNegative
from fedcrf.extras import check_installed
from fedcrf.rules.base import AggregationResult, Deciding, Round, is_buffer
from fedcrf.rules.state import State, floating_names

PART = 1 << 16
"""Numbers that get noise at a time."""


@dataclass(frozen=True)
class FLAME(Deciding):
    """The majority by HDBSCAN of the models' cosines, clipped, with noise (Nguyen et al., 2022).

    From "FLAME: Taming Backdoors in Federated Learning", USENIX Security 2022, algorithm 1. The
    cluster has more than half of the clients; scikit-learn finds it. Updates are clipped to S, the
    median length of all, averaged plainly, and every trained number gets Gaussian noise of standard
    deviation λS.

    Noise is the paper's, with its λ for images; zhmzm/FLAME has the same λ, times the median length
    of the cluster's updates alone. Clustering of whole models with one sample to a core and a
    single cluster allowed is as there and in FLPoison (vio1etus/FLPoison); the paper leaves it
    open.

    Attributes:
        seed: Of the draws of noise (see `Deciding`).
        noise: λ; 0 for none.
    """

    remembers: ClassVar[bool] = True

    seed: Natural | None = None
    noise: NotNegative = 0.001

    def decide(self, given: Round) -> AggregationResult:
        """Return the noisy mean of the cluster's clipped models."""
        check_installed("sklearn", wanted_by="flame: ")
        draws, kept = given.drawing(self.seed)
        geometry = given.products
        if not geometry.finite.any():
            return given.nobody(kept)
        bound = float(np.median(geometry.norms[given.used]))
        chosen = majority(given.among_used(geometry.model_cosines))
        reason = "no cluster holds more than half of the clients"
        result = given.clipped(chosen, geometry.norms, bound, kept, reason)
        if chosen.any() and self.noise * bound > 0:
            _add_noise(result.state, self.noise * bound, draws)
        return result


def majority(cosines: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (m,) who is in HDBSCAN's cluster of more than half of the clients, by cosines."""
    if len(cosines) < 2:
        return np.ones(len(cosines), np.bool_)
    from sklearn.cluster import HDBSCAN

    distances = np.maximum(1.0 - cosines, 0.0)
    np.fill_diagonal(distances, 0.0)
    clusters = HDBSCAN(
        metric="precomputed",
        min_cluster_size=len(cosines) // 2 + 1,
        min_samples=1,
        allow_single_cluster=True,
        copy=True,
    )
    return np.asarray(clusters.fit(distances).labels_ == 0)


def _add_noise(model: State, deviation: float, draws: np.random.Generator) -> None:
    """Add Gaussian noise to every trained number of a model that is nobody else's."""
    for name in floating_names(model):
        if not is_buffer(name):
            flat = model[name].reshape(-1)  # a view, as the average has just been made
            for start in range(0, len(flat), PART):
                part = flat[start : start + PART]
                part[:] = part.astype(np.float64) + deviation * draws.standard_normal(len(part))
