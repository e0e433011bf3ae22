"""A user's simulation in a folder of its own, as a recorded run that can go on.

::

    RUN/description.json, rounds.jsonl    as `fedcrf.experiments.recorded` has them
    RUN/checkpoint.pt                     to go on from, also to more rounds
    RUN/model.pt                          the model, when all rounds are done
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedcrf._version import __version__
from fedcrf.errors import FedcrfError, listed
from fedcrf.experiments.cell import CellStore
from fedcrf.experiments.folders import check_folder, folder_lock
from fedcrf.experiments.provenance import provenance
from fedcrf.experiments.recorded import Description, RecordedRun, rule_settings
from fedcrf.files import atomic_write
from fedcrf.own.sites import Sites
from fedcrf.rules.judged import Judged
from fedcrf.simulation.records import RoundRecord
from fedcrf.simulation.rounds import RunState, Simulation
from fedcrf.simulation.worker import state_of

OTHER = "name another folder as record_to"

MOST_NAMED = 12
"""Sites that are listed."""


@dataclass(frozen=True)
class RunFolder:
    """The record of one simulation.

    Attributes:
        description: What it is.
        path: Its folder; none before it is opened.
    """

    description: Description
    path: Path = Path()

    @classmethod
    def of(
        cls, simulation: Simulation, sites: Sites, title: str, network: nn.Module, start: RunState
    ) -> RunFolder:
        """Return what records a simulation; nothing is written."""
        rule = simulation.rule.rule if isinstance(simulation.rule, Judged) else simulation.rule
        description = Description(
            framework=f"fedcrf.simulate {__version__}",
            strategy=title,
            rule=rule.name,
            settings=rule_settings(rule),
            provenance=provenance(simulation.federation.validation.labels.device),
            about=_about(simulation, sites, network),
            made_of=_made_of(simulation, sites, network, start),
        )
        return cls(description)

    @contextmanager
    def opened(self, path: Path) -> Iterator[RunFolder]:
        """Hold the folder for writing, and begin the record where it is empty.

        Raises:
            FedcrfError: It holds something else, or is being written.
        """
        check_folder(path, OTHER)
        run = RecordedRun(path)
        if run.exists():
            self._check_same(run)
        elif path.is_dir() and any(path.iterdir()):
            raise FedcrfError(f"{path} is not empty and holds no such run: {OTHER}")
        with folder_lock(path):
            if not run.exists():
                run.describe(self.description, datetime.now(UTC))
            yield replace(self, path=path)

    def _check_same(self, run: RecordedRun) -> None:
        before = run.description().made_of
        if before is None:
            raise FedcrfError(f"{run.path} holds a run of {run.description().framework}: {OTHER}")
        here = self.description.made_of or {}
        other = [part for part in {**before, **here} if before.get(part) != here.get(part)]
        if other:
            raise FedcrfError(f"{run.path} holds a run of other {', '.join(other)}: {OTHER}")

    def resume(self, start: RunState) -> tuple[RunState, list[RoundRecord]]:
        """Return the state to go on from, and the rounds before it.

        Raises:
            FedcrfError: Files of the folder are damaged, or do not belong together.
        """
        return self._rounds.resume() or start, self._rounds.records()

    def append(self, state: RunState, record: RoundRecord) -> None:
        """Keep one more round: its record first, then the state that makes it count."""
        self._rounds.append(state, record)

    def finish(self, model: dict[str, Tensor]) -> None:
        """Keep the model, whole."""
        content = io.BytesIO()  # torch says nothing of a disk that is full
        torch.save(model, content)
        with atomic_write(self.path / "model.pt") as file:
            file.write(content.getbuffer())

    @property
    def _rounds(self) -> CellStore:
        """Its rounds and what goes on from them, which lie as those of a cell do."""
        return CellStore(self.path)


def _about(simulation: Simulation, sites: Sites, network: nn.Module) -> list[tuple[str, str]]:
    """Return what is run, as terms and what stands behind them."""
    federation, training, task = simulation.federation, simulation.training, simulation.task
    names = [str(name) for name in sites.identities]
    counts = [f"{name} ({len(each)})" for name, each in zip(names, sites.examples, strict=True)]
    whole = sum(each.numel() for each in network.parameters())
    sent = sum(each.numel() for each in task.shared_tensors(network).values())
    about = [
        ("Sites", f"{len(names)}: {listed(counts, MOST_NAMED)} examples"),
        (
            "Validation, test",
            f"{len(federation.validation):,} and {len(federation.test):,} examples",
        ),
        ("Model", f"{type(network).__name__}, {whole:,} parameters; {sent:,} numbers are sent"),
        ("Loss", "cross-entropy" if task.loss is None else called(task.loss)),
        ("Local training", training.in_words(called(task.optimizer) if task.optimizer else None)),
        ("Seed", str(simulation.seed)),
    ]
    if isinstance(simulation.rule, Judged):
        about.append(("Judged by", ", ".join(sorted(simulation.rule.judged))))
    if task.personal:
        about.append(("Kept by each site", ", ".join(sorted(task.personal))))
    if simulation.adversary is not None:
        who = ", ".join(map(str, federation.called(simulation.adversary.clients)))
        about.append(("Attack", f"{type(simulation.adversary.threat.attack).__name__} by {who}"))
    return about


def _made_of(
    simulation: Simulation, sites: Sites, network: nn.Module, start: RunState
) -> dict[str, str]:
    """Return what tells a simulation from any other, by part; rounds are none of it."""
    task, federation, rule = simulation.task, simulation.federation, simulation.rule
    weights = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        if isinstance(tensor, Tensor):
            array = start.model.get(name, state_of({name: tensor})[name])
            weights.update(f"{name} {array.dtype} {array.shape}".encode())
            weights.update(np.ascontiguousarray(array).tobytes())
    judged = sorted(rule.judged) if isinstance(rule, Judged) else None
    inner = rule.rule if isinstance(rule, Judged) else rule
    adversary = simulation.adversary
    return {
        "sites": sites.fingerprint([federation.validation, federation.test]),
        "model": weights.hexdigest()[:16],
        "rule": json.dumps([inner.name, rule_settings(inner), simulation.objective], default=repr),
        "training": repr(simulation.training),
        "optimizer": called(task.optimizer),
        "loss": called(task.loss),
        "metrics": json.dumps({name: called(each) for name, each in task.metrics.items()}),
        "attack": repr(adversary and (adversary.threat, adversary.clients)),
        "judge or share": repr((judged, sorted(task.shared or ()))),
        "seed": str(simulation.seed),
    }


def called(function: Any) -> str:
    """Return the name of a user's function, or of the class of an object."""
    if function is None:
        return "none"
    return str(getattr(function, "__qualname__", type(function).__qualname__))
