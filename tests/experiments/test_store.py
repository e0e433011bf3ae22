"""Results on disk: extended, never mixed, and named where they are damaged."""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.runs import carry_out, record, small_spec, snapshot
from fedcrf import FedcrfError
from fedcrf.data import load_dataset
from fedcrf.experiments.grid import (
    CellFinished,
    CellStarted,
    RoundFinished,
    Workplace,
    run_grids,
)
from fedcrf.experiments.provenance import provenance
from fedcrf.experiments.results import read_results, table, write_results
from fedcrf.experiments.spec import RunSpec, resolve
from fedcrf.experiments.store import LOCK_NAME, CellStore, Store
from fedcrf.report.explanation import find_round, find_rounds
from fedcrf.report.page import read_report, render
from fedcrf.simulation.engine import evaluation_of, score
from fedcrf.simulation.federation import build_federation, client_splits
from fedcrf.simulation.rounds import EarlyStopping, Simulation
from simulation.small import same_state, without_seconds


def cell_of(folder: Path, name: str = "fedavg-seed-0") -> CellStore:
    return CellStore(folder / "cells" / name)


# Whose folder it is


@pytest.mark.parametrize("stranger", ["notes.txt", ".hidden", "cells"])
def test_a_foreign_folder_is_left_alone(tmp_path: Path, stranger: str) -> None:
    (tmp_path / stranger).mkdir()
    with pytest.raises(FedcrfError, match=r"is not empty and holds no run.*--output"):
        Store(tmp_path).check(small_spec())
    with pytest.raises(FedcrfError, match="holds no run"):
        Store(tmp_path).read()


@pytest.mark.parametrize("leftover", [None, LOCK_NAME])
def test_an_empty_folder_is_a_new_run(tmp_path: Path, leftover: str | None) -> None:
    if leftover:  # a run that was stopped before it wrote anything
        (tmp_path / leftover).touch()
    spec = small_spec()
    assert Store(tmp_path).check(spec) == spec


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": {"dataset": "mnist"}}, ["data.dataset", "digits", "mnist"]),
        ({"data": {"image_size": 4}}, ["data.image_size", "unset", "4"]),
        ({"partition": {"alpha": 0.7}}, ["partition.alpha", "0.1", "0.7"]),
        ({"partition": {"num_clients": 5}}, ["partition.num_clients", "4", "5"]),
        ({"model": {"hidden": [5]}}, ["model.hidden", "[4]", "[5]"]),
        ({"training": {"learning_rate": 0.3}}, ["training.learning_rate", "0.05", "0.3"]),
        ({"rounds": {"maximum": 4}}, ["rounds.maximum", "3", "4"]),
        ({"rules": {"crf": {"bandwidth": 0.1}}}, ["rules.crf.bandwidth", "0.5", "0.1"]),
        ({"attack": {"name": "ipm", "attackers": 1}}, ["attack.name", "unset", "ipm"]),
    ],
    ids=str,
)
def test_another_run_s_folder_is_refused(
    finished: Path, changes: dict[str, Any], named: list[str]
) -> None:
    before = snapshot(finished)
    other = resolve(small_spec().describe(), changes)
    with pytest.raises(FedcrfError) as caught:
        Store(finished).check(other)
    for name in [str(finished), "--output", *named]:
        assert name in str(caught.value)
    assert snapshot(finished) == before


def test_it_may_be_extended_by_methods_and_seeds(finished: Path) -> None:
    old = snapshot(finished / "cells")
    wider = small_spec(methods=["uniform", "fedavg"], seeds=[2, 1])
    whole = Store(finished).check(wider)
    assert whole.methods == ("fedavg", "crf-fedavg", "uniform")
    assert whole.seeds == (0, 1, 2)
    log, failed = carry_out(wider, finished)
    assert failed == []
    new = snapshot(finished / "cells")
    assert {name: new[name] for name in old} == old, "what was there is as it was"
    run = {event.cell.name for event in log.of(RoundFinished)}
    assert run == {"uniform-seed-2", "fedavg-seed-2", "uniform-seed-1"}
    assert Store(finished).read().describe() == whole.describe()
    # The same again runs nothing; what was not asked for is not finished.
    again, _ = carry_out(wider, finished)
    assert again.of(RoundFinished) == []
    assert len(again.of(CellFinished)) == 4
    missing = [each.cell.name for each in read_results(Store(finished)).cells if not each.summary]
    assert missing == ["uniform-seed-0", "crf-fedavg-seed-2"]


def test_a_rule_s_settings_may_differ_where_the_run_has_no_such_rule(tmp_path: Path) -> None:
    # FedAvg alone does not care for the CRF's bandwidth; once it is in, it does.
    store = Store(tmp_path / "run")
    carry_out(small_spec(methods=["fedavg"], seeds=[0]), store.path)
    sharp = {"rules": {"crf": {"bandwidth": 0.1}}}
    assert store.check(small_spec(**sharp)).cell("crf-fedavg", 0).rule.bandwidth == 0.1


def test_what_a_rule_is_told_is_as_good_as_said(tmp_path: Path) -> None:
    """Folders of old say defaults that a run tells today."""
    attack = {"name": "ipm", "attackers": 1}
    peers = ["krum", "trimmed-mean", "byzfl-krum"]

    def spec(krum: int, trimmed: float, **changes: Any) -> RunSpec:
        rules = {"krum": {"num_byzantine": krum}, "trimmed-mean": {"fraction": trimmed}}
        return small_spec(methods=peers, rules=rules, **changes)

    open_ = small_spec(methods=peers, seeds=[1])
    for old, new in (
        (spec(0, 0.1), open_),
        (spec(1, 0.25, attack=attack), small_spec(methods=peers, seeds=[1], attack=attack)),
    ):
        store = Store(tmp_path / str(old.threat is None))
        store.path.mkdir()
        store.write(old)
        assert store.check(new).cell("krum", 0) == old.cell("krum", 0)
    store.write(spec(0, 0.25, attack=attack))
    with pytest.raises(FedcrfError, match=r"rules\.krum\.num_byzantine is 0 there, 1 here"):
        store.check(new)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path).locked():
        with pytest.raises(FedcrfError, match="is being written by another process"):
            carry_out(small_spec(), tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]
    with Store(tmp_path).locked():
        pass


# Records, summaries and checkpoints


def test_what_is_kept_of_a_finished_cell(finished: Path) -> None:
    cell = cell_of(finished, "crf-fedavg-seed-1")
    records, summary = cell.records(), cell.summary()
    assert [each.round for each in records] == [1, 2, 3]
    assert all(each.reasons is not None for each in records)
    assert summary is not None
    assert (summary.method, summary.seed, summary.rounds) == ("crf-fedavg", 1, 3)
    assert not (cell.path / "checkpoint.pt").exists()
    spec = Store(finished).read()
    assert summary.description == spec.cell("crf-fedavg", 1).describe()


def test_a_line_still_being_written_is_no_damage(finished: Path) -> None:
    path = finished / "cells" / "fedavg-seed-0" / "rounds.jsonl"
    whole = path.read_bytes()
    for cut in (1, 2, 50):
        path.write_bytes(whole[:-cut])
        assert [each.round for each in cell_of(finished).records()] == [1, 2]
    path.write_bytes(b"")
    assert cell_of(finished).records() == []


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize("damage", [b"{}", b"", b'{"round": 1', b"\x00\x00", b"null", b"\xff\xfe"])
def test_a_damaged_record_is_named_by_its_line(finished: Path, line: int, damage: bytes) -> None:
    path = finished / "cells" / "fedavg-seed-0" / "rounds.jsonl"
    lines = path.read_bytes().splitlines()
    lines[line] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(FedcrfError, match=rf"rounds\.jsonl, line {line + 1}, is not a round"):
        cell_of(finished).records()

    sound, told = cell_of(finished).sound_records()
    assert [each.round for each in sound] == list(range(1, line + 1))
    assert f"line {line + 1}, is not a round" in str(told)


def test_whole_records_have_no_damage(finished: Path) -> None:
    cell = cell_of(finished)
    assert cell.sound_records() == (cell.records(), None)


def test_records_that_cannot_be_read_are_named(finished: Path) -> None:
    path = finished / "cells" / "fedavg-seed-0" / "rounds.jsonl"
    path.unlink()
    path.mkdir()
    with pytest.raises(FedcrfError, match=r"rounds\.jsonl cannot be read"):
        cell_of(finished).records()


def test_a_summary_that_cannot_be_read_is_not_called_damaged(finished: Path) -> None:
    path = finished / "cells" / "fedavg-seed-0" / "summary.json"
    path.unlink()
    path.mkdir()
    with pytest.raises(FedcrfError, match=r"summary\.json cannot be read: Is a directory; mend"):
        cell_of(finished).summary()


@pytest.mark.parametrize(
    ("file", "known", "later", "key"),
    [
        ("cells/fedavg-seed-0/rounds.jsonl", '{"round":2,', '{"new":1,"round":2,', "new"),
        ("cells/fedavg-seed-0/rounds.jsonl", '"seconds":{', '"seconds":{"new":1,', "seconds.new"),
        ("cells/fedavg-seed-0/summary.json", '"method"', '"new": [1], "method"', "new"),
        ("partitions/seed-0.json", '"client":0', '"client":0,"new":0', "clients.0.new"),
    ],
)
def test_what_a_later_version_wrote_is_not_called_damaged(
    file: str, known: str, later: str, key: str, finished: Path
) -> None:
    path, store = finished / file, Store(finished)
    text = path.read_text()
    assert known in text
    path.write_text(text.replace(known, later))
    cell = cell_of(finished)
    said = rf" has '{key}', which this version does not know: use the version that wrote it$"
    with pytest.raises(FedcrfError, match=said):
        (cell.records(), cell.summary(), store.partition(0))
    # Where a key is missing too, it is damaged.
    path.write_text(path.read_text().replace('"clients":', '"client":', 1).replace('"seed', '"sed'))
    with pytest.raises(FedcrfError, match=r" is not "):
        (cell.records(), cell.summary(), store.partition(0))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"method": "fedavg"}'])
def test_a_damaged_summary_is_named(finished: Path, content: bytes) -> None:
    (finished / "cells" / "fedavg-seed-0" / "summary.json").write_bytes(content)
    with pytest.raises(FedcrfError, match=r"summary\.json is not a cell's summary"):
        cell_of(finished).summary()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("rounds.jsonl", b"", b"rubbish\n"),
        ("rounds.jsonl", b'"round":2', b'"round":1'),
        ("summary.json", b"", b"rubbish\n"),
        ("summary.json", b'"method": "fedavg"', b'"method": "rfa"'),
        ("summary.json", b'"seed": 0', b'"seed": 1'),
    ],
)
def test_the_rest_of_a_damaged_run_is_still_told(
    finished: Path, file: str, old: bytes, new: bytes
) -> None:
    path = finished / "cells" / "fedavg-seed-0" / file
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    run = read_results(Store(finished))
    damaged = [each for each in run.cells if each.damage]
    assert [each.cell.name for each in damaged] == ["fedavg-seed-0"]
    assert "fedavg-seed-0" in str(damaged[0].damage)
    assert [row[1] for row in run.tables()[0].rows] == ["1", "2"], "seeds that count"
    assert write_results(Store(finished))


def test_the_tables_of_a_whole_run_outlast_its_damage(finished: Path) -> None:
    write_results(Store(finished))
    (finished / "cells" / "fedavg-seed-0" / "summary.json").write_text("rubbish")
    before = snapshot(finished)
    with pytest.raises(FedcrfError, match=r"results\.md is kept as it is"):
        write_results(Store(finished))
    assert snapshot(finished) == before


@pytest.mark.parametrize("content", [b"methods = [", b"methodes = []", b""])
def test_a_damaged_description_is_an_error_or_the_defaults(finished: Path, content: bytes) -> None:
    (finished / "run.toml").write_bytes(content)
    with pytest.raises(FedcrfError):
        Store(finished).check(small_spec())


# Going on


def unfinished(folder: Path, rounds: int) -> CellStore:
    """A cell stopped after so many rounds, as a kill leaves it."""

    class StopError(BaseException):
        pass

    def stop(event: object) -> None:
        if isinstance(event, RoundFinished) and event.record.round == rounds:
            raise StopError

    with pytest.raises(StopError):
        run_grids([(ONE_CELL, Store(folder))], Workplace(device="cpu"), stop)
    return cell_of(folder)


ONE_CELL: RunSpec = small_spec(methods=["fedavg"], seeds=[0])


def test_resume_drops_a_round_whose_state_was_lost(tmp_path: Path, finished: Path) -> None:
    # Killed between the record and the checkpoint: the record is there and does not count.
    cell = unfinished(tmp_path / "mine", 2)
    path = cell.path / "rounds.jsonl"
    two = path.read_bytes()
    path.write_bytes(two + record(3, 9.0).model_dump_json(exclude_none=True).encode() + b"\n")
    state = cell.resume()
    assert state is not None
    assert state.round == 2
    assert path.read_bytes() == two
    # And half a record.
    path.write_bytes(two + b'{"round": 3, "tra')
    assert cell.resume() is not None
    assert path.read_bytes() == two
    log, failed = carry_out(ONE_CELL, tmp_path / "mine")
    assert failed == []
    assert [event.record.round for event in log.of(RoundFinished)] == [3]
    untouched = cell_of(finished).records()
    for mine, theirs in zip(cell.records(), untouched, strict=True):
        assert mine.model_dump(exclude={"seconds"}) == theirs.model_dump(exclude={"seconds"})


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    cell = unfinished(tmp_path / "run", 1)
    for name in ("checkpoint.pt", "rounds.jsonl", "model.pt"):
        (cell.path / f".{name}.123-0a1b2c3d").write_bytes(b"half")
    assert carry_out(ONE_CELL, tmp_path / "run")[1] == []
    left = {path.name for path in cell.path.iterdir()}
    assert left == {LOCK_NAME, "rounds.jsonl", "model.pt", "summary.json"}


def test_what_a_kill_left_of_a_finished_cell_is_removed(finished: Path) -> None:
    cell = cell_of(finished)
    for name in ("checkpoint.pt", "begun.json"):  # between the summary and their removal
        (cell.path / name).write_bytes(b"of the last round")
    log, failed = carry_out(ONE_CELL, finished)
    assert failed == []
    assert log.of(CellStarted) == []
    left = {path.name for path in cell.path.iterdir()}
    assert left == {LOCK_NAME, "rounds.jsonl", "model.pt", "summary.json"}


def test_killed_before_the_first_checkpoint_it_starts_anew(tmp_path: Path) -> None:
    cell = unfinished(tmp_path / "run", 1)
    (cell.path / "checkpoint.pt").unlink()
    assert cell.resume() is None
    assert cell.records() == []


@pytest.mark.parametrize("damage", ["missing", "short", "swapped", "rubbish"])
def test_records_that_do_not_belong_to_the_checkpoint(tmp_path: Path, damage: str) -> None:
    cell = unfinished(tmp_path / "run", 2)
    path = cell.path / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "missing":
        path.unlink()
    else:
        new = {"short": lines[:1], "swapped": lines[::-1], "rubbish": [b"x\n", *lines]}[damage]
        path.write_bytes(b"".join(new))
    before = snapshot(cell.path)
    with pytest.raises(FedcrfError, match=r"rounds\.jsonl"):
        cell.resume()
    assert snapshot(cell.path) == before, "what may still be of use is left"


def test_a_damaged_checkpoint_fails_that_cell_and_no_other(tmp_path: Path) -> None:
    cell = unfinished(tmp_path / "run", 2)
    checkpoint = cell.path / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    log, failed = carry_out(small_spec(methods=["fedavg"], seeds=[0, 1]), tmp_path / "run")
    assert [each.cell.name for each in failed] == ["fedavg-seed-0"]
    assert "checkpoint.pt" in failed[0].reason
    assert [event.cell.name for event in log.of(CellFinished)] == ["fedavg-seed-1"]


def test_the_partition_of_each_seed_is_kept(finished: Path) -> None:
    for seed in (0, 1):
        kept = json.loads((finished / "partitions" / f"seed-{seed}.json").read_text())
        assert kept["seed"] == seed
        assert [each["client"] for each in kept["clients"]] == [0, 1, 2, 3]
        parts = ("train", "validation", "test")
        held = sum(each[part] for each in kept["clients"] for part in parts)
        assert held == 1437, "every example of the digits' training set, once"
        for each in kept["clients"]:
            assert sum(each["labels"]) == each["train"]


def test_the_saved_model_is_the_reported_one(finished: Path) -> None:
    # The model of the best round evaluates to the accuracy in the summary.
    spec = Store(finished).read()
    cell = spec.cell("crf-fedavg", 1)
    dataset = Workplace().load(spec.data)
    splits = client_splits(dataset.train.labels, cell.partition, cell.seed)
    federation = build_federation(dataset, splits)
    network = cell.model.build(dataset.image_shape, dataset.num_classes)
    saved = torch.load(finished / "cells" / cell.name / "model.pt", weights_only=True)
    assert not same_state(
        {k: v.numpy() for k, v in saved.items()},
        {k: v.numpy() for k, v in network.state_dict().items()},
    )
    network.load_state_dict(saved)
    summary = cell_of(finished, cell.name).summary()
    assert summary is not None
    accuracy = evaluation_of(score(network, federation.test, 256)).accuracy
    assert accuracy == pytest.approx(summary.test_accuracy, abs=1e-9)


# Rounds without a record

THIN: RunSpec = small_spec(
    methods=["crf-robust"],
    seeds=[0],
    rounds={"maximum": 8, "patience": 99, "evaluate_every": 3},
    training={"local_steps": 1, "worker_momentum": 0.9, "weight_decay": 0.01},
)


def begun(folder: Path, rounds: int, *, always: bool) -> CellStore:
    """Carry out the first rounds of the thin cell as a run does; then it is killed.

    ``always`` is as if rounds were so long that each had a checkpoint, or else so short that only
    those with a record have one.
    """
    (spec,) = THIN.cells()
    data = load_dataset("digits")
    splits = client_splits(data.train.labels, spec.partition, 0)
    whole = Simulation(
        build_federation(data, splits), spec.model, spec.objective, spec.server_rule, spec.training,
        EarlyStopping(99), max_rounds=8, evaluate_every=3,
    )  # fmt: skip
    store = Store(folder).cell(spec)
    with store.locked(), pytest.MonkeyPatch.context() as seconds:
        seconds.setattr("fedcrf.experiments.store.SPACING", 0.0 if always else math.inf)
        store.begin(spec, provenance(torch.device("cpu")))
        for state, record in islice(whole.steps(whole.start()), rounds):
            store.append(state, record)
    return store


def rounds_kept(folder: Path) -> dict[str, Any]:
    """Return the files of all cells but their locks."""
    files = snapshot(folder / "cells")
    return {name: each for name, each in files.items() if not name.endswith(LOCK_NAME)}


def test_a_stale_cell_of_damaged_rounds_is_explained_with_both(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished / "cells" / "fedavg-seed-0" / "rounds.jsonl"
    path.write_bytes(path.read_bytes() + b"rubbish\n")
    monkeypatch.setattr("fedcrf.experiments.store.changes", lambda *_: ["the rule has changed"])
    found = find_rounds(finished, "fedavg", 0)
    assert (found.stale, len(found.records) > 0) == ("the rule has changed", True)
    assert found.damage is not None
    assert "is not a round's record" in found.damage


def test_a_stopped_cell_goes_on_under_its_own_description_alone(tmp_path: Path) -> None:
    Store(tmp_path).write(THIN)
    begun(tmp_path, 4, always=True)
    training = {**THIN.describe()["training"], "worker_momentum": 0.5}
    edited = resolve(THIN.describe(), {"training": training})
    Store(tmp_path).write(edited)  # as by hand
    before = rounds_kept(tmp_path)
    _, failed = carry_out(edited, tmp_path)
    assert "of another description (training.worker_momentum is 0.9 there, 0.5 here)" in (
        failed[0].reason
    )
    assert "put run.toml back as it was" in failed[0].reason
    assert read_results(Store(tmp_path)).cells[0].damage == failed[0].reason
    assert find_rounds(tmp_path, None, None).damage == failed[0].reason
    assert rounds_kept(tmp_path) == before
    Store(tmp_path).write(THIN)
    log, failed = carry_out(THIN, tmp_path)
    assert (failed, log.of(CellStarted)[0].rounds_done) == ([], 4)


def test_a_file_of_a_stopped_cell_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = begun(tmp_path, 4, always=True)
    read: list[str] = []
    of_file = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path.name)
        return of_file(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    (spec,) = THIN.cells()
    for look in (
        lambda: cell.look(spec, None),
        lambda: cell.begin(spec, provenance(torch.device("cpu"))),
    ):
        read.clear()
        look()
        assert [read.count(name) for name in ("begun.json", "summary.json")] == [1, 1]


def test_an_empty_description_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(FedcrfError, match=r"run\.toml is empty: put it back as it was"):
        Store(tmp_path).read()
    (tmp_path / "run.toml").unlink()
    begun(tmp_path, 4, always=True)
    with pytest.raises(FedcrfError, match=r"has cells and no run\.toml: put it back as it was"):
        Store(tmp_path).check(THIN)


@pytest.mark.parametrize("always", [True, False], ids=["long rounds", "short rounds"])
@pytest.mark.parametrize("rounds", [2, 4, 6, 7])
def test_a_thin_cell_goes_on_to_the_bit(tmp_path: Path, rounds: int, always: bool) -> None:
    _, failed = carry_out(THIN, tmp_path / "whole")
    assert failed == []
    (spec,) = THIN.cells()
    whole = Store(tmp_path / "whole").cell(spec)
    (tmp_path / "run").mkdir()
    Store(tmp_path / "run").write(THIN)
    mine = begun(tmp_path / "run", rounds, always=always)
    state = mine.resume()
    assert state is not None
    # Of short rounds without a record only the first was kept, since nothing was before.
    assert state.round == (rounds if always else max(1, rounds // 3 * 3))
    log, failed = carry_out(THIN, tmp_path / "run")
    assert failed == []
    done = state.round // 3 * 3
    assert [each.record.round for each in log.of(RoundFinished)] == [
        number for number in (3, 6, 8) if number > done
    ]
    assert without_seconds(mine.records()) == without_seconds(whole.records())
    one, two = (torch.load(each.path / "model.pt", weights_only=True) for each in (mine, whole))
    assert all(torch.equal(one[name], two[name]) for name in two)
    summary = whole.summary()
    assert summary is not None
    assert (summary.rounds, summary.stopped_early, len(whole.records())) == (8, False, 3)
    assert summary.images_per_second > 0


@pytest.mark.parametrize("damage", ["missing", "swapped", "later"])
def test_thin_records_that_do_not_belong_to_the_checkpoint(tmp_path: Path, damage: str) -> None:
    cell = begun(tmp_path, 7, always=True)
    path = cell.path / "rounds.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    lines = {"missing": [first], "swapped": [second, first], "later": [second]}[damage]
    path.write_bytes(b"".join(lines))
    with pytest.raises(FedcrfError, match=r"rounds\.jsonl"):
        cell.resume()


def test_thin_runs_are_read_like_others(tmp_path: Path) -> None:
    spec = small_spec(
        methods=["fedavg", "crf-robust"],
        rounds={"maximum": 60, "evaluate_every": 20, "patience": 99},
        training={"local_steps": 1},
        partition={"num_clients": 13},
    )
    _, failed = carry_out(spec, tmp_path)
    assert failed == []
    store = Store(tmp_path)
    (robust,) = (cell for cell in spec.cells() if cell.name == "crf-robust-seed-0")
    assert (store.cell(robust).path / "rounds.jsonl").stat().st_size < 3 * 5000
    cells = table(tmp_path)
    assert cells["complete"].all()
    assert set(cells["rounds"]) == {60}
    assert all(len(curve) == 3 for curve in cells["curve"])
    assert write_results(store)
    report = read_report([tmp_path])
    for curves in report.runs[0].measured.values():
        assert [curve.rounds for curve in curves] == [[20, 40, 60]] * 2
    assert report.runs[0].curves[0].header == ("method", "round 20", "round 40", "round 60")
    assert render(report)
    found = find_rounds(tmp_path, "crf-robust", 0)
    assert find_round(found, None).round == 60
    with pytest.raises(
        FedcrfError,
        match=r"keeps of round 7 only its part of the totals of rounds 1 to 20: choose round 20",
    ):
        find_round(found, 7)
    archive = tmp_path / "packed" / "seed-0.tar.xz"
    store.add_to_archive(archive, [robust])
    packed = Store(archive.parent).cell(robust).records()
    assert [record.first for record in packed] == [1, 21, 41]


def test_of_records_without_a_checkpoint_there_may_be_one(tmp_path: Path) -> None:
    cell = unfinished(tmp_path / "run", 1)
    with (cell.path / "rounds.jsonl").open("ab") as file:
        for number in (2, 3):
            file.write(record(number, 9.0).model_dump_json(exclude_none=True).encode() + b"\n")
    with pytest.raises(FedcrfError, match="does not hold rounds 1 to 1"):
        cell.resume()
