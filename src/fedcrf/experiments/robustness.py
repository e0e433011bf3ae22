"""Suites run and shown: what of one is missing, which finished cells count, and what they show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from scipy.stats import rankdata

from fedcrf.experiments.analysis.conditions import (
    accuracy_table,
    heat_map_grid,
    overview_table,
    place_title,
    tables_of,
)
from fedcrf.experiments.analysis.tables import check_not_emptier
from fedcrf.experiments.grid import (
    CellFailed,
    CellFinished,
    Event,
    Observer,
    Workplace,
    run_grids,
)
from fedcrf.experiments.methods import is_method
from fedcrf.experiments.provenance import FIRST
from fedcrf.experiments.results import cells_today, frame, score_row
from fedcrf.experiments.settings import differences
from fedcrf.experiments.spec import CellKey, CellSpec, RunSpec
from fedcrf.experiments.store import Score, Store, digest
from fedcrf.experiments.suite import Suite
from fedcrf.files import write_text
from fedcrf.simulation.records import RoundRecord

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

Runs = Sequence[tuple[RunSpec, Store]]
ObserverOf = Callable[[Runs], AbstractContextManager[Observer]]


class _Judged(NamedTuple):
    """A finished cell, why it is not of the suite, and why it is stale; both empty if it counts."""

    score: Score
    why: str
    stale: str


@dataclass(frozen=True)
class Findings:
    """What the finished cells of a suite show, of the descriptions it has now.

    Attributes:
        suite: The suite.
        scores: Finished cells, some of which may be of other descriptions, or made by code that did
            something else than today's; they are left out.
        descriptions: By name what they were, but for their seeds.
    """

    suite: Suite
    scores: Sequence[Score]
    descriptions: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, suite: Suite, store: Store) -> Findings:
        """Return all that a folder holds of a suite, and the cells asked for that it does not hold.

        Scores of methods that there are no longer are left out.

        Raises:
            FedcrfError: The folder's cells or their descriptions are damaged.
        """
        scores = store.scores()

        def known(
            asked: Iterable[T], held: Iterable[T], among: Iterable[T] | None = None
        ) -> list[T]:
            names = dict.fromkeys([*asked, *held])
            return [name for name in among or names if name in names]

        whole = suite.whole
        held_methods = dict.fromkeys(
            score.method for score in scores if score.condition not in whole.ideals
        )
        return cls(
            whole.chosen(
                methods=known(suite.methods, filter(is_method, held_methods)),
                seeds=sorted(known(suite.seeds, (score.seed for score in scores))),
                partitions=known(
                    suite.partitions, (score.partition for score in scores), whole.partitions
                ),
                conditions=known(
                    suite.conditions, (score.condition for score in scores), whole.conditions
                ),
            ),
            scores,
            store.descriptions(scores),
        )

    @cached_property
    def by_key(self) -> Mapping[CellKey, Score]:
        """The finished cells; settings that are new since they were run have their defaults."""
        return {j.score.key: j.score for j in self._judged if not (j.why or j.stale)}

    @cached_property
    def stale(self) -> Mapping[CellKey, str]:
        """Cells that are only there as other code made them, and what has changed since."""
        return {
            judged.score.key: judged.stale
            for judged in self._judged
            if judged.stale and judged.score.key not in self.by_key
        }

    @property
    def remarks(self) -> list[str]:
        """A line for every reason why cells are stale, with their number."""
        return [
            f"{count} cells are stale and left out: {reason}; the suite's command runs them again"
            for reason, count in Counter(self.stale.values()).items()
        ]

    @property
    def lasting(self) -> list[Score]:
        """The finished cells, but for stale ones that have been run again."""
        return [
            judged.score
            for judged in self._judged
            if not judged.stale or judged.score.key in self.stale
        ]

    @property
    def others(self) -> list[str]:
        """A line for every reason why finished cells are not of this suite, with their number."""
        reasons = Counter(judged.why for judged in self._judged if judged.why)
        return [
            f"left out, not of this suite: {count} finished cells{why}"
            for why, count in reasons.items()
        ]

    @cached_property
    def _judged(self) -> Sequence[_Judged]:
        """The finished cells, and why those that do not count do not."""
        cells, rounds = self.suite.cells, self.suite.last_rounds
        judged = []
        today = cells_today(self.scores, self.descriptions)
        for score, (cell, stale) in zip(self.scores, today, strict=True):
            why = ""
            if score.key not in cells:
                why = f" of {score.partition}/{score.condition}/{score.method}"
            elif score.last_rounds != rounds:
                why = f", means of the last {score.last_rounds} rounds, not of {rounds}"
            elif cell is None:
                why = f" of settings that there are no longer ({stale})"
            elif cell != cells[score.key]:
                why = f" of other settings ({_differences(cell, cells[score.key])})"
            judged.append(_Judged(score, why, "" if why else stale))
        return judged

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The table of the finished cells that count."""
        return frame({**score_row(each), "complete": True} for each in self.by_key.values())

    @property
    def made_with(self) -> str:
        """How many cells there are, by which machines and commits, in a line."""
        provenances = [score.provenance for score in self.by_key.values()]
        commits = sorted({commit or "–" for each in provenances for commit in each.every_commit})
        machines = sorted({f"{each.processor}, torch {each.torch}" for each in provenances})
        made = f" {'; '.join(machines)}; commit {', '.join(commits)}." if provenances else ""
        return (
            f"{len(provenances)} of {len(self.suite.cells)} cells; mean test accuracy of the last "
            f"{self.suite.last_rounds} rounds on the examples of clients that are right; n seeds."
            f"{made}{''.join(f' {line}.' for line in self.remarks)}\n"
        )


def write_findings(findings: Findings, folder: Path) -> list[Path]:
    """Write the tables as Markdown and CSV, and a heat map for each partition.

    Raises:
        FedcrfError: The folder's tables show more, and nothing is stale; nothing is written.
    """
    from fedcrf.experiments.analysis.figures import heat_map_figure, save

    suite, cells = findings.suite, findings.cells
    texts = [f"# {suite.title}: {suite.dataset}\n", findings.made_with]
    overview = overview_table(suite, cells)
    if len(suite.partitions) > 1 and overview.rows:
        texts.append(overview.as_markdown())
    for partition in suite.partitions:
        texts.append(f"## {partition}\n")
        tables = tables_of(suite, cells, partition)
        texts += [f"{each.title}\n\n{each.as_markdown()}" for each in tables]
    page = "\n".join(texts)
    check_not_emptier(folder / "tables.md", page, bool(findings.stale))
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for partition in suite.partitions:
        paths.append(folder / f"accuracy-{partition}.csv")
        write_text(paths[-1], accuracy_table(suite, cells, partition).as_csv())
        title = f"{suite.title}: mean test accuracy\n{place_title(suite, partition)}"
        figure = heat_map_figure(heat_map_grid(suite, cells, partition), title)
        paths += save(figure, folder / f"heat-map-{partition}")
    paths.append(folder / "tables.md")
    write_text(paths[-1], page)
    return paths


def _differences(there: CellSpec, cell: CellSpec) -> str:
    """Return how a cell that was run differs from the suite's."""
    found = differences(cell.describe(), there.describe())
    return "; ".join(f"{key} is {theirs}, not {ours}" for key, ours, theirs in found)


def run_suite(
    suite: Suite, store: Store, workplace: Workplace, observer_of: ObserverOf
) -> list[CellFailed]:
    """Run every cell of a suite that is not finished yet, or is stale, seed by seed.

    Args:
        suite: What to run.
        store: Where the results go.
        workplace: Where the data lie, on what device, how many at once.
        observer_of: Returns, for the runs of all seeds, who is told everything that happens.

    Returns:
        The cells that failed; empty where all is well.

    Raises:
        FedcrfError: Anything the user can mend.
    """
    failed: list[CellFailed] = []
    cells = suite.cells  # what cannot be run is said before there is a folder
    store.check_suite()
    with store.locked():
        known = store.scores()
        findings = Findings(suite, known, store.descriptions(known))
        done = findings.by_key
        store.write_scores(findings.lasting)  # without a last line that a kill cut off
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
                """Keep the score of a finished cell, and tell the observer."""
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
    for point in suite.study.points:
        methods = [name for name in point.spec.methods if (*point.values, name, seed) in wanted]
        if methods:
            spec = replace(point.spec, methods=tuple(methods), seeds=(seed,))
            runs.append((spec, store.under_way(point.at["partition"], point.at["condition"], seed)))
    return runs


def _score(
    suite: Suite, key: CellKey, finished: CellFinished, records: Sequence[RoundRecord]
) -> Score:
    partition, condition, method, seed = key
    last = records[-suite.last_rounds :]
    everyone = [record.everyone or record.test for record in last]
    separations = [separation(record) for record in records]
    inferred = any(record.reasons is not None for record in records)
    return Score(
        partition=partition,
        condition=condition,
        method=method,
        seed=seed,
        accuracy=float(np.mean([record.test.accuracy for record in last])),
        everyone=float(np.mean([each.accuracy for each in everyone])),
        worst_client=float(np.mean([each.worst_client for each in everyone])),
        last_rounds=suite.last_rounds,
        separation=[round(each, 4) for each in separations if each is not None]
        if inferred
        else None,
        description=digest(finished.cell),
        behaviour={
            part: number for part, number in finished.summary.behaviour.items() if number != FIRST
        }
        or None,
        fingerprint=finished.summary.fingerprint,
        provenance=finished.summary.provenance,
    )


def separation(record: RoundRecord) -> float | None:
    """Return how well a round's weights tell its attackers from the others.

    Returns:
        The area under the curve: the chance that an attacker has a smaller share of its FedAvg
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
