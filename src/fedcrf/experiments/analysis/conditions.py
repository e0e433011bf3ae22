"""Methods under many conditions, such as attacks, or settings: worst cases, differences, tables.

The functions take a suite or a sweep, for what it calls things and in which order, and the table of
its cells; those of a suite mostly as a `Place`, one partition of it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.tables import (
    BASELINE,
    NO_NUMBER,
    UNDER_ATTACK,
    Estimate,
    Table,
    by_axes,
    counted,
    difference_text,
    estimate,
    estimate_text,
    fewer,
    interval_text,
    mean_grid,
    paired_difference,
    worst_case,
    write_tables,
)
from fedcrf.experiments.settings import folder_name, method_title
from fedcrf.experiments.study import Study, Suite, short_keys, value_text
from fedcrf.simulation.records import RoundRecord

ALL_CLIENTS: Mapping[str, str] = {
    "everyone_accuracy": "none: all clients",
    "worst_client": "none: worst client",
}
"""Columns about all clients, attackers included, and how tables call them where nobody attacks."""

ROUNDING = 2e-5
"""By how much two equal shares may differ: both weights of each have six significant digits."""


@dataclass(frozen=True)
class Place:
    """One partition of a suite."""

    suite: Suite
    cells: pd.DataFrame  # of the suite
    partition: str
    title: str = ""  # in tables over several places

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
        return _text(self.mean(condition, method, column), len(self.suite.seeds))

    def difference(self, condition: str, there: str, method: str) -> Estimate | None:
        """Return what a method has more in a condition, or its ideal, than FedAvg in it."""
        own, baseline = self.by_condition[there, method], self.by_condition[condition, BASELINE]
        return paired_difference(own["accuracy"], baseline["accuracy"])

    def worst(
        self, conditions: Sequence[str], method: str
    ) -> tuple[str, Estimate, Estimate | None] | None:
        """Return the condition with a method's least mean accuracy, that mean, and the quiet one's.

        All are over the same seeds, those that are finished under each of these conditions and the
        quiet one. If no seed of the quiet one is finished, the others' count and it has no mean.
        None where the conditions share no seed.
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


def overview_table(suite: Suite, cells: pd.DataFrame) -> Table:
    """Return a row a method: nobody wrong, and the worst case of the first group, by partition.

    Both are over the same seeds. The first rows are the oracles', if every condition of the group
    has an ideal.
    """
    title = f"{suite.title}: {suite.dataset}, {suite.numbers}"
    groups = groups_of(suite)
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
        return f"{_text(unharmed)} / {_text(least, len(suite.seeds), _with_interval)}"

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

    Three accuracies are shown where nobody is wrong: over the clients that are right under every
    condition, over all clients, and the worst client's. Older folders lack the last two. n is the
    number of seeds where nobody is wrong; a worst case over another number says over how many.
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
        return f"{_with_interval(least)} ({suite.conditions[condition].title}{over})"

    rows = []
    for method in suite.methods:
        mean = place.mean(quiet, method)
        n = 0 if mean is None else mean.seeds
        rows.append(
            (
                method_title(method),
                str(n),
                _text(mean),
                *(_text(each, n) for each in of_all[method] if shown),
                _text(place.difference(quiet, quiet, method), n, difference_text),
                *(worst(names, method, n) for names in groups.values()),
            )
        )
    all_clients = ALL_CLIENTS.values() if shown else ()
    worst_cases = (f"worst: {group} [95 %]" for group in groups)
    header = ("method", "n", "none", *all_clients, "Δ to FedAvg [95 %]", *worst_cases)
    return Table(f"{suite.title}: {place.about}", header, tuple(rows))


def accuracy_table(place: Place) -> Table:
    """Return every method and the oracles under every condition: mean accuracies."""

    def text(_: str, there: str, method: str) -> str:
        return place.mean_text(there, method)

    return _by_condition(place, "mean accuracy", text, place.suite.methods)


def difference_table(place: Place) -> Table:
    """Return every method's and the oracles' paired differences to FedAvg under every condition."""

    def text(condition: str, there: str, method: str) -> str:
        found = place.difference(condition, there, method)
        return _text(found, len(place.suite.seeds), difference_text)

    methods = [method for method in place.suite.methods if method != BASELINE]
    return _by_condition(place, "Δ to FedAvg [95 %]", text, methods)


def success_table(place: Place) -> Table:
    """Return every method under every backdoor: the mean share of images that it turns."""

    def text(_: str, there: str, method: str) -> str:
        return place.mean_text(there, method, "attack_success")

    what = "mean success of backdoors"
    return _by_condition(place, what, text, place.suite.methods, oracles=False)


def separation_table(place: Place) -> Table:
    """Return how well the weights show who is wrong; methods that infer weights only.

    Where runs ended at different rounds, the mean is over all of them, the least over those that
    all have.
    """

    def text(_: str, there: str, method: str) -> str:
        curves = [each for each in place.by_condition[there, method]["separation"] if each]
        if not curves:
            return NO_NUMBER
        mean = np.mean([np.mean(curve) for curve in curves])
        shared = min(map(len, curves))  # a run may have ended earlier
        over_seeds = np.mean([curve[:shared] for curve in curves], axis=0)
        return f"{mean:.2f} ({over_seeds.min():.2f})"

    inferring = [
        method
        for method in place.suite.methods
        if any(text("", name, method) != NO_NUMBER for name in _tested(place.suite))
    ]
    what = "area under the curve, mean (least) over rounds"
    return _by_condition(place, what, text, inferring, oracles=False)


def _by_condition(
    place: Place,
    what: str,
    text: Callable[[str, str, str], str],
    methods: Sequence[str],
    *,
    oracles: bool = True,
) -> Table:
    """Return a table with a row a condition, and columns of the oracles and some methods.

    ``text`` returns an entry. It is given the row's condition, the condition whose cells it is of,
    and the column's method. The second is the ideal of the first in an oracle's column, else the
    same. Without ``oracles`` the conditions that have no entry have no row.
    """
    rows = []
    asked = place.suite.oracles if oracles else ()
    for name in _tested(place.suite):
        condition = place.suite.conditions[name]
        ideal = condition.ideal
        removed = [NO_NUMBER if ideal is None else text(name, ideal, each) for each in asked]
        entries = [*removed, *(text(name, name, method) for method in methods)]
        if oracles or {*entries} - {NO_NUMBER}:
            rows.append((condition.title, *entries))
    header = ("condition", *map(_oracle_title, asked), *map(method_title, methods))
    return Table(f"{place.about}: {what}", header, tuple(rows))


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


def _mean(found: Estimate) -> str:
    return f"{found.mean:.3f}"


def _with_interval(found: Estimate) -> str:
    return f"{found.mean:.3f} {interval_text(found)}"


def _text(found: Estimate | None, seeds: int = 0, form: Callable[[Estimate], str] = _mean) -> str:
    """Return an estimate, with the number of its seeds where there are not so many."""
    return NO_NUMBER if found is None else f"{form(found)}{fewer(found, seeds)}"


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
    texts = {}
    places = [Place(suite, cells, partition) for partition in suite.partitions]
    makers = (summary_table, accuracy_table, difference_table, success_table, separation_table)
    for place in places:
        tables = [table for make in makers if (table := make(place)).rows]
        sections.append(f"## {place.partition}\n")
        sections += [f"{each.title}\n\n{each.as_markdown()}" for each in tables]
        texts[f"accuracy-{place.partition}.csv"] = accuracy_table(place).as_csv()
    texts["tables.md"] = "\n".join(sections)
    paths = write_tables(folder, texts, cells)
    for place in places:
        title = f"{suite.title}: mean test accuracy\n{place.about}"
        figure = heat_map_figure(heat_map_grid(place), title)
        paths += save(figure, folder / f"heat-map-{place.partition}")
    return paths


def separation(record: RoundRecord) -> float | None:
    """Return how well a round's weights tell its attackers from the others.

    It is the area under the curve: the chance that an attacker has a smaller share of its FedAvg
    weight than another client, ties counted half; None where nobody or everybody attacks. Shares
    that differ by no more than the rounding of records are ties.
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
    right, theirs = shares[~wrong, None], shares[wrong]
    apart = right - theirs
    apart[np.abs(apart) <= ROUNDING * np.maximum(right, theirs)] = 0.0
    return float(np.heaviside(apart, 0.5).mean())


def sweep_table(study: Study, results: pd.DataFrame) -> Table:
    """Return the test accuracy at every point, and its paired difference to the default's."""
    names, defaults = [axis.name for axis in study.axes], list(study.default_values())
    finished = results[results["complete"]]
    of_run = by_axes(finished, "folder", "method")
    methods = list(dict.fromkeys(finished["method"]))
    named = len(methods) > 1
    points = finished.drop_duplicates("folder").set_index("folder")[names]
    values = {folder: at for folder, *at in points.itertuples(name=None)}
    default_folder = next((folder for folder, at in values.items() if at == defaults), None)
    rows = []
    for folder, method in dict.fromkeys(zip(finished["folder"], finished["method"], strict=True)):
        accuracy = of_run[folder, method]["accuracy"]
        to_default = paired_difference(accuracy, of_run[default_folder, method]["accuracy"])
        shown = difference_text(to_default) + fewer(to_default, len(accuracy))
        difference = "default" if folder == default_folder else shown
        at = [*([method_title(method)] if named else []), *map(value_text, values[folder])]
        rows.append((*at, str(len(accuracy)), estimate_text(estimate(accuracy)), difference))
    settings = [*(["method"] if named else []), *short_keys(names)]
    header = (*settings, "seeds", "test accuracy", "Δ to default [95 %]")
    title = f"{', '.join(map(method_title, methods))} over {', '.join(names)}"
    attacked = any(spec.threat is not None for _, spec in study.points)
    return Table(title, header, tuple(rows), UNDER_ATTACK if attacked else "")


def check_same_axes(study: Study, folder: Path) -> None:
    """Raise a `FedcrfError` if a folder has the table of a sweep over other settings.

    Settings are told apart by the last parts of their keys, which the table has.
    """
    path = folder / "sweep.csv"
    if not path.exists():
        return
    header = next(csv.reader(path.read_text("utf-8", errors="replace").splitlines()[:1]), [])
    there = [name for name in takewhile("seeds".__ne__, header) if name != "method"]
    asked = short_keys([axis.name for axis in study.axes])
    if "seeds" in header and sorted(there) != sorted(asked):
        raise FedcrfError(
            f"{path} is of a sweep over {', '.join(there)}: choose another folder, with -o"
        )


def write_sweep(study: Study, results: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the table, and of two settings a heat map a method; see `write_tables`."""
    from fedcrf.experiments.analysis.figures import heat_map_figure, save

    paths = write_tables(folder, sweep_table(study, results).files("sweep"), results)
    if len(study.axes) != 2:
        return paths
    down, across = (axis.name for axis in study.axes)
    rows, columns = ([value_text(value) for value, _ in axis.layers] for axis in study.axes)
    default = tuple(map(value_text, study.default_values()))
    written = results.assign(**{name: results[name].map(value_text) for name in (down, across)})
    for method in dict.fromkeys(results[results["complete"]]["method"]):
        grid = mean_grid(written[written["method"] == method], down, across)
        grid = grid.reindex(index=rows, columns=columns)
        called = short_keys([down, across])
        grid = grid.rename_axis(index=called[0], columns=called[1])
        title = f"{method_title(method)}: mean test accuracy"
        paths += save(
            heat_map_figure(grid, title, default), folder / f"heat-map-{folder_name(method)}"
        )
    return paths
