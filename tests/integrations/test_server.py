"""A server of any framework: messages are dictionaries here, and nothing of Flower is needed."""

from __future__ import annotations

import gc
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from experiments.runs import snapshot
from fedcrf.errors import FedcrfError
from fedcrf.experiments.recorded import recorded_runs
from fedcrf.files import lock_beside
from fedcrf.integrations.checkpoint import Checkpoint
from fedcrf.integrations.decision import Decision
from fedcrf.integrations.server import RuleServer
from fedcrf.rules import (
    AggregationResult,
    ClientReport,
    CRFRobust,
    Krum,
    Memory,
    MultiKrum,
    Rule,
    State,
    TrimmedMean,
)
from fedcrf.rules import FedAvg as FedAvgRule
from fedcrf.rules.server_optimizers import Adam
from fedcrf.rules.wrappers import Optimized
from integrations.hostile import COUNT, Answer

LOG = logging.getLogger("a framework")
MODEL = {"w": np.zeros(50, dtype=np.float32)}


class Loop:
    """What an adapter does: it sends the model to its nodes, and hands over what comes back."""

    def __init__(self, rule: Rule, **places: Any) -> None:
        self.resumable = "checkpoint_to" in places
        self.server = RuleServer(rule, None, framework="none 1", strategy="Loop", log=LOG, **places)

    def run(self, rounds: int, nodes: int = 4) -> dict[str, Any]:
        saved = self.server.saved() if self.resumable else None
        if saved is None:
            return self._rounds(MODEL, rounds, nodes)
        with self.server.after(saved, MODEL, rounds):
            return self._rounds(saved.model, rounds - saved.round, nodes)

    def _rounds(self, model: Mapping[str, Any], rounds: int, nodes: int) -> dict[str, Any]:
        for number in range(1, rounds + 1):
            self.server.begin_round(number, model, range(nodes))
            answers = [self._trained(node, model, number) for node in reversed(range(nodes))]
            decision, state = self.server.decide(answers, COUNT)
            model = model if decision.kept_reason is not None else state
            self.server.finish(decision, model)
            self.server.evaluated(number, {"loss": 1.0, "accuracy": 0.5}, by_clients=False)
        return dict(model)

    def _trained(self, node: int, model: Mapping[str, Any], number: int) -> Answer:
        if node == 0:
            return Answer(node, {"failed": "no data"})
        draw = np.random.default_rng([node, number + self.server.rounds_before])
        moved = model["w"] + draw.normal(1.0, 0.1, 50).astype(np.float32)
        return Answer(node, {"metrics": {COUNT: 10}, "model": {"w": moved}})


def test_rounds_are_decided_and_recorded(tmp_path: Path) -> None:
    loop = Loop(FedAvgRule(), record_to=tmp_path)
    model = loop.run(3)
    assert model["w"].mean() == pytest.approx(3.0, abs=0.1)
    (run,) = recorded_runs(tmp_path).values()
    assert run.description().framework == "none 1"
    records = run.records()
    assert [record.nodes for record in records] == [[1, 2, 3]] * 3
    assert [record.excluded_nodes[0].reason for record in records if record.excluded_nodes] == [
        "failed: no data"
    ] * 3
    assert records[-1].held_out is not None
    assert records[-1].held_out.accuracy == 0.5


def test_a_run_that_was_stopped_ends_as_if_it_was_not(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    rule = CRFRobust(sketch_seed=1)
    whole = Loop(rule, checkpoint_to=tmp_path / "whole.npz").run(4)
    Loop(rule, checkpoint_to=path).run(2)
    resumed = Loop(rule, checkpoint_to=path).run(4)
    assert np.array_equal(resumed["w"], whole["w"])


@pytest.mark.parametrize(
    "names",
    [("a", "a.npy"), ("a", "a\0", "\0"), ("\ud800", "a"), ("round", "model.a", "0", "names", "")],
    ids=ascii,
)
def test_a_checkpoint_keeps_tensors_of_any_names(names: Sequence[str], tmp_path: Path) -> None:
    model = {name: np.full(2, number) for number, name in enumerate(names)}
    memory = {f"rule.{name}": array + 10 for name, array in model.items()}
    Checkpoint(3, model, memory, "a run").save(tmp_path / "run.npz")
    saved = Checkpoint.load(tmp_path / "run.npz")
    assert (saved.round, saved.run) == (3, "a run")
    for found, expected in ((saved.model, model), (saved.memory, memory)):
        assert [*found] == [*expected]
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("listed", [True, False])
def test_a_checkpoint_of_an_earlier_version_is_read(listed: bool, tmp_path: Path) -> None:
    arrays = {"round": 3, "run": "a run", "model.w": np.ones(2), "memory.rule.v": np.zeros(3)}
    names = {"names": np.array([*arrays])} if listed else {}
    np.savez(tmp_path / "run.npz", **names, **arrays)  # type: ignore[arg-type]
    saved = Checkpoint.load(tmp_path / "run.npz")
    assert (saved.round, saved.run) == (3, "a run")
    assert saved.model["w"].tolist() == [1, 1]
    assert saved.memory["rule.v"].tolist() == [0, 0, 0]


def test_no_second_server_writes_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    another_process = lock_beside(path)
    assert another_process is not None
    refused = f"^checkpoint {path} is being written by another server: wait for .* checkpoint_to$"
    first = Loop(FedAvgRule(), checkpoint_to=path, record_to=tmp_path / "runs")
    with pytest.raises(FedcrfError, match=refused):
        first.run(1)
    assert [each.name for each in tmp_path.iterdir()] == [".run.npz.lock"]
    another_process()
    first.run(1)
    assert lock_beside(path) is None
    # One of the same process takes it over, and the first is refused its next round.
    second = Loop(FedAvgRule(), checkpoint_to=path, record_to=tmp_path / "runs")
    second.run(3)
    written = snapshot(tmp_path)
    for _ in range(2):
        with pytest.raises(FedcrfError, match=refused):
            first.server.finish(*decided(first.server, 2))
    first.server.release()
    assert snapshot(tmp_path) == written
    assert lock_beside(path) is None
    # Whoever is not used any more holds nothing.
    del second
    gc.collect()
    free = lock_beside(path)
    assert free is not None
    free()


def decided(server: RuleServer, number: int) -> tuple[Decision, State]:
    server.begin_round(number, MODEL, [1])
    return server.decide([Answer(1, {"metrics": {COUNT: 10}, "model": MODEL})], COUNT)


def test_an_error_ends_a_run_and_its_hold(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    loop = Loop(FedAvgRule(), checkpoint_to=path)
    with pytest.raises(FedcrfError, match="had no usable reply, and the run ends"):
        loop.run(3, nodes=1)
    assert [*tmp_path.iterdir()] == [path]


def test_what_a_kill_left_of_a_checkpoint_goes_when_nobody_writes_it(tmp_path: Path) -> None:
    unfinished = tmp_path / ".run.npz.123-0a1b2c3d"
    ours = [
        ".run.npz.old",
        ".run.npz.123-0a1b2c3d4",
        ".other.npz.123-0a1b2c3d",
        ".runxnpz.1-0a1b2c3d",
    ]
    for path in (unfinished, *(tmp_path / name for name in ours)):
        path.touch()
    first = Loop(FedAvgRule(), checkpoint_to=tmp_path / "run.npz")
    first.run(1)
    first.server.release()
    assert {path.name for path in tmp_path.iterdir()} == {*ours, "run.npz"}
    first.run(2)
    unfinished.touch()  # as another thread of this process may be writing it
    Loop(FedAvgRule(), checkpoint_to=tmp_path / "run.npz").run(3)
    assert unfinished.exists()


def test_a_checkpoint_that_cannot_be_locked_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    path = tmp_path / "run.npz"
    Loop(FedAvgRule(), checkpoint_to=path).run(1)
    assert [*tmp_path.iterdir()] == [path]
    assert re.search(rf"{path} cannot be locked \(.*fcntl.*\): let no other server", caplog.text)


class Hoarding(FedAvgRule):
    """FedAvg that remembers what no checkpoint holds."""

    remembers: ClassVar[bool] = True

    def aggregate(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        seen = np.array([{"round": 1}], dtype=object)
        return replace(super().aggregate({}, global_state, reports), memory={"seen": seen})


def test_a_memory_that_no_checkpoint_holds_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedcrfError, match=r"run\.npz: the memory's 'rule\.seen' holds objects"):
        Loop(Hoarding(), checkpoint_to=tmp_path / "run.npz").run(1)
    assert not [*tmp_path.iterdir()]


class Unreadable(Answer):
    """A message that the adapter cannot read, which it has not foreseen."""

    def metrics(self) -> Mapping[str, Any]:
        return {**self.content["metrics"], **[1]}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("make", "metrics", "why"),
    [
        (Unreadable, {COUNT: 10}, "cannot be read (TypeError: 'list' object is not a mapping"),
        (Answer, {COUNT: 10**5000}, "cannot be read (ValueError: Exceeds the limit"),
    ],
    ids=["metrics", "count"],
)
def test_whatever_a_node_sends_the_round_goes_on(
    make: type[Answer], metrics: dict[str, Any], why: str
) -> None:
    server = Loop(FedAvgRule()).server
    server.begin_round(1, MODEL, [0, 1])
    good = Answer(0, {"metrics": {COUNT: 10}, "model": {"w": MODEL["w"] + 1}})
    odd = make(1, {"metrics": metrics, "model": MODEL})
    decision, state = server.decide([good, odd], COUNT)
    assert np.array_equal(state["w"], MODEL["w"] + 1)
    (out,) = decision.excluded
    assert out.node == 1
    assert why in out.reason
    assert server.evaluations([odd], COUNT) == []


def test_whoever_has_weight_moves_integers() -> None:
    """The threat model says so: they are averaged, and bounded by their dtype alone."""
    server = Loop(CRFRobust()).server
    model = {**MODEL, "steps": np.array(0)}
    server.begin_round(1, model, range(5))
    steps = [10, 10, 10, 10, -(2**40)]
    draw = np.random.default_rng(0)
    answers = [
        Answer(node, {"metrics": {COUNT: 10}, "model": {
            "w": MODEL["w"] + draw.normal(1.0, 0.1, 50).astype(np.float32), "steps": np.array(each),
        }})
        for node, each in enumerate(steps)
    ]  # fmt: skip
    _, state = server.decide(answers, COUNT)
    assert state["steps"] < -(2**36)


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (MultiKrum(), "MultiKrum is not informed how many clients may attack, and assumes few or "
         "none: give its setting num_byzantine"),
        (Optimized(TrimmedMean(), Adam()), "TrimmedMean+Adam is not informed how many clients may "
         "attack, and assumes few or none: give its setting fraction"),
        (Krum(num_byzantine=4), "Krum does not suit a round of 3 clients: Krum: 4 attackers of 3"),
        (Krum(num_byzantine=600), "Krum does not suit a round of 3 clients: Krum: 600 attackers"),
        (MultiKrum(num_byzantine=0), None),
        (CRFRobust(), None),
    ],
    ids=repr,
)  # fmt: skip
def test_a_rule_that_does_not_protect_the_round_says_so_once(
    rule: Rule, line: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    Loop(rule).run(2)
    lines = [each for each in caplog.messages if "is not informed" in each or "not suit" in each]
    assert len(lines) == (line is not None)
    assert not lines or str(line) in lines[0]


def test_rounds_without_a_usable_reply_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FedcrfError, match="rounds 1 to 2 had no usable reply, and the run ends"):
        Loop(FedAvgRule()).run(3, nodes=1)
    assert "Node 0 is excluded: it failed: no data" in caplog.text


def named_round(server: RuleServer, number: int) -> list[tuple[str, int]]:
    """Run a round of sites with names; return which client each usable one was."""
    server.begin_round(number, MODEL, ())
    server.ask_also(["Bern", "Chur"])
    server.ask_also(["Chur", "Aarau"])
    answers = [
        Answer(site, {"metrics": {COUNT: 10}, "model": {"w": MODEL["w"] + 1}})
        for site in ("Chur", "Aarau")
    ]
    decision, state = server.decide(answers, COUNT)
    server.finish(decision, state)
    assert [(each.node, each.reason) for each in decision.excluded] == [("Bern", "did not reply")]
    return [(str(reply.node), reply.client) for reply in decision.replies]


def test_nodes_with_names_are_the_same_clients_after_a_restart(tmp_path: Path) -> None:
    def server() -> RuleServer:
        return RuleServer(
            FedAvgRule(), None, framework="none 1", strategy="Loop", log=LOG, record_to=tmp_path,
            checkpoint_to=tmp_path / "run.npz", named_nodes=True,
        )  # fmt: skip

    first, second = server(), server()
    before = named_round(first, 1)
    assert [site for site, _ in before] == ["Aarau", "Chur"]
    saved = second.saved()
    assert saved is not None
    second.go_on(saved, MODEL)
    assert named_round(second, 1) == before
    (run,) = recorded_runs(tmp_path).values()
    assert [record.clients for record in run.records()] == [["Aarau", "Chur"]] * 2
    assert [record.round for record in run.records()] == [1, 2]


def test_names_are_no_memory_of_a_server_with_numbers(tmp_path: Path) -> None:
    named = RuleServer(
        FedAvgRule(), None, framework="none 1", strategy="Loop", log=LOG, named_nodes=True
    )
    named_round(named, 1)
    with pytest.raises(FedcrfError, match="the memory is damaged"):
        Loop(FedAvgRule(), memory=named.memory)
