"""A run's state on disk, from which a killed run is resumed."""

from __future__ import annotations

import hashlib
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedcrf.errors import FedcrfError
from fedcrf.files import atomic_write
from fedcrf.rules import State
from fedcrf.simulation.records import Totals
from fedcrf.simulation.rounds import RunState
from fedcrf.simulation.stopping import EarlyStopping

DIGEST_SIZE = 32


def save_checkpoint(path: Path, state: RunState) -> None:
    """Write the state of a run, atomically, and a digest behind it."""
    content = io.BytesIO()
    torch.save(
        {
            "round": state.round,
            "model": _tensors(state.model),
            "best_model": _tensors(state.best_model),
            "stopping": asdict(state.stopping),
            "memory": _tensors(state.memory),
            "attack_memory": _tensors(state.attack_memory),
            "lost_rounds": state.lost_rounds,
            "personal": _tensors(state.personal),
            "totals": None if state.totals is None else state.totals.model_dump(),
        },
        content,
    )
    with atomic_write(path) as file:
        file.write(content.getbuffer())
        file.write(_digest(content.getbuffer()))


def load_checkpoint(path: Path) -> RunState:
    """Read the state of a run.

    Raises:
        FedcrfError: The file is not a checkpoint, or damaged.
    """
    mend = "delete its folder to run that cell anew"
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise FedcrfError(f"checkpoint {path} cannot be read ({error.strerror}): {mend}") from None
    saved, seal = whole[:-DIGEST_SIZE], whole[-DIGEST_SIZE:]
    if seal != _digest(saved):
        raise FedcrfError(f"checkpoint {path} is damaged, or none: {mend}")
    content = torch.load(io.BytesIO(saved), weights_only=True)
    totals = content.get("totals")
    return RunState(
        round=content["round"],
        model=_arrays(content["model"]),
        best_model=_arrays(content["best_model"]),
        stopping=EarlyStopping(**content["stopping"]),
        memory=_arrays(content["memory"]),
        attack_memory=_arrays(content["attack_memory"]),
        lost_rounds=content.get("lost_rounds", 0),  # older ones do not count them
        personal=_arrays(content.get("personal", {})),
        totals=None if totals is None else Totals(**totals),
    )


def save_model(path: Path, state: State) -> None:
    """Write a model as a torch ``state_dict``, atomically."""
    content = io.BytesIO()  # torch raises no error on a full disk
    torch.save(_tensors(state), content)
    with atomic_write(path) as file:
        file.write(content.getbuffer())


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_SIZE).digest()


def _tensors(state: State) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in state.items()}


def _arrays(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
