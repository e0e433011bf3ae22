"""Tables of results: one set of rows, written for the terminal, Markdown or a spreadsheet."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich import box
from rich.table import Table as RichTable
from rich.text import Text
from scipy.special import ndtr, stdtrit

from fedcrf.errors import FedcrfError
from fedcrf.experiments.settings import method_title
from fedcrf.files import write_text
from fedcrf.simulation.records import RoundRecord, Rounds, reported_round

CONFIDENCE = 0.95

FEWEST_SEEDS = 3
"""With fewer there is no interval."""

FEWEST_DRAWN = 5
"""With fewer there is no bootstrap interval: one of n seeds covers 1 − 2/2ⁿ at most."""

BASELINE = "fedavg"
"""The method that others are compared with."""

RESAMPLES = 10_000
"""How often the seeds are drawn again for the interval of a worst case."""

BOOTSTRAP_SEED = 202_611
"""Names the generator of these draws, so that the same results have the same interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, the sample standard deviation (n − 1), and the ends of its 95 % interval.

    The deviation is NaN of one seed, and of a worst case. The ends are NaN of fewer than three
    seeds, and where no interval was asked for. ``cut`` says that the interval would have reached
    beyond what is possible.
    """

    mean: float
    seeds: int
    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan
    cut: bool = False


def by_axes(cells: pd.DataFrame, *axes: str) -> Mapping[Any, pd.DataFrame]:
    """Return the complete cells at each combination of some axes' values, by seed.

    The keys are the values of one axis, or tuples of the values of several. Any other key has a
    table without rows.
    """
    complete = cells[cells["complete"]].set_index("seed").sort_index()
    groups = complete.groupby(axes[0] if len(axes) == 1 else list(axes), sort=False)
    return defaultdict(lambda: complete.iloc[:0], iter(groups))


def of_method(cells: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return a method's complete cells, by seed."""
    return by_axes(cells, "method")[method]


def mean_grid(cells: pd.DataFrame, down: str, across: str) -> pd.DataFrame:
    """Return the mean accuracies of the complete cells over two axes, for a heat map."""
    complete = cells[cells["complete"]]
    return complete.pivot_table(values="accuracy", index=down, columns=across, aggfunc="mean")


def counted(column: pd.Series) -> dict[str, int]:
    """Return how many cells have each text of a column, in the order of the cells."""
    return dict(Counter(column[column != ""]))


def estimate(values: Sequence[float] | pd.Series) -> Estimate | None:
    """Return mean and sample standard deviation; None where there are no values."""
    found = np.asarray(values, dtype=np.float64)
    if not found.size:
        return None
    sd = float(found.std(ddof=1)) if found.size > 1 else math.nan
    return Estimate(float(found.mean()), found.size, sd)


def mean_accuracy(cells: pd.DataFrame, method: str) -> Estimate | None:
    """Return the mean accuracy of a method's complete cells; None where it has none."""
    return estimate(of_method(cells, method)["accuracy"])


def method_difference(
    cells: pd.DataFrame, method: str, baseline: str = BASELINE
) -> Estimate | None:
    """Return by how much a method is more accurate than another; None without a shared seed."""
    if method == baseline:
        return None
    return paired_difference(
        of_method(cells, method)["accuracy"], of_method(cells, baseline)["accuracy"]
    )


def paired_difference(
    values: pd.Series, baseline: pd.Series, greatest: float = 1.0
) -> Estimate | None:
    """Return the mean of ``values − baseline`` with Student's t interval; None without a pair.

    Both are by seed. The interval is cut at the ``greatest`` possible difference: 1 for accuracies,
    infinity for what has no limits.
    """
    shared = values.index.intersection(baseline.index).sort_values()
    found = estimate(values.loc[shared].to_numpy() - baseline.loc[shared].to_numpy())
    if found is None or found.seeds < FEWEST_SEEDS:
        return found
    half = _student_quantile(found.seeds) * found.sd / math.sqrt(found.seeds)
    low, high = max(found.mean - half, -greatest), min(found.mean + half, greatest)
    return replace(found, low=low, high=high, cut=max(-low, high) >= greatest)


def worst_case(grid: pd.DataFrame) -> tuple[Any, Estimate]:
    """Return the row with the least mean, and that mean with its bootstrap interval.

    The seeds are drawn again, for all rows the same, and each time the least of the means is taken.
    Few seeds make percentiles too narrow: those taken here are as far out as makes the interval of
    a plain mean that of Student's t (the expanded percentile interval of Hesterberg, The American
    Statistician 69, 2015). ``grid`` has accuracies, a column a seed.
    """
    accuracies = grid.to_numpy(dtype=np.float64)
    means, n = accuracies.mean(axis=1), accuracies.shape[1]
    row = int(means.argmin())
    least = float(means[row])
    if n < FEWEST_DRAWN:
        return grid.index[row], Estimate(least, n)
    outside = float(ndtr(-math.sqrt(n / (n - 1)) * _student_quantile(n)))
    drawn = (accuracies @ _drawn_seeds(n).T).min(axis=0).clip(0.0, 1.0)
    # Rounded, as the last digits of a matrix product are the processor's own.
    low, high = np.quantile(drawn, [outside, 1 - outside]).round(12).tolist()
    return grid.index[row], Estimate(least, n, low=min(low, least), high=max(high, least))


def mean_curve(
    seeds: Sequence[Rounds], value: Callable[[RoundRecord], float]
) -> tuple[list[int], NDArray[np.float64], NDArray[np.float64]]:
    """Return rounds, and mean and standard deviation over seeds in each; the latter NaN for one.

    The rounds are those of the run that went on longest. A run that ended earlier keeps the value
    of its reported round.
    """
    longest = max(seeds, key=len)
    curves = np.array(
        [
            [*map(value, rounds), *[value(reported_round(rounds))] * (len(longest) - len(rounds))]
            for rounds in seeds
        ]
    )
    with np.errstate(invalid="ignore"):  # a loss that overflowed
        sd = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.full(len(longest), np.nan)
        return [record.round for record in longest], curves.mean(axis=0), sd


def _student_quantile(n: int) -> float:
    """Return how many standard errors the interval of n seeds reaches to either side."""
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))


@lru_cache
def _drawn_seeds(n: int) -> NDArray[np.float64]:
    """Return the share of each of n seeds in every drawing, (drawings, n)."""
    counts = np.random.default_rng(BOOTSTRAP_SEED).multinomial(n, [1 / n] * n, RESAMPLES)
    return counts / n


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
        header, *rows = (
            " & ".join(cell.translate(LATEX) for cell in cells) + r" \\"
            for cells in (self.header, *self.rows)
        )
        begin = f"\\begin{{tabular}}{{l{'c' * (len(self.header) - 1)}}}"
        end = (r"\bottomrule", r"\end{tabular}", "")
        return "\n".join((begin, r"\toprule", header, r"\midrule", *rows, *end))

    def files(self, name: str) -> dict[str, str]:
        """Return by name the files that it is written to, Markdown and a spreadsheet."""
        return {f"{name}.md": self.as_markdown(), f"{name}.csv": self.as_csv()}

    def as_csv(self) -> str:
        """Return the table as comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()


def write_tables(folder: Path, texts: Mapping[str, str], cells: pd.DataFrame) -> list[Path]:
    """Write files of a folder by name.

    Raises:
        FedcrfError: A page in Markdown would show less than the one that is there, and no cell is
            stale, which would be why. Nothing is written.
    """
    for name, text in texts.items():
        path = folder / name
        if path.suffix == ".md" and path.exists() and not (cells["stale"] != "").any():
            there = _results_shown(path.read_text("utf-8", errors="replace"))
            here = _results_shown(text)
            if here < there:
                raise FedcrfError(
                    f"{path} is kept as it is, since its tables show more results ({there}) than "
                    f"those of now ({here}): move it away to have them written, or choose another "
                    "folder"
                )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def _results_shown(page: str) -> int:
    """Return how many results a page shows.

    That is the number of cells that it says it is made of. If it says none, it is the number of
    entries with decimals in its tables, and the sum of their columns of seeds.
    """
    if said := re.search(r"^(\d+) of \d+ cells;", page, flags=re.MULTILINE):
        return int(said[1])
    shown = 0
    for table in tables_in(page):
        for row in table.rows:
            for name, entry in zip(table.header, row, strict=False):
                if name in ("n", "seeds") and entry.isdecimal():
                    shown += int(entry)
                elif re.search(r"\d\.\d", entry):
                    shown += 1
    return shown


def tables_in(page: str) -> Iterator[Table]:
    """Yield the tables of a page in Markdown, without titles and notes."""
    for lines in re.findall(r"(?:^\|.*\|\n)+", page, flags=re.MULTILINE):
        header, *below = (
            tuple(entry.strip() for entry in line.strip("|").split("|"))
            for line in lines.splitlines()
        )
        yield Table("", header, tuple(below[1:]))  # below the rule


def method_rows(cells: pd.DataFrame) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each method that has a complete cell, with its entries.

    They are the number of its seeds, its accuracy and its paired difference to FedAvg.
    """
    for method in dict.fromkeys(cells["method"]):
        accuracy = mean_accuracy(cells, method)
        if accuracy is not None:
            found = method_difference(cells, method)
            difference = difference_text(found) + fewer(found, accuracy.seeds)
            yield method, (str(accuracy.seeds), estimate_text(accuracy), difference)


def results_table(
    title: str, cells: pd.DataFrame, published: Mapping[str, Estimate], note: str = ""
) -> Table:
    """Return the methods of one run, and the paper's numbers where it has ``published`` some."""
    rows = []
    for method, entries in method_rows(cells):
        paper = (estimate_text(published.get(method)),) if published else ()
        rows.append((method_title(method), *entries, *paper))
    header = ("method", "seeds", "test accuracy", "Δ to FedAvg [95 %]")
    return Table(title, (*header, "paper") if published else header, tuple(rows), note)


DETAILS: Sequence[tuple[str, str, Callable[[Any], Any], str]] = (
    ("clients", "client_mean", np.mean, ".3f"),
    ("worst", "worst_client", np.mean, ".3f"),
    ("backdoor", "attack_success", np.mean, ".3f"),
    ("held-out", "held_out_accuracy", np.mean, ".3f"),
    ("rounds", "rounds", np.mean, ".0f"),
    ("s/round", "seconds_per_round", np.median, ".2f"),
    ("images/s", "images_per_second", np.median, ",.0f"),
    ("server", "aggregation_share", np.median, ".1%"),
)
"""By title the columns behind a result, what is taken of them over the seeds, and their form."""


def details_table(cells: pd.DataFrame) -> Table:
    """Return what stands behind the results; the success of a backdoor if a cell has one."""
    of_method = by_axes(cells, "method")
    backdoor = cells["attack_success"].notna().any()
    shown = [each for each in DETAILS if backdoor or each[1] != "attack_success"]

    def text(method: str, column: str, over_seeds: Callable[[Any], Any], form: str) -> str:
        value = over_seeds(of_method[method][column].to_numpy(dtype=np.float64))
        return NO_NUMBER if math.isnan(value) else f"{value:{form}}"

    rows = [
        (method_title(method), *(text(method, of, what, form) for _, of, what, form in shown))
        for method in dict.fromkeys(cells["method"])
        if not of_method[method].empty
    ]
    return Table("details", ("method", *(title for title, *_ in shown)), tuple(rows))


def comparison_table(runs: Sequence[tuple[str, pd.DataFrame]], note: str = "") -> Table:
    """Return the runs beside each other: a row for each run and method.

    The difference is to the same method of the first run, paired by seed where both had the same
    data and attackers. There is none between runs of different attacks.
    """
    rows = []
    alike = len({attack for _, cells in runs for attack in cells["attack"]}) == 1
    (first_name, first), *_ = runs
    of_first = by_axes(first, "method")
    for name, cells in runs:
        of_method = by_axes(cells, "method")
        for method, entries in method_rows(cells):
            ours, theirs = of_method[method], of_first[method]
            matched = theirs.reindex(ours.index)
            same = ours["fingerprint"].eq(matched["fingerprint"])
            same &= ours["attackers"].map(str).eq(matched["attackers"].map(str))
            to_first = paired_difference(ours["accuracy"][same], theirs["accuracy"])
            found = None if cells is first else to_first
            difference = difference_text(found) + fewer(found, len(ours))
            last = (difference,) if alike else ()
            rows.append((f"{name}: {method_title(method)}", *entries, *last))
    header = ["run and method", "seeds", "test accuracy", "Δ to FedAvg [95 %]"]
    if alike:
        header.append(f"Δ to {first_name} [95 %]")
    return Table("The runs beside each other", tuple(header), tuple(rows), note)


def fewer(found: Estimate | None, seeds: int) -> str:
    """Return the number of an estimate's seeds where they are fewer."""
    return f" (n = {found.seeds})" if found is not None and found.seeds < seeds else ""


def estimate_text(value: Estimate | None) -> str:
    """Return mean ± standard deviation; the mean alone for one seed."""
    if value is None:
        return NO_NUMBER
    return f"{value.mean:.3f}" + ("" if math.isnan(value.sd) else f" ± {value.sd:.3f}")


def difference_text(value: Estimate | None, form: str = "+.3f") -> str:
    """Return the mean and its 95 % interval, or why there is none; see `interval_text`."""
    if value is None:
        return NO_NUMBER
    return f"{value.mean:{form}} {interval_text(value, form)}"


def interval_text(value: Estimate, form: str = ".3f") -> str:
    """Return the 95 % interval in brackets, or that the seeds are too few for one.

    Of one that was cut only the end nearer to 0 is said; where it includes 0, that it is too wide.
    """
    if math.isnan(value.low):
        return "[too few seeds]"
    if value.cut:
        if value.low > 0.0:
            return f"[{value.low:{form}} or more]"
        return f"[{value.high:{form}} or less]" if value.high < 0.0 else "[too wide]"
    return f"[{value.low:{form}}, {value.high:{form}}]"


GREEK = {
    "α": r"\alpha",
    "γ": r"\gamma",
    "ε": r"\varepsilon",
    "σ": r"\sigma",
    "τ": r"\tau",
}

LATEX = str.maketrans(
    {
        "±": r"$\pm$",
        "×": r"$\times$",
        "Δ": r"$\Delta$",
        **{letter: f"${name}$" for letter, name in GREEK.items()},
        "−": "$-$",
        "–": "--",
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{sign: f"\\{sign}" for sign in "%&_#${}"},
    }
)
"""What LaTeX has other signs for, or reads as its own."""
