"""The multilayer perceptron."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from torch import nn

from fedcrf.checks import Settings, check_whole
from fedcrf.models.base import ImageShape


@dataclass(frozen=True)
class MLP(Settings):
    """Multilayer perceptron with ReLU; one hidden layer of 200 by default (the paper's MNIST).

    Attributes:
        hidden: Units of each hidden layer; empty for a linear classifier.
    """

    hidden: tuple[int, ...] = (200,)

    def __post_init__(self) -> None:
        for units in self.hidden:
            check_whole("hidden", units, least=1)

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        widths = [math.prod(image_shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
