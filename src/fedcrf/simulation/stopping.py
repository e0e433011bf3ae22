"""When a run ends before its last round: early stopping, and divergence."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from fedcrf.attacks import Threat
from fedcrf.checks import Settings
from fedcrf.simulation.records import Client, RoundRecord

DIVERGED = 3
"""Rounds in a row without a finite update after which a run has diverged."""


@dataclass(frozen=True)
class EarlyStopping(Settings):
    """Stops after ``patience`` rounds in a row without an improvement; a value, not an object.

    An improvement is a loss more than ``min_improvement`` below that of the last improvement; NaN
    is never one. The best round is the one with the lowest loss, by any difference.

    Attributes:
        patience: Rounds without improvement before the run stops.
        min_improvement: The least improvement, in units of the loss.
        reference_loss: The loss of the last improvement.
        rounds_without: Rounds since then.
        best_loss: The lowest loss so far.
        best_round: Its round, from 1; 0 before any finite loss.
    """

    patience: int = 5
    min_improvement: float = 1e-4
    reference_loss: float = float("inf")
    rounds_without: int = 0
    best_loss: float = float("inf")
    best_round: int = 0

    @property
    def stopped(self) -> bool:
        """Whether the run should end here."""
        return self.rounds_without >= self.patience

    def observe(self, round_number: int, loss: float) -> EarlyStopping:
        """Return the state after the validation loss of one more round."""
        after = self
        if loss < self.best_loss:
            after = replace(after, best_loss=loss, best_round=round_number)
        if self.reference_loss - loss > self.min_improvement:
            return replace(after, reference_loss=loss, rounds_without=0)
        return replace(after, rounds_without=self.rounds_without + 1)


def lost_rounds(
    before: int, number: int, honest: Set[Client], excluded: Set[Client], threat: Threat | None
) -> int:
    """Return how many rounds in a row, up to this one, no honest client had a finite update.

    The outcome of an attack is a result, not divergence: rounds count only if nobody had attacked
    before the first of them. ``before`` is this number for the round before, 0 for the first;
    ``honest`` are those who did not attack in it, ``excluded`` those whose update was not finite.
    """
    if not honest:
        return before
    if not honest <= excluded:
        return 0
    attacked = threat is not None and any(map(threat.schedule.active, range(1, number)))
    return 0 if attacked and not before else before + 1


def lost_so_far(before: int, record: RoundRecord, threat: Threat | None) -> int:
    """Return `lost_rounds` from the record of a round, ``before`` that of the record before."""
    if record.totals is not None:
        return record.totals.lost_rounds
    honest = set(record.clients) - set(record.attackers or ())
    return lost_rounds(before, record.round, honest, set(record.excluded), threat)


def divergence(lost: int, done: int, ended: bool) -> str | None:
    """Return the message that the clients' training has diverged; None if it has not.

    It has after `DIVERGED` lost rounds, or in a run that ends and never had a finite update.
    """
    if lost < DIVERGED and not (lost and lost == done and ended):
        return None
    rounds = "a round" if lost == 1 else f"{lost} rounds in a row"
    return f"training diverged by round {done}: no client's update was finite for {rounds}"
