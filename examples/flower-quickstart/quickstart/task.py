"""The task: what a client holds, the network, training and evaluation."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from flwr.app import UserConfig
from torch import Tensor, nn
from torch.nn import functional

from fedcrf.data import PartitionSettings, load_dataset
from fedcrf.simulation.federation import client_splits

PIXELS = {"digits": 8 * 8, "mnist": 28 * 28}
MOMENTUM = 0.9
OF_TWO_MODES = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


@dataclass(frozen=True)
class Examples:
    """Images and their labels."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Part:
    """What one client holds: its examples to train on, and those to evaluate with."""

    train: Examples
    validation: Examples


@cache
def load_part(
    dataset: str, data_dir: str, clients: int, alpha: float, seed: int, client: int
) -> Part:
    """Load one client's part of a label-skewed partition, which the seed fixes."""
    data = load_dataset(dataset, data_dir=data_dir or None)
    settings = PartitionSettings(num_clients=clients, alpha=alpha)
    splits = client_splits(data.train.labels, settings, seed)
    scale = data.train.normalisation(np.concatenate([split.train for split in splits]))

    def examples(indices: np.ndarray) -> Examples:
        images = torch.from_numpy(data.train.images[indices]).float()
        mean, std = (
            torch.from_numpy(each).float()[:, None, None] for each in (scale.mean, scale.std)
        )
        return Examples((images - mean) / std, torch.from_numpy(data.train.labels[indices]))

    return Part(examples(splits[client].train), examples(splits[client].validation))


def build_model(config: UserConfig) -> nn.Module:
    """Build a perceptron with one hidden layer; the seed fixes its first parameters."""
    torch.manual_seed(int(config["seed"]))
    pixels, hidden = PIXELS[str(config["dataset"])], int(config["hidden"])
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def train(
    model: nn.Module, examples: Examples, config: UserConfig, shuffle: np.random.Generator
) -> float:
    """Train the model by SGD with momentum; return the mean loss over the epochs."""
    optimizer = torch.optim.SGD(model.parameters(), float(config["learning-rate"]), MOMENTUM)
    epochs, total = int(config["local-epochs"]), 0.0
    for _ in range(epochs):
        order = torch.from_numpy(shuffle.permutation(len(examples.labels)))
        for batch in order.split(int(config["batch-size"])):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(examples.images[batch]), examples.labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
    return total / (epochs * len(examples.labels))


@torch.no_grad()
def residual_loss(model: nn.Module, examples: Examples, batch_size: int) -> float:
    """Return the mean loss that a trained model still has on the examples it was trained on.

    With batch norm or dropout it is the lower one of two: in evaluation batch norm goes by
    statistics that lag behind a few steps of training; in training both depend on the batch.
    """
    modes = {False, any(isinstance(module, OF_TWO_MODES) for module in model.modules())}
    copy, losses = deepcopy(model), []  # in training batch norm changes its statistics
    batches = examples.images.split(batch_size), examples.labels.split(batch_size)
    for training in modes:
        copy.train(training)
        pairs = [pair for pair in zip(*batches, strict=True) if len(pair[1]) > 1 or not training]
        total = sum(
            functional.cross_entropy(copy(images), labels, reduction="sum").item()
            for images, labels in pairs  # batch norm knows no spread of one example
        )
        counted = sum(len(labels) for _, labels in pairs)
        losses.append(total / counted if counted else math.inf)
    return min(losses)


@torch.no_grad()
def evaluate(model: nn.Module, examples: Examples) -> tuple[float, float]:
    """Return mean loss and accuracy."""
    logits = model(examples.images)
    correct = (logits.argmax(dim=1) == examples.labels).float()
    return functional.cross_entropy(logits, examples.labels).item(), correct.mean().item()
