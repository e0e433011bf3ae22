"""What the server remembers of its clients: a table with one row a client, by its identity."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcrf.crf.window import Averages, Window
from fedcrf.errors import FedcrfError
from fedcrf.statistics import as_numpy
from fedcrf.statistics.inputs import NO_ARRAY

Arrays = Mapping[str, NDArray[Any]]
"""A memory as plain arrays by name, which any checkpoint can hold."""


class Plain(NamedTuple):
    """One of the plain arrays of a memory.

    Attributes:
        dtype: Its dtype; as given, any of whole numbers, or any real one.
        axes: A letter or a number for each: k clients, T paths, L labels, sketches of s numbers.
        attribute: The attribute of `Row` or `Path` that is stacked; none for other arrays.
    """

    dtype: type[np.generic]
    axes: str
    attribute: str = ""


ARRAYS: Mapping[str, Plain] = {
    "layout": Plain(np.int64, "4"),
    "labels": Plain(np.float64, "L"),
    "clients": Plain(np.int64, "k"),  # identities, rising, in the order of the next four
    "beliefs": Plain(np.float64, "kL", "belief"),
    "sketches": Plain(np.float32, "ks", "sketch"),
    "before": Plain(np.float32, "ks", "before"),
    "rounds": Plain(np.int64, "k"),  # each client's row of the next four
    "positions": Plain(np.float64, "Ts", "position"),  # of each path, the longest ago first
    "earlier": Plain(np.float64, "Ts", "earlier"),
    "counts": Plain(np.int64, "T", "count"),
    "last": Plain(np.int64, "T", "last"),
    "expected": Plain(np.float64, "s"),
    "window": Plain(np.float64, "5"),
}
"""What is not stacked is an attribute of `ClientMemory`, or follows from its rows."""

ADDED = ("before", "earlier", "counts", "last", "window")
"""Those that memories of version 0.1 lack, which knows no windows."""

MOST_ROUNDS = 1 << 62
"""Larger numbers of rounds are no memory's: one more would not fit into 64 bits."""

LARGEST_SKETCHED = 1e30
"""Larger numbers in a sketch count as this one, so that float64 holds their squares."""


@dataclass(frozen=True, eq=False)
class Path:
    """The global models that some clients started from, averaged over a window of rounds.

    Clients that took part in the same rounds share one.

    Attributes:
        position: (s,) float64 sketch of the recent average; see `fedcrf.crf.window`.
        earlier: (s,) float64 sketch of the average before it; NaN after the first round.
        count: The rounds in which these clients took part.
        last: The number of the last of them among all rounds, from 1.
    """

    position: NDArray[np.float64]
    earlier: NDArray[np.float64]
    count: int
    last: int


@dataclass(frozen=True, eq=False)
class Row:
    """What is remembered of one client, from the round in which it last took part.

    Attributes:
        belief: (L,) float64 marginals.
        sketch: (s,) float32 sketch of the recent average of its updates; see `fedcrf.crf.window`.
        before: (s,) float32 sketch of the average before it; NaN after the first round.
        path: The models that it started from.
    """

    belief: NDArray[np.float64]
    sketch: NDArray[np.float32]
    before: NDArray[np.float32]
    path: Path


@dataclass(frozen=True, eq=False)
class ClientMemory(Mapping[str, NDArray[Any]]):
    """A table with a row for each of k clients, and as a mapping its plain arrays, `ARRAYS`.

    An array is stacked only when it is read by name: a row takes 4 KiB where s = 512, and a round
    replaces the rows of its own clients alone.

    Attributes:
        layout: (4,) int64; numbers in the model d, sketch size s, sketch seed, and 1 where the
            model is given every round. A memory with another layout is of another federation.
        labels: (L,) float64, the labels of the beliefs. With others it is of another rule.
        rows: The rows by identity, the longest absent first; of one round the smaller first.
        expected: (s,) float64 sketch of the next global model, if nothing but the rule moves it.
        window: Of the next round.
    """

    layout: NDArray[np.int64]
    labels: NDArray[np.float64]
    rows: Mapping[int, Row]
    expected: NDArray[np.float64]
    window: Window

    __eq__ = object.__eq__  # a mapping would compare arrays
    __hash__ = object.__hash__

    @classmethod
    def of(
        cls, memory: Arrays | None, layout: Sequence[int], labels: Sequence[float]
    ) -> ClientMemory:
        """Return the given memory; one without clients where none is given.

        Args:
            memory: As the round before returned it, or its plain arrays, which are checked.
            layout: What the memory's layout must be.
            labels: What its labels must be.

        Raises:
            FedcrfError: It is the memory of another rule or federation, or it is damaged.
        """
        new = cls(
            layout=np.array(layout, dtype=np.int64),
            labels=np.array(labels, dtype=np.float64),
            rows={},
            expected=np.zeros(layout[1]),
            window=Window(),
        )
        if memory is not None and not isinstance(memory, Mapping):
            raise FedcrfError(
                f"the memory is a {type(memory).__name__}: give the memory that the round before "
                "handed back, posterior.memory, or none to begin anew"
            )
        if not memory:
            return new
        if isinstance(memory, cls):
            memory._check_settings(new)
            return memory
        names = set(memory) - {"longest"}  # earlier versions had the longest norm
        if names not in (set(ARRAYS), set(ARRAYS) - set(ADDED)):
            odd = sorted(map(str, names ^ set(ARRAYS)))[0]
            raise FedcrfError(
                f"the memory is of another rule ('{odd}' is in one of them only): "
                "give the one this rule handed back, or none to begin anew"
            )
        damaged = FedcrfError(
            "the memory is damaged: its arrays do not belong together; "
            "give the one this rule handed back, or none to begin anew"
        )
        try:
            arrays = _of_today({name: as_numpy(memory[name]) for name in names})
        except NO_ARRAY:
            raise damaged from None
        if arrays["layout"].shape != new.layout.shape:
            raise damaged
        given = replace(new, layout=arrays["layout"], labels=arrays["labels"])
        given._check_settings(new)
        if not _fit_together(arrays, new):
            raise damaged
        with np.errstate(over="ignore"):  # what a dtype does not hold becomes infinite
            own = {name: np.asarray(arrays[name], each.dtype) for name, each in ARRAYS.items()}
        if not _hold_values(own):
            raise damaged
        window = Window(*own["window"].tolist())
        return replace(given, rows=_rows(own), expected=own["expected"], window=window)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a plain array, made anew and for the caller to keep."""
        of_clients = ARRAYS[name].axes[0] == "k"
        if not of_clients and not ARRAYS[name].attribute:
            return np.array(getattr(self, name))
        clients, paths = sorted(self.rows), _paths(self.rows.values())
        if name == "clients":
            return np.array(clients, dtype=np.int64)
        rows = [self.rows[client] for client in clients]
        if name == "rounds":
            return _rounds(rows, paths)
        return self._stacked(name, rows if of_clients else paths)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the plain arrays."""
        return iter(ARRAYS)

    def __len__(self) -> int:
        """Return the number of plain arrays."""
        return len(ARRAYS)

    @cached_property
    def _lengths(self) -> dict[str, int]:
        """The lengths of the axes that do not depend on how many clients are remembered."""
        return {"4": 4, "5": 5, "L": len(self.labels), "s": len(self.expected)}

    def _stacked(self, name: str, parts: Collection[Row | Path]) -> NDArray[Any]:
        """Return one attribute of rows or paths as an array of its own."""
        dtype, axes, attribute = ARRAYS[name]
        shape = [len(parts), *(self._lengths[axis] for axis in axes[1:])]
        return np.array([getattr(part, attribute) for part in parts], dtype).reshape(shape)

    @cached_property
    def _new_row(self) -> Row:
        """The row of a client that is new."""
        unknown = np.full(len(self.expected), np.nan)
        return Row(
            belief=np.full(len(self.labels), np.nan),
            sketch=unknown.astype(np.float32),
            before=unknown.astype(np.float32),
            path=Path(unknown, unknown, count=0, last=0),
        )

    def gather(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.float64], Averages]:
        """Return the beliefs and averages of these (m,) identities; NaN of new clients."""
        rows = [self.rows.get(client) or self._new_row for client in clients.tolist()]
        paths = _paths(rows)
        return self._stacked("beliefs", rows), Averages(
            np.array([row.sketch for row in rows], np.float64),
            np.array([row.before for row in rows], np.float64),
            self._stacked("positions", paths),
            self._stacked("earlier", paths),
            self._stacked("counts", paths),
            _rounds(rows, paths),
        )

    def scatter(
        self,
        clients: NDArray[np.int64],
        beliefs: NDArray[np.float64],
        averages: Averages,
        *,
        expected: NDArray[np.float64],
        window: Window,
        most: int,
    ) -> ClientMemory:
        """Return the memory after a round, with new rows for its clients.

        Args:
            clients: (m,) identities.
            beliefs: (m, L) their marginals.
            averages: Of their updates and of the models that they started from.
            expected: (s,) sketch of the model after the round.
            window: Of the next round.
            most: Clients to remember, or m where that is more. The longest absent are forgotten
                first.
        """
        rows = dict(self.rows)
        number = 1 + (next(reversed(rows.values())).path.last if rows else 0)
        for client in clients.tolist():
            rows.pop(client, None)  # so that it comes last
        rows |= _rows(
            {
                "clients": clients,
                "beliefs": beliefs,
                "sketches": as_remembered(averages.updates),
                "before": as_remembered(averages.before),
                "rounds": averages.rounds,
                "positions": averages.positions,
                "earlier": averages.earlier,
                "counts": averages.counts,
                "last": np.full_like(averages.counts, number),
            }
        )
        surplus = len(rows) - max(most, len(clients))
        if surplus > 0:
            rows = dict(islice(rows.items(), surplus, None))
        return replace(self, rows=rows, expected=expected, window=window)

    def trusts_absent(self, clients: NDArray[np.int64], least: float) -> bool:
        """Return whether a client not among these has an expected label of at least ``least``."""
        present = set(clients.tolist())
        return any(
            row.belief @ self.labels >= least
            for client, row in self.rows.items()
            if client not in present
        )

    def _check_settings(self, like: ClientMemory) -> None:
        """Raise a `FedcrfError` where layout or labels differ from another's."""
        parts = ("model size", "sketch size", "sketch seed", "model given", "labels")
        settings = ([*each.layout.tolist(), each.labels.tolist()] for each in (self, like))
        other = "; ".join(
            f"another {name}" if "seed" in name else f"{name} {kept}, here {here}"  # it is secret
            for name, kept, here in zip(parts, *settings, strict=True)
            if kept != here
        )
        if other:
            raise FedcrfError(
                f"the memory is of another federation or of other settings ({other}): "
                "give the one this rule handed back, or the same settings, or none"
            )


def _paths(rows: Iterable[Row]) -> dict[Path, int]:
    """Return the different paths of rows, in the order of the rows, and the place of each."""
    paths = dict.fromkeys(row.path for row in rows)
    return {path: place for place, path in enumerate(paths)}


def _rounds(rows: Iterable[Row], paths: Mapping[Path, int]) -> NDArray[np.int64]:
    """Return the place of each row's path among the paths."""
    return np.array([paths[row.path] for row in rows], dtype=np.int64)


def _rows(arrays: Arrays) -> dict[int, Row]:
    """Return the rows of plain arrays in their order: copies, since views keep whole arrays."""
    rounds, last = arrays["rounds"], arrays["last"]
    paths = {
        path: Path(
            arrays["positions"][path].copy(),
            arrays["earlier"][path].copy(),
            int(arrays["counts"][path]),
            int(last[path]),
        )
        for path in set(rounds.tolist())
    }
    return {
        int(arrays["clients"][place]): Row(
            arrays["beliefs"][place].copy(),
            arrays["sketches"][place].copy(),
            arrays["before"][place].copy(),
            paths[int(rounds[place])],
        )
        for place in np.lexsort((arrays["clients"], last[rounds])).tolist()
    }


def _of_today(arrays: dict[str, NDArray[Any]]) -> Arrays:
    """Return a memory of any version with the arrays that it has today.

    Version 0.1 lacked windows, and rules without windows had no averages before the recent ones.
    """
    paths = len(np.atleast_1d(arrays["positions"]))
    if "window" not in arrays:
        arrays |= {
            "before": np.full(arrays["sketches"].shape, np.nan),
            "earlier": np.full(arrays["positions"].shape, np.nan),
            "counts": np.ones(paths, np.int64),
            "last": np.arange(1, 1 + paths),
            "window": np.array(Window()),
        }
    for name, like in (("before", "sketches"), ("earlier", "positions")):
        empty = arrays[name].ndim == 2 and not arrays[name].shape[1]
        if empty and arrays["window"].ravel()[:1] == 1.0:  # nothing was averaged
            arrays[name] = np.full(arrays[like].shape, np.nan)
    return arrays


def _fit_together(arrays: Arrays, like: ClientMemory) -> bool:
    """Return whether plain arrays have the dtypes and axes of `ARRAYS`."""
    lengths = dict(like._lengths)
    for name, (dtype, axes, _) in ARRAYS.items():
        array = arrays[name]
        kinds = "iu" if dtype is np.int64 else "iuf"
        if array.dtype.kind not in kinds or array.ndim != len(axes):
            return False
        for axis, length in zip(axes, array.shape, strict=True):
            if lengths.setdefault(axis, length) != length:
                return False
    return True


def _hold_values(arrays: Arrays) -> bool:
    """Return whether the numbers in plain arrays that fit together can be a memory's."""
    beliefs, rounds, window = arrays["beliefs"], arrays["rounds"], arrays["window"]
    counted = np.stack([arrays["counts"], arrays["last"]])
    finite = ["sketches", "positions", "window"]
    if not arrays["layout"][3]:  # where the model is given, nothing reads what is expected of it
        finite.append("expected")
    return (
        all(bool(np.isfinite(arrays[name]).all()) for name in finite)
        and len(np.unique(arrays["clients"])) == len(rounds)
        and bool(((rounds >= 0) & (rounds < counted.shape[1])).all())
        and bool(((counted >= 1) & (counted <= MOST_ROUNDS)).all() and (beliefs >= 0).all())
        and bool(window[0] >= 1 and (np.delete(window, 2) >= 0).all())
        and bool((np.abs(window) <= LARGEST_SKETCHED).all())
        and not np.isinf(arrays["before"]).any()
        and not np.isinf(arrays["earlier"]).any()
        and np.allclose(beliefs.sum(axis=1), 1.0)
    )


def as_remembered(sketches: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return sketches in the precision of a row, in an array of their own."""
    with np.errstate(over="ignore"):
        rounded = sketches.astype(np.float32)
    return np.clip(rounded, -LARGEST_SKETCHED, LARGEST_SKETCHED, out=rounded)


def sketch_seed_of(memory: Arrays) -> int | None:
    """Return the seed of the sketches in a memory; None where it has none, or is damaged."""
    try:
        layout = as_numpy(memory.get("layout", ()))
    except NO_ARRAY:
        return None
    return int(layout[2]) if layout.shape == (4,) and layout.dtype.kind in "iu" else None


def identities(clients: Sequence[Any] | None, num_clients: int) -> NDArray[np.int64]:
    """Return the clients' identities as whole numbers; their places where none are given.

    A name is hashed to 64 bits.

    Raises:
        FedcrfError: Not one for each update, neither names nor whole numbers, or one twice.
    """
    if clients is None:
        return np.arange(num_clients)
    is_array = isinstance(clients, np.ndarray) and clients.ndim > 0
    if not is_array and (not isinstance(clients, Sequence) or isinstance(clients, str | bytes)):
        raise FedcrfError(
            f"the clients are a {type(clients).__name__}: give a sequence of names or whole "
            "numbers, one for each update"
        )
    if len(clients) != num_clients:
        raise FedcrfError(
            f"{len(clients)} clients for {num_clients} updates: give one identity for each"
        )
    given = [_number(each) for each in clients]
    if len(set(given)) < num_clients:
        twice = next(each for i, each in enumerate(clients) if given[i] in given[:i])
        raise FedcrfError(f"client {twice} reports twice in one round: give each client once")
    return np.array(given, dtype=np.int64)


def _number(identity: Any) -> int:
    """Return a name or a whole number as a signed number of 64 bits."""
    if isinstance(identity, str):
        digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)
    if type(identity) is not int and not isinstance(identity, numbers.Integral):
        raise FedcrfError(f"client {identity!r}: give identities that are names or whole numbers")
    # Node ids may be unsigned; a number of 64 bits keeps all of them.
    return (int(identity) + 2**63) % 2**64 - 2**63
