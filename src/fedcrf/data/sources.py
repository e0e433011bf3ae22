"""Where data sets are found, and how they are decoded.

They come from installed libraries, local Parquet folders, the Hugging Face hub, and from outside.
"""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from fedcrf.data.dataset import ImageDataset, LabelledImages, cached_dataset, numbered_classes
from fedcrf.data.site_files import SITES, site_dataset
from fedcrf.errors import FedcrfError, failing, unknown_name
from fedcrf.extensions import find, installed, is_outside

DATA_VARIABLE = "FEDCRF_DATA"

_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_PART = re.compile(r"(.*)-(\d+)-of-(\d+)(-\w+)?\.parquet")
"""The hub's name of a file: its split, its number from 0, of how many, at times a hash."""
_DIGITS_HELD_OUT = 360

_HELD_OUT_SPLITS = ("test", "validation", "valid", "val")
"""Names of a held-out part; the first that exists counts."""

Pixels = NDArray[np.uint8]
Features = Mapping[str, Any]
"""By column what it holds, as ``datasets`` says it."""

_LABEL_NAMES = ("label", "labels", "fine_label")
# The hub's convention for a label that is not published.
_HIDDEN = -1

_GREY_MODES = ("1", "L")
_READ_AT_ONCE = 512


@dataclass(frozen=True)
class ReadOptions:
    """How to read a data set's tables: columns, where they are not found, and the images' size."""

    image_column: str | None = None
    label_column: str | None = None
    image_size: int | None = None

    def __post_init__(self) -> None:
        if self.image_size is not None and self.image_size < 1:
            raise FedcrfError(f"--image-size must be at least 1, not {self.image_size}.")


@dataclass(frozen=True)
class RawTable:
    """Rows as they were read, with images still encoded."""

    origin: str  # the file or split of the rows, for messages
    mend: str  # what to do if the rows are damaged, for messages
    rows: Any  # a `datasets.Dataset`


@dataclass(frozen=True)
class EmbeddedSource:
    """A data set that comes with an installed library.

    ``read`` returns arrays, as a function from outside does (`_dataset_of`).
    """

    description: str
    read: Callable[[], object]

    def identity(self, name: str) -> Mapping[str, object]:
        """Return the name: if a reader reads other data, `_FORMAT_VERSION` is to be raised."""
        return {"embedded": name}

    def decode(self, name: str, options: ReadOptions) -> ImageDataset:
        """Read the library's arrays, and resize them."""
        return _dataset_of(name, self.read(), options)


@dataclass(frozen=True)
class HubSource:
    """A data set of the Hugging Face hub, ``"owner/name"``, or a local copy of its Parquet files.

    ``label_column`` is the one to take where the data set has several; ``files`` are those of the
    local copy, in order, by split.
    """

    description: str
    hub_name: str
    label_column: str | None = None
    files: Mapping[str, Sequence[Path]] | None = None

    def identity(self, name: str) -> Mapping[str, object]:
        """Return the name on the hub, or paths, sizes and times of change of the local files."""
        if self.files is None:
            return {"hub": self.hub_name}
        return {
            split: [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
            for split, paths in self.files.items()
        }

    def decode(self, name: str, options: ReadOptions) -> ImageDataset:
        """Read files, or fetch the data set, or read the hub library's own cache; and decode it."""
        if self.files is not None:
            tables = {split: [*map(_read_parquet, paths)] for split, paths in self.files.items()}
        else:
            tables = self._fetched(name)
        if "train" not in tables:
            raise FedcrfError(
                f"data set '{name}' has no train split on the hub, only "
                f"{', '.join(tables)}; choose another data set."
            )
        held_out = next((tables[split] for split in _HELD_OUT_SPLITS if split in tables), [])
        return _decoded(name, tables["train"], held_out, options, self.label_column)

    def _fetched(self, name: str) -> dict[str, list[RawTable]]:
        import datasets

        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # the libraries' log of a failure: their error says it
        try:
            splits = datasets.load_dataset(self.hub_name)
        except Exception as error:  # Network, hub and library each raise errors of their own.
            raise FedcrfError(
                f"cannot get data set '{name}' from the Hugging Face hub as "
                f"'{self.hub_name}' ({_reason(error)}); check the network and the name, or give a "
                f"folder with its Parquet files by --data-dir or {DATA_VARIABLE}."
            ) from error
        finally:
            logging.disable(before)
        mend = "choose another data set, or remove it from the Hugging Face cache to fetch it anew"
        return {
            split: [RawTable(f"split '{split}' of '{self.hub_name}'", mend, rows)]
            for split, rows in splits.items()
        }


DatasetSource = EmbeddedSource | HubSource


def _read_digits() -> tuple[NDArray[Any], ...]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels, cut = digits.images.astype(np.uint8), digits.target, -_DIGITS_HELD_OUT
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


DATASETS: Mapping[str, DatasetSource] = {
    "digits": EmbeddedSource(
        "1,797 grey 8x8 digits that come with scikit-learn (values 0 to 16); needs no download. "
        f"The last {_DIGITS_HELD_OUT} are the held-out test set.",
        read=_read_digits,
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
        if image_column is not None or image_size is not None:
            raise FedcrfError(
                f"{name} hold no images of bytes: leave --image-column and --image-size out"
            )
        return site_dataset(name, label_column)
    if is_outside(name) or name in installed("dataset"):
        # Its changes cannot be noticed, so it is never cached.
        return _from_outside(name, options)
    source = _find(name, data_dir)
    identity = {**source.identity(name), "options": asdict(options)}
    return cached_dataset(name, identity, lambda: source.decode(name, options), cache_dir)


def _from_outside(name: str, options: ReadOptions) -> ImageDataset:
    found = find("dataset", name, {})
    if not callable(found):
        raise FedcrfError(
            f"data set '{name}' is no data set: give a function that returns images and labels"
        )
    with failing(f"data set '{name}' failed ({{}})"):
        made = found()
    if not isinstance(made, ImageDataset):
        return _dataset_of(name, made, options)
    for part in (made.train, made.held_out):
        if part is None:
            continue
        images, labels = part.images, part.labels
        fits = images.ndim == 4 and images.dtype.kind in "uif" and images.size
        fits = fits and labels.dtype.kind in "iu" and labels.shape == images.shape[:1]
        fits = fits and images.shape[1:] == made.train.images.shape[1:]
        fits = fits and labels.min() >= 0 and labels.max() < made.num_classes
        if not fits or (images.dtype.kind == "f" and not np.isfinite(images).all()):
            raise FedcrfError(
                f"data set '{name}' has images of shape {images.shape}, {images.dtype}, and labels "
                f"of shape {labels.shape}, {labels.dtype}: give (n, C, H, W) uint8 or finite "
                f"floats, and (n,) whole numbers from 0 to {made.num_classes - 1}"
            )
    return made


def _find(name: str, data_dir: Path | None) -> DatasetSource:
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
    return source if folder is None else _local_copy(name, folder, source)


def _local_copy(name: str, data_dir: Path, source: HubSource) -> HubSource:
    short_name = source.hub_name.rpartition("/")[2]
    # An alias is looked for under its own name first, a hub name under its owner's first.
    folders = [data_dir / place for place in dict.fromkeys((name, source.hub_name, short_name))]
    for folder in folders:
        found = {
            split: sorted(path.absolute() for path in folder.glob(f"{split}*.parquet"))
            for split in ("train", *_HELD_OUT_SPLITS)
        }
        if found["train"]:
            held_out = [split for split in _HELD_OUT_SPLITS if found[split]]
            files = {split: found[split] for split in ("train", *held_out[:1])}
            _check_parts(name, [path for paths in files.values() for path in paths])
            return replace(source, files=files)
    looked_in = " or ".join(f"'{folder}'" for folder in folders)
    raise FedcrfError(
        f"data set '{name}': there is no train*.parquet in {looked_in}; put "
        f"its Parquet files there, or unset --data-dir and {DATA_VARIABLE} to use the hub."
    )


def _check_parts(name: str, files: Sequence[Path]) -> None:
    """Refuse a data set with a part too few or too many: ``…-00000-of-00002…`` at the hub."""
    there: dict[tuple[Path, str], dict[int, Path]] = {}
    counts: dict[tuple[Path, str], int] = {}
    for file in files:
        if part := _PART.match(file.name):
            whole, number, count = (file.parent, part[1]), int(part[2]), int(part[3])
            numbers = there.setdefault(whole, {})
            other = numbers.setdefault(number, file)
            if other != file or counts.setdefault(whole, count) != count:
                raise FedcrfError(
                    f"data set '{name}': '{file.parent}' holds '{other.name}' and '{file.name}', "
                    "which may be the same examples; keep the files of one version."
                )
    for (folder, split), numbers in there.items():
        count = counts[folder, split]
        if len(numbers) < count:
            missing = next(number for number in range(count) if number not in numbers)
            raise FedcrfError(
                f"data set '{name}': '{folder}' has {len(numbers)} of {count} files of {split}; "
                f"copy {split}-{missing:05}-of-{count:05}.parquet there too."
            )


def _dataset_of(name: str, arrays: object, options: ReadOptions) -> ImageDataset:
    """Return the data set of (n, H, W) or (n, H, W, 3) images and (n,) labels, resized.

    Behind them may be those of a held-out part.
    """
    if options.image_column is not None or options.label_column is not None:
        raise FedcrfError(
            f"data set '{name}' has no columns to choose from; omit --image-column "
            "and --label-column."
        )
    mend = (
        "return images, labels, or images, labels, test_images, test_labels: (n, H, W) or "
        "(n, H, W, 3) whole numbers from 0 to 255, and (n,) whole numbers from 0 on"
    )
    if not isinstance(arrays, tuple) or len(arrays) not in (2, 4):
        raise FedcrfError(f"data set '{name}' makes a {type(arrays).__name__}: {mend}")
    parts = []
    for images, labels in zip(arrays[::2], arrays[1::2], strict=True):
        with failing(f"data set '{name}' makes no arrays ({{}}): {mend}"):
            pixels, classes = np.asarray(images), np.asarray(labels)
        fits = pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)
        whole = pixels.dtype.kind in "iu" and classes.dtype.kind in "iu"
        if not fits or not whole or classes.shape != pixels.shape[:1] or not pixels.size:
            raise FedcrfError(
                f"data set '{name}' makes images of shape {pixels.shape}, {pixels.dtype}, and "
                f"labels of shape {classes.shape}, {classes.dtype}: {mend}"
            )
        if pixels.min() < 0 or pixels.max() > 255 or classes.min() < 0:
            raise FedcrfError(f"data set '{name}' has pixels or labels out of range: {mend}")
        channels = 1 if pixels.ndim == 3 else 3
        _check_memory(name, len(pixels), (channels, *pixels.shape[1:3]), options.image_size)
        each = map(Image.fromarray, pixels.astype(np.uint8))
        parts.append(([_pixels(image, options.image_size) for image in each], classes))
    labels = np.concatenate([classes for _, classes in parts])
    return _joined(name, parts, numbered_classes({f"data set '{name}'": labels}))


def _read_parquet(path: Path) -> RawTable:
    """Read one file by itself, so that an error names it.

    ``datasets.load_dataset("parquet", ...)`` would report every load to a server, which stalls a
    machine without a network, copy the file to disk first, and refuse one without rows.
    """
    import datasets
    import pyarrow.parquet

    mend = "replace the file with a fresh copy"
    said = f"cannot read '{path}' as Parquet ({{}}); if it is cut short or damaged, {mend}."
    # Arrow, the library and the file system raise errors of their own.
    with failing(said), pyarrow.parquet.ParquetFile(path) as file:
        rows = datasets.Dataset(file.read())
    return RawTable(f"'{path}'", mend, rows)


def _reason(error: BaseException) -> str:
    """Return the first line of an error's first cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")


def _decoded(
    name: str,
    train: Sequence[RawTable],
    held_out: Sequence[RawTable],
    options: ReadOptions,
    preferred_label: str | None,
) -> ImageDataset:
    """Find the columns, number the classes and decode the images of a data set's two parts.

    Labels that are plain integers or strings become classes in sorted order. A held-out part counts
    as absent if none of its labels is published (all are -1 or empty). ``preferred_label`` is the
    label column where there are several.
    """
    from datasets import Image as ImageFeature

    features = train[0].rows.features
    found = [column for column, feature in features.items() if isinstance(feature, ImageFeature)]
    image = _column(name, "image", options.image_column, found, features)
    label = _label_column(name, features, options.label_column, preferred_label)
    _check_same_columns(image, label, [*train, *held_out])

    train_values, held_out_values = (_label_values(part, label) for part in (train, held_out))
    _check_labels(name, train_values, held_out_values)
    parts = [(train, train_values)]
    if any(value != _HIDDEN for value in held_out_values):
        parts.append((held_out, held_out_values))

    every = [value for _, values in parts for value in values]
    names, numbers = _classes(features[label], every)
    beyond = next((value for value in every if value not in numbers), None)
    if beyond is not None:
        raise FedcrfError(
            f"data set '{name}' has the label {beyond} but only {len(names)} class names; "
            "mend its files, or name another column with --label-column."
        )
    return _joined(
        name,
        [
            (_images(name, tables, image, options.image_size), [numbers[each] for each in values])
            for tables, values in parts
        ],
        names,
    )


def _label_column(name: str, features: Features, wanted: str | None, preferred: str | None) -> str:
    from datasets import ClassLabel

    found = [c for c, feature in features.items() if isinstance(feature, ClassLabel)]
    if len(found) != 1:
        candidates = found or [c for c, feature in features.items() if _can_be_label(feature)]
        known = [column for column in (preferred, *_LABEL_NAMES) if column in candidates]
        found = known[:1] or found
    column = _column(name, "label", wanted, found, features)
    if not _can_be_label(features[column]):
        raise FedcrfError(
            f"column '{column}' of data set '{name}' does not hold class labels, integers or "
            "strings; name another one with --label-column."
        )
    return column


def _column(
    name: str, kind: str, wanted: str | None, found: Sequence[str], features: Features
) -> str:
    """Return the column that is wanted, or the only one that was found."""
    if wanted is not None and wanted not in features:
        raise unknown_name(f"{kind} column", wanted, features)
    if wanted is not None or len(found) == 1:
        return wanted or found[0]
    trouble = "more than one" if found else "no obvious"
    raise FedcrfError(
        f"data set '{name}' has {trouble} {kind} column; name it with --{kind}-column (its columns "
        f"are {', '.join(features)})."
    )


def _can_be_label(feature: Any) -> bool:
    from datasets import ClassLabel, Value

    if isinstance(feature, ClassLabel):
        return True
    return isinstance(feature, Value) and (
        feature.dtype in ("string", "large_string") or feature.dtype.startswith(("int", "uint"))
    )


def _check_same_columns(image: str, label: str, tables: Sequence[RawTable]) -> None:
    """Refuse files that lack a column, or whose labels have another type or other class names."""
    first, *others = tables
    for table in others:
        features = table.rows.features
        alike = features.get(label) == first.rows.features[label]
        if image not in features or not alike:
            raise FedcrfError(
                f"column '{label if image in features else image}' of {table.origin} is missing or "
                f"is not what it is in {first.origin}; all files of a data set need the same "
                "columns and classes."
            )


def _label_values(tables: Sequence[RawTable], column: str) -> list[int | str]:
    values: list[int | str | None] = [value for table in tables for value in table.rows[column][:]]
    return [_HIDDEN if value is None else value for value in values]


def _check_labels(name: str, train: Sequence[int | str], held_out: Sequence[int | str]) -> None:
    """Refuse a data set with hidden labels, unless all held-out ones are hidden."""
    if not train:
        raise FedcrfError(f"data set '{name}' has no training images; give files with some rows.")
    hidden, what, among = train.count(_HIDDEN), "training", ""
    if not hidden and 0 < held_out.count(_HIDDEN) < len(held_out):
        hidden, what, among = held_out.count(_HIDDEN), "held-out", f" among {len(held_out)}"
    if hidden:
        raise FedcrfError(
            f"data set '{name}' has {hidden} {what} images without a label (-1 or empty){among}; "
            "remove them, or name another column with --label-column."
        )


def _classes(
    feature: Any, values: Sequence[int | str]
) -> tuple[tuple[str, ...], Mapping[int | str, int]]:
    """Return the names of the classes, and the number of each label."""
    from datasets import ClassLabel

    if isinstance(feature, ClassLabel):
        return tuple(feature.names), {n: n for n in range(feature.num_classes)}
    # One column holds one type, so the values compare.
    ordered = sorted(set(values))
    return tuple(map(str, ordered)), {value: n for n, value in enumerate(ordered)}


def _pixels(image: Image.Image, size: int | None) -> Pixels:
    """Convert one image to ``(C, H, W)`` uint8, grey (C = 1) or colour (C = 3).

    Black-and-white and grey images (8 or 16 bits, the latter by their upper byte) become one
    channel, all others the three of RGB. ``size`` is height and width to resize to, bilinearly.
    """
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips everything above 255 to white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = image.convert("L" if image.mode in _GREY_MODES else "RGB")
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _images(name: str, tables: Sequence[RawTable], column: str, size: int | None) -> list[Pixels]:
    """Decode every image of some tables, in order."""
    from datasets import Image as ImageFeature

    encoded = ImageFeature(decode=False)
    count = sum(len(table.rows) for table in tables)
    images: list[Pixels] = []
    for table in tables:
        try:
            rows = table.rows.select_columns([column]).cast_column(column, encoded)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise FedcrfError(
                f"column '{column}' of data set '{name}' does not hold images; name another one "
                "with --image-column."
            ) from error
        # One thread on purpose: for images this small Pillow spends its time under the lock, and a
        # pool of threads made CIFAR-10 slower.
        cells = (cell for batch in rows.iter(_READ_AT_ONCE) for cell in batch[column])
        for row, cell in enumerate(cells):
            if not images:
                _check_memory(name, count, _decode(cell, None, row, table).shape, size)
            images.append(_decode(cell, size, row, table))
    return images


def _check_memory(name: str, count: int, shape: tuple[int, ...], size: int | None) -> None:
    """Raise a `FedcrfError` if a part's decoded images are larger than the machine's memory.

    There are ``count`` of them, of the ``shape`` (C, H, W) of the first one, or of a ``size``.
    """
    channels, height, width = shape if size is None else (shape[0], size, size)
    needed, there = count * channels * height * width, _memory()
    if there is not None and needed > there:
        raise FedcrfError(
            f"{count:,} images of data set '{name}', decoded to {width}x{height} pixels, take "
            f"{needed / 2**30:,.1f} GiB, and this machine has {there / 2**30:,.1f} GiB of memory; "
            "give a smaller --image-size (data.image_size)."
        )


def _memory() -> int | None:
    """Return how many bytes of memory the machine has; None where the system does not say."""
    try:
        pages = os.sysconf("SC_PHYS_PAGES")
        return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None
    except (AttributeError, OSError, ValueError):  # not every system has such a call, or the names
        return None


def _joined(
    name: str, parts: Sequence[tuple[Sequence[Pixels], ArrayLike]], class_names: tuple[str, ...]
) -> ImageDataset:
    """Return the data set of the training images and their labels, perhaps with a held-out part.

    The images are all of one size, and become R = G = B where some are colour.
    """
    images = [image for of_part, _ in parts for image in of_part]
    _, height, width = images[0].shape
    for image in images:
        if image.shape[1:] != (height, width):
            raise FedcrfError(
                f"the images of data set '{name}' are not of one size: {width}x{height} and "
                f"{image.shape[2]}x{image.shape[1]} pixels (width x height); resize them all with "
                "--image-size N."
            )
    channels = max(len(image) for image in images)
    read = [
        LabelledImages(
            np.stack([np.broadcast_to(image, (channels, height, width)) for image in of_part]),
            np.asarray(labels, np.int64),
        )
        for of_part, labels in parts
    ]
    return ImageDataset(name, read[0], read[1] if len(read) > 1 else None, class_names)


def _decode(cell: dict[str, Any] | None, size: int | None, row: int, table: RawTable) -> Pixels:
    # Pillow's readers raise almost anything on damaged bytes.
    with failing(f"image {row} of {table.origin} does not decode ({{}}); {table.mend}."):
        if cell is None or (cell["bytes"] is None and cell["path"] is None):
            raise ValueError("the cell is empty")
        encoded = None if cell["bytes"] is None else io.BytesIO(cell["bytes"])
        with Image.open(encoded or cell["path"]) as image:
            return _pixels(image, size)
