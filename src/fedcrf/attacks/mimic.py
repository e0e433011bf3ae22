"""Mimic: colluders that copy an honest client, so that it counts too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.attacks.base import Forgery, OmniscientAttack, Scene, unit, with_noise
from fedcrf.checks import check_number, check_whole
from fedcrf.rules import Memory


@dataclass(frozen=True)
class Mimic(OmniscientAttack):
    """Copies the honest client that differs the most (Karimireddy, He and Jaggi, ICLR 2022).

    Over the first rounds the direction z in which the honest updates vary most is learnt by Oja's
    iteration, as in the paper's appendix and its code: with μ the running mean of the updates and
    v = Σ_i ⟨u_i − μ, z⟩(u_i − μ), z ← t/(t + 1)·z + 1/(t + 1)·v/‖v‖, at length 1. All attackers
    copy the client with the largest |Σ_t ⟨z, u_i⟩|; of the honest clients of a round, where not
    all are drawn.

    Attributes:
        warmup: Rounds in which z and the sums are learnt; the client copied is settled then.
        noise: Norm of each attacker's own noise as a fraction of the update's; 0 for none, so that
            all attackers send the same.
    """

    warmup: int = 10
    noise: float = 0.0

    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("warmup", self.warmup, least=1)
        check_number("noise", self.noise, 0.0)

    def forge(self, scene: Scene) -> Forgery:
        """Learn, then copy; see `ModelAttack.forge`."""
        memory = scene.memory
        if int(memory.get("rounds", np.array(0))) < self.warmup:
            memory = _learnt(scene)
        scores = dict(zip(memory["clients"].tolist(), memory["scores"].tolist(), strict=True))
        worth = [abs(scores.get(report.client, 0.0)) for report in scene.finite_honest]
        copied = scene.honest_updates[int(np.argmax(worth))]
        updates = with_noise(copied, scene.num_attackers, self.noise, scene.draw)
        return Forgery(scene.reports(updates), memory)


def _learnt(scene: Scene) -> Memory:
    """Return direction, mean and sums after one more round."""
    before = scene.memory
    rounds = int(before["rounds"]) if before else 0
    start = before["direction"] if before else scene.draw.standard_normal(len(scene.honest_mean))
    mean = (rounds * before["mean"] if before else 0.0) + scene.honest_mean
    mean = mean / (rounds + 1)
    centred = scene.honest_updates - mean
    direction = unit((rounds * start + unit((centred @ start) @ centred)) / (rounds + 1))
    scores = (
        dict(zip(before["clients"].tolist(), before["scores"].tolist(), strict=True))
        if before
        else {}
    )
    found = (scene.honest_updates @ direction).tolist()
    for report, score in zip(scene.finite_honest, found, strict=True):
        scores[report.client] = scores.get(report.client, 0.0) + score
    return {
        "rounds": np.array(rounds + 1),
        "mean": mean,
        "direction": direction,
        "clients": np.array(list(scores)),
        "scores": np.array(list(scores.values())),
    }
