"""Rounds of ours and of the peers in turns; what a small client costs beside its arithmetic."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from benchmarks.contender import Contender, Entry, MissingError, version
from benchmarks.timing import seconds, take_turns
from benchmarks.workload import WORKLOADS
from fedcrf.models import MLP
from fedcrf.objectives import Plain
from fedcrf.rules import FedAvg
from fedcrf.simulation.engine import Engine, engine_for, state_of
from fedcrf.simulation.federation import Examples, Federation, PooledExamples
from fedcrf.simulation.local_training import LocalTraining, epochs, trainer
from fedcrf.simulation.rounds import Simulation

OURS, CRF, BFLOAT16, SLICES = "fedcrf", "fedcrf, CRF rule", "fedcrf, bfloat16", "tensor slices"
ours, crf = Entry(OURS, "ours"), Entry(CRF, "ours", options={"rule": "crf"})
slices = Entry(SLICES, "slices")
bfloat16 = Entry(BFLOAT16, "ours", options={"precision": "bfloat16"})
FIELDS: dict[str, list[Entry]] = {
    "mnist-mlp": [
        ours,
        crf,
        slices,
        Entry("DataLoader", "slices", options={"loader": True}),
        Entry("FedJAX", "fedjax_round", "fedjax"),
        Entry("pfl", "pfl_round", "pfl"),
        Entry("fluke", "fluke_round", "fluke-fl"),
    ],
    "mnist-cnn": [ours, bfloat16, slices],
    "cifar-resnet9": [ours, bfloat16, slices],
}


def compare(name: str, cores: int, peak: float) -> dict[str, Any]:
    """Time a round of each contender on so many cores; ``peak`` is their matrix-product peak."""
    workload, running, missing = WORKLOADS[name], {}, {}
    for entry in FIELDS[name]:
        try:
            if entry.package is not None and version(entry.package) is None:
                raise MissingError(f"{entry.package} is not installed")
            running[entry.name] = Contender(entry, name, cores)
            print(f"{cores} core(s): {entry.name} is ready")
        except MissingError as reason:
            missing[entry.name] = str(reason)
    print(f"{cores} core(s): {workload.repeats + 1} rounds of each, in turns")
    try:
        works = {name: contender.seconds for name, contender in running.items()}
        timings = take_turns(works, workload.repeats)
    finally:
        for contender in running.values():
            contender.close()
    operations = workload.operations()
    return {
        "operations": operations,
        "missing": missing,
        "contenders": {
            entry.name: {
                "version": entry.package and version(entry.package),
                "seconds": list(timings[entry.name].seconds),
                "median": timings[entry.name].median,
                "times_ours": timings[entry.name].ratio(timings[OURS]),
                "share_of_peak": operations / timings[entry.name].median / peak,
            }
            for entry in FIELDS[name]
            if entry.name in timings
        },
    }


CLIENTS, PER_ROUND, EXAMPLES = 1000, 100, 60


def overhead(turns: int = 15) -> dict[str, Any]:
    """Time the training of 100 small clients of 1,000, and the same steps alone, in turns.

    The steps alone are one call of the trainer on all the round's examples, in as many batches of
    the same size: no model is loaded, copied or reset, and nothing is drawn but one order.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(CLIENTS * EXAMPLES, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (len(images),), generator=generator)
    parts = zip(images.split(EXAMPLES), labels.split(EXAMPLES), strict=True)
    few = PooledExamples(images[:10], labels[:10], torch.arange(10))
    federation = Federation(
        clients=tuple(Examples(*part) for part in parts),
        validation=few,
        test=few,
        held_out=None,
        image_shape=(1, 28, 28),
        num_classes=10,
    )
    work = Simulation(federation, MLP(), Plain(), FedAvg(), clients_per_round=PER_ROUND)
    model, torch_threads = state_of(work.network().state_dict()), torch.get_num_threads()
    torch.set_num_threads(1)
    count = PER_ROUND * EXAMPLES
    union = Examples(images[:count], labels[:count])
    settings = LocalTraining(batch_size=EXAMPLES)
    train = trainer(work.network(), settings)
    shuffle, number = np.random.default_rng(0), iter(range(1, 10**9))
    alone = Engine(work)
    with engine_for(work, 2) as pool:
        timings = take_turns(
            {
                "arithmetic": lambda: seconds(
                    lambda: train(union, Plain(), epochs(settings, count, shuffle), None, 1)
                ),
                "1 process": lambda: seconds(lambda: alone.train(model, next(number))),
                "2 processes": lambda: seconds(lambda: pool.train(model, next(number))),
            },
            turns,
        )
    torch.set_num_threads(torch_threads)
    arithmetic = timings["arithmetic"].seconds
    processes = {"1 process": 1, "2 processes": min(2, os.cpu_count() or 1)}
    return {
        "clients": CLIENTS,
        "per_round": PER_ROUND,
        "examples": EXAMPLES,
        "arithmetic_ms_per_client": 1e3 * timings["arithmetic"].median / PER_ROUND,
        "overhead_ms_per_client": {
            name: sorted(
                1e3 * (cores * its - base) / PER_ROUND
                for its, base in zip(timings[name].seconds, arithmetic, strict=True)
            )
            for name, cores in processes.items()
        },
    }
