"""A study: a base run and named axes. Its runs are the product of the axes' values."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.tables import (
    UNDER_ATTACK,
    Table,
    check_not_emptier,
    settings_grid,
    settings_table,
    value_text,
)
from fedcrf.experiments.methods import method_title
from fedcrf.experiments.results import RunResults, frame, read_results, run_rows
from fedcrf.experiments.settings import Options
from fedcrf.experiments.spec import RunSpec, check_used, resolve
from fedcrf.experiments.store import RunStore

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Axis:
    """What varies in a study, and what each of its values says of a run.

    Attributes:
        name: ``dataset``, ``partition``, ``condition``, or the key of a setting as in a run file,
            such as ``rules.crf.bandwidth``.
        layers: Each value with the sections of a run file that it says; lists are tuples.
    """

    name: str
    layers: tuple[tuple[Any, Options], ...]

    @classmethod
    def of_setting(cls, key: str, values: Sequence[Any]) -> Axis:
        """Return the axis of a setting, by its key in a run file."""
        different = {(type(value), value): value for value in values}  # True is 1
        return cls(key, tuple((value, _nested(key, value)) for value in different.values()))

    @property
    def values(self) -> tuple[Any, ...]:
        """Its values, in order."""
        return tuple(value for value, _ in self.layers)

    @property
    def short_name(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class StudyRun:
    """One combination of the axes' values: a run of methods × seeds, and its folder."""

    at: Mapping[str, Any]
    spec: RunSpec
    store: RunStore

    @property
    def values(self) -> tuple[Any, ...]:
        """The value on each axis."""
        return tuple(self.at.values())


def setting_folder(at: Mapping[str, Any]) -> str:
    """Return the folder of a combination of settings, such as ``bandwidth=0.5,iterations=3``."""
    return ",".join(f"{key.rpartition('.')[2]}={_exact_text(value)}" for key, value in at.items())


@dataclass(frozen=True)
class Study:
    """A base run and named axes.

    Attributes:
        folder: Holds one run's folder for each combination of the axes' values.
        base: The description that all runs share, as for `resolve`.
        axes: What varies, beside methods and seeds.
        settings: Further layers, of what no axis may vary.
        folder_name: Returns the name of a combination's folder.
    """

    folder: Path
    base: tuple[Options, ...]
    axes: tuple[Axis, ...] = ()
    settings: tuple[Options, ...] = ()
    folder_name: Callable[[Mapping[str, Any]], str] = setting_folder

    @cached_property
    def points(self) -> list[StudyRun]:
        """Every combination of the axes' values.

        Raises:
            FedcrfError: A key that does not exist, or that none of the methods uses, or a value
                that cannot be.
        """
        said = [axis.name for axis in self.axes]
        for key in said:
            if said.count(key) > 1:
                raise FedcrfError(f"--over {key} is said twice: give all its values at once")
            if any(setting_at(layer, key) is not None for layer in self.settings):
                raise FedcrfError(f"--over {key} varies what --set fixes: leave one of them out")
        points = [
            StudyRun(at, resolve(*self.base, *self.settings, *layers), self._store(at))
            for at, layers in product(self.axes)
        ]
        varied = [axis.layers[0][1] for axis in self.axes]
        check_used([*self.settings, *varied], [each.spec for each in points])
        return points

    @property
    def runs(self) -> list[tuple[RunSpec, RunStore]]:
        """What is run, and where the results go."""
        return [(point.spec, point.store) for point in self.points]

    def results(self) -> list[tuple[StudyRun, RunResults]]:
        """Return how far the run at every point is.

        Raises:
            FedcrfError: A run was not begun, or its description is damaged.
        """
        return [(point, read_results(point.store)) for point in self.points]

    def table(self) -> pd.DataFrame:
        """Return the study's results, a row a cell; see `fedcrf.experiments.results`.

        Raises:
            FedcrfError: A run was not begun, or its description is damaged.
        """
        return frame(
            row
            for point, run in self.results()
            for row in run_rows(run, point.store.path, point.at)
        )

    def default_values(self) -> tuple[Any, ...]:
        """Return the values that the description has without the axes, axis by axis."""
        spec = resolve(*self.base, *self.settings)
        described = {**spec.describe(), "rules": spec.told_rules}
        return tuple(setting_at(described, axis.name) for axis in self.axes)

    def _store(self, at: Mapping[str, Any]) -> RunStore:
        return RunStore(self.folder / self.folder_name(at))


def product(axes: Sequence[Axis]) -> Iterator[tuple[dict[str, Any], list[Options]]]:
    """Yield every combination of the axes' values, with the layers of a run file that say it."""
    for chosen in itertools.product(*(axis.layers for axis in axes)):
        named = zip(axes, chosen, strict=True)
        yield {axis.name: value for axis, (value, _) in named}, [layer for _, layer in chosen]


def sweep_table(study: Study, results: pd.DataFrame) -> Table:
    """Return the test accuracy at every point, and its paired difference to the default's.

    Args:
        study: Whose axes are settings.
        results: Its table.
    """
    attacked = any(point.spec.threat is not None for point in study.points)
    names, defaults = [axis.name for axis in study.axes], study.default_values()
    return settings_table(results, names, defaults, UNDER_ATTACK if attacked else "")


def write_sweep(study: Study, results: pd.DataFrame) -> list[Path]:
    """Write the table, and a heat map for each method where two settings vary.

    Raises:
        FedcrfError: The folder's table shows more, and nothing is stale; nothing is written.
    """
    from fedcrf.experiments.analysis.figures import heat_map_figure, save

    table = sweep_table(study, results)
    stale = bool((results["stale"] != "").any())
    check_not_emptier(study.folder / "sweep.md", table.as_markdown(), stale)
    paths = table.write(study.folder / "sweep")
    if len(study.axes) != 2:
        return paths
    axes = {axis.name: axis.values for axis in study.axes}
    down, across = map(value_text, study.default_values())
    for method in dict.fromkeys(results[results["complete"]]["method"]):
        figure = heat_map_figure(
            settings_grid(results, method, axes),
            f"{method_title(method)}: mean test accuracy",
            default=(down, across),
        )
        paths += save(figure, study.folder / f"heat-map-{method}")
    return paths


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
    return Axis.of_setting(key.strip(), [_hashable(value) for value in parsed])


def setting_at(described: Options, key: str) -> Any:
    """Return the setting of a dotted key, lists as tuples; None where the sections lack it."""
    value: Any = described
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return _hashable(value)


def _nested(key: str, value: Any) -> dict[str, Any]:
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return dict(nested)


def _exact_text(value: Any) -> str:
    """Return a value as it stands in folder names: different for different values."""
    if isinstance(value, tuple):
        return "-".join(map(_exact_text, value))
    return repr(value) if isinstance(value, float) else str(value)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
