"""``python -m benchmarks``: measure, print, and leave JSON, tables and a picture.

Each section stands alone, with the versions, machine and commit that it was measured with, and can
be measured again alone: ``python -m benchmarks aggregation growth``. Let the machine be idle.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import aggregation, byzfl_loop, crowds, flower, machine, report, rounds
from fedcrf.cores import available_cores
from fedcrf.experiments.provenance import provenance
from fedcrf.files import write_text

OUTPUT = Path(__file__).parents[1] / "results" / "benchmarks"
CORES = sorted({1, min(2, available_cores())})

Peaks = Mapping[str, Mapping[str, float]]
"""The machine's measured ``product`` and ``bandwidth``, each by the number of cores."""


def _rounds(name: str, peaks: Peaks) -> dict[str, Any]:
    products = peaks["product"].items()
    return {cores: rounds.compare(name, int(cores), peak) for cores, peak in products}


SECTIONS: Mapping[str, Callable[[Peaks], Any]] = {
    **{name: partial(_rounds, name) for name in rounds.FIELDS},
    "small-clients": lambda _: rounds.overhead(),
    "aggregation": lambda _: aggregation.aggregation(),
    "growth": lambda _: aggregation.growth(),
    "crowds": lambda _: crowds.crowds(),
    "flower": lambda _: [flower.flower(cores) for cores in CORES],
    "flower-load": lambda _: [flower.flower(cores, flower.MANY) for cores in CORES],
    "byzfl": lambda _: byzfl_loop.compare(),
}
"""By name what measures a section, on a machine with these peaks."""

DEFAULT = [name for name in SECTIONS if name in report.SHORT]
"""What docs/speed.md shows."""


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
        print(f"\n# {name}")
        begun = time.perf_counter()
        peaks = {
            "product": {str(cores): machine.product_peak(cores) for cores in CORES},
            "bandwidth": {str(cores): machine.memory_bandwidth(cores) for cores in CORES},
        }
        found[name] = {
            "provenance": provenance(torch.device("cpu")).model_dump(),
            "peers": aggregation.peer_versions(),
            "peaks": peaks,
            "result": SECTIONS[name](peaks),
        }
        found[name]["seconds"] = round(time.perf_counter() - begun)
        print(f"{name} took {found[name]['seconds']} s")
        write_text(path, json.dumps(found, indent=1) + "\n")
    text = report.tables(found)
    write_text(given.output / "tables.md", text)
    report.draw(found, given.output / "benchmarks.png")
    print("\n" + text)


if __name__ == "__main__":
    main()
