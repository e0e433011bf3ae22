"""The error every user mistake ends in."""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class FedcrfError(ValueError):
    """A mistake the user can mend: one clear line that names the thing and the mend.

    The command line prints the message without a traceback and exits with status 2. What reads,
    writes or checks may raise it; docstrings say so where it is not plain.
    """


class KeywordError(FedcrfError, TypeError):
    """A keyword that is no setting; a `TypeError` too, as Python's own is."""


class EarlierNameWarning(FutureWarning):
    """Notice of a name that an earlier version had: it is accepted, and a new one is there."""


NOT_OWN = ("<", *(str(Path(file).parent) + os.sep for file in (__file__, os.__file__)))
"""How names of files begin that are not the user's: made up, or of this package or of Python."""


def in_a_line(error: BaseException) -> str:
    """Return the kind of an error that is none of ours, what it says and where, in one line."""
    said = filter(None, (type(error).__name__, " ".join(str(error).split())))
    return f"{': '.join(said)}{own_line(error)}"


def own_line(error: BaseException) -> str:
    """Return the innermost line of the user's files that an error passed: ``, at mine.py:12``.

    It is empty where there is none: this package, Python and what is installed do not count.
    """
    for note in getattr(error, "__notes__", ()):  # by another process: its traceback is not here
        if note.startswith(", at "):
            return str(note)
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file = Path(frame.f_code.co_filename)
        installed = {"site-packages", "dist-packages"} & {*file.parts}
        if not str(file).startswith(NOT_OWN) and not installed:
            return f", at {file.name}:{line}"
    return ""


@contextmanager
def failing(line: str) -> Iterator[None]:
    """Turn whatever code of others raises into a `FedcrfError`, said in place of ``{}``.

    `SystemExit` is turned too: it would end a run without a word.
    """
    try:
        yield
    except FedcrfError:
        raise
    except (Exception, SystemExit) as error:
        raise FedcrfError(line.replace("{}", in_a_line(error))) from error


def cut(text: str, most: int = 200) -> str:
    """Return a text in one line; of one of more characters than ``most`` the beginning."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def of_file(error: OSError, otherwise: object = "file") -> str:
    """Return which file, or ``otherwise`` what, could not be read or written, and why."""
    return f"{error.filename or otherwise}: {error.strerror or error}"


def listed(things: Sequence[object], most: int = 20, between: str = ", ") -> str:
    """Return things as text with commas between them; of more than so many the first ones."""
    more = ["…"] if len(things) > most else []
    return between.join([*map(str, things[:most]), *more])


def unknown_name(kind: str, name: str, known: Iterable[str]) -> FedcrfError:
    """Build the error for a name that does not exist, naming the nearest one that does.

    ``kind`` is what the name was meant to be, such as ``"data set"``; ``known`` has all that exist.
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    others = f"choose from {', '.join(names)}." if names else "there is none."
    mend = f"did you mean '{nearest[0]}'?" if nearest else others
    if name.endswith(".py"):
        mend = f"name what is in the file, as in {name}:NAME"
    return FedcrfError(f"unknown {kind} '{cut(name)}': {mend}")
