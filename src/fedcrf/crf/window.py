"""Averages over the last rounds, in which honest clients' responses stand out from their noise.

Where a round is one mini-batch, an update is mostly noise, and so is what it tells of its client.
An average over a window of k rounds keeps what the client wants and loses the noise. The window
finds its length: it grows while the mean response is below `LEAST_SIGNAL` times its deviation, and
shrinks where it is above that. With k = 1 nothing is averaged.

Two averages stand behind each other, the recent one U and the one before it V. With u_n the n-th
update of a client:

- U_n = U_{n−1} + (u_n − U_{n−1}) / min(k, n);
- V_n = V_{n−1} + (U_{n−1} − V_{n−1}) / min(k, n − 1).

A window spans k rounds of the federation. Of a client that took part in n − 1 of the e rounds since
its first one, it holds k·(n − 1)/e rounds, 1 at least, which then takes the place of k above.

The model that the client starts from is averaged by the same weights. Where updates are linear in
the model, u = −H(w − w*), so are their averages, and U − V = −H times the difference of the model's
two averages: the response to the model's steps is that of single updates, without their noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedcrf.crf.parts import Matrix, Vector
from fedcrf.crf.potentials import median

LEAST_SIGNAL = 2.25
"""The responses' ratio of mean to scatter at which a window is long enough.

In our own suites it is 2 to 3 where a round is an epoch, about 2 where the clients have learnt, and
0.3 to 0.8 where a round is a mini-batch.
"""

TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation is so many times its median absolute deviation."""


class Window(NamedTuple):
    """How many rounds are averaged, and the responses from which that was found.

    Attributes:
        length: k, from 1 to ``most``; the next round's.
        rounds: How many rounds had responses.
        mean: The mean over rounds of the clients' median response.
        variance: Its variance over rounds.
        scatter: The mean over rounds of the clients' squared deviation from it.
    """

    length: float = 1.0
    rounds: float = 0.0
    mean: float = 0.0
    variance: float = 0.0
    scatter: float = 0.0

    @property
    def signal(self) -> float:
        """−mean / √(variance + scatter), 0 or more: how clearly clients respond."""
        noise = math.sqrt(self.variance + self.scatter)
        if noise == 0.0:
            return math.inf if self.mean < 0.0 else 0.0
        return max(0.0, -self.mean) / noise

    def after(self, responses: Vector, most: float) -> Window:
        """Return the next round's window, after (m,) curvature responses, NaN where unknown.

        ``most`` is the longest window, and how many rounds the means of responses remember.
        """
        known = responses[np.isfinite(responses)]
        if len(known) < 3:  # no scatter to speak of
            return self
        middle = median(known)
        deviation = TO_DEVIATION * median(np.abs(known - middle))
        count = min(most, self.rounds + 1.0)
        mean = self.mean + (middle - self.mean) / count
        variance = self.variance
        if self.rounds:
            variance += ((middle - self.mean) ** 2 - variance) / min(most, self.rounds)
        scatter = self.scatter + (deviation**2 - self.scatter) / count
        seen = Window(self.length, self.rounds + 1.0, mean, variance, scatter)
        if seen.rounds < 2:
            return seen
        # The noise of an average falls with the root of its length. By √2 at most, so that a
        # single round does not decide.
        missing = min(2.0, max(0.5, LEAST_SIGNAL / max(seen.signal, 1e-3)))
        return seen._replace(length=min(most, max(1.0, self.length * math.sqrt(missing))))


@dataclass(frozen=True, eq=False)
class Averages:
    """The averages of a round's m clients, in sketches of s numbers; NaN where a client is new.

    Clients that took part in the same rounds share one path of the model; T are different.

    Attributes:
        updates: (m, s) U of each client.
        before: (m, s) V of each client.
        positions: (T, s) the recent averages of the paths.
        earlier: (T, s) the averages before them.
        counts: (T,) n, the rounds in which a path's clients took part.
        first: (T,) the number of the first of them among all rounds.
        number: The number of this round.
        path_of: (m,) each client's path.
    """

    updates: Matrix
    before: Matrix
    positions: Matrix
    earlier: Matrix
    counts: NDArray[np.int64]
    first: NDArray[np.int64]
    number: int
    path_of: NDArray[np.int64]

    def lengths(self, window: float) -> Vector | float:
        """Return how many rounds each client's average holds: (m,), or just k where all hold k."""
        held = self._held(window, self.counts)
        return window if (held == window).all() else held[self.path_of]

    def _held(self, window: float, counts: NDArray[np.int64]) -> Vector:
        """Return (T,) the rounds that a window of k rounds holds of n = ``counts``."""
        share = (counts - 1) / np.maximum(1, self.number - self.first)
        return np.asarray(np.minimum(np.maximum(1.0, window * share), counts))

    @cached_property
    def change(self) -> Matrix:
        """(m, s) U − V."""
        return self.updates - self.before

    @cached_property
    def steps(self) -> Matrix:
        """(m, s) how the model moved between its averages; (1, s) if that is one for all."""
        steps = self.positions - self.earlier
        return steps if len(steps) == 1 else steps[self.path_of]

    @cached_property
    def response(self) -> Vector:
        """(m,) curvature responses; NaN where the model did not move, or the client is new."""
        return curvature_response(self.change, self.steps)

    @cached_property
    def growth(self) -> Vector:
        """(m,) log‖U‖ − log‖V‖, how much longer updates have become; NaN where that is unknown."""
        now, then = row_norms(self.updates), row_norms(self.before)
        known = (now > 0.0) & (then > 0.0)  # False for NaN
        growth = np.full(len(now), np.nan)
        growth[known] = np.log(now[known]) - np.log(then[known])
        return growth

    def after(self, sketches: Matrix, position: Vector, length: float) -> Self:
        """Return the averages after a round of a window of k rounds.

        Args:
            sketches: (m, s) sketches of the updates.
            position: (s,) sketch of the global model.
            length: k.
        """
        counts = self.counts + 1
        held = self._held(length, counts)
        share = 1.0 / held
        before = 1.0 / np.minimum(held, np.maximum(counts - 1, 1))
        return replace(
            self,
            updates=_towards(self.updates, sketches, share[self.path_of]),
            before=_towards(self.before, self.updates, before[self.path_of]),
            positions=_towards(self.positions, position, share),
            earlier=_towards(self.earlier, self.positions, before),
            counts=counts,
        )

    def of_clients(self, chosen: slice | NDArray[np.bool_]) -> Self:
        """Return the averages of some clients, given by a slice or (m,) bool."""
        return replace(
            self,
            updates=self.updates[chosen],
            before=self.before[chosen],
            path_of=self.path_of[chosen],
        )


def curvature_response(change: Matrix, movement: Matrix) -> Vector:
    """Return r_i = cos(u_i(t) − u_i(t'), w_t − w_t'), t' being when client i last took part.

    Args:
        change: (m, s) sketches of u_i(t) − u_i(t'); NaN rows for new clients.
        movement: (m, s) sketches of w_t − w_t', or (1, s) where t' is the same for all.

    Returns:
        (m,) cosines; 0 for an update that did not change, NaN where the model did not move or
        the client is new.
    """
    return np.where(movement.any(axis=1), row_cosines(change, movement), np.nan)


def row_norms(rows: Matrix) -> Vector:
    """Return the length of each row."""
    return np.asarray(np.sqrt(np.vecdot(rows, rows)))


def row_cosines(left: Matrix, right: Matrix) -> Vector:
    """Return the cosine of each row with the other's; 0 where one of them is 0."""
    lengths = row_norms(left) * row_norms(right)
    return np.asarray(np.vecdot(left, right) / np.where(lengths == 0.0, 1.0, lengths))


def _towards(mean: Matrix, value: Matrix, share: Vector) -> Matrix:
    """Return mean + share · (value − mean), row by row; the value itself where its share is 1."""
    if (share == 1.0).all():  # as in all rounds where nothing is averaged
        return np.broadcast_to(value, mean.shape)
    parts = share[:, None]
    return np.where(parts == 1.0, value, mean + parts * (value - mean))
