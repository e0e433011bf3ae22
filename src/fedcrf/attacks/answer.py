"""What attackers add so that their updates answer the model's movement as honest ones do.

Local training descends a loss, so that an honest update changes against what the model moved
meanwhile. A rule that asks for this answer, as `fedcrf.crf.RobustCRF` does, is shown one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcrf.attacks.base import Scene, Vector, norms, unit
from fedcrf.crf import RobustCRF
from fedcrf.crf.evidence import curvature_response
from fedcrf.rules import ClientReport, Memory, plain_rule

STRONGEST_ANSWER = -0.99
"""A cosine of −1 leaves no room for anything but the answer."""


@dataclass(frozen=True, eq=False)
class Recollection:
    """What each client sent when it last took part, and the model it started from.

    Attributes:
        clients: (k,) identities.
        updates: (k, d) float32; what they sent.
        rounds: (k,) the row of ``models`` that they started from.
        models: (T, d) float32; the global models still spoken of.
    """

    clients: NDArray[np.int64]
    updates: NDArray[np.float32]
    rounds: NDArray[np.int64]
    models: NDArray[np.float32]

    @classmethod
    def of(cls, memory: Memory, size: int) -> Recollection:
        """Return what is remembered of models of d numbers; nothing in the first round."""
        if "updates" not in memory:
            nothing = np.zeros((0, size), dtype=np.float32)
            nobody = np.zeros(0, dtype=np.int64)
            return cls(nobody, nothing, nobody, nothing)
        return cls(*(memory[name] for name in ("clients", "updates", "rounds", "models")))

    def after(self, scene: Scene, sent: Sequence[ClientReport]) -> Memory:
        """Return the memory after a round in which the attackers sent these reports."""
        reports = [*scene.finite_honest, *sent]
        here = np.array([report.client for report in reports], dtype=np.int64)
        absent = ~np.isin(self.clients, here)
        rounds = np.concatenate([self.rounds[absent], np.full(len(here), len(self.models))])
        spoken_of, rounds = np.unique(rounds, return_inverse=True)
        updates = np.concatenate([self.updates[absent], scene.updates_of(reports)])
        models = np.concatenate([self.models, scene.position[None]])
        return {
            "clients": np.concatenate([self.clients[absent], here]),
            "updates": updates.astype(np.float32),
            "rounds": rounds,
            "models": models[spoken_of].astype(np.float32),
        }

    def change(
        self, scene: Scene, reports: Sequence[ClientReport], updates: Vector
    ) -> tuple[Vector, Vector]:
        """Return how updates changed and the model moved since their clients last took part.

        Args:
            scene: The round.
            reports: k reports, whose clients count.
            updates: (k, d) updates in their place.

        Returns:
            (k, d) u_i(t) − u_i(t') and w_t − w_t'; rows of NaN for a client not seen before.
        """
        places = {client: place for place, client in enumerate(self.clients.tolist())}
        changed, moved = np.full_like(updates, np.nan), np.full_like(updates, np.nan)
        for row, report in enumerate(reports):
            if report.client in places:
                place = places[report.client]
                changed[row] = updates[row] - self.updates[place]
                moved[row] = scene.position - self.models[self.rounds[place]]
        return changed, moved


def honest_answer(scene: Scene, past: Recollection, view: Callable[[Vector], Vector]) -> float:
    """Return the median honest client's answer, the cosine of its change with the movement.

    Args:
        scene: The round.
        past: What is remembered.
        view: What answers are compared by: the vectors themselves, or sketches of them.

    Returns:
        The median, 0 where it is above and where no answer is known.
    """
    changed, moved = past.change(scene, scene.finite_honest, scene.honest_updates)
    answers = curvature_response(view(changed), view(moved))
    known = answers[np.isfinite(answers)]
    return min(0.0, float(np.median(known))) if len(known) else 0.0


def answering(
    scene: Scene, past: Recollection, share: float, sketched: bool
) -> Callable[[Vector], Vector]:
    """Return what makes (f, d) malicious updates answer as honest ones do.

    Where p − u' answers less than is asked, u = p − c·(w_t − w_t') is sent with the least c at
    which cos(u − u', w_t − w_t') is ``share`` of the median honest answer, u' being what the
    attacker sent when it last took part, at w_t'.

    Args:
        scene: The round.
        past: What is remembered.
        share: Of the median honest client's answer.
        sketched: Whether the cosines are those of the rule's sketches, where it makes some.
    """
    view = sketches_of(scene) if sketched else _itself
    asked = max(share * honest_answer(scene, past, view), STRONGEST_ANSWER)

    def answer(updates: Vector) -> Vector:
        changed, moved = past.change(scene, scene.own, updates)
        steps = least_steps(view(changed), view(moved), asked)
        return updates - steps[:, None] * np.nan_to_num(moved)

    return answer


def least_steps(changed: Vector, moved: Vector, answer: float) -> Vector:
    """Return the least c ≥ 0 at which cos(x − c·y, y) ≤ ``answer``, for every row.

    Args:
        changed: (k, n) x; NaN where nothing is known, and c is 0.
        moved: (k, n) y; where it is 0, so is c.
        answer: The cosine, above −1 and at most 0.
    """
    direction, length = unit(moved), norms(moved)[:, 0]
    along = np.einsum("ij,ij->i", changed, direction)
    across = norms(changed - along[:, None] * direction)[:, 0]
    missing = np.maximum(0.0, along - across * answer / math.sqrt(1.0 - answer**2))
    steps: Vector = np.divide(missing, length, out=np.zeros_like(length), where=length > 0.0)
    return steps


def sketches_of(scene: Scene) -> Callable[[Vector], Vector]:
    """Return what makes the rule's sketches of (k, d) vectors; they stay where it makes none."""
    rule = plain_rule(scene.rule)
    if not isinstance(rule, RobustCRF):
        return _itself
    return lambda rows: rule.sketches([[row] for row in rows])


def _itself(rows: Vector) -> Vector:
    return rows
