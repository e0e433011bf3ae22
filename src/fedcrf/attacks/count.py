"""Attackers that lie about how much they know."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedcrf.attacks.base import Forgery, ModelAttack, Scene
from fedcrf.checks import check_number

LARGEST_FACTOR = 1e12
"""Beyond it a count would be no integer of 64 bits."""


@dataclass(frozen=True)
class InflatedCount(ModelAttack):
    """Reports many times its number of examples.

    Attributes:
        factor: What its number of examples is multiplied by, 1 to 1e12; rounded to a whole number.
        update_factor: What its own update is multiplied by: 1 for an honest one, −1 for one that
            is turned around.
    """

    factor: float = 10.0
    update_factor: float = 1.0

    def __post_init__(self) -> None:
        check_number("factor", self.factor, 1.0, LARGEST_FACTOR)
        check_number("update_factor", self.update_factor)

    def forge(self, scene: Scene) -> Forgery:
        """See `ModelAttack.forge`."""
        return Forgery(
            [
                replace(report, num_examples=round(self.factor * report.num_examples))
                for report in scene.reports(self.update_factor * scene.own_updates)
            ]
        )
