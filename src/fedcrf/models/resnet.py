"""Residual networks for small images (He et al., CVPR 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from fedcrf.checks import Count, Settings
from fedcrf.models.base import ImageShape, check_size

SMALLEST = 16
"""Pixels a side: more than one must remain after three halvings, for batch norm on one image."""


@dataclass(frozen=True)
class ResNet9(Settings):
    """Nine-layer residual network for images of 16x16 and up, about 6.6 M parameters."""

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        check_size("resnet9", image_shape, SMALLEST)
        return nn.Sequential(
            _convolution(image_shape[0], 64),
            _convolution(64, 128),
            nn.MaxPool2d(2),
            _Residual(nn.Sequential(_convolution(128, 128), _convolution(128, 128))),
            _convolution(128, 256),
            nn.MaxPool2d(2),
            _convolution(256, 512),
            nn.MaxPool2d(2),
            _Residual(nn.Sequential(_convolution(512, 512), _convolution(512, 512))),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(512, num_classes),
        )


@dataclass(frozen=True)
class ResNet18(Settings):
    """Eighteen-layer residual network, 3x3 stem, for images of 16x16 and up, about 11.2 M."""

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        check_size("resnet18", image_shape, SMALLEST)
        return _residual_network(image_shape[0], num_classes, 64, (2, 2, 2, 2))


@dataclass(frozen=True)
class ResNet20(Settings):
    """Twenty-layer residual network for small images, projections where the shape changes.

    With 16 channels it is that of Karimireddy, He and Jaggi's experiments (ICLR 2022).

    Attributes:
        width: Channels of the first of three stages; each stage has twice those before it.
    """

    width: Count = 16

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        check_size("resnet20", image_shape, SMALLEST)
        return _residual_network(image_shape[0], num_classes, self.width, (3, 3, 3))


def _residual_network(
    inputs: int, num_classes: int, width: int, blocks: Sequence[int]
) -> nn.Sequential:
    """Return a stem, so many blocks in each stage, and a linear layer.

    A stage has twice the channels of the one before, on half of its pixels a side.
    """
    layers: list[nn.Module] = []
    before = width
    for stage, count in enumerate(blocks):
        outputs = width * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            layers.append(_BasicBlock(before, outputs, stride))
            before = outputs
    return nn.Sequential(
        _convolution(inputs, width),  # initialised after the blocks, as in finished cells
        *layers,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, num_classes),
    )


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class _Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: Tensor) -> Tensor:
        """Return x + f(x)."""
        output: Tensor = images + self.body(images)
        return output


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(inputs, outputs, stride),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """Return ReLU(f(x) + shortcut(x))."""
        output: Tensor = self.activation(self.body(images) + self.shortcut(images))
        return output
