"""Why a client got its weight, in words: the causes of one round, read off its record.

The words themselves are data, `WORDS`. Which causes there are, what they did to a weight, and what
follows for a client, is `fedcrf.report.effects`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from importlib import resources
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from fedcrf.crf import ClientCRF, EvidenceCRF, RobustCRF
from fedcrf.crf.potentials import SCORE_TERMS
from fedcrf.errors import FedcrfError, listed, unknown_name
from fedcrf.experiments.analysis.tables import Table
from fedcrf.experiments.recorded import RecordedRun, check_there, readable, recorded_runs
from fedcrf.experiments.spec import CellSpec, RunSpec
from fedcrf.experiments.store import Course, Store
from fedcrf.report.effects import (
    CLIP,
    EXPECTED,
    LEAST,
    Effects,
    Scale,
    Verdict,
    effects_of,
    last_verdicts,
)
from fedcrf.rules import plain_rule
from fedcrf.simulation.records import Client, ExcludedNode, RoundRecord, Rounds

WORDS: Mapping[str, Any] = tomllib.loads(
    (resources.files("fedcrf.report") / "templates" / "words.toml").read_text(encoding="utf-8")
)
"""The content of ``templates/words.toml``, which says what each entry is."""

LARGEST_WRITTEN = 9999.0
"""Larger values, and those below its negative, are not written out. Where most norms are equal, the
median deviation is about 0, and a deviation is a huge multiple of it."""

ALL_DIGITS = Context(prec=400)
"""Enough digits for any float."""

SMALLEST_FACTOR = 0.001
"""Smaller factors are not written out."""


@dataclass(frozen=True)
class Title:
    """How tables and charts call something about a client."""

    name: str  # in charts, and in tables of one client's causes
    about: str = ""  # what it is, for the reader of a table of clients; empty where that is plain
    column: str = ""  # at the head of its column
    digits: int = 2  # after the point in a column


def title_of(cause: str) -> Title:
    """Return how tables and charts call a cause; one that is not known goes by its own name."""
    title, name = entry("titles", cause)
    if title is None or bool(name) != ("{name}" in title["name"]):
        return Title(cause, WORDS["unknown"], cause)
    called = title["name"].format(name=name)
    return Title(**{"column": called, **title, "name": called})


def entry(section: str, cause: str, unknown: Any = None) -> tuple[Any, str]:
    """Return what a section of `WORDS` has for a cause, or for its first word; and the others."""
    kind, _, name = cause.partition(" ")
    words = WORDS[section]
    return words.get(cause) or words.get(kind, unknown), name.replace("_", " ")


def wording(choices: str | Sequence[tuple[float, str]], value: float) -> str:
    """Return the words for a value: those of the first bound above it; the last ones of NaN."""
    if isinstance(choices, str):
        return choices
    return next((words for bound, words in choices if value < bound), choices[-1][1])


@dataclass(frozen=True)
class ClientCauses:
    """What one client got in one round, and why; NaN where that is not known."""

    client: Client  # its stable identity
    num_examples: float  # n_i, its training examples
    weight: float  # α_i, its share of the new model
    base_weight: float  # its FedAvg share
    excluded: bool = False  # whether its update was excluded because it is not finite
    overflowed: bool = False  # whether it is finite, and its squared length is not
    # The round's causes and what they made of its weights, as far as they are known
    effects: Effects = field(default_factory=Effects)
    place: int = 0  # the client's place in the effects' lists
    attacks: bool = False  # whether it attacked in this round
    attacker: bool = False  # whether it is one of the run's attackers, in this round or another
    # Its id in the framework that carried out the run, if another did
    node: Client | None = None

    @property
    def multiple(self) -> float:
        """The weight as a multiple of FedAvg's; NaN where that is 0."""
        return self.weight / self.base_weight if self.base_weight > 0 else math.nan

    @property
    def neighbours(self) -> list[tuple[Client, float]]:
        """The clients that it has affinities A_ij with, and these, the largest first."""
        rows, i = self.effects.affinities, self.place  # row i begins at column i + 1
        values = [
            (client, rows[min(i, j)][abs(i - j) - 1])
            for j, client in enumerate(self.effects.clients)
            if rows is not None and j != i
        ]
        return sorted([pair for pair in values if pair[1] > 0], key=lambda pair: -pair[1])

    def seen(self, cause: str) -> float:
        """Return what the field saw of a cause; NaN where that is not known."""
        values = self.effects.values
        return values[cause][self.place] if cause in values else math.nan

    def value(self, name: str) -> float:
        """Return what the client got, by its field, or what was seen of a cause."""
        got = name in ("weight", "base_weight", "multiple")
        return float(getattr(self, name)) if got else self.seen(name)

    def median(self, cause: str) -> float:
        """Return the median of a cause over the round's clients; NaN where that is not known."""
        return self.effects.medians.get(cause, math.nan)

    def factor(self, cause: str) -> float:
        """Return what a cause made of the weight; NaN where that is not known."""
        factors = self.effects.factors
        return factors[cause][self.place] if cause in factors else math.nan


MOST_SENTENCES = 10
"""Clients of one round that have a sentence, or are named in one."""

WIDTH = 80
"""Columns of the narrowest terminal that a table of clients fits."""

GIVE_WAY = ("multiple", EXPECTED)
"""Columns that are left out, in this order, of a table that is too wide."""

SILENT = {"", "–", "unjudged", "weightless"}
"""A column of these alone says nothing."""

SHORT_NAME = 9
"""Characters of a name that are always shown."""

GAP = 2
"""Blanks between two columns."""

LONGEST_REASON = 24
"""Characters of a reason that are shown."""

CUT = "…"
"""Stands for the middle of a long name."""

NEAREST = 5
"""Neighbours that are listed."""


def causes_of(
    record: RoundRecord, rule: object, attackers: Collection[Client] = ()
) -> list[ClientCauses]:
    """Return what the clients of a round got and why, in the record's order."""
    return explained(record, effects_of(record, rule), attackers)


def explained(
    record: RoundRecord, effects: Effects, attackers: Collection[Client]
) -> list[ClientCauses]:
    """Return the same as `causes_of`, of effects that are known already."""
    return [
        ClientCauses(
            client=client,
            num_examples=record.num_examples[i],
            weight=record.weight[i],
            base_weight=record.base_weight[i],
            excluded=client in record.excluded,
            overflowed=client in (record.overflowed or ()),
            effects=effects,
            place=i,
            attacks=client in (record.attackers or ()),
            attacker=client in attackers,
            node=record.nodes[i] if record.nodes else None,
        )
        for i, client in enumerate(record.clients)
    ]


def verdict_line(causes: ClientCauses, verdict: Verdict, number: int) -> str:
    """Return whether a client is trusted, since when and why not, in words of every day.

    ``number`` is that of the round. The reason is of all rounds since the verdict began.
    """
    words = WORDS["verdicts"]
    line = str(words[verdict.kind]).format(client=client_name(causes), since=verdict.since)
    reason, lasting = _reason(causes, verdict), verdict.since < number
    if reason is None:
        return line
    form = words["lasting_reason" if lasting and verdict.kind != "excluded" else "reason"]
    said = reason_in_words(reason)
    if lasting and causes.factor(reason) > 1.0 - LEAST:
        said += words["not_now"]
    if verdict.earlier is not None:
        before, when = verdict.earlier
        said += words["earlier"].format(reason=reason_in_words(before), round=when)
    return str(form.format(verdict=line, reason=said))


def _reason(causes: ClientCauses, verdict: Verdict) -> str | None:
    """Return the cause of a verdict; that of an exclusion is what was wrong with the update."""
    return _template(causes) if verdict.kind == "excluded" else verdict.reason


def reason_in_words(reason: str) -> str:
    """Return why a client is not trusted: a cause, in words of every day."""
    words, name = entry("reasons", reason, WORDS["unknown_reason"])
    return str(words.format(cause=reason, name=name))


def sentence(line: str) -> str:
    """Return a line as a sentence of its own."""
    return f"{line[0].upper()}{line[1:]}."


def round_line(record: RoundRecord, verdicts: Sequence[Verdict]) -> str:
    """Return who is distrusted in a round, and who was excluded, in one line."""
    distrusted, excluded = (
        {
            client: each.since
            for client, each in zip(record.clients, verdicts, strict=True)
            if each.kind == kind
        }
        for kind in ("distrusted", "excluded")
    )
    count, out = len(record.clients), excluded_since(excluded, MOST_SENTENCES)
    if not distrusted and not any(each.kind in ("trusted", "doubted") for each in verdicts):
        return "; ".join(["nobody is judged in this round", *out])
    if not distrusted:
        return "; ".join([f"none of {count} clients is distrusted", *out])
    are, named = "is" if len(distrusted) == 1 else "are", since_when(distrusted, MOST_SENTENCES)
    said = f"{len(distrusted)} of {count} clients {are} distrusted: {'; '.join(named)}"
    return "; ".join([said, *out])


def excluded_since(first: Mapping[Client, int], most: int) -> list[str]:
    """Return how many clients are excluded, and since when, in words; nothing where none is."""
    return [f"{len(first)} excluded: {', '.join(since_when(first, most))}"] if first else []


def since_when(first: Mapping[Client, int], most: int) -> list[str]:
    """Return clients by the round since when, in words; of more than so many the first ones."""
    by_round: dict[int, list[Client]] = {}
    for client, number in list(first.items())[:most]:
        by_round.setdefault(number, []).append(client)
    named = [
        f"client{'s' if len(clients) > 1 else ''} {', '.join(map(str, clients))} since round {each}"
        for each, clients in sorted(by_round.items())
    ]
    return [*named, *(["and others"] if len(first) > most else [])]


def weight_lines(causes: ClientCauses) -> list[str]:
    """Return what a client of a round got and why, with its numbers, a line each."""
    numbers = {name: causes.value(name) for name in WORDS["decimals"]}
    values = {name: _number(numbers[name], digits) for name, digits in WORDS["decimals"].items()}
    for cause, choices in WORDS["causes"].items():
        values[cause] = wording(choices, numbers[cause]).replace("{}", values[cause])
    lines: list[str] = []
    for line in WORDS[_template(causes)]:
        if line == "{phrases}":
            lines += phrases(causes) or [WORDS["nothing"]]
            if _nobody_responds(causes.effects):
                lines.append(WORDS["nobody_responds"])
        else:
            lines.append(line.format(**values))
    return lines


def _nobody_responds(effects: Effects) -> bool:
    """Return whether responses are unknown although clients took part before."""
    response, consistency = map(effects.medians.get, ("curvature_response", "update_consistency"))
    if response is None or consistency is None:
        return False
    return math.isnan(response) and not math.isnan(consistency)


def client_name(causes: ClientCauses) -> str:
    """Return a client's name, with whether it attacks."""
    if not causes.attacks and not causes.attacker:
        return str(causes.client)
    return str(WORDS["attacks" if causes.attacks else "attacker"].format(client=causes.client))


def phrases(causes: ClientCauses) -> list[str]:
    """Return the causes of a client's weight in words, the most effective first."""
    effects, lines = causes.effects, []
    for cause in effects.named[causes.place]:
        words, name = entry("phrases", cause, WORDS["unknown_phrase"])
        value, scale = causes.seen(cause), effects.scales.get(cause, Scale())
        number = _signed if cause in WORDS["signed"] else _number
        more = WORDS["or_more"] if value >= scale.limit else ""
        times = math.exp(min(value, math.log(2 * LARGEST_WRITTEN)))
        said = wording(words, value).format(
            cause=cause,
            value=number(scale.measured(value), 2) + more,
            times=_number(times, 1) + more,
            percent=_number(100.0 * value, 0 if value >= 0.1 else 1),
            median=number(causes.median(cause), 2),
            name=name,
            factor=_factor(causes.factor(cause)),
        )
        lines.append(said)
    return lines


def _template(causes: ClientCauses) -> str:
    """Return which of the sentences is a client's."""
    effects = causes.effects
    if causes.excluded:
        return "overflowed" if causes.overflowed else "excluded"
    if math.isnan(causes.weight):
        return "weightless"
    if not effects.values:
        return "unexplained"
    if effects.fell_back:
        return "fell_back"
    if effects.scored:
        return "explained"
    return "traced" if effects.factors else "untraced"


def most_changed(causes: Sequence[ClientCauses]) -> list[ClientCauses]:
    """Return all clients of a small round, else those farthest from their FedAvg weight."""

    def change(each: ClientCauses) -> float:
        return abs(math.log(each.multiple)) if each.multiple > 0 else math.inf

    farthest = sorted(causes, key=change, reverse=True)[:MOST_SENTENCES]
    return [each for each in causes if each in farthest]


def clients_table(causes: Sequence[ClientCauses], verdicts: Sequence[Verdict]) -> Table:
    """Return who has how much weight in a round, and why: a line for each client.

    It fits `WIDTH` columns: what says nothing is left out, and long names lack their middle.
    """
    columns = _telling_columns(causes, verdicts)
    for name in GIVE_WAY:
        if _too_wide(columns) > 0:
            columns.pop(name, None)
    longest = max(map(len, columns["client"]), default=0)
    room = max(SHORT_NAME, longest - max(_too_wide(columns), 0))
    columns["client"] = shortened(columns["client"], room)
    names = [*columns["client"], *columns.get("node", ())]
    return Table(
        "every client of the round",
        tuple(title_of(name).column for name in columns),
        tuple(zip(*columns.values(), strict=True)),
        WORDS["shortened"] if any(CUT in name for name in names) else "",
    )


def _telling_columns(
    causes: Sequence[ClientCauses], verdicts: Sequence[Verdict]
) -> dict[str, list[str]]:
    """Return by name the cells of each column of `clients_table` that says something."""
    nodes = ["" if each.node is None else str(each.node) for each in causes]
    reasons = [_reason(*each) for each in zip(causes, verdicts, strict=True)]
    numbers = {
        name: [_number(each.value(name), title_of(name).digits) for each in causes]
        for name in ("weight", "base_weight", "multiple", EXPECTED)
    }
    columns: dict[str, list[str]] = {
        "client": [str(each.client) for each in causes],
        "node": shortened(nodes, SHORT_NAME),
        **numbers,
        "verdict": [each.kind for each in verdicts],
        "reason": [_cut(title_of(each).name, LONGEST_REASON) if each else "" for each in reasons],
    }
    return {
        name: cells
        for name, cells in columns.items()
        if name in WORDS["client_columns"] or not SILENT.issuperset(cells)
    }


def _too_wide(columns: Mapping[str, Sequence[str]]) -> int:
    """Return by how many columns a table is wider than `WIDTH`; below 0 where it is not."""
    widths = (
        max(map(cell_len, (title_of(name).column, *cells))) for name, cells in columns.items()
    )
    return sum(widths) + GAP * (len(columns) - 1) - WIDTH


def shortened(names: Sequence[str], most: int) -> list[str]:
    """Return names, long ones without their middle; they are as long as keeps them apart."""
    for length in range(most, max(map(len, names), default=0)):
        short = [_cut(each, length) for each in names]
        if len({*short}) == len({*names}):
            return short
    return list(names)


def _cut(name: str, most: int) -> str:
    """Return a name, without its middle where it is longer than so many characters."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}{CUT}{name[-end:]}"


def whole_name(asked: object, names: Iterable[str]) -> str:
    """Return the name that is asked for, whole or as `shortened`."""
    name, known = str(asked), {*names}
    begin, cut, end = name.partition(CUT)
    if not cut or name in known:
        return name
    longer = (each for each in known if len(each) > len(name))
    meant = [each for each in longer if each.startswith(begin) and each.endswith(end)]
    return meant[0] if len(meant) == 1 else name


def clients_of_nodes(records: Rounds) -> dict[Client, Client]:
    """Return the clients of the nodes that took part in some rounds of another framework."""
    return {
        node: client
        for record in records
        for node, client in zip(record.nodes or (), record.clients, strict=False)
    }


def _node_name(node: Client, clients: Mapping[Client, Client]) -> str:
    """Return a node's id, with its client where that is known."""
    return f"{node} (client {clients[node]})" if node in clients else str(node)


def excluded_nodes_table(record: RoundRecord, clients: Mapping[Client, Client]) -> Table:
    """Return which nodes of another framework have no part in a round, and why.

    ``clients`` are the nodes' clients, as far as they are known.
    """
    rows = tuple(
        (_node_name(each.node, clients), each.reason) for each in record.excluded_nodes or ()
    )
    return Table("excluded from the round", ("node", "because it"), rows)


def exclusion_lines(record: RoundRecord, clients: Mapping[Client, Client]) -> list[str]:
    """Return who was excluded from a round, and why its model stayed as it was.

    ``clients`` are as for `excluded_nodes_table`.
    """
    words = WORDS["exclusions"]
    overflowed, reasons = record.overflowed or (), record.reasons
    lines = [
        words["overflowed" if client in overflowed else "client"].format(client=client)
        for client in record.excluded
    ]
    lines += [
        words["node"].format(node=_node_name(each.node, clients), reason=each.reason)
        for each in record.excluded_nodes or ()
    ]
    if record.stayed is not None:
        lines.append(words["kept_model"].format(reason=record.stayed))
    if reasons is not None and reasons.trust and reasons.fell_back:
        lines.append(words["fell_back"])
    return [f"Round {record.round}: {line}." for line in lines]


def columns_of(causes: Sequence[ClientCauses]) -> list[str]:
    """Return the columns of a table of clients, by the names of the titles in `WORDS`."""
    attacked = any(each.attacker or each.attacks for each in causes)
    client, *columns = WORDS["client_columns"]
    return [
        client,
        *(["attacker"] if attacked else []),
        *(["node"] if any(each.node is not None for each in causes) else []),
        *columns,
        *(_shown(causes[0].effects) if causes else []),
    ]


def _shown(effects: Effects) -> list[str]:
    """Return the causes that tables show; not those that say how much of another one counts."""
    return [name for name in effects.values if name not in WORDS["particulars"]]


def causes_table(causes: ClientCauses) -> Table:
    """Return one client's causes beside the medians over the round's clients, and their effect.

    A cause of the paper's field adds to the score of the reliability; one of another field
    multiplies the weight. Without a row where the causes are not known.
    """
    effects = causes.effects
    if not effects.values or causes.excluded:
        return Table("", (), ())
    if effects.scored:
        title, last = "what makes its reliability", "adds to the score"
        terms = {name: factor * causes.seen(name) for name, factor in SCORE_TERMS.items()}
        made = {name: _signed(term) for name, term in terms.items()}
        reliability = _number(causes.seen("reliability"), 3)
        whole = [
            ("score", "", "", _signed(sum(terms.values()))),
            ("reliability = σ(score)", reliability, "", ""),
        ]
    else:
        title, last = "what makes its weight", "makes of the weight"
        factors = {name: causes.factor(name) for name in _shown(effects) if name != EXPECTED}
        made = {n: "" if math.isnan(each) else f"× {_factor(each)}" for n, each in factors.items()}
        of_weight = [causes.factor(name) for name in effects.factors if name != CLIP]
        product = f"× {_factor(math.prod(of_weight))}"
        whole = [("all but the clipping", "", "", product)] if effects.factors else []
    rows = [
        (title_of(name).name, _number(causes.seen(name), 2), _number(causes.median(name), 2), text)
        for name, text in made.items()
    ]
    return Table(title, ("cause", "value", "median", last), (*rows, *whole))


def neighbours_table(causes: ClientCauses) -> Table:
    """Return a client's nearest neighbours and their affinities."""
    rows = [(str(client), f"{value:.3g}") for client, value in causes.neighbours[:NEAREST]]
    return Table("its nearest neighbours", ("client", "affinity"), tuple(rows))


def _signed(value: float, digits: int = 2) -> str:
    return f"{'+' * (0 <= value < LARGEST_WRITTEN)}{_number(value, digits)}"


def _factor(value: float) -> str:
    """Write a factor to two digits, down to a thousandth."""
    if value < SMALLEST_FACTOR:
        return f"under {SMALLEST_FACTOR}"
    return _number(value, 2 if value >= 0.1 else 3)


def _number(value: float, digits: int) -> str:
    """Write a number as the page does too: a dash for NaN, and no row of digits for a huge one."""
    if math.isnan(value):
        return "–"
    if abs(value) >= LARGEST_WRITTEN:
        return "over 9999" if value > 0 else "under −9999"
    # Halves are rounded away from zero, as by the page's language.
    written = Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, ALL_DIGITS)
    return f"{written:zf}".replace("-", "−")


def find_rounds(folder: Path, method: str | None, seed: int | None) -> Course:
    """Return what is to be explained of a run, or of runs that another framework carried out.

    ``method`` names a method of the run, or one of those runs. By default it is the first method
    that infers weights, or the last begun of those runs. ``seed`` is by default the first of which
    there are rounds. Rounds before damage are shown, if any.
    """
    check_there(folder)
    runs = recorded_runs(folder)
    found = _recorded_rounds(runs, method) if runs else _cell_rounds(Store(folder), method, seed)
    if found.damage and not found.records:
        raise FedcrfError(found.damage)
    return found


def _recorded_rounds(runs: Mapping[str, RecordedRun], name: str | None) -> Course:
    """Return the run of this name; by default the last begun, of those that infer weights if any.

    Only where none is named, others that cannot be read are in its ``unread``.
    """
    unread: list[str] = []
    if name is None:
        sound, unread = readable(runs)
        inferring = {each: run for each, run in sound.items() if _infers(run.course().rule)}
        began = {each: run.description().started for each, run in (inferring or sound).items()}
        name = max(began, key=lambda each: began[each] or "")  # the first of equal ones
    elif name not in runs:
        raise unknown_name("run", name, runs)
    course = runs[name].course()
    return replace(course, title=f"{name}, {course.title}", unread=unread)


def _cell_rounds(store: Store, method: str | None, seed: int | None) -> Course:
    """Return the rounds of the cell that `find_cell` finds, also of a damaged or a stale one."""
    spec = store.read()
    cells = [find_cell(spec, method, each) for each in (spec.seeds if seed is None else [seed])]
    cell = next((each for each in cells if store.cell(each).sound_records()[0]), cells[0])
    place = store.cell(cell)
    looked = place.look(cell, None)
    title = f"{looked.title}, seed {cell.seed}"
    found = Course(title, looked.records, cell.rule, cell.seed, looked.summary, stale=looked.stale)
    if looked.damage or looked.stale:  # what there is is shown all the same
        records, broken = place.sound_records()
        found = replace(found, records=records, damage=looked.damage or broken)
        with suppress(FedcrfError):
            found = replace(found, summary=place.summary(), stale=place.stale(cell))
    return found


def _infers(rule: object) -> bool:
    return isinstance(plain_rule(rule), ClientCRF | RobustCRF | EvidenceCRF)


def find_cell(spec: RunSpec, method: str | None, seed: int | None) -> CellSpec:
    """Return the cell to explain: by default the first method that infers weights, first seed."""
    chosen = spec.seeds[0] if seed is None else seed
    if chosen not in spec.seeds:
        seeds = ", ".join(map(str, spec.seeds))
        raise FedcrfError(f"the run has no seed {chosen}: choose from {seeds}")
    cells = [spec.cell(name, chosen) for name in spec.methods]
    if method is None:
        return next((cell for cell in cells if _infers(cell.rule)), cells[0])
    for cell in cells:
        if method in (cell.method.name, cell.method.title):  # the title stands in tables
            return cell
    raise unknown_name("method of this run", method, spec.methods)


def find_round(found: Course, number: int | None, client: Client | None = None) -> RoundRecord:
    """Return the record of a round.

    By default it is the last one in which the client took part, or the last of all.
    """
    records, title = found.records, found.title
    if not records:
        raise FedcrfError(f"{title} has no rounds yet")
    if number is None:
        for record in reversed(records):
            there = _ids_in(record)
            if client is None or whole_name(client, there) in there:
                return record
        return records[-1]
    for record in reversed(records):
        if record.round == number:
            return record
        if record.first <= number < record.round:
            raise FedcrfError(
                f"{title} keeps of round {number} only its part of the totals of rounds "
                f"{record.first} to {record.round}: choose round {record.round}, or run with "
                "rounds.evaluate_every = 1"
            )
    raise FedcrfError(
        f"{title} has no round {number}: choose from {records[0].round} to {records[-1].round}"
        + (f" ({found.damage})" if found.damage else "")
    )


def _ids_in(record: RoundRecord) -> set[str]:
    """Return the ids of a round's clients and, of another framework's round, of their nodes."""
    return {str(each) for each in (*record.clients, *(record.nodes or ()))}


def find_client(causes: Sequence[ClientCauses], client: Client, number: int) -> ClientCauses:
    """Return the causes of one client, or of another framework's node of this id, in any type."""
    by_id = {str(each.node): each for each in causes if each.node is not None}
    by_id |= {str(each.client): each for each in causes}
    if (name := whole_name(client, by_id)) in by_id:
        return by_id[name]
    choice = f": choose from {listed([each.client for each in causes])}" if causes else ""
    raise FedcrfError(f"client {client} took no part in round {number}{choice}")


def why_excluded(
    record: RoundRecord, client: Client, clients: Mapping[Client, Client]
) -> ExcludedNode | None:
    """Return why a node of this id, in any type, has no part in a round; None where it has one.

    It is also found by its client, of ``clients`` as for `excluded_nodes_table`.
    """
    there = _ids_in(record)
    nodes = record.excluded_nodes or ()
    out = {str(clients.get(each.node, each.node)): each for each in nodes}
    out |= {str(each.node): each for each in nodes}
    name = whole_name(client, {*there, *out})
    return None if name in there else out.get(name)


def in_words(
    found: Course, record: RoundRecord, client: Client | None = None
) -> tuple[list[str], list[Table]]:
    """Return what happened in a round to a client, or to all: lines in words, then numbers."""
    lines, clients = _lines_about(found, record), clients_of_nodes(found.records)
    if client is not None and (out := why_excluded(record, client, clients)) is not None:
        node = _node_name(out.node, clients)
        said = f"node {node} is excluded from round {record.round}: {out.reason}"
        return [*lines, sentence(said)], []
    causes = causes_of(record, found.rule, found.attackers)
    before = [each for each in found.records if each.round <= record.round]
    verdicts = last_verdicts(before, found.rule)
    if client is None:
        lines.append(sentence(round_line(record, verdicts)))
        chosen = most_changed([each for each in causes if verdicts[each.place].is_in_doubt])
        tables = [clients_table(causes, verdicts), excluded_nodes_table(record, clients)]
    else:
        chosen = [find_client(causes, client, record.round)]
        tables = [causes_table(chosen[0]), neighbours_table(chosen[0])]
        if chosen[0].node is not None:
            lines.append(f"client {chosen[0].client} is node {chosen[0].node}")
    lines += [sentence(verdict_line(each, verdicts[each.place], record.round)) for each in chosen]
    if client is not None:
        lines += [f"  - {line}" for line in weight_lines(chosen[0])]
    return lines, [table for table in tables if table.rows]


def _lines_about(found: Course, record: RoundRecord) -> list[str]:
    """Return which round of what is explained, and what is unusual about it, a line each."""
    last = " (the last)" if record is found.records[-1] else ""
    lines = [f"{found.title}, round {record.round}{last}", *found.unread]
    if found.stale:
        lines.append(f"stale, and explained as it was recorded: {found.stale}")
    if found.attackers:
        lines.append(_attackers_line(found.attackers, record.attackers or ()))
    if found.notice is not None:
        lines.append(found.notice)
    if record.stayed is not None:
        lines.append(f"the model stayed as it was: {record.stayed}")
    return lines


def _attackers_line(attackers: Sequence[Client], attacking: Sequence[Client]) -> str:
    """Return who the run's attackers are, and which of them attack in a round if not all do."""
    line = f"attackers of the run: {', '.join(map(str, attackers))}"
    if {*attackers} == {*attacking}:
        return line
    return f"{line}; in this round: {', '.join(map(str, attacking)) or 'none'}"
