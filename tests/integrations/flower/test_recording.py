from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import Result

from fedcrf import FedcrfError
from fedcrf.cli import app
from fedcrf.experiments.recorded import RecordedRun, recorded_runs, write_recorded_figures
from fedcrf.integrations.flower import CRFAvg, RuleStrategy
from fedcrf.integrations.flower.recording import Recorder
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


@dataclass(frozen=True)
class Asking(FedAvg):
    wanted_evidence: frozenset[str] = frozenset({RESIDUAL_LOSS})


def test_evidence_and_the_server_optimizer_are_in_the_record(tmp_path: Path) -> None:
    run(RuleStrategy(Optimized(Asking(), Adam(0.5)), record_to=tmp_path), rounds=1)
    recorded = RecordedRun(tmp_path)
    assert recorded.records()[0].evidence == {RESIDUAL_LOSS: [0.5] * 4}
    description = json.loads((tmp_path / "description.json").read_text())
    assert description["rule"] == "Asking+Adam"
    assert description["settings"]["optimizer"]["learning_rate"] == 0.5


KNOWN: Mapping[str, Rule] = {
    **{name: kind() for name, kind in RULES.items()},
    **{name: Optimized(CRF(bandwidth=0.3), kind()) for name, kind in SERVER_OPTIMIZERS.items()},
    "two optimizers": Optimized(Optimized(CRFRobust(clip=3.0), Adam(0.5)), Momentum(), ("mask",)),
    "ByzFL's": byzfl_rule("byzfl-geometric-median")(T=10),
    "ByzFL's after others": byzfl_rule("byzfl-arc-nnm-krum")(attackers=2),
    "an optimizer of ByzFL's": Optimized(byzfl_rule("byzfl-bucketing-monna")(seed=3), Adam()),
}


@pytest.mark.parametrize("rule", KNOWN.values(), ids=KNOWN)
def test_a_rule_is_known_from_its_record(rule: Rule, tmp_path: Path) -> None:
    Recorder(tmp_path, "RuleStrategy", rule)
    assert RecordedRun(tmp_path).rule() == rule


class Plain:
    """FedAvg, and no dataclass."""

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        return FedAvg().aggregate(global_state, reports)


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
    recorded = RecordedRun(tmp_path)
    assert (recorded.description().rule, recorded.rule()) == (name, None)
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
    Recorder(tmp_path, "RuleStrategy", FedAvg())
    description = json.loads((tmp_path / "description.json").read_text())
    description |= {"rule": name, "settings": settings}
    (tmp_path / "description.json").write_text(json.dumps(description))
    assert RecordedRun(tmp_path).rule() is None


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
    folder = tmp_path / "new" / "run"
    result = run(CRFAvg(bandwidth=0.3, record_to=folder))
    records = RecordedRun(folder).records()
    assert [record.round for record in records] == [1, 2, 3]
    assert [record.clients for record in records] == [[0, 1, 2, 4], [0, 1, 4], [0, 1, 2, 4]]
    assert records[0].nodes == [100, 101, 102, 104]
    assert records[0].num_examples == [110, 111, 112, 114]
    assert records[0].left_out == []
    assert [(each.node, each.reason) for each in records[1].left_out or []] == [
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
    description = RecordedRun(folder).description()
    assert (description.strategy, description.rule) == ("CRFAvg", "CRF")
    assert description.settings["bandwidth"] == 0.3
    assert description.framework.startswith("flwr 1.")


def test_a_round_without_a_usable_reply_is_recorded(tmp_path: Path) -> None:
    grid = Nodes({1: lambda _: None, 2: lambda _: failure(2, "x")})
    CRFAvg(record_to=tmp_path).start(grid, arrays(MODEL), num_rounds=2)
    records = RecordedRun(tmp_path).records()
    assert [record.kept_model for record in records] == [True, True]
    assert [each.node for each in records[0].left_out or []] == [1, 2]
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
    assert rows[2] == ["crf-fedavg", "CRFAvg", "3", "4", "0.300", "0.300", "1"]
    assert rows[3] == ["trimmed", "RuleStrategy(TrimmedMean)", "2", "4", "0.200", "0.200", "1"]
    show(["show", str(tmp_path / "trimmed")])
    printed = capsys.readouterr().out
    assert "RuleStrategy(TrimmedMean)" in printed
    assert "CRFAvg" not in printed
    show(["show", str(tmp_path), "--figures"])
    for name in ("accuracy", "loss", "trust"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FedcrfError, match="is not empty: name a new one"):
        CRFAvg(record_to=tmp_path)
    with pytest.raises(FedcrfError, match=r"records folder .*thesis.tex: .*exists"):
        CRFAvg(record_to=tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_record_is_of_one_run(tmp_path: Path) -> None:
    strategy = CRFAvg(record_to=tmp_path / "first")
    run(strategy, rounds=2)
    with pytest.raises(FedcrfError, match="first holds an earlier run: give this one a strategy"):
        run(strategy)
    assert [record.round for record in RecordedRun(tmp_path / "first").records()] == [1, 2]


def test_a_damaged_description_is_named(tmp_path: Path) -> None:
    run(CRFAvg(record_to=tmp_path), rounds=1)
    (tmp_path / "description.json").write_text(json.dumps({"strategy": 3}))
    with pytest.raises(FedcrfError, match="does not describe a recorded run"):
        RecordedRun(tmp_path).description()


def test_settings_and_numbers_are_plain(tmp_path: Path) -> None:
    """A metric of the clients' that is a list, or missing, is unknown to the record."""
    nodes: dict[int, Any] = {
        number: lambda asked: reply(asked.metadata.dst_node_id, train_loss=[1.0], eval_acc=[0.5])
        for number in (1, 2)
    }
    CRFAvg(record_to=tmp_path).start(Nodes(nodes), arrays(MODEL), num_rounds=1)
    (record,) = RecordedRun(tmp_path).records()
    assert math.isnan(record.training_loss)
    assert math.isnan(record.validation.accuracy)
    assert np.isnan(record.client_training_loss).all()
