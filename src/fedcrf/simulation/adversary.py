"""The attackers of one run: who they are, what they train on and what they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from fedcrf.attacks import DataAttack, Scene, Threat
from fedcrf.errors import FedcrfError
from fedcrf.rules import ClientReport, Memory, Rule, State
from fedcrf.simulation.federation import Examples, Federation
from fedcrf.simulation.randomness import Stream, generator


@runtime_checkable
class Backdoored(Protocol):
    """What an attack defines if its success is to be measured.

    Attributes:
        target: The class for which the model is to take an image with the trigger.
    """

    target: int

    def backdoored(
        self, images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return all test images with the trigger, (n, C, H, W), and (n,) which of them count.

        Args:
            images: (n, C, H, W); they are not changed.
            labels: (n,) their classes.
        """
        ...


@dataclass(frozen=True)
class Adversary:
    """The attackers of one seed.

    Attributes:
        threat: The attack and its schedule.
        clients: The attackers, sorted; the same for all methods under one seed.
        poisoned: By client, what attackers train on in an attack on the data.
        seed: The run's seed.
    """

    threat: Threat
    clients: tuple[int, ...]
    poisoned: Mapping[int, Examples]
    seed: int

    @classmethod
    def of(
        cls,
        threat: Threat,
        federation: Federation,
        seed: int,
        named: Sequence[int] | None = None,
    ) -> Adversary:
        """Draw the attackers among the clients that can train, and poison their examples.

        Args:
            threat: The attack and its schedule.
            federation: The clients' data.
            seed: The run's seed, for the draws.
            named: The attackers, if they are not drawn.

        Raises:
            FedcrfError: So many cannot be drawn, or a backdoor's target is no class.
        """
        check_target(threat, federation.num_classes)
        eligible = federation.eligible
        count = threat.schedule.count(len(eligible))
        drawn = generator(seed, Stream.ATTACKERS).choice(eligible, count, replace=False)
        clients = tuple(sorted(drawn.tolist() if named is None else named))
        poisoned = {}
        if isinstance(threat.attack, DataAttack):
            poisoned = {
                client: _poisoned(threat.attack, federation, client, seed) for client in clients
            }
        return cls(threat, clients, poisoned, seed)

    def poisons(self, client: int, number: int) -> bool:
        """Return whether a client trains on poisoned examples in a round."""
        return client in self.poisoned and self.threat.schedule.active(number)

    def triggered(self, test: Examples) -> Examples | None:
        """Return the test examples on which a backdoor is measured, with its trigger.

        Their label is the target, so that the accuracy on them is the attack's success rate.

        Returns:
            None if the attack is no backdoor.
        """
        attack = self.threat.attack
        if not isinstance(attack, Backdoored):
            return None
        device = test.labels.device
        images, counted = attack.backdoored(test.images.cpu().numpy(), test.labels.cpu().numpy())
        labels = torch.full((int(counted.sum()),), attack.target, device=device)
        return Examples(torch.tensor(images[counted], device=device), labels)

    def scene(
        self,
        number: int,
        global_state: State,
        reports: Sequence[ClientReport],
        rule: Rule,
        rule_memory: Memory,
        memory: Memory,
    ) -> Scene:
        """Return all that the attackers can know of a round after everybody has trained."""
        return Scene(
            global_state=global_state,
            honest=[report for report in reports if report.client not in self.clients],
            own=[report for report in reports if report.client in self.clients],
            round=number,
            rule=rule,
            rule_memory=rule_memory,
            memory=memory,
            draw=generator(self.seed, Stream.ATTACK, number),
            active=self.threat.schedule.active(number),
        )

    def act(self, scene: Scene) -> tuple[list[ClientReport], list[int], Memory]:
        """Carry out the attack on a round.

        If the attack is impossible in the round, because no client is honest or no honest update
        is finite, the attackers report honestly.

        Returns:
            All reports in the order of clients, the clients that attacked, and what the attackers
            keep for the next round.
        """
        attack, memory, sent = self.threat.attack, scene.memory, scene.own
        possible = attack.obstacle(scene.num_clients, scene.num_attackers) is None
        active = scene.active and possible
        if active or (attack.remembers and possible):
            forgery = attack.forge(scene)
            memory = forgery.memory
            sent = forgery.reports if active else sent
        attackers = [report.client for report in scene.own] if active else []
        return scene.round_with(sent), attackers, memory


def check_target(threat: Threat | None, num_classes: int) -> None:
    """Raise a `FedcrfError` if a backdoor's target is none of so many classes."""
    attack = None if threat is None else threat.attack
    if isinstance(attack, Backdoored) and not 0 <= attack.target < num_classes:
        raise FedcrfError(
            f"target {attack.target}: the data set has {num_classes} classes; give one from 0 to "
            f"{num_classes - 1}"
        )


def _poisoned(attack: DataAttack, federation: Federation, client: int, seed: int) -> Examples:
    clean = federation.clients[client]
    images, labels = attack.poison(
        clean.images.cpu().numpy(),
        clean.labels.cpu().numpy(),
        federation.num_classes,
        generator(seed, Stream.POISON, client),
    )
    device = clean.labels.device
    # Copies: an unchanged array is a view of memory that torch moves when it is shared.
    return Examples(torch.tensor(images, device=device), torch.tensor(labels, device=device))
