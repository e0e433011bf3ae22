"""A framework's replies as reports: what is the same whichever framework they came by.

A framework's own module reads its messages as `Reply`, one by one, and changes none of them.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Settings
from fedcrf.crf import RobustCRF
from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.rules import RESIDUAL_LOSS, ClientReport, State
from fedcrf.rules.base import misfit_of
from fedcrf.statistics import is_floating

COUNT_CAP = RobustCRF.count_cap
"""A client's examples count as so many medians at most where metrics are averaged by them."""

MOST_REASON = 300
"""Characters of a reason that are kept; some of them are a client's own words."""

MOST_PARTITIONS = 1 << 20
"""Partition ids from here on are no identity: figures have a row for each smaller one."""

Metrics = Mapping[str, Any]
"""What a client measured: numbers by name, or lists of them."""

Names = str | Sequence[str]
"""A metric's name, or several of which the first counts that most replies give a number as."""


@dataclass(frozen=True)
class MetricNames(Settings):
    """How the clients' metrics are called that the server looks at; none of them is required.

    Attributes:
        partition_id: Train metric: the partition a node holds, which knows a client from run to
            run as node ids do not. What a node gives at first stands.
        effective_steps: Train metric: ‖a_i‖₁ of the local solver, the steps that the update is
            worth. FedNova's alone, which requires it.
        training_loss: Train metric, for the record.
        residual_loss: Train metric: the mean loss that a client's model has on its own examples
            after training, evidence for rules that look at it. Not the mean over the training,
            which most clients send: it is high where a client has much to learn, too.
        evaluation_loss: Evaluate metric, for the record.
        evaluation_accuracy: Evaluate metric, for the record.
    """

    partition_id: str = "partition-id"
    effective_steps: str = "effective-steps"
    training_loss: Names = ("train_loss", "training_loss", "loss", "train_logloss")
    residual_loss: Names = ("residual-loss", "residual_loss")
    evaluation_loss: Names = ("eval_loss", "loss", "val_loss", "test_loss", "test_logloss")
    evaluation_accuracy: Names = (
        "eval_acc", "accuracy", "acc", "eval_accuracy", "val_acc", "val_accuracy", "test_acc",
        "test_accuracy",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            several = isinstance(given, Sequence) and field.type == "Names"
            names = list(given) if several and not isinstance(given, str) else [given]
            if not names or not all(isinstance(name, str) for name in names):
                raise FedcrfError(f"{field.name} is {given!r}: give the name of a metric")

    def check(self, evidence: Iterable[str]) -> None:
        """Raise a `FedcrfError` where no metric is named for evidence of one of these names."""
        for name in evidence:
            if name not in self._evidence:
                raise unknown_name("evidence", name, self._evidence)

    def evidence(self, records: Sequence[Metrics], names: Iterable[str]) -> list[dict[str, float]]:
        """Return the evidence of these names in a round's replies; NaN where one gives none."""
        columns = {name: numbers(records, self._evidence[name]) for name in names}
        return [{name: column[i] for name, column in columns.items()} for i in range(len(records))]

    def missing(self, name: str) -> str:
        """Return what is to be said where no client gives evidence of this name."""
        given = self._evidence[name]
        metric = given if isinstance(given, str) else given[0]
        return (
            f"no client gives a finite train metric '{metric}': the rule weighs without the "
            f"evidence '{name}'; let the clients send it, or name another in MetricNames"
        )

    @property
    def _evidence(self) -> Mapping[str, Names]:
        return {RESIDUAL_LOSS: self.residual_loss}


@dataclass(frozen=True, order=True)
class Cast:
    """A dtype that a client sent, and that of the global model which its numbers were given."""

    sent: str
    model: str

    @property
    def told(self) -> str:
        """What was done, in words."""
        return f"replies hold {self.sent} where the global model has {self.model}: they are cast"


class Reply(Protocol):
    """A framework's message from a node, whatever it holds. What is read is not copied."""

    @property
    def node(self) -> int:
        """The node's id."""
        ...

    @property
    def content(self) -> Any:
        """What it sent, as the framework has it."""
        ...

    def metrics(self) -> Metrics:
        """Return what it measured; a `FedcrfError` says why it is of no use."""
        ...

    def model(self) -> State:
        """Return its model's tensors, likewise."""
        ...


@dataclass(frozen=True, eq=False)
class TrainReply:
    """A reply that a rule can use.

    Attributes:
        node: The node's id; that of a registered node goes with its key, others are new.
        partition: The partition it holds, where it says so.
        content: What it sent, as it came.
        metrics: The metrics in ``content``.
        state: Its model, as views of ``content``; what was cast is no view.
        casts: Which dtypes were cast to those of the global model.
        num_examples: What it counts for; above 0.
        effective_steps: For FedNova; 1 where the rule does not ask for it.
    """

    node: int
    partition: int | None
    content: Any
    metrics: Metrics
    state: State
    casts: frozenset[Cast]
    num_examples: float
    effective_steps: float


@dataclass(frozen=True)
class LeftOut:
    """A node that was asked and has no part in the round, and why."""

    node: int
    reason: str

    @classmethod
    def of(cls, node: int, error: FedcrfError) -> LeftOut:
        """Return it with the reason that an error gives, as much of it as is kept."""
        reason = str(error)
        return cls(node, reason if len(reason) <= MOST_REASON else f"{reason[:MOST_REASON]}…")


def train_replies(
    replies: Iterable[Reply],
    asked: Collection[int],
    global_state: State,
    weighted_by: str,
    names: MetricNames,
    *,
    needs_steps: bool,
) -> tuple[list[TrainReply], list[LeftOut]]:
    """Return the usable replies and the nodes left out, each sorted by node.

    Args:
        replies: In any order.
        asked: The nodes that were sent the model; those that did not answer are left out.
        global_state: The model they were sent.
        weighted_by: Name of the metric that counts examples.
        names: How the other metrics are called.
        needs_steps: Whether a reply without effective steps is of no use.
    """
    usable, left_out = [], []
    answered = set()
    for reply in sorted(replies, key=lambda reply: reply.node):
        answered.add(reply.node)
        try:
            metrics = reply.metrics()
            state, casts = usable_model(reply.model(), global_state)
            checked = TrainReply(
                node=reply.node,
                partition=partition_of(metrics, names.partition_id),
                content=reply.content,
                metrics=metrics,
                state=state,
                casts=casts,
                num_examples=positive(metrics, weighted_by),
                effective_steps=positive(metrics, names.effective_steps) if needs_steps else 1.0,
            )
        except FedcrfError as error:
            left_out.append(LeftOut.of(reply.node, error))
        else:
            usable.append(checked)
    silent = [LeftOut(node, "did not answer") for node in set(asked) - answered]
    return usable, sorted([*left_out, *silent], key=lambda each: each.node)


def evaluate_replies(replies: Iterable[Reply], weighted_by: str) -> tuple[list[Any], list[LeftOut]]:
    """Return what the usable evaluations hold and the nodes left out, each sorted by node."""
    usable, left_out = [], []
    for reply in sorted(replies, key=lambda reply: reply.node):
        try:
            positive(reply.metrics(), weighted_by)
        except FedcrfError as error:
            left_out.append(LeftOut.of(reply.node, error))
        else:
            usable.append(reply.content)
    return usable, left_out


def alike(left_out: Sequence[LeftOut]) -> str | None:
    """Return the one reason for which all nodes are left out; None where there are several."""
    reasons = {each.reason for each in left_out}
    return reasons.pop() if len(reasons) == 1 else None


def usable_model(state: State, global_state: State) -> tuple[State, frozenset[Cast]]:
    """Return a client's model in the dtypes of the global model, and what was cast for it.

    Raises:
        FedcrfError: It is not of the global model, or holds what a cast would change.
    """
    state, casts = cast_as(state, global_state)
    misfit = misfit_of(state, global_state)
    if misfit is not None:
        raise FedcrfError(misfit)
    return state, casts


def positive(metrics: Metrics, name: str) -> float:
    """Return a metric that has to be above 0.

    Raises:
        FedcrfError: It is missing, or not.
    """
    if name not in metrics:
        raise FedcrfError(f"gives no '{name}'")
    value = _number(metrics, name)
    if not (math.isfinite(value) and value > 0):
        raise FedcrfError(f"gives {metrics[name]} as '{name}', which must be above 0")
    return value


def partition_of(metrics: Metrics, name: str) -> int | None:
    """Return the partition that a client gives; None where it gives none that is one."""
    value = metrics.get(name)
    return value if isinstance(value, int) and 0 <= value < MOST_PARTITIONS else None


def cast_as(state: State, global_state: State) -> tuple[State, frozenset[Cast]]:
    """Return a client's model in the dtypes of the global model, and what was cast for it.

    Any real number becomes a floating-point one, rounded where the global model is of less
    precision; what overflows is infinite, which no rule gives weight. Numbers become integers or
    booleans only where these hold them exactly. A tensor of the global model's dtype is not
    copied; one of another name or shape is left for the check of the whole model.

    Raises:
        FedcrfError: A number that the global model's integers or booleans do not hold.
    """
    cast: dict[str, NDArray[Any]] = dict(state)
    casts = set()
    for name, expected in global_state.items():
        sent = state.get(name)
        if sent is not None and sent.dtype != expected.dtype and sent.shape == expected.shape:
            cast[name] = _cast(name, sent, expected.dtype)
            casts.add(Cast(str(sent.dtype), str(expected.dtype)))
    return cast, frozenset(casts)


def _cast(name: str, sent: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        cast = sent.astype(dtype)
    if not is_floating(dtype) and not np.array_equal(cast, sent):
        odd = sent[cast != sent].flat[0]
        raise FedcrfError(
            f"reports {odd} in '{name}', which is {dtype} in the global model: send whole numbers "
            "that it holds"
        )
    return cast


class Identities:
    """Which client each node is: settled by its first reply, and the same from then on.

    A framework vouches for a node's id; the partition it gives is its own word. Were that
    believed in every round, a client that has been found out could be another, or one that is
    trusted. A client is thus the partition that its node alone gave at first and no other is;
    else a number of its own, counted from beyond all partition ids. In a new run, whose node
    ids may all be new, the partition of a node that has not been heard of again goes to who
    first gives it.
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
    replies: Sequence[TrainReply],
    identities: Identities,
    names: MetricNames,
    evidence: Collection[str] = (),
) -> tuple[list[TrainReply], list[ClientReport]]:
    """Return replies and reports in the order of the clients, which no run changes.

    Args:
        replies: The usable ones of a round.
        identities: Who is who; takes in who has replied.
        names: How metrics are called.
        evidence: Names of the evidence that the rule looks at.
    """
    identities.settle(replies)
    given = names.evidence([reply.metrics for reply in replies], evidence)
    pairs = [
        (
            reply,
            ClientReport(
                client=identities.by_node[reply.node],
                state=reply.state,
                num_examples=reply.num_examples,
                effective_steps=reply.effective_steps,
                evidence=own,
            ),
        )
        for reply, own in zip(replies, given, strict=True)
    ]
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
    records: Sequence[Metrics], weights: Sequence[float], without: Collection[str] = ()
) -> dict[str, Any]:
    """Return the weighted means of the metrics that all replies with a weight have.

    Lists are averaged number by number where they have one length. A number that is not finite
    counts nowhere, and a metric without a finite mean is left out, as are those of ``without``.
    """
    pairs = zip(records, weights, strict=True)
    weighed = [(record, weight) for record, weight in pairs if weight > 0]
    averaged: dict[str, Any] = {}
    for name in weighed[0][0] if weighed else ():
        if name in without or not all(name in record for record, _ in weighed):
            continue
        values = [record[name] for record, _ in weighed]
        lengths = {len(value) if isinstance(value, list) else None for value in values}
        if len(lengths) > 1:
            continue
        lists = [value if isinstance(value, list) else [value] for value in values]
        columns = zip(*lists, strict=True)
        means = [mean_of(column, [weight for _, weight in weighed]) for column in columns]
        if all(map(math.isfinite, means)):
            averaged[name] = means[0] if lengths == {None} else means
    return averaged


def mean_of(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean of the finite values; NaN where none of them has a weight."""
    weighed = [
        (value, weight)
        for value, weight in zip(values, weights, strict=True)
        if math.isfinite(value) and weight > 0
    ]
    if not weighed:
        return math.nan
    largest = max(weight for _, weight in weighed)  # only ratios matter; nothing overflows
    total = sum(value * (weight / largest) for value, weight in weighed)
    return total / sum(weight / largest for _, weight in weighed)


def capped(counts: Sequence[float]) -> list[float]:
    """Return what counts of examples count for: `COUNT_CAP` medians over them at most."""
    most = COUNT_CAP * statistics.median(counts) if counts else math.inf
    return [min(count, most) for count in counts]


def numbers(records: Sequence[Metrics], names: Names) -> list[float]:
    """Return a metric of some replies; NaN where it is missing or a list.

    Of several names it is the one that most replies give as a finite number, the first of equals:
    numbers that go by different names are not to be compared.
    """
    columns = [
        [_number(record, name) for record in records]
        for name in ([names] if isinstance(names, str) else names)
    ]
    return max(columns, key=lambda column: sum(map(math.isfinite, column)))


def _number(metrics: Metrics, name: str) -> float:
    value = metrics.get(name)
    return math.nan if value is None or isinstance(value, list) else value
