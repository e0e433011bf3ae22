"""Local training on a GPU: a whole step is one CUDA graph, and several clients train side by side.

A step of a batch of 64 is some hundred kernels of a few microseconds. Launched one by one they wait
for the host; a CUDA graph launches them as one. None of them fills a large GPU, so that kernels of
several clients, each on a stream of its own, run at the same time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

import torch
from torch import Tensor, nn

from fedcrf import models
from fedcrf.objectives import CLASSIFICATION, OBJECTIVES, Objective, Task
from fedcrf.simulation.federation import Examples
from fedcrf.simulation.local_training import LocalTraining, Pass, trained

LANES = 4
"""Clients that train side by side on a GPU."""

WARM_UP = 3
"""Steps before a capture, in which libraries set up what no graph can hold."""

_REPEATED = (
    nn.Sequential, nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d,
    nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.ZeroPad2d, nn.Identity,
)  # fmt: skip
"""Modules that do the same in every step: they draw nothing and branch on nothing."""


def can_be_graph(network: nn.Module, objective: Objective, task: Task) -> bool:
    """Tell whether a network is on a GPU, and its training step the same launches every time."""
    return (
        all(tensor.is_cuda for tensor in network.parameters())
        and task.loss is None
        and task.optimizer is None
        and type(objective) in OBJECTIVES.values()
        and all(
            (type(module) in _REPEATED or type(module).__module__ == models.__name__)
            and not (module._forward_hooks or module._forward_pre_hooks)
            for module in network.modules()
        )
    )


class GraphTraining:
    """Local training whose steps of whole batches are a CUDA graph; else as `train_client`.

    Attributes:
        network: The network that is trained in place.
        stream: The CUDA stream of its steps; None on the CPU, which has no graphs.
    """

    def __init__(self, network: nn.Module, settings: LocalTraining, objective: Objective) -> None:
        self.network, self._settings, self._objective = network, settings, objective
        self._parameters: list[Tensor] = [*trained(network)]
        self._device = self._parameters[0].device
        self.stream: torch.cuda.Stream | None = None
        if self._device.type == "cuda":
            self.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._start = [torch.empty_like(each) for each in self._parameters]
        self._momenta = [torch.zeros_like(each) for each in self._parameters]
        self._total = torch.zeros((), dtype=torch.float64, device=self._device)
        self._optimizer = torch.optim.SGD(
            self._parameters,
            lr=settings.learning_rate,
            momentum=settings.beta,
            weight_decay=settings.client_decay,
            fused=True,
        )
        if settings.beta:
            for parameter, momentum in zip(self._parameters, self._momenta, strict=True):
                self._optimizer.state[parameter]["momentum_buffer"] = momentum
        self._batch: Examples | None = None  # where a graph reads its batch
        self._graph: tuple[float, torch.cuda.CUDAGraph] | None = None  # and its learning rate

    def steps(
        self,
        examples: Examples,
        passes: Iterable[Pass],
        momenta: list[Tensor] | None = None,
        number: int = 1,
    ) -> Generator[None, None, float]:
        """Train the network for one round; yield after each step's launch, return the mean loss.

        The caller makes ``stream`` the current one; for the arguments see `train_client`.
        """
        self._begin(momenta, number)
        seen = 0
        for indices, sizes in passes:
            order = indices.to(self._device)
            seen += len(order)
            for batch in torch.split(order, list(sizes)):
                if len(batch) == self._settings.batch_size:
                    self._whole_step(examples, batch)
                else:
                    self._step(
                        examples.images.index_select(0, batch),
                        examples.labels.index_select(0, batch),
                    )
                yield
        if momenta is not None:
            torch._foreach_copy_(momenta, self._momenta)
        return float(self._total) / seen

    @torch.no_grad()
    def _begin(self, momenta: list[Tensor] | None, number: int) -> None:
        self.network.train()
        torch._foreach_copy_(self._start, self._parameters)
        if momenta is None:
            torch._foreach_zero_(self._momenta)
        else:
            torch._foreach_copy_(self._momenta, momenta)
        self._total.zero_()
        self._optimizer.param_groups[0]["lr"] = self._settings.step_size(number)

    def _whole_step(self, examples: Examples, indices: Tensor) -> None:
        """Take a step of ``batch_size`` examples."""
        if self._batch is None:
            self._batch = Examples(
                torch.empty_like(examples.images[: len(indices)]),
                torch.empty_like(examples.labels[: len(indices)]),
            )
        batch = self._batch
        torch.index_select(examples.images, 0, indices, out=batch.images)
        torch.index_select(examples.labels, 0, indices, out=batch.labels)
        if self.stream is None:
            self._step(batch.images, batch.labels)
            return
        rate = self._optimizer.param_groups[0]["lr"]
        if self._graph is None or self._graph[0] != rate:
            self._graph = rate, self._captured(batch, self.stream)
        self._graph[1].replay()

    def _captured(self, batch: Examples, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        """Return a graph of one step; what the warm-up changes is put back."""
        changed = [*self.network.state_dict().values(), *self._momenta, self._total]
        before = [tensor.clone() for tensor in changed]
        for _ in range(WARM_UP):
            self._step(batch.images, batch.labels)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self._step(batch.images, batch.labels)
        torch._foreach_copy_(changed, before)
        return graph

    def _step(self, images: Tensor, labels: Tensor) -> None:
        half = self._settings.precision == "bfloat16"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=half):
            outputs = self.network(images)
        loss = CLASSIFICATION.loss_of(outputs, labels)
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        with torch.no_grad():
            self._objective.correct_gradients(self._parameters, self._start)
            self._total += loss.detach() * len(labels)
        self._optimizer.step()
