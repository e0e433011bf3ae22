"""Pairwise parts of a field: what clients say about each other.

A part is asked once a round; what it returns is asked in every mean-field iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Settings, check_not_negative, check_positive, check_truth
from fedcrf.crf import potentials
from fedcrf.crf.observation import Observation
from fedcrf.crf.unary import Energy

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

Message = Callable[[Matrix], Energy]
"""From the (m, L) marginals to the expected energies of every client's labels."""


class PairwisePart(Protocol):
    """What ties clients together."""

    def message(self, seen: Observation, labels: Vector) -> Message:
        """Return what the neighbours' marginals say about each client."""
        ...


@dataclass(frozen=True)
class Attraction(Settings):
    """The paper's: similar clients are drawn to one label, ψ(q, q') = λ·A_ij·(q − q')².

    A_ij = exp(−(1 − cos(u_i, u_j))/θ)·min(ρ_i, ρ_j), A_ii = 0. Of `CrowdStatistics` the pairs that
    are there have these affinities, and others none.

    Attributes:
        strength: λ ≥ 0.
        bandwidth: θ > 0.
        reliability_gate: Whether the factor min(ρ_i, ρ_j) is there.
    """

    strength: float = 0.5
    bandwidth: float = 0.5
    reliability_gate: bool = True

    def __post_init__(self) -> None:
        check_truth("reliability_gate", self.reliability_gate)
        check_not_negative(self, "strength")
        check_positive(self, "bandwidth")

    def message(self, seen: Observation, labels: Vector) -> Message:
        """Return the message λ Σ_j A_ij Σ_q' Q_j(q')(q − q')²; A is its cause ``affinity``."""
        rho = potentials.reliability_causes(seen.statistics)["reliability"]
        affinity = potentials.affinity(
            seen.statistics.cosines, rho, self.bandwidth, self.reliability_gate
        )
        coupling = self.strength * affinity
        disagreement = potentials.label_distance(labels)
        causes: dict[str, Any] = {"affinity": affinity}
        return lambda marginals: Energy(np.asarray(coupling @ (marginals @ disagreement)), causes)


@dataclass(frozen=True)
class Opposition(Settings):
    """Whoever trusted clients point against is less trusted: ψ(q) = 2λ·q·e_i.

    e_i = max(0, σ_i − median(σ) − tolerance), σ_i = Σ_j C_ij q̄_j: only more opposition than others
    meet is evidence. The conflict C_ij = a_j·max(0, −cos(u_i, u_j))/k_j counts copies as one
    witness, k_j = 1 + Σ_{i≠j} max(0, cos(u_i, u_j))^p, and takes only the part a_j of a client's
    word that has credit; the median is over those with half of it or more. Agreement earns nothing.

    In a round of m clients beyond a crowd, a share s = crowd/m of all that counts. There everybody
    meets some opposition, and one client's says little, so that agreement makes up for it: 1 − s
    times max(0, cos(u_i, u_j)) is taken off the conflict. Since a crowd shows how much its members
    differ, the tolerance goes over, by the same share, into so many times the usual deviation of
    those that meet less than the median.

    As a federation settles, what honest clients agree on is learnt, and those whose data are rare
    are opposed as plainly as attackers were in the first rounds. With a memory the tolerance grows
    by so much of the logarithm by which updates have become shorter since the longest round; who
    was opposed before remains distrusted by what is remembered of it.

    Attributes:
        strength: λ ≥ 0.
        tolerance: Opposition above the median that is nothing yet.
        vote_power: p > 0; the larger, the more alike updates must be to count as copies. Honest
            clients with like data come to cosines of 0.9, and keep their votes with 32.
        crowd: Clients of a round beyond which it is a crowd.
        spread: In a crowd so many usual deviations above the median are nothing yet.
        memory: How much more is nothing yet for each time that updates have become shorter by a
            factor of e; at most twice as much, see `Observation.shrunk`.
    """

    cause: ClassVar[str] = "opposition"
    evidence: ClassVar[str] = "opposed"

    strength: float = 2.0
    tolerance: float = 0.3
    vote_power: float = 32.0
    crowd: float = 10.0
    spread: float = 4.0
    memory: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(self, "strength", "tolerance", "spread", "memory")
        check_positive(self, "vote_power", "crowd")

    @property
    def slope(self) -> float:
        """2λ; see `LinearPart.slope`."""
        return 2.0 * self.strength

    def message(self, seen: Observation, labels: Vector) -> Message:
        """Return the message; causes are σ by ``opposition``, e by ``opposed``, 1/k by ``vote``."""
        credit = np.ones(seen.num_clients) if seen.credit is None else seen.credit
        votes = potentials.votes(seen.cosines, self.vote_power)
        credited = seen.finite & (credit >= 0.5)
        crowded = potentials.crowdedness(seen.finite, self.crowd)
        conflict = potentials.conflict(seen.cosines, crowded) * ((1.0 - crowded) * credit * votes)
        least = (1.0 - crowded) * (self.tolerance + self.memory * seen.shrunk)

        def energy(marginals: Matrix) -> Energy:
            met = conflict @ (marginals @ labels)
            usual, deviation = potentials.usual(met[credited]) if credited.any() else (0.0, 0.0)
            tolerated = least + crowded * self.spread * deviation
            evidence = np.maximum(0.0, met - usual - tolerated)
            causes = {self.cause: met, self.evidence: evidence, "vote": votes}
            return Energy(self.slope * np.outer(evidence, labels), causes)

        return energy
