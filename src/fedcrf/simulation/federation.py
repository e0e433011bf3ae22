"""The federation: every client's data, as tensors ready to train on, and a run's random streams.

There is a stream for each purpose, all from the run's seed. It depends only on the seed and its
name. So a resumed run draws what the first one would have drawn, and methods under one seed share
partition, initial model and client shuffles.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcrf.checks import check_whole
from fedcrf.data import (
    ClientSplit,
    ImageDataset,
    LabelledImages,
    PartitionSettings,
    partition,
    split_client,
)
from fedcrf.errors import FedcrfError
from fedcrf.simulation.records import Client


class Stream(enum.IntEnum):
    """The purposes; the numbers are part of every published result and never change."""

    PARTITION = 0
    SPLIT = 1
    MODEL = 2
    SHUFFLE = 3
    TRAINING = 4
    PARTICIPATION = 5
    ATTACKERS = 6
    ATTACK = 7
    POISON = 8
    SERVER = 9
    EVALUATION = 10


def generator(seed: int, stream: Stream, *indices: int) -> np.random.Generator:
    """Return the generator of one purpose, such as the shuffle of one round and client."""
    return np.random.default_rng(_sequence(seed, stream, *indices))


def torch_seed(seed: int, stream: Stream, *indices: int) -> int:
    """Return a seed for torch's generator, for one purpose."""
    return int(_sequence(seed, stream, *indices).generate_state(1, np.uint64)[0] >> 1)


def _sequence(seed: int, stream: Stream, *indices: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(int(stream), *indices))


@dataclass(frozen=True)
class Examples:
    """Images and labels on one device; of a task of a user's any inputs and targets.

    Attributes:
        images: (n, C, H, W) float32, normalised by channel; (n, ...) of any inputs.
        labels: (n,) int64; (n, ...) of any targets.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: slice | NDArray[Any]) -> Self:
        """Return some of the examples: a slice, or copies of those at places or in a mask."""
        device = self.labels.device
        where = chosen if isinstance(chosen, slice) else torch.from_numpy(chosen).to(device)
        return replace(self, **{name: tensor[where] for name, tensor in vars(self).items()})

    @staticmethod
    def joined(parts: Sequence[Examples]) -> Examples:
        """Return the examples of all parts, one behind the other."""
        return Examples(
            torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
        )

    def split(self, sizes: Sequence[int]) -> tuple[Examples, ...]:
        """Return parts of these sizes, as slices of one piece, which processes share as one."""
        pieces = (torch.split(each, list(sizes)) for each in (self.images, self.labels))
        return tuple(Examples(*part) for part in zip(*pieces, strict=True))

    @staticmethod
    def in_one_piece(parts: Sequence[Examples]) -> tuple[Examples, ...]:
        """Return the same parts as slices of one piece; see `split`."""
        return Examples.joined(parts).split([*map(len, parts)]) if parts else ()


@dataclass(frozen=True)
class PooledExamples(Examples):
    """The clients' parts put together, and (n,) int64 the client that each example belongs to."""

    owners: Tensor

    @classmethod
    def of(cls, parts: Sequence[Examples]) -> Self:
        """Return the parts put together; client i owns part i."""
        union = Examples.joined(parts)
        owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        return cls(union.images, union.labels, torch.from_numpy(owners).to(union.labels.device))

    def owned_by(self, clients: Sequence[int], *, owned: bool = True) -> Self:
        """Return the examples of some clients, or of the others."""
        return self[np.isin(self.owners.cpu().numpy(), clients, invert=not owned)]

    def by_owner(self) -> Iterator[tuple[int, slice]]:
        """Yield each owner of examples that lie together, and where they lie."""
        owners, counts = torch.unique_consecutive(self.owners, return_counts=True)
        start = 0
        for owner, count in zip(owners.tolist(), counts.tolist(), strict=True):
            yield owner, slice(start, start + count)
            start += count


@dataclass(frozen=True)
class Federation:
    """The clients' data for one seed.

    Attributes:
        clients: Each client's training part; it may be empty.
        validation: Union of the clients' validation parts.
        test: Union of the clients' test parts.
        held_out: The data set's own test set; None without one.
        image_shape: Channels, height, width; of any inputs the shape of one example.
        num_classes: Number of labels; 0 where targets are none.
        set_aside: The test parts of clients that are not scored; None if all are.
        names: The clients' names in records; None if these are their numbers.
    """

    clients: tuple[Examples, ...]
    validation: PooledExamples
    test: PooledExamples
    held_out: Examples | None
    image_shape: tuple[int, ...]
    num_classes: int
    set_aside: PooledExamples | None = None
    names: tuple[Client, ...] | None = None

    def called(self, clients: Iterable[int]) -> list[Client]:
        """Return the clients' names in records."""
        return [client if self.names is None else self.names[client] for client in clients]

    @property
    def device(self) -> torch.device:
        """Where the data lie."""
        return self.validation.labels.device

    @cached_property
    def eligible(self) -> list[int]:
        """The clients that have examples to train on."""
        return [client for client, each in enumerate(self.clients) if len(each)]

    def joined_by(self, attackers: int, seed: int) -> Federation:
        """Return the federation with so many more clients, whose examples are others' too.

        Each holds a random sample of all training examples, as large as the mean client's part, and
        nothing to validate or test on. Its name is its number, beside any names of others.
        """
        pool = Examples.joined(self.clients)
        size = max(1, round(len(pool) / len(self.clients)))
        draws = (generator(seed, Stream.ATTACKERS, number + 1) for number in range(attackers))
        samples = [pool[draw.choice(len(pool), size, replace=False)] for draw in draws]
        clients = (*self.clients, *Examples.in_one_piece(samples))
        numbers = range(len(self.clients), len(clients))
        return replace(self, clients=clients, names=self.names and (*self.names, *numbers))

    def judged_without(self, clients: Sequence[int]) -> Federation:
        """Return the same clients, with some excluded from validation and test.

        Their test parts are set aside; an example must remain for validation.
        """
        validation = self.validation.owned_by(clients, owned=False)
        test = self.test.owned_by(clients, owned=False)
        if not len(validation):
            raise FedcrfError(
                "the honest clients hold nothing to validate on: give fewer attackers "
                "(--attackers) or a larger data set"
            )
        set_aside = self.test.owned_by(clients)
        return replace(self, validation=validation, test=test, set_aside=set_aside)


def client_splits(
    labels: NDArray[np.int64], settings: PartitionSettings, seed: int
) -> tuple[ClientSplit, ...]:
    """Return every client's train, validation and test parts for one seed.

    ``labels`` are those of the training set, (n,).
    """
    parts = partition(labels, settings, generator(seed, Stream.PARTITION))
    return tuple(
        split_client(indices, labels, generator(seed, Stream.SPLIT, client))
        for client, indices in enumerate(parts)
    )


def check_splits(splits: Sequence[ClientSplit]) -> None:
    """Raise a `FedcrfError` if there is no example for training, or none for validation."""
    if not any(len(split.train) for split in splits) or not any(
        len(split.validation) for split in splits
    ):
        raise FedcrfError(
            "the clients hold too few examples to train and validate on: "
            "use fewer clients (--clients) or a larger data set"
        )


def check_participation(clients_per_round: int | None, num_clients: int) -> None:
    """Raise a `FedcrfError` if so many of so many clients cannot be drawn for a round."""
    if clients_per_round is None:
        return
    check_whole("clients_per_round", clients_per_round, least=1)
    if clients_per_round > num_clients:
        raise FedcrfError(
            f"clients_per_round {clients_per_round}: the federation has {num_clients} clients; "
            "give at most so many (--clients-per-round), or more clients (--clients)"
        )


def build_federation(
    dataset: ImageDataset, splits: Sequence[ClientSplit], device: torch.device | None = None
) -> Federation:
    """Put every client's part on the device, normalised by the union of the training parts.

    ``splits`` are those of `client_splits`; there must be examples to train and to validate on.
    """
    check_splits(splits)
    train, held_out = dataset.train, dataset.held_out
    whole = np.concatenate([split.train for split in splits])
    scale = train.normalisation(whole)
    mean, std = (
        torch.from_numpy(values).to(device, torch.float32)[:, None, None]
        for values in (scale.mean, scale.std)
    )

    def normalised(source: LabelledImages, indices: NDArray[np.int64]) -> Examples:
        images = torch.from_numpy(source.images[indices]).to(device, torch.float32)
        labels = torch.from_numpy(source.labels[indices]).to(device)
        return Examples(images.sub_(mean).div_(std), labels)

    union = normalised(train, whole)

    def pooled(of_clients: Iterable[NDArray[np.int64]]) -> PooledExamples:
        return PooledExamples.of([normalised(train, each) for each in of_clients])

    return Federation(
        clients=union.split([len(split.train) for split in splits]),
        validation=pooled(split.validation for split in splits),
        test=pooled(split.test for split in splits),
        held_out=None if held_out is None else normalised(held_out, np.arange(len(held_out))),
        image_shape=dataset.image_shape,
        num_classes=dataset.num_classes,
        names=dataset.sites,
    )
