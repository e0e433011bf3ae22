"""Free-riders: clients that want the model and do no work for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcrf.attacks.base import Forgery, ModelAttack, Scene


@dataclass(frozen=True)
class FreeRider(ModelAttack):
    """Sends the global model back as it came: a zero update."""

    def forge(self, scene: Scene) -> Forgery:
        """See `ModelAttack.forge`."""
        return Forgery(scene.reports(np.zeros(scene.own_updates.shape[1])))


@dataclass(frozen=True)
class StaleFreeRider(ModelAttack):
    """Sends the global model's last step w_t − w_{t−1} as its update (Lin, Du and Liu, 2019).

    In the first round it is zero. The delta-weights attack of "Free-riders in federated learning:
    attacks and defenses".
    """

    remembers: ClassVar[bool] = True

    def forge(self, scene: Scene) -> Forgery:
        """Remember w_t; see `ModelAttack.forge`."""
        before = scene.memory or scene.global_state
        step = -scene.update_of(before)
        return Forgery(scene.reports(step), memory=scene.global_state)
