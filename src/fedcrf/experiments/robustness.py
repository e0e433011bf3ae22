"""Runs a suite: every method under every condition, and keeps the score of each cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
from scipy.stats import rankdata

from fedcrf.experiments.findings import Findings
from fedcrf.experiments.ledger import Ledger, Score, digest
from fedcrf.experiments.runner import (
    CellFailed,
    CellFinished,
    Event,
    Observer,
    Workplace,
    run_grids,
)
from fedcrf.experiments.spec import RunSpec
from fedcrf.experiments.store import RunStore
from fedcrf.experiments.suite import Point, Suite
from fedcrf.simulation.records import RoundRecord

Runs = Sequence[tuple[RunSpec, RunStore]]
ObserverOf = Callable[[Runs], AbstractContextManager[Observer]]


def run_suite(
    suite: Suite, ledger: Ledger, workplace: Workplace, observer_of: ObserverOf
) -> list[CellFailed]:
    """Run every cell of a suite that is not finished yet, seed by seed.

    Args:
        suite: What to run.
        ledger: Where the results go.
        workplace: Where the data lie, on what device, how many at once.
        observer_of: Returns, for the runs of a seed, who is told everything that happens.

    Returns:
        The cells that failed; empty where all is well.

    Raises:
        FedcrfError: Anything the user can mend.
    """
    failed: list[CellFailed] = []
    cells = suite.cells  # what cannot be run is said before there is a folder
    with ledger.locked():
        known = ledger.scores()
        ledger.write(known)  # without a last line that a kill cut off
        done = Findings(suite, known, ledger.descriptions()).by_point
        missing = [point for point in cells if point not in done]
        ledger.describe(cells[point] for point in missing)
        for seed in suite.seeds:
            grids = _grids(suite, ledger, [point for point in missing if point.seed == seed])
            if not grids:
                continue
            with observer_of(list(grids.values())) as observer:
                keep = _Keeper(suite, ledger, grids, observer)
                failed += run_grids(list(grids.values()), workplace, keep)
            if not failed:  # else a cell of this seed, or of one before, is to go on from there
                ledger.clear()
    return failed


Grids = Mapping[tuple[str, str], tuple[RunSpec, RunStore]]
"""By partition and condition, a run and its working folder."""


def _grids(suite: Suite, ledger: Ledger, missing: Sequence[Point]) -> Grids:
    """Return the runs of cells of one seed."""
    methods: dict[tuple[str, str], list[str]] = {}
    for point in missing:
        methods.setdefault((point.partition, point.condition), []).append(point.method)
    seeds = [point.seed for point in missing[:1]]
    return {
        place: (suite.spec(*place, names, seeds), ledger.run(*place, *seeds))
        for place, names in methods.items()
    }


class _Keeper:
    """An observer that keeps the score of every finished cell, and tells another."""

    def __init__(self, suite: Suite, ledger: Ledger, grids: Grids, observer: Observer) -> None:
        self._suite, self._ledger, self._observer = suite, ledger, observer
        self._places = {
            cell: (Point(*place, cell.method.name, cell.seed), store)
            for place, (spec, store) in grids.items()
            for cell in spec.cells()
        }

    def __call__(self, event: Event) -> None:
        if isinstance(event, CellFinished):
            point, store = self._places[event.cell]
            records = store.cell(event.cell).records()
            self._ledger.append(_score(self._suite, point, event, records))
        self._observer(event)


def _score(
    suite: Suite, point: Point, finished: CellFinished, records: Sequence[RoundRecord]
) -> Score:
    last = [record.test.accuracy for record in records[-suite.last_rounds :]]
    separations = [separation(record) for record in records]
    inferred = any(record.reasons is not None for record in records)
    return Score(
        partition=point.partition,
        condition=point.condition,
        method=point.method,
        seed=point.seed,
        accuracy=float(np.mean(last)),
        separation=[round(each, 4) for each in separations if each is not None]
        if inferred
        else None,
        description=digest(finished.cell),
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
