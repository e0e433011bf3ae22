"""Methods under many conditions, such as attacks: worst cases, differences to FedAvg, tables.

The functions take a suite, for what it calls things and in which order, and the table of its cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcrf.experiments.analysis.pairs import (
    BASELINE,
    Estimate,
    by_axes,
    estimate,
    mean_grid,
    paired_difference,
    worst_case,
)
from fedcrf.experiments.analysis.tables import (
    NO_NUMBER,
    Table,
    difference_text,
    interval_text,
    spread_text,
)
from fedcrf.experiments.methods import method_title

if TYPE_CHECKING:
    import pandas as pd

    from fedcrf.experiments.suite import Suite

ALL_CLIENTS: Mapping[str, str] = {
    "everyone_accuracy": "none: all clients",
    "worst_client": "none: worst client",
}
"""Columns about all clients, attackers included, and how tables call them where nobody attacks."""

Places = Mapping[Any, "pd.DataFrame"]
"""By condition and method the cells of one partition, by seed."""


def tables_of(suite: Suite, cells: pd.DataFrame, partition: str) -> list[Table]:
    """Return the tables of a partition that have rows, the first with the worst cases."""
    makers = (summary_table, accuracy_table, difference_table, success_table, separation_table)
    tables = [make(suite, cells, partition) for make in makers]
    return [table for table in tables if table.rows]


def place_title(suite: Suite, partition: str) -> str:
    """Return what tables of a partition are about."""
    return f"{suite.dataset}, {partition}, {suite.numbers}"


def oracle_title(oracle: str) -> str:
    """Return how tables call an oracle, a method that is run without the wrong clients."""
    title = "oracle (attackers removed)"
    return title if oracle == BASELINE else f"{title}, {method_title(oracle)}"


def worst_of(
    places: Places, conditions: Sequence[str], quiet: str, method: str
) -> tuple[str, Estimate, Estimate | None] | None:
    """Return the condition with a method's least mean accuracy, that mean, and the quiet one's.

    All are over the seeds that are finished under each of these conditions, and under the quiet one
    unless none of its seeds is; then it has no mean. None where the conditions share no seed.
    """
    import pandas as pd

    every = [*conditions, *([] if places[quiet, method].empty else [quiet])]
    shared = pd.DataFrame({name: places[name, method]["accuracy"] for name in every}).dropna()
    if not conditions or shared.empty:
        return None
    unharmed = estimate(shared[quiet]) if quiet in shared else None
    condition, least = worst_case(shared[[*conditions]].T)
    return condition, least, unharmed


def overview_table(suite: Suite, cells: pd.DataFrame) -> Table:
    """Return a row a method: nobody wrong, and the worst case of the first group, by partition.

    Both are over the same seeds. The first rows are the oracles', where the suite asks for them.
    """
    title = f"{suite.title}: {suite.dataset}, {suite.numbers}"
    groups = _groups(suite)
    if not groups:
        return Table(title, ("method",), ())
    group, names = next(iter(groups.items()))
    removed = [ideal for name in names if (ideal := suite.conditions[name].ideal)]
    oracles = suite.oracles if len(removed) == len(names) else ()
    partitions = {name: _places(cells, name) for name in suite.partitions}

    def cell(places: Places, conditions: Sequence[str], method: str) -> str:
        found = worst_of(places, conditions, suite.quiet, method)
        if found is None:
            alone = _mean(places, suite.quiet, method)
            return f"{_mean_text(alone, len(suite.seeds))} / {NO_NUMBER}"
        _, least, unharmed = found
        worst = f"{least.mean:.3f} {interval_text(least)}{_fewer(least, len(suite.seeds))}"
        return f"{_mean_text(unharmed)} / {worst}"

    asked = [
        (oracle_title(oracle), removed, oracle)
        for oracle in oracles
        if any(worst_of(each, removed, suite.quiet, oracle) for each in partitions.values())
    ]
    asked += [(method_title(method), names, method) for method in suite.methods]
    rows = [
        (row, *(cell(places, conditions, method) for places in partitions.values()))
        for row, conditions, method in asked
    ]
    header = ("method", *(f"{p}: none / worst of {group} [95 %]" for p in partitions))
    return Table(title, header, tuple(rows))


def summary_table(suite: Suite, cells: pd.DataFrame, partition: str) -> Table:
    """Return a row a method: nobody wrong, what that costs, and the worst case of each group.

    Where nobody is wrong it has beside the accuracy over those who are right under every condition
    that over all clients, and the worst client's; older folders lack them. n is the number of seeds
    where nobody is wrong; a worst case over others says over how many.
    """
    places, groups = _places(cells, partition), _groups(suite)

    def worst(names: Sequence[str], method: str, seeds: int) -> str:
        found = worst_of(places, names, suite.quiet, method)
        if found is None:
            return NO_NUMBER
        condition, least, _ = found
        which = suite.conditions[condition].title
        said = which if least.seeds == seeds else f"{which}, n = {least.seeds}"
        return f"{least.mean:.3f} {interval_text(least)} ({said})"

    of_all = {
        (column, method): _mean(places, suite.quiet, method, column)
        for column in ALL_CLIENTS
        for method in suite.methods
    }
    shown = ALL_CLIENTS if any(of_all.values()) else {}
    rows = []
    for method in suite.methods:
        quiet = _mean(places, suite.quiet, method)
        n = 0 if quiet is None else quiet.seeds
        rows.append(
            (
                method_title(method),
                str(n),
                _mean_text(quiet),
                *(_mean_text(of_all[column, method], n) for column in shown),
                _difference_text(places, suite.quiet, suite.quiet, method, n),
                *(worst(names, method, n) for names in groups.values()),
            )
        )
    header = (
        "method",
        "n",
        "none",
        *shown.values(),
        "Δ to FedAvg [95 %]",
        *(f"worst: {group} [95 %]" for group in groups),
    )
    return Table(f"{suite.title}: {place_title(suite, partition)}", header, tuple(rows))


def accuracy_table(suite: Suite, cells: pd.DataFrame, partition: str) -> Table:
    """Return every method and the oracles under every condition: mean accuracies."""
    places, seeds = _places(cells, partition), len(suite.seeds)
    return _by_condition(
        suite,
        f"{place_title(suite, partition)}: mean accuracy",
        suite.methods,
        lambda _, there, method: _mean_text(_mean(places, there, method), seeds),
    )


def difference_table(suite: Suite, cells: pd.DataFrame, partition: str) -> Table:
    """Return every method's and the oracles' paired differences to FedAvg under every condition."""
    places, seeds = _places(cells, partition), len(suite.seeds)
    return _by_condition(
        suite,
        f"{place_title(suite, partition)}: Δ to FedAvg [95 %]",
        [method for method in suite.methods if method != BASELINE],
        lambda condition, there, method: _difference_text(places, condition, there, method, seeds),
    )


def _by_condition(
    suite: Suite, title: str, methods: Sequence[str], text: Callable[[str, str, str], str]
) -> Table:
    """Return a table with a row a condition, and columns of the oracles and some methods.

    ``text`` returns an entry, of the row's condition, the one that is ideal for it where the column
    is an oracle's (else the same), and the column's method.
    """
    header = ("condition", *map(oracle_title, suite.oracles), *map(method_title, methods))
    rows = []
    for name in _tested(suite):
        ideal = suite.conditions[name].ideal
        oracles = (
            NO_NUMBER if ideal is None else text(name, ideal, each) for each in suite.oracles
        )
        own = (text(name, name, method) for method in methods)
        rows.append((suite.conditions[name].title, *oracles, *own))
    return Table(title, header, tuple(rows))


def success_table(suite: Suite, cells: pd.DataFrame, partition: str) -> Table:
    """Return every method under every backdoor: the mean share of images that it turns."""
    places, seeds = _places(cells, partition), len(suite.seeds)
    return _of_known(
        suite,
        f"{place_title(suite, partition)}: mean success of backdoors",
        lambda at: _mean_text(_mean(places, *at, "attack_success"), seeds),
        all_methods=True,
    )


def separation_table(suite: Suite, cells: pd.DataFrame, partition: str) -> Table:
    """Return how well the weights show who is wrong; methods that infer weights only."""
    places = _places(cells, partition)
    return _of_known(
        suite,
        f"{place_title(suite, partition)}: area under the curve, mean (least) over rounds",
        lambda at: _separation_text(places[at]["separation"]),
    )


def _of_known(
    suite: Suite, title: str, text: Callable[[tuple[str, str]], str], *, all_methods: bool = False
) -> Table:
    """Return a table of conditions by methods, without those of which no entry is known."""
    entries = {
        (name, each): text((name, each)) for name in _tested(suite) for each in suite.methods
    }
    known = [at for at, entry in entries.items() if entry != NO_NUMBER]
    shown = {method for _, method in known}
    methods = [each for each in suite.methods if all_methods or each in shown]
    rows = [
        (suite.conditions[name].title, *(entries[name, each] for each in methods))
        for name in dict.fromkeys(name for name, _ in known)
    ]
    return Table(title, ("condition", *map(method_title, methods)), tuple(rows))


def _separation_text(areas: Iterable[Sequence[float] | None]) -> str:
    """Return the mean and the least over rounds, each the mean over seeds."""
    curves = [curve for curve in areas if curve]
    if not curves or len({len(curve) for curve in curves}) > 1:
        return NO_NUMBER
    mean = np.mean(np.array(curves), axis=0)
    return f"{mean.mean():.2f} ({mean.min():.2f})"


def heat_map_grid(suite: Suite, cells: pd.DataFrame, partition: str) -> pd.DataFrame:
    """Return mean accuracies and worst cases; of methods and conditions, the more are its rows."""
    places, methods = _places(cells, partition), list(suite.methods)
    grid = mean_grid(cells[cells["partition"] == partition], "condition", "method")
    grid = grid.reindex(index=_tested(suite), columns=methods)
    grid.index = [suite.conditions[name].title for name in grid.index]
    for group, names in _groups(suite).items():
        found = [worst_of(places, names, suite.quiet, method) for method in methods]
        grid.loc[f"worst: {group}"] = [np.nan if each is None else each[1].mean for each in found]
    grid = grid.set_axis(map(method_title, methods), axis="columns")
    return grid.T if grid.shape[1] > grid.shape[0] else grid


def _places(cells: pd.DataFrame, partition: str) -> Places:
    return by_axes(cells[cells["partition"] == partition], "condition", "method")


def _tested(suite: Suite) -> list[str]:
    """Return the conditions in which somebody may be wrong and methods are compared."""
    ideals = suite.ideals
    return [name for name in suite.conditions if name not in ideals]


def _groups(suite: Suite) -> dict[str, list[str]]:
    """Return by title the groups of which all conditions are there, and all of them together."""
    groups = {
        title: list(names)
        for title, names in suite.groups.items()
        if all(name in suite.conditions for name in names)
    }
    groups["all shown"] = [name for name in _tested(suite) if name != suite.quiet]
    return {title: names for title, names in groups.items() if names}


def _mean(places: Places, condition: str, method: str, column: str = "accuracy") -> Estimate | None:
    return estimate(places[condition, method][column].dropna())


def _mean_text(found: Estimate | None, seeds: int = 0) -> str:
    """Return a mean; with the number of its seeds where there are not so many."""
    return NO_NUMBER if found is None else f"{found.mean:.3f}{_fewer(found, seeds)}"


def _difference_text(places: Places, condition: str, there: str, method: str, seeds: int) -> str:
    """Return what a method has more in a condition, or the ideal for it, than FedAvg in it."""
    own, baseline = (places[at]["accuracy"] for at in ((there, method), (condition, BASELINE)))
    found = paired_difference(own, baseline)
    return NO_NUMBER if found is None else f"{difference_text(found)}{_fewer(found, seeds)}"


def _fewer(found: Estimate, seeds: int) -> str:
    return f" (n = {found.seeds})" if found.seeds < seeds else ""


@dataclass(frozen=True)
class Place:
    """One partition of a suite, for tables over several suites.

    Attributes:
        title: How the tables call it.
        suite: The suite.
        cells: The table of its cells.
        partition: The partition's name.
    """

    title: str
    suite: Suite
    cells: pd.DataFrame
    partition: str

    @cached_property
    def by_condition(self) -> Places:
        """By condition and method its cells, by seed."""
        return _places(self.cells, self.partition)


RANKED: Mapping[str, str | None] = {
    "worst case": None,
    "nobody wrong: Δ to FedAvg": "accuracy",
    "nobody wrong, worst client: Δ to FedAvg": "worst_client",
}
"""By title what rules are ranked by: the worst case, or a column where nobody is wrong."""


def rank_tables(places: Sequence[Place]) -> list[Table]:
    """Return tables with a row a method over several places: mean ranks, then each of `RANKED`.

    Rank 1 is the best; where a method is not run, it has no rank. Methods are in the order of their
    mean rank. An entry is a mean ± how far its 95 % interval reaches, and a rank; the mean alone
    where the seeds are too few for an interval. FedAvg has its own value where others are compared
    with it.
    """
    tables, means = [], {}
    for title, column in RANKED.items():
        shown = [place for place in places if column is not None or _groups(place.suite)]
        table, means[title] = _ranked(title, shown, column)
        tables.append(table)
    order = sorted(
        dict.fromkeys(method for place in places for method in place.suite.methods),
        key=lambda method: [mean.get(method, np.inf) for mean in means.values()],
    )
    run_in = {method: sum(method in each.suite.methods for each in places) for method in order}
    rows = tuple(
        (
            method_title(method),
            str(run_in[method]),
            *(_rank(mean, method) for mean in means.values()),
        )
        for method in order
    )
    header = ("mean rank", "places", *(title.removesuffix(": Δ to FedAvg") for title in means))
    return [Table("", header, rows), *tables]


def _ranked(
    title: str, places: Sequence[Place], column: str | None
) -> tuple[Table, Mapping[str, float]]:
    """Return a table of methods by places and the methods' mean ranks; see `RANKED`."""
    methods = dict.fromkeys(method for place in places for method in place.suite.methods)
    ranks: dict[str, list[int]] = {method: [] for method in methods}
    columns: list[dict[str, str]] = []
    for place in places:
        compared = {method: _compared(place, method, column) for method in methods}
        known = {method: each for method, each in compared.items() if each is not None}
        texts = {}
        for method, each in known.items():
            rank = 1 + sum(other.mean > each.mean for other in known.values())
            ranks[method].append(rank)
            text = spread_text(each, ".3f" if column is None else "+.3f")
            if method == BASELINE and column is not None:
                text = _mean_text(_mean(place.by_condition, place.suite.quiet, method, column))
            texts[method] = f"{text}{_fewer(each, len(place.suite.seeds))} ({rank})"
        columns.append(texts)
    means = {method: float(np.mean(each)) for method, each in ranks.items() if each}
    rows = tuple(
        (
            method_title(method),
            _rank(means, method),
            *(texts.get(method, NO_NUMBER) for texts in columns),
        )
        for method in sorted(methods, key=lambda method: means.get(method, np.inf))
    )
    titles = (f"{place.title} (n = {len(place.suite.seeds)})" for place in places)
    return Table("", (f"{title} (rank)", "mean rank", *titles), rows), means


def _compared(place: Place, method: str, column: str | None) -> Estimate | None:
    """Return a method's worst case, or by how much a column exceeds FedAvg's with nobody wrong."""
    suite, by_condition = place.suite, place.by_condition
    if column is None:
        found = worst_of(by_condition, _groups(suite)["all shown"], suite.quiet, method)
        return None if found is None else found[1]
    own, baseline = (
        by_condition[suite.quiet, name][column].dropna() for name in (method, BASELINE)
    )
    return paired_difference(own, baseline)


def _rank(means: Mapping[str, float], method: str) -> str:
    return f"{means[method]:.1f}" if method in means else NO_NUMBER
