"""What was inferred about a round's clients, and why; and what it makes of their updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.crf.potentials import Pairs
from fedcrf.errors import FedcrfError
from fedcrf.statistics import weighted_average
from fedcrf.statistics.inputs import Layers, given_layers, is_on_gpu


@dataclass(frozen=True, eq=False)
class Posterior:
    """What was inferred about the m clients of a round, and the causes.

    Arrays are read-only, but for those of the memory, which are for the caller to keep.

    Attributes:
        weights: (m,) aggregation weights α ∝ βq̄. They sum to 1; where no client with a finite
            update has examples, or the clients are hardly trusted, they are all 0, and `next_model`
            keeps the global model.
        base_weights: (m,) the weights β that the field refined, over the clients not excluded.
        trust: (m,) expected labels q̄, times the reliability that reported evidence leaves, where
            there is some.
        marginals: (m, L) mean-field marginals Q.
        unary: (m, L) unary energies ψ_u.
        causes: By name (m,) numbers that each part of the field saw; NaN where it saw nothing.
            Evidence against a client is 0 where nothing speaks against it. The paper's are
            ``reliability`` ρ in [0, 1], ε for an excluded client; ``cosine`` c, the agreement with
            the median update; ``distance`` d from it, in medians; ``norm_anomaly`` h, in median
            absolute deviations.
        clip: (m,) factors s in [0, 1] of the updates: the next model is w + Σ α_i s_i u_i. NaN for
            an excluded client.
        excluded: (m,) bool; True where the update is not finite, or its squared length overflows,
            which gives weight exactly 0.
        overflowed: (m,) bool; True where it is finite, and its squared length overflows float64.
        fell_back: True where Σβq̄ is numerically zero and the weights are the base weights.
        affinity: (m, m) affinities A of the paper's field, zero on the diagonal and for excluded
            clients; a `scipy.sparse.csr_array` of the pairs that there are where neighbours were
            asked for. None for a field without affinities.
        memory: What to hand over in the next round, as plain arrays by name; empty where the
            field remembers nothing.
        trusted_share: Σβq̄ as a multiple of the trust in a new client; NaN where no client counts,
            or the field does not compute it.
        kept_reason: Why all weights are 0 though clients count: that multiple is below the rule's
            floor. None otherwise.
    """

    weights: NDArray[np.float64]
    base_weights: NDArray[np.float64]
    trust: NDArray[np.float64]
    marginals: NDArray[np.float64]
    unary: NDArray[np.float64]
    causes: Mapping[str, NDArray[np.float64]]
    clip: NDArray[np.float64]
    excluded: NDArray[np.bool_]
    overflowed: NDArray[np.bool_]
    fell_back: bool
    affinity: Pairs | None = None
    memory: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    trusted_share: float = math.nan
    kept_reason: str | None = None

    def __post_init__(self) -> None:
        values = list(vars(self).values())
        if self.affinity is not None and not isinstance(self.affinity, np.ndarray):
            values += [self.affinity.data, self.affinity.indices, self.affinity.indptr]
        for value in [*values, *self.causes.values()]:
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def coefficients(self) -> NDArray[np.float64]:
        """(m,) α_i s_i, what each update counts in the next model; 0 for an excluded client."""
        return np.where(self.excluded, 0.0, self.weights * self.clip)

    @property
    def expected_label(self) -> NDArray[np.float64]:
        """(m,) the same as `trust`, by the paper's name."""
        return self.trust

    @property
    def reliability(self) -> NDArray[np.float64]:
        """(m,) the cause of this name, of the paper's field."""
        return self.causes["reliability"]

    @property
    def cosine(self) -> NDArray[np.float64]:
        """(m,) the cause of this name, of the paper's field."""
        return self.causes["cosine"]

    @property
    def distance(self) -> NDArray[np.float64]:
        """(m,) the cause of this name, of the paper's field."""
        return self.causes["distance"]

    @property
    def norm_anomaly(self) -> NDArray[np.float64]:
        """(m,) the cause of this name, of the paper's field."""
        return self.causes["norm_anomaly"]

    def combine(self, updates: Any) -> Any:
        """Return Σ α_i s_i u_i, by which the global model is to move.

        An update of weight 0 is never read, so that it may hold NaN. Sums are float64.

        Args:
            updates: Those of the round, in any form that ``infer`` takes.

        Returns:
            What one update is: an array, or a list of layers; of NumPy, or of torch on the same
            device. Zeros where all weights are 0.

        Raises:
            FedcrfError: As ``infer``, or not one update for each client.
        """
        clients, in_form = given_layers(updates)
        return in_form(self._combined(clients))

    def next_model(self, model: Any, updates: Any) -> Any:
        """Return w + Σ α_i s_i u_i, the next global model; ``model`` itself where it is to stay.

        Args:
            model: w, as one update is given; NumPy or torch, of any precision.
            updates: As for `combine`.

        Returns:
            The model, in the form and precision in which ``model`` is given.

        Raises:
            FedcrfError: As `combine`, or a model that is not of the updates' layers.
        """
        clients, _ = given_layers(updates)
        (start,), in_form = given_layers([model])
        sizes = [[tuple(layer.shape) for layer in layers] for layers in (start, clients[0])]
        if sizes[0] != sizes[1] or is_on_gpu(start[0]) != is_on_gpu(clients[0][0]):
            raise FedcrfError(
                "the model does not have the layers of an update, or lies on another device: give "
                "the model that the updates start from, as one update is given"
            )
        step = self._combined(clients)
        if not self.weights.any():
            return model
        return in_form([_moved(layer, by) for layer, by in zip(start, step, strict=True)])

    def _combined(self, clients: Sequence[Layers]) -> Layers:
        if len(clients) != len(self.weights):
            raise FedcrfError(
                f"{len(clients)} updates for {len(self.weights)} clients: give those that the "
                "posterior was inferred from"
            )
        return [weighted_average(layer, self.coefficients) for layer in zip(*clients, strict=True)]


def _moved(layer: Any, step: Any) -> Any:
    """Return a layer that has moved by a step, in its own precision."""
    if is_on_gpu(layer):
        return (layer + step).to(layer.dtype)
    with np.errstate(over="ignore"):  # a model that diverges says so itself
        return np.asarray(layer + step).astype(layer.dtype)
