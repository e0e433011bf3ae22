"""Two kinds of honest sites: the first four of ten hold the lower classes, the others the upper.

fedcrf run --dataset digits --partition examples/two_kinds.py:TWO_KINDS --methods fedavg,crf-robust
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcrf.data import PartitionScheme, PartitionSettings

FIRST_KIND = 0.4
"""The share of the clients that hold the lower half of the classes."""


def two_kinds(
    labels: NDArray[np.int64], settings: PartitionSettings, generator: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Deal each half of the classes out to the clients of its kind, at random."""
    upper = labels > (labels.min() + labels.max()) / 2
    first = round(FIRST_KIND * settings.num_clients)
    clients = []
    for chosen, count in ((~upper, first), (upper, settings.num_clients - first)):
        order = generator.permutation(np.flatnonzero(chosen))
        clients += np.array_split(order, count)
    return clients


TWO_KINDS = PartitionScheme(
    "four of ten hold the lower half of the classes, the others the upper half.",
    two_kinds,
    ignores=frozenset({"alpha", "gamma"}),
)
