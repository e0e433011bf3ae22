"""What happened in a run, before anything else: up to three numbers, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedcrf.experiments.analysis.tables import (
    BASELINE,
    Estimate,
    estimate_text,
    interval_text,
    mean_accuracy,
    method_difference,
)
from fedcrf.experiments.results import RunResults
from fedcrf.experiments.store import Course
from fedcrf.objectives import ACCURACY, LOSS
from fedcrf.report.effects import effects_of, verdicts_of
from fedcrf.report.explanation import excluded_since, find_cell, since_when
from fedcrf.simulation.records import RoundRecord, Rounds, in_order

LASTING = 3
"""Clients are named that were distrusted over so many rounds up to their last one, or in all of a
shorter run."""

MOST_NAMED = 12
"""Clients that a tile names."""


@dataclass(frozen=True)
class Tile:
    """One number."""

    title: str
    value: str
    about: str  # what it is of, and beside what it stands


@dataclass(frozen=True)
class Headline:
    """What happened, as one sentence and as tiles; without what is not known."""

    sentence: str
    tiles: Sequence[Tile]


def headline_of(run: RunResults) -> Headline:
    """Return what happened in a run.

    It is about the first method that infers weights; who was distrusted, about its first seed.
    """
    cell = find_cell(run.spec, None, None)
    method, title = cell.method.name, cell.method.title
    accuracy, fedavg = mean_accuracy(run.table, method), mean_accuracy(run.table, BASELINE)
    gain = method_difference(run.table, method)
    tiles: list[Tile] = []
    said = [f"{title} has no result yet" if run.finished else "No cell of this run is finished yet"]
    if accuracy is not None:
        beside = f"; FedAvg {estimate_text(fedavg)}" if gain is not None and fedavg else ""
        seeds = f"mean of {accuracy.seeds} seeds" if accuracy.seeds > 1 else "one seed"
        tiles.append(Tile("Test accuracy", estimate_text(accuracy), f"{title}, {seeds}{beside}"))
        said = [f"{title} reaches a test accuracy of {accuracy.mean:.3f}"]
    shown = [each for each in run.cells if each.cell == cell and each.records]
    distrusted = distrusted_clients(shown[0]) if shown else None
    if distrusted is not None:
        tile, who = distrusted
        of_seed = f"seed {cell.seed}" if len(run.spec.seeds) > 1 else ""
        tiles.append(replace(tile, about="; ".join(filter(None, (tile.about, of_seed)))))
        whose = "it" if accuracy is not None else f"so far {title}"
        said.append(f"{whose} distrusts {who}")
    if gain is not None:
        tile, than = _beside_fedavg(gain)
        tiles.append(tile)
        said[0] += f", {than}"
    return Headline(f"{'; '.join(said)}.", tiles)


def _beside_fedavg(gain: Estimate) -> tuple[Tile, str]:
    """Return how far an accuracy lies from FedAvg's, as a tile and in words."""
    if gain.mean == 0.0 and not gain.sd > 0.0:  # the deviation of one seed is NaN
        where = "the same test accuracy" + (" in every seed" if gain.seeds > 1 else "")
        return Tile("Beside FedAvg", "no difference", where), "the same as FedAvg"
    points = f"{100 * abs(gain.mean):.1f} points"
    in_points = replace(gain, low=100 * gain.low, high=100 * gain.high)
    interval = f"of test accuracy; 95 % {interval_text(in_points, '+.1f')}"
    more = "more" if gain.mean > 0 else "less"
    if not gain.low <= 0.0 <= gain.high:  # the interval of few seeds is NaN
        change = "Gained over FedAvg" if gain.mean > 0 else "Cost against FedAvg"
        return Tile(change, points, interval), f"{points} {more} than FedAvg"
    unclear = "no clear difference"
    if points == "0.0 points":
        tile = Tile("Beside FedAvg", unclear, f"{points} {interval}")
        return tile, "the same as FedAvg on average"
    tile = Tile("Beside FedAvg", unclear, f"{points} {more} {interval}")
    return tile, f"{points} {more} than FedAvg, which is {unclear}"


def recorded_headline(run: Course, fedavg: Rounds = ()) -> Headline:
    """Return what happened in a run that another framework, or `fedcrf.simulate`, carried out.

    ``fedavg`` has the rounds of the same run with FedAvg, if there is one.
    """
    title = run.title
    if not run.records:
        return Headline(f"{title} has no rounds yet.", [])
    last = run.records[-1]
    rounds = "one round" if last.round == 1 else f"{last.round} rounds"
    tiles, said = [], [f"{title} has done {rounds}"]
    if not any(each.clients for each in run.records):
        said[0] += ", in which no client's reply was usable, so that the model never changed"
    beside_fedavg: Tile | None = None
    evaluated = ((each, _first_measured(each)) for each in reversed(run.records))
    latest = next(((each, what) for each, what in evaluated if what is not None), None)
    if latest is not None:
        record, (of, what) = latest
        value = getattr(getattr(record, of), what)
        form = ".3f" if what == ACCURACY else ".4g"
        about = [f"{title}, in round {record.round}"]
        others = (record.metrics or {}).get(of, {})
        about += [
            f"{other} {number:.4g}" for other, number in others.items() if math.isfinite(number)
        ]
        same_round = [getattr(each, of) for each in fedavg if each.round == record.round]
        for fedavgs in filter(math.isfinite, (getattr(each, what) for each in same_round)):
            about.append(f"FedAvg {fedavgs:{form}}")
            more = value - fedavgs
            text = f"{100 * more:+.1f} points" if what == ACCURACY else f"{more:+.4g}"
            beside_fedavg = Tile("Beside FedAvg", text, f"of {of} {what}; one seed")
        tiles.append(Tile(f"{of.capitalize()} {what}", f"{value:{form}}", "; ".join(about)))
        which = "the last" if record is last else f"round {record.round}"
        said[0] += f", {which} with a {of} {what} of {value:{form}}"
    distrusted = distrusted_clients(run)
    if distrusted is not None:
        tile, who = distrusted
        tiles.append(tile)
        said.append(f"it distrusts {who}")
    if beside_fedavg is not None:
        tiles.append(beside_fedavg)
    return Headline(f"{'; '.join(said)}.", tiles)


def _first_measured(record: RoundRecord) -> tuple[str, str] | None:
    """Return on which part of the examples a round measured something first, and what."""
    for of in ("test", "validation"):
        for what in (ACCURACY, LOSS):
            if math.isfinite(getattr(getattr(record, of), what)):
                return of, what
    return None


def distrusted_clients(course: Course) -> tuple[Tile, str] | None:
    """Return who is distrusted or excluded, and since when, as a tile and in words.

    Of each client of the run its own last verdict counts: rounds may be of a part of them, or of
    nobody. None where the rule judges nobody.
    """
    effects = [effects_of(record, course.rule) for record in course.records]
    of_rounds = zip(course.records, verdicts_of(course.records, effects), strict=True)
    judged = [
        (client, record, verdict)
        for record, found in of_rounds
        for client, verdict in zip(record.clients, found, strict=True)
    ]
    verdicts = {client: verdict for client, _, verdict in judged}  # the last ones
    last = {client: record for client, record, _ in judged}
    if all(each.kind in ("unjudged", "weightless") for each in verdicts.values()):
        return None
    since = {
        client: verdicts[client].since for client in in_order(verdicts) if verdicts[client].is_low
    }
    lasting = min(LASTING, course.records[-1].round)
    low = {
        client: first
        for client, first in since.items()
        if last[client].round - first + 1 >= lasting
    }
    out = {client: first for client, first in low.items() if verdicts[client].kind == "excluded"}
    distrusted = {client: first for client, first in low.items() if client not in out}
    named = since_when(distrusted, MOST_NAMED)
    counts = excluded_since(out, MOST_NAMED)
    if attackers := course.attackers:
        missed = {
            each for each in attackers if each in last and each in (last[each].attackers or ())
        }
        if missed and not since.keys() & {*attackers}:
            once = {  # distrusted for long at any time
                client
                for client, record, verdict in judged
                if verdict.is_low and record.round - verdict.since + 1 >= LASTING
            }
            earlier = missed & once
            for them, became in ((missed - earlier, "missed"), (earlier, "distrusted earlier")):
                if them:
                    counts.append(f"{_of_attackers(len(them))} {became}")
        else:
            found = len(low.keys() & {*attackers})
            counts.append(f"{found} of {_of_attackers(len(attackers))}")
    short = [each for each in since.keys() - low.keys() if verdicts[each].kind == "distrusted"]
    if short:
        counts.append(not_counted(len(short), more=bool(distrusted)))
    about = [*named, *counts]
    said = "; ".join(named if len(distrusted) > MOST_NAMED else about)
    count = f"{len(distrusted) or 'none'} of {len(verdicts)}"
    who = f"{count} clients" + (f" ({said})" if said else "")
    return Tile("Distrusted clients", count, "; ".join(about)), who


def _of_attackers(count: int) -> str:
    return f"{count} attacker{'s' if count > 1 else ''}"


def not_counted(clients: int, *, more: bool) -> str:
    """Return how many clients have not been distrusted for long, beside others if ``more``."""
    who = f"{clients}{' more' if more else ''} client{'s' if clients > 1 else ''}"
    are = "are" if clients > 1 else "is"
    return f"{who}, distrusted for fewer than {LASTING} rounds, {are} not counted"
