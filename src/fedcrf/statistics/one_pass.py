"""Everything a decision needs to know of the updates, from one pass over their coordinates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.statistics import compiled
from fedcrf.statistics.inputs import Layers, Origin, finite_clients, library_of, num_numbers
from fedcrf.statistics.sums import AboutMedian, about_mean, middle_of

LOGGER = logging.getLogger("fedcrf")

EPSILON = 1e-12
"""The paper's ε, the same everywhere it appears."""


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
    clients: Sequence[Layers], origin: Origin = None, threads: int | None = None
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
    finite, sums = finite_sums(clients, origin, threads)
    return UpdateStatistics(
        gram=scatter(sums.gram, finite, np.nan),
        **shared_attributes(clients, origin, finite, sums),
    )


def finite_sums(
    clients: Sequence[Layers], origin: Origin, threads: int | None, products: bool = True
) -> tuple[NDArray[np.bool_], AboutMedian]:
    """Return (m,) bool, whether each update is finite, and the sums over those that are.

    Arguments are those of `update_statistics`; without ``products``, the median is kept in place of
    the Gram matrix.
    """
    checked_dimension(clients)

    def gather(used: list[Layers]) -> tuple[NDArray[np.bool_], AboutMedian]:
        sums = compiled.about_median(used, origin, threads, products)
        sums = sums or AboutMedian.plain(used, origin, products)
        return sums.finite, sums

    return excluding(clients, gather)


def shared_attributes(
    clients: Sequence[Layers], origin: Origin, finite: NDArray[np.bool_], sums: AboutMedian
) -> dict[str, Any]:
    """Return by name the attributes that statistics of all pairs and of near ones have alike."""
    return {
        "dimension": num_numbers(clients[0]),
        "finite": finite,
        "overflowed": overflowing(clients, origin, finite),
        "median_inner": scatter(sums.inner, finite, np.nan),
        "median_distance": scatter(np.sqrt(sums.squared_distance), finite, np.nan),
        "median_norm": float(np.sqrt(sums.median_square)) if finite.any() else float("nan"),
    }


def overflowing(
    clients: Sequence[Layers], origin: Origin, finite: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return (m,) bool, and warn: who is not ``finite`` in the pass, though all numbers are."""
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
    """Return d; raise a `FedcrfError` where it is 0, or where there is no client."""
    if not len(clients):
        raise FedcrfError("there are no updates: give one for each client")
    dimension = num_numbers(clients[0])
    if dimension == 0:
        raise FedcrfError("the updates hold no numbers (d = 0): give vectors of at least one")
    return dimension


def centred_geometry(
    clients: Sequence[Layers], origin: Origin = None, threads: int | None = None
) -> UpdateGeometry:
    """Gather the geometry of the updates about their mean, which is all that distances need.

    What the updates have in common is taken away before it is multiplied, so that it does not
    cancel; equal updates are at distance zero to the bit. Where one update is more than 10⁴ times
    as long as the median one, the geometry is about the median one instead. Arguments as for
    `update_statistics`.
    """
    dimension = checked_dimension(clients)
    finite, gram = excluding(clients, lambda used: _about_mean(used, origin, threads))
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
    zeros = [library_of(layer).zeros_like(layer) for layer in origin]

    def gather(used: list[Layers]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        finite, gram = _about_mean([origin, *used, zeros], None, threads)
        return finite[1:-1] & finite[0], gram

    finite, gram = excluding(clients, gather)
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


T = TypeVar("T")


def excluding(
    clients: Sequence[Layers], gather: Callable[[list[Layers]], tuple[NDArray[np.bool_], T]]
) -> tuple[NDArray[np.bool_], T]:
    """Return which of m clients are finite and what was gathered of them: one pass where all are.

    ``gather`` is given some of the clients. It returns whether each of these is finite, and the
    sums over them, which are valid only where all are.
    """
    finite = np.ones(len(clients), dtype=np.bool_)
    while True:
        candidates = np.flatnonzero(finite)
        whole, gathered = gather([clients[i] for i in candidates.tolist()])
        if whole.all():
            return finite, gathered
        finite[candidates[~whole]] = False  # and once more without them: they must touch nothing


def _about_mean(
    clients: Sequence[Layers], origin: Origin, threads: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return who is finite, and the products about the mean, by compiled code where it can.

    One update of any length must not hide what the others are like. So where one is very long, the
    products are about one of median length.
    """
    fast = compiled.about_mean(clients, origin, threads)
    squares, gram = fast or about_mean(clients, origin)
    finite = np.isfinite(squares)
    if finite.all() and (middle := middle_of(squares)) is not None:
        _, gram = about_mean(clients, origin, middle)
    return finite, gram


def scatter(
    values: NDArray[np.float64], chosen: NDArray[np.bool_], fill: float
) -> NDArray[np.float64]:
    """Place some clients' values among those of all; these are the values where all are chosen.

    (n,) values of the n chosen of m become (m,), and (n, n) become (m, m); others have ``fill``.
    """
    if chosen.all():
        return values
    whole = np.full((len(chosen),) * values.ndim, fill)
    whole[np.ix_(*[chosen] * values.ndim)] = values
    return whole
