"""The statistics of very many updates: of pairs, those of nearest neighbours alone.

scikit-learn's brute-force search was tried in place of `nearest`. Of the same estimates of 2,000
clients it finds two thirds of the pairs that ours does: it takes inner products of vectors, from
which what could be chance is not taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Count, Natural, Settings
from fedcrf.extras import check_installed
from fedcrf.statistics.inputs import Layers, Origin, as_numpy, blocks
from fedcrf.statistics.one_pass import (
    EPSILON,
    UpdateStatistics,
    checked_dimension,
    finite_sums,
    scatter,
    shared_attributes,
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

MOST_DIRECTIONS = 32
"""Principal directions that are sought."""

POWERS = 2
"""Products with the sketches that bring random directions close to the principal ones."""

GREATEST_OF_NOISE = 2.0
"""Widths by which the largest singular value of noise may exceed its limit; 99 % are below."""

BEYOND_CHANCE = 5.0
"""Standard deviations beyond which what two sketches share besides is no chance: 6e-7 of pairs."""

Matrix = NDArray[np.float32]

Rows = Callable[[int, int], NDArray[Any]]
"""From the first client of some and one past the last to their cosines with all; not kept."""


@dataclass(frozen=True)
class NeighbourSearch(Settings):
    """The pairs of clients to find: each with its k nearest, by the angle of their updates.

    Attributes:
        neighbours: k ≥ 1; all other clients if there are fewer.
        sketch_size: Numbers in the sketches from which cosines are estimated (`estimated_cosines`).
            Sketches take a second pass; beyond it estimates take O(m²) time for each number of a
            sketch, exact cosines for each of an update. Without it, or if updates have no more
            numbers, cosines are exact.
        sketch_seed: The seed of the sketches' signs. Keep it secret: an attacker that knows it can
            send updates whose sketches mislead.
    """

    neighbours: Count
    sketch_size: Count | None = None
    sketch_seed: Natural = 0


@dataclass(frozen=True, eq=False)
class CrowdStatistics:
    """Statistics of m updates, with the pairs of near neighbours alone.

    Other attributes are those of `UpdateStatistics`.

    Attributes:
        norms: (m,) float64; ‖u_i‖, NaN where not finite.
        cosines: (m, m) float64, sparse and symmetric; ⟨u_i, u_j⟩ / (‖u_i‖ ‖u_j‖ + ε), exact or
            estimated, if one of i and j is among the other's k nearest. Only stored numbers are
            pairs, zeros too.
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
    origin: Origin = None,
    threads: int | None = None,
) -> CrowdStatistics:
    """Gather the statistics of very many updates; no (m, m) matrix is made for more than 4096.

    Everything but the neighbours takes time and memory O(md). Other arguments than the search are
    those of `update_statistics`.

    Raises:
        FedcrfError: The updates hold no numbers (d = 0), or a package is not installed.
    """
    for package in ("scipy", "threadpoolctl"):
        check_installed(package, wanted_by="neighbours: ")
    from threadpoolctl import threadpool_limits

    size, seed = search.sketch_size, search.sketch_seed
    if size is not None and size >= checked_dimension(clients):
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
            rows = estimated_cosines(
                np.vstack([theirs, own]), sums.inner, norms[finite], float(middle), generator
            )
            cosines = nearest(rows, finite, search.neighbours, threads=threads)
        lengths = norms[cosines.tocoo(copy=False).row] * norms[cosines.indices]
        cosines.data *= lengths / (lengths + EPSILON)
    return CrowdStatistics(
        norms=norms, cosines=cosines, **shared_attributes(clients, origin, finite, sums)
    )


def with_nearest(statistics: UpdateStatistics, neighbours: int) -> CrowdStatistics:
    """Return the statistics with each client's nearest neighbours alone, found exactly."""
    cosines = statistics.cosines[np.ix_(statistics.finite, statistics.finite)]
    near = nearest(lambda start, stop: cosines[start:stop], statistics.finite, neighbours)
    names = [each.name for each in fields(CrowdStatistics) if each.name != "cosines"]
    return CrowdStatistics(cosines=near, **{name: getattr(statistics, name) for name in names})


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
        together: The most clients whose rows are made in one task; by default as many as
            `ROWS_NUMBERS` and `ROWS` allow.
        threads: Tasks worked on at once; all cores by default.
    """
    from scipy.sparse import csr_array

    who = np.flatnonzero(finite)
    n, m = len(who), len(finite)
    k = min(neighbours, n - 1)
    if k < 1:
        return csr_array((m, m), dtype=np.float64)
    most = min(ROWS, ROWS_NUMBERS // n) if together is None else together
    tasks = -(-n // max(1, most))
    step = -(-n // tasks)  # about as many clients in every task

    def search(start: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        near = rows(start, min(start + step, n))
        own = np.arange(start, start + len(near))
        near[own - start, own] = -np.inf
        places = _greatest(near, k)
        return places, np.take_along_axis(near, places, axis=1)

    found = list(in_order(search, range(0, n, step), threads))
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


def _exact(clients: Sequence[Layers], origin: Origin, norms: NDArray[np.float64]) -> Rows:
    """Return cosines by products of the updates themselves, some clients' at a time."""

    def rows(start: int, stop: int) -> NDArray[np.float64]:
        products = np.zeros((stop - start, len(clients)))
        for _, block in blocks(clients, origin, EXACT_NUMBERS):
            products += as_numpy(block[start:stop] @ block.T)
        return products / (np.outer(norms[start:stop], norms) + EPSILON)

    return rows


def estimated_cosines(
    sketches: NDArray[np.float64],
    inner: NDArray[np.float64],
    norms: NDArray[np.float64],
    median_norm: float,
    generator: np.random.Generator,
) -> Rows:
    """Return cosines from what sketches hold beside the median, and how they differ there.

    Let c_i = cos(u_i, ũ), which is known exactly, and r_i be u_i without its part along ũ. Then
    cos(u_i, u_j) = c_i c_j + √(1−c_i²) √(1−c_j²) cos(r_i, r_j), and only the last cosine is
    estimated. A sketch adds noise of variance 1/k to the inner products of the r_i, equal in
    all k directions. What many vectors share is larger than the noise. So a direction counts
    if its singular value is above the largest of noise alone: about √n + √k deviations. What the
    sketches hold besides these directions is added where it is larger than chance makes it.

    Args:
        sketches: (n + 1, k); S u_i, and S ũ.
        inner: (n,) ⟨u_i, ũ⟩.
        norms: (n,) ‖u_i‖.
        median_norm: ‖ũ‖.
        generator: Where the search for directions begins.

    References:
        Halko, Martinsson, Tropp, "Finding structure with randomness", SIAM Review 2011.
        Johnstone, "On the distribution of the largest eigenvalue in principal components
        analysis", Annals of Statistics 2001.
    """
    lengths = norms * median_norm
    along = np.divide(inner, lengths, out=np.zeros_like(inner), where=lengths > 0)
    along = np.clip(along, -1.0, 1.0)
    share = inner / median_norm**2 if median_norm > 0 else np.zeros_like(inner)
    off_median = sketches[:-1] - np.outer(share, sketches[-1])
    size = np.sqrt(np.einsum("ij,ij->i", off_median, off_median))
    scale = np.sqrt(1.0 - along**2)
    scale = np.divide(scale, size, out=np.zeros_like(size), where=size > 0)
    rest = (off_median * scale[:, None]).astype(np.float32)
    directions = principal_directions(rest, generator)
    coordinates = rest @ directions
    rest -= coordinates @ directions.T
    known = np.column_stack([along.astype(np.float32), coordinates])
    # What is off the median has this length; the noise of two is 1/√k of their product.
    off = np.sqrt(np.maximum(0.0, 1.0 - known[:, 0] ** 2))

    def rows(start: int, stop: int) -> Matrix:
        chance = np.outer(off[start:stop] * (BEYOND_CHANCE / np.sqrt(rest.shape[1])), off)
        cosines: Matrix = rest[start:stop] @ rest.T
        cosines[np.abs(cosines) <= chance] = 0.0
        cosines += known[start:stop] @ known.T
        return cosines

    return rows


def principal_directions(rows: Matrix, generator: np.random.Generator) -> Matrix:
    """Return the (k, r) orthonormal directions in which (n, k) rows are more than noise."""
    n, k = rows.shape
    sought = min(MOST_DIRECTIONS, min(n, k) // 4)
    if not sought:
        return np.zeros((k, 0), np.float32)
    basis = np.linalg.qr(generator.standard_normal((k, sought), dtype=np.float32))[0]
    for _ in range(POWERS):
        basis = np.linalg.qr(rows.T @ (rows @ basis))[0]
    projected = rows @ basis
    energies, vectors = np.linalg.eigh(projected.T @ projected)
    energies, vectors = energies[::-1].astype(np.float64), vectors[:, ::-1]
    whole, roots = float(np.einsum("ij,ij->i", rows, rows).sum()), np.sqrt(n) + np.sqrt(k)
    # 1 % of matrices of noise have a squared singular value above this, in units of its variance.
    greatest = roots**2 + GREATEST_OF_NOISE * roots * (1 / np.sqrt(n) + 1 / np.sqrt(k)) ** (1 / 3)
    found = 0
    while found < sought:
        noise = max(0.0, whole - energies[:found].sum()) / ((n - found) * (k - found))
        if energies[found] <= noise * greatest:
            break
        found += 1
    return np.asarray(basis @ vectors[:, :found])
