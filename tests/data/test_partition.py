from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from fedcrf import FedcrfError
from fedcrf.data import PARTITIONS, PartitionSettings, partition

MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_LABELS = np.repeat(np.arange(10), MNIST_COUNTS)
EQUAL_SIZES = ("iid", "label-mix")
GAMMA = {"scheme": "gamma-similarity", "min_examples": 0}

schemes = st.sampled_from(sorted(PARTITIONS))
alphas = st.sampled_from([1e-300, 1e-6, 0.003, 0.1, 0.5, 10.0, 1e100])
label_arrays = st.lists(st.integers(0, 7), max_size=120).map(lambda v: np.array(v, dtype=np.int64))


def cut(labels: np.ndarray, seed: int = 0, **fields: Any) -> tuple[np.ndarray, ...]:
    return partition(labels, PartitionSettings(**fields), np.random.default_rng(seed))


@given(
    labels=label_arrays,
    scheme=schemes,
    clients=st.integers(1, 12),
    alpha=alphas,
    seed=st.integers(0, 99),
)
@example(labels=np.zeros(0, dtype=np.int64), scheme="label-mix", clients=3, alpha=0.5, seed=0)
def test_every_example_is_at_exactly_one_client_the_same_one_every_time(
    labels: np.ndarray, scheme: str, clients: int, alpha: float, seed: int
) -> None:
    fields = {
        "scheme": scheme,
        "num_clients": clients,
        "alpha": alpha,
        "min_examples": 0,
        "sizes": tuple(range(1, clients + 1)),
    }
    parts = cut(labels, seed, **fields)
    assert len(parts) == clients
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    again = cut(labels, seed, **fields)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    if scheme in EQUAL_SIZES:
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@given(labels=label_arrays, clients=st.integers(2, 6), alpha=alphas, seed=st.integers(0, 99))
def test_a_client_with_its_share_gets_none_of_a_later_class(
    labels: np.ndarray, clients: int, alpha: float, seed: int
) -> None:
    parts = cut(labels, seed, num_clients=clients, alpha=alpha, min_examples=0)
    for part in parts:
        for label in np.unique(labels[part]):
            held_before = np.count_nonzero(labels[part] < label)
            assert held_before * clients < len(labels)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    labels=label_arrays, clients=st.integers(1, 5), least=st.integers(0, 6), seed=st.integers(0, 9)
)
def test_every_client_has_the_least_number(
    labels: np.ndarray, clients: int, least: int, seed: int
) -> None:
    assume(clients * least * 3 <= len(labels))
    for scheme in ("iid", "label-skew", "label-mix"):
        parts = cut(labels, seed, scheme=scheme, num_clients=clients, min_examples=least)
        assert min(map(len, parts)) >= least


def slow_label_skew(
    labels: np.ndarray, clients: int, alpha: float, least: int, generator: np.random.Generator
) -> list[list[int]]:
    """The scheme example by example, with the same calls to the generator."""
    classes = sorted(set(labels.tolist()))
    while True:
        held = [0] * clients
        plan = []
        for label in classes:
            members = [i for i, other in enumerate(labels) if other == label]
            drawn = generator.dirichlet([alpha] * clients).tolist()
            shares = [0.0 if held[k] >= len(labels) / clients else drawn[k] for k in range(clients)]
            if sum(shares) == 0:
                open_clients = [k for k in range(clients) if held[k] < len(labels) / clients]
                shares[open_clients[generator.integers(len(open_clients))]] = 1.0
            # Example number j goes to the first open client whose cumulative share passes it.
            open_clients = [k for k in range(clients) if held[k] < len(labels) / clients]
            scale, running, bounds = np.sum([shares[k] for k in open_clients]), 0.0, []
            for k in open_clients:
                running += shares[k] / scale
                bounds.append(int(running * len(members)))
            bounds[-1] = len(members)
            owners = [
                next(k for k, bound in zip(open_clients, bounds, strict=True) if j < bound)
                for j in range(len(members))
            ]
            for owner in owners:
                held[owner] += 1
            plan.append((members, owners))
        if min(held) >= least:
            break
    parts: list[list[int]] = [[] for _ in range(clients)]
    for members, owners in plan:
        for index, owner in zip(generator.permutation(members), owners, strict=True):
            parts[owner].append(int(index))
    return [sorted(part) for part in parts]


@pytest.mark.parametrize("alpha", [1e-6, 0.003, 0.1, 0.5, 10.0])
@pytest.mark.parametrize("seed", range(8))
def test_label_skew_is_the_slow_version(alpha: float, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 6, size=200)
    slow = slow_label_skew(labels, 4, alpha, 10, np.random.default_rng(seed))
    fast = cut(labels, seed, num_clients=4, alpha=alpha, min_examples=10)
    assert [part.tolist() for part in fast] == slow


@pytest.mark.parametrize("alpha", [1e-6, 0.003, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_label_skew_works_at_the_papers_scale(alpha: float, seed: int) -> None:
    parts = cut(MNIST_LABELS, seed, num_clients=10, alpha=alpha)
    assert sum(map(len, parts)) == 60_000
    assert min(map(len, parts)) >= 10
    if alpha < 0.01:
        assert np.mean([len(np.unique(MNIST_LABELS[part])) for part in parts]) < 4


class _Underflow:
    """A generator whose Dirichlet shares of client 0 are all: the others' underflowed to zero."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def dirichlet(self, alpha: np.ndarray) -> np.ndarray:
        return np.eye(len(alpha))[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


def test_underflowed_shares_go_to_one_open_client_at_random() -> None:
    labels = np.repeat(np.arange(4), 25)
    settings_ = PartitionSettings(num_clients=4, min_examples=0)
    owners_of_class_1 = set()
    for seed in range(40):
        parts = partition(labels, settings_, _Underflow(seed))  # type: ignore[arg-type]
        owners = [
            [k for k, part in enumerate(parts) if label in labels[part]] for label in range(4)
        ]
        assert owners[0] == [0]
        assert sorted(owner for [owner] in owners) == [0, 1, 2, 3]
        owners_of_class_1.update(owners[1])
    assert owners_of_class_1 == {1, 2, 3}


def test_label_mix_goes_on_over_the_classes_left_when_shares_underflow() -> None:
    labels = np.repeat(np.arange(3), 10)
    settings_ = PartitionSettings("label-mix", num_clients=3)
    seconds = set()
    for seed in range(20):
        parts = partition(labels, settings_, _Underflow(seed))  # type: ignore[arg-type]
        classes = [np.unique(labels[part]).tolist() for part in parts]
        assert classes[0] == [0]
        assert all(len(own) == 1 for own in classes)
        seconds.add(classes[1][0])
    assert seconds == {1, 2}


@pytest.mark.parametrize(("alpha", "low", "high"), [(0.01, 1, 3), (1000.0, 9.9, 10)])
def test_alpha_sets_how_mixed_the_label_mix_is(alpha: float, low: float, high: float) -> None:
    parts = cut(MNIST_LABELS, scheme="label-mix", alpha=alpha)
    assert low <= np.mean([len(np.unique(MNIST_LABELS[part])) for part in parts]) <= high


def test_unbalanced_may_leave_clients_empty() -> None:
    parts = cut(np.zeros(5, dtype=np.int64), scheme="label-skew-unbalanced", num_clients=20)
    assert sum(map(len, parts)) == 5
    assert min(map(len, parts)) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alpha": 0.0}, r"alpha 0\.0: give a number above 0"),
        ({"alpha": -1.0}, "alpha -1"),
        ({"alpha": float("nan")}, "alpha nan"),
        ({"alpha": float("inf")}, "alpha inf"),
        ({"num_clients": 0}, "num_clients 0: give a whole number, 1 or more"),
        ({"min_examples": -1}, "min_examples -1: give a whole number, 0 or more"),
        ({"gamma": -0.1}, r"gamma -0\.1: give a number from 0 to 1"),
        ({"gamma": 1.5}, r"gamma 1\.5: give a number from 0 to 1"),
        ({"gamma": float("nan")}, "gamma nan"),
        ({"sizes": (1.0, 0.0)}, r"sizes \[1\.0, 0\.0\]: give numbers above 0"),
        ({"sizes": (1, 2)}, "sizes has 2 numbers for 10 clients: give one for each"),
        ({"scheme": "label-skw"}, "unknown partition 'label-skw': did you mean 'label-skew'"),
    ],
)
def test_bad_settings_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(FedcrfError, match=message):
        cut(np.zeros(200, dtype=np.int64), seed=0, **fields)


@pytest.mark.parametrize("scheme", ["iid", "label-skew", "label-mix", "sorted-labels"])
def test_more_clients_than_the_data_allows(scheme: str) -> None:
    with pytest.raises(
        FedcrfError, match=r"11 clients .* 10 examples .* 110 .* 100; lower --clients"
    ):
        cut(np.zeros(100, dtype=np.int64), scheme=scheme, num_clients=11)


def test_a_size_of_too_few_examples_names_its_client() -> None:
    fields = {"scheme": "given-sizes", "num_clients": 3, "sizes": (60, 1, 39)}
    with pytest.raises(FedcrfError, match=r"client 1 gets 1 by partition\.sizes, and needs 10"):
        cut(np.zeros(100, dtype=np.int64), **fields)


def test_sizes_are_to_be_given() -> None:
    with pytest.raises(FedcrfError, match="give the sizes, one for each client"):
        cut(np.zeros(100, dtype=np.int64), scheme="given-sizes")


def test_sizes_are_those_of_real_hospitals() -> None:
    sizes = (190, 17_834, 500, 2_000)
    parts = cut(MNIST_LABELS, scheme="given-sizes", num_clients=4, sizes=sizes, alpha=0.1)
    shares = np.array([len(part) for part in parts]) / len(MNIST_LABELS)
    assert np.abs(shares - np.array(sizes) / sum(sizes)).max() < 1e-4


def byzfl_distributor(parameter: float) -> Any:
    """Return ByzFL's own, for seven clients."""
    package = find_spec("byzfl")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("byzfl is not installed")
    # By its path: the package as a whole needs a torchvision that fits.
    path = Path(package.submodule_search_locations[0]) / "fed_framework" / "data_distributor.py"
    byzfl = ModuleType("data_distributor")
    exec(compile(path.read_text(), path, "exec"), vars(byzfl))
    theirs = byzfl.DataDistributor.__new__(byzfl.DataDistributor)
    theirs.nb_honest, theirs.distribution_parameter = 7, parameter
    return theirs


@pytest.mark.parametrize("alpha", [0.1, 0.5, 10.0])
def test_label_skew_unbalanced_is_the_dirichlet_form_of_byzfl(
    alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.random.default_rng(0).permutation(MNIST_LABELS)[:997]
    fields = {"scheme": "label-skew-unbalanced", "num_clients": 7, "alpha": alpha}
    parts = cut(labels, 5, **fields)
    draw = np.random.default_rng(5)
    monkeypatch.setattr(
        np.random, "dirichlet", lambda alphas, size: [draw.dirichlet(alphas) for _ in range(size)]
    )
    indices = list(range(len(labels)))
    expected = byzfl_distributor(alpha).dirichlet_niid_idx(torch.from_numpy(labels), indices)
    for part, other in zip(parts, expected, strict=True):
        assert sorted(labels[part]) == sorted(labels[other])


def sorted_by_a_slow_loop(labels: np.ndarray, clients: int) -> list[list[int]]:
    """Karimireddy's sampler, for every rank; its repeated examples are left out."""
    indices: list[int] = []
    for label in range(labels.max() + 1):
        indices += [number for number, each in enumerate(labels) if each == label]
    per_client = -(-len(indices) // clients)
    padded = [*indices, *[None] * (per_client * clients - len(indices))]
    rows = [padded[rank * per_client : (rank + 1) * per_client] for rank in range(clients)]
    return [[each for each in row if each is not None] for row in rows]


@pytest.mark.parametrize(("count", "clients"), [(997, 20), (100, 10), (13, 5), (7, 1)])
def test_sorted_labels_are_karimireddys(count: int, clients: int) -> None:
    labels = np.random.default_rng(count).permutation(MNIST_LABELS)[:count]
    parts = cut(labels, scheme="sorted-labels", num_clients=clients, min_examples=0)
    expected = sorted_by_a_slow_loop(labels, clients)
    assert [part.tolist() for part in parts] == [sorted(each) for each in expected]


@pytest.mark.parametrize("fields", [{"scheme": "sorted-labels"}, {**GAMMA, "gamma": 0.0}], ids=str)
def test_with_fewer_clients_than_classes_a_client_holds_several(fields: dict[str, Any]) -> None:
    labels = np.repeat(np.arange(10), 100)
    parts = cut(labels, num_clients=4, **fields)
    held = [set(labels[part].tolist()) for part in parts]
    assert set.union(*held) == set(range(10))
    assert [len(classes) for classes in held] == [3, 3, 3, 3]


def test_a_last_client_without_enough_examples_is_named() -> None:
    with pytest.raises(FedcrfError, match=r"parts of 10, the last of 9 clients gets 2, and needs"):
        cut(np.zeros(82, np.int64), scheme="sorted-labels", num_clients=9, min_examples=3)


def test_a_last_client_is_not_left_with_too_few_of_both_halves() -> None:
    fields = {"scheme": "gamma-similarity", "num_clients": 10, "gamma": 0.5}
    labels = np.arange(118) % 10
    assert min(map(len, cut(labels, min_examples=10, **fields))) == 10
    with pytest.raises(
        FedcrfError, match=r"59 of them .* last of 10 clients gets 10, and needs 11"
    ):
        cut(labels, min_examples=11, **fields)


@pytest.mark.parametrize("gamma", [0.0, 0.33, 1.0])
def test_gamma_similarity_is_that_of_byzfl(gamma: float) -> None:
    labels = np.random.default_rng(0).permutation(MNIST_LABELS)[:997]
    parts = cut(labels, 5, num_clients=7, gamma=gamma, **GAMMA)
    # What ByzFL deals out of the order that ours draws; it shuffles those dealt out alike.
    order = np.random.default_rng(5).permutation(len(labels)).tolist()
    expected = byzfl_distributor(gamma).gamma_niid_idx(torch.from_numpy(labels), order)
    assert [len(part) for part in parts] == [len(part) for part in expected]
    alike = set(order[: int(len(labels) * gamma)])
    for part, other in zip(parts, expected, strict=True):
        rest, others_rest = set(part) - alike, set(other) - alike
        assert len(rest) == len(others_rest)
        assert sorted(labels[[*rest]]) == sorted(labels[[*others_rest]])


def test_at_gamma_0_a_client_has_one_class() -> None:
    parts = cut(np.tile(np.arange(10), 30), gamma=0.0, **GAMMA)
    assert [len(part) for part in parts] == [30] * 10
    assert all(len(np.unique(part % 10)) == 1 for part in parts)


def test_a_skew_that_cannot_be_met_says_so() -> None:
    with pytest.raises(FedcrfError, match=r"10,000 draws at --alpha 1e-06.*raise --alpha"):
        cut(np.zeros(100, dtype=np.int64), num_clients=2, alpha=1e-6)


def test_every_scheme_has_one_line_of_description() -> None:
    for scheme in PARTITIONS.values():
        assert scheme.description
        assert "\n" not in scheme.description
