"""Tables of results: one set of rows, written for the terminal, Markdown or a spreadsheet."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from fedcrf.errors import FedcrfError
from fedcrf.experiments.compare import (
    FEWEST_SEEDS,
    Estimate,
    MethodResult,
    PairedDifference,
    WorstCase,
)
from fedcrf.experiments.methods import find_method
from fedcrf.experiments.paper import Published

UNDER_ATTACK = (
    "Under attack the reported round is the one with the lowest validation loss of the honest "
    "clients, and accuracies are theirs. A server does not know them, and could not choose so."
)
"""Stands beside the results of runs with an attack."""


@dataclass(frozen=True)
class Table:
    """A title, a header and rows of text; the first column is left-aligned, the others right.

    ``note`` stands below it, where there is one, but for spreadsheets and LaTeX.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def for_terminal(self) -> RichTable:
        """Return the table as the terminal shows it, without its note."""
        table = RichTable(  # of text, in which brackets are no markup
            title=Text(self.title, style="bold"),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            padding=(0, 1, 0, 0),
        )
        for number, name in enumerate(self.header):  # folded where it is too wide, never cut off
            table.add_column(Text(name), justify="right" if number else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))
        return table

    def as_markdown(self) -> str:
        """Return the table in Markdown."""
        rule = ["---", *("---:" for _ in self.header[1:])]
        lines = [self.header, rule, *self.rows]
        cells = ([cell.replace("|", r"\|") for cell in line] for line in lines)
        text = "\n".join("| " + " | ".join(line) + " |" for line in cells) + "\n"
        return f"{text}\n{self.note}\n" if self.note else text

    def as_latex(self) -> str:
        """Return the table as a LaTeX ``tabular`` with booktabs rules."""
        lines = [
            f"\\begin{{tabular}}{{l{'c' * (len(self.header) - 1)}}}",
            r"\toprule",
            _latex_row(self.header),
            r"\midrule",
            *(_latex_row(row) for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"

    def as_csv(self) -> str:
        """Return the table as comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()


def check_not_emptier(path: Path, page: str, stale: bool) -> None:
    """Check that the tables of a Markdown page show no less than those of the file it replaces.

    Args:
        path: Of the file, where there is one.
        page: What is to be written.
        stale: Whether cells are left out as other code made them; then less may be shown.

    Raises:
        FedcrfError: They show less.
    """
    if stale:
        return
    there = _results_shown(path.read_text("utf-8", errors="replace")) if path.exists() else 0
    here = _results_shown(page)
    if here < there:
        raise FedcrfError(
            f"{path} is kept as it is, since its tables show more results ({there}) than those of "
            f"now ({here}): move it away to have them written, or choose another folder"
        )


def _results_shown(page: str) -> int:
    """Return of how many cells of a grid a page says it is, else how much its tables hold.

    That is the number of their entries with decimals, and all that is in their columns of seeds.
    """
    if said := re.search(r"^(\d+) of \d+ cells;", page, flags=re.MULTILINE):
        return int(said[1])
    shown = 0
    for lines in re.findall(r"(?:^\|.*\n)+", page, flags=re.MULTILINE):
        header, *rows = (
            [entry.strip() for entry in line.split("|")] for line in lines.splitlines()
        )
        for name, entry in (pair for row in rows for pair in zip(header, row, strict=False)):
            if name in ("n", "seeds") and entry.isdecimal():
                shown += int(entry)
            elif re.search(r"\d\.\d", entry):
                shown += 1
    return shown


def results_table(
    title: str,
    results: Sequence[MethodResult],
    published: Mapping[str, Published],
    note: str = "",
) -> Table:
    """Return who won and by how much: test accuracy and the paired difference to FedAvg.

    Args:
        title: Stands above it.
        results: One a method.
        published: The paper's numbers by method; no such column where empty.
        note: Stands below it.
    """
    columns = {
        "method": [find_method(result.method).title for result in results],
        "seeds": [str(result.test.seeds) for result in results],
        "test accuracy": [estimate_text(result.test) for result in results],
        "Δ to FedAvg [95 %]": [difference_text(result.difference) for result in results],
    }
    if published:
        columns["paper"] = [str(published.get(result.method, "–")) for result in results]
    return replace(_table(title, columns), note=note)


def details_table(results: Sequence[MethodResult]) -> Table:
    """Return what stands behind a result: means of other accuracies, of rounds and of cost."""
    return _table(
        "details",
        {
            "method": [find_method(result.method).title for result in results],
            "clients": [f"{result.client_mean.mean:.3f}" for result in results],
            "worst": [f"{result.worst_client.mean:.3f}" for result in results],
            "held-out": [
                f"{result.held_out.mean:.3f}" if result.held_out else "–" for result in results
            ],
            "rounds": [f"{result.rounds:.0f}" for result in results],
            "s/round": [f"{result.seconds_per_round:.2f}" for result in results],
            "images/s": [
                "–" if math.isnan(result.images_per_second) else f"{result.images_per_second:,.0f}"
                for result in results
            ],
            "server": [f"{result.aggregation_share:.1%}" for result in results],
        },
    )


def _table(title: str, columns: Mapping[str, Sequence[str]]) -> Table:
    return Table(title, tuple(columns), tuple(zip(*columns.values(), strict=True)))


def estimate_text(value: Estimate) -> str:
    """Return mean ± standard deviation; the mean alone for one seed."""
    return f"{value.mean:.3f}" + ("" if math.isnan(value.sd) else f" ± {value.sd:.3f}")


def difference_text(value: PairedDifference | None, form: str = "+.3f") -> str:
    """Return the mean and its 95 % interval, or that the seeds are too few for one."""
    if value is None:
        return "–"
    return f"{value.mean:{form}} {interval_text(value, form)}"


def interval_text(value: PairedDifference | WorstCase, form: str = ".3f") -> str:
    """Return the 95 % interval in brackets, or that the seeds are too few for one."""
    if value.seeds < FEWEST_SEEDS:
        return "[too few seeds]"
    return f"[{value.low:{form}}, {value.high:{form}}]"


LATEX = str.maketrans(
    {"±": r"$\pm$", "–": "--", "%": r"\%", "Δ": r"$\Delta$", "&": r"\&", "_": r"\_"}
)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cell.translate(LATEX) for cell in cells) + r" \\"
