"""A run's description as it is given: a file, what the flags say, and one laid over the other."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcrf.errors import FedcrfError
from fedcrf.experiments.settings import Options


def read_run_file(path: Path) -> dict[str, Any]:
    """Read a run file.

    Raises:
        FedcrfError: No such file, or not TOML.
    """
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
    """Return ``section.key=value`` as a nested dictionary; the value is read as TOML.

    Raises:
        FedcrfError: Not of that form.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise FedcrfError(f"--set {text}: write --set section.key=value")
    for candidate in (value, f'"{value}"'):
        try:
            return tomllib.loads(f"{key.strip()} = {candidate}")
        except tomllib.TOMLDecodeError:
            continue
    raise FedcrfError(f"--set {text}: write --set section.key=value")
