"""A suite keeps its rounds: packed, read as a run, and in fewer digits."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.runs import Log, snapshot
from experiments.runs import record as round_record
from fedcrf import FedcrfError
from fedcrf.cli import app
from fedcrf.experiments.grid import CellFailed, CellStarted, RoundFinished, Workplace, run_suite
from fedcrf.experiments.results import keys_of, read_results, suite_cells, table
from fedcrf.experiments.store import Store, brief_line
from fedcrf.experiments.study import Suite, read_suite
from fedcrf.report.effects import effects_of
from fedcrf.rules import CRFRobust
from fedcrf.simulation.records import RoundRecord
from report.test_content import page_data

SMALL = {"model": {"name": "mlp", "hidden": [4]}, "rounds": {"maximum": 3}}


def suite(
    methods: Sequence[str] = ("fedavg", "crf-robust"), seeds: Sequence[int] = (0, 1)
) -> Suite:
    parts: dict[str, Any] = {"partitions": ["iid"], "conditions": ["ipm-2"]}
    found = read_suite("attacks", "digits")
    return found.chosen(methods=methods, seeds=seeds, **parts, settings=[SMALL])


def run(asked: Suite, folder: Path) -> Log:
    log = Log()
    store = Store(folder)
    assert run_suite(asked, store, Workplace(device="cpu"), lambda _: nullcontext(log)) == []
    return log


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Log]:
    """A suite's folder, to look at only, and what was told while it ran."""
    folder = tmp_path_factory.mktemp("suites") / "suite"
    return folder, run(suite(), folder)


def packed(folder: Path, condition: str = "ipm-2") -> Path:
    return Store(folder).packed("iid", condition).path


def test_every_cell_of_a_suite_keeps_its_rounds(whole: tuple[Path, Log]) -> None:
    folder, log = whole
    assert not (folder / "runs").exists()
    cells = {
        (each.parent.name, seed)
        for each in packed(folder).parent.glob("*/seed-*.tar.xz")
        for seed in [each.name]
    }
    conditions = suite().conditions
    assert cells == {(c, f"seed-{s}.tar.xz") for c in conditions for s in (0, 1)}
    run_so_far = read_results(Store(packed(folder)))
    assert [each.cell.name for each in run_so_far.cells] == [
        "fedavg-seed-0", "crf-robust-seed-0", "fedavg-seed-1", "crf-robust-seed-1",
    ]  # fmt: skip
    assert all(len(each.records) == 3 for each in run_so_far.cells)
    found = table(packed(folder))
    assert list(found.accuracy) == [s.test_accuracy for s in run_so_far.finished]
    assert found.complete.all()
    # In the order in which they were told, but for their digits.
    told = [e.record for e in log.of(RoundFinished) if e.record.attackers and e.cell.seed == 0]
    kept = run_so_far.cells[1].records
    mine = [record for record in told if record.reasons is not None][-3:]
    for record, brief in zip(mine, kept, strict=True):
        assert brief.weight == pytest.approx(record.weight, rel=5e-3)
        assert brief.validation.accuracy == pytest.approx(record.validation.accuracy, rel=5e-4)
        assert brief.num_examples == record.num_examples
        assert brief.attackers == record.attackers


def told(record: RoundRecord) -> Sequence[Sequence[str]]:
    found = effects_of(record, CRFRobust())
    assert found is not None
    return found.named


def test_few_digits_are_enough_for_the_reasons(whole: tuple[Path, Log]) -> None:
    folder, log = whole
    whole_digits = [
        e.record
        for e in log.of(RoundFinished)
        if e.cell.method.name == "crf-robust" and e.cell.seed == 1 and e.record.attackers
    ]
    few = read_results(Store(packed(folder))).cells[3].records
    assert [told(each) for each in few] == [told(each) for each in whole_digits]


def test_report_explain_and_show_read_an_archive(whole: tuple[Path, Log], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole[0], tmp_path / "suite"))
    place = str(packed(folder))
    before = snapshot(folder)
    explained = CliRunner().invoke(
        app, ["explain", place, "--round", "2", "--seed", "1", "--client", "3"]
    )
    assert explained.exit_code == 0, explained.output
    assert "CRF-robust, seed 1, round 2" in explained.output
    shown = CliRunner().invoke(app, ["show", place])
    assert shown.exit_code == 0
    assert "CRF-robust" in shown.output
    assert snapshot(folder) == before
    reported = CliRunner().invoke(app, ["report", place])
    assert reported.exit_code == 0, reported.output
    page = (packed(folder) / "report.html").read_text()
    assert "CRF-robust" in page
    cells = [cell for run in page_data(page)["runs"] for cell in run["cells"]]
    assert {cell["seed"] for cell in cells} == {0, 1}
    assert CliRunner().invoke(app, ["show", place, "--figures"]).exit_code == 0
    assert (packed(folder) / "accuracy.svg").exists()


def test_a_suite_s_folder_says_where_its_rounds_are(
    whole: tuple[Path, Log], tmp_path: Path
) -> None:
    with pytest.raises(FedcrfError, match=r"holds a suite: name a condition of it, such as .*iid"):
        Store(whole[0]).read()
    shown = CliRunner().invoke(app, ["show", str(whole[0])])
    assert shown.exit_code == 0
    assert "holds 10 finished cells of a suite" in " ".join(shown.output.split())
    assert "name a condition, such as" in " ".join(shown.output.split())
    Store(tmp_path).write_scores([])
    with pytest.raises(FedcrfError, match="kept no rounds: take their lines out of cells"):
        Store(tmp_path).read()


def test_an_archive_is_a_run_s_folder_and_always_the_same(
    whole: tuple[Path, Log], tmp_path: Path
) -> None:
    path = packed(whole[0]) / "seed-0.tar.xz"
    with tarfile.open(path) as archive:
        assert archive.getnames() == [
            "cells/crf-robust-seed-0/rounds.jsonl", "cells/crf-robust-seed-0/summary.json",
            "cells/fedavg-seed-0/rounds.jsonl", "cells/fedavg-seed-0/summary.json",
            "partitions/seed-0.json", "run.toml",
        ]  # fmt: skip
        assert {each.mtime for each in archive} == {0}


def archives(folder: Path) -> dict[str, tuple[int, bytes]]:
    return snapshot(folder / "rounds")


def names(folder: Path) -> list[str]:
    return [each.cell.name for each in read_results(Store(packed(folder))).cells if each.summary]


def test_methods_and_seeds_are_added_and_others_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(suite(["fedavg"], [0]), tmp_path)
    assert names(tmp_path) == ["fedavg-seed-0"]
    run(suite(["fedavg", "crf-robust"], [0, 10]), tmp_path)
    added = ["fedavg-seed-0", "crf-robust-seed-0", "fedavg-seed-10", "crf-robust-seed-10"]
    assert names(tmp_path) == added
    # What is stale is run again, in the place of what was there.
    monkeypatch.setattr(CRFRobust, "behaviour", 2)
    assert names(tmp_path) == [name for name in added if name.startswith("fedavg")]
    run(suite(["fedavg", "crf-robust"], [0]), tmp_path)
    assert names(tmp_path) == ["fedavg-seed-0", "crf-robust-seed-0", "fedavg-seed-10"]
    # Nothing is mixed with what is of other settings, and nothing is lost.
    there = archives(tmp_path)
    other = suite(["fedavg"], [0]).chosen(settings=[{"training": {"learning_rate": 0.5}}])
    with pytest.raises(FedcrfError, match=r"seed-0\.tar\.xz is of another run .*learning_rate"):
        run(other, tmp_path)
    assert archives(tmp_path) == there
    archive = packed(tmp_path) / "seed-0.tar.xz"
    archive.write_bytes(archive.read_bytes()[:-100])
    there = archives(tmp_path)
    with pytest.raises(
        FedcrfError, match=r"cannot be read .*: take it and its cells' lines away to"
    ):
        run(suite(["fedavg", "crf-robust", "krum"], [0]), tmp_path)
    assert archives(tmp_path) == there


def test_rounds_of_a_killed_command_are_packed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Store, "pack", lambda *_: None)  # killed between the last cell and this
        run(suite(["fedavg"], [0]), tmp_path)
    assert not packed(tmp_path).exists()
    assert not run(suite(["fedavg"], [0]), tmp_path).of(CellStarted)
    assert names(tmp_path) == ["fedavg-seed-0"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("going", "first"),
    [
        ("fedavg-seed-0", "rounds.jsonl"),
        ("fedavg-seed-0", "summary.json"),
        ("seed-0", "partitions/*.json"),
        ("seed-0", "run.toml"),
    ],
)
def test_a_kill_while_a_packed_run_is_removed_loses_and_leaves_nothing(
    going: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmtree = shutil.rmtree

    def killed(folder: Path, ignore_errors: bool = False) -> None:
        if folder.name.removeprefix(".going-") != going:
            return rmtree(folder, ignore_errors=ignore_errors)
        for path in folder.glob(first):  # folders are in any order
            path.unlink()
        raise KeyboardInterrupt

    run(suite(["fedavg"], [0]), tmp_path / "undisturbed")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            run(suite(["fedavg"], [0]), tmp_path / "killed")
    run(suite(["fedavg"], [0]), tmp_path / "killed")
    assert not (tmp_path / "killed" / "runs").exists()
    there, undisturbed = (
        [each.records for each in read_results(Store(packed(tmp_path / name))).cells]
        for name in ("killed", "undisturbed")
    )
    assert there == undisturbed
    run(suite(["fedavg", "krum"], [0]), tmp_path / "killed")
    assert names(tmp_path / "killed") == ["fedavg-seed-0", "krum-seed-0"]


def test_rounds_outlast_a_cell_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise FedcrfError("broken")

    monkeypatch.setattr(CRFRobust, "aggregate", broken)
    asked, place = suite(seeds=[0]), Workplace(device="cpu")
    lost = run_suite(asked, Store(tmp_path), place, lambda _: nullcontext(Log()))
    assert {each.cell.method.name for each in lost} == {"crf-robust"}
    assert names(tmp_path) == ["fedavg-seed-0"]
    assert {method for _, _, method, _ in keys_of(suite_cells(asked, Store(tmp_path)))} == {
        "fedavg"
    }
    assert all(isinstance(each, CellFailed) for each in lost)


@pytest.mark.parametrize("damage", ["cut", "rubbish", "empty", "no run", "no TOML", "no text"])
def test_a_damaged_archive_is_named(damage: str, whole: tuple[Path, Log], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(packed(whole[0]), tmp_path / "ipm-2"))
    path = folder / "seed-0.tar.xz"
    content = path.read_bytes()
    if damage.startswith("no "):
        descriptions = {"no TOML": b"methods = [", "no text": b"\xff"}
        with tarfile.open(path, "w:xz") as archive:
            if damage in descriptions:
                member = tarfile.TarInfo("run.toml")
                member.size = len(descriptions[damage])
                archive.addfile(member, io.BytesIO(descriptions[damage]))
    else:
        path.write_bytes({"cut": content[:-200], "rubbish": b"x" * 99, "empty": b""}[damage])
    with pytest.raises(FedcrfError, match=r"archive .*seed-0\.tar\.xz cannot be read"):
        Store(folder).read()


@pytest.mark.parametrize("form", ["up", "absolute"])
def test_nothing_is_unpacked_outside(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    path = tmp_path / "ipm-2" / "seed-0.tar.xz"
    path.parent.mkdir()
    outside = "../../out.txt" if form == "up" else str(temporary / "out.txt")
    contents = {
        "run.toml": b'methods = ["fedavg"]\nseeds = [0]\n',
        outside: b"x",
        "cells/in.txt": b"x",
    }
    with tarfile.open(path, "w:xz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    Store(path.parent).read()
    files = {each.name for each in temporary.rglob("*") if each.is_file()}
    assert files == {"run.toml", "in.txt"}


def test_counts_are_packed_with_all_their_digits() -> None:
    counts = [12345.5, 20.0]
    line = brief_line(round_record(1, 0.5).model_copy(update={"num_examples": counts}))
    assert json.loads(line)["num_examples"] == counts
