"""What each cause made of a client's weight: factors, read off a round's record.

A field past the paper's gives weights ∝ β_i t_i, and trust t_i is a product:

    t_i = p₀ · (p_i / p₀) · (E_Q[q] / p_i) · exp(−e_i)

with p₀ the expected label of a client of which nothing is known, p_i what is remembered makes of
it (linear in what was remembered), E_Q[q] that after this round's evidence, and e_i what clients
report. The energies of the evidence add up in one exponent; along the straight path from none of
them to all, a part's share in log(E_Q[q] / p_i) is its share in the energy (the value of Aumann and
Shapley). So the factors of all causes multiply to t_i / p₀, and nothing is inferred anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from fedcrf.crf import ClientCRF, EvidenceCRF, NormEvidence, RobustCRF
from fedcrf.crf.evidence import TINY
from fedcrf.crf.evidence_crf import REPORTED, reported_reliability
from fedcrf.crf.parts import Vector
from fedcrf.crf.potentials import SCORE_TERMS, label_prior
from fedcrf.rules import plain_rule
from fedcrf.simulation.records import Client, Reasons, RoundRecord, Rounds, brief

MISSING = "missing"
"""Stands before the name of evidence that clients do not report."""

EXPECTED = "trust"
"""What all causes lead to."""

COUNTED, CLIP, VOTE, COPIES = "counted", "clip", "vote", "copies"

REMEMBERED = "remembered"
"""The cause that earlier rounds are."""

OPPOSITION, LARGEST = "opposition", "largest"
"""Of the client that claims the most examples, ``LARGEST`` follows ``OPPOSITION`` where that is
named: others oppose a large client, and a server may know that it is one."""

TRAINS = "trains"
"""Stands last for a distrusted client whose update changes as in honest training. Its labels may be
wrong, or its data of another kind, and updates do not tell which."""

WINDOW = "window"
"""Over how many rounds updates were averaged; earlier versions' records lack it."""

LEAST = 0.05
"""A cause that lowers a weight by a smaller share is not named."""

FEW_VOTES = 0.75
"""A vote below so many medians is named."""


@dataclass(frozen=True)
class Scale:
    """How the evidence of a cause follows from what is measured."""

    tolerance: float = 0.0  # what is measured below it is no evidence
    limit: float = math.inf  # the largest possible evidence
    strength: float = 1.0  # evidence per unit measured beyond the tolerance; above 0

    def measured(self, evidence: float) -> float:
        """Return what was measured, where there is evidence of it."""
        return self.tolerance + evidence / self.strength


@dataclass(frozen=True)
class Effects:
    """The causes of a round's weights, by name and whatever the field; lists run over its clients.

    Attributes:
        values: By cause what the field saw and inferred, as in the record. Of the paper's field
            there is ``own_trust`` too, what a client would get without its neighbours; NaN where
            the rule is not known. ``counted`` is what part of a client's examples counts, where
            that is not all of somebody's.
        medians: By cause the median over the clients that were not excluded.
        factors: By cause what it made of each client's weight; of its update, for ``clip``. Empty
            of the paper's field, and where the rule is not known.
        factor_medians: Likewise the medians of the factors.
        named: For each client the causes that are worth a word, the most effective first.
        scored: Whether the field is the paper's: causes add up, by `SCORE_TERMS`, to the score of
            a reliability, and affinities tie the clients.
        affinities: Row i of their matrix from column i + 1 on, where the record has them.
        fell_back: Whether all expected labels were zero, so that weights are the base weights.
        scales: By cause what its evidence's numbers are to be read with.
        clients: Those that the lists run over.
    """

    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    medians: Mapping[str, float] = field(default_factory=dict)
    factors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    factor_medians: Mapping[str, float] = field(default_factory=dict)
    named: Sequence[Sequence[str]] = ()
    scored: bool = False
    affinities: Sequence[Sequence[float]] | None = None
    fell_back: bool = False
    scales: Mapping[str, Scale] = field(default_factory=dict)
    clients: Sequence[Client] = ()


def effects_of(record: RoundRecord, rule: object) -> Effects:
    """Return what the causes of a round made of its clients' weights; without reasons none.

    Factors are known of `RobustCRF` and `EvidenceCRF`, and of the paper's `ClientCRF` what a client
    would get by itself.
    """
    reasons = record.reasons
    if reasons is None or not reasons.trust:
        return Effects()
    rule, scored = plain_rule(rule), bool(reasons.reliability)
    values = _of_the_paper(reasons, rule) if scored else {EXPECTED: reasons.trust, **reasons.causes}
    usable = [client not in record.excluded for client in record.clients]
    factors = {} if scored or reasons.fell_back else _factors(values, rule)
    medians = _medians(values, usable)
    named = [
        _named(i, values, medians, factors) if usable[i] else [] for i in range(len(record.clients))
    ]
    if isinstance(rule, RobustCRF):
        shares, greatest = record.base_weight, max(record.base_weight)
        most = [each for each, share in zip(named, shares, strict=True) if share == greatest]
        if rule.counts == "claimed" and len(most) == 1 and OPPOSITION in most[0]:
            most[0].append(LARGEST)
        for i, each in enumerate(named):
            distrusted = _kind(record, i, judged=not reasons.fell_back) == "distrusted"
            if distrusted and _trains(i, values, each):
                each.append(TRAINS)
    return Effects(
        values=values,
        medians=medians,
        factors=factors,
        factor_medians=_medians(factors, usable),
        named=named,
        scored=scored,
        affinities=reasons.affinities,
        fell_back=reasons.fell_back,
        scales=_scales(rule),
        clients=record.clients,
    )


def _scales(rule: object) -> dict[str, Scale]:
    if isinstance(rule, RobustCRF):
        return {"norm": Scale(limit=NormEvidence.limit), **_scales(rule.reported)}
    if isinstance(rule, EvidenceCRF):
        scale = Scale(rule.evidence_threshold, rule.evidence_limit, rule.evidence_strength)
        return {f"{REPORTED} {rule.evidence}": scale}
    return {}


def _of_the_paper(reasons: Reasons, rule: object) -> dict[str, Sequence[float]]:
    own = [math.nan] * len(reasons.reliability)
    if isinstance(rule, ClientCRF):
        labels = np.asarray(rule.labels)
        own = (label_prior(np.asarray(reasons.reliability), labels) @ labels).tolist()
    return {
        "reliability": reasons.reliability,
        "cosine": reasons.cosine,
        "distance": reasons.distance,
        "norm_anomaly": reasons.norm_anomaly,
        "own_trust": own,
        EXPECTED: reasons.trust,
    }


def _factors(values: Mapping[str, Sequence[float]], rule: object) -> dict[str, list[float]]:
    seen = {name: np.asarray(each, dtype=np.float64) for name, each in values.items()}
    factors = {
        name: reported_reliability(evidence)
        for name, evidence in seen.items()
        if name.startswith(f"{REPORTED} ")
    }
    if isinstance(rule, RobustCRF):
        reported = np.prod(list(factors.values()), axis=0)
        factors |= _of_the_field(seen, seen[EXPECTED] / reported, rule)
        factors |= {
            name: np.nan_to_num(seen[name], nan=1.0)
            for name in (CLIP, COPIES, COUNTED)
            if name in seen
        }
    elif not isinstance(rule, EvidenceCRF):
        return {}
    return {name: brief(factor) for name, factor in factors.items()}


def _of_the_field(
    seen: Mapping[str, Vector], expected_label: Vector, rule: RobustCRF
) -> dict[str, Vector]:
    """Return the factors of what is remembered and of this round's evidence."""
    new = np.full(len(expected_label), np.nan)
    length = np.fmax(seen.get(WINDOW, new), 1.0)
    prior = np.maximum(rule.prior_label(seen.get(REMEMBERED, new), length), TINY)
    energies = {
        part.cause: part.slope * seen[part.evidence]
        for part in rule.field.linear_parts
        if part.evidence in seen
    }
    total = np.sum(list(energies.values()), axis=0)
    left = np.maximum(expected_label / prior, TINY)
    factors = {
        cause: left ** (energy / np.where(total > 0, total, 1.0))
        for cause, energy in energies.items()
    }
    return {REMEMBERED: prior / max(rule.unknown_label, TINY), **factors}


def _named(
    i: int,
    values: Mapping[str, Sequence[float]],
    medians: Mapping[str, float],
    factors: Mapping[str, Sequence[float]],
) -> list[str]:
    lowering = [name for name in factors if factors[name][i] <= 1.0 - LEAST]
    named = sorted(lowering, key=lambda name: factors[name][i])
    if VOTE in values and values[VOTE][i] < FEW_VOTES * medians[VOTE]:
        named.append(VOTE)
    for name, seen in values.items():
        if name.startswith(f"{REPORTED} ") and math.isnan(seen[i]):
            named.append(f"{MISSING} {name.removeprefix(REPORTED).strip()}")
    return named


def _trains(i: int, values: Mapping[str, Sequence[float]], named: Sequence[str]) -> bool:
    """Return whether a client's update changes as in honest training.

    False where the client reports evidence against itself, which says more.
    """
    needed = ("curvature_response", "unresponsive", "inconsistent")
    if not values.keys() >= {*needed} or any(name.startswith(f"{REPORTED} ") for name in named):
        return False
    response, *missing = (values[name][i] for name in needed)
    return response < 0.0 and not any(missing)


def _medians(values: Mapping[str, Sequence[float]], usable: Sequence[bool]) -> dict[str, float]:
    """Return by cause the median of the known values of usable clients; NaN where there is none."""
    medians = {}
    for name, each in values.items():
        seen = np.asarray(each)[usable]
        known = seen[~np.isnan(seen)]
        medians[name] = float(f"{np.median(known):.6g}") if len(known) else math.nan
    return medians


DISTRUSTED, DOUBTED = 0.25, 0.75
"""A client of a smaller part of its FedAvg weight is distrusted, or doubted."""

Kind = Literal["excluded", "distrusted", "doubted", "trusted", "unjudged", "weightless"]


class Verdict(NamedTuple):
    """What a round's weight says of a client, and why.

    Attributes:
        kind: ``unjudged`` where the rule keeps no reasons, or trusted nobody; ``weightless`` where
            it does not weigh clients.
        since: The first of the client's rounds in a row with this verdict. A round in which it is
            excluded does not end its distrust.
        reason: The cause that spoke most against it in these rounds; None where none did, or where
            it is not known.
        earlier: Where that is the remembered trust, the last other cause on record, from which it
            may come, and its round.
    """

    kind: Kind
    since: int
    reason: str | None = None
    earlier: tuple[str, int] | None = None

    @property
    def is_low(self) -> bool:
        """Whether the client is excluded or distrusted."""
        return self.kind in ("excluded", "distrusted")

    @property
    def is_in_doubt(self) -> bool:
        """Whether the client is excluded, distrusted or doubted."""
        return self.is_low or self.kind == "doubted"


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
        """What spoke most against the client."""
        return _most(self.against)


def _most(against: Mapping[str, float]) -> str | None:
    """Return the cause that spoke most; what is remembered has its own reason and is last."""
    named = [name for name, much in against.items() if much > -math.log(1.0 - LEAST)]
    return max(named, key=lambda name: (name != REMEMBERED, against[name]), default=None)


def verdicts_of(records: Rounds, effects: Sequence[Effects]) -> Iterator[list[Verdict]]:
    """Yield the verdicts on the clients of each round from the first on, in the record's order."""
    streaks: dict[Client, _Streak] = {}
    earlier: dict[Client, tuple[str, int]] = {}
    for record, seen in zip(records, effects, strict=True):
        verdicts = []
        for i, client in enumerate(record.clients):
            judged = bool(seen.values) and not seen.fell_back
            verdict = Verdict(_kind(record, i, judged=judged), record.round)
            if not verdict.is_in_doubt:
                streaks.pop(client, None)
                verdicts.append(verdict)
                continue
            streak = streaks.get(client)
            if streak is None or streak.is_low != verdict.is_low:
                streak = streaks[client] = _Streak(record.round, verdict.is_low)
            if verdict.kind == "excluded":
                streak.excluded_since = streak.excluded_since or record.round
                verdicts.append(Verdict("excluded", streak.excluded_since))
                continue
            streak.excluded_since = None
            streak.add(against := _against(seen, i))
            if (most := _most(against)) not in (None, REMEMBERED):
                earlier[client] = (str(most), record.round)
            before = earlier.get(client) if streak.reason == REMEMBERED else None
            verdicts.append(Verdict(verdict.kind, streak.since, streak.reason, before))
        yield verdicts


def last_verdicts(records: Rounds, rule: object) -> list[Verdict]:
    """Return the verdicts on the clients of the last of some rounds of a rule."""
    *_, last = verdicts_of(records, [effects_of(record, rule) for record in records])
    return last


def _kind(record: RoundRecord, i: int, *, judged: bool) -> Kind:
    """Return the verdict of a weight; ``judged`` is whether it follows from trust."""
    weight, base = record.weight[i], record.base_weight[i]
    if record.clients[i] in record.excluded:
        return "excluded"
    if math.isnan(weight):
        return "weightless"
    if not judged or not base > 0:
        return "unjudged"
    if weight < DISTRUSTED * base:
        return "distrusted"
    return "doubted" if weight < DOUBTED * base else "trusted"


def _against(effects: Effects, i: int) -> Mapping[str, float]:
    """Return how much each cause spoke against a client; what spoke for it is below 0."""
    if not effects.scored:
        # Clipping shortens an update, and takes nothing from its weight.
        factors = ((name, values[i]) for name, values in effects.factors.items() if name != CLIP)
        return {name: -math.log(max(factor, 1e-12)) for name, factor in factors}
    return {
        name: factor * (effects.medians[name] - effects.values[name][i])
        for name, factor in SCORE_TERMS.items()
    }
