"""What the README shows a person to type does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcrf.experiments.findings import Findings
from fedcrf.experiments.findings_tables import write_findings
from fedcrf.experiments.ledger import Ledger
from fedcrf.experiments.reproduce import columns, write_tables
from fedcrf.experiments.spec import resolve
from fedcrf.experiments.store import RunStore
from fedcrf.experiments.suite_file import read_suite
from fedcrf.rules import RULES, AggregationResult, ClientReport

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_rule_on_ones_own_updates() -> None:
    scope: dict[str, Any] = {}
    exec(blocks("python")[0], scope)
    weights = scope["posterior"].weights.round(3)
    others = np.delete(weights, 7)
    assert (weights[7], others.min(), others.max()) == (0.043, 0.069, 0.127)
    assert scope["posterior"].reliability[7] == pytest.approx(0.002, abs=5e-4)
    assert scope["posterior"].cosine[7] == pytest.approx(-0.87, abs=5e-3)
    assert scope["posterior"].distance[7] == pytest.approx(4.2, abs=5e-2)


def test_the_run_file() -> None:
    import tomllib

    spec = resolve(tomllib.loads(blocks("toml")[0]))
    assert [cell.method.rule for cell in spec.cells()[:3]] == ["fedavg", "crf", "uniform"]


def test_the_robust_rule_in_flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="needs fedcrf[flower]")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(blocks("python")[1], scope)
    strategy = scope["strategy"]
    assert (strategy.rule, strategy.fraction_evaluate) == (RULES["crf-robust"](), 0.5)


def test_a_rule_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, Any] = {}
    exec(blocks("python")[2], scope)
    monkeypatch.setitem(RULES, "largest", scope["Largest"])  # type: ignore[arg-type]

    def aggregate(keep: int, *models: float) -> AggregationResult:
        spec = resolve({"methods": ["largest+plain"], "rules": {"largest": {"keep": keep}}})
        reports = [
            ClientReport(client, {"w": np.full(3, model)}, count)
            for client, (model, count) in enumerate(zip(models, [5, 9, 1, 7], strict=True))
        ]
        return spec.cells()[0].rule.aggregate({"w": np.zeros(3)}, reports)

    result = aggregate(2, 0.0, 1.0, 2.0, 3.0)
    assert result.weights.tolist() == [0, 0.5, 0, 0.5]
    assert result.state["w"].tolist() == [2, 2, 2]
    assert aggregate(9, 0.0, np.nan, 2.0, 3.0).weights.tolist() == [1 / 3, 0, 1 / 3, 1 / 3]


def test_the_results_are_the_published_ones() -> None:
    tables = (ROOT / "results" / "paper" / "tables.md").read_text(encoding="utf-8")
    results = README.partition("<!-- results:begin -->")[2].partition("<!-- results:end -->")[0]
    shown = re.findall(r"^\| .* \|$", results, flags=re.MULTILINE)
    assert len(shown) == 2 * (2 + 8)
    assert all(line in tables for line in shown)
    for picture in re.findall(r"!\[[^]]*\]\(([^)]*)\)", README):
        assert (ROOT / picture).stat().st_size > 10_000


def test_the_published_tables_follow_from_the_records(tmp_path: Path) -> None:
    chosen = columns(ROOT / "results" / "paper", "all")
    assert not [line for column in chosen for line in column.remarks()]
    write_tables(tmp_path, chosen)
    for path in tmp_path.iterdir():
        assert path.read_text() == (ROOT / "results" / "paper" / path.name).read_text()


SUITES = sorted(path.parent for path in (ROOT / "results" / "robustness").glob("*/cells.jsonl"))

PARTS = {"adaptive": "attacks", "byzfl": "attacks", "patient": "attacks", "nobody": "noise"}
"""Folders that hold a part of a suite, on more seeds or for other rules."""


def test_the_published_suites_are_those_spoken_of() -> None:
    page = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert {folder.name for folder in SUITES} == set(re.findall(r"robustness/([\w.-]+)", page))


@pytest.mark.parametrize("folder", SUITES, ids=lambda path: path.name)
def test_the_published_suites_follow_from_their_cells(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Heat maps are not compared: their bits are matplotlib's, and drawing them is most of the work.
    monkeypatch.setattr("fedcrf.experiments.findings_tables.save", lambda figure, stem: [])
    found = re.fullmatch(r"([a-z]+)-(.+?)(?:-(\d+)-of-(\d+)-clients)?", folder.name)
    assert found is not None
    name, dataset, *numbers = found.groups()
    attackers, clients = (number and int(number) for number in numbers)
    ledger = Ledger(folder)
    methods = list(dict.fromkeys(score.method for score in ledger.scores()))
    suite = read_suite(PARTS.get(name, name), dataset)
    suite = suite.chosen(attackers=attackers, clients=clients)
    partitions = list(dict.fromkeys(score.partition for score in ledger.scores()))
    asked = suite.chosen(methods=methods, seeds=[], partitions=partitions, conditions=[])
    findings = Findings.of(asked, ledger)
    assert len(findings.by_point) == len(ledger.scores()), "a default has changed since"
    write_findings(findings, tmp_path)
    for path in [*tmp_path.glob("*.md"), *tmp_path.glob("*.csv")]:
        assert path.read_text() == (folder / path.name).read_text()
    for score in ledger.scores():
        assert re.fullmatch("[0-9a-f]{40}", score.provenance.commit or "")


def tables_of(text: str) -> list[list[dict[str, str]]]:
    """Return the tables of a page: rows of cells by column."""
    tables = []
    for lines in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        header, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()
        ]
        tables.append([dict(zip(header, row, strict=True)) for row in rows])
    return tables


def test_the_suites_shown_are_the_published_ones() -> None:
    published = [
        table
        for folder in SUITES
        for table in tables_of((folder / "tables.md").read_text(encoding="utf-8"))
    ]
    results = README.partition("<!-- suites:begin -->")[2].partition("<!-- suites:end -->")[0]
    shown = tables_of(results)
    assert len(shown) == 5
    for table in shown:  # some rows and columns of one that is published
        assert any(
            all(any(row.items() <= whole.items() for whole in each) for row in table)
            for each in published
        ), table


def test_published_cells_say_what_made_them() -> None:
    runs = [RunStore(path.parent) for path in (ROOT / "results").rglob("run.toml")]
    assert len(runs) > 10
    for run in runs:
        for cell in run.read().cells():
            summary = run.cell(cell).summary()
            assert summary is not None, (run.folder, cell)
            assert re.fullmatch("[0-9a-f]{40}", summary.provenance.commit or ""), (run.folder, cell)
