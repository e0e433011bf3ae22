"""Which code trains a network: the fast one where it is simple enough, else the general one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from torch import nn

from fedcrf.objectives import Objective
from fedcrf.simulation.federation import Examples
from fedcrf.simulation.local_training import LocalTraining, train_client
from fedcrf.simulation.mlp_training import MLPTraining, linear_layers

Trainer = Callable[[Examples, Objective, np.random.Generator], float]
"""Trains the network it was made for on a client's examples; returns the mean cross-entropy."""


def trainer(network: nn.Module, settings: LocalTraining, fewest: int = 1) -> Trainer:
    """Return what trains ``network`` in place, client after client.

    Args:
        network: The network.
        settings: How.
        fewest: Examples that a step must have, from `fewest_in_a_step`.
    """
    layers = linear_layers(network)
    if layers is not None and settings.precision == "float32":
        return MLPTraining(layers, settings).train
    return partial(train_client, network, settings=settings, fewest=fewest)
