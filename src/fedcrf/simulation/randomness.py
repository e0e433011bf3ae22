"""A run's random streams: one for each purpose, all from the run's seed.

A stream depends only on the seed and its name. So a resumed run draws what the first one would have
drawn, and methods under one seed share partition, initial model and client shuffles.
"""

from __future__ import annotations

import enum

import numpy as np


class Stream(enum.IntEnum):
    """The purposes; the numbers are part of every published result and never change."""

    PARTITION = 0
    SPLIT = 1
    MODEL = 2
    SHUFFLE = 3
    TRAINING = 4
    PARTICIPATION = 5
    ATTACKERS = 6
    ATTACK = 7
    POISON = 8
    SERVER = 9


def generator(seed: int, stream: Stream, *indices: int) -> np.random.Generator:
    """Return the generator of one purpose, such as the shuffle of one round and client."""
    return np.random.default_rng(_sequence(seed, stream, *indices))


def torch_seed(seed: int, stream: Stream, *indices: int) -> int:
    """Return a seed for torch's generator, for one purpose."""
    return int(_sequence(seed, stream, *indices).generate_state(1, np.uint64)[0] >> 1)


def _sequence(seed: int, stream: Stream, *indices: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(int(stream), *indices))
