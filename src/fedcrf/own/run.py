"""A simulation of a user's, from what was handed in to its result."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedcrf.attacks import Attack, DataAttack, Schedule, Threat, find_attack
from fedcrf.checks import check_whole, is_number
from fedcrf.errors import FedcrfError, in_a_line, unknown_name
from fedcrf.experiments.methods import find_method
from fedcrf.objectives import Objective, find_objective
from fedcrf.own.files import sites_at
from fedcrf.own.patterns import Patterns, chosen
from fedcrf.own.record import RunFolder
from fedcrf.own.result import SimulationResult
from fedcrf.own.sites import SHARE, Sites, check_alike, federation_of, read_examples, read_sites
from fedcrf.processes import one_thread
from fedcrf.rules import SERVER_OPTIMIZERS, Optimized, Rule, find_rule
from fedcrf.rules.judged import Judged
from fedcrf.simulation.federation import Examples
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.randomness import Stream, torch_seed
from fedcrf.simulation.records import RoundRecord
from fedcrf.simulation.rounds import RunState, Simulation
from fedcrf.simulation.stopping import EarlyStopping
from fedcrf.simulation.task import ACCURACY, Metric, Outputs, Task

EXAMPLES = 4
"""That everything is tried on before anything is run."""

NEVER = 2**31
"""Rounds without improvement before it stops early."""


@dataclass(frozen=True)
class Made:
    """The plan of a network that a user's function makes."""

    factory: Callable[[], nn.Module]

    def build(self, image_shape: object, num_classes: int) -> nn.Module:
        """Return the network; see `fedcrf.models.ModelPlan.build`."""
        return self.factory()


def run(
    *,
    model: Any,
    sites: Any,
    rule: Any,
    rounds: int,
    local_epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    loss: Any,
    metrics: Any,
    optimizer: Any,
    validation: Any,
    test: Any,
    attack: Any,
    attackers: Any,
    judge: Patterns | None,
    share: Patterns | None,
    record_to: str | Path | None,
    progress: bool,
) -> SimulationResult:
    """Carry out what `fedcrf.simulate` says."""
    check_whole("rounds", rounds, least=1)
    check_whole("seed", seed, least=0)
    held = sites if isinstance(sites, Sites) else _sites(sites)
    servers = {
        "validation": _servers(validation, held, "validation"),
        "test": _servers(test, held, "test"),
    }
    plan = Made(_factory(model))
    network = _network(plan, held, seed)
    task = _task(network, held, loss, metrics, optimizer, share)
    num_classes = _try_out(network, held, servers, task)
    if task.personal and any(isinstance(each, Examples) for each in servers.values()):
        raise FedcrfError(
            "share= leaves tensors to the sites, which the server does not have: leave validation= "
            "and test= to the sites, or share all"
        )
    threat, named = _threat(attack, attackers, held, num_classes)
    server_rule, objective = _rule(rule, len(held.examples), threat, seed)
    title = rule if isinstance(rule, str) else server_rule.name
    if judge is not None:
        names = [name for name in network.state_dict() if task.shares(name)]
        judged = chosen(names, judge, "judge")
        if not any(network.state_dict()[name].is_floating_point() for name in judged):
            raise FedcrfError(f"judge={judge!r} leaves no tensor of floats: give one that has some")
        server_rule = Judged(server_rule, judged)
    simulation = Simulation(
        federation=federation_of(held, servers["validation"], servers["test"], seed, num_classes),
        model=plan,
        objective=objective,
        rule=server_rule,
        training=LocalTraining(learning_rate, 0.9, batch_size, local_epochs),
        stopping=EarlyStopping(patience=NEVER),
        max_rounds=rounds,
        seed=seed,
        threat=threat,
        attackers=named,
        task=task,
    )
    start = simulation.start()
    _check_seeded(network, start)
    federation = simulation.federation
    folder = RunFolder.of(simulation, held, title, network, start)
    with contextlib.ExitStack() as open_for_it:
        if federation.validation.labels.device.type == "cpu":
            open_for_it.enter_context(one_thread())  # the bits depend on how many
        state = start
        records: list[RoundRecord] = []
        if record_to is not None:
            folder = open_for_it.enter_context(folder.opened(Path(record_to)))
            state, records = folder.resume(start)
            if state.round > rounds:
                raise FedcrfError(
                    f"{record_to} holds {state.round} rounds: give rounds={state.round} or more, "
                    "or another folder as record_to"
                )
        for after, record in _shown(simulation, state, progress):
            state = after
            records.append(record)
            if record_to is not None:
                folder.append(state, record)
        if record_to is not None:
            folder.finish(_whole_model(network, state.model))
    return SimulationResult(
        model=_whole_model(network, state.model),
        sites=tuple(federation.called(range(len(federation.clients)))),
        records=tuple(records),
        description=folder.description,
        personal={
            name: {
                tensor: torch.from_numpy(rows[client].copy())
                for tensor, rows in state.personal.items()
            }
            for client, name in enumerate(federation.called(range(len(federation.clients))))
        },
    )


def _sites(sites: Any) -> Sites:
    return sites_at(Path(sites)) if isinstance(sites, str | Path) else read_sites(sites)


def _servers(given: Any, sites: Sites, what: str) -> Examples | float:
    """Return what the server holds, or which share of each site's examples."""
    if given is None:
        return SHARE
    if is_number(given):
        if not 0.0 <= float(given) < 1.0:
            raise FedcrfError(f"{what} {given}: give a share in [0, 1), or inputs and targets")
        return float(given)
    held = read_examples(given, f"the server's {what}")
    check_alike(sites.examples[0], held, sites.called[0], f"the server's {what}")
    return held


def _factory(model: Any) -> Callable[[], nn.Module]:
    if isinstance(model, nn.Module):
        return lambda: copy.deepcopy(model)
    if not callable(model):
        raise FedcrfError(
            f"the model is a {type(model).__name__}: give a function or class that returns a "
            "torch.nn.Module"
        )
    factory: Callable[[], nn.Module] = model
    return factory


def _network(plan: Made, sites: Sites, seed: int) -> nn.Module:
    """Return the network, for looking at."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, Stream.MODEL))  # as every network of the run
        try:
            network = plan.factory()
        except Exception as error:  # whatever a user's function raises
            raise FedcrfError(f"the model cannot be made ({in_a_line(error)})") from error
    if not isinstance(network, nn.Module):
        raise FedcrfError(
            f"the model's function returns a {type(network).__name__}: return a torch.nn.Module"
        )
    if not any(each.requires_grad for each in network.parameters()):
        raise FedcrfError("the model has no parameter to train: give one with requires_grad")
    return network.to(sites.examples[0].labels.device)


def _check_seeded(network: nn.Module, start: RunState) -> None:
    """Raise a `FedcrfError` where the model's function does not make the same network again."""
    state = network.state_dict()
    for name, array in start.model.items():
        if not np.array_equal(state[name].detach().cpu().float(), array, equal_nan=True):
            raise FedcrfError(
                f"the model's function gives '{name}' other numbers every time: draw them by "
                "torch's own generator, which the seed decides"
            )


def _task(
    network: nn.Module, sites: Sites, loss: Any, metrics: Any, optimizer: Any, share: Any
) -> Task:
    for what, given in (("loss", loss), ("optimizer", optimizer)):
        if given is not None and not callable(given):
            raise FedcrfError(
                f"{what} is a {type(given).__name__}: give a function, or leave it out"
            )
    measured = _metrics(metrics)
    if loss is None and not _are_classes(sites):
        kind = sites.examples[0].labels.dtype
        raise FedcrfError(
            f"targets are {str(kind).removeprefix('torch.')}, and cross-entropy takes labels from "
            "0 on: give loss=, such as torch.nn.functional.mse_loss"
        )
    if loss is None and (measured or not sites.have_labels):
        loss, measured = functional.cross_entropy, measured or {ACCURACY: _accuracy}
    state = network.state_dict()
    frozen = {
        name
        for name, each in network.named_parameters(remove_duplicate=False)
        if not each.requires_grad
    }
    tensors = [name for name in state if isinstance(state[name], Tensor) and name not in frozen]
    shared = frozenset(tensors) if share is None else chosen(tensors, share, "share")
    if not any(state[name].is_floating_point() for name in shared):
        raise FedcrfError(f"share={share!r} leaves no tensor of floats: give one that has some")
    return Task(loss, measured, optimizer, shared, frozenset(tensors) - shared)


def _metrics(metrics: Any) -> dict[str, Metric]:
    """Return metrics by name."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        several = metrics if isinstance(metrics, Sequence) else [metrics]
        names = [getattr(each, "__name__", type(each).__name__).lower() for each in several]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise FedcrfError(f"metric '{twice[0]}' is there twice: give metrics by name")
        metrics = dict(zip(names, several, strict=True))
    for name, each in metrics.items():
        if not callable(each):
            raise FedcrfError(f"metric '{name}' is a {type(each).__name__}: give a function")
    return {str(name): each for name, each in metrics.items()}


def _are_classes(sites: Sites) -> bool:
    """Tell whether targets are labels, of each example one or, as of its places, several."""
    targets = [each.labels for each in sites.examples]
    return all(each.dtype == torch.int64 for each in targets) and not any(
        int(each.min()) < 0 for each in targets if each.dim() == 1
    )


def _accuracy(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(dim=1) == targets).double().mean())


def _try_out(network: nn.Module, sites: Sites, servers: Mapping[str, Any], task: Task) -> int:
    """Try everything on a few examples, and return how many labels there are; 0 of none.

    Raises:
        FedcrfError: Something of it does not fit.
    """
    few = sites.examples[0].part(0, EXAMPLES)
    trained = copy.deepcopy(network).eval()
    outputs = _outputs(trained, few)
    num_classes = _num_classes(outputs, few, sites, servers, task)
    with warnings.catch_warnings():
        # What torch warns of here is broadcast, and not what anybody means by a loss.
        warnings.filterwarnings("error", message="Using a target size")
        try:
            value = task.loss_of(outputs, few.labels)
        except Exception as error:  # whatever a user's loss raises
            raise FedcrfError(
                f"the loss cannot be computed of {_shape(outputs)} and targets of shape "
                f"{tuple(few.labels.shape)} ({in_a_line(error)}): give a model or a loss that fits"
            ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = _shape(value) if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise FedcrfError(f"the loss returns {what}: return a scalar tensor, such as its mean")
    if not value.requires_grad:
        raise FedcrfError(
            "the loss does not depend on a trained parameter: return what the outputs make of it, "
            "without .item() or .detach()"
        )
    for name, metric in task.metrics.items():
        with torch.no_grad():
            try:
                float(metric(outputs, few.labels))
            except Exception as error:  # whatever a user's metric raises
                raise FedcrfError(
                    f"metric '{name}' gives no number ({in_a_line(error)}): return one, of outputs "
                    "and targets"
                ) from error
    if task.optimizer is not None:
        _try_optimizer(trained, value.reshape(()), task.optimizer)
    return num_classes


def _outputs(network: nn.Module, few: Examples) -> Outputs:
    with torch.random.fork_rng(devices=[]):
        try:
            return network(few.images)
        except Exception as error:  # whatever a layer raises
            kind = str(few.images.dtype).removeprefix("torch.")
            raise FedcrfError(
                f"the model cannot take inputs of shape {tuple(few.images.shape)} and {kind} "
                f"({in_a_line(error)}): give inputs or a model that fits"
            ) from error


def _num_classes(
    outputs: Outputs, few: Examples, sites: Sites, servers: Mapping[str, Any], task: Task
) -> int:
    """Return how many labels there are; 0 where targets are none.

    Raises:
        FedcrfError: The model makes no logits, or too few of them.
    """
    if not sites.have_labels:
        return 0
    held = [each for each in servers.values() if isinstance(each, Examples)]
    called = [*sites.called, *(f"the server's {what}" for what in servers)]
    largest = [int(each.labels.max()) for each in (*sites.examples, *held)]
    count = max(largest) + 1
    if task.loss not in (None, functional.cross_entropy):
        return count
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(few):
        raise FedcrfError(
            f"the model makes {_shape(outputs)} of {len(few)} examples: make logits of shape "
            f"({len(few)}, classes), or give loss="
        )
    if outputs.shape[1] < count:
        where = called[largest.index(count - 1)]
        raise FedcrfError(
            f"{where} has label {count - 1} and the model makes {outputs.shape[1]} logits: make "
            f"{count}, or mend the labels"
        )
    return outputs.shape[1]


def _try_optimizer(network: nn.Module, value: Tensor, optimizer: Callable[..., Any]) -> None:
    parameters = [each for each in network.parameters() if each.requires_grad]
    try:
        made = optimizer(parameters)
    except Exception as error:  # whatever a user's function raises
        raise FedcrfError(f"the optimizer cannot be made ({in_a_line(error)})") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise FedcrfError(
            f"the optimizer's function returns a {type(made).__name__}: return a "
            "torch.optim.Optimizer of the parameters it is given"
        )
    try:
        torch.autograd.backward(value)
        made.step()
    except Exception as error:  # whatever it raises
        raise FedcrfError(
            f"the optimizer makes no step ({in_a_line(error)}): give one that needs gradients alone"
        ) from error


def _shape(outputs: Outputs) -> str:
    if isinstance(outputs, Tensor):
        return f"a tensor of shape {tuple(outputs.shape)}"
    return f"a {type(outputs).__name__}"


def _threat(
    attack: Any, attackers: Any, sites: Sites, num_classes: int
) -> tuple[Threat | None, tuple[int, ...] | None]:
    """Return the attack with how many attack, and who, where they are named."""
    if attack is None:
        if attackers is not None:
            raise FedcrfError("attackers without an attack: give attack=, such as 'sign-flip'")
        return None, None
    made = find_attack(attack)() if isinstance(attack, str) else attack
    if not isinstance(made, Attack):
        raise FedcrfError(
            f"attack is a {type(attack).__name__}: give a name, as of 'fedcrf attacks', or a "
            "fedcrf.attacks.Attack"
        )
    if isinstance(made, DataAttack) and not num_classes:
        raise FedcrfError(
            f"attack {type(made).__name__} poisons labels or images, and targets are no labels: "
            "give one on what sites send"
        )
    if attackers is None or is_number(attackers):
        schedule = Schedule() if attackers is None else Schedule(attackers)
        return Threat(made, schedule), None
    names = [attackers] if isinstance(attackers, str) else list(attackers)
    known = [str(each) for each in sites.identities]
    for name in names:
        if str(name) not in known:
            raise unknown_name("site among the attackers", str(name), known)
        if names.count(name) > 1:
            raise FedcrfError(f"attackers: site '{name}' is there twice: name each once")
    return Threat(made, Schedule(len(names))), tuple(known.index(str(name)) for name in names)


def _rule(rule: Any, num_sites: int, threat: Threat | None, seed: int) -> tuple[Rule, Objective]:
    """Return the rule, informed where it asks to be, and the objective that goes with its name."""
    made, objective, optimizer = rule, find_objective("plain")(), None
    if isinstance(rule, str):
        method = find_method(rule)
        made, objective = find_rule(method.rule)(), find_objective(method.objective)()
        if method.server_optimizer:
            optimizer = SERVER_OPTIMIZERS[method.server_optimizer]()
    elif isinstance(rule, type) and issubclass(rule, Rule):
        made = rule()
    if not isinstance(made, Rule):
        raise FedcrfError(
            f"rule is a {type(rule).__name__}: give a method's name, as of 'fedcrf methods', or a "
            "fedcrf.rules.Rule"
        )
    count = 0 if threat is None else threat.schedule.count(num_sites)
    made = made.informed(count, num_sites, seed)
    return (made if optimizer is None else Optimized(made, optimizer)), objective


def _whole_model(network: nn.Module, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the network's tensors, those that were averaged in their places."""
    return {
        name: torch.from_numpy(np.array(state[name])).to(tensor.dtype)
        if name in state
        else tensor.detach().clone()
        for name, tensor in network.state_dict().items()
        if isinstance(tensor, Tensor)
    }


def _shown(
    simulation: Simulation, state: RunState, progress: bool
) -> Iterator[tuple[RunState, RoundRecord]]:
    """Run the rounds, with a bar on a terminal.

    Raises:
        FedcrfError: Something of the user's failed in a round.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not (progress and console.is_terminal)) as bar:
        shown = bar.add_task("", total=simulation.max_rounds, completed=state.round)
        try:
            for after, record in simulation.rounds(state):
                state = after
                yield after, record
                bar.update(shown, completed=after.round, description=_said(record))
        except FedcrfError:
            raise
        except Exception as error:  # whatever model, loss, metrics or data raise
            raise FedcrfError(f"round {state.round + 1} failed ({in_a_line(error)})") from error


def _said(record: RoundRecord) -> str:
    said = f"validation loss {record.validation.loss:.4g}"
    if np.isfinite(record.validation.accuracy):
        said += f", accuracy {record.validation.accuracy:.3f}"
    return said
