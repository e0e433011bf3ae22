"""What a field is made of: what is known of a round, and the parts that look at it.

A part is a small frozen value with one method. A part of your own needs that method and nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import NotNegative, Settings
from fedcrf.errors import FedcrfError
from fedcrf.statistics import CrowdStatistics, Statistics

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Causes = Mapping[str, NDArray[Any]]
"""What a part measured, by name: (m,) for each client, or (m, m) between clients."""


@dataclass(frozen=True, eq=False)
class Absent:
    """What is remembered of n clients that take no part in a round of m.

    Attributes:
        cosines: (m + n, m + n) cosines of the updates, first of the round's clients.
        trust: (n,) what is remembered of the trust in the absent ones.
        most_votes: The most that Σ p_j/k_j, by trust p_j and copies k_j, counts for over all m + n;
            if it is more, every vote counts that much less.
    """

    cosines: NDArray[np.float64]
    trust: NDArray[np.float64]
    most_votes: float


@dataclass(frozen=True, eq=False)
class Observation:
    """What is known of the m clients of a round.

    Attributes:
        updates: Statistics of the updates: lengths, angles, how they lie to their median. Where
            only reported evidence counts, (m,) bool, whether they are finite.
        num_examples: (m,) training examples n_i; only their ratios count.
        evidence: (m,) numbers that the clients report, by name; NaN where a client reports none.
        measured: (m,) numbers that parts need and ``updates`` lacks, by cause: comparisons with
            earlier rounds, and the causes of the prior; NaN where a client's is unknown.
        before: (m, L) marginals of the round in which a client last took part; NaN rows for new
            clients. None without a memory.
        initial: (m, L) marginals before the round's evidence. A field sets them.
        credit: (m,) in [0, 1], how much a client's opposition to others counts; or one for all.
        sizes: (m,) each client's examples as a multiple of the median, as far as they are believed;
            None where all clients count as of one size.
        window: k, the rounds over which the updates are averaged: (m,), or one for all. Each round
            counts 1/k of its evidence, since averages overlap.
        absent: Clients that take no part and are heard all the same; None where nobody is.
    """

    updates: Statistics | NDArray[np.bool_]
    num_examples: NDArray[np.float64]
    evidence: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    measured: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    before: NDArray[np.float64] | None = None
    initial: NDArray[np.float64] | None = None
    credit: NDArray[np.float64] | float = 1.0
    sizes: NDArray[np.float64] | None = None
    window: NDArray[np.float64] | float = 1.0
    absent: Absent | None = None

    @property
    def num_clients(self) -> int:
        """The number of clients, m."""
        return len(self.finite)

    @property
    def statistics(self) -> Statistics:
        """The statistics of the updates.

        Raises:
            FedcrfError: It is only known whether the updates are finite.
        """
        if isinstance(self.updates, np.ndarray):
            raise FedcrfError(
                "a part of the field needs statistics of the updates, and it is only known whether "
                "they are finite: gather the statistics with update_statistics"
            )
        return self.updates

    @property
    def cosines(self) -> NDArray[np.float64]:
        """(m, m) cosines of all pairs.

        Raises:
            FedcrfError: The statistics hold the cosines of near neighbours alone.
        """
        if isinstance(self.statistics, CrowdStatistics):
            raise FedcrfError(
                "a part of the field needs the cosines of all pairs, and the statistics hold those "
                "of near neighbours alone: gather them with update_statistics"
            )
        return self.statistics.cosines

    @property
    def finite(self) -> NDArray[np.bool_]:
        """(m,) bool; False where an update is not finite, so that its client is excluded."""
        return self.updates if isinstance(self.updates, np.ndarray) else self.updates.finite


@dataclass(frozen=True, eq=False)
class Prior:
    """The labels' probabilities before any energies.

    Attributes:
        probabilities: (m, L); rows sum to 1.
        causes: What they were computed from.
    """

    probabilities: Matrix
    causes: Causes = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Energy:
    """What a part adds to the energy of each label, whose probability is ∝ exp(−energy).

    Attributes:
        values: (m, L), or what broadcasts to it.
        causes: What they were computed from.
    """

    values: Matrix
    causes: Causes = field(default_factory=dict)


class PriorPart(Protocol):
    """A prior over the labels."""

    def prior(self, seen: Observation, labels: Vector) -> Prior:
        """Return the probabilities of the (L,) labels for each client."""
        ...


class EvidencePart(Protocol):
    """A potential of one client."""

    def energy(self, seen: Observation, labels: Vector) -> Energy:
        """Return the energies of the (L,) labels for each client."""
        ...


Message = Callable[[Matrix], Energy]
"""From the (m, L) marginals to the energies that they lead to expect."""


class PairwisePart(Protocol):
    """A potential between clients.

    `message` is called once a round, the function that it returns in every mean-field iteration.
    """

    def message(self, seen: Observation, labels: Vector) -> Message:
        """Return the function from marginals to expected energies."""
        ...


@dataclass(frozen=True)
class LinearPart(Settings):
    """Base of parts whose energy is evidence times the label: ψ(q) = slope·q·e_i.

    The energies of such parts add up in one exponent, so that the effect of each on the expected
    label can be computed.

    Attributes:
        cause: The name of what the part measures.
        evidence: The name, among its causes, of the (m,) evidence e against each client.
        strength: κ; it sets the `slope`.
    """

    cause: ClassVar[str]
    evidence: ClassVar[str]

    strength: NotNegative

    @property
    def slope(self) -> float:
        """The energy of one unit of evidence at label 1; 0 or more."""
        return self.strength

    def against(self, evidence: Vector, labels: Vector, causes: Causes) -> Energy:
        """Return the energies of (m,) evidence e, and the causes with e among them."""
        values = self.slope * (evidence[:, None] * labels)
        return Energy(values, {**causes, self.evidence: evidence})
