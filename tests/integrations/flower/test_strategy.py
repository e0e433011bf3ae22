from __future__ import annotations

import importlib
import inspect
import itertools
import json
import logging
import re
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result

from fedcrf import FedcrfError
from fedcrf.crf import ClientCRF
from fedcrf.experiments.recorded import recorded_runs
from fedcrf.integrations.checkpoint import Checkpoint
from fedcrf.integrations.flower import CRFAvg, MetricNames, RuleStrategy
from fedcrf.integrations.flower.messages import flower_replies
from fedcrf.integrations.recording import ShownNumbers
from fedcrf.integrations.replies import (
    MOST_PARTITIONS,
    Identities,
    client_reports,
    train_replies,
)
from fedcrf.rules import (
    CRF,
    RESIDUAL_LOSS,
    RULES,
    Adam,
    AggregationResult,
    ClientReport,
    CRFEvidence,
    CRFRobust,
    FLTrust,
    Memory,
    Momentum,
    Optimized,
    Rule,
    State,
    Yogi,
)
from fedcrf.rules import FedAvg as FedAvgRule
from integrations.flower_messages import (
    MODEL,
    Nodes,
    arrays,
    ask,
    failure,
    message,
    moved,
    reply,
    tensors,
)

NODES = [901, 17, 350, 42, 8]

USABLE = [name for name, kind in RULES.items() if not kind().server_examples]
"""The rules but those that need data on the server, of which a Flower server has none."""


def strategy_of(name: str) -> RuleStrategy:
    return CRFAvg() if name == "crf" else RuleStrategy(RULES[name]())


def replies_of(nodes: list[int], **changes: Any) -> list[Message]:
    return [reply(node, **{"effective-steps": 2 + node % 3}, **changes) for node in nodes]


def test_without_flower_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delitem(sys.modules, "fedcrf.integrations.flower")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedcrf\[flower\]'"):
        importlib.import_module("fedcrf.integrations.flower")


def test_crfavg_takes_what_fedavg_takes_in_its_order() -> None:
    theirs = inspect.signature(FlowerFedAvg.__init__).parameters
    ours = inspect.signature(CRFAvg.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    assert [each.default for each in ours.values()][: len(theirs)] == [
        each.default for each in theirs.values()
    ]
    settings = inspect.signature(ClientCRF).parameters
    assert {name: ours[name].default for name in settings} == {
        name: each.default for name, each in settings.items()
    }


def test_crfavg_hands_its_settings_on() -> None:
    chosen = {"labels": (0, 1), "bandwidth": 0.1, "neighbours": 3, "sketch_size": 64}
    strategy = CRFAvg(0.5, 0.25, 3, 4, 5, weighted_by_key="n", **chosen, sketch_seed=7)
    assert strategy.rule == RULES["crf"](**chosen, sketch_seed=7)  # type: ignore[call-arg]
    assert (strategy.fraction_train, strategy.min_available_nodes) == (0.5, 5)
    assert strategy.weighted_by_key == "n"


@pytest.mark.parametrize("name", USABLE)
def test_every_rule_gives_what_it_gives_without_flower(name: str) -> None:
    strategy = strategy_of(name)
    ask(strategy, NODES)
    replies = replies_of(NODES)
    given, metrics = strategy.aggregate_train(1, replies)
    reports = [ClientReport(node, moved(node), 10 + node, 2 + node % 3) for node in sorted(NODES)]
    expected = RULES[name]().aggregate({}, MODEL, reports)
    assert {k: v.tobytes() for k, v in tensors(given).items()} == {
        k: v.tobytes() for k, v in expected.state.items()
    }
    assert metrics is not None
    assert metrics["fedcrf.node-id"] == sorted(NODES)
    weights = None if np.isnan(expected.weights).any() else expected.weights.tolist()
    assert metrics.get("fedcrf.weight") == weights


@pytest.mark.parametrize("name", USABLE)
def test_the_order_of_arrival_changes_no_bit(name: str) -> None:
    outcomes = set()
    for order in itertools.permutations(NODES[:4]):
        strategy = strategy_of(name)
        ask(strategy, NODES[:4])
        given, metrics = strategy.aggregate_train(1, iter(replies_of(list(order))))
        outcomes.add((str({k: v.tobytes() for k, v in tensors(given).items()}), str(metrics)))
    assert len(outcomes) == 1


@pytest.mark.parametrize("name", USABLE)
def test_integers_and_booleans_keep_their_dtype(name: str) -> None:
    strategy = strategy_of(name)
    ask(strategy, NODES)
    given, _ = strategy.aggregate_train(1, replies_of(NODES))
    assert {k: (v.dtype, v.shape) for k, v in tensors(given).items()} == {
        k: (v.dtype, v.shape) for k, v in MODEL.items()
    }


@pytest.mark.parametrize("name", USABLE)
def test_replies_are_left_as_they_are(name: str) -> None:
    strategy = strategy_of(name)
    ask(strategy, NODES)
    replies, untouched = replies_of(NODES), replies_of(NODES)
    strategy.aggregate_train(1, replies)
    assert [each.content for each in replies] == [each.content for each in untouched]


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in moved(3).items() if key != name}


# NumPy's own format of an array of one object, whose place in memory the sender chooses.
OBJECTS = (
    b"\x93NUMPY\x01\x00F\x00{'descr': '|O', 'fortran_order': False, 'shape': (), }".ljust(79)
    + b"\n"
    + bytes(8)
)


BAD: Mapping[str, tuple[Callable[[], Message], str]] = {
    "raises": (lambda: failure(3, "Traceback\nValueError: x"), "failed, code 1: ValueError: x"),
    "raises in simulation": (
        lambda: failure(3, "<class 'ray.Error'>:<'Traceback\nMessage: out of memory'>"),
        "failed, code 1: Message: out of memory$",
    ),
    "fails in silence": (lambda: failure(3, None), "failed, code 1: unknown"),
    "one tensor less": (lambda: reply(3, without("bias")), "'bias' is in one of them only"),
    "one tensor more": (lambda: reply(3, moved(3, more=1.0)), "'more' is in one of them only"),
    "broadcastable shape": (
        lambda: reply(3, moved(3, weight=np.ones((1, 3), np.float32))),
        r"reports 'weight' as float32 \(1, 3\), the global model has float32 \(2, 3\)",
    ),
    "parts of an integer": (lambda: reply(3, moved(3, count=7.5)), "reports 7.5 in 'count'"),
    "no number as integer": (lambda: reply(3, moved(3, count=np.nan)), "reports nan in 'count'"),
    "more than an integer holds": (
        lambda: reply(3, moved(3, count=np.uint64(2**63))),
        "reports 9223372036854775808 in 'count', which is int64 in the global model",
    ),
    "no truth value": (lambda: reply(3, moved(3, mask=np.array([0, 1, 2]))), "reports 2 in 'mask'"),
    "strings": (lambda: reply(3, moved(3, bias=np.array(["a", "b"]))), "holds <U1 as 'bias'"),
    "no count": (lambda: reply(3, num_examples=None), "gives no 'num-examples'"),
    "zero count": (lambda: reply(3, num_examples=0), "gives 0 as 'num-examples'"),
    "negative count": (lambda: reply(3, num_examples=-4), "gives -4 as 'num-examples'"),
    "count not a number": (lambda: reply(3, num_examples=np.nan), "gives nan as"),
    "endless count": (lambda: reply(3, num_examples=np.inf), "gives inf as"),
    "counts": (lambda: reply(3, num_examples=[3, 4]), r"gives \[3, 4\] as"),
    "many counts": (lambda: reply(3, num_examples=[3] * 1000), "gives a list as 'num-examples'"),
    "no arrays": (
        lambda: message(3, RecordDict({"metrics": MetricRecord({"num-examples": 1})})),
        "sent 0 array records instead of one",
    ),
    "no metrics": (
        lambda: message(3, RecordDict({"arrays": arrays(moved(3))})),
        "sent 0 metric records instead of one",
    ),
    "cut off": (
        lambda: message(
            3,
            RecordDict(
                {
                    "arrays": ArrayRecord(
                        {k: Array("float32", (), "numpy.ndarray", Array(np.asarray(v)).data[:-1])
                         for k, v in moved(3).items()}
                    ),
                    "metrics": MetricRecord({"num-examples": 1}),
                }
            ),
        ),
        "holds a 'weight' that cannot be read",
    ),
    "objects": (
        lambda: message(
            3,
            RecordDict(
                {
                    "arrays": ArrayRecord(
                        {k: Array("object", (), "numpy.ndarray", OBJECTS) for k in moved(3)}
                    ),
                    "metrics": MetricRecord({"num-examples": 1}),
                }
            ),
        ),
        "holds a 'weight' that cannot be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_excluded_and_named(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    make, said = BAD[kind]
    good = replies_of([1, 2, 5, 9])
    with caplog.at_level(logging.INFO, logger="flwr"):
        given, metrics = aggregated(CRFAvg(), [*good[:2], make(), *good[2:]])
    caught = [record.getMessage() for record in caplog.records if "Node 3" in record.getMessage()]
    assert len(caught) == 1
    assert re.search(f"Node 3 is excluded: it .*{said}", caught[0])
    assert "aggregate_train: 4 usable, 1 excluded" in caplog.text
    assert metrics["fedcrf.excluded"] == [3]
    alone, _ = aggregated(CRFAvg(), good)
    assert given == alone


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        (np.zeros((2, 3)), np.float32(0.1) * np.arange(6, dtype=np.float32).reshape(2, 3)),
        (np.zeros((2, 3), np.float32), np.arange(6.0).reshape(2, 3) / 10),
        (np.zeros(3, np.float16), np.arange(3.0, dtype=np.float32)),
        (np.zeros(3, np.float32), np.arange(3)),
        (np.zeros(3, np.float32), np.array([True, False, True])),
        (np.zeros((), np.int64), np.array(7.0)),
        (np.zeros(2, np.int32), np.array([3, 2**31 - 1])),
        (np.zeros(2, bool), np.array([0.0, 1.0])),
    ],
    ids=lambda array: str(array.dtype),
)
def test_real_numbers_are_cast_to_the_global_dtype_and_it_is_said_once(
    model: np.ndarray, sent: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = RuleStrategy(FedAvgRule())
    for number in (1, 2):
        ask(strategy, [1, 2], {"w": model}, number)
        given, metrics = strategy.aggregate_train(number, [reply(k, {"w": sent}) for k in (1, 2)])
        assert tensors(given)["w"].dtype == model.dtype
        np.testing.assert_array_equal(tensors(given)["w"], sent.astype(model.dtype))
        assert metrics is not None
        assert metrics["fedcrf.num-excluded"] == 0
    said = f"replies hold {sent.dtype} where the global model has {model.dtype}: they are cast"
    assert caplog.text.count(said) == 1


def test_what_overflows_when_cast_is_not_finite() -> None:
    model = {"w": np.zeros(2, np.float32)}
    strategy = RuleStrategy(FedAvgRule())
    ask(strategy, [1, 2], model)
    _, metrics = strategy.aggregate_train(1, [reply(1, {"w": np.full(2, 1e39)}), reply(2, model)])
    assert metrics is not None
    assert metrics["fedcrf.not-finite"] == [1]


def aggregated(
    strategy: RuleStrategy, replies: list[Message], asked: list[int] | None = None
) -> tuple[ArrayRecord, MetricRecord]:
    ask(strategy, asked or [each.metadata.src_node_id for each in replies])
    given, metrics = strategy.aggregate_train(1, replies)
    assert given is not None
    assert metrics is not None
    return given, metrics


@pytest.mark.parametrize("name", USABLE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_gets_weight_zero(
    name: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    good = replies_of([1, 2, 5, 9])
    weight = moved(3)["weight"].copy()
    weight[0, 0] = value
    poisoned = reply(3, moved(3, weight=weight), **{"effective-steps": 1, "train_loss": np.nan})
    given, metrics = aggregated(strategy_of(name), [*good, poisoned])
    alone, expected = aggregated(strategy_of(name), good)
    for tensor, other in zip(tensors(given).values(), tensors(alone).values(), strict=True):
        # Some processors sum over five clients, one of them 0, in another order than over four.
        np.testing.assert_allclose(tensor, other, rtol=1e-6)
    weights = metrics.get("fedcrf.weight", metrics["fedcrf.base-weight"])
    assert isinstance(weights, list)
    assert weights[2] == 0
    assert metrics["fedcrf.not-finite"] == [3]
    assert metrics["train_loss"] == expected["train_loss"] == 0.5
    assert "Node 3 gets weight 0" in caplog.text


@pytest.mark.parametrize(
    "replies",
    [
        pytest.param([], id="nobody answers"),
        pytest.param([failure(1, "x"), failure(2, "y")], id="all fail"),
        pytest.param([reply(1, num_examples=0), reply(2, num_examples=-1)], id="no counts"),
        pytest.param(
            [reply(node, moved(node, bias=np.full(2, np.nan))) for node in (1, 2)], id="all NaN"
        ),
    ],
)
def test_a_round_without_a_usable_reply_keeps_the_model_and_says_so(
    replies: list[Message], caplog: pytest.LogCaptureFixture
) -> None:
    given, metrics = aggregated(CRFAvg(), replies, asked=[1, 2])
    assert given == arrays(MODEL)
    assert metrics["fedcrf.kept-model"] == 1
    (said,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert re.search("The model stays as it is: no (reply was usable|client's update is)", said)


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ([], "each did not reply$"),
        (
            [reply(node, moved(node, bias=np.ones(3))) for node in (1, 2)],
            r": each reports 'bias' as float64 \(3,\), the global model has float64 \(2,\)$",
        ),
        (
            [failure(1, "x"), failure(2, "y")],
            "no reply was usable: for example node 1 failed, code 1: x$",
        ),
        ([reply(node, moved(node, bias=np.full(2, np.nan))) for node in (1, 2)], "is finite$"),
    ],
    ids=["nobody", "alike", "unlike", "NaN"],
)
def test_a_second_round_without_a_usable_reply_ends_the_run(
    replies: list[Message], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = CRFAvg()
    for number, given in enumerate([replies, replies_of([1, 2]), replies], start=1):
        ask(strategy, [1, 2], number=number)
        strategy.aggregate_train(number, given)
    ask(strategy, [1, 2], number=4)
    with pytest.raises(FedcrfError, match=f"rounds 3 to 4 had no usable reply.*{said}"):
        strategy.aggregate_train(4, replies)
    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 3
    assert all(re.search(said, error) for error in errors)


def test_rounds_without_training_end_no_run() -> None:
    strategy = CRFAvg(fraction_train=0.0, fraction_evaluate=0.0)
    result = strategy.start(Nodes({1: lambda _: None}), arrays(MODEL), num_rounds=4)
    assert result.arrays == arrays(MODEL)


@pytest.mark.parametrize("begin", ["start", "resume"])
@pytest.mark.parametrize("rounds", ["3", -1, 2.5])
def test_a_number_of_rounds_that_is_none(begin: str, rounds: Any, tmp_path: Path) -> None:
    strategy = CRFAvg(checkpoint_to=tmp_path / "checkpoint")
    with pytest.raises(FedcrfError, match=r"num_rounds .*: give a whole number, 0 or more"):
        getattr(strategy, begin)(Nodes({}), arrays(MODEL), num_rounds=rounds)


@pytest.mark.parametrize("begin", ["start", "resume"])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("given", [{"w": np.zeros(2)}, None], ids=["arrays", "None"])
def test_a_model_in_another_form_than_flower_s_is_named(
    given: Any, begun: bool, begin: str, tmp_path: Path
) -> None:
    places = {"checkpoint_to": tmp_path / "run.npz"}
    if begun:
        CRFAvg(**places).start(trained_by_round(), arrays(MODEL), 1)
    kind = type(given).__name__
    said = f"^initial_arrays is of type {kind}: give the model as an ArrayRecord$"
    with pytest.raises(FedcrfError, match=said):
        getattr(CRFAvg(**places), begin)(trained_by_round(), given, 2)


@dataclass(frozen=True)
class Deciding(Rule):
    """A rule that decides by a function."""

    decide: Callable[[State, Sequence[ClientReport]], AggregationResult]

    def aggregate(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        return self.decide(global_state, reports)


def kept(state: State, reports: Sequence[ClientReport]) -> AggregationResult:
    result = FedAvgRule().aggregate({}, state, reports)
    weights = np.zeros(len(reports))
    return replace(result, state=state, weights=weights, kept_reason="who replied is distrusted")


def failing(state: State, reports: Sequence[ClientReport]) -> AggregationResult:
    raise ZeroDivisionError("by design")


@pytest.mark.parametrize(
    ("decide", "reason"),
    [
        (kept, "who replied is distrusted"),
        (
            failing,
            "the rule failed: ZeroDivisionError: by design, at test_strategy.py:"
            f"{failing.__code__.co_firstlineno + 1}",
        ),
    ],
)
def test_a_round_that_the_rule_keeps_is_told(
    decide: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Nodes({k: lambda asked: reply(asked.metadata.dst_node_id) for k in (1, 2)})
    strategy = RuleStrategy(Deciding(decide), record_to=tmp_path, fraction_evaluate=0.0)
    result = strategy.start(grid, arrays(MODEL), num_rounds=3)
    assert result.arrays == arrays(MODEL)
    assert caplog.text.count(f"The model stays as it is: {reason}") == 3
    (run,) = recorded_runs(tmp_path).values()
    assert [each.kept_reason for each in run.records()] == [reason] * 3
    for metrics in result.train_metrics_clientapp.values():
        assert metrics["fedcrf.kept-model"] == 1
        assert "train_loss" not in metrics


@pytest.mark.parametrize("rule", [CRFRobust(), FedAvgRule(), RULES["coordinate-median"]()])
def test_a_claim_of_many_examples_does_not_set_the_averages(rule: Rule) -> None:
    honest = [reply(node, num_examples=100, train_loss=0.5, eval_acc=0.9) for node in range(2, 11)]
    liar = reply(1, num_examples=10**15, train_loss=99.0, eval_acc=0.0)
    strategy = RuleStrategy(rule)
    _, metrics = aggregated(strategy, [liar, *honest])
    evaluated = strategy.aggregate_evaluate(1, [liar, *honest])
    assert evaluated is not None
    assert evaluated["eval_acc"] == pytest.approx(0.9 * 9 / 12)
    weights = metrics.get("fedcrf.weight", [3 / 12, *[1 / 12] * 9])
    losses = [99.0, *[0.5] * 9]
    expected = sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)  # type: ignore[arg-type, operator]
    assert metrics["train_loss"] == pytest.approx(expected)


def test_logs_and_metrics_stay_short_and_are_json_however_many_nodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(asked: Message) -> Message | None:
        node, config = asked.metadata.dst_node_id, asked.content["config"]
        if node % 5 == 0:
            return None if node % 2 else failure(node, f"node {node}: {'x' * 5000}")
        if node % 7 == 0:
            return reply(node, moved(node, bias=np.full(2, np.nan)), train_loss=np.nan)
        given = None if config["server-round"] == 1 else 3
        return reply(node, moved(node), train_loss=np.nan, own=1.0, partition_id=given)

    strategy = RuleStrategy(CRFRobust(sketch_size=64), record_to=tmp_path)
    grid = Nodes(dict.fromkeys(range(1, 101), answer))
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = strategy.start(grid, arrays(MODEL), num_rounds=3)
    lines = [record.getMessage() for record in caplog.records]
    assert max(map(len, lines)) < 800  # the rule with its settings, once
    assert sum(map(len, lines)) < 3 * 5000
    metrics = {k: dict(each) for k, each in result.train_metrics_clientapp.items()}
    assert metrics[3]["fedcrf.num-usable"] == 80
    assert metrics[3]["own"] == pytest.approx(1.0)
    json.dumps(metrics, allow_nan=False)
    (run,) = recorded_runs(tmp_path).values()
    assert [len(each.weight) for each in run.records()] == [80] * 3
    assert [len(each.excluded_nodes or []) for each in run.records()] == [20] * 3


@pytest.mark.parametrize("name", USABLE)
def test_metrics_are_json(name: str) -> None:
    poisoned = reply(3, moved(3, bias=np.full(2, np.nan)), **{"effective-steps": 1})
    _, metrics = aggregated(strategy_of(name), [*replies_of([1, 2, 5]), poisoned])
    json.dumps(dict(metrics), allow_nan=False)


def test_a_node_that_does_not_answer_is_named(caplog: pytest.LogCaptureFixture) -> None:
    _, metrics = aggregated(CRFAvg(), replies_of([1, 2]), asked=[2, 7, 1])
    assert metrics["fedcrf.excluded"] == [7]
    assert "Node 7 is excluded: it did not reply" in caplog.text


class SuperLink(Nodes):
    """Gives each message its id as it goes, and answers for node 2 under an id of its own."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        for sent in messages:
            kind, node = sent.metadata.message_type, sent.metadata.dst_node_id
            sent.metadata.__dict__["_message_id"] = f"{kind} {node}"
        lost = failure(1, "Node Unavailable")
        lost.metadata.reply_to_message_id = f"{kind} 2"
        return [lost, *super().send_and_receive(messages, timeout=timeout)]


class OwnEvaluation(CRFAvg):
    """Asks all nodes to evaluate, in its own way."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        content = RecordDict({"arrays": arrays, "config": config})
        return self.note_sent(
            Message(content, dst_node_id=node, message_type="evaluate")
            for node in grid.get_node_ids()
        )


@pytest.mark.parametrize("make", [CRFAvg, OwnEvaluation])
def test_an_error_of_the_link_is_that_of_the_lost_node(
    make: type[CRFAvg], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = {7: lambda _: reply(7, eval_acc=0.5), 2: lambda _: None, 3: lambda _: failure(3, "x")}
    with caplog.at_level(logging.INFO, logger="flwr"):
        make(record_to=tmp_path).start(SuperLink(nodes), arrays(MODEL), num_rounds=1)
    (run,) = recorded_runs(tmp_path).values()
    (record,) = run.records()
    assert record.nodes == [7]
    assert [(each.node, each.reason) for each in record.excluded_nodes or []] == [
        (2, "failed, code 1: Node Unavailable"), (3, "failed, code 1: x"),
    ]  # fmt: skip
    assert caplog.text.count("Node 2 is excluded: it failed, code 1: Node Unavailable") == 2
    assert "Node 1 " not in caplog.text


def test_the_reasons_are_in_the_metrics() -> None:
    replies = [reply(node, partition_id=9 - node) for node in (1, 2, 4)]
    _, metrics = aggregated(CRFAvg(), replies)
    reports = [ClientReport(9 - node, moved(node), 10 + node) for node in (4, 2, 1)]
    posterior = RULES["crf"]().aggregate({}, MODEL, reports).posterior
    assert posterior is not None
    assert metrics["fedcrf.partition-id"] == [5, 7, 8]
    assert metrics["fedcrf.node-id"] == [4, 2, 1]
    assert metrics["fedcrf.reliability"] == posterior.reliability.tolist()
    assert metrics["fedcrf.trust"] == posterior.expected_label.tolist()
    assert metrics["fedcrf.weight"] == posterior.weights.tolist()
    assert metrics["fedcrf.base-weight"] == posterior.base_weights.tolist()
    assert "partition-id" not in metrics


def test_the_same_clients_under_other_node_ids_give_the_same_bits() -> None:
    def run(nodes: list[int]) -> ArrayRecord:
        replies = [reply(node, moved(k), partition_id=k, num_examples=5 + k)
                   for k, node in enumerate(nodes)]  # fmt: skip
        return aggregated(CRFAvg(), replies)[0]

    assert run([1, 2, 3, 4]) == run([70, 3, 11, 1])


def test_a_partition_that_two_nodes_give_is_named(caplog: pytest.LogCaptureFixture) -> None:
    replies = [reply(node, partition_id=3) for node in (9, 4)] + [reply(5, partition_id=0)]
    _, metrics = aggregated(CRFAvg(), replies)
    assert metrics["fedcrf.node-id"] == [5, 4, 9]
    assert metrics["fedcrf.partition-id"] == [0, 3, 3]
    assert [f"Node {node} gives partition 3" in caplog.text for node in (4, 9, 5)] == [1, 1, 0]


def test_an_excluded_node_is_named_with_its_client(caplog: pytest.LogCaptureFixture) -> None:
    strategy, spoilt = CRFAvg(), moved(9, bias=np.full(2, np.nan))
    rounds = [
        [reply(9, partition_id=1), reply(4)],
        [failure(9, "x"), failure(4, "y")],
        [reply(9, spoilt), reply(4)],
    ]
    for number, replies in enumerate(rounds, start=1):
        ask(strategy, [9, 4], number=number)
        strategy.aggregate_train(number, replies)
    for said in ("9 (client 1) is excluded: it failed, code 1: x", "9 (client 1) gets weight 0"):
        assert f"Node {said}" in caplog.text
    assert "Node 4 is excluded: it failed, code 1: y" in caplog.text


def test_a_node_that_gives_no_partition_comes_after_those_that_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    partitions = {6: 2.0, 2: None, 3: -5, 4: 1 << 40, 5: 0, 7: 1.5, 8: [3]}
    replies = [reply(node, partition_id=partition) for node, partition in partitions.items()]
    strategy = CRFAvg()
    for number in (1, 2):
        ask(strategy, partitions, number=number)
        _, metrics = strategy.aggregate_train(number, replies)
        assert metrics is not None
        assert metrics["fedcrf.node-id"] == [5, 6, 2, 3, 4, 7, 8]
        assert metrics["fedcrf.partition-id"] == [0, 2, -1, -1, -1, -1, -1]
    ignored = [line for line in caplog.messages if "which is ignored" in line]
    assert len(ignored) == 4  # once each
    assert "Node 7 gives 1.5 as 'partition-id', which is ignored: give a whole number" in ignored[2]


@pytest.mark.parametrize("partition", [None, 3])
def test_it_is_said_once_where_nobody_gives_a_partition(
    partition: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    def node(asked: Message) -> Message:
        number = asked.metadata.dst_node_id
        return reply(number, partition_id=partition if number == 2 else None)

    RuleStrategy(FedAvgRule()).start(Nodes(dict.fromkeys((1, 2), node)), arrays(MODEL))
    said = [line for line in caplog.messages if "no node gives a valid train metric" in line]
    assert len(said) == (partition is None)
    assert not said or "let the clients send it" in said[0]


def clients_of(identities: Identities, partitions: Mapping[int, int | None]) -> dict[int, int]:
    """By node its client, after a round."""
    replies = [reply(node, partition_id=each) for node, each in partitions.items()]
    usable, _ = train_replies(
        flower_replies(replies, []), [], MODEL, "num-examples", MetricNames(), needs_steps=False
    )
    reports = client_reports(usable, identities, MetricNames())
    nodes, clients = [each.node for each in reports], [each.client for each in reports]
    assert clients == sorted(clients)
    return dict(zip(nodes, clients, strict=True))


FIRST, SECOND, THIRD = MOST_PARTITIONS, MOST_PARTITIONS + 1, MOST_PARTITIONS + 2


def test_a_client_is_what_its_node_first_was_whatever_it_or_others_give() -> None:
    # Nodes that have no partition of their own are the same clients in every round, and no
    # partition's; in figures they have small numbers, which are theirs for the whole run.
    identities, numbers = Identities({}), ShownNumbers({})
    clients = clients_of(identities, {70: 1, 50: None, 60: 4})
    assert clients == {70: 1, 60: 4, 50: FIRST}
    assert numbers.of(clients.values()) == [1, 4, 5]
    # What another has, what one gives only now, what two give, and what nobody gave before.
    clients = clients_of(identities, {70: 8, 50: 9, 40: 4, 20: 2, 30: 2, 80: 3})
    assert clients == {70: 1, 80: 3, 50: FIRST, 20: SECOND, 30: THIRD, 40: THIRD + 1}
    assert numbers.of(clients.values()) == [1, 3, 5, 6, 7, 8]
    clients = clients_of(identities, {50: None, 60: None, 90: 2})
    assert clients == {90: 2, 60: 4, 50: FIRST}
    assert numbers.of(clients.values()) == [2, 4, 5]
    # Of a partition whose number another has already.
    assert numbers.of([5, 9, THIRD]) == [10, 9, 7]


def test_an_odd_partition_moves_no_other_number() -> None:
    odd, numbers = MOST_PARTITIONS - 1, ShownNumbers({})
    assert numbers.of([0, 1, 2, odd, FIRST]) == [0, 1, 2, odd, 3]
    assert numbers.of([3, 5, 999, SECOND]) == [1000, 5, 999, 1001]
    assert ShownNumbers({4: 4, odd: odd}).of([4, FIRST]) == [4, 5]
    assert ShownNumbers({}).of([odd, FIRST]) == [odd, 0]
    # Where most are large, none of them is odd.
    assert ShownNumbers({}).of([5, 7000, 8000, 9000, FIRST]) == [5, 7000, 8000, 9000, 9001]


def test_a_node_of_an_earlier_run_keeps_its_partition_unless_it_is_not_heard_of() -> None:
    earlier = {70: 1, 60: 4, 50: FIRST}
    # All ids are new, as in a simulation; then one is not, so that ids last, and 60 may come back;
    # then two give the same.
    for partitions, expected in (
        ({71: 1, 61: 4, 51: None}, {71: 1, 61: 4, 51: SECOND}),
        ({70: 1, 71: 1, 61: 4}, {70: 1, 61: SECOND, 71: THIRD}),
        ({71: 1, 72: 1}, {71: SECOND, 72: THIRD}),
    ):
        assert clients_of(Identities(earlier), partitions) == expected
    late = Identities(earlier)  # the earlier node comes too late
    assert clients_of(late, {71: 1}) == {71: 1}
    assert clients_of(late, {70: 1, 71: 1, 50: 1}) == {71: 1, 50: FIRST, 70: SECOND}


@pytest.mark.parametrize("alias", ["new", "absent"])
def test_who_was_found_out_cannot_pass_for_another(alias: str) -> None:
    # Three of ten send the opposite of what they learnt, and from the fourth round on under a
    # partition that nobody gave before, or under those of honest nodes, which are then absent.
    goals = 1.0 + np.random.default_rng(0).normal(size=(10, 40))
    model, strategy = np.zeros(40), RuleStrategy(CRFRobust(sketch_seed=3))
    for number in range(1, 13):
        there = range(3, 10) if number > 3 and alias == "absent" else range(10)
        ask(strategy, there, {"weight": model}, number)
        replies = []
        for node in there:
            step = 0.3 * (goals[node] - model) * (-1 if node >= 7 else 1)
            lies = node >= 7 and number > 3
            other = 10 * number + node if alias == "new" else node - 7
            given = other if lies else node
            state = {"weight": model + step}
            replies.append(reply(node, state, num_examples=10, partition_id=given))
        result, metrics = strategy.aggregate_train(number, replies)
        assert result is not None
        assert metrics is not None
        model = tensors(result)["weight"]
        if number > 3:
            weights = dict(zip(metrics["fedcrf.node-id"], metrics["fedcrf.weight"], strict=True))
            assert sum(weights[node] for node in (7, 8, 9)) < 0.01


def test_a_known_attacker_whose_node_alone_replies_does_not_move_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    goals = 1.0 + np.random.default_rng(0).normal(size=(6, 40))
    start = {"weight": np.zeros(40)}

    def node(asked: Message) -> Message:
        client, number = asked.metadata.dst_node_id, asked.content["config"]["server-round"]
        if 5 <= number < 8 and client != 5:
            return failure(client, "out of power")
        model = asked.content["arrays"]["weight"].numpy()
        step = 0.3 * (goals[client] - model) * (-1.0 if client == 5 else 1.0)
        return reply(client, {"weight": model + step}, num_examples=10)

    models: dict[int, np.ndarray] = {}
    strategy = RuleStrategy(CRFRobust(sketch_seed=3), record_to=tmp_path, fraction_evaluate=0.0)
    strategy.start(
        Nodes(dict.fromkeys(range(6), node)),
        arrays(start),
        num_rounds=9,
        evaluate_fn=lambda number, now: models.update({number: tensors(now)["weight"]}),
    )
    (run,) = recorded_runs(tmp_path).values()
    records = run.records()
    assert records[4].reasons is not None
    assert records[4].reasons.trust[0] < 0.1
    for number, record in enumerate(records, start=1):
        alone = 5 <= number < 8
        assert record.kept_model == alone == np.array_equal(models[number], models[number - 1])
        assert ("times as much as unknown ones" in (record.kept_reason or "")) == alone
        assert not alone or record.weight == [0.0]
    assert caplog.text.count("The model stays as it is: the round's clients are trusted") == 3
    assert records[-1].weight[5] < 0.01


def test_fednova_leaves_out_a_reply_without_steps(caplog: pytest.LogCaptureFixture) -> None:
    replies = [reply(1, steps=3.0), reply(2, steps=5.0), reply(3), reply(4, steps=0)]
    strategy = RuleStrategy(RULES["fednova"](), metric_names=MetricNames(effective_steps="steps"))
    given, metrics = aggregated(strategy, replies)
    reports = [ClientReport(1, moved(1), 11, 3.0), ClientReport(2, moved(2), 12, 5.0)]
    expected = RULES["fednova"]().aggregate({}, MODEL, reports)
    np.testing.assert_array_equal(tensors(given)["weight"], expected.state["weight"])
    assert metrics["fedcrf.excluded"] == [3, 4]
    assert "Node 3 is excluded: it gives no 'steps'" in caplog.text
    assert "steps" not in metrics


@pytest.mark.parametrize("name", ["fedavg", "fednova", "crf"])
def test_a_server_optimizer_goes_on_from_round_to_round(name: str) -> None:
    rule = Optimized(RULES[name](), Adam(0.5))
    strategy, state, memory = RuleStrategy(rule), dict(MODEL), {}
    for number in (1, 2, 3):
        ask(strategy, NODES, state, number)
        # Node 3 gives no steps, which FedNova needs behind an optimizer too.
        answers = [*replies_of(NODES), *([reply(3)] if name == "fednova" else [])]
        given, _ = strategy.aggregate_train(number, answers)
        reports = [ClientReport(n, moved(n), 10 + n, 2 + n % 3) for n in sorted(NODES)]
        result = rule.aggregate(memory, state, reports)
        state, memory = dict(result.state), result.memory
        for key, array in tensors(given).items():
            np.testing.assert_array_equal(array, state[key])


@dataclass(frozen=True)
class Asking(Rule):
    """FedAvg that keeps the evidence it is given."""

    seen: list[list[Mapping[str, float]]]
    wanted_evidence: frozenset[str] = frozenset({RESIDUAL_LOSS})

    def aggregate(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        self.seen.append([report.evidence for report in reports])
        return FedAvgRule().aggregate({}, global_state, reports)


def test_evidence_is_a_train_metric_of_any_name() -> None:
    seen: list[list[Mapping[str, float]]] = []
    given = {"residual-loss": 0.125}
    replies = [reply(1, mine=0.25, **given), reply(2, **given), reply(5, mine=[1.0])]
    aggregated(RuleStrategy(Asking(seen), metric_names=MetricNames(residual_loss="mine")), replies)
    aggregated(RuleStrategy(Optimized(Asking(seen), Adam())), replies)
    aggregated(RuleStrategy(FedAvgRule()), replies)
    # Of several names that count which most give, and no numbers of two names are compared.
    replies[2:] = [reply(node, residual_loss=0.5) for node in (5, 6, 7)]
    aggregated(RuleStrategy(Asking(seen)), replies)
    losses = [[each[RESIDUAL_LOSS] for each in of_round] for of_round in seen]
    nan = np.nan
    expected = [[0.25, nan, nan], [0.125, 0.125, nan], [nan, nan, 0.5, 0.5, 0.5]]
    for each, numbers in zip(losses, expected, strict=True):
        np.testing.assert_array_equal(each, numbers)


@pytest.mark.parametrize("given", [{}, {"residual-loss": np.nan}, {"residual-loss": [0.5]}])
def test_it_is_said_once_where_nobody_gives_the_evidence(
    given: Any, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = RuleStrategy(CRFEvidence())
    for number in (1, 2):
        ask(strategy, [1, 2], number=number)
        strategy.aggregate_train(number, [reply(node, **given) for node in (1, 2)])
    said = "no client gives a finite train metric 'residual-loss'"
    assert [said in each.getMessage() for each in caplog.records].count(True) == 1
    caplog.clear()
    aggregated(strategy, [reply(1, **{"residual-loss": 0.5}), reply(2)])
    aggregated(RuleStrategy(FedAvgRule()), [reply(1), reply(2)])
    assert "no client gives" not in caplog.text


def test_evidence_that_no_metric_gives_is_named() -> None:
    with pytest.raises(FedcrfError, match="unknown evidence 'residual_los': did you mean"):
        RuleStrategy(Asking([], frozenset({"residual_los"})))


@pytest.mark.parametrize("rule", [FLTrust(), Optimized(FLTrust(50), Adam())])
def test_a_rule_that_needs_server_data_is_refused(rule: Rule) -> None:
    with pytest.raises(FedcrfError, match=r"^FLTrust\S* needs a model that the server trains on"):
        RuleStrategy(rule)


def test_other_metrics_are_averaged_as_the_rule_weighs() -> None:
    replies = [
        reply(1, num_examples=1, a=1.0, b=[1, 2], c=3, d=[1], e=2.0, f=np.nan),
        reply(2, num_examples=3, a=5.0, b=[5, 6], d=[1, 2], e=np.nan, f=np.inf),
    ]
    _, metrics = aggregated(RuleStrategy(FedAvgRule()), replies)
    assert metrics["a"] == 4.0
    assert metrics["b"] == pytest.approx([4.0, 5.0])
    assert metrics["e"] == 2.0
    for name in ("c", "d", "f", "num-examples"):
        assert name not in metrics
    _, metrics = aggregated(RuleStrategy(RULES["uniform"]()), replies)
    assert metrics["a"] == 3.0


@pytest.mark.parametrize(
    "odd", [{"x": 1.0}, {"loss": [0.5], "ranks": 7.0}, {"loss": 0.5, "ranks": [1, 2, 3]}]
)
def test_one_client_cannot_take_away_a_mean(odd: dict[str, Any]) -> None:
    honest = [reply(i, num_examples=1, loss=0.3, ranks=[1, 2]) for i in (1, 2, 3)]
    _, metrics = aggregated(RuleStrategy(FedAvgRule()), [*honest, reply(4, num_examples=1, **odd)])
    assert metrics["loss"] == pytest.approx(0.35 if odd.get("loss") == 0.5 else 0.3)
    assert metrics["ranks"] == pytest.approx([1.0, 2.0])
    assert "x" not in metrics


def test_the_users_own_averages_are_used() -> None:
    seen = []

    def average(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        seen.append((len(contents), weighted_by))
        return MetricRecord({"mine": 1})

    strategy = CRFAvg(train_metrics_aggr_fn=average, evaluate_metrics_aggr_fn=average)
    _, metrics = aggregated(strategy, [reply(1), reply(2), failure(3, "x")])
    evaluated = strategy.aggregate_evaluate(1, [reply(1)])
    assert metrics["mine"] == 1
    assert evaluated == {"mine": 1}
    assert seen == [(2, "num-examples"), (1, "num-examples")]


def test_own_averages_may_be_none() -> None:
    none: Any = lambda contents, weighted_by: None  # noqa: E731
    strategy = CRFAvg(train_metrics_aggr_fn=none, evaluate_metrics_aggr_fn=none)
    _, metrics = aggregated(strategy, [reply(1), reply(2)])
    assert metrics["fedcrf.num-usable"] == 2
    assert strategy.aggregate_evaluate(1, [reply(1)]) is None


def test_a_weight_need_not_be_whole() -> None:
    replies = [reply(1, quality=0.25), reply(2, quality=0.75)]
    _, metrics = aggregated(RuleStrategy(FedAvgRule(), weighted_by_key="quality"), replies)
    assert metrics["fedcrf.weight"] == [0.25, 0.75]


@dataclass(frozen=True)
class Counting(Rule):
    """FedAvg that counts the rounds it has decided."""

    remembers: ClassVar[bool] = True

    def aggregate(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        rounds = memory.get("rounds", np.zeros(1)) + 1
        state = {name: np.full_like(array, rounds[0]) for name, array in global_state.items()}
        result = FedAvgRule().aggregate({}, global_state, reports)
        return replace(result, state=state, memory={"rounds": rounds})


class Choosy(Counting):
    """The same, but it decides on no report alone."""

    def aggregate(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        if len(reports) < 2:
            raise FedcrfError("give two reports")
        return super().aggregate(memory, global_state, reports)


def test_a_rule_keeps_its_memory_through_rounds_without_a_usable_reply() -> None:
    strategy, seen = RuleStrategy(Counting()), []
    for number, replies in enumerate([[reply(1)], [failure(1, "x")], [reply(1)]], start=1):
        ask(strategy, [1, 2], number=number)
        given, _ = strategy.aggregate_train(number, replies)
        seen.append(tensors(given)["bias"].tolist())
    assert seen == [[1, 1], MODEL["bias"].tolist(), [2, 2]]


def latecomers() -> Nodes:
    """Nodes that pull the model to points of their own; number 3 has no data before its third."""
    asked: Counter[int] = Counter()

    def node(number: int) -> Callable[[Message], Message]:
        goal = {k: np.asarray(v, float) for k, v in moved(number).items()}

        def answer(message: Message) -> Message:
            asked[number] += 1
            if number == 3 and asked[number] < 3:
                return failure(number, "no data")
            state = tensors(message.content["arrays"])  # type: ignore[arg-type]
            for name in ("weight", "bias"):
                pulled = state[name] + 0.3 * (goal[name] - state[name])
                state[name] = pulled.astype(state[name].dtype)
            return reply(number, state, partition_id=0 if number == 8 else None)

        return answer

    return Nodes({number: node(number) for number in (8, 3, 5, 6)})


REMEMBERING: Mapping[str, Rule] = {
    "the rule": CRFRobust(sketch_size=64, sketch_seed=7),
    "the optimizer": Optimized(FedAvgRule(), Adam(0.5)),
    "both": Optimized(CRFRobust(sketch_size=64, sketch_seed=7), Momentum()),
}


def outcome(result: Result) -> tuple[Any, ...]:
    """The model and all metrics, to the bit."""
    model = {name: array.tobytes() for name, array in tensors(result.arrays).items()}
    return model, str(result.train_metrics_clientapp)


@pytest.mark.parametrize("rule", REMEMBERING.values(), ids=REMEMBERING)
def test_each_start_is_a_run_of_its_own(rule: Rule) -> None:
    strategy = RuleStrategy(rule, fraction_evaluate=0.0)
    first, second = (strategy.start(latecomers(), arrays(MODEL), num_rounds=4) for _ in range(2))
    assert outcome(first) == outcome(second)
    # A strategy around it, such as Flower's of differential privacy, asks it for round 1 alone.
    ask(strategy, [3, 5])
    kept = strategy.memory
    assert kept["nodes"].tolist() == kept["clients"].tolist() == []
    assert not any(name.startswith("rule.") for name in kept)


@pytest.mark.parametrize("rule", REMEMBERING.values(), ids=REMEMBERING)
def test_a_run_goes_on_from_another_where_it_is_told_to(rule: Rule, tmp_path: Path) -> None:
    whole = RuleStrategy(rule, fraction_evaluate=0.0)
    expected = whole.start(latecomers(), arrays(MODEL), num_rounds=4)
    grid, first = latecomers(), RuleStrategy(rule, fraction_evaluate=0.0)
    half = first.start(grid, arrays(MODEL), num_rounds=2)
    np.savez(tmp_path / "memory.npz", **first.memory)  # type: ignore[arg-type]
    with np.load(tmp_path / "memory.npz") as memory:
        rest = RuleStrategy(rule, memory=memory, fraction_evaluate=0.0)
    result = rest.start(grid, half.arrays, num_rounds=2)
    assert outcome(result)[0] == outcome(expected)[0]
    for name in ("nodes", "clients"):
        assert rest.memory[name].tolist() == whole.memory[name].tolist()


@pytest.mark.parametrize("optimized", [False, True])
def test_a_strategy_s_signs_are_its_own_and_told_to_nobody(
    optimized: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def strategy(**chosen: Any) -> RuleStrategy:
        rule = CRFRobust(sketch_size=64, **chosen.pop("rule", {}))
        given = Optimized(rule, Momentum()) if optimized else rule
        return RuleStrategy(given, fraction_evaluate=0.0, **chosen)

    def seed(after: RuleStrategy) -> int:
        return int(after.memory["rule.rule.layout" if optimized else "rule.layout"][2])

    first, other = strategy(record_to=tmp_path), strategy()
    grid = latecomers()
    with caplog.at_level(logging.INFO, logger="flwr"):
        half = first.start(grid, arrays(MODEL), num_rounds=2)
    other.start(latecomers(), arrays(MODEL), num_rounds=2)
    assert seed(first) != seed(other)
    rest = strategy(memory=first.memory)
    rest.start(grid, half.arrays, num_rounds=1)
    assert seed(rest) == seed(first)
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 1
    for text in (*written, caplog.text, str(half.train_metrics_clientapp), str(first.rule)):
        assert str(seed(first)) not in text
    for said in (5, 0):
        told = strategy(rule={"sketch_seed": said})
        told.start(latecomers(), arrays(MODEL), num_rounds=1)
        assert seed(told) == said


class KilledError(Exception):
    """Stands for the end of a server's process."""


def killed_in(number: int) -> Callable[[int, ArrayRecord], None]:
    def evaluate(done: int, _: ArrayRecord) -> None:
        if done == number:
            raise KilledError

    return evaluate


def trained_by_round() -> Nodes:
    """Nodes whose training depends on what they are sent alone, the round's number with it."""

    def answer(asked: Message) -> Message:
        node, config = asked.metadata.dst_node_id, asked.content["config"]
        state = tensors(asked.content["arrays"])  # type: ignore[arg-type]
        rng = np.random.default_rng([node, config["server-round"]])
        for name in ("weight", "bias"):
            step = 1 + rng.normal(0, 0.3, state[name].shape)
            state[name] = (state[name] + step).astype(state[name].dtype)
        return reply(node, state, eval_acc=0.5, partition_id=node - 10)

    return Nodes(dict.fromkeys((12, 10, 13, 11), answer))


RESUMED: Mapping[str, Callable[..., RuleStrategy]] = {
    "CRFAvg": CRFAvg,
    "secret signs": partial(CRFAvg, neighbours=2, sketch_size=32),
    **{name: partial(RuleStrategy, rule) for name, rule in REMEMBERING.items()},
}


@pytest.mark.parametrize(
    ("rule", "partitions", "nodes", "said"),
    [
        (CRFRobust(sketch_size=64), False, 100, 1),
        (CRFRobust(sketch_size=64), True, 100, 0),
        (CRFRobust(sketch_size=64), False, 0, 0),
        (Optimized(FedAvgRule(), Momentum()), False, 100, 0),
    ],
    ids=["new nodes", "new nodes with partitions", "the same nodes", "nothing is remembered"],
)
def test_it_is_said_where_no_client_is_known_again(
    rule: Rule,
    partitions: bool,
    nodes: int,
    said: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def grid(first: int) -> Nodes:
        def answer(asked: Message) -> Message:
            node = asked.metadata.dst_node_id
            return reply(node, moved(node), partition_id=node - first if partitions else None)

        return Nodes(dict.fromkeys(range(first, first + 3), answer))

    for first, rounds in ((5, 2), (5 + nodes, 5)):
        strategy = RuleStrategy(rule, checkpoint_to=tmp_path / "run.npz")
        strategy.resume(grid(first), arrays(MODEL), rounds)
    lines = [line for line in caplog.messages if "no client of the run before took part" in line]
    assert len(lines) == said
    assert not said or "send 'partition-id', or authenticate the nodes" in lines[0]


@pytest.mark.parametrize("make", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("killed", [1, 3])
def test_a_killed_run_goes_on_to_the_same_bits(
    make: Callable[..., RuleStrategy], killed: int, tmp_path: Path
) -> None:
    places = {"record_to": tmp_path / "runs", "checkpoint_to": tmp_path / "deep" / "run.npz"}
    strategy, start = make(**places), arrays(MODEL)
    signs = int(strategy.memory["signs"][0])
    with pytest.raises(KilledError):
        strategy.resume(trained_by_round(), start, 5, evaluate_fn=killed_in(killed))
    # Another process goes on; what was written last may be half there.
    (run,) = recorded_runs(tmp_path / "runs").values()
    with (run.path / "rounds.jsonl").open("a") as records:
        records.write('{"round":')
    seen: list[int] = []
    result = make(**places).resume(
        trained_by_round(), start, 5, evaluate_fn=lambda number, _: seen.append(number)
    )
    whole = make()
    whole._server.secret_seed = signs  # the one draw that is not repeated
    expected = whole.start(trained_by_round(), start, 5)
    assert outcome(result)[0] == outcome(expected)[0]
    rest = range(killed + 1, 6)
    assert seen == [killed, *rest]
    for number in rest:
        assert result.train_metrics_clientapp[number] == expected.train_metrics_clientapp[number]
    assert list(result.evaluate_metrics_clientapp) == list(rest)
    assert [record.round for record in run.records()] == [1, 2, 3, 4, 5]
    assert np.isfinite([record.validation.accuracy for record in run.records()[1:]]).all()
    # All is done: nothing is left to do, and a start begins anew.
    again = make(**places)
    assert outcome(again.resume(trained_by_round(), start, 5))[0] == outcome(result)[0]
    again.start(trained_by_round(), start, 1)
    assert len(recorded_runs(tmp_path / "runs")) == 2


@pytest.mark.parametrize("begin", ["start", "resume"])
def test_a_second_server_is_refused_until_the_first_has_ended(begin: str, tmp_path: Path) -> None:
    path, asked = tmp_path / "run.npz", []
    refused = f"^checkpoint {path} is being written by another server: wait for its run's end"
    other = Nodes(dict.fromkeys((1, 2), asked.append))

    def evaluate(number: int, _: ArrayRecord) -> None:
        if number:
            with pytest.raises(FedcrfError, match=refused):
                getattr(CRFAvg(checkpoint_to=path), begin)(other, arrays(MODEL), 5)
        if number == 2:
            raise KilledError

    strategy = CRFAvg(checkpoint_to=path)
    for _ in range(2):
        with pytest.raises(KilledError):
            strategy.start(trained_by_round(), arrays(MODEL), 2, evaluate_fn=evaluate)
        assert [*tmp_path.iterdir()] == [path]
    assert not asked
    whole = strategy.resume(trained_by_round(), arrays(MODEL), 3)
    assert list(whole.train_metrics_clientapp) == [3]
    assert [*tmp_path.iterdir()] == [path]


def test_a_round_that_was_recorded_and_not_saved_is_done_and_recorded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"record_to": tmp_path / "runs", "checkpoint_to": tmp_path / "run.npz"}

    def save(self: Checkpoint, path: Path) -> None:
        if self.round == 2:
            raise KilledError
        really(self, path)

    really = Checkpoint.save
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "save", save)
        with pytest.raises(KilledError):
            CRFAvg(**places).resume(trained_by_round(), arrays(MODEL), 3)
    (run,) = recorded_runs(tmp_path / "runs").values()
    assert [record.round for record in run.records()] == [1, 2]
    CRFAvg(**places).resume(trained_by_round(), arrays(MODEL), 3)
    assert [record.round for record in run.records()] == [1, 2, 3]


def test_what_cannot_be_resumed_is_named(tmp_path: Path) -> None:
    path, grid = tmp_path / "run.npz", trained_by_round()
    with pytest.raises(FedcrfError, match="make the strategy with a checkpoint_to"):
        CRFAvg().resume(grid, arrays(MODEL), 3)
    CRFAvg(checkpoint_to=path).start(grid, arrays(MODEL), 1)
    for strategy, model, said in [
        (CRFAvg(checkpoint_to=path), {"other": np.ones(2)}, f"checkpoint {path} holds other"),
        (
            RuleStrategy(CRFRobust(), checkpoint_to=path),
            MODEL,
            f"of another rule, CRF, not of CRFRobust: "
            f"give that rule, or take the checkpoint {path} away",
        ),
    ]:
        with pytest.raises(FedcrfError, match=said):
            strategy.resume(grid, arrays(model), 3)
    whole = path.read_bytes()
    for damaged in (whole[:-9], b"", b"junk", whole.replace(b"round.npy", b"rouns.npy")):
        path.write_bytes(damaged)
        with pytest.raises(FedcrfError, match=f"checkpoint {path} cannot be read: it is damaged"):
            CRFAvg(checkpoint_to=path).resume(grid, arrays(MODEL), 3)
    path.unlink()
    path.mkdir()
    with pytest.raises(FedcrfError, match=f"checkpoint {path}: "):
        CRFAvg(checkpoint_to=path).start(grid, arrays(MODEL), 1)
    with pytest.raises(FedcrfError, match=r"^checkpoint .*xxx: File name too long$"):
        CRFAvg(checkpoint_to=tmp_path / ("x" * 300)).resume(grid, arrays(MODEL), 3)


@pytest.mark.parametrize(
    ("made_by", "given_to"),
    [
        (CRFRobust(), FedAvgRule()),
        (FedAvgRule(), CRFRobust()),
        (CRFRobust(), Optimized(CRFRobust(), Momentum())),
        (Optimized(FedAvgRule(), Adam()), Optimized(FedAvgRule(), Yogi())),
    ],
    ids=str,
)
def test_memory_of_another_rule_is_refused_before_anything_runs(
    made_by: Rule, given_to: Rule
) -> None:
    first = RuleStrategy(made_by, fraction_evaluate=0.0)
    first.start(trained_by_round(), arrays(MODEL), 1)
    with pytest.raises(FedcrfError, match="the memory is of another rule"):
        RuleStrategy(given_to, memory=first.memory)
    # Of one that does not say who made it, as earlier versions had it, the rule itself knows.
    unsigned = {name: array for name, array in first.memory.items() if name != "made_by"}
    if any(name.startswith("rule.") for name in unsigned) and isinstance(given_to, FedAvgRule):
        with pytest.raises(FedcrfError, match="FedAvg remembers nothing"):
            RuleStrategy(given_to, memory=unsigned)
    assert RuleStrategy(made_by, memory=unsigned).memory.keys() == first.memory.keys()


@pytest.mark.parametrize(
    ("made_by", "given_to", "model", "said"),
    [
        (CRFRobust(sketch_size=64), CRFRobust(sketch_size=32), MODEL, "sketch size 64, here 32"),
        (CRFRobust(sketch_seed=3), CRFRobust(sketch_seed=4), MODEL, "another sketch seed"),
        (CRFRobust(), CRFRobust(), {"bias": np.ones(5)}, "model size 8, here 5"),
        (
            Choosy(),
            Choosy(),
            {"bias": np.ones(5)},
            None,
        ),
        (
            Optimized(FedAvgRule(), Adam()),
            Optimized(FedAvgRule(), Adam()),
            {"bias": np.ones(5)},
            "the memory holds no 'first_moment' of this model's tensors",
        ),
    ],
    ids=["sketches", "signs", "model", "alone", "moments"],
)
def test_memory_that_the_rule_does_not_go_on_from_is_refused_before_nodes_train(
    made_by: Rule, given_to: Rule, model: Any, said: str | None, tmp_path: Path
) -> None:
    first = RuleStrategy(made_by, fraction_evaluate=0.0)
    first.start(trained_by_round(), arrays(MODEL), 1)
    second = RuleStrategy(given_to, memory=first.memory, record_to=tmp_path / "runs")
    if said is None:
        ask(second, [1, 2], model)
        return
    with pytest.raises(FedcrfError, match=said):
        ask(second, [1, 2], model)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("made_by", "goes_on", "said"),
    [
        (CRFRobust(sketch_size=64), CRFRobust(sketch_size=32), r"sketch size 64, here 32\)"),
        (CRFRobust(sketch_seed=3), CRFRobust(sketch_seed=4), r"another sketch seed\)"),
    ],
    ids=["sketches", "signs"],
)
def test_a_checkpoint_of_other_settings_is_named_with_a_mend(
    made_by: Rule, goes_on: Rule, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    RuleStrategy(made_by, checkpoint_to=path).start(trained_by_round(), arrays(MODEL), 1)
    mend = "; give the rule the settings that it had, or take the checkpoint away to begin anew"
    with pytest.raises(FedcrfError, match=f"^checkpoint {path}: the memory is of .*{said}{mend}$"):
        RuleStrategy(goes_on, checkpoint_to=path).resume(trained_by_round(), arrays(MODEL), 2)


def test_what_is_no_array_is_named_with_or_without_a_checkpoint(tmp_path: Path) -> None:
    path, text = tmp_path / "run.npz", arrays({"weight": np.array(["a text"])})
    for _ in range(2):
        with pytest.raises(FedcrfError, match=r"^the global model holds <U6 as 'weight': give"):
            CRFAvg(checkpoint_to=path).resume(trained_by_round(), text, 2)
        CRFAvg(checkpoint_to=path).start(trained_by_round(), arrays(MODEL), 1)


def test_crfavg_goes_on_with_who_its_clients_are() -> None:
    first = CRFAvg(fraction_evaluate=0.0)
    first.start(trained_by_round(), arrays(MODEL), 1)
    second = CRFAvg(memory=first.memory)
    assert sorted(second.memory["clients"].tolist()) == [0, 1, 2, 3]


def test_a_memory_that_is_no_strategys_is_refused() -> None:
    rule = CRFRobust(sketch_size=64)
    reports = [ClientReport(node, moved(node), 10.0) for node in (1, 2, 3)]
    for memory in (rule.aggregate({}, MODEL, reports).memory, {}, [1, 2], {"nodes": [1]}):
        with pytest.raises(FedcrfError, match="the memory is not of a strategy: give"):
            RuleStrategy(rule, memory=memory)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"nodes": [1]},
        {"nodes": None},
        {"nodes": [[1, 2], [3, 4]]},
        {"nodes": [1, [2]]},
        {"nodes": np.array(3)},
        {"nodes": [1.5, 2.5]},
        {"nodes": ["1", "2"]},
        {"nodes": [1, 1]},
        {"clients": [7, 7]},
        {"clients": [-1, 7]},
        {3: [1]},
    ],
    ids=str,
)
def test_a_memory_whose_nodes_are_damaged_is_refused(changed: dict[Any, Any]) -> None:
    memory = {"nodes": [1, 2], "clients": [0, 1]}
    assert RuleStrategy(FedAvgRule(), memory=memory).memory["nodes"].tolist() == [1, 2]
    with pytest.raises(FedcrfError, match="the memory is damaged: its nodes and clients"):
        RuleStrategy(FedAvgRule(), memory=memory | changed)


def test_what_is_no_rule_or_no_names_is_refused() -> None:
    duck = SimpleNamespace(aggregate=lambda *_: None)  # it has to derive from Rule
    for rule in (CRFRobust, "crf-robust", None, duck):
        with pytest.raises(FedcrfError, match=r"give a server rule, such as CRFRobust\(\)$"):
            RuleStrategy(rule)  # type: ignore[arg-type]
    for odd in ({"residual_loss": 3}, {"evaluation_loss": ()}, {"partition_id": ("a", "b")}):
        (name,) = odd
        with pytest.raises(FedcrfError, match=f"^{name} is .*: give the name of a metric$"):
            MetricNames(**odd)  # type: ignore[arg-type]
    assert MetricNames(partition_id=None).partition_id is None
    with pytest.raises(FedcrfError, match=r"give MetricNames\(\.\.\.\)$"):
        CRFAvg(metric_names={"training_loss": "loss"})  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [CRFAvg, partial(RuleStrategy, FedAvgRule())])
@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ({"fraction_evaluate": 2.0}, "fraction_evaluate 2.0: give a number from 0 to 1"),
        ({"fraction_train": -0.1}, "fraction_train -0.1: give a number from 0 to 1"),
        ({"fraction_train": np.nan}, "fraction_train nan: give a number from 0 to 1"),
        ({"fraction_train": "0.5"}, "fraction_train '0.5': give a number from 0 to 1"),
        ({"min_train_nodes": -1}, "min_train_nodes -1: give a whole number, 0 or more"),
        ({"min_evaluate_nodes": 1.5}, "min_evaluate_nodes 1.5: give a whole number, 0 or more"),
        ({"min_available_nodes": None}, "min_available_nodes None: give a whole number, 0 or more"),
        ({"weighted_by_key": None}, "weighted_by_key is None: give a text"),
        ({"arrayrecord_key": ""}, "arrayrecord_key is '': give a text"),
        ({"configrecord_key": 3}, "configrecord_key is 3: give a text"),
        ({"train_metrics_aggr_fn": "mean"}, "train_metrics_aggr_fn is 'mean': give a function"),
        ({"evaluate_metrics_aggr_fn": 3}, "evaluate_metrics_aggr_fn is 3: give a function"),
        ({"record_to": 3}, "record_to is 3: give a path"),
        ({"checkpoint_to": ""}, "checkpoint_to is '': give a path"),
        ({"evaluate_fn": print}, "evaluate_fn is no setting any more: give it to start()"),
        (
            {"initial_parameters": 1},
            "is no setting any more: give the model to start(), as initial_arrays",
        ),
        ({"fraction_fit": 0.5}, "did you mean 'fraction_train'?"),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_it(
    make: Callable[..., RuleStrategy], argument: dict[str, Any], line: str
) -> None:
    with pytest.raises(FedcrfError, match=f"{re.escape(line)}$") as caught:
        make(**argument)
    assert "\n" not in str(caught.value)


def test_arguments_at_their_bounds_are_taken(tmp_path: Path) -> None:
    none = CRFAvg(0.0, 0, np.int64(0), 0, 0, train_metrics_aggr_fn=None, record_to=None)
    assert (none.fraction_train, none.min_available_nodes) == (0.0, 0)
    all_of_them = RuleStrategy(FedAvgRule(), fraction_train=1, record_to=str(tmp_path / "runs"))
    assert all_of_them.fraction_train == 1


def test_evaluations_that_cannot_be_used_are_excluded(caplog: pytest.LogCaptureFixture) -> None:
    strategy = CRFAvg()
    good = [reply(node, num_examples=node, eval_acc=node / 10) for node in (1, 3)]
    bad = [failure(2, "x"), reply(4, num_examples=0, eval_acc=9.0), message(5, RecordDict())]
    bad += [reply(6, num_examples=6, eval_acc=1.0)] * 2
    with caplog.at_level(logging.INFO, logger="flwr"):
        metrics = strategy.aggregate_evaluate(1, [*bad, *good])
    assert metrics is not None
    assert metrics["eval_acc"] == pytest.approx(0.25)
    assert "aggregate_evaluate: 2 usable, 4 excluded" in caplog.text
    assert "Node 6 is excluded: it replied 2 times" in caplog.text
    assert strategy.aggregate_evaluate(1, bad) is None


def test_no_copy_of_all_updates_is_made() -> None:
    size, clients = 1_200_000, 6
    model = {f"layer{k}": np.zeros(size // 4, dtype=np.float32) for k in range(4)}
    rng = np.random.default_rng(0)
    replies = [
        reply(node, {k: rng.standard_normal(v.size, dtype=np.float32) for k, v in model.items()})
        for node in range(clients)
    ]
    for name in USABLE:
        if name in ("fednova", "foolsgold"):  # the latter remembers all updates, as of its paper
            continue
        strategy = strategy_of(name)
        ask(strategy, range(clients), model)
        strategy.aggregate_train(1, replies)  # what is compiled or loaded once is no part of it
        ask(strategy, range(clients), model)
        tracemalloc.start()
        strategy.aggregate_train(1, replies)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        own = name == "centered-clipping"  # which keeps an update's numbers from round to round
        assert peak <= (2 + own) * 4 * size, name


@pytest.mark.parametrize("make", [CRFAvg, partial(RuleStrategy, FedAvgRule())])
def test_beyond_200_replies_a_round_holds_little_more_than_the_next_model(
    make: Callable[..., RuleStrategy],
) -> None:
    model = {f"layer{k}": np.zeros(100_000, dtype=np.float32) for k in range(10)}
    size, rng, nodes = 4 * 1_000_000, np.random.default_rng(0), range(200)
    sent = [
        reply(0, {k: rng.standard_normal(v.size, dtype=np.float32) for k, v in model.items()})
        for _ in range(3)
    ]
    replies: list[Any] = [  # mocks would remember their calls
        SimpleNamespace(
            metadata=SimpleNamespace(src_node_id=node),
            content=sent[node % 3].content,
            has_error=lambda: False,
        )
        for node in nodes
    ]
    strategy = make()
    ask(strategy, nodes, model)
    strategy.aggregate_train(1, replies)  # what is compiled or loaded once is no part of it
    ask(strategy, nodes, model)
    tracemalloc.start()
    record, metrics = strategy.aggregate_train(1, replies)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert metrics is not None
    assert (len(tensors(record)), metrics["fedcrf.kept-model"]) == (10, 0)
    assert peak <= 1.2 * size, peak / size


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        ("x", "the global model holds <U1 as 'mask': give real numbers"),
        (
            [0, -np.inf],
            "the global model is not finite in 'mask': mend that tensor, or do not send",
        ),
        (np.nan, "the global model is not finite in 'mask'"),
    ],
)
def test_a_model_that_no_rule_can_move_is_refused(tensor: Any, said: str) -> None:
    with pytest.raises(FedcrfError, match=said):
        ask(CRFAvg(), [1, 2], {"weight": np.ones(2), "mask": np.array(tensor)})


class OnlyEven(CRFAvg):
    """Asks the nodes of even number, in its own way."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        content = RecordDict({"arrays": arrays, "config": config})
        messages = (
            Message(content, dst_node_id=node, message_type="train")
            for node in grid.get_node_ids()
            if node % 2 == 0
        )
        return self.begin_round(server_round, arrays, messages)


class EvenOfAll(CRFAvg):
    """Begins a round with all nodes, and anew with those of even number."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        even = [each for each in messages if each.metadata.dst_node_id % 2 == 0]
        return self.begin_round(server_round, arrays, even)


@pytest.mark.parametrize("make", [OnlyEven, EvenOfAll])
def test_a_configuration_of_ones_own_begins_the_round(make: type[CRFAvg], tmp_path: Path) -> None:
    grid = Nodes({k: lambda asked: reply(asked.metadata.dst_node_id) for k in range(1, 6)})
    strategy = make(record_to=tmp_path, fraction_evaluate=0.0)
    result = strategy.start(grid, arrays(MODEL), num_rounds=2)
    assert result.train_metrics_clientapp[2]["fedcrf.node-id"] == [2, 4]
    (run,) = recorded_runs(tmp_path).values()
    assert [each.nodes for each in run.records()] == [[2, 4]] * 2


def test_aggregation_needs_the_model_of_its_round() -> None:
    strategy = CRFAvg()
    with pytest.raises(
        FedcrfError,
        match=r"aggregate_train of round 1: call configure_train.*self\.begin_round\(server_round",
    ):
        strategy.aggregate_train(1, [])
    ask(strategy, [1, 2])
    with pytest.raises(FedcrfError, match="aggregate_train of round 2"):
        strategy.aggregate_train(2, [])


def test_a_whole_run_with_every_kind_of_fault_ends_with_a_model() -> None:
    """One node raises, one returns NaN, one a wrong shape, one never answers, one dies."""

    def node(number: int) -> Callable[[Message], Message | None]:
        def answer(asked: Message) -> Message | None:
            state = tensors(asked.content["arrays"])  # type: ignore[arg-type]
            state["bias"] = state["bias"] + number
            if number == 1:
                return failure(number, "ValueError: no data")
            if number == 2:
                state["bias"] = state["bias"] * np.nan
            if number == 3:
                state["bias"] = state["bias"][:1]
            if number == 4:
                return None
            config = asked.content["config"]
            if number == 5 and config["server-round"] == 2:
                return None
            return reply(number, state)

        return answer

    grid = Nodes({number: node(number) for number in range(1, 9)})
    result = CRFAvg(fraction_evaluate=0.0).start(grid, arrays(MODEL), num_rounds=3)
    assert np.isfinite(tensors(result.arrays)["bias"]).all()
    assert (tensors(result.arrays)["bias"] > MODEL["bias"] + 15).all()
    excluded = [result.train_metrics_clientapp[k]["fedcrf.excluded"] for k in (1, 2, 3)]
    assert excluded == [[1, 3, 4], [1, 3, 4, 5], [1, 3, 4]]
    assert result.train_metrics_clientapp[1]["fedcrf.not-finite"] == [2]


@pytest.mark.parametrize("place", ["folder", "file/run.npz", "x" * 300])
def test_a_checkpoint_that_cannot_be_written_is_named_before_anyone_trains(
    place: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    places = {"record_to": tmp_path / "runs", "checkpoint_to": tmp_path / place}
    asked: list[Message] = []
    grid = Nodes(dict.fromkeys((1, 2), asked.append))
    with pytest.raises(FedcrfError, match=f"^checkpoint {tmp_path / place}: "):
        CRFAvg(**places).start(grid, arrays(MODEL), 1)
    assert not asked
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_looking_whether_a_checkpoint_can_be_written_leaves_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    path.write_bytes(b"an earlier one")
    ask(CRFAvg(checkpoint_to=path), [1, 2])
    assert path.read_bytes() == b"an earlier one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_run_says_that_it_replaces_a_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.npz"
    said = f"the new run replaces what {path} holds; 'resume' goes on"
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for _ in range(2):
            assert said not in caplog.text
            CRFAvg(checkpoint_to=path).start(trained_by_round(), arrays(MODEL), 1)
    assert caplog.text.count(said) == 1


WITHOUT_FLOATS: Mapping[str, dict[str, Any]] = {
    "integers": {"votes": np.zeros(3, dtype=np.int64)},
    "no tensor": {},
    "no number": {"weight": np.zeros((0, 3))},
}


@pytest.mark.parametrize("model", WITHOUT_FLOATS.values(), ids=WITHOUT_FLOATS)
@pytest.mark.parametrize(
    ("rule", "refuses"),
    [(CRFRobust(), True), (CRFAvg().rule, True), (RULES["krum"](), True), (FedAvgRule(), False)],
    ids=lambda each: getattr(each, "name", ""),
)
def test_a_model_without_the_numbers_that_a_rule_needs_is_named_before_anyone_trains(
    rule: Rule, refuses: bool, model: dict[str, Any]
) -> None:
    if refuses:
        said = f"holds no floating-point number, and {rule.name} needs some: send its numbers as"
        with pytest.raises(FedcrfError, match=said):
            ask(RuleStrategy(rule), [1, 2], model)
        return
    grid = Nodes({
        number: lambda asked: reply(
            asked.metadata.dst_node_id, {name: each + 2 for name, each in model.items()}
        )
        for number in (1, 2)
    })  # fmt: skip
    result = RuleStrategy(rule, fraction_evaluate=0.0).start(grid, arrays(model), 1)
    for name, each in model.items():
        assert np.array_equal(tensors(result.arrays)[name], each + 2)


def test_resume_has_the_arguments_of_start_by_place_too(tmp_path: Path) -> None:
    kept = {"configs": 0}

    def answer(asked: Message) -> Message:
        kept["configs"] += "mine" in asked.content["config"]
        return reply(asked.metadata.dst_node_id)

    seen: list[int] = []
    for rounds in (1, 2):
        CRFAvg(checkpoint_to=tmp_path / "run.npz").resume(
            Nodes(dict.fromkeys((1, 2), answer)), arrays(MODEL), rounds, 60.0,
            ConfigRecord({"mine": 1}), ConfigRecord({"mine": 2}),
            lambda number, _: seen.append(number),
        )  # fmt: skip
    assert kept["configs"] == 8
    assert seen == [0, 1, 1, 2]
    theirs, ours = (inspect.signature(each).parameters for each in (CRFAvg.start, CRFAvg.resume))
    assert list(ours.values()) == list(theirs.values())


def test_the_paper_s_rule_too_is_given_secret_signs() -> None:
    strategy = CRFAvg(neighbours=2, sketch_size=32)
    secret = strategy._server._secret_rule
    assert isinstance(secret, CRF)
    assert secret.sketch_seed == int(strategy.memory["signs"][0]) > 0


def test_after_a_resume_rounds_keep_their_numbers(tmp_path: Path) -> None:
    asked = set()

    def noting(answer: Callable[[Message], Message]) -> Callable[[Message], Message]:
        def node(message: Message) -> Message:
            config = message.content["config"]
            asked.add((message.metadata.message_type, config["server-round"]))
            return answer(message)

        return node

    grid = Nodes({number: noting(node) for number, node in trained_by_round().nodes.items()})
    path = tmp_path / "run.npz"
    with pytest.raises(KilledError):
        CRFAvg(checkpoint_to=path).resume(grid, arrays(MODEL), 4, evaluate_fn=killed_in(2))
    asked.clear()
    CRFAvg(checkpoint_to=path).resume(grid, arrays(MODEL), 4)
    assert asked == {(kind, number) for kind in ("train", "evaluate") for number in (3, 4)}
