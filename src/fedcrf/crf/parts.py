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

from fedcrf.checks import Settings
from fedcrf.errors import FedcrfError
from fedcrf.statistics import CrowdStatistics, Statistics

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Causes = Mapping[str, NDArray[Any]]
"""What a part measured, by name: (m,) for each client, or (m, m) between clients."""


@dataclass(frozen=True, eq=False)
class Presence:
    """What is known of updates where nothing but the evidence of their clients counts.

    Attributes:
        finite: (m,) bool; False where an update is not finite.
    """

    finite: NDArray[np.bool_]

    @property
    def num_clients(self) -> int:
        """The number of clients, m."""
        return len(self.finite)


@dataclass(frozen=True, eq=False)
class Observation:
    """What is known of the m clients of a round.

    Attributes:
        updates: What is known of the updates: lengths, angles, how they lie to their median; or
            whether they are finite alone.
        num_examples: (m,) training examples n_i; only their ratios count.
        evidence: By name (m,) numbers that the clients report; NaN where one does not.
        measured: By cause (m,) numbers that a part of the field asks for and that are not in
            ``updates``, such as those of earlier rounds; NaN where a client's is not known.
        before: (m, L) marginals of the round that a client last took part in; a row is NaN where
            there was none. None where nothing is remembered.
        credit: (m,) in [0, 1], how much a client's opposition to others counts; None where
            everybody's counts in full.
        trust_ratio: (m,) in [0, 1], how far a client was trusted when it last took part, as a share
            of how far a new one is before any evidence; 1 for who is new. None where nothing is
            remembered.
        norm_decay: How much shorter the median update is than the longest median of the rounds
            before, as a logarithm; 0 where it is not.
    """

    updates: Statistics | Presence
    num_examples: NDArray[np.float64]
    evidence: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    measured: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    before: NDArray[np.float64] | None = None
    credit: NDArray[np.float64] | None = None
    trust_ratio: NDArray[np.float64] | None = None
    norm_decay: float = 0.0

    @property
    def num_clients(self) -> int:
        """The number of clients, m."""
        return self.updates.num_clients

    @property
    def statistics(self) -> Statistics:
        """Lengths, angles, how the updates lie to their median.

        Raises:
            FedcrfError: Nothing is known of the updates but whether they are finite.
        """
        if isinstance(self.updates, Presence):
            raise FedcrfError(
                "a part of the field looks at the updates, of which nothing is known but whether "
                "they are finite: gather their statistics with update_statistics"
            )
        return self.updates

    @property
    def cosines(self) -> NDArray[np.float64]:
        """(m, m) cosines of all pairs.

        Raises:
            FedcrfError: The statistics tell of near neighbours alone.
        """
        if isinstance(self.statistics, CrowdStatistics):
            raise FedcrfError(
                "the statistics tell of near neighbours alone, and a part of the field asks for "
                "all pairs: gather them with update_statistics"
            )
        return self.statistics.cosines

    @property
    def finite(self) -> NDArray[np.bool_]:
        """(m,) bool; False where an update is not finite and its client takes no part."""
        return self.updates.finite


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


Message = Callable[[Matrix], Energy]
"""From the (m, L) marginals to the expected energies of every client's labels."""


class PairwisePart(Protocol):
    """What ties clients together.

    It is asked once a round; what it returns is asked in every mean-field iteration.
    """

    def message(self, seen: Observation, labels: Vector) -> Message:
        """Return what the neighbours' marginals say about each client."""
        ...


class TemporalPart(Protocol):
    """How a client's marginals go from round to round."""

    def transition(self, prior: Matrix, before: Matrix) -> Matrix:
        """Return the (m, L) prior of this round.

        Args:
            prior: (m, L) prior of a client of which nothing is remembered.
            before: (m, L) marginals of the round before; NaN rows where there was none.
        """
        ...


@dataclass(frozen=True)
class LinearPart(Settings):
    """Base of parts whose energy is their evidence times the label: ψ(q) = slope·q·e_i.

    The energies of such parts add up in one exponent, so that each part's effect on the expected
    label can be computed.

    Attributes:
        cause: The name of the cause that it looks at.
        evidence: The name, among its causes, of the (m,) evidence e against each client.
        strength: κ, what the energy grows by for each one of evidence at label 1.
    """

    cause: ClassVar[str]
    evidence: ClassVar[str]

    strength: float

    @property
    def slope(self) -> float:
        """The energy that one of evidence is at label 1; 0 or more."""
        return self.strength

    def against(self, evidence: Vector, labels: Vector, causes: Causes) -> Energy:
        """Return the energy of (m,) evidence e, which is a cause too."""
        values = self.slope * (evidence[:, None] * labels)
        return Energy(values, {**causes, self.evidence: evidence})
