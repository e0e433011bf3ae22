"""Sweeps: what the values of some settings come to, beside those of the default."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedcrf.experiments.analysis.tables import (
    UNDER_ATTACK,
    Table,
    check_not_emptier,
    settings_grid,
    settings_table,
    value_text,
)
from fedcrf.experiments.methods import folder_name, method_title
from fedcrf.experiments.study import Study

if TYPE_CHECKING:
    import pandas as pd


def sweep_table(study: Study, results: pd.DataFrame) -> Table:
    """Return the test accuracy at every point, and its paired difference to the default's.

    Args:
        study: Whose axes are settings.
        results: Its table.
    """
    attacked = any(spec.threat is not None for _, spec in study.points)
    names, defaults = [axis.name for axis in study.axes], study.default_values()
    return settings_table(results, names, defaults, UNDER_ATTACK if attacked else "")


def write_sweep(study: Study, results: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the table into a folder, and a heat map for each method where two settings vary.

    Raises:
        FedcrfError: The folder's table shows more, and nothing is stale; nothing is written.
    """
    from fedcrf.experiments.analysis.figures import heat_map_figure, save

    table = sweep_table(study, results)
    check_not_emptier(folder / "sweep.md", table.as_markdown(), results)
    paths = table.write(folder / "sweep")
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
        paths += save(figure, folder / f"heat-map-{folder_name(method)}")
    return paths
