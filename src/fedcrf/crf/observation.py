"""What the parts of a field may look at: everything m-sized that is known of a round's clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.statistics import CrowdStatistics, Statistics


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
