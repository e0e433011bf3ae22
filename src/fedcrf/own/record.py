"""A user's simulation in a folder of its own, as a recorded run that can go on.

::

    RUN/description.json, rounds.jsonl    as `fedcrf.experiments.recorded` has them
    RUN/checkpoint.pt                     to go on from, also to more rounds
    RUN/model.pt                          the model, when all rounds are done
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedcrf._version import __version__
from fedcrf.errors import FedcrfError, listed
from fedcrf.experiments.cell import CellStore, check_free, folder_lock
from fedcrf.experiments.provenance import provenance
from fedcrf.experiments.recorded import Description, RecordedRun, rule_settings
from fedcrf.own.sites import Sites
from fedcrf.rules.judged import Judged
from fedcrf.simulation.records import RoundRecord
from fedcrf.simulation.rounds import RunState, Simulation
from fedcrf.simulation.worker import state_of

OTHER = "name another folder as record_to"

MOST_NAMED = 12
"""Sites that are listed."""

ABOUT = "≈ "
"""Stands before a number that is compared with a tolerance."""

FIRST = ("sites", "seed", "training", "model", "outputs")
"""Parts that decide what loss, metrics and optimizer compute."""


@contextmanager
def opened(path: Path, description: Description) -> Iterator[CellStore]:
    """Hold the folder of this run, and begin the record where it is empty.

    The rounds and what goes on from them lie as those of a cell do.
    """
    run = RecordedRun(path)
    if run.exists():
        _check_same(path, run.description(), description)
    else:
        check_free(path, "description.json", "such run")
    with folder_lock(path):
        if not run.exists():
            run.describe(description, datetime.now(UTC))
        yield CellStore(path)


def resumed(store: CellStore, start: RunState, rounds: int) -> tuple[RunState, list[RoundRecord]]:
    """Return the state to go on from, and the rounds before it, no more than are asked for."""
    state = store.resume() or start
    if state.round > rounds:
        raise FedcrfError(
            f"{store.path} holds {state.round} rounds: give rounds={state.round} or more, or "
            "another folder as record_to"
        )
    return state, store.records()


def _check_same(path: Path, kept: Description, asked: Description) -> None:
    """Raise a `FedcrfError` where a folder's run is made of anything else than the one asked for.

    What others follow from, `FIRST`, is named alone.
    """
    if kept.made_of is None:
        raise FedcrfError(f"{path} holds a run of {kept.framework}: {OTHER}")
    before, here = kept.made_of, asked.made_of or {}
    other = [part for part in {**here, **before} if _differ(before.get(part), here.get(part))]
    first = [part for part in other if part in FIRST]
    if other:
        raise FedcrfError(f"{path} holds a run of other {', '.join(first or other)}: {OTHER}")


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
    rule = simulation.rule.rule if isinstance(simulation.rule, Judged) else simulation.rule
    return Description(
        framework=f"fedcrf.simulate {__version__}",
        strategy=title,
        rule=rule.name,
        settings=rule_settings(rule),
        provenance=provenance(simulation.federation.validation.labels.device),
        about=_about(simulation, sites, network, optimizer),
    )


def _about(
    simulation: Simulation, sites: Sites, network: nn.Module, optimizer: str | None
) -> list[tuple[str, str]]:
    federation, training, task = simulation.federation, simulation.training, simulation.task
    names = [str(name) for name in sites.identities]
    counts = [f"{name} ({len(each)})" for name, each in zip(names, sites.examples, strict=True)]
    whole = sum(each.numel() for each in network.parameters())
    sent = sum(each.numel() for each in task.shared_tensors(network).values())
    drawn = simulation.clients_per_round
    of_them = "" if drawn is None else f"; {drawn} in each round"
    about = [
        ("Sites", f"{len(names)}: {listed(counts, MOST_NAMED)} examples{of_them}"),
        (
            "Validation, test",
            f"{len(federation.validation):,} and {len(federation.test):,} examples",
        ),
        ("Model", f"{type(network).__name__}, {whole:,} parameters; {sent:,} numbers are sent"),
        ("Loss", "cross-entropy" if task.loss is None else _called(task.loss)),
        ("Local training", training.in_words(optimizer)),
        ("Seed", str(simulation.seed)),
    ]
    if isinstance(simulation.rule, Judged):
        about.append(("Judged by", ", ".join(sorted(simulation.rule.judged))))
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
    return about


def made_of(
    simulation: Simulation, sites: Sites, network: nn.Module, numbers: Mapping[str, float]
) -> dict[str, str]:
    """Return what tells a simulation from any other, by part; rounds are none of it.

    ``numbers`` are what its functions make of a few examples, which tells them from others.
    """
    task, federation, rule = simulation.task, simulation.federation, simulation.rule
    judged, inner = None, rule
    if isinstance(rule, Judged):
        judged, inner = sorted(rule.judged), rule.rule
    objective, adversary = simulation.objective, simulation.adversary
    attack = adversary and (adversary.threat, adversary.clients, adversary.threat.attack.behaviour)
    parts = {
        "sites": sites.fingerprint([federation.validation, federation.test]),
        "seed": str(simulation.seed),
        "model": _fingerprint(network),
        "rule": json.dumps(
            [inner.name, inner.behaviour, rule_settings(inner), objective], default=repr
        ),
        "training": repr(simulation.training),
        "attack": repr(attack),
        "judge or share": repr((judged, sorted(task.shared or ()))),
        **{name: f"{ABOUT}{number!r}" for name, number in numbers.items()},
    }
    if simulation.clients_per_round is not None:
        parts["clients_per_round"] = str(simulation.clients_per_round)
    return parts


def _fingerprint(network: nn.Module) -> str:
    """Return what tells a network from others: its parts and its initial weights."""
    parts = re.sub(r" at 0x[0-9a-f]+", "", repr(network))
    digest = hashlib.sha256(parts.encode())
    tensors = {
        name: each for name, each in network.state_dict().items() if isinstance(each, Tensor)
    }
    for name, array in state_of(tensors).items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _called(function: Any) -> str:
    """Return the name of a user's function, or of the class of an object."""
    name = str(getattr(function, "__name__", type(function).__name__))
    return "a function without a name" if name == "<lambda>" else name
