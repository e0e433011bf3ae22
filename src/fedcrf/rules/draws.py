"""Rules that draw random numbers in every round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from fedcrf.checks import check_whole
from fedcrf.rules.base import Memory, Rule

ROUNDS = "rounds"
"""Name in the memory of the number of rounds that a rule drew for."""


@dataclass(frozen=True)
class Drawing(Rule):
    """A rule that draws anew in every round.

    Attributes:
        seed: Of what it draws; by default a run gives its own, and outside a run it is 0.
    """

    remembers: ClassVar[bool] = True

    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None:
            check_whole("seed", self.seed, least=0)

    def informed(self, attackers: int, num_clients: int, seed: int) -> Self:
        """Return the rule informed of the run's seed; see `Rule.informed`."""
        return replace(self, seed=seed) if self.seed is None else self

    def generator(self, memory: Memory) -> tuple[np.random.Generator, Memory]:
        """Return this round's generator, and the memory for the next round."""
        rounds = int(memory.get(ROUNDS, 0))
        draws = np.random.default_rng(np.random.SeedSequence([self.seed or 0, rounds]))
        return draws, {ROUNDS: np.array(rounds + 1)}
