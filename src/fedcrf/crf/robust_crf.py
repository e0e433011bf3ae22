"""The robust client CRF, against attackers that nobody has pointed out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Count, Finite, Fraction, Positive, Settings, Share, number, whole
from fedcrf.crf.evidence import (
    COPY_POWER,
    LARGE_ROUND,
    NORM_EXPONENT,
    Camps,
    ConsistencyEvidence,
    GoalEvidence,
    LogOddsPrior,
    MeasuredEvidence,
    Opposition,
    ResponseEvidence,
    SuspectNorm,
    clip_factors,
    large_round_share,
    length_excess,
    votes,
)
from fedcrf.crf.evidence_crf import Evidence, EvidenceCRF
from fedcrf.crf.field import Field, transition
from fedcrf.crf.memory import LARGEST_SKETCHED, Arrays, ClientMemory, as_remembered, identities
from fedcrf.crf.parts import Absent, Matrix, Observation, Vector
from fedcrf.crf.posterior import Posterior
from fedcrf.crf.potentials import median
from fedcrf.crf.weights import COUNT_CAP, base_weights, refined_weights, trusted_weights
from fedcrf.crf.window import Averages, row_norms
from fedcrf.errors import FedcrfError
from fedcrf.statistics import EPSILON, UpdateStatistics, sketch, update_statistics
from fedcrf.statistics.inputs import Layers, counted_of, given_layers, model_layers, num_numbers

GONE = {
    "it is fixed, leave it out": (
        "labels iterations damping copy_power vote_power count_cap large_round crowd norm_strength "
        "norm_exponent opposition_strength curvature_response_strength response_strength "
        "update_consistency_strength steadiness_strength"
    ),
    "give tolerance, on which it depends": (
        "spread goal_tolerance norm_tolerance norm_threshold opposition_tolerance "
        "curvature_response_share response_share update_consistency_share steadiness_share"
    ),
    "tolerances grow no more, leave it out": (
        "norm_tolerance_growth norm_memory opposition_tolerance_growth opposition_memory "
        "curvature_response_tolerance_growth response_memory"
    ),
    "EvidenceCRF has it, leave it out": " ".join(each.name for each in fields(EvidenceCRF)),
}
"""By what is said of them, the settings of earlier versions, by all their names."""

LARGEST_SEED = 2**63 - 1
"""Of the sketches: the memory holds it in 64 bits."""


@dataclass(frozen=True)
class RobustCRF(Settings):
    """A CRF against attackers; it is not informed who they are, nor how many.

    A client whose data differ from the others' has an update that differs too. But it does not
    oppose the others, and it responds to the model: local training descends a loss, so that an
    honest update changes against the model's last step. Six measurements can be evidence against a
    client:

    - opposition (`Opposition`): trusted clients' updates point against it;
    - norm (`SuspectNorm`): its update is longer than its examples explain, and it is opposed, was
      wrong before, was shorter before, or is new;
    - curvature response (`ResponseEvidence`): its update does not change against the model's step;
    - update consistency (`ConsistencyEvidence`): its update turns away from its last one;
    - goal distance (`GoalEvidence`): by its own response, it wants the model to go much farther
      than others do;
    - camps (`Camps`): in a large round, the clients fall into two camps that oppose each other,
      and it is in the lighter one.

    Each tolerates some, and only what exceeds that is evidence. Agreement earns nothing. The prior
    is P(q) ∝ exp(b·q), and a client's label is a Markov chain over rounds (`Field`). Clients may
    report evidence against themselves (`EvidenceCRF`): such a client is trusted less, and its
    opposition to others counts less.

    Weights are α_i ∝ n_i q̄_i / k_i with k_i = 1 + Σ_{j≠i} max(0, cos(u_i, u_j))^p, so that copies
    share the weight of one client. The next model is w + Σ α_i s_i u_i, in which s_i clips long
    updates.

    Where a round is one mini-batch, a single update is mostly noise. So updates are averaged over a
    window of rounds, whose length the CRF finds (`fedcrf.crf.window`).

    Clients are remembered under their identities, also while they are absent. Those that took
    part in one of the last `longest_window` rounds oppose the clients of a small round. What is
    compared with an earlier round is compared by sketches; nothing of size d is remembered.

    Attributes:
        tolerance: τ, how much clients may differ. An opposition of 0.5τ is tolerated, a norm of
            exp(τ) medians, a goal exp(τ) times as far away as the median's, and in a large round 4τ
            lower median deviations. Up to exp(2τ) medians are tolerated of a new client that points
            the same way as others: its agreement may lack 0.5τ. A curvature response may lack 0.75τ
            of the median's, an update consistency 0.5τ. In a large round camps may be clear by τ
            standard errors. A larger τ accuses fewer honest clients, and lets more attackers
            through. Where at most ten sites may be of two kinds, 3 spares them; flipped labels then
            do as much harm as to FedAvg.
        prior_log_odds: b, the prior's log odds for each unit of the label.
        persistence: s in [0, 1), the probability that a client's label stays.
        longest_window: The most rounds over which updates are averaged before they are looked at,
            and for which absent clients are heard.
        clip: The norm to which updates are clipped, in median norms; √k times as many where k
            rounds are averaged.
        counts: How counts of examples are believed. "attested": in full. "claimed": of a client
            that responds, up to three times what the length of its update supports: honest updates
            grow as n^0.7. Otherwise up to three medians. A client whose count is believed
            may meet the more opposition.
        trust_floor: Where Σβq̄ is below this part of the trust in a new client, the model stays,
            and all weights are 0. A known attacker that reports alone has 1 − s of that trust at
            most, what returns in a round. With a floor of 0 it would have all of the weight.
        remember: Clients that are remembered, 4.1 kB each, or as many as take part in a round. The
            longest absent are forgotten first; they are new when they return.
        sketch_size: Numbers in a sketch; the error of a cosine is about 1/√size.
        sketch_seed: Seed of the sketches' signs, which must stay secret: an attacker that knows
            them can make updates whose sketches mislead. Where left out, servers in Flower and
            NVFlare draw a secret one; elsewhere it is 0, so that runs repeat.

    Examples:
        Clients pull towards points of their own; the last two push the model away from there.

        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> goals = 1.0 + rng.normal(size=(6, 40))
        >>> model, memory = np.zeros(40), None
        >>> for _ in range(5):
        ...     updates = 0.3 * (goals - model)
        ...     updates[4:] *= -1.0
        ...     posterior = RobustCRF().infer(updates, [9] * 6, memory=memory, model=model)
        ...     model = posterior.next_model(model, updates)
        ...     memory = posterior.memory
        >>> posterior.weights.round(2).tolist()
        [0.25, 0.25, 0.25, 0.25, 0.0, 0.0]
        >>> posterior.causes["curvature_response"].round(1).tolist()
        [-1.0, -1.0, -1.0, -1.0, 1.0, 1.0]
    """

    behaviour: ClassVar[int] = 7
    behaviour_where: ClassVar[Mapping[str, int]] = {"absence": 8, "large_round": 6}
    """The numbers of what differs where some clients are absent, and in large rounds."""
    renamed: ClassVar[Mapping[str, str]] = {"inclination": "prior_log_odds"}
    gone: ClassVar[Mapping[str, str]] = {
        name: said for said, names in GONE.items() for name in names.split()
    }
    labels: ClassVar[tuple[float, ...]] = (0.0, 0.25, 1.0)
    reported: ClassVar[EvidenceCRF] = EvidenceCRF()
    """The CRF of the evidence that clients report."""

    tolerance: Annotated[float, number(0.0, 100.0)] = 1.0
    prior_log_odds: Finite = 2.0
    persistence: Share = 0.9
    longest_window: Annotated[float, number(1.0)] = 10.0
    clip: Positive = 2.0
    counts: Literal["claimed", "attested"] = "claimed"
    trust_floor: Fraction = 0.15
    remember: Count = 4096
    sketch_size: Count = 512
    sketch_seed: Annotated[int, whole(0, LARGEST_SEED)] | None = None

    @cached_property
    def field(self) -> Field:
        """The field of these settings."""
        spread = 4.0 * self.tolerance
        opposition = Opposition(tolerance=0.5 * self.tolerance, spread=spread)
        half = max(0.0, 1.0 - 0.5 * self.tolerance)
        return Field(
            self.labels,
            LogOddsPrior(self.prior_log_odds),
            evidence=(
                ResponseEvidence(share=self._response_share, spread=spread),
                ConsistencyEvidence(share=half, spread=spread),
                GoalEvidence(tolerance=self.tolerance),
                Camps(tolerance=self.tolerance),
            ),
            pairwise=(
                SuspectNorm(
                    tolerance=self.tolerance, spread=spread, share=half, opposition=opposition
                ),
                opposition,
            ),
            persistence=self.persistence,
            iterations=30,
            damping=0.5,
        )

    @property
    def _response_share(self) -> float:
        """The share of the median client's response that is expected of each."""
        return max(0.0, 1.0 - 0.75 * self.tolerance)

    def prior_label(self, remembered: Vector, window: Vector | float = 1.0) -> Vector:
        """Return p_i = s·E_Q[q] + (1 − s)·p₀, the expected label before a round's evidence.

        Args:
            remembered: (m,) expected labels E_Q[q] when the clients last took part, the cause of
                this name; NaN for a new client, whose p_i is p₀.
            window: (m,) k_i, the cause of this name; in its place s is s^{1/k_i}.
        """
        unknown = np.asarray(self.unknown_label)
        return transition(unknown, remembered, self.persistence, window)

    @cached_property
    def unknown_label(self) -> float:
        """p₀, the expected label of a new client."""
        labels = np.asarray(self.labels)
        return float(LogOddsPrior(self.prior_log_odds).probabilities(labels) @ labels)

    def infer(
        self,
        updates: Any,
        num_examples: Any = None,
        *,
        clients: Sequence[int | str] | None = None,
        memory: Arrays | None = None,
        evidence: Evidence | None = None,
        model: Any = None,
    ) -> Posterior:
        """Infer every client's weight from the updates of one round and what is remembered.

        Args:
            updates: u_i = w_i − w, as for `ClientCRF.infer`.
            num_examples: (m,) training examples n_i; equal for all where left out.
            clients: (m,) names or whole numbers, the clients' identities from round to round;
                their places where left out.
            memory: ``posterior.memory`` of the round before; none in the first.
            evidence: (m,) numbers that clients report, by name; see `EvidenceCRF.infer`.
            model: The global model w that the updates start from, in the form of one update. Where
                left out, it is assumed to have become w + Σ α_i s_i u_i since the round before.
                Give it in all rounds or in none.

        Returns:
            The posterior, with the memory for the next round.

        Raises:
            FedcrfError: As `ClientCRF.infer`; identities that are not one name or number each;
                evidence of another length or name; a memory that is damaged, or of another rule or
                federation, or of rounds with a model where none is given now, or the other way
                round; a model of another size, or not finite.
        """
        given, _, counted = given_layers(updates)
        layers = [counted_of(each, counted) for each in given]
        counts = np.ones(len(layers)) if num_examples is None else num_examples
        if model is None:
            sketches, position = self.sketches(layers), None
        else:
            start = counted_of(model_layers(model)[0], counted)
            if num_numbers(start) != num_numbers(layers[0]):
                raise FedcrfError(
                    f"the model has {num_numbers(start)} numbers, an update "
                    f"{num_numbers(layers[0])}: give the model that the updates start from"
                )
            sketches, position = self._sketched_with(layers, start)
            if not np.isfinite(position).all():
                raise FedcrfError(
                    "the model is not finite: give the model that the updates start from"
                )
        return self.infer_from_statistics(
            update_statistics(layers),
            counts,
            sketches,
            position=position,
            clients=clients,
            memory=memory,
            evidence=evidence,
        )

    def sketches(self, clients: Sequence[Layers]) -> Matrix:
        """Return (m, sketch_size) sketches of vectors, of updates or of models."""
        return sketch(clients, self.sketch_size, self.sketch_seed or 0)

    def _sketched_with(self, vectors: Sequence[Layers], other: Layers) -> tuple[Matrix, Vector]:
        """Return the sketches of vectors and of another one, from one pass if it has their form."""
        forms = [
            [(layer.shape, layer.dtype, layer.device) for layer in each]
            for each in (vectors[0], other)
        ]
        if forms[0] == forms[1]:
            rows = self.sketches([*vectors, other])
            return rows[:-1], rows[-1]
        return self.sketches(vectors), self.sketches([other])[0]

    def infer_from_statistics(
        self,
        statistics: UpdateStatistics,
        num_examples: Any,
        sketches: Matrix,
        *,
        position: Vector | None = None,
        clients: Sequence[int | str] | None = None,
        memory: Arrays | None = None,
        evidence: Evidence | None = None,
    ) -> Posterior:
        """Infer as `infer` does, from statistics and sketches of the updates.

        Args:
            statistics: As `fedcrf.statistics.update_statistics` returns them.
            num_examples: As for `infer`.
            sketches: (m, sketch_size) float64, as `sketches` of this rule returns them. Rows of
                excluded clients are not read. Sketches with other signs would mislead unnoticed.
            position: (sketch_size,) sketch of the global model, in all rounds or in none.
            clients: As for `infer`.
            memory: As for `infer`.
            evidence: As for `infer`.

        Returns:
            The posterior, with the memory for the next round.

        Raises:
            FedcrfError: As `infer`.
        """
        finite = statistics.finite
        claimed = base_weights(num_examples, finite)
        who = identities(clients, len(finite))

        # Recall the clients; this round changes their averages.
        model_given = position is not None
        layout = (statistics.dimension, self.sketch_size, self.sketch_seed or 0, model_given)
        past = ClientMemory.of(memory, layout, self.labels)
        window = past.window._replace(length=min(past.window.length, self.longest_window))
        beliefs, recalled = past.gather(who)
        remembered = beliefs @ past.arrays["labels"]
        start = past.arrays["expected"] if position is None else position
        start = np.clip(start, -LARGEST_SKETCHED, LARGEST_SKETCHED)
        # Rounded, so that a repeated update has not changed.
        rounded = as_remembered(sketches).astype(np.float64)
        rounded[~finite] = np.nan
        averages = recalled.after(rounded, start, window.length)
        # A client that is often absent has fewer rounds in its average.
        lengths = averages.lengths(window.length)

        # Look at the round, and infer.
        reported = None if evidence is None else self.reported.infer_reliability(finite, evidence)
        credit = 1.0 if reported is None else reported.expected_label
        looked_at = statistics
        if np.any(lengths > 1.0):  # lengths and angles are those of the averages
            looked_at = replace(statistics, gram=averages.updates @ averages.updates.T)
        measured = {
            part.cause: compared
            for part in self.field.linear_parts
            if isinstance(part, MeasuredEvidence)
            and (compared := part.compare(averages)) is not None
        }
        counted, sizes = self._counted(claimed, looked_at.norms, averages.response)
        found = self.field.infer(
            Observation(
                looked_at,
                num_examples=counted,
                measured=measured,
                before=beliefs,
                credit=credit,
                sizes=sizes,
                window=lengths,
                absent=self._absent(past, who, averages, looked_at),
            )
        )

        # Decide.
        trust = found.expected_label * credit
        copies = votes(statistics.cosines, COPY_POWER)
        base, _ = refined_weights(counted, copies)
        weights, fell_back, share, kept_reason = trusted_weights(
            base, trust, self.unknown_label, self.trust_floor
        )
        longest = self.clip * median(statistics.norms[finite]) * np.sqrt(lengths)
        clip = clip_factors(statistics.norms, finite, longest)
        # Which part of each claim counts; both are shares, so that the largest part is all of it.
        believed = np.full_like(claimed, np.nan)
        np.divide(counted, claimed, out=believed, where=claimed > 0)
        believed /= np.fmax.reduce(believed, initial=0.0) or 1.0

        # Remember.
        learnt = found.marginals
        enough = self.trust_floor * self.unknown_label
        if kept_reason is not None and past.trusts_absent(who[finite], enough):
            # While the model stays, nobody is tested: trust may fall, but it does not rise, if
            # there is anybody else to wait for.
            risen = found.expected_label > remembered
            learnt = np.where(risen[:, None], beliefs, learnt)
        present = slice(None) if finite.all() else finite  # all rows, without a copy
        moved = (weights * clip)[present] @ rounded[present]
        kept = past.scatter(
            who[present],
            learnt[present],
            np.broadcast_to(credit, len(who))[present],
            averages.of_clients(present),
            expected=start + moved,
            window=window.after(averages.response, self.longest_window),
            most=self.remember,
        )
        return Posterior(
            weights=weights,
            base_weights=base,
            trust=trust,
            marginals=found.marginals,
            unary=found.unary,
            causes={
                # A part has a number for an excluded client too, of which it measured nothing.
                **{name: np.where(finite, each, np.nan) for name, each in found.causes.items()},
                "remembered": remembered,
                "clip": clip,
                "copies": np.where(finite, copies, np.nan),
                "window": np.where(finite, lengths, np.nan),
                **({"counted": believed} if (believed < 1.0 - EPSILON).any() else {}),
                **(reported.causes if reported is not None and evidence else {}),
            },
            clip=clip,
            excluded=~finite,
            overflowed=statistics.overflowed,
            fell_back=fell_back,
            memory=kept,
            trusted_share=share,
            kept_reason=kept_reason,
        )

    def _absent(
        self,
        past: ClientMemory,
        who: NDArray[np.int64],
        averages: Averages,
        statistics: UpdateStatistics,
    ) -> Absent | None:
        """Return who is heard besides the clients of a small round.

        They are those that took part in one of the last `longest_window` rounds, unless they are
        too many to be of small rounds. All together have at most the votes of ten new clients.
        """
        finite = statistics.finite
        if large_round_share(finite, LARGE_ROUND) > 0.0:
            return None
        trust, sketches = past.absent(who[finite], self.longest_window)
        if not 0 < len(trust) <= LARGE_ROUND * self.longest_window:
            return None
        rows = np.concatenate([averages.updates, sketches])
        lengths = row_norms(rows)
        lengths[lengths == 0.0] = 1.0
        cosines = rows @ rows.T / (lengths[:, None] * lengths)
        cosines[: len(who), : len(who)] = statistics.cosines
        return Absent(cosines, trust, most_votes=LARGE_ROUND * self.unknown_label)

    def _counted(
        self, claimed: Vector, norms: Vector, response: Vector
    ) -> tuple[Vector, Vector | None]:
        """Return the shares of examples that count, and the clients' sizes where they matter.

        An update's length supports n_i·exp(z_i/a) examples, with the length excess z_i. A client
        that responds is believed up to a multiple of these, another up to a multiple of the median
        count.
        """
        held = claimed > 0
        if not held.any():
            return claimed, None
        typical = median(claimed[held])
        if self.counts == "attested":
            return claimed, claimed / typical
        middle = median(response[np.isfinite(response)])
        responds = (middle < 0.0) & (response < self._response_share * middle)
        excess = np.zeros(len(claimed))
        excess[held] = length_excess(norms[held], claimed[held], NORM_EXPONENT) / NORM_EXPONENT

        def up_to(multiple: float) -> Vector:
            by_length = claimed * np.exp(np.minimum(0.0, excess + math.log(multiple)))
            return np.where(responds, by_length, np.minimum(claimed, multiple * typical))

        counted, sizes = up_to(COUNT_CAP), up_to(1.0)
        return counted / counted.sum(), sizes / median(sizes[sizes > 0])
