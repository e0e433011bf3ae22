"""Tensors of a model by patterns of their names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from fedcrf.errors import FedcrfError, listed

NOT = "!"
"""Stands before a pattern of names that are left out."""

Patterns = str | Sequence[str]
"""Such as ``"*lora*"``, or ``["!head.*", "!*running*"]`` for all but those."""


def chosen(names: Sequence[str], patterns: Patterns, what: str) -> frozenset[str]:
    """Return the names that match a pattern, and none that is left out.

    Args:
        names: Of tensors.
        patterns: Of `fnmatch`; with ``!`` before it for what is left out. Where all have it, every
            other name is chosen.
        what: The argument that gives them, as errors call it.

    Raises:
        FedcrfError: A pattern matches nothing, or nothing is left.
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    there = listed(names, 8)
    if not given:
        raise FedcrfError(f"{what} has no pattern: give one, or leave it out: there are {there}")
    for each in given:
        if not isinstance(each, str):
            raise FedcrfError(
                f"{what}: {each!r} is no pattern of names: give text such as '*.weight'"
            )
        if not any(fnmatchcase(name, each.removeprefix(NOT)) for name in names):
            raise FedcrfError(f"{what}: no tensor is named like '{each}': there are {there}")
    wanted = [each for each in given if not each.startswith(NOT)]
    unwanted = [each.removeprefix(NOT) for each in given if each.startswith(NOT)]
    left = frozenset(
        name
        for name in names
        if (not wanted or any(fnmatchcase(name, each) for each in wanted))
        and not any(fnmatchcase(name, each) for each in unwanted)
    )
    if not left:
        raise FedcrfError(f"{what} leaves no tensor: there are {there}")
    return left
