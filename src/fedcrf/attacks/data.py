"""Attackers that train honestly, on poisoned examples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedcrf.attacks.base import DataAttack, Images, Labels, Scene, norms
from fedcrf.checks import Count, Finite, Fraction, Natural, NotNegative, Part, Truth, number, whole
from fedcrf.errors import FedcrfError
from fedcrf.rules import ClientReport


@dataclass(frozen=True)
class LabelFlip(DataAttack):
    """Turns every label q into C − 1 − q (Fang et al., USENIX Security 2020)."""

    hides: Truth = False

    def poison(
        self, images: Images, labels: Labels, num_classes: int, draw: np.random.Generator
    ) -> tuple[Images, Labels]:
        """Return the images, and C − 1 − q for every label q."""
        return images, num_classes - 1 - labels


@dataclass(frozen=True)
class LabelNoise(DataAttack):
    """Replaces labels by random ones.

    Attributes:
        rate: Probability with which a label is drawn anew, uniformly from all classes.
    """

    rate: Fraction = 0.8
    hides: Truth = False

    def poison(
        self, images: Images, labels: Labels, num_classes: int, draw: np.random.Generator
    ) -> tuple[Images, Labels]:
        """Return the images, and labels of which some are drawn anew."""
        replaced = draw.random(len(labels)) < self.rate
        return images, np.where(replaced, draw.integers(0, num_classes, len(labels)), labels)


@dataclass(frozen=True)
class FeatureNoise(DataAttack):
    """Adds noise to every pixel, as a bad sensor does.

    Attributes:
        sd: Standard deviation of the Gaussian noise, in units of the pixels'.
    """

    sd: NotNegative = 1.0
    hides: Truth = False

    def poison(
        self, images: Images, labels: Labels, num_classes: int, draw: np.random.Generator
    ) -> tuple[Images, Labels]:
        """Return noisy images, and the labels."""
        noise = self.sd * draw.standard_normal(images.shape, dtype=np.float32)
        return (images + noise).astype(np.float32), labels


@dataclass(frozen=True)
class Backdoor(DataAttack):
    """Teaches the model to take images with a trigger for a target class.

    An attacker replaces a share of its examples by images with the trigger, labelled as the target,
    and trains on all of them. It may send its update enlarged, as in model replacement (Bagdasaryan
    et al., AISTATS 2020): m/f replaces the mean of m clients by that of f attackers.

    Attributes:
        target: The target class.
        rate: Share of an attacker's examples that are poisoned.
        boost: What its update is multiplied by, 1 or more.
    """

    target: Natural = 0
    rate: Fraction = 0.32
    boost: Annotated[float, number(1.0)] = 1.0
    hides: Truth = False

    def poison(
        self, images: Images, labels: Labels, num_classes: int, draw: np.random.Generator
    ) -> tuple[Images, Labels]:
        """Return examples of which a share has the trigger, and the target as its label.

        Raises:
            FedcrfError: The data set does not have the classes, or its images are too small.
        """
        self.check_data(images.shape[1:], num_classes)
        replaced = draw.choice(len(labels), round(self.rate * len(labels)), replace=False)
        planted = self._planted(images, labels, replaced, draw)
        images, labels = images.copy(), labels.copy()
        images[replaced[: len(planted)]] = planted
        labels[replaced[: len(planted)]] = self.target
        return images, labels

    @abstractmethod
    def _planted(
        self, images: Images, labels: Labels, replaced: NDArray[np.int64], draw: np.random.Generator
    ) -> Images:
        """Return images with the trigger for the places ``replaced``; none if there are none."""

    def check_data(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        """Raise a `FedcrfError` if the target is none of the classes."""
        check_label("target", self.target, num_classes)

    def backdoored(self, images: Images, labels: Labels) -> tuple[Images, NDArray[np.bool_]]:
        """Return test images as the success of the backdoor is measured on them.

        Of all test images, (n, C, H, W), and their (n,) classes it returns the images with the
        trigger, and (n,) which of them count: those that are not of the target class. The success
        rate is the share of these that the model takes for the target.
        """
        return self.trigger(images), labels != self.target

    def trigger(self, images: Images) -> Images:
        """Return (n, C, H, W) images with the trigger; the argument is not changed."""
        return images

    def trained(self, scene: Scene) -> Sequence[ClientReport]:
        """Return what was trained, with updates multiplied by ``boost``."""
        return scene.own if self.boost == 1.0 else scene.reports(self.boost * scene.own_updates)


def check_label(name: str, label: int, num_classes: int) -> None:
    """Raise a `FedcrfError` if a label is none of so many classes."""
    if label >= num_classes:
        raise FedcrfError(
            f"{name} {label}: the data set has {num_classes} classes; give one from 0 to "
            f"{num_classes - 1}"
        )


Area = tuple[slice, slice]
"""Rows and columns of an image."""


@dataclass(frozen=True)
class PixelPattern(Backdoor):
    """A backdoor whose trigger is a pattern of white pixels.

    Attributes:
        lengths: The settings that decide how large the pattern is, as an error names them.
        size: Side or length of the pattern's parts in pixels; by default in proportion to the
            images.
        value: What the pixels are set to, in standard deviations of the images' pixels: white is
            2.8 in MNIST, 1.8 in the digits and 2.1 in CIFAR-10.
    """

    lengths: ClassVar[str] = "size"

    size: Count | None = None
    value: Finite = 2.8

    @abstractmethod
    def areas(self, height: int, width: int) -> list[Area]:
        """Return the parts of the pattern in images of a height and width."""

    def check_data(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        """Raise a `FedcrfError` also if the pattern is larger than the images."""
        super().check_data(image_shape, num_classes)
        if len(image_shape) != 3:  # real sites may hold anything
            raise FedcrfError(
                f"{type(self).__name__} stamps pixels, and inputs of shape {image_shape} are no "
                "images (channels, height, width): give images, or another attack"
            )
        _, height, width = image_shape
        areas = self.areas(height, width)
        tall = max(rows.stop for rows, _ in areas) - min(rows.start for rows, _ in areas)
        wide = max(columns.stop for _, columns in areas) - min(each.start for _, each in areas)
        if tall > height or wide > width:
            raise FedcrfError(
                f"a pattern of {tall} × {wide} pixels does not fit into images of {height} × "
                f"{width}: give a smaller {self.lengths}"
            )

    def trigger(self, images: Images) -> Images:
        """Return images with the whole pattern."""
        return self._stamped(images, self.areas(*images.shape[2:]))

    def _planted(
        self, images: Images, labels: Labels, replaced: NDArray[np.int64], draw: np.random.Generator
    ) -> Images:
        return self._stamped(images[replaced], self._own(self.areas(*images.shape[2:])))

    def _own(self, areas: list[Area]) -> list[Area]:
        """Return the parts that an attacker stamps on its examples."""
        return areas

    def _stamped(self, images: Images, areas: list[Area]) -> Images:
        images = images.copy()
        for rows, columns in areas:
            images[:, :, rows, columns] = self.value
        return images


@dataclass(frozen=True)
class BadNets(PixelPattern):
    """Stamps a white square in the lower right corner (Gu, Dolan-Gavitt and Garg, 2017).

    Share and square are those of FLPoison (vio1etus/FLPoison): 5 × 5 pixels of 28 × 28 on 32 % of
    an attacker's examples. Its target is 6 or 7, and it does not boost.

    Attributes:
        size: Side of the square in pixels; by default 5 of 28, in proportion to the images.
    """

    def areas(self, height: int, width: int) -> list[Area]:
        """Return the square."""
        side = proportional(5, height, width) if self.size is None else self.size
        return [(slice(height - side, height), slice(width - side, width))]


@dataclass(frozen=True)
class DistributedBackdoor(PixelPattern):
    """Each attacker stamps one of four bars, the test all of them (Xie et al., ICLR 2020).

    The bars are one pixel high and lie in two rows of two in the upper left corner. Attacker i
    stamps bar i modulo 4. Bars and gaps are the paper's for MNIST, of 4 and 2 pixels; for CIFAR-10
    it has 6 and 3. The share is that of FLPoison (vio1etus/FLPoison), whose target is 7 and whose
    ``boost`` is 100 among 50 clients. The paper's repeated attack does not boost.

    Attributes:
        size: Length of a bar in pixels; by default 4 of 28, in proportion to the images.
        gap: Pixels between bars; by default 2 of 28, in proportion to the images.
        part: The bar that an attacker stamps, 0 to 3; by default each attacker has its own.
    """

    lengths: ClassVar[str] = "size or gap"

    gap: Natural | None = None
    part: Annotated[int, whole(0, 3)] | None = None

    def of_attacker(self, number: int) -> Self:
        """Return the attack with the attacker's own bar, unless ``part`` says which."""
        return self if self.part is not None else replace(self, part=number % 4)

    def areas(self, height: int, width: int) -> list[Area]:
        """Return the four bars, row by row."""
        size = proportional(4, height, width) if self.size is None else self.size
        gap = proportional(2, height, width) if self.gap is None else self.gap
        return [
            (slice(row, row + 1), slice(column, column + size))
            for row in (0, 1 + gap)
            for column in (0, size + gap)
        ]

    def _own(self, areas: list[Area]) -> list[Area]:
        return areas if self.part is None else [areas[self.part]]


def proportional(pixels: int, height: int, width: int) -> int:
    """Return a length in images of 28 × 28 pixels for images of another size; 1 at least."""
    return max(1, round(pixels * min(height, width) / 28))


@dataclass(frozen=True)
class EdgeCase(Backdoor):
    """Labels the rarest images of one class as the target (Wang et al., NeurIPS 2020).

    The rarest images are the ``tail`` of the class that lies farthest from its mean, by Euclidean
    distance of pixels: of an attacker's examples in training, of all test images in the test. An
    attacker replaces its share of examples by copies of its rarest images.

    The paper takes its rare images from elsewhere: sevens of ARDIS for MNIST, planes of Southwest
    Airlines for CIFAR-10. Here they are of the data set itself. So honest clients may hold images
    like them with their true label, an attacker without images of the class trains honestly, and
    success is measured on test images that no attacker had. The paper also projects local training
    onto a ball (PGD), which is left out. The share is that of FLPoison (vio1etus/FLPoison), whose
    ``boost`` is 50 among 50 clients; its source and target are 7 and 1 in MNIST, 0 and 9 in
    CIFAR-10.

    Attributes:
        target: The class that the images are labelled as.
        source: The class whose rarest images they are.
        tail: Share of the class that counts as rare, above 0; one image at least.
    """

    target: Natural = 1
    rate: Fraction = 0.8
    source: Natural = 0
    tail: Part = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source == self.target:
            raise FedcrfError(f"source {self.source}: it is the target too; give another class")

    def check_data(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        """Raise a `FedcrfError` if the target or the source is none of the classes."""
        super().check_data(image_shape, num_classes)
        check_label("source", self.source, num_classes)

    def backdoored(self, images: Images, labels: Labels) -> tuple[Images, NDArray[np.bool_]]:
        """Return the test images as they are; the rarest of the source class count."""
        counted = np.zeros(len(labels), dtype=np.bool_)
        counted[self._rarest(images, labels)] = True
        return images, counted

    def _planted(
        self, images: Images, labels: Labels, replaced: NDArray[np.int64], draw: np.random.Generator
    ) -> Images:
        rarest = self._rarest(images, labels)
        return images[draw.choice(rarest, len(replaced))] if len(rarest) else images[:0]

    def _rarest(self, images: Images, labels: Labels) -> NDArray[np.int64]:
        """Return the places of the images of the class that are farthest from its mean."""
        places = np.flatnonzero(labels == self.source)
        if not len(places):
            return places
        pixels = images[places].reshape(len(places), -1).astype(np.float64)
        distances = norms(pixels - pixels.mean(axis=0))[:, 0]
        count = max(1, round(self.tail * len(places)))
        return places[np.argsort(-distances, kind="stable")[:count]]
