"""The paper's tables: which cells they are made of, and how they are written beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.experiments.claims import claims_table
from fedcrf.experiments.compare import Estimate, MethodResult, compare, pair_methods
from fedcrf.experiments.methods import find_method
from fedcrf.experiments.paper import PUBLISHED, Published, paper_spec
from fedcrf.experiments.spec import RunSpec
from fedcrf.experiments.standing import RunStanding, standing
from fedcrf.experiments.store import RunStore, check_folder, check_free
from fedcrf.experiments.tables import Table, check_not_emptier, difference_text, estimate_text
from fedcrf.files import write_text

SETTINGS = ("noniid", "iid")
"""The paper's two settings: table 1, and table 2 of the appendix."""

PAPER_METHODS = (
    "fedavg",
    "fedprox",
    "fednova",
    "trimmed-mean",
    "geometric-median",
    "rfa",
    "crf-fedavg",
    "crf-fedprox",
)
"""The rows of both tables, in the paper's order."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "noniid": ("mnist", "cifar10", "cifar100"),
    "iid": ("mnist", "cifar10"),
}
"""The data sets of each table, in the paper's order, which is also that of their cost."""

TITLES: Mapping[str, str] = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}

NOT_RUN = "not run"


@dataclass(frozen=True)
class Column:
    """One column of one table: a data set in one setting, and the folder of its run."""

    setting: str
    dataset: str
    store: RunStore

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
        return paper_spec(self.dataset, self.setting, methods, seeds)

    @cached_property
    def run(self) -> RunStanding | None:
        """How far this column's run was when it was first looked at; None where it was not run."""
        return standing(self.store) if (self.store.path / "run.toml").exists() else None

    def results(self) -> list[MethodResult]:
        """Return what the finished cells of this column's run show; none where it was not run."""
        if self.run is None:
            return []
        methods = list(dict.fromkeys([*PAPER_METHODS, *self.run.spec.methods]))
        return compare(self.run.finished, methods)

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
        Column(setting, dataset, RunStore(folder / f"{dataset}-{setting}"))
        for setting in SETTINGS
        if table in (setting, "all")
        for dataset in COLUMNS[setting]
        if datasets is None or dataset in datasets
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


def column_table(column: Column) -> Table:
    """Return one column with its differences: ours, the paper's, and whether ours lies within.

    n is the number of seeds; "within ± 0.142" means that our mean lies within the paper's mean
    ± 2 sd, and how wide that is.
    """
    results = {result.method: result for result in column.results()}
    rows = []
    for method in (*PAPER_METHODS, *(name for name in results if name not in PAPER_METHODS)):
        published = column.published.get(method)
        result = results.get(method)
        paper = "–" if published is None else str(published)
        title = find_method(method).title
        if result is None:
            rows.append((title, "0", NOT_RUN, paper, "–", "–"))
            continue
        rows.append(
            (
                title,
                str(result.test.seeds),
                estimate_text(result.test),
                paper,
                _within(result.test, published),
                difference_text(result.difference),
            )
        )
    header = ("method", "n", "ours", "paper", "± 2 sd", "Δ to FedAvg [95 %]")
    return Table(column.title, header, tuple(rows))


def differences_table(column: Column) -> Table:
    """Return the paired differences of methods that share a client objective or a rule."""
    finished = () if column.run is None else column.run.finished
    rows = []
    for method, baseline in (
        ("crf-fedavg", "fedavg"),
        ("crf-fedprox", "fedprox"),
        ("crf-fedprox", "crf-fedavg"),
    ):
        difference = pair_methods(finished, method, baseline)
        if difference is not None:
            name = f"{find_method(method).title} − {find_method(baseline).title}"
            rows.append((name, str(difference.seeds), difference_text(difference)))
    return Table(column.title, ("difference", "seeds", "mean [95 %]"), tuple(rows))


def column_claims(column: Column) -> Table:
    """Return the paper's claims held against this column's run; empty where it was not run."""
    cells = () if column.run is None else column.run.cells
    return claims_table(f"{column.title}: the claims", cells, iid=column.setting == "iid")


def paper_table(chosen: Sequence[Column], setting: str) -> Table:
    """Return one table in the paper's layout: a row a method, ours (the paper's) in each column."""
    of_setting = [column for column in chosen if column.setting == setting]
    results = {
        column.dataset: {result.method: result for result in column.results()}
        for column in of_setting
    }
    rows = []
    for method in PAPER_METHODS:
        row = [find_method(method).title]
        for column in of_setting:
            result = results[column.dataset].get(method)
            row.append(NOT_RUN if result is None else estimate_text(result.test))
            row.append(str(column.published[method]))
        rows.append(tuple(row))
    header = ["method"]
    for column in of_setting:
        header += [TITLES[column.dataset], "paper"]
    title = "Test accuracy, " + ("IID" if setting == "iid" else "Dirichlet label skew")
    return Table(title, tuple(header), tuple(rows))


def write_tables(folder: Path, chosen: Sequence[Column]) -> list[Path]:
    """Write the tables of the chosen columns as Markdown, LaTeX and CSV.

    Raises:
        FedcrfError: The folder's tables show more, and nothing is stale; nothing is written.
    """
    settings = [setting for setting in SETTINGS if any(c.setting == setting for c in chosen)]
    layouts = {setting: paper_table(chosen, setting) for setting in settings}
    texts = {}
    for setting, table in layouts.items():
        texts[f"table-{setting}.tex"] = table.as_latex()
        texts[f"table-{setting}.csv"] = table.as_csv()
    sections = [f"## {table.title}\n\n{table.as_markdown()}" for table in layouts.values()]
    for column in chosen:
        table, differences = column_table(column), differences_table(column)
        sections.append(f"## {table.title}\n\n{table.as_markdown()}")
        if differences.rows:
            sections.append(differences.as_markdown())
        claims = column_claims(column)
        if claims.rows:
            sections.append(claims.as_markdown())
    texts["tables.md"] = "\n".join(sections)
    stale = any(column.run is not None and column.run.stale for column in chosen)
    check_not_emptier(folder / "tables.md", texts["tables.md"], stale)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in texts.items():
        paths.append(folder / name)
        write_text(paths[-1], text)
    return paths


def _within(ours: Estimate, published: Published | None) -> str:
    if published is None:
        return "–"
    width = 2 * published.sd
    inside = abs(ours.mean - published.mean) <= width
    return f"{'within' if inside else 'outside'} ± {width:.3f}"
