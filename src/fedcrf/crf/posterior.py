"""What a field of parts inferred about a round's clients, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class FieldPosterior:
    """What was inferred about the m clients of a round, and the causes.

    Arrays are read-only, but for those of the memory, which are for the caller to keep.

    Attributes:
        weights: (m,) aggregation weights α ∝ βq̄. They sum to 1; where no client with a finite
            update has examples they are all 0, and the global model should stay as it is.
        clip: (m,) factors s in [0, 1] of the updates: the next model is w + Σ α_i s_i u_i. NaN for
            an excluded client.
        base_weights: (m,) the weights β that the field refined, over the clients not excluded.
        expected_label: (m,) expected labels q̄, times the reliability that reported evidence
            leaves, where there is some.
        marginals: (m, L) mean-field marginals Q.
        excluded: (m,) bool; True where the update is not finite, which gives weight exactly 0.
        fell_back: True where Σβq̄ is numerically zero and the weights are the base weights.
        causes: By name (m,) numbers that each part of the field saw; NaN where it saw nothing. Of
            an excluded client it is told what is remembered, and nothing else. Evidence against a
            client is 0 where nothing speaks against it.
        memory: What to hand over in the next round, as plain arrays by name; empty where the
            field remembers nothing.
    """

    weights: NDArray[np.float64]
    clip: NDArray[np.float64]
    base_weights: NDArray[np.float64]
    expected_label: NDArray[np.float64]
    marginals: NDArray[np.float64]
    excluded: NDArray[np.bool_]
    fell_back: bool
    causes: Mapping[str, NDArray[np.float64]]
    memory: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = [getattr(self, each.name) for each in fields(self)]
        for value in [*values, *self.causes.values()]:
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def coefficients(self) -> NDArray[np.float64]:
        """(m,) α_i s_i, what each update counts in the next model; 0 for an excluded client."""
        return np.where(self.excluded, 0.0, self.weights * self.clip)
