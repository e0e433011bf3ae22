"""Why a client got its weight, in words: the causes of one round, read off its record.

The words are data, templates with names of `ClientCauses` in braces, so that the terminal and the
page say the same. What the causes of a field past the paper's did to a weight is `effects`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path

import numpy as np

from fedcrf.crf import ClientCRF, EvidenceCRF, RobustCRF
from fedcrf.crf.potentials import label_prior
from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.experiments.recorded import recorded_runs
from fedcrf.experiments.spec import CellSpec, RunSpec
from fedcrf.experiments.store import CellStore, CellSummary, RunStore
from fedcrf.experiments.tables import Table
from fedcrf.report.effects import (
    CLIP,
    COPIES,
    COUNTED,
    MISSING,
    REPORTED,
    VOTE,
    Effects,
    Scale,
    effects_of,
    inner_rule,
    scales_of,
)
from fedcrf.simulation.records import Reasons, RoundRecord

TERMS: Mapping[str, float] = {"cosine": 2.0, "distance": -1.0, "norm_anomaly": -0.5}
"""What each cause counts in the score whose logistic function is the reliability ρ."""


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
        return TERMS[cause] * value

    def seen(self, cause: str) -> float:
        """Return what the field saw of a cause; NaN where that is not known."""
        return self.effects.values[cause][self.place] if cause in self.effects.values else math.nan

    def factor(self, cause: str) -> float:
        """Return what a cause made of the weight; NaN where that is not known."""
        factors = self.effects.factors
        return factors[cause][self.place] if cause in factors else math.nan


COLUMNS = (
    ("weight", "weight", 3),
    ("FedAvg's", "base_weight", 3),
    ("multiple", "multiple", 2),
    ("reliability", "reliability", 3),
    ("cosine", "cosine", 2),
    ("distance", "distance", 2),
    ("norm", "norm_anomaly", 2),
    ("own label", "own_label", 3),
    ("expected label", "expected_label", 3),
)
"""Of a table of clients: title, attribute of `ClientCauses`, digits after the point."""

UNEXPLAINED = 3
"""So many of them are known without reasons."""

PARTICULARS = ("unresponsive", "unsteady", "opposed")
"""Causes that only say how much of another one counts."""

MOST_SENTENCES = 10
"""Clients of one round that are told about in words."""

NEAREST = 5
"""Neighbours that are listed."""


@dataclass(frozen=True)
class Wording:
    """Words for values below a bound; ``{}`` stands for the value."""

    below: float
    words: str


@dataclass(frozen=True)
class Words:
    """How a client's weight is told; names in braces are `ClientCauses`'s.

    Attributes:
        attacks: Of the name of a client that attacked in the round.
        attacker: Of one that attacks in other rounds.
        excluded: Of a client whose update was left out.
        weightless: Of a rule that takes coordinates from different clients.
        unexplained: Of a rule that keeps no reasons.
        fell_back: Of a round whose expected labels were all zero.
        explained: Of a weight with its causes.
        traced: Of a weight by a field past the paper's; ``{told}`` are its causes.
        untraced: Of one whose rule is not known.
        nothing: Where no cause is worth a word.
        decimals: Digits after the point of each value.
        causes: Words for the values of each cause; the first bound above the value counts.
        told: The same for the causes of a field past the paper's, by their names or the first
            words of them: ``{value}`` and the clients' ``{median}``, the rest of the ``{name}``,
            and by what ``{factor}`` it multiplied the weight.
        titles: How tables and charts call these causes.
        signed: Those whose numbers have a sign.
        or_more: Of a value that may be larger than is counted.
    """

    attacks: str
    attacker: str
    excluded: str
    weightless: str
    unexplained: str
    fell_back: str
    explained: str
    traced: str
    untraced: str
    nothing: str
    decimals: Mapping[str, int]
    causes: Mapping[str, Sequence[Wording]]
    told: Mapping[str, Sequence[Wording]]
    titles: Mapping[str, str]
    signed: Sequence[str]
    or_more: str


WORDS = Words(
    attacks="{client} (attacks)",
    attacker="{client} (an attacker, not in this round)",
    excluded="client {client}: weight 0; its update is not finite (NaN or infinity) and was left "
    "out",
    weightless="client {client}: no weight of its own; this rule does not weigh clients",
    unexplained="client {client}: weight {weight}, FedAvg's is {base_weight}; this rule keeps no "
    "reasons",
    fell_back="client {client}: weight {weight}, its share of the examples; the expected labels "
    "of all clients were zero",
    explained="client {client}: weight {weight} instead of FedAvg's {base_weight}; {cosine}, "
    "{distance}, {norm_anomaly}; reliability {reliability}, expected label {expected_label} "
    "({own_label} on its own evidence)",
    traced="client {client}: weight {weight} instead of FedAvg's {base_weight}; {told}; "
    "expected label {expected_label}",
    untraced="client {client}: weight {weight} instead of FedAvg's {base_weight}; expected label "
    "{expected_label}; the rule is not known, only what it saw",
    nothing="nothing speaks against it",
    decimals={
        "weight": 3,
        "base_weight": 3,
        "cosine": 2,
        "distance": 1,
        "norm_anomaly": 1,
        "reliability": 2,
        "expected_label": 2,
        "own_label": 2,
    },
    causes={
        "cosine": (
            Wording(-0.1, "points away from the others (cosine {})"),
            Wording(0.1, "points across the others' direction (cosine {})"),
            Wording(0.5, "leans the way of the others (cosine {})"),
            Wording(math.inf, "points the way of the others (cosine {})"),
        ),
        "distance": (
            Wording(0.75, "near by ({} × the median distance)"),
            Wording(1.5, "usual distance ({} × the median)"),
            Wording(3.0, "far off ({} × the median distance)"),
            Wording(math.inf, "very far off ({} × the median distance)"),
        ),
        "norm_anomaly": (
            Wording(2.0, "usual length ({} deviations off the median)"),
            Wording(5.0, "unusual length ({} deviations off the median)"),
            Wording(math.inf, "very unusual length ({} deviations off the median)"),
        ),
    },
    told={
        "response": (
            Wording(
                -0.1,
                "its update pushes back too little against where the model moved (answer {value}; "
                "median {median}): × {factor}",
            ),
            Wording(
                0.1,
                "its update does not answer where the model moved, where honest clients' push back "
                "(answer {value}; median {median}): × {factor}",
            ),
            Wording(
                math.inf,
                "its update pushes on in the direction the model moved, where honest clients' push "
                "back (answer {value}; median {median}): × {factor}",
            ),
        ),
        "steadiness": (
            Wording(
                math.inf,
                "its update turns from what it was, where honest clients' go on (cosine with its "
                "last {value}; median {median}): × {factor}",
            ),
        ),
        "opposition": (
            Wording(
                math.inf,
                "opposed by trusted clients beyond the median (opposition {value}; median "
                "{median}): × {factor}",
            ),
        ),
        "norm": (
            Wording(
                math.inf,
                "longer than its examples and the others' spread explain (by {value}, as a "
                "logarithm): × {factor}",
            ),
        ),
        "remembered": (
            Wording(0.3, "trusted little since earlier rounds ({value} remembered): × {factor}"),
            Wording(math.inf, "trusted less since earlier rounds ({value} remembered): × {factor}"),
        ),
        COUNTED: (Wording(math.inf, "counts for no more than {value} of the examples it claims"),),
        CLIP: (Wording(math.inf, "update clipped to {value} of its length"),),
        COPIES: (
            Wording(
                math.inf, "a copy of other updates, which share one client's weight: × {factor}"
            ),
        ),
        VOTE: (
            Wording(math.inf, "much like other updates: its vote against others counts {value}"),
        ),
        f"{REPORTED} residual_loss": (
            Wording(
                math.inf,
                "still has a high loss after local training ({value} deviations above the "
                "median): × {factor}",
            ),
        ),
        REPORTED: (
            Wording(
                math.inf, "reports a high {name} ({value} deviations above the median): × {factor}"
            ),
        ),
        MISSING: (Wording(math.inf, "reported no {name}: neutral"),),
    },
    titles={
        "response": "answer",
        "unresponsive": "missing answer",
        "steadiness": "steadiness",
        "unsteady": "missing steadiness",
        "opposition": "opposition",
        "opposed": "opposition beyond others'",
        "norm": "excess length",
        "remembered": "remembered",
        COUNTED: "examples counted",
        CLIP: "clipped to",
        COPIES: "share among copies",
        VOTE: "vote",
        REPORTED: "reported {name}",
        MISSING: "no {name}",
    },
    signed=("response", "steadiness"),
    or_more=" or more",
)


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
    rule = inner_rule(rule)
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


def title_of(cause: str) -> str:
    """Return how tables and charts call a cause; one that is not known goes by its own name."""
    kind, _, name = cause.partition(" ")
    return WORDS.titles.get(kind, cause).format(name=name.replace("_", " "))


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
    explained = any(not math.isnan(each.reliability) for each in causes)
    traced = [name for name in _effects(causes).values if name not in PARTICULARS]
    columns = COLUMNS if explained else COLUMNS[:UNEXPLAINED]
    columns += COLUMNS[-1:] if traced else ()
    attacked = any(each.attacker or each.attacks for each in causes)
    rows = [
        (
            str(each.client),
            str(each.num_examples),
            *(_number(getattr(each, name), digits) for _, name, digits in columns),
            *(_number(each.seen(name), 2) for name in traced),
            *((_attacking(each),) if attacked else ()),
        )
        for each in causes
    ]
    header = (
        "client",
        "examples",
        *(title for title, _, _ in columns),
        *map(title_of, traced),
        *(("attacker",) if attacked else ()),
    )
    return Table("every client of the round", header, tuple(rows))


def _effects(causes: Sequence[ClientCauses]) -> Effects:
    """Return the effects of a round, which its clients share."""
    return causes[0].effects if causes else Effects()


def _attacking(causes: ClientCauses) -> str:
    if causes.attacks:
        return "attacks"
    return "not now" if causes.attacker else ""


def terms_table(causes: ClientCauses, everyone: Sequence[ClientCauses]) -> Table:
    """Return what makes one client's reliability, beside the median over the round's clients."""
    if causes.effects.values and not causes.excluded:
        return _effects_table(causes)
    if math.isnan(causes.cosine):
        return Table("", (), ())
    rows = []
    for title, cause in (
        ("agreement (cosine)", "cosine"), ("distance", "distance"), ("norm", "norm_anomaly"),
    ):  # fmt: skip
        value: float = getattr(causes, cause)
        median = float(np.nanmedian([getattr(each, cause) for each in everyone]))
        rows.append((title, _number(value, 2), _number(median, 2), _signed(TERMS[cause] * value)))
    rows.append(("score", "", "", _signed(sum(causes.term(cause) for cause in TERMS))))
    rows.append(("reliability = σ(score)", _number(causes.reliability, 3), "", ""))
    header = ("cause", "value", "median", "adds to the score")
    return Table("what makes its reliability", header, tuple(rows))


def _effects_table(causes: ClientCauses) -> Table:
    """Return what each cause of a field past the paper's made of one client's weight."""
    effects = causes.effects
    rows = [
        (
            title_of(name),
            _number(seen[causes.place], 2),
            _number(effects.medians[name], 2),
            "" if math.isnan(causes.factor(name)) else f"× {_factor(causes.factor(name))}",
        )
        for name, seen in effects.values.items()
        if name not in PARTICULARS
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


@dataclass(frozen=True)
class Explained:
    """What is to be explained of a run.

    Attributes:
        title: Of the run, or its cell.
        records: Its rounds; those before the damage, where there is some.
        rule: That made them; None where it is not known.
        attackers: Of the run.
        damage: What is wrong with the records.
    """

    title: str
    records: Sequence[RoundRecord]
    rule: object
    attackers: Collection[int] = ()
    damage: str | None = None


def find_rounds(folder: Path, method: str | None, seed: int | None) -> Explained:
    """Return what is to be explained of a run.

    Args:
        folder: Of a run, or of runs that another framework carried out.
        method: Its method, or the name of such a run; else the first that infers weights.
        seed: Its seed; else the first.

    Raises:
        FedcrfError: The folder holds no run, or not this one, or its files are damaged from the
            first round on.
    """
    recorded = recorded_runs(folder)
    if recorded:
        if method is not None and method not in recorded:
            raise unknown_name("run", method, recorded)
        name = method or next(
            (name for name, run in recorded.items() if _infers(run.rule())), next(iter(recorded))
        )
        run = recorded[name]
        records, damage = run.sound_records()
        title = f"{name}, {run.description().strategy}"
        return _sound(Explained(title, records, run.rule(), attackers_of(records, None), damage))
    store = RunStore(folder)
    cell = find_cell(store.read(), method, seed)
    place = store.cell(cell)
    records, damage = place.sound_records()
    attackers = attackers_of(records, _summary(place))
    title = f"{cell.method.title}, seed {cell.seed}"
    return _sound(Explained(title, records, cell.rule, attackers, damage))


def attackers_of(records: Sequence[RoundRecord], summary: CellSummary | None) -> list[int]:
    """Return who attacks in a cell: whom its summary names, else who has attacked so far."""
    if summary is not None:
        return summary.attackers or []
    return sorted({client for record in records for client in record.attackers or ()})


def _summary(place: CellStore) -> CellSummary | None:
    """Return a cell's result where it can be read; its rounds are told without it."""
    try:
        return place.summary()
    except FedcrfError:
        return None


def _sound(found: Explained) -> Explained:
    if found.damage and not found.records:
        raise FedcrfError(found.damage)
    return found


def _infers(rule: object) -> bool:
    return isinstance(inner_rule(rule), ClientCRF | RobustCRF | EvidenceCRF)


def find_cell(spec: RunSpec, method: str | None, seed: int | None) -> CellSpec:
    """Return the cell to explain: by default the first method that infers weights, first seed.

    Raises:
        FedcrfError: The run has no such method or seed.
    """
    chosen = spec.seeds[0] if seed is None else seed
    if chosen not in spec.seeds:
        seeds = ", ".join(map(str, spec.seeds))
        raise FedcrfError(f"the run has no seed {chosen}: choose from {seeds}")
    if method is not None and method not in spec.methods:
        raise unknown_name("method of this run", method, spec.methods)
    cells = [spec.cell(name, chosen) for name in spec.methods]
    inferring = [cell for cell in cells if _infers(cell.rule)]
    return spec.cell(method, chosen) if method is not None else (inferring or cells)[0]


def find_round(found: Explained, number: int) -> RoundRecord:
    """Return the record of a round.

    Raises:
        FedcrfError: There is no such round, or it is not before the damage.
    """
    records, title = found.records, found.title
    for record in records:
        if record.round == number:
            return record
    if not records:
        raise FedcrfError(f"{title} has no rounds yet")
    raise FedcrfError(
        f"{title} has no round {number}: choose from {records[0].round} to {records[-1].round}"
        + (f" ({found.damage})" if found.damage else "")
    )


def remarks(found: Explained) -> list[str]:
    """Return what else is to be known of a run: who attacks in it, and what is damaged."""
    lines = []
    if found.attackers:
        lines.append(f"attackers of the run: {', '.join(map(str, found.attackers))}")
    if found.damage:
        lines.append(f"told up to round {found.records[-1].round}: {found.damage}")
    return lines


def find_client(causes: Sequence[ClientCauses], client: int, number: int) -> ClientCauses:
    """Return the causes of one client.

    Raises:
        FedcrfError: It took no part in the round.
    """
    for each in causes:
        if each.client == client:
            return each
    took_part = ", ".join(str(each.client) for each in causes[:20])
    more = ", …" if len(causes) > 20 else ""
    raise FedcrfError(
        f"client {client} took no part in round {number}: choose from {took_part}{more}"
    )


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
