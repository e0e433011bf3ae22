"""A report tells what the records hold, names what is wrong, and shows the rest."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.runs import carry_out, small_spec
from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.tables import (
    UNDER_ATTACK,
    comparison_table,
    results_table,
)
from fedcrf.experiments.results import read_results
from fedcrf.experiments.spec import resolve
from fedcrf.experiments.store import Store
from fedcrf.objectives import ACCURACY, LOSS
from fedcrf.report.page import read_report, render, write_page
from fedcrf.simulation.records import Rounds

CELL = "crf-fedavg-seed-1"


def page_data(page: str) -> Any:
    """Return what the page's program reads: the JSON that its data element holds compressed."""
    return json.loads(unpacked(page, "data"))


def unpacked(page: str, element: str) -> bytes:
    """Return what a script element holds as compressed bytes."""
    text = page.split(f'<script type="text/plain" id="{element}">')[1].split("</script>")[0]
    return gzip.decompress(base64.b64decode(text))


def test_the_page_holds_the_records(finished: Path) -> None:
    report = read_report([finished])
    assert (report.notices, report.comparison, report.damaged) == ([], None, False)
    assert report.all_notices() == []
    (run,) = page_data(render(report))["runs"]
    cells = {(cell["method"], cell["seed"]): cell["rounds"] for cell in run["cells"]}
    assert set(cells) == {(method, seed) for method in ("FedAvg", "CRF-FedAvg") for seed in (0, 1)}
    store = Store(finished)
    for cell in store.read().cells():
        for shown, record in zip(
            cells[cell.method.title, cell.seed], store.cell(cell).records(), strict=True
        ):
            assert (shown["round"], shown["clients"]) == (record.round, record.clients)
            assert (shown["weight"], shown["base_weight"]) == (record.weight, record.base_weight)
            if record.reasons is None:
                assert shown["causes"] is None
                continue
            for name in ("reliability", "cosine", "distance", "norm_anomaly", "trust"):
                assert shown["causes"]["values"][name] == getattr(record.reasons, name)
            assert [len(row) for row in shown["causes"]["affinities"]] == [3, 2, 1]
    partition = store.partition(1)
    assert partition is not None
    assert run["holdings"][1] == partition.model_dump()


def test_the_curves_are_means_over_seeds(finished: Path) -> None:
    (run,) = page_data(render(read_report([finished])))["runs"]
    store = Store(finished)
    spec = store.read()
    assert list(run["measured"]) == ["accuracy", "loss"]
    for what, (_, curve) in run["measured"].items():
        assert (curve["name"], curve["seeds"]) == ("CRF-FedAvg", 2)
        first, second = (
            [getattr(record.validation, what)
             for record in store.cell(spec.cell("crf-fedavg", seed)).records()]
            for seed in (0, 1)
        )  # fmt: skip
        for mean, sd, a, b in zip(curve["mean"], curve["sd"], first, second, strict=True):
            assert mean == pytest.approx((a + b) / 2, rel=1e-5)
            assert sd == pytest.approx(abs(a - b) / math.sqrt(2), rel=1e-4)


def test_the_page_needs_nothing_else(finished: Path) -> None:
    page = render(read_report([finished]))
    for asks in ("src=", "@import", "url("):
        assert asks not in page
    assert unpacked(page, "plotly").startswith(b"/**\n* plotly.js (cartesian - minified) v")


def test_the_page_is_small(finished: Path) -> None:
    assert len(render(read_report([finished]))) < 800_000


def test_a_folder_of_runs_is_all_of_them(finished: Path, tmp_path: Path) -> None:
    several = tmp_path / "several"
    for name in ("second", "first"):
        shutil.copytree(finished, several / name)
    assert [run.name for run in read_report([several]).runs] == ["first", "second"]
    with_another = read_report([several, finished])
    assert [run.name for run in with_another.runs] == ["several/first", "several/second", "run"]
    with pytest.raises(FedcrfError, match="name one of those in it: first, second"):
        Store(several).read()


def edit_rounds(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "cells" / CELL / "rounds.jsonl"
    *before, last = path.read_text().splitlines()
    record = json.loads(last)
    change(record)
    path.write_text("\n".join([*before, json.dumps(record)]) + "\n")


def unfinish(folder: Path) -> None:
    (folder / "cells" / CELL / "summary.json").unlink()


def not_start(folder: Path) -> None:
    shutil.rmtree(folder / "cells" / CELL)


def break_record(folder: Path) -> None:
    with (folder / "cells" / CELL / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": "two"}\n')


def shorten_list(folder: Path) -> None:
    edit_rounds(folder, lambda record: record["weight"].pop())


def break_first_record(folder: Path) -> None:
    path = folder / "cells" / CELL / "rounds.jsonl"
    path.write_bytes(b"\xff" + path.read_bytes())


def break_record_and_swap_summary(folder: Path) -> None:
    break_record(folder)
    swap_summary(folder)


def break_affinity(folder: Path) -> None:
    edit_rounds(folder, lambda record: record["reasons"]["affinity"].pop())


def break_summary(folder: Path) -> None:
    (folder / "cells" / CELL / "summary.json").write_text("{")


def swap_summary(folder: Path) -> None:
    cells = folder / "cells"
    shutil.copy(cells / "fedavg-seed-0" / "summary.json", cells / CELL / "summary.json")


def break_partition(folder: Path) -> None:
    (folder / "partitions" / "seed-1.json").write_text("[]")


def add_stranger(folder: Path) -> None:
    shutil.copytree(folder / "cells" / CELL, folder / "cells" / "krum-seed-9")


def mix_commits(folder: Path) -> None:
    path = folder / "cells" / CELL / "summary.json"
    summary = json.loads(path.read_text())
    summary["provenance"]["commit"] = "0" * 40
    path.write_text(json.dumps(summary))


@pytest.mark.parametrize(
    ("spoil", "notice", "damaged", "cells"),
    [
        (unfinish, f"{CELL}: not finished, 3 rounds so far, validation accuracy 0.", False, 4),
        (not_start, f"{CELL}: not finished, not started", False, 3),
        (break_record, f"{CELL}: shown up to round 3: ", True, 4),
        (shorten_list, f"{CELL}: shown up to round 2: ", True, 4),
        (break_affinity, "line 3, is not a round's record", True, 4),
        (break_first_record, f"{CELL}: no rounds are shown: ", True, 3),
        (break_record_and_swap_summary, "holds the result of another description", True, 3),
        (break_summary, f"{CELL}: shown up to round 3: ", True, 4),
        (swap_summary, "holds the result of another description", True, 3),
        (break_partition, "is not what the clients of a seed hold", True, 4),
        (add_stranger, "not of this run and left out: krum-seed-9", False, 4),
        (mix_commits, "mixed: its cells were made with 2 different versions or commits", False, 4),
    ],
)
def test_what_is_wrong_is_said_and_the_rest_shown(
    finished: Path, spoil: Callable[[Path], None], notice: str, damaged: bool, cells: int
) -> None:
    spoil(finished)
    report = read_report([finished])
    assert report.damaged == damaged
    assert any(notice in line for line in report.all_notices())
    page = render(report)
    assert notice.replace("'", "&#39;") in page
    (run,) = page_data(page)["runs"]
    assert len(run["cells"]) == cells
    assert "FedAvg" in report.runs[0].results.rows[0]


@pytest.mark.parametrize("line", [2, 3])
def test_the_rounds_before_a_damaged_one_are_shown(finished: Path, line: int) -> None:
    path = finished / "cells" / CELL / "rounds.jsonl"
    lines = path.read_bytes().splitlines()
    whole = [json.loads(each)["weight"] for each in lines[: line - 1]]
    lines[line - 1] = lines[line - 1].replace(b"weight", b"wei\xff\xfeht")
    path.write_bytes(b"\n".join(lines) + b"\n")
    report = read_report([finished])
    (notice,) = report.runs[0].notices
    assert f"{CELL}: shown up to round {line - 1}: " in notice
    assert f"rounds.jsonl, line {line}, is not a round's record" in notice
    (run,) = page_data(render(report))["runs"]
    (cell,) = [c for c in run["cells"] if (c["method"], c["seed"]) == ("CRF-FedAvg", 1)]
    assert [each["weight"] for each in cell["rounds"]] == whole


def test_runs_compared(finished: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "run"
    shutil.copytree(finished, other)
    report = read_report([finished, other, tmp_path / "nowhere"])
    assert [run.name for run in report.runs] == [f"{tmp_path.name}/run", "other/run"]
    assert report.damaged
    assert report.notices[0].startswith(f"{tmp_path.name}/nowhere could not be read: ")
    assert report.comparison is not None
    again = report.comparison.rows[-1]
    assert again[0] == "other/run: CRF-FedAvg"
    assert again[-1] == "+0.000 [too few seeds]"


def test_a_folder_whose_name_is_no_text_is_shown(finished: Path, tmp_path: Path) -> None:
    odd = Path(shutil.copytree(finished, tmp_path / os.fsdecode(b"r\xff")))
    report = read_report([odd])
    assert [run.name for run in report.runs] == ["r?"]
    write_page(report, odd / "report.html")
    assert "CRF-FedAvg" in (odd / "report.html").read_text(encoding="utf-8")


def test_a_place_that_no_page_can_have_is_named(finished: Path, tmp_path: Path) -> None:
    report = read_report([finished])
    for place, said in (
        (finished, "is a folder: name a file in it"),
        (finished / "run.toml" / "report.html", "lies within a file: name another file"),
    ):
        with pytest.raises(FedcrfError, match=said):
            write_page(report, place)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(FedcrfError, match="loop holds no run"):
        read_report([loop])


def test_runs_on_other_data_are_not_paired(finished: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    for path in [*other.glob("partitions/*.json"), *other.glob("cells/*/summary.json")]:
        changed = json.loads(path.read_text()) | {"fingerprint": "another"}
        path.write_text(json.dumps(changed))
    report = read_report([finished, other])
    assert not report.damaged
    assert report.comparison is not None
    assert [row[-1] for row in report.comparison.rows] == ["–"] * 4


def test_runs_beside_each_other_say_where_one_is_under_attack(
    finished: Path, tmp_path: Path
) -> None:
    attacked = Store(tmp_path / "attacked")
    attacked.path.mkdir()
    attacked.write(resolve({"methods": ["fedavg"], "attack": {"name": "ipm"}}))
    for folders, note in (([finished, finished], ""), ([finished, attacked.path], UNDER_ATTACK)):
        report = read_report(folders)
        assert report.comparison is not None
        assert report.comparison.note == report.runs[1].results.note == note
        assert report.runs[0].results.note == ""


def table_of(attack: str, *accuracies: float) -> pd.DataFrame:
    """Return the finished cells of a run with one method and so many seeds."""
    return pd.DataFrame(
        {
            "method": "fedavg",
            "seed": range(len(accuracies)),
            "attack": attack,
            "attackers": [[0]] * len(accuracies) if attack else None,
            "accuracy": accuracies,
            "fingerprint": "the same",
            "complete": True,
        }
    )


def test_runs_of_different_attacks_have_no_difference_to_the_first() -> None:
    first, second = table_of("sign-flip", 0.5, 0.6, 0.7), table_of("sign-flip", 0.6, 0.7, 0.9)
    compared = comparison_table([("first", first), ("second", second)])
    assert compared.header[-1] == "Δ to first [95 %]"
    assert [row[-1] for row in compared.rows] == ["–", "+0.133 [-0.010, +0.277]"]
    others = second.assign(attackers=[[1], [0], [0]])
    compared_too = comparison_table([("first", first), ("second", others)])
    assert compared_too.rows[-1][-1] == "+0.150 [too few seeds] (n = 2)"
    for attack in ("label-flip", ""):
        other = comparison_table([("first", first), ("second", second.assign(attack=attack))])
        assert other.header == compared.header[:-1]
        assert other.rows == tuple(row[:-1] for row in compared.rows)


def test_an_interval_that_is_cut_is_not_shown() -> None:
    first, second = table_of("", 0.1, 0.9, 0.1), table_of("", 0.9, 0.1, 0.9)
    compared = comparison_table([("first", first), ("second", second)])
    assert compared.rows[-1][-1] == "+0.267 [too wide]"
    better = table_of("", 0.9, 0.9, 0.6)
    low = table_of("", 0.1, 0.3, 0.2)
    compared = comparison_table([("low", low), ("better", better)])
    assert compared.rows[-1][-1] == "+0.600 [+0.103 or more]"
    compared = comparison_table([("better", better), ("low", low)])
    assert compared.rows[-1][-1] == "-0.600 [-0.103 or less]"
    cells = pd.concat([first, second.assign(method="crf-robust")])
    assert results_table("", cells, {}).rows[-1][-1] == "+0.267 [too wide]"


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedcrfError, match="holds no run"):
        read_report([tmp_path])
    with pytest.raises(FedcrfError, match="no run could be read"):
        read_report([tmp_path / "a", tmp_path / "b"])


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    Store(tmp_path).write(resolve({"methods": ["fedavg"], "seeds": [0]}))
    report = read_report([tmp_path])
    assert report.all_notices() == [f"{tmp_path.name}: fedavg-seed-0: not finished, not started"]
    assert "No cell of this run is finished yet." in render(report)


def test_a_page_does_not_grow_without_bound(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcrf.report.page.MOST_NUMBERS", 200)
    report = read_report([finished])
    assert any("the page would be too large" in line for line in report.all_notices())
    assert len(report.runs[0].cells) < 4
    assert report.runs[0].results.rows


NASTY = "</script><script>document.title='taken'</script><img src=x onerror=\"throw 1\">&amp;"


def test_a_name_does_not_turn_what_follows_it(finished: Path) -> None:
    turned, shown = "site \u202e", r"site \u202e"
    for path in finished.glob("cells/*/rounds.jsonl"):
        path.write_text(path.read_text().replace('"clients":[0,', f'"clients":["{turned}",'))
    for path in finished.glob("partitions/*.json"):
        partition = json.loads(path.read_text())
        partition["class_names"][3] = turned
        path.write_text(json.dumps(partition))
    page = render(read_report([finished]))
    (run,) = page_data(page)["runs"]
    assert run["holdings"][0]["class_names"][3] == shown
    assert {cell["rounds"][0]["clients"][0] for cell in run["cells"]} == {shown}
    assert any(shown in said[0] for said in run["cells"][0]["rounds"][0]["said"])
    assert "\u202e" not in page + json.dumps(run, ensure_ascii=False)
    moved = finished.rename(finished.with_name("a\u202eb"))
    assert "\u202e" not in render(read_report([moved, moved / "cells" / ".."]))


def test_names_are_escaped(finished: Path, tmp_path: Path) -> None:
    path = finished / "partitions" / "seed-0.json"
    partition = json.loads(path.read_text())
    partition["class_names"][3] = NASTY
    path.write_text(json.dumps(partition))
    folder = Path(shutil.move(finished, tmp_path / "<img src=x>"))
    write_page(read_report([folder, tmp_path / "<b>none</b>"]), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for tag in ("<img", "<b>", "<script>document"):
        assert tag not in page
    assert page_data(page)["runs"][0]["holdings"][0]["class_names"][3] == NASTY


def test_a_method_that_has_stopped_keeps_its_best_rounds_in_the_numbers(tmp_path: Path) -> None:
    spec = small_spec(
        methods=["fedavg", "krum"],
        seeds=[0, 1],
        rounds={"maximum": 12, "patience": 2},
        training={"learning_rate": 0.5},
    )
    assert carry_out(spec, tmp_path)[1] == []
    store = Store(tmp_path)
    found: dict[str, list[Rounds]] = {}
    for cell in spec.cells():
        found.setdefault(cell.method.title, []).append(store.cell(cell).records())
    longest = {title: max(map(len, seeds)) for title, seeds in found.items()}
    (first,) = (title for title in longest if longest[title] < max(longest.values()))
    best = [min(seed, key=lambda each: each.validation.loss).validation for seed in found[first]]
    for table, what in zip(read_report([tmp_path]).runs[0].curves, (ACCURACY, LOSS), strict=True):
        (row,) = (row for row in table.rows if row[0] == first)
        assert row[-1] == f"{np.mean([getattr(each, what) for each in best]):.3f}"


def test_a_cell_that_is_not_finished_is_in_no_mean_curve(tmp_path: Path) -> None:
    spec = small_spec(methods=["fedavg"], seeds=[0, 1], **{"rounds": {"maximum": 3}})
    carry_out(spec, tmp_path)
    whole = read_results(Store(tmp_path))
    first, second = whole.cells
    running = replace(second, summary=None, records=second.records[:1])
    one = replace(whole, cells=[first, running]).records()["fedavg"]
    assert [len(each) for each in one] == [3, 0]
    both = replace(whole, cells=[replace(first, summary=None), running]).records()["fedavg"]
    assert [len(each) for each in both] == [1, 1]
