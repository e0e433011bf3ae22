"""The words about a client's weight: data, which the terminal and the page fill in alike."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

WORDS: Mapping[str, Any] = tomllib.loads(
    (resources.files("fedcrf.report") / "templates" / "words.toml").read_text(encoding="utf-8")
)
"""The content of ``templates/words.toml``, which says what each entry is."""


@dataclass(frozen=True)
class Title:
    """How tables and charts call something about a client.

    Attributes:
        name: In charts, and in tables of one client's causes.
        about: What it is, for the reader of a table of clients; empty where that is plain.
        column: At the head of its column.
        digits: After the point in a column.
    """

    name: str
    about: str = ""
    column: str = ""
    digits: int = 2


def title_of(cause: str) -> Title:
    """Return how tables and charts call a cause; one that is not known goes by its own name."""
    kind, _, name = cause.partition(" ")
    title = WORDS["titles"].get(kind)
    if title is None or bool(name) != ("{name}" in title["name"]):
        return Title(cause, WORDS["unknown"], cause)
    called = title["name"].format(name=name.replace("_", " "))
    return Title(**{"column": called, **title, "name": called})


def wording(choices: str | Sequence[tuple[float, str]], value: float) -> str:
    """Return the words for a value: those of the first bound above it; the last ones of NaN."""
    if isinstance(choices, str):
        return choices
    return next((words for bound, words in choices if value < bound), choices[-1][1])
