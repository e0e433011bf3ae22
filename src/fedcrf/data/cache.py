"""Decoded data sets on disk, so that only the first start decodes them."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np

from fedcrf.data.dataset import ImageDataset, LabelledImages
from fedcrf.files import CACHE_VARIABLE, cache_folder

# Raise it whenever decoding gives other arrays than before, or the entry's layout changes.
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

    An entry is a folder that appears whole or not at all, so any number of processes may share a
    cache. A damaged entry is built again. If the folder cannot be written, the data set is returned
    all the same, with a warning in the log.

    Args:
        name: The data set's name, for the entry's folder.
        identity: Everything that the decoded arrays depend on, as JSON values.
        build: Reads and decodes the data set.
        cache_dir: The cache's folder; by default that of `fedcrf.files.cache_folder`.
    """
    entry = (cache_dir or cache_folder()) / "datasets" / _entry_name(name, identity)
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


def _entry_name(name: str, identity: Mapping[str, object]) -> str:
    described = json.dumps({"format": _FORMAT_VERSION, **identity}, sort_keys=True)
    digest = hashlib.sha256(described.encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{digest}"


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
    per_channel = images.images.shape[:2]
    if images.images.ndim != 4 or not (
        images.labels.shape == per_channel[:1]
        and images.pixel_sums.shape == images.pixel_square_sums.shape == per_channel
    ):
        raise ValueError(f"the {part} arrays do not fit together")
    return images


def _store(dataset: ImageDataset, entry: Path) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".new-", dir=entry.parent, ignore_cleanup_errors=True
    ) as scratch:
        # A folder inside, since the temporary one itself is closed to other users.
        new = Path(scratch) / "entry"
        new.mkdir()
        for part, images in (("train", dataset.train), ("held_out", dataset.held_out)):
            for field in fields(LabelledImages) if images is not None else ():
                np.save(new / f"{part}_{field.name}.npy", getattr(images, field.name))
        description = {
            "name": dataset.name,
            "class_names": dataset.class_names,
            "fingerprint": dataset.fingerprint,
            "has_held_out": dataset.held_out is not None,
        }
        (new / _DESCRIPTION).write_text(json.dumps(description, indent=2), encoding="utf-8")
        try:
            new.rename(entry)
        except OSError:
            if not entry.exists():
                raise
            if _load(entry.name, entry) is None:  # else another process was first
                entry.rename(Path(scratch) / "damaged")
                new.rename(entry)
