"""This project's round: `fedcrf.simulation.rounds.Simulation`, one worker process for each core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from benchmarks.workload import LEARNING_RATE, MOMENTUM, Workload
from fedcrf.objectives import Plain
from fedcrf.rules import RULES
from fedcrf.simulation.federation import Examples, Federation, PooledExamples
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.rounds import EarlyStopping, Simulation


def prepare(
    workload: Workload,
    cores: int,
    rule: str = "fedavg",
    precision: Literal["float32", "bfloat16"] = "float32",
) -> Callable[[], object]:
    torch.set_num_threads(1)
    clients, held_out = workload.data()
    owners = torch.arange(workload.clients)
    images, labels = (torch.cat([part[:1] for part in each]) for each in zip(*clients, strict=True))
    few = PooledExamples(images, labels, owners)  # nobody else evaluates the clients' own parts
    simulation = Simulation(
        federation=Federation(
            clients=tuple(Examples(*each) for each in clients),
            validation=few,
            test=few,
            held_out=Examples(*held_out),
            image_shape=workload.shape,
            num_classes=10,
        ),
        model=workload.plan,
        objective=Plain(),
        rule=RULES[rule](),
        training=LocalTraining(LEARNING_RATE, MOMENTUM, workload.batch_size, precision=precision),
        stopping=EarlyStopping(patience=10**9),
        max_rounds=10**9,
        evaluation_batch_size=workload.evaluation_batch,
    )
    rounds = simulation.rounds(simulation.start(), workers=cores)
    return lambda: next(rounds)
