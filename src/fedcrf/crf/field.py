"""A conditional random field composed of parts, and its inference by mean field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedcrf.checks import (
    MOST_TIMES,
    NaturalTimes,
    Settings,
    Share,
    check_whole,
    checked_number,
    checked_share,
)
from fedcrf.crf.parts import (
    Causes,
    Energy,
    EvidencePart,
    LinearPart,
    Matrix,
    Message,
    Observation,
    PairwisePart,
    PriorPart,
    Vector,
)
from fedcrf.crf.potentials import unary_energy
from fedcrf.errors import FedcrfError


@dataclass(frozen=True, eq=False)
class Inference:
    """What a field infers about the m clients of a round.

    Attributes:
        marginals: (m, L) mean-field marginals Q.
        expected_label: (m,) expected labels q̄.
        unary: (m, L) unary energies, of the prior and the evidence.
        causes: What the parts measured, at the last marginals.
    """

    marginals: Matrix
    expected_label: Vector
    unary: Matrix
    causes: Causes


@dataclass(frozen=True)
class Field(Settings):
    """A field over the clients of a round: a prior, evidence, pairwise potentials, and the past.

    p(z) ∝ Π_i P_i(z_i) · exp(−Σ energies). The paper's field is
    ``Field((0, 0.25, 1), Reliability(), pairwise=(Attraction(),))``.

    Attributes:
        labels: 𝒬: at least two, distinct, finite, not negative.
        prior: The labels' probabilities P_i.
        evidence: Energies of one client.
        pairwise: Energies between clients.
        persistence: s in [0, 1), the probability that a client's label stays as it was when it last
            took part; see `transition`. With 0 earlier rounds are forgotten.
        iterations: R ≥ 0, parallel mean-field iterations.
        damping: Share of the marginals that an iteration keeps, in [0, 1).

    Examples:
        A part of your own needs one method.

        >>> import numpy as np
        >>> from dataclasses import dataclass
        >>> from fedcrf.crf import Energy, Field, LogOddsPrior, Observation
        >>> from fedcrf.statistics import as_layers, update_statistics
        >>> @dataclass(frozen=True)
        ... class FewExamples:
        ...     least: float = 50.0
        ...
        ...     def energy(self, seen, labels):
        ...         few = (seen.num_examples < self.least).astype(float)
        ...         return Energy(np.outer(few, labels), {"few": few})
        >>> field = Field((0.0, 1.0), LogOddsPrior(0.0), evidence=(FewExamples(),))
        >>> statistics = update_statistics(as_layers(np.eye(2)))
        >>> field.infer(Observation(statistics, np.array([10, 90]))).expected_label.round(2)
        array([0.27, 0.5 ])
    """

    labels: tuple[float, ...]
    prior: PriorPart
    evidence: tuple[EvidencePart, ...] = ()
    pairwise: tuple[PairwisePart, ...] = ()
    persistence: Share = 0.0
    iterations: NaturalTimes = 5
    damping: Share = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        labels: Any = self.labels
        if not np.iterable(labels) or isinstance(labels, str | bytes):
            raise FedcrfError(f"labels {labels!r}: give at least two different numbers")
        numbers = tuple(checked_number("labels", label) for label in labels)
        if len(numbers) < 2 or len(set(numbers)) < len(numbers) or min(numbers) < 0:
            raise FedcrfError(
                f"labels {numbers}: give at least two different numbers, none negative"
            )
        object.__setattr__(self, "labels", numbers)

    @property
    def linear_parts(self) -> tuple[LinearPart, ...]:
        """The parts whose energies are their evidence times the label."""
        parts = (*self.evidence, *self.pairwise)
        return tuple(part for part in parts if isinstance(part, LinearPart))

    def infer(self, seen: Observation) -> Inference:
        """Infer the marginals of a round's clients by mean field.

        Raises:
            FedcrfError: A part needs what ``seen`` lacks, such as the cosines of all pairs.
        """
        labels = np.array(self.labels)
        prior = self.prior.prior(seen, labels)
        initial = prior.probabilities
        if seen.before is not None:
            window = _by_rows(seen.window)
            initial = transition(initial, seen.before, self.persistence, window)
        unary = unary_energy(initial)
        causes = dict(prior.causes)
        seen = replace(seen, initial=initial, measured={**seen.measured, **causes})
        for part in self.evidence:
            energy = _of_a_round(part.energy(seen, labels), part, seen.window)
            unary = unary + energy.values
            causes.update(energy.causes)
        messages = [_message(part, seen, labels) for part in self.pairwise]
        marginals = mean_field(
            initial, unary, messages, iterations=self.iterations, damping=self.damping
        )
        for message in messages:
            causes.update(message(marginals).causes)
        return Inference(marginals, marginals @ labels, unary, causes)


def _message(part: PairwisePart, seen: Observation, labels: Vector) -> Message:
    message = part.message(seen, labels)
    return lambda marginals: _of_a_round(message(marginals), part, seen.window)


def _by_rows(window: Vector | float) -> Matrix | float:
    """Return windows as they stand beside the (m, L) energies."""
    return window[:, None] if isinstance(window, np.ndarray) else window


def _of_a_round(energy: Energy, part: object, window: Vector | float) -> Energy:
    """Return an energy and its evidence, divided by the window's length k."""
    if not isinstance(window, np.ndarray) and window == 1.0:
        return energy
    causes = dict(energy.causes)
    if isinstance(part, LinearPart) and part.evidence in causes:
        causes[part.evidence] = causes[part.evidence] / window
    return Energy(energy.values / _by_rows(window), causes)


def transition(prior: Matrix, before: Matrix, persistence: float, window: Matrix | float) -> Matrix:
    """Return P_t = s·Q_{t−1} + (1 − s)·P₀: a label stays, or is drawn from the prior.

    It is linear, so that expected labels can be given in the place of marginals.

    Args:
        prior: P₀, the (m, L) prior of a new client, or what broadcasts to it.
        before: (m, L) marginals Q_{t−1} of the round in which a client last took part; NaN rows
            for new clients, whose P_t is P₀.
        persistence: The probability that a label stays over a window.
        window: k, the rounds of a window, or what broadcasts to the marginals; in each a label
            stays with s = persistence^{1/k}.

    Returns:
        (m, L) probabilities of the labels before a round's evidence.
    """
    stay = persistence ** (1.0 / window)
    return np.where(np.isnan(before), prior, stay * before + (1.0 - stay) * prior)


def mean_field(
    initial: Matrix,
    unary: Matrix,
    messages: Sequence[Message],
    *,
    iterations: int,
    damping: float = 0.0,
) -> Matrix:
    """Iterate R times Q_i(q) ← δ·Q_i(q) + (1 − δ)·Q'_i(q), for all clients in parallel.

    Q'_i(q) ∝ exp(−ψ_u(q) − M_i(q)). M_i(q) is the energy of the pairwise parts, expected under Q;
    the paper's is λ Σ_j A_ij Σ_q' Q_j(q')(q − q')².

    Args:
        initial: (m, L) marginals to start from, Q⁰.
        unary: (m, L) energies ψ_u.
        messages: For each pairwise part, from the marginals to its expected energies.
        iterations: R ≥ 0; with 0 the initial marginals are returned.
        damping: δ in [0, 1); 0 is the paper's.

    Returns:
        (m, L) marginals; rows sum to 1.

    Raises:
        FedcrfError: Iterations or a damping outside their ranges.
    """
    check_whole("iterations", iterations, least=0, most=MOST_TIMES)
    checked_share("damping", damping)
    marginals, updated, last_energy = initial, initial, b""
    for _ in range(iterations):
        energy = unary
        for message in messages:
            energy = energy + message(marginals).values
        # Energies stay where no marginal changes any evidence; then so does the update. Arrays are
        # small, so that each call counts.
        if (this_energy := energy.tobytes()) != last_energy:
            last_energy = this_energy
            updated = np.minimum.reduce(energy, axis=1, keepdims=True) - energy
            np.exp(updated, out=updated)
            updated /= np.add.reduce(updated, axis=1, keepdims=True)
            updated *= 1.0 - damping
        marginals = updated if damping == 0.0 else updated + damping * marginals
    return marginals
