"""Local training of a multilayer perceptron without autograd: the same steps, less memory traffic.

The gradient of a linear layer is a matrix product, so it can be accumulated straight into the
momentum buffer; nothing is allocated within an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedcrf.objectives import Objective
from fedcrf.simulation.federation import Examples
from fedcrf.simulation.local_training import LocalTraining


def linear_layers(model: nn.Module) -> list[nn.Linear] | None:
    """Return the linear layers of a float32 network flatten-(linear-ReLU)*-linear on the CPU.

    Returns:
        None where the model is anything else.
    """
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


class MLPTraining:
    """The buffers of one network's local training, used again for every client and round."""

    def __init__(self, layers: Sequence[nn.Linear], settings: LocalTraining) -> None:
        self._settings = settings
        self._layers = layers
        self._weights = [layer.weight.detach() for layer in layers]
        self._biases = [layer.bias.detach() for layer in layers]
        self._parameters = [
            tensor for pair in zip(self._weights, self._biases, strict=True) for tensor in pair
        ]
        self._momenta = [torch.empty_like(tensor) for tensor in self._parameters]
        self._start = [torch.empty_like(tensor) for tensor in self._parameters]
        widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        rows = settings.batch_size
        self._inputs = torch.empty(rows, widths[0])
        self._labels = torch.empty(rows, dtype=torch.int64)
        self._outputs = [torch.empty(rows, width) for width in widths[1:]]
        self._deltas = [torch.empty(rows, width) for width in widths[1:]]

    @torch.no_grad()
    def train(
        self, examples: Examples, objective: Objective, shuffle: np.random.Generator
    ) -> float:
        """Train the network in place; see `fedcrf.simulation.local_training.train_client`."""
        settings = self._settings
        torch._foreach_copy_(self._start, self._parameters)
        torch._foreach_zero_(self._momenta)
        for tensor, momentum in zip(self._parameters, self._momenta, strict=True):
            tensor.grad = momentum
        images = examples.images.flatten(1)
        total = torch.zeros((), dtype=torch.float64)
        for _ in range(settings.local_epochs):
            order = torch.from_numpy(shuffle.permutation(len(examples)))
            for batch in torch.split(order, settings.batch_size):
                size = len(batch)
                inputs = torch.index_select(images, 0, batch, out=self._inputs[:size])
                labels = torch.index_select(examples.labels, 0, batch, out=self._labels[:size])
                total += self._forward(inputs, labels)
                self._backward(inputs, size)
                # A correction is added to the gradient, and so may as well be to momentum + it.
                objective.correct_gradients(self._parameters, self._start)
                torch._foreach_add_(self._parameters, self._momenta, alpha=-settings.learning_rate)
        return float(total) / (settings.local_epochs * len(examples))

    def _forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Fill the layers' outputs and the last delta; return the summed cross-entropy."""
        size = len(labels)
        for number, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            outputs = self._outputs[number][:size]
            torch.addmm(bias, inputs, weight.t(), out=outputs)
            if number < len(self._weights) - 1:
                outputs.clamp_min_(0.0)
            inputs = outputs
        log_probabilities = torch.log_softmax(inputs, dim=1)
        picked = labels[:, None]
        delta = torch.exp(log_probabilities, out=self._deltas[-1][:size])
        delta.scatter_add_(1, picked, torch.full((size, 1), -1.0))
        delta /= size
        return -log_probabilities.gather(1, picked).sum(dtype=torch.float64)

    def _backward(self, inputs: Tensor, size: int) -> None:
        """Set every momentum buffer to β · itself + the gradient."""
        beta = self._settings.momentum
        for number in range(len(self._weights) - 1, -1, -1):
            delta = self._deltas[number][:size]
            if number > 0:
                outputs = self._outputs[number - 1][:size]
                below = torch.mm(delta, self._weights[number], out=self._deltas[number - 1][:size])
                torch.ops.aten.threshold_backward.grad_input(below, outputs, 0.0, grad_input=below)
            else:
                outputs = inputs
            self._momenta[2 * number].addmm_(delta.t(), outputs, beta=beta)
            self._momenta[2 * number + 1].mul_(beta).add_(delta.sum(dim=0))
