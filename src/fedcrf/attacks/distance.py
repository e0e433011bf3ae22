"""Attackers that go as far as honest clients are from each other, and no further."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedcrf.attacks.base import Forgery, OmniscientAttack, Scene, Vector, unit
from fedcrf.checks import check_choice

Deviation = Literal["unit", "sign", "std"]
"""Which way to leave the mean g: −g/‖g‖, −sign(g), or −σ, coordinate by coordinate."""


@dataclass(frozen=True)
class MinMax(OmniscientAttack):
    """Sends g + γp, no further off than honest clients are (Shejwalkar and Houmansadr, NDSS 2021).

    γ is the largest with max_i ‖g + γp − u_i‖ ≤ max_{i,j} ‖u_i − u_j‖: no honest client is further
    from it than from another. It is the paper's aggregation-agnostic attack that knows the honest
    updates. The paper halves steps until γ is near; here it is the root of a quadratic for each
    client.

    Attributes:
        deviation: The direction p: ``unit``, ``sign`` or ``std``.
    """

    deviation: Deviation = "unit"

    def __post_init__(self) -> None:
        check_choice("deviation", self.deviation, get_args(Deviation))

    def forge(self, scene: Scene) -> Forgery:
        """See `ModelAttack.forge`."""
        updates, direction = (
            scene.honest_updates,
            deviation_of(scene.honest_updates, self.deviation),
        )
        offsets = scene.honest_mean - updates
        gammas = [
            largest_step(float(direction @ direction), offset @ direction, offset @ offset, bound)
            for bound in [squared_distances(updates).max()]
            for offset in offsets
        ]
        return Forgery(scene.reports(scene.honest_mean + min(gammas) * direction))


@dataclass(frozen=True)
class MinSum(OmniscientAttack):
    """Sends g + γp as min-max, by sums of squares (Shejwalkar and Houmansadr, NDSS 2021).

    γ is the largest with Σ_i ‖g + γp − u_i‖² ≤ max_i Σ_j ‖u_i − u_j‖²: its squared distances sum to
    no more than an honest client's. It is the paper's aggregation-agnostic attack that knows the
    honest updates. γ is the root of a quadratic.

    Attributes:
        deviation: The direction p: ``unit``, ``sign`` or ``std``.
    """

    deviation: Deviation = "unit"

    def __post_init__(self) -> None:
        check_choice("deviation", self.deviation, get_args(Deviation))

    def forge(self, scene: Scene) -> Forgery:
        """See `ModelAttack.forge`."""
        updates, direction = (
            scene.honest_updates,
            deviation_of(scene.honest_updates, self.deviation),
        )
        offsets = scene.honest_mean - updates
        gamma = largest_step(
            len(updates) * float(direction @ direction),
            offsets.sum(axis=0) @ direction,
            (offsets * offsets).sum(),
            squared_distances(updates).sum(axis=1).max(),
        )
        return Forgery(scene.reports(scene.honest_mean + gamma * direction))


def deviation_of(updates: Vector, kind: Deviation) -> Vector:
    """Return the (d,) direction p away from the mean of (k, d) updates."""
    mean: Vector = updates.mean(axis=0)
    if kind == "unit":
        return -unit(mean)
    if kind == "sign":
        return -np.sign(mean)
    deviation: Vector = -updates.std(axis=0)
    return deviation


def squared_distances(updates: Vector) -> Vector:
    """Return (k, k) ‖u_i − u_j‖², each taken directly."""
    return np.array([((updates - update) ** 2).sum(axis=1) for update in updates])


def largest_step(square: float, inner: float, rest: float, bound: float) -> float:
    """Return the largest γ ≥ 0 with ``square``·γ² + 2·``inner``·γ + ``rest`` ≤ ``bound``.

    0 where none is, for rounding alone lets the mean be further than the bound; and where
    ``square`` is 0, for then there is no direction to go.
    """
    if square <= 0.0:
        return 0.0
    discriminant = inner * inner + square * (bound - rest)
    return max(0.0, (math.sqrt(max(0.0, discriminant)) - inner) / square)
