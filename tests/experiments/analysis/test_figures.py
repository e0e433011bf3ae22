"""Figures are whole files, the same for the same run, whatever the losses were."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.runs import record
from fedcrf.experiments.analysis.figures import (
    accuracy_figure,
    loss_figure,
    partition_figure,
    save,
    trust_figure,
)
from fedcrf.experiments.store import ClientHoldings, PartitionRecord

NAN, INF = math.nan, math.inf


def is_whole(paths: Sequence[Path]) -> None:
    svg, png = paths
    assert (svg.suffix, png.suffix) == (".svg", ".png")
    assert ElementTree.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB\x60\x82")


def runs(*losses: Sequence[float], crf: bool = False) -> list[list]:
    return [
        [record(number, loss, crf=crf) for number, loss in enumerate(seed, start=1)]
        for seed in losses
    ]


RUNS = {"fedavg": runs([1, 0.5, 0.4], [1, 0.6]), "crf-fedavg": runs([1, 0.4], [0.9], crf=True)}


def partition(clients: int, classes: int, empty: bool = False) -> PartitionRecord:
    return PartitionRecord(
        seed=0,
        class_names=[f"class {number}" for number in range(classes)],
        clients=[
            ClientHoldings(
                client=client,
                train=0 if empty else client * classes,
                validation=1,
                test=1,
                labels=[0 if empty else client] * classes,
            )
            for client in range(clients)
        ],
    )


def drawn(name: str) -> Figure:
    if name == "partition":
        return partition_figure(partition(4, 3), "title")
    figure = {"accuracy": accuracy_figure, "loss": loss_figure, "trust": trust_figure}[name](
        RUNS, "title"
    )
    assert figure is not None
    return figure


@pytest.mark.parametrize("name", ["accuracy", "loss", "trust", "partition"])
def test_files_are_whole_and_the_same_each_time(name: str, tmp_path: Path) -> None:
    first = save(drawn(name), tmp_path / "first")
    second = save(drawn(name), tmp_path / "second")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "first.png", "first.svg", "second.png", "second.svg",
    ]  # fmt: skip
    is_whole(first)
    assert first[0].read_bytes() == second[0].read_bytes()
    assert first[1].read_bytes() == second[1].read_bytes()


def test_a_stem_may_hold_a_dot(tmp_path: Path) -> None:
    # As in runs/digits-alpha0.1: what follows the dot is no suffix.
    paths = save(partition_figure(partition(2, 2), "t"), tmp_path / "alpha0.1")
    assert [path.name for path in paths] == ["alpha0.1.svg", "alpha0.1.png"]


@pytest.mark.parametrize(
    "losses",
    [
        [[NAN, NAN]],
        [[1.0, NAN, 0.5]],
        [[NAN], [1.0, 0.5]],
        [[1.0, INF, 1e30]],
        [[0.0, 0.0], [0.0]],
        [[0.0, 1.0]],
        [[INF, INF], [1.0, INF]],
        [[]],
        [[], [1.0]],
    ],
    ids=str,
)
def test_losses_of_any_kind(losses: list[list[float]], tmp_path: Path) -> None:
    # A warning would end up on the terminal in the middle of a table.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for draw in (accuracy_figure, loss_figure):
            is_whole(save(draw({"fedavg": runs(*losses)}, "t"), tmp_path / "figure"))


def test_curves_are_means_over_seeds_and_end_at_their_last_value() -> None:
    (line,) = (
        accuracy_figure(
            {"fedavg": [[record(1, 1, 0.2), record(2, 1, 0.4)], [record(1, 1, 0.6)]]}, "t"
        )
        .axes[0]
        .lines
    )
    assert line.get_xdata().tolist() == [1, 2]
    assert line.get_ydata() == pytest.approx([0.4, 0.5])


def test_no_two_of_many_methods_are_drawn_alike() -> None:
    figure = loss_figure({f"method {n}": runs([1, 0.5]) for n in range(32)}, "t")
    assert len({(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}) == 32


def test_trust_needs_a_rule_that_infers() -> None:
    assert trust_figure({"fedavg": runs([1, 0.5])}, "t") is None
    assert trust_figure({"fedavg": [], "crf-fedavg": [[]]}, "t") is None
    figure = trust_figure(RUNS, "t")
    assert figure is not None
    # Two clients of ids 0 and 2: weight over base weight is 1.5 and 0.75.
    (image,) = figure.axes[0].images
    grid = image.get_array()
    assert grid.shape == (2, 2)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0", "2"]
    assert grid[:, 0].tolist() == pytest.approx([math.log2(1.5), math.log2(0.75)])


def test_a_client_without_weight_does_not_look_like_one_with_fedavg_s() -> None:
    whole, out = record(1, 0.5, crf=True), record(2, 0.5, crf=True)
    out = out.model_copy(update={"weight": [0.0, 1.0], "base_weight": [0.0, 1.0], "excluded": [0]})
    for rounds, said in (([whole], False), ([whole, out], True)):
        figure = trust_figure({"crf-fedavg": [rounds]}, "t")
        assert figure is not None
        axis, bar = figure.axes
        (image,) = axis.images
        assert bool(np.isnan(np.ma.filled(image.get_array(), np.nan)).any()) == said
        assert np.abs(np.subtract(axis.get_facecolor(), image.cmap(0.5))[:3]).min() > 0.3
        assert ("grey" in bar.get_ylabel()) == said


def test_trust_where_no_client_had_weight(tmp_path: Path) -> None:
    # As in a run that diverged from its first round on.
    lost = record(1, NAN, crf=True).model_copy(update={"weight": [0.0, 0.0]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = trust_figure({"crf-fedavg": [[lost]]}, "t")
        if figure is not None:
            is_whole(save(figure, tmp_path / "figure"))


def test_a_band_ends_where_accuracies_do() -> None:
    seeds = [[record(1, 1.0, accuracy=accuracy)] for accuracy in (0.7, 1.0)]
    (band,) = accuracy_figure({"fedavg": seeds}, "t").axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(0.85 - 0.15 * 2**0.5), 1.0)


@pytest.mark.parametrize(
    ("clients", "classes", "empty"),
    [
        (1, 1, False),
        (1, 1, True),
        (40, 10, False),
        pytest.param(2, 3000, False, marks=pytest.mark.slow),
        pytest.param(10, 100, False, marks=pytest.mark.slow),
        pytest.param(300, 2, True, marks=pytest.mark.slow),
    ],
)
def test_partitions_of_any_size(clients: int, classes: int, empty: bool, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        is_whole(save(partition_figure(partition(clients, classes, empty), "t"), tmp_path / "p"))
