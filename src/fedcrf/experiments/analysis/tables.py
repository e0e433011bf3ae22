"""Tables of results: one set of rows, written for the terminal, Markdown or a spreadsheet."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.pairs import (
    FEWEST_SEEDS,
    Estimate,
    by_axes,
    estimate,
    mean_accuracy,
    method_difference,
    paired_difference,
)
from fedcrf.experiments.methods import method_title
from fedcrf.files import write_text

if TYPE_CHECKING:
    import pandas as pd

    from fedcrf.experiments.analysis.paper import Published

NO_NUMBER = "–"
"""Stands where there is none."""

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

    def write(self, stem: Path) -> list[Path]:
        """Write the table as ``stem.md`` and ``stem.csv`` and return the two paths."""
        texts = {"md": self.as_markdown(), "csv": self.as_csv()}
        for suffix, text in texts.items():
            write_text(stem.with_name(f"{stem.name}.{suffix}"), text)
        return [stem.with_name(f"{stem.name}.{suffix}") for suffix in texts]

    def as_csv(self) -> str:
        """Return the table as comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()


def write_page(
    folder: Path, page: str, texts: Mapping[str, str], cells: pd.DataFrame
) -> list[Path]:
    """Write files of a folder by name, unless the tables of its page show less than before."""
    check_not_emptier(folder / page, texts[page], cells)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def check_not_emptier(path: Path, page: str, cells: pd.DataFrame) -> None:
    """Raise a `FedcrfError` where the tables of a page show less than those of the file at a path.

    Where some of the cells behind it are stale, less may be shown.
    """
    if (cells["stale"] != "").any():
        return
    there = _results_shown(path.read_text("utf-8", errors="replace")) if path.exists() else 0
    here = _results_shown(page)
    if here < there:
        raise FedcrfError(
            f"{path} is kept as it is, since its tables show more results ({there}) than those of "
            f"now ({here}): move it away to have them written, or choose another folder"
        )


def _results_shown(page: str) -> int:
    """Return how many results a page shows.

    That is the number of cells that it says it is of; else the number of its tables' entries with
    decimals, and the sum of their columns of seeds.
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
    title: str, cells: pd.DataFrame, published: Mapping[str, Published], note: str = ""
) -> Table:
    """Return who won and by how much: test accuracy and the paired difference to FedAvg.

    The rows are the methods of one run with a complete cell. ``published`` has the paper's numbers.
    """
    rows = []
    for method in dict.fromkeys(cells["method"]):
        accuracy = mean_accuracy(cells, method)
        if accuracy is not None:
            difference = difference_text(method_difference(cells, method))
            paper = [str(published.get(method, NO_NUMBER))] if published else []
            name, seeds = method_title(method), str(accuracy.seeds)
            rows.append((name, seeds, estimate_text(accuracy), difference, *paper))
    header = ("method", "seeds", "test accuracy", "Δ to FedAvg [95 %]")
    return Table(title, (*header, "paper") if published else header, tuple(rows), note)


def details_table(cells: pd.DataFrame) -> Table:
    """Return what stands behind a result: means of other accuracies, of rounds and of cost.

    Times are medians over the seeds. ``backdoor`` is an attack's success rate, where it has one.
    """
    rows, backdoor = [], bool(cells["attack_success"].notna().any())
    of_method = by_axes(cells, "method")
    for method in dict.fromkeys(cells["method"]):
        own = of_method[method]
        if own.empty:
            continue
        held_out, speed = own["held_out_accuracy"].mean(), np.median(own["images_per_second"])
        rows.append(
            (
                method_title(method),
                f"{np.mean(own['client_mean'].to_numpy()):.3f}",
                f"{np.mean(own['worst_client'].to_numpy()):.3f}",
                *([f"{own['attack_success'].mean():.3f}"] if backdoor else []),
                NO_NUMBER if math.isnan(held_out) else f"{held_out:.3f}",
                f"{own['rounds'].mean():.0f}",
                f"{np.median(own['seconds_per_round']):.2f}",
                NO_NUMBER if math.isnan(speed) else f"{speed:,.0f}",
                f"{np.median(own['aggregation_share']):.1%}",
            )
        )
    accuracies = ("clients", "worst", *(["backdoor"] if backdoor else []), "held-out")
    header = ("method", *accuracies, "rounds", "s/round", "images/s", "server")
    return Table("details", header, tuple(rows))


def comparison_table(runs: Sequence[tuple[str, pd.DataFrame]], note: str = "") -> Table:
    """Return the runs beside each other: a row for each run and method.

    The difference is to the same method of the first run, paired by seed where both had the same
    data.
    """
    rows = []
    (first_name, first), *_ = runs
    of_first = by_axes(first, "method")
    for name, cells in runs:
        of_method = by_axes(cells, "method")
        for method in dict.fromkeys(cells["method"]):
            ours, theirs = of_method[method], of_first[method]
            mean = estimate(ours["accuracy"])
            if mean is None:
                continue
            same_data = ours["fingerprint"].eq(theirs["fingerprint"].reindex(ours.index))
            difference = paired_difference(ours["accuracy"][same_data], theirs["accuracy"])
            rows.append(
                (
                    f"{name}: {method_title(method)}",
                    str(mean.seeds),
                    estimate_text(mean),
                    difference_text(method_difference(cells, method)),
                    NO_NUMBER if cells is first else difference_text(difference),
                )
            )
    header = (
        "run and method",
        "seeds",
        "test accuracy",
        "Δ to FedAvg [95 %]",
        f"Δ to {first_name} [95 %]",
    )
    return Table("The runs beside each other", header, tuple(rows), note)


def estimate_text(value: Estimate) -> str:
    """Return mean ± standard deviation; the mean alone for one seed."""
    return f"{value.mean:.3f}" + ("" if math.isnan(value.sd) else f" ± {value.sd:.3f}")


def difference_text(value: Estimate | None, form: str = "+.3f") -> str:
    """Return the mean and its 95 % interval, or that the seeds are too few for one."""
    if value is None:
        return NO_NUMBER
    return f"{value.mean:{form}} {interval_text(value, form)}"


def interval_text(value: Estimate, form: str = ".3f") -> str:
    """Return the 95 % interval in brackets, or that the seeds are too few for one."""
    if value.seeds < FEWEST_SEEDS:
        return "[too few seeds]"
    return f"[{value.low:{form}}, {value.high:{form}}]"


def spread_text(value: Estimate, form: str = ".3f") -> str:
    """Return the mean ± how far the 95 % interval reaches; the mean alone where it has none."""
    mean = f"{value.mean:{form}}"
    if math.isnan(value.low):
        return mean
    return f"{mean} ± {max(value.mean - value.low, value.high - value.mean):.3f}"


LATEX = str.maketrans(
    {
        "±": r"$\pm$",
        "×": r"$\times$",
        "Δ": r"$\Delta$",
        "−": "$-$",
        "–": "--",
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{sign: f"\\{sign}" for sign in "%&_#${}"},
    }
)
"""What LaTeX has other signs for, or reads as its own."""


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cell.translate(LATEX) for cell in cells) + r" \\"
