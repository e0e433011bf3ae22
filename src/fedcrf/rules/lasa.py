"""LASA: for every layer, the clients whose sparse update has a usual length and usual signs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Positive, Share
from fedcrf.crf.evidence import clip_factors
from fedcrf.rules.base import AggregationResult, Deciding, Matrix, Round, Vector, average_states
from fedcrf.rules.state import State, floating_names, update_of
from fedcrf.statistics.inputs import blocks

SAME = 1e-9
"""Values that differ by less, relative to the largest, count as the same, as rounding decides."""


@dataclass(frozen=True)
class LASA(Deciding):
    """Layer-adaptive sparsified model aggregation (Xu, Zhang and Hu, WACV 2025).

    Updates are clipped to their median length. Of each, the smallest numbers of all weight tensors
    together (those of two or four dimensions) are set to 0. Then by tensor: a client is kept if its
    length and its balance of signs are fewer than λ standard deviations from the median; if nobody
    is kept, all are. The tensor moves by the plain mean of the kept updates.

    It follows the authors' code (github.com/JiiahaoXU/LASA) and its defaults. That changes updates
    in place, so that what is averaged is sparse. The median of an even number is the mean of the
    middle two; the authors clip to the lower one. A value at its bound is out, and so are all if
    they are equal, despite rounding.

    Attributes:
        norm_bound: λ_n, of lengths.
        sign_bound: λ_s, of signs.
        sparsity: The share of the weights that are set to 0, in [0, 1).
    """

    norm_bound: Positive = 1.0
    sign_bound: Positive = 1.0
    sparsity: Share = 0.3

    def decide(self, given: Round) -> AggregationResult:
        """Return the model moved tensor by tensor."""
        model, norms, finite = given.model, given.norms, given.finite
        used = given.finite_states
        if not used:
            return given.nobody()
        clip = clip_factors(norms, finite, float(np.median(norms[finite])))[finite]
        thresholds = np.array([self._threshold(model, state) for state in used])
        # Of this, integers stay.
        after = average_states(model, given.reports, finite / len(used))
        for name in floating_names(model):
            tensors = [state[name] for state in used]
            self._move(after[name], model[name], tensors, clip, thresholds)
        return given.without_weights(after)  # a report has one for each tensor

    def _threshold(self, model: State, state: State) -> float:
        """Return the size up to which numbers of a client's weight tensors are set to 0."""
        names = [name for name in floating_names(model) if _is_sparse(model[name])]
        sizes = np.abs(update_of(state, model, names))
        if not self.sparsity or not len(sizes):
            return -1.0
        kept = max(1, int(len(sizes) * (1 - self.sparsity)))
        sizes.partition(len(sizes) - kept)
        return float(sizes[len(sizes) - kept])

    def _move(
        self,
        into: NDArray[Any],
        before: NDArray[Any],
        after: Sequence[NDArray[Any]],
        clip: Vector,
        thresholds: Vector,
    ) -> None:
        """Write a tensor of the global model, moved by the clients that are kept in it."""
        layers, origin = [[tensor.reshape(-1)] for tensor in after], [before.reshape(-1)]

        def sparse() -> Iterator[tuple[slice, Matrix]]:
            for where, block in blocks(layers, origin):
                if _is_sparse(before):
                    block[np.abs(block) <= thresholds[:, None]] = 0.0
                yield where, block

        squares, up, down = np.zeros((3, len(after)))
        for _, block in sparse():
            squares += np.einsum("ij,ij->i", block, block)
            up += np.count_nonzero(block > 0, axis=1)
            down += np.count_nonzero(block < 0, axis=1)
        moved = up + down
        share = np.divide(up - down, moved, out=np.full(len(after), np.nan), where=moved > 0)
        balances = 0.5 * (1 + share * (1 - self.sparsity))
        kept = usual(clip * np.sqrt(squares), self.norm_bound) & usual(balances, self.sign_bound)
        if not kept.any():
            kept[:] = True
        steps, flat = clip * kept / kept.sum(), into.reshape(-1)
        for where, block in sparse():
            flat[where] = origin[0][where].astype(np.float64) + steps @ block


def usual(values: Vector, bound: float) -> NDArray[np.bool_]:
    """Return (n,) bool, whose value is fewer than so many standard deviations from the median.

    Nobody's is if the values are the same, or if one of them is not a number.
    """
    away = np.abs(values - np.median(values))
    if not np.ptp(values) > SAME * np.abs(values).max():
        return np.zeros(len(values), np.bool_)
    return np.asarray(away < bound * np.std(values) * (1 - SAME))


def _is_sparse(tensor: NDArray[Any]) -> bool:
    """Tell whether a tensor holds the weights of a layer, whose updates are made sparse."""
    return tensor.ndim in (2, 4)
