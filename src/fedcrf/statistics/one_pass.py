"""Everything a decision needs to know of the updates, from one pass over their coordinates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.statistics import compiled
from fedcrf.statistics.count_sketch import CountSketch
from fedcrf.statistics.inputs import (
    Layers,
    bring_columns,
    finite_clients,
    is_on_gpu,
    num_numbers,
)
from fedcrf.statistics.median import coordinate_median
from fedcrf.statistics.sums import Sums

LOGGER = logging.getLogger("fedcrf")

EPSILON = 1e-12
"""The paper's ε, the same everywhere it appears."""

BLOCK_NUMBERS = 1 << 16
"""Numbers in a block over all clients: 512 KiB in float64, which stays in a second-level cache."""

MANY_NUMBERS = 1 << 17
"""Numbers in a block where little is done with each: going to the clients' rows costs most."""

FEWEST_COLUMNS = 64
"""Columns in a block at least: fewer numbers of a client are not worth going to it for."""


@dataclass(frozen=True, eq=False)
class UpdateGeometry:
    """Lengths and angles of the m updates of a round; nothing here has size d.

    Rows and columns of clients that are not ``finite`` are NaN.

    Attributes:
        dimension: d, the numbers in an update.
        finite: (m,) bool; False where an update holds NaN or infinity, or its squared norm
            overflows float64.
        overflowed: (m,) bool; True where that is all: the numbers are finite, but too large.
        gram: (m, m) float64; inner products ⟨u_i, u_j⟩, of the updates themselves or about their
            mean.
    """

    dimension: int
    finite: NDArray[np.bool_]
    overflowed: NDArray[np.bool_]
    gram: NDArray[np.float64]

    @property
    def num_clients(self) -> int:
        """The number of clients, m."""
        return len(self.finite)

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """(m,) Euclidean norms ‖u_i‖, read-only."""
        norms = np.asarray(np.sqrt(np.diagonal(self.gram)))
        norms.flags.writeable = False  # all who ask get the same
        return norms

    @cached_property
    def cosines(self) -> NDArray[np.float64]:
        """(m, m) cosines ⟨u_i, u_j⟩ / (‖u_i‖ ‖u_j‖ + ε), read-only."""
        norms = self.norms
        cosines = np.asarray(self.gram / (np.outer(norms, norms) + EPSILON))
        cosines.flags.writeable = False
        return cosines


@dataclass(frozen=True, eq=False)
class ModelGeometry(UpdateGeometry):
    """The geometry of the updates themselves, and how the global model w lies to them.

    Attributes:
        origin_inner: (m,) float64; ⟨w, u_i⟩, NaN for clients that are not finite.
        origin_square: ‖w‖².
    """

    origin_inner: NDArray[np.float64]
    origin_square: float

    @cached_property
    def model_cosines(self) -> NDArray[np.float64]:
        """(m, m) cosines of the models w + u_i; 0 with a model of zeros."""
        inner = self.origin_inner
        products = self.gram + inner[:, None] + inner + self.origin_square
        norms = np.sqrt(np.maximum(np.diagonal(products), 0.0))
        scale = np.outer(norms, norms)
        return np.asarray(np.divide(products, scale, out=np.zeros_like(products), where=scale > 0))


@dataclass(frozen=True, eq=False)
class UpdateStatistics(UpdateGeometry):
    """The geometry of the updates, and how they lie to their coordinate-wise median ũ.

    Attributes:
        median_inner: (m,) float64; ⟨u_i, ũ⟩ with ũ the median over the finite clients alone.
        median_distance: (m,) float64; ‖u_i − ũ‖, summed directly (the Gram matrix would cancel).
        median_norm: ‖ũ‖; NaN where no update is finite.
    """

    median_inner: NDArray[np.float64]
    median_distance: NDArray[np.float64]
    median_norm: float


def update_statistics(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]] | None = None,
    threads: int | None = None,
) -> UpdateStatistics:
    """Gather the statistics of the updates block by block; accumulates in float64.

    Many numbers go through compiled code where Numba is installed.

    Args:
        clients: For each of m clients its flat layers, alike in number, size and dtype; tensors
            on a CUDA device are summed there, and m-sized sums alone come to the host.
        origin: The flat layers of the global model, where ``clients`` are models and not yet
            updates; the difference is taken a block at a time.
        threads: Tasks worked on at once by the compiled code; all cores by default. The result
            does not depend on it.

    Returns:
        The statistics. Memory beyond the result does not grow with d: a few blocks of columns, and
        two (m, m) matrices; in compiled code a block for each of T threads, and 2T + 3 matrices.

    Raises:
        FedcrfError: The updates hold no numbers (d = 0).
    """
    dimension = checked_dimension(clients)
    finite, sums = finite_sums(clients, origin, threads)
    return UpdateStatistics(
        dimension=dimension,
        finite=finite,
        overflowed=overflowing(clients, origin, finite),
        gram=scatter(sums.gram, finite, np.nan),
        median_inner=scatter(sums.inner, finite, np.nan),
        median_distance=scatter(np.sqrt(sums.squared_distance), finite, np.nan),
        median_norm=float(np.sqrt(sums.median_square)) if finite.any() else float("nan"),
    )


def finite_sums(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]] | None,
    threads: int | None,
    products: bool = True,
    sketch: CountSketch | None = None,
) -> tuple[NDArray[np.bool_], Sums]:
    """Return (m,) bool, whether each update is finite, and the sums over those that are.

    Args:
        clients: As for `update_statistics`, and the next two.
        origin: The global model.
        threads: Of the compiled code.
        products: Whether the Gram matrix is wanted.
        sketch: The sketch to make of the updates and their median; None for none.
    """
    return excluding(
        len(clients),
        lambda candidates: _sums(
            [clients[i] for i in candidates], origin, threads, products, sketch
        ),
    )


def overflowing(
    clients: Sequence[Layers], origin: Sequence[NDArray[Any]] | None, finite: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return (m,) bool, who is not finite though all numbers are; and warn of it.

    Args:
        clients: As for `update_statistics`.
        origin: As there.
        finite: (m,) bool, as the pass found it.
    """
    found = np.zeros(len(finite), dtype=np.bool_)
    if not finite.all() and (origin is None or finite_clients([list(origin)])[0]):
        left_out = np.flatnonzero(~finite)
        found[left_out] = finite_clients([clients[i] for i in left_out.tolist()])
    if found.any():
        LOGGER.warning(
            "the updates at places %s of the round are finite, but their squared lengths overflow "
            "float64: they count as not finite; hand in updates of numbers below 1e150",
            ", ".join(map(str, np.flatnonzero(found).tolist())),
        )
    return found


def checked_dimension(clients: Sequence[Layers]) -> int:
    """Return d; raise a `FedcrfError` where it is 0."""
    dimension = num_numbers(clients[0])
    if dimension == 0:
        raise FedcrfError("the updates hold no numbers (d = 0): give vectors of at least one")
    return dimension


def centred_geometry(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]] | None = None,
    threads: int | None = None,
) -> UpdateGeometry:
    """Gather the geometry of the updates about their mean, which is all that distances need.

    What the updates have in common is taken away before it is multiplied, so that it does not
    cancel; equal updates are at distance zero to the bit. Arguments as for `update_statistics`.
    """
    dimension = checked_dimension(clients)
    finite, gram = excluding(
        len(clients), lambda candidates: _centred([clients[i] for i in candidates], origin, threads)
    )
    return UpdateGeometry(
        dimension=dimension,
        finite=finite,
        overflowed=overflowing(clients, origin, finite),
        gram=scatter(gram, finite, np.nan),
    )


def model_geometry(
    clients: Sequence[Layers], origin: Layers, threads: int | None = None
) -> ModelGeometry:
    """Gather the inner products of the updates themselves and of the global model.

    It is one pass without a median. The model and a vector of zeros are two more points beside the
    clients' models, and all are taken about their mean: what the models have in common does not
    cancel, and equal models have equal products to the bit.

    Args:
        clients: As for `update_statistics`, the clients' models.
        origin: The flat layers of the global model.
        threads: As there.

    Raises:
        FedcrfError: The updates hold no numbers (d = 0).
    """
    dimension = checked_dimension(clients)
    zeros = [np.zeros_like(layer) for layer in origin]

    def gather(candidates: list[int]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        points = [origin, *(clients[i] for i in candidates), zeros]
        whole, gram = _centred(points, None, threads)
        return whole[1:-1] & whole[0], gram

    finite, gram = excluding(len(clients), gather)
    about = gram - gram[0] - gram[:, :1] + gram[0, 0]  # of the differences from the global model
    np.fill_diagonal(about, np.maximum(np.diagonal(about), 0.0))
    return ModelGeometry(
        dimension=dimension,
        finite=finite,
        overflowed=overflowing(clients, origin, finite),
        gram=scatter(about[1:-1, 1:-1], finite, np.nan),
        origin_inner=scatter(-about[1:-1, -1], finite, np.nan),
        origin_square=float(about[-1, -1]),
    )


def update_norms(
    clients: Sequence[Layers], origin: Layers
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return (m,) whether each update is finite, its square too, and (m,) lengths, NaN if not.

    Args:
        clients: As for `update_statistics`, the clients' models.
        origin: The flat layers of the global model.
    """

    def gather(candidates: list[int]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        squares = np.zeros(len(candidates))
        with np.errstate(over="ignore", invalid="ignore"):
            for block in blocks([clients[i] for i in candidates], origin, MANY_NUMBERS):
                squares += np.einsum("ij,ij->i", block, block)
        return np.isfinite(squares), squares

    finite, squares = excluding(len(clients), gather)
    return finite, scatter(np.sqrt(squares), finite, np.nan)


T = TypeVar("T")


def excluding(
    num_clients: int, gather: Callable[[list[int]], tuple[NDArray[np.bool_], T]]
) -> tuple[NDArray[np.bool_], T]:
    """Return which clients are finite and what was gathered of them: one pass where all are.

    Args:
        num_clients: m.
        gather: Takes clients to whether each is finite, and to the sums over them.
    """
    finite = np.ones(num_clients, dtype=np.bool_)
    while True:
        candidates = np.flatnonzero(finite)
        whole, gathered = gather(candidates.tolist())
        if whole.all():
            return finite, gathered
        finite[candidates[~whole]] = False  # and once more without them: they must touch nothing


def _centred(
    clients: Sequence[Layers], origin: Sequence[NDArray[Any]] | None, threads: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return who is finite and the Gram matrix about the mean, which counts where all are."""
    if clients and is_on_gpu(clients[0][0]):
        from fedcrf.statistics import on_gpu

        return on_gpu.sum_centred(clients, origin)
    if clients and compiled.suits(clients):
        fast = compiled.sum_centred(clients, origin, threads)
        if fast is not None:
            return fast
    return _centre_blocks(clients, origin)


def _centre_blocks(
    clients: Sequence[Layers], origin: Sequence[NDArray[Any]] | None
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    gram = np.zeros((len(clients), len(clients)))
    squares = np.zeros(len(clients))
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks(clients, origin):
            squares += np.einsum("ij,ij->i", block, block)
            if not np.isfinite(squares).all():
                break
            block -= block[0].copy()  # exact for equal updates, as their mean alone is not
            block -= block.mean(axis=0)
            gram += block @ block.T
    return np.isfinite(squares), gram


def _sums(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]] | None,
    threads: int | None,
    products: bool,
    sketch: CountSketch | None,
) -> tuple[NDArray[np.bool_], Sums]:
    """Return who is finite and the sums over all columns, which count where all are."""
    if clients and is_on_gpu(clients[0][0]):
        from fedcrf.statistics import on_gpu

        return on_gpu.sum_columns(clients, origin, products, sketch)
    if clients and compiled.suits(clients):
        fast = compiled.sum_columns(clients, origin, threads, products, sketch)
        if fast is not None:
            return fast
    return _sum_over_blocks(clients, origin, products, sketch)


def _sum_over_blocks(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]] | None,
    products: bool = True,
    sketch: CountSketch | None = None,
) -> tuple[NDArray[np.bool_], Sums]:
    m, first = len(clients), 0
    gram = np.zeros((m, m) if products else (0, 0))
    sketches = np.zeros((m + 1, sketch.size) if sketch is not None else (0, 0))
    sums = Sums(np.zeros(m), gram, np.zeros(m), np.zeros(m), sketches)
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks(clients, origin):
            sums.squares += np.einsum("ij,ij->i", block, block)
            if not np.isfinite(sums.squares).all():
                break
            if products:
                gram += block @ block.T
            middle = coordinate_median(block)
            if sketch is not None:
                signs = sketch.signs(first, first + block.shape[1])
                sketch.add(np.vstack([block, middle]) * signs, first, sketches)
                first += block.shape[1]
            sums.inner += np.einsum("ij,j->i", block, middle)
            sums.median_square += float(np.einsum("j,j->", middle, middle))
            block -= middle
            sums.squared_distance += np.einsum("ij,ij->i", block, block)
    if products:
        # The diagonal by one routine a row: equal updates get norms equal to the last bit.
        np.fill_diagonal(gram, sums.squares)
    return np.isfinite(sums.squares), sums


def blocks(
    clients: Sequence[Layers],
    origin: Sequence[NDArray[Any]] | None,
    numbers: int = BLOCK_NUMBERS,
) -> Iterator[NDArray[np.float64]]:
    """Yield the updates' columns as fresh (m, b) float64 blocks that fit in cache.

    Args:
        clients: For each of m clients its flat layers.
        origin: Flat layers to take away from each client's.
        numbers: In a block, unless the clients are very many.
    """
    if not clients:
        return
    width, dimension = max(FEWEST_COLUMNS, numbers // len(clients)), num_numbers(clients[0])
    for start in range(0, dimension, width):
        block = np.empty((len(clients), min(width, dimension - start)))
        bring_columns(clients, start, block)
        if origin is not None:
            base = np.empty((1, block.shape[1]))
            bring_columns([origin], start, base)
            block -= base
        yield block


def scatter(
    values: NDArray[np.float64], chosen: NDArray[np.bool_], fill: float
) -> NDArray[np.float64]:
    """Place some clients' values among those of all.

    Args:
        values: (n,) a value for each of them, or (n, n) for each pair.
        chosen: (m,) bool; n of them are True.
        fill: What the others have.

    Returns:
        (m,) or (m, m) float64; the values themselves where they are of all.
    """
    if chosen.all():
        return values
    whole = np.full((len(chosen),) * values.ndim, fill)
    whole[np.ix_(*[chosen] * values.ndim)] = values
    return whole
