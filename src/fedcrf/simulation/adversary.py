"""The attackers of one run: who they are, what they train on and what they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedcrf.attacks import Backdoor, DataAttack, Forgery, Scene, Threat
from fedcrf.errors import failing
from fedcrf.rules import ClientReport, Memory, Rule, State
from fedcrf.rules.base import check_kept
from fedcrf.simulation.federation import Examples, Federation, PooledExamples, Stream, generator


@dataclass(frozen=True)
class Adversary:
    """The attackers of one seed."""

    threat: Threat
    clients: tuple[int, ...]  # the attackers, sorted; the same for all methods under one seed
    poisoned: Mapping[int, Examples]  # by client, what attackers train on in an attack on the data
    seed: int

    @classmethod
    def of(
        cls, threat: Threat, federation: Federation, seed: int, named: Sequence[int] | None = None
    ) -> Adversary:
        """Draw the attackers among the clients that can train, unless they are named, and poison.

        Additional attackers are not drawn: they are the last clients, see `Federation.joined_by`.
        """
        eligible = federation.eligible
        count = threat.schedule.count(len(eligible))
        if threat.schedule.additional:
            named = eligible[-count:]
        elif named is None:
            draw = generator(seed, Stream.ATTACKERS)
            named = draw.choice(eligible, count, replace=False).tolist()
        clients = tuple(sorted(named))
        poisoned = {}
        if isinstance(threat.attack, DataAttack):
            for number, client in enumerate(clients):
                clean, draw = federation.clients[client], generator(seed, Stream.POISON, client)
                with failing(f"attack {type(threat.attack).__name__} cannot poison ({{}})"):
                    poisoned[client] = _poisoned(
                        threat.attack.of_attacker(number), clean, federation.num_classes, draw
                    )
        pieces = Examples.in_one_piece([*poisoned.values()])
        return cls(threat, clients, dict(zip(poisoned, pieces, strict=True)), seed)

    def poisons(self, client: int, number: int) -> bool:
        """Return whether a client trains on poisoned examples in a round."""
        return client in self.poisoned and self.threat.schedule.active(number)

    def triggered(self, test: PooledExamples) -> PooledExamples | None:
        """Return the test examples on which a backdoor's success is measured, with its trigger.

        Their label is the target, so that the accuracy on them is the attack's success rate. None
        if the attack is no backdoor, or if none of the examples counts.
        """
        attack = self.threat.attack
        if not isinstance(attack, Backdoor):
            return None
        held = test.images.cpu().numpy(), test.labels.cpu().numpy()
        with failing(f"attack {type(attack).__name__} cannot poison ({{}})"):
            images, chosen = attack.backdoored(*held)
        if not chosen.any():
            return None
        labels = torch.full((int(chosen.sum()),), attack.target, device=test.labels.device)
        owners = test.owners[torch.from_numpy(chosen).to(labels.device)]
        inputs = torch.tensor(images[chosen], device=labels.device, dtype=test.images.dtype)
        return PooledExamples(inputs, labels, owners)

    def act(
        self,
        number: int,
        global_state: State,
        reports: Sequence[ClientReport],
        rule: Rule,
        rule_memory: Memory,
        memory: Memory,
    ) -> tuple[list[ClientReport], list[int], Memory]:
        """Attack a round after all have trained; return its reports, who attacked, and the memory.

        If the attack is impossible in the round, because no client is honest or no honest update is
        finite, the attackers report honestly.
        """
        scene = Scene(
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
        attack, sent = self.threat.attack, scene.own
        attackers: list[int] = []
        possible = attack.obstacle(scene.num_clients, scene.num_attackers) is None
        if possible and (scene.active or attack.remembers):
            with failing(f"attack {type(attack).__name__} failed in round {number} ({{}})"):
                forgery = attack.forge(scene)
                _check_forgery(forgery, scene)
            memory = forgery.memory
            if scene.active:
                sent = forgery.reports
                attackers = [report.client for report in scene.own]
        return scene.round_with(sent), attackers, memory


def _poisoned(
    attack: DataAttack, clean: Examples, num_classes: int, draw: np.random.Generator
) -> Examples:
    """Return what an attacker trains on, in the form of its own examples.

    Raises:
        ValueError: It is of another form.
    """
    given = attack.poison(clean.images.cpu().numpy(), clean.labels.cpu().numpy(), num_classes, draw)
    # Copies: an unchanged array is a view of memory that torch moves when it is shared.
    images, labels = (
        torch.tensor(each, device=own.device, dtype=own.dtype)
        for each, own in zip(given, (clean.images, clean.labels), strict=True)
    )
    if images.shape[1:] != clean.images.shape[1:] or labels.shape != (len(images),):
        raise ValueError(
            f"it returned images of shape {tuple(images.shape)} and labels of shape "
            f"{tuple(labels.shape)}: give images of (n, C, H, W) and a label for each"
        )
    if not len(labels) or labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"it returned labels that are not 0 to {num_classes - 1}, or none")
    return Examples(images, labels)


def _check_forgery(forgery: object, scene: Scene) -> None:
    """Raise an error unless an attack returned a forgery, of its own clients, and keeps arrays."""
    if not isinstance(forgery, Forgery):
        raise TypeError(f"it returned a {type(forgery).__name__}: return Forgery(reports)")
    given, own = ([each.client for each in reports] for reports in (forgery.reports, scene.own))
    if given != own:
        raise ValueError(f"it returned reports of clients {given}: give those of {own}")
    check_kept(forgery.memory, "c")
