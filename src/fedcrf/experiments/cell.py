"""One cell of a run's grid: a method with a seed, everything resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedcrf.attacks import Threat
from fedcrf.data import PartitionSettings
from fedcrf.experiments.methods import Method
from fedcrf.experiments.settings import DataSettings, RoundSettings, plain
from fedcrf.models import ModelPlan
from fedcrf.objectives import Objective
from fedcrf.rules import Optimized, Rule, ServerOptimizer
from fedcrf.simulation.local_training import LocalTraining


@dataclass(frozen=True)
class CellSpec:
    """One cell of a run's grid: one method with one seed, everything resolved.

    Attributes:
        method: Objective, rule and server optimizer, by name.
        seed: Fixes partition, initial model and client shuffles.
        data: Which images.
        partition: How they are dealt out.
        model_name: The model's name.
        model: Its plan.
        objective: What the clients minimise.
        rule: How the server aggregates; told of the attackers, where it is to be told.
        server_optimizer: What makes a step of the aggregate; None where it is the next model.
        training: The clients' local training.
        rounds: How long, and evaluated how.
        attack_name: The attack's name; None where all clients are honest.
        threat: The attack, who and when.
    """

    method: Method
    seed: int
    data: DataSettings
    partition: PartitionSettings
    model_name: str
    model: ModelPlan
    objective: Objective
    rule: Rule
    server_optimizer: ServerOptimizer | None
    training: LocalTraining
    rounds: RoundSettings
    attack_name: str | None = None
    threat: Threat | None = None

    @property
    def name(self) -> str:
        """The cell's name, and its folder's."""
        return f"{self.method.name}-seed-{self.seed}"

    @property
    def server_rule(self) -> Rule:
        """The rule, with the server optimizer behind it where there is one."""
        if self.server_optimizer is None:
            return self.rule
        return Optimized(self.rule, self.server_optimizer)

    def describe(self) -> dict[str, Any]:
        """Return the whole description as plain values; equal for equal cells."""
        optimizer: dict[str, Any] = {}
        if self.server_optimizer is not None:
            name = self.method.server_optimizer
            optimizer = {"server_optimizer": {"name": name, **plain(self.server_optimizer)}}
        return {
            "method": self.method.name,
            "seed": self.seed,
            "data": plain(self.data),
            "partition": plain(self.partition),
            "model": {"name": self.model_name, **plain(self.model)},
            "objective": {"name": self.method.objective, **plain(self.objective)},
            "rule": {"name": self.method.rule, **plain(self.rule)},
            **optimizer,
            "training": plain(self.training),
            "rounds": plain(self.rounds),
            **attack_sections(self.attack_name, self.threat),
        }


def attack_sections(name: str | None, threat: Threat | None) -> dict[str, Any]:
    """Return the sections of a description that only a run with an attack has."""
    if name is None or threat is None:
        return {}
    attack = {"name": name, **plain(threat.schedule)}
    return {"attack": attack, "attacks": {name: plain(threat.attack)}}
