"""From a table's columns to class names, labels and decoded images."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedcrf.data.dataset import ImageDataset, LabelledImages
from fedcrf.errors import FedcrfError, unknown_name

Pixels = NDArray[np.uint8]
Features = Mapping[str, Any]
"""By column what it holds, as ``datasets`` says it."""

_LABEL_NAMES = ("label", "labels", "fine_label")
# The hub's convention for a label that is not published.
_HIDDEN = -1


@dataclass(frozen=True)
class ReadOptions:
    """How to read a data set's tables: columns, where they are not found, and the images' size."""

    image_column: str | None = None
    label_column: str | None = None
    image_size: int | None = None

    def __post_init__(self) -> None:
        if self.image_size is not None and self.image_size < 1:
            raise FedcrfError(f"--image-size must be at least 1, not {self.image_size}.")


def decode_splits(
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
    features = train[0].rows.features
    image = _image_column(name, features, options.image_column)
    label = _label_column(name, features, options.label_column, preferred_label)
    _check_same_columns(image, label, [*train, *held_out])

    train_values, held_out_values = (_label_values(part, label) for part in (train, held_out))
    _check_labels(name, train_values, held_out_values)
    parts = [(train, train_values)]
    if any(value != _HIDDEN for value in held_out_values):
        parts.append((held_out, held_out_values))

    names, numbers = _classes(features[label], [v for _, values in parts for v in values])
    images = match_channels(
        name, [decode_images(name, tables, image, options.image_size) for tables, _ in parts]
    )
    labelled: list[LabelledImages | None] = []
    for block, (_, values) in zip(images, parts, strict=True):
        try:
            labels = np.array([numbers[value] for value in values], dtype=np.int64)
        except KeyError as error:
            raise FedcrfError(
                f"data set '{name}' has the label {error} but only {len(names)} class names; "
                "mend its files, or name another column with --label-column."
            ) from None
        labelled.append(LabelledImages(block, labels))
    first, second = [*labelled, None][:2]
    assert first is not None
    return ImageDataset(name, first, second, names)


def _image_column(name: str, features: Features, wanted: str | None) -> str:
    from datasets import Image

    if wanted is not None:
        return _existing("image column", wanted, features)
    found = [column for column, feature in features.items() if isinstance(feature, Image)]
    if len(found) == 1:
        return found[0]
    raise _ambiguous(name, "image", found, features)


def _label_column(name: str, features: Features, wanted: str | None, preferred: str | None) -> str:
    from datasets import ClassLabel

    if wanted is not None:
        _existing("label column", wanted, features)
        if not _can_be_label(features[wanted]):
            raise FedcrfError(
                f"column '{wanted}' of data set '{name}' does not hold class labels, integers or "
                "strings; name another one with --label-column."
            )
        return wanted
    class_labels = [c for c, feature in features.items() if isinstance(feature, ClassLabel)]
    if len(class_labels) == 1:
        return class_labels[0]
    candidates = class_labels or [c for c, feature in features.items() if _can_be_label(feature)]
    for column in (preferred, *_LABEL_NAMES):
        if column in candidates:
            return column
    raise _ambiguous(name, "label", class_labels, features)


def _existing(kind: str, wanted: str, features: Features) -> str:
    if wanted not in features:
        raise unknown_name(kind, wanted, features)
    return wanted


def _ambiguous(name: str, kind: str, found: Sequence[str], features: Features) -> FedcrfError:
    trouble = "more than one" if found else "no obvious"
    return FedcrfError(
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
    first = tables[0]
    for table in tables[1:]:
        features = table.rows.features
        if image not in features:
            differing = image
        elif features.get(label) != first.rows.features[label]:
            differing = label
        else:
            continue
        raise FedcrfError(
            f"column '{differing}' of {table.origin} is missing or is not what it is in "
            f"{first.origin}; all files of a data set need the same columns and classes."
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


_GREY_MODES = ("1", "L")
_READ_AT_ONCE = 512


@dataclass(frozen=True)
class RawTable:
    """Rows as they were read, with images still encoded."""

    origin: str  # the file or split of the rows, for messages
    mend: str  # what to do if the rows are damaged, for messages
    rows: Any  # a `datasets.Dataset`


def image_block(image: Image.Image, size: int | None) -> Pixels:
    """Convert one image to ``(1, C, H, W)`` uint8, grey (C = 1) or colour (C = 3).

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
    return (pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))[np.newaxis]


def decode_images(name: str, tables: Iterable[RawTable], column: str, size: int | None) -> Pixels:
    """Decode every image of some tables, in order: ``(n, C, H, W)`` uint8, C = 3 with colours."""
    # One thread on purpose: for images this small Pillow spends its time under the lock, and a
    # pool of threads made CIFAR-10 slower.
    blocks = []
    for table in tables:
        encoded = _encoded(name, table, column)
        for start in range(0, len(encoded), _READ_AT_ONCE):
            rows = enumerate(encoded[start : start + _READ_AT_ONCE][column], start=start)
            blocks.append(join_blocks(name, [_decode(cell, size, n, table) for n, cell in rows]))
    return join_blocks(name, blocks)


def join_blocks(name: str, blocks: Sequence[Pixels]) -> Pixels:
    """Concatenate images ``(n_i, C_i, H, W)`` along the first axis, all as RGB if some are."""
    return np.concatenate(match_channels(name, blocks))


def match_channels(name: str, blocks: Sequence[Pixels]) -> list[Pixels]:
    """Give all blocks ``(n_i, C_i, H, W)`` as many channels as one has; grey becomes R = G = B."""
    sizes = [f"{width}x{height}" for *_, height, width in (block.shape for block in blocks)]
    for size in sizes:
        if size != sizes[0]:
            raise FedcrfError(
                f"the images of data set '{name}' are not of one size: {sizes[0]} and "
                f"{size} pixels (width x height); resize them all with --image-size N."
            )
    channels = max(block.shape[1] for block in blocks)
    return [
        block if block.shape[1] == channels else np.repeat(block, channels, axis=1)
        for block in blocks
    ]


def _encoded(name: str, table: RawTable, column: str) -> Any:
    from datasets import Image as ImageFeature

    try:
        return table.rows.select_columns([column]).cast_column(column, ImageFeature(decode=False))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise FedcrfError(
            f"column '{column}' of data set '{name}' does not hold images; name another one with "
            "--image-column."
        ) from error


def _decode(cell: dict[str, Any] | None, size: int | None, row: int, table: RawTable) -> Pixels:
    try:
        if cell is None or (cell["bytes"] is None and cell["path"] is None):
            raise ValueError("the cell is empty")
        encoded = None if cell["bytes"] is None else io.BytesIO(cell["bytes"])
        with Image.open(encoded or cell["path"]) as image:
            return image_block(image, size)
    except Exception as error:  # Pillow's readers raise almost anything on damaged bytes.
        raise FedcrfError(
            f"image {row} of {table.origin} does not decode ({error}); {table.mend}."
        ) from error
