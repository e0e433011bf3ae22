"""``python -m benchmarks``: measure, print, and leave JSON, tables and a picture.

Each section stands alone, with the versions, machine and commit that it was measured with, and can
be measured again alone: ``python -m benchmarks aggregation growth``. Let the machine be idle.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import aggregation, byzfl_loop, crowds, flower, machine, report, rounds
from fedcrf.cores import available_cores
from fedcrf.experiments.provenance import provenance
from fedcrf.files import atomic_write

ROOT = Path(__file__).parents[1]
PAGE, OUTPUT = ROOT / "docs" / "speed.md", ROOT / "results" / "benchmarks"
CORES = sorted({1, min(2, available_cores())})


def section(name: str, peaks: dict[str, Any]) -> Any:
    """Measure one section."""
    if name == "small-clients":
        return rounds.overhead()
    if name == "aggregation":
        return aggregation.aggregation(say)
    if name == "growth":
        return aggregation.growth(say)
    if name == "crowds":
        return crowds.crowds(say)
    if name == "byzfl":
        return byzfl_loop.compare(say)
    if name == "flower":
        return [flower.flower(cores, say) for cores in CORES]
    if name == "flower-load":
        return [flower.flower(cores, say, flower.MANY) for cores in CORES]
    return {
        str(cores): rounds.compare(name, cores, peaks["product"][str(cores)], say)
        for cores in CORES
    }


SECTIONS = [
    *rounds.FIELDS,
    "small-clients",
    "aggregation",
    "growth",
    "crowds",
    "flower",
    "flower-load",
    "byzfl",
]


DEFAULT = [name for name in SECTIONS if name in report.SHORT]
"""What the page shows."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "sections",
        nargs="*",
        help=f"of {', '.join(SECTIONS)}, or all; else {', '.join(DEFAULT)}, eight minutes",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    chosen = SECTIONS if given.sections == ["all"] else given.sections or DEFAULT
    for name in chosen:
        if name not in SECTIONS:
            parser.error(f"unknown section '{name}': choose from {', '.join(SECTIONS)}, or all")
    given.output.mkdir(parents=True, exist_ok=True)
    path = given.output / "benchmarks.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in chosen:
        say(f"\n# {name}")
        begun = time.perf_counter()
        peaks = {
            "product": {str(cores): machine.product_peak(cores) for cores in CORES},
            "bandwidth": {str(cores): machine.memory_bandwidth(cores) for cores in CORES},
        }
        found[name] = {
            "provenance": provenance(torch.device("cpu")).model_dump(),
            "peers": aggregation.peer_versions(),
            "peaks": peaks,
            "result": section(name, peaks),
        }
        found[name]["seconds"] = round(time.perf_counter() - begun)
        say(f"{name} took {found[name]['seconds']} s")
        _write(path, json.dumps(found, indent=1) + "\n")
    text = report.tables(found)
    _write(given.output / "tables.md", text)
    report.draw(found, given.output / "benchmarks.png")
    say("\n" + text)
    if given.output == OUTPUT and found.keys() >= report.SHORT:
        before, begin, rest = PAGE.read_text(encoding="utf-8").partition(report.BEGIN)
        _, end, after = rest.partition(report.END)
        _write(PAGE, f"{before}{begin}\n{report.short(found)}{end}{after}")


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


say: Callable[[str], None] = print

if __name__ == "__main__":
    main()
