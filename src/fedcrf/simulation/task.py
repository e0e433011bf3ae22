"""A task: the loss that clients minimise, and the scores and metrics of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedcrf.simulation.federation import Examples
from fedcrf.simulation.records import ClientMetrics, Metrics

Outputs = Any
"""What a network returns: a tensor, or several in tuples, lists and dictionaries."""

Loss = Callable[[Outputs, Tensor], Tensor]
"""From the outputs and targets of some examples to their mean loss, a scalar."""

Metric = Callable[[Outputs, Tensor], float | Tensor]
"""From the outputs and targets of some examples to a number."""

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""From the trained parameters to their optimizer, made anew for each client and round."""

LOSS, ACCURACY = "loss", "accuracy"
"""What is measured in every task, and has its own fields in records."""


@dataclass(frozen=True)
class Task:
    """The loss and metrics of a model; cross-entropy and accuracy by default.

    With a loss of the user's, loss and metrics are measured over each client's examples as a whole,
    and numbers over all clients are means by examples; else example by example. Without an
    optimizer it is SGD with momentum. Clients send the ``shared`` tensors, all if there is None,
    and keep the ``personal`` ones from round to round; those in neither keep their initial values.
    """

    loss: Loss | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    optimizer: OptimizerFactory | None = None
    shared: frozenset[str] | None = None
    personal: frozenset[str] = frozenset()

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of what a model is measured by."""
        return (LOSS, ACCURACY, *(name for name in self.metrics if name != ACCURACY))

    @property
    def by_client(self) -> bool:
        """Whether a model is measured client by client, instead of example by example."""
        return self.loss is not None or bool(self.personal)

    def loss_of(self, outputs: Outputs, targets: Tensor) -> Tensor:
        """Return the mean loss over some examples."""
        if self.loss is None:
            return functional.cross_entropy(outputs.float(), targets)
        return self.loss(outputs, targets)

    def shared_tensors(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the tensors that clients send, by name in the network's order."""
        state = network.state_dict()
        return {name: each for name, each in state.items() if self.shares(name)}

    def personal_tensors(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the tensors that a client keeps, by name in the network's order."""
        state = network.state_dict() if self.personal else {}
        return {name: state[name] for name in state if name in self.personal}

    def shares(self, name: str) -> bool:
        """Return whether clients send a tensor of this name."""
        return self.shared is None or name in self.shared


CLASSIFICATION = Task()
"""Cross-entropy and accuracy, SGD with momentum, and every tensor sent."""


class Scores(dict[str, Tensor]):
    """By `Task.measured` a model's scores on every example, (n,) float32 each.

    The loss is the cross-entropy, the accuracy 1 if an example is classified correctly, else 0. In
    a user's task every example has its client's scores as a whole, NaN without such a metric.
    """

    behaviour: ClassVar[int] = 1

    def fill(self, where: slice, found: Scores) -> None:
        """Copy the scores of some of the examples to their place."""
        for name, values in found.items():
            self[name][where] = values


def joined(one: Scores, other: Scores) -> Scores:
    """Return the scores of the examples of both, one's first."""
    return Scores({name: torch.cat([values, other[name]]) for name, values in one.items()})


def evaluation_of(scores: Scores) -> Metrics:
    """Return loss and accuracy from every example's score."""
    return Metrics(loss=_mean(scores[LOSS]), accuracy=_mean(scores[ACCURACY]))


def metrics_of(sets: Mapping[str, Scores]) -> dict[str, dict[str, float]] | None:
    """Return by set and name the means of a task's other metrics; None without any."""
    found = {
        of: {name: _mean(each) for name, each in scores.items() if name not in (LOSS, ACCURACY)}
        for of, scores in sets.items()
    }
    return found if any(found.values()) else None


def client_evaluation_of(scores: Scores, owners: Tensor) -> ClientMetrics:
    """Return loss and accuracy from every example's score, and by the client that owns it."""
    counts = torch.bincount(owners)
    right = torch.bincount(owners, weights=scores[ACCURACY].double(), minlength=len(counts))
    accuracies = (right / counts)[counts > 0]
    some = len(accuracies) > 0
    return ClientMetrics(
        **evaluation_of(scores).model_dump(),
        client_mean=float(accuracies.mean()) if some else math.nan,
        worst_client=float(accuracies.min()) if some else math.nan,
    )


@torch.no_grad()
def score(
    model: nn.Module, examples: Examples, batch_size: int, task: Task = CLASSIFICATION
) -> Scores:
    """Score every example, ``batch_size`` at a time; with a user's loss all as a whole."""
    model.eval()
    if task.loss is not None:
        return _score_as_one(model, examples, batch_size, task)
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
    return Scores({LOSS: torch.cat(losses), ACCURACY: torch.cat(correct)})


def _score_as_one(model: nn.Module, examples: Examples, batch_size: int, task: Task) -> Scores:
    """Give every example the loss and the metrics of all of them."""
    found = dict.fromkeys(task.measured, math.nan)
    if len(examples):
        outputs = _as_one([model(each) for each in torch.split(examples.images, batch_size)])
        found[LOSS] = float(task.loss_of(outputs, examples.labels))
        for name, metric in task.metrics.items():
            found[name] = float(metric(outputs, examples.labels))
    return Scores({name: torch.full((len(examples),), value) for name, value in found.items()})


def _as_one(parts: Sequence[Outputs]) -> Outputs:
    """Put the outputs of batches together; of a number in them, the first batch's is kept."""
    leaves, structures = zip(*map(tree_flatten, parts), strict=True)
    joined = [
        torch.cat(each) if isinstance(each[0], Tensor) and each[0].dim() else each[0]
        for each in zip(*leaves, strict=True)
    ]
    return tree_unflatten(joined, structures[0])


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else math.nan
