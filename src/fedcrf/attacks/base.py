"""An attack: from what attackers know to what they send or train on; who attacks, and when."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Count, Settings, Truth, is_number
from fedcrf.errors import FedcrfError, failing
from fedcrf.rules import ClientReport, Memory, Rule, State, reported_evidence
from fedcrf.rules.base import by_client as by_client
from fedcrf.rules.base import kept_by_client as kept_by_client
from fedcrf.rules.base import stepped_state
from fedcrf.rules.state import floating_layers, update_of
from fedcrf.statistics.inputs import finite_clients

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Vector = NDArray[np.float64]
"""(d,) one update w − w_t over the floating-point tensors of the model, or (k, d) of them."""


@dataclass(frozen=True, eq=False)
class Scene:
    """All that attackers can know in a round; an attack may use less.

    Attributes:
        global_state: The model w_t that all clients started from.
        honest: What the honest clients of the round report.
        own: What the attackers of the round would report, had they trained honestly.
        round: The number of the round, from 1 on.
        rule: The server's rule.
        rule_memory: The rule's memory of earlier rounds.
        memory: The attackers' memory of earlier rounds; empty at first.
        draw: The only source of randomness.
        active: Whether they attack in this round. If not, an attack that remembers only observes.
    """

    global_state: State
    honest: Sequence[ClientReport]
    own: Sequence[ClientReport]
    round: int
    rule: Rule
    rule_memory: Memory
    memory: Memory
    draw: np.random.Generator
    active: bool = True

    @property
    def num_attackers(self) -> int:
        """How many of the round's clients attack: f."""
        return len(self.own)

    @property
    def num_clients(self) -> int:
        """How many clients the round has, without honest ones whose updates are not finite: m."""
        return len(self.finite_honest) + len(self.own)

    @cached_property
    def position(self) -> Vector:
        """The (d,) model w_t that the clients started from."""
        return np.concatenate(floating_layers(self.global_state)).astype(np.float64)

    @cached_property
    def finite_honest(self) -> list[ClientReport]:
        """The honest reports that are finite; the others are not used."""
        finite = finite_clients([floating_layers(report.state) for report in self.honest])
        return [report for report, used in zip(self.honest, finite, strict=True) if used]

    @cached_property
    def honest_updates(self) -> Vector:
        """(m − f, d) float64; the finite updates w_i − w_t of the honest clients."""
        return self.updates_of(self.finite_honest)

    @cached_property
    def own_updates(self) -> Vector:
        """(f, d) float64; the updates of the attackers' honest training."""
        return self.updates_of(self.own)

    @cached_property
    def honest_mean(self) -> Vector:
        """(d,) the plain mean of the honest updates."""
        return np.asarray(self.honest_updates.mean(axis=0))

    def reports(self, updates: Vector) -> list[ClientReport]:
        """Return the attackers' reports with (f, d) updates in place of their own.

        They are (d,) if all attackers send the same. Integer buffers, counts and everything else
        are those of the attackers' honest training.
        """
        shape, given = (len(self.own), len(self.position)), np.asarray(updates)
        if given.dtype.kind not in "iuf" or given.shape not in (shape, (1, shape[1]), shape[1:]):
            form = f"of shape {given.shape}" if given.ndim else f"a {type(updates).__name__}"
            raise TypeError(
                f"its updates are {form}: return floats of shape {shape}, or {shape[1:]} if all "
                "are the same"
            )
        rows = np.broadcast_to(given, shape)
        return [
            replace(report, state=stepped_state(self.global_state, row, report.state))
            for report, row in zip(self.own, rows, strict=True)
        ]

    def round_with(self, forged: Iterable[ClientReport]) -> list[ClientReport]:
        """Return the reports that the server would see, in the order of clients."""
        return sorted([*self.honest, *forged], key=lambda report: report.client)

    def update_of(self, state: State) -> Vector:
        """Return the update w − w_t of a model, (d,) float64."""
        return update_of(state, self.global_state)

    def updates_of(self, reports: Sequence[ClientReport]) -> Vector:
        """Return the (k, d) updates of k reports."""
        rows = [self.update_of(report.state) for report in reports]
        return np.stack(rows) if rows else np.empty((0, len(self.position)))


@dataclass(frozen=True, eq=False)
class Forgery:
    """What the attackers of a round send.

    Attributes:
        reports: In place of `Scene.own`, in its order.
        memory: What they keep for the next round, if the attack remembers.
    """

    reports: Sequence[ClientReport]
    memory: Memory = field(default_factory=dict)


@dataclass(frozen=True)
class Attack(Settings):
    """What attackers do: a small immutable value whose fields are its settings.

    An attack on what clients send implements `updates`, or `forge` if it also forges counts or
    evidence, or remembers. An attack on training data is a `DataAttack`.

    Attributes:
        remembers: Whether it keeps a memory. It then observes every round, also those in which
            nobody attacks or no attacker was drawn.
        fewest_honest: How many honest clients with finite updates a round must have.
    """

    remembers: ClassVar[bool] = False
    fewest_honest: ClassVar[int] = 0

    def updates(self, scene: Scene) -> Vector:
        """Return what attackers send in place of their updates: (f, d), or (d,) if all the same."""
        return scene.own_updates

    def forge(self, scene: Scene) -> Forgery:
        """Return what the attackers send in a round; the scene is not changed."""
        return Forgery(scene.reports(self.updates(scene)))

    def obstacle(self, num_clients: int, num_attackers: int) -> str | None:
        """Return why f of m clients cannot attack so, with the mend; None if they can."""
        if num_clients - num_attackers >= self.fewest_honest:
            return None
        if self.fewest_honest == 1:
            needs = "it is made from honest clients' updates and a round has none"
        elif self.fewest_honest == 2:
            needs = "it needs two honest clients or more in a round, to lie between them"
        else:
            needs = f"it needs {self.fewest_honest} honest clients or more in a round"
        return f"{needs}: give fewer attackers, or more clients a round"


class DataAttack(Attack, ABC):
    """An attack on what clients train on.

    Attributes:
        hides: Whether the attackers report false evidence: each the least that an honest client of
            the round reports.
    """

    # Its subclasses make it a field, behind their own; were it one here, it would come first.
    hides: Truth = False

    @abstractmethod
    def poison(
        self, images: Images, labels: Labels, num_classes: int, draw: np.random.Generator
    ) -> tuple[Images, Labels]:
        """Return what an attacker trains on; it is called once, before the first round.

        Args:
            images: (n, C, H, W), normalised by channel to mean 0 and standard deviation 1; not
                changed.
            labels: (n,); not changed.
            num_classes: Number of labels.
            draw: The only source of randomness.
        """

    def check_data(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        """Raise a `FedcrfError` if the attack is not possible on such data.

        ``image_shape`` has channels, height and width.
        """
        return

    def of_attacker(self, number: int) -> Self:
        """Return the attack of the attacker of this place, from 0 on, among those of the run."""
        return self

    def trained(self, scene: Scene) -> Sequence[ClientReport]:
        """Return what the attackers make of their training; the evidence is not forged yet."""
        return scene.own

    def forge(self, scene: Scene) -> Forgery:
        """Return what the attackers trained, with the evidence that they report."""
        trained = self.trained(scene)
        if not self.hides:
            return Forgery(trained)
        least = {
            # A client whose training diverged reports NaN, which is not less than any number.
            name: min(values[np.isfinite(values)], default=math.nan)
            for name, values in reported_evidence(scene.honest).items()
        }
        return Forgery([replace(each, evidence={**each.evidence, **least}) for each in trained])


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
        if 1 <= count < num_clients:
            return count
        if num_clients > 1:
            raise FedcrfError(
                f"attackers {self.attackers}: of {num_clients} clients one at least must attack "
                f"and one be honest; give from 1 to {num_clients - 1} (--attackers)"
            )
        raise FedcrfError(
            f"attackers {self.attackers}: there is one client that can train and none beside it to "
            "attack; give more clients (--clients)"
        )

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

        If ``clients_per_round`` of them are drawn for a round, it is assumed to have its share of
        attackers (`Schedule.count_among`).
        """
        drawn = min(clients_per_round or num_clients, num_clients)
        attackers = self.schedule.count_among(drawn, num_clients)
        with failing(f"attack {type(self.attack).__name__} failed ({{}})"):
            obstacle = self.attack.obstacle(drawn, attackers)
        if obstacle is not None:
            raise FedcrfError(f"the attack is not possible: {obstacle}")


def with_noise(updates: Vector, count: int, fraction: float, draw: np.random.Generator) -> Vector:
    """Return ``count`` copies of an update, each with its own noise, which hides the collusion.

    The updates are (d,), or (count, d) if they differ already. The noise's Euclidean norm is a
    ``fraction`` of the update's. Its direction is uniform, so that two attackers' noises are nearly
    orthogonal.
    """
    rows = np.array(np.broadcast_to(updates, (count, updates.shape[-1])))
    if fraction > 0.0:
        noise = draw.standard_normal(rows.shape)
        noise *= fraction * norms(rows) / norms(noise)
        rows += noise
    return rows


def norms(rows: Vector) -> Vector:
    """Return the Euclidean norms along the last axis, which is kept."""
    return np.asarray(np.linalg.norm(rows, axis=-1, keepdims=True))


def unit(rows: Vector) -> Vector:
    """Return the rows at length 1; zero stays zero."""
    lengths = norms(rows)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
