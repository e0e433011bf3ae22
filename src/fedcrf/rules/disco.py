"""FedDisco: fewer votes for clients whose labels are unevenly spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.checks import NotNegative
from fedcrf.rules.base import (
    LABEL_DIVERGENCE,
    AggregationResult,
    Deciding,
    Round,
    Vector,
    reported_evidence,
)


@dataclass(frozen=True)
class FedDisco(Deciding):
    """Weights ∝ max(0, n_i/Σn_j − a·d_i + b) (Ye et al., ICML 2023).

    d_i is the Kullback-Leibler divergence of a client's label shares from the uniform ones, over
    the sum of all clients' in the round. Each client reports its own (`LABEL_DIVERGENCE`), and
    nothing checks it. Settings are those of the authors' code, MediaBrain-SJTU/FedDisco, which
    also divides by the sum; the paper leaves the measure open.

    A client without examples has no weight. One that reports no divergence, or a negative one,
    gets the mean of the others'. If no weight is above 0 (where the source fails) or nobody
    reports, the weights are FedAvg's.

    Attributes:
        discrepancy: a, 0 or more.
        offset: b, 0 or more.
    """

    wanted_evidence: ClassVar[frozenset[str]] = frozenset({LABEL_DIVERGENCE})

    discrepancy: NotNegative = 0.5
    offset: NotNegative = 0.1

    def decide(self, given: Round) -> AggregationResult:
        """Return the mean of the models with these weights."""
        shares = given.shares
        used = shares > 0
        weights = shares.copy()
        reported = reported_evidence(given.reports, self.wanted_evidence).get(LABEL_DIVERGENCE)
        relative = None if reported is None else _relative(reported[used])
        if relative is not None:
            wanted = np.maximum(0.0, shares[used] - self.discrepancy * relative + self.offset)
            if wanted.any():
                weights[used] = wanted / wanted.sum()
        return given.weighted(weights)


def _relative(reported: Vector) -> Vector | None:
    """Return (m,) divergences over their sum; None if no number can be one."""
    given = np.isfinite(reported) & (reported >= 0)
    if not given.any():
        return None
    most = reported[given].max()
    if most == 0:
        return np.zeros(len(reported))
    scaled = np.where(given, reported, 0.0) / most  # huge ones must not overflow
    filled = np.where(given, scaled, scaled[given].mean())
    return np.asarray(filled / filled.sum())
