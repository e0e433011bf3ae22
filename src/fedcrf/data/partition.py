"""Cutting one training set into clients' parts, and each into training, validation and test."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedcrf.checks import Count, Fraction, Natural, Positive, Settings, is_number
from fedcrf.errors import FedcrfError, failing
from fedcrf.extensions import AbsentError, find, is_outside, short_name

Labels = NDArray[np.int64]
Indices = NDArray[np.int64]
Counts = NDArray[np.int64]
Shares = NDArray[np.float64]

_MAX_DRAWS = 10_000


Assign = Callable[[Labels, "PartitionSettings", Generator], list[Indices]]
"""Returns each client's indices, in any order, from labels, settings and a generator."""


@dataclass(frozen=True)
class PartitionScheme:
    """One way to cut a training set."""

    description: str  # one line for a list of schemes
    assign: Assign
    ignores: frozenset[str] = frozenset()  # the settings that it does not use
    behaviour: int | None = 1  # None for a scheme that no longer exists


_SPECIAL = frozenset({"gamma", "sizes"})
"""Settings of single schemes: all others ignore them, and their descriptions leave them out."""

_ABSENT = PartitionScheme("is not there any more.", lambda *_: [], _SPECIAL, behaviour=None)
"""Stands for a scheme that no longer exists, so that the settings of its runs can be read."""


def find_partition(name: str) -> PartitionScheme:
    """Return the scheme of that name: one of `PARTITIONS`, or from outside.

    A function from outside is a scheme that uses all settings but sizes and gamma.
    """
    found = find("partition", name, PARTITIONS)
    if isinstance(found, PartitionScheme):
        return found
    if isinstance(found, type) or not callable(found):
        raise FedcrfError(
            f"partition '{name}' is no partition: give a fedcrf.data.PartitionScheme, or a "
            "function of labels, settings and a generator that returns each client's indices"
        )
    return PartitionScheme(name, found, ignores=_SPECIAL)


@dataclass(frozen=True)
class PartitionSettings(Settings):
    """How to cut a training set into clients' parts.

    Attributes:
        scheme: One of ``PARTITIONS``, or from outside the package; see `fedcrf.extensions`.
        num_clients: K, how many parts.
        alpha: α, the concentration of the Dirichlet distribution; the smaller, the more skewed.
        min_examples: The fewest examples a client may have, in schemes that guarantee some.
        gamma: γ, the share of the examples that is dealt out at random, in [0, 1].
        sizes: The clients' relative numbers of examples, K numbers above 0.

    The scheme is looked up only when it is used (`find_partition`), so that the settings of one
    that no longer exists can still be read.

    Raises:
        FedcrfError: A value is out of range.
    """

    scheme: str = "label-skew"
    num_clients: Count = 10
    alpha: Positive = 0.5
    min_examples: Natural = 10
    gamma: Fraction = 0.5
    sizes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(is_number(size) and size > 0 for size in self.sizes):
            raise FedcrfError(f"sizes {list(self.sizes)}: give numbers above 0")
        if self.sizes and len(self.sizes) != self.num_clients:
            raise FedcrfError(
                f"partition.sizes has {len(self.sizes)} numbers for {self.num_clients} clients: "
                "give one for each (--set partition.sizes=[3,1,1] --clients 3)."
            )

    @property
    def title(self) -> str:
        """The scheme, with α and γ where it has them."""
        alpha = "" if "alpha" in self.unused else f", α = {self.alpha:g}"
        gamma = "" if "gamma" in self.unused else f", γ = {self.gamma:g}"
        return short_name(self.scheme) + alpha + gamma

    @property
    def behaviour(self) -> int | None:  # type: ignore[override]  # it is that of a value
        """The scheme's behaviour number; None if it no longer exists."""
        return self._scheme.behaviour

    @property
    def may_leave_empty(self) -> bool:
        """Whether a client may have no examples."""
        return "min_examples" in self.unused

    @property
    def unused(self) -> frozenset[str]:
        """The settings that the scheme does not use."""
        return self._scheme.ignores

    @property
    def ignores(self) -> frozenset[str]:
        """Those of `unused` that a run's description leaves out; it has always held the others."""
        return self.unused & _SPECIAL

    @property
    def _scheme(self) -> PartitionScheme:
        try:
            return find_partition(self.scheme)
        except AbsentError:
            return _ABSENT


def partition(
    labels: Labels, settings: PartitionSettings, generator: Generator
) -> tuple[Indices, ...]:
    """Cut a training set into clients' disjoint parts.

    Those of the package's schemes are together all of it.

    Args:
        labels: ``(n,)`` int64, the label of every training example.
        settings: The scheme and its numbers.
        generator: The only source of randomness.

    Returns:
        For each client the sorted int64 indices of its examples into ``labels``.

    Raises:
        FedcrfError: There are too few examples for the clients, or too much skew.
    """
    needed = settings.num_clients * settings.min_examples
    if needed > len(labels) and not settings.may_leave_empty:
        raise FedcrfError(
            f"{settings.num_clients} clients with at least {settings.min_examples} examples each "
            f"need {needed} training examples, and there are {len(labels)}; lower --clients or "
            "--min-examples (partition.min_examples), or raise --limit (data.limit) if it is given."
        )
    scheme = find_partition(settings.scheme)

    def dealt(generator: Generator) -> tuple[Indices, ...]:
        with failing(f"partition '{settings.scheme}' failed ({{}})"):
            parts = scheme.assign(np.array(labels, dtype=np.int64), settings, generator)
        if is_outside(settings.scheme):
            parts = _checked(parts, settings, len(labels))
        return tuple(np.sort(part) for part in parts)

    if not is_outside(settings.scheme):
        return dealt(generator)
    same = copy.deepcopy(generator)
    parts = dealt(generator)
    if not all(map(np.array_equal, parts, dealt(same))):
        raise FedcrfError(
            f"partition '{settings.scheme}' gives other parts every time: draw by the generator "
            "that it is given alone"
        )
    return parts


def _checked(
    parts: Sequence[Indices], settings: PartitionSettings, num_examples: int
) -> list[Indices]:
    """Return the parts of a scheme from outside, disjoint ones that need not hold all examples."""
    try:
        each = [np.asarray(part) for part in parts]
        found = [part.astype(np.int64, casting="safe" if part.size else "unsafe") for part in each]
        joined = np.concatenate([np.empty(0, np.int64), *found])
    except (TypeError, ValueError):
        found, joined = [], np.empty(0)
    if (
        len(found) != settings.num_clients
        or joined.ndim != 1
        or len(np.unique(joined)) != len(joined)
        or not np.isin(joined, np.arange(num_examples)).all()
    ):
        raise FedcrfError(
            f"partition '{settings.scheme}' gives no parts of {num_examples} examples: return an "
            f"array of indices for each of {settings.num_clients} clients, no index twice"
        )
    return found


def _iid(labels: Labels, settings: PartitionSettings, generator: Generator) -> list[Indices]:
    """Shuffle, and cut into parts whose sizes differ by one at most."""
    return np.array_split(generator.permutation(len(labels)), settings.num_clients)


def _label_skew(labels: Labels, settings: PartitionSettings, generator: Generator) -> list[Indices]:
    """Dirichlet shares of each class, with closing and redrawing (Li et al., ICDE 2022).

    For each class in turn the shares over the clients are drawn from Dir(α). A client that already
    holds N/K examples gets nothing of later classes. All shares are redrawn until every client has
    enough. The numbers are drawn before any example is shuffled, so that a redraw is cheap.
    """
    class_sizes = _class_sizes(labels)
    for _ in range(_MAX_DRAWS):
        counts = _dirichlet_counts(class_sizes, settings, generator, closing=True)
        if counts.sum(axis=0).min() >= settings.min_examples:
            return _deal(labels, counts, generator)
    raise FedcrfError(
        f"in {_MAX_DRAWS:,} draws at --alpha {settings.alpha:g}, never did all "
        f"{settings.num_clients} clients get {settings.min_examples} examples; raise --alpha, or "
        "lower --clients or --min-examples (partition.min_examples)."
    )


def _dirichlet_counts(
    class_sizes: Counts, settings: PartitionSettings, generator: Generator, *, closing: bool
) -> Counts:
    """Draw how many examples of each class clients get; with closing, none once they have N/K."""
    counts = np.zeros((len(class_sizes), settings.num_clients), dtype=np.int64)
    held = np.zeros(settings.num_clients, dtype=np.int64)
    for row, size in zip(counts, class_sizes, strict=True):
        shares = generator.dirichlet([settings.alpha] * settings.num_clients)
        # Not all can be closed: they would hold all N examples, but this class is not dealt out.
        is_open = (held * settings.num_clients < class_sizes.sum()) | (not closing)
        row[is_open] = _cut(size, shares[is_open], generator)
        held += row
    return counts


def _label_skew_unbalanced(
    labels: Labels, settings: PartitionSettings, generator: Generator
) -> list[Indices]:
    """Dirichlet shares of each class, as drawn: sizes differ, clients may be empty.

    It is ByzFL's ``dirichlet_niid``, which deals out a class in the data set's order.
    """
    counts = _dirichlet_counts(_class_sizes(labels), settings, generator, closing=False)
    return _deal(labels, counts, generator)


def _label_mix(labels: Labels, settings: PartitionSettings, generator: Generator) -> list[Indices]:
    """Equal sizes, each client's labels mixed by its own draw from Dir(α); see `_mixed`."""
    sizes = [len(part) for part in np.array_split(labels, settings.num_clients)]
    return _mixed(labels, sizes, settings, generator)


def _given_sizes(
    labels: Labels, settings: PartitionSettings, generator: Generator
) -> list[Indices]:
    """Given relative sizes, each client's labels mixed by its own draw from Dir(α)."""
    if not settings.sizes:
        raise FedcrfError(
            "partition given-sizes: give the sizes, one for each client "
            "(--set partition.sizes=[3,1,1] --clients 3)."
        )
    shares = np.array(settings.sizes) / sum(settings.sizes)
    sizes = _cut(len(labels), shares, generator)
    if sizes.min() < settings.min_examples:
        client = int(sizes.argmin())
        raise FedcrfError(
            f"of {len(labels)} examples client {client} gets {sizes[client]} by partition.sizes, "
            f"and needs {settings.min_examples}: raise its size, or lower --min-examples "
            "(partition.min_examples)."
        )
    return _mixed(labels, sizes.tolist(), settings, generator)


def _gamma_similarity(
    labels: Labels, settings: PartitionSettings, generator: Generator
) -> list[Indices]:
    """A share γ dealt out at random, the rest sorted by label and cut into equal parts.

    It is the γ-similarity of ByzFL (``gamma_similarity_niid``), except that ByzFL deals out the
    first examples at random, and this draws which. At γ = 0, with as many clients as classes of
    equal size, a client has one class.
    """
    order = generator.permutation(len(labels))
    alike, rest = np.split(order, [int(len(labels) * settings.gamma)])
    by_label = rest[np.argsort(labels[rest], kind="stable")]
    halves = (np.array_split(part, settings.num_clients) for part in (alike, by_label))
    parts = [np.concatenate(both) for both in zip(*halves, strict=True)]
    if len(parts[-1]) < settings.min_examples:  # the first clients get what is over of both
        raise FedcrfError(
            f"of {len(labels)} examples, {len(alike)} of them dealt out at random, the last of "
            f"{settings.num_clients} clients gets {len(parts[-1])}, and needs "
            f"{settings.min_examples}: give fewer clients (--clients), or lower --min-examples "
            "(partition.min_examples)."
        )
    return parts


def _sorted_labels(
    labels: Labels, settings: PartitionSettings, generator: Generator
) -> list[Indices]:
    """Sort by label, in the data set's order within one, and cut into parts of ⌈N/K⌉.

    So Karimireddy, He and Jaggi deal out to their honest clients (ICLR 2022; ``NONIIDLTSampler``
    with α = 0 and β = 1, epfml/byzantine-robust-noniid-optimizer). They fill up the last part with
    examples that the first client has too; here it stays smaller.
    """
    size = math.ceil(len(labels) / settings.num_clients)
    order = np.argsort(labels, kind="stable")
    parts = [order[size * client :][:size] for client in range(settings.num_clients)]
    if len(parts[-1]) < settings.min_examples:
        raise FedcrfError(
            f"of {len(labels)} examples in parts of {size}, the last of {settings.num_clients} "
            f"clients gets {len(parts[-1])}, and needs {settings.min_examples}: give fewer clients "
            "(--clients), or lower --min-examples (partition.min_examples)."
        )
    return parts


def _mixed(
    labels: Labels, sizes: Sequence[int], settings: PartitionSettings, generator: Generator
) -> list[Indices]:
    """Deal out examples by sizes, each client's labels mixed by its own draw from Dir(α).

    Clients draw one after the other, without replacement. When a class runs out, a client's mix
    continues over the remaining classes, so the last clients' are the furthest from their draws.
    """
    remaining = _class_sizes(labels)
    counts = np.zeros((len(remaining), settings.num_clients), dtype=np.int64)
    for client, size in enumerate(sizes):
        if size:
            mix = generator.dirichlet([settings.alpha] * len(remaining))
            counts[:, client] = _fill(size, mix, remaining, generator)
            remaining = remaining - counts[:, client]
    return _deal(labels, counts, generator)


def _fill(size: int, mix: Shares, remaining: Counts, generator: Generator) -> Counts:
    """Draw ``size`` examples' classes by ``mix``, no more of a class than remain."""
    taken = np.zeros_like(remaining)
    while (missing := size - int(taken.sum())) > 0:
        # Dropping what exceeds a class and drawing it again over the rest is the same as
        # renormalising the mix at the moment the class runs out.
        left = np.flatnonzero(taken < remaining)
        drawn = generator.multinomial(missing, _normalised(mix[left], generator))
        taken[left] += np.minimum(drawn, (remaining - taken)[left])
    return taken


def _class_sizes(labels: Labels) -> Counts:
    """Count the examples of each class that occurs, in the order of the labels."""
    return np.unique(labels, return_counts=True)[1].astype(np.int64)


def _normalised(shares: Shares, generator: Generator) -> Shares:
    """Scale shares to sum to 1; if all underflowed to zero, one at random gets all."""
    total = float(shares.sum())
    if total > 0:
        return shares / total
    winner = np.zeros_like(shares)
    winner[generator.integers(len(shares))] = 1
    return winner


def _cut(size: int, shares: Shares, generator: Generator) -> Counts:
    """Cut ``size`` examples at the rounded-down cumulative shares."""
    cuts = (np.cumsum(_normalised(shares, generator))[:-1] * size).astype(np.int64)
    # Rounding may carry the last sums a hair above 1.
    bounds = np.concatenate(([0], np.minimum(cuts, size), [size]))
    return np.diff(bounds)


def _deal(labels: Labels, counts: Counts, generator: Generator) -> list[Indices]:
    """Shuffle each class and hand it out by ``counts``, ``(classes that occur, K)``."""
    parts: list[list[Indices]] = [[] for _ in range(counts.shape[1])]
    for label, row in zip(np.unique(labels), counts, strict=True):
        members = generator.permutation(np.flatnonzero(labels == label))
        for part, piece in zip(parts, np.split(members, np.cumsum(row)[:-1]), strict=True):
            part.append(piece)
    return [np.concatenate(part) if part else np.empty(0, dtype=np.int64) for part in parts]


def _as_held(labels: Labels, settings: PartitionSettings, generator: Generator) -> list[Indices]:
    """Real sites, whose examples stand one behind the other: cut in parts as sizes says."""
    sizes = np.array(settings.sizes or [1.0] * settings.num_clients)
    ends = np.rint(np.cumsum(sizes) / sizes.sum() * len(labels)).astype(np.int64)
    return np.split(np.arange(len(labels)), ends[:-1])


PARTITIONS: Mapping[str, PartitionScheme] = {
    "iid": PartitionScheme("shuffled and cut into equal parts.", _iid, _SPECIAL | {"alpha"}),
    "label-skew": PartitionScheme(
        "each class is shared out by Dir(alpha); clients that have their N/K are closed to later "
        "classes.",
        _label_skew,
        _SPECIAL,
    ),
    "label-skew-unbalanced": PartitionScheme(
        "each class is shared out by Dir(alpha), and that is all: sizes differ and clients may be "
        "empty.",
        _label_skew_unbalanced,
        _SPECIAL | {"min_examples"},
    ),
    "label-mix": PartitionScheme(
        "each client draws its own mix of labels from Dir(alpha); equal sizes.",
        _label_mix,
        _SPECIAL,
    ),
    "gamma-similarity": PartitionScheme(
        "a share gamma is dealt out at random, the rest in the order of the labels (ByzFL).",
        _gamma_similarity,
        frozenset({"alpha", "sizes"}),
    ),
    "sorted-labels": PartitionScheme(
        "sorted by label and cut into equal parts (Karimireddy, He and Jaggi).",
        _sorted_labels,
        _SPECIAL | {"alpha"},
    ),
    "given-sizes": PartitionScheme(
        "sizes as partition.sizes says; each client has its own mix of labels from Dir(alpha).",
        _given_sizes,
        frozenset({"gamma"}),
    ),
    "as-held": PartitionScheme(
        "each real site's own examples (--sites).", _as_held, frozenset({"alpha", "gamma"})
    ),
}
"""The schemes by name; a new one is a function above and a line here."""

_MIN_STRATIFIED = 10
"""Examples of a class from which it is cut by itself."""


@dataclass(frozen=True, eq=False)
class ClientSplit:
    """One client's parts, each as sorted int64 indices into the training set's arrays."""

    behaviour: ClassVar[int] = 1
    train: Indices
    validation: Indices
    test: Indices


def split_client(
    indices: Indices,
    labels: Labels,
    generator: Generator,
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
    """
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise FedcrfError(
            f"the validation and test shares must be at least 0 and sum to less than 1, not "
            f"{validation:g} and {test:g}."
        )
    indices = np.asarray(indices, dtype=np.int64)
    own = labels[indices]
    present, sizes = np.unique(own, return_counts=True)
    large = present[sizes >= _MIN_STRATIFIED]
    groups = [*(indices[own == label] for label in large), indices[~np.isin(own, large)]]
    pieces = []
    for group in groups:
        first = _round_half_up(validation * len(group))
        second = first + min(_round_half_up(test * len(group)), len(group) - first)
        pieces.append(np.split(generator.permutation(group), [first, second]))
    of_validation, of_test, train = (
        np.sort(np.concatenate(part)) for part in zip(*pieces, strict=True)
    )
    return ClientSplit(train, of_validation, of_test)


def _round_half_up(value: float) -> int:
    # The margin lets a product that means a half, such as 0.29 * 50, be one.
    return math.floor(value + 0.5 + 1e-9)
