"""Checks of settings, wherever there are any: each names the setting and what to give."""

from __future__ import annotations

import inspect
import math
import numbers
import warnings
from abc import ABCMeta
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from fedcrf.errors import EarlierNameWarning, FedcrfError, KeywordError, cut, unknown_name

LARGEST = 1e100
"""Largest setting: squares of labels times a strength must not overflow."""

MOST_TIMES = 1_000_000
"""Most repetitions in a round that a setting may ask for: more is a slip, and would never end."""

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

T = TypeVar("T")


class _NamedSettings(ABCMeta):
    """Looks at the keywords of a class of settings before the class does."""

    def __call__(cls: type[T], *given: Any, **named: Any) -> T:
        """Return the settings; earlier names are accepted, others are an error that helps."""
        known = _keywords(cls)  # type: ignore[arg-type]  # classes are hashable
        if not named.keys() <= known:
            renamed: Mapping[str, str] = cls.renamed  # type: ignore[attr-defined]
            named = current_names(named, renamed, cls.__name__)
            unknown = [name for name in named if name not in known]
            check_not_gone(unknown, cls, f"{cls.__name__}.")
            if unknown:
                raise KeywordError(unknown_name(f"setting of {cls.__name__}", unknown[0], known))
        try:
            settings: T = super().__call__(*given, **named)  # type: ignore[misc]
        except FedcrfError:
            raise
        except TypeError:
            missing = [name for name in _needed(cls)[len(given) :] if name not in named]
            if missing:
                raise KeywordError(f"{cls.__name__} has no {missing[0]}: give it a value") from None
            raise
        return settings

    @property
    def __signature__(cls) -> inspect.Signature:
        """What the class itself takes, for help and editors."""
        _, *taken = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
        return inspect.Signature(taken)


class Settings(metaclass=_NamedSettings):
    """Base of dataclasses of settings, which are given by name and checked by their types.

    Attributes:
        behaviour: A number that is raised when what is made with the class changes; see the golden
            table.
        renamed: Settings by the names that they had in earlier versions, which are accepted.
        gone: What became of settings that earlier versions had, and what to give instead.

    Raises:
        KeywordError: A keyword that is no setting; the nearest one is named.
        FedcrfError: A value that its type excludes: a `Literal`, or one with a `Checked`.
    """

    behaviour: ClassVar[int] = 1
    renamed: ClassVar[Mapping[str, str]] = {}
    gone: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for name, optional, check in _checks_of(type(self)):
            if not (optional and getattr(self, name) is None):
                check(name, getattr(self, name))


def check_not_gone(unknown: Iterable[str], kind: type, prefix: str) -> None:
    """Raise a `KeywordError` if earlier versions of a class had one of these that it lacks."""
    gone: Mapping[str, str] = getattr(kind, "gone", {})
    found = [name for name in unknown if name in gone]
    if found:
        others = f" (nor {', '.join(found[1:])})" if len(found) > 1 else ""
        raise KeywordError(f"{prefix}{found[0]} is no setting any more{others}: {gone[found[0]]}")


Check = Callable[[str, Any], object]
"""Raises a `FedcrfError` unless the setting of this name may have this value."""


@dataclass(frozen=True)
class Checked:
    """How a setting is checked; it stands beside the type, as in ``Annotated[float, number(0)]``.

    ``by`` is the check. If the type allows None, it is not called for None.
    """

    by: Check


def check_given(given: Mapping[str, Any], kind: type) -> None:
    """Check what is given, as `Settings` does, against the types of a class or a ``TypedDict``."""
    for name, optional, check in _checks_of(kind):
        if name in given and not (optional and given[name] is None):
            check(name, given[name])


@cache
def _checks_of(kind: type) -> list[tuple[str, bool, Check]]:
    """Return the checks of a class's settings, each with its name and whether it allows None."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:  # somebody's annotations may name what only a type checker imports
        return [each for base in kind.__bases__ for each in _checks_of(base)]
    found: list[tuple[str, bool, Check]] = []
    for name, hint in hints.items():
        allowed = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        optional = type(None) in allowed
        for each in allowed:
            checks = [
                mark.by for mark in getattr(each, "__metadata__", ()) if type(mark) is Checked
            ]
            if get_origin(each) is Literal:
                checks.append(one_of(get_args(each), optional=optional).by)
            found += [(name, optional, check) for check in checks]
    return found


def current_names(
    given: Mapping[str, T], renamed: Mapping[str, str], where: str, *, notice: bool = True
) -> dict[str, T]:
    """Return settings, or what else is given by name, under the names of today.

    ``renamed`` has today's names by earlier ones, and ``where`` is what messages say they are of.
    Without ``notice`` no message says that a name is an earlier one: an earlier version stored it.

    Raises:
        FedcrfError: Something is given by both of its names.
    """
    current: dict[str, T] = {}
    for name, value in given.items():
        now = renamed.get(name, name)
        if now != name:
            if now in given:
                raise FedcrfError(f"{where}: {name} is the earlier name of {now}: leave {name} out")
            if notice:
                said = f"{where}: {name} is now called {now}"
                warnings.warn(said, EarlierNameWarning, stacklevel=3)
        current[now] = value
    return current


def _needed(kind: type) -> list[str]:
    """Return the names that a class takes and that have no default, in order."""
    return [
        each.name
        for each in inspect.signature(kind).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


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


def check_truth(name: str, value: object) -> None:
    """Raise a `FedcrfError` unless ``value`` is a truth value: any word, "no" too, is true."""
    if type(value).__name__ != "bool":  # NumPy's has the same name
        raise FedcrfError(f"{name} {cut(repr(value), 50)}: give True or False")


def _must_be(kind: str, possible: Callable[[Any], bool]) -> Check:
    """Return a check that a setting is of some kind, which is named where it is not."""

    def check(name: str, value: object) -> None:
        if not possible(value):
            raise FedcrfError(f"{name} is {cut(repr(value), 50)}: give {kind}")

    return check


check_text = _must_be("a text", lambda value: isinstance(value, str) and value != "")
check_path = _must_be(
    "a path",
    lambda value: isinstance(value, str | Path) and str(value) != "" and "\0" not in str(value),
)
check_names = _must_be(
    "names in a tuple, as in ('running_mean',)",
    lambda value: isinstance(value, Collection) and not isinstance(value, str | bytes),
)
check_function = _must_be("a function", callable)


def check_whole(name: str, value: object, least: int, most: float = math.inf) -> None:
    """Raise a `FedcrfError` unless ``value`` is a whole number between the two."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not least <= int(value) <= most:  # type: ignore[call-overload]
        shown = repr(value) if isinstance(value, str) else value  # "3" is seen to be text
        bounds = f"{least} or more" if most == math.inf else f"{least} to {most}"
        raise FedcrfError(f"{name} {shown}: give a whole number, {bounds}")


def checked_number(name: str, value: Any, bounds: str = "") -> float:
    """Return a setting as a finite number; a `FedcrfError` where it is none.

    ``bounds`` stands behind "give a number" in the error; it is not checked here.
    """
    # "0.5" would pass, and fail where it is multiplied; a truth value is a slip.
    if isinstance(value, str | bytes) or type(value).__name__ == "bool":
        raise FedcrfError(f"{name} {value!r}: give a number{bounds}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise FedcrfError(f"{name} {value!r}: give a number{bounds}") from None
    if not abs(number) <= LARGEST:
        raise FedcrfError(f"{name} {value}: give a finite number, {LARGEST:g} at most")
    return number


def _number_if(possible: Callable[[float], bool], bounds: str) -> Check:
    """Return a check that a setting is a finite number that is possible."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, numbers.Real):  # a Decimal or a tensor would fail where it is used
            raise FedcrfError(f"{name} {value!r}: give a number{bounds}")
        if not possible(value):  # type: ignore[arg-type]  # real numbers compare
            raise FedcrfError(f"{name} {value}: give a number{bounds}")
        checked_number(name, value, bounds)

    return check


checked_share = _number_if(lambda value: 0 <= value < 1, " in [0, 1)")


def one_of(choices: Iterable[str], *, optional: bool = False) -> Checked:
    """Return the mark of a setting with these choices, and None where it is ``optional``."""
    known, none = tuple(choices), " or None" if optional else ""

    def check(name: str, value: object) -> None:
        if not isinstance(value, Hashable) or value not in known:  # an array is compared in parts
            raise FedcrfError(f"{name} {cut(repr(value))}: choose from {', '.join(known)}{none}")

    return Checked(check)


def whole(least: int, most: float = math.inf) -> Checked:
    """Return the mark of a whole number between the two."""
    return Checked(partial(check_whole, least=least, most=most))


def number(least: float = -math.inf, most: float = math.inf) -> Checked:
    """Return the mark of a finite number between the two."""
    bounds = ""
    if not math.isinf(most):
        bounds = f" from {least:g} to {most:g}"
    elif not math.isinf(least):
        bounds = f" of {least:g} or more"
    return Checked(_number_if(lambda value: not bounds or least <= value <= most, bounds))


Text = Annotated[str, Checked(check_text)]
Names = Annotated[tuple[str, ...], Checked(check_names)]
Truth = Annotated[bool, Checked(check_truth)]
Natural = Annotated[int, whole(0)]
Count = Annotated[int, whole(1)]
Times = Annotated[int, whole(1, MOST_TIMES)]
NaturalTimes = Annotated[int, whole(0, MOST_TIMES)]
Finite = Annotated[float, number()]
Positive = Annotated[float, Checked(_number_if(lambda value: value > 0, " above 0"))]
NotNegative = Annotated[float, number(0.0)]
Share = Annotated[float, Checked(checked_share)]
"""In [0, 1)."""
BelowHalf = Annotated[float, Checked(_number_if(lambda value: 0 <= value < 0.5, " in [0, 0.5)"))]
"""In [0, 0.5)."""
Part = Annotated[float, Checked(_number_if(lambda value: 0 < value <= 1, " above 0 and up to 1"))]
"""In (0, 1]."""
Fraction = Annotated[float, number(0.0, 1.0)]
"""In [0, 1]."""
