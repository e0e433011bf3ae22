"""What was inferred about a round's clients, and why; the next model that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedcrf.crf.field import Inference
from fedcrf.crf.potentials import Pairs
from fedcrf.crf.weights import refined_weights
from fedcrf.errors import FedcrfError
from fedcrf.statistics import weighted_average
from fedcrf.statistics.inputs import (
    Layers,
    given_layers,
    is_on_gpu,
    is_torch_tensor,
    library_of,
    model_layers,
    num_numbers,
)


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """What was inferred about the m clients of a round, and the causes.

    Arrays are read-only, except those of the memory.

    Attributes:
        weights: (m,) aggregation weights α ∝ βq̄, which sum to 1. They are all 0 where no client
            with a finite update has examples, or the clients are hardly trusted; `next_model` then
            returns the global model.
        base_weights: (m,) base weights β of the clients that are not excluded.
        trust: (m,) expected labels q̄; with reported evidence, times its reliability f.
        marginals: (m, L) mean-field marginals Q.
        unary: (m, L) unary energies ψ_u.
        causes: (m,) numbers that the parts of the field measured, by name; NaN where they measured
            nothing. Evidence is 0 or more. The paper's causes are ``reliability`` ρ in [0, 1], ε
            for an excluded client; ``cosine`` c, the agreement with the reference; ``distance`` d
            from it, in medians; ``norm_anomaly`` h, in median absolute deviations.
        clip: (m,) factors s in [0, 1] of the updates: the next model is w + Σ α_i s_i u_i. NaN for
            an excluded client.
        excluded: (m,) bool; True where the update is not finite, or its squared norm overflows
            float64. The weight is exactly 0.
        overflowed: (m,) bool; True where the update is finite, and its squared norm overflows.
        fell_back: True where Σβq̄ is numerically zero and the weights are the base weights.
        affinity: (m, m) affinities A of the paper's field, zero on the diagonal and for excluded
            clients; a `scipy.sparse.csr_array` where only neighbours have affinities. None for a
            field without affinities.
        memory: Arrays by name, to be given to ``infer`` in the next round; empty where the field
            remembers nothing.
        trusted_share: Σβq̄ as a multiple of the trust in a new client; NaN where all β are 0, or the
            field does not compute it.
        kept_reason: Why all weights are 0 though some β is not: the trusted share is below the
            rule's floor. None otherwise.
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

    @classmethod
    def of(
        cls,
        found: Inference,
        base_weights: NDArray[np.float64],
        finite: NDArray[np.bool_],
        overflowed: NDArray[np.bool_],
    ) -> Self:
        """Return the posterior of a field whose expected labels are the trust; nothing is clipped.

        Clients that are not ``finite``, (m,) bool, are excluded.
        """
        weights, fell_back = refined_weights(base_weights, found.expected_label)
        causes = dict(found.causes)
        affinity = causes.pop("affinity", None)
        return cls(
            weights=weights,
            base_weights=base_weights,
            trust=found.expected_label,
            marginals=found.marginals,
            unary=found.unary,
            causes=causes,
            clip=np.where(finite, 1.0, np.nan),
            excluded=~finite,
            overflowed=overflowed,
            fell_back=fell_back,
            affinity=affinity,
        )

    def __repr__(self) -> str:
        """Show the weights, the trust and who is excluded; name the rest."""
        with np.printoptions(precision=3, suppress=True, threshold=20):
            return (
                f"Posterior(weights={self.weights}, trust={self.trust}, "
                f"excluded={np.flatnonzero(self.excluded)}, causes of: {', '.join(self.causes)})"
            )

    @property
    def coefficients(self) -> NDArray[np.float64]:
        """(m,) coefficients α_i s_i of the updates in the next model; 0 for an excluded client."""
        return np.where(self.excluded, 0.0, self.weights * self.clip)

    @property
    def expected_label(self) -> NDArray[np.float64]:
        """(m,) `trust`, by its earlier name."""
        return self.trust

    @property
    def reliability(self) -> NDArray[np.float64]:
        """(m,) the cause of this name, of the paper's field."""
        return self._cause("reliability")

    @property
    def cosine(self) -> NDArray[np.float64]:
        """(m,) the cause of this name, of the paper's field."""
        return self._cause("cosine")

    @property
    def distance(self) -> NDArray[np.float64]:
        """(m,) the cause of this name, of the paper's field."""
        return self._cause("distance")

    @property
    def norm_anomaly(self) -> NDArray[np.float64]:
        """(m,) the cause of this name, of the paper's field."""
        return self._cause("norm_anomaly")

    def _cause(self, name: str) -> NDArray[np.float64]:
        if name not in self.causes:
            raise FedcrfError(
                f"this posterior has no {name}, which is of the paper's field: its causes are "
                f"{', '.join(self.causes)}"
            )
        return self.causes[name]

    def combine(self, updates: Any) -> Any:
        """Return Σ α_i s_i u_i, the step of the global model.

        An update of weight 0 is never read, so that it may hold NaN. Sums are float64.

        Args:
            updates: The round's updates, in any form that ``infer`` takes.

        Returns:
            The step in the form of one update: an array, or a list of layers; of NumPy, or of torch
            on the same device. Zeros where all weights are 0.

        Raises:
            FedcrfError: As ``infer``, or not one update for each client.
        """
        clients, in_form, counted = given_layers(updates)
        return in_form(self._combined(clients, counted))

    def next_model(self, model: Any, updates: Any) -> Any:
        """Return w + Σ α_i s_i u_i, the next global model; ``model`` itself where all α are 0.

        Args:
            model: w, in the form of one update; NumPy or torch, of any precision.
            updates: As for `combine`.

        Returns:
            The model, in the form and precision of ``model``. Layers of integers are rounded to
            nearest; a model that has no other layers becomes float64.

        Raises:
            FedcrfError: As `combine`, or a model whose layers differ from an update's.
        """
        clients, _, counted = given_layers(updates)
        start, in_form, floating = model_layers(model)
        sizes = [[tuple(layer.shape) for layer in layers] for layers in (start, clients[0])]
        if sizes[0] != sizes[1] or is_on_gpu(start[0]) != is_on_gpu(clients[0][0]):
            alike = sizes[0] == sizes[1]
            unlike = "lies on another device than" if alike else "does not have the layers of"
            raise FedcrfError(
                f"the model {unlike} an update ({num_numbers(start):,} numbers in {len(start)}, "
                f"an update {num_numbers(clients[0]):,} in {len(clients[0])}): give the model that "
                "the updates start from, as one update is given"
            )
        step = self._combined(clients, counted)
        if not self.weights.any():
            return model
        after = in_form([_moved(layer, by) for layer, by in zip(start, step, strict=True)])
        if all(floating):
            return after
        each = zip(after, model, floating, strict=True)
        return [new if kept else _rounded(new, old) for new, old, kept in each]

    def _combined(self, clients: Sequence[Layers], counted: Sequence[bool]) -> Layers:
        """Return the step; layers that do not count are averaged as they are, not clipped."""
        if len(clients) != len(self.weights):
            raise FedcrfError(
                f"{len(clients)} updates for {len(self.weights)} clients: give those that the "
                "posterior was inferred from"
            )
        layers = zip(zip(*clients, strict=True), counted, strict=True)
        return [
            weighted_average(layer, self.coefficients if counts else self.weights)
            for layer, counts in layers
        ]


def _moved(layer: Any, step: Any) -> Any:
    """Return a layer that has moved by a step, in its own precision."""
    if is_on_gpu(layer):
        return (layer + step).to(layer.dtype)
    with np.errstate(over="ignore"):  # infinity shows that a model diverges
        return np.asarray(layer + step).astype(layer.dtype)


def _rounded(moved: Any, given: Any) -> Any:
    """Return a layer that has moved in the integer dtype it had; without a move just as it was."""
    if is_torch_tensor(moved):
        nearest = moved.round().to(given.dtype)
    else:
        nearest = np.asarray(moved.round(), np.asarray(given).dtype)
    return library_of(moved).where(moved == given, given, nearest)
