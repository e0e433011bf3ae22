"""The perceptron, and convolutional networks of few layers from the field's protocols."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fedcrf.checks import Count, Settings, check_whole
from fedcrf.models.base import ImageShape, check_size


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


@dataclass(frozen=True)
class CNN(Settings):
    """Two 5x5 convolutions, each pooled 2x2, and a hidden layer (McMahan et al., AISTATS 2017).

    Attributes:
        channels: Channels of the first convolution; the second has twice as many.
        hidden: Units of the hidden layer.
    """

    channels: Count = 32
    hidden: Count = 512

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        check_size("cnn", image_shape, 4)
        channels = (self.channels, 2 * self.channels)
        return _network(image_shape, num_classes, channels, (self.hidden,), padding=2)


@dataclass(frozen=True)
class ByzFLCNN(Settings):
    """Two unpadded 5x5 convolutions of 20 and 50 channels: ``cnn_mnist`` of ByzFL's benchmark."""

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        check_size("byzfl-cnn", image_shape, SMALLEST)
        return _network(image_shape, num_classes, (20, 50), (500,))


@dataclass(frozen=True)
class LeNet5(Settings):
    """LeNet-5 with ReLU and max pooling (FLPoison's ``lenet``).

    Images smaller than 32x32 are padded to that size.
    """

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        channels, height, width = image_shape
        check_size("lenet5", image_shape, SMALLEST)
        down, across = (max(0, 32 - side) for side in (height, width))
        padded = (channels, height + down, width + across)
        network = _network(padded, num_classes, (6, 16), (120, 84))
        edges = (across // 2, across - across // 2, down // 2, down - down // 2)
        return nn.Sequential(nn.ZeroPad2d(edges), *network)


@dataclass(frozen=True)
class SmallCNN(Settings):
    """Padded 3x3 convolutions, each pooled 2x2, and a hidden layer: CIFAR-10 on few cores.

    It has 356,810 parameters for ten classes of 32x32 colour images.

    Attributes:
        channels: Channels of each convolution.
        hidden: Units of the hidden layer.
        batch_norm: Whether batch norm follows each convolution.
    """

    channels: tuple[int, ...] = (32, 64, 128)
    hidden: Count = 128
    batch_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for channels in self.channels:
            check_whole("channels", channels, least=1)

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        check_size("small-cnn", image_shape, max(2, 2 ** len(self.channels)))
        return _network(
            image_shape,
            num_classes,
            self.channels,
            (self.hidden,),
            kernel=3,
            padding=1,
            batch_norm=self.batch_norm,
        )


SMALLEST = 16
"""Pixels a side that two unpadded 5x5 convolutions, each pooled, reduce to one."""


def _network(
    image_shape: ImageShape,
    num_classes: int,
    channels: Sequence[int],
    hidden: Sequence[int],
    *,
    kernel: int = 5,
    padding: int = 0,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Return convolutions, each pooled 2x2, then linear layers, all with ReLU."""
    layers: list[nn.Module] = []
    inputs = image_shape[0]
    for outputs in channels:
        layers.append(nn.Conv2d(inputs, outputs, kernel, padding=padding))
        if batch_norm:
            layers.append(nn.BatchNorm2d(outputs))
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        inputs = outputs
    layers.append(nn.Flatten())
    with torch.no_grad():
        blank = nn.Sequential(*layers).eval()(torch.zeros(1, *image_shape))
    inputs = blank.shape[1]
    for units in hidden:
        layers += [nn.Linear(inputs, units), nn.ReLU()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, num_classes)).train()
