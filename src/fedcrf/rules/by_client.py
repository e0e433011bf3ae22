"""What a rule remembers of each client, by identity, in plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.rules.base import Memory

CLIENTS = "clients"
"""Name of the array of identities, rising; the others have a row for each."""


def recalled(
    memory: Memory, clients: Sequence[int], name: str, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return what is kept of each client, (n, *shape); NaN for one that is new.

    Args:
        memory: Of the round before, or an empty one.
        clients: n identities.
        name: Of the array.
        shape: Of a row.

    Raises:
        FedcrfError: The memory is of another rule or model.
    """
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


def remembered(
    memory: Memory, clients: Sequence[int], **renewed: NDArray[np.float64]
) -> dict[str, NDArray[Any]]:
    """Return the memory with what is new of some clients; of the others it stays.

    Args:
        memory: Of the round before, or an empty one.
        clients: n identities.
        renewed: By name (n, …) rows, for every array of the memory.
    """
    old = memory.get(CLIENTS, np.zeros(0, np.int64))
    names = np.union1d(old, np.asarray(clients, np.int64))
    kept: dict[str, NDArray[Any]] = {CLIENTS: names}
    for name, rows in renewed.items():
        whole = np.zeros((len(names), *rows.shape[1:]), rows.dtype)
        if len(old):
            whole[np.searchsorted(names, old)] = memory[name]
        whole[np.searchsorted(names, clients)] = rows
        kept[name] = whole
    return kept
