"""What of a run is to be explained, a cell, a round or a client, and that round in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedcrf.crf import ClientCRF, EvidenceCRF, RobustCRF
from fedcrf.errors import FedcrfError, listed, unknown_name
from fedcrf.experiments.analysis.tables import Table
from fedcrf.experiments.cell import CellSummary, StaleCellError
from fedcrf.experiments.recorded import RecordedRun, newest, readable, recorded_runs
from fedcrf.experiments.results import damage_line
from fedcrf.experiments.spec import CellSpec, RunSpec
from fedcrf.experiments.store import Store
from fedcrf.report.explanation import (
    ClientCauses,
    causes_of,
    causes_table,
    clients_table,
    excluded_nodes_table,
    most_changed,
    neighbours_table,
    round_line,
    sentence,
    verdict_line,
    weight_lines,
)
from fedcrf.report.verdict import last_verdicts
from fedcrf.rules import plain_rule
from fedcrf.simulation.records import Client, RoundRecord, Rounds, in_order


@dataclass(frozen=True)
class Explained:
    """What is to be explained of a run."""

    title: str  # of the run, or its cell
    records: Rounds  # its rounds; those before the damage, where there is some
    rule: object  # that made them; None where it is not known
    attackers: Collection[Client] = ()  # of the run
    damage: str | None = None  # what is wrong with the records
    stale: str | None = None  # which parts behave otherwise than when it was run
    unread: Sequence[str] = ()  # a line for each run beside it that could not be read


def find_rounds(folder: Path, method: str | None, seed: int | None) -> Explained:
    """Return what is to be explained of a run, or of runs that another framework carried out.

    ``method`` names one, or such a run; else it is the first that infers weights, or the last begun
    of such runs. ``seed`` is the first by default. Rounds before damage are shown, if any.
    """
    if recorded := recorded_runs(folder):
        return _sound(_recorded_rounds(recorded, method))
    store = Store(folder)
    cell = find_cell(store.read(), method, seed)
    place = store.cell(cell)
    records, damage = place.sound_records()
    summary, stale = None, None
    with suppress(FedcrfError):  # the rounds are shown without it
        summary = place.summary()
    try:
        place.check_current(cell)
    except StaleCellError as error:
        stale = str(error)
    except FedcrfError:
        pass  # likewise
    attackers = attackers_of(records, summary)
    title = f"{cell.method.title}, seed {cell.seed}"
    return _sound(Explained(title, records, cell.rule, attackers, damage, stale))


def _recorded_rounds(runs: Mapping[str, RecordedRun], name: str | None) -> Explained:
    unread: list[str] = []
    if name is None:
        sound, unread = readable(runs)
        inferring = {each: run for each, run in sound.items() if _infers(run.rule())}
        name = newest(inferring or sound)
    elif name not in runs:
        raise unknown_name("run", name, runs)
    run = runs[name]
    records, damage = run.sound_records()
    title, attackers = f"{name}, {run.description().title}", attackers_of(records, None)
    return Explained(title, records, run.rule(), attackers, damage, unread=unread)


def attackers_of(records: Rounds, summary: CellSummary | None) -> list[Client]:
    """Return who attacks in a cell: whom its summary names, else who has attacked so far."""
    if summary is not None:
        return summary.attackers or []
    return in_order(client for record in records for client in record.attackers or ())


def _sound(found: Explained) -> Explained:
    if found.damage and not found.records:
        raise FedcrfError(found.damage)
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


def find_round(found: Explained, number: int | None, client: Client | None = None) -> RoundRecord:
    """Return the record of a round; by default the last, in which the client took part."""
    records, title = found.records, found.title
    if not records:
        raise FedcrfError(f"{title} has no rounds yet")
    for record in reversed(records):
        there = map(str, [*record.clients, *(record.nodes or ())])
        if record.round == number or (number is None and (client is None or str(client) in there)):
            return record
        if number is not None and record.first <= number < record.round:
            raise FedcrfError(
                f"{title} keeps of round {number} only its part of the totals of rounds "
                f"{record.first} to {record.round}: choose round {record.round}, or run with "
                "rounds.evaluate_every = 1"
            )
    if number is None:
        return records[-1]
    raise FedcrfError(
        f"{title} has no round {number}: choose from {records[0].round} to {records[-1].round}"
        + (f" ({found.damage})" if found.damage else "")
    )


def notices(found: Explained) -> list[str]:
    """Return what else is to be known of a run: who attacks, what is stale or damaged."""
    lines = [*found.unread]
    if found.stale:
        lines.append(f"stale, and explained as it was recorded: {found.stale}")
    if found.attackers:
        lines.append(f"attackers of the run: {', '.join(map(str, found.attackers))}")
    if found.damage:
        lines.append(damage_line(found.damage, found.records))
    return lines


def find_client(causes: Sequence[ClientCauses], client: Client, number: int) -> ClientCauses:
    """Return the causes of one client, or of another framework's node of this id, in any type."""
    by_id = {str(each.node): each for each in causes if each.node is not None}
    by_id |= {str(each.client): each for each in causes}
    if str(client) in by_id:
        return by_id[str(client)]
    took_part = listed([each.client for each in causes])
    raise FedcrfError(f"client {client} took no part in round {number}: choose from {took_part}")


@dataclass(frozen=True)
class InWords:
    """A round in words, and in numbers below them."""

    lines: Sequence[str]
    tables: Sequence[Table]


def in_words(found: Explained, record: RoundRecord, client: Client | None = None) -> InWords:
    """Return what happened in a round to a client, or to all: verdicts in words, then numbers."""
    causes = causes_of(record, found.rule, found.attackers)
    before = [each for each in found.records if each.round <= record.round]
    verdicts = last_verdicts(before, found.rule)
    last = " (the last)" if record is found.records[-1] else ""
    lines = [f"{found.title}, round {record.round}{last}", *notices(found)]
    if record.stayed is not None:
        lines.append(f"the model stayed as it was: {record.stayed}")
    if client is None:
        lines.append(sentence(round_line(record, verdicts)))
        chosen = most_changed(causes)
        tables = [clients_table(causes), excluded_nodes_table(record)]
    else:
        chosen = [find_client(causes, client, record.round)]
        tables = [causes_table(chosen[0]), neighbours_table(chosen[0])]
    lines += [sentence(verdict_line(each, verdicts[each.place])) for each in chosen]
    if client is not None:
        lines += [f"  - {line}" for line in weight_lines(chosen[0])]
    return InWords(lines, [table for table in tables if table.rows])
