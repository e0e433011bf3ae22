"""Whether a client is trusted, since which round, and for which reason above all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fedcrf.crf.potentials import SCORE_TERMS
from fedcrf.report.effects import LEAST, REMEMBERED, Effects, effects_of
from fedcrf.simulation.records import Client, RoundRecord, Rounds

DISTRUSTED, DOUBTED = 0.25, 0.75
"""A client of a smaller part of its FedAvg weight is distrusted, or trusted in part."""

Kind = Literal["excluded", "distrusted", "doubted", "trusted", "unjudged", "weightless"]


class Verdict(NamedTuple):
    """What a round's weight says of a client, and why.

    Attributes:
        kind: ``unjudged`` where the rule keeps no reasons, or trusted nobody; ``weightless`` where
            it does not weigh clients.
        since: The first round of all those up to this one in which the client took part with this
            verdict; a client that is distrusted may have been excluded meanwhile.
        reason: The cause that spoke most against it in these rounds; None where none did, or where
            it is not known.
    """

    kind: Kind
    since: int
    reason: str | None = None

    @property
    def is_low(self) -> bool:
        """Whether the client is excluded or distrusted."""
        return self.kind in ("excluded", "distrusted")


@dataclass
class _Streak:
    """Rounds in a row of one verdict, and how much each cause spoke against the client in them."""

    since: int
    is_low: bool
    excluded_since: int | None = None
    against: dict[str, float] = field(default_factory=dict)

    def add(self, against: Mapping[str, float]) -> None:
        """Add what each cause did in one more round."""
        for name, much in against.items():
            if not math.isnan(much):
                self.against[name] = self.against.get(name, 0.0) + much

    @property
    def reason(self) -> str | None:
        """What spoke most against the client; what is remembered has its own reason and is last."""
        named = [name for name, much in self.against.items() if much > -math.log(1.0 - LEAST)]
        return max(named, key=lambda name: (name != REMEMBERED, self.against[name]), default=None)


def verdicts_of(records: Rounds, effects: Sequence[Effects | None]) -> Iterator[list[Verdict]]:
    """Yield the verdicts on the clients of each round from the first on, in the record's order."""
    streaks: dict[Client, _Streak] = {}
    for record, seen in zip(records, effects, strict=True):
        verdicts = []
        for i, client in enumerate(record.clients):
            kind = _kind(record, seen, i)
            if kind not in ("excluded", "distrusted", "doubted"):
                streaks.pop(client, None)
                verdicts.append(Verdict(kind, record.round))
                continue
            is_low = kind != "doubted"
            streak = streaks.get(client)
            if streak is None or streak.is_low != is_low:
                streak = streaks[client] = _Streak(record.round, is_low)
            if kind == "excluded":
                streak.excluded_since = streak.excluded_since or record.round
                verdicts.append(Verdict(kind, streak.excluded_since))
                continue
            streak.excluded_since = None
            if seen is not None:
                streak.add(_against(seen, i))
            verdicts.append(Verdict(kind, streak.since, streak.reason))
        yield verdicts


def last_verdicts(records: Rounds, rule: object) -> list[Verdict]:
    """Return the verdicts on the clients of the last of some rounds of a rule."""
    *_, last = verdicts_of(records, [effects_of(record, rule) for record in records])
    return last


def _kind(record: RoundRecord, effects: Effects | None, i: int) -> Kind:
    weight, base = record.weight[i], record.base_weight[i]
    if record.clients[i] in record.excluded:
        return "excluded"
    if math.isnan(weight):
        return "weightless"
    if effects is None or effects.fell_back or not base > 0:
        return "unjudged"
    if weight < DISTRUSTED * base:
        return "distrusted"
    return "doubted" if weight < DOUBTED * base else "trusted"


def _against(effects: Effects, i: int) -> Mapping[str, float]:
    """Return how much each cause spoke against a client; what spoke for it is below 0."""
    if not effects.scored:
        factors = ((name, values[i]) for name, values in effects.factors.items())
        return {name: -math.log(max(factor, 1e-12)) for name, factor in factors}
    return {
        name: factor * (effects.medians[name] - effects.values[name][i])
        for name, factor in SCORE_TERMS.items()
    }
