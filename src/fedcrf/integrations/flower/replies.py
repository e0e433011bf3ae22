"""Flower's messages as replies."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import Message, MetricRecord, RecordDict

from fedcrf.errors import FedcrfError
from fedcrf.integrations.flower.arrays import as_state
from fedcrf.integrations.replies import average_metrics, capped, positive
from fedcrf.rules import State


@dataclass(frozen=True)
class FlowerReply:
    """A message, as `fedcrf.integrations.replies.Reply`."""

    message: Message

    @property
    def node(self) -> int:
        """The node's id."""
        return self.message.metadata.src_node_id

    @property
    def content(self) -> RecordDict:
        """Its records."""
        return self.message.content

    def metrics(self) -> MetricRecord:
        """Return its only metric record."""
        if self.message.has_error():
            error = self.message.error
            lines = (error.reason or "").strip().splitlines()
            raise FedcrfError(f"failed, code {error.code}: {lines[-1] if lines else 'unknown'}")
        return only_metrics(self.content)

    def model(self) -> State:
        """Return the tensors of its only array record."""
        records = list(self.content.array_records.values())
        if len(records) != 1:
            raise FedcrfError(f"sent {len(records)} array records instead of one")
        return as_state(records[0])


def average_by_counts(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Return the means of the replies' metrics, weighted by counts of examples.

    A count is only the client's claim, so it is capped as in `RobustCRF` (``count_cap``).
    """
    records = [only_metrics(content) for content in contents]
    counts = [positive(record, weighted_by) for record in records]
    return MetricRecord(average_metrics(records, capped(counts), without=[weighted_by]))


def only_metrics(content: RecordDict) -> MetricRecord:
    """Return the only metric record; a `FedcrfError` where there are none or several."""
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise FedcrfError(f"sent {len(records)} metric records instead of one")
    return records[0]
