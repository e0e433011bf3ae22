from __future__ import annotations

import errno
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from experiments.runs import full_disk
from fedcrf import FedcrfError
from fedcrf.cli import app
from fedcrf.experiments.recorded import (
    RecordedRun,
    recorded_runs,
    recorded_table,
    write_recorded_figures,
)
from fedcrf.experiments.results import table
from fedcrf.integrations.flower import CRFAvg, MetricNames, RuleStrategy
from fedcrf.integrations.recording import Recorder
from fedcrf.report.explanation import find_rounds
from fedcrf.rules import (
    CRF,
    RESIDUAL_LOSS,
    RULES,
    SERVER_OPTIMIZERS,
    Adam,
    AggregationResult,
    ClientReport,
    CRFRobust,
    FedAvg,
    Memory,
    Momentum,
    Optimized,
    Rule,
    State,
    TrimmedMean,
    byzfl_rule,
)
from integrations.flower_messages import MODEL, Nodes, arrays, failure, moved, reply


def node(number: int, fails_in: int | None = None) -> Callable[[Message], Message | None]:
    def answer(asked: Message) -> Message:
        number_of_round = asked.content["config"]["server-round"]
        if asked.metadata.message_type == "evaluate":
            score = 0.1 * number_of_round
            return reply(number, num_examples=4, eval_loss=1 - score, eval_acc=score)
        if number_of_round == fails_in:
            return failure(number, "no data")
        return reply(number, moved(number), partition_id=number - 100)

    return answer


def run(strategy: RuleStrategy, rounds: int = 3) -> Result:
    nodes: dict[int, Any] = {number: node(number) for number in (104, 100, 101)}
    nodes[102] = node(102, fails_in=2)
    return strategy.start(Nodes(nodes), arrays(MODEL), num_rounds=rounds)


def only_run(parent: Path) -> RecordedRun:
    (run,) = recorded_runs(parent).values()
    return run


@dataclass(frozen=True)
class Asking(FedAvg):
    wanted_evidence: frozenset[str] = frozenset({RESIDUAL_LOSS})


def test_evidence_and_the_server_optimizer_are_in_the_record(tmp_path: Path) -> None:
    names = MetricNames(residual_loss="train_loss")
    rule = Optimized(Asking(), Adam(0.5))
    run(RuleStrategy(rule, metric_names=names, record_to=tmp_path), rounds=1)
    recorded = only_run(tmp_path)
    assert recorded.records()[0].evidence == {RESIDUAL_LOSS: [0.5] * 4}
    description = json.loads((recorded.path / "description.json").read_text())
    assert description["rule"] == "Asking+Adam"
    assert description["settings"]["optimizer"]["learning_rate"] == 0.5


KNOWN: Mapping[str, Rule] = {
    **{name: kind() for name, kind in RULES.items() if not kind().server_examples},
    **{name: Optimized(CRF(bandwidth=0.3), kind()) for name, kind in SERVER_OPTIMIZERS.items()},
    "two optimizers": Optimized(Optimized(CRFRobust(clip=3.0), Adam(0.5)), Momentum(), ("mask",)),
    "ByzFL's": byzfl_rule("byzfl-geometric-median")(T=10),
    "ByzFL's after others": byzfl_rule("byzfl-arc-nnm-krum")(attackers=2),
    "an optimizer of ByzFL's": Optimized(byzfl_rule("byzfl-bucketing-monna")(seed=3), Adam()),
}


@pytest.mark.parametrize("rule", KNOWN.values(), ids=KNOWN)
def test_a_rule_is_known_from_its_record(rule: Rule, tmp_path: Path) -> None:
    Recorder(tmp_path, "flwr", "RuleStrategy", rule).begin(None)
    assert only_run(tmp_path).description().known_rule == rule


class Plain(Rule):
    """FedAvg, and no dataclass."""

    def aggregate(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        return FedAvg().aggregate({}, global_state, reports)


@dataclass(frozen=True)
class Calling(Plain):
    call: Callable[..., object] = len
    much: tuple[float, float] = (0.5, math.inf)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (Plain(), "Plain"),
        (Calling(), "Calling"),
        (Optimized(Plain(), Adam()), "Plain+Adam"),
    ],
)
def test_a_rule_of_ones_own_is_recorded_by_its_name(rule: Rule, name: str, tmp_path: Path) -> None:
    run(RuleStrategy(rule, record_to=tmp_path), rounds=1)
    recorded = only_run(tmp_path)
    assert (recorded.description().rule, recorded.description().known_rule) == (name, None)
    assert len(recorded.records()) == 1


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CRF", {"bandwith": 0.3}),
        ("CRF", {"bandwidth": 0}),
        ("CRF+Adam", {"rule": {}}),
        ("CRF+Adam", {"rule": {}, "optimizer": {}, "buffers": 3}),
        ("CRF+Adam", {"rule": [1], "optimizer": {}, "buffers": []}),
        ("CRF+Sgd", {"rule": {}, "optimizer": {}, "buffers": []}),
        ("byzfl-krumm", {}),
        ("+", {}),
    ],
)
def test_a_rule_that_is_none_of_this_version_is_not_known(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    path = Recorder(tmp_path, "flwr", "RuleStrategy", FedAvg()).begin(None) / "description.json"
    description = json.loads(path.read_text()) | {"rule": name, "settings": settings}
    path.write_text(json.dumps(description))
    assert only_run(tmp_path).description().known_rule is None


def test_a_run_behind_a_server_optimizer_is_explained_by_its_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(RuleStrategy(Optimized(CRFRobust(), Adam()), record_to=tmp_path), rounds=2)
    app(["explain", str(tmp_path), "--round", "2", "--client", "1"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "makes of the weight" in printed
    assert "× 1.00" in printed
    assert "the rule is not known" not in printed


def test_a_run_is_recorded_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "runs"
    result = run(CRFAvg(bandwidth=0.3, record_to=folder))
    records = only_run(folder).records()
    assert [record.round for record in records] == [1, 2, 3]
    assert [record.clients for record in records] == [[0, 1, 2, 4], [0, 1, 4], [0, 1, 2, 4]]
    assert records[0].nodes == [100, 101, 102, 104]
    assert records[0].num_examples == [110, 111, 112, 114]
    assert records[0].excluded_nodes == []
    assert [(each.node, each.reason) for each in records[1].excluded_nodes or []] == [
        (102, "failed, code 1: no data")
    ]
    for record in records:
        metrics = result.train_metrics_clientapp[record.round]
        assert record.weight == pytest.approx(metrics["fedcrf.weight"], rel=1e-5)
        assert record.reasons is not None
        assert record.reasons.reliability == pytest.approx(metrics["fedcrf.reliability"], rel=1e-5)
        assert record.validation.accuracy == pytest.approx(0.1 * record.round)
        assert record.training_loss == 0.5
        assert math.isnan(record.test.accuracy)
        assert record.seconds.total > 0
    description = only_run(folder).description()
    assert (description.strategy, description.rule) == ("CRFAvg", "CRF")
    assert description.settings["bandwidth"] == 0.3
    assert description.framework.startswith("flwr 1.")


def test_a_round_without_a_usable_reply_is_recorded(tmp_path: Path) -> None:
    grid = Nodes({1: lambda _: None, 2: lambda _: failure(2, "x")})
    with pytest.raises(FedcrfError, match="rounds 1 to 2 had no usable reply"):
        CRFAvg(record_to=tmp_path).start(grid, arrays(MODEL), num_rounds=9)
    records = only_run(tmp_path).records()
    assert [record.kept_model for record in records] == [True, True]
    reason = "no reply was usable: for example node 1 did not reply"
    assert {record.kept_reason for record in records} == {reason}
    assert [each.node for each in records[0].excluded_nodes or []] == [1, 2]
    assert math.isnan(records[0].training_loss)
    assert [path.name for path in write_recorded_figures(tmp_path, recorded_runs(tmp_path))] == [
        "accuracy.svg", "accuracy.png", "loss.svg", "loss.png",
    ]  # fmt: skip


def test_show_tells_of_runs_beside_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(CRFAvg(record_to=tmp_path / "crf-fedavg"))
    run(RuleStrategy(TrimmedMean(0.25), record_to=tmp_path / "trimmed"), rounds=2)
    show = partial(app, standalone_mode=False)
    show(["show", str(tmp_path), "--markdown"])
    rows = [line.strip("| \n").split(" | ") for line in capsys.readouterr().out.splitlines()]
    first, second = recorded_runs(tmp_path)
    assert first.startswith("crf-fedavg/20")
    assert second.startswith("trimmed/20")
    cells = table(tmp_path)
    assert list(cells.run) == [first, second]
    assert [curve[-1] for curve in cells.curve] == pytest.approx([0.3, 0.2])
    assert not cells.complete.any()
    assert rows[2] == [first, "CRFAvg", "3", "4", "0.300", "0.300", "1"]
    assert rows[3] == [second, "RuleStrategy(TrimmedMean)", "2", "4", "0.200", "0.200", "1"]
    show(["show", str(tmp_path / "trimmed")])
    printed = capsys.readouterr().out
    assert "RuleStrategy(TrimmedMean)" in printed
    assert "CRFAvg" not in printed
    show(["show", str(tmp_path), "--figures"])
    for name in ("accuracy", "loss", "trust"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000


def test_where_nothing_can_be_recorded_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    for place in (tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "runs"):
        with pytest.raises(FedcrfError, match=r"thesis.tex is a file; name another as record_to"):
            CRFAvg(record_to=place)
    with pytest.raises(FedcrfError, match=r"xxx: File name too long; name another as record_to$"):
        CRFAvg(record_to=tmp_path / ("x" * 300))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    run(CRFAvg(record_to=tmp_path), rounds=1)  # beside what is there
    with pytest.raises(FedcrfError, match="is itself the record of a run: name the folder above"):
        CRFAvg(record_to=only_run(tmp_path).path)


def test_each_run_has_a_folder_of_its_own_made_when_it_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    strategy = CRFAvg(record_to="runs")
    monkeypatch.chdir("/")
    assert list(tmp_path.iterdir()) == []
    with caplog.at_level(logging.INFO, logger="flwr"):
        for rounds in (2, 1, 3):
            run(strategy, rounds)
    runs = recorded_runs(tmp_path / "runs")
    assert list(runs) == sorted(runs, key=lambda name: runs[name].description().started or "")
    assert [len(each.records()) for each in runs.values()] == [2, 1, 3]
    for name, each in runs.items():
        assert caplog.text.count(f"Records: {tmp_path / 'runs' / name}\n") == 1
        assert find_rounds(tmp_path / "runs", name, None).records == each.records()
    # The last one is what is explained where no name is given.
    assert find_rounds(tmp_path / "runs", None, None).title == f"{list(runs)[-1]}, CRFAvg"


class OwnEvaluation(CRFAvg):
    """Averages evaluations in its own way, and tells nobody."""

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        return None


class Telling(CRFAvg):
    """The same, and tells."""

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        metrics = MetricRecord({"accuracy": 0.25, "loss": 3.0})
        self.record_evaluation(server_round, metrics, by_clients=True)


def central(number: int, _: ArrayRecord) -> MetricRecord | None:
    return MetricRecord({"acc": 0.1 * number, "loss": 5.0 - number}) if number != 2 else None


@pytest.mark.parametrize(
    ("make", "by_clients", "by_server", "shown"),
    [
        (partial(OwnEvaluation), [None] * 3, [None] * 3, ["–", "–"]),
        (partial(Telling), [0.25] * 3, [None] * 3, ["0.250", "0.250"]),
        (partial(CRFAvg, fraction_evaluate=0.0), [None] * 3, [0.1, None, 0.3], ["0.300", "0.300"]),
        (partial(CRFAvg), [0.1, 0.2, 0.3], [0.1, None, 0.3], ["0.300", "0.300"]),
    ],
    ids=["overridden", "overridden and told", "by the server alone", "by both"],
)
def test_rounds_are_recorded_however_they_are_evaluated(
    make: Callable[..., CRFAvg],
    by_clients: list[float | None],
    by_server: list[float | None],
    shown: list[str],
    tmp_path: Path,
) -> None:
    nodes: dict[int, Any] = {number: node(number) for number in (100, 101)}
    evaluate = central if any(by_server) else None
    make(record_to=tmp_path).start(Nodes(nodes), arrays(MODEL), num_rounds=3, evaluate_fn=evaluate)
    records = only_run(tmp_path).records()
    assert [each.round for each in records] == [1, 2, 3]
    found = [each.validation.accuracy for each in records]
    assert [None if math.isnan(each) else pytest.approx(each) for each in found] == by_clients
    held_out = [each.held_out.accuracy if each.held_out else None for each in records]
    assert held_out == [None if each is None else pytest.approx(each) for each in by_server]
    (row,) = recorded_table(recorded_runs(tmp_path)).rows
    assert list(row[4:6]) == shown


@pytest.mark.parametrize("accuracy", ["accuracy", "acc", "eval_acc", "eval_accuracy", "val_acc"])
@pytest.mark.parametrize("loss", ["loss", "eval_loss", "val_loss"])
def test_the_usual_names_of_metrics_are_known(accuracy: str, loss: str, tmp_path: Path) -> None:
    def answer(asked: Message) -> Message:
        return reply(asked.metadata.dst_node_id, **{accuracy: 0.75, loss: 0.5, "train_loss": None})

    nodes = Nodes(dict.fromkeys((1, 2), answer))
    CRFAvg(record_to=tmp_path).start(nodes, arrays(MODEL), num_rounds=1)
    (record,) = only_run(tmp_path).records()
    assert record.validation.loss == pytest.approx(0.5)
    assert record.validation.accuracy == pytest.approx(0.75)
    own = MetricNames(evaluation_accuracy="mine")
    CRFAvg(record_to=tmp_path / "own", metric_names=own).start(nodes, arrays(MODEL), num_rounds=1)
    (record,) = only_run(tmp_path / "own").records()
    assert math.isnan(record.validation.accuracy)


def test_a_folder_as_earlier_versions_wrote_it_is_read(tmp_path: Path) -> None:
    run(CRFAvg(record_to=tmp_path), rounds=2)
    path = only_run(tmp_path).path
    records, old = only_run(tmp_path).records(), tmp_path / "old"
    old.mkdir()
    description = json.loads((path / "description.json").read_text())
    del description["started"]
    (old / "description.json").write_text(json.dumps(description))
    lines = [record.model_dump_json(exclude_none=True) + "\n" for record in records]
    (old / "rounds.jsonl").write_text("".join(lines))
    assert RecordedRun(old).records() == records
    assert recorded_runs(old) == {"old": RecordedRun(old)}
    assert find_rounds(old, None, None).title == "old, CRFAvg"


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    strategy = CRFAvg(record_to=tmp_path / "runs")
    (tmp_path / "runs").touch()
    said = f"records folder {tmp_path / 'runs'}: File exists; name another as record_to$"
    with pytest.raises(FedcrfError, match=said):
        run(strategy)


@pytest.mark.parametrize("file", ["description.json", "rounds.jsonl"])
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EFBIG, "File too large; name another as record_to"),
        (errno.EACCES, "Permission denied: choose another folder"),
        (errno.ENOSPC, "No space left on device: make room, and give the same command again"),
    ],
    ids=errno.errorcode.get,
)
def test_records_that_cannot_be_written_are_named_with_a_mend(
    number: int, said: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch, file, number)
    with pytest.raises(FedcrfError, match=rf"^records folder {tmp_path}/[\d-]+: {said}$"):
        run(CRFAvg(record_to=tmp_path))


def test_a_damaged_description_is_named(tmp_path: Path) -> None:
    run(CRFAvg(record_to=tmp_path), rounds=1)
    path = only_run(tmp_path).path
    (path / "description.json").write_text(json.dumps({"strategy": 3}))
    with pytest.raises(FedcrfError, match="does not describe a recorded run"):
        RecordedRun(path).description()


def test_settings_and_numbers_are_plain(tmp_path: Path) -> None:
    """A metric of the clients' that is a list, or missing, is unknown to the record."""
    nodes: dict[int, Any] = {
        number: lambda asked: reply(asked.metadata.dst_node_id, train_loss=[1.0], eval_acc=[0.5])
        for number in (1, 2)
    }
    CRFAvg(record_to=tmp_path).start(Nodes(nodes), arrays(MODEL), num_rounds=1)
    (record,) = only_run(tmp_path).records()
    assert math.isnan(record.training_loss)
    assert math.isnan(record.validation.accuracy)
    assert np.isnan(record.client_training_loss).all()


@pytest.mark.parametrize("stopped", [None, 1, 4])
def test_a_client_has_one_number_in_all_rounds_of_a_run(
    stopped: int | None, tmp_path: Path
) -> None:
    # The largest partition is away in every other round, 500 comes late with a partition that is
    # taken, 600 later without any, and then 105, whose partition's number is another's by then.
    def answer(asked: Message) -> Message:
        number = asked.metadata.dst_node_id
        partition = {500: 2, 600: None}.get(number, number - 100)
        return reply(number, moved(number), partition_id=partition)

    class Sampled(RuleStrategy):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            number = server_round + self.rounds_before
            there = [100, 101, 102, *([103] if number % 2 else []), *([500] if number > 1 else [])]
            there += ([600] if number > 2 else []) + ([105] if number > 3 else [])
            chosen = Nodes(dict.fromkeys(there, answer))
            return super().configure_train(server_round, arrays, config, chosen)

    grid = Nodes(dict.fromkeys((100, 101, 102, 103, 105, 500, 600), answer))
    places = {"record_to": tmp_path / "runs", "checkpoint_to": tmp_path / "run.npz"}
    for rounds in (6,) if stopped is None else (stopped, 6):
        strategy = Sampled(FedAvg(), fraction_evaluate=0.0, **places)
        strategy.resume(grid, arrays(MODEL), rounds)
    shown = {
        (node, client)
        for record in only_run(tmp_path / "runs").records()
        for node, client in zip(record.nodes or [], record.clients, strict=True)
    }
    assert shown == {(100, 0), (101, 1), (102, 2), (103, 3), (500, 4), (600, 5), (105, 6)}


def test_a_run_from_an_older_checkpoint_is_shown_without_the_rounds_after_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.npz"
    places = {"record_to": tmp_path / "runs", "checkpoint_to": path}
    # 102 comes after the older checkpoint; in the run that goes on there is another in its place.
    first, second = (Nodes({n: node(n) for n in (100, 101, new)}) for new in (102, 203))
    before = Nodes({n: node(n) for n in (100, 101)})
    CRFAvg(**places).resume(before, arrays(MODEL), 2)
    older = path.read_bytes()
    CRFAvg(**places).resume(first, arrays(MODEL), 6)
    run = only_run(tmp_path / "runs")
    damage = b'{"round": "three"}\n[7]\nnothing\n'
    path.write_bytes(older)
    # Nothing is left to do, or the run is refused: it does not go on, and loses nothing.
    CRFAvg(**places).resume(first, arrays(MODEL), 2, evaluate_fn=lambda *_: MetricRecord({"a": 1}))
    with pytest.raises(FedcrfError, match="is it of another run"):
        CRFAvg(**places).resume(first, arrays({"other": np.ones(2)}), 6)
    assert [record.round for record in run.records()] == [1, 2, 3, 4, 5, 6]
    CRFAvg(**places).resume(second, arrays(MODEL), 4)
    assert run == only_run(tmp_path / "runs")
    shown = [(record.round, record.nodes) for record in run.records()]
    assert shown == [(1, [100, 101]), (2, [100, 101]), (3, [100, 101, 203]), (4, [100, 101, 203])]
    lines = (run.path / "rounds.jsonl").read_bytes()
    (run.path / "rounds.jsonl").write_bytes(lines + damage)
    run.go_on(after=4)
    assert (run.path / "rounds.jsonl").read_bytes() == lines + damage, "what it is nobody knows"


class KilledError(Exception):
    pass


@pytest.mark.parametrize("killed", [1, 2, 3])
def test_an_evaluation_that_a_kill_cut_off_is_made_up_for(killed: int, tmp_path: Path) -> None:
    places = {"record_to": tmp_path / "runs", "checkpoint_to": tmp_path / "run.npz"}
    grid = Nodes({number: node(number) for number in (100, 101)})
    alive, asked = False, []

    def evaluate(number: int, _: ArrayRecord) -> MetricRecord:
        if number == killed and not alive:
            raise KilledError
        asked.append(number)
        return MetricRecord({"acc": 0.1 * number + 0.01 * len(asked), "loss": 5.0 - number})

    with pytest.raises(KilledError):
        CRFAvg(**places).resume(grid, arrays(MODEL), 3, evaluate_fn=evaluate)
    asked.clear()
    alive = True
    result = CRFAvg(**places).resume(grid, arrays(MODEL), 3, evaluate_fn=evaluate)
    rest = list(range(killed, 4))
    assert asked == list(result.evaluate_metrics_serverapp) == rest
    records = only_run(tmp_path / "runs").records()
    assert [record.held_out.loss for record in records if record.held_out] == [4.0, 3.0, 2.0]
    # What is measured already is measured for the result alone.
    before = records[-1].held_out
    again = CRFAvg(**places).resume(grid, arrays(MODEL), 3, evaluate_fn=evaluate)
    assert asked == [*rest, 3]
    assert list(again.evaluate_metrics_serverapp) == [3]
    assert again.arrays == result.arrays
    assert only_run(tmp_path / "runs").records()[-1].held_out == before
    assert not again.train_metrics_clientapp


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        (CRFRobust(), CRFRobust(), None),
        (CRFRobust(sketch_seed=12345), CRFRobust(sketch_seed=12345), None),
        (Calling(), Calling(), None),
        (CRFRobust(), CRFRobust(counts="attested", clip=9.0), "clip, counts"),
        (
            CRF(neighbours=2, sketch_size=32, sketch_seed=1),
            CRF(neighbours=2, sketch_size=32, sketch_seed=2),
            "sketch_seed",
        ),
        (Optimized(CRF(), Adam()), Optimized(CRF(), Adam(0.5)), "optimizer.learning_rate"),
    ],
)
def test_a_run_goes_on_in_its_record_only_with_the_same_settings(
    before: Rule, after: Rule, differs: str | None, tmp_path: Path, caplog: Any
) -> None:
    places = {"record_to": tmp_path / "runs", "checkpoint_to": tmp_path / "run.npz"}
    grid = Nodes({number: node(number) for number in (100, 101, 102)})
    RuleStrategy(before, **places).resume(grid, arrays(MODEL), 1)
    if isinstance(before, Calling):  # in another process its function lies elsewhere
        path = only_run(tmp_path / "runs").path / "description.json"
        path.write_text(path.read_text().replace("<built-in function len>", "<f at 0x7f>"))
        after = Calling(call=Elsewhere())
    (first,) = recorded_runs(tmp_path / "runs")
    with caplog.at_level(logging.INFO, logger="flwr"):
        RuleStrategy(after, **places).resume(grid, arrays(MODEL), 3)
    runs = recorded_runs(tmp_path / "runs")
    rounds = [[record.round for record in each.records()] for each in runs.values()]
    line = f"The records begin in a new folder: {first} is of other settings: "
    if differs is None:
        assert rounds == [[1, 2, 3]]
        assert line not in caplog.text
        return
    assert rounds == [[1], [2, 3]]
    assert runs[list(runs)[-1]].description().known_rule == after
    told = [each.getMessage() for each in caplog.records if line in each.getMessage()]
    assert told == [line + differs]


class Elsewhere:
    def __repr__(self) -> str:
        return "<f at 0x8e>"

    def __call__(self) -> None:
        raise NotImplementedError
