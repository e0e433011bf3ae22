"""The digits as two classes, odd or even.

fedcrf run --dataset examples/two_classes.py:odd_or_even --model mlp --methods fedavg,crf-robust
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

TRAINING = 1400
"""Training images; the other 397 are for the test."""


def odd_or_even() -> tuple[NDArray[np.generic], ...]:
    """Return training images and labels, and those of the test: 8×8 pixels, 0 for even."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order] * 15).astype(np.uint8)
    labels = (digits.target[order] % 2).astype(np.int64)
    return images[:TRAINING], labels[:TRAINING], images[TRAINING:], labels[TRAINING:]
