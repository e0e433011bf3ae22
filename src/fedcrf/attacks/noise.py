"""Attackers that send no update at all: noise, or what is no number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcrf.attacks.base import Forgery, ModelAttack, Scene
from fedcrf.checks import check_choice, check_number


@dataclass(frozen=True)
class GaussianNoise(ModelAttack):
    """Sends an update drawn from N(0, σ²) in every coordinate (Blanchard et al., NeurIPS 2017).

    Attributes:
        sd: σ, 0 or more, in units of the model's weights.
    """

    sd: float = 1.0

    def __post_init__(self) -> None:
        check_number("sd", self.sd, 0.0)

    def forge(self, scene: Scene) -> Forgery:
        """Every attacker draws for itself; see `ModelAttack.forge`."""
        return Forgery(scene.reports(scene.draw.normal(0.0, self.sd, scene.own_updates.shape)))


@dataclass(frozen=True)
class NotFinite(ModelAttack):
    """Sends a model of which every number is NaN or infinite.

    Attributes:
        value: ``nan`` or ``inf``.
    """

    value: Literal["nan", "inf"] = "nan"

    def __post_init__(self) -> None:
        check_choice("value", self.value, ("nan", "inf"))

    def forge(self, scene: Scene) -> Forgery:
        """See `ModelAttack.forge`."""
        return Forgery(scene.reports(np.full(scene.own_updates.shape[1], float(self.value))))
