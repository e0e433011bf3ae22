"""What the server's rules cost beside a weighted mean of the same models, and beside peers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.contender import hide_torchvision, version
from benchmarks.timing import Timing, seconds, take_turns, time_again
from fedcrf import ClientCRF
from fedcrf.cores import available_cores
from fedcrf.rules import RULES, ClientReport
from fedcrf.statistics import update_statistics, weighted_average

Rows = list[NDArray[np.float32]]
WEIGHTED_MEAN, OURS = "weighted mean", "fedcrf CRF"

CASES = ((10, 80_000), (10, 1_000_000), (10, 11_000_000), (100, 1_000_000), (1000, 100_000))
OVER_CLIENTS = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
OVER_NUMBERS = (100_000, 1_000_000, 10_000_000, 100_000_000)
FEW = 20_000_000  # numbers up to which a turn is short, and there are more of them
RULES_SHOWN = (
    "fedavg",
    "coordinate-median",
    "trimmed-mean",
    "geometric-median",
    "rfa",
    "krum",
    "crf",
    "crf-robust",
)


def models(clients: int, numbers: int) -> tuple[NDArray[np.float32], Rows]:
    """Return a global model and the clients' around it, as float32 rows of one array."""
    generator = np.random.default_rng(0)
    origin = generator.standard_normal(numbers, dtype=np.float32)
    rows = np.empty((clients, numbers), dtype=np.float32)
    for row in rows:
        generator.standard_normal(out=row, dtype=np.float32)
        row *= 0.01
        row += origin
    return origin, list(rows)


def crf(origin: NDArray[np.float32], rows: Rows, threads: int) -> Callable[[], object]:
    """Return the whole aggregation: statistics, inference, weighted average."""
    counts = np.arange(1, len(rows) + 1)

    def aggregate() -> object:
        gathered = update_statistics([[row] for row in rows], [origin], threads)
        posterior = ClientCRF().infer_from_statistics(gathered, counts)
        return weighted_average(rows, posterior.weights, threads)

    return aggregate


def weighted_mean(rows: Rows) -> Callable[[], object]:
    """Return the product w @ V, the least that any average must do.

    NumPy's, which is as fast as torch's or faster.
    """
    stacked = rows[0].base
    assert stacked is not None
    weights = np.full(len(rows), 1.0 / len(rows), np.float32)
    return lambda: weights @ stacked


def aggregation() -> list[dict[str, Any]]:
    """Time every case with one thread and with two; the peers that have one thread with one."""
    return [
        compare(clients, numbers, threads)
        for clients, numbers in CASES
        for threads in sorted({1, min(2, available_cores())})
    ]


def compare(clients: int, numbers: int, threads: int) -> dict[str, Any]:
    """Time ours, the weighted mean, our other rules and the peers' on the same models, in turns."""
    use_threads(threads)
    origin, rows = models(clients, numbers)
    works = {WEIGHTED_MEAN: weighted_mean(rows), OURS: crf(origin, rows, threads)}
    works |= dict(_our_rules(origin, rows))
    missing: dict[str, str] = {}
    works |= dict(_peers(rows, missing, alone=threads == 1))
    timings = time_again(works, 7 if clients * numbers <= FEW else 3)
    gathered = update_statistics([[row] for row in rows], [origin], threads)
    counts = np.arange(1, clients + 1)
    infer = partial(ClientCRF().infer_from_statistics, gathered, counts)
    described = {name: _described(each, timings) for name, each in timings.items()}
    ratio = described[OURS]["times_weighted_mean"]
    print(
        f"m = {clients}, d = {numbers:.1e}, {threads} thread(s): {OURS} "
        f"{1e3 * timings[OURS].median:.1f} ms, {ratio['median']:.2f} x the weighted mean "
        f"({ratio['least']:.2f} to {ratio['greatest']:.2f})"
    )
    return {
        "clients": clients,
        "numbers": numbers,
        "threads": threads,
        "missing": missing,
        "timings": described,
        "inference": take_turns({"": partial(seconds, infer)}, 5)[""].median,
    }


def growth(turns: int = 5) -> dict[str, list[dict[str, Any]]]:
    """Time ours and the weighted mean over the number of clients, and over that of numbers."""
    cores = min(2, available_cores())

    def point(clients: int, numbers: int) -> dict[str, Any]:
        use_threads(cores)
        origin, rows = models(clients, numbers)
        works = {WEIGHTED_MEAN: weighted_mean(rows), OURS: crf(origin, rows, cores)}
        timings = time_again(works, turns if clients * numbers < 10 * FEW else 2)
        medians = {name: timing.median for name, timing in timings.items()}
        nanoseconds = 1e9 * medians[OURS] / clients / numbers
        print(f"m = {clients}, d = {numbers:.0e}: {nanoseconds:.3f} ns a number of a client")
        return {"clients": clients, "numbers": numbers, "threads": cores, "medians": medians}

    return {
        "over_clients": [point(clients, 100_000) for clients in OVER_CLIENTS],
        "over_numbers": [point(10, numbers) for numbers in OVER_NUMBERS],
    }


def use_threads(threads: int) -> None:
    """Give torch, NumPy and our own code so many threads each."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)


def _described(timing: Timing, timings: dict[str, Timing]) -> dict[str, Any]:
    return {
        "seconds": list(timing.seconds),
        "median": timing.median,
        "times_weighted_mean": timing.ratio(timings[WEIGHTED_MEAN]),
        "times_ours": timing.ratio(timings[OURS]),
    }


def _our_rules(
    origin: NDArray[np.float32], rows: Rows
) -> Iterator[tuple[str, Callable[[], object]]]:
    reports = [ClientReport(i, {"w": row}, i + 1) for i, row in enumerate(rows)]
    for name in RULES_SHOWN:
        rule = RULES[name]()
        # What remembers its clients does more in later rounds.
        first = rule.aggregate(rule.begin(), {"w": origin}, reports)
        yield f"fedcrf rule {name}", partial(rule.aggregate, first.memory, first.state, reports)


def _peers(
    rows: Rows, missing: dict[str, str], alone: bool
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the peers' rules; without those of one thread where that is not to be ``alone``."""
    if not alone:
        return
    stacked = rows[0].base
    tensor = torch.from_numpy(stacked)
    yield "torch.median", lambda: torch.median(tensor, dim=0)
    yield "np.median", lambda: np.median(stacked, axis=0)
    try:
        hide_torchvision()
        import byzfl

        outliers = max(1, len(rows) // 10)
        for name, rule in {
            "ByzFL Median": byzfl.Median(),
            "ByzFL TrMean": byzfl.TrMean(f=outliers),
            "ByzFL GeoMed": byzfl.GeometricMedian(),
            "ByzFL Krum": byzfl.Krum(f=outliers),
        }.items():
            yield name, partial(rule, tensor)
    except ImportError as error:
        missing["ByzFL"] = str(error)


def peer_versions() -> dict[str, str | None]:
    """Return the versions of the packages that take part."""
    return {name: version(name) for name in ("byzfl", "flwr", "pfl", "fluke-fl", "fedjax", "jax")}
