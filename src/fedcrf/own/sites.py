"""What real sites hold: any inputs and targets by the sites' names, checked and cut in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedcrf.data import split_client
from fedcrf.data.site_files import check_alike, check_pair, check_range
from fedcrf.errors import FedcrfError, failing
from fedcrf.simulation.federation import Examples, Federation, PooledExamples, Stream, generator
from fedcrf.statistics.inputs import check_filled

SHARE = 0.1
"""Of a site's examples, for validation and for test each, where the server holds none."""

MASKED = "fill what is missing, or leave those examples out"
"""What can be done about a masked array, whose mask would be lost."""


@dataclass(frozen=True)
class Sites:
    """What every site holds, alike in shape and kind, and the sites' names or places."""

    identities: Sequence[int | str]
    examples: Sequence[Examples]

    @property
    def called(self) -> dict[str, Examples]:
        """What each holds, by what errors call it."""
        called = map(_called, self.identities)
        return dict(zip(called, self.examples, strict=True))

    @property
    def have_labels(self) -> bool:
        """Whether each target is one whole number from 0 on."""
        targets = [each.labels for each in self.examples]
        return all(
            each.dim() == 1 and _are_whole(each) and int(each.min()) >= 0 for each in targets
        )

    def fingerprint(self, others: Iterable[Examples] = ()) -> str:
        """Return a digest of names, examples and others' examples, 16 hexadecimal digits."""
        digest = hashlib.sha256(repr(self.identities).encode())
        for each in (*self.examples, *others):
            for tensor in (each.images, each.labels):
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                plain = tensor.cpu().resolve_conj().contiguous().flatten()
                digest.update(plain.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


def read_sites(sites: object) -> Sites:
    """Return what the sites hold as tensors: by their names, or one after the other.

    Each is a pair of inputs and targets, arrays or tensors, or a data set of torch whose items are
    such pairs. Floats of arrays become torch's default dtype, whole numbers int64; tensors, and
    items of data sets, keep their dtype. All are finite, and alike in shape and kind.
    """
    identities: list[int | str]
    if isinstance(sites, Mapping):
        identities, held = [str(name) for name in sites], list(sites.values())
    elif isinstance(sites, Sequence) and not isinstance(sites, str):
        identities, held = list(range(len(sites))), list(sites)
    else:
        raise FedcrfError(
            f"the sites are a {type(sites).__name__}: give a dictionary such as "
            '{"north": (inputs, targets), "south": …}'
        )
    if not held:
        raise FedcrfError("there are no sites: give each one's inputs and targets by its name")
    twice = [name for name in identities if identities.count(name) > 1]
    if twice:
        raise FedcrfError(f"site '{twice[0]}' is there twice: give each site a name of its own")
    read = Sites(identities, list(map(read_examples, held, map(_called, identities))))
    check_same_form(read.called)
    return read


def read_examples(held: object, called: str) -> Examples:
    """Return inputs and targets as tensors; see `read_sites`. ``called`` is whose they are."""
    if isinstance(held, Dataset):
        pair: tuple[Any, ...] = _stacked(held, called)
    elif isinstance(held, tuple | list) and len(held) == 2:
        pair = tuple(held)
    else:
        raise FedcrfError(
            f"{called} holds a {type(held).__name__}: give a pair of inputs and targets, or a data "
            "set of torch"
        )
    inputs = _tensor(pair[0], f"inputs of {called}")
    targets = _tensor(pair[1], f"targets of {called}")
    check_pair(inputs, targets, called)
    return Examples(inputs, targets)


def check_same_form(examples: Mapping[str, Examples]) -> None:
    """Raise a `FedcrfError` where somebody's examples have another shape or kind than the first's.

    ``examples`` are by whose they are, as errors call it.
    """
    for what, name in (("inputs", "images"), ("targets", "labels")):
        tensors = {called: getattr(each, name) for called, each in examples.items()}
        check_alike(what, {called: tuple(each.shape[1:]) for called, each in tensors.items()})
        check_alike(what, {called: kind_of(each) for called, each in tensors.items()})
        check_alike(what, {called: f"on {each.device}" for called, each in tensors.items()})


def federation_of(
    sites: Sites, held_by_server: Mapping[str, Examples | float], seed: int, num_classes: int
) -> Federation:
    """Return the federation of the sites, each cut in parts.

    ``held_by_server`` has by ``validation`` and ``test`` what the server holds for it, or the share
    of each site's examples; ``num_classes`` is 0 where targets are no labels.
    """
    shares = {
        name: held if isinstance(held, float) else 0.0 for name, held in held_by_server.items()
    }
    parts: dict[str, list[Examples]] = {"train": [], "validation": [], "test": []}
    for site, (called, each) in enumerate(sites.called.items()):
        labels = each.labels.cpu().numpy() if num_classes else np.zeros(len(each), np.int64)
        draw = generator(seed, Stream.SPLIT, site)
        split = split_client(np.arange(len(each)), labels, draw, **shares)
        if not len(split.train):
            raise FedcrfError(
                f"{called} has {len(each)} examples, and none is left to train on: give it more, "
                "or smaller shares (validation=, test=)"
            )
        for name, of_sites in parts.items():
            of_sites.append(each[getattr(split, name)])
    for name, held in held_by_server.items():
        if isinstance(held, Examples):
            parts[name].append(held)  # its owner is behind the last client
    validation = PooledExamples.of(parts["validation"])
    if not len(validation):
        raise FedcrfError(
            "the sites hold too few examples to validate on: give validation=(inputs, targets), "
            "or a larger share"
        )
    return Federation(
        clients=tuple(parts["train"]),
        validation=validation,
        test=PooledExamples.of(parts["test"]),
        held_out=None,
        image_shape=tuple(sites.examples[0].images.shape[1:]),
        num_classes=num_classes,
        names=tuple(sites.identities),
    )


def _called(identity: int | str) -> str:
    return f"site {identity!r}"


def _are_whole(tensor: Tensor) -> bool:
    """Tell whether numbers are whole ones of a kind that torch compares; uint16 is none."""
    return tensor.dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    )


def kind_of(tensor: Tensor) -> str:
    """Return the name of a tensor's dtype, such as float32."""
    return str(tensor.dtype).removeprefix("torch.")


def _stacked(dataset: Any, called: str) -> tuple[Tensor, Tensor]:
    """Return all items of a data set; each is read once."""
    wrong = (
        f"{called}: its data set cannot be read ({{}}): give one with a length, whose items are "
        "pairs of inputs and target"
    )
    with failing(wrong):
        items = [dataset[index] for index in range(len(dataset))]
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise FedcrfError(f"{called}: items of its data set are no pairs of inputs and target")
    pair = []
    for number, what in enumerate(("inputs", "targets")):
        for item in items:
            check_filled(item[number], f"{what} of {called} are", MASKED)
        with failing(wrong):
            each = [torch.as_tensor(item[number]) for item in items]
        shapes = sorted({tuple(tensor.shape) for tensor in each})
        if len(shapes) > 1:
            raise FedcrfError(
                f"{what} of {called} have shapes {shapes[0]} and {shapes[1]}: pad or crop them to "
                "one shape"
            )
        pair.append(torch.stack(each) if each else torch.empty(0))
    return pair[0], pair[1]


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_meta:
            raise FedcrfError(f"{what} are sparse, or a tensor without numbers: give a dense one")
        tensor = values.detach()
    else:
        check_filled(values, f"{what} are", MASKED)
        with failing(f"{what} are no array ({{}}): give one"):
            array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise FedcrfError(f"{what} are {array.dtype.name}, not numbers: give numbers")
        copied = np.array(array, np.float64 if array.dtype.kind == "f" else np.int64, order="C")
        tensor = torch.from_numpy(copied)
        if tensor.is_floating_point():
            dtype = torch.get_default_dtype()
            if dtype == torch.float32:
                check_range(copied, what)
            tensor = tensor.to(dtype)
    if tensor.is_floating_point() and tensor.numel() and tensor.dim():
        with failing(f"{what} are {kind_of(tensor)} ({{}}): give float32"):
            odd = ~torch.isfinite(tensor).reshape(len(tensor), -1).all(dim=1)
        if odd.any():
            raise FedcrfError(
                f"{what} are NaN or infinite in example {int(odd.nonzero()[0])}: fill it in, or "
                "leave the example out"
            )
    return tensor
