"""Four practices learn how a diabetes will go on: a regression, with a loss and metrics of its own.

python examples/diabetes.py             # needs fedcrf[simulation]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

import fedcrf
from fedcrf.own.result import SimulationResult


def run(rounds: int = 30, **more: object) -> SimulationResult:
    """Train with the squared error, by Adam; a practice holds the patients of one age group."""
    x, y = load_diabetes(return_X_y=True)
    y = ((y - y.mean()) / y.std())[:, None]
    by_age = np.array_split(np.argsort(x[:, 0], kind="stable"), 4)
    names = ("young", "middle", "older", "old")
    sites = {name: (20 * x[part], y[part]) for name, part in zip(names, by_age, strict=True)}
    return fedcrf.simulate(
        lambda: nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1)), sites,
        rounds=rounds, loss=mse_loss, metrics={"absolute error": l1_loss},
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.005), **more,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    result = run(parser.parse_args().rounds)
    print(result, result.metrics.round(4).to_string(), result.table().to_string(), sep="\n\n")
