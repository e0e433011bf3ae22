"""Checks of the settings of the CRF, of its parts and of the server rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcrf.errors import FedcrfError

LARGEST = 1e100
"""Largest setting: squares of labels times a strength must not overflow."""


def checked_labels(labels: Any) -> tuple[float, ...]:
    """Return reliability labels as numbers: at least two, distinct, finite, not negative.

    Raises:
        FedcrfError: They are not.
    """
    if not np.iterable(labels) or isinstance(labels, str | bytes):
        raise FedcrfError(f"labels {labels!r}: give at least two different numbers")
    numbers = tuple(checked_number(label, "labels") for label in labels)
    if len(numbers) < 2 or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise FedcrfError(f"labels {numbers}: give at least two different numbers, none negative")
    return numbers


def checked_number(value: Any, name: str) -> float:
    """Return a setting as a finite number.

    Raises:
        FedcrfError: It is none.
    """
    if isinstance(value, str | bytes):  # "0.5" would pass, and fail where it is multiplied
        raise FedcrfError(f"{name} {value!r}: give a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise FedcrfError(f"{name} {value!r}: give a number") from None
    if not abs(number) <= LARGEST:
        raise FedcrfError(f"{name} {value}: give a finite number, {LARGEST:g} at most")
    return number


def checked_share(value: Any, name: str) -> float:
    """Return a setting as a number in [0, 1).

    Raises:
        FedcrfError: It is none.
    """
    number = checked_number(value, name)
    if not 0 <= number < 1:
        raise FedcrfError(f"{name} {value}: give a number in [0, 1)")
    return number


def check_not_negative(part: object, *names: str) -> None:
    """Raise a `FedcrfError` unless these fields of a part are finite numbers of 0 or more."""
    for name in names:
        if checked_number(getattr(part, name), name) < 0:
            raise FedcrfError(f"{name} {getattr(part, name)}: give 0 or more")


def check_positive(part: object, *names: str) -> None:
    """Raise a `FedcrfError` unless these fields of a part are finite numbers above 0."""
    for name in names:
        if checked_number(getattr(part, name), name) <= 0:
            raise FedcrfError(f"{name} {getattr(part, name)}: give a number above 0")


def check_share(part: object, *names: str) -> None:
    """Raise a `FedcrfError` unless these fields of a part lie in [0, 1)."""
    for name in names:
        checked_share(getattr(part, name), name)


def check_fraction(part: object, *names: str) -> None:
    """Raise a `FedcrfError` unless these fields of a part lie in [0, 1]."""
    for name in names:
        if not 0 <= checked_number(getattr(part, name), name) <= 1:
            raise FedcrfError(f"{name} {getattr(part, name)}: give a number in [0, 1]")
