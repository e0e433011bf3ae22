"""Local training of a multilayer perceptron without autograd: the same steps, less memory traffic.

The gradient of a linear layer is a matrix product, so it can be accumulated straight into the
momentum buffer; nothing is allocated within an epoch. `trainer` uses it for such a network, and
the general training for any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedcrf.objectives import Objective, Plain
from fedcrf.simulation.federation import Examples
from fedcrf.simulation.local_training import LocalTraining, Pass, train_client
from fedcrf.simulation.task import CLASSIFICATION, Task


def linear_layers(model: nn.Module) -> list[nn.Linear] | None:
    """Return the linear layers of a float32 flatten-(linear-ReLU)*-linear on the CPU; else None."""
    if type(model) is not nn.Sequential or len(model) < 2 or len(model) % 2:
        return None
    flatten, *rest = model
    linear, activations = rest[::2], rest[1::2]
    expected = (
        type(flatten) is nn.Flatten
        and flatten.start_dim == 1
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
        and all(type(activation) is nn.ReLU for activation in activations)
        and all(
            tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.requires_grad
            for tensor in model.parameters()
        )
        and not any(module._forward_hooks or module._forward_pre_hooks for module in model)
    )
    return linear if expected else None  # type: ignore[return-value]


@dataclass(frozen=True)
class _Batch:
    """Buffers for one batch of n examples; transposed from the last layer on."""

    inputs: Tensor  # (n, d) images
    labels: Tensor  # (1, n) labels
    outputs: list[Tensor]  # (n, units) outputs of each hidden layer
    deltas: list[Tensor]  # (n, units) gradients of the summed loss at these outputs
    logits: Tensor  # (classes, n) outputs of the last layer; softmax is fastest along columns
    last_delta: Tensor  # (classes, n) log-probabilities, then the gradient at the logits
    ones: Tensor  # (n,) ones

    @classmethod
    def of(cls, widths: Sequence[int], size: int) -> _Batch:
        """Return the memory for a batch of so many examples."""
        return cls(
            inputs=torch.empty(size, widths[0]),
            labels=torch.empty(1, size, dtype=torch.int64),
            outputs=[torch.empty(size, width) for width in widths[1:-1]],
            deltas=[torch.empty(size, width) for width in widths[1:-1]],
            logits=torch.empty(widths[-1], size),
            last_delta=torch.empty(widths[-1], size),
            ones=torch.ones(size),
        )


class MLPTraining:
    """The buffers of one network's local training, reused for every client and round."""

    behaviour: ClassVar[int] = 1

    def __init__(self, layers: Sequence[nn.Linear], settings: LocalTraining) -> None:
        self._settings = settings
        self._weights = [layer.weight.detach() for layer in layers]
        self._biases = [layer.bias.detach() for layer in layers]
        self._parameters = [
            tensor for pair in zip(self._weights, self._biases, strict=True) for tensor in pair
        ]
        self._zeros = [torch.empty_like(tensor) for tensor in self._parameters]
        self._start = [torch.empty_like(tensor) for tensor in self._parameters]
        self._widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        self._whole = self._last = _Batch.of(self._widths, settings.batch_size)

    @torch.no_grad()
    def __call__(
        self,
        examples: Examples,
        objective: Objective,
        passes: Iterable[Pass],
        momenta: list[Tensor] | None = None,
        number: int = 1,
    ) -> float:
        """Train the network in place; see `fedcrf.simulation.local_training.train_client`."""
        settings = self._settings
        step, decay = -settings.step_size(number), settings.client_decay
        if type(objective) is not Plain:  # which does not look at it
            torch._foreach_copy_(self._start, self._parameters)
        if momenta is None:
            momenta = self._zeros
            torch._foreach_zero_(momenta)
        for tensor, momentum in zip(self._parameters, momenta, strict=True):
            tensor.grad = momentum
        images, labels = examples.images.flatten(1), examples.labels[None]
        total, seen = 0.0, 0
        for order, sizes in passes:
            chosen = torch.empty(1, len(order))  # log-probability of each example's label
            batches = torch.split(order, list(sizes))
            places = torch.split(chosen, list(sizes), dim=1)
            for indices, place in zip(batches, places, strict=True):
                batch = self._batch(len(indices))
                torch.index_select(images, 0, indices, out=batch.inputs)
                torch.index_select(labels, 1, indices, out=batch.labels)
                self._forward(batch, place)
                self._backward(batch, momenta)
                # A correction is added to the gradient, so it can be added to momentum + gradient.
                objective.correct_gradients(self._parameters, self._start)
                if decay:
                    torch._foreach_add_(momenta, self._parameters, alpha=decay)
                torch._foreach_add_(self._parameters, momenta, alpha=step)
            total -= float(chosen.sum(dtype=torch.float64))
            seen += len(order)
        return total / seen

    def _batch(self, size: int) -> _Batch:
        """Return the memory for a batch; that of a whole one and of the last other size is kept."""
        if size == len(self._whole.ones):
            return self._whole
        if size != len(self._last.ones):
            self._last = _Batch.of(self._widths, size)
        return self._last

    def _forward(self, batch: _Batch, chosen: Tensor) -> None:
        """Fill outputs, the last delta, and the log-probability of each example's label."""
        inputs = batch.inputs
        for weight, bias, outputs in zip(self._weights, self._biases, batch.outputs, strict=False):
            inputs = torch.addmm(bias, inputs, weight.t(), out=outputs).relu_()
        torch.addmm(self._biases[-1][:, None], self._weights[-1], inputs.t(), out=batch.logits)
        torch.log_softmax(batch.logits, 0, out=batch.last_delta)
        torch.gather(batch.last_delta, 0, batch.labels, out=chosen)
        batch.last_delta.exp_().scatter_add_(0, batch.labels, -batch.ones[None])

    def _backward(self, batch: _Batch, momenta: list[Tensor]) -> None:
        """Set every momentum buffer to β · itself + the gradient of the mean loss."""
        delta = batch.last_delta
        for number in range(len(self._weights) - 1, -1, -1):
            inputs = batch.outputs[number - 1] if number else batch.inputs
            weight, bias = momenta[2 * number : 2 * number + 2]
            beta, share = self._settings.beta, 1.0 / len(batch.ones)
            weight.addmm_(delta, inputs, beta=beta, alpha=share)
            bias.addmv_(delta, batch.ones, beta=beta, alpha=share)
            if number:
                below = torch.mm(delta.t(), self._weights[number], out=batch.deltas[number - 1])
                torch.ops.aten.threshold_backward.grad_input(below, inputs, 0.0, grad_input=below)
                delta = below.t()


Trainer = Callable[[Examples, Objective, Iterable[Pass], list[Tensor] | None, int], float]
"""Trains the network it was made for; its arguments are those of `train_client` from there on."""


def trainer(network: nn.Module, settings: LocalTraining, task: Task = CLASSIFICATION) -> Trainer:
    """Return a function that trains ``network`` in place, client after client."""
    layers = linear_layers(network)
    default = task.loss is None and task.optimizer is None and settings.precision == "float32"
    if layers is not None and default:
        return MLPTraining(layers, settings)
    return partial(train_client, network, settings=settings, task=task)
