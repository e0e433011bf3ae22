"""Models: networks for images of any size and number of channels.

A model is a frozen dataclass of its settings with a ``build`` method, and a line in `MODELS`.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

from fedcrf.checks import Checked, Count, Settings, Truth, check_whole
from fedcrf.errors import FedcrfError, failing
from fedcrf.extensions import check_settings, find
from fedcrf.extras import naming_extras

with naming_extras():
    import torch
    from torch import Tensor, nn
    from torch.nn.parameter import is_lazy

ImageShape = tuple[int, int, int]
"""Channels, height, width."""


class ModelPlan(Protocol):
    """The settings of a model, from which it is built for a data set's images and classes."""

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return a freshly initialised classifier, (n, C, H, W) float to (n, classes) logits.

        Initialisation draws from torch's global generator, which the caller seeds.

        Raises:
            FedcrfError: The model cannot take such images.
        """
        ...


@dataclass(frozen=True)
class FromFactory:
    """The plan of a network that a class or function from outside the package makes.

    It is called with image shape and number of classes if it takes two arguments, else without any.
    A network with settings is a plan of its own.

    Attributes:
        name: ``FILE.py:OBJECT`` or the like; see `fedcrf.extensions`.
    """

    ignores: ClassVar[frozenset[str]] = frozenset({"name"})
    name: str

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        factory = find("model", self.name, {})
        if not callable(factory):
            raise FedcrfError(
                f"model '{self.name}' is no model: give a class or a function that returns a "
                "torch.nn.Module, or a dataclass with a build method"
            )
        arguments: tuple[object, ...] = (image_shape, num_classes)
        try:
            inspect.signature(factory).bind(*arguments)
        except (TypeError, ValueError):  # it takes none
            arguments = ()
        return made_by(factory, f"model '{self.name}'", *arguments)


def made_by(factory: Callable[..., Any], called: str, *arguments: object) -> nn.Module:
    """Return the network that somebody's factory makes; errors call the factory ``called``."""
    with failing(f"{called} failed ({{}})"):
        network = factory(*arguments)
    if not isinstance(network, nn.Module):
        raise FedcrfError(
            f"{called} makes a {type(network).__name__}: give what returns a torch.nn.Module"
        )
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(tensor) or tensor.is_meta:
            raise FedcrfError(
                f"{called} makes a network whose '{name}' has no numbers yet: give the layer the "
                "size of its inputs, and no meta device"
            )
    return network


def check_outputs(name: str, network: nn.Module, image_shape: ImageShape, num_classes: int) -> None:
    """Raise a `FedcrfError` if a network does not map images to a logit for each class."""
    place = next(network.parameters(), torch.empty(0)).device
    mode = network.training
    network.eval()
    with torch.no_grad(), failing(f"model {name} cannot take images of shape {image_shape} ({{}})"):
        outputs = network(torch.zeros(2, *image_shape, device=place))
    network.train(mode)
    shape = tuple(getattr(outputs, "shape", ()))
    if shape != (2, num_classes):
        raise FedcrfError(
            f"model {name} makes outputs of shape {shape} of 2 images: give one that makes "
            f"(2, {num_classes}), a logit for each class"
        )


SMALLEST = 16
"""Fewest pixels a side of deep networks.

Two unpadded 5x5 convolutions, each pooled, leave one pixel of so many. Three halvings leave more
than one, so that batch norm can train on a single image.
"""


def check_size(model: str, image_shape: ImageShape, smallest: int) -> None:
    """Raise a `FedcrfError` if images have fewer than so many pixels a side."""
    if min(image_shape[1:]) < smallest:
        raise FedcrfError(
            f"{model} cannot take {image_shape[1]}x{image_shape[2]} images: "
            f"it needs {smallest}x{smallest} or more; use --model mlp"
        )


def _check_widths(name: str, widths: tuple[int, ...]) -> None:
    for units in widths:
        check_whole(name, units, least=1)


Widths = Annotated[tuple[int, ...], Checked(_check_widths)]
"""Units or channels of layer after layer."""


@dataclass(frozen=True)
class MLP(Settings):
    """Multilayer perceptron with ReLU; one hidden layer of 200 by default (the paper's MNIST).

    Attributes:
        hidden: Units of each hidden layer; empty for a linear classifier.
    """

    hidden: Widths = (200,)

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        return nn.Sequential(
            nn.Flatten(), *_perceptron(math.prod(image_shape), self.hidden, num_classes)
        )


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

    channels: Widths = (32, 64, 128)
    hidden: Count = 128
    batch_norm: Truth = False

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
    for inputs, outputs in itertools.pairwise([image_shape[0], *channels]):
        layers.append(nn.Conv2d(inputs, outputs, kernel, padding=padding))
        if batch_norm:
            layers.append(nn.BatchNorm2d(outputs))
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    with torch.no_grad():
        blank = nn.Sequential(*layers).eval()(torch.zeros(1, *image_shape))
    return nn.Sequential(*layers, *_perceptron(blank.shape[1], hidden, num_classes)).train()


def _perceptron(inputs: int, hidden: Sequence[int], num_classes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [nn.Linear(inputs, units), nn.ReLU()]
        inputs = units
    return [*layers, nn.Linear(inputs, num_classes)]


@dataclass(frozen=True)
class ResNet9(Settings):
    """Nine-layer residual network for images of 16x16 and up, about 6.6 M parameters.

    Attributes:
        width: Channels of the first layer; each halving of the pixels a side doubles them. With 16
            it has 0.4 M parameters, for CIFAR-10 on few cores.
    """

    width: Count = 64

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        """Return the network; see `ModelPlan.build`."""
        check_size("resnet9", image_shape, SMALLEST)
        first, second, third, last = (self.width * 2**halvings for halvings in range(4))
        return nn.Sequential(
            _convolution(image_shape[0], first),
            _convolution(first, second),
            nn.MaxPool2d(2),
            _Residual(nn.Sequential(_convolution(second, second), _convolution(second, second))),
            _convolution(second, third),
            nn.MaxPool2d(2),
            _convolution(third, last),
            nn.MaxPool2d(2),
            _Residual(nn.Sequential(_convolution(last, last), _convolution(last, last))),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(last, num_classes),
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
    widths = [width, *(width * 2**stage for stage, each in enumerate(blocks) for _ in range(each))]
    layers = [_BasicBlock(*each) for each in itertools.pairwise(widths)]
    return nn.Sequential(
        _convolution(inputs, width),  # initialised after the blocks, as in finished cells
        *layers,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], num_classes),
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
    """Two 3x3 convolutions and a shortcut; other channels are on half of the pixels a side."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.body = nn.Sequential(
            _convolution(inputs, outputs, stride),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """Return ReLU(f(x) + shortcut(x))."""
        output: Tensor = self.activation(self.body(images) + self.shortcut(images))
        return output


MODELS: Mapping[str, type[ModelPlan]] = {
    "mlp": MLP,
    "cnn": CNN,
    "lenet5": LeNet5,
    "byzfl-cnn": ByzFLCNN,
    "small-cnn": SmallCNN,
    "resnet9": ResNet9,
    "resnet18": ResNet18,
    "resnet20": ResNet20,
}


def find_model(name: str) -> type[ModelPlan]:
    """Return the plan of that name: one of `MODELS`, or from outside.

    An object from outside that is not a plan is assumed to make the network: `FromFactory`.

    Raises:
        FedcrfError: There is none, it is a network, or it is not a class of settings; see
            `fedcrf.extensions`.
    """
    found = find("model", name, MODELS)
    if isinstance(found, nn.Module):
        raise FedcrfError(
            f"model '{name}' is a network: give the class or the function that makes it"
        )
    if not isinstance(found, type) or not hasattr(found, "build"):
        return FromFactory
    check_settings("model", name, found)
    plan: type[ModelPlan] = found
    return plan
