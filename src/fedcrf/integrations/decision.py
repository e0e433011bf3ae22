"""A round on the server: to whom the model was sent, and what became of the replies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from fedcrf.errors import listed
from fedcrf.integrations.replies import (
    MOST_PARTITIONS,
    Excluded,
    Metrics,
    Node,
    TrainReply,
    capped,
)
from fedcrf.rules import AggregationResult, State

MOST_LOGGED = 5
"""How many lines of one kind a round logs, and how many nodes a line names."""

MOST_LISTED = 20
"""In rounds of more nodes metrics hold no lists, since a framework may log them whole."""


@dataclass(frozen=True)
class TrainingRound:
    """A round in progress, numbered from 1 on.

    ``sent`` is the global model as the framework has it, ``state`` the same as arrays. ``asked``
    are the nodes that it was sent to. The round ``started`` when it was sent, and its replies had
    ``arrived`` when they were decided on; both are `time.perf_counter` in seconds, the second NaN
    until then.
    """

    number: int
    sent: Any
    state: State
    asked: tuple[Node, ...]
    started: float
    arrived: float = math.nan


@dataclass(frozen=True)
class Decision:
    """What became of a round's replies.

    Usable replies are in the order of the clients, without their models; ``excluded`` are the nodes
    without one. ``result`` is what the rule decided, without the next model; None without a usable
    reply.
    """

    round: TrainingRound
    replies: Sequence[TrainReply]
    excluded: Sequence[Excluded]
    result: AggregationResult | None

    @property
    def kept_reason(self) -> str | None:
        """Why the global model stays as it was; None where it moves."""
        if self.result is not None:
            return self.result.kept_reason
        if not self.excluded:
            return "no node was asked"
        first = self.excluded[0]
        alike = all(each.reason == first.reason for each in self.excluded)
        who = "each" if alike else f"for example node {first.node}"
        return f"no reply was usable: {who} {first.reason}"

    @property
    def metrics(self) -> list[Metrics]:
        """The metrics of the replies."""
        return [reply.metrics for reply in self.replies]

    @property
    def finite(self) -> list[TrainReply]:
        """The replies whose models are finite."""
        return self._which(excluded=False)

    @property
    def not_finite(self) -> list[TrainReply]:
        """The replies whose models are not finite; the rule gave them weight 0."""
        return self._which(excluded=True)

    @property
    def shares(self) -> list[float]:
        """The weights of the replies' metrics: those of the rule.

        Where the rule gives no weights, it is each finite reply's capped count of examples.
        """
        if self.result is None:
            return []
        weights = self.result.weights
        if np.isfinite(weights).all():
            return [float(weight) for weight in weights]
        counts = capped([reply.num_examples for reply in self.replies])
        return [float(count) for count in np.where(self.result.excluded, 0.0, counts)]

    def lines(self, clients: Mapping[Node, int]) -> list[str]:
        """Return lines for the log: exclusions, not finite models, false identities.

        ``clients`` are those of the known nodes.
        """
        posterior = None if self.result is None else self.result.posterior
        overflowed = () if posterior is None else posterior.overflowed.tolist()
        too_long = {each.node for each in compress(self.replies, overflowed)}
        not_finite = [
            f"Node {_name(reply.node, clients)} gets weight 0: its model is "
            + ("finite, but too long to be squared" if reply.node in too_long else "not finite")
            for reply in self.not_finite
        ]
        others = [
            f"Node {reply.node} gives partition {reply.partition}, which another node has or gives "
            "too, or which it did not give first: it counts as a client of its own"
            for reply in self.replies
            if reply.partition not in (None, reply.client)
        ]
        return [*exclusions(self.excluded, clients), *few(not_finite), *few(others)]

    def reasons(self) -> dict[str, Any]:
        """Return the decision as metrics: how many nodes were usable and excluded, and lists.

        Lists are over ``replies``, and of node ids, in rounds of at most `MOST_LISTED` nodes. One
        with a number that is not finite is omitted, since JSON has no form for it.
        """
        reasons: dict[str, Any] = {
            "fedcrf.num-usable": len(self.replies),
            "fedcrf.num-excluded": len(self.excluded),
            "fedcrf.kept-model": int(self.kept_reason is not None),
        }
        if len(self.replies) + len(self.excluded) > MOST_LISTED:
            return reasons
        lists: dict[str, list[Any]] = {
            "node-id": [reply.node for reply in self.replies],
            "excluded": [each.node for each in self.excluded],
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
                for name, each in posterior.causes.items():
                    lists[name.replace(" ", "-").replace("_", "-")] = each.tolist()
        for name, values in lists.items():
            if all(map(math.isfinite, values)):
                reasons[f"fedcrf.{name}"] = values
        return reasons

    def _which(self, *, excluded: bool) -> list[TrainReply]:
        """Return the replies that the rule excluded, or the others; none without a result."""
        found = [] if self.result is None else self.result.excluded == excluded
        return list(compress(self.replies, found))


def _name(node: Node, clients: Mapping[Node, int]) -> str:
    """Return a node's id, with its client where that is its partition."""
    client = clients.get(node, MOST_PARTITIONS)
    return str(node) if client >= MOST_PARTITIONS else f"{node} (client {client})"


def exclusions(excluded: Sequence[Excluded], clients: Mapping[Node, int]) -> list[str]:
    """Return a line for each reason why nodes were excluded; of known nodes with the client."""
    by_reason: dict[str, list[str]] = {}
    for each in excluded:
        by_reason.setdefault(each.reason, []).append(_name(each.node, clients))
    lines = []
    for reason, nodes in by_reason.items():
        if len(nodes) == 1:
            lines.append(f"Node {nodes[0]} is excluded: it {reason}")
            continue
        named = listed(nodes, MOST_LOGGED)
        lines.append(f"{len(nodes)} nodes ({named}) are excluded: each {reason}")
    return few(lines)


def few(lines: Sequence[str]) -> list[str]:
    """Return the first of some lines, and how many more there are."""
    more = len(lines) - MOST_LOGGED
    return [*lines[:MOST_LOGGED], *([f"… and {more} more such lines"] if more > 0 else [])]
