"""Attackers that send their own update times a number: they need to know nothing."""

from __future__ import annotations

from dataclasses import dataclass

from fedcrf.attacks.base import Forgery, ModelAttack, Scene
from fedcrf.checks import check_number


@dataclass(frozen=True)
class SignFlip(ModelAttack):
    """Sends its own update turned around: −c·u_i.

    Attributes:
        factor: c, 0 or more.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_number("factor", self.factor, 0.0)

    def forge(self, scene: Scene) -> Forgery:
        """See `ModelAttack.forge`."""
        return Forgery(scene.reports(-self.factor * scene.own_updates))


@dataclass(frozen=True)
class Scaling(ModelAttack):
    """Sends its own update many times as large, c·u_i (Bagdasaryan et al., AISTATS 2020).

    Attributes:
        factor: c, 0 or more.
    """

    factor: float = 50.0

    def __post_init__(self) -> None:
        check_number("factor", self.factor, 0.0)

    def forge(self, scene: Scene) -> Forgery:
        """See `ModelAttack.forge`."""
        return Forgery(scene.reports(self.factor * scene.own_updates))
