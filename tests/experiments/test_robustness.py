"""Suites: which cells they have, what is kept of one, and what the tables make of it."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from docs.ranks import rank_tables

from experiments.runs import Log, record, snapshot
from fedcrf import FedcrfError
from fedcrf.experiments.analysis.conditions import (
    Place,
    accuracy_table,
    difference_table,
    heat_map_grid,
    other_notices,
    overview_table,
    separation,
    separation_table,
    summary_table,
    write_suite,
)
from fedcrf.experiments.analysis.tables import by_axes
from fedcrf.experiments.grid import (
    CellFailed,
    CellFinished,
    Observer,
    RoundFinished,
    Workplace,
    run_suite,
)
from fedcrf.experiments.results import held, keys_of, score_table, suite_cells
from fedcrf.experiments.spec import CellKey, RunSpec, resolve
from fedcrf.experiments.store import Score, Store, name_of, unseeded
from fedcrf.experiments.study import SUITES, Suite, default_folder, read_suite
from fedcrf.simulation.records import RoundRecord, brief

SMALL = {"model": {"name": "mlp", "hidden": [4]}, "rounds": {"maximum": 3}}


def small(**chosen: Sequence[object]) -> Suite:
    parts = {
        "methods": ["fedavg", "crf-robust"],
        "seeds": [0, 1],
        "partitions": ["iid"],
        "conditions": ["ipm-2"],
    }
    return read_suite("attacks", "digits").chosen(**{**parts, **chosen}, settings=[SMALL])  # type: ignore[arg-type]


@pytest.fixture
def log() -> Log:
    return Log()


def run(suite: Suite, folder: Path, log: Log) -> pd.DataFrame:
    @contextmanager
    def observed(_: Sequence[tuple[RunSpec, Store]]) -> Iterator[Observer]:
        yield log

    store = Store(folder)
    assert run_suite(suite, store, Workplace(device="cpu"), observed) == []
    return suite_cells(suite, store)


def accuracies(cells: pd.DataFrame, condition: str, method: str) -> dict[int, float]:
    """A method's accuracies by seed."""
    places = by_axes(cells, "condition", "method")
    return dict(places[condition, method]["accuracy"])


def test_one_display_has_the_runs_of_all_seeds(tmp_path: Path, log: Log) -> None:
    shown: list[list[int]] = []

    @contextmanager
    def observed(runs: Sequence[tuple[RunSpec, Store]]) -> Iterator[Observer]:
        shown.append([cell.seed for spec, _ in runs for cell in spec.cells()])
        yield log

    suite = small(methods=["fedavg"], conditions=[])
    for _ in range(2):  # nothing is left for the second to show
        run_suite(suite, Store(tmp_path), Workplace(device="cpu"), observed)
    assert shown == [[0, 1]]


@pytest.mark.parametrize(
    ("cells", "together"),  # a seed has five: nobody, an attack, and its attackers left out
    [
        (1, [[0], [1], [2], [3]]),
        (6, [[0, 1], [2, 3]]),
        (11, [[0, 1, 2], [3]]),
        (64, [[0, 1, 2, 3]]),
    ],
)
def test_seeds_with_few_cells_are_run_together(
    cells: int, together: list[list[int]], tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []

    def counting(runs: Sequence[tuple[RunSpec, Store]], *_: object) -> list[CellFailed]:
        asked.append(sorted({seed for spec, _ in runs for seed in spec.seeds}))
        return []

    monkeypatch.setattr("fedcrf.experiments.grid.run_grids", counting)
    monkeypatch.setattr("fedcrf.experiments.grid.CELLS_TOGETHER", cells)
    suite = small(seeds=range(4))
    run_suite(suite, Store(tmp_path), Workplace(device="cpu"), lambda _: nullcontext(log))
    assert asked == together


def finished(log: Log) -> list[str]:
    return [event.cell.name for event in log.events if isinstance(event, CellFinished)]


DATASETS = [(name, dataset) for name in SUITES for dataset in read_suite(name).datasets]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(("name", "dataset"), DATASETS)
def test_every_condition_of_a_suite_can_be_run(name: str, dataset: str, quick: bool) -> None:
    whole = read_suite(name, dataset)
    if quick and whole.quick is None:
        pytest.skip("it has no small size")
    suite = whole.chosen(seeds=[0], quick=quick)
    assert suite.cells
    for cell in suite.cells.values():
        assert cell.threat is None or cell.threat.schedule.attackers in (1, 2, 3, 4, 5, 24)
        assert cell.rounds.patience == cell.rounds.maximum
    names = [name for names in suite.groups.values() for name in names]
    assert len(names) == len(set(names))
    ideals = {each.ideal for each in suite.conditions.values()} - {None}
    assert all(
        cell.method.name == "fedavg"
        for (_, condition, *_), cell in suite.cells.items()
        if condition in ideals
    )


def test_the_suite_of_attacks_has_all_of_them() -> None:
    suite = read_suite("attacks", "mnist-6000")
    assert len(suite.groups["13 attacks"]) == 13
    grouped = {name for names in suite.groups.values() for name in names}
    assert grouped == set(suite.conditions) - {"none", "left-out"}


@pytest.mark.parametrize(
    ("attackers", "clients", "true"),
    [(None, None, (3, 10)), *((f, None, (f, 10)) for f in (1, 2, 4)), (30, 100, (30, 100))],
)
def test_peers_are_told_the_true_number_of_attackers_whatever_it_is(
    attackers: int | None, clients: int | None, true: tuple[int, int]
) -> None:
    whole = read_suite("attacks", "digits")
    suite = whole.chosen(attackers=attackers, clients=clients, seeds=[0], partitions=["iid"])
    wrong, size = true
    rules = {}
    for cell in suite.cells.values():
        assert cell.threat is not None
        assert (cell.threat.schedule.attackers, cell.partition.num_clients) == true
        rules.setdefault(cell.method.name, cell.rule)
        assert rules[cell.method.name] == cell.rule
    assert rules["krum"].num_byzantine == rules["multi-krum"].num_byzantine == wrong  # type: ignore[attr-defined]
    assert rules["trimmed-mean"].fraction * size == pytest.approx(wrong)  # type: ignore[attr-defined]
    assert suite.numbers == f"{wrong} of {size} clients"
    place = "" if true == (3, 10) else f"-{wrong}-of-{size}-clients"
    assert default_folder(whole, suite) == Path("runs/robustness", f"attacks-digits{place}")


def test_peers_are_told_of_the_clients_that_there_are_however_that_is_said() -> None:
    crowd = [{"partition": {"num_clients": 20}, "rounds": {"clients_per_round": 10}}]
    suite = read_suite("noise", "digits").chosen(seeds=[0], settings=crowd)
    rules = {cell.method.name: cell.rule for cell in suite.cells.values()}
    assert rules["krum"].num_byzantine == 2  # type: ignore[attr-defined]
    assert rules["trimmed-mean"].fraction == 0.2  # type: ignore[attr-defined]
    told = {"rules": {"krum": {"num_byzantine": 1}}}
    suite = read_suite("attacks", "digits").chosen(methods=["krum"], seeds=[0], settings=[told])
    cell = next(cell for cell in suite.cells.values() if cell.method.name == "krum")
    assert cell.rule.num_byzantine == 1  # type: ignore[attr-defined]
    assert read_suite("noise", "digits").chosen(clients=20).numbers == "2 or 4 of 20 clients"


def test_peers_are_told_a_condition_s_own_number() -> None:
    suite = read_suite("noise", "digits").chosen(seeds=[0], partitions=["iid"])
    for (_, condition, method, _), cell in suite.cells.items():
        if method == "krum":
            true = 4 if cell.threat is None else cell.threat.schedule.attackers
            assert cell.rule.num_byzantine == true, condition  # type: ignore[attr-defined]
        if method == "trimmed-mean" and condition == "noise-30-of-2":
            assert cell.rule.fraction == 0.2  # type: ignore[attr-defined]


def test_the_title_of_a_group_stands_for_its_conditions() -> None:
    suite = small(conditions=["Hidden Colluders", "mimic", "adaptive"])
    hidden = ["hidden-ipm-2", "hidden-ipm-0.5", "hidden-mimic"]
    assert list(suite.conditions) == ["none", "left-out", "mimic", *hidden, "adaptive"]


def test_cells_are_run_once_and_kept_as_lines(tmp_path: Path, log: Log) -> None:
    suite = small()
    cells = run(suite, tmp_path, log)
    assert len(keys_of(cells)) == len(suite.cells) == 2 * 2 * 2 + 2
    assert not (tmp_path / "runs").exists()
    again = Log()
    pd.testing.assert_frame_equal(run(suite, tmp_path, again), cells)
    assert finished(again) == []
    # One more method and one more seed: only what is new is run.
    more = run(small(methods=["fedavg", "crf-robust", "krum"]), tmp_path, again)
    assert sorted(finished(again)) == ["krum-seed-0"] * 2 + ["krum-seed-1"] * 2
    assert len(keys_of(more)) == 2 * 3 * 2 + 2
    assert accuracies(cells, "ipm-2", "fedavg") == accuracies(more, "ipm-2", "fedavg")


def test_conditions_that_come_to_the_same_are_run_once(tmp_path: Path, log: Log) -> None:
    suite = small(methods=["fedavg"], seeds=[0], conditions=["ipm-2", "sleeping-ipm-2"])
    sleeping = replace(suite.conditions["sleeping-ipm-2"], name="ipm-2")
    suite = replace(suite, conditions={**suite.conditions, "ipm-2": sleeping})
    cells = run(suite, tmp_path, log)
    assert len(finished(log)) == len(suite.cells) - 1 == 3
    one, other = (accuracies(cells, name, "fedavg") for name in list(suite.conditions)[2:])
    assert len(one) == 1
    assert one == other


def test_a_seed_or_a_method_said_twice_is_run_once(tmp_path: Path, log: Log) -> None:
    suite = small(methods=["fedavg", "fedavg"], seeds=[1, 0, 1])
    run(suite, tmp_path, log)
    assert len(finished(log)) == len(suite.cells) == len(Store(tmp_path).scores()) == 6


def test_what_a_failed_cell_had_done_outlasts_the_seeds_after_it(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(runs: Sequence[tuple[RunSpec, Store]], *_: object) -> list[CellFailed]:
        for _, store in runs:
            store.path.mkdir(parents=True)
        return [
            CellFailed(spec.cells()[0], "no room", store.path)
            for spec, store in runs
            if spec.seeds == (0,)
        ]

    monkeypatch.setattr("fedcrf.experiments.grid.run_grids", failing)
    monkeypatch.setattr("fedcrf.experiments.grid.CELLS_TOGETHER", 1)
    store = Store(tmp_path)
    assert run_suite(small(), store, Workplace(device="cpu"), lambda _: nullcontext(log))
    assert store.under_way("iid", "ipm-2", 0).path.is_dir()


def test_only_what_is_finished_is_cleared_away(tmp_path: Path, log: Log) -> None:
    suite, store = small(seeds=[0]), Store(tmp_path)
    elsewhere = store.under_way("iid", "ipm-2", 1).path / "cells" / "fedavg-seed-1"
    beside = store.under_way("iid", "ipm-2", 0).path
    store.write_scores([])
    for seed, methods in ((0, ["krum"]), (1, ["fedavg"])):  # begun by commands that were killed
        (spec,) = (spec for at, spec in suite.study.points if at["condition"] == "ipm-2")
        spec = resolve(spec.describe(), {"methods": methods, "seeds": [seed]})
        begun = store.under_way("iid", "ipm-2", seed)
        begun.path.mkdir(parents=True)
        begun.write(spec)
        begun.cell(spec.cells()[0]).path.mkdir(parents=True)
    run(suite, tmp_path, log)
    assert elsewhere.is_dir()
    assert [path.name for path in (beside / "cells").iterdir()] == ["krum-seed-0"]
    assert not store.under_way("iid", "none", 0).path.exists()
    run(small(methods=["krum", "fedavg"]), tmp_path, log)
    assert not (tmp_path / "runs").exists()


def test_the_score_is_the_mean_of_the_last_rounds_of_the_same_run(tmp_path: Path, log: Log) -> None:
    suite = small(methods=["crf-robust"], seeds=[0])
    cells = run(suite, tmp_path, log)
    records = [event.record for event in log.events if hasattr(event, "record")]
    of_cell = [r for r in records if r.attackers and r.reasons is not None]
    (accuracy,) = accuracies(cells, "ipm-2", "crf-robust").values()
    assert len(of_cell) == 3
    assert accuracy == pytest.approx(np.mean([record.test.accuracy for record in of_cell]))


def test_where_nobody_attacks_all_clients_are_scored(tmp_path: Path, log: Log) -> None:
    suite = small(seeds=[0])
    cells = run(suite, tmp_path, log)
    last: dict[str, list[RoundRecord]] = {}
    for event in log.of(RoundFinished):
        if event.cell == suite.cells["iid", "none", event.cell.method.name, 0]:
            last.setdefault(event.cell.method.name, []).append(event.record)
    row = {row[0]: row for row in summary_table(Place(suite, cells, "iid")).rows}
    for method, title in (("fedavg", "FedAvg"), ("crf-robust", "CRF-robust")):
        everyone = [record.everyone for record in last[method]]
        worst = np.mean([each.worst_client for each in everyone if each is not None])
        ((_, score),) = by_axes(cells, "condition", "method")["none", method].iterrows()
        assert score.everyone_accuracy == pytest.approx(
            np.mean([e.accuracy for e in everyone if e])
        )
        assert score.worst_client == pytest.approx(worst)
        assert row[title][3:5] == (f"{score.everyone_accuracy:.3f}", f"{worst:.3f}")
        assert score.everyone_accuracy != score.accuracy, (
            "that is of the clients that attack nowhere"
        )
    header = summary_table(Place(suite, cells, "iid")).header
    assert header[2:5] == ("none", "none: all clients", "none: worst client")
    # Of a suite in which nobody could attack there are no others.
    clean = run(
        read_suite("noise", "digits").chosen(
            methods=["fedavg"], seeds=[0], partitions=["iid"], conditions=[], settings=[SMALL]
        ),
        tmp_path / "noise",
        log,
    )
    assert clean["everyone_accuracy"].equals(clean["accuracy"])
    assert len(clean["worst_client"].dropna()) == 1
    # Folders of old say nothing of them, and their tables stay what they were.
    older = [
        score.model_copy(update={"everyone": None, "worst_client": None})
        for score in Store(tmp_path).scores()
    ]
    cells = score_table(older, Store(tmp_path).descriptions(), suite)
    assert "none: all clients" not in summary_table(Place(suite, cells, "iid")).header


def test_tables_are_of_all_that_the_folder_holds(tmp_path: Path, log: Log) -> None:
    run(small(), tmp_path, log)
    asked = small(methods=["krum"], seeds=[1], conditions=["mimic"], partitions=["alpha-0.1"])
    store, attacks = Store(tmp_path), read_suite("attacks", "digits")
    suite = held(attacks, asked, store)
    assert suite.methods == ("fedavg", "krum", "crf-robust"), "in the suite's order"
    assert suite.seeds == (0, 1)
    assert list(suite.partitions) == ["iid", "alpha-0.1"]
    assert list(suite.conditions) == ["none", "left-out", "ipm-2", "mimic"]
    assert len(keys_of(suite_cells(suite, store))) == 10
    store.append(store.scores()[0].model_copy(update={"method": "no-longer"}))
    assert held(attacks, asked, store).methods == ("fedavg", "krum", "crf-robust")


def test_a_changed_setting_is_a_cell_that_was_not_run(tmp_path: Path, log: Log) -> None:
    suite = small(methods=["fedavg"], seeds=[0])
    cells = run(suite, tmp_path, log)
    changed = small(methods=["fedavg"], seeds=[0]).chosen(
        settings=[{"training": {"learning_rate": 0.5}}]
    )
    assert len(keys_of(cells)) == 3
    assert not keys_of(suite_cells(changed, Store(tmp_path)))


def test_what_is_not_of_the_suite_is_named_and_replaces_no_table(tmp_path: Path, log: Log) -> None:
    suite = small(seeds=[0])
    run(suite, tmp_path, log)
    store = Store(tmp_path)
    store.append(store.scores()[0].model_copy(update={"method": "no-longer"}))
    cells = suite_cells(suite, store)
    assert other_notices(cells) == [
        "left out, not of this suite: 1 finished cells of iid/none/no-longer"
    ]
    write_suite(suite, cells, tmp_path)
    before = snapshot(tmp_path)
    slower = suite.chosen(settings=[{"training": {"learning_rate": 0.5}}])
    one = replace(suite, last_rounds=1)
    for asked, cells, why in (
        (
            slower,
            suite_cells(slower, store),
            " of other settings (training.learning_rate is 0.05, not 0.5)",
        ),
        (one, score_table(store.scores(), {}, one), ", means of the last 5 rounds, not of 1"),
    ):
        assert f"left out, not of this suite: 5 finished cells{why}" in other_notices(cells)
        with pytest.raises(FedcrfError, match=r"tables\.md is kept as it is.*\(5\).*\(0\)"):
            write_suite(asked, cells, tmp_path)
    assert snapshot(tmp_path) == before


def test_another_number_of_attackers_is_run_anew_and_not_mixed(tmp_path: Path, log: Log) -> None:
    parts = {"methods": ["fedavg", "krum"], "seeds": [0]}
    three = run(small(**parts), tmp_path, log)
    again = Log()
    one = small(**parts).chosen(attackers=1)
    with pytest.raises(
        FedcrfError, match=r"is of another run \(attack\.attackers is 3 there, 1 here"
    ):
        run(one, tmp_path, again)
    shutil.rmtree(tmp_path / "rounds")  # as in folders of earlier versions, which kept none
    assert len(keys_of(run(one, tmp_path, again))) == len(finished(again)) == len(one.cells)
    for suite, said in ((small(**parts), "3 of 10 clients"), (one, "1 of 10 clients")):
        cells = suite_cells(suite, Store(tmp_path))
        assert len(cells) == 2 * len(keys_of(cells)) == 2 * len(suite.cells)
        write_suite(suite, cells, tmp_path)
        titles = [line for line in (tmp_path / "tables.md").read_text().splitlines() if ":" in line]
        assert f"Rules under attack: digits, iid, {said}" in titles
        assert f"digits, iid, {said}: mean accuracy" in titles
        assert f"digits, iid, {said}: Δ to FedAvg [95 %]" in titles
    again_three = suite_cells(small(**parts), Store(tmp_path))
    assert accuracies(again_three, "ipm-2", "krum") == accuracies(three, "ipm-2", "krum")


def test_a_suite_that_cannot_be_leaves_no_folder(tmp_path: Path, log: Log) -> None:
    with pytest.raises(FedcrfError, match="attackers 12: of 10 clients"):
        run(small().chosen(attackers=12), tmp_path / "none", log)
    assert not (tmp_path / "none").exists()


def test_the_mean_of_other_rounds_is_another_score(tmp_path: Path, log: Log) -> None:
    suite = small(methods=["fedavg"], seeds=[0])
    one = replace(suite, last_rounds=1)
    of_all, of_one = run(suite, tmp_path, log), run(one, tmp_path, log)
    assert len(of_one) == 2 * len(keys_of(of_one)) == 2 * len(suite.cells)
    last, all_rounds = (accuracies(each, "ipm-2", "fedavg") for each in (of_one, of_all))
    assert last.keys() == all_rounds.keys() == {0}
    assert last != all_rounds
    again = suite_cells(suite, Store(tmp_path))
    assert accuracies(again, "ipm-2", "fedavg") == all_rounds


def test_a_setting_that_is_new_since_has_its_default(tmp_path: Path, log: Log) -> None:
    suite = small(methods=["crf-robust"], seeds=[0])
    cells = run(suite, tmp_path, log)
    scores = Store(tmp_path).scores()
    older = {name: dict(each) for name, each in Store(tmp_path).descriptions().items()}
    for each in older.values():
        each["rule"] = {k: v for k, v in each["rule"].items() if k != "update_consistency_share"}
    assert keys_of(score_table(scores, older, suite)) == keys_of(cells) != set()
    for each in older.values():
        each["rule"] = {**each["rule"], "no_longer": 1.0}
    assert not keys_of(score_table(scores, older, suite))


def test_a_line_cut_off_by_a_kill_is_run_again_and_a_damaged_one_is_named(
    tmp_path: Path, log: Log
) -> None:
    suite = small(methods=["fedavg"], seeds=[0])
    cells = run(suite, tmp_path, log)
    lines = tmp_path / "cells.jsonl"
    whole = lines.read_text()
    lines.write_text(whole[:-20])
    assert keys_of(run(suite, tmp_path, log)) == keys_of(cells)
    for damaged in (
        "{}",
        *(
            json.dumps({**json.loads(whole.splitlines()[0]), **change})
            for change in ({"seed": -1}, {"accuracy": None}, {"accuracy": 5.0}, {"accuracy": -0.1})
        ),
    ):
        lines.write_text(damaged + "\n" + whole)
        with pytest.raises(FedcrfError, match=r"cells\.jsonl, line 1, is not a cell's score"):
            Store(tmp_path).scores()


@pytest.mark.parametrize("lost", [1, 3])
def test_cells_whose_descriptions_are_lost_are_not_run_anew(
    tmp_path: Path, log: Log, lost: int
) -> None:
    suite = small(methods=["fedavg"], seeds=[0])
    run(suite, tmp_path, log)
    kept = list(Store(tmp_path).descriptions().items())[lost:]
    descriptions, lines = tmp_path / "descriptions.json", tmp_path / "cells.jsonl"
    descriptions.write_text(json.dumps(dict(kept)))
    if not kept:
        descriptions.unlink()
    with lines.open("a") as file:
        file.write("cut off by a kill")
    before = lines.read_bytes()
    said = rf"ns\.json does not describe {lost} of the finished cells .*: put the file back"
    with pytest.raises(FedcrfError, match=said):
        run(small(), tmp_path, log)
    with pytest.raises(FedcrfError, match=said):  # where tables alone are made
        suite_cells(suite, Store(tmp_path))
    assert lines.read_bytes() == before
    assert len(finished(log)) == 3


@pytest.mark.parametrize(
    "change", [{"rounds": {"maximum": "a"}}, {"rule": 3}, {"method": "none"}, {"more": 1}], ids=str
)
def test_a_description_that_is_not_what_was_run_is_named(
    tmp_path: Path, log: Log, change: dict[str, Any]
) -> None:
    suite = small(methods=["fedavg"], seeds=[0], conditions=[])
    run(suite, tmp_path, log)
    descriptions = Store(tmp_path).descriptions()
    (name, content), *_ = descriptions.items()
    path = tmp_path / "descriptions.json"
    path.write_text(json.dumps({**descriptions, name: {**content, **change}}))
    with pytest.raises(FedcrfError, match=rf"does not describe 1 of the finished cells \('{name}'"):
        run(suite, tmp_path, log)
    (tmp_path / "cells.jsonl").write_text("")  # as it says: their lines out, and they are run anew
    assert keys_of(run(suite, tmp_path, log))
    assert Store(tmp_path).descriptions() == descriptions


def test_other_data_of_the_same_name_are_not_mixed(tmp_path: Path, log: Log) -> None:
    # As where another data folder is named for the next method.
    run(small(methods=["fedavg"], seeds=[0]), tmp_path, log)
    lines = tmp_path / "cells.jsonl"
    (score, *_) = Store(tmp_path).scores()
    lines.write_text(lines.read_text().replace(score.fingerprint, "0" * 16))
    before = lines.read_bytes()
    said = f"is of other data .fingerprint {'0' * 16} there, {score.fingerprint} here"
    with pytest.raises(FedcrfError, match=said):
        run(small(methods=["fedavg", "krum"], seeds=[0]), tmp_path, log)
    assert lines.read_bytes() == before
    fewer = small(methods=["fedavg"], seeds=[0]).chosen(settings=[{"data": {"limit": 500}}])
    shutil.rmtree(tmp_path / "rounds")  # as in folders of earlier versions, which kept none
    assert len(keys_of(run(fewer, tmp_path, log))) == len(fewer.cells)


def test_two_processes_do_not_share_a_folder(tmp_path: Path, log: Log) -> None:
    with Store(tmp_path).locked(), pytest.raises(FedcrfError, match="another process"):
        run(small(), tmp_path, log)


@pytest.mark.parametrize("seed", range(5))
def test_separation_is_the_chance_to_weigh_the_wrong_less(seed: int) -> None:
    draw = np.random.default_rng(seed)
    weights, wrong = draw.integers(0, 4, 8) / 8, [1, 4, 5]
    right = [client for client in range(8) if client not in wrong]
    wins = [
        1.0 if weights[a] < weights[b] else 0.5 if weights[a] == weights[b] else 0.0
        for a, b in itertools.product(wrong, right)
    ]
    some = record(1, 0.0).model_copy(
        update={
            "clients": list(range(8)),
            "weight": weights.tolist(),
            "base_weight": [1 / 8] * 8,
            "attackers": wrong,
        }
    )
    assert separation(some) == pytest.approx(np.mean(wins))
    assert separation(some.model_copy(update={"attackers": []})) is None


@pytest.mark.parametrize("seed", range(5))
def test_equal_trust_is_a_tie_despite_the_rounding_of_records(seed: int) -> None:
    counts = np.random.default_rng(seed).integers(40, 90, 8)
    base, trust = counts / counts.sum(), np.array([0.3, *[1.0] * 7])
    weights = base * trust / (base @ trust)
    some = record(1, 0.0).model_copy(
        update={
            "clients": list(range(8)),
            "weight": brief(weights),
            "base_weight": brief(base),
            "attackers": [5, 6, 7],
        }
    )
    assert separation(some) == 0.5 * 4 / 5


def made_up(
    accuracies: Mapping[tuple[str, str], Sequence[float]], **chosen: Sequence[object]
) -> tuple[Suite, pd.DataFrame]:
    """A suite, and the table of it whose cells have these accuracies, by condition and method.

    They are of seeds 0, 1 and so on, as many as there are values.
    """
    seeds = range(max(map(len, accuracies.values())))
    shown = {"methods": ["fedavg", "crf-fedavg"], "conditions": ["ipm-2", "mimic"]}
    suite = small(**{**shown, "seeds": seeds, **chosen})
    lines: list[dict[str, object]] = []
    described: dict[str, dict[str, object]] = {}
    for key, cell in suite.cells.items():
        _, condition, method, seed = key
        values = accuracies.get((condition, method), [])
        if seed < len(values):
            lines.append(
                {
                    **place_of(key), "accuracy": values[seed], "separation": [1.0, 0.5],
                    "description": str(len(described)), "fingerprint": "f",
                    "provenance": PROVENANCE,
                }
            )  # fmt: skip
            described[str(len(described))] = cell.describe()
    return suite, score_table([Score.model_validate(each) for each in lines], described, suite)


PROVENANCE = {
    "fedcrf": "0", "commit": "abc", "python": "3", "torch": "2", "numpy": "2", "system": "s",
    "processor": "p", "cores": 2, "device": "cpu",
}  # fmt: skip


def place_of(key: CellKey) -> dict[str, object]:
    return dict(zip(("partition", "condition", "method", "seed"), key, strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accuracy": 0.1 + 0.2, "separation": [1.0, 0.5], "last_rounds": 7},
        {"everyone": 0.7, "worst_client": 0.1},
        {"provenance": {**PROVENANCE, "commit": None}},  # of an installed package
        {"provenance": {**PROVENANCE, "numba": "0.60", "byzfl": None}},
    ],
)
def test_a_score_comes_back_as_it_was(changes: Mapping[str, object], tmp_path: Path) -> None:
    point = {"partition": "iid", "condition": "none", "method": "fedavg", "seed": 0}
    result = {"accuracy": 0.5, "description": "d", "fingerprint": "f", "provenance": PROVENANCE}
    score = Score.model_validate({**point, **result, **changes})
    Store(tmp_path).append(score)
    assert Store(tmp_path).scores() == [score]


# Against CRF-robust no mimic was run, so that it has no worst case.
SHOWN = {
    ("none", "fedavg"): [0.9, 0.8],
    ("left-out", "fedavg"): [0.8, 0.8],
    ("ipm-2", "fedavg"): [0.1, 0.3],
    ("mimic", "fedavg"): [0.7, 0.7],
    ("none", "crf-fedavg"): [0.8, 0.8],
}


def test_tables_of_worst_cases_and_of_what_is_not_run(tmp_path: Path) -> None:
    suite, cells = made_up({**SHOWN, ("ipm-2", "crf-fedavg"): [0.6, 0.8]})
    rows = {row[0]: row for row in summary_table(Place(suite, cells, "iid")).rows}
    assert rows["FedAvg"][1:3] == ("2", "0.850")
    assert rows["FedAvg"][-1] == "0.200 [too few seeds] (IPM, ε = 2)"
    assert rows["CRF-FedAvg"][-1] == "–"  # not all conditions are run
    assert rows["CRF-FedAvg"][3] == "-0.050 [too few seeds]"
    table = accuracy_table(Place(suite, cells, "iid"))
    assert table.header[:2] == ("condition", "oracle (attackers removed)")
    assert ("IPM, ε = 2", "0.800", "0.200", "0.700") in table.rows
    _, ipm, _ = difference_table(Place(suite, cells, "iid")).rows
    assert ipm == ("IPM, ε = 2", "+0.600 [too few seeds]", "+0.500 [too few seeds]")
    areas = separation_table(Place(suite, cells, "iid"))
    assert ("IPM, ε = 2", "0.75 (0.50)", "0.75 (0.50)") in areas.rows
    paths = write_suite(suite, cells, tmp_path)
    assert {path.name for path in paths} == {
        "accuracy-iid.csv", "heat-map-iid.svg", "heat-map-iid.png", "tables.md",
    }  # fmt: skip
    text = (tmp_path / "tables.md").read_text()
    assert "12 of 14 cells" in text
    assert "none / worst" not in text  # one partition needs no overview


@pytest.mark.parametrize(
    "methods", [["fedavg"], ["fedavg", "krum", "multi-krum", "rfa", "crf-fedavg"]]
)
def test_of_a_heat_map_the_longer_side_goes_downwards(methods: list[str]) -> None:
    suite, cells = made_up(SHOWN)
    suite = suite.chosen(methods=methods)
    grid = heat_map_grid(Place(suite, cells, "iid"))
    conditions = ["none", "IPM, ε = 2", "mimic", "worst: all shown"]
    assert [*(grid.columns if len(methods) > 4 else grid.index)] == conditions
    assert grid.iloc[(0, 1) if len(methods) > 4 else (1, 0)] == pytest.approx(0.2)  # FedAvg, IPM


def test_the_overview_has_all_partitions_and_who_is_left_out(tmp_path: Path) -> None:
    suite, cells = made_up(SHOWN, partitions=["iid", "alpha-0.1"])
    table = overview_table(suite, cells)
    worst = "none / worst of all shown [95 %]"
    assert table.header == ("method", f"iid: {worst}", f"alpha-0.1: {worst}")
    assert table.rows == (
        ("oracle (attackers removed)", *["0.850 / 0.800 [too few seeds]"] * 2),
        ("FedAvg", *["0.850 / 0.200 [too few seeds]"] * 2),
        ("CRF-FedAvg", *["0.800 / –"] * 2),
    )
    write_suite(suite, cells, tmp_path)
    text = (tmp_path / "tables.md").read_text()
    assert text.index(table.as_markdown()) < text.index("## iid")
    only_none = suite.chosen(conditions=[])
    nothing = score_table([], {}, only_none)
    assert overview_table(only_none, nothing).rows == ()
    write_suite(only_none, nothing, tmp_path / "none")
    assert " n seeds.\n" in (tmp_path / "none" / "tables.md").read_text(), "by no machine"


def test_rules_are_ranked_over_several_places() -> None:
    first, one = made_up(
        {
            ("none", "fedavg"): [0.9, 0.8, 0.7, 0.8, 0.8],
            ("none", "rfa"): [0.8, 0.8, 0.5, 0.7, 0.7],
            ("ipm-2", "fedavg"): [0.1, 0.2, 0.3, 0.1, 0.3],
            ("ipm-2", "rfa"): [0.6] * 5,
        },
        methods=["fedavg", "rfa"], conditions=["ipm-2"],
    )  # fmt: skip
    second, two = made_up(
        {("none", "fedavg"): [0.9], ("none", "krum"): [0.95], ("ipm-2", "fedavg"): [0.3]},
        methods=["fedavg", "krum"], conditions=["ipm-2"],
    )  # fmt: skip
    one, two = (cells.assign(worst_client=1 - cells["accuracy"]) for cells in (one, two))
    quiet, three = second.chosen(conditions=[]), two[two["condition"] == "none"]
    places = [
        Place(first, one, "iid", "a"),
        Place(second, two, "iid", "b"),
        Place(quiet, three, "iid", "c"),
    ]
    overview, worst, cost, client = rank_tables(places)
    assert overview.header == (
        "mean rank", "places", "worst case", "nobody wrong", "nobody wrong, worst client"
    )  # fmt: skip
    assert overview.rows == (
        ("RFA", "1", "1.0", "2.0", "1.0"),
        ("FedAvg", "3", "1.5", "1.7", "1.3"),
        ("Krum", "2", "–", "1.0", "2.0"),
    )
    # The interval of a worst case is from the same drawings as its mean; all seeds agree on RFA's.
    assert worst.header == ("worst case (rank)", "mean rank", "a (n = 5)", "b (n = 1)")
    assert worst.rows[0] == ("RFA", "1.0", "0.600 ± 0.000 (1)", "–")
    assert worst.rows[1][2].startswith("0.200 ± 0.1")
    assert worst.rows[1][3] == "0.300 (1)"
    assert worst.rows[2] == ("Krum", "–", "–", "–")
    # −0.1, 0, −0.2, −0.1 and −0.1: 2.776 standard errors of 0.0707 / √5.
    assert [row[:3] for row in cost.rows] == [
        ("Krum", "1.0", "–"), ("FedAvg", "1.7", "0.800 (1)"), ("RFA", "2.0", "-0.100 ± 0.088 (2)"),
    ]  # fmt: skip
    assert cost.rows[0][3:] == ("+0.050 (1)", "+0.050 (1)")
    assert client.rows[0][:3] == ("RFA", "1.0", "+0.100 ± 0.088 (1)")
    assert client.rows[2] == ("Krum", "2.0", "–", "-0.050 (2)", "-0.050 (2)")


def test_of_a_rule_with_fewer_seeds_the_ranking_says_it() -> None:
    shown = {("none", "fedavg"): [0.9, 0.8], ("none", "rfa"): [0.7]}
    suite, cells = made_up(shown, methods=["fedavg", "rfa"], conditions=[])
    _, _, cost, _ = rank_tables([Place(suite, cells, "iid", "a")])
    assert cost.rows[1] == ("RFA", "2.0", "-0.200 (n = 1) (2)")


def test_a_worst_case_and_its_reference_are_over_the_same_seeds() -> None:
    # Nobody attacks on four seeds, IPM attacks on three and mimics on two of them.
    fedavg = {"none": [0.9, 0.8, 0.7, 0.1], "ipm-2": [0.5, 0.4, 0.0], "mimic": [0.6, 0.6]}
    shown = {(condition, "fedavg"): values for condition, values in fedavg.items()}
    suite, cells = made_up({**shown, ("left-out", "fedavg"): [0.9] * 4}, methods=["fedavg"])
    place = Place(suite, cells, "iid")
    condition, worst, quiet = place.worst(["ipm-2", "mimic"], "fedavg")  # type: ignore[misc]
    assert (worst.mean, condition, worst.seeds) == (pytest.approx(0.45), "ipm-2", 2)
    assert (quiet.mean, quiet.seeds) == (pytest.approx(0.85), 2)  # type: ignore[union-attr]
    assert place.worst(["ipm-2"], "fedavg")[1].seeds == 3  # type: ignore[index]
    assert overview_table(suite, cells).rows == (
        ("oracle (attackers removed)", "0.625 / 0.900 [too few seeds]"),
        ("FedAvg", "0.850 / 0.450 [too few seeds] (n = 2)"),
    )
    ((*_, last),) = summary_table(Place(suite, cells, "iid")).rows
    assert last == "0.450 [too few seeds] (IPM, ε = 2, n = 2)"
    (_, ipm, _) = difference_table(Place(suite, cells, "iid")).rows
    assert ipm[1].endswith("] (n = 3)")


def test_an_oracle_has_the_objective_and_the_optimizer_of_the_methods_beside_it() -> None:
    methods = ["fedadam", "crf-robust+adam", "crf-fedprox", "krum+proximal+adam", "krum"]
    suite = small(methods=methods, seeds=[0])
    assert suite.oracles == ("fedadam", "fedprox", "fedavg+proximal+adam", "fedavg")
    asked = [method for _, condition, method, _ in suite.cells if condition == "left-out"]
    assert asked == list(suite.oracles)
    for (_, condition, method, _), cell in suite.cells.items():
        if condition == "left-out" and "adam" in method:
            assert cell.method.server_optimizer == "adam"
    shown = {("left-out", "fedadam"): [0.8] * 3, ("none", "fedadam"): [0.9] * 3}
    suite, cells = made_up(shown | {("ipm-2", "fedadam"): [0.1] * 3}, methods=["fedadam"])
    titles = [row[0] for row in overview_table(suite, cells).rows]
    assert titles == ["oracle (attackers removed), FedAdam", "FedAdam"]
    assert accuracy_table(Place(suite, cells, "iid")).rows[1][1:] == ("0.800", "0.100")


def test_who_is_asked_for_an_oracle_only_is_no_method_of_the_tables(tmp_path: Path) -> None:
    suite = small(methods=["krum+adam"], seeds=[0])
    store = Store(tmp_path)
    store.describe(suite.cells.values())
    for key, cell in suite.cells.items():
        store.append(
            Score.model_validate(
                {
                    **place_of(key),
                    "accuracy": 0.5,
                    "description": name_of(unseeded(cell)),
                    "fingerprint": "f",
                    "provenance": PROVENANCE,
                }
            )
        )
    assert held(read_suite("attacks", "digits"), suite, store).methods == ("krum+adam",)
    assert len(keys_of(suite_cells(suite, store))) == len(suite.cells) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: read_suite("atacks", "digits"), "did you mean 'attacks'"),
        (lambda: read_suite("attacks", "digit"), "did you mean 'digits'"),
        (lambda: small(partitions=["alpha-0.6"]), "did you mean 'alpha-0.5'"),
        (lambda: small(partitions=[]), "no partition is chosen"),
        (lambda: small(conditions=["ipm-3"]), "did you mean 'ipm-2'"),
        (lambda: read_suite("no-such.toml", "digits"), "suite no-such.toml cannot be read"),
        (lambda: small(conditions=["12 attacks"]), "did you mean '13 attacks'"),
        (lambda: small(conditions=["?"]), "choose from 13 attacks, adaptive, adaptive attackers, "),
        (lambda: small(methods=["krumm"]).cells, "did you mean 'krum'"),
        (
            lambda: small().chosen(settings=[{"server": {"optimizer": "adam"}}]).cells,
            r"server\.optimizer makes one fedavg\+adam: leave it out, and name that method",
        ),
        (
            lambda: small().chosen(settings=[{"seeds": [3]}]),
            "seeds is no setting of a whole suite: choose it with --seeds",
        ),
        (
            lambda: small().chosen(settings=[{"attack": {"every": 2}}]),
            "attack is no setting of a whole suite: choose it with --conditions and --attackers",
        ),
        (
            lambda: small().chosen(settings=[{"data": {"dataset": "mnist"}}]),
            r"data set digits of suite attacks says data\.dataset itself: leave it out",
        ),
        (
            lambda: small(conditions=["ipm-2"]).chosen(
                settings=[{"attacks": {"ipm": {"epsilon": 1}}}]
            ),
            r"condition ipm-2 of suite attacks says attacks\.ipm\.epsilon itself: leave it out",
        ),
        (
            lambda: small(partitions=["alpha-0.5"]).chosen(
                settings=[{"partition": {"alpha": 0.3}}]
            ),
            r"partition alpha-0\.5 of suite attacks says partition\.alpha itself: leave it out",
        ),
        (
            lambda: small(methods=["crf-robust"]).chosen(
                settings=[{"rules": {"crf": {"iterations": 3}}}]
            ),
            r"none of the methods uses 'crf': leave rules\.crf\.iterations out",
        ),
        (
            lambda: small(conditions=["mimic"]).chosen(settings=[{"attacks": {"alie": {"z": 1}}}]),
            r"no attack is 'alie': leave attacks\.alie\.z out",
        ),
        (lambda: small(attackers=0), "attackers 0: give a whole number, 1 or more"),
        (lambda: small(attackers=0.3), "attackers 0.3: give a whole number, 1 or more"),
        (lambda: small(attackers=10).cells, "of 10 clients one at least must attack"),
        (lambda: small(attackers=10, methods=["krum"]).cells, "one at least must attack"),
        (
            lambda: small(attackers=5, methods=["trimmed-mean"]).cells,
            "TrimmedMean: 5 attackers of 10 clients are half .* give 4 at most .*--attackers",
        ),
        (lambda: small(clients=1), "clients 1: give a whole number, 2 or more"),
        (lambda: small(clients=3).cells, "attackers 3: of 3 clients one at least must attack"),
        (
            lambda: read_suite("noise", "digits").chosen(attackers=3),
            r"left-out-2 of suite noise says attack\.attackers itself: leave --attackers out",
        ),
    ],
)
def test_what_a_suite_has_not_is_named(change, said) -> None:
    with pytest.raises(FedcrfError, match=said):
        change()


OWN = """
title = "Mine"
methods = ["fedavg"]
seeds = [0]
[run]
[datasets.digits]
data = { dataset = "digits" }
[partitions.iid]
scheme = "iid"
[groups]
"mine" = ["flip"]
[[conditions]]
name = "none"
title = "none"
[[conditions]]
name = "flip"
title = "flip"
attack = { name = "label-flip", attackers = 2 }
"""

TOLD = """
[told]
number = { krum = "num_byzantine" }
fraction = { trimmed-mean = "fraction" }
"""


def test_a_suite_without_groups_or_digits(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace('[groups]\n"mine" = ["flip"]\n', "").replace("digits", "mnist"))
    suite = read_suite(str(path))
    assert (suite.dataset, suite.groups) == ("mnist", {})
    assert read_suite("attacks").dataset == "digits"


def test_only_what_is_chosen_may_say_its_own_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    few = "[partitions.few]\nscheme = 'iid'\nnum_clients = 5\n"
    any_number = FOUR.replace("four", "any").replace(", attackers = 4", "")
    path.write_text(OWN.replace("[groups]", few + "[groups]") + any_number)
    suite = read_suite(str(path))
    said = {
        condition: cell.threat.schedule.attackers
        for (_, condition, *_), cell in suite.chosen(
            attackers=3, clients=9, conditions=["any"], partitions=["iid"]
        ).cells.items()
        if cell.threat is not None
    }
    assert said == {"any": 3}
    for chosen in ({"attackers": 3}, {"attackers": 3, "conditions": ["flip"]}, {"clients": 9}):
        with pytest.raises(
            FedcrfError, match=r"mine says \S+ itself: leave --(attackers|clients) out"
        ):
            suite.chosen(**chosen)


FOUR = """
[[conditions]]
name = "four"
title = "four"
attack = { name = "label-flip", attackers = 4 }
"""


def test_a_suite_of_one_s_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    suite = read_suite(str(path), "digits")
    assert suite.name == "mine"
    assert [condition for _, condition, *_ in suite.cells] == ["none", "flip"]
    assert suite.numbers == "2 of 10 clients"
    path.write_text(OWN.replace('"iid"\n', '"iid"\nnum_clients = 5\n'))
    suite = read_suite(str(path), "digits")
    with pytest.raises(FedcrfError, match=r"partition iid of suite mine says \S+ itself"):
        suite.chosen(clients=7)
    # Of so few clients not all conditions can be; the folder is the same whichever are asked.
    path.write_text(OWN + FOUR)
    suite = read_suite(str(path), "digits")
    assert suite.numbers == "2 or 4 of 10 clients"
    for conditions in (["flip"], ["four"], None):
        few = suite.chosen(clients=4, conditions=conditions)
        folder = Path("runs/robustness/mine-digits-2-of-4-clients")
        assert default_folder(suite, few) == folder
    with pytest.raises(FedcrfError, match="condition four: attackers 4: of 4 clients"):
        assert few.cells
    assert len(suite.chosen(clients=4, conditions=["flip"]).cells) == 2
    # What it leaves out is that of the package's suites.
    lines = OWN.partition("[datasets")[0] + "[groups]" + OWN.partition("[groups]")[2]
    path.write_text(lines)
    shared = read_suite("attacks", "mnist")
    assert read_suite(str(path), "mnist").partitions == shared.partitions
    assert read_suite(str(path), "mnist").layers[1] == shared.layers[1]


QUICK = """
[quick]
run = { rounds = { maximum = 2, patience = 2 } }
methods = ["rfa"]
seeds = [7]
conditions = ["none"]
"""


def test_the_small_size_of_a_suite(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN + QUICK)
    whole = read_suite(str(path), "digits")
    small = whole.chosen(quick=True)
    assert [*small.cells] == [("iid", "none", "rfa", 7)]
    assert {cell.rounds.maximum for cell in small.cells.values()} == {2}
    assert default_folder(whole, small) == Path("runs/robustness/mine-quick-digits")
    more = whole.chosen(quick=True, methods=["fedavg"], seeds=[1], conditions=["flip"])
    assert [*more.cells] == [("iid", "none", "fedavg", 1), ("iid", "flip", "fedavg", 1)]
    assert {cell.rounds.maximum for cell in whole.cells.values()} != {2}
    path.write_text(OWN)
    with pytest.raises(FedcrfError, match="mine has no small size: leave --quick out"):
        read_suite(str(path), "digits").chosen(quick=True)


def test_additional_attackers_of_a_suite(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace("seeds", "attackers = 3\nadditional = true\nseeds"))
    suite = read_suite(str(path), "digits").chosen(methods=["trimmed-mean", "krum"])
    assert suite.numbers == "2 of 12 clients"
    quiet, attacked = (suite.cells["iid", name, "krum", 0] for name in ("none", "flip"))
    assert quiet.threat is None
    assert quiet.num_clients == 10
    assert attacked.threat is not None
    assert attacked.threat.schedule.additional
    assert attacked.num_clients == 12
    assert [quiet.rule.num_byzantine, attacked.rule.num_byzantine] == [3, 2]  # type: ignore[attr-defined]
    trimmed = [suite.cells["iid", name, "trimmed-mean", 0].rule for name in ("none", "flip")]
    assert [rule.fraction for rule in trimmed] == pytest.approx([3 / 10, 2 / 12])  # type: ignore[attr-defined]


@pytest.mark.parametrize("more", ["", TOLD], ids=["", "as older files have it"])
@pytest.mark.parametrize(
    ("attackers", "quiet"), [("", (0, 0, 0.1)), ("attackers = 3", (3, 3, 0.3))]
)
def test_rules_of_a_suite_of_one_s_own_are_told_too(
    attackers: str, quiet: tuple[float, ...], more: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace("seeds", f"{attackers}\nseeds") + more)
    methods = ["krum", "byzfl-krum", "trimmed-mean"]
    suite = read_suite(str(path), "digits").chosen(methods=methods)
    for condition, told in {"none": quiet, "flip": (2, 2, 0.2)}.items():
        rules = [suite.cells["iid", condition, name, 0].rule for name in methods]
        assert tuple(next(iter(vars(rule).values())) for rule in rules) == told, condition


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("", "mine.toml: .* has no conditions"),
        (OWN.replace("title", "#", 1), "mine.toml: title has no value: give it one"),
        (OWN.replace("seeds", "sedes"), "unknown key 'sedes': did you mean 'seeds'"),
        (OWN.replace("[run]", "attackrs = 3\n[run]"), "unknown key 'attackrs': .*'attackers'"),
        (OWN + "atttacks = {}", r"unknown key in \[conditions\.1\] 'atttacks'.*'attacks'"),
        (OWN.replace('["flip"]', '["flop"]'), "unknown condition in group 'mine' 'flop'"),
        (
            OWN.replace("[run]", "[quick]\nconditions = ['flop']\n[run]"),
            "unknown condition of suite mine 'flop'",
        ),
        (
            OWN.replace("[run]", "[quick]\npartitions = ['flop']\n[run]"),
            "unknown partition of suite mine 'flop'",
        ),
        (OWN + 'ideal = "flop"', "unknown ideal of condition 'flip' 'flop'"),
        (OWN.replace('title = "flip"', 'title = "none"'), "'none' is the title of two conditions"),
        (OWN.replace('"mine" =', "Flip ="), "'flip' is the name of two choices"),
        (OWN + "[", "is not valid TOML"),
        (OWN.replace("seeds", "attackers = 0\nseeds"), "attackers is 0: give greater than 0"),
        (OWN.replace("methods = [", "methods = 3 #"), "methods is 3: give a list, in .brackets."),
        (OWN.replace("seeds", "attackers = 1.5\nseeds"), "attackers is 1.5: give a valid integer"),
        (OWN.replace("seeds", "last_rounds = 0\nseeds"), "last_rounds is 0: give greater than 0"),
        (OWN.replace("[0]", '["a"]'), "seeds is 'a': give a valid integer"),
        (
            OWN.replace("[run]", "[run]\nmethods = ['krum']"),
            r"leave run\.methods out, and say methods at the top of the file",
        ),
        (OWN.replace("[run]", "[run]\nseeds = [1]"), r"leave run\.seeds out, and say seeds at"),
        (
            OWN.replace("[run]", "[run]\nattack = { name = 'ipm' }"),
            r"leave run\.attack out, and say attack in the \[\[conditions\]\] that have one",
        ),
        (
            OWN.replace("[partitions", "attack.name = 'ipm'\n[partitions", 1),
            r"leave datasets\.digits\.attack out, and",
        ),
        (OWN + QUICK.replace("{ rounds", "{ seeds = [1], rounds"), r"leave quick\.run\.seeds out"),
        (OWN + QUICK.replace("seeds", "sedes"), r"unknown key in \[quick\] 'sedes'"),
        (OWN.replace("seeds", "additional = 3\nseeds"), "additional is 3"),
        (OWN.replace('name = "flip"', 'name = "none"'), "two of one name: give each a name"),
        (OWN + 'ideal = "flip"', "'flip' cannot be what is ideal for 'flip'"),
        (OWN + 'ideal = "none"', "'none' cannot be what is ideal for 'flip'"),
        (OWN + "attacks.ipm.epsilon = 2", "has settings of 'ipm', which is not its attack"),
        (OWN.replace('name = "none"', 'name = "../none"'), "'../none' is to name a folder"),
        (OWN.replace('name = "none"', f'name = "{"n" * 101}"'), "is to name a folder: .* 100 let"),
        (OWN.replace('.iid]\nscheme = "iid"', "]"), "has no partitions: name one"),
        (OWN.replace('.digits]\ndata = { dataset = "digits" }', "]"), r"name one, .* \[datasets\."),
        (OWN.replace("partitions.iid", "partitions.'.'"), "'.' is to name a folder"),
        (
            "conditions = []\n" + OWN.partition("[[conditions")[0].replace('["flip"]', "[]"),
            "has no conditions",
        ),
    ],
)
def test_a_file_that_is_no_suite(wrong: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(wrong)
    with pytest.raises(FedcrfError, match=said):
        read_suite(str(path), "digits")


@pytest.mark.parametrize("text", ["", "[]", "null", "[[1, 2]]", '{"a": 3}', "\xff"])
def test_descriptions_that_describe_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "descriptions.json").write_text(text, encoding="latin-1")
    with pytest.raises(FedcrfError, match=r"descriptions\.json does not describe cells: move"):
        Store(tmp_path).descriptions()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, log: Log) -> None:
    mine = tmp_path / "runs" / "mine.txt"
    mine.parent.mkdir()
    mine.touch()
    with pytest.raises(FedcrfError, match="is not empty and holds no cells of a suite: choose"):
        run_suite(small(), Store(tmp_path), Workplace(device="cpu"), lambda _: nullcontext(log))
    assert mine.exists()


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            FedcrfError, match="file is a file; choose another folder with --output"
        ):
            Store(path).check_suite()
        with pytest.raises(
            FedcrfError, match="file is a file; choose another folder with --output"
        ):
            Store(path).scores()
