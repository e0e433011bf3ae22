"""Residual networks for small images (He et al., CVPR 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedcrf.checks import Settings
from fedcrf.models.base import ImageShape, check_size

SMALLEST = 16
"""Pixels a side: three halvings must leave more than one, or a batch of one has no norm."""


@dataclass(frozen=True)
class ResNet9(Settings):
    """Nine-layer residual network for images of 16x16 and up, about 6.6 M parameters."""

    behaviour: ClassVar[int] = 1

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

    behaviour: ClassVar[int] = 1

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        check_size("resnet18", image_shape, SMALLEST)
        widths = (64, 64, 128, 128, 256, 256, 512, 512)
        blocks: list[nn.Module] = []
        inputs = 64
        for number, width in enumerate(widths):
            stride = 2 if number in (2, 4, 6) else 1
            blocks.append(_BasicBlock(inputs, width, stride))
            inputs = width
        return nn.Sequential(
            _convolution(image_shape[0], 64),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, num_classes),
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
