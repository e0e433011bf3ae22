"""What aggregation costs where very many clients take part, each tied to its nearest alone."""

from __future__ import annotations

import math
import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.aggregation import WEIGHTED_MEAN, Rows, use_threads, weighted_mean
from benchmarks.timing import time_again
from fedcrf import ClientCRF
from fedcrf.cores import available_cores
from fedcrf.crf.potentials import Pairs
from fedcrf.statistics import weighted_average
from fedcrf.statistics.one_pass import finite_sums

CROWDS = (1000, 2000, 5000, 10_000)
NUMBERS = 100_000
NEIGHBOURS = 20
SKETCH_SIZES = (256, 1024)
"""The first is timed; of all it is told what they find."""

CLASSES, SKEW = 10, 0.3
MOST_WITH_ALL_PAIRS = 2000
NEAREST, NO_GRAPH = "fedcrf CRF, nearest", "fedcrf CRF, no graph"


def peak_of_memory() -> int:
    """Return the most bytes that this process has had in memory.

    On Linux the number that ``getrusage`` has holds the parent's peak too, from before this process
    began its own program.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (each for each in status.read_text().splitlines() if each.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def crowds(turns: int = 5) -> list[dict[str, Any]]:
    """Measure every crowd in a process of its own, whose peak of memory is its own."""
    found = []
    for clients in CROWDS:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            found.append(process.submit(crowd, clients, turns).result())
        each = found[-1]
        print(
            f"m = {clients}: {each['medians'][NEAREST]:.3f} s, graph {each['graph_share']:.0%}, "
            f"peak {each['peak_bytes'] / 2**30:.2f} GiB, recall "
            + ", ".join(f"{s['recall']:.2f} ({s['numbers']})" for s in each["sketches"])
        )
    return found


def exponent(found: list[dict[str, Any]], name: str = NEAREST) -> float:
    """Return a in time ∝ m^a from the smallest crowd to the largest."""
    first, last = found[0], found[-1]
    grown = last["medians"][name] / first["medians"][name]
    return math.log(grown) / math.log(last["clients"] / first["clients"])


def crowd(clients: int, turns: int) -> dict[str, Any]:
    """Measure one crowd: times in turns, peak of memory, what the sketches find of the graph."""
    threads = min(2, available_cores())
    use_threads(threads)
    origin, rows = skewed_models(clients)
    layers, counts = [[row] for row in rows], np.arange(1, clients + 1)

    def posterior(crf: ClientCRF) -> Any:
        return crf.infer_from_statistics(crf.statistics(layers, [origin], threads), counts)

    def aggregate(crf: ClientCRF) -> object:
        return weighted_average(rows, posterior(crf).weights, threads)

    def without_graph() -> object:
        finite_sums(layers, [origin], threads, products=False)
        return weighted_average(rows, np.full(clients, 1.0 / clients), threads)

    fast = ClientCRF(neighbours=NEIGHBOURS, sketch_size=SKETCH_SIZES[0])
    aggregate(fast)
    peak = peak_of_memory()
    works = {
        WEIGHTED_MEAN: weighted_mean(rows),
        NEAREST: partial(aggregate, fast),
        NO_GRAPH: without_graph,
    }
    timings = time_again(works, turns)
    exact = posterior(ClientCRF(neighbours=NEIGHBOURS))
    sketches = []
    for size in SKETCH_SIZES:
        found = posterior(ClientCRF(neighbours=NEIGHBOURS, sketch_size=size))
        sketches.append(
            {
                "numbers": size,
                "recall": recall(found.affinity, exact.affinity),
                "weights_moved": total_variation(found.weights, exact.weights),
            }
        )
    everybody = posterior(ClientCRF()).weights if clients <= MOST_WITH_ALL_PAIRS else None
    return {
        "clients": clients,
        "numbers": NUMBERS,
        "neighbours": NEIGHBOURS,
        "threads": threads,
        "seconds": {name: list(timing.seconds) for name, timing in timings.items()},
        "medians": {name: timing.median for name, timing in timings.items()},
        "times_weighted_mean": timings[NEAREST].ratio(timings[WEIGHTED_MEAN]),
        "graph_share": 1.0 - timings[NO_GRAPH].ratio(timings[NEAREST])["median"],
        "peak_bytes": peak,
        "updates_bytes": rows[0].base.nbytes,
        "sketches": sketches,
        "all_pairs_moved": None if everybody is None else total_variation(exact.weights, everybody),
    }


def skewed_models(clients: int) -> tuple[NDArray[np.float32], Rows]:
    """Return a global model and the clients' around it, as float32 rows of one array.

    An update is what all share, what the client's classes pull towards, by shares that are drawn
    from Dir(0.3), and as much noise: two clients with the same classes are at a cosine of 0.7.
    """
    generator = np.random.default_rng(0)
    origin, shared = generator.standard_normal((2, NUMBERS), dtype=np.float32)
    pulls = generator.standard_normal((CLASSES, NUMBERS), dtype=np.float32)
    rows = np.empty((clients, NUMBERS), dtype=np.float32)
    for row, share in zip(rows, generator.dirichlet(np.full(CLASSES, SKEW), clients), strict=True):
        generator.standard_normal(out=row, dtype=np.float32)
        row += shared
        row += share.astype(np.float32) @ pulls
        row *= 0.01
        row += origin
    return origin, list(rows)


def recall(found: Pairs, exact: Pairs) -> float:
    """Return the share of the exact graph's pairs that were found."""
    return float((found != 0).multiply(exact != 0).nnz / exact.nnz)


def total_variation(found: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """Return half the sum of the differences of weights, the share of the model that moved."""
    return float(np.abs(found - expected).sum() / 2)
