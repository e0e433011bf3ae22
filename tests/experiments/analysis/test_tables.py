"""One set of rows as Markdown, as CSV and on the terminal."""

from __future__ import annotations

import csv
import io
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.runs import table_of
from fedcrf import FedcrfError
from fedcrf.experiments.analysis.paper import published_column
from fedcrf.experiments.analysis.tables import (
    Estimate,
    Table,
    details_table,
    estimate_text,
    results_table,
    write_tables,
)
from fedcrf.experiments.results import frame
from fedcrf.experiments.spec import resolve

NONE = table_of([])
CELLS = frame(
    {
        "method": method, "seed": seed, "complete": True, "accuracy": accuracy,
        "client_mean": accuracy - 0.1, "worst_client": accuracy - 0.3,
        "held_out_accuracy": math.nan if method == "uniform" else accuracy + 0.05,
        "rounds": 9 + seed, "seconds_per_round": 0.02 * 10**seed, "aggregation_share": 0.05,
    }
    for method, seed, accuracy in (
        ("fedavg", 0, 0.8), ("fedavg", 1, 0.7), ("fedavg", 2, 0.75),
        ("crf-fedavg", 0, 0.85), ("crf-fedavg", 1, 0.77), ("crf-fedavg", 2, 0.81),
        ("uniform", 1, 0.5),
    )
)  # fmt: skip


def test_results_say_who_won_and_by_how_much() -> None:
    table = results_table("title", CELLS, {})
    # Differences 0.05, 0.07 and 0.06: their sd is 0.01, so half the interval is t(2) · 0.01 / √3.
    half = 4.302652730 * 0.01 / math.sqrt(3)
    interval = f"+0.060 [{0.06 - half:+.3f}, {0.06 + half:+.3f}]"
    assert table.header == ("method", "seeds", "test accuracy", "Δ to FedAvg [95 %]")
    assert table.rows == (
        ("FedAvg", "3", "0.750 ± 0.050", "–"),
        ("CRF-FedAvg", "3", "0.810 ± 0.040", interval),
        ("Uniform", "1", "0.500", "-0.200 [too few seeds]"),
    )


def test_the_paper_s_column() -> None:
    published = {"crf-fedavg": Estimate(0.895, 3, 0.02)}
    table = results_table("title", CELLS, published)
    assert table.header[-1] == "paper"
    assert [row[-1] for row in table.rows] == ["–", "0.895 ± 0.020", "–"]


def test_details() -> None:
    table = details_table(CELLS)
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert list(rows) == ["FedAvg", "CRF-FedAvg", "Uniform"]
    expected = {
        "clients": "0.650",
        "worst": "0.450",
        "held-out": "0.800",
        "rounds": "10",
        "s/round": "0.20",
        "server": "5.0%",
    }
    assert rows["FedAvg"].items() >= expected.items()
    assert rows["Uniform"]["held-out"] == "–", "it has none"


def test_no_results_are_a_table_without_rows() -> None:
    for table in (results_table("title", NONE, {}), details_table(NONE)):
        assert table.rows == ()
        assert list(csv.reader(io.StringIO(table.as_csv()))) == [list(table.header)]
        assert len(table.as_markdown().splitlines()) == 2


def test_nan_is_shown_and_not_an_error() -> None:
    cells = table_of([("fedavg", 0, math.nan), ("uniform", 0, 0.5)])
    rows = results_table("title", cells, {}).rows
    assert rows[0][2] == "nan"


OF_RUN = "| method | seeds | test |\n| --- | ---: | ---: |\n| FedAvg | 3 | 0.5 ± 0.1 |\n"
OF_SUITE = "# Suite\n\n5 of 9 cells; means\n\n| method | worst |\n| --- | --- |\n| A | 0.5 |\n"


@pytest.mark.parametrize(
    ("there", "change", "kept"),
    [
        (OF_RUN, ("| FedAvg | 3 | 0.5 ± 0.1 |\n", ""), True),
        (OF_RUN, ("| 3 | 0.5", "| 2 | 0.5"), True),
        (OF_RUN, ("0.5 ± 0.1", "–"), True),
        (OF_RUN, ("0.5 ± 0.1", "0.4"), False),
        (OF_RUN, ("| 3 | 0.5", "| 4 | 0.5"), False),
        (OF_SUITE, ("5 of 9", "4 of 9"), True),
        (OF_SUITE, ("5 of 9", "5 of 99"), False),
        (OF_SUITE, ("5 of 9", "6 of 9"), False),
        ("no table", ("no", "another"), False),
        ("| my own\n", ("| my own\n", ""), False),
    ],
)
def test_no_table_is_replaced_by_an_emptier_one(
    there: str, change: tuple[str, str], kept: bool, tmp_path: Path
) -> None:
    path, texts = tmp_path / "tables.md", {"tables.md": there.replace(*change)}
    assert texts[path.name] != there
    write_tables(tmp_path, texts, CELLS)  # where there is none yet
    path.write_text(there)
    with pytest.raises(FedcrfError, match=r"tables\.md is kept") if kept else nullcontext():
        write_tables(tmp_path, texts, CELLS)
    stale = "rule krum has behaviour 2 now and had 1"
    write_tables(tmp_path, texts, CELLS.assign(stale=stale))


TABLE = Table("t", ("name", "a, b"), (("x", "1"), ("y, z", '2 "q"')))


def test_markdown() -> None:
    lines = TABLE.as_markdown().splitlines()
    assert lines == ["| name | a, b |", "| --- | ---: |", "| x | 1 |", '| y, z | 2 "q" |']


def test_a_note_stands_below_the_table_but_for_spreadsheets() -> None:
    noted = replace(TABLE, note="Chosen [by] them.")
    assert noted.as_markdown() == TABLE.as_markdown() + "\nChosen [by] them.\n"
    assert (noted.as_csv(), noted.as_latex()) == (TABLE.as_csv(), TABLE.as_latex())


def test_latex() -> None:
    table = Table("t", ("name", "Δ [95 %]"), ((r"a_b & c\d", "0.9 ± 0.1"), ("#1 {x}, ε", "−1 × 2")))
    assert table.as_latex().splitlines() == [
        r"\begin{tabular}{lc}",
        r"\toprule",
        r"name & $\Delta$ [95 \%] \\",
        r"\midrule",
        r"a\_b \& c\textbackslash{}d & 0.9 $\pm$ 0.1 \\",
        r"\#1 \{x\}, $\varepsilon$ & $-$1 $\times$ 2 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_bar_in_a_cell_of_markdown_ends_no_cell() -> None:
    lines = Table("t", ("name", "a|b"), (("x|y", "1"),)).as_markdown().splitlines()
    assert lines == [r"| name | a\|b |", "| --- | ---: |", r"| x\|y | 1 |"]


def test_csv_comes_back() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.as_csv())))
    assert rows == [list(TABLE.header), *map(list, TABLE.rows)]


def test_terminal_shows_every_cell_as_it_is() -> None:
    # Square brackets are rich's markup; in a cell they are an interval.
    text = io.StringIO()
    table = Table("title [/b]", ("method", "worst: [one]"), (("FedAvg", "+0.1 [+0.0, +0.2]"),))
    Console(file=text, width=80).print(table.for_terminal())
    for part in ("title [/b]", "method", "worst: [one]", "FedAvg", "+0.1 [+0.0, +0.2]"):
        assert part in text.getvalue()


@pytest.mark.parametrize(
    ("given", "fedavg"),
    [
        ({"data": {"dataset": "mnist"}}, "0.890 ± 0.034"),
        ({"data": {"dataset": "mnist"}, "partition": {"scheme": "iid"}}, "0.975 ± 0.002"),
        ({"data": {"dataset": "cifar100"}}, "0.404 ± 0.005"),
        (
            {"data": {"dataset": "cifar100"}, "training": {"precision": "bfloat16"}},
            "0.404 ± 0.005",
        ),
        ({"data": {"dataset": "mnist"}, "partition": {"alpha": 0.1}}, None),
        ({"data": {"dataset": "mnist"}, "rounds": {"maximum": 2}}, None),
        ({"data": {"dataset": "mnist"}, "partition": {"num_clients": 5}}, None),
        ({"data": {"dataset": "mnist"}, "partition": {"scheme": "label-mix"}}, None),
        ({}, None),
    ],
)
def test_the_paper_s_numbers_stand_beside_its_own_setting_only(
    given: dict[str, Any], fedavg: str | None
) -> None:
    column = published_column(resolve(given))
    assert (estimate_text(column["fedavg"]) if column else None) == fedavg
