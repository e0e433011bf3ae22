"""A state comes back from disk to the bit, or not at all."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedcrf import FedcrfError
from fedcrf.files import atomic_write
from fedcrf.simulation.rounds import (
    EarlyStopping,
    RunState,
    _digest,
    load_checkpoint,
    save_checkpoint,
    save_model,
)
from simulation.small import same_state


def state() -> RunState:
    rng = np.random.default_rng(0)
    model = {
        "half": rng.standard_normal((2, 3)).astype(np.float16),
        "single": rng.standard_normal(3).astype(np.float32),
        "double": rng.standard_normal((1, 2, 2)),
        "not finite": np.array([np.nan, np.inf, -np.inf, -0.0], dtype=np.float32),
        "count": np.array(12),  # 0-d
        "long": np.array([2**62 + 1, -5]),
        "byte": np.arange(4, dtype=np.uint8),
        "mask": np.array([True, False]),
        "empty": np.empty((0, 3), dtype=np.float32),
    }
    best = {name: array.copy() for name, array in model.items()}
    best["single"] = best["single"] + 1
    return RunState(7, model, best, EarlyStopping(9, 0.125, 0.5, 2, 0.25, 4))


def test_round_trip(tmp_path: Path) -> None:
    before, path = state(), tmp_path / "checkpoint.pt"
    save_checkpoint(path, before)
    after = load_checkpoint(path)
    assert (after.round, after.stopping) == (before.round, before.stopping)
    assert same_state(after.model, before.model)
    assert same_state(after.best_model, before.best_model)
    assert not same_state(after.model, after.best_model)


def test_arrays_that_torch_cannot_read_where_they_are(tmp_path: Path) -> None:
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    memory = {
        "backwards": np.arange(6.0).reshape(2, 3)[::-1, ::-1],
        "the other end first": np.arange(3, dtype=">f8"),
        "read-only": fixed,
        "one": np.array(2.0, dtype=">f4"),
    }
    save_checkpoint(tmp_path / "c", replace(state(), memory=memory))
    after = load_checkpoint(tmp_path / "c").memory
    for name, array in memory.items():
        assert np.array_equal(after[name], array), name
        assert after[name].shape == array.shape


def test_a_checkpoint_of_a_later_version_is_named(tmp_path: Path) -> None:
    content = io.BytesIO()
    save_checkpoint(tmp_path / "c", state())
    saved = torch.load(io.BytesIO((tmp_path / "c").read_bytes()), weights_only=True)
    torch.save({**saved, "momentum": 1.0}, content)
    with atomic_write(tmp_path / "c") as file:
        file.write(content.getvalue() + _digest(content.getvalue()))
    with pytest.raises(FedcrfError, match="has 'momentum', as of a later version: use the version"):
        load_checkpoint(tmp_path / "c")


def test_a_start_s_infinite_losses_come_back(tmp_path: Path) -> None:
    before = RunState(0, {"w": np.ones(1)}, {"w": np.ones(1)}, EarlyStopping())
    save_checkpoint(tmp_path / "c", before)
    assert load_checkpoint(tmp_path / "c").stopping == EarlyStopping()


def test_a_saved_model_is_a_state_dict(tmp_path: Path) -> None:
    save_model(tmp_path / "model.pt", state().model)
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert same_state({name: tensor.numpy() for name, tensor in loaded.items()}, state().model)


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: b"not a checkpoint\nat all",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-1],
        lambda whole: whole[:200] + bytes(len(whole) - 200),
        lambda whole: whole[:300] + bytes([whole[300] ^ 1]) + whole[301:],
    ],
    ids=["empty", "text", "half", "last byte", "zeros", "one bit"],
)
def test_a_damaged_checkpoint_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, state())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FedcrfError, match=r"checkpoint\.pt is damaged, or none: delete its folder"):
        load_checkpoint(path)


@pytest.mark.parametrize("content", [{"round": 1}, [1, 2], {"weight": torch.ones(2)}])
def test_another_torch_file_is_no_checkpoint(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(FedcrfError, match=r"model\.pt is damaged, or none"):
        load_checkpoint(tmp_path / "model.pt")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"new, but not all")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [each.name for each in tmp_path.iterdir()] == ["file"], "nothing half-written is left"
    assert path.read_bytes() == b"old"


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("it ran",)


def test_a_checkpoint_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = io.BytesIO()
    torch.save({"round": Code()}, content)
    path = tmp_path / "c"
    path.write_bytes(content.getvalue() + _digest(content.getvalue()))
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        load_checkpoint(path)
    assert "it ran" not in capsys.readouterr().out
