"""The published measurements, and the machinery that takes them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import aggregation, report
from benchmarks.__main__ import SECTIONS
from benchmarks.contender import Contender, Entry, MissingError
from benchmarks.timing import Timing, take_turns
from benchmarks.workload import WORKLOADS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "benchmarks"


@pytest.fixture
def found() -> dict[str, Any]:
    """What `make bench` measured last."""
    content: dict[str, Any] = json.loads((FOLDER / "benchmarks.json").read_text(encoding="utf-8"))
    return content


def test_the_page_shows_what_was_measured(found: dict[str, Any]) -> None:
    assert (FOLDER / "tables.md").read_text(encoding="utf-8") == report.tables(found)


def test_every_section_says_what_it_was_measured_with(found: dict[str, Any]) -> None:
    assert report.SHORT <= found.keys() <= set(SECTIONS)
    for section in found.values():
        assert re.fullmatch("[0-9a-f]{40}", section["provenance"]["commit"])
        assert section["peaks"]["product"]["1"] > 0


def test_every_rule_is_measured_that_the_tables_show() -> None:
    origin, rows = aggregation.models(clients=4, numbers=100)
    named = dict(aggregation._our_rules(origin, rows))
    assert len(named) == len(aggregation.RULES_SHOWN)
    for aggregate in named.values():
        assert aggregate().weights.shape == (4,)  # type: ignore[attr-defined]


def test_a_contender_that_cannot_take_part_is_named_with_the_reason() -> None:
    case = {"missing": {"FedJAX": "fedjax is not installed"}, "contenders": {}}
    table = "\n".join(report.rounds({"result": {"1": case}}))
    assert "| FedJAX | not run: fedjax is not installed |" in table
    with pytest.raises(MissingError, match=r"ModuleNotFoundError.*no_such_peer"):
        Contender(Entry("nobody", "no_such_peer"), "mnist-mlp", 1)


@pytest.mark.parametrize(
    ("long", "calls", "heard"), [(math.inf, 4, [1.0, 1.0, 1.0]), (50.0, 3, [100.0, 1.0, 1.0])]
)
def test_turns_are_taken_one_after_the_other_and_a_short_first_is_not_counted(
    long: float, calls: int, heard: list[float]
) -> None:
    order: list[str] = []

    def work(name: str, seconds: float) -> float:
        order.append(name)
        return seconds * (100 if len(order) < 3 else 1)

    timings = take_turns({"a": lambda: work("a", 1.0), "b": lambda: work("b", 3.0)}, 3, long)
    assert order == ["a", "b"] * calls
    assert timings["a"].seconds == heard
    assert timings["b"].ratio(timings["a"]) == {"median": 3.0, "least": 3.0, "greatest": 3.0}
    assert Timing([1.0, 2.0, 4.0]).ratio(Timing([1.0, 1.0, 1.0]))["greatest"] == 4.0


def test_the_mnist_round_is_so_much_arithmetic() -> None:
    hidden, logits = 784 * 200, 200 * 10  # the first layer's inputs need no gradient
    step, evaluation = 2 * (2 * hidden + 3 * logits), 2 * (hidden + logits)
    expected = 60_000 * step + 10_000 * evaluation
    assert WORKLOADS["mnist-mlp"].operations() == pytest.approx(expected, rel=1e-12)


def test_the_data_are_dealt_out_whole() -> None:
    clients, held_out = WORKLOADS["cifar-resnet9"].data()
    assert [images.shape for images, _ in clients] == [torch.Size((32, 3, 32, 32))] * 4
    assert len(held_out[1]) == 32
