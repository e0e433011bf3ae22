"""The convolutional network of the first federated experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedcrf.checks import Settings, check_whole
from fedcrf.models.base import ImageShape, check_size


@dataclass(frozen=True)
class CNN(Settings):
    """Two 5x5 convolutions, each pooled 2x2, and a hidden layer (McMahan et al., AISTATS 2017).

    Attributes:
        channels: Of the first convolution; the second has twice as many.
        hidden: Units of the hidden layer.
    """

    behaviour: ClassVar[int] = 1
    channels: int = 32
    hidden: int = 512

    def __post_init__(self) -> None:
        check_whole("channels", self.channels, least=1)
        check_whole("hidden", self.hidden, least=1)

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        check_size("cnn", image_shape, 4)
        pixels = (image_shape[1] // 4) * (image_shape[2] // 4)
        return nn.Sequential(
            *_convolution(image_shape[0], self.channels),
            *_convolution(self.channels, 2 * self.channels),
            nn.Flatten(),
            nn.Linear(2 * self.channels * pixels, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, num_classes),
        )


def _convolution(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
