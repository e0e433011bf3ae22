"""What a suite shows: every method under every condition, its worst cases, and what it costs."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib.figure import Figure
from pydantic import ValidationError
from scipy.stats import rankdata

from fedcrf.errors import FedcrfError
from fedcrf.experiments.compare import Estimate, PairedDifference, estimate, paired_difference
from fedcrf.experiments.figures import heat_map_figure, save
from fedcrf.experiments.methods import method_title
from fedcrf.experiments.provenance import Provenance
from fedcrf.experiments.runner import (
    CellFailed,
    CellFinished,
    Event,
    Observer,
    Workplace,
    run_grids,
)
from fedcrf.experiments.spec import CellSpec, RunSpec, cell_of
from fedcrf.experiments.store import RunStore, folder_lock
from fedcrf.experiments.suite import BASELINE, Point, Suite
from fedcrf.experiments.tables import Table, difference_text
from fedcrf.files import atomic_write
from fedcrf.simulation.records import Number, Record, RoundRecord

NOT_RUN = "–"

T = TypeVar("T")

Runs = Sequence[tuple[RunSpec, RunStore]]
ObserverOf = Callable[[Runs], AbstractContextManager[Observer]]


class Score(Record):
    """The result of one cell of a suite.

    ``accuracy`` is the mean test accuracy of the last rounds. ``separation`` has for each round in
    which clients were wrong the chance that one of them has a smaller share of its FedAvg weight
    than one that is right, the area under the curve; None where the rule infers no weights.
    ``description`` is the name under which the folder keeps what the cell was, but for its seed;
    ``fingerprint`` is of its data.
    """

    partition: str
    condition: str
    method: str
    seed: int
    accuracy: Number
    separation: list[Number] | None = None
    description: str
    fingerprint: str
    provenance: Provenance


@dataclass(frozen=True)
class Ledger:
    """A folder's finished cells, a JSON line each, and the working folders of those to come.

    What the cells were is kept once for all seeds.

    Attributes:
        path: The folder.
    """

    path: Path

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder for writing.

        Raises:
            FedcrfError: Another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        return folder_lock(self.path, timeout=0.5)

    def scores(self) -> list[Score]:
        """Return what is finished; a line still being written is left out.

        Raises:
            FedcrfError: A line that is no score.
        """
        try:
            text = self._lines.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise FedcrfError(f"{self._lines} cannot be read: {error}") from None
        scores = []
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            if not line.endswith("\n"):
                break
            try:
                scores.append(Score.model_validate_json(line))
            except ValidationError:
                raise FedcrfError(
                    f"{self._lines}, line {number}, is not a cell's score: take the line out to "
                    "run that cell anew"
                ) from None
        return scores

    def descriptions(self) -> dict[str, dict[str, Any]]:
        """Return by name what cells were, but for their seeds.

        Raises:
            FedcrfError: The file is damaged.
        """
        try:
            return dict(json.loads(self._descriptions.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError):
            raise FedcrfError(
                f"{self._descriptions} does not describe cells: move the folder away to begin anew"
            ) from None

    def write(self, scores: Sequence[Score]) -> None:
        """Replace the finished cells by these."""
        with atomic_write(self._lines) as file:
            for score in scores:
                file.write(_line(score))

    def describe(self, cells: Iterable[CellSpec]) -> None:
        """Keep what cells are, before the first of them is finished."""
        known = self.descriptions()
        wanted = {_digest(cell): _unseeded(cell) for cell in cells}
        if not wanted.keys() <= known.keys():
            with atomic_write(self._descriptions) as file:
                file.write(json.dumps(known | wanted, indent=1).encode() + b"\n")

    def append(self, score: Score) -> None:
        """Keep one more finished cell, of those described."""
        with self._lines.open("ab") as file:
            file.write(_line(score))

    def run(self, partition: str, condition: str, seed: int) -> RunStore:
        """Return the working folder of one seed under one condition."""
        return RunStore(self._runs / partition / condition / f"seed-{seed}")

    def clear(self) -> None:
        """Remove the working folders: what they held is among the scores."""
        shutil.rmtree(self._runs, ignore_errors=True)

    @property
    def _descriptions(self) -> Path:
        return self.path / "descriptions.json"

    @property
    def _lines(self) -> Path:
        return self.path / "cells.jsonl"

    @property
    def _runs(self) -> Path:
        return self.path / "runs"


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
                failures = run_grids(list(grids.values()), workplace, keep)
            failed += failures
            if not failures:
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


def _point(score: Score) -> Point:
    return Point(score.partition, score.condition, score.method, score.seed)


def _unseeded(cell: CellSpec) -> dict[str, Any]:
    description = cell.describe()
    del description["seed"]
    return description


def _digest(cell: CellSpec) -> str:
    text = json.dumps(_unseeded(cell), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
        description=_digest(finished.cell),
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


def _is(description: Mapping[str, Any], cell: CellSpec) -> bool:
    """Tell whether a description is that of a cell."""
    try:
        return cell_of(description) == cell
    except FedcrfError:
        return False


@dataclass(frozen=True)
class Findings:
    """What the finished cells of a suite show, of the descriptions it has now.

    Attributes:
        suite: The suite.
        scores: Finished cells, some of which may be of other descriptions and are left out.
        descriptions: By name what they were, but for their seeds.
    """

    suite: Suite
    scores: Sequence[Score]
    descriptions: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, suite: Suite, ledger: Ledger) -> Findings:
        """Return all that a folder holds of a suite, and the cells asked for that it does not hold.

        Raises:
            FedcrfError: The folder's cells are damaged.
        """
        scores = ledger.scores()

        def known(
            asked: Iterable[T], held: Iterable[T], among: Iterable[T] | None = None
        ) -> list[T]:
            names = dict.fromkeys([*asked, *held])
            return [name for name in among or names if name in names]

        whole = suite.whole
        return cls(
            whole.chosen(
                methods=known(suite.methods, (score.method for score in scores)),
                seeds=sorted(known(suite.seeds, (score.seed for score in scores))),
                partitions=known(
                    suite.partitions, (score.partition for score in scores), whole.partitions
                ),
                conditions=known(
                    suite.conditions, (score.condition for score in scores), whole.conditions
                ),
            ),
            scores,
            ledger.descriptions(),
        )

    @cached_property
    def by_point(self) -> Mapping[Point, Score]:
        """The finished cells; settings that are new since they were run have their defaults."""
        cells = self.suite.cells
        same: dict[tuple[str, str], bool] = {}
        found = {}
        for score in self.scores:
            point = _point(score)
            if point not in cells:
                continue
            key = score.description, f"{point.partition}/{point.condition}/{point.method}"
            if key not in same:
                description = {**self.descriptions.get(score.description, {}), "seed": point.seed}
                same[key] = _is(description, cells[point])
            if same[key]:
                found[point] = score
        return found

    def accuracies(self, partition: str, condition: str, method: str) -> dict[int, float]:
        """Return the accuracy by seed."""
        points = (Point(partition, condition, method, seed) for seed in self.suite.seeds)
        return {p.seed: self.by_point[p].accuracy for p in points if p in self.by_point}

    def estimate(self, partition: str, condition: str, method: str) -> Estimate | None:
        """Return the mean over seeds; None where nothing is finished."""
        found = self.accuracies(partition, condition, method)
        return estimate(list(found.values())) if found else None

    def worst(
        self, partition: str, conditions: Sequence[str], method: str
    ) -> tuple[float, str] | None:
        """Return the least mean among conditions and which it is; None unless all are finished."""
        means = [(self.estimate(partition, name, method), name) for name in conditions]
        known = [(found.mean, name) for found, name in means if found is not None]
        return min(known) if known and len(known) == len(means) else None

    def difference(
        self, partition: str, condition: str, method: str, baseline: str = BASELINE
    ) -> PairedDifference | None:
        """Return the paired difference to FedAvg under the same condition."""
        return _paired(
            self.accuracies(partition, condition, method),
            self.accuracies(partition, condition, baseline),
        )

    def possible(self, partition: str, condition: str) -> PairedDifference | None:
        """Return what leaving out the wrong clients gains over FedAvg under a condition."""
        ideal = self.suite.conditions[condition].ideal
        if ideal is None:
            return None
        return _paired(
            self.accuracies(partition, ideal, BASELINE),
            self.accuracies(partition, condition, BASELINE),
        )

    def separation(self, partition: str, condition: str, method: str) -> tuple[float, float] | None:
        """Return the mean and the least over rounds, each the mean over seeds, of the areas."""
        points = (Point(partition, condition, method, seed) for seed in self.suite.seeds)
        rows = [self.by_point[p].separation for p in points if p in self.by_point]
        curves = [row for row in rows if row]
        if not curves or len({len(row) for row in curves}) > 1:
            return None
        mean = np.mean(np.array(curves), axis=0)
        return float(mean.mean()), float(mean.min())

    @property
    def tested(self) -> list[str]:
        """The conditions in which somebody may be wrong and methods are compared."""
        ideals = {each.ideal for each in self.suite.conditions.values()}
        return [name for name in self.suite.conditions if name not in ideals]

    @property
    def groups(self) -> dict[str, list[str]]:
        """By title the groups of which all conditions are there, and the conditions together."""
        groups = {
            title: list(names)
            for title, names in self.suite.groups.items()
            if all(name in self.suite.conditions for name in names)
        }
        groups["all shown"] = [name for name in self.tested if name != self.suite.reference]
        return {title: names for title, names in groups.items() if names}


def _paired(values: Mapping[int, float], reference: Mapping[int, float]) -> PairedDifference | None:
    shared = sorted(values.keys() & reference.keys())
    if not shared:
        return None
    return paired_difference([values[s] for s in shared], [reference[s] for s in shared])


def _place(findings: Findings, partition: str) -> str:
    suite = findings.suite
    return f"{suite.dataset}, {partition}, {suite.numbers}"


def overview_table(findings: Findings) -> Table:
    """Return a row a method: nobody wrong, and the worst case of the first group, by partition.

    The first row is what leaving out the wrong clients gives, where the suite asks for that.
    """
    suite = findings.suite
    title = f"{suite.title}: {suite.dataset}, {suite.numbers}"
    if not findings.groups:
        return Table(title, ("method",), ())
    group, names = next(iter(findings.groups.items()))

    def cell(partition: str, worst: float | None, method: str) -> str:
        quiet = findings.estimate(partition, suite.reference, method)
        return f"{_mean_text(quiet)} / {NOT_RUN if worst is None else format(worst, '.3f')}"

    def ideal(partition: str) -> float | None:
        means = [_ideal(findings, partition, name) for name in names]
        known = [each.mean for each in means if each is not None]
        return min(known) if len(known) == len(means) else None

    def worst(partition: str, method: str) -> float | None:
        found = findings.worst(partition, names, method)
        return None if found is None else found[0]

    ideals = {partition: ideal(partition) for partition in suite.partitions}
    rows = [
        (method_title(method), *(cell(p, worst(p, method), method) for p in suite.partitions))
        for method in suite.methods
    ]
    if any(each is not None for each in ideals.values()):
        rows.insert(0, ("left out", *(cell(p, each, BASELINE) for p, each in ideals.items())))
    header = ("method", *(f"{p}: none / worst of {group}" for p in suite.partitions))
    return Table(title, header, tuple(rows))


def summary_table(findings: Findings, partition: str) -> Table:
    """Return a row a method: nobody wrong, what that costs, and the worst case of each group."""
    suite = findings.suite
    rows = []
    for method in suite.methods:
        quiet = findings.estimate(partition, suite.reference, method)
        worst = [findings.worst(partition, names, method) for names in findings.groups.values()]
        rows.append(
            (
                method_title(method),
                "0" if quiet is None else str(quiet.seeds),
                _mean_text(quiet),
                difference_text(findings.difference(partition, suite.reference, method)),
                *(
                    NOT_RUN
                    if found is None
                    else f"{found[0]:.3f} ({suite.conditions[found[1]].title})"
                    for found in worst
                ),
            )
        )
    header = (
        "method",
        "n",
        "none",
        "Δ to FedAvg [95 %]",
        *(f"worst: {t}" for t in findings.groups),
    )
    return Table(f"{suite.title}: {_place(findings, partition)}", header, tuple(rows))


def accuracy_table(findings: Findings, partition: str) -> Table:
    """Return every method under every condition: mean accuracies."""
    suite, seeds = findings.suite, len(findings.suite.seeds)
    rows = [
        (
            suite.conditions[condition].title,
            _mean_text(_ideal(findings, partition, condition), seeds),
            *(_mean_text(findings.estimate(partition, condition, m), seeds) for m in suite.methods),
        )
        for condition in findings.tested
    ]
    header = ("condition", "left out", *map(method_title, suite.methods))
    return Table(f"{_place(findings, partition)}: mean accuracy", header, tuple(rows))


def difference_table(findings: Findings, partition: str) -> Table:
    """Return every method's paired difference to FedAvg under every condition."""
    suite = findings.suite
    others = [method for method in suite.methods if method != BASELINE]
    rows = [
        (
            suite.conditions[condition].title,
            difference_text(findings.possible(partition, condition)),
            *(difference_text(findings.difference(partition, condition, m)) for m in others),
        )
        for condition in findings.tested
    ]
    header = ("condition", "left out", *map(method_title, others))
    return Table(f"{_place(findings, partition)}: Δ to FedAvg [95 %]", header, tuple(rows))


def separation_table(findings: Findings, partition: str) -> Table:
    """Return how well the weights tell who is wrong; methods that infer weights only."""
    suite = findings.suite
    found = {
        (condition, method): findings.separation(partition, condition, method)
        for condition in findings.tested
        for method in suite.methods
    }
    inferring = [m for m in suite.methods if any(found[c, m] for c in findings.tested)]
    rows = []
    for condition in findings.tested:
        areas = [found[condition, method] for method in inferring]
        if any(areas):
            texts = (
                NOT_RUN if each is None else f"{each[0]:.2f} ({each[1]:.2f})" for each in areas
            )
            rows.append((suite.conditions[condition].title, *texts))
    title = f"{_place(findings, partition)}: area under the curve, mean (least) over rounds"
    return Table(title, ("condition", *map(method_title, inferring)), tuple(rows))


def write_findings(findings: Findings, folder: Path) -> list[Path]:
    """Write the tables as Markdown and CSV, and a heat map for each partition."""
    suite = findings.suite
    texts = [f"# {suite.title}: {suite.dataset}\n", _made_with(findings)]
    overview = overview_table(findings)
    if len(suite.partitions) > 1 and overview.rows:
        texts.append(overview.as_markdown())
    paths = []
    for partition in suite.partitions:
        texts.append(f"## {partition}\n")
        accuracies = accuracy_table(findings, partition)
        tables = (
            summary_table(findings, partition),
            accuracies,
            difference_table(findings, partition),
            separation_table(findings, partition),
        )
        texts += [f"{each.title}\n\n{each.as_markdown()}" for each in tables if each.rows]
        paths.append(folder / f"accuracy-{partition}.csv")
        with atomic_write(paths[-1]) as file:
            file.write(accuracies.as_csv().encode())
        paths += save(_heat_map(findings, partition), folder / f"heat-map-{partition}")
    paths.append(folder / "tables.md")
    with atomic_write(paths[-1]) as file:
        file.write("\n".join(texts).encode())
    return paths


def _heat_map(findings: Findings, partition: str) -> Figure:
    suite = findings.suite
    groups = findings.groups

    def means(condition: str) -> list[float]:
        found = [findings.estimate(partition, condition, method) for method in suite.methods]
        return [math.nan if each is None else each.mean for each in found]

    def worst(conditions: Sequence[str]) -> list[float]:
        found = [findings.worst(partition, conditions, method) for method in suite.methods]
        return [math.nan if each is None else each[0] for each in found]

    rows = [suite.conditions[name].title for name in findings.tested]
    return heat_map_figure(
        [*map(means, findings.tested), *map(worst, groups.values())],
        rows=("", [*rows, *(f"worst: {title}" for title in groups)]),
        columns=("", [method_title(method) for method in suite.methods]),
        title=f"{suite.title}: mean test accuracy\n{_place(findings, partition)}",
        marked=None,
    )


def _made_with(findings: Findings) -> str:
    made = sorted({(s.provenance.commit or "–") for s in findings.by_point.values()})
    machines = sorted(
        {
            f"{s.provenance.processor}, torch {s.provenance.torch}"
            for s in findings.by_point.values()
        }
    )
    total = len(findings.suite.cells)
    return (
        f"{len(findings.by_point)} of {total} cells; mean test accuracy of the last "
        f"{findings.suite.last_rounds} rounds on the examples of clients that are right; "
        f"n seeds. {'; '.join(machines)}; commit {', '.join(made)}.\n"
    )


def _ideal(findings: Findings, partition: str, condition: str) -> Estimate | None:
    ideal = findings.suite.conditions[condition].ideal
    return None if ideal is None else findings.estimate(partition, ideal, BASELINE)


def _mean_text(found: Estimate | None, seeds: int = 0) -> str:
    """Return a mean; with the number of its seeds where there are not so many."""
    if found is None:
        return NOT_RUN
    return f"{found.mean:.3f}" + (f" (n = {found.seeds})" if found.seeds < seeds else "")


def _line(score: Score) -> bytes:
    return score.model_dump_json(exclude_none=True).encode() + b"\n"
