"""The three origins of a data set: an installed library, a folder, the hub."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedcrf.data.dataset import ImageDataset, LabelledImages
from fedcrf.data.decoding import RawTable, image_block, join_blocks
from fedcrf.data.tables import RawSplits, ReadOptions, decode_splits
from fedcrf.errors import FedcrfError

DATA_VARIABLE = "FEDCRF_DATA"

HELD_OUT_SPLITS = ("test", "validation", "valid", "val")
"""Names of a held-out part; the first that exists counts."""


class Origin(Protocol):
    """Where one data set was found."""

    def identity(self) -> Mapping[str, object]:
        """Describe, in JSON values, all that the encoded data depends on."""
        ...

    def decode(self, options: ReadOptions) -> ImageDataset:
        """Read and decode the data.

        Raises:
            FedcrfError: If that does not work; the message names the mend.
        """
        ...


@dataclass(frozen=True)
class EmbeddedSource:
    """A data set that comes with an installed library.

    Attributes:
        description: One line for a list of data sets.
        read: Returns grey images ``(n, H, W)`` uint8 and labels ``(n,)`` int64.
        num_held_out: How many of the last images are the held-out ones.
        class_names: The names of the classes, in the labels' order.
    """

    description: str
    read: Callable[[], tuple[NDArray[np.uint8], NDArray[np.int64]]]
    num_held_out: int
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class EmbeddedOrigin:
    """An installed library that carries the data.

    Attributes:
        name: The data set's name.
        source: How to read it.
    """

    name: str
    source: EmbeddedSource

    def identity(self) -> Mapping[str, object]:
        """Describe the source; changed code of the reader makes it another one."""
        try:
            reader = inspect.getsource(self.source.read)
        except (OSError, TypeError):  # typed in, or no function of Python's
            reader = ""
        return {
            "embedded": self.name,
            "num_held_out": self.source.num_held_out,
            "class_names": self.source.class_names,
            "reader": reader,
        }

    def decode(self, options: ReadOptions) -> ImageDataset:
        """Read the library's arrays, resize them, and cut off the held-out ones."""
        _check_no_columns(self.name, options)
        images, labels = self.source.read()
        cut = len(labels) - self.source.num_held_out
        train, held_out = (
            _labelled(self.name, images[rows], labels[rows], options)
            for rows in (slice(cut), slice(cut, None))
        )
        return ImageDataset.from_parts(self.name, train, held_out, self.source.class_names)


def dataset_of(name: str, arrays: object, options: ReadOptions) -> ImageDataset:
    """Return the data set of arrays that a function from outside returns.

    Args:
        name: The data set's name.
        arrays: Images and labels, then those of a held-out part if there is one: (n, H, W) or
            (n, H, W, 3) whole numbers from 0 to 255, and (n,) whole numbers from 0 on.
        options: May resize the images.

    Raises:
        FedcrfError: The arrays have another form.
    """
    _check_no_columns(name, options)
    mend = (
        "return images, labels, or images, labels, test_images, test_labels: (n, H, W) or "
        "(n, H, W, 3) whole numbers from 0 to 255, and (n,) whole numbers from 0 on"
    )
    if not isinstance(arrays, tuple) or len(arrays) not in (2, 4):
        raise FedcrfError(f"data set '{name}' makes a {type(arrays).__name__}: {mend}")
    parts = []
    for images, labels in (arrays[:2], arrays[2:])[: len(arrays) // 2]:
        pixels, classes = np.asarray(images), np.asarray(labels)
        fits = pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)
        whole = pixels.dtype.kind in "iu" and classes.dtype.kind in "iu"
        if not fits or not whole or classes.shape != pixels.shape[:1] or not len(classes):
            raise FedcrfError(
                f"data set '{name}' makes images of shape {pixels.shape}, {pixels.dtype}, and "
                f"labels of shape {classes.shape}, {classes.dtype}: {mend}"
            )
        if pixels.min() < 0 or pixels.max() > 255 or classes.min() < 0:
            raise FedcrfError(f"data set '{name}' has pixels or labels out of range: {mend}")
        parts.append(_labelled(name, pixels.astype(np.uint8), classes.astype(np.int64), options))
    most = max(int(part.labels.max()) for part in parts)
    names = tuple(str(label) for label in range(most + 1))
    return ImageDataset.from_parts(name, parts[0], parts[1] if len(parts) > 1 else None, names)


def _labelled(
    name: str, images: NDArray[np.uint8], labels: NDArray[np.int64], options: ReadOptions
) -> LabelledImages:
    """Return (n, H, W) or (n, H, W, 3) images, resized, with their labels."""
    blocks = [image_block(Image.fromarray(one), options.image_size) for one in images]
    return LabelledImages.from_arrays(join_blocks(name, blocks), labels)


def _check_no_columns(name: str, options: ReadOptions) -> None:
    """Refuse options that choose columns: arrays have none."""
    if options.image_column is not None or options.label_column is not None:
        raise FedcrfError(
            f"data set '{name}' has no columns to choose from; omit --image-column "
            "and --label-column."
        )


@dataclass(frozen=True)
class LocalOrigin:
    """A folder of Parquet files.

    Attributes:
        name: The data set's name.
        train: The files with the training rows, in order.
        held_out: The files with the held-out rows; may be empty.
        preferred_label: The label column to take where there are several.
    """

    name: str
    train: Sequence[Path]
    held_out: Sequence[Path]
    preferred_label: str | None

    def identity(self) -> Mapping[str, object]:
        """Describe the files by path, size and time of change."""
        return {"train": _stamps(self.train), "held_out": _stamps(self.held_out)}

    def decode(self, options: ReadOptions) -> ImageDataset:
        """Read the files whole, and decode them."""
        splits = RawSplits(
            train=[_read_parquet(path) for path in self.train],
            held_out=[_read_parquet(path) for path in self.held_out],
        )
        return decode_splits(self.name, splits, options, self.preferred_label)


@dataclass(frozen=True)
class HubOrigin:
    """A data set of the Hugging Face hub.

    Attributes:
        name: The data set's name.
        hub_name: ``"owner/name"``.
        preferred_label: The label column to take where there are several.
    """

    name: str
    hub_name: str
    preferred_label: str | None

    def identity(self) -> Mapping[str, object]:
        """Describe the source by its name on the hub, so that a cached set needs no network."""
        return {"hub": self.hub_name}

    def decode(self, options: ReadOptions) -> ImageDataset:
        """Fetch the data set, or read the hub library's own cache, and decode it."""
        with _quiet():
            tables = self._fetch()
        if "train" not in tables:
            raise FedcrfError(
                f"data set '{self.name}' has no train split on the hub, only "
                f"{', '.join(tables)}; choose another data set."
            )
        held_out = next((tables[split] for split in HELD_OUT_SPLITS if split in tables), None)
        splits = RawSplits([tables["train"]], [] if held_out is None else [held_out])
        return decode_splits(self.name, splits, options, self.preferred_label)

    def _fetch(self) -> Mapping[str, RawTable]:
        import datasets

        try:
            splits = datasets.load_dataset(self.hub_name)
        except Exception as error:  # Network, hub and library each raise errors of their own.
            raise FedcrfError(
                f"cannot get data set '{self.name}' from the Hugging Face hub as "
                f"'{self.hub_name}' ({_reason(error)}); check the network and the name, or give a "
                f"folder with its Parquet files by --data-dir or {DATA_VARIABLE}."
            ) from error
        mend = "choose another data set, or remove it from the Hugging Face cache to fetch it anew"
        return {
            split: RawTable(f"split '{split}' of '{self.hub_name}'", mend, rows)
            for split, rows in splits.items()
        }


def _stamps(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    stats = [(path, path.stat()) for path in paths]
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def _read_parquet(path: Path) -> RawTable:
    """Read one file by itself, so that an error names it.

    ``datasets.load_dataset("parquet", ...)`` would report every load to a server, which stalls a
    machine without a network, copy the file to disk first, and refuse one without rows.
    """
    import datasets
    import pyarrow.parquet

    mend = "replace the file with a fresh copy"
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            rows = datasets.Dataset(file.read())
    except Exception as error:  # Arrow, the library and the file system raise errors of their own.
        raise FedcrfError(
            f"cannot read '{path}' as Parquet ({_reason(error)}); if it is cut short or damaged, "
            f"{mend}."
        ) from error
    return RawTable(f"'{path}'", mend, rows)


def _reason(error: BaseException) -> str:
    """Return the first line of an error's first cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the Hugging Face libraries' log of failures and retries off stderr.

    The error that they raise says the same.
    """
    # Both set their loggers' levels when they are imported.
    import datasets  # noqa: F401
    import huggingface_hub  # noqa: F401

    loggers = [logging.getLogger(library) for library in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
