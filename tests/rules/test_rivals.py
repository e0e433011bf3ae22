"""What the field's other robust rules promise beyond what every rule does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf.errors import FedcrfError
from fedcrf.rules import (
    BRA,
    FLAME,
    GAS,
    LASA,
    ClientReport,
    DnC,
    FedSCS,
    FoolsGold,
    Memory,
    Rule,
    SignGuard,
    State,
)
from fedcrf.rules.base import Round as Given
from fedcrf.rules.dnc import drawn_columns
from fedcrf.rules.foolsgold import foolsgold_weights
from fedcrf.rules.signguard import largest_cluster
from fedcrf.statistics import model_geometry
from paper import baselines as slow
from paper import rivals
from rules.rounds import Round, assert_same, name_of, sample, spoilt, states


def at(rows: Sequence[Sequence[float]], before: Sequence[float] | None = None) -> Round:
    """A round of one small layer, whose clients move to these points."""
    points = np.array(rows, np.float64)
    origin = np.zeros(points.shape[1]) if before is None else np.array(before, np.float64)
    return Round({"w": origin}, [ClientReport(i, {"w": row}, 1) for i, row in enumerate(points)])


def weights(rule: Rule, rows: Sequence[Sequence[float]]) -> np.ndarray:
    return at(rows).aggregate(rule).weights


# --- the statistics that they share ------------------------------------------------------------


@pytest.mark.parametrize(("values", "common"), [({}, 1.0), ({2: np.nan}, 1.0), ({}, 1e4)])
def test_products_are_those_of_the_vectors(values: dict[int, float], common: float) -> None:
    before, reports = round_ = spoilt(sample(6, common=common), values)
    geometry = model_geometry(*Given({}, before, reports).layers)
    kept = [i for i in range(6) if i not in values]
    rows = np.stack([slow.vector(reports[i].state) for i in kept])
    origin = slow.vector(before)
    updates = rows - origin
    scale = np.abs(updates).max() ** 2 * rows.shape[1]
    grid = np.ix_(kept, kept)
    assert_array_equal(geometry.finite, [i in kept for i in range(6)])
    assert_allclose(geometry.gram[grid], updates @ updates.T, atol=1e-13 * scale)
    assert_allclose(geometry.origin_inner[kept], updates @ origin, atol=1e-13 * scale)
    assert_allclose(geometry.origin_square, origin @ origin, atol=1e-13 * scale)
    cosines = [[rivals.cosine(a, b) for b in rows] for a in rows]
    assert_allclose(geometry.model_cosines[grid], cosines, atol=1e-12)
    given = Given({}, before, reports)
    assert_allclose(given.norms, geometry.norms, rtol=1e-9)
    assert_array_equal(given.finite, geometry.finite)
    assert round_.reports is reports


def test_equal_models_have_equal_products_to_the_bit() -> None:
    row = np.random.default_rng(0).standard_normal(9000) * 1e3
    gram = model_geometry([[row.copy()] for _ in range(7)], [row + 0.1]).gram
    assert len(np.unique(gram)) == 1


def test_a_global_model_that_is_not_finite_leaves_nobody() -> None:
    geometry = model_geometry([[np.ones(2)]], [np.array([np.nan, 0.0])])
    assert not geometry.finite.any()


def test_a_model_of_zeros_has_no_angle() -> None:
    geometry = model_geometry([[np.zeros(2)], [np.ones(2)]], [np.ones(2)])
    assert_allclose(geometry.model_cosines, [[0, 0], [0, 1]], atol=1e-15)


# --- over rounds -------------------------------------------------------------------------------

REMEMBERING = [FedSCS(), FedSCS(beta=0.3, epsilon=0.1), FoolsGold()]
PRESENT = [(0, 1, 2, 3, 4), (0, 2, 3), (1,), (4, 3, 2, 1), (0, 1, 2, 3, 4)]


def drawn(number: int, before: State, present: Sequence[int]) -> Round:
    reports = sample(5, seed=number).reports
    state = {
        client: {
            name: np.asarray(before[name] + array * (1 + client), array.dtype)
            for name, array in reports[client].state.items()
        }
        for client in present
    }
    return Round(before, [replace(reports[client], state=state[client]) for client in present])


@pytest.mark.parametrize("rule", REMEMBERING, ids=name_of)
def test_clients_are_remembered_by_identity(rule: Rule) -> None:
    """Against the slow versions over rounds in which clients come and go."""
    scores = rivals.SlowFedSCS(**vars(rule)) if isinstance(rule, FedSCS) else rivals.SlowFoolsGold()
    state, memory = dict(sample(1).before), rule.begin()
    for number, present in enumerate(PRESENT):
        before, reports = drawn(number, state, present)
        result = rule.aggregate(memory, before, reports)
        vector = slow.updates(before, states(reports))
        if isinstance(rule, FoolsGold):
            vector = [rivals.output_layer(before, each) for each in states(reports)]
        want = scores.round(dict(zip(present, vector, strict=True)))
        assert_allclose(result.weights, np.array(want) / sum(want), rtol=1e-9, atol=1e-12)
        state, memory = dict(result.state), result.memory
    assert rule.remembers


@pytest.mark.parametrize("rule", REMEMBERING, ids=name_of)
def test_a_client_that_is_not_finite_keeps_its_past(rule: Rule) -> None:
    before, reports = sample(4)
    memory = rule.aggregate({}, before, reports).memory
    broken = spoilt(Round(before, reports), {1: np.nan})
    kept = rule.aggregate(memory, *broken).memory
    for name, array in kept.items():
        assert_array_equal(array[1], memory[name][1], err_msg=name)


@pytest.mark.parametrize("rule", REMEMBERING, ids=name_of)
@pytest.mark.parametrize(
    "memory",
    [
        {"other": np.zeros(2)},
        {"clients": np.arange(2), "scores": 1, "history": 1},
        {"clients": np.array(2), "scores": np.zeros(2), "history": np.zeros(2)},
        {"clients": np.arange(2), "scores": np.array(["a", "b"]), "history": np.array(["a", "b"])},
    ],
)
def test_a_memory_of_another_rule_is_refused(rule: Rule, memory: dict[str, np.ndarray]) -> None:
    with pytest.raises(FedcrfError, match=r"the memory holds no .* give that of the round before"):
        rule.aggregate(memory, *sample(3))


@pytest.mark.parametrize("rule", [DnC(), SignGuard(), FLAME(), GAS()], ids=name_of)
@pytest.mark.parametrize("rounds", [np.zeros(3, int), np.array(-1), np.array(np.nan), None])
def test_a_memory_that_counts_no_rounds_is_refused(rule: Rule, rounds: Any) -> None:
    with pytest.raises(FedcrfError, match="memory does not count rounds: give that of the round"):
        rule.aggregate({"rounds": rounds}, *sample(3))


@pytest.mark.parametrize("rule", [DnC(num_byzantine=1), SignGuard(), FLAME(noise=0.1)], ids=name_of)
def test_every_round_draws_anew_and_a_run_gives_the_seed(rule: Rule) -> None:
    before, reports = sample(9, seed=2, shapes={"weight": (300, 2)})
    first = rule.aggregate({}, before, reports)
    assert_same(rule.aggregate({}, before, reports).state, first.state, 0)
    told = rule.informed(2, 9, 7)
    assert told == replace(rule, seed=7)
    others = [rule.aggregate(first.memory, before, reports), told.aggregate({}, before, reports)]
    if isinstance(rule, FLAME):
        for other in others:
            assert np.abs(other.state["weight"] - first.state["weight"]).max() > 1e-3
    assert int(others[0].memory["rounds"]) == 2
    assert replace(rule, seed=3).informed(2, 9, 7).seed == 3


# --- each rule ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_bra_finds_models_of_another_density(seed: int) -> None:
    """Both variants leave out far clients that are fewer than half, whose number nobody says."""
    rng = np.random.default_rng(seed)
    rows = 0.02 * rng.standard_normal((10, 30)) / np.sqrt(30) + 1.0
    rows[:3] += 3.0
    for rule in (BRA(), BRA(scale_invariant=True)):
        got = at(rows, before=np.ones(30)).aggregate(rule).weights
        assert got[:3].sum() < 1e-3
        assert got[3:].min() > 0.05


def test_only_the_first_variant_of_bra_depends_on_the_unit() -> None:
    rows = np.random.default_rng(0).standard_normal((8, 5)) * np.arange(1, 9)[:, None]
    for rule, same in ((BRA(), False), (BRA(scale_invariant=True), True)):
        got = [weights(rule, size * rows) for size in (1.0, 1e-3)]
        assert np.allclose(*got, rtol=1e-6) == same


def test_bra_survives_models_so_far_apart_that_nobody_seems_honest() -> None:
    got = at(1e40 * np.eye(4)).aggregate(BRA())
    assert_allclose(got.weights, 0.25)


def test_fedscs_gives_an_opponent_nothing_and_equal_weights_where_none_agree() -> None:
    got = weights(FedSCS(), [[1, 0.1], [1, 0], [1, -0.1], [-1, 0]])
    assert got[3] == 0
    assert got[:3].min() > 0.3
    assert_allclose(weights(FedSCS(), [[1, 0], [-1, 0]]), 0.5)
    assert_allclose(weights(FedSCS(), [[1, 0], [0, 1], [-1, -1]]), 1 / 3)  # sums that cancel


def test_fedscs_lowers_whose_agreement_changes() -> None:
    rule = FedSCS()
    first = at([[1, 0.1], [1, 0], [1, -0.1], [1, 0]])
    memory = first.aggregate(rule).memory
    after = rule.aggregate(memory, *at([[1, 0.1], [1, 0], [1, -0.1], [-1, 0]]))
    assert after.weights[3] < after.weights[:3].min()
    assert after.weights[3] > 0.2  # smoothed: one round costs a tenth, and the change as much again


def test_foolsgold_takes_copies_for_one_attacker_and_shortens_the_step() -> None:
    rng = np.random.default_rng(0)
    honest = rng.standard_normal((6, 400))
    sybils = np.tile(rng.standard_normal(400), (3, 1))
    rows = np.vstack([sybils, honest])
    round_ = at(rows)
    got = round_.aggregate(FoolsGold())
    assert_array_equal(got.weights[:3], 0.0)
    assert_allclose(got.weights[3:], 1 / 6)
    assert_allclose(got.state["w"], honest.sum(axis=0) / 9, rtol=1e-12)


@pytest.mark.parametrize(("huge", "rounds"), [(1e200, 1), (1e154, 2), (1e308, 2)])
def test_foolsgold_leaves_out_a_history_without_length(huge: float, rounds: int) -> None:
    """It has no angle to the others, and would be taken for unlike them all."""
    memory: Memory = {}
    for _ in range(rounds):
        rows = [[1, 0], [1, 0.1], [1, 0.2], [1, 0.3], [huge, 0]]
        got = FoolsGold().aggregate(memory, *at(rows))
        memory = got.memory
    assert_array_equal(got.excluded, [False, False, False, False, True])
    assert got.weights[4] == 0.0
    assert got.weights[:4].any()


def test_foolsgold_looks_at_the_output_layer_alone() -> None:
    rng = np.random.default_rng(1)
    head, copied = rng.standard_normal((4, 3, 50)), rng.standard_normal((2, 9))
    before = {"body": np.zeros((2, 9)), "head": np.zeros((3, 50)), "bias": np.zeros(3)}
    reports = [
        ClientReport(i, {"body": copied, "head": each, "bias": np.ones(3)}, 1)
        for i, each in enumerate(head)
    ]
    assert_allclose(FoolsGold().aggregate({}, before, reports).weights, 0.25)
    alike = [replace(each, state={**each.state, "head": head[0]}) for each in reports[:3]]
    got = FoolsGold().aggregate({}, before, [*alike, reports[3]])
    assert_allclose(got.weights, [0, 0, 0, 1])


def test_histories_without_length_are_unlike_any() -> None:
    assert_array_equal(foolsgold_weights(np.zeros((3, 4))), 1.0)


def test_dnc_leaves_out_the_updates_along_the_main_direction() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((10, 500))
    rows[[2, 5]] += 1.0
    got = weights(DnC(num_byzantine=2), rows)
    assert_array_equal(got == 0, [i in (2, 5) for i in range(10)])
    assert_allclose(got[got > 0], 1 / 8)
    # c = 1.2 leaves out three, and iterations may disagree on the third.
    assert (weights(DnC(num_byzantine=2, filter_fraction=1.2), rows) == 0).sum() >= 3
    assert_allclose(weights(DnC(), rows), 0.1)


@pytest.mark.parametrize(("dimension", "count"), [(1, 1), (7, 7), (100_000, 20_000)])
def test_coordinates_are_drawn_alike_and_in_number(dimension: int, count: int) -> None:
    chosen = drawn_columns(np.random.default_rng(0), dimension, count)
    assert chosen.sum() == count
    for part in np.array_split(chosen, 4) if dimension > 100 else ():
        assert part.mean() == pytest.approx(0.2, abs=0.01)  # 25,000 of them: four deviations


def test_dnc_keeps_the_model_where_nobody_is_left() -> None:
    rows = np.random.default_rng(0).standard_normal((9, 40))
    rule = DnC(num_byzantine=4, filter_fraction=2.0, sampled=0.1, iterations=50)
    got = at(rows).aggregate(rule)
    assert got.kept_reason == "every client is an outlier in some iteration"
    assert_array_equal(got.state["w"], 0.0)


def test_dnc_reads_every_block_of_columns() -> None:
    """A hundred clients of 12,000 numbers are several blocks; the third is where they differ."""
    rows = 0.01 * np.random.default_rng(0).standard_normal((100, 12_000))
    rows[7, 11_000:] += 1.0
    assert_array_equal(np.flatnonzero(weights(DnC(num_byzantine=1, iterations=1), rows) == 0), 7)


def test_signguard_keeps_the_band_and_the_usual_signs() -> None:
    rng = np.random.default_rng(0)
    rows = 0.3 + rng.standard_normal((12, 2000))
    rows[0] *= 20  # too long
    rows[1] *= 0.01  # too short
    rows[2] *= -1  # of other signs
    round_ = at(rows)
    got = round_.aggregate(SignGuard())
    assert_array_equal(got.weights[:3], 0.0)
    assert got.weights[3:].max() > 0
    lengths = np.linalg.norm(rows, axis=1)
    clip = np.minimum(1, np.median(lengths) / lengths)
    assert_allclose(got.state["w"], (got.weights * clip) @ rows, rtol=1e-10)


def test_signguard_keeps_the_model_where_nobody_passes() -> None:
    got = at([[1.0, 1], [5.0, 5]]).aggregate(SignGuard(lower=0.9, upper=1.1))
    assert got.kept_reason == "no client passes both filters"
    assert_array_equal(got.state["w"], 0.0)


def test_clusters_do_not_depend_on_the_order_of_many_clients() -> None:
    """More than the 50 of which the bandwidth is estimated."""
    features = np.random.default_rng(0).uniform(size=(120, 3))
    order = np.random.default_rng(1).permutation(120)
    assert_array_equal(largest_cluster(features[order]), largest_cluster(features)[order])


def test_flame_keeps_the_majority_clips_it_and_adds_noise_to_what_is_trained() -> None:
    rng = np.random.default_rng(0)
    before = {
        "weight": rng.standard_normal((40, 50)),
        "norm.running_mean": np.zeros(3),
        "norm.num_batches_tracked": np.array(3),
    }
    moves = 0.1 * rng.standard_normal((9, 40, 50))
    moves[:3] += 2.0
    reports = [ClientReport(i, {**before, "weight": before["weight"] + u}, 1)
               for i, u in enumerate(moves)]  # fmt: skip
    plain, noisy = (FLAME(noise=x).aggregate({}, before, reports) for x in (0.0, 0.01))
    assert_array_equal(plain.weights[:3], 0.0)
    assert_array_equal(noisy.weights, plain.weights)
    bound = np.median([np.linalg.norm(u) for u in moves])
    noise = (noisy.state["weight"] - plain.state["weight"]).ravel()
    assert np.std(noise) == pytest.approx(0.01 * bound, rel=0.1)  # of 2,000 numbers
    for name in ("norm.running_mean", "norm.num_batches_tracked"):
        assert_array_equal(noisy.state[name], plain.state[name])


def test_flame_keeps_the_model_where_there_is_no_majority() -> None:
    far = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    got = [at(far).aggregate(FLAME(noise=0.0)), at([*far, [1, 0, 0, 0]]).aggregate(FLAME(noise=0))]
    for each in got:  # equal distances make one cluster of all
        assert each.weights.any() or each.kept_reason is not None


def test_lasa_leaves_out_a_client_in_the_layers_where_it_is_odd() -> None:
    rng = np.random.default_rng(0)
    before = {"a": np.zeros((20, 20)), "b": np.zeros((20, 20))}
    moves = rng.standard_normal((9, 2, 20, 20))
    moves[0, 0] = 3.0  # all of one sign in one layer
    reports = [ClientReport(i, {"a": a, "b": b}, 1) for i, (a, b) in enumerate(moves)]
    wide = LASA(norm_bound=100.0, sign_bound=2.8, sparsity=0.0)
    got = wide.aggregate({}, before, reports).state
    lengths = np.sqrt((moves**2).sum(axis=(1, 2, 3)))
    clipped = moves * np.minimum(1, np.median(lengths) / lengths)[:, None, None, None]
    assert_allclose(got["a"], clipped[1:, 0].mean(axis=0), atol=1e-12)
    assert_allclose(got["b"], clipped[:, 1].mean(axis=0), atol=1e-12)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (BRA, {"iterations": 0}),
        (BRA, {"tolerance": 0.0}),
        (BRA, {"scale_invariant": 2}),
        (FedSCS, {"beta": 1.0}),
        (FedSCS, {"epsilon": 0.0}),
        (DnC, {"num_byzantine": -1}),
        (DnC, {"sampled": 0.0}),
        (DnC, {"sampled": 1.5}),
        (DnC, {"iterations": 0}),
        (DnC, {"filter_fraction": -1.0}),
        (DnC, {"seed": -1}),
        (SignGuard, {"lower": -0.1}),
        (SignGuard, {"upper": 0.05}),
        (SignGuard, {"upper": "x"}),
        (SignGuard, {"sampled": 2.0}),
        (FLAME, {"noise": -1.0}),
        (FLAME, {"noise": float("nan")}),
        (LASA, {"norm_bound": 0.0}),
        (LASA, {"sign_bound": -1.0}),
        (LASA, {"sparsity": 1.0}),
    ],
)
def test_settings_outside_their_range_are_refused_by_name(make, settings) -> None:
    with pytest.raises(FedcrfError, match=next(iter(settings))):
        make(**settings)


def test_the_defaults_are_the_sources() -> None:
    assert BRA() == BRA(iterations=100, tolerance=1e-3, scale_invariant=False)
    assert FedSCS() == FedSCS(beta=0.9, epsilon=1e-6)
    assert DnC() == DnC(sampled=0.2, iterations=5, filter_fraction=1.0)
    assert SignGuard() == SignGuard(lower=0.1, upper=3.0, sampled=0.1)
    assert FLAME() == FLAME(noise=0.001)
    assert LASA() == LASA(norm_bound=1.0, sign_bound=1.0, sparsity=0.3)


def test_dnc_is_told_of_the_attackers() -> None:
    assert DnC().informed(3, 10, 5) == DnC(seed=5, num_byzantine=3)
    assert DnC(num_byzantine=1, seed=2).informed(3, 10, 5) == DnC(num_byzantine=1, seed=2)
    with pytest.raises(FedcrfError, match="DnC: 5 attackers of 10 clients are half or more"):
        DnC().informed(5, 10, 5)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (SignGuard(), "signguard: sklearn"),
        (FLAME(), "flame: sklearn"),
        (DnC(), "dnc: threadpoolctl"),
    ],
)
def test_without_a_package_the_error_says_what_to_install(
    rule: Rule, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcrf.extras.find_spec", lambda package: None)
    with pytest.raises(FedcrfError, match=f"{said} is not installed: pip install"):
        rule.aggregate({}, *sample(4))
