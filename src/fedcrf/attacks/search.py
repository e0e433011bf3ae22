"""How attackers search: what they vary, and the value of an outcome to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fedcrf.attacks.base import Attack, Scene, Vector
from fedcrf.attacks.simple import SignFlip
from fedcrf.attacks.statistical import ALIE, InnerProductManipulation, Opposed
from fedcrf.rules import AggregationResult, ClientReport


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

FamilyName = Literal["all", "sign-flip", "ipm", "hidden-ipm", "alie", "opposed"]


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
        if not self.patience and not self.least_kept:
            return harm(self.scene, result)
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

    Half of the evaluations are spread over the range, by equal factors, half of them lie between
    the best one's neighbours.
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
