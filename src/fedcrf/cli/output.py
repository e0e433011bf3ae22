"""What the commands print besides the display of a run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

if TYPE_CHECKING:
    from fedcrf.experiments.analysis.tables import Table

TableForm = Literal["terminal", "markdown", "latex"]

# In a pipe lines are as long as they need to be, unless COLUMNS says otherwise.
console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200)


def say(line: str) -> None:
    """Print a line as it is, however long."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def list_files(paths: list[Path]) -> None:
    """Print a line for each file that was written."""
    for path in paths:
        say(f"wrote {shlex.quote(str(path))}")


def list_entries(title: str, entries: dict[str, str]) -> None:
    """Print names and what each is, below a title."""
    say(f"{title}:")
    width = max(map(len, entries))
    for name, line in entries.items():
        say(f"  {name:<{width}}  {line}")


def print_tables(tables: Sequence[Table], form: TableForm = "terminal") -> None:
    """Print the tables that have rows, one after the other."""
    texts = []
    for table in tables:
        if not table.rows:
            continue
        if form == "terminal":
            print_table(table)
        else:
            texts.append(table.as_markdown() if form == "markdown" else table.as_latex())
    print("\n".join(texts), end="")


def print_table(table: Table) -> None:
    """Print a table, its note and an empty line."""
    console.print(table.for_terminal())
    if table.note:
        console.print(table.note, markup=False, highlight=False)
    console.print()
