"""Attackers that train honestly, on poisoned examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcrf.attacks.base import DataAttack, Images, Labels
from fedcrf.checks import check_number


@dataclass(frozen=True)
class LabelFlip(DataAttack):
    """Turns every label q into C − 1 − q (Fang et al., USENIX Security 2020).

    Attributes:
        hides: See `DataAttack.hides`.
    """

    hides: bool = False

    def poison(
        self, images: Images, labels: Labels, num_classes: int, draw: np.random.Generator
    ) -> tuple[Images, Labels]:
        """See `Attack.poison`."""
        return images, num_classes - 1 - labels


@dataclass(frozen=True)
class LabelNoise(DataAttack):
    """Replaces labels by random ones.

    Attributes:
        rate: Probability with which a label is drawn anew, uniformly from all classes.
        hides: See `DataAttack.hides`.
    """

    rate: float = 0.8
    hides: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rate", self.rate, 0.0, 1.0)

    def poison(
        self, images: Images, labels: Labels, num_classes: int, draw: np.random.Generator
    ) -> tuple[Images, Labels]:
        """See `Attack.poison`."""
        replaced = draw.random(len(labels)) < self.rate
        return images, np.where(replaced, draw.integers(0, num_classes, len(labels)), labels)


@dataclass(frozen=True)
class FeatureNoise(DataAttack):
    """Adds noise to every pixel, as a bad sensor does.

    Attributes:
        sd: Standard deviation of the Gaussian noise, in units of the pixels'.
        hides: See `DataAttack.hides`.
    """

    sd: float = 1.0
    hides: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("sd", self.sd, 0.0)

    def poison(
        self, images: Images, labels: Labels, num_classes: int, draw: np.random.Generator
    ) -> tuple[Images, Labels]:
        """See `Attack.poison`."""
        noise = self.sd * draw.standard_normal(images.shape, dtype=np.float32)
        return (images + noise).astype(np.float32), labels
