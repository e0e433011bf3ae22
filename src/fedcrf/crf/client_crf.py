"""The client CRF of the paper: from a round's updates to each client's weight, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedcrf.checks import Count, Natural, NaturalTimes, NotNegative, Settings, Truth
from fedcrf.crf.field import Field
from fedcrf.crf.parts import Observation
from fedcrf.crf.posterior import Posterior
from fedcrf.crf.potentials import Attraction, Bandwidth, Reliability
from fedcrf.crf.weights import base_weights
from fedcrf.errors import FedcrfError
from fedcrf.statistics import (
    NeighbourSearch,
    Statistics,
    UpdateStatistics,
    as_layers,
    crowd_statistics,
    update_statistics,
    with_nearest,
)
from fedcrf.statistics.inputs import Layers, Origin


@dataclass(frozen=True)
class ClientCRF(Settings):
    """A CRF over the clients of a round, fully connected; its posterior gives their weights.

    With ``neighbours``, the graph is that of the nearest neighbours: two clients have an affinity
    if either update is among the k at the smallest angle to the other. The sum of a client's
    affinities then does not grow with m. With few neighbours, clients follow their own evidence
    more.

    Attributes:
        labels: Reliability labels 𝒬; a larger label means more weight. At least two, distinct,
            finite, not negative.
        pairwise_strength: λ ≥ 0, how strongly similar clients are drawn to the same label.
        bandwidth: θ, 1e-6 or more, how fast affinity falls with the angle between two updates.
        iterations: R ≥ 0, parallel mean-field updates.
        reliability_gate: Whether affinities carry the factor min(ρ_i, ρ_j).
        weight_by_examples: Whether the base weights β are the shares of examples (FedAvg's), or
            1/m.
        neighbours: k < m, the nearest neighbours of a client; all others where left out. A round
            of fewer clients than planned has all pairs.
        sketch_size: Numbers in the sketches that estimate the angles; exact angles where left out.
            See `fedcrf.statistics.NeighbourSearch`.
        sketch_seed: Seed of the sketches' signs, which must stay secret. Where left out, servers
            in Flower and NVFlare draw a secret one; elsewhere it is 0, so that runs repeat.

    References:
        Fenoglio, Kirilenko, Gjoreski, Langheinrich, "Federated Learning with Energy-Based
        Structured Probabilistic Inference", Method section and algorithm 1.

    Examples:
        >>> import numpy as np
        >>> updates = np.array([[1.0, 0.9], [0.9, 1.0], [1.0, 1.0], [-1.0, -1.0]])
        >>> posterior = ClientCRF().infer(updates, num_examples=[10, 10, 10, 10])
        >>> posterior.weights.round(2).tolist()
        [0.3, 0.3, 0.3, 0.09]
        >>> posterior.next_model(np.zeros(2), updates).round(2).tolist()
        [0.78, 0.78]
    """

    labels: tuple[float, ...] = (0.0, 0.25, 1.0)
    pairwise_strength: NotNegative = 0.5
    bandwidth: Bandwidth = 0.5
    iterations: NaturalTimes = 5
    reliability_gate: Truth = True
    weight_by_examples: Truth = True
    neighbours: Count | None = None
    sketch_size: Count | None = None
    sketch_seed: Natural | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pairwise_strength", "bandwidth"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "labels", self.field.labels)
        if self.neighbours is None and self.sketch_size is not None:
            raise FedcrfError(
                f"sketch_size {self.sketch_size} is for the search of neighbours: "
                "give neighbours too, or leave it out"
            )
        # A seed of 0 stands in run files of exact neighbours.
        if self.sketch_size is None and self.sketch_seed:
            raise FedcrfError(
                f"sketch_seed {self.sketch_seed} is of sketches: give sketch_size too, or leave "
                "it out"
            )

    @cached_property
    def field(self) -> Field:
        """The field of these settings."""
        return Field(
            self.labels,
            Reliability(),
            pairwise=(Attraction(self.pairwise_strength, self.bandwidth, self.reliability_gate),),
            iterations=self.iterations,
        )

    def infer(self, updates: Any, num_examples: Any = None) -> Posterior:
        """Infer every client's reliability and weight from the updates of one round.

        Args:
            updates: u_i = w_i − w: an (m, d) array or tensor, or a sequence of m vectors, or of m
                lists of layers. NumPy or torch, float16 to float64 and bfloat16; one length and
                dtype for all. Not changed.
            num_examples: (m,) training examples n_i of each client, not negative, not all zero;
                equal for all where left out.

        Returns:
            The posterior. A client whose update is not finite is excluded, and affects no other.

        Raises:
            FedcrfError: Updates that are empty, or differ in length or dtype; counts that are
                negative, not finite, all zero or not m in number; neighbours that are not fewer
                than the clients.
        """
        layers = as_layers(updates)
        self.check_clients(len(layers))
        counts = np.ones(len(layers)) if num_examples is None else num_examples
        return self.infer_from_statistics(self.statistics(layers), counts)

    def check_clients(self, num_clients: int) -> None:
        """Raise a `FedcrfError` where a round of so many clients has too few for the neighbours."""
        if self.neighbours is not None and self.neighbours >= num_clients:
            raise FedcrfError(
                f"neighbours {self.neighbours}: of {num_clients} clients each has "
                f"{num_clients - 1} others; give so many at most, or leave it out for all"
            )

    def statistics(
        self, clients: Sequence[Layers], origin: Origin = None, threads: int | None = None
    ) -> Statistics:
        """Gather the statistics of updates, or of models and the model that they start from.

        Arguments and errors are those of `fedcrf.statistics.update_statistics`.
        """
        if self.neighbours is None:
            return update_statistics(clients, origin, threads)
        search = NeighbourSearch(self.neighbours, self.sketch_size, self.sketch_seed or 0)
        return crowd_statistics(clients, search, origin, threads)

    def infer_from_statistics(self, statistics: Statistics, num_examples: Any) -> Posterior:
        """Infer as `infer` does, from the m-sized statistics of the updates.

        Args:
            statistics: Of `ClientCRF.statistics`. With ``neighbours``, those of all pairs are
                reduced to the exact nearest neighbours.
            num_examples: (m,) training examples n_i of each client.

        Raises:
            FedcrfError: Counts that are negative, not finite, all zero or not m in number.
        """
        if self.neighbours is not None and isinstance(statistics, UpdateStatistics):
            statistics = with_nearest(statistics, self.neighbours)
        finite = statistics.finite
        base = base_weights(num_examples, finite, by_examples=self.weight_by_examples)
        found = self.field.infer(Observation(statistics, base))
        return Posterior.of(found, base, finite, statistics.overflowed)
