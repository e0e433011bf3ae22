"""Decoded images with their labels, whatever their source, and on disk: decoded once."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcrf.errors import FedcrfError
from fedcrf.files import CACHE_VARIABLE, atomic_write, cache_folder, write_text

MOST_GAPS = 1 << 15
"""Labels below this may have gaps, however few the examples: ImageNet-21k has 21,841 classes."""

# Enough images at once to keep NumPy busy, few enough that the int64 copies stay small.
_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class Normalisation:
    """Mean and standard deviation of raw pixel values by channel, ``(C,)`` float64.

    The latter is the population's; 1 where it would be 0, since images are divided by it.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images with their labels.

    The arrays are read-only, and memory-mapped if they come from the cache: index first, then
    convert.

    Attributes:
        images: ``(n, C, H, W)`` uint8; float32 of examples that are no images of bytes.
        labels: ``(n,)`` int64, from 0 to the number of classes less one.
    """

    images: NDArray[Any]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        for array in (self.images, self.labels):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.labels)

    def normalisation(self, indices: ArrayLike | None = None) -> Normalisation:
        """Return the exact per-channel mean and standard deviation over some of the images.

        ``indices`` are integer positions or a boolean mask; all images by default, one at least.
        """
        chosen = np.arange(len(self))
        if indices is not None:
            where = np.asarray(indices)
            chosen = chosen[where if where.dtype == np.bool_ else where.astype(np.int64)]
        count = len(chosen) * math.prod(self.images.shape[2:])
        if count == 0:
            raise FedcrfError("no images to take the mean and standard deviation of.")
        if self.images.dtype != np.uint8:
            values = self.images[chosen].astype(np.float64)
            constant = values.max(axis=(0, 2, 3)) == values.min(axis=(0, 2, 3))
            std = np.where(constant, 1.0, values.std(axis=(0, 2, 3)))
            return Normalisation(mean=values.mean(axis=(0, 2, 3)), std=std)
        channels = self.images.shape[1]
        occurrences = np.zeros((channels, 256), dtype=np.int64)  # of each value, by channel
        for start in range(0, len(chosen), _BLOCK):
            block = self.images[chosen[start : start + _BLOCK]]
            for channel in range(channels):
                occurrences[channel] += np.bincount(block[:, channel].ravel(), minlength=256)
        pixels = np.arange(256)
        # Python's integers do not overflow, and the subtraction of whole ones cancels nothing.
        sums, squares = (occurrences @ pixels).tolist(), (occurrences @ pixels**2).tolist()
        deviations = [
            math.sqrt(count * square - total * total) / count or 1.0
            for total, square in zip(sums, squares, strict=True)
        ]
        return Normalisation(np.array([total / count for total in sums]), np.array(deviations))


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A data set for image classification.

    Attributes:
        name: The name by which it was loaded.
        train: The images that are shared out to the clients.
        held_out: The data set's own test images; None without labelled ones.
        class_names: One name per class, in the order of the labels.
        fingerprint: First 16 hexadecimal digits of the SHA-256 of the decoded arrays; by default
            they are computed.
        sites: The names of real sites, whose examples stand one behind the other; None where a
            partition deals them out.
    """

    name: str
    train: LabelledImages
    held_out: LabelledImages | None
    class_names: tuple[str, ...]
    fingerprint: str = ""
    sites: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", _fingerprint(self.train, self.held_out))

    @property
    def num_classes(self) -> int:
        """The number of classes, with or without examples."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width

    def limited(self, count: int) -> Self:
        """Return ``count`` of the training images, evenly spread, and at most as many held out."""
        if not 0 < count <= len(self.train):
            raise FedcrfError(
                f"--limit {count}: {self.name} has {len(self.train)} training images, "
                "give 1 to as many."
            )
        held_out = self.held_out and _thinned(self.held_out, count)
        return replace(
            self,
            train=_thinned(self.train, count),
            held_out=held_out,
            fingerprint=f"{self.fingerprint}-{count}",
        )


def numbered_classes(labels: Mapping[str, NDArray[Any]], mend: str = "") -> tuple[str, ...]:
    """Return the names of classes that are numbers, from 0 to the largest label.

    ``labels`` are whole numbers from 0 on, by what errors call those that hold them.

    Raises:
        FedcrfError: A label is `MOST_GAPS` or more, and no smaller than the number of examples: a
            date or an id, whose classes would fill the memory. It ends with the mend.
    """
    largest = {called: int(each.max()) for called, each in labels.items()}
    where = max(largest, key=largest.__getitem__)
    if largest[where] >= max(MOST_GAPS, sum(map(len, labels.values()))):
        different = len(np.unique(np.concatenate([*labels.values()])))
        raise FedcrfError(
            f"{where} has label {largest[where]}, and there are {different} different labels: "
            f"number them from 0{mend}"
        )
    return tuple(map(str, range(largest[where] + 1)))


def _thinned(images: LabelledImages, count: int) -> LabelledImages:
    if count >= len(images):
        return images
    kept = np.arange(count) * len(images) // count
    return LabelledImages(images.images[kept], images.labels[kept])


def _fingerprint(train: LabelledImages, held_out: LabelledImages | None) -> str:
    digest = hashlib.sha256()
    for part in (train, held_out):
        if part is None:
            continue
        # Shapes keep two different sets of arrays with the same bytes apart.
        digest.update(repr(part.images.shape).encode())
        for start in range(0, len(part), _BLOCK):
            digest.update(np.ascontiguousarray(part.images[start : start + _BLOCK]).tobytes())
        digest.update(part.labels.astype("<i8").tobytes())
    return digest.hexdigest()[:16]


# Raise it whenever reading or decoding gives other arrays than before, or the layout changes.
_FORMAT_VERSION = 1
_DESCRIPTION = "entry.json"

_logger = logging.getLogger(__name__)


def cached_dataset(
    name: str,
    identity: Mapping[str, object],
    build: Callable[[], ImageDataset],
    cache_dir: Path | None = None,
) -> ImageDataset:
    """Return the data set from the cache; build and store it first if it is not there.

    Each file of an entry appears whole or not at all, the one that describes it last, and all
    processes write the same. So any number of them may share a cache. A damaged entry is built
    again. If the folder cannot be written, the data set is returned all the same, with a warning.

    ``identity`` is everything that the decoded arrays depend on, as JSON values; ``build`` reads
    and decodes them. The cache lies in `fedcrf.files.cache_folder` by default.
    """
    described = json.dumps({"format": _FORMAT_VERSION, **identity}, sort_keys=True)
    digest = hashlib.sha256(described.encode()).hexdigest()[:16]
    folder = f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{digest}"
    entry = (cache_dir or cache_folder()) / "datasets" / folder
    cached = _load(name, entry)
    if cached is not None:
        return cached
    dataset = build()
    try:
        _store(dataset, entry)
    except OSError as error:
        _logger.warning(
            "cannot keep the decoded data set '%s' in %s (%s): it is decoded anew at every start; "
            "point %s to a folder that can be written.",
            name,
            entry.parent,
            error,
            CACHE_VARIABLE,
        )
        return dataset
    # From the file, the images need no memory of their own.
    return _load(name, entry) or dataset


def _load(name: str, entry: Path) -> ImageDataset | None:
    """Read an entry; None where there is none, or where it is damaged."""
    try:
        description = json.loads((entry / _DESCRIPTION).read_text(encoding="utf-8"))
        held_out = _load_part(entry, "held_out") if description["has_held_out"] else None
        return ImageDataset(
            name=name,
            train=_load_part(entry, "train"),
            held_out=held_out,
            class_names=tuple(description["class_names"]),
            fingerprint=description["fingerprint"],
        )
    except (FileNotFoundError, NotADirectoryError):
        # Also a damaged entry that lacks a file: storing replaces it.
        return None
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        _logger.warning("the cache entry %s is unreadable (%s) and is built again.", entry, error)
        return None


def _load_part(entry: Path, part: str) -> LabelledImages:
    arrays = {
        field.name: np.load(entry / f"{part}_{field.name}.npy", mmap_mode="r")
        for field in fields(LabelledImages)
    }
    images = LabelledImages(**arrays)
    if images.images.ndim != 4 or images.labels.shape != images.images.shape[:1]:
        raise ValueError(f"the {part} arrays do not fit together")
    return images


def _store(dataset: ImageDataset, entry: Path) -> None:
    entry.mkdir(parents=True, exist_ok=True)
    for part, images in (("train", dataset.train), ("held_out", dataset.held_out)):
        if images is None:
            continue
        for field in fields(LabelledImages):
            with atomic_write(entry / f"{part}_{field.name}.npy") as file:
                np.save(file, getattr(images, field.name))
    description = {
        "name": dataset.name,
        "class_names": dataset.class_names,
        "fingerprint": dataset.fingerprint,
        "has_held_out": dataset.held_out is not None,
    }
    # The last file: without it there is no entry.
    write_text(entry / _DESCRIPTION, json.dumps(description, indent=2))
