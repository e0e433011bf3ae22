"""Early stopping on the validation loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedcrf.checks import Settings


@dataclass(frozen=True)
class EarlyStopping(Settings):
    """Stops after ``patience`` rounds in a row without an improvement; a value, not an object.

    An improvement is a loss more than ``min_improvement`` below that of the last improvement. A
    loss that is NaN is none. The best round is the one with the lowest loss, by however little.

    Attributes:
        patience: Rounds without improvement before the run stops.
        min_improvement: What counts as one; in units of the loss.
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
        """Return what is known after the validation loss of one more round."""
        after = self
        if loss < self.best_loss:
            after = replace(after, best_loss=loss, best_round=round_number)
        if self.reference_loss - loss > self.min_improvement:
            return replace(after, reference_loss=loss, rounds_without=0)
        return replace(after, rounds_without=self.rounds_without + 1)
