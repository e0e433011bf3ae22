"""Six hospitals learn to tell tumours apart, and one of them sends the opposite of what it learnt.

python examples/hospitals.py            # needs fedcrf[simulation]; --report PAGE, fedcrf[report]
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn

import fedcrf
from fedcrf.own.result import SimulationResult

HOSPITALS = ("Aarau", "Bern", "Chur", "Davos", "Genf", "Zug")


def make_net() -> nn.Module:
    """Return a perceptron of the 30 measurements of a tumour."""
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))


def run(rounds: int = 20, rule: str = "crf-robust", **more: object) -> SimulationResult:
    """Deal scikit-learn's breast cancer data to six hospitals, and train."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    dealt = np.array_split(np.random.default_rng(0).permutation(len(y)), len(HOSPITALS))
    sites = {name: (x[part], y[part]) for name, part in zip(HOSPITALS, dealt, strict=True)}
    return fedcrf.simulate(
        make_net, sites, rule, rounds=rounds, learning_rate=0.05,
        attack="sign-flip", attackers=["Davos"], **more,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--report", help="where to write the page")
    given = parser.parse_args()
    result = run(given.rounds)
    print(f"FedAvg: {run(given.rounds, 'fedavg')}\n{result}\n")
    print(result.explain(site="Davos"))
    if given.report:
        print(f"wrote {result.report(given.report)}")
