"""A simulation of a user's, from what was handed in to its result."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedcrf._version import __version__
from fedcrf.attacks import Attack, DataAttack, Threat, find_attack
from fedcrf.checks import check_path, check_truth, check_whole, checked_number, is_number
from fedcrf.data.site_files import read_site_files
from fedcrf.errors import (
    FedcrfError,
    KeywordError,
    failing,
    in_a_line,
    listed,
    of_file,
    unknown_name,
)
from fedcrf.experiments.provenance import provenance
from fedcrf.experiments.recorded import Description, RecordedRun, rule_settings
from fedcrf.experiments.settings import find_method, lasting, method_title
from fedcrf.experiments.store import CellStore, check_free, folder_lock
from fedcrf.objectives import Objective, find_objective
from fedcrf.own.result import SimulationResult
from fedcrf.own.sites import SHARE, Sites, check_same_form, federation_of, read_examples, read_sites
from fedcrf.own.trial import SECOND_STEP, Factory, Tried, chosen, parts_of, task_of, tensors_of
from fedcrf.processes import one_thread
from fedcrf.rules import SERVER_OPTIMIZERS, Optimized, Rule, find_rule
from fedcrf.rules.base import informed_rule
from fedcrf.rules.wrappers import Judged
from fedcrf.simulation.engine import state_of
from fedcrf.simulation.federation import Examples, check_participation
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.records import RoundRecord
from fedcrf.simulation.rounds import EarlyStopping, RunState, Simulation, save_model, seeded_network

OTHER = "name another folder as record_to"

ABOUT = "≈ "
"""Stands before a number that is compared with a tolerance."""

FIRST = (("seed",), ("sites", "training", "model"), ("outputs",))
"""Groups of parts, each of which decides what the later ones, loss, metrics and optimizer make."""


@contextmanager
def opened(path: Path, description: Description) -> Iterator[CellStore]:
    """Hold the folder of this run, and begin the record where it is empty.

    The rounds and what goes on from them lie as those of a cell do.
    """
    run = RecordedRun(path)
    try:
        if not run.exists():
            check_free(path, "description.json", "such run")
        with folder_lock(path):
            if run.exists():
                _check_same(path, run.description(), description)
            else:
                run.describe(description, datetime.now(UTC))
            yield CellStore(path)
    except OSError as error:  # a name that is too long, a full disk
        raise FedcrfError(f"{of_file(error, path)}; {OTHER}") from None


def _check_same(path: Path, kept: Description, asked: Description) -> None:
    """Raise a `FedcrfError` if the run in a folder is made of other parts than the one asked for.

    It names those that differ, of the first group of `FIRST` in which some do: the rest follows.
    """
    if kept.made_of is None:
        raise FedcrfError(f"{path} holds a run of {kept.framework}: {OTHER}")
    before, here = kept.made_of, asked.made_of or {}
    if SECOND_STEP not in before:  # earlier versions made one step
        here = {part: each for part, each in here.items() if part != SECOND_STEP}
    other = [part for part in {**here, **before} if _differ(before.get(part), here.get(part))]
    if other != [SECOND_STEP]:  # another first step implies another second step
        other = [part for part in other if part != SECOND_STEP]
    groups = [[part for part in other if part in group] for group in FIRST]
    first = next(filter(None, groups), other)
    if first:
        raise FedcrfError(f"{path} holds a run of other {', '.join(first)}: {OTHER}")


def _differ(before: str | None, here: str | None) -> bool:
    """Return whether a part is another one; numbers may differ by what processors round."""
    if before == here or before is None or here is None or not before.startswith(ABOUT):
        return before != here
    numbers = (float(each.removeprefix(ABOUT)) for each in (before, here))
    return not math.isclose(*numbers, rel_tol=1e-4, abs_tol=1e-6)


def description_of(
    simulation: Simulation, sites: Sites, title: str, network: nn.Module, optimizer: str | None
) -> Description:
    """Return what is run, without what it is made of.

    ``title`` is what the rule is called, ``network`` the seed's, ``optimizer`` the class of the
    clients' optimizer, None for SGD with momentum.
    """
    federation, training, task = simulation.federation, simulation.training, simulation.task
    held = zip(sites.identities, sites.examples, strict=True)
    counts = [f"{name} ({len(each)})" for name, each in held]
    whole = sum(each.numel() for each in network.parameters())
    sent = sum(each.numel() for each in task.shared_tensors(network).values())
    drawn = simulation.clients_per_round
    of_them = "" if drawn is None else f"; {drawn} in each round"
    parts = f"{len(federation.validation):,} and {len(federation.test):,} examples"
    about = [
        ("Sites", f"{len(counts)}: {listed(counts, 12)} examples{of_them}"),
        ("Validation, test", parts),
        ("Model", f"{type(network).__name__}, {whole:,} parameters; {sent:,} numbers are sent"),
        ("Loss", "cross-entropy" if task.loss is None else _called(task.loss)),
        ("Local training", training.in_words(optimizer)),
        ("Seed", str(simulation.seed)),
    ]
    judged, rule = _unwrapped(simulation.rule)
    if judged is not None:
        about.append(("Judged by", ", ".join(judged)))
    if task.personal:
        about.append(("Kept by each site", ", ".join(sorted(task.personal))))
    if simulation.adversary is not None:
        who = ", ".join(map(str, federation.called(simulation.adversary.clients)))
        threat = simulation.adversary.threat
        when, every = threat.schedule.start_round, threat.schedule.every
        attack = [f"{type(threat.attack).__name__} by {who}"]
        attack += [f"from round {when}"] if when > 1 else []
        attack += [f"every {every} rounds"] if every > 1 else []
        about.append(("Attack", ", ".join(attack)))
    return Description(
        framework=f"fedcrf.simulate {__version__}",
        strategy=title,
        rule=rule.name,
        settings=rule_settings(rule),
        provenance=provenance(federation.validation.labels.device),
        about=about,
    )


def made_of(
    simulation: Simulation, sites: Sites, network: nn.Module, numbers: Mapping[str, float]
) -> dict[str, str]:
    """Return what identifies a simulation, by part; its number of rounds does not.

    ``numbers`` are what its functions make of a few examples: other functions make others.
    """
    task, federation = simulation.task, simulation.federation
    judged, rule = _unwrapped(simulation.rule)
    objective, adversary = simulation.objective, simulation.adversary
    attack = adversary and (adversary.threat, adversary.clients, adversary.threat.attack.behaviour)
    parts = {
        "sites": sites.fingerprint([federation.validation, federation.test]),
        "seed": str(simulation.seed),
        "model": _fingerprint(network),
        "rule": lasting(
            json.dumps([rule.name, rule.behaviour, rule_settings(rule), objective], default=repr)
        ),
        "training": repr(simulation.training),
        "attack": lasting(repr(attack)),
        "judge or share": repr((judged, sorted(task.shared or ()))),
        **{name: f"{ABOUT}{number!r}" for name, number in numbers.items()},
    }
    if simulation.clients_per_round is not None:
        parts["clients_per_round"] = str(simulation.clients_per_round)
    return parts


def _unwrapped(rule: Rule) -> tuple[list[str] | None, Rule]:
    """Return the names of the tensors that a rule sees, None for all, and the rule itself."""
    return (sorted(rule.judged), rule.rule) if isinstance(rule, Judged) else (None, rule)


def _fingerprint(network: nn.Module) -> str:
    """Return a digest of a network's layers and initial weights, 16 hexadecimal digits."""
    digest = hashlib.sha256(lasting(repr(network)).encode())
    for name, array in state_of(tensors_of(network)).items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _called(function: Any) -> str:
    """Return the name of a user's function, or of the class of an object."""
    name = str(getattr(function, "__name__", type(function).__name__))
    return "a function without a name" if name == "<lambda>" else name


ARGUMENTS = {
    "--learning-rate": "learning_rate=",
    "--batch-size": "batch_size=",
    "--model": "model=",
    "--min-examples, --clients": "sites=",
    "--clients-per-round": "clients_per_round=",
    "--clients": "sites=",
    "--attackers": "attackers=",
    "another folder with --output": "another folder as record_to=",
    "name it by --label-column, or rename it": "rename it",
    "move the cell's folder away to run it anew": "move the folder away to run it anew",
    "delete its folder to run that cell anew": "move the folder away to run it anew",
}
"""What errors name in place of the command line's flags, for callers of `fedcrf.simulate`."""


@contextmanager
def _naming_arguments() -> Iterator[None]:
    """Let errors name the arguments of `fedcrf.simulate` instead of the command line's flags."""
    try:
        yield
    except FedcrfError as error:
        text = str(error)
        for flags, arguments in ARGUMENTS.items():
            text = text.replace(flags, arguments)
        if text == str(error):
            raise
        raise FedcrfError(text) from error


@contextmanager
def _as_anywhere() -> Iterator[None]:
    """Let training have gradients, and the numbers be the same, wherever it is called.

    Their last bits depend on the threads; and a forked child waits forever for those of its parent.
    """
    with (
        one_thread(),
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


@_naming_arguments()
@_as_anywhere()
def run(given: SimpleNamespace) -> SimulationResult:
    """Carry out what `fedcrf.simulate` was called with."""
    training = _training(given)
    from_files = isinstance(given.sites, str | Path)
    held = read_sites(read_site_files(Path(given.sites)).sites if from_files else given.sites)
    servers = {name: _servers(getattr(given, name), held, name) for name in ("validation", "test")}
    of_server = {
        f"the server's {name}": each for name, each in servers.items() if isinstance(each, Examples)
    }
    plan = Factory.of(given.model)
    device = held.examples[0].labels.device
    network = seeded_network(plan, given.seed, device)
    task = task_of(network, held, given.loss, given.metrics, given.optimizer, given.share)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what draws comes to the same numbers every time
        another = seeded_network(plan, given.seed, device)  # not every network can be copied
        tried = Tried.of(another, held, of_server, task, given.batch_size)
    del another
    if task.personal and of_server:
        raise FedcrfError(
            "share= leaves tensors to the sites, which the server does not have: leave "
            "validation= and test= to the sites, or share all"
        )
    threat, named = _threat(given.attack, given.attackers, held, tried.num_classes)
    check_participation(given.clients_per_round, len(held.examples))
    rule, objective = _rule(given, len(held.examples), threat)
    title = method_title(given.rule) if isinstance(given.rule, str) else rule.name
    if given.judge is not None:
        rule = Judged(rule, chosen(task.shared_tensors(network), given.judge, "judge"))
    simulation = Simulation(
        federation=federation_of(held, servers, given.seed, tried.num_classes),
        model=plan,
        objective=objective,
        rule=rule,
        training=training,
        stopping=EarlyStopping(patience=sys.maxsize),  # never
        max_rounds=given.rounds,
        seed=given.seed,
        clients_per_round=given.clients_per_round,
        threat=threat,
        attackers=named,
        task=task,
    )
    start = simulation.start()
    _check_seeded(network, simulation.network())
    description = description_of(simulation, held, title, network, tried.optimizer)
    with ExitStack() as stack:
        folder = None
        if given.record_to is not None:
            parts = made_of(simulation, held, network, tried.numbers)
            description = description.model_copy(update={"made_of": parts})
            folder = stack.enter_context(opened(Path(given.record_to), description))
        state, records = _carry_out(simulation, start, folder, given.progress)
        initial = tensors_of(network)
        whole = {name: tensor.detach().clone() for name, tensor in initial.items()}
        for name, array in state.model.items():
            whole[name] = _tensor_of(array, like=initial[name])
        if folder is not None:
            save_model(folder.path / "model.pt", whole)
    personal = {
        site: {
            name: _tensor_of(rows[i], like=initial[name]) for name, rows in state.personal.items()
        }
        for i, site in enumerate(held.identities)
    }
    return SimulationResult(whole, tuple(held.identities), tuple(records), description, personal)


def _training(given: SimpleNamespace) -> LocalTraining:
    """Check the arguments that are plain values, and return the local training of these."""
    for name in given.unknown:
        raise _unknown_argument(name, given)
    check_whole("rounds", given.rounds, least=1)
    check_whole("seed", given.seed, least=0)
    check_truth("progress", given.progress)
    if given.record_to is not None:
        check_path("record_to", given.record_to)
    rate = given.learning_rate
    if type(rate) not in (int, float):  # a number of NumPy or torch, or a fraction
        rate = checked_number("learning_rate", rate)
    return LocalTraining(rate, 0.9, given.batch_size, given.local_epochs)


def _carry_out(
    simulation: Simulation, start: RunState, folder: CellStore | None, progress: bool
) -> tuple[RunState, list[RoundRecord]]:
    """Return the last state and all records; rounds go on from a folder's, and are kept there."""
    state, records = start, []
    if folder is not None:
        state, records = folder.resume() or start, folder.records()
        if state.round > simulation.max_rounds:
            raise FedcrfError(
                f"{folder.path} holds {state.round} rounds: give rounds={state.round} or more, "
                "or another folder as record_to"
            )
    for after, record in _shown(simulation, state, progress):
        state = after
        records.append(record)
        if folder is not None:
            folder.append(state, record)
    return state, records


def _unknown_argument(name: str, given: SimpleNamespace) -> KeywordError:
    """Return the error for a keyword that is no argument; it may be a setting of the rule."""
    known = sorted(vars(given).keys() - {"unknown"})
    kind = given.rule if isinstance(given.rule, type) else type(given.rule)
    if isinstance(given.rule, str):
        kind = find_rule(find_method(given.rule).rule)
    settings = [each.name for each in fields(kind) if each.init] if is_dataclass(kind) else []
    if name in settings:
        return KeywordError(
            f"{name} is a setting of {kind.__name__}, and no argument of fedcrf.simulate: give "
            f"rule={kind.__name__}({name}=…)"
        )
    near = difflib.get_close_matches(name, settings, n=1, cutoff=0.5)
    return KeywordError(unknown_name("argument of fedcrf.simulate", name, [*known, *near]))


def _servers(given: Any, sites: Sites, what: str) -> Examples | float:
    if given is None:
        return SHARE
    if is_number(given):
        if not 0.0 <= float(given) < 1.0:
            raise FedcrfError(f"{what} {given}: give a share in [0, 1), or inputs and targets")
        return float(given)
    held = read_examples(given, f"the server's {what}")
    check_same_form({**sites.called, f"the server's {what}": held})
    return held


def _check_seeded(network: nn.Module, again: nn.Module) -> None:
    """Raise a `FedcrfError` where the model's function does not make the same network again."""
    made, others = (state_of(parts_of(each)) for each in (network, again))
    for name in {**made, **others}:
        one, other = made.get(name), others.get(name)
        if one is None or other is None or not np.array_equal(one, other, equal_nan=True):
            raise FedcrfError(
                f"the model's function gives '{name}' other numbers every time: draw them by "
                "torch's own generator, which the seed decides"
            )


def _threat(
    attack: Any, attackers: Any, sites: Sites, num_classes: int
) -> tuple[Threat | None, tuple[int, ...] | None]:
    if attack is None:
        if attackers is not None:
            raise FedcrfError("attackers without an attack: give attack=, such as 'sign-flip'")
        return None, None
    given = find_attack(attack) if isinstance(attack, str) else attack
    if isinstance(given, type) and issubclass(given, Attack):
        with failing(f"attack {given.__name__} cannot be made ({{}}): give an object of the class"):
            given = given()
    threat = given if isinstance(given, Threat) else Threat(given)
    made, schedule = threat.attack, threat.schedule
    if not isinstance(made, Attack):
        raise FedcrfError(
            f"attack is a {type(made).__name__}: give a name, as of 'fedcrf attacks', or a "
            "fedcrf.attacks.Attack"
        )
    if schedule.additional:
        raise FedcrfError(
            "additional attackers hold samples of the others' examples, and sites hold their own: "
            "leave additional out, and name the sites that attack (--attackers)"
        )
    if isinstance(made, DataAttack) and not num_classes:
        raise FedcrfError(
            f"attack {type(made).__name__} poisons labels or images, and targets are no labels: "
            "give one on what sites send"
        )
    if attackers is None:
        return threat, None
    if is_number(attackers):
        return Threat(made, replace(schedule, attackers=attackers)), None
    if not isinstance(attackers, Iterable):
        raise FedcrfError(f"attackers is {attackers!r}: give sites by name, or how many of them")
    with failing("attackers cannot be read ({}): give sites by name, or how many of them"):
        names = [attackers] if isinstance(attackers, str) else [str(each) for each in attackers]
    known = [str(each) for each in sites.identities]
    for name in names:
        if name not in known:
            raise unknown_name("site among the attackers", name, known)
        if names.count(name) > 1:
            raise FedcrfError(f"attackers: site '{name}' is there twice: name each once")
    places = tuple(map(known.index, names))
    return Threat(made, replace(schedule, attackers=len(names))), places


def _rule(given: SimpleNamespace, num_sites: int, threat: Threat | None) -> tuple[Rule, Objective]:
    """Return the rule, informed if it asks to be, and the objective that goes with its name."""
    made, objective = given.rule, find_objective("plain")()
    if isinstance(made, str):
        method = find_method(made)
        made, objective = find_rule(method.rule)(), find_objective(method.objective)()
        if method.server_optimizer:
            made = Optimized(made, SERVER_OPTIMIZERS[method.server_optimizer]())
    elif isinstance(made, type) and issubclass(made, Rule):
        with failing(f"rule {made.__name__} cannot be made ({{}}): give an object of the class"):
            made = made()
    if not isinstance(made, Rule):
        raise FedcrfError(
            f"rule is a {type(given.rule).__name__}: give a method's name, as of 'fedcrf methods', "
            "or a fedcrf.rules.Rule"
        )
    drawn = given.clients_per_round or num_sites
    count = 0 if threat is None else threat.schedule.count_among(drawn, num_sites)
    return informed_rule(made, count, drawn, given.seed), objective


def _tensor_of(array: Any, like: Tensor) -> Tensor:
    """Return an array, or one number, as a tensor of its own of another's dtype."""
    return torch.from_numpy(np.array(array)).to(like.dtype)


def _shown(
    simulation: Simulation, state: RunState, progress: bool
) -> Iterator[tuple[RunState, RoundRecord]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    most = simulation.max_rounds
    with Progress(console=console, disable=not (progress and console.is_terminal)) as bar:
        shown = bar.add_task(f"round {state.round} of {most}", total=most, completed=state.round)
        try:
            for after, record in simulation.rounds(state):
                state = after
                yield after, record
                accuracy = record.validation.accuracy
                said = f"round {record.round} of {most}: "
                said += f"validation loss {record.validation.loss:.4g}"
                said += f", accuracy {accuracy:.3f}" if np.isfinite(accuracy) else ""
                bar.update(shown, completed=after.round, description=said)
        except FedcrfError:
            raise
        except Exception as error:  # whatever model, loss, metrics or data raise
            raise FedcrfError(f"round {state.round + 1} failed ({in_a_line(error)})") from error
