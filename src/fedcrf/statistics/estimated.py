"""Cosines of very many vectors, estimated from their sketches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_DIRECTIONS = 32
"""Principal directions that are sought."""

POWERS = 2
"""Products with the sketches that bring random directions close to the principal ones."""

GREATEST_OF_NOISE = 2.0
"""Widths by which the largest singular value of noise may exceed its limit; 99 % are below."""

BEYOND_CHANCE = 5.0
"""Standard deviations beyond which what two sketches share besides is no chance: 6e-7 of pairs."""

Matrix = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class EstimatedCosines:
    """What the angles of n vectors are estimated from.

    The cosine of two vectors is the inner product of their rows in ``known``. That of their rows in
    ``rest`` is added where it is larger than chance makes it.

    Attributes:
        known: (n, 1 + r) float32; the cosine with the median vector, which is exact, and
            coordinates along the principal directions of the sketches without it.
        rest: (n, k) float32; what the sketches hold besides.
    """

    known: Matrix
    rest: Matrix

    @classmethod
    def of(
        cls,
        sketches: NDArray[Any],
        inner: NDArray[np.float64],
        norms: NDArray[np.float64],
        median_norm: float,
        generator: np.random.Generator,
    ) -> EstimatedCosines:
        """Take the median out of sketches and find the directions in which they differ.

        Let c_i = cos(u_i, ũ), which is known exactly, and r_i be u_i without its part along ũ. Then
        cos(u_i, u_j) = c_i c_j + √(1−c_i²) √(1−c_j²) cos(r_i, r_j), and only the last cosine is
        estimated. A sketch adds noise of variance 1/k to the inner products of the r_i, equal in
        all k directions. What many vectors share is larger than the noise. So a direction counts
        if its singular value is above the largest of noise alone: about √n + √k deviations.

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
        rest = sketches[:-1] - np.outer(share, sketches[-1]).astype(sketches.dtype)
        size = np.sqrt(np.einsum("ij,ij->i", rest, rest))
        scale = np.sqrt(1.0 - along**2)
        scale = np.divide(scale, size, out=np.zeros_like(size), where=size > 0)
        rest = (rest * scale[:, None].astype(rest.dtype)).astype(np.float32, copy=False)
        directions = principal_directions(rest, generator)
        coordinates = rest @ directions
        rest -= coordinates @ directions.T
        return cls(np.column_stack([along.astype(np.float32), coordinates]), rest)

    def rows(self, start: int, stop: int) -> Matrix:
        """Return the (stop − start, n) cosines of some vectors with all."""
        # What is off the median has this length; the noise of two is 1/√k of their product.
        off = np.sqrt(np.maximum(0.0, 1.0 - self.known[:, 0] ** 2))
        chance = np.outer(off[start:stop] * (BEYOND_CHANCE / np.sqrt(self.rest.shape[1])), off)
        cosines: Matrix = self.rest[start:stop] @ self.rest.T
        cosines[np.abs(cosines) <= chance] = 0.0
        cosines += self.known[start:stop] @ self.known.T
        return cosines


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
