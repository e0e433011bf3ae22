"""Cutting one client's examples into training, validation and test parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError

Indices = NDArray[np.int64]

_MIN_STRATIFIED = 10


@dataclass(frozen=True, eq=False)
class ClientSplit:
    """One client's parts, each as sorted int64 indices into the training set's arrays."""

    behaviour: ClassVar[int] = 1
    train: Indices
    validation: Indices
    test: Indices


def split_client(
    indices: Indices,
    labels: NDArray[np.int64],
    generator: np.random.Generator,
    validation: float = 0.1,
    test: float = 0.1,
) -> ClientSplit:
    """Shuffle a client's examples and cut them into three parts.

    Each class of which the client has at least ten examples is cut by itself; the others are pooled
    and cut together. The numbers of validation and test examples are rounded half up, and training
    gets the rest.

    Args:
        indices: The client's examples, as positions in ``labels``.
        labels: ``(n,)`` int64, the labels of the whole training set.
        generator: The only source of randomness.
        validation: The share of the validation part.
        test: The share of the test part.

    Raises:
        FedcrfError: If a share is negative, or the two sum to 1 or more.
    """
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise FedcrfError(
            f"the validation and test shares must be at least 0 and sum to less than 1, not "
            f"{validation:g} and {test:g}."
        )
    indices = np.asarray(indices, dtype=np.int64)
    pieces = [
        _cut(generator.permutation(group), validation, test) for group in _strata(indices, labels)
    ]
    return ClientSplit(*(np.sort(np.concatenate(part)) for part in zip(*pieces, strict=True)))


def _strata(indices: Indices, labels: NDArray[np.int64]) -> list[Indices]:
    """Return the classes that are large enough, then all other examples as the last group."""
    own = labels[indices]
    present, sizes = np.unique(own, return_counts=True)
    large = present[sizes >= _MIN_STRATIFIED]
    return [*(indices[own == label] for label in large), indices[~np.isin(own, large)]]


def _cut(group: Indices, validation: float, test: float) -> tuple[Indices, Indices, Indices]:
    num_validation = _round_half_up(validation * len(group))
    num_test = min(_round_half_up(test * len(group)), len(group) - num_validation)
    validation_part, test_part, train_part = np.split(
        group, [num_validation, num_validation + num_test]
    )
    return train_part, validation_part, test_part


def _round_half_up(value: float) -> int:
    # The margin lets a product that means a half, such as 0.29 * 50, be one.
    return math.floor(value + 0.5 + 1e-9)
