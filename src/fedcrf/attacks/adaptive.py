"""Attackers that know the rule and its memory, and search for the most harmful update.

Some of them earn trust before they strike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.attacks.base import Attack, Forgery, Scene, Vector, unit
from fedcrf.attacks.response import Recollection, responding
from fedcrf.attacks.search import (
    FAMILIES,
    Aim,
    Family,
    FamilyName,
    Trial,
    asked,
    attackers_weight,
    best,
    distance,
    expansion,
    line_search,
    share_of,
)
from fedcrf.checks import Count, Positive, Truth, number, whole
from fedcrf.rules import ClientReport, Memory


@dataclass(frozen=True)
class Optimal(Attack, ABC):
    """Searches the factor τ of an attack that takes the rule's step farthest from the honest mean.

    τ begins at ``start`` and goes up as in `fedcrf.attacks.search.expansion`. It is tried on the
    rule itself, with all that it remembers. Source: ByzFL's attacks of that name (LPD-EPFL/byzfl),
    with their settings; Allouah et al., "Fixing by mixing", AISTATS 2023.

    Attributes:
        evaluations: How many factors are tried.
        start: The first factor.
        step: The first step, above 0.
        ratio: How much a step shrinks, from 0.5 to 1.
    """

    evaluations: Count = 20
    start: Annotated[float, number(0.0)] = 0.0
    step: Positive = 10.0
    ratio: Annotated[float, number(0.5, 1.0)] = 0.8

    @abstractmethod
    def _line(self, scene: Scene) -> tuple[Vector, Vector]:
        """Return the update for τ = 0 and what each unit of τ adds to it, (d,) each."""

    def forge(self, scene: Scene) -> Forgery:
        """See `Attack.forge`."""
        if not scene.num_attackers:
            return Forgery(scene.own)
        origin, direction = self._line(scene)

        def tried(factor: float) -> Trial:
            updates = origin + factor * direction
            reports = scene.reports(updates)
            return Trial(distance(scene, asked(scene, reports)), updates, reports)

        return Forgery(
            expansion(tried, self.start, self.step, self.ratio, self.evaluations).reports
        )


@dataclass(frozen=True)
class OptimalInnerProductManipulation(Optimal):
    """Sends −τ times the honest mean, with the τ that harms most (Allouah et al., AISTATS 2023)."""

    fewest_honest: ClassVar[int] = 1

    def _line(self, scene: Scene) -> tuple[Vector, Vector]:
        return np.zeros_like(scene.honest_mean), -scene.honest_mean


@dataclass(frozen=True)
class OptimalALIE(Optimal):
    """Sends μ + τ·σ with the τ that harms most (Allouah et al., AISTATS 2023).

    σ is the sample's standard deviation of the honest updates, coordinate by coordinate.
    """

    fewest_honest: ClassVar[int] = 2

    def _line(self, scene: Scene) -> tuple[Vector, Vector]:
        return scene.honest_mean, scene.honest_updates.std(axis=0, ddof=1)


@dataclass(frozen=True)
class Adaptive(Attack):
    """Tries attacks of rising strength on the rule itself and sends the most valuable.

    The value of a forgery is the harm of the rule's step; for patient attackers kept trust adds to
    it (`fedcrf.attacks.search.Aim`). Honest reports are tried too.

    Attributes:
        family: The kind of attack, or ``all`` of them.
        evaluations: Strengths tried in each family: half of them spread over its range, by equal
            factors, half of them between the best one's neighbours.
        stretch: The best update is then tried at other lengths, up to so many times longer and
            shorter; with 1 it keeps its own.
        least_kept: Share of the weight for honest reports that the attackers want to keep.
        patience: The worth of all their trust to them, as harm in honest steps.
        faked_response: Share of the median honest client's curvature response that they fake, by a
            step against the model's that is added to each trial; 0 for none. See
            `fedcrf.attacks.response.responding`.
        sketched: Whether they fake it in the rule's sketches, if the rule makes some.
    """

    renamed: ClassVar[Mapping[str, str]] = {"answer": "faked_response"}

    family: FamilyName = "all"
    evaluations: Annotated[int, whole(2)] = 12
    stretch: Annotated[float, number(1.0)] = 1.0
    least_kept: Annotated[float, number(0.0, 1.0)] = 0.0
    patience: Annotated[float, number(0.0)] = 0.0
    faked_response: Annotated[float, number(0.0)] = 0.0
    sketched: Truth = False

    fewest_honest: ClassVar[int] = 1
    remembers: ClassVar[bool] = True

    def forge(self, scene: Scene) -> Forgery:
        """See `Attack.forge`."""
        sent, memory = self._decided(scene)
        if self.faked_response:
            memory = {**memory, **Recollection.of(scene).after(scene, sent)}
        return Forgery(sent, memory)

    def _decided(self, scene: Scene) -> tuple[Sequence[ClientReport], Memory]:
        """Return what is sent, and the memory without the `Recollection`."""
        return self._struck(scene), {}

    def _struck(self, scene: Scene) -> Sequence[ClientReport]:
        """Return the most valuable trial's reports; honest ones where nobody attacks."""
        if not scene.active or not scene.num_attackers:
            return scene.own
        aim = Aim(scene, self.patience, self.least_kept)
        respond = None
        if self.faked_response:
            respond = responding(scene, self.faked_response, self.sketched)

        def tried(updates: Vector) -> Trial:
            reports = scene.reports(respond(updates) if respond else updates)
            return Trial(aim.value(reports), updates, reports)

        def searched(family: Family) -> Trial:
            return line_search(
                lambda strength: tried(
                    scene.updates_of(family.at(strength).forge(scene).reports),
                ),
                family.least,
                family.greatest,
                self.evaluations,
            )

        honest = tried(scene.own_updates)
        found = best([honest, *map(searched, self._families(scene))])
        if self.stretch > 1.0:
            stretched = line_search(
                lambda factor: tried(factor * found.updates),
                1.0 / self.stretch,
                self.stretch,
                self.evaluations,
            )
            found = best([found, stretched])
        return found.reports

    def _families(self, scene: Scene) -> list[Family]:
        """Return the families to search, without those that the round does not allow."""
        chosen = FAMILIES.values() if self.family == "all" else [FAMILIES[self.family]]
        return [
            family
            for family in chosen
            if family.at(family.least).obstacle(scene.num_clients, scene.num_attackers) is None
        ]


@dataclass(frozen=True)
class Stealthy(Adaptive):
    """Does the most harm that is possible within the rule's tolerances.

    It is the adaptive attack that opposes the honest mean as far as it can without losing weight.
    Each attacker sends an honest client's update with a part that opposes the mean (`Opposed`).
    That share, and then the length, are searched among those that keep ``least_kept`` of the weight
    for honest reports. Against `fedcrf.crf.RobustCRF` the result is just within the tolerances of
    opposition and of norms. For a rule without weights it is the plain search.
    """

    family: FamilyName = "opposed"
    stretch: Annotated[float, number(1.0)] = 4.0
    least_kept: Annotated[float, number(0.0, 1.0)] = 0.9


@dataclass(frozen=True)
class FalseResponse(Adaptive):
    """Searches as the adaptive attack does, and fakes the curvature response of honest clients.

    Each trial is p − c·(w_t − w_t') with the least c ≥ 0 at which
    cos(p − c·(w_t − w_t') − u', w_t − w_t') is at most the median honest client's cosine of
    u_j(t) − u_j(t') with the same. u' is what the attacker sent last. A rule that does not use the
    response is harmed less, since the step against the model's gains nothing.
    """

    faked_response: Annotated[float, number(0.0)] = 1.0


@dataclass(frozen=True)
class Sleeper(Adaptive):
    """Copies honest clients until it is trusted, then strikes with the adaptive attack.

    Until then each attacker sends an honest client's update, beginning with those nearest in
    direction to the honest mean.

    Attributes:
        until: The first round of the strike.
    """

    until: Count = 10

    def _decided(self, scene: Scene) -> tuple[Sequence[ClientReport], Memory]:
        if scene.round >= self.until or not scene.active:
            return super()._decided(scene)
        return copies(scene, most_agreeable(scene)), {}


@dataclass(frozen=True)
class Opportunist(Adaptive):
    """Copies honest clients until its trust is highest, strikes, and copies again when trust falls.

    The attackers' trust is the weight that the rule would give their copies, as a share of the
    weight that it would give them without its memory. It counts as highest once it has grown by at
    most ``tolerance`` since the round before. Each attacker copies the same client as long as that
    takes part, so that its copies change from round to round as an honest update does. A rule
    without weights has no trust to gain: it is struck at once.

    Attributes:
        until: The first round in which it may strike.
        tolerance: Growth of the trust, as a share of it, that counts as none.
        pulsing: Whether it copies honest clients again; else it strikes in all later rounds.
        fallen: The trust below which it copies them again.
    """

    until: Count = 1
    tolerance: Annotated[float, number(0.0, 1.0)] = 0.01
    pulsing: Truth = True
    fallen: Annotated[float, number(0.0, 1.0)] = 0.5

    def _decided(self, scene: Scene) -> tuple[Sequence[ClientReport], Memory]:
        if not scene.active or not scene.num_attackers:
            own = ("order", "trust", "striking")
            return scene.own, {name: scene.memory[name] for name in own if name in scene.memory}
        order = scene.memory.get("order", most_agreeable(scene))
        honest = copies(scene, order)
        trust = trust_of(scene, honest)
        striking = self._strikes(scene, trust)
        sent = self._struck(scene) if striking else honest
        memory = {"order": order, "trust": np.array(trust), "striking": np.array(striking)}
        return sent, memory

    def _strikes(self, scene: Scene, trust: float) -> bool:
        """Return whether it strikes in a round, by the trust of its copies."""
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

    They copy the first of ``order`` that take part, each another one; honest clients that it does
    not name come last. If the attackers are more, they begin again.
    """
    places = {report.client: row for row, report in enumerate(scene.finite_honest)}
    named = [places.pop(client) for client in order.tolist() if client in places]
    rows = np.array([*named, *places.values()])
    return scene.reports(scene.honest_updates[rows[np.arange(scene.num_attackers) % len(rows)]])


def trust_of(scene: Scene, forged: Sequence[ClientReport]) -> float:
    """Return the attackers' weight as a share of that without the memory; NaN without weights."""
    scenes = (scene, replace(scene, rule_memory={}))
    return share_of(*(attackers_weight(each, asked(each, forged)) for each in scenes))
