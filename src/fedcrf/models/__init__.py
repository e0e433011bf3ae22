"""Models: networks for images of any size and number of channels.

A model is a frozen dataclass of its settings with a ``build`` method, in a file of its own, and a
line in `MODELS`.
"""

from collections.abc import Mapping

from fedcrf.models.base import ImageShape, ModelPlan
from fedcrf.models.cnn import CNN, ByzFLCNN, LeNet5, SmallCNN
from fedcrf.models.mlp import MLP
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

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "ByzFLCNN",
    "ImageShape",
    "LeNet5",
    "ModelPlan",
    "ResNet9",
    "ResNet18",
    "ResNet20",
    "SmallCNN",
]
