"""Flower's messages as replies, and its bytes as arrays, without a copy on the way in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.integrations.replies import average_metrics, capped, positive, state_of
from fedcrf.rules import State

T = TypeVar("T")

SERIALISATION = "numpy.ndarray"
"""How Flower names an array in NumPy's own format."""

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def as_record(state: dict[str, NDArray[Any]]) -> ArrayRecord:
    """Serialise a model and empty it meanwhile, so that no tensor is held longer than needed."""
    record = ArrayRecord()
    for name in list(state):
        record[name] = _as_array(state.pop(name))
    return record


def view(array: Array) -> NDArray[Any]:
    """Return a view of a serialised array's numbers.

    Raises:
        Exception: Of many kinds, for bytes that are no array.
    """
    stream = BytesIO(array.data)  # shares the bytes
    version = npy.read_magic(stream)
    if array.stype != SERIALISATION or version not in HEADERS:
        return array.numpy()
    shape, in_fortran_order, dtype = HEADERS[version](stream)
    if dtype.hasobject:  # the bytes would be read as places in memory
        raise ValueError("it holds objects")
    return np.ndarray(
        shape, dtype, array.data, stream.tell(), order="F" if in_fortran_order else "C"
    )


def as_state(arrays: ArrayRecord) -> State:
    """Return a model's tensors by name, views of the record's bytes; see `state_of`."""
    return state_of(arrays, view)


def _as_array(tensor: NDArray[Any]) -> Array:
    header = BytesIO()
    npy.write_array_header_1_0(
        header, {"descr": npy.dtype_to_descr(tensor.dtype), "fortran_order": False,
                 "shape": tensor.shape},
    )  # fmt: skip
    numbers = tensor.reshape(-1).view(np.uint8)
    data = b"".join((header.getvalue(), numbers.data))
    return Array(dtype=str(tensor.dtype), shape=tensor.shape, stype=SERIALISATION, data=data)


@dataclass(frozen=True)
class FlowerReply:
    """A node's message, as `fedcrf.integrations.replies.Reply`."""

    message: Message
    node: int

    @property
    def content(self) -> RecordDict:
        """Its records."""
        return self.message.content

    def metrics(self) -> MetricRecord:
        """Return its only metric record."""
        if self.message.has_error():
            error = self.message.error
            reason = (error.reason or "").strip()
            if reason.startswith("<class '"):  # Flower puts "<class '…'>:<'" before, "'>" behind
                reason = reason.removesuffix("'>")
            lines = reason.splitlines()
            raise FedcrfError(f"failed, code {error.code}: {lines[-1] if lines else 'unknown'}")
        return only_one(self.content.metric_records, "metric")

    def model(self) -> State:
        """Return the tensors of its only array record."""
        return as_state(only_one(self.content.array_records, "array"))


def flower_replies(messages: Iterable[Message], sent: Iterable[Metadata]) -> Iterator[FlowerReply]:
    """Yield messages as replies to those that were ``sent``.

    Where a node is lost, Flower's SuperLink answers for it, under an id of its own.
    """
    asked = {each.message_id: each.dst_node_id for each in sent if each.message_id}
    nodes = set(asked.values())
    for message in messages:
        node = message.metadata.src_node_id
        if message.has_error() and node not in nodes:
            node = asked.get(message.metadata.reply_to_message_id, node)
        yield FlowerReply(message, node)


def average_by_counts(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Return the means of the replies' metrics, weighted by counts of examples.

    A count is only the client's claim, so it is capped at three medians.
    """
    records = [only_one(content.metric_records, "metric") for content in contents]
    counts = [positive(record, weighted_by) for record in records]
    return MetricRecord(average_metrics(records, capped(counts), without=[weighted_by]))


def only_one(records: Mapping[str, T], kind: str) -> T:
    """Return the only record of a kind; a `FedcrfError` where there are none or several."""
    if len(records) != 1:
        raise FedcrfError(f"sent {len(records)} {kind} records instead of one")
    return next(iter(records.values()))
