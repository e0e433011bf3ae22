"""A study: a base run and named axes, whose values make its runs; and what settings do."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.tables import (
    UNDER_ATTACK,
    Table,
    by_axes,
    difference_text,
    estimate,
    estimate_text,
    mean_grid,
    paired_difference,
    write_tables,
)
from fedcrf.experiments.settings import (
    Options,
    flat,
    folder_name,
    hashable,
    method_title,
    setting,
)
from fedcrf.experiments.spec import (
    CellKey,
    CellSpec,
    RunSpec,
    check_used,
    resolve,
    with_current_names,
)
from fedcrf.experiments.store import Store


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
    def is_setting(self) -> bool:
        """Whether it is that of a setting, and its values are no names."""
        return "." in self.name


def setting_folder(at: Mapping[str, Any]) -> str:
    """Return the folder of a combination of settings, such as ``bandwidth=0.5,iterations=3``."""
    return ",".join(f"{last_part(key)}={_exact_text(value)}" for key, value in at.items())


def last_part(key: str) -> str:
    """Return what a setting is called within its section."""
    return key.rpartition(".")[2]


@dataclass(frozen=True)
class Study:
    """A base run and named axes.

    Attributes:
        base: The layers that all runs share, as for `resolve`.
        axes: What varies, beside methods and seeds.
        settings: Further layers, whose settings no axis may vary.
        folder_name: Returns the name of a combination's folder.
    """

    base: tuple[Options, ...]
    axes: tuple[Axis, ...] = ()
    settings: tuple[Options, ...] = ()
    folder_name: Callable[[Mapping[str, Any]], str] = setting_folder

    @cached_property
    def points(self) -> list[tuple[dict[str, Any], RunSpec]]:
        """Every combination of the axes' values, by axis, with its run of methods × seeds."""
        said = [_current_key(axis.name) for axis in self.axes]
        fixed = [with_current_names(layer, notice=False) for layer in self.settings]
        for key in said:
            if said.count(key) > 1:
                raise FedcrfError(f"--over {key} is said twice: give all its values at once")
            if any(setting_at(layer, key) is not None for layer in fixed):
                raise FedcrfError(f"--over {key} varies what --set fixes: leave one of them out")
        points = [(at, self._resolved(at, layers)) for at, layers in product(self.axes)]
        varied = [axis.layers[0][1] for axis in self.axes if axis.is_setting]
        check_used([*self.settings, *varied], [spec for _, spec in points])
        return points

    @cached_property
    def cells(self) -> Mapping[CellKey, CellSpec]:
        """Every cell of every point."""
        return {
            (*at.values(), cell.method.name, cell.seed): cell
            for at, spec in self.points
            for cell in spec.cells()
        }

    def runs(self, folder: Path) -> list[tuple[RunSpec, Store]]:
        """Return what is run, and where in a folder its results go: a run's folder a point."""
        return [(spec, self.store(folder, at)) for at, spec in self.points]

    def store(self, folder: Path, at: Mapping[str, Any]) -> Store:
        """Return where in a folder the results of a combination go."""
        return Store(folder / self.folder_name(at))

    def default_values(self) -> tuple[Any, ...]:
        """Return the values that the description has without the axes, axis by axis."""
        spec = resolve(*self.base, *self.settings)
        described = {**spec.describe(), "rules": spec.informed_rules}
        return tuple(setting_at(described, _current_key(axis.name)) for axis in self.axes)

    def _resolved(self, at: Mapping[str, Any], layers: Sequence[Options]) -> RunSpec:
        """Return the run of a combination.

        The error of one that cannot be names the axis and value without which the others could be
        run, unless it names the fault itself: a setting, or something all runs share.
        """
        try:
            return resolve(*self.base, *self.settings, *layers)
        except FedcrfError as error:
            fault = ""
            for number, axis in enumerate(self.axes):
                others = [*layers[:number], *layers[number + 1 :]]
                with suppress(FedcrfError):
                    resolve(*self.base, *self.settings, *others)
                    fault = "" if axis.is_setting else f"{axis.name} {at[axis.name]}: "
                    break
            raise FedcrfError(f"{fault}{error}") from None


def product(axes: Sequence[Axis]) -> Iterator[tuple[dict[str, Any], list[Options]]]:
    """Yield every combination of the axes' values, with the layers of a run file that say it."""
    for chosen in itertools.product(*(axis.layers for axis in axes)):
        named = zip(axes, chosen, strict=True)
        yield {axis.name: value for axis, (value, _) in named}, [layer for _, layer in chosen]


def parse_axis(text: str) -> Axis:
    """Return the axis of ``section.key=v1,v2``; the values are read as TOML."""
    key, equals, values = text.partition("=")
    mend = f"--over {text}: write --over section.key=value,value"
    if not equals or "." not in key:
        raise FedcrfError(mend)
    try:
        parsed = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        words = filter(None, map(str.strip, values.split(",")))
        parsed = [setting(f"value={word}")["value"] for word in words]
    if not parsed or any(isinstance(value, dict) for value in parsed):
        raise FedcrfError(mend)
    return Axis.of_setting(key.strip(), [hashable(value) for value in parsed])


def setting_at(described: Options, key: str) -> Any:
    """Return the setting of a dotted key, lists as tuples; None where the sections lack it."""
    return hashable(dict(flat(described)).get(key))


def _nested(key: str, value: Any) -> dict[str, Any]:
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return dict(nested)


def _current_key(key: str) -> str:
    """Return the key of a setting by today's name; folders keep the name that was given."""
    ((now, _),) = flat(with_current_names(_nested(key, None), notice=False))
    return now


def _exact_text(value: Any) -> str:
    """Return a value as it stands in folder names: different for different values."""
    if isinstance(value, tuple):
        return "-".join(map(_exact_text, value))
    return repr(value) if isinstance(value, float) else str(value)


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
        difference = "default" if folder == default_folder else difference_text(to_default)
        at = [*([method_title(method)] if named else []), *map(value_text, values[folder])]
        rows.append((*at, str(len(accuracy)), estimate_text(estimate(accuracy)), difference))
    settings = [*(["method"] if named else []), *map(last_part, names)]
    header = (*settings, "seeds", "test accuracy", "Δ to default [95 %]")
    title = f"{', '.join(map(method_title, methods))} over {', '.join(names)}"
    attacked = any(spec.threat is not None for _, spec in study.points)
    return Table(title, header, tuple(rows), UNDER_ATTACK if attacked else "")


def write_sweep(study: Study, results: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the table, and of two settings a heat map a method; see `write_tables`."""
    from fedcrf.experiments.analysis.figures import heat_map_figure, save

    paths = write_tables(folder, sweep_table(study, results).files("sweep"), results)
    if len(study.axes) != 2:
        return paths
    down, across = (axis.name for axis in study.axes)
    rows, columns = ([value_text(value) for value in axis.values] for axis in study.axes)
    default = tuple(map(value_text, study.default_values()))
    written = results.assign(**{name: results[name].map(value_text) for name in (down, across)})
    for method in dict.fromkeys(results[results["complete"]]["method"]):
        grid = mean_grid(written[written["method"] == method], down, across)
        grid = grid.reindex(index=rows, columns=columns)
        grid = grid.rename_axis(index=last_part(down), columns=last_part(across))
        title = f"{method_title(method)}: mean test accuracy"
        paths += save(
            heat_map_figure(grid, title, default), folder / f"heat-map-{folder_name(method)}"
        )
    return paths


def value_text(value: Any) -> str:
    """Return a setting's value as it stands in tables and figures."""
    if isinstance(value, list | tuple):
        return "-".join(value_text(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
