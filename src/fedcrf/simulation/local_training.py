"""One client's local training: SGD with momentum, or a task's optimizer, over its examples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module
from torch.nn.modules.batchnorm import _BatchNorm

from fedcrf import models
from fedcrf.checks import (
    LARGEST_FLOAT32,
    Count,
    NotNegative,
    Part,
    Positive,
    Settings,
    Share,
    Times,
    check_whole,
)
from fedcrf.cores import processor
from fedcrf.errors import FedcrfError, failing, in_a_line
from fedcrf.objectives import CLASSIFICATION, OBJECTIVES, Objective, Plain, Task
from fedcrf.simulation.federation import Examples, Stream, generator

MOST_EXAMPLES = 2**31 - 1
"""In a step: more than any client has."""

_logger = logging.getLogger(__name__)

Pass = tuple[Tensor, Sequence[int]]
"""Indices of examples in the order of training, and how many of them each step has."""


@dataclass(frozen=True)
class LocalTraining(Settings):
    """How a client trains in a round: SGD.

    A client works through its examples in epochs without repeats, each shuffled anew. The work of a
    round is so many epochs, or so many steps; with steps the next round goes on in the epoch.

    Attributes:
        learning_rate: Step size, above 0.
        momentum: In [0, 1), starting at zero each round; 0.9 without ``worker_momentum``.
        batch_size: Examples in a step; the last step of an epoch may have fewer. If batch norm
            needs two (`fewest_in_a_step`), a single last example joins the step before it.
        local_epochs: Passes over the client's examples in a round; 1 without ``local_steps``.
        precision: ``float32``, or ``bfloat16`` for mixed precision (weights stay float32).
        local_steps: Steps of a round, in the place of epochs.
        worker_momentum: β in [0, 1) of m ← βm + (1 − β)g, w ← w − ηm, in the place of ``momentum``.
            m stays with the client from round to round. With one step a round the client sends m
            itself, as in Karimireddy, He and Jaggi (ICLR 2022) and in ByzFL.
        weight_decay: λ of the decay −ηλw. With ``worker_momentum`` it is part of the server's step,
            once a round, as in ByzFL's DSGD: no rule sees it. Else it is part of the clients'
            steps.
        milestones: Rounds after which the learning rate is multiplied by ``learning_rate_decay``.
        learning_rate_decay: Above 0 and up to 1.

    Raises:
        FedcrfError: A value is out of range, or two settings exclude each other.
    """

    learning_rate: Positive = 0.01
    momentum: Share | None = None
    batch_size: Count = 64
    local_epochs: Times | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    local_steps: Times | None = None
    worker_momentum: Share | None = None
    weight_decay: NotNegative | None = None
    milestones: tuple[int, ...] | None = None
    learning_rate_decay: Part | None = None

    def in_words(self, optimizer: str | None = None) -> str:
        """Return how a client trains, in a line; by SGD if no other optimizer is named."""
        count = self.local_epochs or self.local_steps or 1
        unit = "epoch" if self.local_steps is None else "step"
        kept = "" if self.worker_momentum is None else "worker "
        sgd = f"SGD, learning rate {self.learning_rate:g}, {kept}momentum {self.beta:g}"
        if self.weight_decay is not None:
            sgd += f", weight decay {self.weight_decay:g}"
        return (
            f"{count} {unit}{'s' if count > 1 else ''} of {optimizer or sgd}, "
            f"batches of {self.batch_size}"
        )

    def __post_init__(self) -> None:
        self._fill_in("local_epochs", "local_steps", 1)
        self._fill_in("momentum", "worker_momentum", 0.9)
        super().__post_init__()
        if self.learning_rate > LARGEST_FLOAT32:
            raise FedcrfError(
                f"learning_rate {self.learning_rate}: give a number above 0 that float32 can hold"
            )
        if self.batch_size > MOST_EXAMPLES:
            raise FedcrfError(f"batch_size {self.batch_size}: give {MOST_EXAMPLES} at most")
        if (self.milestones is None) != (self.learning_rate_decay is None):
            raise FedcrfError("milestones and learning_rate_decay: give both, or neither")
        for milestone in self.milestones or ():
            check_whole("milestones", milestone, least=1)

    def _fill_in(self, name: str, other: str, default: float) -> None:
        """Give a setting its default if the one in its place is not given."""
        if getattr(self, other) is None:
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        elif getattr(self, name) is not None:
            raise FedcrfError(
                f"{name} {getattr(self, name)} and {other} {getattr(self, other)}: give one of them"
            )

    @property
    def beta(self) -> float:
        """The factor of momentum, the clients' own or that of a round."""
        return (self.momentum if self.worker_momentum is None else self.worker_momentum) or 0.0

    @property
    def client_decay(self) -> float:
        """The weight decay of the clients' steps."""
        return 0.0 if self.worker_momentum is not None else self.weight_decay or 0.0

    def rate(self, number: int) -> float:
        """Return the learning rate in a round, from 1 on.

        As torch's ``MultiStepLR`` stepped once a round: a milestone counts from the next round on.
        """
        passed = sum(milestone < number for milestone in self.milestones or ())
        return float(self.learning_rate * (self.learning_rate_decay or 1.0) ** passed)

    def step_size(self, number: int) -> float:
        """Return η(1 − β) for worker momentum, which is kept as m/(1 − β); else η."""
        return self.rate(number) * (1.0 - (self.worker_momentum or 0.0))

    def server_decay(self, number: int) -> float:
        """Return the share ηλ of the model that the server's step takes off in a round."""
        if self.worker_momentum is None or self.weight_decay is None:
            return 0.0
        return self.rate(number) * self.weight_decay

    def steps(self, num_examples: int, fewest: int = 1) -> list[int]:
        """Return how many examples each step of an epoch has.

        A last step of fewer than ``fewest`` joins the one before it.
        """
        whole, rest = divmod(num_examples, self.batch_size)
        sizes = [self.batch_size] * whole
        if whole and 0 < rest < fewest:
            sizes[-1] += rest
        elif rest:
            sizes.append(rest)
        return sizes

    def num_steps(self, num_examples: int, fewest: int = 1) -> int:
        """Return how many steps a round has; for the arguments see `steps`."""
        if self.local_epochs is None:
            return self.local_steps or 1
        return self.local_epochs * len(self.steps(num_examples, fewest))

    def images(self, num_examples: float) -> float:
        """Return how many examples a client of so many trains on in a round, about."""
        if self.local_epochs is None:
            return min(self.batch_size, num_examples) * (self.local_steps or 1)
        return num_examples * self.local_epochs

    def effective_steps(self, num_examples: int, fewest: int = 1) -> float:
        """Return ‖a_i‖₁ of FedNova for SGD with momentum β whose buffers start at zero.

        It is [τ − β(1 − β^τ)/(1 − β)]/(1 − β) after τ steps (Wang et al., NeurIPS 2020), summed
        step by step, which does not cancel for β near 1. With worker momentum, which starts as the
        last round left it and whose factors sum to 1, it is τ. For the arguments see `steps`.
        """
        steps = self.num_steps(num_examples, fewest)
        if self.momentum is None:
            return float(steps)
        total = weight = 0.0
        for _ in range(steps):
            weight = 1.0 + self.momentum * weight
            total += weight
        return total


class Batches:
    """The batches of clients, from the run's seed, by round.

    An order is drawn from seed, client and round, or where a round is a number of steps, from seed,
    client and epoch. So nothing is saved to resume. Such a round begins where the round before it
    ended; a client that sits a round out skips that round's batches.
    """

    def __init__(self, settings: LocalTraining, seed: int, fewest: int = 1) -> None:
        self._settings, self._seed, self._fewest = settings, seed, fewest
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def of(self, client: int, number: int, count: int) -> Iterator[Pass]:
        """Yield a client's passes over some of its ``count`` examples in a round."""
        settings = self._settings
        if settings.local_epochs is not None:
            shuffle = generator(self._seed, Stream.SHUFFLE, number, client)
            yield from epochs(settings, count, shuffle, self._fewest)
            return
        sizes = settings.steps(count, self._fewest)
        steps = settings.num_steps(count)
        done, left = (number - 1) * steps, steps
        while left:
            epoch, first = divmod(done, len(sizes))
            taken = sizes[first : first + left]
            start = sum(sizes[:first])
            yield self._order(client, epoch, count)[start : start + sum(taken)], taken
            done, left = done + len(taken), left - len(taken)

    def _order(self, client: int, epoch: int, count: int) -> Tensor:
        known = self._orders.get(client)
        if known is None or known[0] != epoch or len(known[1]) != count:
            shuffle = generator(self._seed, Stream.SHUFFLE, epoch + 1, client)
            known = self._orders[client] = epoch, torch.from_numpy(shuffle.permutation(count))
        return known[1]


def epochs(
    settings: LocalTraining, count: int, shuffle: np.random.Generator, fewest: int = 1
) -> Iterator[Pass]:
    """Yield the passes of a round over so many examples, each shuffled anew."""
    sizes = settings.steps(count, fewest)
    for _ in range(settings.local_epochs or 1):
        yield torch.from_numpy(shuffle.permutation(count)), sizes


def fewest_in_a_step(network: nn.Module, inputs: Tensor) -> int:
    """Return how many examples a training step of a network needs: 1, or 2 because of batch norm.

    Batch norm needs two values of a channel. If one of its layers gets a single value from an
    example, as behind a linear layer, a step needs two examples. ``inputs`` are two, (2, ...); a
    forward pass changes the network's running statistics.
    """
    norms = [each for each in network.modules() if isinstance(each, _BatchNorm)]
    values: list[int] = []

    def count(norm: nn.Module, given: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> None:
        layer_inputs = next(iter((*given, *named.values())))
        values.append(layer_inputs.numel() // (2 * layer_inputs.shape[1]) if norm.training else 2)

    if norms:
        hooks = [norm.register_forward_pre_hook(count, with_kwargs=True) for norm in norms]
        wrong = failing("the model cannot train on two examples ({})")
        with torch.no_grad(), torch.random.fork_rng(devices=[]), wrong:
            network.train()(inputs)
        for hook in hooks:
            hook.remove()
    return 2 if min(values, default=2) < 2 else 1


class NetworkTraining:
    """Local training of any network, by autograd: SGD, or a task's optimizer."""

    def __init__(
        self, network: nn.Module, settings: LocalTraining, task: Task = CLASSIFICATION
    ) -> None:
        self._network, self._settings, self._task = network, settings, task

    def __call__(
        self,
        examples: Examples,
        objective: Objective,
        passes: Iterable[Pass],
        momenta: list[Tensor] | None = None,
        number: int = 1,
    ) -> float:
        """Train the network in place, from the global model it holds, for one round.

        Args:
            examples: The client's training part; at least one.
            objective: Corrects the loss's gradients.
            passes: Which examples each step has.
            momenta: For worker momentum the client's m/(1 − β), as `momentum_of` has it; renewed.
            number: The round, of the learning rate's schedule.

        Returns:
            The mean loss of the examples over the round, each measured in its step.
        """
        self._begin(examples, objective, momenta, number)
        self._total = torch.zeros((), dtype=torch.float64, device=examples.labels.device)
        seen = 0
        for indices, sizes in passes:
            order = indices.to(examples.labels.device)
            seen += len(order)
            for batch in torch.split(order, list(sizes)):
                self._take(examples, batch)
        for kept, buffer in zip(momenta or (), self._buffers, strict=False):
            if kept is not buffer:  # on a GPU, or of another dtype
                kept.copy_(buffer)
        return float(self._total) / seen

    def _begin(
        self, examples: Examples, objective: Objective, momenta: list[Tensor] | None, number: int
    ) -> None:
        """Keep the global model's parameters, and make the optimizer."""
        self._network.train()
        self._objective, settings = objective, self._settings
        parameters = self._parameters = trained(self._network)
        self._start = [parameter.detach().clone() for parameter in parameters]
        self._buffers: list[Tensor] = []
        if self._task.optimizer is not None:
            self._optimizer = self._task.optimizer(parameters)
            return
        self._optimizer = torch.optim.SGD(
            parameters,
            lr=settings.step_size(number),
            momentum=settings.beta,
            weight_decay=settings.client_decay,
            fused=can_be_fused(parameters),
        )
        if settings.beta and momenta is not None:
            self._buffers = [m.to(p) for m, p in zip(momenta, parameters, strict=True)]
            for parameter, buffer in zip(parameters, self._buffers, strict=True):
                self._optimizer.state[parameter]["momentum_buffer"] = buffer

    def _take(self, examples: Examples, batch: Tensor) -> None:
        images = examples.images.index_select(0, batch)
        labels = examples.labels.index_select(0, batch)
        self._total += self._step(images, labels) * len(batch)

    def _step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step, and return the mean loss before it."""
        with torch.autocast(
            images.device.type, torch.bfloat16, enabled=self._settings.precision == "bfloat16"
        ):
            outputs = self._network(images)
        loss = self._task.loss_of(outputs, labels)
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        with torch.no_grad():
            self._objective.correct_gradients(self._parameters, self._start)
        self._optimizer.step()
        return loss.detach()


REPEATED = (
    nn.Sequential, nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d,
    nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.ZeroPad2d, nn.Identity,
)  # fmt: skip
"""Modules that do the same in every step: they draw nothing and branch on nothing."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{hooks}" for hooks in HOOKS)
GRADIENT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Where torch keeps the user's functions that run in a step: of a module, of all, of a tensor."""


def is_hooked(network: nn.Module) -> bool:
    """Tell whether a function of the user's runs in a step: a hook, or another ``forward``."""
    places: list[tuple[object, Sequence[str]]] = [
        (module, GLOBAL_HOOKS),
        *((layer, HOOKS) for layer in network.modules()),
        *((parameter, GRADIENT_HOOKS) for parameter in network.parameters()),
    ]
    return any(getattr(place, hooks, None) for place, names in places for hooks in names) or any(
        "forward" in vars(layer) for layer in network.modules()
    )


def repeats(network: nn.Module) -> bool:
    """Tell whether a network's step is known to be the same kernels every time."""
    return not is_hooked(network) and all(
        (type(layer) in REPEATED or type(layer).__module__ == models.__name__)
        and getattr(layer, "momentum", 0.0) is not None  # batch norm would count its batches
        for layer in network.modules()
    )


def can_be_fused(parameters: Iterable[Tensor]) -> bool:
    """Tell whether fused SGD trains them all.

    On a CPU it leaves most numbers of half precision as they are (pytorch issue 191763).
    """
    return all(each.is_cuda or each.dtype.itemsize >= 4 for each in parameters)


def is_on_gpu(network: nn.Module) -> bool:
    """Tell whether all parameters of a network are on a CUDA device."""
    return all(parameter.is_cuda for parameter in network.parameters())


WARM_UP = 3
"""Steps before a capture, in which libraries set up what no graph can hold."""


class GraphTraining(NetworkTraining):
    """The same on a GPU, where a step of a whole batch is one CUDA graph.

    A step is about two hundred kernels of a few microseconds, which wait for the host if it
    launches them one by one. A graph keeps its addresses, learning rate and objective. If one of
    them changes, a new graph is captured. An objective of a user's is asked in every step.

    A capture fails if another thread of the process uses the GPU meanwhile. From then on steps are
    taken as `NetworkTraining` takes them.
    """

    _by_graph = False  # whether the whole batches of this round are steps of the graph
    _made_for: tuple[Any, ...] | None = None  # what the graph keeps, and its buffers are for
    _graph: torch.cuda.CUDAGraph | None = None  # captured in the first step that it is needed for
    _failed: torch.cuda.CUDAGraph | None = None  # kept, since torch's allocator refers to it

    def _begin(
        self, examples: Examples, objective: Objective, momenta: list[Tensor] | None, number: int
    ) -> None:
        self._by_graph = type(objective) in OBJECTIVES.values() and self._failed is None
        if not self._by_graph:
            self._made_for = None  # this round puts other buffers in the place of the graph's
            super()._begin(examples, objective, momenta, number)
            return
        images, labels = examples.images, examples.labels
        rate = self._settings.step_size(number)
        made_for = objective, rate, images.shape[1:], images.dtype, labels.shape[1:], labels.dtype
        if made_for != self._made_for:
            buffers = [torch.zeros_like(each) for each in trained(self._network)]
            super()._begin(examples, objective, buffers, number)
            self._made_for, self._graph = made_for, None
        self._network.train()
        with torch.no_grad():
            for kept, now in zip(self._start, self._parameters, strict=True):
                kept.copy_(now)
        for place, buffer in enumerate(self._buffers):
            buffer.zero_() if momenta is None else buffer.copy_(momenta[place])

    def _take(self, examples: Examples, batch: Tensor) -> None:
        if not self._by_graph or len(batch) != self._settings.batch_size:
            super()._take(examples, batch)
            return
        if self._graph is None:
            self._inputs = examples.images.index_select(0, batch)
            self._labels = examples.labels.index_select(0, batch)
            self._graph = self._captured()
            if self._graph is None:
                self._by_graph = False
                super()._take(examples, batch)
                return
        else:
            torch.index_select(examples.images, 0, batch, out=self._inputs)
            torch.index_select(examples.labels, 0, batch, out=self._labels)
        self._graph.replay()
        self._total += self._loss * len(batch)

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """Return a graph of a step; None if its capture fails, which changes nothing."""
        device = self._labels.device
        graph = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                self._warm_up()
            torch.cuda.current_stream().wait_stream(aside)
            try:
                # The outer context puts the stream back, which a failed capture leaves set.
                with (
                    torch.cuda.stream(torch.cuda.current_stream()),
                    torch.cuda.graph(graph, stream=aside),
                ):
                    self._loss = self._step(self._inputs, self._labels)
            except RuntimeError as error:
                self._failed = graph
                _logger.warning(
                    "a step of training cannot be captured as a CUDA graph (%s): training goes on "
                    "without graphs, which takes longer.",
                    in_a_line(error),
                )
                return None
        return graph

    def _warm_up(self) -> None:
        """Take some steps, and put back what they change."""
        changed = [*self._network.state_dict().values(), *self._buffers]
        before = [tensor.clone() for tensor in changed]
        for _ in range(WARM_UP):
            self._step(self._inputs, self._labels)
        for tensor, kept in zip(changed, before, strict=True):
            tensor.copy_(kept)


def trained(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training changes."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def momentum_of(row: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a client's row, (d,) float32, shaped and strided as parameters."""
    parts = torch.split(row, [parameter.numel() for parameter in parameters])
    return [
        part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())
        for part, parameter in zip(parts, parameters, strict=True)
    ]


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
        and len({id(tensor) for tensor in model.parameters()}) == 2 * len(linear)  # none is tied
        and all(type(activation) is nn.ReLU for activation in activations)
        and all(
            tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.requires_grad
            for tensor in model.parameters()
        )
        and not is_hooked(model)
    )
    return linear if expected else None  # type: ignore[return-value]


ONEDNN_FROM = 4_000_000
"""Multiplications in a matrix product from which oneDNN repays its call."""


@cache
def onednn_is_faster() -> bool:
    """Tell whether oneDNN multiplies matrices faster than MKL, which torch calls.

    On AMD's processors MKL makes no use of AVX-512, and takes up to twice the time of oneDNN.
    """
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    has_avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    callable_here = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    is_amd = "AMD" in processor().replace("AMD64", "")  # any such machine's architecture
    return is_amd and has_avx512 and has_mkl and callable_here


def _onednn(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Return left · right (+ bias) by oneDNN; None where that takes longer."""
    if left.numel() * right.shape[1] < ONEDNN_FROM or not onednn_is_faster():
        return None
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, "none", [], "")
    return product


def _multiply(left: Tensor, right: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
    """Set ``out`` to left · right (+ bias)."""
    if (product := _onednn(left, right, bias)) is not None:
        return out.copy_(product)
    if bias is None:
        return torch.mm(left, right, out=out)
    return torch.addmm(bias, left, right, out=out)


def _accumulate(out: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float) -> None:
    """Set ``out`` to β · itself + α · left · right."""
    if (product := _onednn(left, right)) is not None:
        (out.mul_(beta) if beta else out.zero_()).add_(product, alpha=alpha)
    else:
        out.addmm_(left, right, beta=beta, alpha=alpha)


class _Batch:
    """Buffers for one batch of n examples; transposed from the last layer on."""

    def __init__(self, widths: Sequence[int], size: int) -> None:
        self.inputs = torch.empty(size, widths[0])  # (n, d) images
        self.labels = torch.empty(1, size, dtype=torch.int64)
        # (n, units) each: outputs of the hidden layers, and gradients of the summed loss at them
        self.outputs = [torch.empty(size, width) for width in widths[1:-1]]
        self.deltas = [torch.empty(size, width) for width in widths[1:-1]]
        # (classes, n): softmax is fastest along columns
        self.logits = torch.empty(widths[-1], size)
        self.last_delta = torch.empty(widths[-1], size)  # log-probabilities, then their gradient
        self.ones = torch.ones(size)


class MLPTraining:
    """Local training of a perceptron without autograd: the same steps, less memory traffic.

    The gradient of a linear layer is a matrix product, so it can be accumulated straight into the
    momentum buffer. But for products by oneDNN, nothing is allocated within an epoch. The buffers
    are reused for every client and round.
    """

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
        self._batches: dict[bool, _Batch] = {}  # made as they come: a batch size may be any number

    @torch.no_grad()
    def __call__(
        self,
        examples: Examples,
        objective: Objective,
        passes: Iterable[Pass],
        momenta: list[Tensor] | None = None,
        number: int = 1,
    ) -> float:
        """Train the network in place; see `NetworkTraining`."""
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
                # Momentum holds the gradient already, to which a correction is added.
                objective.correct_gradients(self._parameters, self._start)
                if decay:
                    torch._foreach_add_(momenta, self._parameters, alpha=decay)
                torch._foreach_add_(self._parameters, momenta, alpha=step)
            total -= float(chosen.sum(dtype=torch.float64))
            seen += len(order)
        return total / seen

    def _batch(self, size: int) -> _Batch:
        """Return the memory for a batch; that of a whole one and of the last other size is kept."""
        whole = size == self._settings.batch_size
        kept = self._batches.get(whole)
        if kept is None or size != len(kept.ones):
            kept = self._batches[whole] = _Batch(self._widths, size)
        return kept

    def _forward(self, batch: _Batch, chosen: Tensor) -> None:
        """Fill outputs, the last delta, and the log-probability of each example's label."""
        inputs = batch.inputs
        for weight, bias, outputs in zip(self._weights, self._biases, batch.outputs, strict=False):
            inputs = _multiply(inputs, weight.t(), outputs, bias).relu_()
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
            _accumulate(weight, delta, inputs, beta, share)
            bias.addmv_(delta, batch.ones, beta=beta, alpha=share)
            if number:
                below = _multiply(delta.t(), self._weights[number], batch.deltas[number - 1])
                torch.ops.aten.threshold_backward.grad_input(below, inputs, 0.0, grad_input=below)
                delta = below.t()


Trainer = Callable[[Examples, Objective, Iterable[Pass], list[Tensor] | None, int], float]
"""Trains the network it was made for; see `NetworkTraining`."""


def trainer(network: nn.Module, settings: LocalTraining, task: Task = CLASSIFICATION) -> Trainer:
    """Return a function that trains ``network`` in place, client after client."""
    if task.loss is None and task.optimizer is None:
        layers = linear_layers(network)
        if layers is not None and settings.precision == "float32":
            return MLPTraining(layers, settings)
        if is_on_gpu(network) and repeats(network):
            return GraphTraining(network, settings, task)
    return NetworkTraining(network, settings, task)
