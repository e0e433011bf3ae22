"""The CRFs as server rules: the paper's, and ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from fedcrf.crf import ClientCRF, EvidenceCRF, Posterior, RobustCRF
from fedcrf.crf.memory import sketch_seed_of
from fedcrf.rules.base import (
    AggregationResult,
    Deciding,
    Memory,
    Round,
    average_states,
    num_examples,
    reported_evidence,
)
from fedcrf.statistics import update_statistics

LARGEST_AFFINITY = 100
"""The most clients for which the affinity matrix is kept: 4,950 pairs."""


@dataclass(frozen=True)
class CRF(ClientCRF, Deciding):
    """CRF-refined FedAvg weights (the paper's algorithm 1); the settings are `ClientCRF`'s.

    In rounds of more than `LARGEST_AFFINITY` clients a result's posterior has no affinities, but
    those of ``neighbours``.
    """

    def decide(self, given: Round) -> AggregationResult:
        """Infer the weights from the updates w_i − w_t, then average."""
        # Neither the layers nor the (m, m) statistics are kept while the models are averaged.
        posterior = self.infer_from_statistics(
            self.statistics(*Round({}, given.model, given.reports).layers),
            num_examples(given.reports),
        )
        if len(given.reports) > LARGEST_AFFINITY and isinstance(posterior.affinity, np.ndarray):
            posterior = replace(posterior, affinity=None)
        return _result(given, posterior)

    def with_secret_signs(self, memory: Memory, seed: int) -> Self:
        """Return the rule with secret signs; see `Rule.with_secret_signs`."""
        if self.sketch_size is None or self.sketch_seed is not None:
            return self
        return replace(self, sketch_seed=seed)


@dataclass(frozen=True)
class CRFEvidence(EvidenceCRF, Deciding):
    """FedAvg with lower weights for clients that report a high residual loss; see `EvidenceCRF`."""

    @property
    def wanted_evidence(self) -> frozenset[str]:
        """What clients are asked for."""
        return frozenset({self.evidence})

    def decide(self, given: Round) -> AggregationResult:
        """Weigh the models by what the clients report."""
        posterior = self.infer_among(
            given.finite,
            num_examples(given.reports),
            evidence=reported_evidence(given.reports, self.wanted_evidence),
        )
        return _result(given, posterior)


@dataclass(frozen=True)
class CRFRobust(RobustCRF, Deciding):
    """The robust CRF, which remembers its clients; the settings are `RobustCRF`'s."""

    remembers: ClassVar[bool] = True

    def decide(self, given: Round) -> AggregationResult:
        """Infer the weights and move the model."""
        models, origin = given.layers
        statistics = update_statistics(models, origin)
        sketches = self.sketches([origin, *models])
        with np.errstate(invalid="ignore"):
            moves = sketches[1:] - sketches[0]
        posterior = self.infer_from_statistics(
            statistics,
            num_examples(given.reports),
            moves,
            position=sketches[0],
            clients=[report.client for report in given.reports],
            memory=given.memory,
            evidence=reported_evidence(given.reports, self.wanted_evidence) or None,
        )
        return _result(given, posterior)

    def with_secret_signs(self, memory: Memory, seed: int) -> Self:
        """Return the rule with secret signs; see `Rule.with_secret_signs`."""
        if self.sketch_seed is not None:
            return self
        remembered = sketch_seed_of(memory)
        return replace(self, sketch_seed=seed if remembered is None else remembered)


@dataclass(frozen=True)
class CRFRobustEvidence(CRFRobust):
    """The robust CRF that asks clients for evidence against themselves, their residual loss."""

    @property
    def wanted_evidence(self) -> frozenset[str]:
        """What clients are asked for."""
        return frozenset({self.reported.evidence})


def _result(given: Round, posterior: Posterior) -> AggregationResult:
    given.restrict_to(~posterior.excluded)
    return AggregationResult(
        state=average_states(given.model, given.reports, posterior.weights, posterior.coefficients),
        weights=posterior.weights,
        base_weights=given.shares,
        excluded=posterior.excluded,
        posterior=posterior,
        memory=posterior.memory,
        kept_reason=posterior.kept_reason,
        clips=posterior.clip,
    )
