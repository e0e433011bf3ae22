"""The class a user meets: invariances, edge cases, kinds of input, and each mistake's message."""

import dataclasses
import inspect
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf import ClientCRF, EvidenceCRF, FedcrfError, exact_marginals

FIELDS = (
    "weights",
    "reliability",
    "marginals",
    "expected_label",
    "affinity",
    "cosine",
    "distance",
    "norm_anomaly",
    "unary",
    "excluded",
)
COUNTS = [30, 10, 0, 25, 60, 5, 1]


def sample(m: int = 7, d: int = 24, seed: int = 0) -> np.ndarray:
    """A common direction, noise, and a last client that goes the other way."""
    rng = np.random.default_rng(seed)
    updates = rng.standard_normal(d) + 0.8 * rng.standard_normal((m, d))
    updates[-1] *= -1.5
    return updates


def assert_same(got, want, **tolerance) -> None:
    """Compare two posteriors field by field; bit for bit where no tolerance is given."""
    for name in FIELDS:
        a, b = getattr(got, name), getattr(want, name)
        if tolerance:
            assert_allclose(a, b, err_msg=name, **tolerance)
        else:
            assert_array_equal(a, b, err_msg=name)
    assert got.fell_back == want.fell_back


# --- the value itself -----------------------------------------------------------------------


def test_defaults_are_the_papers():
    crf = ClientCRF()
    assert tuple(crf.labels) == (0.0, 0.25, 1.0)
    assert crf.pairwise_strength == 0.5
    assert crf.bandwidth == 0.5
    assert crf.iterations == 5
    assert crf.reliability_gate is True
    assert crf.weight_by_examples is True
    names = ["labels", "pairwise_strength", "bandwidth", "iterations"]
    names += ["reliability_gate", "weight_by_examples"]
    assert set(names) <= set(inspect.signature(ClientCRF).parameters)


def test_the_rule_and_its_posterior_are_immutable():
    crf = ClientCRF()
    posterior = crf.infer(sample(), COUNTS)
    for value, name in ((crf, "iterations"), (posterior, "weights")):
        assert dataclasses.is_dataclass(value)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 3)


def test_shapes_and_types():
    posterior = ClientCRF(labels=(0.0, 0.1, 0.5, 1.0)).infer(sample(), COUNTS)
    m, size = 7, 4
    shapes = dict.fromkeys(FIELDS, (m,))
    shapes |= {"marginals": (m, size), "unary": (m, size), "affinity": (m, m)}
    for name, shape in shapes.items():
        value = getattr(posterior, name)
        assert isinstance(value, np.ndarray), name
        assert value.shape == shape, name
        assert value.dtype == (np.bool_ if name == "excluded" else np.float64), name
    assert posterior.fell_back in (True, False)


def test_equal_counts_are_the_default():
    assert_same(ClientCRF().infer(sample()), ClientCRF().infer(sample(), [4] * 7), rtol=1e-14)


def test_counts_do_not_matter_where_weighting_is_off():
    crf = ClientCRF(weight_by_examples=False)
    posterior = crf.infer(sample(), COUNTS)
    assert_same(posterior, crf.infer(sample()))
    assert posterior.weights[2] > 0  # its count is 0


def test_two_calls_give_the_same_bits():
    updates = sample(m=40, d=3001, seed=5)
    assert_same(ClientCRF().infer(updates), ClientCRF().infer(updates))
    tensor = torch.from_numpy(updates).float()
    assert_same(ClientCRF().infer(tensor), ClientCRF().infer(tensor))


# --- invariances ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_clients_does_not_matter(seed):
    updates, order = sample(seed=seed), np.random.default_rng(seed).permutation(7)
    updates[4, 0] = np.nan
    plain = ClientCRF().infer(updates, COUNTS)
    moved = ClientCRF().infer(updates[order], np.array(COUNTS)[order])
    for name in FIELDS:
        want = getattr(plain, name)[order]
        if name == "affinity":
            want = want[:, order]
        assert_allclose(getattr(moved, name), want, rtol=1e-11, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("factor", [2.0**-8, 2.0**-1, 2.0**3, 2.0**10, 0.01, 0.3, 7.0, 1e3, -1.0])
def test_the_scale_of_all_updates_does_not_matter(factor):
    # Not exactly: epsilon stays where it is, beside squared norms of about 1e-3 at the least.
    plain = ClientCRF().infer(sample(), COUNTS)
    assert_same(ClientCRF().infer(factor * sample(), COUNTS), plain, rtol=1e-7, atol=1e-9)


def test_zero_coordinates_and_the_order_of_coordinates_do_not_matter():
    updates = sample()
    plain = ClientCRF().infer(updates, COUNTS)
    padded = np.concatenate([updates, np.zeros((7, 100))], axis=1)
    assert_same(ClientCRF().infer(padded, COUNTS), plain, rtol=1e-11, atol=1e-12)
    shuffled = updates[:, np.random.default_rng(1).permutation(24)]
    assert_same(ClientCRF().infer(shuffled, COUNTS), plain, rtol=1e-11, atol=1e-12)


def test_the_order_of_labels_does_not_matter():
    plain = ClientCRF(labels=(0.0, 0.25, 1.0)).infer(sample(), COUNTS)
    moved = ClientCRF(labels=(1.0, 0.0, 0.25)).infer(sample(), COUNTS)
    assert_allclose(moved.weights, plain.weights, rtol=1e-12)
    assert_allclose(moved.marginals, plain.marginals[:, [2, 0, 1]], rtol=1e-12)
    assert_allclose(moved.unary, plain.unary[:, [2, 0, 1]], rtol=1e-12)


@pytest.mark.parametrize("factor", [1e-3, 1e6])
def test_the_scale_of_the_counts_does_not_matter(factor):
    scaled = ClientCRF().infer(sample(), factor * np.array(COUNTS))
    assert_same(scaled, ClientCRF().infer(sample(), COUNTS), rtol=1e-12)


# --- kinds of input -------------------------------------------------------------------------


def layers_of(row: np.ndarray) -> list[np.ndarray]:
    """Cut 24 numbers into layers of several ranks, a scalar and an empty one among them."""
    parts = np.split(row, [1, 7, 19])
    shapes = [(), (2, 3), (2, 2, 3), (5,)]
    layers = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    return [*layers, np.zeros((0, 4))]


KINDS = {
    "array": lambda u: u,
    "list of arrays": list,
    "tuple of arrays": tuple,
    "lists of floats": lambda u: u.tolist(),
    "tensor": torch.from_numpy,
    "list of tensors": lambda u: list(torch.from_numpy(u)),
    "layers": lambda u: [layers_of(row) for row in u],
    "tuples of layers": lambda u: tuple(tuple(layers_of(row)) for row in u),
    "layers of tensors": lambda u: [[torch.from_numpy(a) for a in layers_of(r)] for r in u],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("non_finite", [False, True])
def test_every_kind_of_input_gives_the_same_bits(kind, non_finite):
    updates = sample()
    if non_finite:
        updates[3, 20] = -np.inf
    want = ClientCRF().infer(updates, COUNTS)
    got = ClientCRF().infer(KINDS[kind](updates.copy()), COUNTS)
    if "layers" in kind:  # sums are taken layer by layer, which may round differently
        assert_same(got, want, rtol=1e-12, atol=1e-13)
    else:
        assert_same(got, want)


@pytest.mark.parametrize("kind", ["array", "list of arrays", "tuple of arrays"])
def test_masked_updates_are_refused(kind):
    with pytest.raises(FedcrfError, match="masked: fill what is missing"):
        ClientCRF().infer(KINDS[kind](np.ma.masked_less(sample(), 0.0)))


def test_counts_may_be_any_sequence_of_numbers():
    want = ClientCRF().infer(sample(), COUNTS)
    for counts in (tuple(COUNTS), np.array(COUNTS), np.array(COUNTS, float), torch.tensor(COUNTS)):
        assert_same(ClientCRF().infer(sample(), counts), want)


STRIDES = {
    "fortran order": np.asfortranarray,
    "every other column": lambda u: np.repeat(u, 2, axis=1)[:, ::2],
    "every other row": lambda u: np.repeat(u, 2, axis=0)[::2],
    "reversed columns": lambda u: u[:, ::-1].copy()[:, ::-1],
    "reversed rows": lambda u: u[::-1].copy()[::-1],
    "list of strided rows": lambda u: list(np.repeat(u, 3, axis=1)[:, ::3]),
    "list of reversed rows": lambda u: [row[::-1].copy()[::-1] for row in u],
    "big-endian": lambda u: u.astype(">f8"),
    "transposed tensor": lambda u: torch.from_numpy(u.T.copy()).T,
    "strided tensor": lambda u: torch.from_numpy(np.repeat(u, 2, axis=1))[:, ::2],
}


@pytest.mark.parametrize("layout", STRIDES)
def test_the_layout_in_memory_does_not_matter(layout):
    want = ClientCRF().infer(sample(), COUNTS)
    got = ClientCRF().infer(STRIDES[layout](sample()), COUNTS)
    assert_same(got, want, rtol=1e-12, atol=1e-13)


def test_one_tensor_expanded_to_every_client():
    row = torch.from_numpy(sample()[0])
    got = ClientCRF().infer(row.expand(5, -1))  # stride 0
    assert_same(got, ClientCRF().infer(np.stack([row.numpy()] * 5)), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_not_modified(kind):
    updates = sample()
    updates[1, 2] = np.nan
    given = KINDS[kind](updates)  # shares memory with the array, except for lists of floats
    before, counts = updates.copy(), np.array(COUNTS, dtype=float)
    ClientCRF().infer(given, counts)
    assert_array_equal(updates, before)
    assert_array_equal(counts, COUNTS)


def test_read_only_arrays_are_accepted():
    updates, counts = sample(), np.array(COUNTS)
    updates.setflags(write=False)
    counts.setflags(write=False)
    assert_same(ClientCRF().infer(updates, counts), ClientCRF().infer(sample(), COUNTS))


def test_float32_is_read_exactly():
    single = sample(m=8, d=500).astype(np.float32)
    want = ClientCRF().infer(single.astype(np.float64))
    assert_same(ClientCRF().infer(single), want, rtol=1e-5, atol=1e-5)
    assert_same(ClientCRF().infer(torch.from_numpy(single)), want, rtol=1e-5, atol=1e-5)


def test_squares_that_overflow_float32_do_not_overflow():
    single = 1e30 * sample().astype(np.float32)
    want = ClientCRF().infer(single.astype(np.float64), COUNTS)
    got = ClientCRF().infer(single, COUNTS)
    assert not got.excluded.any()
    assert_same(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("m", [1, 2, 6, 7])
@pytest.mark.parametrize("dtype", ["numpy float16", "float16", "bfloat16"])
@pytest.mark.parametrize("scale", [1.0, 9000.0])
def test_half_precision_is_read_and_then_computed_in_double(m, dtype, scale):
    # At 9000 two middle values can add up to more than float16 holds (65504).
    values = torch.from_numpy(np.clip(scale * sample(m=m, d=50, seed=2), -60_000, 60_000))
    half = values.to(torch.bfloat16 if dtype == "bfloat16" else torch.float16)
    want = ClientCRF().infer(half.double().numpy())
    got = ClientCRF().infer(half.numpy() if dtype == "numpy float16" else half)
    assert not got.excluded.any()
    assert_same(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8])
def test_integers_are_read_as_float64(dtype):
    numbers = np.random.default_rng(4).integers(0, 120, (5, 9)).astype(dtype)
    want = ClientCRF().infer(numbers.astype(np.float64))
    assert_same(ClientCRF().infer(numbers), want)
    assert_same(ClientCRF().infer(torch.from_numpy(numbers)), want)
    assert_same(ClientCRF().infer(numbers.tolist()), want)


def test_whole_numbers_may_stand_beside_fractions_in_lists():
    got = ClientCRF().infer([[1, 2, 3], [0.5, 2.5, 1.0]])
    assert_same(got, ClientCRF().infer(np.array([[1.0, 2.0, 3.0], [0.5, 2.5, 1.0]])))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [3, 6])  # functions for so many are compiled for other tests too
def test_long_updates_meet_no_seam(m, dtype):
    """Longer than any sensible block of columns, and not a multiple of one."""
    d = 700_001
    # Small integers: every sum is exact, whatever the blocks.
    updates = np.random.default_rng(6).integers(-3, 4, (m, d)).astype(dtype)
    got = ClientCRF().infer(updates)
    wide = updates.astype(np.float64)
    centre = np.median(wide, axis=0)
    norms, distances = np.linalg.norm(wide, axis=1), np.linalg.norm(wide - centre, axis=1)
    assert_allclose(got.cosine, wide @ centre / (norms * np.linalg.norm(centre)), rtol=1e-12)
    assert_allclose(got.distance, distances / np.median(distances), rtol=1e-12)
    # The last coordinate counts as much as any other.
    updates[0, -1] = np.nan
    assert_array_equal(ClientCRF().infer(updates).excluded, [True] + [False] * (m - 1))


# --- edge cases -----------------------------------------------------------------------------


@pytest.mark.parametrize("update", [[3.0, -4.0], [0.0, 0.0], [1e-20, 0.0], [7.5]])
def test_one_client_gets_all_the_weight(update):
    posterior = ClientCRF().infer([update], [12])
    assert_array_equal(posterior.weights, [1.0])
    assert_array_equal(posterior.affinity, [[0.0]])
    assert_allclose([posterior.distance, posterior.norm_anomaly], 0.0, atol=1e-12)


def test_two_clients_worked_by_hand():
    # The reference is (1/2, 1/2): c = 1/sqrt 2, d = 1, h = 0, and the two are orthogonal.
    posterior = ClientCRF().infer([[1.0, 0.0], [0.0, 1.0]], [3, 1])
    assert_allclose(posterior.cosine, math.sqrt(0.5), atol=1e-11)
    assert_allclose(posterior.distance, 1.0, atol=1e-11)
    assert_allclose(posterior.norm_anomaly, 0.0, atol=1e-11)
    reliability = 1 / (1 + math.exp(1 - math.sqrt(2)))
    assert_allclose(posterior.reliability, reliability, atol=1e-11)
    prior = np.array([1 - reliability, 1.0, reliability]) / 2
    assert_allclose(posterior.unary, [-np.log(prior)] * 2, atol=1e-11)
    off_diagonal = math.exp(-2) * reliability
    assert_allclose(posterior.affinity, [[0, off_diagonal], [off_diagonal, 0]], atol=1e-11)
    assert_allclose(posterior.weights, [0.75, 0.25], atol=1e-12)


def test_two_opposite_clients():
    posterior = ClientCRF().infer([[1.0, 2.0], [-1.0, -2.0]])
    assert_allclose(posterior.cosine, 0.0, atol=1e-12)  # the reference is zero
    assert_allclose(posterior.distance, 1.0, atol=1e-11)
    assert_allclose(posterior.affinity[0, 1], math.exp(-4) / (1 + math.e), atol=1e-11)
    assert_allclose(posterior.weights, 0.5, atol=1e-12)


@pytest.mark.parametrize("m", [2, 3, 10, 33])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
def test_all_updates_equal(m, scale):
    # Norms of thousands: a norm that rounds differently from client to client shows up in h,
    # whose denominator is then epsilon alone.
    row = scale * np.random.default_rng(7).standard_normal(1013)
    posterior = ClientCRF().infer(np.stack([row] * m), np.arange(1, m + 1))
    assert_allclose(posterior.cosine, 1.0, atol=1e-9)
    assert_allclose(posterior.distance, 0.0, atol=1e-9)
    assert_allclose(posterior.norm_anomaly, 0.0, atol=1e-9)
    assert_allclose(posterior.reliability, 1 / (1 + math.exp(-2)), atol=1e-9)
    assert_allclose(posterior.weights, np.arange(1, m + 1) / (m * (m + 1) / 2), rtol=1e-9)


@pytest.mark.parametrize("m", [2, 5])
def test_all_updates_zero(m):
    posterior = ClientCRF().infer(np.zeros((m, 4)))
    for name in ("cosine", "distance", "norm_anomaly"):
        assert_array_equal(getattr(posterior, name), 0.0, err_msg=name)
    assert_array_equal(posterior.reliability, 0.5)
    off_diagonal = ~np.eye(m, dtype=bool)
    assert_allclose(posterior.affinity[off_diagonal], 0.5 * math.exp(-2), rtol=1e-12)
    assert_allclose(posterior.weights, 1 / m, rtol=1e-12)
    assert not posterior.excluded.any()


def test_one_zero_update_among_others():
    updates = sample()
    updates[1] = 0.0
    posterior = ClientCRF().infer(updates, COUNTS)
    assert posterior.cosine[1] == 0.0
    assert np.isfinite(posterior.weights).all()


def test_a_client_without_examples_gets_no_weight_but_is_still_heard():
    posterior = ClientCRF().infer(sample(), COUNTS)
    assert posterior.weights[2] == 0.0
    assert not posterior.excluded[2]
    assert posterior.weights.sum() == pytest.approx(1.0, abs=1e-12)
    # Its update is in the median and in the affinities whatever its count.
    assert_array_equal(posterior.reliability, ClientCRF().infer(sample()).reliability)


def test_without_iterations_the_marginals_are_the_unary_distribution():
    posterior = ClientCRF(iterations=0).infer(sample())
    assert_allclose(posterior.marginals, np.exp(-posterior.unary), atol=1e-11)


def test_without_the_gate_affinity_is_the_bare_cosine_kernel():
    updates = sample()
    crf = ClientCRF(reliability_gate=False, bandwidth=0.8)
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    want = np.exp(-(1 - unit @ unit.T) / 0.8)
    np.fill_diagonal(want, 0.0)
    assert_allclose(crf.infer(updates).affinity, want, rtol=1e-10)


@pytest.mark.parametrize("kind", ["array", "tensor", "layers", "lists of floats"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("counts", [None, COUNTS])
def test_a_non_finite_client_changes_nothing_for_the_others(kind, poison, counts):
    updates = sample()
    bad = np.array([False, True, False, False, True, False, False])
    updates[1, 5] = poison
    updates[4, :] = poison
    kept = None if counts is None else np.array(counts)[~bad]
    got = ClientCRF().infer(KINDS[kind](updates), counts)
    want = ClientCRF().infer(KINDS[kind](updates[~bad]), kept)
    for name in FIELDS:
        value = getattr(got, name)[~bad]
        if name == "affinity":
            value = value[:, ~bad]
        assert_allclose(value, getattr(want, name), rtol=1e-12, atol=1e-13, err_msg=name)
    assert_array_equal(got.excluded, bad)
    assert_array_equal(got.weights[bad], 0.0)
    assert_array_equal(got.reliability[bad], 1e-12)
    assert not got.affinity[bad].any()
    assert not got.affinity[:, bad].any()
    for name in ("cosine", "distance", "norm_anomaly"):
        assert_array_equal(np.isnan(getattr(got, name)), bad, err_msg=name)
    for name in ("unary", "marginals", "expected_label"):
        assert np.isfinite(getattr(got, name)).all(), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_non_finite_client_is_found_in_every_precision(dtype):
    updates = torch.from_numpy(sample()).to(dtype)
    updates[0, 3] = math.inf
    updates[5, 23] = math.nan
    posterior = ClientCRF().infer(updates)
    assert_array_equal(np.flatnonzero(posterior.excluded), [0, 5])
    assert posterior.weights.sum() == pytest.approx(1.0, abs=1e-12)


def test_opposite_infinities_do_not_cancel():
    posterior = ClientCRF().infer([[math.inf, -math.inf], [1.0, 2.0], [1.5, 2.0]])
    assert_array_equal(posterior.excluded, [True, False, False])


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("counts", [None, 2])
def test_every_update_non_finite(m, counts):
    posterior = ClientCRF().infer(np.full((m, 4), np.nan), counts and [counts] * m)
    assert_array_equal(posterior.weights, np.zeros(m))
    assert posterior.excluded.all()
    assert_array_equal(posterior.reliability, 1e-12)
    assert np.isnan(posterior.cosine).all()
    assert not posterior.affinity.any()


# --- the fallback ---------------------------------------------------------------------------


def outlier(*others: list[float]) -> np.ndarray:
    """Three equal updates and a far one, whose reliability underflows to zero."""
    return np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [-50.0, 20.0], *others])


def test_no_fallback_on_an_ordinary_round():
    assert not ClientCRF().infer(sample(), COUNTS).fell_back


def test_fallback_where_only_an_unreliable_client_holds_examples():
    # qbar of the outlier is exactly 0 and the others have no examples.
    posterior = ClientCRF(labels=(0.0, 1.0), iterations=0).infer(outlier(), [0, 0, 0, 9])
    assert posterior.reliability[3] == 0.0
    assert posterior.fell_back
    assert_array_equal(posterior.weights, [0.0, 0.0, 0.0, 1.0])
    # The same client beside reliable ones with examples: no fallback, no weight.
    posterior = ClientCRF(labels=(0.0, 1.0), iterations=0).infer(outlier(), [1, 1, 1, 9])
    assert not posterior.fell_back
    assert posterior.weights[3] == 0.0


@pytest.mark.parametrize("weight_by_examples", [True, False])
def test_fallback_where_every_label_is_next_to_zero(weight_by_examples):
    crf = ClientCRF(labels=(0.0, 1e-14), weight_by_examples=weight_by_examples)
    posterior = crf.infer(sample(), COUNTS)
    assert posterior.fell_back
    base = np.array(COUNTS) / sum(COUNTS) if weight_by_examples else np.full(7, 1 / 7)
    assert_allclose(posterior.weights, base, rtol=1e-14)


def test_fallback_leaves_non_finite_clients_out():
    crf = ClientCRF(labels=(0.0, 1.0), iterations=0)
    posterior = crf.infer(outlier([np.nan, 1.0], [-50.0, 20.0]), [0, 0, 0, 1, 50, 3])
    assert posterior.fell_back
    assert_allclose(posterior.weights, [0, 0, 0, 0.25, 0, 0.75], rtol=1e-14)


# --- mistakes -------------------------------------------------------------------------------

GOOD = np.ones((3, 2))

BAD_RULES = {
    "no labels": ({"labels": ()}, "label"),
    "one label": ({"labels": (1.0,)}, "label"),
    "equal labels": ({"labels": (0.0, 1.0, 1.0)}, "label.*(distinct|differ|twice|repeat)"),
    "zero of two signs": ({"labels": (0.0, -0.0)}, "label"),
    "negative label": ({"labels": (-0.5, 1.0)}, "label.*(negative|>= 0|least 0)"),
    "NaN label": ({"labels": (0.0, math.nan)}, "label"),
    "infinite label": ({"labels": (0.0, math.inf)}, "label.*finite"),
    "negative strength": ({"pairwise_strength": -0.1}, "pairwise_strength"),
    "NaN strength": ({"pairwise_strength": math.nan}, "pairwise_strength"),
    "zero bandwidth": ({"bandwidth": 0.0}, "bandwidth"),
    "negative bandwidth": ({"bandwidth": -1.0}, "bandwidth"),
    "NaN bandwidth": ({"bandwidth": math.nan}, "bandwidth"),
    "negative iterations": ({"iterations": -1}, "iterations"),
    "fractional iterations": ({"iterations": 2.5}, "iterations"),
    "bandwidth beyond floats": ({"bandwidth": 10**400}, "bandwidth"),
    "iterations in words": ({"iterations": "five"}, "iterations"),
}

BAD_UPDATES = {
    "empty list": ([], "update"),
    "empty array": (np.zeros((0, 4)), "update"),
    "empty tensor": (torch.zeros((0, 4)), "update"),
    "no columns": (np.zeros((3, 0)), "update"),
    "no columns in a tensor": (torch.zeros((3, 0)), "update"),
    "empty vectors": ([[], []], "update"),
    "only empty layers": ([[np.zeros((0, 2))], [np.zeros((0, 2))]], "update"),
    "different lengths": ([np.ones(3), np.ones(4)], "update.*(length|size|shape|number)"),
    "different lengths of lists": ([[1.0], [1.0, 2.0]], "update.*(length|size|shape|number)"),
    "different lengths of tensors": (
        [torch.ones(3), torch.ones(4)],
        "update.*(length|size|shape|number)",
    ),
    "different layers": (
        [[np.ones(2), np.ones((2, 2))], [np.ones(2), np.ones((2, 3))]],
        "update.*(length|size|shape|number)",
    ),
    "different dtypes": ([np.ones(3), np.ones(3, np.float32)], "(dtype|type)"),
    "different dtypes of tensors": ([torch.ones(3), torch.ones(3).half()], "(dtype|type)"),
    "different dtypes of layers": (
        [[np.ones(2), np.ones(2)], [np.ones(2), np.ones(2, np.float32)]],
        "(dtype|type)",
    ),
    "one flat array": (np.ones(5), "(vector|update|dimension)"),
    "one flat tensor": (torch.ones(5), "(vector|update|dimension)"),
    "one flat list": ([1.0, 2.0, 3.0], "(vector|update|dimension)"),
    "a number": (3.0, "update"),
    "nothing": (None, "update"),
    "numbers of eight bits": (
        [torch.ones(2).to(torch.float8_e4m3fn)],
        "^the update of client 0 has dtype torch.float8_e4m3fn: cast it to float32$",
    ),
    "two dtypes": (
        [np.ones(2, np.float32), np.ones(2)],
        "client 0's has float32: cast all updates to one dtype, such as float32$",
    ),
    "complex array": (GOOD + 1j, "complex"),
    "complex tensor": (torch.ones((3, 2), dtype=torch.complex64), "complex"),
    "complex numbers": ([[1.0, 2j], [1.0, 2.0]], "complex"),
    "object array": (np.array([[1.0, None], [2.0, 3.0]], dtype=object), "(object|number|dtype)"),
    "complex numbers of their own": (
        [[np.array(1 + 2j)], [np.array(1 + 3j)]],
        "(complex|vector)",
    ),
    "digits of their own": ([[np.array("1")], [np.array("2")]], "(number|dtype|type|str)"),
    "whole numbers beyond floats": ([[10**400, 1], [1, 2]], "(object|number|dtype|vector)"),
    "strings": ([["a", "b"], ["c", "d"]], "(number|dtype|type|str)"),
}

BAD_COUNTS = {
    "too few": ([1, 2], "num_examples"),
    "too many": ([1, 2, 3, 4], "num_examples"),
    "none at all": ([], "num_examples"),
    "negative": ([1, -2, 3], "num_examples.*(negative|>= 0|least 0|0 or more)"),
    "NaN": ([1, math.nan, 3], "num_examples"),
    "infinite": ([1, math.inf, 3], "num_examples"),
    "all zero": ([0, 0, 0], "num_examples.*(zero|0)"),
    "words": (["a", "b", "c"], "num_examples"),
    "a sparse tensor": (torch.ones(3).to_sparse(), "num_examples"),
    "a tensor without numbers": (torch.ones(3, device="meta"), "num_examples"),
    "lists": ([[1], [2, 3], 1], "num_examples"),
}


def assert_one_line(caught: pytest.ExceptionInfo) -> None:
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert message.strip()
    assert "\n" not in message


@pytest.mark.parametrize(("options", "message"), BAD_RULES.values(), ids=BAD_RULES)
def test_a_bad_rule_is_refused(options, message):
    with pytest.raises(FedcrfError, match=f"(?i){message}") as caught:
        ClientCRF(**options)
    assert_one_line(caught)


@pytest.mark.parametrize(("updates", "message"), BAD_UPDATES.values(), ids=BAD_UPDATES)
def test_bad_updates_are_refused(updates, message):
    with pytest.raises(FedcrfError, match=f"(?i){message}") as caught:
        ClientCRF().infer(updates)
    assert_one_line(caught)


@pytest.mark.parametrize(("counts", "message"), BAD_COUNTS.values(), ids=BAD_COUNTS)
def test_bad_counts_are_refused(counts, message):
    with pytest.raises(FedcrfError, match=f"(?i){message}") as caught:
        ClientCRF().infer(GOOD, counts)
    assert_one_line(caught)


def test_too_large_an_enumeration_is_refused():
    with pytest.raises(
        FedcrfError, match=r"(?i)(large|many|more than|exceed|at most|limit)"
    ) as caught:
        exact_marginals(np.zeros((60, 3)), np.zeros((60, 60)), (0.0, 0.25, 1.0), 0.5)
    assert_one_line(caught)


def test_the_largest_enumeration_is_as_it_says():
    labels, small = (0.0, 0.25, 1.0), np.zeros((13, 3))
    assert_allclose(exact_marginals(small, np.zeros((13, 13)), labels, 0.5), 1 / 3, rtol=1e-9)
    with pytest.raises(FedcrfError, match="3 labels for 14 clients"):
        exact_marginals(np.zeros((14, 3)), np.zeros((14, 14)), labels, 0.5)


@pytest.mark.parametrize("m", [1, 65])
def test_one_label_is_certain_for_any_number_of_clients(m):
    assert exact_marginals(np.ones((m, 1)), np.ones((m, m)), (0.5,), 0.5).tolist() == [[1.0]] * m


def test_numpy_numbers_are_fine_as_options():
    crf = ClientCRF(
        labels=(np.float32(0), np.float32(1)),
        pairwise_strength=np.float64(0.5),
        bandwidth=np.float64(0.5),
        iterations=np.int64(3),
    )
    plain = ClientCRF(labels=(0, 1), iterations=3)
    assert_same(crf.infer(sample(), COUNTS), plain.infer(sample(), COUNTS))


@pytest.mark.filterwarnings("error")
def test_an_enormous_report_overflows_nowhere():
    rows = np.random.default_rng(0).normal(size=(6, 20))
    crf = EvidenceCRF(evidence_softening=1e-9)
    trust = crf.infer(rows, evidence={"residual_loss": [0, 0, 0, 0, 0, 1e300]}).expected_label
    assert trust.argmin() == 5
