"""What settings do to the results: a table of all their combinations, and heat maps of two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcrf.experiments.compare import estimate, paired_difference
from fedcrf.experiments.figures import heat_map_figure, save
from fedcrf.experiments.methods import method_title
from fedcrf.experiments.study import Study
from fedcrf.experiments.tables import (
    UNDER_ATTACK,
    Table,
    check_not_emptier,
    difference_text,
    estimate_text,
)
from fedcrf.files import write_text

if TYPE_CHECKING:
    import pandas as pd


def value_text(value: Any) -> str:
    """Return a value as it stands in tables and figures."""
    if isinstance(value, list | tuple):
        return "-".join(value_text(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def sweep_table(study: Study, results: pd.DataFrame) -> Table:
    """Return the test accuracy at every point, and its paired difference to the default's.

    Args:
        study: Whose axes are settings.
        results: Its table.
    """
    finished = _accuracies(results)
    defaults = study.default_values()
    methods = dict.fromkeys(method_title(method) for method, _ in finished)
    several = len(methods) > 1
    values = {str(point.store.path): point.values for point in study.points}
    default_folder = next((folder for folder, at in values.items() if at == defaults), "")
    rows = []
    for (method, folder), cells in finished.items():
        difference = "default"
        if folder != default_folder:
            default = finished.get((method, default_folder), {})
            shared = sorted(cells.keys() & default.keys())
            pairs = [cells[seed] for seed in shared], [default[seed] for seed in shared]
            difference = difference_text(paired_difference(*pairs) if shared else None)
        rows.append(
            (
                *([method_title(method)] if several else []),
                *map(value_text, values[folder]),
                str(len(cells)),
                estimate_text(estimate(list(cells.values()))),
                difference,
            )
        )
    header = (
        *(["method"] if several else []),
        *(axis.short_name for axis in study.axes),
        "seeds",
        "test accuracy",
        "Δ to default [95 %]",
    )
    title = f"{', '.join(methods)} over {', '.join(axis.name for axis in study.axes)}"
    attacked = any(point.spec.threat is not None for point in study.points)
    return Table(title, header, tuple(rows), UNDER_ATTACK if attacked else "")


def write_sweep(study: Study, results: pd.DataFrame) -> list[Path]:
    """Write the table, and a heat map for each method where two settings vary.

    Raises:
        FedcrfError: The folder's table shows more, and nothing is stale; nothing is written.
    """
    table = sweep_table(study, results)
    stale = bool((results["stale"] != "").any())
    check_not_emptier(study.folder / "sweep.md", table.as_markdown(), stale)
    paths = []
    for suffix, text in (("md", table.as_markdown()), ("csv", table.as_csv())):
        paths.append(study.folder / f"sweep.{suffix}")
        write_text(paths[-1], text)
    if len(study.axes) != 2:
        return paths
    finished = _accuracies(results)
    down, across = study.axes
    folders = iter([str(point.store.path) for point in study.points])
    grid = [[next(folders) for _ in across.values] for _ in down.values]
    row, column = study.default_values()
    framed = row in down.values and column in across.values
    for method in dict.fromkeys(method for method, _ in finished):
        found = [[finished.get((method, folder)) for folder in line] for line in grid]
        figure = heat_map_figure(
            [[_mean(cells) for cells in line] for line in found],
            rows=(down.short_name, [value_text(value) for value in down.values]),
            columns=(across.short_name, [value_text(value) for value in across.values]),
            title=f"{method_title(method)}: mean test accuracy",
            marked=(down.values.index(row), across.values.index(column)) if framed else None,
        )
        paths += save(figure, study.folder / f"heat-map-{method}")
    return paths


def _accuracies(results: pd.DataFrame) -> dict[tuple[str, str], dict[int, float]]:
    """Return by method and folder the accuracies of the finished cells, by seed."""
    finished = results[results["complete"]]
    return {
        (method, folder): dict(zip(cells["seed"], cells["accuracy"], strict=True))
        for (folder, method), cells in finished.groupby(["folder", "method"], sort=False)
    }


def _mean(cells: dict[int, float] | None) -> float:
    return estimate(list(cells.values())).mean if cells else float("nan")
