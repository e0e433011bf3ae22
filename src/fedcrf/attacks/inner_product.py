"""Attackers that turn the aggregate against the honest clients' mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcrf.attacks.base import Forgery, OmniscientAttack, Scene, norms, unit, with_noise
from fedcrf.checks import check_number


@dataclass(frozen=True)
class InnerProductManipulation(OmniscientAttack):
    """Sends −ε times the mean of the honest updates (Xie, Koyejo and Gupta, UAI 2019).

    Attributes:
        epsilon: ε, 0 or more: small hides in the crowd, large overturns a mean.
        noise: Norm of each attacker's own noise as a fraction of the update's; 0 for none, so that
            all attackers send the same.
    """

    epsilon: float = 0.5
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon, 0.0)
        check_number("noise", self.noise, 0.0)

    def forge(self, scene: Scene) -> Forgery:
        """See `ModelAttack.forge`."""
        update = -self.epsilon * scene.honest_mean
        return Forgery(
            scene.reports(with_noise(update, scene.num_attackers, self.noise, scene.draw))
        )


@dataclass(frozen=True)
class Opposed(OmniscientAttack):
    """Lies in an honest client's direction, but for a share that opposes the honest mean.

    The update is ‖v‖·(−c·g + √(1 − c²)·v⊥), where v is the update of an honest client, g the
    direction of the honest mean and v⊥ that of v less what it has along g: its cosine with the
    mean is −c, and all else of it looks like that client's. Each attacker takes another client,
    in order, as far as they reach.

    Attributes:
        cosine: c, from 0 to 1.
    """

    cosine: float = 0.2

    def __post_init__(self) -> None:
        check_number("cosine", self.cosine, 0.0, 1.0)

    def forge(self, scene: Scene) -> Forgery:
        """See `ModelAttack.forge`."""
        chosen = np.arange(scene.num_attackers) % len(scene.honest_updates)
        victims = scene.honest_updates[chosen]
        mean = unit(scene.honest_mean)
        across = unit(victims - (victims @ mean)[:, None] * mean)
        directions = math.sqrt(1.0 - self.cosine**2) * across - self.cosine * mean
        return Forgery(scene.reports(norms(victims) * directions))

    def obstacle(self, num_clients: int, num_attackers: int) -> str | None:
        """Return the obstacle that one honest client alone is its own mean."""
        if num_clients - num_attackers > 1:
            return None
        return (
            "it needs two honest clients or more in a round, to lie between them: give fewer "
            "attackers, or more clients a round"
        )
