"""Five sensors learn, with a convolution over time and batch norm, how fast a signal swings.

python examples/sequences.py            # needs fedcrf[simulation]
"""

from __future__ import annotations

import argparse

import numpy as np
from torch import from_numpy, nn
from torch.utils.data import TensorDataset

import fedcrf
from fedcrf.own.result import SimulationResult

LENGTH, CLASSES = 32, 3


def make_net() -> nn.Module:
    """Return a network of (n, 1, LENGTH) signals."""
    return nn.Sequential(
        nn.Conv1d(1, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def signals(count: int, seed: int) -> TensorDataset:
    """Return noisy sines of 1, 3 or 6 periods, which is their label."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, CLASSES, count)
    periods = np.array([1, 3, 6])[labels, None]
    time = np.linspace(0, 1, LENGTH) + draw.random((count, 1))
    x = np.sin(2 * np.pi * periods * time) + 0.3 * draw.standard_normal((count, LENGTH))
    return TensorDataset(from_numpy(x[:, None]).float(), from_numpy(labels))


def run(rounds: int = 15, **more: object) -> SimulationResult:
    """Train; the rule judges weights, and batch norm's running statistics are averaged alone."""
    sites = {f"sensor {number}": signals(80, seed=number) for number in range(1, 6)}
    return fedcrf.simulate(
        make_net, sites, rounds=rounds, learning_rate=0.05, test=signals(200, seed=9),
        judge=["!*running*", "!*tracked"], **more,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    result = run(parser.parse_args().rounds)
    print(result, result.metrics.to_string(), result.table().to_string(), sep="\n\n")
