"""Settings of a run: read from files and flags, made dataclasses of, and plain values again."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from fedcrf.checks import Count, NotNegative, Settings, check_not_gone, current_names, whole
from fedcrf.errors import FedcrfError, cut, failing, unknown_name
from fedcrf.extensions import installed, is_outside, short_name
from fedcrf.objectives import OBJECTIVES
from fedcrf.rules import SERVER_OPTIMIZERS, ServerOptimizer, find_rule
from fedcrf.rules.byzfl import PREFIX

Options = Mapping[str, Any]

T = TypeVar("T")


@dataclass(frozen=True)
class DataSettings:
    """Which images; where they lie is no part of a run's description.

    Attributes:
        dataset: Name of a known data set, or of one on the Hugging Face hub.
        image_column: Its column of images; detected where left out.
        label_column: Its column of labels; detected where left out.
        image_size: Resize all images to this many pixels square.
        limit: Use at most so many images to train on, and as many held out; all where left out.
    """

    dataset: str = "digits"
    image_column: str | None = None
    label_column: str | None = None
    image_size: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class RoundSettings(Settings):
    """How long a run goes on, who takes part in a round, and how it is evaluated.

    Attributes:
        maximum: Rounds at most.
        patience: Rounds without improvement of the validation loss before it stops.
        min_improvement: What counts as an improvement; in units of the loss.
        evaluation_batch_size: Examples evaluated at once.
        clients_per_round: Clients drawn for each round; all of them where left out.
        evaluate_every: Evaluate and record every so many rounds, and the last one; every round
            where left out. Patience then counts evaluations.
    """

    maximum: Count = 150
    patience: Count = 5
    min_improvement: NotNegative = 1e-4
    evaluation_batch_size: Annotated[int, whole(1, 2**31)] = 256
    clients_per_round: int | None = None
    evaluate_every: Count | None = None


@dataclass(frozen=True)
class ServerSettings:
    """Section [server] of a run file, for all methods at once; `resolve` says it of each."""

    optimizer: str | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        if self.optimizer is not None:
            find_server_optimizer(self.optimizer)


def find_server_optimizer(name: str) -> type[ServerOptimizer]:
    """Return the server optimizer of that name."""
    if name not in SERVER_OPTIMIZERS:
        raise unknown_name("server optimizer", name, SERVER_OPTIMIZERS)
    return SERVER_OPTIMIZERS[name]


def build(kind: type[T], options: Options, where: str, *, stored: bool = False) -> T:
    """Return a settings dataclass of plain values by name, as TOML and JSON have them.

    ``where`` is the section that they stand in, as errors call it; empty of a whole file. Earlier
    names are accepted; of ``stored`` settings those that the class has no more are left out.
    """
    within, prefix = (f" in [{where}]", f"{where}.") if where else ("", "")
    if not isinstance(options, Mapping):
        raise FedcrfError(f"{where} is a section: write [{where}] and its settings below")
    known = [field.name for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]
    options = current_names(options, getattr(kind, "renamed", {}), where, notice=not stored)
    if stored:
        options = without_gone(options, kind)
    unknown = [key for key in options if key not in known]
    check_not_gone(unknown, kind, prefix)
    if unknown and known:
        raise unknown_name(f"key{within}", unknown[0], known)
    if unknown:
        raise FedcrfError(f"unknown key{within} '{unknown[0]}': it has no settings")
    built: T = convert(kind, options, where)
    return built


@cache  # making one costs a hundred times its use, and there is one for each kind of settings
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def convert(kind: Any, value: Any, where: str) -> Any:
    """Return a value as some type, which it must already be in the sense of TOML and JSON.

    ``where`` is the place that errors name.
    """
    try:
        # As JSON, since there "3" and true are no numbers, and a list may stand for a tuple.
        text = to_json(value, inf_nan_mode="constants", fallback=_number)
    except PydanticSerializationError:
        raise FedcrfError(
            f"{where} is {value!r}: give what a run file can hold, numbers, text, truth values, "
            "lists and sections"
        ) from None
    with failing(f"[{where}] {{}}"):  # a check of somebody's own may raise anything
        try:
            return _adapter(kind).validate_json(text, strict=True)
        except PydanticUserError as error:
            why = error.message.partition(". ")[0].partition("\n")[0]
            raise FedcrfError(f"[{where}] has a setting of no known type ({why}): {OWN}") from None
        except ValidationError as error:
            raise _not_possible(error.errors()[0], where) from None


def _not_possible(error: ErrorDetails, where: str) -> FedcrfError:
    """Return what is wrong with a value, and what to give."""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, Exception):  # of a check of its own
        return FedcrfError(
            f"[{where}] {' '.join(str(cause).split()) or 'a check of its own fails'}"
        )
    # Further parts of the place are items, or the types that a value could have had.
    named = [part for part in error["loc"][:1] if isinstance(part, str)]
    place = ".".join(filter(None, [where, *named]))
    if error["type"] == "missing":
        return FedcrfError(f"{place} has no value: give it one")
    return FedcrfError(f"{place} is {cut(repr(error['input']))}: give {wanted(error)}")


OWN = "use numbers, text, truth values and tuples of them"
"""What settings of a class of somebody's own may be."""


def check_own(settings: Any, where: str) -> None:
    """Raise a `FedcrfError` if a run cannot keep settings of a class of somebody's own."""
    if not type(settings).__dataclass_params__.frozen:
        raise FedcrfError(
            f"[{where}] is of a class that is not frozen: give a frozen dataclass, with "
            "@dataclass(frozen=True)"
        )
    for each in dataclasses.fields(settings):
        value = getattr(settings, each.name)
        if each.init and not _is_kept(value):
            raise FedcrfError(
                f"{where}.{each.name} is a {type(value).__name__}, which no setting can be: {OWN}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise FedcrfError(f"{where}.{each.name} is {value}: give a finite number")


def _is_kept(value: object) -> bool:
    if isinstance(value, tuple):
        return all(each is not None and _is_kept(each) for each in value)
    if dataclasses.is_dataclass(value):
        return all(_is_kept(getattr(value, each.name)) for each in dataclasses.fields(value))
    return value is None or isinstance(_plain(value), bool | int | float | str)


def _number(value: object) -> Any:
    """Return a number of NumPy's as one of Python's, which is the same in a run file."""
    if not isinstance(value, np.generic):
        raise TypeError
    return value.item()


def wanted(error: ErrorDetails) -> str:
    """Return what should have been given, in the words of a run file."""
    said = error["msg"].removeprefix("Input should be ")
    if said in ("a valid tuple", "a valid list", "a valid array"):
        return "a list, in [brackets]"
    return "a section with its settings" if said in ("an object", "a valid dictionary") else said


def plain(settings: Any) -> dict[str, Any]:
    """Return a dataclass's settings as TOML and JSON have them, without what is None or ignored."""
    ignores = ignored(settings)
    given = {
        each.name: getattr(settings, each.name)
        for each in dataclasses.fields(settings)
        if each.init and each.name not in ignores
    }
    return {name: _plain(value) for name, value in given.items() if value is not None}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    return value.item() if isinstance(value, np.generic) else value


def ignored(settings: Any) -> frozenset[str]:
    """Return the names of the settings that a class of settings, or an instance, ignores."""
    named: frozenset[str] = getattr(settings, "ignores", frozenset())
    return named


def without_gone(options: Options, kind: type) -> dict[str, Any]:
    """Return the settings of a stored run without those that its class has no more."""
    gone = {*getattr(kind, "gone", {})} - {each.name for each in dataclasses.fields(kind)}
    return {key: value for key, value in options.items() if key not in gone}


def without_name(options: Options) -> dict[str, Any]:
    """Return the settings of a section that also says what they are of."""
    return {key: value for key, value in options.items() if key != "name"}


NO_TOML = (ValueError, RecursionError)
"""What reading raises of a text that is no TOML, has a number of thousands of digits, or is nested
thousands of times."""


def read_toml(path: Path, what: str = "run file") -> dict[str, Any]:
    """Read a run file, or another file of TOML, which errors call ``what``."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except IsADirectoryError:
        raise FedcrfError(
            f"{what} {path} is a folder: give a file, such as {path / 'run.toml'}"
        ) from None
    except OSError as error:
        raise FedcrfError(f"{what} {path} cannot be read: {error.strerror}") from None
    except NO_TOML as error:
        raise FedcrfError(f"{what} {path} is not valid TOML ({error}): mend it") from None


def merge(*layers: Options) -> dict[str, Any]:
    """Return the layers as one nested dictionary; later ones win, key by key."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
                merged[key] = merge(merged[key], value)
            else:
                merged[key] = merge(value) if isinstance(value, Mapping) else value
    return merged


def setting(text: str) -> dict[str, Any]:
    """Return ``section.key=value`` as a nested dictionary; the value is read as TOML."""
    key, equals, value = text.partition("=")
    if equals and key.strip():
        for candidate in (value, f'"{value}"'):  # text may come without quotation marks
            with suppress(*NO_TOML):
                return tomllib.loads(f"{key.strip()} = {candidate}")
    raise FedcrfError(f"--set {cut(text)}: write --set section.key=value")


def lasting(description: str) -> str:
    """Return it without places in memory, which are others in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", description)


def differences(before: Options, now: Options) -> Iterator[tuple[str, Any, Any]]:
    """Yield the settings in which two descriptions differ, by dotted name, with both values.

    A value is ``"unset"`` where its description lacks the setting; 1 is not 1.0.
    """
    there, here = dict(flat(before)), dict(flat(now))
    for key in {**there, **here}:
        was, is_now = there.get(key, "unset"), here.get(key, "unset")
        if json.dumps(was) != json.dumps(is_now):
            yield key, was, is_now


def hashable(value: Any) -> Any:
    """Return a setting with its lists, and the items of its sections, as tuples."""
    if isinstance(value, Mapping):
        return tuple(sorted((key, hashable(each)) for key, each in value.items()))
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return the sections of a run file that give one setting its value; ``key`` is dotted."""
    sections: Any = value
    for part in reversed(key.split(".")):
        sections = {part: sections}
    return dict(sections)


def flat(section: Options, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested sections by dotted name, with short names of things outside."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{short_name(key)}.")
        else:
            yield f"{prefix}{key}", value


@dataclass(frozen=True)
class Method:
    """A client objective with a server rule, and a server optimizer where there is one."""

    name: str  # on the command line and in results
    rule: str
    objective: str
    title: str  # in tables and figures
    server_optimizer: str | None = None

    @property
    def parts(self) -> str:
        """What it is made of."""
        parts = (self.rule, self.objective, self.server_optimizer)
        return " + ".join(part for part in parts if part)


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("fedavg", rule="fedavg", objective="plain", title="FedAvg"),
        Method("fedprox", rule="fedavg", objective="proximal", title="FedProx"),
        Method("fedavgm", "fedavg", "plain", title="FedAvgM", server_optimizer="momentum"),
        Method("fedadagrad", "fedavg", "plain", title="FedAdagrad", server_optimizer="adagrad"),
        Method("fedadam", "fedavg", "plain", title="FedAdam", server_optimizer="adam"),
        Method("fedyogi", "fedavg", "plain", title="FedYogi", server_optimizer="yogi"),
        Method("fedexp", "fedavg", "plain", title="FedExP", server_optimizer="fedexp"),
        Method("uniform", rule="uniform", objective="plain", title="Uniform"),
        Method("fednova", rule="fednova", objective="plain", title="FedNova"),
        Method("coordinate-median", "coordinate-median", "plain", title="Coord. median"),
        Method("trimmed-mean", rule="trimmed-mean", objective="plain", title="Trimmed mean"),
        Method("geometric-median", "geometric-median", "plain", title="Geom. median"),
        Method("rfa", rule="rfa", objective="plain", title="RFA"),
        Method("krum", rule="krum", objective="plain", title="Krum"),
        Method("multi-krum", rule="multi-krum", objective="plain", title="Multi-Krum"),
        Method("gas", rule="gas", objective="plain", title="GAS"),
        Method("fltrust", rule="fltrust", objective="plain", title="FLTrust (has server data)"),
        Method("foundation-fl", "foundation-fl", "plain", title="FoundationFL"),
        Method("centered-clipping", "centered-clipping", "plain", title="Centered clipping"),
        Method("fedawa", rule="fedawa", objective="plain", title="FedAWA"),
        Method("feddisco", rule="feddisco", objective="plain", title="FedDisco"),
        Method("bra", rule="bra", objective="plain", title="BRA"),
        Method("fedscs", rule="fedscs", objective="plain", title="FedSCS"),
        Method("foolsgold", rule="foolsgold", objective="plain", title="FoolsGold"),
        Method("dnc", rule="dnc", objective="plain", title="DnC"),
        Method("signguard", rule="signguard", objective="plain", title="SignGuard"),
        Method("flame", rule="flame", objective="plain", title="FLAME"),
        Method("lasa", rule="lasa", objective="plain", title="LASA"),
        Method("crf-fedavg", rule="crf", objective="plain", title="CRF-FedAvg"),
        Method("crf-fedprox", rule="crf", objective="proximal", title="CRF-FedProx"),
        Method("crf-robust", "crf-robust", "plain", title="CRF-robust"),
        Method("crf-evidence", "crf-evidence", "plain", title="CRF-evidence"),
        Method("crf-robust-evidence", "crf-robust-evidence", "plain", "CRF-robust-evidence"),
    )
}

GONE_METHODS = {"crf-windowed": "crf-robust"}
"""By the name of a method that there is no more, the method to give instead."""


def find_method(name: str, *, known: bool = True) -> Method:
    """Return the method of that name.

    It may be a rule of ByzFL such as ``byzfl-nnm-krum``, one from outside the package such as
    ``./mine.py:MyRule`` (`fedcrf.extensions`), or any ``RULE+OBJECTIVE`` such as
    ``uniform+proximal``; either may be followed by a server optimizer, as in ``crf-fedavg+adam``.
    If it need not be ``known``, it may be the method of a stored result whose code is gone.
    """
    if name in METHODS:
        return METHODS[name]
    first, plus, last = name.rpartition("+")
    if not plus:
        first, last = name, ""
    if last in SERVER_OPTIMIZERS:
        return with_server_optimizer(find_method(first, known=known), last)
    outside = first.startswith(PREFIX) or is_outside(first) or first in installed("rule")
    if not last and known and name in GONE_METHODS:
        raise FedcrfError(f"method {name} is {GONE_METHODS[name]} now: give that")
    if not last and known and not outside:
        if of_rule := [method.name for method in METHODS.values() if method.rule == name]:
            raise FedcrfError(f"{name} is a rule, and no method: choose from {', '.join(of_rule)}")
        raise unknown_name("method", name, [*METHODS, *installed("rule")])
    if known and last not in ("", *OBJECTIVES, *installed("objective")) and not is_outside(last):
        raise unknown_name("objective or server optimizer", last, (*OBJECTIVES, *SERVER_OPTIMIZERS))
    if known:
        find_rule(first)
    title = "+".join(short_name(part) for part in (first, last) if part)
    return Method(name, rule=first, objective=last or "plain", title=title)


def averaging_method(name: str) -> str:
    """Return the method that averages as FedAvg does, with a method's objective and optimizer."""
    method = find_method(name)
    wanted = method.objective, method.server_optimizer
    for known in METHODS.values():
        if known.rule == "fedavg" and (known.objective, known.server_optimizer) == wanted:
            return known.name
    return "+".join(part for part in ("fedavg", *wanted) if part)


def is_method(name: str) -> bool:
    """Tell whether there is a method of that name."""
    try:
        find_method(name)
    except FedcrfError:
        return False
    return True


def with_server_optimizer(method: Method, optimizer: str) -> Method:
    """Return the method followed by a server optimizer, of which it may have none yet."""
    if method.server_optimizer:
        raise FedcrfError(
            f"method {method.name}+{optimizer}: {method.name} has a server optimizer already "
            f"({method.server_optimizer}); name one"
        )
    name = f"{method.name}+{optimizer}"
    return replace(method, name=name, title=folder_name(name), server_optimizer=optimizer)


def method_title(name: str) -> str:
    """Return how tables and figures call a method, whether or not there still is one."""
    return find_method(name, known=False).title


def folder_name(name: str) -> str:
    """Return what folders and files call a method: without the places of what is from outside."""
    return "+".join(map(short_name, name.split("+")))
