"""The paper's tables: which cells they are made of, and how they are written beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.experiments.analysis.claims import claims_table
from fedcrf.experiments.analysis.curves import accuracy_curves
from fedcrf.experiments.analysis.paper import (
    PUBLISHED,
    SETTINGS,
    TITLES,
    Published,
    column_run,
    column_table,
    differences_table,
    paper_table,
)
from fedcrf.experiments.analysis.tables import Table, check_not_emptier
from fedcrf.experiments.folders import check_folder, check_free
from fedcrf.experiments.results import RunResults, frame, read_results, run_rows
from fedcrf.experiments.spec import RunSpec
from fedcrf.experiments.store import Store
from fedcrf.files import write_text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Column:
    """One column of one table: a data set in one setting, and the folder of its run."""

    setting: str
    dataset: str
    store: Store

    @property
    def title(self) -> str:
        """How the tables call it."""
        return f"{TITLES[self.dataset]} {'IID' if self.setting == 'iid' else 'non-IID'}"

    @property
    def published(self) -> Mapping[str, Published]:
        """The paper's numbers by method."""
        return PUBLISHED[self.dataset, self.setting]

    def spec(self, methods: Sequence[str], seeds: Sequence[int]) -> RunSpec:
        """Return the run that fills this column, in the paper's setting."""
        return column_run(self.dataset, self.setting, methods, seeds)

    @cached_property
    def run(self) -> RunResults | None:
        """How far this column's run was when it was first looked at; None where it was not run."""
        return read_results(self.store) if (self.store.path / "run.toml").exists() else None

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The cells of its run, as a table; empty where it was not run."""
        return frame([] if self.run is None else run_rows(self.run, self.store.path, {}))

    def tables(self) -> list[Table]:
        """Return the results beside the paper's, and differences and claims where there are any."""
        run = () if self.run is None else self.run.cells
        results = column_table(self.title, self.cells, self.published)
        differences = differences_table(self.title, self.cells)
        claims = claims_table(
            f"{self.title}: the claims",
            self.cells,
            accuracy_curves(run),
            iid=self.setting == "iid",
        )
        return [results, *(table for table in (differences, claims) if table.rows)]

    def remarks(self) -> list[str]:
        """Return a line for each cell whose files are damaged or do not belong here, or stale."""
        cells = () if self.run is None else self.run.cells
        told = [(each.cell.name, each.damage or each.stale_told) for each in cells]
        return [f"{self.title}, {name}: {line}" for name, line in told if line]


def columns(folder: Path, table: str, datasets: Sequence[str] | None = None) -> list[Column]:
    """Return the columns of the tables, cheapest first.

    Args:
        folder: Holds one run's folder for each column.
        table: ``noniid``, ``iid`` or ``all``.
        datasets: Only these; all of a table's by default.

    Raises:
        FedcrfError: No such table or data set in it.
    """
    if table not in (*SETTINGS, "all"):
        raise unknown_name("table", table, (*SETTINGS, "all"))
    for dataset in datasets or ():
        if dataset not in TITLES:
            raise unknown_name("data set of the paper", dataset, TITLES)
    chosen = [
        Column(setting, dataset, Store(folder / f"{dataset}-{setting}"))
        for dataset, setting in PUBLISHED
        if table in (setting, "all") and (datasets is None or dataset in datasets)
    ]
    if not chosen:
        raise FedcrfError(f"table {table} has no column for {', '.join(datasets or ())}")
    return sorted(chosen, key=lambda column: list(TITLES).index(column.dataset))


def check_tables_folder(folder: Path) -> None:
    """Raise a `FedcrfError` where a folder holds something, and neither a column nor the tables."""
    check_folder(folder)
    ours = [folder / "table-noniid.csv", *(each.store.path for each in columns(folder, "all"))]
    if not any(path.exists() for path in ours):
        check_free(folder, "tables.md", "tables of the paper")


def paper_tables(chosen: Sequence[Column]) -> dict[str, Table]:
    """Return by setting the tables in the paper's layout."""
    return {
        setting: paper_table(setting, {c.dataset: c.cells for c in chosen if c.setting == setting})
        for setting in SETTINGS
        if any(column.setting == setting for column in chosen)
    }


def write_tables(folder: Path, chosen: Sequence[Column]) -> list[Path]:
    """Write the tables of the chosen columns as Markdown, LaTeX and CSV.

    Raises:
        FedcrfError: The folder's tables show more, and nothing is stale; nothing is written.
    """
    layouts = paper_tables(chosen)
    texts = {}
    for setting, table in layouts.items():
        texts[f"table-{setting}.tex"] = table.as_latex()
        texts[f"table-{setting}.csv"] = table.as_csv()
    sections = [f"## {table.title}\n\n{table.as_markdown()}" for table in layouts.values()]
    for column in chosen:
        results, *others = column.tables()
        sections.append(f"## {results.title}\n\n{results.as_markdown()}")
        sections += [table.as_markdown() for table in others]
    texts["tables.md"] = "\n".join(sections)
    stale = any(column.run is not None and column.run.stale for column in chosen)
    check_not_emptier(folder / "tables.md", texts["tables.md"], stale)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]
