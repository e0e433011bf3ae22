"""What each hospital runs: logistic regression on its part of the breast cancer data.

NVFlare copies this file into the job; it needs NumPy, scikit-learn and nvflare, not fedcrf.
"""

from __future__ import annotations

import argparse

import numpy as np
import nvflare.client as flare
from sklearn.datasets import load_breast_cancer

HOSPITALS = 5
HELD_OUT = 114
"""Examples that no hospital has; job.py measures the model on them."""


def dealt(seed: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return measurements with a column of ones, labels, and rows: held out, then by hospital."""
    x, y = load_breast_cancer(return_X_y=True)
    x = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(x))])
    order = np.random.default_rng(seed).permutation(len(y))
    return x, y, [order[:HELD_OUT], *np.array_split(order[HELD_OUT:], HOSPITALS)]


def trained(weights: np.ndarray, x: np.ndarray, y: np.ndarray, epochs: int) -> np.ndarray:
    """Return the weights after full-batch gradient steps on the mean log-loss."""
    for _ in range(epochs):
        weights = weights - 0.1 * x.T @ (1 / (1 + np.exp(-(x @ weights))) - y) / len(y)
    return weights


def accuracy(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of examples on the right side of the plane."""
    return float(np.mean((x @ weights > 0) == y))


def main() -> None:
    """Train for each round that the server asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hostile", default="", help="name of the site that sends the opposite")
    given = parser.parse_args()
    flare.init()
    site = flare.get_site_name()
    x, y, rows = dealt(given.seed)
    own = rows[int(site.rpartition("-")[2])]
    while flare.is_running():
        received = flare.receive()
        before = np.asarray(received.params["numpy_key"], dtype=np.float64)
        after = trained(before, x[own], y[own], epochs=5)
        if site == given.hostile:
            after = before - 5 * (after - before)
        flare.send(
            flare.FLModel(
                params={"numpy_key": after.astype(np.float32)},
                metrics={"accuracy": accuracy(before, x[own], y[own])},
                meta={"num-examples": len(own), "NUM_STEPS_CURRENT_ROUND": 5},
            )
        )


if __name__ == "__main__":
    main()
