"""Methods under many conditions, such as attacks: worst cases, differences to FedAvg, tables.

The functions take a suite, for what it calls things and in which order, and the table of its cells;
most of them as a `Place`, one partition of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedcrf.experiments.analysis.tables import (
    BASELINE,
    NO_NUMBER,
    Estimate,
    Table,
    by_axes,
    difference_text,
    estimate,
    interval_text,
    mean_grid,
    paired_difference,
    worst_case,
)
from fedcrf.experiments.settings import method_title

if TYPE_CHECKING:
    from fedcrf.experiments.suite import Suite

ALL_CLIENTS: Mapping[str, str] = {
    "everyone_accuracy": "none: all clients",
    "worst_client": "none: worst client",
}
"""Columns about all clients, attackers included, and how tables call them where nobody attacks."""


@dataclass(frozen=True)
class Place:
    """One partition of a suite.

    Attributes:
        suite: The suite.
        cells: The table of its cells.
        partition: The partition's name.
        title: How tables over several places call it.
    """

    suite: Suite
    cells: pd.DataFrame
    partition: str
    title: str = ""

    @property
    def about(self) -> str:
        """What its tables are about."""
        return f"{self.suite.dataset}, {self.partition}, {self.suite.numbers}"

    @property
    def own(self) -> pd.DataFrame:
        """Its cells."""
        return self.cells[self.cells["partition"] == self.partition]

    @cached_property
    def by_condition(self) -> Mapping[Any, pd.DataFrame]:
        """By condition and method its complete cells, by seed."""
        return by_axes(self.own, "condition", "method")

    def mean(self, condition: str, method: str, column: str = "accuracy") -> Estimate | None:
        """Return the mean of a column over the seeds that have it; None where none has."""
        return estimate(self.by_condition[condition, method][column].dropna())

    def mean_text(self, condition: str, method: str, column: str = "accuracy") -> str:
        """Return a mean, with the number of its seeds where they are not all of the suite's."""
        return _mean_text(self.mean(condition, method, column), len(self.suite.seeds))

    def difference(self, condition: str, there: str, method: str) -> Estimate | None:
        """Return what a method has more in a condition, or its ideal, than FedAvg in it."""
        own, baseline = self.by_condition[there, method], self.by_condition[condition, BASELINE]
        return paired_difference(own["accuracy"], baseline["accuracy"])

    def worst(
        self, conditions: Sequence[str], method: str
    ) -> tuple[str, Estimate, Estimate | None] | None:
        """Return the condition with a method's least mean accuracy, that mean, and the quiet one's.

        All are over the seeds that are finished under each of these conditions, and under the quiet
        one unless none of its seeds is; then it has no mean. None where they share no seed.
        """
        quiet = self.suite.quiet
        every = [*conditions, *([] if self.by_condition[quiet, method].empty else [quiet])]
        columns = {name: self.by_condition[name, method]["accuracy"] for name in every}
        shared = pd.DataFrame(columns).dropna()
        if not conditions or shared.empty:
            return None
        unharmed = estimate(shared[quiet]) if quiet in shared else None
        condition, least = worst_case(shared[[*conditions]].T)
        return condition, least, unharmed


def tables_of(place: Place) -> list[Table]:
    """Return the tables of a partition that have rows, the first with the worst cases."""
    makers = (summary_table, accuracy_table, difference_table, success_table, separation_table)
    return [table for make in makers if (table := make(place)).rows]


def overview_table(suite: Suite, cells: pd.DataFrame) -> Table:
    """Return a row a method: nobody wrong, and the worst case of the first group, by partition.

    Both are over the same seeds. The first rows are the oracles', where the suite asks for them.
    """
    title = f"{suite.title}: {suite.dataset}, {suite.numbers}"
    groups, seeds = groups_of(suite), len(suite.seeds)
    if not groups:
        return Table(title, ("method",), ())
    group, names = next(iter(groups.items()))
    removed = [ideal for name in names if (ideal := suite.conditions[name].ideal)]
    oracles = suite.oracles if len(removed) == len(names) else ()
    places = [Place(suite, cells, name) for name in suite.partitions]

    def entry(place: Place, conditions: Sequence[str], method: str) -> str:
        found = place.worst(conditions, method)
        if found is None:
            return f"{place.mean_text(suite.quiet, method)} / {NO_NUMBER}"
        _, least, unharmed = found
        worst = f"{least.mean:.3f} {interval_text(least)}{fewer(least, seeds)}"
        return f"{_mean_text(unharmed)} / {worst}"

    asked = [
        (_oracle_title(oracle), removed, oracle)
        for oracle in oracles
        if any(place.worst(removed, oracle) for place in places)
    ]
    asked += [(method_title(method), names, method) for method in suite.methods]
    rows = [
        (row, *(entry(place, conditions, method) for place in places))
        for row, conditions, method in asked
    ]
    header = (f"{place.partition}: none / worst of {group} [95 %]" for place in places)
    return Table(title, ("method", *header), tuple(rows))


def summary_table(place: Place) -> Table:
    """Return a row a method: nobody wrong, what that costs, and the worst case of each group.

    Where nobody is wrong it has beside the accuracy over those who are right under every condition
    that over all clients, and the worst client's; older folders lack them. n is the number of seeds
    where nobody is wrong; a worst case over others says over how many.
    """
    suite, groups = place.suite, groups_of(place.suite)
    quiet = suite.quiet
    of_all = {
        method: [place.mean(quiet, method, column) for column in ALL_CLIENTS]
        for method in suite.methods
    }
    shown = any(each for found in of_all.values() for each in found)

    def worst(names: Sequence[str], method: str, seeds: int) -> str:
        found = place.worst(names, method)
        if found is None:
            return NO_NUMBER
        condition, least, _ = found
        over = "" if least.seeds == seeds else f", n = {least.seeds}"
        title = suite.conditions[condition].title
        return f"{least.mean:.3f} {interval_text(least)} ({title}{over})"

    rows = []
    for method in suite.methods:
        mean = place.mean(quiet, method)
        n = 0 if mean is None else mean.seeds
        rows.append(
            (
                method_title(method),
                str(n),
                _mean_text(mean),
                *(_mean_text(each, n) for each in of_all[method] if shown),
                _difference_text(place.difference(quiet, quiet, method), n),
                *(worst(names, method, n) for names in groups.values()),
            )
        )
    all_clients = ALL_CLIENTS.values() if shown else ()
    worst_cases = (f"worst: {group} [95 %]" for group in groups)
    header = ("method", "n", "none", *all_clients, "Δ to FedAvg [95 %]", *worst_cases)
    return Table(f"{suite.title}: {place.about}", header, tuple(rows))


def accuracy_table(place: Place) -> Table:
    """Return every method and the oracles under every condition: mean accuracies."""
    return _by_condition(
        place,
        "mean accuracy",
        lambda _, there, method: place.mean_text(there, method),
        place.suite.methods,
        place.suite.oracles,
    )


def difference_table(place: Place) -> Table:
    """Return every method's and the oracles' paired differences to FedAvg under every condition."""
    suite = place.suite

    def text(condition: str, there: str, method: str) -> str:
        return _difference_text(place.difference(condition, there, method), len(suite.seeds))

    methods = [method for method in suite.methods if method != BASELINE]
    return _by_condition(place, "Δ to FedAvg [95 %]", text, methods, suite.oracles)


def success_table(place: Place) -> Table:
    """Return every method under every backdoor: the mean share of images that it turns."""

    def text(_: str, there: str, method: str) -> str:
        return place.mean_text(there, method, "attack_success")

    return _known(_by_condition(place, "mean success of backdoors", text, place.suite.methods))


def separation_table(place: Place) -> Table:
    """Return how well the weights show who is wrong; methods that infer weights only."""

    def text(_: str, there: str, method: str) -> str:
        return _separation_text(place.by_condition[there, method]["separation"])

    inferring = [
        method
        for method in place.suite.methods
        if any(text("", name, method) != NO_NUMBER for name in _tested(place.suite))
    ]
    what = "area under the curve, mean (least) over rounds"
    return _known(_by_condition(place, what, text, inferring))


def _by_condition(
    place: Place,
    what: str,
    text: Callable[[str, str, str], str],
    methods: Sequence[str],
    oracles: Sequence[str] = (),
) -> Table:
    """Return a table with a row a condition, and columns of the oracles and some methods.

    ``text`` returns an entry, of the row's condition, the one that is ideal for it where the column
    is an oracle's (else the same), and the column's method.
    """
    rows = []
    for name in _tested(place.suite):
        title, ideal = place.suite.conditions[name].title, place.suite.conditions[name].ideal
        removed = (NO_NUMBER if ideal is None else text(name, ideal, each) for each in oracles)
        rows.append((title, *removed, *(text(name, name, method) for method in methods)))
    header = ("condition", *map(_oracle_title, oracles), *map(method_title, methods))
    return Table(f"{place.about}: {what}", header, tuple(rows))


def _known(table: Table) -> Table:
    """Return a table without the rows that have no entry."""
    rows = tuple(row for row in table.rows if {*row[1:]} - {NO_NUMBER})
    return replace(table, rows=rows)


def _separation_text(areas: Iterable[Sequence[float] | None]) -> str:
    """Return the mean and the least over rounds, each the mean over seeds."""
    curves = [curve for curve in areas if curve]
    if not curves or len({len(curve) for curve in curves}) > 1:
        return NO_NUMBER
    mean = np.mean(np.array(curves), axis=0)
    return f"{mean.mean():.2f} ({mean.min():.2f})"


def heat_map_grid(place: Place) -> pd.DataFrame:
    """Return mean accuracies and worst cases; of methods and conditions, the more are its rows."""
    suite, methods = place.suite, list(place.suite.methods)
    grid = mean_grid(place.own, "condition", "method")
    grid = grid.reindex(index=_tested(suite), columns=methods)
    grid.index = [suite.conditions[name].title for name in grid.index]
    for group, names in groups_of(suite).items():
        found = [place.worst(names, method) for method in methods]
        grid.loc[f"worst: {group}"] = [np.nan if each is None else each[1].mean for each in found]
    grid = grid.set_axis(map(method_title, methods), axis="columns")
    return grid.T if grid.shape[1] > grid.shape[0] else grid


def _tested(suite: Suite) -> list[str]:
    """Return the conditions in which somebody may be wrong and methods are compared."""
    return [name for name in suite.conditions if name not in suite.ideals]


def groups_of(suite: Suite) -> dict[str, list[str]]:
    """Return by title the groups of which all conditions are there, and all of them together."""
    groups = {
        title: list(names)
        for title, names in suite.groups.items()
        if all(name in suite.conditions for name in names)
    }
    groups["all shown"] = [name for name in _tested(suite) if name != suite.quiet]
    return {title: names for title, names in groups.items() if names}


def _oracle_title(oracle: str) -> str:
    """Return how tables call an oracle, a method that is run without the wrong clients."""
    title = "oracle (attackers removed)"
    return title if oracle == BASELINE else f"{title}, {method_title(oracle)}"


def _mean_text(found: Estimate | None, seeds: int = 0) -> str:
    """Return a mean; with the number of its seeds where there are not so many."""
    return NO_NUMBER if found is None else f"{found.mean:.3f}{fewer(found, seeds)}"


def _difference_text(found: Estimate | None, seeds: int) -> str:
    return NO_NUMBER if found is None else f"{difference_text(found)}{fewer(found, seeds)}"


def fewer(found: Estimate, seeds: int) -> str:
    """Return the number of an estimate's seeds where they are fewer."""
    return f" (n = {found.seeds})" if found.seeds < seeds else ""
