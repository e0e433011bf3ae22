"""Attackers that know the rule and its memory, and search for the most harmful update.

What they vary and the value of an outcome to them come first, then the attacks: some earn trust
before they strike. At the end stands how they fake the curvature response of honest updates, which
`fedcrf.crf.RobustCRF` uses: local training descends a loss, so an honest update changes against the
step that the model made meanwhile.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.attacks.base import Attack, Forgery, Scene, Vector, norms, unit
from fedcrf.attacks.simple import SignFlip
from fedcrf.attacks.statistical import ALIE, InnerProductManipulation, Opposed
from fedcrf.checks import (
    MOST_TIMES,
    Count,
    Fraction,
    NotNegative,
    Positive,
    Times,
    Truth,
    number,
    one_of,
    whole,
)
from fedcrf.crf import RobustCRF
from fedcrf.crf.window import curvature_response
from fedcrf.rules import AggregationResult, ClientReport, Memory, plain_rule


@dataclass(frozen=True)
class Family:
    """Attacks of one kind that differ in their strength, and its range, above 0, to search."""

    at: Callable[[float], Attack]
    least: float
    greatest: float


FAMILIES: Mapping[str, Family] = {
    "sign-flip": Family(SignFlip, 0.05, 20.0),
    "ipm": Family(InnerProductManipulation, 0.05, 20.0),
    "hidden-ipm": Family(lambda epsilon: InnerProductManipulation(epsilon, 1.0), 0.05, 20.0),
    "alie": Family(ALIE, 0.05, 20.0),
    "opposed": Family(Opposed, 0.02, 1.0),
}

FamilyName = Annotated[str, one_of(["all", *FAMILIES])]


@dataclass(frozen=True)
class Aim:
    """What attackers want of a round: harm, and trust kept for later rounds.

    The value of a forgery is harm + patience · min(1, kept). The harm is −⟨s, g⟩/‖g‖², where s is
    the rule's step and g the mean of the honest updates: −1 if the step is the honest one, above 0
    if it goes the other way. Kept is the weight that the rule would give the attackers, as a share
    of the weight for honest reports. It is 1 if the rule gives no weights, or weight 0 to honest
    reports too.

    Attributes:
        scene: The round.
        patience: The worth of all their trust to them, as harm in honest steps; with 0 they would
            lose it for a little more harm in this round.
        least_kept: A forgery that keeps less than this share of the weight has value −∞.
    """

    scene: Scene
    patience: float = 0.0
    least_kept: float = 0.0

    def value(self, forged: Sequence[ClientReport]) -> float:
        """Return the value of reports; −∞ if they keep too little weight."""
        result = asked(self.scene, forged)
        share = share_of(attackers_weight(self.scene, result), self._honest_weight)
        kept = 1.0 if math.isnan(share) else share
        if kept < self.least_kept:
            return -math.inf
        return harm(self.scene, result) + self.patience * min(1.0, kept)

    @cached_property
    def _honest_weight(self) -> float:
        return attackers_weight(self.scene, asked(self.scene, self.scene.own))


def asked(scene: Scene, forged: Sequence[ClientReport]) -> AggregationResult:
    """Return what the rule would decide on a round with these reports."""
    reports = scene.round_with(forged)
    return scene.rule.aggregate(scene.rule_memory, scene.global_state, reports)


def attackers_weight(scene: Scene, result: AggregationResult) -> float:
    """Return the sum of the weights that a rule gives the attackers' reports."""
    own = {report.client for report in scene.own}
    theirs = [report.client in own for report in scene.round_with(scene.own)]
    return float(result.weights[theirs].sum())


def share_of(weight: float, whole: float) -> float:
    """Return weight over whole; NaN if the whole is 0."""
    return weight / whole if whole else math.nan


def harm(scene: Scene, result: AggregationResult) -> float:
    """Return −⟨s, g⟩/‖g‖² of the step s that a rule decided on; see `Aim`."""
    mean = scene.honest_mean
    return -float(scene.update_of(result.state) @ mean) / max(float(mean @ mean), 1e-300)


def distance(scene: Scene, result: AggregationResult) -> float:
    """Return ‖s − g‖ of the step s that a rule decided on and the mean g of the honest updates."""
    return float(np.linalg.norm(scene.update_of(result.state) - scene.honest_mean))


@dataclass(frozen=True, eq=False)
class Trial:
    """A trial of the search: its value to the attackers, and (f, d) updates in the reports."""

    value: float
    updates: Vector
    reports: Sequence[ClientReport]


def best(trials: Iterable[Trial]) -> Trial:
    """Return the trial of the greatest value, the first of them."""
    return max(trials, key=lambda trial: trial.value)


def line_search(
    tried: Callable[[float], Trial], least: float, greatest: float, evaluations: int
) -> Trial:
    """Return the best trial of a number between ``least``, above 0, and ``greatest``.

    Half of the evaluations are spread over the range, by equal factors; half of them lie between
    the neighbours of the best one.
    """
    coarse = np.geomspace(least, greatest, evaluations - evaluations // 2)
    trials = [tried(float(number)) for number in coarse]
    place = int(np.argmax([trial.value for trial in trials]))
    low, high = coarse[max(place - 1, 0)], coarse[min(place + 1, len(coarse) - 1)]
    between = np.geomspace(low, high, evaluations // 2 + 2)[1:-1]
    return best([*trials, *(tried(float(number)) for number in between)])


def expansion(
    tried: Callable[[float], Trial], start: float, step: float, ratio: float, evaluations: int
) -> Trial:
    """Return the best trial of a number that grows from ``start``, as in ByzFL's optimal attacks.

    The number goes up by the step. While that finds more, the step is doubled; from the first time
    that it does not, every step is ``ratio`` times the last, from 0 to 1.
    """
    number, found, expanding = start, tried(start), True
    for _ in range(evaluations - 1):
        trial = tried(number + step)
        better = trial.value > found.value
        if better:
            number, found = number + step, trial
        expanding = expanding and better
        step *= 2.0 if expanding else ratio
    return found


@dataclass(frozen=True)
class Optimal(Attack, ABC):
    """Searches the factor τ of an attack that takes the rule's step farthest from the honest mean.

    τ is searched by `fedcrf.attacks.adaptive.expansion`, on the rule with all that it remembers.
    Source: ByzFL's attacks of that name (LPD-EPFL/byzfl), with their settings; Allouah et al.,
    "Fixing by mixing", AISTATS 2023.

    Attributes:
        evaluations: How many factors are tried.
        start: The first factor.
        step: The first step, above 0.
        ratio: How much a step shrinks, from 0.5 to 1.
    """

    evaluations: Times = 20
    start: NotNegative = 0.0
    step: Positive = 10.0
    ratio: Annotated[float, number(0.5, 1.0)] = 0.8

    @abstractmethod
    def _line(self, scene: Scene) -> tuple[Vector, Vector]:
        """Return the update for τ = 0 and what each unit of τ adds to it, (d,) each."""

    def forge(self, scene: Scene) -> Forgery:
        """Return the reports of the best τ; honest ones where no attacker takes part."""
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
    it (`fedcrf.attacks.adaptive.Aim`). Honest reports are tried too.

    Attributes:
        family: The kind of attack, or ``all`` of them.
        evaluations: Strengths tried in each family, by `fedcrf.attacks.adaptive.line_search`.
        stretch: The best update is then tried at other lengths, up to so many times longer and
            shorter; with 1 it keeps its own.
        least_kept: Share of the weight for honest reports that the attackers want to keep.
        patience: The worth of all their trust to them, as harm in honest steps.
        faked_response: Share of the median honest client's curvature response that they fake, by a
            step against the model's that is added to each trial; 0 for none. See
            `fedcrf.attacks.adaptive.responding`.
        sketched: Whether they fake it in the rule's sketches, if the rule makes some.
    """

    renamed: ClassVar[Mapping[str, str]] = {"answer": "faked_response"}

    family: FamilyName = "all"
    evaluations: Annotated[int, whole(3, MOST_TIMES)] = 12
    stretch: Annotated[float, number(1.0)] = 1.0
    least_kept: Fraction = 0.0
    patience: NotNegative = 0.0
    faked_response: NotNegative = 0.0
    sketched: Truth = False

    fewest_honest: ClassVar[int] = 1
    remembers: ClassVar[bool] = True

    def forge(self, scene: Scene) -> Forgery:
        """Return what is decided on; what clients sent is remembered to fake responses."""
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
        respond: Callable[[Vector], Vector] = _itself
        if self.faked_response:
            respond = responding(scene, self.faked_response, self.sketched)

        def tried(updates: Vector) -> Trial:
            reports = scene.reports(respond(updates))
            return Trial(aim.value(reports), updates, reports)

        trials = [tried(scene.own_updates)]
        families = FAMILIES.values() if self.family == "all" else [FAMILIES[self.family]]
        for family in families:
            if family.at(family.least).obstacle(scene.num_clients, scene.num_attackers) is not None:
                continue

            def at(strength: float, of: Family = family) -> Trial:
                return tried(scene.updates_of(of.at(strength).forge(scene).reports))

            trials.append(line_search(at, family.least, family.greatest, self.evaluations))
        found = best(trials)
        if self.stretch > 1.0:
            shortest, longest = 1.0 / self.stretch, self.stretch

            def stretched(factor: float) -> Trial:
                return tried(factor * found.updates)

            found = best([found, line_search(stretched, shortest, longest, self.evaluations)])
        return found.reports


@dataclass(frozen=True)
class Stealthy(Adaptive):
    """Does the most harm that is possible within the rule's tolerances.

    It is the adaptive attack of the family `Opposed` whose share and length keep ``least_kept`` of
    the weight for honest reports. Against `fedcrf.crf.RobustCRF` the result is just within the
    tolerances of opposition and of norms. For a rule without weights it is the plain search.
    """

    family: FamilyName = "opposed"
    stretch: Annotated[float, number(1.0)] = 4.0
    least_kept: Fraction = 0.9


@dataclass(frozen=True)
class FalseResponse(Adaptive):
    """Searches as the adaptive attack does, and fakes the curvature response of honest clients.

    See `fedcrf.attacks.adaptive.responding`. A rule that does not use the response is harmed less,
    since the step against the model's gains nothing.
    """

    faked_response: NotNegative = 1.0


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
    tolerance: Fraction = 0.01
    pulsing: Truth = True
    fallen: Fraction = 0.5

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


@dataclass(frozen=True, eq=False)
class Recollection:
    """What each client sent when it last took part, and the model it started from.

    Attributes:
        clients: (k,) identities.
        updates: (k, d) float32; what they sent.
        rounds: (k,) the row of ``models`` that they started from.
        models: (T, d) float32; the global models that some client last started from.
    """

    clients: NDArray[np.int64]
    updates: NDArray[np.float32]
    rounds: NDArray[np.int64]
    models: NDArray[np.float32]

    @classmethod
    def of(cls, scene: Scene) -> Recollection:
        """Return what the attackers recollect in a round; nothing in the first."""
        memory = scene.memory
        if "updates" not in memory:
            nothing = np.zeros((0, len(scene.position)), dtype=np.float32)
            nobody = np.zeros(0, dtype=np.int64)
            return cls(nobody, nothing, nobody, nothing)
        return cls(*(memory[name] for name in ("clients", "updates", "rounds", "models")))

    def after(self, scene: Scene, sent: Sequence[ClientReport]) -> Memory:
        """Return the memory after a round in which the attackers sent these reports."""
        reports = [*scene.finite_honest, *sent]
        here = np.array([report.client for report in reports], dtype=np.int64)
        absent = ~np.isin(self.clients, here)
        rounds = np.concatenate([self.rounds[absent], np.full(len(here), len(self.models))])
        needed, rounds = np.unique(rounds, return_inverse=True)
        updates = np.concatenate([self.updates[absent], scene.updates_of(reports)])
        models = np.concatenate([self.models, scene.position[None]])
        return {
            "clients": np.concatenate([self.clients[absent], here]),
            "updates": updates.astype(np.float32),
            "rounds": rounds,
            "models": models[needed].astype(np.float32),
        }

    def change(
        self, scene: Scene, reports: Sequence[ClientReport], updates: Vector
    ) -> tuple[Vector, Vector]:
        """Return how updates changed and the model moved since their clients last took part.

        They are (k, d) u_i(t) − u_i(t') and w_t − w_t', of the (k, d) updates that the clients of k
        reports would send; rows of NaN for a client not seen before.
        """
        places = {client: place for place, client in enumerate(self.clients.tolist())}
        changed, moved = np.full_like(updates, np.nan), np.full_like(updates, np.nan)
        for row, report in enumerate(reports):
            if report.client in places:
                place = places[report.client]
                changed[row] = updates[row] - self.updates[place]
                moved[row] = scene.position - self.models[self.rounds[place]]
        return changed, moved


def honest_response(scene: Scene, past: Recollection, view: Callable[[Vector], Vector]) -> float:
    """Return the median honest client's response to the model's step, 0 at most or if unknown.

    ``view`` returns the vectors themselves, or sketches of them.
    """
    changed, moved = past.change(scene, scene.finite_honest, scene.honest_updates)
    responses = curvature_response(view(changed), view(moved))
    known = responses[np.isfinite(responses)]
    return min(0.0, float(np.median(known))) if len(known) else 0.0


def responding(scene: Scene, share: float, sketched: bool) -> Callable[[Vector], Vector]:
    """Return a function that makes (f, d) malicious updates respond as honest ones do.

    Let p be an attacker's update. When it last took part, it sent u' and the model was w_t'. It now
    sends u = p − c·(w_t − w_t') with the least c ≥ 0 at which the response cos(u − u', w_t − w_t')
    is ``share`` of the median honest client's, or stronger. The cosines are those of the rule's
    sketches if ``sketched``, and if the rule makes some.
    """
    past, view = Recollection.of(scene), sketches_of(scene) if sketched else _itself
    # With a cosine of −1 the update would be the response alone.
    wanted = max(share * honest_response(scene, past, view), -0.99)

    def respond(updates: Vector) -> Vector:
        changed, moved = past.change(scene, scene.own, updates)
        steps = least_steps(view(changed), view(moved), wanted)
        return updates - steps[:, None] * np.nan_to_num(moved)

    return respond


def least_steps(changed: Vector, moved: Vector, response: float) -> Vector:
    """Return the least c ≥ 0 with cos(x − c·y, y) ≤ ``response``, for every row of (k, n) x and y.

    It is 0 where x is NaN (unknown) or y is 0. The response is above −1 and at most 0.
    """
    direction, length = unit(moved), norms(moved)[:, 0]
    along = np.einsum("ij,ij->i", changed, direction)
    across = norms(changed - along[:, None] * direction)[:, 0]
    missing = np.maximum(0.0, along - across * response / math.sqrt(1.0 - response**2))
    steps: Vector = np.divide(missing, length, out=np.zeros_like(length), where=length > 0.0)
    return steps


def sketches_of(scene: Scene) -> Callable[[Vector], Vector]:
    """Return the rule's sketching of (k, d) vectors; the identity if it makes no sketches."""
    rule = plain_rule(scene.rule)
    if not isinstance(rule, RobustCRF):
        return _itself
    return lambda rows: rule.sketches([[row] for row in rows])


def _itself(rows: Vector) -> Vector:
    return rows
