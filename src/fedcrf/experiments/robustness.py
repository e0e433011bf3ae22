"""Runs a suite: every method under every condition, and keeps the score of each cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
from scipy.stats import rankdata

from fedcrf.experiments.findings import Findings
from fedcrf.experiments.grid import (
    CellFailed,
    CellFinished,
    Event,
    Observer,
    Workplace,
    run_grids,
)
from fedcrf.experiments.packed import Ledger, Score, digest
from fedcrf.experiments.provenance import FIRST
from fedcrf.experiments.spec import CellSpec, RunSpec
from fedcrf.experiments.store import RunStore
from fedcrf.experiments.suite import Point, Suite
from fedcrf.simulation.records import RoundRecord

Runs = Sequence[tuple[RunSpec, RunStore]]
ObserverOf = Callable[[Runs], AbstractContextManager[Observer]]


def run_suite(
    suite: Suite, ledger: Ledger, workplace: Workplace, observer_of: ObserverOf
) -> list[CellFailed]:
    """Run every cell of a suite that is not finished yet, or is stale, seed by seed.

    Args:
        suite: What to run.
        ledger: Where the results go.
        workplace: Where the data lie, on what device, how many at once.
        observer_of: Returns, for the runs of all seeds, who is told everything that happens.

    Returns:
        The cells that failed; empty where all is well.

    Raises:
        FedcrfError: Anything the user can mend.
    """
    failed: list[CellFailed] = []
    cells = suite.cells  # what cannot be run is said before there is a folder
    with ledger.locked():
        known = ledger.scores()
        findings = Findings(suite, known, ledger.descriptions(known))
        done = findings.by_point
        ledger.write(findings.lasting)  # without a last line that a kill cut off
        ledger.pack(done)  # whose command was killed before it did
        missing = [point for point in cells if point not in done]
        if not missing:
            return failed
        cell = cells[missing[0]]  # all have the suite's data
        ledger.check_data(cell, workplace.load(cell.data).fingerprint, known)
        ledger.describe(cells[point] for point in missing)
        points: dict[CellSpec, list[Point]] = {}
        for point in missing:  # with other settings, conditions may come to the same
            points.setdefault(cells[point], []).append(point)
        first = [same[0] for same in points.values()]
        of_seeds = [_runs(suite, ledger, first, seed) for seed in dict.fromkeys(suite.seeds)]
        with observer_of([run for runs in of_seeds for run in runs]) as observer:
            for runs in filter(None, of_seeds):
                keeper = _Keeper(suite, ledger, runs, points, observer)
                failed += run_grids(runs, workplace, keeper)
                ledger.pack(keeper.scored, points.values())
    return failed


def _runs(suite: Suite, ledger: Ledger, points: Iterable[Point], seed: int) -> Runs:
    """Return the runs of those cells that have a seed, and their working folders."""
    methods: dict[tuple[str, str], list[str]] = {}
    for point in points:
        if point.seed == seed:
            methods.setdefault((point.partition, point.condition), []).append(point.method)
    return [
        (suite.spec(*place, names, [seed]), ledger.run(*place, seed))
        for place, names in methods.items()
    ]


class _Keeper:
    """An observer that keeps the score of every finished cell, and tells another."""

    def __init__(
        self,
        suite: Suite,
        ledger: Ledger,
        runs: Runs,
        points: Mapping[CellSpec, Sequence[Point]],
        observer: Observer,
    ) -> None:
        self._suite, self._ledger, self._points, self._observer = suite, ledger, points, observer
        self._stores = {cell: store for spec, store in runs for cell in spec.cells()}
        self.scored: list[Point] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, CellFinished):
            records = self._stores[event.cell].cell(event.cell).records()
            for point in self._points[event.cell]:
                self._ledger.append(_score(self._suite, point, event, records))
                self.scored.append(point)
        self._observer(event)


def _score(
    suite: Suite, point: Point, finished: CellFinished, records: Sequence[RoundRecord]
) -> Score:
    last = records[-suite.last_rounds :]
    everyone = [record.everyone or record.test for record in last]
    separations = [separation(record) for record in records]
    inferred = any(record.reasons is not None for record in records)
    return Score(
        partition=point.partition,
        condition=point.condition,
        method=point.method,
        seed=point.seed,
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
