"""From a table's columns to images, labels and class names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.data.dataset import ImageDataset, LabelledImages
from fedcrf.data.decoding import RawTable, decode_images, match_channels
from fedcrf.errors import FedcrfError, unknown_name

_LABEL_NAMES = ("label", "labels", "fine_label")
# The hub's convention for a label that is not published.
_HIDDEN = -1


@dataclass(frozen=True)
class ReadOptions:
    """How to read a data set's tables.

    Attributes:
        image_column: The column with the images; None finds it.
        label_column: The column with the labels; None finds it.
        image_size: Height and width to resize every image to; None keeps them as they are.
    """

    image_column: str | None = None
    label_column: str | None = None
    image_size: int | None = None

    def __post_init__(self) -> None:
        if self.image_size is not None and self.image_size < 1:
            raise FedcrfError(f"--image-size must be at least 1, not {self.image_size}.")


@dataclass(frozen=True)
class RawSplits:
    """The encoded rows of a data set's two parts; ``held_out`` is empty where it has none."""

    train: Sequence[RawTable]
    held_out: Sequence[RawTable]


@dataclass(frozen=True)
class _Classes:
    names: tuple[str, ...]
    numbers: Mapping[int | str, int]


def decode_splits(
    name: str, splits: RawSplits, options: ReadOptions, preferred_label: str | None
) -> ImageDataset:
    """Find the columns, number the classes and decode the images.

    Labels that are plain integers or strings become classes in sorted order. A held-out part counts
    as absent if none of its labels is published (all are -1 or empty).

    Args:
        name: The data set's name.
        splits: The rows of the two parts.
        options: Which columns to read, and the size to resize to.
        preferred_label: The label column where there are several.

    Raises:
        FedcrfError: If a column is missing or ambiguous, a label is missing, there is nothing to
            train on, an image does not decode, or the images differ in size.
    """
    features = splits.train[0].rows.features
    image = _image_column(name, features, options.image_column)
    label = _label_column(name, features, options.label_column, preferred_label)
    _check_same_columns(image, label, [*splits.train, *splits.held_out])

    train_values = _label_values(splits.train, label)
    held_out_values = _label_values(splits.held_out, label)
    _check_train_labels(name, train_values)
    parts = [(splits.train, train_values)]
    if _are_published(name, held_out_values):
        parts.append((splits.held_out, held_out_values))

    classes = _classes(features[label], [v for _, values in parts for v in values])
    images = match_channels(
        name, [decode_images(name, tables, image, options.image_size) for tables, _ in parts]
    )
    labelled = [
        LabelledImages.from_arrays(block, _numbered(name, values, classes))
        for block, (_, values) in zip(images, parts, strict=True)
    ]
    train, held_out = labelled if len(labelled) == 2 else (labelled[0], None)
    return ImageDataset.from_parts(name, train, held_out, classes.names)


def _image_column(name: str, features: Mapping[str, Any], wanted: str | None) -> str:
    from datasets import Image

    if wanted is not None:
        return _existing("image column", wanted, features)
    found = [column for column, feature in features.items() if isinstance(feature, Image)]
    if len(found) == 1:
        return found[0]
    raise _ambiguous(name, "image", found, features)


def _label_column(
    name: str, features: Mapping[str, Any], wanted: str | None, preferred: str | None
) -> str:
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


def _existing(kind: str, wanted: str, features: Mapping[str, Any]) -> str:
    if wanted not in features:
        raise unknown_name(kind, wanted, features)
    return wanted


def _ambiguous(
    name: str, kind: str, found: Sequence[str], features: Mapping[str, Any]
) -> FedcrfError:
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


def _check_train_labels(name: str, values: Sequence[int | str]) -> None:
    if not values:
        raise FedcrfError(f"data set '{name}' has no training images; give files with some rows.")
    if _HIDDEN in values:
        raise FedcrfError(
            f"data set '{name}' has {values.count(_HIDDEN)} training images without a label (-1 or "
            "empty); remove them, or name another column with --label-column."
        )


def _are_published(name: str, values: Sequence[int | str]) -> bool:
    hidden = values.count(_HIDDEN)
    if 0 < hidden < len(values):
        raise FedcrfError(
            f"data set '{name}' has {hidden} held-out images without a label (-1 or empty) among "
            f"{len(values)}; remove them, or name another column with --label-column."
        )
    return hidden < len(values)


def _classes(feature: Any, values: Sequence[int | str]) -> _Classes:
    from datasets import ClassLabel

    if isinstance(feature, ClassLabel):
        return _Classes(tuple(feature.names), {n: n for n in range(feature.num_classes)})
    # One column holds one type, so the values compare.
    ordered = sorted(set(values))
    return _Classes(tuple(map(str, ordered)), {value: n for n, value in enumerate(ordered)})


def _numbered(name: str, values: Sequence[int | str], classes: _Classes) -> NDArray[np.int64]:
    try:
        return np.array([classes.numbers[value] for value in values], dtype=np.int64)
    except KeyError as error:
        raise FedcrfError(
            f"data set '{name}' has the label {error} but only {len(classes.names)} class names; "
            "mend its files, or name another column with --label-column."
        ) from None
