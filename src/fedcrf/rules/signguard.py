"""SignGuard: keep updates of usual length and usual shares of signs, and clip them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Fraction, Natural, NotNegative, Positive
from fedcrf.errors import FedcrfError
from fedcrf.extras import check_installed
from fedcrf.rules.base import AggregationResult, Deciding, Matrix, Round
from fedcrf.statistics.inputs import MANY_NUMBERS, Layers, bring_columns
from fedcrf.statistics.one_pass import checked_dimension


@dataclass(frozen=True)
class SignGuard(Deciding):
    """A band of lengths, then the largest cluster of sign statistics (Xu et al., ICDCS 2022).

    A run of neighbouring coordinates is drawn. A client's shares of positive, zero and negative
    signs there, each relative to the largest such share, are clustered by mean shift
    (scikit-learn). Who is in the band and in the largest cluster is kept, clipped to the median
    length of all, and averaged plainly.

    It follows the authors' code (github.com/JianXu95/SignGuard), whose default is mean shift with
    half of the clients as neighbours. The authors' median of an even number is the lower of the
    middle two when they clip; here, as in their own band, it is the mean of both. Up to three
    clients give mean shift no bandwidth, and neither do equal statistics: all are then one cluster.

    Attributes:
        seed: Of the draws of coordinates (see `Deciding`).
        lower: The least length in the band, relative to the median.
        upper: The greatest.
        sampled: The share of the coordinates whose signs are looked at.
    """

    remembers: ClassVar[bool] = True

    seed: Natural | None = None
    lower: NotNegative = 0.1
    upper: Positive = 3.0
    sampled: Fraction = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.upper > self.lower:
            raise FedcrfError(f"upper {self.upper}: give more than the lower bound, {self.lower}")

    def decide(self, given: Round) -> AggregationResult:
        """Return the mean of the clipped updates that are kept."""
        check_installed("sklearn", wanted_by="signguard: ")
        draws, kept = given.drawing(self.seed)
        dimension = checked_dimension(given.layers[0])
        count = max(1, int(self.sampled * dimension))
        start = int(draws.integers(0, dimension - count + 1))
        lengths = given.norms[given.finite]
        if not len(lengths):
            return given.nobody(kept)
        median = float(np.median(lengths))
        chosen = (lengths > self.lower * median) & (lengths < self.upper * median)
        chosen |= median == 0  # most have not moved, and the source divides by zero
        features = sign_features(given.finite_layers, given.layers[1], start, start + count)
        chosen &= largest_cluster(features)
        return given.clipped(chosen, given.norms, median, kept, "no client passes both filters")


def sign_features(clients: Sequence[Layers], origin: Layers, start: int, stop: int) -> Matrix:
    """Return (m, 3) shares of positive, zero and negative signs, relative to the largest.

    They are those of the updates' columns from ``start`` up to ``stop``.
    """
    m, counts = len(clients), np.zeros((len(clients), 3))
    width = max(1, MANY_NUMBERS // m)
    for low in range(start, stop, width):
        columns = min(width, stop - low)
        block, base = np.empty((m, columns)), np.empty((1, columns))
        bring_columns(clients, low, block)
        bring_columns([origin], low, base)
        counts[:, 0] += np.count_nonzero(block > base, axis=1)
        counts[:, 2] += np.count_nonzero(block < base, axis=1)
    counts[:, 1] = (stop - start) - counts[:, 0] - counts[:, 2]
    shares = counts / (stop - start)
    return np.asarray(shares / (shares.max(axis=0) + 1e-8))


def largest_cluster(features: Matrix) -> NDArray[np.bool_]:
    """Return (m,) who is in the largest cluster of mean shift; all if there is no bandwidth."""
    from sklearn.cluster import MeanShift, estimate_bandwidth
    from threadpoolctl import threadpool_limits

    order = np.lexsort(features.T)  # seeds are drawn and binned by place
    rows = features[order]
    with threadpool_limits(1):  # for so few points, threads only wait for each other
        bandwidth = estimate_bandwidth(rows, quantile=0.5, n_samples=50)
        if bandwidth <= 1e-7:  # they are equal but for the rounding of their distances
            return np.ones(len(features), np.bool_)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that points are seeds, if all are bins
            shift = MeanShift(bandwidth=bandwidth, bin_seeding=True, cluster_all=False)
            labels = shift.fit(rows).labels_
    inside = np.zeros(len(features), np.bool_)
    inside[order] = labels == np.bincount(labels[labels >= 0]).argmax()
    return inside
