"""Weights by evidence that clients report, for clients that are unreliable but honest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import NotNegative, Positive, Settings, Text
from fedcrf.crf.field import Field, Inference
from fedcrf.crf.parts import Observation, Prior, Vector
from fedcrf.crf.posterior import Posterior
from fedcrf.crf.potentials import label_prior, median
from fedcrf.crf.weights import base_weights
from fedcrf.errors import FedcrfError, cut
from fedcrf.statistics import as_layers
from fedcrf.statistics.inputs import check_filled, client_numbers, finite_clients
from fedcrf.statistics.one_pass import checked_dimension

Evidence = Mapping[str, Any]
"""One number for each client of a round, by name; NaN where a client reports none."""

REPORTED = "reported"
"""The first word of a cause that is reported evidence; the evidence's name follows."""

LARGEST_REPORTED = 1e300
"""Larger numbers count as this one, since the sum of two would not be finite."""


@dataclass(frozen=True)
class EvidenceCRF(Settings):
    """Less weight for clients that report worse than the others.

    The factor of a client is f_i = exp(−e_i), e_i = min(limit, κ·max(0, z_i − t)), with
    z_i = (x_i − median(x)) / (median|x − median(x)| + s) of the reported x, and weights are
    ∝ n_i·f_i. By default x is the residual loss: the mean loss that a client has on its own
    examples after local training. A client whose data differ has a high loss before it trains and a
    low one after; a client whose data are wrong keeps a high one. Evidence only lowers trust: a
    client that reports less than the others gains nothing, and one that reports nothing finite has
    f_i = 1.

    The softening s protects honest clients where most losses are near 0. The default lies between
    the excess that they keep (mostly below 0.3 nats after ten rounds, 0.9 after five where one
    alone holds a class) and that of three in ten labels drawn at random (1.2 to 1.8).

    It is also the prior of its field, P_i(q) as that of `Reliability` with f_i in the place of ρ_i;
    with the labels {0, 1} the expected label is f_i.

    Attributes:
        evidence: Name of the evidence.
        evidence_threshold: t, in deviations above the median.
        evidence_softening: s, added to the median deviation, in the evidence's unit (of a loss,
            nats).
        evidence_strength: κ, how steeply the weight falls beyond the threshold.
        evidence_limit: The largest evidence; the weight falls to exp(−limit) of the share at most.

    Examples:
        >>> import numpy as np
        >>> updates = np.random.default_rng(0).normal(size=(4, 50))
        >>> losses = {"residual_loss": [0.2, 0.3, 1.7, float("nan")]}
        >>> posterior = EvidenceCRF().infer(updates, [10, 10, 10, 10], evidence=losses)
        >>> posterior.weights.round(3).tolist()
        [0.333, 0.333, 0.001, 0.333]
    """

    evidence: Text = "residual_loss"
    evidence_threshold: NotNegative = 1.0
    evidence_softening: Positive = 0.55
    evidence_strength: Positive = 6.0
    evidence_limit: NotNegative = 6.0

    @cached_property
    def field(self) -> Field:
        """The field of these settings; with labels 0 and 1 its expected label is f_i."""
        return Field((0.0, 1.0), self, iterations=0)

    def prior(self, seen: Observation, labels: Vector) -> Prior:
        """Return the prior, and e by ``reported NAME``; NaN where there is no evidence.

        Raises:
            FedcrfError: There is evidence, but none of that name.
        """
        if seen.evidence and self.evidence not in seen.evidence:
            raise FedcrfError(
                f"there is no evidence named '{self.evidence}', only "
                f"{cut(', '.join(seen.evidence), 50)}: give it, or name another"
            )
        values = seen.evidence.get(self.evidence, np.full(seen.num_clients, np.nan))
        usable = seen.finite & np.isfinite(values)
        against = np.full(seen.num_clients, np.nan)
        against[usable] = excess(values[usable], self.evidence_softening)
        against = self.evidence_strength * (against - self.evidence_threshold)
        against = np.clip(against, 0.0, self.evidence_limit)
        prior = label_prior(reported_reliability(against), labels)
        return Prior(prior, {f"{REPORTED} {self.evidence}": against})

    def infer(
        self, updates: Any, num_examples: Any = None, *, evidence: Evidence | None = None
    ) -> Posterior:
        """Weigh the clients of one round by what they report.

        Args:
            updates: As for `ClientCRF.infer`; it only matters whether they are finite.
            num_examples: (m,) training examples n_i; equal for all where left out.
            evidence: (m,) numbers by name. A number that is not finite leaves the weight as it is,
                and is NaN in the posterior's causes.

        Raises:
            FedcrfError: As `ClientCRF.infer`; evidence of another length or name.
        """
        layers = as_layers(updates)
        checked_dimension(layers)
        counts = np.ones(len(layers)) if num_examples is None else num_examples
        return self.infer_among(finite_clients(layers), counts, evidence=evidence)

    def infer_among(
        self, finite: NDArray[np.bool_], num_examples: Any, *, evidence: Evidence | None = None
    ) -> Posterior:
        """Infer as `infer` does, from whether each update is finite: (m,) bool."""
        base = base_weights(num_examples, finite)
        found = self.infer_reliability(finite, evidence)
        # Lengths are not computed.
        return Posterior.of(found, base, finite, overflowed=np.zeros_like(finite))

    def infer_reliability(self, finite: NDArray[np.bool_], evidence: Evidence | None) -> Inference:
        """Return what is inferred from the evidence alone.

        Raises:
            FedcrfError: Evidence of another length or name.
        """
        reported = checked_evidence(evidence, len(finite))
        return self.field.infer(Observation(finite, np.ones(len(finite)), reported))


def checked_evidence(evidence: Evidence | None, num_clients: int) -> dict[str, NDArray[np.float64]]:
    """Return evidence as (m,) float64 by name.

    Raises:
        FedcrfError: It is not by name, or not one number for each client.
    """
    if evidence is None:
        return {}
    if not isinstance(evidence, Mapping):
        raise FedcrfError(
            f"the evidence is a {type(evidence).__name__}: give it by name, such as "
            '{"residual_loss": [...]}'
        )
    checked = {}
    for name, values in evidence.items():
        what = f"evidence {cut(repr(name), 50)} is"
        check_filled(values, what, "fill it, with .filled(math.nan)")
        checked[str(name)] = client_numbers(
            values, num_clients, what, "give one number for each client, NaN where there is none"
        )
    return checked


def excess(values: Vector, softening: float) -> Vector:
    """Return z_i = (x_i − median(x)) / (median|x − median(x)| + softening) of finite values."""
    values = np.clip(values, -LARGEST_REPORTED, LARGEST_REPORTED)
    deviations = values - median(values)
    with np.errstate(over="ignore"):  # infinitely far is as good as very far
        return np.asarray(deviations / (median(np.abs(deviations)) + softening))


def reported_reliability(evidence: Vector) -> Vector:
    """Return f_i = exp(−e_i) of reported evidence e; 1 where e is NaN."""
    return np.where(np.isnan(evidence), 1.0, np.exp(-evidence))
