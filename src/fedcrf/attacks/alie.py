"""A little is enough: a small common shift that hides in the spread of the honest updates."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from fedcrf.attacks.base import Forgery, ModelAttack, Scene
from fedcrf.checks import check_choice, check_number


@dataclass(frozen=True)
class ALIE(ModelAttack):
    """Sends μ − z·σ in every coordinate (Baruch, Baruch and Goldberg, NeurIPS 2019).

    σ is the population standard deviation, as in the authors' code.

    Attributes:
        z: How many standard deviations; where left out, the paper's `largest_z` of m and f.
        estimate_from: Whose updates μ and σ are taken from: the ``honest`` clients', as the
            field's benchmarks do, or the ``attackers``' own, as the paper's attackers, who are
            not omniscient, have to.
    """

    z: float | None = None
    estimate_from: Literal["honest", "attackers"] = "honest"

    def __post_init__(self) -> None:
        check_choice("estimate_from", self.estimate_from, ("honest", "attackers"))
        if self.z is not None:
            check_number("z", self.z)

    def forge(self, scene: Scene) -> Forgery:
        """See `ModelAttack.forge`."""
        known = scene.honest_updates if self.estimate_from == "honest" else scene.own_updates
        z = largest_z(scene.num_clients, scene.num_attackers) if self.z is None else self.z
        return Forgery(scene.reports(known.mean(axis=0) - z * known.std(axis=0)))

    def obstacle(self, num_clients: int, num_attackers: int) -> str | None:
        """See `ModelAttack.obstacle`."""
        num_honest = num_clients - num_attackers
        if num_honest < 1:
            return (
                "it hides among honest clients and a round has none: give fewer attackers, or more "
                "clients a round"
            )
        if self.estimate_from == "attackers" and num_attackers < 2:
            return "one attacker cannot tell a spread: give two attackers, or estimate_from honest"
        if self.z is None and not 0 < num_honest - _supporters(num_clients, num_attackers) < (
            num_honest
        ):
            return (
                f"{num_attackers} attackers of {num_clients} clients leave no quantile to take z "
                "from: give z, or another number of attackers"
            )
        return None


def largest_z(num_clients: int, num_attackers: int) -> float:
    """Return z_max: Φ(z) = (m − f − s)/(m − f), where s = ⌊m/2 + 1⌋ − f honest clients are needed.

    s honest clients lie beyond μ − zσ, on average, and make a majority with the attackers. z is
    negative where the attackers are few.

    Args:
        num_clients: m.
        num_attackers: f; s must be from 1 to m − f − 1.
    """
    num_honest = num_clients - num_attackers
    needed = _supporters(num_clients, num_attackers)
    return NormalDist().inv_cdf((num_honest - needed) / num_honest)


def _supporters(num_clients: int, num_attackers: int) -> int:
    return num_clients // 2 + 1 - num_attackers
