"""Checks of settings, wherever there are any: each names the setting and what to give."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Iterable
from functools import cache
from typing import Any, Self

from fedcrf.errors import FedcrfError, KeywordError, unknown_name

LARGEST = 1e100
"""Largest setting: squares of labels times a strength must not overflow."""


class Settings:
    """Base of classes whose settings are given by name: a misspelt one is an error that helps.

    Raises:
        KeywordError: A keyword that is no setting; the nearest one is named.
    """

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Look at the names; the values are for ``__init__``."""
        known = _keywords(cls)  # type: ignore[arg-type]  # classes are hashable
        for name in given:
            if name not in known:
                raise KeywordError(unknown_name(f"setting of {cls.__name__}", name, known))
        return super().__new__(cls)


@cache
def _keywords(kind: type) -> frozenset[str]:
    """Return the names that a class takes, and that it passes on to those that it derives from."""
    names: set[str] = set()
    for each in kind.__mro__:
        if "__init__" in vars(each):
            _, *taken = inspect.signature(vars(each)["__init__"]).parameters.values()
            names.update(
                p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            )
            if not any(p.kind is p.VAR_KEYWORD for p in taken):
                break
    return frozenset(names)


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


def check_number(name: str, value: float, least: float = -math.inf, most: float = math.inf) -> None:
    """Raise a `FedcrfError` unless ``value`` is finite and lies between the two."""
    if not is_number(value) or not least <= value <= most:
        bounds = "" if math.isinf(least) else f" of {least:g} or more"
        bounds = bounds if math.isinf(most) else f" from {least:g} to {most:g}"
        raise FedcrfError(f"{name} {value}: give a number{bounds}")


def checked_number(name: str, value: Any) -> float:
    """Return a setting as a finite number.

    Raises:
        FedcrfError: It is none.
    """
    # "0.5" would pass, and fail where it is multiplied; a truth value is a slip.
    if isinstance(value, str | bytes) or type(value).__name__ == "bool":
        raise FedcrfError(f"{name} {value!r}: give a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise FedcrfError(f"{name} {value!r}: give a number") from None
    if not abs(number) <= LARGEST:
        raise FedcrfError(f"{name} {value}: give a finite number, {LARGEST:g} at most")
    return number


def checked_share(name: str, value: Any) -> float:
    """Return a setting as a number in [0, 1).

    Raises:
        FedcrfError: It is none.
    """
    number = checked_number(name, value)
    if not 0 <= number < 1:
        raise FedcrfError(f"{name} {value}: give a number in [0, 1)")
    return number


def check_not_negative(part: object, *names: str) -> None:
    """Raise a `FedcrfError` unless these fields of a part are finite numbers of 0 or more."""
    for name in names:
        if checked_number(name, getattr(part, name)) < 0:
            raise FedcrfError(f"{name} {getattr(part, name)}: give 0 or more")


def check_positive(part: object, *names: str) -> None:
    """Raise a `FedcrfError` unless these fields of a part are finite numbers above 0."""
    for name in names:
        if checked_number(name, getattr(part, name)) <= 0:
            raise FedcrfError(f"{name} {getattr(part, name)}: give a number above 0")


def check_share(part: object, *names: str) -> None:
    """Raise a `FedcrfError` unless these fields of a part lie in [0, 1)."""
    for name in names:
        checked_share(name, getattr(part, name))


def check_fraction(part: object, *names: str) -> None:
    """Raise a `FedcrfError` unless these fields of a part lie in [0, 1]."""
    for name in names:
        if not 0 <= checked_number(name, getattr(part, name)) <= 1:
            raise FedcrfError(f"{name} {getattr(part, name)}: give a number in [0, 1]")
