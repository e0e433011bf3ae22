"""The paper's own numbers, to stand beside ours: test accuracy, mean and sd over three seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedcrf.experiments.spec import RunSpec, resolve


@dataclass(frozen=True)
class Published:
    """Mean and standard deviation of the test accuracy over the paper's three seeds."""

    mean: float
    sd: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.sd:.3f}"


NON_IID_ALPHA: Mapping[str, float] = {"mnist": 0.003, "cifar10": 0.1, "cifar100": 0.1}
"""The Dirichlet concentration of the paper's non-IID setting."""

PUBLISHED: Mapping[tuple[str, str], Mapping[str, Published]] = {
    ("mnist", "noniid"): {
        "fedavg": Published(0.890, 0.034),
        "fedprox": Published(0.892, 0.037),
        "fednova": Published(0.814, 0.051),
        "trimmed-mean": Published(0.752, 0.096),
        "geometric-median": Published(0.840, 0.071),
        "rfa": Published(0.879, 0.020),
        "crf-fedavg": Published(0.895, 0.020),
        "crf-fedprox": Published(0.898, 0.015),
    },
    ("cifar10", "noniid"): {
        "fedavg": Published(0.538, 0.096),
        "fedprox": Published(0.566, 0.145),
        "fednova": Published(0.102, 0.001),
        "trimmed-mean": Published(0.399, 0.249),
        "geometric-median": Published(0.213, 0.111),
        "rfa": Published(0.543, 0.048),
        "crf-fedavg": Published(0.587, 0.062),
        "crf-fedprox": Published(0.595, 0.088),
    },
    ("cifar100", "noniid"): {
        "fedavg": Published(0.404, 0.005),
        "fedprox": Published(0.407, 0.014),
        "fednova": Published(0.401, 0.014),
        "trimmed-mean": Published(0.395, 0.010),
        "geometric-median": Published(0.400, 0.016),
        "rfa": Published(0.403, 0.013),
        "crf-fedavg": Published(0.418, 0.012),
        "crf-fedprox": Published(0.409, 0.014),
    },
    ("mnist", "iid"): {
        "fedavg": Published(0.975, 0.002),
        "fedprox": Published(0.976, 0.001),
        "fednova": Published(0.976, 0.003),
        "trimmed-mean": Published(0.975, 0.002),
        "geometric-median": Published(0.976, 0.003),
        "rfa": Published(0.976, 0.003),
        "crf-fedavg": Published(0.976, 0.002),
        "crf-fedprox": Published(0.976, 0.002),
    },
    ("cifar10", "iid"): {
        "fedavg": Published(0.844, 0.007),
        "fedprox": Published(0.836, 0.019),
        "fednova": Published(0.841, 0.001),
        "trimmed-mean": Published(0.838, 0.012),
        "geometric-median": Published(0.830, 0.009),
        "rfa": Published(0.841, 0.006),
        "crf-fedavg": Published(0.842, 0.013),
        "crf-fedprox": Published(0.845, 0.012),
    },
}
"""By data set and setting, then by method (tables 1 and 2 of the paper)."""


def paper_spec(dataset: str, setting: str, methods: Sequence[str], seeds: Sequence[int]) -> RunSpec:
    """Return the run that fills one column of the paper's tables.

    Args:
        dataset: ``mnist``, ``cifar10`` or ``cifar100``; its preset is the paper's.
        setting: ``noniid`` or ``iid``.
        methods: The rows.
        seeds: The paper has three.
    """
    partition = (
        {"scheme": "iid"}
        if setting == "iid"
        else {"scheme": "label-skew", "alpha": NON_IID_ALPHA[dataset]}
    )
    return resolve(
        {
            "methods": list(methods),
            "seeds": list(seeds),
            "data": {"dataset": dataset},
            "partition": {"num_clients": 10, **partition},
        }
    )


def published_column(spec: RunSpec) -> Mapping[str, Published]:
    """Return the paper's column for a run in just its setting; empty for any other run."""
    for (dataset, setting), column in PUBLISHED.items():
        paper = paper_spec(dataset, setting, spec.methods, spec.seeds)
        if spec.describe() == paper.describe():
            return column
    return {}
