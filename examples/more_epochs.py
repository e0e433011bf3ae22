"""Honest sites that do more local epochs: "attackers" that train on their examples five times.

fedcrf run --attack examples/more_epochs.py:MoreEpochs --attackers 9 --clients 30 \
    --dataset digits --partition iid --model mlp --learning-rate 0.1 --batch-size 16 \
    --methods fedavg,crf-robust
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcrf.attacks import DataAttack
from fedcrf.checks import whole


@dataclass(frozen=True)
class MoreEpochs(DataAttack):
    """Train so many times as many local epochs as others; the reported count stays the true one.

    Attributes:
        times: How many times as many.
    """

    times: Annotated[int, whole(1)] = 5
    hides: bool = False

    def poison(
        self,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        num_classes: int,
        draw: np.random.Generator,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the examples as often as they are trained on in a round."""
        return np.tile(images, (self.times, 1, 1, 1)), np.tile(labels, self.times)
