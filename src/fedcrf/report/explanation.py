"""Why a client got its weight, in words: the causes of one round, read off its record.

The words are data, templates with names of `ClientCauses` in braces, so that the terminal and the
page say the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedcrf.crf import ClientCRF
from fedcrf.crf.potentials import label_prior
from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.experiments.recorded import recorded_runs
from fedcrf.experiments.spec import CellSpec, RunSpec
from fedcrf.experiments.store import RunStore
from fedcrf.experiments.tables import Table
from fedcrf.simulation.records import Reasons, RoundRecord

TERMS: Mapping[str, float] = {"cosine": 2.0, "distance": -1.0, "norm_anomaly": -0.5}
"""What each cause counts in the score whose logistic function is the reliability ρ."""


LARGEST_WRITTEN = 9999.0
"""Values above are not written out: where most norms are equal, a deviation is 10¹² of nothing."""


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
        neighbours: The other clients and their affinities A_ij, the largest first.
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

    @property
    def multiple(self) -> float:
        """The weight as a multiple of FedAvg's; NaN where that is 0."""
        return self.weight / self.base_weight if self.base_weight > 0 else math.nan

    def term(self, cause: str) -> float:
        """Return what a cause adds to the score of the reliability."""
        value: float = getattr(self, cause)
        return TERMS[cause] * value


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
        excluded: Of a client whose update was left out.
        weightless: Of a rule that takes coordinates from different clients.
        unexplained: Of a rule that keeps no reasons.
        fell_back: Of a round whose expected labels were all zero.
        explained: Of a weight with its causes.
        decimals: Digits after the point of each value.
        causes: Words for the values of each cause; the first bound above the value counts.
    """

    excluded: str
    weightless: str
    unexplained: str
    fell_back: str
    explained: str
    decimals: Mapping[str, int]
    causes: Mapping[str, Sequence[Wording]]


WORDS = Words(
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
)


def causes_of(record: RoundRecord, rule: object) -> list[ClientCauses]:
    """Return what the clients of a round got and why, in the record's order.

    Args:
        record: The round.
        rule: The server rule that made it; the CRF's labels tell what a client got by itself.
    """
    reasons = record.reasons
    causes = [
        ClientCauses(
            client=client,
            num_examples=record.num_examples[i],
            weight=record.weight[i],
            base_weight=record.base_weight[i],
            excluded=client in record.excluded,
        )
        for i, client in enumerate(record.clients)
    ]
    if reasons is None or not reasons.reliability:
        return causes
    own = own_labels(reasons, rule)
    return [
        replace(
            each,
            reliability=reasons.reliability[i],
            cosine=reasons.cosine[i],
            distance=reasons.distance[i],
            norm_anomaly=reasons.norm_anomaly[i],
            own_label=own[i],
            expected_label=reasons.expected_label[i],
            neighbours=_neighbours(record.clients, reasons, i),
        )
        for i, each in enumerate(causes)
    ]


def own_labels(reasons: Reasons, rule: object) -> list[float]:
    """Return Σ_q P_i(q) q, the expected label of each client's own potential; NaN if unknown."""
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
    template = _template(causes, record)
    return template.format(client=causes.client, **values)


def _template(causes: ClientCauses, record: RoundRecord) -> str:
    if causes.excluded:
        return WORDS.excluded
    if math.isnan(causes.weight):
        return WORDS.weightless
    if record.reasons is None or not record.reasons.reliability:
        return WORDS.unexplained
    return WORDS.fell_back if record.reasons.fell_back else WORDS.explained


def most_changed(causes: Sequence[ClientCauses]) -> list[ClientCauses]:
    """Return all clients of a small round, else those farthest from their FedAvg weight."""

    def change(each: ClientCauses) -> float:
        return abs(math.log(each.multiple)) if each.multiple > 0 else math.inf

    farthest = sorted(causes, key=change, reverse=True)[:MOST_SENTENCES]
    return [each for each in causes if each in farthest]


def clients_table(causes: Sequence[ClientCauses]) -> Table:
    """Return the weights of a round and their causes, a row for each client."""
    explained = any(not math.isnan(each.reliability) for each in causes)
    columns = COLUMNS if explained else COLUMNS[:UNEXPLAINED]
    rows = [
        (
            str(each.client),
            str(each.num_examples),
            *(_number(getattr(each, name), digits) for _, name, digits in columns),
        )
        for each in causes
    ]
    header = ("client", "examples", *(title for title, _, _ in columns))
    return Table("every client of the round", header, tuple(rows))


def terms_table(causes: ClientCauses, everyone: Sequence[ClientCauses]) -> Table:
    """Return what makes one client's reliability, beside the median over the round's clients."""
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


def neighbours_table(causes: ClientCauses) -> Table:
    """Return a client's nearest neighbours and their affinities."""
    rows = [(str(client), f"{value:.3g}") for client, value in causes.neighbours[:NEAREST]]
    return Table("its nearest neighbours", ("client", "affinity"), tuple(rows))


def find_rounds(
    folder: Path, method: str | None, seed: int | None
) -> tuple[str, list[RoundRecord], object]:
    """Return what is to be explained of a run: its title, its rounds and its rule.

    Args:
        folder: Of a run, or of runs that another framework carried out.
        method: Its method, or the name of such a run; else the first that infers weights.
        seed: Its seed; else the first.

    Raises:
        FedcrfError: The folder holds no run, or not this one, or its files are damaged.
    """
    recorded = recorded_runs(folder)
    if recorded:
        if method is not None and method not in recorded:
            raise unknown_name("run", method, recorded)
        name = method or next(
            (name for name, run in recorded.items() if isinstance(run.rule(), ClientCRF)),
            next(iter(recorded)),
        )
        run = recorded[name]
        return f"{name}, {run.description().strategy}", run.records(), run.rule()
    store = RunStore(folder)
    cell = find_cell(store.read(), method, seed)
    return f"{cell.method.title}, seed {cell.seed}", store.cell(cell).records(), cell.rule


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
    inferring = [cell for cell in cells if isinstance(cell.rule, ClientCRF)]
    return spec.cell(method, chosen) if method is not None else (inferring or cells)[0]


def find_round(records: Sequence[RoundRecord], number: int, title: str) -> RoundRecord:
    """Return the record of a round.

    Raises:
        FedcrfError: There is no such round.
    """
    for record in records:
        if record.round == number:
            return record
    if not records:
        raise FedcrfError(f"{title} has no rounds yet")
    raise FedcrfError(
        f"{title} has no round {number}: choose from {records[0].round} to {records[-1].round}"
    )


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


def _neighbours(clients: Sequence[int], reasons: Reasons, i: int) -> tuple[tuple[int, float], ...]:
    """Return the others by affinity; the record holds row i from column i + 1 on."""
    rows = reasons.affinity
    if rows is None:
        return ()
    values = [
        (client, rows[min(i, j)][abs(i - j) - 1]) for j, client in enumerate(clients) if j != i
    ]
    return tuple(sorted(values, key=lambda pair: -pair[1]))


def _signed(value: float) -> str:
    return _number(value, 2) if value < 0 else f"+{_number(value, 2)}"


def _number(value: float, digits: int) -> str:
    """Write a number as the page does too: a dash for NaN, and no row of digits for a huge one."""
    if math.isnan(value):
        return "–"
    return f"{value:z.{digits}f}".replace("-", "−") if value < LARGEST_WRITTEN else "over 9999"
