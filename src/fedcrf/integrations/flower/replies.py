"""What came back from Flower's nodes: messages checked one by one, none of them changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flwr.app import Message, MetricRecord, RecordDict

from fedcrf.errors import FedcrfError
from fedcrf.integrations.flower.arrays import as_state
from fedcrf.integrations.replies import (
    Cast,
    LeftOut,
    MetricNames,
    TrainReply,
    average_metrics,
    capped,
    partition_of,
    positive,
    usable_model,
)
from fedcrf.rules import State


def train_replies(
    replies: Iterable[Message],
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
    for message in _by_node(replies):
        node = message.metadata.src_node_id
        answered.add(node)
        try:
            content = _content(message)
            metrics = _only_metrics(content)
            state, casts = _model(content, global_state)
            reply = TrainReply(
                node=node,
                partition=partition_of(metrics, names.partition_id),
                content=content,
                metrics=metrics,
                state=state,
                casts=casts,
                num_examples=positive(metrics, weighted_by),
                effective_steps=positive(metrics, names.effective_steps) if needs_steps else 1.0,
            )
        except FedcrfError as error:
            left_out.append(LeftOut.of(node, error))
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
            positive(_only_metrics(content), weighted_by)
        except FedcrfError as error:
            left_out.append(LeftOut.of(message.metadata.src_node_id, error))
        else:
            usable.append(content)
    return usable, left_out


def average_by_counts(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Return the means of the replies' metrics, weighted by examples as far as these count.

    How many examples a client has is its own claim: they count as so many medians over the replies
    at most as `RobustCRF` lets them (``count_cap``).
    """
    records = [_only_metrics(content) for content in contents]
    counts = [positive(record, weighted_by) for record in records]
    return MetricRecord(average_metrics(records, capped(counts), without=[weighted_by]))


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


def _model(content: RecordDict, global_state: State) -> tuple[State, frozenset[Cast]]:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise FedcrfError(f"sent {len(records)} array records instead of one")
    return usable_model(as_state(records[0]), global_state)
