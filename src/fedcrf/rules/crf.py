"""The CRFs as server rules: the paper's, and ours."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from fedcrf.checks import Count, NotNegative, number
from fedcrf.crf import ClientCRF, EvidenceCRF, Posterior, RobustCRF, base_weights
from fedcrf.crf.memory import sketch_seed_of
from fedcrf.rules.base import (
    AggregationResult,
    Deciding,
    Memory,
    Round,
    average_states,
    models_of,
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
        return _result(given, self._posterior(given))

    def _posterior(self, given: Round) -> Posterior:
        """Return the weights and their causes; what else is (m, m) is freed before the average."""
        # The round would keep its layers while it averages.
        statistics = self.statistics(*models_of(given.model, given.reports))
        posterior = self.infer_from_statistics(statistics, num_examples(given.reports))
        large = len(given.reports) > LARGEST_AFFINITY and isinstance(posterior.affinity, np.ndarray)
        return replace(posterior, affinity=None) if large else posterior

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
    """The robust CRF, which remembers its clients; the settings are `RobustCRF`'s.

    Those of reported evidence are not used, since clients are not asked for any.
    """

    remembers: ClassVar[bool] = True
    ignores: ClassVar[frozenset[str]] = frozenset(each.name for each in fields(EvidenceCRF))

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
            evidence=reported_evidence(given.reports, self.wanted_evidence),
        )
        return _result(given, posterior)

    def with_secret_signs(self, memory: Memory, seed: int) -> Self:
        """Return the rule with secret signs; see `Rule.with_secret_signs`."""
        if self.sketch_seed is not None:
            return self
        remembered = sketch_seed_of(memory)
        return replace(self, sketch_seed=seed if remembered is None else remembered)


@dataclass(frozen=True)
class CRFWindowed(CRFRobust):
    """The robust CRF that looks at windows of rounds, whose length it finds; it has ten settings.

    Where a round is one mini-batch, single rounds are noise; see `fedcrf.crf.window`. Honest
    clients differ less from each other over a window, and its tolerances are wider. A count is
    believed as far as the length of the update supports it, so that a large site keeps its weight.

    Attributes:
        prior_log_odds: As in `RobustCRF`, and so are those below from ``persistence`` on.
        tolerance: τ, how much clients may differ. An opposition of 0.5τ is tolerated, a norm of
            exp(τ) medians, a goal exp(τ) times as far away as the median's, and in a large round 4τ
            lower median deviations. A curvature response may lack 0.75τ of the median's, an update
            consistency 0.5τ. A larger τ accuses fewer honest clients, and lets more attackers
            through.
        persistence: s.
        longest_window: The most rounds over which updates are averaged.
        clip: The norm to which updates are clipped, in median norms.
        counts: How counts of examples are believed.
        trust_floor: The trusted share below which the model stays.
        remember: Clients that are remembered, 4.2 kB each.
        sketch_size: Numbers in a sketch.
        sketch_seed: Seed of the sketches' signs.
    """

    behaviour: ClassVar[int] = 4

    free: ClassVar[frozenset[str]] = frozenset(
        {
            "prior_log_odds",
            "persistence",
            "longest_window",
            "clip",
            "counts",
            "trust_floor",
            "remember",
            "sketch_size",
            "sketch_seed",
        }
    )

    tolerance: NotNegative = 1.0
    longest_window: Annotated[float, number(1.0)] | None = 10.0
    counts: Literal["claimed", "attested"] | None = "claimed"
    sketch_size: Count = 512

    # Those below are for a tolerance of 1, and follow from it.
    opposition_tolerance: float = 0.5
    norm_tolerance: float = 1.0
    goal_tolerance: float | None = 1.0
    spread: float = 4.0
    curvature_response_share: float = 0.25
    update_consistency_share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("opposition_tolerance", "norm_tolerance", "goal_tolerance", "spread"):
            object.__setattr__(self, name, self.tolerance * getattr(self, name))
        for name in ("curvature_response_share", "update_consistency_share"):
            missing = self.tolerance * (1.0 - getattr(self, name))
            object.__setattr__(self, name, max(0.0, 1.0 - missing))


@dataclass(frozen=True)
class CRFRobustEvidence(CRFRobust):
    """The robust CRF, with the evidence that clients report against themselves.

    Its tolerances suit the larger differences between honest clients of a converged federation: by
    default those of norms, opposition and trusted clients' responses grow with the norm decay.
    """

    ignores: ClassVar[frozenset[str]] = frozenset()

    norm_tolerance_growth: float = 1.0
    opposition_tolerance_growth: float = 0.4
    curvature_response_tolerance_growth: float = 0.1

    @property
    def wanted_evidence(self) -> frozenset[str]:
        """What clients are asked for."""
        return frozenset({self.evidence})


def _result(given: Round, posterior: Posterior) -> AggregationResult:
    finite = ~posterior.excluded
    return AggregationResult(
        state=average_states(given.model, given.reports, posterior.weights, posterior.coefficients),
        weights=posterior.weights,
        base_weights=base_weights(num_examples(given.reports), finite),
        excluded=posterior.excluded,
        posterior=posterior,
        memory=posterior.memory,
        kept_reason=posterior.kept_reason,
    )
