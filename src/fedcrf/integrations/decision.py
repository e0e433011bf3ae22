"""A round on the server: what was sent to whom, and what became of the replies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcrf.integrations.replies import LeftOut, TrainReply, alike, capped
from fedcrf.rules import AggregationResult, ClientReport, State

NO_REPLY = "no reply was usable"

MOST_TOLD = 5
"""Lines of one kind that are logged of a round, and nodes that one of them names."""

MOST_LISTED = 20
"""Nodes of a round of which metrics, which a framework may log whole, hold lists."""


@dataclass(frozen=True)
class TrainingRound:
    """A round whose replies are awaited.

    Attributes:
        number: From 1 on.
        state: The global model.
        asked: The nodes that it was sent to.
        started: When, in seconds of `time.perf_counter`.
        arrived: When all replies were there, likewise.
    """

    number: int
    state: State
    asked: tuple[int, ...]
    started: float
    arrived: float = math.nan


@dataclass(frozen=True)
class Decision:
    """What became of a round's replies.

    Attributes:
        replies: The usable ones, in the order of the clients.
        reports: The same as the rule saw them.
        left_out: The nodes without a usable reply.
        result: What the rule decided, without the next model; None where there was nothing to
            decide on.
    """

    replies: Sequence[TrainReply]
    reports: Sequence[ClientReport]
    left_out: Sequence[LeftOut]
    result: AggregationResult | None

    @property
    def kept_reason(self) -> str | None:
        """Why the global model stays as it was; None where it moves."""
        if self.result is not None:
            return self.result.kept_reason
        if not self.left_out:
            return "no node was asked"
        reason = alike(self.left_out)
        return NO_REPLY if reason is None else f"{NO_REPLY}: each {reason}"

    @property
    def usable(self) -> bool:
        """Whether there was a reply with a finite model."""
        return bool(self.finite)

    @property
    def finite(self) -> list[TrainReply]:
        """The replies whose models are finite."""
        return [reply for reply, out in self._excluded() if not out]

    @property
    def not_finite(self) -> list[TrainReply]:
        """The replies whose models are not finite, which have no weight."""
        return [reply for reply, out in self._excluded() if out]

    @property
    def shares(self) -> list[float]:
        """What each reply's metrics count for: its weight.

        Where a rule gives no reply one weight it is the count of its examples, of those that are
        finite, as far as it counts.
        """
        if self.result is None:
            return []
        weights = self.result.weights
        if np.isfinite(weights).all():
            return [float(weight) for weight in weights]
        counts = capped([reply.num_examples for reply in self.replies])
        return [
            0.0 if out else count for count, (_, out) in zip(counts, self._excluded(), strict=True)
        ]

    def told(self) -> list[str]:
        """Return who is left out, has no weight for what it sent, or is not whom it says."""
        not_finite = [
            f"Node {reply.node} gets weight 0: its model is not finite" for reply in self.not_finite
        ]
        others = [
            f"Node {reply.node} gives partition {reply.partition}, which another node has or this "
            f"one did not give at first: it is client {report.client}"
            for reply, report in zip(self.replies, self.reports, strict=True)
            if reply.partition is not None and reply.partition != report.client
        ]
        return [*left_out_told(self.left_out), *few(not_finite), *few(others)]

    def reasons(self) -> dict[str, Any]:
        """Return the decision as metrics.

        Of at most `MOST_LISTED` nodes these are lists over ``replies``, and of node ids; of more
        it is told how many. A list with a number that is not finite, which JSON has no form for,
        is left out.
        """
        reasons: dict[str, Any] = {
            "fedcrf.num-usable": len(self.replies),
            "fedcrf.num-left-out": len(self.left_out),
            "fedcrf.kept-model": int(self.kept_reason is not None),
        }
        if len(self.replies) + len(self.left_out) > MOST_LISTED:
            return reasons
        lists: dict[str, list[Any]] = {
            "node-id": [reply.node for reply in self.replies],
            "left-out": [each.node for each in self.left_out],
            "not-finite": [reply.node for reply in self.not_finite],
        }
        partitions = [reply.partition for reply in self.replies]
        if any(partition is not None for partition in partitions):
            lists["partition-id"] = [-1 if each is None else each for each in partitions]
        if self.result is not None:
            lists["weight"] = self.result.weights.tolist()
            lists["base-weight"] = self.result.base_weights.tolist()
            posterior = self.result.posterior
            if posterior is not None:
                lists["trust"] = posterior.trust.tolist()
                lists |= {_dashed(name): each.tolist() for name, each in posterior.causes.items()}
        for name, values in lists.items():
            if all(map(math.isfinite, values)):
                reasons[f"fedcrf.{name}"] = values
        return reasons

    def _excluded(self) -> list[tuple[TrainReply, bool]]:
        if self.result is None:
            return []
        return list(zip(self.replies, self.result.excluded.tolist(), strict=True))


def left_out_told(left_out: Sequence[LeftOut]) -> list[str]:
    """Return who is left out and why, a line for each reason."""
    by_reason: dict[str, list[int]] = {}
    for each in left_out:
        by_reason.setdefault(each.reason, []).append(each.node)
    lines = []
    for reason, nodes in by_reason.items():
        if len(nodes) == 1:
            lines.append(f"Node {nodes[0]} is left out: it {reason}")
            continue
        named = ", ".join(map(str, nodes[:MOST_TOLD])) + (", …" if nodes[MOST_TOLD:] else "")
        lines.append(f"{len(nodes)} nodes ({named}) are left out: each {reason}")
    return few(lines)


def few(lines: Sequence[str]) -> list[str]:
    """Return the first of some lines, and how many more there are."""
    more = len(lines) - MOST_TOLD
    return [*lines[:MOST_TOLD], *([f"… and {more} more such lines"] if more > 0 else [])]


def _dashed(name: str) -> str:
    return name.replace(" ", "-").replace("_", "-")
