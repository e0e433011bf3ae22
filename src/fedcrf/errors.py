"""The error every user mistake ends in."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable


class FedcrfError(ValueError):
    """A mistake the user can mend: one clear line that names the thing and the mend.

    The command line prints the message without a traceback and exits with status 2.
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> FedcrfError:
    """Build the error for a name that does not exist, naming the nearest one that does.

    Args:
        kind: What the name was meant to be, such as ``"data set"``.
        name: What was given.
        known: Every name that exists.
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    mend = f"did you mean '{nearest[0]}'?" if nearest else f"choose from {', '.join(names)}."
    return FedcrfError(f"unknown {kind} '{name}': {mend}")


def is_number(value: object) -> bool:
    """Tell whether a value is a finite real number; text and truth values are none."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # a whole number beyond all floats
        return False


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise a `FedcrfError` unless ``value`` is one of the choices."""
    known = list(choices)
    if value not in known:
        raise FedcrfError(f"{name} {value!r}: choose from {', '.join(known)}")


def check_truth(name: str, value: object) -> None:
    """Raise a `FedcrfError` unless ``value`` is a truth value: words, "no" too, would be true."""
    if type(value).__name__ != "bool":  # NumPy's has the same name
        raise FedcrfError(f"{name} {value!r}: give True or False")


def check_whole(name: str, value: object, least: int) -> None:
    """Raise a `FedcrfError` unless ``value`` is a whole number of at least ``least``."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or int(value) < least:  # type: ignore[call-overload]
        raise FedcrfError(f"{name} {value}: give a whole number, {least} or more")
