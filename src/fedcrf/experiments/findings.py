"""What the finished cells of a suite show: means, worst cases and differences, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from fedcrf.errors import FedcrfError
from fedcrf.experiments.compare import (
    Estimate,
    PairedDifference,
    WorstCase,
    estimate,
    paired_difference,
    worst_case,
)
from fedcrf.experiments.methods import is_method
from fedcrf.experiments.packed import Ledger, Score
from fedcrf.experiments.provenance import changes
from fedcrf.experiments.spec import CellSpec, cell_of
from fedcrf.experiments.suite import BASELINE, Point, Suite

T = TypeVar("T")


class _Judged(NamedTuple):
    """A finished cell, why it is not of the suite, and what does something else since it was run.

    None and nothing where it counts.
    """

    score: Score
    why: str | None
    changed: Sequence[str]


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
    def of(cls, suite: Suite, ledger: Ledger) -> Findings:
        """Return all that a folder holds of a suite, and the cells asked for that it does not hold.

        Scores of methods that there are no longer are left out.

        Raises:
            FedcrfError: The folder's cells or their descriptions are damaged.
        """
        scores = ledger.scores()

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
            ledger.descriptions(scores),
        )

    @cached_property
    def by_point(self) -> Mapping[Point, Score]:
        """The finished cells; settings that are new since they were run have their defaults."""
        return {j.score.point: j.score for j in self._judged if j.why is None and not j.changed}

    @cached_property
    def stale(self) -> Mapping[Point, str]:
        """Cells that are only there as other code made them, and what has changed since."""
        return {
            judged.score.point: "; ".join(judged.changed)
            for judged in self._judged
            if judged.changed and judged.score.point not in self.by_point
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
            if not judged.changed or judged.score.point in self.stale
        ]

    @property
    def others(self) -> list[str]:
        """A line for every reason why finished cells are not of this suite, with their number."""
        reasons = Counter(judged.why for judged in self._judged if judged.why is not None)
        return [
            f"left out, not of this suite: {count} finished cells{why}"
            for why, count in reasons.items()
        ]

    @cached_property
    def _judged(self) -> Sequence[_Judged]:
        """The finished cells, and why those that do not count do not."""
        cells, rounds = self.suite.cells, self.suite.last_rounds
        settings: dict[tuple[str, str], str | None] = {}
        judged = []
        for score in self.scores:
            point = score.point
            place = f"{point.partition}/{point.condition}/{point.method}"
            changed: Sequence[str] = ()
            if point not in cells:
                why: str | None = f" of {place}"
            elif score.last_rounds != rounds:
                why = f", means of the last {score.last_rounds} rounds, not of {rounds}"
            else:
                key = score.description, place
                if key not in settings:
                    description = {**self.descriptions[score.description], "seed": point.seed}
                    settings[key] = _other_settings(description, cells[point])
                why = settings[key]
                if why is None:
                    kept, device = score.behaviour or {}, score.provenance.device
                    changed = changes(cells[point], kept, device)
            judged.append(_Judged(score, why, changed))
        return judged

    def accuracies(self, partition: str, condition: str, method: str) -> dict[int, float]:
        """Return the accuracy by seed."""
        points = (Point(partition, condition, method, seed) for seed in self.suite.seeds)
        return {p.seed: self.by_point[p].accuracy for p in points if p in self.by_point}

    def estimate(
        self, partition: str, condition: str, method: str, seeds: Collection[int] | None = None
    ) -> Estimate | None:
        """Return the mean over seeds, all that are finished or these; None where there are none."""
        found = self.accuracies(partition, condition, method)
        values = [each for seed, each in found.items() if seeds is None or seed in seeds]
        return estimate(values) if values else None

    def over_everyone(
        self, name: Literal["everyone", "worst_client"], partition: str, condition: str, method: str
    ) -> Estimate | None:
        """Return the mean over seeds of what cells say of all clients; None where none does."""
        points = (Point(partition, condition, method, seed) for seed in self.suite.seeds)
        found = [getattr(self.by_point[p], name) for p in points if p in self.by_point]
        values = [value for value in found if value is not None]
        return estimate(values) if values else None

    def shared_seeds(self, partition: str, conditions: Iterable[str], method: str) -> list[int]:
        """Return the seeds on which all of some conditions are finished, and the reference.

        The reference does not count where none of its seeds is finished.
        """
        quiet = self.accuracies(partition, self.suite.reference, method)
        found = [self.accuracies(partition, name, method) for name in conditions]
        every = [*found, quiet] if quiet else found
        return [seed for seed in self.suite.seeds if all(seed in each for each in every)]

    def worst(self, partition: str, conditions: Sequence[str], method: str) -> WorstCase | None:
        """Return the least mean among conditions, over the seeds they share with the reference.

        None where they share no seed.
        """
        seeds = self.shared_seeds(partition, conditions, method)
        if not conditions or not seeds:
            return None
        found = [self.accuracies(partition, name, method) for name in conditions]
        return worst_case([[each[seed] for seed in seeds] for each in found])

    def difference(self, partition: str, condition: str, method: str) -> PairedDifference | None:
        """Return the paired difference to FedAvg under the same condition."""
        return _paired(
            self.accuracies(partition, condition, method),
            self.accuracies(partition, condition, BASELINE),
        )

    def possible(self, partition: str, condition: str, oracle: str) -> PairedDifference | None:
        """Return what an oracle gains over FedAvg under a condition."""
        ideal = self.suite.conditions[condition].ideal
        if ideal is None:
            return None
        return _paired(
            self.accuracies(partition, ideal, oracle),
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
        ideals = self.suite.ideals
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


def _other_settings(description: Mapping[str, Any], cell: CellSpec) -> str | None:
    """Return how a description differs from a cell; None where it is that of the cell."""
    try:
        there = cell_of(description)
    except FedcrfError as error:
        return f" of settings that there are no longer ({error})"
    if there == cell:
        return None
    theirs, ours = (dict(_flat(each.describe())) for each in (there, cell))
    differences = [
        f"{key} is {theirs.get(key, 'not set')}, not {ours.get(key, 'not set')}"
        for key in dict.fromkeys([*ours, *theirs])
        if theirs.get(key) != ours.get(key)
    ]
    return f" of other settings ({'; '.join(differences)})"


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested sections by dotted name."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
