"""Runs small enough to take milliseconds, with models and rules of every awkward kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedcrf.errors import FedcrfError
from fedcrf.models import MLP, ImageShape
from fedcrf.objectives import Plain
from fedcrf.rules import (
    CRF,
    RESIDUAL_LOSS,
    AggregationResult,
    ClientReport,
    FedAvg,
    Memory,
    Rule,
    State,
    reported_evidence,
)
from fedcrf.simulation.federation import Examples, Federation, PooledExamples
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.records import RoundRecord
from fedcrf.simulation.rounds import RunState, Simulation, load_checkpoint, save_checkpoint

SHAPE = (1, 4, 4)
CLASSES = 3


@dataclass(frozen=True)
class TiedPlan:
    """A perceptron that has one layer twice."""

    def build(self, image_shape: Any, num_classes: int) -> nn.Module:
        size = math.prod(image_shape)
        layer = nn.Linear(size, size)
        return nn.Sequential(
            nn.Flatten(), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(size, num_classes)
        )


def examples(count: int, seed: int, shape: tuple[int, ...] = SHAPE) -> Examples:
    """Noisy images around one centre a class: learnable, and never quite learnt."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((CLASSES, *shape))
    labels = rng.integers(0, CLASSES, count)
    images = centres[labels] + 1.5 * rng.standard_normal((count, *shape))
    return Examples(torch.from_numpy(images).float(), torch.from_numpy(labels))


def pooled(counts: Sequence[int], seed: int) -> PooledExamples:
    union = examples(sum(counts), seed)
    owners = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
    return PooledExamples(union.images, union.labels, owners)


def federation(sizes: Sequence[int] = (20, 7, 33), held_out: bool = True) -> Federation:
    return Federation(
        clients=tuple(examples(size, seed=10 + client) for client, size in enumerate(sizes)),
        validation=pooled([max(1, size // 5) for size in sizes], seed=1),
        test=pooled([max(1, size // 5) for size in sizes], seed=2),
        held_out=examples(25, seed=3) if held_out else None,
        image_shape=SHAPE,
        num_classes=CLASSES,
    )


@dataclass(frozen=True)
class BatchNormPlan:
    """Running statistics and the int64 count of batches travel with the model."""

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(image_shape[0], 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * image_shape[1] * image_shape[2], num_classes),
        )


@dataclass(frozen=True)
class NormedPlan:
    """Batch norm behind a linear layer: of one example it sees one value, and cannot train."""

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        size = image_shape[0] * image_shape[1] * image_shape[2]
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(size, 5),
            nn.BatchNorm1d(5),
            nn.ReLU(),
            nn.Linear(5, num_classes),
        )


@dataclass(frozen=True)
class DropoutPlan:
    """Draws from torch's generator in every step."""

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        size = image_shape[0] * image_shape[1] * image_shape[2]
        return nn.Sequential(
            nn.Flatten(), nn.Linear(size, 8), nn.Dropout(0.5), nn.Linear(8, num_classes)
        )


class PartlyUsed(nn.Module):
    """Has a parameter in front that no output depends on, so that its gradient is None."""

    def __init__(self, size: int, num_classes: int) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(5))
        self.linear = nn.Linear(size, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(images.flatten(1))
        return logits


@dataclass(frozen=True)
class PartlyUsedPlan:
    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        return PartlyUsed(image_shape[0] * image_shape[1] * image_shape[2], num_classes)


class Halved(nn.Linear):
    """A layer kept in bfloat16."""

    def __init__(self, size: int, num_classes: int) -> None:
        super().__init__(size, num_classes, dtype=torch.bfloat16)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.flatten(1).bfloat16()).float()


@dataclass(frozen=True)
class HalvedPlan:
    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        return Halved(image_shape[0] * image_shape[1] * image_shape[2], num_classes)


@dataclass(frozen=True)
class Broken:
    """An objective with a mistake in it."""

    def correct_gradients(self, parameters: Any, global_parameters: Any) -> None:
        raise ZeroDivisionError("broken")


class OddError(Exception):
    """Cannot be read from its pickle, which makes it of its message alone."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} in {where}")


@dataclass(frozen=True)
class OddlyBroken:
    """The same, with an error of its own."""

    def correct_gradients(self, parameters: Any, global_parameters: Any) -> None:
        raise OddError("no gradient", "layer 3")


@dataclass(frozen=True)
class FrozenPlan:
    """Its first layer is not trained, as when a pretrained body is kept."""

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        size = image_shape[0] * image_shape[1] * image_shape[2]
        first = nn.Linear(size, 6).requires_grad_(False)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(6, num_classes))


@dataclass(frozen=True)
class Recording(Rule):
    """Wraps a plan or a rule and keeps what passes through."""

    inner: Any
    seen: list[Any] = field(default_factory=list)

    @property
    def wanted_evidence(self) -> frozenset[str]:
        return self.inner.wanted_evidence

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        return self.inner.build(image_shape, num_classes)

    def aggregate(self, memory: Memory, global_state: State, reports: Any) -> Any:
        copies = [replace(each, state=_copied(each.state)) for each in reports]
        self.seen.append((_copied(global_state), copies))
        return self.inner.aggregate({}, global_state, reports)


def _copied(state: State) -> State:
    return {name: array.copy() for name, array in state.items()}


@dataclass(frozen=True)
class Asking(Rule):
    """A rule on the half of the clients that fit their own examples best after training."""

    rule: Rule = FedAvg()  # noqa: RUF009
    wanted_evidence: frozenset[str] = frozenset({RESIDUAL_LOSS})

    def aggregate(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        losses = np.nan_to_num(reported_evidence(reports)[RESIDUAL_LOSS], nan=np.inf)
        kept = losses <= np.median(losses)
        counted = [
            report if keep else replace(report, num_examples=0)
            for report, keep in zip(reports, kept, strict=True)
        ]
        return self.rule.aggregate({}, global_state, counted)


def same_state(state: State, other: State) -> bool:
    """Tell whether two models are equal to the bit, NaN included."""
    return list(state) == list(other) and all(
        array.dtype == other[name].dtype
        and array.shape == other[name].shape
        and array.tobytes() == other[name].tobytes()
        for name, array in state.items()
    )


def simulation(**changes: Any) -> Simulation:
    given: dict[str, Any] = {
        "federation": federation(),
        "model": MLP((6,)),
        "objective": Plain(),
        "rule": CRF(),
        "training": LocalTraining(0.05, 0.9, batch_size=8, local_epochs=2),
        "max_rounds": 4,
        "seed": 5,
    }
    return Simulation(**(given | changes))


def run(
    chosen: Simulation, state: RunState | None = None, workers: int = 1
) -> tuple[list[RunState], list[RoundRecord]]:
    steps = list(chosen.rounds(state or chosen.start(), workers))
    return [state for state, _ in steps], [record for _, record in steps]


def until_it_diverges(
    chosen: Simulation, state: RunState | None = None
) -> tuple[list[tuple[RunState, RoundRecord]], str]:
    """Return the rounds of a run before the error that says it diverged, and the error."""
    steps: list[tuple[RunState, RoundRecord]] = []
    with pytest.raises(FedcrfError, match=r"^training diverged by round ") as caught:
        steps.extend(chosen.rounds(state or chosen.start()))
    return steps, str(caught.value)


def without_seconds(records: Sequence[RoundRecord]) -> list[str]:
    hidden: Any = {"seconds": True, "totals": {"seconds"}}
    return [record.model_dump_json(exclude=hidden) for record in records]


def same_progress(one: RunState, other: RunState) -> bool:
    """Tell whether two runs have come to the same, to the bit."""
    return (one.round, one.stopping) == (other.round, other.stopping) and all(
        same_state(getattr(one, arrays), getattr(other, arrays))
        for arrays in ("model", "best_model", "memory", "attack_memory", "personal")
    )


def assert_resumes(whole: Simulation, folder: Path) -> tuple[list[RunState], list[RoundRecord]]:
    """Carry out a run; from its checkpoint after any of its rounds it goes on to the bit.

    Its states are those of all rounds, also of those without a record.
    """
    steps = list(whole.steps(whole.start()))
    states, records = [state for state, _ in steps], [each for _, each in steps if each is not None]
    for state in [whole.start(), *states[:-1]]:
        save_checkpoint(folder / "checkpoint.pt", state)
        restored = load_checkpoint(folder / "checkpoint.pt")
        later, rest = run(whole, restored)
        expected = [record for record in records if record.round > state.round]
        assert without_seconds(rest) == without_seconds(expected)
        assert same_progress(restored, state)
        assert same_progress(later[-1], states[-1])
    return states, records
