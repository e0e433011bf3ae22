"""Figures: progress over rounds, who was trusted, and who holds what; each as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedcrf.experiments.analysis.tables import mean_curve
from fedcrf.experiments.settings import method_title
from fedcrf.experiments.store import PartitionRecord
from fedcrf.files import atomic_write
from fedcrf.simulation.records import RoundRecord, Rounds, in_order

# Okabe and Ito's palette, which colour-blind readers can tell apart, with a line style each.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
STYLES = ("-", "--", "-.", ":")

NO_WEIGHT = "#9A9A9A"
"""Where a client has no weight, as white stands for FedAvg's."""

WIDEST = 100.0
"""The width of a figure at most, in inches: thousands of labels would fill the memory."""

Records = Mapping[str, Sequence[Rounds]]
"""By method, the records of each of its seeds."""


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as ``stem.svg`` and ``stem.png`` and return the two paths."""
    paths = []
    for suffix in ("svg", "png"):
        path = stem.with_name(f"{stem.name}.{suffix}")  # a dot in the stem is no suffix
        metadata = {"Date": None} if suffix == "svg" else None  # the same run, the same file
        with atomic_write(path) as file, matplotlib.rc_context({"svg.hashsalt": "fedcrf"}):
            figure.savefig(file, format=suffix, dpi=150, metadata=metadata)
        paths.append(path)
    return paths


def save_run_figures(
    folder: Path, records: Records, title: str, trust: tuple[Records, str] | None = None
) -> list[Path]:
    """Write the figures of a run into a folder: accuracy if it has one, loss, who was trusted.

    The last is of the first seed alone; ``trust`` are its rounds and its title, where others.
    """
    every = [each.validation for of in records.values() for seed in of for each in seed]
    accuracies, losses = (
        np.isfinite([getattr(each, what) for each in every]).any() for what in ("accuracy", "loss")
    )
    figures = {"loss": loss_figure(records, title)}
    if accuracies or not losses:
        figures = {"accuracy": accuracy_figure(records, title), **figures}
    if (trusted := trust_figure(*(trust or (records, title)))) is not None:
        figures["trust"] = trusted
    return [path for name, figure in figures.items() for path in save(figure, folder / name)]


def accuracy_figure(records: Records, title: str) -> Figure:
    """Draw the validation accuracy over rounds: mean and ± one standard deviation over seeds."""
    return _progress(
        records, title, "validation accuracy", lambda record: record.validation.accuracy, most=1.0
    )


def loss_figure(records: Records, title: str) -> Figure:
    """Draw the validation loss over rounds: mean and ± one standard deviation over seeds."""
    figure = _progress(records, title, "validation loss", lambda record: record.validation.loss)
    axis = figure.axes[0]
    if -np.inf < axis.dataLim.y1 <= 0.0:  # no logarithms: of a single class every loss is 0
        return figure
    axis.set_yscale("log")
    for set_formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        # Ticks are named at 1, 2, 3 and 5 times a power of ten: more would overlap.
        set_formatter(lambda loss, _: f"{loss:g}" if f"{loss:e}"[0] in "1235" else "")
    return figure


def trust_figure(records: Records, title: str) -> Figure | None:
    """Draw each client's CRF weight over rounds as a multiple of its FedAvg weight, one seed.

    None where no method of the run infers weights.
    """
    inferred = {
        method: seeds[0]
        for method, seeds in records.items()
        if seeds and any(record.reasons is not None for record in seeds[0])
    }
    if not inferred:
        return None
    figure = Figure(figsize=(8, 0.9 + 2.6 * len(inferred)), layout="constrained")
    axes = figure.subplots(len(inferred), 1, squeeze=False)[:, 0]
    grids = {method: _log_ratio(rounds) for method, rounds in inferred.items()}
    reach = float(np.nanmax([1.0, *(grid.abs().max(axis=None) for grid in grids.values())]))
    for axis, (method, grid) in zip(axes, grids.items(), strict=True):
        axis.imshow(
            grid, aspect="auto", cmap="RdBu", vmin=-reach, vmax=reach, interpolation="nearest",
            extent=(*_ends(inferred[method]), grid.shape[0] - 0.5, -0.5),
        )  # fmt: skip
        axis.set(title=method_title(method), ylabel="client", facecolor=NO_WEIGHT)
        ticks = range(0, grid.shape[0], max(1, grid.shape[0] // 10))
        axis.set_yticks(ticks, labels=[str(grid.index[row]) for row in ticks])
    axes[-1].set_xlabel("round")
    some_have_none = any(grid.isna().any(axis=None) for grid in grids.values())
    label = "weight as a multiple of FedAvg's" + (" (grey: no weight)" if some_have_none else "")
    bar = figure.colorbar(axes[0].images[0], ax=list(axes), label=label)
    powers = np.linspace(-reach, reach, 5)
    bar.set_ticks(list(powers), labels=[f"×{2.0**power:.2g}" for power in powers])
    figure.suptitle(title)
    return figure


def partition_figure(partition: PartitionRecord, title: str) -> Figure:
    """Draw who holds which labels: training examples by client and label."""
    counts = np.array([client.labels for client in partition.clients])
    figure = Figure(
        figsize=(
            min(max(5.0, 2.5 + 0.5 * counts.shape[1]), WIDEST),
            min(max(3.0, 1.5 + 0.32 * len(counts)), WIDEST),
        ),
        layout="constrained",
    )
    axis = figure.subplots()
    image = axis.imshow(np.where(counts > 0, counts, np.nan), aspect="auto", cmap="viridis_r")
    if counts.size <= 400:
        dark = counts.max() / 2
        for (client, label), count in np.ndenumerate(counts):
            if count:
                colour = "white" if count > dark else "black"
                axis.text(label, client, str(count), ha="center", va="center", fontsize=8,
                          color=colour)  # fmt: skip
    if counts.shape[1] <= 30:
        axis.set_xticks(range(counts.shape[1]), partition.class_names,
                        rotation=90 if max(map(len, partition.class_names)) > 3 else 0)  # fmt: skip
    if len(counts) <= 30:
        axis.set_yticks(range(len(counts)))
    axis.set(xlabel="label", ylabel="client", title=title)
    figure.colorbar(image, ax=axis, label="training examples")
    return figure


def heat_map_figure(
    values: pd.DataFrame, title: str, default: Sequence[Any] | None = None
) -> Figure:
    """Draw a table of accuracies as colours, each with its number.

    ``default`` names the row and column of the default, which is framed where the table has it.
    """
    grid = values.to_numpy(dtype=np.float64)
    rows, columns = [*map(str, values.index)], [*map(str, values.columns)]
    size = (3 + 0.9 * grid.shape[1], 1.8 + (0.6 if len(grid) < 8 else 0.42) * grid.shape[0])
    figure = Figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(grid, aspect="auto", cmap="viridis")
    low, high = (np.nanmin(grid), np.nanmax(grid)) if np.isfinite(grid).any() else (0.0, 1.0)
    for (row, column), value in np.ndenumerate(grid):
        text = "not run" if np.isnan(value) else f"{value:.3f}"
        colour = "white" if value < (low + high) / 2 else "black"
        axis.text(column, row, text, ha="center", va="center", color=colour)
    if default is not None and default[0] in values.index and default[1] in values.columns:
        corner = (
            values.columns.get_loc(default[1]) - 0.48,
            values.index.get_loc(default[0]) - 0.46,
        )
        axis.add_patch(Rectangle(corner, 0.96, 0.92, fill=False, edgecolor="#D55E00", lw=3))
        title += "\n(framed: the default)"
    upright = max(map(len, columns)) > 8  # what a column has room for
    axis.set_xticks(range(grid.shape[1]), columns, rotation=90 if upright else 0)
    axis.set_yticks(range(grid.shape[0]), rows)
    axis.set(xlabel=values.columns.name or "", ylabel=values.index.name or "", title=title)
    figure.colorbar(image, ax=axis)
    return figure


def _progress(
    records: Records,
    title: str,
    label: str,
    value: Callable[[RoundRecord], float],
    most: float = np.inf,
) -> Figure:
    """Draw means over seeds with a band of one standard deviation, within 0 and ``most``."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axis: Axes = figure.subplots()
    for number, (method, seeds) in enumerate(records.items()):
        begun = [rounds for rounds in seeds if rounds]
        if not begun:
            continue
        rounds, mean, sd = mean_curve(begun, value)
        colour = COLOURS[number % len(COLOURS)]
        # Where colours come again, their styles are others.
        style = STYLES[(number + number // len(COLOURS)) % len(STYLES)]
        axis.plot(rounds, mean, color=colour, linestyle=style, label=method_title(method))
        if np.isfinite(sd).any():
            low, high = np.clip(mean - sd, 0.0, most), np.clip(mean + sd, 0.0, most)
            axis.fill_between(
                rounds, low, high, where=np.isfinite(sd), color=colour, alpha=0.12,
                linewidth=0,
            )  # fmt: skip
    axis.set(xlabel="round (a run that has stopped keeps its best round's value)")
    axis.set(ylabel=label, title=title)
    axis.grid(alpha=0.3)
    if axis.lines:
        axis.legend()
    return figure


def _ends(rounds: Rounds) -> tuple[float, float]:
    """Return the left and right end of a picture with a column for each record.

    A column is as wide as the mean gap between the records' rounds, and is centred on its round.
    """
    first, last = rounds[0].round, rounds[-1].round
    half = (last - first) / max(len(rounds) - 1, 1) / 2 or 0.5
    return first - half, last + half


def _log_ratio(rounds: Rounds) -> pd.DataFrame:
    """Return log2 of weight over FedAvg weight, clients by rounds; NaN where either is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = [
            pd.Series(np.log2(np.divide(record.weight, record.base_weight)), record.clients)
            for record in rounds
        ]
    grid = pd.concat(columns, axis="columns")
    return grid.where(np.isfinite(grid)).reindex(in_order(grid.index))
