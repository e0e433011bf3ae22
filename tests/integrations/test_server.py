"""A server of any framework: messages are dictionaries here, and nothing of Flower is needed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcrf.errors import FedcrfError
from fedcrf.experiments.recorded import recorded_runs
from fedcrf.integrations.server import RuleServer
from fedcrf.rules import CRFRobust, Rule
from fedcrf.rules import FedAvg as FedAvgRule

LOG = logging.getLogger("a framework")
MODEL = {"w": np.zeros(50, dtype=np.float32)}
COUNT = "n"


@dataclass(frozen=True)
class Answer:
    """A message of the framework, which is a dictionary."""

    node: int
    content: Mapping[str, Any]

    def metrics(self) -> Mapping[str, Any]:
        if "failed" in self.content:
            raise FedcrfError(f"failed: {self.content['failed']}")
        return self.content["metrics"]

    def model(self) -> Mapping[str, Any]:
        return self.content["model"]


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


def test_rounds_without_a_usable_reply_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FedcrfError, match="rounds 1 to 2 had no usable reply, and the run ends"):
        Loop(FedAvgRule()).run(3, nodes=1)
    assert "Node 0 is excluded: it failed: no data" in caplog.text
