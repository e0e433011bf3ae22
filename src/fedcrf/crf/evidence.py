"""The robust CRF's prior and potentials, each with its equation; evidence only lowers trust.

They are ours, and of no paper. docs/what-was-tried.md says why they tolerate what they do.

A potential measures something of each client and tolerates some of it. What exceeds the tolerance
is evidence. Two quantities are common to several:

- the lower median deviation δ: the median distance from the median, of the values not above it;
- the large-round share ℓ = 1 − large_round/m, 0 where m ≤ large_round. A large round shows by its
  δ how much honest clients differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Finite, Fraction, NotNegative, Positive, Settings
from fedcrf.crf.parts import Energy, LinearPart, Matrix, Message, Observation, Prior, Vector
from fedcrf.crf.potentials import median, median_of_sorted
from fedcrf.crf.window import Averages, row_cosines, row_norms
from fedcrf.statistics import EPSILON

LARGE_ROUND = 10.0
"""Clients beyond which a round is large."""

COPY_POWER = 100.0
"""How alike updates must be to count as copies.

Copies have a cosine of 1; honest updates from similar data reach 0.95.
"""

NORM_EXPONENT = 0.7
"""How an honest update's norm grows with its examples: as n^a."""

MOST_STARTS = 16
"""Clients whose view of the others a split starts from."""

MOST_STEPS = 5
"""Steps in which a split becomes better; most need two or three."""

TINY = float(np.finfo(np.float64).tiny)
"""The smallest divisor."""


@dataclass(frozen=True)
class LogOddsPrior(Settings):
    """One prior for all clients, P(q) ∝ exp(b·q).

    Attributes:
        strength: b.
    """

    strength: Finite = 2.0

    def prior(self, seen: Observation, labels: Vector) -> Prior:
        """Return the prior; see `PriorPart.prior`."""
        return Prior(np.full((seen.num_clients, len(labels)), self.probabilities(labels)))

    def probabilities(self, labels: Vector) -> Vector:
        """Return P(q) of the (L,) labels."""
        exponents = self.strength * labels
        factors = np.exp(exponents - exponents.max())
        return np.asarray(factors / factors.sum())


@dataclass(frozen=True)
class MeasuredEvidence(LinearPart):
    """Base of a robust potential of one client: ψ(q) = κ·q·min(limit, max(0, x_i − t)).

    x_i is what is measured of the client, or −1 times that; t is the threshold.
    """

    sign: ClassVar[float] = 1.0
    """−1.0 where what is measured is evidence if it is small."""

    limit: ClassVar[float] = math.inf
    """The largest evidence."""

    def compare(self, averages: Averages) -> Vector | None:
        """Return what is measured between rounds; (m,), NaN where it is unknown.

        None where it is measured in one round.
        """
        return None

    def measure(self, seen: Observation) -> Vector | None:
        """Return what is measured; (m,), NaN where it is unknown. None where nothing can be."""
        return seen.measured.get(self.cause)

    def threshold(self, seen: Observation, middle: float, deviation: float) -> Vector | float:
        """Return t, by what is known of the round, the median of x and its lower deviation δ.

        It is one for all clients, or (m,).
        """
        raise NotImplementedError

    def energy(self, seen: Observation, labels: Vector) -> Energy:
        """Return the energies, and what is measured by `cause`; see `EvidencePart.energy`."""
        measured = self.measure(seen)
        if measured is None:
            return Energy(np.zeros((seen.num_clients, len(labels))))
        return self.against(self.excess(seen, measured), labels, {self.cause: measured})

    def excess(self, seen: Observation, measured: Vector) -> Vector:
        """Return (m,) min(limit, max(0, x − t)) of what is measured; 0 where it is unknown."""
        known = np.isfinite(measured)
        values = self.sign * measured
        excess = values - self.threshold(seen, *median_and_lower_mad(values[known]))
        return np.where(known, np.minimum(np.maximum(0.0, excess), self.limit), 0.0)


@dataclass(frozen=True)
class NormEvidence(MeasuredEvidence):
    """An update far longer than its examples explain: ψ(q) = κ·q·min(limit, max(0, z_i − t)).

    z_i is log‖u_i‖ − a·log n_i less its median over the clients. The tolerance is
    t = max(tolerance, spread·δ) + ½·log k with the lower median deviation δ, since honest clients
    may differ much, and the window's length k. The average of k updates that are mostly noise is
    √k times shorter than they are. That of a client whose updates are mostly signal, as where only
    that client holds a label, is not.

    Attributes:
        strength: κ.
        exponent: a, how an honest update's norm grows with the examples.
        tolerance: The smallest t, as a logarithm.
        spread: Lower median deviations that are tolerated.
    """

    cause: ClassVar[str] = "norm"
    evidence: ClassVar[str] = "norm"
    limit: ClassVar[float] = 2.0

    strength: NotNegative = 8.0
    exponent: NotNegative = NORM_EXPONENT
    tolerance: NotNegative = 1.0
    spread: NotNegative = 4.0

    def measure(self, seen: Observation) -> Vector:
        """Return z; NaN for a client without examples. The cause ``norm`` is the evidence."""
        known = seen.finite & (seen.num_examples > 0)
        excess = np.full(seen.num_clients, np.nan)
        excess[known] = length_excess(
            seen.statistics.norms[known], seen.num_examples[known], self.exponent
        )
        return excess

    def threshold(self, seen: Observation, middle: float, deviation: float) -> Vector:
        """Return t; see `MeasuredEvidence.threshold`."""
        tolerated = max(self.tolerance, self.spread * deviation)
        # One by one: an array's logarithms may differ from a number's in the last bit.
        longer = [math.log(each) for each in np.sqrt(np.atleast_1d(seen.window)).tolist()]
        return tolerated + np.array(longer)


@dataclass(frozen=True)
class ResponseEvidence(MeasuredEvidence):
    """An update that does not change against the model's step: ψ(q) = κ·q·max(0, r_i − t).

    The curvature response r_i compares a client's update with its last one, and the global model
    with the one that it last started from; see `curvature_response`. Local training descends the
    client's own loss, whose curvature is positive. So an honest update changes against the model's
    step: r_i < 0. The update of a client that pushes the model somewhere does not respond
    (r_i = 0), or follows the step (r_i > 0).

    The threshold is t = max(share·ν, ν + ℓ·spread·δ) with ν = min(0, median(r)), the large-round
    share ℓ and the lower median deviation δ.

    Attributes:
        strength: κ.
        share: The share of the median client's response that is expected of each client, in [0, 1].
        spread: Lower median deviations that are tolerated in a large round.
        large_round: Clients beyond which a round is large.
    """

    cause: ClassVar[str] = "curvature_response"
    evidence: ClassVar[str] = "unresponsive"

    strength: NotNegative = 10.0
    share: Fraction = 0.25
    spread: NotNegative = 4.0
    large_round: Positive = LARGE_ROUND

    def compare(self, averages: Averages) -> Vector:
        """Return r; see `MeasuredEvidence.compare`. It is unknown while the median is 0 or more.

        As long as nobody responds, a longer window will show who does.
        """
        response = averages.response
        somebody_responds = median(response[np.isfinite(response)]) < 0.0
        return response if somebody_responds else np.full_like(response, np.nan)

    def threshold(self, seen: Observation, middle: float, deviation: float) -> float:
        """Return t; see `MeasuredEvidence.threshold`."""
        typical = min(0.0, middle)
        spread = self.spread * large_round_share(seen.finite, self.large_round)
        return max(self.share * typical, typical + spread * deviation)


@dataclass(frozen=True)
class ConsistencyEvidence(MeasuredEvidence):
    """An update that turns away from the client's last one: ψ(q) = κ·q·max(0, t − c_i).

    c_i is the cosine of a client's update with its last one. An honest client descends the same
    loss in every round. A client that fakes a curvature response has to turn with every step of the
    model, and one that hides its update behind new noise in every round turns too.

    With μ = median(c) and the large-round share ℓ, the threshold is
    t = μ − max((1 − ℓ/2)·(1 − share)·|μ|, ℓ·spread·δ). The median deviation δ is of the cosines
    above μ, as inconsistent clients are below it.

    Attributes:
        strength: κ.
        share: The share of the median client's consistency that is expected of each client, in
            [0, 1].
        spread: Median deviations that are tolerated in a large round.
        large_round: Clients beyond which a round is large.
    """

    cause: ClassVar[str] = "update_consistency"
    evidence: ClassVar[str] = "inconsistent"
    sign: ClassVar[float] = -1.0

    strength: NotNegative = 10.0
    share: Fraction = 0.5
    spread: NotNegative = 4.0
    large_round: Positive = LARGE_ROUND

    def compare(self, averages: Averages) -> Vector:
        """Return c, 0 where an update is zero; see `MeasuredEvidence.compare`."""
        return row_cosines(averages.updates, averages.before)

    def threshold(self, seen: Observation, middle: float, deviation: float) -> float:
        """Return −t, since x = −c; see `MeasuredEvidence.threshold`."""
        large = large_round_share(seen.finite, self.large_round)
        missing = (1.0 - 0.5 * large) * (1.0 - self.share) * abs(middle)
        return middle + max(missing, large * self.spread * deviation)


@dataclass(frozen=True)
class GoalEvidence(MeasuredEvidence):
    """An update whose goal is far away: ψ(q) = κ·q·min(limit, max(0, g_i − tolerance)).

    g_i is the logarithm of the distance to the client's goal, less its median; see `goal_distance`.
    The goals of honest clients are the minima of their own losses, which lie at like distances. An
    attacker that drives the model on responds little for the length of its update, so that its goal
    is far away, even where the direction of its response looks honest.

    Attributes:
        strength: κ.
        tolerance: How much farther than the median's a goal may be, as a logarithm.
    """

    cause: ClassVar[str] = "goal_distance"
    evidence: ClassVar[str] = "distant"
    limit: ClassVar[float] = 2.0

    strength: NotNegative = 8.0
    tolerance: NotNegative = 1.0

    def compare(self, averages: Averages) -> Vector:
        """Return g; see `MeasuredEvidence.compare`."""
        return goal_distance(averages.updates, averages.change, averages.steps)

    def threshold(self, seen: Observation, middle: float, deviation: float) -> float:
        """Return the tolerance; see `MeasuredEvidence.threshold`."""
        return self.tolerance


@dataclass(frozen=True)
class Camps(LinearPart):
    """In a large round, it is in the lighter of two opposed camps: ψ(q) = κ·ℓ·q·e_i.

    A split gives each client a sign v_i, so that Σ a_i a_j v_i v_j cos(u_i, u_j) is large: within a
    camp clients agree, across they oppose each other. In signed graphs this is structural balance
    (Harary, 1953). A client counts by a_i = p_i/k_i, its expected label before the round's evidence
    and its vote; see `votes`. For client i, w_i and x_i are the means of cos(u_i, u_j) over its own
    camp and the other one, by their a_j, and ζ_i is the smaller of w_i and −x_i, each in its
    standard errors. The clarity ζ is the least ζ_i of the nine tenths with the largest.

    Honest clients with different data oppose each other too, but in many directions: some client
    of nearly every camp is not opposed by the other one, or disagrees with its own. In the worlds
    with ten classes that chose ζ was 0.8 at most. Clients that share wrong labels push in one
    direction, and all others against it. A clarity of ``tolerance`` is tolerated.

    Honest clients of few kinds, as where there are two classes, are clear camps too. But then the
    camps explain all that the updates share: s = Σ a_i a_j v_i v_j cos(u_i, u_j) / (Σ a_i)² is
    1/(k − 1) at most where clients of k kinds differ alike. With s of a half, as of three kinds,
    camps are no evidence.

    In the camp with the smaller Σ a_i, if it has two clients or more,
    e_i = max(0, 1 − 2s)·min(limit, max(0, ζ − tolerance)); otherwise e_i = 0. ℓ is the large-round
    share. A client that did not move is in no camp.

    Attributes:
        strength: κ.
        tolerance: The tolerated clarity, in standard errors.
        vote_power: p of `votes`.
        large_round: Clients beyond which a round is large.
    """

    cause: ClassVar[str] = "camp_fit"
    evidence: ClassVar[str] = "minority"
    limit: ClassVar[float] = 2.0

    strength: NotNegative = 8.0
    tolerance: NotNegative = 1.0
    vote_power: Positive = COPY_POWER
    large_round: Positive = LARGE_ROUND

    def energy(self, seen: Observation, labels: Vector) -> Energy:
        """Return the energies.

        The causes are (w_i − x_i)/2, times −1 in the lighter camp, and ℓ·e_i.
        """
        large = large_round_share(seen.finite, self.large_round)
        moved = seen.statistics.norms > 0.0  # who did not is in no camp
        judges = np.flatnonzero(seen.finite & moved & (seen.credit >= 0.5))
        if large == 0.0 or len(judges) < 2:
            return Energy(np.zeros((seen.num_clients, len(labels))))
        cosines = seen.cosines[np.ix_(judges, judges)]
        counted = votes(seen.cosines, self.vote_power)[judges]
        if seen.initial is not None:
            counted *= (seen.initial @ labels)[judges]
        camp = split(cosines, counted)
        signed = counted * camp
        alike = camp[:, None] == camp
        own = np.where(alike, counted, 0.0)
        np.fill_diagonal(own, 0.0)
        within, agreed = mean_and_error(cosines, own)
        across, opposed = mean_and_error(cosines, np.where(alike, 0.0, counted))
        clear = np.sort(np.minimum(within / agreed, -across / opposed))[len(judges) // 10]
        balance = signed.sum()
        # Of camps of equal weight neither is the lighter one, however sums are rounded.
        heavier = np.sign(balance) if abs(balance) > EPSILON * counted.sum() else 0.0
        fit, evidence = np.full(seen.num_clients, np.nan), np.zeros(seen.num_clients)
        light = heavier * camp < 0.0
        fit[judges] = np.where(light, -1.0, 1.0) * (within - across) / 2.0
        lighter = judges[light]
        if len(lighter) > 1:
            explained = signed.dot(cosines).dot(signed) / counted.sum() ** 2
            unexplained = max(0.0, 1.0 - 2.0 * explained)
            evidence[lighter] = (
                large * unexplained * min(self.limit, max(0.0, clear - self.tolerance))
            )
        return self.against(evidence, labels, {self.cause: fit})


@dataclass(frozen=True)
class Opposition(LinearPart):
    """Trusted clients' updates point against it: ψ(q) = 2λ·q·max(0, σ_i − max(0, median(σ) + t)).

    The opposition that client i meets is σ_i = Σ_j C_ij q̄_j, with the conflict
    C_ij = a_j·max(0, −cos(u_i, u_j))/k_j. Agreement earns nothing. Copies count as one client, by
    k_j = 1 + Σ_{i≠j} max(0, cos(u_i, u_j))^p. The credit a_j is how much the opposition of client j
    counts; the median is over the clients with a credit of half or more. In a small round the
    threshold is t = tolerance.

    Where clients differ in size, so does the opposition that they meet: where a federation has
    converged, Σ n_j u_j = 0, so that all others together oppose a client in proportion to its own
    examples. The tolerance of a client that is s_i times as large as the median is multiplied by
    max(1, s_i)^{1/2} where sizes are known (`Observation.sizes`).

    In a large round every client meets some opposition. There agreement cancels conflict, by the
    large-round share ℓ: C_ij = (1 − ℓ)·a_j·(max(0, −cos(u_i, u_j)) − ℓ·max(0, cos(u_i, u_j)))/k_j.
    The threshold is t = (1 − ℓ)·tolerance + ℓ·spread·δ, with the lower median deviation δ of σ. The
    median is below 0 where most clients have like data. Those with other data agree less; they are
    not opposed as long as agreement outweighs conflict, σ_i < 0.

    Clients that are absent from a small round are heard too (`Observation.absent`): they oppose, by
    the trust that is remembered of them, and count in the median. Present and absent clients
    together have at most `Absent.most_votes`: ℓ in C_ij is 1 − most_votes/Σ p_j/k_j, 0 or more.
    p_j is the trust before the round's evidence, and of an absent client the remembered one.

    Attributes:
        strength: λ ≥ 0.
        tolerance: The tolerated opposition above the median.
        vote_power: p > 0; the larger, the more alike updates must be to count as copies. With 32,
            honest clients with like data, whose cosines reach 0.9, keep their votes.
        large_round: Clients beyond which a round is large.
        spread: Lower median deviations that are tolerated in a large round.
    """

    cause: ClassVar[str] = "opposition"
    evidence: ClassVar[str] = "opposed"

    strength: NotNegative = 2.0
    tolerance: NotNegative = 0.5
    vote_power: Positive = 32.0
    large_round: Positive = LARGE_ROUND
    spread: NotNegative = 4.0

    @property
    def slope(self) -> float:
        """2λ; see `LinearPart.slope`."""
        return 2.0 * self.strength

    def message(self, seen: Observation, labels: Vector) -> Message:
        """Return the message; causes are σ by ``opposition``, e by ``opposed``, 1/k by ``vote``."""
        vote, opposition = self.among(seen, labels)

        def energy(marginals: Matrix) -> Energy:
            met, above, tolerated = opposition(marginals.dot(labels))
            evidence = np.maximum(0.0, above - tolerated)
            return self.against(evidence, labels, {self.cause: met, "vote": vote})

        return energy

    def among(
        self, seen: Observation, labels: Vector
    ) -> tuple[Vector, Callable[[Vector], tuple[Vector, Vector, Vector | float]]]:
        """Return 1/k, and the function from the clients' trust to σ, σ − median(σ) and its bound.

        1/k, σ and σ − median(σ) are (m,). The bound max(t, −median(σ)) is (m,), or one number.
        """
        num_clients, finite, credit = seen.num_clients, seen.finite, seen.credit
        large = weaker = large_round_share(finite, self.large_round)
        absent = seen.absent if large == 0.0 and seen.initial is not None else None
        cosines = seen.cosines if absent is None else absent.cosines
        vote, remembered = votes(cosines, self.vote_power), np.empty(0)
        if absent is not None and seen.initial is not None:
            remembered = absent.trust
            others = np.ones(len(remembered))  # finite, and their trust holds their credit
            finite = np.concatenate([finite, others.astype(bool)])
            credit = np.concatenate([np.broadcast_to(credit, num_clients), others])
            trusted = np.concatenate([seen.initial.dot(labels), remembered])
            num_votes = vote[finite].dot(trusted[finite])
            weaker = 1.0 - min(1.0, absent.most_votes / max(num_votes, TINY))
        judges = np.flatnonzero(finite & (credit >= 0.5))
        against = np.where(np.isnan(cosines), 0.0, -cosines)
        np.fill_diagonal(against, 0.0)
        conflicts = np.where(against > 0.0, against, weaker * against)
        conflicts *= (1.0 - weaker) * credit * vote
        tolerance: float | Vector = (1.0 - large) * self.tolerance
        if seen.sizes is not None:
            tolerance = tolerance * np.sqrt(np.maximum(1.0, seen.sizes))

        all_judge = len(judges) == len(conflicts)

        def opposition(trust: Vector) -> tuple[Vector, Vector, Vector | float]:
            met = conflicts.dot(np.concatenate([trust, remembered]) if len(remembered) else trust)
            judged = met if all_judge else met[judges]
            tolerated = tolerance
            if large > 0.0:
                middle, deviation = median_and_lower_mad(judged)
                tolerated = tolerance + large * self.spread * deviation
            else:
                middle = median(judged) if len(judged) else 0.0
            if middle < 0.0:
                tolerated = np.maximum(tolerated, -middle)
            met = met[:num_clients]
            return met, met - middle, tolerated

        return vote[:num_clients], opposition


@dataclass(frozen=True)
class SuspectNorm(NormEvidence):
    """Evidence of the norm, times how suspect the client is for something else.

    ψ(q) = κ·q·h_i·min(limit, max(0, z_i − t)), with z_i and t as in `NormEvidence`. Length alone is
    no evidence, since a client that still learns what others have learnt has a long update. It
    counts by h_i, the largest of three numbers, cut to [0, 1]:

    - x_i, as far as the client is opposed: it rises from 0 to 1 where the opposition σ_i, less its
      median, rises from half of what is tolerated to all of it;
    - 2·P_i(0) − 1, as far as it was wrong before: P_i(0) is the probability of the smallest label
      before the round's evidence;
    - (γ_i − median(γ)) / tolerance, as far as it has become longer: γ_i is the logarithm by which
      its update is longer than its last one. A client without an earlier update has 1.

    A client that takes more local steps than others has a longer update that points the same way.
    Its agreement a_i is the median of cos(u_i, u_j) over the other clients. A client agrees if
    a_i ≥ share·median(a), and that median is above 0. If it agrees and has no earlier update, its
    tolerance and spread are twice as large. Colluders can raise their agreement to the largest of
    their cosines with the others. That gains them nothing where updates of exp(tolerance) medians
    are clipped anyway.

    Attributes:
        share: The share of the median client's agreement from which on a client agrees, in [0, 1].
        opposition: It tells σ and what is tolerated of it.
    """

    share: Fraction = 0.5
    opposition: Opposition = Opposition()

    def compare(self, averages: Averages) -> Vector:
        """Return γ, NaN where a client is new; see `MeasuredEvidence.compare`."""
        return averages.growth

    def message(self, seen: Observation, labels: Vector) -> Message:
        """Return the message; the cause is h·min(limit, max(0, z − t)) by ``norm``."""
        measured = self.measure(seen)
        long = self.excess(seen, measured)
        growth = seen.measured.get(self.cause, np.full(seen.num_clients, np.nan))
        known = np.isfinite(growth)
        if long[~known].any():
            more = replace(self, tolerance=2.0 * self.tolerance, spread=2.0 * self.spread)
            long = np.where(known | ~self._agrees(seen), long, more.excess(seen, measured))
        if not long.any():
            nothing = self.against(long, labels, {})
            return lambda marginals: nothing
        _, opposition = self.opposition.among(seen, labels)
        grown = (growth - median(growth[known])) / max(self.tolerance, EPSILON)
        suspect = np.where(known, grown, 1.0)
        if seen.initial is not None:
            wrong = 2.0 * seen.initial[:, labels.argmin()] - 1.0
            suspect = np.maximum(suspect, wrong)

        def energy(marginals: Matrix) -> Energy:
            _, above, tolerated = opposition(marginals.dot(labels))
            opposed = above / np.maximum(0.5 * tolerated, EPSILON) - 1.0
            suspicion = np.clip(np.maximum(opposed, suspect), 0.0, 1.0)
            return self.against(suspicion * long, labels, {})

        return energy

    def _agrees(self, seen: Observation) -> NDArray[np.bool_]:
        """Return (m,) whether a_i ≥ share·median(a) > 0; False for a non-finite update."""
        known = np.flatnonzero(seen.finite)
        cosines = seen.cosines[np.ix_(known, known)]
        others = cosines[~np.eye(len(known), dtype=bool)].reshape(len(known), -1)
        agreement = np.full(seen.num_clients, -math.inf)
        agreement[known] = np.median(others, axis=1)
        middle = median(agreement[known])
        return (agreement >= self.share * middle) & (middle > 0.0)


def length_excess(norms: Vector, num_examples: Vector, exponent: float) -> Vector:
    """Return (m,) z_i = log‖u_i‖ − a·log n_i less its median: how much longer it is than explained.

    A norm of 0 counts as the smallest number above it; examples, or shares of them, are above 0.
    """
    lengths = np.log(np.maximum(norms, TINY))
    excess = lengths - exponent * np.log(num_examples)
    return np.asarray(excess - median(excess))


def votes(cosines: Matrix, power: float) -> Vector:
    """Return (m,) 1/k_j, k_j = 1 + Σ_{i≠j} max(0, cos(u_i, u_j))^p: copies share one vote.

    Cosines of a non-finite update are NaN, and count as 0.
    """
    alike = np.fmax(0.0, cosines) ** power
    np.fill_diagonal(alike, 0.0)
    return np.asarray(1.0 / (1.0 + alike.sum(axis=0)))


def split(cosines: Matrix, counted: Vector) -> Vector:
    """Return (m,) signs v_i ∈ {−1, 1} for which Σ a_i a_j v_i v_j cos(u_i, u_j) is large.

    Cosines are positive semidefinite, so that v ← sign(Cv) never makes the sum smaller. It starts
    from what each of the `MOST_STARTS` clients with the most agreement and conflict sees: who is
    with it, and who is against it. Any of them leads to a clear split; the largest sum wins.

    Args:
        cosines: (m, m) cosines of all pairs.
        counted: (m,) a_i.
    """
    weighted = counted[:, None] * cosines * counted
    first = np.argsort(-np.abs(weighted).sum(axis=0), kind="stable")[:MOST_STARTS]
    seen = weighted[:, first]
    for _ in range(MOST_STEPS):
        signs = np.where(seen < 0.0, -1.0, 1.0)
        seen = weighted @ signs
    return np.asarray(signs[:, (signs * seen).sum(axis=0).argmax()])


def mean_and_error(values: Matrix, counted: Matrix) -> tuple[Vector, Vector]:
    """Return the mean of each row's values x_j by their a_j, and its standard error.

    The error is (Σ_j a_j²(x_j − x̄)²)^{1/2} / Σ_j a_j, and above 0. The mean of nothing is 0.
    """
    total = np.maximum(counted.sum(axis=1), TINY)
    mean = (counted * values).sum(axis=1) / total
    apart = counted * (values - mean[:, None])
    return mean, np.maximum(np.sqrt(np.vecdot(apart, apart)) / total, EPSILON)


def large_round_share(finite: NDArray[np.bool_], large_round: float) -> float:
    """Return ℓ = 1 − large_round/m for m finite clients; 0 for a small round."""
    return 1.0 - min(1.0, large_round / max(1, int(np.count_nonzero(finite))))


def median_and_lower_mad(values: Vector) -> tuple[float, float]:
    """Return the median, and the median distance from it of the values that are not above it.

    Attackers are above the median: if their distances counted, they could choose the deviation. No
    values give 0, 0.
    """
    if not len(values):
        return 0.0, 0.0
    ordered = values.copy()
    ordered.sort()  # np.sort takes three times as long where values are few
    middle = median_of_sorted(ordered)
    below = ordered[: ordered.searchsorted(middle, "right")]
    return middle, median_of_sorted((middle - below)[::-1])


def clip_factors(norms: Vector, finite: NDArray[np.bool_], longest: Vector | float) -> Vector:
    """Return (m,) s_i = min(1, longest_i / ‖u_i‖); NaN for a non-finite update."""
    factors = np.where(finite, 1.0, np.nan)
    return np.divide(longest, norms, out=factors, where=finite & (norms > longest))


def goal_distance(update: Matrix, change: Matrix, movement: Matrix) -> Vector:
    """Return g_i = log(‖u_i‖·‖w − w'‖ / ‖u_i − u'_i‖) less its median over the clients.

    Where a client's loss is quadratic with the curvature H, u_i = −H(w − w_i) and
    ‖u_i − u'_i‖ = H‖w − w'‖, so that the quotient is ‖w − w_i‖: how far away its goal w_i is. It is
    the step of Barzilai and Borwein (1988) times the length of the update.

    Args:
        update: (m, s) sketches of u_i.
        change: As for `curvature_response`, and so is the next.
        movement: Of the model.

    Returns:
        (m,) logarithms; NaN where the client is new, or where one of the three is zero.
    """
    lengths = map(row_norms, (update, movement, change))
    length, moved, changed = np.broadcast_arrays(*lengths)
    known = (length > 0.0) & (moved > 0.0) & (changed > 0.0)  # False for NaN
    distance = np.full(len(update), np.nan)
    distance[known] = np.log(length[known]) + np.log(moved[known]) - np.log(changed[known])
    return distance - median(distance[known])
