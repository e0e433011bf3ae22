"""What the server remembers of its clients from round to round, by their identity."""

from __future__ import annotations

import hashlib
import numbers
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.statistics import as_numpy
from fedcrf.statistics.inputs import NO_ARRAY

Arrays = Mapping[str, NDArray[Any]]
"""A memory as plain arrays by name, which any checkpoint can hold."""


@dataclass(frozen=True, eq=False)
class Remembered:
    """What is kept of one client, all from the round that it last took part in.

    Attributes:
        belief: (L,) float64 marginals.
        sketch: (s,) float32 sketch of its update.
        position: (s,) float64 sketch of the global model; one array for all clients of that round.
    """

    belief: NDArray[np.float64]
    sketch: NDArray[np.float32]
    position: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClientMemory(Mapping[str, NDArray[Any]]):
    """Of each of k clients its belief, a sketch of its last update and where the model was then.

    All is of sketch or label size: 16 KiB a client for sketches of 4096 numbers. A round makes new
    entries of the clients that take part; those of others go from memory to memory as they are.
    Plain arrays, which any checkpoint can hold, are made only where the memory is read by name:

    - ``layout`` and ``labels`` as below, ``expected`` and ``longest`` too;
    - ``clients``: (k,) int64 identities, rising; the next two are in their order;
    - ``beliefs``: (k, L) float64, and ``sketches``: (k, s) float32;
    - ``positions``: (T, s) float64, of each round in which some client last took part, the earliest
      first;
    - ``rounds``: (k,) int64, each client's row of ``positions``.

    Attributes:
        layout: (4,) int64; numbers in the model d, sketch size, sketch seed, and 1 where the model
            is given every round. A memory with another layout is of another federation.
        labels: (L,) float64, the labels that beliefs are over. With others it is of another rule.
        of_client: What is kept by identity; the longest absent first, of a round the smaller.
        expected: (s,) float64 sketch of the next global model, as far as the server alone moves it.
        longest: (1,) float64, the largest that a round's median norm has been; 0 before the first.
    """

    layout: NDArray[np.int64]
    labels: NDArray[np.float64]
    of_client: Mapping[int, Remembered]
    expected: NDArray[np.float64]
    longest: NDArray[np.float64]

    __eq__ = object.__eq__  # and not by the arrays, as mappings are compared
    __hash__ = object.__hash__

    @classmethod
    def empty(
        cls, dimension: int, labels: Sequence[float], size: int, seed: int, model_given: bool
    ) -> ClientMemory:
        """Return the memory of nobody."""
        return cls(
            layout=np.array([dimension, size, seed, model_given], dtype=np.int64),
            labels=np.array(labels, dtype=np.float64),
            of_client={},
            expected=np.zeros(size),
            longest=np.zeros(1),
        )

    @classmethod
    def of(cls, memory: Arrays | None, like: ClientMemory) -> ClientMemory:
        """Return a memory that is handed over; ``like`` itself where it is empty.

        Args:
            memory: As it was handed back, or as plain arrays, all of which are checked.
            like: The memory of nobody, of the same settings.

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
        if isinstance(memory, cls):
            memory._check_settings(like)
            return memory
        if set(memory) != set(NAMES):
            odd = sorted(map(str, set(memory) ^ set(NAMES)))[0]
            raise FedcrfError(
                f"the memory is of another rule ('{odd}' is in one of them only): "
                "give the one this rule handed back, or none to begin anew"
            )
        damaged = FedcrfError(
            "the memory is damaged: its arrays do not belong together; "
            "give the one this rule handed back, or none to begin anew"
        )
        try:
            arrays = {name: as_numpy(memory[name]) for name in NAMES}
        except NO_ARRAY:
            raise damaged from None
        if arrays["layout"].shape != like.layout.shape:
            raise damaged
        given = cls(
            layout=arrays["layout"],
            labels=arrays["labels"],
            of_client={},
            expected=arrays["expected"],
            longest=arrays["longest"],
        )
        given._check_settings(like)
        if not _is_sound(arrays, like):
            raise damaged
        return replace(given, of_client=_by_client(arrays))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return one of the plain arrays, made anew and for the caller to keep."""
        if name in SHARED:
            return np.array(getattr(self, name))
        clients = sorted(self.of_client)
        kept = [self.of_client[client] for client in clients]
        size = len(self.expected)
        if name == "clients":
            return np.array(clients, dtype=np.int64)
        if name == "beliefs":
            return np.array([each.belief for each in kept]).reshape(-1, len(self.labels))
        if name == "sketches":
            return np.array([each.sketch for each in kept], np.float32).reshape(-1, size)
        positions = {id(each.position): each.position for each in self.of_client.values()}
        if name == "positions":
            return np.array([*positions.values()]).reshape(-1, size)
        if name == "rounds":
            rows = {place: row for row, place in enumerate(positions)}
            return np.array([rows[id(each.position)] for each in kept], dtype=np.int64)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the plain arrays."""
        return iter(NAMES)

    def __len__(self) -> int:
        """Return how many plain arrays there are."""
        return len(NAMES)

    def recall(
        self, clients: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return beliefs, sketches of updates and of models; rows of NaN for who is unknown.

        Args:
            clients: (m,) identities.
        """
        unknown = np.full(len(self.expected), np.nan)
        nothing = Remembered(np.full(len(self.labels), np.nan), unknown.astype(np.float32), unknown)
        kept = [self.of_client.get(client, nothing) for client in clients.tolist()]
        return (
            np.array([each.belief for each in kept]),
            np.array([each.sketch for each in kept], np.float64),
            np.array([each.position for each in kept]),
        )

    def trusts_absent(
        self, clients: NDArray[np.int64], labels: NDArray[np.float64], least: float
    ) -> bool:
        """Tell whether a client that takes no part has a label expected of ``least`` or more.

        Args:
            clients: (m,) identities of who takes part.
            labels: (L,) what beliefs are over.
            least: What is enough.
        """
        here = set(clients.tolist())
        return any(
            kept.belief @ labels >= least
            for client, kept in self.of_client.items()
            if client not in here
        )

    def after(
        self,
        clients: NDArray[np.int64],
        beliefs: NDArray[np.float64],
        sketches: NDArray[np.float64],
        position: NDArray[np.float64],
        expected: NDArray[np.float64],
        median_norm: float,
        most: int,
    ) -> ClientMemory:
        """Return the memory after a round; who was absent is kept as it was, or dropped.

        Args:
            clients: (m,) identities of who took part.
            beliefs: (m, L) their marginals.
            sketches: (m, s) sketches of their updates.
            position: (s,) sketch of the global model of the round.
            expected: (s,) sketch of the model after it.
            median_norm: Of the updates of the round.
            most: Clients that are remembered, or as many as took part. The longest absent go first.
        """
        of_client, there = dict(self.of_client), np.array(position)
        who = clients.tolist()
        for place in np.argsort(clients).tolist():
            of_client.pop(who[place], None)  # it comes last
            # Copies: a row of an array would keep the others in memory.
            of_client[who[place]] = Remembered(
                beliefs[place].copy(), sketches[place].astype(np.float32), there
            )
        surplus = len(of_client) - max(most, len(clients))
        if surplus > 0:
            of_client = dict(islice(of_client.items(), surplus, None))
        return replace(
            self,
            of_client=of_client,
            expected=expected,
            longest=np.maximum(self.longest, median_norm),
        )

    def _check_settings(self, like: ClientMemory) -> None:
        """Raise a `FedcrfError` where layout or labels are not those of another's."""
        parts = ("model size", "sketch size", "sketch seed", "model given", "labels")
        settings = ([*each.layout.tolist(), each.labels.tolist()] for each in (self, like))
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


SHARED = ("layout", "labels", "expected", "longest")
"""The plain arrays that are of no client."""

NAMES = (*SHARED[:2], "clients", "beliefs", "sketches", "rounds", "positions", *SHARED[2:])
"""The plain arrays of a memory."""


def _by_client(arrays: Mapping[str, NDArray[Any]]) -> dict[int, Remembered]:
    """Return what sound plain arrays keep of each client."""
    positions = [np.array(each, np.float64) for each in arrays["positions"]]
    order = np.lexsort((arrays["clients"], arrays["rounds"]))
    return {
        int(arrays["clients"][row]): Remembered(
            np.array(arrays["beliefs"][row], np.float64),
            np.array(arrays["sketches"][row], np.float32),
            positions[arrays["rounds"][row]],
        )
        for row in order.tolist()
    }


def _is_sound(arrays: Mapping[str, NDArray[Any]], like: ClientMemory) -> bool:
    """Tell whether plain arrays belong together and have the widths of a memory."""
    kinds = {name: array.dtype.kind for name, array in arrays.items()}
    if not all(kinds[name] in "iu" for name in ("layout", "clients", "rounds")):
        return False
    if not all(kinds[name] in "iuf" for name in kinds):
        return False
    clients, rounds, positions = arrays["clients"], arrays["rounds"], arrays["positions"]
    beliefs, sketches, expected = arrays["beliefs"], arrays["sketches"], arrays["expected"]
    k, rows = len(np.atleast_1d(clients)), len(np.atleast_1d(positions))
    size, num_labels, longest = len(like.expected), len(like.labels), arrays["longest"]
    return (
        clients.shape == rounds.shape == (k,)
        and beliefs.shape == (k, num_labels)
        and sketches.shape == (k, size)
        and positions.shape == (rows, size)
        and expected.shape == (size,)
        and longest.shape == (1,)
        and bool(((rounds >= 0) & (rounds < rows)).all())
        and len(np.unique(clients)) == k
        and bool(np.isfinite(sketches).all() and np.isfinite(positions).all())
        and (bool(arrays["layout"][3]) or bool(np.isfinite(expected).all()))
        and bool(np.isfinite(longest).all() and (longest >= 0).all())
        and bool((beliefs >= 0).all())
        and np.allclose(beliefs.sum(axis=1), 1.0)
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

    A name becomes a number of 64 bits that it always has.

    Raises:
        FedcrfError: Not one for each update, neither names nor whole numbers, or one twice.
    """
    if clients is None:
        return np.arange(num_clients)
    if not isinstance(clients, Sequence | np.ndarray) or np.ndim(clients) == 0:
        raise FedcrfError(
            f"the clients are a {type(clients).__name__}: give a sequence of names or whole "
            "numbers, one for each update"
        )
    if len(clients) != num_clients:
        raise FedcrfError(
            f"{len(clients)} clients for {num_clients} updates: give one identity for each"
        )
    for each in clients:
        if type(each) is not int and not isinstance(each, numbers.Integral | str):
            raise FedcrfError(f"client {each!r}: give identities that are names or whole numbers")
    given = [_number(each) for each in clients]
    if len(set(given)) < num_clients:
        counts = Counter(given)
        twice = next(each for each in clients if counts[_number(each)] > 1)
        raise FedcrfError(f"client {twice} reports twice in one round: give each client once")
    return np.array(given, dtype=np.int64)


def _number(identity: Any) -> int:
    """Return the number of 64 bits that a name or a whole number goes by."""
    if isinstance(identity, str):
        digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)
    # Node ids may be unsigned: whatever has 64 bits keeps them.
    return (int(identity) + 2**63) % 2**64 - 2**63
