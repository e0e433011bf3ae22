"""Attackers that compute what they send from the honest clients' updates."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedcrf.attacks.base import (
    Attack,
    Forgery,
    Scene,
    Vector,
    by_client,
    kept_by_client,
    norms,
    unit,
    with_noise,
)
from fedcrf.checks import Count, Finite, Fraction, NotNegative, Part
from fedcrf.rules import Memory
from fedcrf.statistics import is_floating


@dataclass(frozen=True)
class ALIE(Attack):
    """Sends μ − z·σ in every coordinate (Baruch, Baruch and Goldberg, NeurIPS 2019).

    σ is the population standard deviation, as in the authors' code.

    Attributes:
        z: How many standard deviations; by default the paper's `largest_z` of m and f.
        estimate_from: The updates that μ and σ are those of: the ``honest`` clients', as in the
            field's benchmarks, or the ``attackers``' own, as in the paper, whose attackers do not
            know the others.
    """

    z: Finite | None = None
    estimate_from: Literal["honest", "attackers"] = "honest"

    def updates(self, scene: Scene) -> Vector:
        """Return μ − z·σ, the same for all attackers."""
        known = scene.honest_updates
        if self.estimate_from == "attackers":
            finite = np.isfinite(scene.own_updates).all(axis=1)
            known = scene.own_updates[finite | ~finite.any()]
        z = largest_z(scene.num_clients, scene.num_attackers) if self.z is None else self.z
        return np.asarray(known.mean(axis=0) - z * known.std(axis=0))

    def obstacle(self, num_clients: int, num_attackers: int) -> str | None:
        """Return what is missing: honest clients, a spread, or a quantile to take z from."""
        num_honest = num_clients - num_attackers
        if num_honest < 1:
            return (
                "it hides among honest clients and a round has none: give fewer attackers, or more "
                "clients a round"
            )
        if self.estimate_from == "attackers" and num_attackers < 2:
            return "one attacker has no spread: give two attackers, or estimate_from honest"
        if self.z is None and not 0 < _supporters(num_clients, num_attackers) < num_honest:
            return (
                f"{num_attackers} attackers of {num_clients} clients leave no quantile to take z "
                "from: give z, or another number of attackers"
            )
        return None


def largest_z(num_clients: int, num_attackers: int) -> float:
    """Return z_max: Φ(z) = (m − f − s)/(m − f) with s = ⌊m/2 + 1⌋ − f, from 1 to m − f − 1.

    On average s honest clients lie beyond μ − zσ, and with the attackers they are a majority. With
    few attackers z is negative.
    """
    num_honest = num_clients - num_attackers
    needed = _supporters(num_clients, num_attackers)
    return NormalDist().inv_cdf((num_honest - needed) / num_honest)


def _supporters(num_clients: int, num_attackers: int) -> int:
    return num_clients // 2 + 1 - num_attackers


@dataclass(frozen=True)
class HybridSparse(Attack):
    """Sends μ − c·σ where the network is sensitive, else μ − z·σ (Ozfatura et al., 2024).

    σ is the sample's standard deviation. The sensitive coordinates are biases and batch norm, and
    the ``share`` of all other weights w whose |w·g| is the largest, where g is the honest mean.
    They are fixed in the first round, for good. Source: arXiv 2404.06230 and its code,
    CRYPTO-KU/FL-Byzantine-Library, with its settings.

    The authors prune the network by the same measure in 100 steps (FORCE), with gradients of honest
    clients' data after each. Attackers here see updates and no gradients, so that they take one
    step (SNIP), and g in the place of the gradient.

    Attributes:
        scale: c, how many standard deviations the sensitive coordinates are moved by.
        share: Share of the weights that is sensitive, from 0 to 1.
        z: How many standard deviations the others are moved by; by default `largest_z` of m and f.
    """

    scale: Finite = 1.5
    share: Fraction = 0.005
    z: Finite | None = None

    fewest_honest: ClassVar[int] = 2
    remembers: ClassVar[bool] = True

    def forge(self, scene: Scene) -> Forgery:
        """Find the sensitive coordinates, where they are not known; see `Attack.forge`."""
        memory = scene.memory or {"sensitive": sensitive(scene, self.share)}
        if not scene.active or not scene.num_attackers:
            return Forgery(scene.own, memory)
        z = largest_z(scene.num_clients, scene.num_attackers) if self.z is None else self.z
        spread = scene.honest_updates.std(axis=0, ddof=1)
        strengths = np.where(memory["sensitive"], self.scale, z)
        return Forgery(scene.reports(scene.honest_mean - strengths * spread), memory)

    def obstacle(self, num_clients: int, num_attackers: int) -> str | None:
        """Return what is missing: what `ALIE` needs, or a second honest client."""
        plain = ALIE(self.z).obstacle(num_clients, num_attackers)
        return super().obstacle(num_clients, num_attackers) or plain


def sensitive(scene: Scene, share: float) -> NDArray[np.bool_]:
    """Return (d,) which coordinates of a model are sensitive; see `HybridSparse`."""
    tensors = [array for array in scene.global_state.values() if is_floating(array.dtype)]
    weights = np.concatenate([np.full(array.size, array.ndim > 1) for array in tensors])
    places = np.flatnonzero(weights)
    saliency = np.abs(scene.position * scene.honest_mean)[places]
    kept = np.argsort(-saliency, kind="stable")[: round(share * len(places))]
    weights[places[kept]] = False
    return ~weights


@dataclass(frozen=True)
class InnerProductManipulation(Attack):
    """Sends −ε times the mean of the honest updates (Xie, Koyejo and Gupta, UAI 2019).

    Attributes:
        epsilon: ε, 0 or more: a small one is inconspicuous, a large one overturns a mean.
        noise: Norm of each attacker's own noise as a fraction of the update's; with 0 all attackers
            send the same.
    """

    epsilon: NotNegative = 0.5
    noise: NotNegative = 0.0

    fewest_honest: ClassVar[int] = 1

    def updates(self, scene: Scene) -> Vector:
        """Return −ε times the honest mean, with each attacker's own noise."""
        update = -self.epsilon * scene.honest_mean
        return with_noise(update, scene.num_attackers, self.noise, scene.draw)


@dataclass(frozen=True)
class Opposed(Attack):
    """Sends an honest client's update with a part that opposes the honest mean.

    The update is ‖v‖·(−c·g + √(1 − c²)·v⊥). v is the update of an honest client, g the direction of
    the honest mean, and v⊥ the direction of v without its part along g. So the cosine with the mean
    is −c. Attackers copy different clients, as long as there are enough.

    Attributes:
        cosine: c, from 0 to 1.
    """

    cosine: Fraction = 0.2

    fewest_honest: ClassVar[int] = 2

    def updates(self, scene: Scene) -> Vector:
        """Return the copies of honest updates, turned against the honest mean."""
        chosen = np.arange(scene.num_attackers) % len(scene.honest_updates)
        victims = scene.honest_updates[chosen]
        mean = unit(scene.honest_mean)
        across = unit(victims - (victims @ mean)[:, None] * mean)
        directions = math.sqrt(1.0 - self.cosine**2) * across - self.cosine * mean
        return norms(victims) * directions


@dataclass(frozen=True)
class _AsFarAs(Attack):
    """Sends g + γp with the largest γ within a bound on its distances to honest updates.

    These are the paper's aggregation-agnostic attacks, which know the honest updates. The paper
    approximates γ by halving steps; here it is the root of a quadratic.

    Attributes:
        deviation: The direction p: ``unit`` is −g/‖g‖, ``sign`` −sign(g), ``std`` −σ.
    """

    deviation: Literal["unit", "sign", "std"] = "unit"

    fewest_honest: ClassVar[int] = 1

    def updates(self, scene: Scene) -> Vector:
        """Return g + γp, the same for all attackers."""
        mean = scene.honest_mean
        away: dict[str, Vector] = {
            "unit": unit(mean),
            "sign": np.sign(mean),
            "std": scene.honest_updates.std(axis=0),
        }
        direction = -away[self.deviation]
        return mean + self._step(scene, direction) * direction

    @abstractmethod
    def _step(self, scene: Scene, direction: Vector) -> float:
        """Return γ, 0 or more, in the direction p, (d,)."""


@dataclass(frozen=True)
class MinMax(_AsFarAs):
    """Sends g + γp, bounded by largest distances (Shejwalkar and Houmansadr, NDSS 2021).

    γ is the largest with max_i ‖g + γp − u_i‖ ≤ max_{i,j} ‖u_i − u_j‖: its distances are within the
    largest between honest clients. There is a quadratic for each client.
    """

    def _step(self, scene: Scene, direction: Vector) -> float:
        square, bound = float(direction @ direction), squared_distances(scene.honest_updates).max()
        offsets = scene.honest_mean - scene.honest_updates
        return min(
            largest_step(square, offset @ direction, offset @ offset, bound) for offset in offsets
        )


@dataclass(frozen=True)
class MinSum(_AsFarAs):
    """Sends g + γp, bounded by sums of squared distances (Shejwalkar and Houmansadr, NDSS 2021).

    γ is the largest with Σ_i ‖g + γp − u_i‖² ≤ max_i Σ_j ‖u_i − u_j‖²: its squared distances sum to
    at most the largest sum of an honest client.
    """

    def _step(self, scene: Scene, direction: Vector) -> float:
        updates = scene.honest_updates
        offsets = scene.honest_mean - updates
        return largest_step(
            len(updates) * float(direction @ direction),
            offsets.sum(axis=0) @ direction,
            (offsets * offsets).sum(),
            squared_distances(updates).sum(axis=1).max(),
        )


def squared_distances(updates: Vector) -> Vector:
    """Return (k, k) ‖u_i − u_j‖², each taken directly."""
    return np.array([((updates - update) ** 2).sum(axis=1) for update in updates])


def largest_step(square: float, inner: float, rest: float, bound: float) -> float:
    """Return the largest γ ≥ 0 with ``square``·γ² + 2·``inner``·γ + ``rest`` ≤ ``bound``.

    0 if there is none, since only rounding puts the mean beyond the bound. 0 also for a ``square``
    of 0, since then the direction is zero.
    """
    if square <= 0.0:
        return 0.0
    discriminant = inner * inner + square * (bound - rest)
    return max(0.0, (math.sqrt(max(0.0, discriminant)) - inner) / square)


@dataclass(frozen=True)
class Mimic(Attack):
    """Copies the honest client that differs the most (Karimireddy, He and Jaggi, ICLR 2022).

    In the first rounds the direction z of the honest updates' largest variance is learnt by Oja's
    iteration, as in the paper's appendix and its code. With μ the running mean of the updates and
    v = Σ_i ⟨u_i − μ, z⟩(u_i − μ), it is z ← t/(t + 1)·z + 1/(t + 1)·v/‖v‖, at length 1. Of a
    round's honest clients all attackers copy the one with the largest |Σ_t ⟨z, u_i⟩|.

    Attributes:
        warmup: Rounds in which z and the sums are learnt; afterwards they are fixed.
        noise: Norm of each attacker's own noise as a fraction of the update's; with 0 all attackers
            send the same.
    """

    warmup: Count = 10
    noise: NotNegative = 0.0

    fewest_honest: ClassVar[int] = 1
    remembers: ClassVar[bool] = True

    def forge(self, scene: Scene) -> Forgery:
        """Learn, then copy; see `Attack.forge`."""
        memory = scene.memory
        if int(memory.get("rounds", 0)) < self.warmup:
            memory = _learnt(scene)
        scores = by_client(memory, "scores")
        worth = [abs(scores.get(report.client, 0.0)) for report in scene.finite_honest]
        copied = scene.honest_updates[int(np.argmax(worth))]
        updates = with_noise(copied, scene.num_attackers, self.noise, scene.draw)
        return Forgery(scene.reports(updates), memory)


def _learnt(scene: Scene) -> Memory:
    """Return direction, mean and sums after one more round."""
    memory = scene.memory
    rounds = int(memory.get("rounds", 0))
    start = memory["direction"] if memory else scene.draw.standard_normal(len(scene.honest_mean))
    mean = (rounds * memory.get("mean", 0.0) + scene.honest_mean) / (rounds + 1)
    centred = scene.honest_updates - mean
    direction = unit((rounds * start + unit((centred @ start) @ centred)) / (rounds + 1))
    scores = by_client(memory, "scores")
    found = (scene.honest_updates @ direction).tolist()
    for report, score in zip(scene.finite_honest, found, strict=True):
        scores[report.client] = scores.get(report.client, 0.0) + score
    return {
        "rounds": np.array(rounds + 1),
        "mean": mean,
        "direction": direction,
        **kept_by_client(scores=scores),
    }


@dataclass(frozen=True)
class Drift(Attack):
    """Sends γ(w° − w_t), the descent of ½γ‖w − w°‖², whose minimum is far from good models.

    Between two rounds it changes by −γ(w_t − w_t'). So it responds to the model's step as honest
    clients do, and more strongly, because its loss has positive curvature. In its first round each
    attacker fixes its goal w° = w_t + (c·n/γ)·p, where n is the median norm of the honest updates
    and p the direction of `Opposed`.

    Attributes:
        curvature: γ, above 0 and up to 1; with a smaller one the goal is further away.
        length: c, of the first update, in median honest norms.
        cosine: Of the first update, against the honest mean.
    """

    curvature: Part = 0.05
    length: NotNegative = 2.0
    cosine: Fraction = 0.0

    fewest_honest: ClassVar[int] = Opposed.fewest_honest
    remembers: ClassVar[bool] = True

    def forge(self, scene: Scene) -> Forgery:
        """Fix goals, where there is none; see `Attack.forge`."""
        if not scene.active or not scene.num_attackers:
            return Forgery(scene.own, scene.memory)
        here, memory = scene.position, scene.memory
        goals = by_client(memory, "goals")
        directions = unit(scene.updates_of(Opposed(self.cosine).forge(scene).reports))
        reach = self.length * float(np.median(norms(scene.honest_updates))) / self.curvature
        for report, direction in zip(scene.own, directions, strict=True):
            goals.setdefault(report.client, here + reach * direction)
        wanted = np.stack([goals[report.client] for report in scene.own])
        return Forgery(scene.reports(self.curvature * (wanted - here)), kept_by_client(goals=goals))
