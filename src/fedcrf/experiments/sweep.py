"""Sweeps: what the values of some settings come to, beside those of the default."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcrf.experiments.analysis.pairs import by_axes, estimate, mean_grid, paired_difference
from fedcrf.experiments.analysis.tables import (
    NO_NUMBER,
    UNDER_ATTACK,
    Table,
    check_not_emptier,
    difference_text,
    estimate_text,
)
from fedcrf.experiments.methods import folder_name, method_title
from fedcrf.experiments.study import Study, last_part

if TYPE_CHECKING:
    import pandas as pd


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
        difference = "default"
        if folder != default_folder:
            default = of_run[default_folder, method]["accuracy"]
            difference = difference_text(paired_difference(accuracy, default))
        mean = estimate(accuracy)
        rows.append(
            (
                *([method_title(method)] if named else []),
                *map(value_text, values[folder]),
                str(len(accuracy)),
                NO_NUMBER if mean is None else estimate_text(mean),
                difference,
            )
        )
    settings = [*(["method"] if named else []), *map(last_part, names)]
    header = (*settings, "seeds", "test accuracy", "Δ to default [95 %]")
    title = f"{', '.join(map(method_title, methods))} over {', '.join(names)}"
    attacked = any(spec.threat is not None for _, spec in study.points)
    return Table(title, header, tuple(rows), UNDER_ATTACK if attacked else "")


def write_sweep(study: Study, results: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the table, and for two settings a heat map a method, but no emptier table."""
    from fedcrf.experiments.analysis.figures import heat_map_figure, save

    table = sweep_table(study, results)
    check_not_emptier(folder / "sweep.md", table.as_markdown(), results)
    paths = table.write(folder / "sweep")
    if len(study.axes) != 2:
        return paths
    down, across = map(value_text, study.default_values())
    for method in dict.fromkeys(results[results["complete"]]["method"]):
        figure = heat_map_figure(
            sweep_grid(study, results, method),
            f"{method_title(method)}: mean test accuracy",
            default=(down, across),
        )
        paths += save(figure, folder / f"heat-map-{folder_name(method)}")
    return paths


def sweep_grid(study: Study, results: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return a method's mean accuracies over a study's two settings, the first downwards."""
    down, across = (axis.name for axis in study.axes)
    own = results[results["method"] == method]
    written = own.assign(**{name: own[name].map(value_text) for name in (down, across)})
    rows, columns = ([value_text(value) for value in axis.values] for axis in study.axes)
    grid = mean_grid(written, down, across).reindex(index=rows, columns=columns)
    return grid.rename_axis(index=last_part(down), columns=last_part(across))


def value_text(value: Any) -> str:
    """Return a setting's value as it stands in tables and figures."""
    if isinstance(value, list | tuple):
        return "-".join(value_text(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
