"""What the server remembers of its clients: a table with one row a client, by its identity."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
        dtype: Its dtype. A given memory may hold other integers where these are integers, and any
            real numbers where they are floats.
        axes: The length of each axis, a letter or a digit: k clients, T paths, L labels, sketches
            of s numbers.
    """

    dtype: type[np.generic]
    axes: str


ARRAYS: Mapping[str, Plain] = {
    "layout": Plain(np.int64, "4"),
    "labels": Plain(np.float64, "L"),
    "clients": Plain(np.int64, "k"),
    "beliefs": Plain(np.float64, "kL"),
    "credit": Plain(np.float64, "k"),
    "sketches": Plain(np.float32, "ks"),
    "before": Plain(np.float32, "ks"),
    "rounds": Plain(np.int64, "k"),
    "positions": Plain(np.float64, "Ts"),
    "earlier": Plain(np.float64, "Ts"),
    "counts": Plain(np.int64, "T"),
    "first": Plain(np.int64, "T"),
    "last": Plain(np.int64, "T"),
    "expected": Plain(np.float64, "s"),
    "window": Plain(np.float64, "5"),
}
"""`ClientMemory` says what they are."""

ADDED = (
    ("credit",),
    ("credit", "first"),
    ("credit", "first", "before", "earlier", "counts", "last", "window"),
)
"""What earlier memories lack: those of earlier builds of 1.0.0rc1, and those of 0.1."""

MOST_ROUNDS = 1 << 62
"""The largest number of a round in a memory: one more still fits into 64 bits."""

LARGEST_SKETCHED = 1e30
"""Larger numbers in a sketch count as this one, so that float64 holds their squares."""

NEW = -1
"""The row of a client that is not remembered, and of its path."""


@dataclass(frozen=True, eq=False)
class ClientMemory(Mapping[str, NDArray[Any]]):
    """A table with a row for each of k clients, as of the round in which it last took part.

    The global models that a client started from, averaged over a window of rounds, are its path.
    Clients that took part in the same rounds share one, so that there are T paths.

    As a mapping it hands out copies: what is written into them changes nothing here.

    Attributes:
        arrays: By name.

            - layout: Numbers in the model d, sketch size s, sketch seed, and 1 where the model is
              given every round. A memory with another layout is of another federation.
            - labels: The labels of the beliefs. With others the memory is of another rule.
            - clients: The identities, the longest absent first and those of one round rising; the
              next five are in this order.
            - beliefs: The marginals.
            - credit: From 0 to 1, how much their opposition counted.
            - sketches: Of the recent averages of the clients' updates; see `fedcrf.crf.window`.
            - before: Of the averages before them; NaN after a client's first round.
            - rounds: Each client's path, its row of the next five.
            - positions: Sketches of the paths' recent averages, the longest ago first.
            - earlier: Of the averages before them; NaN after the first round.
            - counts: The rounds in which a path's clients took part.
            - first: The number of the first of them among all rounds, from 1.
            - last: The number of the last of them.
            - expected: Sketch of the next global model, if nothing but the rule moves it.
            - window: The `Window` of the next round.
    """

    arrays: Arrays

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
        new = cls._without_clients(layout, labels)
        if memory is not None and not isinstance(memory, Mapping):
            raise FedcrfError(
                f"the memory is a {type(memory).__name__}: give the memory that the round before "
                "handed back, posterior.memory, or none to begin anew"
            )
        if not memory:
            return new
        if isinstance(memory, cls):
            _check_settings(memory.arrays, new.arrays)
            return memory
        names = set(memory) - {"longest"}  # earlier versions had the longest norm
        if all(names != set(ARRAYS) - set(lacked) for lacked in ((), *ADDED)):
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
            given = _of_today({name: as_numpy(memory[name]) for name in names})
        except NO_ARRAY:
            raise damaged from None
        if given["layout"].shape != new.arrays["layout"].shape:
            raise damaged
        _check_settings(given, new.arrays)
        if not _fit_together(given, new.arrays):
            raise damaged
        with np.errstate(over="ignore"):  # what a dtype does not hold becomes infinite
            own = {name: np.asarray(given[name], each.dtype) for name, each in ARRAYS.items()}
        if not _hold_values(own):
            raise damaged
        order = np.lexsort((own["clients"], own["last"][own["rounds"]]))
        return cls(
            {name: each[order] if ARRAYS[name].axes[0] == "k" else each.copy()
             for name, each in own.items()}
        )  # fmt: skip

    @classmethod
    def _without_clients(cls, layout: Sequence[int], labels: Sequence[float]) -> ClientMemory:
        """Return the memory before the first round."""
        lengths = {"4": 4, "5": 5, "L": len(labels), "s": layout[1], "k": 0, "T": 0}
        zeros = {
            name: np.zeros([lengths[axis] for axis in each.axes], each.dtype)
            for name, each in ARRAYS.items()
        }
        return cls(
            {
                **zeros,
                "layout": np.array(layout, np.int64),
                "labels": np.array(labels, np.float64),
                "window": np.array(Window()),
            }
        )

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a copy of a plain array; those of clients are in the order of their identities."""
        if ARRAYS[name].axes[0] == "k":
            return self.arrays[name][np.argsort(self.arrays["clients"])]
        return self.arrays[name].copy()

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the plain arrays."""
        return iter(self.arrays)

    def __len__(self) -> int:
        """Return the number of plain arrays."""
        return len(self.arrays)

    @property
    def window(self) -> Window:
        """The window of the next round."""
        return Window(*self.arrays["window"].tolist())

    def gather(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.float64], Averages]:
        """Return the beliefs and averages of these (m,) identities; NaN of new clients."""
        kept = self.arrays
        row_of = {client: row for row, client in enumerate(kept["clients"].tolist())}
        rows = np.array([row_of.get(client, NEW) for client in clients.tolist()], np.int64)
        paths, path_of = _different(_rows_at(kept["rounds"], rows, NEW))
        number = 1 + int(kept["last"].max(initial=0))
        return _rows_at(kept["beliefs"], rows), Averages(
            updates=_rows_at(kept["sketches"], rows),
            before=_rows_at(kept["before"], rows),
            positions=_rows_at(kept["positions"], paths),
            earlier=_rows_at(kept["earlier"], paths),
            counts=_rows_at(kept["counts"], paths, 0),
            first=_rows_at(kept["first"], paths, number),
            number=number,
            path_of=path_of,
        )

    def scatter(
        self,
        clients: NDArray[np.int64],
        beliefs: NDArray[np.float64],
        credit: NDArray[np.float64],
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
            credit: (m,) how much their opposition counted.
            averages: Of their updates and of the models that they started from.
            expected: (s,) sketch of the model after the round.
            window: Of the next round.
            most: Clients to remember, or m where that is more. The longest absent are forgotten
                first.
        """
        kept = self.arrays
        new: dict[str, NDArray[Any]] = {
            "clients": clients,
            "beliefs": beliefs,
            "credit": credit,
            "sketches": as_remembered(averages.updates),
            "before": as_remembered(averages.before),
            "positions": averages.positions,
            "earlier": averages.earlier,
            "counts": averages.counts,
            "first": averages.first,
            "last": np.full_like(averages.counts, averages.number),
        }
        absent, order = np.flatnonzero(self._absent(clients)), np.argsort(clients)
        room = max(0, most - len(clients))
        absent = absent[max(0, len(absent) - room) :]
        num_paths = len(kept["last"])
        used = np.append(kept["rounds"][absent], num_paths + averages.path_of[order])
        paths, rounds = _different(used)
        earlier, later = paths[paths < num_paths], paths[paths >= num_paths] - num_paths
        chosen = {"k": (absent, order), "T": (earlier, later)}
        after = {
            name: _put_together(kept[name], rows, *chosen[ARRAYS[name].axes[0]])
            for name, rows in new.items()
        }
        after |= {"rounds": rounds, "expected": expected, "window": np.array(window)}
        return ClientMemory({**kept, **after})

    def absent(
        self, clients: NDArray[np.int64], rounds: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return (n,) trust in others than these clients, and (n, s) their recent averages.

        They are of those that took part in one of the last so many rounds. Trust is the expected
        label times the credit.
        """
        kept = self.arrays
        since = 1 + kept["last"].max(initial=0) - rounds
        chosen = self._absent(clients) & (kept["last"][kept["rounds"]] >= since)
        trust = (kept["beliefs"][chosen] @ kept["labels"]) * kept["credit"][chosen]
        return trust, kept["sketches"][chosen].astype(np.float64)

    def trusts_absent(self, clients: NDArray[np.int64], least: float) -> bool:
        """Return whether a client not among these has an expected label of at least ``least``."""
        expected_label = np.vecdot(self.arrays["beliefs"], self.arrays["labels"])
        return bool((expected_label[self._absent(clients)] >= least).any())

    def _absent(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return (k,) bool: who is remembered and not among these."""
        present = {*clients.tolist()}  # `np.isin` takes fifty times as long where they are few
        return np.array([each not in present for each in self.arrays["clients"].tolist()], bool)


def _different(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the different values, rising, and of each value its place among them."""
    if len(values) and (values == values[0]).all():  # as where nobody is ever absent
        return values[:1], np.zeros(len(values), np.int64)
    return np.unique(values, return_inverse=True)


def _put_together(
    kept: NDArray[Any], new: NDArray[Any], absent: NDArray[np.int64], order: NDArray[np.int64]
) -> NDArray[Any]:
    """Return some rows of what is kept, and below them new rows in an order.

    It is written once: what is remembered of thousands of clients takes milliseconds to copy.
    """
    rows = np.empty((len(absent) + len(order), *kept.shape[1:]), kept.dtype)
    np.take(kept, absent, axis=0, out=rows[: len(absent)], mode="clip")
    rows[len(absent) :] = new[order]
    return rows


def _rows_at(array: NDArray[Any], rows: NDArray[np.int64], fill: float = np.nan) -> NDArray[Any]:
    """Return the rows of an array at these places, ``fill`` for `NEW`, in the dtype of ``fill``."""
    found = np.full((len(rows), *array.shape[1:]), fill)
    known = rows != NEW
    found[known] = array[rows[known]]
    return found


def _check_settings(arrays: Arrays, like: Arrays) -> None:
    """Raise a `FedcrfError` where layout or labels differ from another memory's."""
    parts = ("model size", "sketch size", "sketch seed", "model given", "labels")
    settings = ([*each["layout"].tolist(), each["labels"].tolist()] for each in (arrays, like))
    other = "; ".join(
        f"another {name}" if "seed" in name else f"{name} {kept}, here {here}"  # it is secret
        for name, kept, here in zip(parts, *settings, strict=True)
        if kept != here
    )
    if other:
        mend = "the one this rule handed back, or the same settings, or none"
        if arrays["layout"][3] != like["layout"][3]:
            mend = "model= in every round, or in none"
        raise FedcrfError(
            f"the memory is of another federation or of other settings ({other}): give {mend}"
        )


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
    if "credit" not in arrays:
        arrays["credit"] = np.ones(len(np.atleast_1d(arrays["clients"])))
    if "first" not in arrays:  # nobody was ever absent, as far as is known
        arrays["first"] = np.maximum(1, arrays["last"] - arrays["counts"] + 1)
    for name, like in (("before", "sketches"), ("earlier", "positions")):
        empty = arrays[name].ndim == 2 and not arrays[name].shape[1]
        if empty and arrays["window"].ravel()[:1] == 1.0:  # nothing was averaged
            arrays[name] = np.full(arrays[like].shape, np.nan)
    return arrays


def _fit_together(arrays: Arrays, like: Arrays) -> bool:
    """Return whether plain arrays have the dtypes and axes of `ARRAYS`.

    All lengths but those of clients and paths are another memory's.
    """
    free: dict[str, int] = {}
    for name, (dtype, axes) in ARRAYS.items():
        array = arrays[name]
        kinds = "iu" if dtype is np.int64 else "iuf"
        if array.dtype.kind not in kinds or array.ndim != len(axes):
            return False
        for axis, length, fixed in zip(axes, array.shape, like[name].shape, strict=True):
            if length != (free.setdefault(axis, length) if axis in "kT" else fixed):
                return False
    return True


def _hold_values(arrays: Arrays) -> bool:
    """Return whether the numbers in plain arrays that fit together can be a memory's."""
    beliefs, rounds, window = arrays["beliefs"], arrays["rounds"], arrays["window"]
    counts, first, last = arrays["counts"], arrays["first"], arrays["last"]
    numbers_of_rounds = np.stack([counts, first, last])
    finite = ["sketches", "positions", "window"]
    if not arrays["layout"][3]:  # where the model is given, nothing reads what is expected of it
        finite.append("expected")
    return (
        all(bool(np.isfinite(arrays[name]).all()) for name in finite)
        and len(np.unique(arrays["clients"])) == len(rounds)
        and bool(((rounds >= 0) & (rounds < len(counts))).all())
        and bool(((numbers_of_rounds >= 1) & (numbers_of_rounds <= MOST_ROUNDS)).all())
        and bool((counts <= last - first + 1).all() and (beliefs >= 0).all())
        and bool(window[0] >= 1 and (np.delete(window, 2) >= 0).all())
        and bool((np.abs(window) <= LARGEST_SKETCHED).all())
        and not np.isinf(arrays["before"]).any()
        and not np.isinf(arrays["earlier"]).any()
        and np.allclose(beliefs.sum(axis=1), 1.0)
        and bool(((arrays["credit"] >= 0) & (arrays["credit"] <= 1)).all())
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
    whole = type(identity) is int or isinstance(identity, numbers.Integral)
    if not whole or isinstance(identity, np.timedelta64):  # NumPy counts times among the integers
        raise FedcrfError(f"client {identity!r}: give identities that are names or whole numbers")
    # Node ids may be unsigned; a number of 64 bits keeps all of them.
    if not -(2**63) <= int(identity) < 2**64:
        raise FedcrfError("a client's number is beyond 64 bits: give a smaller one, or a name")
    return (int(identity) + 2**63) % 2**64 - 2**63
