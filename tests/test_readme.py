"""What the README shows a person to type does what it says."""

from __future__ import annotations

import csv
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedcrf
from fedcrf.experiments.analysis.conditions import write_suite
from fedcrf.experiments.analysis.paper import (
    cell_notices,
    chosen_columns,
    paper_study,
    write_paper,
)
from fedcrf.experiments.results import held, keys_of, suite_cells, table
from fedcrf.experiments.settings import method_title
from fedcrf.experiments.store import Store
from fedcrf.experiments.study import read_suite
from fedcrf.rules import RULES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = _tables()
"""What writes the tables that the pages show."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_it_is_short() -> None:
    assert README.count("\n") <= 200
    for code in blocks("python"):
        assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_the_rule_on_ones_own_vectors() -> None:
    scope: dict[str, Any] = {}
    code = blocks("python")[0]
    exec(code, scope)
    weights = scope["posterior"].weights.round(3)
    assert weights.tolist() == [0.0 if client in (3, 7) else 0.125 for client in range(10)]
    assert np.isfinite(scope["model"]).all()
    turned = "    updates[[3, 7]] *= -1 "
    assert turned in code
    exec(code.replace(turned, "    updates[5, 0] = np.nan; updates[[3, 7]] *= -1 "), scope)
    assert scope["posterior"].weights[5] == 0
    assert np.isfinite(scope["model"]).all()


def test_ones_own_model_and_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn's data sets")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(blocks("python")[1], scope)
    assert scope["result"].trust.loc[10, "D"] < 0.1 * scope["result"].trust.loc[10, "A"]
    assert "Client D (attacks): distrusted since round" in capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_a_rule_of_ones_own_outside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alike.py").write_text(blocks("python")[3], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    sites = {name: (draw.normal(size=(12, 3)), draw.integers(0, 2, 12)) for name in "abc"}
    result = fedcrf.simulate(nn.Linear(3, 2), sites, "./alike.py:Alike", rounds=1)
    assert result.weights.round(12).nunique(axis=1).tolist() == [1]


def test_the_robust_rule_in_flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="needs fedcrf[flower]")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(blocks("python")[2], scope)
    strategy = scope["strategy"]
    assert (strategy.rule, strategy.fraction_evaluate) == (RULES["crf-robust"](), 0.5)


def test_it_says_what_the_papers_rule_is_not() -> None:
    for page in (README, (ROOT / "docs" / "index.md").read_text(encoding="utf-8")):
        (line,) = [line for line in page.splitlines() if "Reproducing the paper" in line]
        assert "`crf-fedavg`. It is **no defence against attackers**" in line


@pytest.mark.parametrize("block", tables.BLOCKS, ids=" ".join)
def test_a_block_is_what_the_results_say(block: tuple[str, str]) -> None:
    page, name = block
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == tables.with_block(text, name, tables.BLOCKS[block]()), "say make tables"


def test_pictures_are_there() -> None:
    pages = [ROOT / "README.md", ROOT / "results" / "README.md", *(ROOT / "docs").glob("*.md")]
    pictures = [
        page.parent / name
        for page in pages
        for name in re.findall(r"!\[[^]]*\]\(([^)]*)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(pictures) > 5
    for picture in pictures:
        assert picture.suffix == ".svg" or picture.stat().st_size > 10_000, picture


def test_the_best_of_the_other_rules_is_shown() -> None:
    # Worked out another way than the table: from the accuracies under each attack.
    for title, folder in tables.SUITES.items():
        for partition, place in tables.PARTITIONS.items():
            path = ROOT / "results" / "robustness" / folder / f"accuracy-{partition}.csv"
            with path.open(encoding="utf-8") as file:
                rows = {row["condition"]: row for row in csv.DictReader(file)}
            suite = read_suite("attacks", "digits")
            names = [suite.conditions[name].title for name in suite.groups["13 attacks"]]
            others = map(method_title, tables.CLASSICAL)
            least = {each: min(float(rows[name][each]) for name in names) for each in others}
            best = max(least, key=least.__getitem__)
            (line,) = [
                line for line in README.splitlines() if line.startswith(f"| {title}, {place} |")
            ]
            assert line.split(" | ")[2].endswith(f"({best})")
            assert f"/ {least[best]:.3f} " in line.split(" | ")[2]


def test_the_published_tables_follow_from_the_records(tmp_path: Path) -> None:
    cells = table(ROOT / "results" / "paper", paper_study(chosen_columns()))
    assert cell_notices(cells) == []
    write_paper(tmp_path, cells)
    for path in tmp_path.iterdir():
        assert path.read_text() == (ROOT / "results" / "paper" / path.name).read_text()


SUITES = sorted(path.parent for path in (ROOT / "results" / "robustness").glob("*/cells.jsonl"))

MADE_BY = tomllib.loads((ROOT / "results" / "commands.toml").read_text(encoding="utf-8"))

PARTS = {"adaptive": "attacks", "byzfl": "attacks", "patient": "attacks", "nobody": "noise"}
"""Folders that hold a part of a suite, on more seeds or for other rules."""


def test_the_published_suites_are_those_spoken_of() -> None:
    page = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert {folder.name for folder in SUITES} == set(re.findall(r"robustness/([\w.-]+)", page))


@pytest.mark.slow
@pytest.mark.parametrize("folder", SUITES, ids=lambda path: path.name)
def test_the_published_suites_follow_from_their_cells(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Heat maps are not compared: their bits are matplotlib's, and drawing them is most of the work.
    monkeypatch.setattr("fedcrf.experiments.analysis.figures.save", lambda figure, stem: [])
    found = re.fullmatch(
        r"([a-z]+)-(.+?)(?:-(\d+)-of-(\d+)-clients)?(?:-tolerance-(\d+))?", folder.name
    )
    assert found is not None
    name, dataset, *numbers = found.groups()
    attackers, clients, tolerance = (number and int(number) for number in numbers)
    settings = [{"rules": {"crf-robust": {"tolerance": tolerance}}}] if tolerance else []
    store = Store(folder)
    methods = list(dict.fromkeys(score.method for score in store.scores()))
    suite = read_suite(PARTS.get(name, name), dataset)
    suite = suite.chosen(attackers=attackers, clients=clients, settings=settings)
    partitions = list(dict.fromkeys(score.partition for score in store.scores()))
    asked = suite.chosen(methods=methods, seeds=[], partitions=partitions, conditions=[])
    shown = held(suite, asked, store)
    cells = suite_cells(shown, store)
    stale = cells[cells["stale"] != ""]
    assert len(keys_of(cells)) + len(stale) == len(store.scores()), "a default has changed since"
    outdated = MADE_BY[f"robustness/{folder.name}"].get("outdated", [])
    assert sorted(set(stale["method"])) == outdated, "commands.toml says which methods changed"
    for score in store.scores():
        assert re.fullmatch("[0-9a-f]{40}", score.provenance.commit or "")
    if outdated:
        return  # their tables are those of the code that made the cells
    write_suite(shown, cells, tmp_path)
    for path in [*tmp_path.glob("*.md"), *tmp_path.glob("*.csv")]:
        assert path.read_text() == (folder / path.name).read_text()


def test_published_cells_say_what_made_them() -> None:
    runs = [Store(path.parent) for path in (ROOT / "results").rglob("run.toml")]
    assert len(runs) > 10
    for run in runs:
        made_by = MADE_BY.get(str(run.path.relative_to(ROOT / "results")), {})
        unfinished = made_by.get("unfinished", [])
        for cell in run.read().cells():
            summary = run.cell(cell).summary()
            if cell.name in unfinished:
                assert summary is None
                continue
            assert summary is not None, (run.path, cell)
            assert re.fullmatch("[0-9a-f]{40}", summary.provenance.commit or ""), (run.path, cell)
