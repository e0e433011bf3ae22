"""A run's state on a server's disk, so that a killed one goes on where it stopped."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcrf.errors import FedcrfError
from fedcrf.files import atomic_write
from fedcrf.rules import Memory, State

MODEL, MEMORY = "model.", "memory."
"""Stand before the names of what is kept."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from: an ``.npz`` file, whole or not there.

    Attributes:
        round: Rounds done.
        model: The global model after them.
        memory: What is remembered of them.
        run: The name of the run's records; None where it has none.
    """

    round: int
    model: State
    memory: Memory
    run: str | None = None

    def save(self, path: Path) -> None:
        """Write it, atomically.

        Raises:
            FedcrfError: It cannot be written.
        """
        arrays = {
            "round": np.array(self.round),
            "run": np.array(self.run or ""),
            **{f"{MODEL}{name}": array for name, array in self.model.items()},
            **{f"{MEMORY}{name}": array for name, array in self.memory.items()},
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise FedcrfError(f"checkpoint {path}: {error.strerror or error}") from None

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read it.

        Raises:
            FedcrfError: The file is none, or damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                found = dict(arrays)
            return cls(
                round=int(found["round"]),
                model=named(MODEL, found),
                memory=named(MEMORY, found),
                run=str(found["run"]) or None,
            )
        except OSError as error:
            why = error.strerror or str(error)
        except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile):
            why = "it is damaged, or none"
        raise FedcrfError(f"checkpoint {path} cannot be read: {why}; take it away to begin anew")


def named(start: str, arrays: Memory) -> Memory:
    """Return what stands in ``arrays`` under names that begin so, without this beginning."""
    return {
        name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)
    }
