"""Run the Flower and NVFlare examples with some rules and seeds, with a hostile client and without.

python examples/frameworks.py flower --seeds 0-2    # needs fedcrf[flower,report], flwr[simulation]
python examples/frameworks.py nvflare --seeds 0-4   # needs fedcrf[nvflare]

A run is a line of results/frameworks/FRAMEWORK.jsonl. One that is there, by the same code of its
rule, is not repeated. `make tables` writes the tables of the pages from them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fedcrf.experiments.provenance import provenance
from fedcrf.rules import find_rule

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "frameworks"
OWN = {"flower": "FedAvg", "nvflare": "average"}
"""The frameworks' own averaging, as their example calls it."""

RULES = ("crf", "crf-robust")
APPS = {"flower": ("logistic", "convolution", "adapters"), "nvflare": ("hospitals",)}
CLIENTS, FLOWER_ROUNDS, NVFLARE_ROUNDS, LONGEST = 5, 10, 10, 300
FIND_ACCURACY = re.compile(r"held-out accuracy ([\d.]+)")
Run = dict[str, Any]


def behaviour(strategy: str) -> int:
    """Return the number of a rule's code; 0 of a framework's own averaging."""
    return 0 if strategy in OWN.values() else find_rule(strategy).behaviour


def runs_of(framework: str) -> list[Run]:
    """Return the runs that are there, by the present code of their rule."""
    path = RESULTS / f"{framework}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs: list[Run] = [json.loads(line) for line in lines]
    return [run for run in runs if run["behaviour"] == behaviour(run["strategy"])]


def wanted(framework: str, seeds: range) -> Iterator[Run]:
    """Return the runs that are not there yet."""
    keys = ("app", "strategy", "hostile", "seed", "behaviour")
    there = {tuple(run[key] for key in keys) for run in runs_of(framework)}
    for seed in seeds:
        for app in APPS[framework]:
            for strategy in (OWN[framework], *RULES):
                for hostile in (True, False):
                    run = (app, strategy, hostile, seed, behaviour(strategy))
                    if run not in there:
                        yield dict(zip(keys, run, strict=True))


def flower(run: Run, folder: Path) -> float:
    """Run the Flower app in simulation, and return the last round's accuracy.

    A run also ends where every client's numbers have become infinite.
    """
    settings = {
        "task": f'"{run["app"]}"', "strategy": f'"{run["strategy"]}"', "seed": run["seed"],
        "hostile": 0 if run["hostile"] else -1, "num-server-rounds": FLOWER_ROUNDS,
        "min-nodes": CLIENTS, "output": f'"{folder}"',
    }  # fmt: skip
    said = command(
        Path(sys.executable).with_name("flwr"), "run", ROOT / "examples" / "flower-apps", "local",
        "--stream", "--federation-config", f"num-supernodes={CLIENTS} client-resources-num-cpus=1",
        "--run-config", " ".join(f"{name}={value}" for name, value in settings.items()),
    )  # fmt: skip
    if not (folder / "accuracies.json").exists():
        raise RuntimeError(f"no accuracy in {said[-500:]}")
    accuracies = json.loads((folder / "accuracies.json").read_text(encoding="utf-8"))
    return float([*accuracies.values()][-1])


def nvflare(run: Run, folder: Path) -> float:
    """Run the NVFlare job in its simulator, and return the accuracy of its model."""
    said = command(
        sys.executable, ROOT / "examples" / "nvflare-hospitals" / "job.py",
        "--rule", run["strategy"], "--hostile", "site-3" if run["hostile"] else "",
        "--seed", run["seed"], "--rounds", NVFLARE_ROUNDS, "--folder", folder,
    )  # fmt: skip
    found = FIND_ACCURACY.search(said)
    if found is None:
        raise RuntimeError(f"no accuracy in {said[-500:]}")
    return float(found[1])


def command(*words: object) -> str:
    """Run a command to its end, and return what it said."""
    # What the apps need is here; Flower would look for this package on an index.
    more = {"PYTHONPATH": str(ROOT / "src"), "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
    # Flower starts programs that lie beside this Python, also where its environment is not active.
    more["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [*map(str, words)], env=os.environ | more,
        capture_output=True, text=True, timeout=LONGEST,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{words[0]} failed: {done.stderr[-500:]}")
    return done.stdout


def main() -> None:
    """Run what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=[*APPS])
    parser.add_argument("--seeds", default="0-4", help="first and last")
    given = parser.parse_args()
    first, _, last = given.seeds.partition("-")
    RESULTS.mkdir(parents=True, exist_ok=True)
    measure = {"flower": flower, "nvflare": nvflare}[given.framework]
    versions = provenance(torch.device("cpu")).model_dump(exclude_none=True)
    for run in wanted(given.framework, range(int(first), int(last or first) + 1)):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                run["accuracy"] = measure(run, Path(folder) / "run")
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                print(f"{run}: {error}", file=sys.stderr)
                continue
        run |= {"seconds": round(time.monotonic() - started, 1), "provenance": versions}
        with (RESULTS / f"{given.framework}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
        print({name: value for name, value in run.items() if name != "provenance"}, flush=True)


if __name__ == "__main__":
    main()
