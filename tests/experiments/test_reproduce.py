"""The paper's tables: which cells fill them, and what stands where nothing was run."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from experiments.runs import small_spec, snapshot, summary
from fedcrf import FedcrfError
from fedcrf.experiments.analysis.paper import (
    PAPER_METHODS,
    PUBLISHED,
    SETTINGS,
    Column,
    chosen_columns,
    column_table,
    column_tables,
    paper_study,
    paper_table,
    published_column,
    write_paper,
)
from fedcrf.experiments.analysis.tables import mean_accuracy
from fedcrf.experiments.results import table
from fedcrf.experiments.spec import resolve
from fedcrf.experiments.study import read_suite

MNIST = Column("mnist", "noniid")


def filled(folder: Path, accuracies: dict[str, list[float]]) -> pd.DataFrame:
    """Put made-up finished cells of the first column where a run would, and read them."""
    seeds = range(len(next(iter(accuracies.values()))))
    ((spec, store),) = paper_study([MNIST], list(accuracies), seeds).runs(folder)
    with store.locked():
        store.write(spec)
    for method, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            cell = spec.cell(method, seed)
            place = store.cell(cell).path
            place.mkdir(parents=True)
            result = summary(method, seed, accuracy, rounds=0, description=cell.describe())
            text = result.model_dump_json()
            (place / "summary.json").write_text(text)
    return paper_cells(folder)


def paper_cells(folder: Path) -> pd.DataFrame:
    return table(folder, paper_study(chosen_columns()))


@pytest.mark.parametrize(
    ("table", "datasets", "expected"),
    [
        ("all", None, "mnist-noniid mnist-iid cifar10-noniid cifar10-iid cifar100-noniid"),
        ("noniid", None, "mnist-noniid cifar10-noniid cifar100-noniid"),
        ("iid", ["cifar10"], "cifar10-iid"),
    ],
)
def test_the_columns_come_cheapest_first(
    table: str, datasets: list[str] | None, expected: str
) -> None:
    runs = paper_study(chosen_columns(table, datasets)).runs(Path("any"))
    names = [store.path.name for _, store in runs]
    assert names == expected.split()


@pytest.mark.parametrize(
    ("table", "datasets", "message"),
    [
        ("nonid", None, r"unknown table 'nonid': did you mean 'noniid'\?"),
        ("all", ["mnits"], r"unknown data set of the paper 'mnits': did you mean 'mnist'\?"),
        ("iid", ["cifar100"], "table iid has no column for cifar100"),
    ],
)
def test_what_is_no_column(table: str, datasets: list[str] | None, message: str) -> None:
    with pytest.raises(FedcrfError, match=message):
        chosen_columns(table, datasets)


@pytest.mark.parametrize("column", chosen_columns(), ids=lambda column: column.title)
def test_a_column_is_run_in_the_papers_setting(column: Column) -> None:
    assert read_suite("paper").methods == PAPER_METHODS
    ((_, spec),) = paper_study([column]).points
    assert set(PUBLISHED[column]) == set(PAPER_METHODS)
    assert published_column(spec) is PUBLISHED[column]  # what `fedcrf show` puts beside it
    model, rate = {
        "mnist": ("mlp", 0.01),
        "cifar10": ("resnet9", 0.01),
        "cifar100": ("resnet18", 0.005),
    }[column.dataset]
    assert (spec.model_name, spec.training.learning_rate) == (model, rate)
    assert (spec.training.batch_size, spec.training.momentum) == (64, 0.9)
    assert (spec.rounds.maximum, spec.rounds.patience) == (150, 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": {"num_clients": 4, "alpha": 0.003}},
        {"partition": {"num_clients": 10, "alpha": 0.1}},
        {"partition": {"num_clients": 10, "alpha": 0.003, "scheme": "label-mix"}},
        {"partition": {"num_clients": 10, "alpha": 0.003}, "data": {"limit": 100}},
        {"partition": {"num_clients": 10, "alpha": 0.003}, "model": {"hidden": [7]}},
        {"partition": {"num_clients": 10, "alpha": 0.003}, "training": {"local_epochs": 2}},
    ],
)
def test_another_setting_has_no_paper_column(changes: dict) -> None:
    assert published_column(resolve({"data": {"dataset": "mnist"}}, changes)) == {}
    assert published_column(small_spec()) == {}


def test_the_paper_column_does_not_need_the_code_of_other_methods() -> None:
    ((_, spec),) = paper_study([MNIST]).points
    gone = "./gone.py:Gone"
    beside = resolve({**spec.describe(), "methods": ["fedavg", gone]}, reading=True)
    assert published_column(beside) is PUBLISHED[MNIST]
    alone = resolve({**spec.describe(), "methods": [gone]}, reading=True)
    assert published_column(alone) == {}


def test_cells_without_a_run_read_not_run(tmp_path: Path) -> None:
    found = filled(tmp_path, {"fedavg": [0.90, 0.92], "crf-fedavg": [0.93, 0.91]})
    table, *_ = column_tables(found, MNIST)
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["FedAvg"][:4] == ("2", "0.910 ± 0.014", "0.890 ± 0.034", "within ± 0.068")
    assert cells["CRF-FedAvg"][4] == "+0.010 [too few seeds]"
    assert cells["RFA"] == ("0", "not run", "0.879 ± 0.020", "–", "–")
    layouts = {setting: paper_table(found, setting) for setting in SETTINGS}
    layout = layouts["noniid"]
    assert layout.header == ("method", "MNIST", "paper", "CIFAR-10", "paper", "CIFAR-100", "paper")
    assert layout.rows[0][:4] == ("FedAvg", "0.910 ± 0.014", "0.890 ± 0.034", "not run")
    assert all(row[0] and row[1] == "not run" for row in layouts["iid"].rows)


def test_outside_is_beyond_two_standard_deviations(tmp_path: Path) -> None:
    published = PUBLISHED[MNIST]["fednova"]
    limit = published.mean + 2 * published.sd
    cells = filled(tmp_path, {"fednova": [limit + 1e-3], "rfa": [0.879]})
    verdicts = {row[0]: row[4] for row in column_table(cells, MNIST).rows}
    assert (verdicts["FedNova"], verdicts["RFA"]) == ("outside ± 0.102", "within ± 0.040")


def test_differences_are_paired(tmp_path: Path) -> None:
    cells = filled(tmp_path, {"fedprox": [0.5, 0.7, 0.9], "crf-fedprox": [0.6, 0.8, 1.0]})
    _, differences = column_tables(cells, MNIST)
    (row,) = differences.rows
    # The same step on every seed: paired, there is no spread at all.
    assert row == ("CRF-FedProx − FedProx", "3", "+0.100 [+0.100, +0.100]")


def test_the_tables_are_written(tmp_path: Path) -> None:
    names = {path.name for path in write_paper(tmp_path, filled(tmp_path, {"fedavg": [0.9]}))}
    assert names == {
        "tables.md", "table-noniid.tex", "table-noniid.csv", "table-iid.tex", "table-iid.csv",
    }  # fmt: skip
    rows = list(csv.reader((tmp_path / "table-noniid.csv").open()))
    assert rows[1][:2] == ["FedAvg", "0.900"]
    tex = (tmp_path / "table-noniid.tex").read_text()
    assert tex.count(r"\\") == 1 + len(PAPER_METHODS)
    assert "±" not in tex


def test_the_paper_s_tables_are_not_replaced_by_emptier_ones(tmp_path: Path) -> None:
    write_paper(tmp_path, filled(tmp_path / "a", {"fedavg": [0.9]}))
    before = snapshot(tmp_path)
    with pytest.raises(FedcrfError, match="is kept as it is"):
        write_paper(tmp_path, paper_cells(tmp_path / "b"))
    assert snapshot(tmp_path) == before


def test_the_estimate_of_a_column_is_over_its_seeds(tmp_path: Path) -> None:
    found = mean_accuracy(filled(tmp_path, {"fedavg": [0.8, 1.0]}), "fedavg")
    assert found is not None
    assert (found.mean, found.sd, found.seeds) == pytest.approx((0.9, 0.02**0.5, 2))
    ((_, store),) = paper_study([MNIST]).runs(tmp_path)
    assert store.read().methods == ("fedavg",)
