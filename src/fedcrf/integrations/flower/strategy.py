"""The one adapter from Flower's strategies to the server rules, and the CRF by its own name."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.integrations.flower.arrays import as_record, as_state
from fedcrf.integrations.flower.decision import Decision, TrainingRound
from fedcrf.integrations.flower.replies import (
    Identities,
    LeftOut,
    MetricNames,
    average_metrics,
    client_reports,
    evaluate_replies,
    train_replies,
)
from fedcrf.rules import (
    CRF,
    FedNova,
    Memory,
    Rule,
    aggregate_round,
    plain_rule,
    wanted_evidence,
    with_secret_signs,
)
from fedcrf.statistics import as_numpy
from fedcrf.statistics.inputs import NO_ARRAY

if TYPE_CHECKING:
    from fedcrf.integrations.flower.recording import Recorder

LOGGER = logging.getLogger("flwr")

NODES, CLIENTS = "nodes", "clients"
"""By these names a strategy's memory has the ids of its nodes, and which client each is."""

RULE = "rule."
"""Stands before the names of what the rule remembers."""

AverageMetrics = Callable[[list[RecordDict], str], MetricRecord]


class FedAvgArguments(TypedDict, total=False):
    """The arguments of Flower's ``FedAvg``, whose documentation and defaults they keep."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: AverageMetrics | None
    evaluate_metrics_aggr_fn: AverageMetrics | None


class RuleStrategy(FedAvg):
    """Flower's federated averaging with the aggregation of any server rule.

    Nodes are sampled, messages built and evaluations averaged as ``FedAvg`` does. A train reply
    that cannot be used (an error, other tensors than the global model's, a count that is not above
    0) is left out and named in the log; one that is not finite gets weight 0; a round without a
    usable reply keeps the model. Replies are read in one order whatever the order they arrive in,
    without copying them, and left as they are.

    Every round's train metrics hold, besides the clients' own averaged, lists over the usable
    nodes in one order: ``fedcrf.node-id``, ``fedcrf.partition-id`` (−1 where a node gives none),
    ``fedcrf.weight`` and ``fedcrf.base-weight`` (FedAvg's), and with the CRF
    ``fedcrf.reliability`` and ``fedcrf.expected-label``; further ``fedcrf.left-out`` and
    ``fedcrf.not-finite`` (node ids) and ``fedcrf.kept-model`` (0 or 1).

    A rule that remembers knows a client by its node, and from run to run by the partition that its
    node gives at first; see `Identities`.

    Round 1 begins a new run: each ``start`` finds the strategy as it was made, whatever ran before.
    A run goes on from that of another strategy, ``first``, where it is told to:
    ``RuleStrategy(rule, memory=first.memory).start(grid, result.arrays)``.

    A rule that compares clients by sketches, as ``CRFRobust()`` does, gets random signs of the
    strategy's own, which no client can know; they are in the memory, and in no log or record. Give
    a ``sketch_seed`` to repeat a run to the bit.

    Args:
        rule: The server rule, such as ``CRFRobust()``, or ``Optimized(CRF(), Adam())``.
        metric_names: How the clients call the metrics that the server looks at.
        record_to: An empty or new folder for the rounds' records, for ``fedcrf show``; of one run.
        memory: Of the strategy of the run that this one goes on from; begins anew where left out.
        **arguments: Those of Flower's ``FedAvg``.

    Raises:
        FedcrfError: The folder holds something already, the rule looks at evidence that no metric
            is named for, or the memory is no strategy's.
    """

    def __init__(
        self,
        rule: Rule,
        *,
        metric_names: MetricNames | None = None,
        record_to: str | Path | None = None,
        memory: Memory | None = None,
        **arguments: Unpack[FedAvgArguments],
    ) -> None:
        if isinstance(rule, type) or not callable(getattr(rule, "aggregate", None)):
            raise FedcrfError(f"the rule is {rule!r}: give a server rule, such as CRFRobust()")
        names = MetricNames() if metric_names is None else metric_names
        if not isinstance(names, MetricNames):
            raise FedcrfError(f"metric_names is {names!r}: give MetricNames(...)")
        super().__init__(**arguments)
        self.rule = rule  # as it is logged and recorded, without what clients must not know
        self.metric_names = names
        self.metric_names.check(wanted_evidence(rule))
        if arguments.get("train_metrics_aggr_fn") is None:
            self.train_metrics_aggr_fn = self._average_train_metrics
        if arguments.get("evaluate_metrics_aggr_fn") is None:
            self.evaluate_metrics_aggr_fn = average_metrics
        self._initial = _checked_memory(memory)
        self._begin()
        # The one draw that is not to be repeated: nobody else is to know it.
        self._secret_rule = with_secret_signs(rule, self._memory, 1 + secrets.randbits(62))
        self._round: TrainingRound | None = None
        self._recorder: Recorder | None = None
        if record_to is not None:
            from fedcrf.integrations.flower.recording import Recorder

            self._recorder = Recorder(Path(record_to), type(self).__name__, rule)

    @property
    def memory(self) -> Memory:
        """What the next round goes on from, as arrays by name that ``numpy.savez`` takes.

        ``nodes`` are the nodes' ids and ``clients`` by which number the rule, whose the rest is,
        knows each of them.
        """
        by_node = self._identities.by_node
        return {
            NODES: np.array([*by_node], dtype=np.uint64),
            CLIENTS: np.array([*by_node.values()], dtype=np.int64),
            **{f"{RULE}{name}": array for name, array in self._memory.items()},
        }

    def summary(self) -> None:
        """Log the rule with its settings, then what ``FedAvg`` logs."""
        LOGGER.info("\t├──> Rule: %s", self.rule)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of ``FedAvg``, and keep the model they carry for the aggregation.

        Raises:
            FedcrfError: The model holds something other than real numbers, or the records' folder
                the rounds of an earlier run.
        """
        if server_round == 1:  # and not in ``start``, which strategies that wrap this one replace
            self._begin()
            if self._recorder is not None:
                self._recorder.begin()
        messages = list(super().configure_train(server_round, arrays, config, grid))
        try:
            state = as_state(arrays)
        except FedcrfError as error:
            raise FedcrfError(f"the global model {error}") from None
        self._round = TrainingRound(
            number=server_round,
            arrays=arrays,
            state=state,
            asked=tuple(message.metadata.dst_node_id for message in messages),
            started=time.perf_counter(),
        )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the rule's next model, the present one where no reply is usable, and metrics.

        Raises:
            FedcrfError: `configure_train` was not called for this round.
        """
        current = self._round
        if current is None or current.number != server_round:
            raise FedcrfError(
                f"aggregate_train of round {server_round}: call configure_train of it first"
            )
        arrived = time.perf_counter()
        decision, state = self._decide(current, replies)
        _log_decision(decision)
        metrics = self._metrics(decision)
        arrays = current.arrays if decision.kept_model else as_record(state)
        if self._recorder is not None:
            self._recorder.trained(current, decision, arrived, time.perf_counter())
        return arrays, metrics

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the averaged metrics of the usable evaluations; None where there is none."""
        contents, left_out = evaluate_replies(replies, self.weighted_by_key)
        LOGGER.info("aggregate_evaluate: %d usable, %d left out", len(contents), len(left_out))
        _log_left_out(left_out)
        metrics = None
        if contents:
            metrics = self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)
        if self._recorder is not None:
            self._recorder.evaluated(metrics, self.metric_names, time.perf_counter())
        return metrics

    def _begin(self) -> None:
        """Know what was handed over of an earlier run, and nothing else."""
        nodes, clients = (self._initial[name].tolist() for name in (NODES, CLIENTS))
        self._identities = Identities(dict(zip(nodes, clients, strict=True)))
        self._memory: Memory = {
            name.removeprefix(RULE): array
            for name, array in self._initial.items()
            if name.startswith(RULE)
        }

    def _decide(
        self, current: TrainingRound, replies: Iterable[Message]
    ) -> tuple[Decision, dict[str, NDArray[Any]]]:
        """Return what became of the replies, and apart from it the next model."""
        usable, left_out = train_replies(
            replies,
            current.asked,
            current.state,
            self.weighted_by_key,
            self.metric_names,
            needs_steps=isinstance(plain_rule(self.rule), FedNova),
            evidence=wanted_evidence(self.rule),
        )
        ordered, reports = client_reports(usable, self._identities)
        if not reports:
            return Decision(ordered, reports, left_out, None), {}
        result = aggregate_round(self._secret_rule, self._memory, current.state, reports)
        self._memory = result.memory
        decision = Decision(ordered, reports, left_out, replace(result, state={}))
        return decision, dict(result.state)

    def _metrics(self, decision: Decision) -> MetricRecord:
        metrics = MetricRecord()
        finite = decision.finite
        if finite:
            contents = [reply.content for reply in finite]
            metrics.update(self.train_metrics_aggr_fn(contents, self.weighted_by_key))
        metrics.update(decision.reasons())
        return metrics

    def _average_train_metrics(self, contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        names = self.metric_names
        return average_metrics(
            contents, weighted_by, without=(names.partition_id, names.effective_steps)
        )


class CRFAvg(RuleStrategy):
    """Flower's federated averaging with CRF-refined weights, and the reason for each of them.

    A drop-in for Flower's ``FedAvg``: its arguments, in its order and with its defaults, then
    the CRF's, which `fedcrf.ClientCRF` explains, and those of `RuleStrategy` but ``memory``.
    """

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: AverageMetrics | None = None,
        evaluate_metrics_aggr_fn: AverageMetrics | None = None,
        *,
        labels: tuple[float, ...] = CRF.labels,
        pairwise_strength: float = CRF.pairwise_strength,
        bandwidth: float = CRF.bandwidth,
        iterations: int = CRF.iterations,
        reliability_gate: bool = CRF.reliability_gate,
        weight_by_examples: bool = CRF.weight_by_examples,
        neighbours: int | None = CRF.neighbours,
        sketch_size: int | None = CRF.sketch_size,
        sketch_seed: int = CRF.sketch_seed,
        metric_names: MetricNames | None = None,
        record_to: str | Path | None = None,
    ) -> None:
        super().__init__(
            CRF(
                labels=labels,
                pairwise_strength=pairwise_strength,
                bandwidth=bandwidth,
                iterations=iterations,
                reliability_gate=reliability_gate,
                weight_by_examples=weight_by_examples,
                neighbours=neighbours,
                sketch_size=sketch_size,
                sketch_seed=sketch_seed,
            ),
            metric_names=metric_names,
            record_to=record_to,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )


def _checked_memory(memory: Memory | None) -> Memory:
    """Return the memory that a strategy handed out; that of no rounds where there is none.

    Raises:
        FedcrfError: It is no strategy's.
    """
    if memory is None:
        return {NODES: np.zeros(0, dtype=np.uint64), CLIENTS: np.zeros(0, dtype=np.int64)}
    mend = "give the property memory of the one that ran before, or none to begin anew"
    if not isinstance(memory, Mapping) or not {NODES, CLIENTS} <= {*memory}:
        raise FedcrfError(f"the memory is not of a strategy: {mend}")
    damaged = FedcrfError(
        f"the memory is damaged: its nodes and clients do not belong together; {mend}"
    )
    try:
        ids = {name: as_numpy(memory[name]) for name in (NODES, CLIENTS)}
    except NO_ARRAY:
        raise damaged from None
    for each in ids.values():
        whole = each.ndim == 1 and each.dtype.kind in "iu" and (each >= 0).all()
        if not whole or len(np.unique(each)) != len(each):
            raise damaged
    if len(ids[NODES]) != len(ids[CLIENTS]) or not all(isinstance(name, str) for name in memory):
        raise damaged
    return {**memory, **ids}


def _log_decision(decision: Decision) -> None:
    LOGGER.info(
        "aggregate_train: %d usable, %d left out", len(decision.replies), len(decision.left_out)
    )
    _log_left_out(decision.left_out)
    for reply in decision.not_finite:
        LOGGER.warning("\t> Node %d gets weight 0: its model is not finite", reply.node)
    for reply, report in zip(decision.replies, decision.reports, strict=True):
        if reply.partition is not None and reply.partition != report.client:
            LOGGER.warning(
                "\t> Node %d gives partition %d, which another node has or this one did not give "
                "at first: it is client %d",
                reply.node,
                reply.partition,
                report.client,
            )
    if decision.kept_model:
        LOGGER.warning("\t> No usable reply: the model stays as it is")


def _log_left_out(left_out: Sequence[LeftOut]) -> None:
    for each in left_out:
        LOGGER.warning("\t> Node %d is left out: it %s", each.node, each.reason)
