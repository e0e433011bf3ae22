"""What the server remembers of its clients from round to round, by their identity."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.statistics import as_numpy
from fedcrf.statistics.inputs import NO_ARRAY

Arrays = Mapping[str, NDArray[Any]]
"""A memory as plain arrays by name, which any checkpoint can hold."""


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """Of each of k clients its belief, a sketch of its last update and where the model was then.

    All is of sketch or label size: 16 KiB a client for sketches of 4096 numbers.

    Attributes:
        layout: (4,) int64; numbers in the model d, sketch size, sketch seed, and 1 where the model
            is given every round, by which a memory of something else is known.
        labels: (L,) float64, what the beliefs are over; by which too.
        clients: (k,) int64 identities.
        beliefs: (k, L) float64 marginals of the round a client last took part in.
        sketches: (k, s) float32 sketches of its update then.
        rounds: (k,) int64; the row of ``positions`` that is of that round.
        positions: (T, s) float64 sketches of the global model in the rounds still spoken of.
        expected: (s,) float64 sketch of the next global model, as far as the server alone moves it.
        longest: (1,) float64, the largest that a round's median norm has been; 0 before the first.
    """

    layout: NDArray[np.int64]
    labels: NDArray[np.float64]
    clients: NDArray[np.int64]
    beliefs: NDArray[np.float64]
    sketches: NDArray[np.float32]
    rounds: NDArray[np.int64]
    positions: NDArray[np.float64]
    expected: NDArray[np.float64]
    longest: NDArray[np.float64]

    @classmethod
    def empty(
        cls, dimension: int, labels: Sequence[float], size: int, seed: int, model_given: bool
    ) -> ClientMemory:
        """Return the memory of nobody."""
        return cls(
            layout=np.array([dimension, size, seed, model_given], dtype=np.int64),
            labels=np.array(labels, dtype=np.float64),
            clients=np.zeros(0, dtype=np.int64),
            beliefs=np.zeros((0, len(labels))),
            sketches=np.zeros((0, size), dtype=np.float32),
            rounds=np.zeros(0, dtype=np.int64),
            positions=np.zeros((0, size)),
            expected=np.zeros(size),
            longest=np.zeros(1),
        )

    @classmethod
    def of(cls, memory: Arrays | None, like: ClientMemory) -> ClientMemory:
        """Return a memory handed over as arrays; ``like`` itself where it is empty.

        Raises:
            FedcrfError: It is not the memory of such a rule, or of another federation.
        """
        if memory is not None and not isinstance(memory, Mapping):
            raise FedcrfError(
                f"the memory is a {type(memory).__name__}: give the memory that the round before "
                "handed back, posterior.memory, or none to begin anew"
            )
        if not memory:
            return like
        names = [field.name for field in fields(cls)]
        if set(memory) != set(names):
            odd = sorted(map(str, set(memory) ^ set(names)))[0]
            raise FedcrfError(
                f"the memory is of another rule ('{odd}' is in one of them only): "
                "give the one this rule handed back, or none to begin anew"
            )
        damaged = FedcrfError(
            "the memory is damaged: its arrays do not belong together; "
            "give the one this rule handed back, or none to begin anew"
        )
        try:
            given = cls(**{name: as_numpy(memory[name]) for name in names})
        except NO_ARRAY:
            raise damaged from None
        if given.layout.shape != like.layout.shape:
            raise damaged
        parts = ("model size", "sketch size", "sketch seed", "model given", "labels")
        settings = ([*each.layout.tolist(), each.labels.tolist()] for each in (given, like))
        other = "; ".join(
            f"{name} {kept}, here {here}"
            for name, kept, here in zip(parts, *settings, strict=True)
            if kept != here
        )
        if other:
            raise FedcrfError(
                f"the memory is of another federation or of other settings ({other}): "
                "give the one this rule handed back, or none"
            )
        if not given._is_sound(like):
            raise damaged
        return given

    def arrays(self) -> Arrays:
        """Return the memory as plain arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def recall(
        self, clients: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return beliefs, sketches of updates and of models; rows of NaN for who is unknown.

        Args:
            clients: (m,) identities.
        """
        places = {client: place for place, client in enumerate(self.clients.tolist())}
        found = np.array([places.get(client, -1) for client in clients.tolist()], dtype=np.int64)
        known, place = found >= 0, found[found >= 0]
        beliefs = np.full((len(clients), self.beliefs.shape[1]), np.nan)
        sketches = np.full((len(clients), self.sketches.shape[1]), np.nan)
        positions = np.full_like(sketches, np.nan)
        beliefs[known] = self.beliefs[place]
        sketches[known] = self.sketches[place]
        positions[known] = self.positions[self.rounds[place]]
        return beliefs, sketches, positions

    def after(
        self,
        clients: NDArray[np.int64],
        beliefs: NDArray[np.float64],
        sketches: NDArray[np.float64],
        position: NDArray[np.float64],
        expected: NDArray[np.float64],
        median_norm: float,
    ) -> ClientMemory:
        """Return the memory after a round; who was absent is kept as it was.

        Args:
            clients: (m,) identities of who took part.
            beliefs: (m, L) their marginals.
            sketches: (m, s) sketches of their updates.
            position: (s,) sketch of the global model of the round.
            expected: (s,) sketch of the model after it.
            median_norm: Of the updates of the round.
        """
        absent = ~np.isin(self.clients, clients)
        rounds = np.concatenate([self.rounds[absent], np.full(len(clients), len(self.positions))])
        spoken_of, rounds = np.unique(rounds, return_inverse=True)
        identities = np.concatenate([self.clients[absent], clients])
        order = np.argsort(identities, kind="stable")
        return ClientMemory(
            layout=self.layout,
            labels=self.labels,
            clients=identities[order],
            beliefs=np.concatenate([self.beliefs[absent], beliefs])[order],
            sketches=np.concatenate([self.sketches[absent], sketches.astype(np.float32)])[order],
            rounds=rounds[order],
            positions=np.concatenate([self.positions, position[None]])[spoken_of],
            expected=expected,
            longest=np.maximum(self.longest, median_norm),
        )

    def _is_sound(self, like: ClientMemory) -> bool:
        """Tell whether the arrays belong together and have the widths of another's."""
        kinds = {field.name: getattr(self, field.name).dtype.kind for field in fields(self)}
        if not all(kinds[name] in "iu" for name in ("layout", "clients", "rounds")):
            return False
        if not all(kinds[name] in "iuf" for name in kinds):
            return False
        k, rows = len(np.atleast_1d(self.clients)), len(np.atleast_1d(self.positions))
        size, num_labels = like.expected.shape[0], len(like.labels)
        return (
            self.clients.shape == self.rounds.shape == (k,)
            and self.beliefs.shape == (k, num_labels)
            and self.sketches.shape == (k, size)
            and self.positions.shape == (rows, size)
            and self.expected.shape == (size,)
            and self.longest.shape == (1,)
            and bool(((self.rounds >= 0) & (self.rounds < rows)).all())
            and len(np.unique(self.clients)) == k
            and bool(np.isfinite(self.sketches).all() and np.isfinite(self.positions).all())
            and (bool(self.layout[3]) or bool(np.isfinite(self.expected).all()))
            and bool(np.isfinite(self.longest).all() and (self.longest >= 0).all())
            and bool((self.beliefs >= 0).all())
            and np.allclose(self.beliefs.sum(axis=1), 1.0)
        )


def sketch_seed_of(memory: Arrays) -> int | None:
    """Return the seed of the sketches in a memory; None where it is none of such, or damaged."""
    try:
        layout = as_numpy(memory.get("layout", ()))
    except NO_ARRAY:
        return None
    return int(layout[2]) if layout.shape == (4,) and layout.dtype.kind in "iu" else None


def identities(clients: Sequence[Any] | None, num_clients: int) -> NDArray[np.int64]:
    """Return the clients' identities as whole numbers; their places where none are given.

    Raises:
        FedcrfError: Not one for each update, not whole numbers, or one twice.
    """
    if clients is None:
        return np.arange(num_clients)
    if not isinstance(clients, Sequence | np.ndarray) or np.ndim(clients) == 0:
        raise FedcrfError(
            f"the clients are a {type(clients).__name__}: give a sequence of whole numbers, one "
            "for each update"
        )
    if len(clients) != num_clients:
        raise FedcrfError(
            f"{len(clients)} clients for {num_clients} updates: give one whole number for each"
        )
    for each in clients:
        if not isinstance(each, numbers.Integral):
            raise FedcrfError(f"client {each!r}: give identities that are whole numbers")
    # Node ids may be unsigned: whatever has 64 bits keeps them.
    given = np.array([(int(each) + 2**63) % 2**64 - 2**63 for each in clients], dtype=np.int64)
    values, counts = np.unique(given, return_counts=True)
    if (counts > 1).any():
        raise FedcrfError(
            f"client {values[counts > 1][0]} reports twice in one round: give each client once"
        )
    return given
