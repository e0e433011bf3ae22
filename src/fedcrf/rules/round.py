"""What the rules of this package share: statistics of the reports, and results of weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedcrf.crf import base_weights
from fedcrf.errors import FedcrfError
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    Memory,
    Rule,
    check_reports,
    num_examples,
    weighted_result,
)
from fedcrf.rules.state import State, floating_layers, layers_alike
from fedcrf.statistics import ModelGeometry, UpdateGeometry, centred_geometry, model_geometry
from fedcrf.statistics.inputs import Layers, finite_clients
from fedcrf.statistics.one_pass import scatter, update_norms


class Round:
    """A round as a rule sees it: what is computed of it, when it is first asked for.

    Args:
        memory: As for `Rule.aggregate`, and so are the others.
        model: The model w_t.
        reports: The m reports.

    Raises:
        FedcrfError: No reports, or one that does not fit the global model.
    """

    def __init__(self, memory: Memory, model: State, reports: Sequence[ClientReport]) -> None:
        check_reports(model, reports)
        self.memory, self.model, self.reports = memory, model, reports

    @cached_property
    def layers(self) -> tuple[list[Layers], Layers]:
        """The layers of the clients' models and those of the global one."""
        states = [report.state for report in self.reports]
        origin, *models = layers_alike(self.model, [self.model, *states])
        return models, origin

    @cached_property
    def finite(self) -> NDArray[np.bool_]:
        """(m,) who may have weight; `geometry`, `products` and `norms` find it out themselves."""
        states = [report.state for report in self.reports]
        return finite_clients([floating_layers(state, self.model) for state in states])

    @cached_property
    def geometry(self) -> UpdateGeometry:
        """Lengths and angles of the updates about their mean, which is all that distances need."""
        geometry = centred_geometry(*self.layers)
        self.finite = geometry.finite
        return geometry

    @cached_property
    def products(self) -> ModelGeometry:
        """The inner products of the updates and of the global model."""
        products = model_geometry(*self.layers)
        self.finite = products.finite
        return products

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """(m,) the updates' lengths; NaN of those that are not finite."""
        self.finite, norms = update_norms(*self.layers)
        return norms

    @property
    def used(self) -> NDArray[np.intp]:
        """(n,) the places of the finite reports."""
        return np.flatnonzero(self.finite)

    @property
    def clients(self) -> list[int]:
        """The identities of the n finite clients."""
        return [report.client for report in self.finite_reports]

    @property
    def finite_reports(self) -> list[ClientReport]:
        """The n finite reports."""
        return [self.reports[i] for i in self.used.tolist()]

    @property
    def finite_layers(self) -> list[Layers]:
        """The layers of the n finite models."""
        return [self.layers[0][i] for i in self.used.tolist()]

    @property
    def shares(self) -> NDArray[np.float64]:
        """(m,) FedAvg's weights."""
        return base_weights(num_examples(self.reports), self.finite)

    def among_used(self, gram: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the (n, n) part of an (m, m) matrix that is of the finite clients."""
        return gram[np.ix_(self.used, self.used)]

    def spread(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (m,) what the n finite clients have; 0 for the others."""
        return scatter(values, self.finite, 0.0)

    def equal_weights(self, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return (m,) equal weights of those chosen, (n,), of the finite clients."""
        return self.spread(chosen / max(1, chosen.sum()))

    def recalled(self, name: str, shape: tuple[int, ...] = ()) -> NDArray[np.float64]:
        """Return (n, *shape) what the memory keeps of the finite clients; NaN of one that is new.

        Raises:
            FedcrfError: The memory is of another rule or model.
        """
        clients, memory = self.clients, self.memory
        rows = np.full((len(clients), *shape), np.nan)
        if not memory:
            return rows
        known, kept = memory.get(CLIENTS), memory.get(name)
        if known is None or kept is None or np.shape(kept) != (len(known), *shape):
            raise FedcrfError(
                f"the memory holds no '{name}' of clients of this model: give that of the round "
                "before, or none to begin anew"
            )
        places = {int(client): place for place, client in enumerate(known)}
        for place, client in enumerate(clients):
            if client in places:
                rows[place] = kept[places[client]]
        return rows

    def remembered(self, **renewed: NDArray[np.float64]) -> Memory:
        """Return the memory with new rows, (n, …) by name, of the finite clients."""
        old = self.memory.get(CLIENTS, np.zeros(0, np.int64))
        names = np.union1d(old, np.asarray(self.clients, np.int64))
        kept: dict[str, NDArray[Any]] = {CLIENTS: names}
        for name, rows in renewed.items():
            whole = np.zeros((len(names), *rows.shape[1:]), rows.dtype)
            if len(old):
                whole[np.searchsorted(names, old)] = self.memory[name]
            whole[np.searchsorted(names, self.clients)] = rows
            kept[name] = whole
        return kept

    def weighted(
        self,
        weights: NDArray[np.float64],
        coefficients: NDArray[np.float64] | None = None,
        memory: Memory | None = None,
        reason: str | None = None,
    ) -> AggregationResult:
        """Return the result of weights; see `weighted_result`."""
        return weighted_result(
            self.model, self.reports, weights, self.finite, coefficients, memory, reason
        )

    def nobody(self, memory: Memory | None = None) -> AggregationResult:
        """Return the result where no report is finite: the model stays."""
        return self.weighted(np.zeros(len(self.reports)), memory=memory)

    def without_weights(self, state: State, memory: Memory | None = None) -> AggregationResult:
        """Return the result of a rule for which a report has no single weight."""
        return AggregationResult(
            state=state,
            weights=np.where(self.finite, np.nan, 0.0),
            base_weights=self.shares,
            excluded=~self.finite,
            memory=memory or {},
        )


CLIENTS = "clients"
"""Name in the memory of the array of identities; others have a row for each."""


class Deciding(Rule):
    """A rule that decides on a `Round`."""

    def aggregate(
        self, memory: Memory, model: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the next global model, with weights and reasons; see `Rule.aggregate`."""
        return self.decide(Round(memory, model, reports))

    @abstractmethod
    def decide(self, given: Round) -> AggregationResult:
        """Return the next global model, with weights and reasons."""


ROUNDS = "rounds"
"""Name in the memory of the number of rounds that a rule drew for."""


class Drawing(Deciding):
    """A rule that draws anew in every round, with a setting ``seed`` that a run gives it."""

    remembers: ClassVar[bool] = True

    seed: int | None

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Return the rule informed of the run's seed; see `Rule.informed`."""
        if self.seed is not None:
            return self
        known = {"seed": seed}
        return replace(self, **known)

    def generator(self, memory: Memory) -> tuple[np.random.Generator, Memory]:
        """Return this round's generator, and the memory for the next round."""
        rounds = int(memory.get(ROUNDS, 0))
        draws = np.random.default_rng(np.random.SeedSequence([self.seed or 0, rounds]))
        return draws, {ROUNDS: np.array(rounds + 1)}
