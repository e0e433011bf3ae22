"""Attackers that know nothing of honest clients' updates: their own, and the global models."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedcrf.attacks.base import Attack, Forgery, Scene, Vector, by_client, kept_by_client, unit
from fedcrf.checks import Finite, Fraction, NotNegative, number, whole
from fedcrf.rules import Memory


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends its own update with the opposite sign: −c·u_i.

    Attributes:
        factor: c, 0 or more.
    """

    factor: NotNegative = 1.0

    def updates(self, scene: Scene) -> Vector:
        """Return −c·u_i."""
        return -self.factor * scene.own_updates


@dataclass(frozen=True)
class Scaling(Attack):
    """Sends its own update scaled up, c·u_i (Bagdasaryan et al., AISTATS 2020).

    Attributes:
        factor: c, 0 or more.
    """

    factor: NotNegative = 50.0

    def updates(self, scene: Scene) -> Vector:
        """Return c·u_i."""
        return self.factor * scene.own_updates


@dataclass(frozen=True)
class GaussianNoise(Attack):
    """Sends an update drawn from N(0, σ²) in every coordinate (Blanchard et al., NeurIPS 2017).

    Attributes:
        sd: σ, 0 or more, in units of the model's weights.
    """

    sd: NotNegative = 1.0

    def updates(self, scene: Scene) -> Vector:
        """Return an own draw for each attacker."""
        return scene.draw.normal(0.0, self.sd, scene.own_updates.shape)


@dataclass(frozen=True)
class NotFinite(Attack):
    """Sends a model in which every number is NaN or infinite.

    Attributes:
        value: ``nan`` or ``inf``.
    """

    value: Literal["nan", "inf"] = "nan"

    def updates(self, scene: Scene) -> Vector:
        """Return an update that holds nothing but the value."""
        return np.full(scene.own_updates.shape[1], float(self.value))


@dataclass(frozen=True)
class FreeRider(Attack):
    """Sends the global model unchanged: a zero update."""

    def updates(self, scene: Scene) -> Vector:
        """Return an update of zeros."""
        return np.zeros(scene.own_updates.shape[1])


@dataclass(frozen=True)
class StaleFreeRider(Attack):
    """Sends the global model's last step w_t − w_{t−1} as its update (Lin, Du and Liu, 2019).

    In the first round it is zero. It is the delta-weights attack of "Free-riders in federated
    learning: attacks and defenses".
    """

    remembers: ClassVar[bool] = True

    def forge(self, scene: Scene) -> Forgery:
        """Remember w_t; see `Attack.forge`."""
        before = scene.memory or scene.global_state
        step = -scene.update_of(before)
        return Forgery(scene.reports(step), memory=scene.global_state)


@dataclass(frozen=True)
class PoisonedFL(Attack):
    """Pushes the model along one random sign vector (Xie, Fang and Gong, CVPR 2025).

    All attackers send λ·v ⊙ s. The signs s are drawn once. Let g = w_t − w_{t−1} be the model's
    last step and k what the attackers sent for it. v is |g − k·‖g‖/‖k‖|, coordinate by coordinate,
    at length 1, and λ = c·‖g‖. In the first round they send 0. The feedback comes in every
    ``period``-th round: if the model's way since the round of the last feedback agrees with s in
    fewer coordinates than `agreements_by_chance`, c is multiplied by ``shrinkage``, unless it would
    fall below ``least``. A coordinate that did not move has the sign of the model.

    Source: the paper and its code, xyq7/PoisonedFL, with its settings. Its period is 50, of 6,000
    rounds; the one here lets feedback act in runs of some tens of rounds.

    Attributes:
        factor: c at first, 0 or more.
        period: Rounds from one feedback to the next.
        shrinkage: What feedback multiplies c by, from 0 to 1.
        least: What c does not fall below.
    """

    factor: NotNegative = 8.0
    period: Annotated[int, whole(2)] = 10
    shrinkage: Fraction = 0.7
    least: NotNegative = 0.5

    remembers: ClassVar[bool] = True

    def forge(self, scene: Scene) -> Forgery:
        """Draw the signs, or follow the model; see `Attack.forge`."""
        here, memory = scene.position, dict(scene.memory)
        if not memory:
            nothing, start = np.zeros(len(here), dtype=np.float32), _stored(here)
            signs = scene.draw.choice(np.array([-1, 1], dtype=np.int8), len(here))
            begun = {"factor": np.array(self.factor), "signs": signs, "sent": nothing}
            begun |= {"before": start, "since": start}
            return Forgery(scene.reports(np.zeros(len(here))), begun)
        step = here - memory["before"]
        memory["before"] = _stored(here)
        since_feedback = (scene.round - 1) % self.period
        if since_feedback == 1:
            memory["since"] = memory["before"]
        elif since_feedback == 0 and not _follows(here, memory):
            smaller = self.shrinkage * memory["factor"]
            memory["factor"] = smaller if smaller >= self.least else memory["factor"]
        length = float(np.linalg.norm(step))
        others = unit(np.abs(step - length * unit(memory["sent"].astype(np.float64))))
        sent = float(memory["factor"]) * length * others * memory["signs"]
        if not scene.active:
            memory["sent"] = np.zeros_like(memory["sent"])
        elif scene.num_attackers:
            memory["sent"] = _stored(sent)
        return Forgery(scene.reports(sent), memory)


def _follows(here: Vector, memory: Memory) -> bool:
    """Return whether the model moved along the attackers' signs in more places than by chance."""
    moved = here - memory["since"]
    signs = np.sign(np.where(moved == 0.0, here, moved))
    return int((signs == memory["signs"]).sum()) >= agreements_by_chance(len(here))


def agreements_by_chance(size: int) -> int:
    """Return how many of so many random signs agree with others in 99 of 100 cases.

    It is the quantile of the binomial distribution, by its normal approximation.
    """
    return round(size / 2 + NormalDist().inv_cdf(0.99) * math.sqrt(size) / 2)


@dataclass(frozen=True)
class StatisticalMimicry(Attack):
    """Blends its update with noise of its own past's spread, and drifts (Younesi et al., 2025).

    Each attacker sends (1 − α)·u + α·(μ + ε) + δ·v. u is its honest update; μ and σ are mean and
    standard deviation of its honest updates so far, coordinate by coordinate, this one included; ε
    is drawn from N(0, σ²); v is a direction of its own at length 1, drawn once. δ grows by
    ``growth`` with every round in which it attacks, up to ``longest``.

    Source: arXiv 2511.14715 (FLARE) and its code, Anonymous0-0paper/FLARE, with its settings. Three
    departures: the code blends models, the paper's abstract gradients and this class updates; v has
    length 1 from the first round on; and δ stays where it is once it has grown to 2, while the code
    squares it from there on. That code also trains on without what it computed.

    Attributes:
        blend: α, from 0 to 1.
        drift: δ at first, in units of the model's weights.
        growth: Factor of δ from round to round, 1 or more.
        longest: What δ does not grow beyond.
    """

    blend: Fraction = 0.5
    drift: NotNegative = 0.1
    growth: Annotated[float, number(1.0)] = 1.2
    longest: NotNegative = 2.0

    remembers: ClassVar[bool] = True

    def forge(self, scene: Scene) -> Forgery:
        """Learn of this round's updates, then blend; see `Attack.forge`."""
        names = ("rounds", "drifts", "means", "squares", "directions")
        kept = {name: by_client(scene.memory, name) for name in names}
        sent = scene.own_updates.copy()
        for own, row, report in zip(scene.own_updates, sent, scene.own, strict=True):
            client = report.client
            if not np.isfinite(own).all():  # it diverged, and has nothing to learn from
                continue
            if client in kept["rounds"]:
                rounds, drift, mean, squares, direction = (kept[name][client] for name in names)
            else:
                rounds, drift, mean, squares = 0, self.drift, 0.0, 0.0
                direction = unit(scene.draw.standard_normal(len(own)))
            rounds = rounds + 1
            offset = own - mean
            mean = mean + offset / rounds
            squares = squares + offset * (own - mean)
            noise = np.sqrt(squares / rounds) * scene.draw.standard_normal(len(own))
            row[:] = (1.0 - self.blend) * own + self.blend * (mean + noise) + drift * direction
            if scene.active:
                drift = min(self.growth * drift, max(self.longest, self.drift))
            found = (rounds, drift, *map(_stored, (mean, squares, direction)))
            for name, value in zip(names, found, strict=True):
                kept[name][client] = value
        return Forgery(scene.reports(sent), kept_by_client(**kept))


def _stored(row: Vector) -> NDArray[np.float32]:
    return row.astype(np.float32)


@dataclass(frozen=True)
class InflatedCount(Attack):
    """Reports many times its number of examples.

    Attributes:
        factor: Factor of its number of examples, 1 to 1e12; the product is rounded.
        update_factor: Factor of its own update: 1 for an honest one, −1 for the opposite sign.
    """

    factor: Annotated[float, number(1.0, 1e12)] = 10.0  # so that counts fit into 64 bits
    update_factor: Finite = 1.0

    def forge(self, scene: Scene) -> Forgery:
        """Return the attackers' own reports, with counts and updates multiplied."""
        return Forgery(
            [
                replace(report, num_examples=round(self.factor * report.num_examples))
                for report in scene.reports(self.update_factor * scene.own_updates)
            ]
        )
