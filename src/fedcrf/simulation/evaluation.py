"""Loss and accuracy of a model, over all examples and client by client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedcrf.simulation.federation import Examples
from fedcrf.simulation.records import ClientMetrics, Metrics


@dataclass(frozen=True)
class Scores:
    """What a model makes of every example.

    Attributes:
        losses: (n,) float32 cross-entropies.
        correct: (n,) float32; 1 where it is classified right, else 0.
    """

    behaviour: ClassVar[int] = 1
    losses: Tensor
    correct: Tensor


def joined(one: Scores, other: Scores) -> Scores:
    """Return the scores of the examples of both, one's first."""
    return Scores(torch.cat([one.losses, other.losses]), torch.cat([one.correct, other.correct]))


def evaluation_of(scores: Scores) -> Metrics:
    """Return loss and accuracy from every example's score."""
    return Metrics(loss=_mean(scores.losses), accuracy=_mean(scores.correct))


def client_evaluation_of(scores: Scores, owners: Tensor) -> ClientMetrics:
    """Return loss and accuracy from every example's score, and by the client that owns it."""
    counts = torch.bincount(owners)
    right = torch.bincount(owners, weights=scores.correct.double(), minlength=len(counts))
    accuracies = (right / counts)[counts > 0]
    some = len(accuracies) > 0
    return ClientMetrics(
        loss=_mean(scores.losses),
        accuracy=_mean(scores.correct),
        client_mean=float(accuracies.mean()) if some else math.nan,
        worst_client=float(accuracies.min()) if some else math.nan,
    )


@torch.no_grad()
def score(model: nn.Module, examples: Examples, batch_size: int) -> Scores:
    """Score every example, ``batch_size`` at a time."""
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
    return Scores(torch.cat(losses), torch.cat(correct))


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else math.nan
