from __future__ import annotations

import importlib
import inspect
import itertools
import logging
import re
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result

from fedcrf import FedcrfError
from fedcrf.crf import ClientCRF
from fedcrf.integrations.flower import CRFAvg, MetricNames, RuleStrategy
from fedcrf.integrations.flower.replies import (
    MOST_PARTITIONS,
    Identities,
    client_reports,
    small_numbers,
    train_replies,
)
from fedcrf.rules import (
    RESIDUAL_LOSS,
    RULES,
    Adam,
    AggregationResult,
    ClientReport,
    CRFRobust,
    Memory,
    Momentum,
    Optimized,
    Rule,
    State,
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


@pytest.mark.parametrize("name", RULES)
def test_every_rule_gives_what_it_gives_without_flower(name: str) -> None:
    strategy = strategy_of(name)
    ask(strategy, NODES)
    replies = replies_of(NODES)
    given, metrics = strategy.aggregate_train(1, replies)
    reports = [ClientReport(node, moved(node), 10 + node, 2 + node % 3) for node in sorted(NODES)]
    expected = RULES[name]().aggregate(MODEL, reports)
    assert {k: v.tobytes() for k, v in tensors(given).items()} == {
        k: v.tobytes() for k, v in expected.state.items()
    }
    assert metrics is not None
    assert metrics["fedcrf.node-id"] == sorted(NODES)
    np.testing.assert_array_equal(metrics["fedcrf.weight"], expected.weights)


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_arrival_changes_no_bit(name: str) -> None:
    outcomes = set()
    for order in itertools.permutations(NODES[:4]):
        strategy = strategy_of(name)
        ask(strategy, NODES[:4])
        given, metrics = strategy.aggregate_train(1, iter(replies_of(list(order))))
        outcomes.add((str({k: v.tobytes() for k, v in tensors(given).items()}), str(metrics)))
    assert len(outcomes) == 1


@pytest.mark.parametrize("name", RULES)
def test_integers_and_booleans_keep_their_dtype(name: str) -> None:
    strategy = strategy_of(name)
    ask(strategy, NODES)
    given, _ = strategy.aggregate_train(1, replies_of(NODES))
    assert {k: (v.dtype, v.shape) for k, v in tensors(given).items()} == {
        k: (v.dtype, v.shape) for k, v in MODEL.items()
    }


@pytest.mark.parametrize("name", RULES)
def test_replies_are_left_as_they_are(name: str) -> None:
    strategy = strategy_of(name)
    ask(strategy, NODES)
    replies, untouched = replies_of(NODES), replies_of(NODES)
    strategy.aggregate_train(1, replies)
    assert [each.content for each in replies] == [each.content for each in untouched]


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in moved(3).items() if key != name}


BAD: Mapping[str, tuple[Callable[[], Message], str]] = {
    "raises": (lambda: failure(3, "Traceback\nValueError: x"), "failed, code 1: ValueError: x"),
    "fails in silence": (lambda: failure(3, None), "failed, code 1: unknown"),
    "one tensor less": (lambda: reply(3, without("bias")), "'bias' is in one of them only"),
    "one tensor more": (lambda: reply(3, moved(3, more=1.0)), "'more' is in one of them only"),
    "broadcastable shape": (
        lambda: reply(3, moved(3, weight=np.ones((1, 3), np.float32))),
        r"reports 'weight' as float32 \(1, 3\), the global model has float32 \(2, 3\)",
    ),
    "wider floats": (lambda: reply(3, moved(3, weight=np.ones((2, 3)))), "'weight' as float64"),
    "integers become floats": (lambda: reply(3, moved(3, count=7.0)), "'count' as float64"),
    "strings": (lambda: reply(3, moved(3, bias=np.array(["a", "b"]))), "holds <U1 as 'bias'"),
    "no count": (lambda: reply(3, num_examples=None), "gives no 'num-examples'"),
    "zero count": (lambda: reply(3, num_examples=0), "gives 0 as 'num-examples'"),
    "negative count": (lambda: reply(3, num_examples=-4), "gives -4 as 'num-examples'"),
    "count not a number": (lambda: reply(3, num_examples=np.nan), "gives nan as"),
    "endless count": (lambda: reply(3, num_examples=np.inf), "gives inf as"),
    "counts": (lambda: reply(3, num_examples=[3, 4]), r"gives \[3, 4\] as"),
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
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_left_out_and_named(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    make, said = BAD[kind]
    good = replies_of([1, 2, 5, 9])
    with caplog.at_level(logging.INFO, logger="flwr"):
        given, metrics = aggregated(CRFAvg(), [*good[:2], make(), *good[2:]])
    caught = [record.getMessage() for record in caplog.records if "Node 3" in record.getMessage()]
    assert len(caught) == 1
    assert re.search(f"Node 3 is left out: it .*{said}", caught[0])
    assert "aggregate_train: 4 usable, 1 left out" in caplog.text
    assert metrics["fedcrf.left-out"] == [3]
    alone, _ = aggregated(CRFAvg(), good)
    assert given == alone


def aggregated(
    strategy: RuleStrategy, replies: list[Message], asked: list[int] | None = None
) -> tuple[ArrayRecord, MetricRecord]:
    ask(strategy, asked or [each.metadata.src_node_id for each in replies])
    given, metrics = strategy.aggregate_train(1, replies)
    assert given is not None
    assert metrics is not None
    return given, metrics


@pytest.mark.parametrize("name", RULES)
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
        np.testing.assert_array_equal(tensor, other)
    weights = metrics["fedcrf.weight"]
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
    assert "No usable reply: the model stays as it is" in caplog.text


def test_a_node_that_does_not_answer_is_named(caplog: pytest.LogCaptureFixture) -> None:
    _, metrics = aggregated(CRFAvg(), replies_of([1, 2]), asked=[2, 7, 1])
    assert metrics["fedcrf.left-out"] == [7]
    assert "Node 7 is left out: it did not answer" in caplog.text


def test_the_reasons_are_in_the_metrics() -> None:
    replies = [reply(node, partition_id=9 - node) for node in (1, 2, 4)]
    _, metrics = aggregated(CRFAvg(), replies)
    reports = [ClientReport(9 - node, moved(node), 10 + node) for node in (4, 2, 1)]
    posterior = RULES["crf"]().aggregate(MODEL, reports).posterior
    assert posterior is not None
    assert metrics["fedcrf.partition-id"] == [5, 7, 8]
    assert metrics["fedcrf.node-id"] == [4, 2, 1]
    assert metrics["fedcrf.reliability"] == posterior.reliability.tolist()
    assert metrics["fedcrf.expected-label"] == posterior.expected_label.tolist()
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


def test_a_node_that_gives_no_partition_comes_after_those_that_do() -> None:
    partitions = {6: 2, 2: None, 3: -5, 4: 1 << 40, 5: 0}
    replies = [reply(node, partition_id=partition) for node, partition in partitions.items()]
    _, metrics = aggregated(CRFAvg(), replies)
    assert metrics["fedcrf.node-id"] == [5, 6, 2, 3, 4]
    assert metrics["fedcrf.partition-id"] == [0, 2, -1, -1, -1]


def clients_of(
    identities: Identities, partitions: Mapping[int, int | None]
) -> tuple[dict[int, int], dict[int, int]]:
    """By node its client, and the client's number in figures, after a round."""
    replies = [reply(node, partition_id=each) for node, each in partitions.items()]
    usable, _ = train_replies(replies, [], MODEL, "num-examples", MetricNames(), needs_steps=False)
    ordered, reports = client_reports(usable, identities)
    nodes, clients = [each.node for each in ordered], [report.client for report in reports]
    assert clients == sorted(clients)
    return (
        dict(zip(nodes, clients, strict=True)),
        dict(zip(nodes, small_numbers(reports), strict=True)),
    )


FIRST, SECOND, THIRD = MOST_PARTITIONS, MOST_PARTITIONS + 1, MOST_PARTITIONS + 2


def test_a_client_is_what_its_node_first_was_whatever_it_or_others_give() -> None:
    # Nodes that have no partition of their own are the same clients in every round, and no
    # partition's; only the numbers in figures are small and depend on who is there.
    identities = Identities({})
    clients, shown = clients_of(identities, {70: 1, 50: None, 60: 4})
    assert clients == {70: 1, 60: 4, 50: FIRST}
    assert shown == {70: 1, 60: 4, 50: 5}
    # What another has, what one gives only now, what two give, and what nobody gave before.
    clients, shown = clients_of(identities, {70: 8, 50: 9, 40: 4, 20: 2, 30: 2, 80: 3})
    assert clients == {70: 1, 80: 3, 50: FIRST, 20: SECOND, 30: THIRD, 40: THIRD + 1}
    assert shown == {70: 1, 80: 3, 50: 4, 20: 5, 30: 6, 40: 7}
    clients, shown = clients_of(identities, {50: None, 60: None, 90: 2})
    assert clients == {90: 2, 60: 4, 50: FIRST}


def test_a_node_of_an_earlier_run_keeps_its_partition_unless_it_is_not_heard_of() -> None:
    earlier = {70: 1, 60: 4, 50: FIRST}
    # All ids are new, as in a simulation; then one is not, and is there; then it comes too late.
    for partitions, expected in (
        ({71: 1, 61: 4, 51: None}, {71: 1, 61: 4, 51: SECOND}),
        ({70: 1, 71: 1, 61: 4}, {70: 1, 71: SECOND, 61: 4}),
        ({71: 1, 72: 1}, {71: SECOND, 72: THIRD}),
    ):
        assert clients_of(Identities(earlier), partitions)[0] == expected
    late = Identities(earlier)
    assert clients_of(late, {71: 1})[0] == {71: 1}
    assert clients_of(late, {70: 1, 71: 1, 50: 1})[0] == {71: 1, 50: FIRST, 70: SECOND}


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


def test_fednova_leaves_out_a_reply_without_steps(caplog: pytest.LogCaptureFixture) -> None:
    replies = [reply(1, steps=3.0), reply(2, steps=5.0), reply(3), reply(4, steps=0)]
    strategy = RuleStrategy(RULES["fednova"](), metric_names=MetricNames(effective_steps="steps"))
    given, metrics = aggregated(strategy, replies)
    reports = [ClientReport(1, moved(1), 11, 3.0), ClientReport(2, moved(2), 12, 5.0)]
    expected = RULES["fednova"]().aggregate(MODEL, reports)
    np.testing.assert_array_equal(tensors(given)["weight"], expected.state["weight"])
    assert metrics["fedcrf.left-out"] == [3, 4]
    assert "Node 3 is left out: it gives no 'steps'" in caplog.text
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
        result = rule.aggregate_after(memory, state, reports)
        state, memory = dict(result.state), result.memory
        for key, array in tensors(given).items():
            np.testing.assert_array_equal(array, state[key])


@dataclass(frozen=True)
class Asking:
    """FedAvg that keeps the evidence it is given."""

    seen: list[list[Mapping[str, float]]]
    wanted_evidence: frozenset[str] = frozenset({RESIDUAL_LOSS})

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        self.seen.append([report.evidence for report in reports])
        return FedAvgRule().aggregate(global_state, reports)


def test_evidence_is_a_train_metric_of_any_name() -> None:
    seen: list[list[Mapping[str, float]]] = []
    replies = [reply(1, mine=0.25), reply(2, train_loss=4.0), reply(5, mine=[1.0])]
    aggregated(RuleStrategy(Asking(seen), metric_names=MetricNames(residual_loss="mine")), replies)
    aggregated(RuleStrategy(Optimized(Asking(seen), Adam())), replies)
    aggregated(RuleStrategy(FedAvgRule()), replies)
    losses = [[each[RESIDUAL_LOSS] for each in of_round] for of_round in seen]
    np.testing.assert_array_equal(losses, [[0.25, np.nan, np.nan], [0.5, 4.0, 0.5]])


def test_evidence_that_no_metric_gives_is_named() -> None:
    with pytest.raises(FedcrfError, match="unknown evidence 'residual_los': did you mean"):
        RuleStrategy(Asking([], frozenset({"residual_los"})))


def test_other_metrics_are_averaged_by_examples() -> None:
    replies = [
        reply(1, num_examples=1, a=1.0, b=[1, 2], c=3, d=[1]),
        reply(2, num_examples=3, a=5.0, b=[5, 6], d=[1, 2]),
    ]
    _, metrics = aggregated(CRFAvg(), replies)
    assert metrics["a"] == 4.0
    assert metrics["b"] == pytest.approx([4.0, 5.0])
    assert "c" not in metrics
    assert "d" not in metrics
    assert "num-examples" not in metrics


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


def test_a_weight_need_not_be_whole() -> None:
    replies = [reply(1, quality=0.25), reply(2, quality=0.75)]
    _, metrics = aggregated(RuleStrategy(FedAvgRule(), weighted_by_key="quality"), replies)
    assert metrics["fedcrf.weight"] == [0.25, 0.75]


@dataclass(frozen=True)
class Counting:
    """FedAvg that counts the rounds it has decided."""

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        return self.aggregate_after({}, global_state, reports)

    def aggregate_after(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        rounds = memory.get("rounds", np.zeros(1)) + 1
        state = {name: np.full_like(array, rounds[0]) for name, array in global_state.items()}
        result = FedAvgRule().aggregate(global_state, reports)
        return replace(result, state=state, memory={"rounds": rounds})


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
    kept = {name: array.tolist() for name, array in strategy.memory.items()}
    assert kept == {"nodes": [], "clients": []}


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
    told = strategy(rule={"sketch_seed": 5})
    told.start(latecomers(), arrays(MODEL), num_rounds=1)
    assert seed(told) == 5


def test_a_memory_that_is_no_strategys_is_refused() -> None:
    rule = CRFRobust(sketch_size=64)
    reports = [ClientReport(node, moved(node), 10.0) for node in (1, 2, 3)]
    for memory in (rule.aggregate(MODEL, reports).memory, {}, [1, 2], {"nodes": [1]}):
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
    for rule in (CRFRobust, "crf-robust", None):
        with pytest.raises(FedcrfError, match=r"give a server rule, such as CRFRobust\(\)$"):
            RuleStrategy(rule)  # type: ignore[arg-type]
    with pytest.raises(FedcrfError, match=r"give MetricNames\(\.\.\.\)$"):
        CRFAvg(metric_names={"training_loss": "loss"})  # type: ignore[arg-type]


def test_evaluations_that_cannot_be_used_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    strategy = CRFAvg()
    good = [reply(node, num_examples=node, eval_acc=node / 10) for node in (1, 3)]
    bad = [failure(2, "x"), reply(4, num_examples=0, eval_acc=9.0), message(5, RecordDict())]
    with caplog.at_level(logging.INFO, logger="flwr"):
        metrics = strategy.aggregate_evaluate(1, [*bad, *good])
    assert metrics is not None
    assert metrics["eval_acc"] == pytest.approx(0.25)
    assert "aggregate_evaluate: 2 usable, 3 left out" in caplog.text
    assert strategy.aggregate_evaluate(1, bad) is None


def test_no_copy_of_all_updates_is_made() -> None:
    size, clients = 1_200_000, 10
    model = {f"layer{k}": np.zeros(size // 4, dtype=np.float32) for k in range(4)}
    rng = np.random.default_rng(0)
    replies = [
        reply(node, {k: rng.standard_normal(v.size, dtype=np.float32) for k, v in model.items()})
        for node in range(clients)
    ]
    for name in RULES:
        if name == "fednova":
            continue
        strategy = strategy_of(name)
        ask(strategy, range(clients), model)
        strategy.aggregate_train(1, replies)  # what is compiled or loaded once is no part of it
        ask(strategy, range(clients), model)
        tracemalloc.start()
        strategy.aggregate_train(1, replies)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= 2 * 4 * size, name


def test_a_model_that_is_not_made_of_numbers_is_refused() -> None:
    with pytest.raises(FedcrfError, match="the global model holds <U1 as 'name'"):
        ask(CRFAvg(), [1, 2], {"name": np.array("x")})


def test_aggregation_needs_the_model_of_its_round() -> None:
    strategy = CRFAvg()
    with pytest.raises(FedcrfError, match="aggregate_train of round 1: call configure_train"):
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
    left_out = [result.train_metrics_clientapp[k]["fedcrf.left-out"] for k in (1, 2, 3)]
    assert left_out == [[1, 3, 4], [1, 3, 4, 5], [1, 3, 4]]
    assert result.train_metrics_clientapp[1]["fedcrf.not-finite"] == [2]
