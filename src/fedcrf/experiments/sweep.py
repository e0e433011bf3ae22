"""Sensitivity: the same run at every combination of some settings' values."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedcrf.errors import FedcrfError
from fedcrf.experiments.compare import Estimate, estimate, pair_seeds
from fedcrf.experiments.figures import heat_map_figure, save
from fedcrf.experiments.methods import find_method
from fedcrf.experiments.spec import RunSpec, check_used, resolve
from fedcrf.experiments.standing import RunStanding, standing
from fedcrf.experiments.store import CellSummary, RunStore
from fedcrf.experiments.tables import (
    UNDER_ATTACK,
    Table,
    check_not_emptier,
    difference_text,
    estimate_text,
)
from fedcrf.files import write_text


@dataclass(frozen=True)
class Axis:
    """A setting of a run and the values it takes.

    Attributes:
        key: As in a run file, such as ``rules.crf.bandwidth``.
        values: Plain TOML values, lists as tuples.
    """

    key: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]

    def layer(self, value: Any) -> dict[str, Any]:
        """Return a run file's shape with this setting at a value."""
        nested: Any = value
        for part in reversed(self.key.split(".")):
            nested = {part: nested}
        return dict(nested)


@dataclass(frozen=True)
class Point:
    """One combination of values, and the folder of its run."""

    values: tuple[Any, ...]
    spec: RunSpec
    store: RunStore


Results = dict[tuple[str, tuple[Any, ...]], dict[int, CellSummary]]
"""By method and values, the finished cells by seed."""


@dataclass(frozen=True)
class Sweep:
    """A grid of runs.

    Attributes:
        folder: Holds one run's folder for each point.
        layers: The description that all points share, as for `resolve`.
        axes: What varies.
        settings: Further layers, of what no axis may vary.
    """

    folder: Path
    layers: tuple[Mapping[str, Any], ...]
    axes: tuple[Axis, ...]
    settings: tuple[Mapping[str, Any], ...] = ()

    def points(self) -> list[Point]:
        """Return every combination of the axes' values.

        Raises:
            FedcrfError: A key that does not exist, or that none of the methods uses, or a value
                that cannot be.
        """
        said = [axis.key for axis in self.axes]
        for key in said:
            if said.count(key) > 1:
                raise FedcrfError(f"--over {key} is said twice: give all its values at once")
            if any(_at(layer, key) is not None for layer in self.settings):
                raise FedcrfError(f"--over {key} varies what --set fixes: leave one of them out")
        points = [
            Point(values, self._spec(values), RunStore(self.folder / self._folder_name(values)))
            for values in itertools.product(*(axis.values for axis in self.axes))
        ]
        varied = [axis.layer(axis.values[0]) for axis in self.axes]
        check_used([*self.settings, *varied], [each.spec for each in points])
        return points

    @cached_property
    def results(self) -> Results:
        """What was finished when it was first looked at."""
        results: Results = {}
        for values, run in self.runs.items():
            for summary in run.finished:
                results.setdefault((summary.method, values), {})[summary.seed] = summary
        return results

    @cached_property
    def runs(self) -> dict[tuple[Any, ...], RunStanding]:
        """How far the run at every point was when it was first looked at, by its values."""
        return {point.values: standing(point.store) for point in self.points()}

    def default_values(self) -> tuple[Any, ...]:
        """Return the values that the description has without the sweep, axis by axis."""
        spec = resolve(*self.layers, *self.settings)
        described = {**spec.describe(), "rules": spec.told_rules}
        return tuple(_at(described, axis.key) for axis in self.axes)

    def _spec(self, values: Sequence[Any]) -> RunSpec:
        varied = [axis.layer(value) for axis, value in zip(self.axes, values, strict=True)]
        return resolve(*self.layers, *self.settings, *varied)

    def _folder_name(self, values: Sequence[Any]) -> str:
        pairs = zip(self.axes, values, strict=True)
        return ",".join(f"{axis.name}={_exact_text(value)}" for axis, value in pairs)


def parse_axis(text: str) -> Axis:
    """Return the axis of ``section.key=v1,v2``; the values are read as TOML.

    Raises:
        FedcrfError: Not of that form.
    """
    key, equals, values = text.partition("=")
    mend = f"--over {text}: write --over section.key=value,value"
    if not equals or "." not in key:
        raise FedcrfError(mend)
    try:
        parsed = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        parsed = [each.strip() for each in values.split(",") if each.strip()]
    if not parsed or any(isinstance(value, dict) for value in parsed):
        raise FedcrfError(mend)
    different = {(type(value), value): value for value in map(_hashable, parsed)}  # True is 1
    return Axis(key.strip(), tuple(different.values()))


def value_text(value: Any) -> str:
    """Return a value as it stands in tables and figures."""
    if isinstance(value, list | tuple):
        return "-".join(value_text(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def sweep_table(sweep: Sweep) -> Table:
    """Return the test accuracy at every point, and its paired difference to the default's."""
    results = sweep.results
    defaults = sweep.default_values()
    methods = dict.fromkeys(find_method(method).title for method, _ in results)
    several = len(methods) > 1
    rows = []
    for (method, values), cells in results.items():
        default = results.get((method, defaults), {})
        difference = None if values == defaults else pair_seeds(cells, default)
        rows.append(
            (
                *([find_method(method).title] if several else []),
                *map(value_text, values),
                str(len(cells)),
                estimate_text(_accuracy(cells)),
                "default" if values == defaults else difference_text(difference),
            )
        )
    names = [axis.name for axis in sweep.axes]
    header = (
        *(["method"] if several else []),
        *names,
        "seeds",
        "test accuracy",
        "Δ to default [95 %]",
    )
    title = f"{', '.join(methods)} over {', '.join(axis.key for axis in sweep.axes)}"
    attacked = any(each.spec.threat is not None for each in sweep.points())
    return Table(title, header, tuple(rows), UNDER_ATTACK if attacked else "")


def write_sweep(sweep: Sweep) -> list[Path]:
    """Write the table, and a heat map for each method where two settings vary.

    Raises:
        FedcrfError: The folder's table shows more, and nothing is stale; nothing is written.
    """
    table = sweep_table(sweep)
    stale = any(run.stale for run in sweep.runs.values())
    check_not_emptier(sweep.folder / "sweep.md", table.as_markdown(), stale)
    paths = []
    for suffix, text in (("md", table.as_markdown()), ("csv", table.as_csv())):
        paths.append(sweep.folder / f"sweep.{suffix}")
        write_text(paths[-1], text)
    if len(sweep.axes) != 2:
        return paths
    results = sweep.results
    down, across = sweep.axes
    for method in dict.fromkeys(method for method, _ in results):
        means = [
            [_mean(results.get((method, (row, column)))) for column in across.values]
            for row in down.values
        ]
        figure = heat_map_figure(
            means,
            rows=(down.name, [value_text(value) for value in down.values]),
            columns=(across.name, [value_text(value) for value in across.values]),
            title=f"{find_method(method).title}: mean test accuracy",
            marked=_position(sweep, sweep.default_values()),
        )
        paths += save(figure, sweep.folder / f"heat-map-{method}")
    return paths


def _accuracy(cells: Mapping[int, CellSummary]) -> Estimate:
    return estimate([cell.test_accuracy for cell in cells.values()])


def _mean(cells: Mapping[int, CellSummary] | None) -> float:
    return _accuracy(cells).mean if cells else float("nan")


def _position(sweep: Sweep, values: tuple[Any, ...]) -> tuple[int, int] | None:
    """Return row and column of a combination of two values; None where the sweep has it not."""
    down, across = sweep.axes
    if values[0] in down.values and values[1] in across.values:
        return down.values.index(values[0]), across.values.index(values[1])
    return None


def _at(described: Mapping[str, Any], key: str) -> Any:
    value: Any = described
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return _hashable(value)


def _exact_text(value: Any) -> str:
    """Return a value as it stands in folder names: different for different values."""
    if isinstance(value, tuple):
        return "-".join(map(_exact_text, value))
    return repr(value) if isinstance(value, float) else str(value)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
