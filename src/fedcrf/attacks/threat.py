"""Who attacks, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedcrf.attacks.base import Attack
from fedcrf.checks import Count, Settings, Truth, is_number
from fedcrf.errors import FedcrfError


@dataclass(frozen=True)
class Schedule(Settings):
    """How many clients attack, and in which rounds; in the others they are honest.

    Attributes:
        attackers: How many: a whole number, or a fraction of the clients, which is rounded.
        start_round: The first round of the attack.
        every: k, for an attack in every k-th round from then on.
        additional: Whether the attackers come in addition to the clients among whom the data are
            dealt out. These are then all honest, and each attacker holds a random sample of all
            their examples, as large as the mean client's part.
    """

    attackers: int | float = 0.3
    start_round: Count = 1
    every: Count = 1
    additional: Truth | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.attackers) or not (self.is_count or 0 < self.attackers < 1):
            raise FedcrfError(
                f"attackers {self.attackers}: give a whole number of 1 or more, or a fraction "
                "between 0 and 1"
            )
        if self.additional and not self.is_count:
            raise FedcrfError(
                f"attackers {self.attackers}: give additional attackers as a whole number"
            )

    def active(self, number: int) -> bool:
        """Return whether there is an attack in a round."""
        since = number - self.start_round
        return since >= 0 and since % self.every == 0

    def federation_size(self, holders: int) -> int:
        """Return how many clients there are if the data are dealt out among so many."""
        return holders + int(self.attackers) if self.additional else holders

    def count(self, num_clients: int) -> int:
        """Return how many of so many clients attack.

        Raises:
            FedcrfError: None of them would attack, or all.
        """
        exact = self.attackers if self.is_count else self.attackers * num_clients
        count = _rounded(exact)
        if not 1 <= count < num_clients:
            raise FedcrfError(
                f"attackers {self.attackers}: of {num_clients} clients one at least must attack "
                f"and one be honest; give from 1 to {num_clients - 1} (--attackers)"
                if num_clients > 1
                else f"attackers {self.attackers}: there is one client that can train and none "
                "beside it to attack; give more clients (--clients)"
            )
        return count

    def count_among(self, drawn: int, num_clients: int) -> int:
        """Return how many of ``drawn`` out of so many clients attack on average; one at least.

        Raises:
            FedcrfError: None of the clients would attack, or all.
        """
        return max(1, _rounded(self.count(num_clients) * drawn / num_clients))

    @property
    def is_count(self) -> bool:
        """Whether ``attackers`` is a number of clients, not a fraction of them."""
        if isinstance(self.attackers, float) and self.attackers == 1.0:
            return False  # ambiguous: one client, or all of them
        return float(self.attackers).is_integer() and self.attackers >= 1


def _rounded(number: float) -> int:
    """Return the nearest whole number, a half rounded up."""
    return math.floor(number + 0.5)


@dataclass(frozen=True)
class Threat(Settings):
    """An attack and its schedule.

    Attributes:
        attack: What attackers do, with its settings.
        schedule: How many they are, and in which rounds they attack.
    """

    attack: Attack
    schedule: Schedule = Schedule()

    def check(self, num_clients: int, clients_per_round: int | None = None) -> None:
        """Raise a `FedcrfError` if the attack is not possible with so many clients.

        Args:
            num_clients: Clients of the federation.
            clients_per_round: How many of them are drawn for a round; None for all. The round is
                assumed to have its share of attackers (`Schedule.count_among`).
        """
        drawn = min(clients_per_round or num_clients, num_clients)
        attackers = self.schedule.count_among(drawn, num_clients)
        obstacle = self.attack.obstacle(drawn, attackers)
        if obstacle is not None:
            raise FedcrfError(f"the attack is not possible: {obstacle}")
