"""The paper's tables: which cells they are made of, and how they are written beside its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.experiments.analysis.paper import (
    PUBLISHED,
    SETTINGS,
    TITLES,
    Column,
    claims_table,
    column_table,
    differences_table,
    of_column,
    paper_table,
)
from fedcrf.experiments.analysis.tables import Table
from fedcrf.experiments.analysis.tables import write_tables as write_files
from fedcrf.experiments.cell import check_folder, check_free, stale_line
from fedcrf.experiments.results import frame, read_results, run_rows
from fedcrf.experiments.settings import folder_name
from fedcrf.experiments.store import Store


def columns(table: str, datasets: Sequence[str] | None = None) -> list[Column]:
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


def column_store(folder: Path, column: Column) -> Store:
    """Return where in a folder the run of a column goes."""
    return Store(folder / f"{column.dataset}-{column.setting}")


def check_tables_folder(folder: Path) -> None:
    """Raise a `FedcrfError` where a folder holds something, and neither a column nor the tables."""
    check_folder(folder)
    runs = [column_store(folder, column).path for column in PUBLISHED]
    if not any(path.exists() for path in (folder / "table-noniid.csv", *runs)):
        check_free(folder, "tables.md", "tables of the paper")


def paper_cells(folder: Path) -> pd.DataFrame:
    """Return the cells of all columns that were run, as one table."""
    stores = ((column, column_store(folder, column)) for column in PUBLISHED)
    return frame(
        row
        for column, store in stores
        if (store.path / "run.toml").exists()
        for row in run_rows(
            read_results(store),
            store.path,
            {"dataset": column.dataset, "partition": column.setting},
        )
    )


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
    of_columns = [each for column in columns("all") for each in column_tables(cells, column)]
    return [*(paper_table(cells, setting) for setting in SETTINGS), *of_columns]


def cell_notices(cells: pd.DataFrame) -> list[str]:
    """Return a line for each cell whose files are damaged or do not belong here, or stale."""
    lines = []
    for column in columns("all"):
        own = of_column(cells, column)
        for cell in own[(own["damage"] != "") | (own["stale"] != "")].itertuples():
            name = f"{folder_name(cell.method)}-seed-{cell.seed}"
            lines.append(f"{column.title}, {name}: {cell.damage or stale_line(cell.stale)}")
    return lines


def write_tables(folder: Path, cells: pd.DataFrame) -> list[Path]:
    """Write the tables as Markdown, LaTeX and CSV, unless those there show more."""
    texts, sections = {}, []
    for setting in SETTINGS:
        table = paper_table(cells, setting)
        texts[f"table-{setting}.tex"] = table.as_latex()
        texts[f"table-{setting}.csv"] = table.as_csv()
        sections.append(f"## {table.title}\n\n{table.as_markdown()}")
    for column in columns("all"):
        results, *others = column_tables(cells, column)
        sections.append(f"## {results.title}\n\n{results.as_markdown()}")
        sections += [table.as_markdown() for table in others]
    texts["tables.md"] = "\n".join(sections)
    return write_files(folder, texts, cells)
