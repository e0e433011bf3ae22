"""FLTrust: each update counts as far as it points along the server's own."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.checks import Count
from fedcrf.errors import FedcrfError
from fedcrf.rules.base import AggregationResult, Deciding, Round, Rule, misfit_of
from fedcrf.rules.state import State, layers_alike
from fedcrf.statistics import projections


@dataclass(frozen=True)
class FLTrust(Deciding):
    """Σ TS_i (‖u_0‖/‖u_i‖) u_i / Σ TS_j with TS_i = max(0, cos(u_i, u_0)) (Cao et al., NDSS 2021).

    u_0 is the server's own update, trained like a client's on a few clean examples. No other rule
    has such data, so no comparison with it is among equals. A simulation draws the examples
    uniformly from all clients' training parts, as the paper does, before any attack on the data;
    clients keep theirs. Elsewhere the server's model is given round by round
    (`Rule.with_server_model`).

    If no update points along the server's, the model stays, as in the paper's equation, where the
    sum is 0. A simulation's server trains with the clients' settings, as the paper's does.

    Attributes:
        server_examples: How many examples the server holds; 1 or more. The paper has 100.
    """

    server_examples: Count = 100
    server: ClassVar[State | None] = None  # in one round, the model that the server trained

    def with_server_model(self, state: State) -> Rule:
        """Return the rule for a round in which this is the server's model."""
        rule = copy.copy(self)
        object.__setattr__(rule, "server", state)
        return rule

    def decide(self, given: Round) -> AggregationResult:
        """Return the model moved by the trusted updates.

        Raises:
            FedcrfError: Also without a server's model, or with one of another form.
        """
        if self.server is None:
            raise FedcrfError(
                "FLTrust has no server data: give the model that the server trained on its own "
                "examples this round (with_server_model), or choose another rule"
            )
        misfit = misfit_of(self.server, given.model)
        if misfit is not None:
            raise FedcrfError(f"the server reports {misfit}")
        states = [given.model, self.server, *given.states]
        origin, server, *models = layers_alike(given.model, states)
        with np.errstate(over="ignore", invalid="ignore"):
            own = [a.astype(np.float64) - b for a, b in zip(server, origin, strict=True)]
            length = np.sqrt(sum(float(np.vdot(layer, layer)) for layer in own))
        squares, along = projections(models, origin, own)
        finite = np.isfinite(squares)
        given.restrict_to(finite)
        norms = np.sqrt(np.where(finite, squares, 0.0))
        aligned = finite & (norms > 0) & (along > 0) & bool(0 < length < np.inf)
        scores = np.zeros(len(squares))
        scores[aligned] = along[aligned] / norms[aligned] / length
        weights = scores / scores.sum() if scores.any() else scores
        coefficients = np.zeros(len(squares))
        coefficients[aligned] = weights[aligned] * length / norms[aligned]
        reason = "no client's update points along the server's"
        if not np.isfinite(length):
            reason = "the server's own update is not finite"
        return given.weighted(weights, coefficients, reason=reason)
