"""Server rules: how the clients' models become the next global model.

A rule is a frozen dataclass in a file of its own and a line in `RULES`; its fields are its
settings, and a run's description may set them by name.
"""

from collections.abc import Mapping

from fedcrf.rules.base import AggregationResult, ClientReport, Rule, State
from fedcrf.rules.crf import CRF
from fedcrf.rules.mean import FedAvg, Uniform

RULES: Mapping[str, type[Rule]] = {
    "fedavg": FedAvg,
    "uniform": Uniform,
    "crf": CRF,
}

__all__ = [
    "CRF",
    "RULES",
    "AggregationResult",
    "ClientReport",
    "FedAvg",
    "Rule",
    "State",
    "Uniform",
]
