"""One client's local training: SGD with momentum, or a task's optimizer, over its examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedcrf.checks import Settings, check_positive, check_share, check_whole
from fedcrf.errors import FedcrfError
from fedcrf.objectives import Objective
from fedcrf.simulation.federation import Examples
from fedcrf.simulation.task import CLASSIFICATION, Task

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

MOST_EXAMPLES = 2**31 - 1
"""In a step: more than any client has."""


@dataclass(frozen=True)
class LocalTraining(Settings):
    """How a client trains in a round; momentum starts at zero each round.

    Attributes:
        learning_rate: Step size, above 0.
        momentum: In [0, 1).
        batch_size: Examples in a step; the last step of an epoch may have fewer. If batch norm
            needs two (`fewest_in_a_step`), a single last example joins the step before it.
        local_epochs: Passes over the client's examples in a round.
        precision: ``float32``, or ``bfloat16`` for mixed precision (weights stay float32).
    """

    behaviour: ClassVar[int] = 1
    learning_rate: float = 0.01
    momentum: float = 0.9
    batch_size: int = 64
    local_epochs: int = 1
    precision: Literal["float32", "bfloat16"] = "float32"

    def in_words(self, optimizer: str | None = None) -> str:
        """Return how a client trains, in a line; by SGD if no other optimizer is named."""
        epochs = f"{self.local_epochs} epoch{'s' if self.local_epochs > 1 else ''}"
        sgd = f"SGD, learning rate {self.learning_rate:g}, momentum {self.momentum:g}"
        return f"{epochs} of {optimizer or sgd}, batches of {self.batch_size}"

    def __post_init__(self) -> None:
        check_positive(self, "learning_rate")
        if self.learning_rate > LARGEST_FLOAT32:
            raise FedcrfError(
                f"learning_rate {self.learning_rate}: give a number above 0 that float32 can hold"
            )
        check_share(self, "momentum")
        check_whole("batch_size", self.batch_size, least=1)
        if self.batch_size > MOST_EXAMPLES:
            raise FedcrfError(f"batch_size {self.batch_size}: give {MOST_EXAMPLES} at most")
        check_whole("local_epochs", self.local_epochs, least=1)

    def steps(self, num_examples: int, fewest: int = 1) -> list[int]:
        """Return how many examples each step of an epoch has.

        Args:
            num_examples: The client's number of examples.
            fewest: A last step of fewer joins the one before it.
        """
        whole, rest = divmod(num_examples, self.batch_size)
        sizes = [self.batch_size] * whole
        if whole and 0 < rest < fewest:
            sizes[-1] += rest
        elif rest:
            sizes.append(rest)
        return sizes

    def effective_steps(self, num_examples: int, fewest: int = 1) -> float:
        """Return ‖a_i‖₁ of FedNova for SGD with momentum β whose buffers start at zero.

        It is [τ − β(1 − β^τ)/(1 − β)]/(1 − β) after τ steps (Wang et al., NeurIPS 2020), summed
        step by step, which does not cancel for β near 1. For the arguments see `steps`.
        """
        total = weight = 0.0
        for _ in range(self.local_epochs * len(self.steps(num_examples, fewest))):
            weight = 1.0 + self.momentum * weight
            total += weight
        return total


def fewest_in_a_step(network: nn.Module, inputs: Tensor) -> int:
    """Return how many examples a training step of a network needs: 1, or 2 because of batch norm.

    Batch norm needs two values of a channel. If one of its layers gets a single value from an
    example, as behind a linear layer, a step needs two examples.

    Args:
        network: The network; a forward pass changes its running statistics.
        inputs: (2, ...), two examples.
    """
    norms = [each for each in network.modules() if isinstance(each, _BatchNorm)]
    values: list[int] = []

    def count(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values.append(inputs[0].numel() // (2 * inputs[0].shape[1]) if norm.training else 2)

    if norms:
        hooks = [norm.register_forward_pre_hook(count) for norm in norms]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            network.train()(inputs)
        for hook in hooks:
            hook.remove()
    return 2 if min(values, default=2) < 2 else 1


def train_client(
    model: nn.Module,
    examples: Examples,
    objective: Objective,
    shuffle: np.random.Generator,
    settings: LocalTraining,
    fewest: int = 1,
    task: Task = CLASSIFICATION,
) -> float:
    """Train ``model`` in place, from the global model it holds, for one round.

    Args:
        model: The global model; afterwards the client's model.
        examples: The client's training part; at least one.
        objective: Corrects the loss's gradients.
        shuffle: Draws the order of the examples anew in each epoch.
        settings: Step size, momentum, batches, epochs.
        fewest: Examples that a step must have, from `fewest_in_a_step`.
        task: The loss, and the optimizer.

    Returns:
        The mean loss of the examples over the round, each measured in its step.
    """
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in parameters]
    if task.optimizer is None:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            parameters, lr=settings.learning_rate, momentum=settings.momentum, fused=True
        )
    else:
        optimizer = task.optimizer(parameters)
    total = torch.zeros((), dtype=torch.float64, device=examples.labels.device)
    sizes = settings.steps(len(examples), fewest)
    for _ in range(settings.local_epochs):
        order = torch.from_numpy(shuffle.permutation(len(examples))).to(examples.labels.device)
        for batch in torch.split(order, sizes):
            with torch.autocast(
                batch.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"
            ):
                outputs = model(examples.images.index_select(0, batch))
            loss = task.loss_of(outputs, examples.labels.index_select(0, batch))
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            with torch.no_grad():
                objective.correct_gradients(parameters, start)
                total += loss.detach() * len(batch)
            optimizer.step()
    return float(total) / (settings.local_epochs * len(examples))
