"""What a round of MNIST costs, and what the command line costs before it does anything.

Prints, from one run on the images' shape of MNIST (48,000 training examples over 10 clients,
MLP 784-200-10, batch 64; random pixels, since their values do not change the cost):

* the median round of each of FedAvg and CRF-FedAvg with one process and with two, one thread each,
  by phase, and the share of the round that the server's rule takes;
* the same round's arithmetic as a share of the machine's matrix-product peak on one core;
* the wall time of ``fedcrf --help``.

Run it on an otherwise idle machine: ``make bench``.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time

import torch

from fedcrf.models import MLP
from fedcrf.objectives import Plain
from fedcrf.rules import CRF, FedAvg, Rule
from fedcrf.simulation.federation import Examples, Federation, PooledExamples
from fedcrf.simulation.records import Seconds
from fedcrf.simulation.rounds import Simulation
from fedcrf.simulation.stopping import EarlyStopping

CLIENTS, TRAIN, POOLED, HELD_OUT, ROUNDS = 10, 48_000, 6_000, 10_000, 7
MACS = 784 * 200 + 200 * 10


def main() -> None:
    torch.set_num_threads(1)
    peak = matrix_product_peak()
    work = 2 * MACS * (3 * TRAIN - TRAIN * 784 * 200 / MACS + 2 * POOLED + HELD_OUT)
    print(f"matrix-product peak, one core: {peak / 1e9:.0f} GFLOP/s")
    cases = (("FedAvg", FedAvg()), ("CRF-FedAvg", CRF()))
    for (name, rule), workers in itertools.product(cases, (1, 2)):
        seconds = rounds(rule, workers)
        total = statistics.median(each.total for each in seconds)
        share = statistics.median(each.aggregation / each.total for each in seconds)
        phases = ", ".join(
            f"{phase} {statistics.median(getattr(each, phase) for each in seconds):.3f}"
            for phase in ("training", "aggregation", "evaluation")
        )
        print(
            f"{name}, {workers} process(es): {total:.3f} s a round, median of {len(seconds)} "
            f"({phases}); server {share:.1%}; {work / total / peak / workers:.0%} of their peak"
        )
    times = [help_seconds() for _ in range(5)]
    print(f"fedcrf --help: {statistics.median(times):.3f} s, median of {len(times)}")


def rounds(rule: Rule, workers: int) -> list[Seconds]:
    """Return the phases of every round but the first, which warms up."""
    patient = EarlyStopping(patience=ROUNDS + 1)
    simulation = Simulation(
        federation(), MLP(), Plain(), rule, stopping=patient, max_rounds=ROUNDS + 1
    )
    return [record.seconds for _, record in simulation.rounds(simulation.start(), workers)][1:]


def federation() -> Federation:
    """Return clients of equal size, with random pixels and labels."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(count, 1, 28, 28, generator=generator)
        return images, torch.randint(10, (count,), generator=generator)

    owners = torch.arange(POOLED) % CLIENTS
    return Federation(
        clients=tuple(Examples(*draw(TRAIN // CLIENTS)) for _ in range(CLIENTS)),
        validation=PooledExamples(*draw(POOLED), owners),
        test=PooledExamples(*draw(POOLED), owners),
        held_out=Examples(*draw(HELD_OUT)),
        image_shape=(1, 28, 28),
        num_classes=10,
    )


def matrix_product_peak(size: int = 2048) -> float:
    """Return the best floating-point operations a second of a square product, one thread."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(8):
        started = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def help_seconds() -> float:
    """Return the wall time of printing the help in a fresh process."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fedcrf", "--help"], check=True, capture_output=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
