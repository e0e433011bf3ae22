"""Attackers that know nothing of the others: they change their own update, or send none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fedcrf.attacks.base import Attack, Forgery, Scene, Vector
from fedcrf.checks import check_choice, check_number


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends its own update with the opposite sign: −c·u_i.

    Attributes:
        factor: c, 0 or more.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_number("factor", self.factor, 0.0)

    def updates(self, scene: Scene) -> Vector:
        """See `Attack.updates`."""
        return -self.factor * scene.own_updates


@dataclass(frozen=True)
class Scaling(Attack):
    """Sends its own update scaled up, c·u_i (Bagdasaryan et al., AISTATS 2020).

    Attributes:
        factor: c, 0 or more.
    """

    factor: float = 50.0

    def __post_init__(self) -> None:
        check_number("factor", self.factor, 0.0)

    def updates(self, scene: Scene) -> Vector:
        """See `Attack.updates`."""
        return self.factor * scene.own_updates


@dataclass(frozen=True)
class GaussianNoise(Attack):
    """Sends an update drawn from N(0, σ²) in every coordinate (Blanchard et al., NeurIPS 2017).

    Attributes:
        sd: σ, 0 or more, in units of the model's weights.
    """

    sd: float = 1.0

    def __post_init__(self) -> None:
        check_number("sd", self.sd, 0.0)

    def updates(self, scene: Scene) -> Vector:
        """See `Attack.updates`."""
        return scene.draw.normal(0.0, self.sd, scene.own_updates.shape)


@dataclass(frozen=True)
class NotFinite(Attack):
    """Sends a model in which every number is NaN or infinite.

    Attributes:
        value: ``nan`` or ``inf``.
    """

    value: Literal["nan", "inf"] = "nan"

    def __post_init__(self) -> None:
        check_choice("value", self.value, ("nan", "inf"))

    def updates(self, scene: Scene) -> Vector:
        """See `Attack.updates`."""
        return np.full(scene.own_updates.shape[1], float(self.value))


@dataclass(frozen=True)
class FreeRider(Attack):
    """Sends the global model unchanged: a zero update."""

    def updates(self, scene: Scene) -> Vector:
        """See `Attack.updates`."""
        return np.zeros(scene.own_updates.shape[1])


@dataclass(frozen=True)
class StaleFreeRider(Attack):
    """Sends the global model's last step w_t − w_{t−1} as its update (Lin, Du and Liu, 2019).

    In the first round it is zero. It is the delta-weights attack of "Free-riders in federated
    learning: attacks and defenses".
    """

    remembers: ClassVar[bool] = True

    def forge(self, scene: Scene) -> Forgery:
        """Remember w_t; see `Attack.forge`."""
        before = scene.memory or scene.global_state
        step = -scene.update_of(before)
        return Forgery(scene.reports(step), memory=scene.global_state)


LARGEST_FACTOR = 1e12
"""A larger one could make counts too large for 64 bits."""


@dataclass(frozen=True)
class InflatedCount(Attack):
    """Reports many times its number of examples.

    Attributes:
        factor: Factor of its number of examples, 1 to 1e12; the product is rounded.
        update_factor: Factor of its own update: 1 for an honest one, −1 for the opposite sign.
    """

    factor: float = 10.0
    update_factor: float = 1.0

    def __post_init__(self) -> None:
        check_number("factor", self.factor, 1.0, LARGEST_FACTOR)
        check_number("update_factor", self.update_factor)

    def forge(self, scene: Scene) -> Forgery:
        """See `Attack.forge`."""
        return Forgery(
            [
                replace(report, num_examples=round(self.factor * report.num_examples))
                for report in scene.reports(self.update_factor * scene.own_updates)
            ]
        )
