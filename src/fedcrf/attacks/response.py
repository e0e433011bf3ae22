"""How attackers fake the curvature response of honest updates.

Local training descends a loss, so an honest update changes against the step that the model made
meanwhile. Attackers fake this for rules that use it, as `fedcrf.crf.RobustCRF` does.
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

STRONGEST_RESPONSE = -0.99
"""With a cosine of −1 the update would be the response alone."""


@dataclass(frozen=True, eq=False)
class Recollection:
    """What each client sent when it last took part, and the model it started from.

    Attributes:
        clients: (k,) identities.
        updates: (k, d) float32; what they sent.
        rounds: (k,) the row of ``models`` that they started from.
        models: (T, d) float32; the global models that some client last started from.
    """

    clients: NDArray[np.int64]
    updates: NDArray[np.float32]
    rounds: NDArray[np.int64]
    models: NDArray[np.float32]

    @classmethod
    def of(cls, scene: Scene) -> Recollection:
        """Return what the attackers recollect in a round; nothing in the first."""
        memory = scene.memory
        if "updates" not in memory:
            nothing = np.zeros((0, len(scene.position)), dtype=np.float32)
            nobody = np.zeros(0, dtype=np.int64)
            return cls(nobody, nothing, nobody, nothing)
        return cls(*(memory[name] for name in ("clients", "updates", "rounds", "models")))

    def after(self, scene: Scene, sent: Sequence[ClientReport]) -> Memory:
        """Return the memory after a round in which the attackers sent these reports."""
        reports = [*scene.finite_honest, *sent]
        here = np.array([report.client for report in reports], dtype=np.int64)
        absent = ~np.isin(self.clients, here)
        rounds = np.concatenate([self.rounds[absent], np.full(len(here), len(self.models))])
        needed, rounds = np.unique(rounds, return_inverse=True)
        updates = np.concatenate([self.updates[absent], scene.updates_of(reports)])
        models = np.concatenate([self.models, scene.position[None]])
        return {
            "clients": np.concatenate([self.clients[absent], here]),
            "updates": updates.astype(np.float32),
            "rounds": rounds,
            "models": models[needed].astype(np.float32),
        }

    def change(
        self, scene: Scene, reports: Sequence[ClientReport], updates: Vector
    ) -> tuple[Vector, Vector]:
        """Return how updates changed and the model moved since their clients last took part.

        They are (k, d) u_i(t) − u_i(t') and w_t − w_t', of the (k, d) updates that the clients of k
        reports would send; rows of NaN for a client not seen before.
        """
        places = {client: place for place, client in enumerate(self.clients.tolist())}
        changed, moved = np.full_like(updates, np.nan), np.full_like(updates, np.nan)
        for row, report in enumerate(reports):
            if report.client in places:
                place = places[report.client]
                changed[row] = updates[row] - self.updates[place]
                moved[row] = scene.position - self.models[self.rounds[place]]
        return changed, moved


def honest_response(scene: Scene, past: Recollection, view: Callable[[Vector], Vector]) -> float:
    """Return the median honest client's response to the model's step, 0 at most or if unknown.

    ``view`` returns the vectors themselves, or sketches of them.
    """
    changed, moved = past.change(scene, scene.finite_honest, scene.honest_updates)
    responses = curvature_response(view(changed), view(moved))
    known = responses[np.isfinite(responses)]
    return min(0.0, float(np.median(known))) if len(known) else 0.0


def responding(scene: Scene, share: float, sketched: bool) -> Callable[[Vector], Vector]:
    """Return a function that makes (f, d) malicious updates respond as honest ones do.

    Let p be an attacker's update. When it last took part, it sent u' and the model was w_t'. It now
    sends u = p − c·(w_t − w_t') with the least c ≥ 0 at which the response cos(u − u', w_t − w_t')
    is ``share`` of the median honest client's, or stronger. The cosines are those of the rule's
    sketches if ``sketched``, and if the rule makes some.
    """
    past, view = Recollection.of(scene), sketches_of(scene) if sketched else _itself
    wanted = max(share * honest_response(scene, past, view), STRONGEST_RESPONSE)

    def respond(updates: Vector) -> Vector:
        changed, moved = past.change(scene, scene.own, updates)
        steps = least_steps(view(changed), view(moved), wanted)
        return updates - steps[:, None] * np.nan_to_num(moved)

    return respond


def least_steps(changed: Vector, moved: Vector, response: float) -> Vector:
    """Return the least c ≥ 0 with cos(x − c·y, y) ≤ ``response``, for every row of (k, n) x and y.

    It is 0 where x is NaN (unknown) or y is 0. The response is above −1 and at most 0.
    """
    direction, length = unit(moved), norms(moved)[:, 0]
    along = np.einsum("ij,ij->i", changed, direction)
    across = norms(changed - along[:, None] * direction)[:, 0]
    missing = np.maximum(0.0, along - across * response / math.sqrt(1.0 - response**2))
    steps: Vector = np.divide(missing, length, out=np.zeros_like(length), where=length > 0.0)
    return steps


def sketches_of(scene: Scene) -> Callable[[Vector], Vector]:
    """Return the rule's sketching of (k, d) vectors; the identity if it makes no sketches."""
    rule = plain_rule(scene.rule)
    if not isinstance(rule, RobustCRF):
        return _itself
    return lambda rows: rule.sketches([[row] for row in rows])


def _itself(rows: Vector) -> Vector:
    return rows
