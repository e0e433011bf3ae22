"""Data sets, their partition over clients, and each client's split."""

from fedcrf.extras import naming_extras

with naming_extras():
    import PIL  # noqa: F401

from fedcrf.data.dataset import ImageDataset, LabelledImages, Normalisation
from fedcrf.data.partition import (
    PARTITIONS,
    ClientSplit,
    PartitionScheme,
    PartitionSettings,
    find_partition,
    partition,
    split_client,
)
from fedcrf.data.sources import DATASETS, DatasetSource, load_dataset

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "ClientSplit",
    "DatasetSource",
    "ImageDataset",
    "LabelledImages",
    "Normalisation",
    "PartitionScheme",
    "PartitionSettings",
    "find_partition",
    "load_dataset",
    "partition",
    "split_client",
]
