"""Every field of the posterior against the equations, computed slowly in ``reference.py``."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf import ClientCRF, exact_marginals
from paper import reference

PER_CLIENT = ("cosine", "distance", "norm_anomaly", "reliability", "expected_label", "weights")
PER_LABEL = ("unary", "marginals")


def grid_rows(m: int, d: int) -> st.SearchStrategy[np.ndarray]:
    """Updates of small integers times a power of two per row: full of ties, zeros and duplicates.

    On such a grid every sum of products is exact in float64 in any order. Without that, two
    updates of equal norm would differ by a rounding error that depends on the order of summation,
    and h divides by the median deviation of the norms, which is then nothing but that error.
    """
    row = st.tuples(
        st.lists(st.integers(-2, 2), min_size=d, max_size=d), st.integers(-10, 10) | st.just(0)
    ).map(lambda pair: np.array(pair[0], dtype=np.float64) * 2.0 ** pair[1])

    def with_repeats(pool: list[np.ndarray]) -> st.SearchStrategy[np.ndarray]:
        picks = st.lists(st.integers(0, len(pool) - 1), min_size=m, max_size=m)
        return picks.map(lambda chosen: np.stack([pool[k] for k in chosen]))

    distinct = st.lists(row, min_size=m, max_size=m).map(np.stack)
    repeated = st.lists(row, min_size=1, max_size=3).flatmap(with_repeats)
    return distinct | repeated


def smooth_rows(m: int, d: int) -> st.SearchStrategy[np.ndarray]:
    """Updates as training makes them: a common direction, noise, one scale between 1e-3 and 1e3."""

    def build(seed: int, log_scale: float, common: float) -> np.ndarray:
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal((m, d)) * rng.uniform(0.2, 5.0, (m, 1))
        return 10.0**log_scale * (noise + common * rng.standard_normal(d))

    def norms_differ(rows: np.ndarray) -> bool:
        # h divides by the median deviation of the norms: by chance it can be all rounding error.
        norms = np.linalg.norm(rows, axis=1)
        deviation = np.median(np.abs(norms - np.median(norms)))
        return m == 1 or bool(deviation > 1e-4 * norms.max())

    drawn = st.builds(build, st.integers(0, 2**32 - 1), st.floats(-3, 3), st.floats(0, 3))
    return drawn.filter(norms_differ)


@st.composite
def rounds(draw: st.DrawFn, non_finite: bool = False) -> tuple[np.ndarray, list[int] | None]:
    """The updates and the example counts of one round."""
    m, d = draw(st.integers(1, 12)), draw(st.integers(1, 40))
    updates = draw(grid_rows(m, d) | smooth_rows(m, d))
    if non_finite:
        updates = updates.copy()
        for i in draw(st.sets(st.integers(0, m - 1), min_size=1)):
            where = draw(st.integers(0, d - 1))
            updates[i, where] = draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    count = st.integers(0, 1000) | st.just(0)
    counts = draw(st.none() | st.lists(count, min_size=m, max_size=m))
    if counts is not None:
        finite = np.isfinite(updates).all(axis=1)
        # Where only excluded clients hold examples there is no base weight to speak of.
        assume(sum(counts) > 0)
        assume(not finite.any() or np.array(counts)[finite].sum() > 0)
    return updates, counts


label_sets = st.lists(
    st.sampled_from([0.0, 0.25, 1.0, 0.5, 0.1, 1.5, 2.0, 0.75]) | st.floats(0.0, 2.0),
    min_size=2,
    max_size=5,
    unique_by=lambda label: round(label, 3),
)

configurations = st.fixed_dictionaries(
    {
        "labels": label_sets.map(tuple),
        "pairwise_strength": st.floats(0.0, 3.0),
        "bandwidth": st.floats(0.05, 5.0),
        "iterations": st.integers(0, 10),
        "reliability_gate": st.booleans(),
        "weight_by_examples": st.booleans(),
    }
)

DEFAULTS = {
    "labels": (0.0, 0.25, 1.0),
    "pairwise_strength": 0.5,
    "bandwidth": 0.5,
    "iterations": 5,
    "reliability_gate": True,
    "weight_by_examples": True,
}


def well_conditioned(expected: reference.Result, config: dict) -> bool:
    """Whether the equations themselves determine the answer to the tolerance of the comparison.

    Parallel updates with a strong coupling can start next to an unstable balance and then multiply
    any rounding error; and a normaliser beside epsilon decides the fallback by its last digits.
    """
    if 1e-14 < expected.normaliser < 1e-10:
        return False
    coupling = (expected.affinity, config["labels"], config["pairwise_strength"])
    priors = [reference.prior(rho, config["labels"]) for rho in expected.reliability]
    nudged = [
        [energy + (-1) ** (i + a) * 1e-13 for a, energy in enumerate(row)]
        for i, row in enumerate(expected.unary)
    ]
    moved = reference.mean_field(priors, nudged, *coupling, config["iterations"])
    return bool(np.abs(np.subtract(moved, expected.marginals)).max() < 1e-11)


def assert_matches_reference(updates: np.ndarray, counts: list[int] | None, config: dict) -> None:
    posterior = ClientCRF(**config).infer(updates, counts)
    expected = reference.infer(updates.tolist(), counts, **config)
    assume(well_conditioned(expected, config))

    m, size = len(updates), len(config["labels"])
    assert_array_equal(posterior.excluded, expected.excluded)
    for name in PER_CLIENT:
        assert getattr(posterior, name).shape == (m,), name
    for name in PER_LABEL:
        assert getattr(posterior, name).shape == (m, size), name
    assert posterior.affinity.shape == (m, m)
    for name in (*PER_CLIENT, *PER_LABEL, "affinity"):
        got, want = getattr(posterior, name), np.array(getattr(expected, name))
        assert got.dtype == np.float64, name
        assert_allclose(got, want, rtol=1e-10, atol=1e-10, err_msg=name)
    if not all(expected.excluded):
        assert bool(posterior.fell_back) is expected.fell_back

    total = 0.0 if all(expected.excluded) else 1.0
    assert posterior.weights.sum() == pytest.approx(total, abs=1e-12)
    assert (posterior.weights >= 0).all()
    assert_allclose(posterior.marginals.sum(axis=1), 1.0, atol=1e-12)
    assert_array_equal(np.diagonal(posterior.affinity), 0.0)
    assert_array_equal(posterior.affinity, posterior.affinity.T)


@settings(deadline=None, max_examples=300)
@given(rounds(), configurations)
@example((np.zeros((1, 1)), None), DEFAULTS)
@example((np.zeros((4, 3)), [1, 2, 3, 4]), DEFAULTS)
@example((np.full((5, 3), 0.5), [1, 0, 3, 4, 5]), DEFAULTS)
@example((np.array([[3.0, 4.0], [-3.0, -4.0]]), [0, 7]), DEFAULTS)
# Three equal norms out of five: the median deviation is 0, so h is 0 or of order 1e12.
@example((np.array([[1.0, 0], [0, 1], [-1, 0], [512, 0], [0, 0.5]]), None), DEFAULTS)
def test_every_field_matches_the_equations(round_, config):
    assert_matches_reference(*round_, config)


@settings(deadline=None, max_examples=150)
@given(rounds(non_finite=True), configurations)
@example((np.full((3, 2), np.nan), [1, 2, 3]), DEFAULTS)
@example((np.array([[1.0, 2.0], [np.inf, 0.0]]), [1, 9]), DEFAULTS)
# The one client with examples has reliability 0: a fallback, to shares among the finite clients.
@example(
    (np.array([[1.0], [1.0], [1.0], [-50.0], [np.nan]]), [0, 0, 0, 2, 7]),
    {**DEFAULTS, "labels": (0.0, 1.0), "iterations": 0},
)
def test_every_field_matches_the_equations_beside_non_finite_updates(round_, config):
    updates, counts = round_
    assert_matches_reference(updates, counts, config)

    posterior = ClientCRF(**config).infer(updates, counts)
    bad = posterior.excluded
    assert_array_equal(bad, ~np.isfinite(updates).all(axis=1))
    assert_array_equal(posterior.weights[bad], 0.0)
    assert_allclose(posterior.reliability[bad], 1e-12, rtol=1e-12)
    for name in ("cosine", "distance", "norm_anomaly"):
        assert_array_equal(np.isnan(getattr(posterior, name)), bad, err_msg=name)
    assert_array_equal(posterior.affinity[bad], 0.0)
    assert_array_equal(posterior.affinity[:, bad], 0.0)


def test_the_sum_behind_the_weights_may_be_small_without_a_fallback():
    # qbar is about 2e-9 for each client: small, but no numerical zero.
    labels = (0.0, 2e-9)
    updates = np.random.default_rng(3).standard_normal((4, 6))
    posterior = ClientCRF(labels=labels).infer(updates, [1, 2, 3, 4])
    expected = reference.infer(updates.tolist(), [1, 2, 3, 4], labels=labels)
    assert not posterior.fell_back
    assert_allclose(posterior.weights, expected.weights, rtol=1e-10)


# --- mean field beside the exact marginals --------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), label_sets, st.integers(1, 6))
def test_mean_field_is_exact_without_coupling(seed, m, labels, iterations):
    assume(len(labels) ** m <= 5_000)
    updates = np.random.default_rng(seed).standard_normal((m, 7))
    crf = ClientCRF(labels=tuple(labels), pairwise_strength=0.0, iterations=iterations)
    posterior = crf.infer(updates)
    exact = exact_marginals(posterior.unary, posterior.affinity, labels, 0.0)
    assert_allclose(posterior.marginals, exact, atol=1e-12)


def test_exact_marginals_take_the_affinities_of_near_neighbours():
    posterior = ClientCRF(neighbours=2).infer(np.random.default_rng(0).standard_normal((5, 7)))
    labels = ClientCRF().labels
    dense = exact_marginals(posterior.unary, posterior.affinity.toarray(), labels, 0.5)
    assert_array_equal(exact_marginals(posterior.unary, posterior.affinity, labels, 0.5), dense)


@pytest.mark.parametrize("iterations", [0, 1, 5])
@pytest.mark.parametrize("strength", [0.0, 0.5, 50.0])
def test_mean_field_is_exact_for_one_client(strength, iterations):
    crf = ClientCRF(pairwise_strength=strength, iterations=iterations)
    posterior = crf.infer([[1.0, -2.0, 3.0]])
    exact = exact_marginals(posterior.unary, posterior.affinity, crf.labels, strength)
    # Without an update the marginals are P itself, which exp(-psi_u) equals up to epsilon.
    assert_allclose(posterior.marginals, exact, atol=1e-11)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 6),
    st.floats(1e-4, 0.05),
    st.integers(1, 8),
    st.booleans(),
)
def test_mean_field_agrees_with_exact_marginals_to_first_order(
    seed, m, strength, iterations, reliability_gate
):
    """Mean field and the exact marginals differ by O(lambda^2) only.

    Let s be the largest coupling of a client, s = lambda (q_max - q_min)^2 max_i sum_j A_ij, let
    p0 be the unary distribution and M0 the mean-field message under p0.

    * Every message lies in [0, s], so Q and p0 differ by a factor within exp(+-s), and so do the
      exact marginals and p0 (also in the model that lacks one client): the total variation to p0
      is at most (e^s - 1) / 2.
    * Mean field: Q_i = p0_i exp(-M0 - e1) / Z with |e1| <= s (e^s - 1) / 2.
    * Exact: p_i = p0_i E[exp(-X)] / Z, where X in [0, s] is the coupling energy under the model
      without i. E[X] differs from M0 by at most s (e^s - 1) / 2, and by Hoeffding's lemma
      log E[exp(-X)] lies between -E[X] and -E[X] + s^2 / 8.
    * So log(Q_i / p_i) varies over the labels by at most 2 s (e^s - 1) + s^2 / 8 =: b, hence
      |Q_i - p_i| <= e^b - 1, about 2.1 s^2. A wrong factor in a message would show up as O(s).
    """
    updates = np.random.default_rng(seed).standard_normal((m, 9)) + 0.5
    crf = ClientCRF(
        pairwise_strength=strength, iterations=iterations, reliability_gate=reliability_gate
    )
    posterior = crf.infer(updates)
    exact = exact_marginals(posterior.unary, posterior.affinity, crf.labels, strength)
    s = strength * (max(crf.labels) - min(crf.labels)) ** 2 * posterior.affinity.sum(axis=1).max()
    bound = math.expm1(2 * s * math.expm1(s) + s**2 / 8)
    # 1e-10: the first message is taken under P, which is p0 only up to epsilon.
    assert np.abs(posterior.marginals - exact).max() <= bound + 1e-10


# --- exact marginals ------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), label_sets, st.floats(0.0, 5.0))
def test_exact_marginals_match_enumeration(seed, m, labels, strength):
    assume(len(labels) ** m <= 1_100)
    rng = np.random.default_rng(seed)
    unary = rng.uniform(-3.0, 10.0, (m, len(labels)))
    affinity = np.triu(rng.uniform(0.0, 1.0, (m, m)), 1)
    affinity += affinity.T
    got = exact_marginals(unary, affinity, labels, strength)
    want = reference.exact_marginals(unary.tolist(), affinity.tolist(), labels, strength)
    assert got.shape == (m, len(labels))
    assert_allclose(got, want, rtol=0, atol=1e-12)


def test_exact_marginals_of_a_chain_match_forward_backward():
    """Ten clients in a chain, where the exact answer is cheap without any enumeration."""
    labels = np.array([0.0, 0.25, 1.0])
    m, strength = 10, 1.7
    rng = np.random.default_rng(10)
    unary = rng.uniform(0.0, 4.0, (m, 3))
    links = rng.uniform(0.2, 1.0, m - 1)
    affinity = np.diag(links, 1) + np.diag(links, -1)
    gap = (labels[:, None] - labels[None, :]) ** 2

    local = np.exp(-unary)
    forward, backward = [np.ones(3)], [np.ones(3)]
    for i in range(m - 1):
        forward.append(np.exp(-strength * links[i] * gap) @ (local[i] * forward[-1]))
    for i in range(m - 1, 0, -1):
        backward.append(np.exp(-strength * links[i - 1] * gap) @ (local[i] * backward[-1]))
    want = local * np.array(forward) * np.array(backward[::-1])
    want /= want.sum(axis=1, keepdims=True)

    assert_allclose(exact_marginals(unary, affinity, labels, strength), want, rtol=0, atol=1e-12)


def test_exact_marginals_ignore_a_constant_in_the_energy():
    rng = np.random.default_rng(11)
    unary = rng.uniform(0.0, 4.0, (4, 3))
    affinity = np.ones((4, 4)) - np.eye(4)
    labels = (0.0, 0.25, 1.0)
    plain = exact_marginals(unary, affinity, labels, 0.5)
    # exp(-2000) is zero in float64, so this fails wherever energies are not shifted first.
    for shift in (-2000.0, 2000.0):
        assert_allclose(exact_marginals(unary + shift, affinity, labels, 0.5), plain, atol=1e-10)
