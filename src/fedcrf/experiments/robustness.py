"""Suites: which cells count, running those that are missing, and the tables of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.conditions import (
    Place,
    accuracy_table,
    heat_map_grid,
    overview_table,
    tables_of,
)
from fedcrf.experiments.analysis.tables import write_tables
from fedcrf.experiments.grid import (
    CellFailed,
    CellFinished,
    Event,
    Observer,
    Runs,
    Workplace,
    run_grids,
)
from fedcrf.experiments.provenance import FIRST
from fedcrf.experiments.results import counted, frame, suite_rows
from fedcrf.experiments.settings import differences, is_method
from fedcrf.experiments.spec import CellKey, CellSpec
from fedcrf.experiments.store import Score, Store, name_of, unseeded
from fedcrf.experiments.suite import Suite
from fedcrf.simulation.records import RoundRecord, Rounds

T = TypeVar("T")

AXES = ["partition", "condition", "method", "seed"]
"""Columns that say of a suite's cell which it is."""

ObserverOf = Callable[[Runs], AbstractContextManager[Observer]]


def judged(
    suite: Suite, scores: Sequence[Score], descriptions: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """Return the table of a folder's finished cells; complete are those that count.

    It has no stale cells that were run again; the index is the place among the scores. Behind the
    columns of every table is ``other``, which says why a cell is not of the suite, and the
    ``machine`` and ``commits`` that made it.
    """
    wanted, rows = suite.cells, []
    for score, (row, cell) in zip(scores, suite_rows(scores, descriptions), strict=True):
        other = ""
        if score.key not in wanted:
            other = f" of {score.partition}/{score.condition}/{score.method}"
        elif score.last_rounds != suite.last_rounds:
            other = f", means of the last {score.last_rounds} rounds, not of {suite.last_rounds}"
        elif isinstance(cell, FedcrfError):
            other = f" of settings that there are no longer ({cell})"
        elif cell != wanted[score.key]:
            found = differences(wanted[score.key].describe(), cell.describe())
            said = "; ".join(f"{key} is {theirs}, not {ours}" for key, ours, theirs in found)
            other = f" of other settings ({said})"
        if other:
            row |= {"other": other, "stale": "", "complete": False}
        machine = f"{score.provenance.processor}, torch {score.provenance.torch}"
        rows.append({**row, "machine": machine, "commits": score.provenance.every_commit})
    cells = frame(rows, other="", machine="", commits=())
    # Of the cells of one key that which counts comes last, else that which was kept last.
    last = cells.sort_values("complete", kind="stable")
    own = last[last["other"] == ""].drop_duplicates(AXES, keep="last").index
    return cells[(cells["other"] != "") | cells.index.isin(own)]


def keys_of(cells: pd.DataFrame) -> set[CellKey]:
    """Return which cells of a suite are complete."""
    return set(cells[cells["complete"]][AXES].itertuples(index=False, name=None))


def suite_cells(suite: Suite, store: Store) -> pd.DataFrame:
    """Return the table of a suite's finished cells in a folder; see `judged`."""
    scores = store.scores()
    return judged(suite, scores, store.descriptions(scores))


def held(complete: Suite, asked: Suite, store: Store) -> Suite:
    """Return the suite of all that is asked for, and of all that a folder holds beside it.

    ``complete`` has all partitions and conditions. Methods that are gone are left out.
    """
    scores, whole = store.scores(), asked.with_parts_of(complete)

    def known(asked: Iterable[T], held: Iterable[T], among: Iterable[T] | None = None) -> list[T]:
        names = dict.fromkeys([*asked, *held])
        return [name for name in among or names if name in names]

    methods = {score.method: None for score in scores if score.condition not in whole.ideals}
    return whole.chosen(
        methods=known(asked.methods, filter(is_method, methods)),
        seeds=sorted(known(asked.seeds, (score.seed for score in scores))),
        partitions=known(asked.partitions, (score.partition for score in scores), whole.partitions),
        conditions=known(asked.conditions, (score.condition for score in scores), whole.conditions),
    )


def stale_notices(cells: pd.DataFrame) -> list[str]:
    """Return a line for every reason why cells are stale, with their number."""
    return [
        f"{count} cells are stale and left out: {reason}; the suite's command runs them again"
        for reason, count in counted(cells["stale"]).items()
    ]


def other_notices(cells: pd.DataFrame) -> list[str]:
    """Return a line for every reason why cells are not of the suite, with their number."""
    return [
        f"left out, not of this suite: {count} finished cells{why}"
        for why, count in counted(cells["other"]).items()
    ]


def made_with(suite: Suite, cells: pd.DataFrame) -> str:
    """Return how many cells there are, by which machines and commits, in a line."""
    complete = cells[cells["complete"]]
    commits = sorted({commit or "–" for each in complete["commits"] for commit in each})
    machines = sorted(set(complete["machine"]))
    made = f" {'; '.join(machines)}; commit {', '.join(commits)}." if machines else ""
    return (
        f"{len(complete)} of {len(suite.cells)} cells; mean test accuracy of the last "
        f"{suite.last_rounds} rounds on the examples of clients that are right; n seeds."
        f"{made}{''.join(f' {line}.' for line in stale_notices(cells))}\n"
    )


def write_suite(suite: Suite, cells: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the tables as Markdown and CSV, and heat maps, unless the tables there show more."""
    from fedcrf.experiments.analysis.figures import heat_map_figure, save

    sections = [f"# {suite.title}: {suite.dataset}\n", made_with(suite, cells)]
    overview = overview_table(suite, cells)
    if len(suite.partitions) > 1 and overview.rows:
        sections.append(overview.as_markdown())
    texts, places = {}, [Place(suite, cells, partition) for partition in suite.partitions]
    for place in places:
        sections.append(f"## {place.partition}\n")
        sections += [f"{each.title}\n\n{each.as_markdown()}" for each in tables_of(place)]
        texts[f"accuracy-{place.partition}.csv"] = accuracy_table(place).as_csv()
    texts["tables.md"] = "\n".join(sections)
    paths = write_tables(folder, texts, cells)
    for place in places:
        title = f"{suite.title}: mean test accuracy\n{place.about}"
        figure = heat_map_figure(heat_map_grid(place), title)
        paths += save(figure, folder / f"heat-map-{place.partition}")
    return paths


def run_suite(
    suite: Suite, store: Store, workplace: Workplace, observer_of: ObserverOf
) -> list[CellFailed]:
    """Run every cell of a suite that is missing or stale, seed by seed; return those that failed.

    ``observer_of`` returns, for the runs of all seeds, who is called with everything that happens.
    """
    failed: list[CellFailed] = []
    cells = suite.cells  # what cannot be run is said before there is a folder
    store.check_suite()
    with store.locked():
        scores = store.scores()
        known = judged(suite, scores, store.descriptions(scores))
        done = keys_of(known)
        store.write_scores(scores[place] for place in known.index)  # no line that a kill cut off
        store.pack(done)  # whose command was killed before it did
        missing = [key for key in cells if key not in done]
        if not missing:
            return failed
        cell = cells[missing[0]]  # all have the suite's data
        store.check_scored_data(cell, workplace.load(cell.data).fingerprint)
        store.describe(cells[key] for key in missing)
        same: dict[CellSpec, list[CellKey]] = {}
        for key in missing:  # with other settings, conditions may come to the same
            same.setdefault(cells[key], []).append(key)
        first = [keys[0] for keys in same.values()]
        of_seeds = [_runs(suite, store, first, seed) for seed in dict.fromkeys(suite.seeds)]
        every = [run for runs in of_seeds for run in runs]
        stores = {cell: run for spec, run in every for cell in spec.cells()}
        scored: list[CellKey] = []
        with observer_of(every) as observer:

            def keep(event: Event) -> None:
                """Keep the score of a finished cell, and pass the event on."""
                if isinstance(event, CellFinished):
                    records = stores[event.cell].cell(event.cell).records()
                    for key in same[event.cell]:
                        store.append(_score(suite, key, event, records))
                        scored.append(key)
                observer(event)

            for runs in filter(None, of_seeds):
                failed += run_grids(runs, workplace, keep)
                store.pack(scored, same.values())
    return failed


def _runs(suite: Suite, store: Store, keys: Iterable[CellKey], seed: int) -> Runs:
    """Return the runs of those cells that have a seed, and their working folders."""
    wanted = set(keys)
    runs = []
    for at, spec in suite.study.points:
        methods = [name for name in spec.methods if (*at.values(), name, seed) in wanted]
        if methods:
            chosen = replace(spec, methods=tuple(methods), seeds=(seed,))
            runs.append((chosen, store.under_way(at["partition"], at["condition"], seed)))
    return runs


def _score(suite: Suite, key: CellKey, finished: CellFinished, records: Rounds) -> Score:
    last, summary = records[-suite.last_rounds :], finished.summary
    everyone = [record.everyone or record.test for record in last]
    behaviour = {part: number for part, number in summary.behaviour.items() if number != FIRST}
    separations = None
    if any(record.reasons is not None for record in records):
        areas = map(separation, records)
        separations = [round(each, 4) for each in areas if each is not None]

    def mean(values: Iterable[float | None]) -> Any:
        found: list[Any] = list(values)
        return None if None in found else float(np.mean(found))

    return Score(
        **dict(zip(AXES, key, strict=True)),
        accuracy=mean(record.test.accuracy for record in last),
        everyone=mean(each.accuracy for each in everyone),
        worst_client=mean(each.worst_client for each in everyone),
        held_out_accuracy=mean(each.held_out.accuracy if each.held_out else None for each in last),
        attack_success=mean(record.attack_success for record in last),
        last_rounds=suite.last_rounds,
        separation=separations,
        description=name_of(unseeded(finished.cell)),
        behaviour=behaviour or None,
        fingerprint=summary.fingerprint,
        provenance=summary.provenance,
    )


def separation(record: RoundRecord) -> float | None:
    """Return how well a round's weights tell its attackers from the others.

    It is the area under the curve: the chance that an attacker has a smaller share of its FedAvg
    weight than another client, ties counted half; None where nobody or everybody attacks.
    """
    shares = np.divide(
        record.weight,
        record.base_weight,
        out=np.zeros(len(record.weight)),
        where=np.asarray(record.base_weight) > 0,
    )
    wrong = np.isin(record.clients, record.attackers or [])
    if not wrong.any() or wrong.all() or not np.isfinite(shares).all():
        return None
    ranks = rankdata(-shares)
    few, others = int(wrong.sum()), int((~wrong).sum())
    return float((ranks[wrong].sum() - few * (few + 1) / 2) / (few * others))
