"""The paper's tables: their study, their numbers beside ours, and claims against paired seeds.

A claim is supported where the 95 % interval of its paired difference lies on the claimed side of
zero, contradicted where it lies on the other, and undecided where it contains zero or the seeds are
too few. Variances are compared by a test for paired samples at the same level. Rounds to an
accuracy that some run never reached are compared by counting the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.experiments.analysis.tables import (
    CONFIDENCE,
    NO_NUMBER,
    Estimate,
    Table,
    by_axes,
    difference_text,
    estimate,
    estimate_text,
    mean_accuracy,
    method_difference,
    method_rows,
    paired_difference,
    write_tables,
)
from fedcrf.experiments.settings import folder_name, merge, method_title
from fedcrf.experiments.spec import RunSpec
from fedcrf.experiments.store import stale_line
from fedcrf.experiments.study import Axis, Study, read_suite

SETTINGS = ("noniid", "iid")
"""The paper's two settings, partitions of its study: table 1, and table 2 of the appendix."""

TITLES: Mapping[str, str] = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
"""Its data sets in its order, which is also that of their cost."""


class Column(NamedTuple):
    """One column of the paper's tables: a data set in one of the two settings."""

    dataset: str
    setting: str  # one of `SETTINGS`

    @property
    def name(self) -> str:
        """How its study calls it, and its folder."""
        return f"{self.dataset}-{self.setting}"

    @property
    def title(self) -> str:
        """How the tables call it."""
        return f"{TITLES[self.dataset]} {'IID' if self.setting == 'iid' else 'non-IID'}"


_COLUMNS = (
    Column("mnist", "noniid"), Column("cifar10", "noniid"), Column("cifar100", "noniid"),
    Column("mnist", "iid"), Column("cifar10", "iid"),
)  # fmt: skip

_ROWS: Mapping[str, tuple[tuple[float, float], ...]] = {
    "fedavg": ((0.890, 0.034), (0.538, 0.096), (0.404, 0.005), (0.975, 0.002), (0.844, 0.007)),
    "fedprox": ((0.892, 0.037), (0.566, 0.145), (0.407, 0.014), (0.976, 0.001), (0.836, 0.019)),
    "fednova": ((0.814, 0.051), (0.102, 0.001), (0.401, 0.014), (0.976, 0.003), (0.841, 0.001)),
    "trimmed-mean": (
        (0.752, 0.096), (0.399, 0.249), (0.395, 0.010), (0.975, 0.002), (0.838, 0.012),
    ),
    "geometric-median": (
        (0.840, 0.071), (0.213, 0.111), (0.400, 0.016), (0.976, 0.003), (0.830, 0.009),
    ),
    "rfa": ((0.879, 0.020), (0.543, 0.048), (0.403, 0.013), (0.976, 0.003), (0.841, 0.006)),
    "crf-fedavg": ((0.895, 0.020), (0.587, 0.062), (0.418, 0.012), (0.976, 0.002), (0.842, 0.013)),
    "crf-fedprox": ((0.898, 0.015), (0.595, 0.088), (0.409, 0.014), (0.976, 0.002), (0.845, 0.012)),
}  # fmt: skip
"""Tables 1 and 2 of the paper, a row a method, the columns in the order of `_COLUMNS`."""

PAPER_METHODS = tuple(_ROWS)
"""The rows of both tables, in the paper's order."""

PUBLISHED: Mapping[Column, Mapping[str, Estimate]] = {
    column: {
        method: Estimate(mean=row[place][0], seeds=3, sd=row[place][1])
        for method, row in _ROWS.items()
    }
    for place, column in enumerate(_COLUMNS)
}
"""By column, then by method, the test accuracy."""

PAIRS = (("crf-fedavg", "fedavg"), ("crf-fedprox", "fedprox"))
"""Methods of the paper, each with its baseline of the same client objective."""

NOT_RUN = "not run"


def chosen_columns(table: str = "all", datasets: Sequence[str] | None = None) -> list[Column]:
    """Return the columns of table ``noniid``, ``iid`` or ``all`` for data sets, cheapest first."""
    if table not in (*SETTINGS, "all"):
        raise unknown_name("table", table, (*SETTINGS, "all"))
    for dataset in datasets or ():
        if dataset not in TITLES:
            raise unknown_name("data set of the paper", dataset, TITLES)
    chosen = [
        column
        for column in PUBLISHED
        if table in (column.setting, "all") and (datasets is None or column.dataset in datasets)
    ]
    if not chosen:
        raise FedcrfError(f"table {table} has no column for {', '.join(datasets or ())}")
    return sorted(chosen, key=lambda column: list(TITLES).index(column.dataset))


def paper_study(
    columns: Sequence[Column], methods: Sequence[str] = PAPER_METHODS, seeds: Sequence[int] = (0,)
) -> Study:
    """Return the study that fills columns of the paper's tables, from ``suites/paper.toml``."""
    paper = read_suite("paper")
    asked = {"methods": list(methods), "seeds": list(seeds)}
    layers = tuple(
        (
            column.name,
            merge(paper.datasets[column.dataset], {"partition": paper.partitions[column.setting]}),
        )
        for column in columns
    )
    return Study((paper.run, asked), (Axis("column", layers),))


def published_column(spec: RunSpec) -> Mapping[str, Estimate]:
    """Return the paper's column for a run in just its setting; empty for any other run.

    The paper does not say in which precision it trained, so that a run of any precision counts.
    Only its own methods count: the code of others may be gone.
    """
    methods = tuple(method for method in spec.methods if method in PAPER_METHODS)
    if not methods:
        return {}
    spec = replace(spec, methods=methods)
    columns = [column for column in PUBLISHED if column.dataset == spec.data.dataset]
    points = paper_study(columns, methods, spec.seeds).points
    for column, (_, paper) in zip(columns, points, strict=True):
        training = replace(paper.training, precision=spec.training.precision)
        if spec.describe() == replace(paper, training=training).describe():
            return PUBLISHED[column]
    return {}


def of_column(cells: pd.DataFrame, column: Column) -> pd.DataFrame:
    """Return the cells of one column."""
    return cells[cells["column"] == column.name]


def column_table(cells: pd.DataFrame, column: Column) -> Table:
    """Return one column with its differences: ours, the paper's, and whether ours lies within.

    n is the number of seeds; "within ± 0.142" means that our mean lies within the paper's mean
    ± 2 sd, and how wide that is.
    """
    rows, cells = [], of_column(cells, column)
    found = dict(method_rows(cells))
    for method in dict.fromkeys([*PAPER_METHODS, *found]):
        paper, mean = PUBLISHED[column].get(method), mean_accuracy(cells, method)
        within = NO_NUMBER
        if paper is not None and mean is not None:
            inside = abs(mean.mean - paper.mean) <= 2 * paper.sd
            within = f"{'within' if inside else 'outside'} ± {2 * paper.sd:.3f}"
        seeds, ours, difference = found.get(method, ("0", NOT_RUN, NO_NUMBER))
        entries = (seeds, ours, estimate_text(paper), within, difference)
        rows.append((method_title(method), *entries))
    header = ("method", "n", "ours", "paper", "± 2 sd", "Δ to FedAvg [95 %]")
    return Table(column.title, header, tuple(rows))


def differences_table(title: str, cells: pd.DataFrame) -> Table:
    """Return the paired differences of methods that share a client objective or a rule."""
    rows = []
    for method, baseline in (*PAIRS, ("crf-fedprox", "crf-fedavg")):
        difference = method_difference(cells, method, baseline)
        if difference is not None:
            name = f"{method_title(method)} − {method_title(baseline)}"
            rows.append((name, str(difference.seeds), difference_text(difference)))
    return Table(title, ("difference", "seeds", "mean [95 %]"), tuple(rows))


def paper_table(cells: pd.DataFrame, setting: str) -> Table:
    """Return one table in the paper's layout: a row a method, ours and the paper's by column."""
    columns = [column for column in PUBLISHED if column.setting == setting]
    of_method = by_axes(cells, "column", "method")
    rows, header = [], ["method"]
    for method in PAPER_METHODS:
        row = [method_title(method)]
        for column in columns:
            ours = estimate(of_method[column.name, method]["accuracy"])
            row.append(NOT_RUN if ours is None else estimate_text(ours))
            row.append(estimate_text(PUBLISHED[column][method]))
        rows.append(tuple(row))
    for column in columns:
        header += [TITLES[column.dataset], "paper"]
    title = "Test accuracy, " + ("IID" if setting == "iid" else "Dirichlet label skew")
    return Table(title, tuple(header), tuple(rows))


REACHED = 0.95
"""Convergence is measured by the rounds to this share of the baseline's best accuracy."""

NEGLIGIBLE = 0.005
"""Half a point of accuracy: what counts as nothing lost under IID."""

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"


def claims_table(title: str, cells: pd.DataFrame, *, iid: bool) -> Table:
    """Hold the paper's claims against the finished cells of one run, those with a curve.

    If the clients' data are alike (``iid``), the paper claims that nothing is lost.
    """
    rows: list[tuple[str, ...]] = []
    of_method = by_axes(cells[cells["curve"].astype(bool)], "method")
    for pair in PAIRS:
        shared = of_method[pair[0]].index.intersection(of_method[pair[1]].index)
        if len(shared) < 2:
            continue
        own, base = (of_method[method].loc[shared] for method in pair)
        name = " and ".join(method_title(method) for method in pair)
        columns = ("accuracy", "best_round", "validation_loss")
        accuracy, best_round, loss = ((own[column], base[column]) for column in columns)
        if iid:
            claim, measured = f"{name}: nothing lost", f"Δ test accuracy above −{NEGLIGIBLE:g}"
            rows.append(
                _above_zero(
                    claim, measured, *accuracy, greatest=1.0, form="+.4f", margin=NEGLIGIBLE
                )
            )
            continue
        rows += [
            _above_zero(f"{name}: higher accuracy", "Δ test accuracy", *accuracy, greatest=1.0),
            _speed(name, own["curve"], base["curve"]),
            _above_zero(f"{name}: keeps improving late", "Δ best round", *best_round, form="+.1f"),
            _above_zero(f"{name}: lower validation loss", "Δ lowest loss", *loss, sign=-1),
            _variance(name, own["accuracy"].to_numpy(), base["accuracy"].to_numpy()),
        ]
    return Table(title, ("claim", "measured", "result [95 %]", "verdict"), tuple(rows))


def _above_zero(
    claim: str,
    measure: str,
    own: pd.Series,
    base: pd.Series,
    *,
    greatest: float = math.inf,
    form: str = "+.3f",
    sign: int = 1,
    margin: float = 0.0,
) -> tuple[str, ...]:
    """Return the row of a claim that ``sign`` times own − base, and a margin, is above zero."""
    difference = paired_difference(own, base, greatest)
    assert difference is not None, "they share seeds"
    low, high = sorted((sign * difference.low, sign * difference.high))
    verdict = SUPPORTED if low + margin > 0 else CONTRADICTED if high + margin < 0 else UNDECIDED
    return claim, measure, difference_text(difference, form), verdict


def _speed(pair: str, ours: pd.Series, theirs: pd.Series) -> tuple[str, ...]:
    """Compare the rounds to each seed's target, which is set by the baseline's run of that seed.

    Where some run never reaches it, its rounds are censored: the seeds are counted on which one
    method is there before the other, and held against chance by the sign test.
    """
    from scipy.stats import binomtest

    targets = [REACHED * max(curve) for curve in theirs]

    def rounds_to(curve: Sequence[float], target: float) -> float:
        return next((n for n, each in enumerate(curve, start=1) if each >= target), math.inf)

    own, base = (np.array([*map(rounds_to, curves, targets)]) for curves in (ours, theirs))
    claim = f"{pair}: converges at least as fast"
    measure = f"rounds to {REACHED:.0%} of the baseline's best validation accuracy on the same seed"
    if np.isfinite([own, base]).all():
        rounds = paired_difference(pd.Series(own), pd.Series(base), math.inf)
        assert rounds is not None
        verdict = SUPPORTED if rounds.high <= 0 else CONTRADICTED if rounds.low > 0 else UNDECIDED
        return claim, f"Δ {measure}", difference_text(rounds, "+.1f"), verdict
    sooner, later = int((own < base).sum()), int((base < own).sum())
    p = float(binomtest(later, sooner + later).pvalue) if sooner + later else 1.0
    value = (
        f"{_rounds_text(own, ours)} against {_rounds_text(base, theirs)}; "
        f"sooner on {sooner} seeds, later on {later} (p = {p:.3f})"
    )
    verdict = UNDECIDED
    if p < 1 - CONFIDENCE:
        verdict = SUPPORTED if sooner > later else CONTRADICTED
    return claim, measure, value, verdict


def _rounds_text(rounds: NDArray[np.float64], curves: pd.Series) -> str:
    """Return the median number of rounds, and how many of the runs reached their target.

    A run that did not would need more rounds than it had. Where such a run is in the lower half,
    the text says what the median exceeds.
    """
    reached = np.isfinite(rounds)
    known = np.where(reached, rounds, [len(curve) for curve in curves])
    first_half = np.lexsort((~reached, known))[: len(rounds) // 2 + 1]
    more = "" if reached[first_half].all() else "> "
    return f"{more}{np.median(known):g} rounds ({reached.sum()} of {len(rounds)} reached)"


def _variance(pair: str, own: NDArray[np.float64], base: NDArray[np.float64]) -> tuple[str, ...]:
    """Compare the variances over paired seeds by Pitman's and Morgan's test.

    The sum and the difference of two paired variables correlate as their variances differ.
    """
    from scipy.stats import pearsonr

    value = f"{own.std(ddof=1):.3f} against {base.std(ddof=1):.3f}"
    verdict = UNDECIDED
    total, difference = own + base, own - base
    if len(own) > 2 and min(np.ptp(total), np.ptp(difference)) > 1e-9:  # else no correlation
        found = pearsonr(total, difference)
        value += f" (p = {found.pvalue:.3f})"
        if found.pvalue < 1 - CONFIDENCE:
            verdict = SUPPORTED if found.statistic < 0 else CONTRADICTED
    return f"{pair}: less variance", "sd of test accuracy over seeds", value, verdict


def column_tables(cells: pd.DataFrame, column: Column) -> list[Table]:
    """Return the results beside the paper's, and differences and claims where there are any."""
    own = of_column(cells, column)
    more = (
        differences_table(column.title, own),
        claims_table(f"{column.title}: the claims", own, iid=column.setting == "iid"),
    )
    return [column_table(cells, column), *(table for table in more if table.rows)]


def all_tables(cells: pd.DataFrame) -> list[Table]:
    """Return the tables in the paper's layout, and behind them those of each column."""
    of_columns = [each for column in chosen_columns() for each in column_tables(cells, column)]
    return [*(paper_table(cells, setting) for setting in SETTINGS), *of_columns]


def cell_notices(cells: pd.DataFrame) -> list[str]:
    """Return a line for each cell whose files are damaged or do not belong here, or stale."""
    lines = []
    for column in chosen_columns():
        own = of_column(cells, column)
        for cell in own[(own["damage"] != "") | (own["stale"] != "")].itertuples():
            name = f"{folder_name(cell.method)}-seed-{cell.seed}"
            lines.append(f"{column.title}, {name}: {cell.damage or stale_line(cell.stale)}")
    return lines


def write_paper(folder: Path, cells: pd.DataFrame) -> list[Path]:
    """Write the tables as Markdown, LaTeX and CSV, unless those there show more."""
    texts, sections = {}, []
    for setting in SETTINGS:
        table = paper_table(cells, setting)
        texts[f"table-{setting}.tex"] = table.as_latex()
        texts[f"table-{setting}.csv"] = table.as_csv()
        sections.append(f"## {table.title}\n\n{table.as_markdown()}")
    for column in chosen_columns():
        results, *others = column_tables(cells, column)
        sections.append(f"## {results.title}\n\n{results.as_markdown()}")
        sections += [table.as_markdown() for table in others]
    texts["tables.md"] = "\n".join(sections)
    return write_tables(folder, texts, cells)
