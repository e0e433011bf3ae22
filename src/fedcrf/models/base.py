"""What a model plan is."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import nn

from fedcrf.errors import FedcrfError, failing
from fedcrf.extensions import find

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
        with failing(f"model '{self.name}' failed ({{}})"):
            network = factory(*_taken(factory, (image_shape, num_classes)))
        if not isinstance(network, nn.Module):
            raise FedcrfError(
                f"model '{self.name}' makes a {type(network).__name__}: give what returns a "
                "torch.nn.Module"
            )
        return network


def _taken(factory: object, arguments: tuple[object, ...]) -> tuple[object, ...]:
    """Return the arguments if a factory takes them, else none."""
    try:
        inspect.signature(factory).bind(*arguments)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()
    return arguments


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


def check_size(model: str, image_shape: ImageShape, smallest: int) -> None:
    """Raise a `FedcrfError` if images have fewer than so many pixels a side."""
    if min(image_shape[1:]) < smallest:
        raise FedcrfError(
            f"{model} cannot take {image_shape[1]}x{image_shape[2]} images: "
            f"it needs {smallest}x{smallest} or more; use --model mlp"
        )
