"""Settings of a run: read from files and flags, made dataclasses of, and plain values again."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from fedcrf.checks import check_whole
from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.extensions import short_name
from fedcrf.rules import SERVER_OPTIMIZERS, ServerOptimizer

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
class RoundSettings:
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

    maximum: int = 150
    patience: int = 5
    min_improvement: float = 1e-4
    evaluation_batch_size: int = 256
    clients_per_round: int | None = None
    evaluate_every: int | None = None

    def __post_init__(self) -> None:
        if self.evaluate_every is not None:
            check_whole("evaluate_every", self.evaluate_every, least=1)
        for name in ("maximum", "patience", "evaluation_batch_size"):
            check_whole(name, getattr(self, name), least=1)
        if not 0 <= self.min_improvement < float("inf"):
            raise FedcrfError(f"min_improvement {self.min_improvement}: give 0 or more")


@dataclass(frozen=True)
class ServerSettings:
    """What a run file says of all methods at once; `resolve` says it of each instead."""

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


def build(kind: type[T], options: Options, where: str) -> T:
    """Return a settings dataclass of plain values by name, as TOML and JSON have them.

    ``where`` is the section that they stand in, as errors call it.
    """
    if not isinstance(options, Mapping):
        raise FedcrfError(f"{where} is a section: write [{where}] and its settings below")
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in options:
        if key not in known:
            raise (
                unknown_name(f"key in [{where}]", key, known)
                if known
                else FedcrfError(f"unknown key in [{where}] '{key}': it has no settings")
            )
    built: T = convert(kind, dict(options), where)
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
    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, FedcrfError):
            raise FedcrfError(f"[{where}] {cause}") from None
        # Further parts of the place are items, or the types that a value could have had.
        place = ".".join([where, *(part for part in first["loc"][:1] if isinstance(part, str))])
        if first["type"] == "missing":
            raise FedcrfError(
                f"{place} has no value: give it one, or a default in its class"
            ) from None
        raise FedcrfError(f"{place} is {first['input']!r}: give {wanted(first)}") from None


def _number(value: object) -> Any:
    """Return a number of NumPy's as one of Python's, which is the same in a run file."""
    if not isinstance(value, np.generic):
        raise TypeError
    return value.item()


def wanted(error: ErrorDetails) -> str:
    """Return what should have been given, in the words of a run file."""
    said = error["msg"].removeprefix("Input should be ")
    words = {
        "a valid tuple": "a list, in [brackets]",
        "a valid list": "a list, in [brackets]",
        "a valid array": "a list, in [brackets]",
        "an object": "a section with its settings",
        "a valid dictionary": "a section with its settings",
    }
    return words.get(said, said)


def plain(settings: Any) -> dict[str, Any]:
    """Return a settings dataclass as TOML and JSON know it, but for what is None or ignored."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in dataclasses.asdict(settings).items()
        if value is not None and key not in ignored(settings)
    }


def ignored(settings: Any) -> frozenset[str]:
    """Return the settings that mean nothing to a class of settings, or to one of it."""
    return getattr(settings, "ignores", frozenset())


def without_name(options: Options) -> dict[str, Any]:
    """Return the settings of a section that also says what they are of."""
    return {key: value for key, value in options.items() if key != "name"}


def read_run_file(path: Path) -> dict[str, Any]:
    """Read a run file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedcrfError(f"run file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedcrfError(
            f"run file {path} is not valid TOML ({error}): mend it, or move it away"
        ) from None


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
    if not equals or not key.strip():
        raise FedcrfError(f"--set {text}: write --set section.key=value")
    for candidate in (value, f'"{value}"'):
        try:
            return tomllib.loads(f"{key.strip()} = {candidate}")
        except tomllib.TOMLDecodeError:
            continue
    raise FedcrfError(f"--set {text}: write --set section.key=value")


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
    """Return a setting with its lists as tuples."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def flat(section: Options, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested sections by dotted name, what is from outside in short."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{short_name(key)}.")
        else:
            yield f"{prefix}{key}", value
