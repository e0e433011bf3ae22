"""Behaviour numbers: whether a finished cell was made by code that still does the same.

Whatever decides what comes out of a cell has a number in its class, ``behaviour``, which is raised
where that changes; 1 where a class or a cell does not say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcrf.data.split import ClientSplit
from fedcrf.experiments.cell import CellSpec
from fedcrf.models import MLP
from fedcrf.simulation.evaluation import Scores
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.mlp_training import MLPTraining
from fedcrf.simulation.rounds import Simulation

FIRST = 1
"""The number of what does not say one."""


def numbers(cell: CellSpec, device: str) -> dict[str, int]:
    """Return the behaviour numbers of all that decides what comes out of a cell, by part.

    Args:
        cell: The cell.
        device: On which it is run, as its provenance says; a GPU trains a perceptron otherwise.
    """
    return {part: getattr(of, "behaviour", FIRST) for part, (_, of) in _parts(cell, device).items()}


def changes(cell: CellSpec, kept: Mapping[str, int], device: str) -> list[str]:
    """Return what does something else than when a cell was run, a line each.

    Args:
        cell: The cell.
        kept: The numbers that were kept of it; `FIRST` where some is missing.
        device: On which it was run.
    """
    now = numbers(cell, device)
    names = {part: name for part, (name, _) in _parts(cell, device).items()}
    return [
        f"{names[part]} has behaviour {number} now and had {kept.get(part, FIRST)}"
        for part, number in now.items()
        if kept.get(part, FIRST) != number
    ]


def _parts(cell: CellSpec, device: str) -> dict[str, tuple[str, Any]]:
    """Return by part how it is called, and what has its number."""
    method = cell.method
    perceptron = isinstance(cell.model, MLP) and cell.training.precision == "float32"
    parts: dict[str, tuple[str, Any]] = {
        "partition": (f"partition {cell.partition.scheme}", cell.partition),
        "split": ("the split", ClientSplit),
        "model": (f"model {cell.model_name}", cell.model),
        "objective": (f"objective {method.objective}", cell.objective),
        "training": (
            "local training",
            MLPTraining if perceptron and device == "cpu" else LocalTraining,
        ),
        "rule": (f"rule {method.rule}", cell.rule),
        "rounds": ("the rounds", Simulation),
        "evaluation": ("the evaluation", Scores),
    }
    if cell.server_optimizer is not None:
        name = f"server optimizer {method.server_optimizer}"
        parts["server_optimizer"] = (name, cell.server_optimizer)
    if cell.threat is not None:
        parts["attack"] = (f"attack {cell.attack_name}", cell.threat.attack)
    return parts
