"""From replies to reports, whatever the framework.

A framework's own module wraps each of its messages as a `Reply`, and changes none of them.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Settings
from fedcrf.crf.weights import COUNT_CAP
from fedcrf.errors import FedcrfError, in_a_line, unknown_name
from fedcrf.rules import LABEL_DIVERGENCE, RESIDUAL_LOSS, ClientReport, State
from fedcrf.rules.base import misfit_of
from fedcrf.statistics import as_numpy, is_floating
from fedcrf.statistics.inputs import in_form_of, is_real, is_torch_tensor

T = TypeVar("T")

MOST_REASON = 300
"""Longest reason, in characters: it may quote what a client sent."""

MOST_PARTITIONS = 1 << 20
"""Larger partition ids are ignored: clients without a partition have the numbers from here on."""

Node = int | str
"""A node's id: a number, or a name; all of a run are of one kind."""

Metrics = Mapping[str, Any]
"""What a client measured: by name numbers, or lists of numbers."""

Names = str | Sequence[str]
"""A metric's name, or several: then the one counts that most replies have; of equals, the first."""


@dataclass(frozen=True)
class MetricNames(Settings):
    """The names of the clients' metrics that the server reads; none of them is required.

    Attributes:
        partition_id: Train metric: the partition that a node holds. It identifies a client from
            run to run, as node ids do not. The first that a node gives counts. None where the
            framework's own ids do, as NVFlare's names of sites.
        effective_steps: Train metric: ‖a_i‖₁ of the local solver, the steps that the update is
            worth. Only FedNova uses it, and requires it.
        training_loss: Train metric, for the record.
        residual_loss: Train metric: the mean loss that a client's model has on its own examples
            after training; evidence for some rules. It is not the mean over the training, which
            most clients send: that is high also where a client still learns much.
        label_divergence: Train metric: Σ p_c log(C p_c) of the shares p of the C labels among a
            client's examples; evidence for FedDisco.
        evaluation_loss: Evaluate metric, for the record.
        evaluation_accuracy: Evaluate metric, for the record.
    """

    partition_id: str | None = "partition-id"
    effective_steps: str = "effective-steps"
    training_loss: Names = ("train_loss", "training_loss", "loss", "train_logloss")
    residual_loss: Names = ("residual-loss", "residual_loss")
    label_divergence: Names = ("label-divergence", "label_divergence")
    evaluation_loss: Names = ("eval_loss", "loss", "val_loss", "test_loss", "test_logloss")
    evaluation_accuracy: Names = (
        "eval_acc", "accuracy", "acc", "eval_accuracy", "val_acc", "val_accuracy", "test_acc",
        "test_accuracy",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            several = isinstance(given, Sequence) and field.type == "Names"
            if given is None and field.name == "partition_id":
                continue
            names = list(given) if several and not isinstance(given, str) else [given]
            if not names or not all(isinstance(name, str) for name in names):
                raise FedcrfError(f"{field.name} is {given!r}: give the name of a metric")

    def of_evidence(self, name: str) -> Names:
        """Return the names of the train metric that is evidence for rules.

        Raises:
            FedcrfError: No metric is evidence of this name.
        """
        known = {RESIDUAL_LOSS: self.residual_loss, LABEL_DIVERGENCE: self.label_divergence}
        if name not in known:
            raise unknown_name("evidence", name, known)
        return known[name]


class Reply(Protocol):
    """A framework's message from a node; its tensors are read without a copy."""

    @property
    def node(self) -> Node:
        """The node's id."""
        ...

    @property
    def content(self) -> Any:
        """What it sent, as the framework has it."""
        ...

    def metrics(self) -> Metrics:
        """Return its metrics; a `FedcrfError` says why the reply cannot be used."""
        ...

    def model(self) -> State:
        """Return its model's tensors, likewise."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainReply(ClientReport):
    """A reply that a rule can use, as the report that it gets.

    The model is views of ``content``, except for what was cast.

    Attributes:
        client: As its evidence, this is settled by `client_reports`.
        node: The node's id; a registered node keeps it, others get a new one in each run.
        partition: The partition that it says it holds; None without one.
        content: What it sent, as it came.
        metrics: The metrics in ``content``.
        casts: Lines for the log: which dtypes were cast to those of the global model.
    """

    client: int = -1
    node: Node
    partition: int | None
    content: Any
    metrics: Metrics
    casts: frozenset[str]


@dataclass(frozen=True)
class Excluded:
    """A node without a usable reply in a round, and the reason."""

    node: Node
    reason: str

    @classmethod
    def of(cls, node: Node, error: FedcrfError) -> Excluded:
        """Return it with an error's message as reason, cut to `MOST_REASON`.

        It may quote what a client sent, so it gets one line without control characters.
        """
        shown = "".join(
            each if each.isprintable() else " " for each in str(error)[: MOST_REASON + 1]
        )
        reason = " ".join(shown.split())
        return cls(node, reason if len(shown) <= MOST_REASON else f"{reason[:MOST_REASON]}…")


def train_replies(
    replies: Iterable[Reply],
    asked: Collection[Node],
    global_state: State,
    weighted_by: str,
    names: MetricNames,
    *,
    needs_steps: bool,
) -> tuple[list[TrainReply], list[Excluded]]:
    """Return the usable replies and the excluded nodes, each sorted by node.

    Args:
        replies: In any order.
        asked: The nodes that were sent the model; those that did not reply are excluded.
        global_state: The model they were sent.
        weighted_by: Name of the metric that counts examples.
        names: The names of the other metrics.
        needs_steps: Whether a reply without effective steps is excluded.
    """

    def checked(reply: Reply) -> TrainReply:
        metrics = reply.metrics()
        state, casts = usable_model(reply.model(), global_state)
        return TrainReply(
            node=reply.node,
            partition=partition_of(metrics, names.partition_id),
            content=reply.content,
            metrics=metrics,
            state=state,
            casts=casts,
            num_examples=positive(metrics, weighted_by),
            effective_steps=positive(metrics, names.effective_steps) if needs_steps else 1.0,
        )

    replies = list(replies)
    usable, excluded = _sorted_out(replies, checked)
    silent = set(asked) - {reply.node for reply in replies}
    excluded += [Excluded(node, "did not reply") for node in silent]
    return usable, sorted(excluded, key=lambda each: each.node)


def evaluate_replies(
    replies: Iterable[Reply], weighted_by: str
) -> tuple[list[Any], list[Excluded]]:
    """Return the contents of usable evaluations and the excluded nodes, each sorted by node."""

    def content(reply: Reply) -> Any:
        positive(reply.metrics(), weighted_by)
        return reply.content

    return _sorted_out(replies, content)


def _sorted_out(
    replies: Iterable[Reply], read: Callable[[Reply], T]
) -> tuple[list[T], list[Excluded]]:
    """Return what is read of usable replies, and the excluded nodes, each sorted by node."""
    of_node: dict[Node, list[Reply]] = {}
    for reply in sorted(replies, key=lambda reply: reply.node):
        of_node.setdefault(reply.node, []).append(reply)
    usable, excluded = [], []
    for node, (reply, *others) in of_node.items():
        if others:  # which of them the node means is not known
            excluded.append(Excluded(node, f"replied {1 + len(others)} times"))
            continue
        try:
            usable.append(read(reply))
        except FedcrfError as error:
            excluded.append(Excluded.of(node, error))
        except Exception as error:  # whatever a client sent must not stop a round
            unread = FedcrfError(f"cannot be read ({in_a_line(error)})")
            excluded.append(Excluded.of(node, unread))
    return usable, excluded


def check_numbers(name: str, tensor: NDArray[Any]) -> None:
    """Raise a `FedcrfError` unless a tensor holds real numbers."""
    if not is_real(tensor.dtype):
        raise FedcrfError(f"holds {tensor.dtype} as '{name}': give real numbers")


def state_of(arrays: Any, unpacked: Callable[[Any], Any]) -> State:
    """Return a framework's arrays by name; NumPy arrays and tensors of the host are not copied.

    ``unpacked`` returns a value as NumPy array or torch tensor, whatever the framework made of it.

    Raises:
        FedcrfError: They are not arrays of real numbers by name.
    """
    if not isinstance(arrays, Mapping):
        raise FedcrfError(f"holds parameters of type {type(arrays).__name__}, not arrays by name")
    state = {}
    for name, value in arrays.items():
        try:
            array = as_numpy(unpacked(value))
        except Exception as error:  # whatever a client sent must not stop a round
            raise FedcrfError(
                f"holds a '{name}' that cannot be read ({in_a_line(error)}): give real numbers"
            ) from None
        check_numbers(name, array)
        state[str(name)] = array
    return state


def in_form_of_sent(state: State, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model with torch tensors wherever the one that was sent has them."""
    return {
        name: in_form_of(array, sent[name]) if is_torch_tensor(sent[name]) else array
        for name, array in state.items()
    }


def changed(model: State, changes: State) -> State:
    """Return model + changes; a change alone where the two do not fit, which is said later."""

    def added(name: str, change: NDArray[Any]) -> Any:
        before = model.get(name)
        fits = before is not None and before.shape == change.shape
        return before + change if fits else change

    with np.errstate(over="ignore", invalid="ignore"):  # no rule gives weight to infinities
        return {name: added(name, change) for name, change in changes.items()}


def usable_model(state: State, global_state: State) -> tuple[State, frozenset[str]]:
    """Return a client's model in the dtypes of the global model, and lines about what was cast.

    Any real number becomes a floating-point one, rounded where the global model has less precision;
    what overflows is infinite, which no rule gives weight. Numbers become integers or booleans only
    where these hold them exactly. A tensor that has the global model's dtype is not copied.

    Raises:
        FedcrfError: Tensors of other names or shapes than the global model's, or a number that its
            integers or booleans do not hold.
    """
    cast: dict[str, NDArray[Any]] = {}
    casts = set()
    for name, expected in global_state.items():
        sent = state.get(name)
        if sent is not None and sent.dtype != expected.dtype and sent.shape == expected.shape:
            cast[name] = _cast(name, sent, expected.dtype)
            casts.add(
                f"replies hold {sent.dtype} where the global model has {expected.dtype}: they are "
                "cast"
            )
    fitted = {**state, **cast} if cast else state
    misfit = misfit_of(fitted, global_state)
    if misfit is not None:
        raise FedcrfError(f"reports {misfit}")
    return fitted, frozenset(casts)


def positive(metrics: Metrics, name: str) -> float:
    """Return a metric that has to be above 0.

    Raises:
        FedcrfError: It is missing, or not.
    """
    if name not in metrics:
        raise FedcrfError(f"gives no '{name}'")
    value = _as_float(metrics[name])
    if not (math.isfinite(value) and value > 0):
        raise FedcrfError(f"gives {quoted(metrics[name])} as '{name}', which must be above 0")
    return value


def quoted(value: object) -> object:
    """Return what a message quotes of a metric: of what may have millions of numbers its type."""
    short = isinstance(value, list) and len(value) < 10 and all(isinstance(n, Real) for n in value)
    return value if short or isinstance(value, Real | str) else f"a {type(value).__name__}"


def partition_of(metrics: Metrics, name: str | None) -> int | None:
    """Return the partition that a client gives; None without a valid one, or without a name."""
    value = math.nan if name is None else _as_float(metrics.get(name))
    return int(value) if value.is_integer() and 0 <= value < MOST_PARTITIONS else None


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

    The framework authenticates a node's id, but a node can claim any partition. Were that believed
    in every round, a distrusted client could take another identity, also a trusted one. So a client
    is the partition that its node gave first, if no other node has it or gave it in the same round.
    Otherwise it gets a number beyond all partition ids. In a new run node ids may all be new: then
    the partition of an earlier node goes to the first node that gives it. Once an earlier node has
    replied, node ids last over runs, and the others keep theirs too.
    """

    def __init__(self, clients: Mapping[Node, int]) -> None:
        """Know the nodes of an earlier run, each with a client of its own."""
        self._clients = dict(clients)
        self._awaited = set(clients)

    @property
    def by_node(self) -> Mapping[Node, int]:
        """The clients of all nodes."""
        return self._clients

    def settle(self, replies: Sequence[TrainReply]) -> None:
        """Give the nodes of these replies their clients."""
        if not self._awaited.isdisjoint(reply.node for reply in replies):
            self._awaited.clear()
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
) -> list[TrainReply]:
    """Return replies with their clients and evidence, by client: in the same order in every run.

    The identities get the new nodes; ``evidence`` names what the rule uses. It is NaN where a reply
    gives none.
    """
    identities.settle(replies)
    records = [reply.metrics for reply in replies]
    given = {name: numbers(records, names.of_evidence(name)) for name in evidence}
    reports = [
        replace(
            reply,
            client=identities.by_node[reply.node],
            evidence={name: values[i] for name, values in given.items()},
        )
        for i, reply in enumerate(replies)
    ]
    return sorted(reports, key=lambda report: report.client)


def average_metrics(
    records: Sequence[Metrics], weights: Sequence[float], without: Collection[str] = ()
) -> dict[str, Any]:
    """Return the weighted means of the metrics that most replies with a weight have.

    Lists of equal length are averaged number by number. A reply that lacks a metric does not count
    for it, nor one that gives a list where most give a number, or the other way round; so one
    client cannot take away a mean. A number that is not finite does not count. A metric without a
    finite mean is omitted, and so are those in ``without``.
    """
    weighed = [pair for pair in zip(records, weights, strict=True) if pair[1] > 0]
    given: dict[Any, list[tuple[list[Any], float]]] = {}
    for record, weight in weighed:
        for name, value in record.items():
            if name not in without:
                values, length = (value, len(value)) if isinstance(value, list) else ([value], None)
                given.setdefault((name, length), []).append((values, weight))
    averaged: dict[str, Any] = {}
    for (name, length), pairs in given.items():
        if 2 * len(pairs) <= len(weighed):
            continue
        columns = zip(*(values for values, _ in pairs), strict=True)
        means = [mean_of(column, [weight for _, weight in pairs]) for column in columns]
        if all(map(math.isfinite, means)):
            averaged[name] = means[0] if length is None else means
    return averaged


def mean_of(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean of the finite values; NaN where none of them has a weight."""
    weighed = [
        (value, weight)
        for value, weight in zip(map(_as_float, values), weights, strict=True)
        if math.isfinite(value) and weight > 0
    ]
    if not weighed:
        return math.nan
    largest = max(weight for _, weight in weighed)  # only ratios matter; nothing overflows
    total = sum(value * (weight / largest) for value, weight in weighed)
    return total / sum(weight / largest for _, weight in weighed)


def capped(counts: Sequence[float]) -> list[float]:
    """Return counts of examples, each capped at `COUNT_CAP` times their median."""
    most = COUNT_CAP * statistics.median(counts) if counts else math.inf
    return [min(count, most) for count in counts]


def numbers(records: Sequence[Metrics], names: Names) -> list[float]:
    """Return a metric of some replies; NaN where it is missing or a list.

    Of several names the one counts under which most replies give a finite number; of equals, the
    first. Numbers under different names must not be compared.
    """
    columns = [
        [_as_float(record.get(name)) for record in records]
        for name in ([names] if isinstance(names, str) else names)
    ]
    return max(columns, key=lambda column: sum(map(math.isfinite, column)))


def _as_float(value: Any) -> float:
    """Return a real number as float; NaN for anything else, and beyond all floats."""
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.nan
