"""A user's model, loss, metrics and optimizer, tried on a few examples before anything is run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from fedcrf.errors import FedcrfError, failing, listed
from fedcrf.models import made_by
from fedcrf.objectives import ACCURACY, Metric, Outputs, Task
from fedcrf.own.sites import Sites, kind_of
from fedcrf.simulation.engine import cloned, frozen_names
from fedcrf.simulation.federation import Examples
from fedcrf.simulation.local_training import can_be_fused, trained

SECOND_STEP = "optimizer's second step"
"""The name of a number that records of earlier versions lack."""

NOT = "!"
"""Stands before a pattern of names that are left out."""

Patterns = str | Sequence[str]
"""Such as ``"*lora*"``, or ``["!head.*", "!*running*"]`` for all but those."""


def chosen(tensors: Mapping[str, Tensor], patterns: Patterns, what: str) -> frozenset[str]:
    """Return the names of tensors that match a pattern, and none that is left out.

    Patterns are those of `fnmatch`; with ``!`` before it for what is left out. Where all have it,
    every other name is chosen. ``what`` is the argument that gives them, as errors call it.
    """
    there = listed(list(tensors), 8)
    if not isinstance(patterns, Iterable):
        raise FedcrfError(f"{what} is {patterns!r}: give patterns of names: there are {there}")
    with failing(f"{what} cannot be read ({{}}): give patterns of names: there are {there}"):
        given = [patterns] if isinstance(patterns, str) else list(patterns)
    if not given:
        raise FedcrfError(f"{what} has no pattern: give one, or leave it out: there are {there}")
    wanted, unwanted = set[str](), set[str]()
    for each in given:
        if not isinstance(each, str):
            raise FedcrfError(
                f"{what}: {each!r} is no pattern of names: give text such as '*.weight'"
            )
        found = {name for name in tensors if fnmatchcase(name, each.removeprefix(NOT))}
        if not found:
            raise FedcrfError(f"{what}: no tensor is named like '{each}': there are {there}")
        (unwanted if each.startswith(NOT) else wanted).update(found)
    left = frozenset(wanted or tensors) - unwanted
    if not left:
        raise FedcrfError(f"{what} leaves no tensor: there are {there}")
    if not any(tensors[name].is_floating_point() for name in left):
        raise FedcrfError(f"{what}={patterns!r} leaves no tensor of floats: give one that has some")
    return left


@dataclass(frozen=True)
class Factory:
    """The plan of a network that a user's function makes; see `fedcrf.models.ModelPlan`."""

    make: Callable[[], nn.Module]

    @classmethod
    def of(cls, model: Any) -> Factory:
        """Return the plan of a function or class, or of a network, which is copied at each build.

        What a function returns is copied too if it hands out the same tensors every time.
        """
        if isinstance(model, nn.Module):
            return cls(lambda: copy.deepcopy(model))
        if not callable(model):
            raise FedcrfError(
                f"the model is a {type(model).__name__}: give a function or class that returns a "
                "torch.nn.Module"
            )
        plan = cls(model)
        with torch.random.fork_rng(devices=[]):
            one, other = (parts_of(plan.build((), 0)) for _ in range(2))
        alone = {*map(id, one.values())}.isdisjoint(map(id, other.values()))
        return plan if alone else cls(lambda: copy.deepcopy(model()))

    def build(self, image_shape: object, num_classes: int) -> nn.Module:
        """Return the network, fresh; the user's function knows of neither argument."""
        return made_by(self.make, "the model's function")


def parts_of(network: nn.Module) -> dict[str, Tensor]:
    """Return a network's parameters and buffers by name, also those that its state lacks."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Return a network's tensors by name; state of other kinds stays where it is."""
    state = network.state_dict()
    return {name: each for name, each in state.items() if isinstance(each, Tensor)}


def task_of(
    network: nn.Module,
    sites: Sites,
    loss: Any,
    metrics: Any,
    optimizer: Any,
    share: Patterns | None,
) -> Task:
    """Return what clients minimise, what is measured, and which tensors they send."""
    for what, given in (("loss", loss), ("optimizer", optimizer)):
        if given is not None and not callable(given):
            raise FedcrfError(
                f"{what} is of type {type(given).__name__}: give a function, or leave it out"
            )
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        raise FedcrfError(f"loss is the class {loss.__name__}: give {loss.__name__}()")
    measured = _metrics(metrics)
    if loss is None:
        _check_classes(sites)
        if measured or not sites.have_labels:
            loss, measured = functional.cross_entropy, measured or {ACCURACY: _accuracy}
    sent, kept = _sent_and_kept(network, share)
    return Task(loss, measured, optimizer, sent, kept)


def _check_classes(sites: Sites) -> None:
    """Raise a `FedcrfError` unless targets are labels, of examples or of their places."""
    targets = sites.examples[0].labels  # all sites' are of one dtype and shape
    if targets.dtype == torch.int64 and (targets.dim() > 1 or sites.have_labels):
        return
    mend = "give loss=, such as torch.nn.functional.mse_loss"
    if targets.dtype == torch.int64 and targets.dim() == 1:
        least = {called: int(each.labels.min()) for called, each in sites.called.items()}
        where = min(least, key=least.__getitem__)
        raise _below_zero(where, least[where], f", or {mend}")
    if not targets.is_floating_point() and targets.dtype != torch.int64:
        mend = "make them int64, as targets.long() does, or give loss="
    raise FedcrfError(
        f"targets are {kind_of(targets)}, and cross-entropy takes labels from 0 on: {mend}"
    )


def _below_zero(called: str, label: int, more: str = "") -> FedcrfError:
    """Return the error of a label that no class can have."""
    return FedcrfError(
        f"{called} has label {label}, and cross-entropy takes labels from 0 on: number the labels "
        f"from 0{more}"
    )


def _sent_and_kept(
    network: nn.Module, share: Patterns | None
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the trained tensors that sites send, and of those that they keep."""
    if not trained(network):
        raise FedcrfError("the model has no parameter to train: give one with requires_grad")
    frozen = frozen_names(network)
    tensors = {name: each for name, each in tensors_of(network).items() if name not in frozen}
    shared = frozenset(tensors) if share is None else chosen(tensors, share, "share")
    for names in _names_of_one(network):
        parted = sorted(names & shared), sorted((names & tensors.keys()) - shared)
        if all(parted):
            raise FedcrfError(
                f"share parts '{parted[0][0]}' from '{parted[1][0]}', which are one tensor: share "
                "both, or neither"
            )
    for name, each in tensors.items():
        if each.is_complex():
            raise FedcrfError(f"the model's '{name}' is {kind_of(each)}: give real numbers")
        if name in shared and not torch.isfinite(each).all():
            raise FedcrfError(
                f"the model's '{name}' is not finite before any training: make it so, or leave it "
                f"to the sites by share='!{name}'"
            )
    return shared, frozenset(tensors) - shared


def _names_of_one(network: nn.Module) -> Iterable[set[str]]:
    """Return the names of each parameter or buffer of a network."""
    names: dict[int, set[str]] = {}
    for name, each in chain(
        network.named_parameters(remove_duplicate=False),
        network.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(each), set()).add(name)
    return names.values()


@dataclass(frozen=True)
class Tried:
    """What came of a trial."""

    num_classes: int  # number of labels; 0 if targets are none
    # What model, loss, metrics and optimizer made of the examples, a number each: other functions
    # make other numbers
    numbers: Mapping[str, float]
    optimizer: str | None = None  # name of the optimizer's class; None for SGD with momentum

    @classmethod
    def of(
        cls,
        network: nn.Module,
        sites: Sites,
        of_server: Mapping[str, Examples],
        task: Task,
        batch_size: int,
    ) -> Tried:
        """Try everything on few examples, some of each site; the network is trained on them.

        ``of_server`` is what the server holds, by what errors call it.
        """
        count = min(batch_size, 32)
        of_a_site = -(-count // len(sites.examples))
        few = Examples.joined([held[:of_a_site] for held in sites.examples])[:count]
        outputs = _outputs(network.eval(), few)
        num_classes = _num_classes(outputs, few, sites, of_server, task)
        loss = _loss(outputs, few.labels, task)
        tensors = [each for each in tree_leaves(outputs) if isinstance(each, Tensor)]
        numbers = {"outputs": sum(float(each.detach().double().abs().sum()) for each in tensors)}
        if task.loss is not None:
            numbers["loss"] = float(loss.detach())
        for name, metric in task.metrics.items():
            wrong = f"metric '{name}' gives no number ({{}}): return one, of outputs and targets"
            with torch.no_grad(), failing(wrong):
                numbers[f"metric {name}"] = float(metric(cloned(outputs), few.labels.clone()))
        before = [each.detach().clone() for each in trained(network)]
        made, lengths = _steps(network, loss, task.optimizer or _sgd)
        with torch.no_grad():
            for each, was in zip(trained(network), before, strict=True):
                each.copy_(was)
        _check_training(network, few, task)
        if task.optimizer is None:
            return cls(num_classes, numbers)
        steps = dict(zip(("optimizer", SECOND_STEP), lengths, strict=True))
        return cls(num_classes, {**numbers, **steps}, made)


def _metrics(metrics: Any) -> dict[str, Metric]:
    if metrics is None:
        return {}
    if isinstance(metrics, str):  # a sequence too, of letters
        raise FedcrfError(
            f"metrics is '{metrics}': give a function of outputs and targets, or several by name"
        )
    if isinstance(metrics, Mapping):
        names, several = [str(name) for name in metrics], list(metrics.values())
    else:
        several = list(metrics) if isinstance(metrics, Sequence) else [metrics]
        names = [getattr(each, "__name__", type(each).__name__).lower() for each in several]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise FedcrfError(f"metric '{twice[0]}' is there twice: give metrics by name")
    named = dict(zip(names, several, strict=True))
    for name, each in named.items():
        if not callable(each):
            raise FedcrfError(f"metric '{name}' is a {type(each).__name__}: give a function")
        if name == "loss":
            raise FedcrfError("a metric is called 'loss', as the loss is: give it another name")
    return named


def _accuracy(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(dim=1) == targets).double().mean())


def _outputs(network: nn.Module, few: Examples) -> Outputs:
    wrong = (
        f"the model cannot take inputs of shape {tuple(few.images.shape)} and "
        f"{kind_of(few.images)} ({{}}): give inputs or a model that fits"
    )
    cudnn = torch.backends.cudnn
    enabled, recurrent = cudnn.enabled, any(isinstance(m, nn.RNNBase) for m in network.modules())
    try:
        if recurrent:  # cuDNN has no gradient of a recurrent layer that is not in training
            cudnn.enabled = False
        with failing(wrong):
            return network(few.images.clone())
    finally:
        cudnn.enabled = enabled


def _check_training(network: nn.Module, few: Examples, task: Task) -> None:
    """Raise a `FedcrfError` if a network fails in training only; batch norm needs two examples."""
    if len(few) < 2:
        return
    wrong = failing("the model fails in training ({}): let it do the same as in evaluation")
    with torch.random.fork_rng(devices=[]), wrong:
        task.loss_of(network.train()(few.images.clone()), few.labels.clone())


def _loss(outputs: Outputs, targets: Tensor, task: Task) -> Tensor:
    """Return the loss, from which gradients can be taken."""
    wrong = (
        f"the loss cannot be computed of {_shape(outputs)} and targets of shape "
        f"{tuple(targets.shape)} ({{}}): give a model or a loss that fits"
    )
    with warnings.catch_warnings(), failing(wrong):
        # What torch warns of here is broadcast, and not what anybody means by a loss.
        warnings.filterwarnings("error", message="Using a target size")
        value = task.loss_of(outputs, targets.clone())
    if not isinstance(value, Tensor) or value.dim() or value.is_complex():
        scalar = isinstance(value, Tensor) and not value.dim()
        what = "a complex number" if scalar else _shape(value)
        raise FedcrfError(f"the loss returns {what}: return a scalar tensor, such as its mean")
    if not torch.isfinite(value).all():
        raise FedcrfError(
            f"the loss is {value.item():g} before any training: mend the loss, or what the model "
            "makes of these inputs"
        )
    if not value.requires_grad:
        raise FedcrfError(
            "the loss does not depend on a trained parameter: return what the outputs make of it, "
            "without .item() or .detach()"
        )
    return value


def _num_classes(
    outputs: Outputs,
    few: Examples,
    sites: Sites,
    of_server: Mapping[str, Examples],
    task: Task,
) -> int:
    """Return how many labels there are; 0 where targets are none."""
    if not sites.have_labels:
        return 0
    held = {**sites.called, **of_server}
    largest = {called: int(each.labels.max()) for called, each in held.items()}
    where = max(largest, key=largest.__getitem__)
    count = largest[where] + 1
    if task.loss not in (None, functional.cross_entropy):
        return count
    for called, each in of_server.items():
        if (least := int(each.labels.min())) < 0:
            raise _below_zero(called, least)
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(few):
        raise FedcrfError(
            f"the model makes {_shape(outputs)} of {len(few)} examples: make logits of shape "
            f"({len(few)}, classes), or give loss="
        )
    if outputs.shape[1] < count:
        raise FedcrfError(
            f"{where} has label {count - 1} and the model makes {outputs.shape[1]} logits: make "
            f"{count}, or mend the labels"
        )
    return outputs.shape[1]


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return what trains where no optimizer is given; see `NetworkTraining`."""
    return torch.optim.SGD(parameters, lr=1.0, momentum=0.9, fused=can_be_fused(parameters))


def _steps(
    network: nn.Module, loss: Tensor, optimizer: Callable[..., Any]
) -> tuple[str, list[float]]:
    """Return the optimizer's class, and how far its first two steps go.

    The second step is by half the gradient: momentum and averages show in it alone.
    """
    parameters = trained(network)
    with failing("the optimizer cannot be made ({})"):
        made = optimizer(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise FedcrfError(
            f"the optimizer's function returns a {type(made).__name__}: return a "
            "torch.optim.Optimizer of the parameters it is given"
        )
    stepped = {id(each) for group in made.param_groups for each in group["params"]}
    if stepped.isdisjoint(map(id, parameters)):
        raise FedcrfError(
            "the optimizer steps none of the parameters it is given: make it of those, as in "
            "lambda parameters: torch.optim.Adam(parameters)"
        )
    lengths = []
    with failing("the optimizer makes no step ({}): give one, as optimizer=, that can train it"):
        torch.autograd.backward(loss)
        for _ in range(2):
            before = [each.detach().clone() for each in parameters]
            made.step()
            steps = [each.detach() - was for each, was in zip(parameters, before, strict=True)]
            lengths.append(sum(float(step.double().abs().sum()) for step in steps))
            for each in parameters:
                if each.grad is not None:
                    each.grad.mul_(0.5)
    return type(made).__name__, lengths


def _shape(outputs: Outputs) -> str:
    if isinstance(outputs, Tensor):
        return f"a tensor of shape {tuple(outputs.shape)}"
    return f"a {type(outputs).__name__}"
