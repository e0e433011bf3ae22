"""Loss and accuracy of a model, over all examples and client by client."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedcrf.simulation.federation import Examples, PooledExamples


@dataclass(frozen=True)
class Evaluation:
    """How a model does on a set of examples.

    Attributes:
        loss: Mean cross-entropy; NaN without examples.
        accuracy: Share classified right, in [0, 1]; NaN without examples.
    """

    loss: float
    accuracy: float


@dataclass(frozen=True)
class ClientEvaluation(Evaluation):
    """How a model does on the union of the clients' parts, and client by client.

    Attributes:
        client_mean: Unweighted mean of the accuracies of the clients that have examples here.
        worst_client: Lowest of them.
    """

    client_mean: float
    worst_client: float


def evaluate(model: nn.Module, examples: Examples, batch_size: int) -> Evaluation:
    """Return loss and accuracy over all examples."""
    losses, correct = _score(model, examples, batch_size)
    return Evaluation(_mean(losses), _mean(correct))


def evaluate_clients(
    model: nn.Module, examples: PooledExamples, batch_size: int
) -> ClientEvaluation:
    """Return loss and accuracy over the union of the clients' examples, and by client."""
    losses, correct = _score(model, examples, batch_size)
    counts = torch.bincount(examples.owners)
    right = torch.bincount(examples.owners, weights=correct, minlength=len(counts))
    accuracies = (right / counts)[counts > 0]
    some = len(accuracies) > 0
    return ClientEvaluation(
        loss=_mean(losses),
        accuracy=_mean(correct),
        client_mean=float(accuracies.mean()) if some else math.nan,
        worst_client=float(accuracies.min()) if some else math.nan,
    )


@torch.no_grad()
def _score(model: nn.Module, examples: Examples, batch_size: int) -> tuple[Tensor, Tensor]:
    """Return each example's cross-entropy and whether it is classified right, both float64."""
    model.eval()
    empty = torch.empty(0, device=examples.labels.device)
    losses, correct = [empty], [empty]
    for images, labels in zip(
        torch.split(examples.images, batch_size),
        torch.split(examples.labels, batch_size),
        strict=True,
    ):
        logits = model(images).float()
        losses.append(functional.cross_entropy(logits, labels, reduction="none"))
        correct.append((logits.argmax(dim=1) == labels).float())
    return torch.cat(losses).double(), torch.cat(correct).double()


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else math.nan
