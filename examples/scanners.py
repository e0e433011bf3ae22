"""Honest sites with another scanner: three of ten show the digits otherwise, with true labels.

fedcrf run --dataset examples/scanners.py:turned --partition examples/scanners.py:BY_SCANNER \
    --model mlp --learning-rate 0.1 --batch-size 16 --clients 30 --methods fedavg,crf-robust
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedcrf.data import PartitionScheme, PartitionSettings

OTHERWISE = 0.3
"""The share of the images and of the clients that have the other scanner; these come first."""

TRAINING = 1400
"""Training images; the other 397 are for the test."""

Images = NDArray[np.uint8]


def _digits(scanned: Callable[[Images], Images]) -> tuple[NDArray[np.generic], ...]:
    """Return training images and labels, and those of the test: 8×8 pixels."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = (digits.images[order] * 15).astype(np.uint8), digits.target[order]
    parts: list[NDArray[np.generic]] = []
    for part in (slice(TRAINING), slice(TRAINING, None)):
        taken = images[part]
        first = round(OTHERWISE * len(taken))
        parts += [np.concatenate([scanned(taken[:first]), taken[first:]]), labels[part]]
    return tuple(parts)


def turned() -> tuple[NDArray[np.generic], ...]:
    """Return digits of which the other scanner turns each by a right angle."""
    return _digits(lambda images: np.rot90(images, axes=(1, 2)))


def mixed() -> tuple[NDArray[np.generic], ...]:
    """Return digits of which the other scanner mixes the pixels, of each alike."""
    pixels = np.random.default_rng(1).permutation(64)
    return _digits(lambda images: images.reshape(-1, 64)[:, pixels].reshape(images.shape))


def negative() -> tuple[NDArray[np.generic], ...]:
    """Return digits of which the other scanner shows negatives."""
    return _digits(lambda images: 240 - images)


def dim() -> tuple[NDArray[np.generic], ...]:
    """Return digits of which the other scanner shows three tenths of the brightness."""
    return _digits(lambda images: images // 10 * 3)


def by_scanner(
    labels: NDArray[np.int64], settings: PartitionSettings, generator: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Deal the images of each scanner out to the clients that have it, at random."""
    clients = []
    images, first = round(OTHERWISE * len(labels)), round(OTHERWISE * settings.num_clients)
    places = np.split(np.arange(len(labels)), [images])
    for chosen, count in zip(places, (first, settings.num_clients - first), strict=True):
        clients += np.array_split(generator.permutation(chosen), count)
    return clients


BY_SCANNER = PartitionScheme(
    "three of ten have the other scanner, all else is IID.",
    by_scanner,
    ignores=frozenset({"alpha", "gamma"}),
)
