"""Attackers that earn trust before they strike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcrf.attacks.adaptive import Adaptive
from fedcrf.attacks.answer import Recollection
from fedcrf.attacks.base import Scene, unit
from fedcrf.attacks.search import asked, attacking
from fedcrf.checks import check_number, check_truth, check_whole
from fedcrf.rules import ClientReport, Memory


@dataclass(frozen=True)
class Flatterer(Adaptive):
    """Copies honest clients until it is trusted, then strikes with the adaptive attack.

    Until then each attacker sends the update of an honest client, those nearest in direction to
    the honest mean first.

    Attributes:
        until: The first round of the strike.
        family: As `Adaptive.family`, and so are the others.
    """

    until: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("until", self.until, least=1)

    def _decided(
        self, scene: Scene, past: Recollection | None
    ) -> tuple[Sequence[ClientReport], Memory]:
        if scene.round >= self.until or not scene.active:
            return super()._decided(scene, past)
        return copies(scene, most_agreeable(scene)), {}


@dataclass(frozen=True)
class Opportunist(Adaptive):
    """Copies honest clients until its trust is highest, strikes, and flatters again once it fell.

    Trust is the weight that the rule, with what it remembers, would give the attackers' copies, as
    a share of what it would give them if it remembered nothing. It is highest where it has grown
    by no more than ``tolerance`` since the round before. Each attacker goes on copying the same
    client, as long as that takes part, so that the copies change from round to round as an honest
    update does. A rule that gives no weights has no trust to win: it is struck at once.

    Attributes:
        until: The first round in which it may strike.
        tolerance: Growth of the trust, as a share of it, that is none.
        pulsing: Whether it flatters again; else it strikes on for good.
        fallen: The trust below which it flatters.
        family: As `Adaptive.family`, and so are the others.
    """

    until: int = 1
    tolerance: float = 0.01
    pulsing: bool = True
    fallen: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("until", self.until, least=1)
        check_number("tolerance", self.tolerance, 0.0, 1.0)
        check_number("fallen", self.fallen, 0.0, 1.0)
        check_truth("pulsing", self.pulsing)

    def _decided(
        self, scene: Scene, past: Recollection | None
    ) -> tuple[Sequence[ClientReport], Memory]:
        if not scene.active or not scene.num_attackers:
            return scene.own, _kept(scene.memory)
        order = scene.memory.get("order", most_agreeable(scene))
        flattery = copies(scene, order)
        trust = trust_of(scene, flattery)
        striking = self._strikes(scene, trust)
        sent = self._struck(scene, past) if striking else flattery
        memory = {"order": order, "trust": np.array(trust), "striking": np.array(striking)}
        return sent, memory

    def _strikes(self, scene: Scene, trust: float) -> bool:
        """Tell whether it strikes in a round, of the trust that it could have in it."""
        if math.isnan(trust):
            return True
        if bool(scene.memory.get("striking", False)):
            return not self.pulsing or trust >= self.fallen
        before = float(scene.memory.get("trust", math.nan))
        is_highest = self.fallen <= trust <= (1.0 + self.tolerance) * before
        return scene.round >= self.until and is_highest


def most_agreeable(scene: Scene) -> NDArray[np.int64]:
    """Return the honest clients, those nearest in direction to the honest mean first."""
    cosines = unit(scene.honest_updates) @ unit(scene.honest_mean)
    clients = np.array([report.client for report in scene.finite_honest], dtype=np.int64)
    return clients[np.argsort(-cosines, kind="stable")]


def copies(scene: Scene, order: NDArray[np.int64]) -> list[ClientReport]:
    """Return the attackers' copies of honest clients' updates.

    Args:
        scene: The round.
        order: Honest clients. Each attacker copies another, the first that take part first, and
            from the first on again where attackers are more; those that are not named come last.
    """
    places = {report.client: row for row, report in enumerate(scene.finite_honest)}
    named = [places.pop(client) for client in order.tolist() if client in places]
    rows = np.array([*named, *places.values()])
    return scene.reports(scene.honest_updates[rows[np.arange(scene.num_attackers) % len(rows)]])


def trust_of(scene: Scene, forged: Sequence[ClientReport]) -> float:
    """Return the weight of the attackers' reports, as a share of that without the rule's memory.

    NaN where the rule gives no weights, or none to these reports if it remembers nothing.
    """
    now, anew = (
        float(asked(each, forged).weights[attacking(scene)].sum())
        for each in (scene, replace(scene, rule_memory={}))
    )
    return now / anew if anew > 0.0 else math.nan


def _kept(memory: Memory) -> Memory:
    return {name: memory[name] for name in ("order", "trust", "striking") if name in memory}
