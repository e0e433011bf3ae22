"""Sources of data sets: installed libraries, local Parquet folders and the Hugging Face hub."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedcrf.data.dataset import ImageDataset, LabelledImages, cached_dataset
from fedcrf.data.site_files import read_site_files
from fedcrf.data.tables import RawTable, ReadOptions, decode_splits, image_block, join_blocks
from fedcrf.errors import FedcrfError, failing, unknown_name
from fedcrf.extensions import find, installed, is_outside

DATA_VARIABLE = "FEDCRF_DATA"

SITES = "sites:"
"""Stands before the path of real sites' files, where a data set's name is taken."""

_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_DIGITS_HELD_OUT = 360

_HELD_OUT_SPLITS = ("test", "validation", "valid", "val")
"""Names of a held-out part; the first that exists counts."""


@dataclass(frozen=True)
class EmbeddedSource:
    """A data set that comes with an installed library.

    ``read`` returns grey images ``(n, H, W)`` uint8 and labels ``(n,)`` int64, of which the last
    are held out; the class names are in the labels' order.
    """

    description: str
    read: Callable[[], tuple[NDArray[np.uint8], NDArray[np.int64]]]
    num_held_out: int
    class_names: tuple[str, ...]

    def identity(self, name: str) -> Mapping[str, object]:
        """Return in JSON values all that the data depend on; changed code reads other data."""
        try:
            reader = inspect.getsource(self.read)
        except (OSError, TypeError):  # typed in, or no function of Python's
            reader = ""
        return {
            "embedded": name,
            "num_held_out": self.num_held_out,
            "class_names": self.class_names,
            "reader": reader,
        }

    def decode(self, name: str, options: ReadOptions) -> ImageDataset:
        """Read the library's arrays, resize them, and cut off the held-out ones."""
        _check_no_columns(name, options)
        images, labels = self.read()
        cut = len(labels) - self.num_held_out
        train, held_out = (
            _labelled(name, images[rows], labels[rows], options)
            for rows in (slice(cut), slice(cut, None))
        )
        return ImageDataset(name, train, held_out, self.class_names)


@dataclass(frozen=True)
class HubSource:
    """A data set of the Hugging Face hub, ``"owner/name"``, or a local copy of its Parquet files.

    ``label_column`` is the one to take where the data set has several.
    """

    description: str
    hub_name: str
    label_column: str | None = None

    def identity(self, name: str) -> Mapping[str, object]:
        """Return the name on the hub: a cached set needs no network."""
        return {"hub": self.hub_name}

    def decode(self, name: str, options: ReadOptions) -> ImageDataset:
        """Fetch the data set, or read the hub library's own cache, and decode it."""
        with _quiet():
            tables = self._fetch(name)
        if "train" not in tables:
            raise FedcrfError(
                f"data set '{name}' has no train split on the hub, only "
                f"{', '.join(tables)}; choose another data set."
            )
        held_out = next((tables[split] for split in _HELD_OUT_SPLITS if split in tables), None)
        rest = [] if held_out is None else [held_out]
        return decode_splits(name, [tables["train"]], rest, options, self.label_column)

    def _fetch(self, name: str) -> Mapping[str, RawTable]:
        import datasets

        try:
            splits = datasets.load_dataset(self.hub_name)
        except Exception as error:  # Network, hub and library each raise errors of their own.
            raise FedcrfError(
                f"cannot get data set '{name}' from the Hugging Face hub as "
                f"'{self.hub_name}' ({_reason(error)}); check the network and the name, or give a "
                f"folder with its Parquet files by --data-dir or {DATA_VARIABLE}."
            ) from error
        mend = "choose another data set, or remove it from the Hugging Face cache to fetch it anew"
        return {
            split: RawTable(f"split '{split}' of '{self.hub_name}'", mend, rows)
            for split, rows in splits.items()
        }


@dataclass(frozen=True)
class _LocalSource:
    """Parquet files of training and held-out rows, in order."""

    train: Sequence[Path]
    held_out: Sequence[Path]
    label_column: str | None

    def identity(self, name: str) -> Mapping[str, object]:
        """Return the files' paths, sizes and times of change."""
        return {"train": _stamps(self.train), "held_out": _stamps(self.held_out)}

    def decode(self, name: str, options: ReadOptions) -> ImageDataset:
        """Read the files whole, and decode them."""
        train, held_out = ([*map(_read_parquet, paths)] for paths in (self.train, self.held_out))
        return decode_splits(name, train, held_out, options, self.label_column)


DatasetSource = EmbeddedSource | HubSource


def _read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.uint8), digits.target.astype(np.int64)


DATASETS: Mapping[str, DatasetSource] = {
    "digits": EmbeddedSource(
        "1,797 grey 8x8 digits that come with scikit-learn (values 0 to 16); needs no download. "
        f"The last {_DIGITS_HELD_OUT} are the held-out test set.",
        read=_read_digits,
        num_held_out=_DIGITS_HELD_OUT,
        class_names=tuple("0123456789"),
    ),
    "mnist": HubSource("MNIST: 70,000 grey 28x28 digits, 10 classes.", "ylecun/mnist"),
    "cifar10": HubSource(
        "CIFAR-10: 60,000 colour 32x32 photographs, 10 classes.", "uoft-cs/cifar10"
    ),
    "cifar100": HubSource(
        "CIFAR-100: 60,000 colour 32x32 photographs, 100 (fine) classes.",
        "uoft-cs/cifar100",
        label_column="fine_label",
    ),
}


def load_dataset(
    name: str,
    *,
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    image_size: int | None = None,
) -> ImageDataset:
    """Read a data set, decoded and with its classes numbered, through the cache.

    The data folder is ``data_dir``, or else the environment variable ``FEDCRF_DATA``. With one the
    set is read only from the Parquet files of the folder there that has its name:
    ``train*.parquet``, and for the held-out part ``test*.parquet``, else ``validation*.parquet``,
    ``valid*.parquet`` or ``val*.parquet``, if any. Without one it comes from the Hugging Face hub.
    ``digits`` needs neither.

    Args:
        name: One of ``DATASETS``, a hub name ``"owner/name"``, the name of a folder in the data
            folder, or a name from outside; see `fedcrf.extensions`.
        data_dir: The data folder.
        cache_dir: Where decoded arrays are kept; by default the environment variable
            ``FEDCRF_CACHE``, else the user's cache folder.
        image_column: The column with the images; by default the only one.
        label_column: The column with the labels; by default the only column of class labels, else
            one named label, labels or fine_label.
        image_size: Height and width to resize every image to. By default images keep their size,
            which must be the same for all.
    """
    options = ReadOptions(image_column, label_column, image_size)
    if name.startswith(SITES):
        return _of_sites(name, options)
    if is_outside(name) or name in installed("dataset"):
        # Its changes cannot be noticed, so it is never cached.
        return _from_outside(name, options)
    source = _find(name, data_dir)
    identity = {**source.identity(name), "options": asdict(options)}
    return cached_dataset(name, identity, lambda: source.decode(name, options), cache_dir)


def site_sizes(name: str, label_column: str | None) -> list[int]:
    """Return how many examples each real site of a data set's name holds."""
    sites = read_site_files(Path(name.removeprefix(SITES)), label_column).sites
    return [len(targets) for _, targets in sites.values()]


def _of_sites(name: str, options: ReadOptions) -> ImageDataset:
    """Return what real sites hold, one behind the other."""
    path = Path(name.removeprefix(SITES))
    if options.image_column is not None or options.image_size is not None:
        raise FedcrfError(
            f"sites {path} hold no images of bytes: leave --image-column and --image-size out"
        )
    read = read_site_files(path, options.label_column)
    first = next(iter(read.sites))
    shape = read.sites[first][0].shape[1:]
    for site, (inputs, targets) in read.sites.items():
        numbers = inputs.ndim in (2, 4) and inputs.dtype.kind in "biuf"
        if not numbers or inputs.shape[1:] != shape:
            raise FedcrfError(
                f"inputs of site '{site}' have shape {inputs.shape[1:]}, {inputs.dtype}, those of "
                f"site '{first}' {shape}: give all sites (n, numbers) or (n, C, H, W) of one shape"
            )
        if not len(inputs) or len(inputs) != len(targets):
            raise FedcrfError(
                f"site '{site}' has {len(inputs)} inputs and {len(targets)} targets: give it some, "
                "and one target for each input"
            )
        if not np.isfinite(inputs).all():
            raise FedcrfError(f"inputs of site '{site}' are NaN or infinite: fill them in")
        if targets.ndim != 1 or targets.dtype.kind not in "iu" or targets.min() < 0:
            raise FedcrfError(
                f"targets of site '{site}' are no labels from 0 on: give such, or use "
                "fedcrf.simulate, which takes any targets and any loss"
            )
    inputs, labels = (np.concatenate(each) for each in zip(*read.sites.values(), strict=True))
    labels = labels.astype(np.int64)
    names = read.class_names or tuple(str(label) for label in range(int(labels.max()) + 1))
    numbers_as_channels = (*inputs.shape, 1, 1)[:4]
    examples = LabelledImages(inputs.astype(np.float32).reshape(numbers_as_channels), labels)
    return ImageDataset(name, examples, None, names, sites=tuple(read.sites))


def _from_outside(name: str, options: ReadOptions) -> ImageDataset:
    found = find("dataset", name, {})
    if isinstance(found, EmbeddedSource):
        return found.decode(name, options)
    if not callable(found):
        raise FedcrfError(
            f"data set '{name}' is no data set: give a function that returns images and labels"
        )
    with failing(f"data set '{name}' failed ({{}})"):
        made = found()
    return made if isinstance(made, ImageDataset) else _dataset_of(name, made, options)


def _find(name: str, data_dir: Path | None) -> DatasetSource | _LocalSource:
    source = DATASETS.get(name)
    if isinstance(source, EmbeddedSource):
        return source
    named = os.environ.get(DATA_VARIABLE)
    folder = data_dir or (Path(named) if named else None)
    if folder is not None and not folder.is_dir():
        raise FedcrfError(
            f"the data folder '{folder}' does not exist; mend --data-dir or {DATA_VARIABLE}."
        )
    if source is None and not _HUB_NAME.fullmatch(name):
        if "/" in name:
            raise FedcrfError(
                f"'{name}' is not a data set's name: a hub name has the form owner/name, and a "
                f"folder is given by --data-dir or {DATA_VARIABLE}."
            )
        folders = [path.name for path in folder.iterdir() if path.is_dir()] if folder else []
        if name not in folders:
            raise unknown_name("data set", name, {*DATASETS, *folders})
    source = source or HubSource("", hub_name=name)
    return source if folder is None else _local_source(name, folder, source)


def _local_source(name: str, data_dir: Path, source: HubSource) -> _LocalSource:
    short_name = source.hub_name.rpartition("/")[2]
    # An alias is looked for under its own name first, a hub name under its owner's first.
    folders = [data_dir / place for place in dict.fromkeys((name, source.hub_name, short_name))]
    for folder in folders:
        train = _parquet_files(folder, "train")
        if train:
            held_out = (_parquet_files(folder, split) for split in _HELD_OUT_SPLITS)
            return _LocalSource(train, next(filter(None, held_out), ()), source.label_column)
    looked_in = " or ".join(f"'{folder}'" for folder in folders)
    raise FedcrfError(
        f"data set '{name}': there is no train*.parquet in {looked_in}; put "
        f"its Parquet files there, or unset --data-dir and {DATA_VARIABLE} to use the hub."
    )


def _parquet_files(folder: Path, split: str) -> tuple[Path, ...]:
    return tuple(sorted(path.absolute() for path in folder.glob(f"{split}*.parquet")))


def _dataset_of(name: str, arrays: object, options: ReadOptions) -> ImageDataset:
    """Return the data set of images and labels that a function from outside returns.

    Behind them may be those of a held-out part.
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
    return ImageDataset(name, parts[0], parts[1] if len(parts) > 1 else None, names)


def _labelled(
    name: str, images: NDArray[np.uint8], labels: NDArray[np.int64], options: ReadOptions
) -> LabelledImages:
    """Return (n, H, W) or (n, H, W, 3) images, resized, with their labels."""
    blocks = [image_block(Image.fromarray(one), options.image_size) for one in images]
    return LabelledImages(join_blocks(name, blocks), labels)


def _check_no_columns(name: str, options: ReadOptions) -> None:
    if options.image_column is not None or options.label_column is not None:
        raise FedcrfError(
            f"data set '{name}' has no columns to choose from; omit --image-column "
            "and --label-column."
        )


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
    """Keep the Hugging Face libraries' log of failures off stderr: their error says the same."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
