"""What came back from the nodes: checked one by one, in an order of its own, none of it changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message, MetricRecord, RecordDict

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.integrations.flower.arrays import as_state
from fedcrf.rules import RESIDUAL_LOSS, ClientReport, State
from fedcrf.rules.base import misfit_of

MOST_PARTITIONS = 1 << 20
"""Partition ids from here on are no identity: figures have a row for each smaller one."""


@dataclass(frozen=True)
class MetricNames:
    """How the clients' metrics are called that the server looks at; none of them is required.

    Attributes:
        partition_id: Train metric: the partition a node holds, which knows a client from run to
            run as node ids do not. What a node gives at first stands.
        effective_steps: Train metric: ‖a_i‖₁ of the local solver, the steps that the update is
            worth. FedNova's alone, which requires it.
        training_loss: Train metric, for the record.
        residual_loss: Train metric: the mean loss that a client's model has on its own examples
            after training, evidence for rules that look at it. By default what most clients
            send, the mean over their training.
        evaluation_loss: Evaluate metric, for the record.
        evaluation_accuracy: Evaluate metric, for the record.
    """

    partition_id: str = "partition-id"
    effective_steps: str = "effective-steps"
    training_loss: str = "train_loss"
    residual_loss: str = "train_loss"
    evaluation_loss: str = "eval_loss"
    evaluation_accuracy: str = "eval_acc"

    def check(self, evidence: Iterable[str]) -> None:
        """Raise a `FedcrfError` where no metric is named for evidence of one of these names."""
        for name in evidence:
            if name not in self._evidence:
                raise unknown_name("evidence", name, self._evidence)

    def evidence(self, metrics: MetricRecord, names: Iterable[str]) -> dict[str, float]:
        """Return the evidence of these names; NaN where a client gives none."""
        return {name: number(metrics, self._evidence[name]) for name in names}

    @property
    def _evidence(self) -> Mapping[str, str]:
        return {RESIDUAL_LOSS: self.residual_loss}


@dataclass(frozen=True, eq=False)
class TrainReply:
    """A reply that a rule can use.

    Attributes:
        node: The node's id; that of a registered node goes with its key, others are new.
        partition: The partition it holds, where it says so.
        content: What it sent, as it came.
        state: Its model, as views of ``content``.
        num_examples: What it counts for; above 0.
        effective_steps: For FedNova; 1 where the rule does not ask for it.
        training_loss: NaN where it gives none.
        evidence: What the rule asks of it, by name; NaN where it gives none.
    """

    node: int
    partition: int | None
    content: RecordDict
    state: State
    num_examples: float
    effective_steps: float
    training_loss: float
    evidence: Mapping[str, float]


@dataclass(frozen=True)
class LeftOut:
    """A node that was asked and has no part in the round, and why."""

    node: int
    reason: str


def train_replies(
    replies: Iterable[Message],
    asked: Collection[int],
    global_state: State,
    weighted_by: str,
    names: MetricNames,
    *,
    needs_steps: bool,
    evidence: Collection[str] = (),
) -> tuple[list[TrainReply], list[LeftOut]]:
    """Return the usable replies and the nodes left out, each sorted by node.

    Args:
        replies: In any order.
        asked: The nodes that were sent the model; those that did not answer are left out.
        global_state: The model they were sent.
        weighted_by: Name of the metric that counts examples.
        names: How the other metrics are called.
        needs_steps: Whether a reply without effective steps is of no use.
        evidence: Names of the evidence that the rule looks at.
    """
    usable, left_out = [], []
    answered = set()
    for message in _by_node(replies):
        node = message.metadata.src_node_id
        answered.add(node)
        try:
            content = _content(message)
            metrics = _only_metrics(content)
            reply = TrainReply(
                node=node,
                partition=_partition(metrics, names.partition_id),
                content=content,
                state=_model(content, global_state),
                num_examples=_positive(metrics, weighted_by),
                effective_steps=_positive(metrics, names.effective_steps) if needs_steps else 1.0,
                training_loss=number(metrics, names.training_loss),
                evidence=names.evidence(metrics, evidence),
            )
        except FedcrfError as error:
            left_out.append(LeftOut(node, str(error)))
        else:
            usable.append(reply)
    silent = [LeftOut(node, "did not answer") for node in set(asked) - answered]
    return usable, sorted([*left_out, *silent], key=lambda each: each.node)


def evaluate_replies(
    replies: Iterable[Message], weighted_by: str
) -> tuple[list[RecordDict], list[LeftOut]]:
    """Return what the usable evaluations hold and the nodes left out, each sorted by node."""
    usable, left_out = [], []
    for message in _by_node(replies):
        try:
            content = _content(message)
            _positive(_only_metrics(content), weighted_by)
        except FedcrfError as error:
            left_out.append(LeftOut(message.metadata.src_node_id, str(error)))
        else:
            usable.append(content)
    return usable, left_out


class Identities:
    """Which client each node is: settled by its first reply, and the same from then on.

    Flower vouches for a node's id; the partition it gives is its own word. Were that believed in
    every round, a client that has been found out could be another, or one that is trusted. A client
    is thus the partition that its node alone gave at first and no other is; else a number of its
    own, counted from beyond all partition ids. In a new run, whose node ids may all be new, the
    partition of a node that has not been heard of again goes to who first gives it.
    """

    def __init__(self, clients: Mapping[int, int]) -> None:
        """Know the nodes of an earlier run.

        Args:
            clients: By node; no two the same.
        """
        self._clients = dict(clients)
        self._awaited = set(clients)

    @property
    def by_node(self) -> Mapping[int, int]:
        """The clients of all nodes."""
        return self._clients

    def settle(self, replies: Sequence[TrainReply]) -> None:
        """Take in who has replied."""
        self._awaited.difference_update(reply.node for reply in replies)
        new = [reply for reply in replies if reply.node not in self._clients]
        given = Counter(reply.partition for reply in new)
        earlier = {self._clients[node]: node for node in self._awaited}
        held = set(self._clients.values()) - earlier.keys()
        beyond = max([MOST_PARTITIONS - 1, *self._clients.values()]) + 1
        for reply in new:
            client = reply.partition
            if client is None or client in held or given[client] > 1:
                client, beyond = beyond, beyond + 1
            elif client in earlier:
                del self._clients[earlier[client]]
                self._awaited.remove(earlier[client])
            self._clients[reply.node] = client


def client_reports(
    replies: Sequence[TrainReply], identities: Identities
) -> tuple[list[TrainReply], list[ClientReport]]:
    """Return replies and reports in the order of the clients, which no run changes."""
    identities.settle(replies)
    pairs = [(reply, _report(reply, identities.by_node[reply.node])) for reply in replies]
    pairs.sort(key=lambda pair: pair[1].client)
    return [reply for reply, _ in pairs], [report for _, report in pairs]


def small_numbers(reports: Sequence[ClientReport]) -> list[int]:
    """Return the clients as figures number them: partition ids, and right behind them the others.

    Of those that go by their nodes the number depends on who takes part.
    """
    clients = [report.client for report in reports]
    beyond = 1 + max((each for each in clients if each < MOST_PARTITIONS), default=-1)
    return [each if each < MOST_PARTITIONS else beyond + each - MOST_PARTITIONS for each in clients]


def average_metrics(
    contents: Sequence[RecordDict], weighted_by: str, without: Collection[str] = ()
) -> MetricRecord:
    """Return the means, weighted by examples, of the metrics that all replies have.

    Lists are averaged number by number where they have one length. The count itself and the
    metrics named in ``without`` are left out.
    """
    records = [_only_metrics(content) for content in contents]
    counts = [_positive(record, weighted_by) for record in records]
    averaged = MetricRecord()
    if not records:
        return averaged
    for name in records[0]:
        if name in (weighted_by, *without) or not all(name in record for record in records):
            continue
        values = [record[name] for record in records]
        lists = [value for value in values if isinstance(value, list)]
        if not lists:
            averaged[name] = _mean([number(record, name) for record in records], counts)
        elif len(lists) == len(values) and len({len(each) for each in lists}) == 1:
            averaged[name] = [_mean(column, counts) for column in zip(*lists, strict=True)]
    return averaged


def number(metrics: MetricRecord, name: str) -> float:
    """Return a metric; NaN where it is missing or a list."""
    value = metrics.get(name)
    return math.nan if value is None or isinstance(value, list) else value


def _mean(values: Sequence[float], counts: Sequence[float]) -> float:
    largest = max(counts)  # only ratios matter; huge counts cannot overflow
    shares = [count / largest for count in counts]
    total = sum(value * share for value, share in zip(values, shares, strict=True))
    return total / sum(shares)


def _by_node(replies: Iterable[Message]) -> list[Message]:
    return sorted(replies, key=lambda message: message.metadata.src_node_id)


def _content(message: Message) -> RecordDict:
    if message.has_error():
        lines = (message.error.reason or "").strip().splitlines()
        raise FedcrfError(f"failed, code {message.error.code}: {lines[-1] if lines else 'unknown'}")
    return message.content


def _only_metrics(content: RecordDict) -> MetricRecord:
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise FedcrfError(f"sent {len(records)} metric records instead of one")
    return records[0]


def _model(content: RecordDict, global_state: State) -> State:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise FedcrfError(f"sent {len(records)} array records instead of one")
    state = as_state(records[0])
    misfit = misfit_of(state, global_state)
    if misfit is not None:
        raise FedcrfError(misfit)
    return state


def _positive(metrics: MetricRecord, name: str) -> float:
    if name not in metrics:
        raise FedcrfError(f"gives no '{name}'")
    value = number(metrics, name)
    if not (math.isfinite(value) and value > 0):
        raise FedcrfError(f"gives {metrics[name]} as '{name}', which must be above 0")
    return value


def _partition(metrics: Mapping[str, object], name: str) -> int | None:
    value = metrics.get(name)
    return value if isinstance(value, int) and 0 <= value < MOST_PARTITIONS else None


def _report(reply: TrainReply, client: int) -> ClientReport:
    return ClientReport(
        client, reply.state, reply.num_examples, reply.effective_steps, reply.evidence
    )
