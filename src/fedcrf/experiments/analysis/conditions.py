"""Methods under many conditions, such as attacks: worst cases, differences to FedAvg, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedcrf.experiments.analysis.pairs import (
    BASELINE,
    Estimate,
    estimate,
    paired_difference,
    worst_case,
)
from fedcrf.experiments.analysis.tables import Table, difference_text, interval_text
from fedcrf.experiments.methods import method_title

if TYPE_CHECKING:
    import pandas as pd

    from fedcrf.experiments.suite import Suite

NOT_RUN = "–"

ALL_CLIENTS: Mapping[str, str] = {
    "everyone_accuracy": "none: all clients",
    "worst_client": "none: worst client",
}
"""Columns about all clients, attackers included, and how tables call them where nobody attacks."""


@dataclass(frozen=True)
class UnderConditions:
    """The results of a suite: its methods on its partitions under its conditions.

    Attributes:
        suite: The suite.
        cells: The table of its finished cells.
    """

    suite: Suite
    cells: pd.DataFrame

    @cached_property
    def _grids(self) -> Mapping[tuple[str, str, str], pd.DataFrame]:
        """By partition, method and column the complete cells' numbers; see `grid`."""
        complete = self.cells[self.cells["complete"]]
        numbers = ("accuracy", "separation", *ALL_CLIENTS)  # of which there are tables
        return {
            (*place, column): own.pivot(index="condition", columns="seed", values=column)
            for place, own in complete.groupby(["partition", "method"])
            for column in numbers
            if column in own
        }

    def grid(self, partition: str, method: str, column: str = "accuracy") -> pd.DataFrame:
        """Return a number of a method's cells, a row a condition and a column a seed.

        It is NaN where there is none.
        """
        import pandas as pd

        found = self._grids.get((partition, method, column))
        return pd.DataFrame() if found is None else found

    def accuracies(self, partition: str, condition: str, method: str) -> pd.Series:
        """Return the accuracy by seed."""
        return self._row(partition, condition, method).dropna()

    def mean(
        self, partition: str, condition: str, method: str, column: str = "accuracy"
    ) -> Estimate | None:
        """Return the mean over seeds; None where there are none."""
        return estimate(self._row(partition, condition, method, column).dropna())

    def _row(
        self, partition: str, condition: str, method: str, column: str = "accuracy"
    ) -> pd.Series:
        import pandas as pd

        grid = self.grid(partition, method, column)
        return grid.loc[condition] if condition in grid.index else pd.Series(dtype=np.float64)

    def worst(
        self, partition: str, conditions: Sequence[str], method: str
    ) -> tuple[str, Estimate, Estimate | None] | None:
        """Return the condition with the least mean, that mean, and the mean where nobody is wrong.

        All are over the seeds on which these conditions and the one where nobody is wrong are
        finished; the latter does not count where none of its seeds is, and has no mean then. None
        where the conditions share no seed.
        """
        grid, reference = self.grid(partition, method), self.suite.reference
        every = [*conditions, *([reference] if reference in grid.index else [])]
        shared = grid.reindex(index=every).dropna(axis="columns")
        if not conditions or shared.empty:
            return None
        quiet = estimate(shared.loc[reference]) if reference in grid.index else None
        condition, least = worst_case(shared.loc[[*conditions]])
        return condition, least, quiet

    def difference(self, partition: str, condition: str, method: str) -> Estimate | None:
        """Return the paired difference to FedAvg under the same condition."""
        return self._to_baseline(
            partition, condition, self.accuracies(partition, condition, method)
        )

    def possible(self, partition: str, condition: str, oracle: str) -> Estimate | None:
        """Return what an oracle gains over FedAvg under a condition."""
        ideal = self.suite.conditions[condition].ideal
        if ideal is None:
            return None
        return self._to_baseline(partition, condition, self.accuracies(partition, ideal, oracle))

    def _to_baseline(self, partition: str, condition: str, values: pd.Series) -> Estimate | None:
        return paired_difference(values, self.accuracies(partition, condition, BASELINE))

    def separation(self, partition: str, condition: str, method: str) -> tuple[float, float] | None:
        """Return the mean and the least over rounds, each the mean over seeds, of the areas."""
        rows = self._row(partition, condition, method, "separation").dropna()
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

    def tables(self, partition: str) -> list[Table]:
        """Return the tables of a partition that have rows, the first with the worst cases."""
        tables = (
            summary_table(self, partition),
            accuracy_table(self, partition),
            difference_table(self, partition),
            separation_table(self, partition),
        )
        return [table for table in tables if table.rows]

    def place(self, partition: str) -> str:
        """Return what tables of a partition are about."""
        return f"{self.suite.dataset}, {partition}, {self.suite.numbers}"


def oracle_title(oracle: str) -> str:
    """Return how tables call an oracle, a method that is run without the wrong clients."""
    title = "oracle (attackers removed)"
    return title if oracle == BASELINE else f"{title}, {method_title(oracle)}"


def overview_table(results: UnderConditions) -> Table:
    """Return a row a method: nobody wrong, and the worst case of the first group, by partition.

    Both are over the same seeds. The first rows are the oracles', where the suite asks for them.
    """
    suite = results.suite
    title = f"{suite.title}: {suite.dataset}, {suite.numbers}"
    if not results.groups:
        return Table(title, ("method",), ())
    group, names = next(iter(results.groups.items()))
    removed = [ideal for name in names if (ideal := suite.conditions[name].ideal)]
    oracles = suite.oracles if len(removed) == len(names) else ()

    def cell(partition: str, conditions: Sequence[str], method: str) -> str:
        found = results.worst(partition, conditions, method)
        if found is None:
            alone = results.mean(partition, suite.reference, method)
            return f"{_mean_text(alone, len(suite.seeds))} / {NOT_RUN}"
        _, least, quiet = found
        worst = f"{least.mean:.3f} {interval_text(least)}{_fewer(least, len(suite.seeds))}"
        return f"{_mean_text(quiet)} / {worst}"

    asked = [
        (oracle_title(oracle), removed, oracle)
        for oracle in oracles
        if any(results.worst(partition, removed, oracle) for partition in suite.partitions)
    ]
    asked += [(method_title(method), names, method) for method in suite.methods]
    rows = [
        (row, *(cell(partition, conditions, method) for partition in suite.partitions))
        for row, conditions, method in asked
    ]
    header = ("method", *(f"{p}: none / worst of {group} [95 %]" for p in suite.partitions))
    return Table(title, header, tuple(rows))


def summary_table(results: UnderConditions, partition: str) -> Table:
    """Return a row a method: nobody wrong, what that costs, and the worst case of each group.

    Where nobody is wrong it has beside the accuracy over those who are right under every condition
    that over all clients, and the worst client's; older folders lack them. n is the number of seeds
    where nobody is wrong; a worst case over others says over how many.
    """
    suite = results.suite

    def worst(names: Sequence[str], method: str, seeds: int) -> str:
        found = results.worst(partition, names, method)
        if found is None:
            return NOT_RUN
        condition, least, _ = found
        which = suite.conditions[condition].title
        said = which if least.seeds == seeds else f"{which}, n = {least.seeds}"
        return f"{least.mean:.3f} {interval_text(least)} ({said})"

    of_all = {
        (column, method): results.mean(partition, suite.reference, method, column)
        for column in ALL_CLIENTS
        for method in suite.methods
    }
    shown = ALL_CLIENTS if any(of_all.values()) else {}
    rows = []
    for method in suite.methods:
        quiet = results.mean(partition, suite.reference, method)
        n = 0 if quiet is None else quiet.seeds
        rows.append(
            (
                method_title(method),
                str(n),
                _mean_text(quiet),
                *(_mean_text(of_all[column, method], n) for column in shown),
                _difference_text(results.difference(partition, suite.reference, method), n),
                *(worst(names, method, n) for names in results.groups.values()),
            )
        )
    header = (
        "method",
        "n",
        "none",
        *shown.values(),
        "Δ to FedAvg [95 %]",
        *(f"worst: {group} [95 %]" for group in results.groups),
    )
    return Table(f"{suite.title}: {results.place(partition)}", header, tuple(rows))


def accuracy_table(results: UnderConditions, partition: str) -> Table:
    """Return every method and the oracles under every condition: mean accuracies."""
    suite, seeds = results.suite, len(results.suite.seeds)

    def mean(condition: str | None, method: str) -> str:
        return _mean_text((condition and results.mean(partition, condition, method)) or None, seeds)

    return _by_condition(
        results,
        f"{results.place(partition)}: mean accuracy",
        suite.methods,
        lambda condition: [
            *(mean(suite.conditions[condition].ideal, oracle) for oracle in suite.oracles),
            *(mean(condition, method) for method in suite.methods),
        ],
    )


def difference_table(results: UnderConditions, partition: str) -> Table:
    """Return every method's and the oracles' paired differences to FedAvg under every condition."""
    suite, seeds = results.suite, len(results.suite.seeds)
    others = [method for method in suite.methods if method != BASELINE]
    return _by_condition(
        results,
        f"{results.place(partition)}: Δ to FedAvg [95 %]",
        others,
        lambda condition: [
            _difference_text(found, seeds)
            for found in (
                *(results.possible(partition, condition, oracle) for oracle in suite.oracles),
                *(results.difference(partition, condition, method) for method in others),
            )
        ],
    )


def _by_condition(
    results: UnderConditions,
    title: str,
    methods: Iterable[str],
    row: Callable[[str], Iterable[str]],
) -> Table:
    """Return a table with a row a condition, and columns of the oracles and some methods."""
    suite = results.suite
    header = ("condition", *map(oracle_title, suite.oracles), *map(method_title, methods))
    rows = [(suite.conditions[name].title, *row(name)) for name in results.tested]
    return Table(title, header, tuple(rows))


def separation_table(results: UnderConditions, partition: str) -> Table:
    """Return how well the weights show who is wrong; methods that infer weights only."""
    suite = results.suite
    found = {
        (condition, method): results.separation(partition, condition, method)
        for condition in results.tested
        for method in suite.methods
    }
    inferring = [m for m in suite.methods if any(found[c, m] for c in results.tested)]
    rows = []
    for condition in results.tested:
        areas = [found[condition, method] for method in inferring]
        if any(areas):
            texts = (
                NOT_RUN if each is None else f"{each[0]:.2f} ({each[1]:.2f})" for each in areas
            )
            rows.append((suite.conditions[condition].title, *texts))
    title = f"{results.place(partition)}: area under the curve, mean (least) over rounds"
    return Table(title, ("condition", *map(method_title, inferring)), tuple(rows))


def heat_map_grid(results: UnderConditions, partition: str) -> pd.DataFrame:
    """Return mean accuracies and worst cases; of methods and conditions, the more are its rows."""
    import pandas as pd

    suite = results.suite

    def column(method: str) -> dict[str, float]:
        means = {
            suite.conditions[name].title: results.mean(partition, name, method)
            for name in results.tested
        }
        worst = {
            f"worst: {group}": results.worst(partition, names, method)
            for group, names in results.groups.items()
        }
        every = {**means, **{title: found and found[1] for title, found in worst.items()}}
        return {title: np.nan if found is None else found.mean for title, found in every.items()}

    grid = pd.DataFrame({method_title(method): column(method) for method in suite.methods})
    return grid.T if grid.shape[1] > grid.shape[0] else grid


def _mean_text(found: Estimate | None, seeds: int = 0) -> str:
    """Return a mean; with the number of its seeds where there are not so many."""
    return NOT_RUN if found is None else f"{found.mean:.3f}{_fewer(found, seeds)}"


def _difference_text(found: Estimate | None, seeds: int) -> str:
    """Return a paired difference; with the number of its seeds where there are not so many."""
    return NOT_RUN if found is None else f"{difference_text(found)}{_fewer(found, seeds)}"


def _fewer(found: Estimate, seeds: int) -> str:
    return f" (n = {found.seeds})" if found.seeds < seeds else ""
