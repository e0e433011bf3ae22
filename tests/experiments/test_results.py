"""The tidy table: a row a cell, the same columns whatever the folder is of."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from experiments.runs import carry_out, small_spec
from fedcrf import FedcrfError
from fedcrf.experiments.results import COLUMNS, frame, table
from fedcrf.experiments.store import Store
from fedcrf.experiments.study import Axis, Study

ROOT = Path(__file__).parents[2]


def test_a_run_s_cells_and_how_far_they_are(finished: Path) -> None:
    with Store(finished).locked():  # a third seed that nobody has run
        Store(finished).write(small_spec(seeds=[0, 1, 2]))
    found = table(finished)
    assert list(found.columns) == list(COLUMNS)
    assert list(zip(found.method, found.seed, found.complete, strict=True)) == [
        (method, seed, seed < 2) for seed in range(3) for method in ("fedavg", "crf-fedavg")
    ]
    cell = Store(finished).cell(small_spec().cell("crf-fedavg", 1))
    summary, records = cell.summary(), cell.records()
    assert summary is not None
    row = found[(found.method == "crf-fedavg") & (found.seed == 1)].iloc[0]
    assert row.accuracy == summary.test_accuracy
    assert row.validation_accuracy == records[summary.best_round - 1].validation.accuracy
    assert (row.dataset, row.attack, row.rounds) == ("digits", "", 3)
    assert row.folder == str(finished)
    assert found[found.seed == 2].accuracy.isna().all()


def test_packed_rounds_do_not_say_what_the_attackers_examples_come_to() -> None:
    packed = ROOT / "results" / "judged" / "digits" / "rounds" / "alpha-0.5"
    found = table(packed / "answering-stealthy")
    assert found.accuracy.notna().all()
    assert found.everyone_accuracy.isna().all()


def test_a_stale_and_a_damaged_cell_are_no_results(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finished / "cells" / "fedavg-seed-0" / "summary.json").write_text("rubbish")
    monkeypatch.setattr("fedcrf.rules.CRF.behaviour", 99)
    found = table(finished)
    assert list(found.complete) == [False, False, True, False]
    assert "behaviour 99" in found.stale[1]
    assert "summary.json" in found.damage[0]


def test_of_several_runs_the_settings_that_differ_are_columns(tmp_path: Path) -> None:
    for bandwidth in (0.1, 0.5):
        spec = small_spec(
            methods=["crf-fedavg"],
            seeds=[0],
            rounds={"maximum": 1},
            rules={"crf": {"bandwidth": bandwidth}},
        )
        carry_out(spec, tmp_path / f"at-{bandwidth}")
    found = table(tmp_path)
    assert list(found.columns) == [*COLUMNS, "rules.crf.bandwidth"]
    assert list(found["rules.crf.bandwidth"]) == [0.1, 0.5]


def test_a_setting_that_one_of_several_runs_leaves_unset_is_a_column(tmp_path: Path) -> None:
    for name, rounds in (("all", {}), ("three", {"clients_per_round": 3})):
        one = {"maximum": 1, **rounds}
        carry_out(small_spec(methods=["fedavg"], seeds=[0], rounds=one), tmp_path / name)
    found = table(tmp_path)
    assert list(found.columns) == [*COLUMNS, "rounds.clients_per_round"]
    assert math.isnan(found["rounds.clients_per_round"][0])
    assert found["rounds.clients_per_round"][1] == 3


def test_a_run_of_other_settings_in_the_place_of_a_study_s_is_an_error(tmp_path: Path) -> None:
    study = Study(({"methods": ["fedavg"]},), (Axis.of_setting("rounds.maximum", [1, 2]),))
    spec = small_spec(methods=["fedavg"], seeds=[0], rounds={"maximum": 1})
    carry_out(spec, tmp_path / "maximum=1")
    with pytest.raises(FedcrfError, match=r"maximum=1 is of another run \("):
        table(tmp_path, study)


def test_the_published_suite_is_read() -> None:
    found = table(ROOT / "results" / "robustness" / "attacks-mnist-6000-1-of-10-clients")
    lines = ROOT / "results" / "robustness" / "attacks-mnist-6000-1-of-10-clients" / "cells.jsonl"
    assert len(found) == len(lines.read_text().splitlines())
    assert set(found.partition) == {"iid", "alpha-0.5", "alpha-0.1"}
    assert set(found.dataset) == {"mnist"}
    assert found.accuracy.between(0, 1).all()
    assert (found.last_rounds == 5).all()


def test_what_holds_nothing_is_an_error_and_no_rows_are_a_table(tmp_path: Path) -> None:
    with pytest.raises(FedcrfError, match="holds no run"):
        table(tmp_path)
    assert list(frame([]).columns) == list(COLUMNS)
    assert math.isnan(COLUMNS["accuracy"])
