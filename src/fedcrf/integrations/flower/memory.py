"""What a strategy keeps from round to round, as plain arrays by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcrf.errors import FedcrfError
from fedcrf.integrations.checkpoint import named
from fedcrf.rules import Memory, Rule
from fedcrf.statistics import as_numpy
from fedcrf.statistics.inputs import NO_ARRAY

NODES, CLIENTS = "nodes", "clients"
"""By these names a strategy's memory has the ids of its nodes, and which client each is."""

SIGNS, MADE_BY = "signs", "made_by"
"""The seed of the signs that clients must not know, and the name of the rule."""

RULE = "rule."
"""Stands before the names of what the rule remembers."""

MEND = "give the property memory of the one that ran before, or none to begin anew"


def checked_memory(rule: Rule, memory: Memory | None) -> Memory:
    """Return the memory that a strategy handed out; that of no rounds where there is none.

    Raises:
        FedcrfError: It is no strategy's, damaged, or of one with another rule.
    """
    if memory is None:
        return {NODES: np.zeros(0, dtype=np.uint64), CLIENTS: np.zeros(0, dtype=np.int64)}
    if not isinstance(memory, Mapping) or not {NODES, CLIENTS} <= {*memory}:
        raise FedcrfError(f"the memory is not of a strategy: {MEND}")
    damaged = FedcrfError(
        f"the memory is damaged: its nodes and clients do not belong together; {MEND}"
    )
    try:
        ids = {name: as_numpy(memory[name]) for name in (NODES, CLIENTS, SIGNS) if name in memory}
    except NO_ARRAY:
        raise damaged from None
    for each in ids.values():
        whole = each.ndim == 1 and each.dtype.kind in "iu" and (each >= 0).all()
        if not whole or len(np.unique(each)) != len(each):
            raise damaged
    sizes = {name: len(each) for name, each in ids.items()}
    names = all(isinstance(name, str) for name in memory)
    if sizes[NODES] != sizes[CLIENTS] or sizes.get(SIGNS, 1) != 1 or not names:
        raise damaged
    checked = {**memory, **ids}
    _check_rule(rule, checked)
    return checked


def _check_rule(rule: Rule, memory: Memory) -> None:
    """Raise a `FedcrfError` where another rule made the memory."""
    ours = rule.name
    if MADE_BY in memory:
        made_by = ", ".join(map(str, np.ravel(memory[MADE_BY])))
        if made_by != ours:
            raise FedcrfError(f"the memory is of another rule, {made_by}, not of {ours}: {MEND}")
    if named(RULE, memory) and not rule.remembers:
        raise FedcrfError(f"the memory is of another rule: {ours} remembers nothing; {MEND}")
