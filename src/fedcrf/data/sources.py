"""Sources of data sets: the known names, local Parquet folders and the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedcrf.data.cache import cached_dataset
from fedcrf.data.dataset import ImageDataset, LabelledImages
from fedcrf.data.origins import (
    DATA_VARIABLE,
    HELD_OUT_SPLITS,
    EmbeddedOrigin,
    EmbeddedSource,
    HubOrigin,
    LocalOrigin,
    Origin,
    dataset_of,
)
from fedcrf.data.site_files import read_site_files
from fedcrf.data.tables import ReadOptions
from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.extensions import failing, find, installed, is_outside

_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_DIGITS_HELD_OUT = 360

SITES = "sites:"
"""Stands before the path of real sites' files, where a data set's name is taken."""


@dataclass(frozen=True)
class HubSource:
    """A data set of the Hugging Face hub, or a local copy of its Parquet files.

    Attributes:
        description: One line for a list of data sets.
        hub_name: ``"owner/name"``.
        label_column: The label column to take where the data set has several.
    """

    description: str
    hub_name: str
    label_column: str | None = None


DatasetSource = EmbeddedSource | HubSource


def _read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.uint8), digits.target.astype(np.int64)


DATASETS: Mapping[str, DatasetSource] = MappingProxyType(
    {
        "digits": EmbeddedSource(
            "1,797 grey 8x8 digits that come with scikit-learn (values 0 to 16); needs no "
            f"download. The last {_DIGITS_HELD_OUT} are the held-out test set.",
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
)


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

    Raises:
        FedcrfError: If there is no such data set, or it cannot be read or understood; the message
            names the mend.
    """
    options = ReadOptions(image_column, label_column, image_size)
    if name.startswith(SITES):
        return _of_sites(name, options)
    if is_outside(name) or name in installed("dataset"):
        # Its changes cannot be noticed, so it is never cached.
        return _from_outside(name, options)
    origin = _find(name, data_dir)
    identity = {**origin.identity(), "options": asdict(options)}
    return cached_dataset(name, identity, lambda: origin.decode(options), cache_dir)


def site_sizes(name: str, label_column: str | None) -> list[int]:
    """Return how many examples each real site of a data set's name holds.

    Raises:
        FedcrfError: They cannot be read.
    """
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
    examples = LabelledImages.from_numbers(inputs.astype(np.float32), labels)
    return replace(ImageDataset.from_parts(name, examples, None, names), sites=tuple(read.sites))


def _from_outside(name: str, options: ReadOptions) -> ImageDataset:
    """Return the data set that a class or function from outside makes."""
    found = find("dataset", name, {})
    if isinstance(found, EmbeddedSource):
        return EmbeddedOrigin(name, found).decode(options)
    if not callable(found):
        raise FedcrfError(
            f"data set '{name}' is none: give a function that returns images and labels"
        )
    with failing("data set", name):
        made = found()
    return made if isinstance(made, ImageDataset) else dataset_of(name, made, options)


def _find(name: str, data_dir: Path | None) -> Origin:
    source = DATASETS.get(name)
    if isinstance(source, EmbeddedSource):
        return EmbeddedOrigin(name, source)
    folder = data_dir or _folder_from_environment()
    if folder is not None and not folder.is_dir():
        raise FedcrfError(
            f"the data folder '{folder}' does not exist; mend --data-dir or {DATA_VARIABLE}."
        )
    if source is None:
        source = _unlisted(name, folder)
    if folder is not None:
        return _local_folder(name, folder, source)
    return HubOrigin(name, source.hub_name, source.label_column)


def _folder_from_environment() -> Path | None:
    value = os.environ.get(DATA_VARIABLE)
    return Path(value) if value else None


def _unlisted(name: str, folder: Path | None) -> HubSource:
    """Return the source of a name that is not in the registry."""
    if _HUB_NAME.fullmatch(name):
        return HubSource("", hub_name=name)
    if "/" in name:
        raise FedcrfError(
            f"'{name}' is not a data set's name: a hub name has the form owner/name, and a folder "
            f"is given by --data-dir or {DATA_VARIABLE}."
        )
    folders = [path.name for path in folder.iterdir() if path.is_dir()] if folder else []
    if name not in folders:
        raise unknown_name("data set", name, {*DATASETS, *folders})
    return HubSource("", hub_name=name)


def _local_folder(name: str, data_dir: Path, source: HubSource) -> LocalOrigin:
    short_name = source.hub_name.rpartition("/")[2]
    # An alias is looked for under its own name first, a hub name under its owner's first.
    folders = [data_dir / place for place in dict.fromkeys((name, source.hub_name, short_name))]
    for folder in folders:
        train = _parquet_files(folder, "train")
        if train:
            held_out = (_parquet_files(folder, split) for split in HELD_OUT_SPLITS)
            return LocalOrigin(name, train, next(filter(None, held_out), ()), source.label_column)
    looked_in = " or ".join(f"'{folder}'" for folder in folders)
    raise FedcrfError(
        f"data set '{name}': there is no train*.parquet in {looked_in}; put "
        f"its Parquet files there, or unset --data-dir and {DATA_VARIABLE} to use the hub."
    )


def _parquet_files(folder: Path, split: str) -> tuple[Path, ...]:
    return tuple(sorted(path.absolute() for path in folder.glob(f"{split}*.parquet")))
