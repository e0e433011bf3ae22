"""What a field is made of: a prior, evidence, what ties clients, and the past.

A part is a small frozen value with one method. One of your own needs that method and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Settings
from fedcrf.crf.observation import Observation

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Causes = Mapping[str, NDArray[Any]]
"""By name what a part saw: (m,) for each client, or (m, m) between clients."""


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
