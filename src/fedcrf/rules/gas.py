"""GAS: clients are judged group by group of the model's coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Count, Natural, one_of
from fedcrf.rules.base import AggregationResult, Deciding, Round
from fedcrf.statistics.inputs import BLOCK_NUMBERS, Layers
from fedcrf.statistics.median import NETWORK_LIMIT, ranks
from fedcrf.statistics.one_pass import checked_dimension
from fedcrf.statistics.sums import middle_of

Groups = NDArray[np.float64]
"""(m, g, c): of m updates, g groups of c coordinates, about their mean or one of them."""


@dataclass(frozen=True)
class GAS(Deciding):
    """The plain mean of the m − f updates nearest to a robust one, by groups (Liu et al., 2023).

    Coordinates are dealt at random into groups, anew each round. In each group a robust rule gives
    a vector; a client's score is the sum over the groups of its distance to that (ICML 2023).
    Settings are those of the authors' code, YuchenLiu-a/byzantine-gas: 1,000 groups, or fewer if
    equal ones of ⌈d/1000⌉ coordinates are fewer, and Bulyan. The rule within a group has the code's
    form: Krum is the mean of the m − f best, the median of an even number is the lower one, and f
    is at most (m − 3)/4 for Bulyan, (m − 3)/2 for Krum and (m − 1)/2 for the trimmed mean, rounded
    down. In one thing this follows the papers and not the code: Bulyan takes the mean of the values
    nearest to the median. The code takes the mean of their distances to the median.

    Attributes:
        groups: How many groups.
        base: The rule within a group: bulyan, krum, median or trimmed-mean.
        num_byzantine: f (see `Deciding`); with 0 the rule is `Uniform`.
        seed: Of the draws of groups (see `Deciding`).
    """

    remembers: ClassVar[bool] = True

    groups: Count = 1000
    base: Annotated[str, one_of(BASES)] = "bulyan"
    num_byzantine: Natural | None = None
    seed: Natural | None = None

    def decide(self, given: Round) -> AggregationResult:
        """Return the mean of the chosen clients' models."""
        draw, kept = given.drawing(self.seed)
        n = len(given.used)
        chosen = np.ones(n, np.bool_)
        if self.num_byzantine and n > 1:
            middle = middle_of(given.norms[given.used] ** 2)
            scores = np.zeros(n)  # over the groups the distances to the base rule's vector
            for groups in dealt(given.finite_layers, self.groups, draw, middle):
                groups -= BASES[self.base](groups, self.num_byzantine)
                scores += np.sqrt(np.einsum("mgc,mgc->mg", groups, groups)).sum(axis=1)
            chosen[given.in_order(scores)[max(1, n - self.num_byzantine) :]] = False
        return given.weighted(given.equal_weights(chosen), memory=kept)


def dealt(
    models: Sequence[Layers],
    num_groups: int,
    draw: np.random.Generator,
    middle: int | None = None,
) -> Iterator[Groups]:
    """Yield the groups of randomly dealt coordinates, several at a time, in fresh arrays.

    All models are finite. There are fewer groups than asked for if equal sizes need fewer; the last
    one is filled up with zeros. Groups are about the mean, or about a middle model by its place.
    """
    sizes = [len(layer) for layer in models[0]]
    size = -(-checked_dimension(models) // num_groups)
    places = draw.permutation(sum(sizes))
    width = size * max(1, BLOCK_NUMBERS // (len(models) * size))
    for start in range(0, sum(sizes), width):
        columns = places[start : start + width]
        block = np.zeros((len(models), -(-len(columns) // size) * size))
        for number, (targets, sources) in enumerate(_found(columns, sizes)):
            # From one client's on: so equal updates are equal to the bit. No place is outside a
            # layer, and this mode looks for none.
            first = models[middle or 0][number].take(sources, mode="clip").astype(np.float64)
            for layers, row in zip(models, block, strict=True):
                row[targets] = layers[number].take(sources, mode="clip") - first
        if middle is None:
            block -= block.mean(axis=0)
        yield block.reshape(len(models), -1, size)


def _found(
    columns: NDArray[np.intp], sizes: Sequence[int]
) -> list[tuple[slice | NDArray[np.intp], NDArray[np.intp]]]:
    """Return by layer which of the columns lie in it, and where."""
    if len(sizes) == 1:  # there is nothing to look for, which takes a fifth of the time
        return [(slice(0, len(columns)), columns)]
    ends = np.cumsum(sizes)
    layer = np.searchsorted(ends, columns, side="right")
    chosen = [np.flatnonzero(layer == number) for number in range(len(sizes))]
    return [
        (each, columns[each] - (end - size))
        for each, end, size in zip(chosen, ends, sizes, strict=True)
    ]


# --- the rules within a group: (m, g, c) and f -> (g, c) --------------------------------------


def _nearest(groups: Groups, f: int, count: int) -> Groups:
    """Return (count, g, c): in each group the updates with the best Krum scores."""
    if count == len(groups):
        return groups
    parts = groups.swapaxes(0, 1)
    gram = parts @ parts.swapaxes(1, 2)
    squares = np.einsum("gii->gi", gram)
    squared = np.maximum(squares[:, :, None] + squares[:, None, :] - 2.0 * gram, 0.0)
    np.einsum("gii->gi", squared)[:] = 0.0  # each is its own nearest, as in the source
    squared.sort(axis=2)
    scores = squared[:, :, : max(1, len(groups) - f - 1)].sum(axis=2)
    chosen = np.argsort(scores, axis=1, kind="stable")[:, :count]
    return np.asarray(groups[chosen.T, np.arange(len(parts))])


def _krum(groups: Groups, f: int) -> NDArray[np.float64]:
    m = len(groups)
    f = min(f, max(0, (m - 3) // 2))
    return np.asarray(_nearest(groups, f, m - f).mean(axis=0))


def _bulyan(groups: Groups, f: int) -> NDArray[np.float64]:
    """Return the mean of the m − 4f values nearest to the median of the m − 2f best updates."""
    m = len(groups)
    f = min(f, max(0, (m - 3) // 4))
    ranked = _ranked(_nearest(groups, f, m - 2 * f))
    kept = m - 4 * f
    # The nearest values lie together in order: of 2f + 1 runs, the one that reaches least far.
    middle = ranked[(len(ranked) - 1) // 2]
    total = np.sum(ranked[:kept], axis=0)
    reach = np.maximum(middle - ranked[0], ranked[kept - 1] - middle)
    nearest = total.copy()
    for first in range(1, 2 * f + 1):
        total += ranked[first + kept - 1] - ranked[first - 1]
        other = np.maximum(middle - ranked[first], ranked[first + kept - 1] - middle)
        nearer = other < reach
        np.copyto(nearest, total, where=nearer)
        np.copyto(reach, other, where=nearer)
    return np.asarray(nearest / kept)


def _median(groups: Groups, f: int) -> NDArray[np.float64]:
    return np.asarray(_ranked(groups)[(len(groups) - 1) // 2])


def _trimmed_mean(groups: Groups, f: int) -> NDArray[np.float64]:
    f = min(f, (len(groups) - 1) // 2)
    return np.asarray(np.mean(_ranked(groups)[f : len(groups) - f], axis=0))


def _ranked(groups: Groups) -> Sequence[NDArray[np.float64]]:
    """Return m arrays of (g, c): the values of every coordinate in order."""
    if len(groups) > NETWORK_LIMIT:
        return np.sort(groups, axis=0)  # type: ignore[return-value]  # rows are a sequence too
    return ranks(groups, 0, len(groups))


BASES: Mapping[str, Callable[[Groups, int], NDArray[Any]]] = {
    "bulyan": _bulyan,
    "krum": _krum,
    "median": _median,
    "trimmed-mean": _trimmed_mean,
}
