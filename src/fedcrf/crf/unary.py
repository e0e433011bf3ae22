"""Unary parts of a field: what a client deserves by itself.

A prior says how probable each label is before any evidence; evidence adds energies. Every part is a
small frozen value with one method. One of your own needs that method and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import (
    Settings,
    check_fraction,
    check_not_negative,
    check_positive,
    checked_number,
)
from fedcrf.crf import potentials
from fedcrf.crf.observation import Observation
from fedcrf.errors import FedcrfError

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Causes = Mapping[str, NDArray[Any]]
"""By name what a part saw: (m,) for each client, or (m, m) between clients."""

REPORTED = "reported"
"""Stands before the name of evidence that clients report, as the name of a cause."""


@dataclass(frozen=True, eq=False)
class Prior:
    """How probable the labels are by themselves.

    Attributes:
        probabilities: (m, L); rows sum to 1.
        causes: What they come from.
    """

    probabilities: Matrix
    causes: Causes = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Energy:
    """What a part adds to the energy: the probability of a label carries exp(−energy).

    Attributes:
        values: (m, L), or what broadcasts to it.
        causes: What they come from.
    """

    values: Matrix
    causes: Causes = field(default_factory=dict)


class PriorPart(Protocol):
    """Where the labels' probabilities come from."""

    def prior(self, seen: Observation, labels: Vector) -> Prior:
        """Return the probabilities of the (L,) labels for each client."""
        ...


class EvidencePart(Protocol):
    """Evidence about a client by itself."""

    def energy(self, seen: Observation, labels: Vector) -> Energy:
        """Return the energies of the (L,) labels for each client."""
        ...


@runtime_checkable
class LinearPart(Protocol):
    """A part whose energy is its evidence times the label: ψ(q) = slope·q·e_i.

    The energies of such parts add up in one exponent, so that it can be told what each of them
    made of an expected label.
    """

    @property
    def cause(self) -> str:
        """The name of the cause that it looks at."""
        ...

    @property
    def evidence(self) -> str:
        """The name, among its causes, of the (m,) evidence e against each client."""
        ...

    @property
    def slope(self) -> float:
        """The energy that one of evidence is at label 1; 0 or more."""
        ...


@dataclass(frozen=True)
class Reliability(Settings):
    """The paper's: P_i(q) ∝ 1 − ρ_i at the smallest label, ρ_i at the largest, 1 at any other.

    ρ_i = σ(2c_i − d_i − 0.5h_i) of the agreement with the median update, the distance from it and
    the anomaly of the norm.
    """

    def prior(self, seen: Observation, labels: Vector) -> Prior:
        """Return the prior and ρ, c, d, h; see `PriorPart.prior`."""
        causes = potentials.reliability_causes(seen.statistics)
        return Prior(potentials.label_prior(causes["reliability"], labels), causes)


@dataclass(frozen=True)
class Inclination(Settings):
    """The same prior for everybody, P(q) ∝ exp(b·q).

    Attributes:
        strength: b.
    """

    strength: float = 2.0

    def __post_init__(self) -> None:
        checked_number("strength", self.strength)

    def prior(self, seen: Observation, labels: Vector) -> Prior:
        """Return the prior; see `PriorPart.prior`."""
        return Prior(np.tile(self.probabilities(labels), (seen.num_clients, 1)))

    def probabilities(self, labels: Vector) -> Vector:
        """Return P(q) of the (L,) labels."""
        factors = np.exp(self.strength * labels - (self.strength * labels).max())
        return np.asarray(factors / factors.sum())


@dataclass(frozen=True)
class ReportedReliability(Settings):
    """Evidence that clients report, such as the loss left after local training.

    Reliability is f_i = exp(−e_i), e_i = min(limit, strength·max(0, z_i − threshold)) with
    z_i = (x_i − median(x)) / (median|x − median(x)| + softening), and P_i(q) as for `Reliability`;
    with labels {0, 1} the expected label is f_i. Evidence only lowers trust: who reports less
    than the others gains nothing, and who reports nothing, or nothing finite, has f_i = 1.

    The plainer f = exp(−min(6, max(0, z − 1))) with a softening of 0.1 is too hard on honest
    clients. Where most losses are near 0, or liars say that theirs are, the median deviation is
    next to nothing, and an honest client with few examples or rare labels, whose loss lies up to
    1.5 nats above the median in the first rounds, loses its weight; the model then does not learn
    its labels, and its loss stays. A softening of 0.55 nats, a quarter of what guessing among ten
    classes costs, lies between what is left of an honest client's excess (mostly below 0.3 after
    ten rounds, 0.9 at the fifth where it alone holds a class) and what a client keeps that has
    three in ten labels drawn at random (1.2 to 1.8). The weight falls steeply between them.

    Attributes:
        name: Of the evidence.
        threshold: Deviations above the median that are nothing yet.
        softening: Added to the median absolute deviation, in the evidence's unit.
        strength: What each deviation beyond the threshold adds to e.
        limit: The most that e can be.
    """

    name: str = "residual_loss"
    threshold: float = 1.0
    softening: float = 0.55
    strength: float = 6.0
    limit: float = 6.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise FedcrfError(f"evidence {self.name!r}: give its name, such as 'residual_loss'")
        check_not_negative(self, "threshold", "limit")
        check_positive(self, "softening", "strength")

    def prior(self, seen: Observation, labels: Vector) -> Prior:
        """Return the prior, and e by ``reported NAME``; NaN where there is no evidence.

        Raises:
            FedcrfError: There is evidence, but none of that name.
        """
        if seen.evidence and self.name not in seen.evidence:
            raise FedcrfError(
                f"there is no evidence named '{self.name}', only {', '.join(seen.evidence)}: "
                "give it, or name another"
            )
        values = seen.evidence.get(self.name, np.full(seen.num_clients, np.nan))
        usable = seen.finite & np.isfinite(values)
        excess = np.full(seen.num_clients, np.nan)
        excess[usable] = potentials.excess(values[usable], self.softening)
        excess = np.clip(self.strength * (excess - self.threshold), 0.0, self.limit)
        prior = potentials.label_prior(potentials.trust(excess), labels)
        return Prior(prior, {f"{REPORTED} {self.name}": excess})


@dataclass(frozen=True)
class NormEvidence(Settings):
    """An update far longer than its examples explain: ψ(q) = κ·q·min(limit, max(0, z_i − t_i)).

    z_i = log‖u_i‖ − a·log n_i less its median over the clients, and t_i the threshold, or more
    where honest clients differ more: so many times the usual deviation of those below the median.
    Where most have learnt all of their own examples, those that have not are long. Of what updates
    have become shorter by since the federation's longest round, a share is nothing yet besides: who
    was left out for its length then does not stay so because the others go on learning.

    Attributes:
        strength: κ.
        exponent: a, how an honest update's norm grows with the examples.
        threshold: As a logarithm, what is nothing yet.
        limit: The most that the evidence can be.
        spread: So many usual deviations are nothing yet either.
        memory: That share, in [0, 1]; attackers too may then be as long as others once were.
    """

    cause: ClassVar[str] = "norm"
    evidence: ClassVar[str] = "norm"

    strength: float = 8.0
    exponent: float = 0.7
    threshold: float = 1.0
    limit: float = 2.0
    spread: float = 4.0
    memory: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(self, "strength", "exponent", "threshold", "limit", "spread")
        check_fraction(self, "memory")

    @property
    def slope(self) -> float:
        """κ; see `LinearPart.slope`."""
        return self.strength

    def energy(self, seen: Observation, labels: Vector) -> Energy:
        """Return the energies and the evidence by ``norm``; see `EvidencePart.energy`."""
        excess = potentials.norm_excess(
            seen.statistics.norms, seen.num_examples, seen.finite, self.exponent
        )
        known = excess[seen.finite & (seen.num_examples > 0)]
        deviation = potentials.usual(known)[1] if len(known) else 0.0
        tolerated = max(self.threshold, self.spread * deviation) + self.memory * seen.shrunk
        evidence = np.clip(excess - tolerated, 0.0, self.limit)
        return Energy(self.slope * np.outer(evidence, labels), {self.evidence: evidence})


@dataclass(frozen=True)
class ResponseEvidence(Settings):
    """A client that does not push back: ψ(q) = κ·q·max(0, r_i − t).

    Local training descends the client's own loss, whose curvature is positive: what the global
    model moved since, an honest update answers with a change against it, r_i < 0. Who pushes the
    model somewhere, whatever it does, does not answer (r_i = 0) or pushes on (r_i > 0). Expected is
    a share of the median client's answer, t = share·min(0, median(r)). In a round of m clients
    beyond a crowd, which shows how uncertain answers are, it is less where so many times the usual
    deviation of those below the median, and of that 1 − crowd/m, reaches further.

    Who has learnt its own examples has little to answer with, so that as a federation settles
    answers become noise. With a memory, so much of the logarithm by which updates have become
    shorter since the longest round may be missing besides, as far as the client was trusted before:
    who has been found out answers for everything, and does not come back as evidence runs dry.

    Attributes:
        strength: κ.
        share: The share of the median client's answer that is expected of everybody, in [0, 1].
        spread: In a crowd so many usual deviations above the median are nothing yet.
        crowd: Clients of a round beyond which it is a crowd.
        memory: How much more may be missing for each time that updates have become shorter by a
            factor of e; at most twice as much, see `Observation.shrunk`.
    """

    cause: ClassVar[str] = "response"
    evidence: ClassVar[str] = "unresponsive"

    strength: float = 10.0
    share: float = 0.5
    spread: float = 4.0
    crowd: float = 10.0
    memory: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(self, "strength", "spread", "memory")
        check_fraction(self, "share")
        check_positive(self, "crowd")

    @property
    def slope(self) -> float:
        """κ; see `LinearPart.slope`."""
        return self.strength

    def energy(self, seen: Observation, labels: Vector) -> Energy:
        """Return the energies, and by ``response`` r and by ``unresponsive`` the evidence."""
        response = seen.response
        if response is None:
            return Energy(np.zeros((seen.num_clients, len(labels))))
        known = np.isfinite(response)
        middle, deviation = potentials.usual(response[known]) if known.any() else (0.0, 0.0)
        typical = min(0.0, middle)
        spread = self.spread * potentials.crowdedness(seen.finite, self.crowd)
        expected = max(self.share * typical, typical + spread * deviation)
        standing = 1.0 if seen.standing is None else seen.standing
        tolerated = expected + self.memory * seen.shrunk * standing
        evidence = np.where(known, np.maximum(0.0, response - tolerated), 0.0)
        causes = {self.cause: response, self.evidence: evidence}
        return Energy(self.slope * np.outer(evidence, labels), causes)


@dataclass(frozen=True)
class SteadinessEvidence(Settings):
    """A client that does not go on: ψ(q) = κ·q·max(0, t − c_i), t = μ − (1 − share)·|μ|.

    c_i is the cosine of a client's update with its last one, and μ their median. Honest clients
    descend the same loss in every round. Who fakes the answer of `ResponseEvidence` has to turn
    with every step of the model, and is found out by that; so is who hides behind noise that is
    drawn anew.

    In a round of m clients beyond a crowd, which shows how steady its members are, what may be
    missing goes over into half of it, by a share 1 − crowd/m; or into that share of so many times
    the usual deviation of those above the median, where this is more.

    Attributes:
        strength: κ.
        share: The share of the median client's steadiness that is expected of everybody, in [0, 1].
        spread: In a crowd so many usual deviations below the median are nothing yet.
        crowd: Clients of a round beyond which it is a crowd.
    """

    cause: ClassVar[str] = "steadiness"
    evidence: ClassVar[str] = "unsteady"

    strength: float = 10.0
    share: float = 0.5
    spread: float = 4.0
    crowd: float = 10.0

    def __post_init__(self) -> None:
        check_not_negative(self, "strength", "spread")
        check_fraction(self, "share")
        check_positive(self, "crowd")

    @property
    def slope(self) -> float:
        """κ; see `LinearPart.slope`."""
        return self.strength

    def energy(self, seen: Observation, labels: Vector) -> Energy:
        """Return the energies, and by ``steadiness`` c and by ``unsteady`` the evidence."""
        steadiness = seen.steadiness
        if steadiness is None:
            return Energy(np.zeros((seen.num_clients, len(labels))))
        known = np.isfinite(steadiness)
        # Negated, as it is the steady whose deviations tell what is usual.
        turned, deviation = potentials.usual(-steadiness[known]) if known.any() else (0.0, 0.0)
        crowded = potentials.crowdedness(seen.finite, self.crowd)
        missing = (1.0 - 0.5 * crowded) * (1.0 - self.share) * abs(turned)
        expected = -turned - max(missing, crowded * self.spread * deviation)
        evidence = np.where(known, np.maximum(0.0, expected - steadiness), 0.0)
        causes = {self.cause: steadiness, self.evidence: evidence}
        return Energy(self.slope * np.outer(evidence, labels), causes)
