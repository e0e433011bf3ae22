"""What a server keeps of a run, from round to round and on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar
from weakref import WeakValueDictionary, finalize

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.files import atomic_write, lock_beside, remove_unfinished
from fedcrf.rules import Memory, Rule, State
from fedcrf.rules.base import named
from fedcrf.statistics import as_numpy
from fedcrf.statistics.inputs import NO_ARRAY

NODES, CLIENTS = "nodes", "clients"
"""Names, in a strategy's memory, of the ids of its nodes and of the client that each is."""

SIGNS, MADE_BY = "signs", "made_by"
"""Likewise of the seed of the secret signs, and of the rule's name."""

RULE = "rule."
"""Prefix of the names in the rule's memory."""

MEND = "give the property memory of the one that ran before, or none to begin anew"

MODEL, MEMORY = "model.", "memory."
"""Prefixes of names in a checkpoint."""

NAMES = "names"
"""What comes first in a checkpoint's file: the names of all arrays, which have numbers there."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run continues from: an ``.npz`` file, written whole or not at all.

    Attributes:
        round: Rounds done.
        model: The global model after them.
        memory: `RuleServer.memory` after them.
        run: The name of the run's records; None without any.
    """

    round: int
    model: State
    memory: Memory
    run: str | None = None

    def save(self, path: Path) -> None:
        """Write it, atomically.

        Raises:
            FedcrfError: It cannot be written, or the memory holds objects, which are not read.
        """
        for name, array in self.memory.items():
            if np.asarray(array).dtype.hasobject:
                raise FedcrfError(
                    f"checkpoint {path}: the memory's '{name}' holds objects: let the rule "
                    "remember arrays of numbers or texts"
                )
        arrays = {
            **{f"{MODEL}{name}": array for name, array in self.model.items()},
            **{f"{MEMORY}{name}": array for name, array in self.memory.items()},
        }
        # A name may be any text, and an archive does not tell all texts apart.
        members = {
            NAMES: np.array(json.dumps([*arrays])),
            "round": np.array(self.round),
            "run": np.array(self.run or ""),
            **{str(number): array for number, array in enumerate(arrays.values())},
        }
        with _written(path) as file:
            np.savez(file, **members)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read it.

        Raises:
            FedcrfError: The file is no checkpoint, or damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                found = {name: _as_saved(array) for name, array in arrays.items()}
            names = found.pop(NAMES, None)
            # Earlier versions had all arrays by name, and at first no list of the names.
            listed = found if names is None else names.tolist()
            if isinstance(listed, str):
                numbered = {str(number): name for number, name in enumerate(json.loads(listed))}
                members = {"round": "round", "run": "run", **numbered}
            else:
                members = {name: name for name in listed}
            # One flipped bit can hide all further arrays of the file, and zipfile says nothing.
            if members.keys() != found.keys():
                raise ValueError
            found = {name: found[member] for member, name in members.items()}
            return cls(
                round=int(found["round"]),
                model=named(MODEL, found),
                memory=named(MEMORY, found),
                run=str(found["run"]) or None,
            )
        except OSError as error:
            why = error.strerror or str(error)
        except Exception:  # of many kinds: a damaged archive may claim to be encrypted
            why = "it is damaged, or none"
        raise FedcrfError(
            f"checkpoint {path} cannot be read: {why}; mend that, or take it away to begin anew"
        )


def _as_saved(array: NDArray[Any]) -> NDArray[Any]:
    """Return a file's array with the dtype it had: NumPy writes bfloat16 as two unnamed bytes."""
    if array.dtype != "V2":
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)


class Hold:
    """A checkpoint in the hands of one server: no other writes it until `release` is called.

    What servers that were killed left unfinished of it is taken away.

    A server that is not used any more holds nothing, nor does a process that has ended. Within a
    process a server takes it over from one that does not say when its run ends, as adapters need
    not; the other may not go on then.

    Args:
        path: The checkpoint's file, in a folder that is there.
        ends: Whether the end of the run will be said.

    Raises:
        FedcrfError: Another server holds it.
        OSError, ImportError: It cannot be locked here.
    """

    _of_process: ClassVar[WeakValueDictionary[Path, Hold]] = WeakValueDictionary()

    def __init__(self, path: Path, *, ends: bool) -> None:
        self._path, self._ends, place = path, ends, Path(os.path.realpath(path))
        before = self._of_process.get(place)
        handed_over = None if before is None or before._ends else before.release.detach()
        unlock = lock_beside(place) if handed_over is None else handed_over[1]
        if unlock is None:
            raise self._taken()
        if handed_over is None:  # nobody writes it
            remove_unfinished(place)
        self.release: finalize[[], Hold] = finalize(self, unlock)
        self._of_process[place] = self

    def check(self) -> None:
        """Raise a `FedcrfError` where another server has taken it over."""
        if not self.release.alive:
            raise self._taken()

    def _taken(self) -> FedcrfError:
        return FedcrfError(
            f"checkpoint {self._path} is being written by another server: wait for its run's end, "
            "or stop it, or give another file as checkpoint_to"
        )


class _TrialError(Exception):
    """Ends the trial of a file before that is there."""


def check_writable(path: Path) -> None:
    """Raise the error of `Checkpoint.save` if nothing can be written there; nothing is changed."""
    with suppress(_TrialError), _written(path):
        raise _TrialError


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """Write a checkpoint's file, atomically; an error names it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            yield file
    except OSError as error:
        raise FedcrfError(f"checkpoint {path}: {error.strerror or error}") from None


def checked_memory(rule: Rule, memory: Memory | None, *, names: bool, mend: str = MEND) -> Memory:
    """Return the memory that a strategy handed out; that of no rounds where there is none.

    ``names`` says whether the ids of nodes are names instead of numbers; errors end with ``mend``.

    Raises:
        FedcrfError: It is no strategy's, damaged, or of one with another rule.
    """
    if memory is None:
        return {NODES: np.zeros(0, dtype=np.uint64), CLIENTS: np.zeros(0, dtype=np.int64)}
    if not isinstance(memory, Mapping) or not {NODES, CLIENTS} <= {*memory}:
        raise FedcrfError(f"the memory is not of a strategy: {mend}")
    damaged = FedcrfError(
        f"the memory is damaged: its nodes and clients do not belong together; {mend}"
    )
    try:
        ids = {name: as_numpy(memory[name]) for name in (NODES, CLIENTS, SIGNS) if name in memory}
    except NO_ARRAY:
        raise damaged from None
    for name, each in ids.items():
        texts = names and name == NODES
        fits = each.dtype.kind == "U" if texts else each.dtype.kind in "iu" and (each >= 0).all()
        if not fits or each.ndim != 1 or len(np.unique(each)) != len(each):
            raise damaged
    sizes = {name: len(each) for name, each in ids.items()}
    by_name = all(isinstance(name, str) for name in memory)
    if sizes[NODES] != sizes[CLIENTS] or sizes.get(SIGNS, 1) != 1 or not by_name:
        raise damaged
    ours = rule.name
    made_by = ", ".join(map(str, np.ravel(memory.get(MADE_BY, ours))))
    if made_by != ours:
        raise FedcrfError(f"the memory is of another rule, {made_by}, not of {ours}: {mend}")
    if named(RULE, memory) and not rule.remembers:
        raise FedcrfError(f"the memory is of another rule: {ours} remembers nothing; {mend}")
    return {**memory, **ids}
