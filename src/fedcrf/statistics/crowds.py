"""The statistics of very many updates: of pairs, those of nearest neighbours alone.

scikit-learn's brute-force search was tried in place of `nearest`. Of the same estimates of 2,000
clients it finds two thirds of the pairs that ours does: it takes inner products of vectors, from
which what could be chance is not taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Settings, check_whole
from fedcrf.statistics.estimated import EstimatedCosines
from fedcrf.statistics.inputs import Layers, as_numpy, blocks
from fedcrf.statistics.one_pass import (
    EPSILON,
    UpdateStatistics,
    checked_dimension,
    finite_sums,
    overflowing,
    scatter,
    update_statistics,
)
from fedcrf.statistics.sketches import sketch
from fedcrf.statistics.threads import in_order

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_WITH_ALL_PAIRS = 4096
"""Clients up to which exact neighbours are taken from the Gram matrix of the one pass: 128 MiB."""

ROWS_NUMBERS = 1 << 22
"""Cosines that are looked at together, at most: 16 MiB in float32."""

ROWS = 512
"""Clients whose cosines are looked at together, at most: two threads share a thousand."""

EXACT_NUMBERS = 1 << 24
"""Cosines, and numbers of the updates, that exact neighbours are sought in together: 128 MiB."""

Rows = Callable[[int, int], NDArray[Any]]
"""From the first client of some and one past the last to their cosines with all; not kept."""


@dataclass(frozen=True)
class NeighbourSearch(Settings):
    """The pairs of clients to find: each with its k nearest, by the angle of their updates.

    Attributes:
        neighbours: k ≥ 1; all other clients if there are fewer.
        sketch_size: Numbers in the sketches from which cosines are estimated (`EstimatedCosines`).
            Sketches are made in the one pass; beyond it estimates take O(m²) time for each number
            of a sketch, exact cosines for each of an update. Without it, or if updates have no more
            numbers, cosines are exact.
        sketch_seed: The seed of the sketches' signs. Keep it secret: an attacker that knows it can
            send updates whose sketches mislead.

    Raises:
        FedcrfError: A setting outside its range.
    """

    neighbours: int
    sketch_size: int | None = None
    sketch_seed: int = 0

    def __post_init__(self) -> None:
        check_whole("neighbours", self.neighbours, least=1)
        if self.sketch_size is not None:
            check_whole("sketch_size", self.sketch_size, least=1)
        check_whole("sketch_seed", self.sketch_seed, least=0)


@dataclass(frozen=True, eq=False)
class CrowdStatistics:
    """`UpdateStatistics` of m updates, with the pairs of near neighbours alone.

    Attributes:
        dimension: d, the numbers in an update.
        finite: (m,) bool, as there.
        overflowed: (m,) bool, as there.
        norms: (m,) float64; ‖u_i‖, NaN where not finite.
        cosines: (m, m) float64, sparse and symmetric; ⟨u_i, u_j⟩ / (‖u_i‖ ‖u_j‖ + ε), exact or
            estimated, if one of i and j is among the other's k nearest. Only stored numbers are
            pairs, zeros too.
        median_inner: (m,) float64, as there.
        median_distance: (m,) float64, as there.
        median_norm: As there.
    """

    dimension: int
    finite: NDArray[np.bool_]
    overflowed: NDArray[np.bool_]
    norms: NDArray[np.float64]
    cosines: csr_array[np.float64]
    median_inner: NDArray[np.float64]
    median_distance: NDArray[np.float64]
    median_norm: float

    @property
    def num_clients(self) -> int:
        """The number of clients, m."""
        return len(self.finite)


Statistics = UpdateStatistics | CrowdStatistics
"""Of the updates of a round, with all pairs or with near ones."""


def crowd_statistics(
    clients: Sequence[Layers],
    search: NeighbourSearch,
    origin: Sequence[NDArray[Any]] | None = None,
    threads: int | None = None,
) -> CrowdStatistics:
    """Gather the statistics of very many updates; no (m, m) matrix is made for more than 4096.

    Everything but the neighbours takes time and memory O(md).

    Args:
        clients: As for `update_statistics`.
        search: Which pairs are wanted.
        origin: As for `update_statistics`.
        threads: As for `update_statistics`.

    Returns:
        The statistics.

    Raises:
        FedcrfError: The updates hold no numbers (d = 0).
    """
    from threadpoolctl import threadpool_limits

    dimension = checked_dimension(clients)
    size, seed = search.sketch_size, search.sketch_seed
    if size is not None and size >= dimension:
        size = None
    if size is None and len(clients) <= MOST_WITH_ALL_PAIRS:
        return with_nearest(update_statistics(clients, origin, threads), search.neighbours)
    finite, sums = finite_sums(clients, origin, threads, products=False)
    norms = scatter(np.sqrt(sums.squares), finite, np.nan)
    used = [clients[i] for i in np.flatnonzero(finite).tolist()]
    if size is None:
        rows = _exact(used, origin, norms[finite])
        together = EXACT_NUMBERS // max(1, len(used))
        cosines = nearest(rows, finite, search.neighbours, together, threads=1)
    else:
        theirs = sketch(used, size, seed, origin, threads)
        own = sketch([[sums.median]], size, seed, threads=threads)
        generator, middle = np.random.default_rng(seed), np.sqrt(sums.median_square)
        # Threads of a matrix product spin on when it is done, and would slow the next pass.
        with threadpool_limits(1, "blas"):
            estimated = EstimatedCosines.of(
                np.vstack([theirs, own]), sums.inner, norms[finite], float(middle), generator
            )
            cosines = nearest(estimated.rows, finite, search.neighbours, threads=threads)
        lengths = norms[pair_rows(cosines)] * norms[cosines.indices]
        cosines.data *= lengths / (lengths + EPSILON)
    return CrowdStatistics(
        dimension=dimension,
        finite=finite,
        overflowed=overflowing(clients, origin, finite),
        norms=norms,
        cosines=cosines,
        median_inner=scatter(sums.inner, finite, np.nan),
        median_distance=scatter(np.sqrt(sums.squared_distance), finite, np.nan),
        median_norm=float(np.sqrt(sums.median_square)) if finite.any() else float("nan"),
    )


def with_nearest(statistics: UpdateStatistics, neighbours: int) -> CrowdStatistics:
    """Return the statistics with each client's nearest neighbours alone, found exactly."""
    cosines = statistics.cosines[np.ix_(statistics.finite, statistics.finite)]
    return CrowdStatistics(
        dimension=statistics.dimension,
        finite=statistics.finite,
        overflowed=statistics.overflowed,
        norms=statistics.norms,
        cosines=nearest(lambda start, stop: cosines[start:stop], statistics.finite, neighbours),
        median_inner=statistics.median_inner,
        median_distance=statistics.median_distance,
        median_norm=statistics.median_norm,
    )


def nearest(
    rows: Rows,
    finite: NDArray[np.bool_],
    neighbours: int,
    together: int | None = None,
    threads: int | None = None,
) -> csr_array[np.float64]:
    """Return the cosines of each client with its nearest: (m, m), sparse and symmetric.

    Two clients are a pair if either is among the other's k nearest. So every client has at least k
    neighbours, and there are at most m·k pairs. Of equally near clients the first count.

    Args:
        rows: Cosines of the n finite clients with each other; they may be written to.
        finite: (m,) bool; n of them are True, and others have no neighbours.
        neighbours: k; n − 1 where it is more.
        together: Clients that are looked at in one go, at most; by default as many as
            `ROWS_NUMBERS` and `ROWS` allow.
        threads: Looks at once; all cores by default.
    """
    from scipy.sparse import csr_array

    who = np.flatnonzero(finite)
    n, m = len(who), len(finite)
    k = min(neighbours, n - 1)
    if k < 1:
        return csr_array((m, m), dtype=np.float64)
    looks = -(-n // max(1, min(ROWS, ROWS_NUMBERS // n) if together is None else together))
    step = -(-n // looks)  # about as many clients in every look

    def look(start: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        near = rows(start, min(start + step, n))
        own = np.arange(start, start + len(near))
        near[own - start, own] = -np.inf
        places = _greatest(near, k)
        return places, np.take_along_axis(near, places, axis=1)

    found = list(in_order(look, range(0, n, step), threads))
    values = np.concatenate([each for _, each in found]).reshape(-1).astype(np.float64)
    own, other = np.repeat(who, k), who[np.concatenate([each for each, _ in found]).reshape(-1)]
    # Each pair both ways, the last first: of a pair that both found, what the later one found.
    rows_of, columns = np.stack([[own, other], [other, own]], axis=-1)[:, ::-1].reshape(2, -1)
    _, first = np.unique(rows_of * m + columns, return_index=True)
    pairs = rows_of[first], columns[first]
    return csr_array((np.repeat(values[::-1], 2)[first], pairs), shape=(m, m))


def _greatest(near: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return (b, k) places of each row's k greatest; of equal ones the first count."""
    least = np.partition(near, -k, axis=1)[:, -k, None]
    chosen = near >= least
    for row in np.flatnonzero(chosen.sum(axis=1) > k):
        tied = np.flatnonzero(near[row] == least[row])
        chosen[row, tied[k - np.count_nonzero(near[row] > least[row]) :]] = False
    return np.nonzero(chosen)[1].reshape(len(near), k)


def pair_rows(pairs: csr_array[np.float64]) -> NDArray[np.intp]:
    """Return the row of each stored number of a sparse matrix."""
    return np.repeat(np.arange(len(pairs.indptr) - 1), np.diff(pairs.indptr))


def _exact(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]] | None,
    norms: NDArray[np.float64],
) -> Rows:
    """Return cosines by products of the updates themselves, some clients' at a time."""

    def rows(start: int, stop: int) -> NDArray[np.float64]:
        products = np.zeros((stop - start, len(clients)))
        for _, block in blocks(clients, origin, EXACT_NUMBERS):
            products += as_numpy(block[start:stop] @ block.T)
        return products / (np.outer(norms[start:stop], norms) + EPSILON)

    return rows
