"""Taking turns, and what is told of it: medians, and ratios of neighbours in time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Timing:
    """Wall times of one thing in seconds, turn by turn."""

    seconds: Sequence[float]

    @property
    def median(self) -> float:
        """The median turn."""
        return statistics.median(self.seconds)

    def ratio(self, other: Timing) -> dict[str, float]:
        """Return median, least and greatest of this turn by turn over the other's same turn."""
        ratios = [mine / its for mine, its in zip(self.seconds, other.seconds, strict=True)]
        return {"median": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


LONG = 0.5
"""Seconds of a call beside which the allocation of its memory does not count."""


def seconds_again(work: Callable[[], object]) -> float:
    """Return the wall time of a second call, whose memory is allocated; a long one has only one."""
    first = seconds(work)
    return first if first > LONG else seconds(work)


REST = 0.15
"""Seconds between turns: a linear algebra library's threads spin for 0.1 s after their work."""


def take_turns(
    works: Mapping[str, Callable[[], float]], turns: int, long: float = math.inf
) -> dict[str, Timing]:
    """Have each measure itself once a turn, the first turn unheard; return them by name.

    What takes more than ``long`` seconds need not warm up: its unheard turn is its first one.
    """
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name, work in works.items():
            if turn == 1 and found[name][0] > long:
                found[name] *= 2
                continue
            time.sleep(REST)
            found[name].append(work())
    return {name: Timing(times[1:]) for name, times in found.items()}


def time_again(works: Mapping[str, Callable[[], object]], turns: int) -> dict[str, Timing]:
    """Take turns in which the second call of each is timed, as `seconds_again` does."""
    again = {name: partial(seconds_again, work) for name, work in works.items()}
    return take_turns(again, turns, LONG)
