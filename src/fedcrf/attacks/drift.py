"""Attackers that descend a loss of their own, which is nobody else's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.attacks.base import Forgery, OmniscientAttack, Scene, norms, unit
from fedcrf.attacks.inner_product import Opposed
from fedcrf.checks import check_number, is_number
from fedcrf.errors import FedcrfError


@dataclass(frozen=True)
class Drift(OmniscientAttack):
    """Sends γ(w° − w_t), as if it descended ½γ‖w − w°‖², whose minimum is far from good models.

    Between two rounds that changes by −γ(w_t − w_t'): it answers the model's movement as honest
    clients do, and more, for it has a loss of positive curvature. In its first round each attacker
    settles its goal w° = w_t + (c·n/γ)·p, where n is the median norm of the honest updates and p
    the direction of `Opposed`: an honest client's but for what opposes the honest mean.

    Attributes:
        curvature: γ, above 0 and up to 1; the smaller, the further the goal.
        length: c, of the first update, in median honest norms.
        cosine: Of the first update, against the honest mean.
    """

    curvature: float = 0.05
    length: float = 2.0
    cosine: float = 0.0

    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not is_number(self.curvature) or not 0.0 < self.curvature <= 1.0:
            raise FedcrfError(f"curvature {self.curvature}: give a number above 0 and up to 1")
        check_number("length", self.length, 0.0)
        check_number("cosine", self.cosine, 0.0, 1.0)

    def forge(self, scene: Scene) -> Forgery:
        """Settle goals, where there is none; see `ModelAttack.forge`."""
        if not scene.active or not scene.num_attackers:
            return Forgery(scene.own, scene.memory)
        here, memory = scene.position, scene.memory
        goals = (
            dict(zip(memory["clients"].tolist(), memory["goals"], strict=True)) if memory else {}
        )
        directions = unit(scene.updates_of(Opposed(self.cosine).forge(scene).reports))
        reach = self.length * float(np.median(norms(scene.honest_updates))) / self.curvature
        for report, direction in zip(scene.own, directions, strict=True):
            goals.setdefault(report.client, here + reach * direction)
        wanted = np.stack([goals[report.client] for report in scene.own])
        return Forgery(
            scene.reports(self.curvature * (wanted - here)),
            {"clients": np.array(list(goals)), "goals": np.stack(list(goals.values()))},
        )

    def obstacle(self, num_clients: int, num_attackers: int) -> str | None:
        """See `ModelAttack.obstacle`."""
        return Opposed(self.cosine).obstacle(num_clients, num_attackers)
