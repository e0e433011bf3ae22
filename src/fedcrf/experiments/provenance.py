"""Where a result comes from: versions, machine, commit, and whether its code still does the same.

Whatever decides what comes out of a cell has a number in its class, ``behaviour``, which is raised
where that changes; 1 where a class or a cell does not say it.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedcrf._version import __version__
from fedcrf.cores import processor
from fedcrf.crf.evidence import LARGE_ROUND
from fedcrf.data.partition import ClientSplit
from fedcrf.experiments.spec import CellSpec
from fedcrf.models import MLP
from fedcrf.simulation.engine import Scores
from fedcrf.simulation.local_training import LocalTraining, MLPTraining
from fedcrf.simulation.records import Record
from fedcrf.simulation.rounds import Simulation


class Provenance(Record):
    """What a cell was run with.

    ``commit`` is the source's, with ``+changes`` where files differed from it; None for an
    installed package. ``commits`` are those of all parts of a cell that went on with other code.
    """

    fedcrf: str
    commit: str | None = None
    commits: list[str | None] | None = None
    python: str
    torch: str
    numpy: str
    numba: str | None = None
    byzfl: str | None = None
    system: str
    processor: str
    cores: int
    device: str

    @property
    def every_commit(self) -> list[str | None]:
        """The commits of all parts."""
        return self.commits or [self.commit]

    def after(self, earlier: Provenance | None) -> Provenance:
        """Return this with the commits of the parts before it; None where they are not known."""
        before = [None] if earlier is None else earlier.every_commit
        commits = list(dict.fromkeys([*before, self.commit]))
        return self.model_copy(update={"commits": commits if len(commits) > 1 else None})


def provenance(device: torch.device) -> Provenance:
    """Look up versions, machine and commit."""
    return Provenance(
        fedcrf=__version__,
        commit=_commit(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=np.__version__,
        numba=_version("numba"),
        byzfl=_version("byzfl"),
        system=f"{platform.system()} {platform.machine()}",
        processor=processor(),
        cores=os.cpu_count() or 1,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    )


FIRST = 1
"""The number of what does not say one."""


def numbers(cell: CellSpec, device: str) -> dict[str, int]:
    """Return by part the behaviour numbers of all that decides a cell's result on a device.

    A part that is gone has none; a GPU trains a perceptron by other code.
    """
    return {part: number for part, (_, number) in _parts(cell, device).items()}


def changes(cell: CellSpec, kept: Mapping[str, int], device: str) -> list[str]:
    """Return a line for each part whose number is not what was kept, `FIRST` where nothing was."""
    return [
        f"{name} has behaviour {number} now and had {kept.get(part, FIRST)}"
        for part, (name, number) in _parts(cell, device).items()
        if kept.get(part, FIRST) != number
    ]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache  # of the code that this process imported, whatever is committed while it runs
def _commit() -> str | None:
    source = Path(__file__).resolve().parent
    commit = _git(source, "rev-parse", "HEAD")
    if commit is None or _git(source, "ls-files", "--error-unmatch", __file__) is None:
        return None
    changed = _git(source, "status", "--porcelain", "--untracked-files=no", "--", ":/src")
    return commit + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _parts(cell: CellSpec, device: str) -> dict[str, tuple[str, int]]:
    """Return by part how it is called, and its number."""
    method = cell.method
    perceptron = isinstance(cell.model, MLP) and cell.training.precision == "float32"
    trained_by = MLPTraining if perceptron and device == "cpu" else LocalTraining
    parts: dict[str, tuple[str, Any]] = {
        "partition": (f"partition {cell.partition.scheme}", cell.partition),
        "split": ("the split", ClientSplit),
        "model": (f"model {cell.model_name}", cell.model),
        "objective": (f"objective {method.objective}", cell.objective),
        "training": ("local training", trained_by),
        "rule": (f"rule {method.rule}", cell.rule),
        "rounds": ("the rounds", Simulation),
        "evaluation": ("the evaluation", Scores),
    }
    if cell.server_optimizer is not None:
        name = f"server optimizer {method.server_optimizer}"
        parts["server_optimizer"] = (name, cell.server_optimizer)
    if cell.threat is not None:
        parts["attack"] = (f"attack {cell.attack_name}", cell.threat.attack)
    found = {part: (name, getattr(of, "behaviour", FIRST)) for part, (name, of) in parts.items()}
    absent = cell.rounds.clients_per_round is not None
    present = cell.rounds.clients_per_round or cell.num_clients  # additional attackers too
    where = {
        "absence": ("where clients are absent", absent),
        "large_round": ("in a large round", present > LARGE_ROUND),
    }
    for part, number in getattr(cell.rule, "behaviour_where", {}).items():
        said, differs = where[part]
        if differs:
            found[part] = (f"rule {method.rule} {said}", number)
    return {part: (name, number) for part, (name, number) in found.items() if number is not None}
