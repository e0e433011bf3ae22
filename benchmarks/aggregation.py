"""What CRF aggregation costs beside a plain weighted mean of the same models.

Prints, for ten clients and models of a million and of eleven million numbers, the time of the whole
aggregation (statistics, inference, weighted average) as a multiple of the time of ``w @ V`` on the
same rows, interleaved in one run, with one thread each and with two; the limit is 2, since the
updates must be read twice.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from fedcrf import ClientCRF
from fedcrf.statistics import update_statistics, weighted_average

CLIENTS, REPEATS = 10, 9


def main() -> None:
    for dimension in (1_000_000, 11_000_000):
        generator = np.random.default_rng(0)
        origin = generator.standard_normal(dimension, dtype=np.float32)
        stacked = origin + 0.01 * generator.standard_normal((CLIENTS, dimension), dtype=np.float32)
        for threads in (1, 2):
            measure(origin, stacked, threads)


def measure(origin: NDArray[np.float32], stacked: NDArray[np.float32], threads: int) -> None:
    """Time both, in turn, and print the ratio of each pair."""
    rows, counts = list(stacked), np.arange(1, CLIENTS + 1)
    equal, tensor = torch.full((CLIENTS,), 1.0 / CLIENTS), torch.from_numpy(stacked)
    torch.set_num_threads(threads)

    def aggregate() -> None:
        gathered = update_statistics([[row] for row in rows], [origin], threads)
        posterior = ClientCRF().infer_from_statistics(gathered, counts)
        weighted_average(rows, posterior.weights, threads)

    pairs = [(seconds(aggregate), seconds(lambda: equal @ tensor)) for _ in range(REPEATS + 2)][2:]
    ours, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    print(
        f"m = {CLIENTS}, d = {len(origin):.1e}, {threads} thread(s): {ours * 1e3:.1f} ms, "
        f"weighted mean {plain * 1e3:.1f} ms, ratio {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
