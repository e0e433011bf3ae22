"""Why a client got its weight, in words: the causes of one round, read off its record.

The words themselves are in `fedcrf.report.words`. What the causes of a field past the paper's did
to a weight is `fedcrf.report.effects`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np

from fedcrf.crf import ClientCRF
from fedcrf.crf.potentials import SCORE_TERMS, label_prior
from fedcrf.experiments.tables import Table
from fedcrf.report.effects import CLIP, Effects, Scale, effects_of, scales_of
from fedcrf.report.words import WORDS, Title
from fedcrf.rules import plain_rule
from fedcrf.simulation.records import Reasons, RoundRecord

LARGEST_WRITTEN = 9999.0
"""Values above are not written out: where most norms are equal, a deviation is 10¹² of nothing."""

ALL_DIGITS = Context(prec=400)
"""Of any float before its point, and some after it."""

SMALLEST_FACTOR = 0.001
"""Factors below are not written out."""


@dataclass(frozen=True)
class ClientCauses:
    """What one client got in one round, and why; NaN where that is not known.

    Attributes:
        client: Its stable identity.
        num_examples: n_i, its training examples.
        weight: α_i, its share of the new model.
        base_weight: Its FedAvg share.
        excluded: Whether its update was left out because it is not finite.
        reliability: ρ_i.
        cosine: c_i, agreement with the median update.
        distance: d_i, distance from the median update, in medians over the clients.
        norm_anomaly: h_i, how far its norm is from the median norm, in median absolute deviations.
        own_label: Expected label of its own potential alone, before its neighbours count.
        expected_label: q̄_i, with its neighbours.
        neighbours: The clients that it has affinities A_ij with, the largest first.
        effects: Of a field past the paper's, what its causes made of the round's weights.
        place: The client's place in the effects' lists.
        scales: What the evidence's numbers are to be read with, by cause.
        attacks: Whether it attacked in this round.
        attacker: Whether it is one of the run's attackers, in this round or another.
    """

    client: int
    num_examples: float
    weight: float
    base_weight: float
    excluded: bool = False
    reliability: float = math.nan
    cosine: float = math.nan
    distance: float = math.nan
    norm_anomaly: float = math.nan
    own_label: float = math.nan
    expected_label: float = math.nan
    neighbours: tuple[tuple[int, float], ...] = ()
    effects: Effects = field(default_factory=Effects)
    place: int = 0
    scales: Mapping[str, Scale] = field(default_factory=dict)
    attacks: bool = False
    attacker: bool = False

    @property
    def multiple(self) -> float:
        """The weight as a multiple of FedAvg's; NaN where that is 0."""
        return self.weight / self.base_weight if self.base_weight > 0 else math.nan

    def term(self, cause: str) -> float:
        """Return what a cause adds to the score of the reliability."""
        value: float = getattr(self, cause)
        return SCORE_TERMS[cause] * value

    def seen(self, cause: str) -> float:
        """Return what the field saw of a cause; NaN where that is not known."""
        return self.effects.values[cause][self.place] if cause in self.effects.values else math.nan

    def factor(self, cause: str) -> float:
        """Return what a cause made of the weight; NaN where that is not known."""
        factors = self.effects.factors
        return factors[cause][self.place] if cause in factors else math.nan


MOST_SENTENCES = 10
"""Clients of one round that are told about in words."""

NEAREST = 5
"""Neighbours that are listed."""


def causes_of(
    record: RoundRecord, rule: object, attackers: Collection[int] = ()
) -> list[ClientCauses]:
    """Return what the clients of a round got and why, in the record's order.

    Args:
        record: The round.
        rule: The server rule that made it; the CRF's labels tell what a client got by itself.
        attackers: Of the run, where it had some.
    """
    reasons = record.reasons
    effects, scales = effects_of(record, rule), scales_of(rule)
    causes = [
        ClientCauses(
            client=client,
            num_examples=record.num_examples[i],
            weight=record.weight[i],
            base_weight=record.base_weight[i],
            excluded=client in record.excluded,
            effects=effects,
            place=i,
            scales=scales,
            attacks=client in (record.attackers or ()),
            attacker=client in attackers,
        )
        for i, client in enumerate(record.clients)
    ]
    if reasons is None or not reasons.expected_label:
        return causes
    if not reasons.reliability:
        return [
            replace(each, expected_label=reasons.expected_label[i]) for i, each in enumerate(causes)
        ]
    own, affinities = own_labels(reasons, rule), reasons.affinities
    return [
        replace(
            each,
            reliability=reasons.reliability[i],
            cosine=reasons.cosine[i],
            distance=reasons.distance[i],
            norm_anomaly=reasons.norm_anomaly[i],
            own_label=own[i],
            expected_label=reasons.expected_label[i],
            neighbours=_neighbours(record.clients, affinities, i),
        )
        for i, each in enumerate(causes)
    ]


def own_labels(reasons: Reasons, rule: object) -> list[float]:
    """Return Σ_q P_i(q) q, the expected label of each client's own potential; NaN if unknown."""
    rule = plain_rule(rule)
    if not isinstance(rule, ClientCRF):
        return [math.nan] * len(reasons.reliability)
    labels = np.asarray(rule.labels)
    expected: list[float] = (label_prior(np.asarray(reasons.reliability), labels) @ labels).tolist()
    return expected


def sentence(causes: ClientCauses, record: RoundRecord) -> str:
    """Return why a client of a round got its weight, as one sentence."""
    values = {
        name: _number(getattr(causes, name), digits) for name, digits in WORDS.decimals.items()
    }
    for cause, wordings in WORDS.causes.items():
        value: float = getattr(causes, cause)
        chosen = next((each.words for each in wordings if value < each.below), "")
        values[cause] = chosen.replace("{}", values[cause])
    values["told"] = "; ".join(phrases(causes)) or WORDS.nothing
    values["client"] = client_name(causes)
    return _template(causes, record).format(**values)


def client_name(causes: ClientCauses) -> str:
    """Return a client's name, with whether it attacks."""
    name = str(causes.client)
    if causes.attacks:
        return WORDS.attacks.format(client=name)
    return WORDS.attacker.format(client=name) if causes.attacker else name


def phrases(causes: ClientCauses) -> list[str]:
    """Return the causes of a client's weight in words, the most effective first."""
    told = causes.effects.told[causes.place] if causes.effects.told else ()
    return [_phrase(causes, cause) for cause in told]


def _phrase(causes: ClientCauses, cause: str) -> str:
    kind, _, name = cause.partition(" ")
    value, scale = causes.seen(cause), causes.scales.get(cause, Scale())
    wordings = WORDS.told[cause] if cause in WORDS.told else WORDS.told[kind]
    number = _signed if cause in WORDS.signed else _number
    chosen = next((each.words for each in wordings if value < each.below), wordings[-1].words)
    return chosen.format(
        value=number(scale.measured(value), 2) + (WORDS.or_more if value >= scale.limit else ""),
        median=number(causes.effects.medians.get(cause, math.nan), 2),
        name=name.replace("_", " "),
        factor=_factor(causes.factor(cause)),
    )


def title_of(cause: str) -> Title:
    """Return how tables and charts call a cause; one that is not known goes by its own name."""
    kind, _, name = cause.partition(" ")
    title = WORDS.titles.get(cause if not name else kind)
    if title is None or bool(name) != ("{name}" in title.name):
        return Title(cause, WORDS.unknown)
    return replace(title, name=title.name.format(name=name.replace("_", " ")))


def _template(causes: ClientCauses, record: RoundRecord) -> str:
    if causes.excluded:
        return WORDS.excluded
    if math.isnan(causes.weight):
        return WORDS.weightless
    if record.reasons is None or math.isnan(causes.expected_label):
        return WORDS.unexplained
    if record.reasons.fell_back:
        return WORDS.fell_back
    if record.reasons.reliability:
        return WORDS.explained
    return WORDS.traced if causes.effects.factors else WORDS.untraced


def most_changed(causes: Sequence[ClientCauses]) -> list[ClientCauses]:
    """Return all clients of a small round, else those farthest from their FedAvg weight."""

    def change(each: ClientCauses) -> float:
        return abs(math.log(each.multiple)) if each.multiple > 0 else math.inf

    farthest = sorted(causes, key=change, reverse=True)[:MOST_SENTENCES]
    return [each for each in causes if each in farthest]


def clients_table(causes: Sequence[ClientCauses]) -> Table:
    """Return the weights of a round and their causes, a row for each client."""
    columns = columns_of(causes)
    header = tuple(title_of(name).column or title_of(name).name for name in columns)
    return Table(
        "every client of the round",
        header,
        tuple(tuple(_written(each, name) for name in columns) for each in causes),
    )


def columns_of(causes: Sequence[ClientCauses]) -> list[str]:
    """Return what a table of clients tells, by the names of `Words.titles`."""
    traced = [name for name in _effects(causes).values if name not in WORDS.particulars]
    explained = any(not math.isnan(each.reliability) for each in causes)
    attacked = any(each.attacker or each.attacks for each in causes)
    return [
        *WORDS.client_columns,
        *(WORDS.paper_columns if explained else ()),
        *(("expected_label", *traced) if traced else ()),
        *((WORDS.attacker_column,) if attacked else ()),
    ]


def columns_told(columns: Sequence[str]) -> str:
    """Return what the columns of a table of clients are about, as one sentence."""
    titles = [title_of(name) for name in columns]
    told = [
        WORDS.column.format(title=title.column or title.name, about=title.about)
        for title in titles
        if title.about
    ]
    return f"{'; '.join(told)}."


def _written(causes: ClientCauses, name: str) -> str:
    """Return what a table of clients tells of one in a column."""
    if name in ("client", "num_examples"):
        return str(getattr(causes, name))
    if name == WORDS.attacker_column:
        return _attacking(causes)
    value: float = causes.seen(name) if name in causes.effects.values else getattr(causes, name)
    return _number(value, title_of(name).digits)


def _effects(causes: Sequence[ClientCauses]) -> Effects:
    """Return the effects of a round, which its clients share."""
    return causes[0].effects if causes else Effects()


def _attacking(causes: ClientCauses) -> str:
    if causes.attacks:
        return "attacks"
    return "not now" if causes.attacker else ""


def causes_table(causes: ClientCauses, everyone: Sequence[ClientCauses]) -> Table:
    """Return one client's causes beside the medians over the round's clients, and their effect.

    A cause of the paper's field adds to the score of the reliability; one of another field
    multiplies the weight. Without a row where the causes are not known.
    """
    if causes.effects.values and not causes.excluded:
        return _effects_table(causes)
    if math.isnan(causes.cosine):
        return Table("", (), ())
    rows = []
    for cause in SCORE_TERMS:
        title = title_of(cause).name
        value: float = getattr(causes, cause)
        median = float(np.nanmedian([getattr(each, cause) for each in everyone]))
        rows.append(
            (title, _number(value, 2), _number(median, 2), _signed(SCORE_TERMS[cause] * value))
        )
    rows.append(("score", "", "", _signed(sum(causes.term(cause) for cause in SCORE_TERMS))))
    rows.append(("reliability = σ(score)", _number(causes.reliability, 3), "", ""))
    header = ("cause", "value", "median", "adds to the score")
    return Table("what makes its reliability", header, tuple(rows))


def _effects_table(causes: ClientCauses) -> Table:
    """Return what each cause of a field past the paper's made of one client's weight."""
    effects = causes.effects
    rows = [
        (
            title_of(name).name,
            _number(seen[causes.place], 2),
            _number(effects.medians[name], 2),
            "" if math.isnan(causes.factor(name)) else f"× {_factor(causes.factor(name))}",
        )
        for name, seen in effects.values.items()
        if name not in WORDS.particulars
    ]
    if effects.factors:
        of_weight = [causes.factor(name) for name in effects.factors if name != CLIP]
        rows.append(("all but the clipping", "", "", f"× {_factor(math.prod(of_weight))}"))
    header = ("cause", "value", "median", "makes of the weight")
    return Table("what makes its weight", header, tuple(rows))


def neighbours_table(causes: ClientCauses) -> Table:
    """Return a client's nearest neighbours and their affinities."""
    rows = [(str(client), f"{value:.3g}") for client, value in causes.neighbours[:NEAREST]]
    return Table("its nearest neighbours", ("client", "affinity"), tuple(rows))


def _neighbours(
    clients: Sequence[int], rows: list[list[float]] | None, i: int
) -> tuple[tuple[int, float], ...]:
    """Return those that have an affinity by it; row i is told from column i + 1 on."""
    if rows is None:
        return ()
    values = [
        (client, rows[min(i, j)][abs(i - j) - 1]) for j, client in enumerate(clients) if j != i
    ]
    tied = [(client, value) for client, value in values if value > 0]
    return tuple(sorted(tied, key=lambda pair: -pair[1]))


def _signed(value: float, digits: int = 2) -> str:
    return f"+{_number(value, digits)}" if value >= 0 else _number(value, digits)


def _factor(value: float) -> str:
    """Write a factor to two digits, down to a thousandth."""
    if value < SMALLEST_FACTOR:
        return f"under {SMALLEST_FACTOR}"
    return _number(value, 2 if value >= 0.1 else 3)


def _number(value: float, digits: int) -> str:
    """Write a number as the page does too: a dash for NaN, and no row of digits for a huge one."""
    if math.isnan(value):
        return "–"
    if value >= LARGEST_WRITTEN:
        return "over 9999"
    # Halves are rounded away from zero, as by the page's language.
    written = Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, ALL_DIGITS)
    return f"{written:zf}".replace("-", "−")
