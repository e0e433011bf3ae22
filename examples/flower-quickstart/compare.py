"""Run the app with FedAvg, CRFAvg and the robust CRF in Flower's simulation, and print the results.

Usage: ``python compare.py FOLDER DATASET SEEDS ROUNDS [KEY=VALUE ...]`` where the keys are the run
configuration's. A run that is in the folder already is not repeated, whatever its settings were.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

APP = Path(__file__).parent
CLIENTS = "num-supernodes=10 client-resources-num-cpus=1"
STRATEGIES = ("FedAvg", "CRFAvg", "crf-robust")


def main(folder: str, dataset: str, seeds: str, rounds: str, *settings: str) -> None:
    """Run what is not there yet, and print mean and standard deviation of the accuracies."""
    print("| strategy | last round | best loss |\n| --- | ---: | ---: |")
    for strategy in STRATEGIES:
        scores = []
        for seed in range(int(seeds)):
            output = Path(folder).resolve() / f"{dataset}-{strategy}-seed-{seed}"
            config = [f'strategy="{strategy}"', f'dataset="{dataset}"', f"seed={seed}"]
            config += [f"num-server-rounds={rounds}", f'output="{output}"', *settings]
            if not (output / "evaluations.json").exists():
                run(" ".join(config))
            evaluations = list(json.loads((output / "evaluations.json").read_text()).values())
            best = min(evaluations, key=lambda each: each["eval_loss"])
            scores.append((evaluations[-1]["eval_acc"], best["eval_acc"]))
        spread = np.std(scores, axis=0, ddof=1) if len(scores) > 1 else np.full(2, np.nan)
        pairs = zip(np.mean(scores, axis=0), spread, strict=True)
        columns = [f"{mean:.3f} ± {sd:.3f}" for mean, sd in pairs]
        print("| " + " | ".join([strategy, *columns]) + " |", flush=True)


def run(config: str) -> None:
    """Run the app to its end; what it says goes to standard error."""
    command = ["flwr", "run", str(APP), "local", "--stream", "--federation-config", CLIENTS]
    subprocess.run([*command, "--run-config", config], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
