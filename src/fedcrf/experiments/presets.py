"""The settings a data set is run with unless told otherwise: the paper's, where it names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "digits": {
        "partition": {"alpha": 0.1},
        "model": {"name": "mlp", "hidden": [64]},
        "training": {"learning_rate": 0.05, "batch_size": 16},
    },
    "mnist": {
        "partition": {"alpha": 0.003},
        "model": {"name": "mlp"},
        "training": {"learning_rate": 0.01},
    },
    "cifar10": {
        "partition": {"alpha": 0.1},
        "model": {"name": "resnet9"},
        "training": {"learning_rate": 0.01},
    },
    "cifar100": {
        "partition": {"alpha": 0.1},
        "model": {"name": "resnet18"},
        "training": {"learning_rate": 0.005},
    },
}
"""By data set: sections of a run's description, as in a run file."""

OTHERS: Mapping[str, Mapping[str, Any]] = {"model": {"name": "resnet9"}}
"""For any other data set."""
