"""The residual networks on real images: a subsample, on the CPU, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.command_line import CommandLine, others_than_compiling

SMALL = ("--limit", 40, "--clients", 2, "--partition", "iid", "--rounds", 2, "--seeds", 0,
         "--jobs", 1)  # fmt: skip


@pytest.mark.parametrize(
    ("dataset", "model", "methods"),
    [
        ("cifar10", {"name": "resnet9", "width": 64}, "crf-fedprox"),
        ("cifar100", {"name": "resnet18"}, "crf-fedavg"),
    ],
)
def test_a_round_of_each(
    command_line: CommandLine,
    data_dir: Path,
    tmp_path: Path,
    dataset: str,
    model: dict[str, object],
    methods: str,
) -> None:
    arguments = ("run", "--dataset", dataset, "--methods", methods, *SMALL, "-o", tmp_path / "run")
    result = command_line(*arguments, "--data-dir", data_dir)
    assert (result.rc, others_than_compiling(result.err)) == (0, [])
    for method in methods.split(","):
        cell = tmp_path / "run" / "cells" / f"{method}-seed-0"
        summary = json.loads((cell / "summary.json").read_text())
        assert summary["description"]["model"] == model
        records = [json.loads(line) for line in (cell / "rounds.jsonl").read_text().splitlines()]
        assert [record["round"] for record in records] == [1, 2]
        # On so few images the loss may rise at first; what no number would be written as is null.
        assert all(record["training_loss"] and record["validation"]["loss"] for record in records)
        assert sum(records[0]["weight"]) == pytest.approx(1, abs=1e-5)
