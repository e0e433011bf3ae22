"""Exact marginals of the client CRF by summing over every labelling: the truth for small m."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcrf.crf.potentials import Pairs, label_compatibility
from fedcrf.errors import FedcrfError

MOST_LABELLINGS = 1 << 22
"""Labellings beyond which the sum no longer fits comfortably in memory (32 MiB of float64)."""


def exact_marginals(
    unary: ArrayLike,
    affinity: ArrayLike | Pairs,
    labels: Sequence[float] | NDArray[np.float64],
    pairwise_strength: float,
) -> NDArray[np.float64]:
    """Return the marginals that mean field approximates, by brute force over all L^m labellings.

    The model is p(z) ∝ exp(−Σ_i ψ_u(z_i) − Σ_{i<j} λ A_ij (z_i − z_j)²).

    Args:
        unary: (m, L) energies ψ_u, such as ``posterior.unary``.
        affinity: (m, m) symmetric affinities A, such as ``posterior.affinity``, also a sparse
            matrix; the diagonal is not read.
        labels: (L,) labels q.
        pairwise_strength: λ.

    Returns:
        (m, L) float64 marginals; rows sum to 1.

    Raises:
        FedcrfError: Shapes that do not fit together, or too many labellings (more than 2²²: at
            L = 3 from m = 14 on).
    """
    psi = np.asarray(unary, dtype=np.float64)
    toarray = getattr(affinity, "toarray", None)  # of a sparse matrix
    edges = np.asarray(toarray() if toarray else affinity, dtype=np.float64)
    values = np.asarray(labels, dtype=np.float64)
    if psi.ndim != 2 or edges.shape != (len(psi),) * 2 or values.shape != psi.shape[1:]:
        raise FedcrfError(
            f"unary {psi.shape}, affinity {edges.shape} and labels {values.shape} do not fit: "
            "give (m, L), (m, m) and (L,)"
        )
    m, num_labels = psi.shape
    if m == 0 or num_labels == 0:
        raise FedcrfError("there are no clients or no labels: give at least one of each")
    if num_labels**m > MOST_LABELLINGS:
        raise FedcrfError(
            f"{num_labels} labels for {m} clients make {num_labels}^{m} labellings, more than "
            f"{MOST_LABELLINGS}: use mean field, or fewer clients"
        )
    if num_labels == 1:  # one labelling, of more clients than an array may have dimensions
        return np.ones((m, 1))

    def along(table: NDArray[np.float64], *clients: int) -> NDArray[np.float64]:
        """View a table over some clients' labels as a table over everybody's."""
        return table.reshape([num_labels if i in clients else 1 for i in range(m)])

    compatibility = label_compatibility(values)
    energy = np.zeros((num_labels,) * m)
    for i in range(m):
        energy += along(psi[i], i)
        for j in range(i + 1, m):
            energy += along(pairwise_strength * edges[i, j] * compatibility, i, j)
    joint = np.exp(energy.min() - energy)
    joint /= joint.sum()
    return np.stack([joint.sum(axis=tuple(j for j in range(m) if j != i)) for i in range(m)])
