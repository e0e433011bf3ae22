"""Models: networks for images of any size and number of channels.

A model is a frozen dataclass of its settings with a ``build`` method, in a file of its own, and a
line in `MODELS`.
"""

from collections.abc import Mapping

from fedcrf.extensions import check_settings, find
from fedcrf.extras import naming_extras

with naming_extras():
    import torch  # noqa: F401

from fedcrf.models.base import FromFactory, ImageShape, ModelPlan, check_outputs
from fedcrf.models.plain import CNN, MLP, ByzFLCNN, LeNet5, SmallCNN
from fedcrf.models.resnet import ResNet9, ResNet18, ResNet20

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
        FedcrfError: There is none, or it is not a class of settings; see `fedcrf.extensions`.
    """
    found = find("model", name, MODELS)
    if not isinstance(found, type) or not hasattr(found, "build"):
        return FromFactory
    check_settings("model", name, found)
    plan: type[ModelPlan] = found
    return plan


__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "ByzFLCNN",
    "FromFactory",
    "ImageShape",
    "LeNet5",
    "ModelPlan",
    "ResNet9",
    "ResNet18",
    "ResNet20",
    "SmallCNN",
    "check_outputs",
    "find_model",
]
