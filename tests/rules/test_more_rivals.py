"""What is special about single rivals: over several rounds, at their edges, and what they bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf.errors import FedcrfError
from fedcrf.rules import (
    BRA,
    FLAME,
    GAS,
    LASA,
    CenteredClipping,
    ClientReport,
    FedAvg,
    FedAWA,
    FedDisco,
    FLTrust,
    FoundationFL,
    GeometricMedian,
    Krum,
    Momentum,
    MultiKrum,
    Optimized,
    Rule,
    SignGuard,
    Uniform,
    dnc,
)
from fedcrf.rules.awa import loss_gradient, softmax
from fedcrf.statistics import distances_to_extremes, projections
from paper import baselines as slow
from paper import more_rivals
from rules.rounds import Round, assert_same, counts, sample, spoilt, states

LONG = [(1e3, 1e6), (1e3, 1e25), (1e15, 1e37)]
"""Every number of the updates of two attackers."""


@pytest.mark.parametrize("lengths", LONG)
@pytest.mark.parametrize(
    "rule",
    [
        Krum(2),
        MultiKrum(2),
        GAS(num_byzantine=2, seed=0),
        GAS(groups=4, base="krum", num_byzantine=2, seed=0),
        CenteredClipping(clip=1.0, bucket_size=1),
        FLAME(seed=0),
        GeometricMedian(),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_long_update_hides_no_other(rule: Rule, lengths: Sequence[float], order: int) -> None:
    honest = np.random.default_rng(0).normal(0.05, 0.1, (8, 50))
    updates = np.vstack([honest, np.outer(lengths, np.ones(50))])[::order].astype(np.float32)
    reports = [ClientReport(i, {"w": each}, 10) for i, each in enumerate(updates)]
    step = rule.aggregate({}, {"w": np.zeros(50, np.float32)}, reports).state["w"]
    assert np.linalg.norm(step) < 2 * np.linalg.norm(honest, axis=1).max()


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("point", [0.0, 1.0])
@pytest.mark.parametrize("length", [1e6, 1e10, 1e25])
@pytest.mark.parametrize(
    "rule",
    [Krum(1), MultiKrum(1), GAS(num_byzantine=1, seed=0), GeometricMedian()],
    ids=str,
)
def test_equal_updates_outweigh_a_long_one(
    rule: Rule, length: float, point: float, count: int
) -> None:
    updates = [*np.full((count, 5), point), np.full(5, length)]
    reports = [ClientReport(i, {"w": each}, 10) for i, each in enumerate(updates)]
    result = rule.aggregate({}, {"w": np.zeros(5)}, reports)
    assert result.weights[-1] == 0.0
    assert_allclose(result.state["w"], point)


@pytest.mark.parametrize("length", [1e3, 1e17, 1e30])
@pytest.mark.parametrize("scale_invariant", [False, True])
def test_bra_excludes_one_update_of_any_length(length: float, scale_invariant: bool) -> None:
    honest = np.random.default_rng(0).normal(0.05, 0.1, (8, 50))
    updates = np.vstack([honest, np.full(50, length)])
    reports = [ClientReport(i, {"w": each}, 10) for i, each in enumerate(updates)]
    result = BRA(scale_invariant=scale_invariant).aggregate({}, {"w": np.zeros(50)}, reports)
    assert result.weights[8] < 1e-80
    assert_allclose(result.weights[:8], 1 / 8, rtol=0.3)


def test_krum_breaks_ties_by_identity() -> None:
    updates = [[0.0, 0.0], [1.0, 0.0], [5.0, 5.0], [-7.0, 3.0]]
    reports = [ClientReport(i, {"w": np.array(each)}, 10) for i, each in enumerate(updates)]
    for places in ([0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0]):
        result = Krum(1).aggregate({}, {"w": np.zeros(2)}, [reports[i] for i in places])
        assert result.state["w"].tolist() == [0.0, 0.0]


def some(round_: Round, clients: Sequence[int]) -> Round:
    """The same round, in which only these clients report."""
    return Round(round_.before, [each for each in round_.reports if each.client in clients])


def continued(round_: Round, seed: int, shapes: Any) -> Round:
    """Another round from the model of a result, with other updates."""
    m = len(round_.reports)
    other = sample(m, seed, shapes=shapes)
    reports = [
        replace(
            each,
            state={
                name: array + each.state[name] - other.before[name]
                for name, array in round_.before.items()
            },
        )
        for each in other.reports
    ]
    return Round(round_.before, reports)


SHAPES = {"weight": (5, 4), "bias": (3,)}


# --- centered clipping ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        CenteredClipping(clip=0.7),
        CenteredClipping(clip=3.0, iterations=1, bucket_size=1),
        CenteredClipping(clip=2.0, iterations=5, bucket_size=3, seed=8),
    ],
    ids=str,
)
def test_centered_clipping_starts_from_its_last_aggregate(rule: CenteredClipping) -> None:
    start = sample(7, shapes=SHAPES).before
    memory, before, center = rule.begin(), start, np.zeros(23)
    for number in range(4):
        round_ = continued(Round(before, sample(7, shapes=SHAPES).reports), number, SHAPES)
        vectors = slow.updates(before, states(round_.reports))
        clients = [report.client for report in round_.reports]
        lengths = [slow.distance(vector, center) for vector in vectors]
        assert max(lengths) > rule.clip, "something is clipped"
        center = more_rivals.clipped(
            center,
            vectors,
            clients,
            rule.clip,
            rule.iterations,
            rule.bucket_size,
            rule.seed or 0,
            number,
        )
        result = rule.aggregate(memory, before, round_.reports)
        moved = slow.vector(result.state) - slow.vector(before)
        assert_allclose(moved, center, rtol=1e-9, atol=1e-12)
        assert_allclose(result.weights.sum(), 1.0, rtol=1e-12)
        memory, before = result.memory, result.state


def test_a_single_attacker_moves_centered_clipping_by_at_most_the_clip() -> None:
    round_ = sample(9, shapes=SHAPES)
    rule = CenteredClipping(clip=0.5, iterations=2, bucket_size=1)
    honest = round_.aggregate(rule).state
    far = {name: array + 1e8 for name, array in round_.before.items()}
    attacked = Round(round_.before, [replace(round_.reports[0], state=far), *round_.reports[1:]])
    got = attacked.aggregate(rule)
    moved = slow.distance(slow.vector(got.state), slow.vector(honest))
    assert 0 < moved < 2 * 2 * rule.clip / 9 * 1.5


def test_weights_times_clips_are_the_coefficients_of_the_updates() -> None:
    state = {"w": np.zeros(3)}
    reports = [ClientReport(i, {"w": np.full(3, 1.0 + 9.0 * (i == 2))}, 1) for i in range(4)]
    result = CenteredClipping(clip=1.0, iterations=1, bucket_size=1).aggregate({}, state, reports)
    assert_allclose(result.weights, 1 / 4, rtol=1e-12)
    assert result.clips is not None
    assert_allclose(result.clips / result.clips[0], [1, 1, 0.1, 1], rtol=1e-12)
    updates = np.stack([report.state["w"] for report in reports])
    assert_allclose(result.weights * result.clips @ updates, result.state["w"], rtol=1e-6)


def test_a_last_aggregate_beyond_the_dtype_is_forgotten_but_not_the_draws() -> None:
    model = {"w": np.full(3, 6e4, np.float16)}
    reports = [ClientReport(i, model, 1) for i in range(3)]
    memory = {"center": np.full(3, 1e4, np.float32), "rounds": np.array(5)}
    with np.errstate(over="ignore"):
        kept = CenteredClipping().aggregate(memory, model, reports).memory
    assert int(kept["rounds"]) == 6
    assert not kept["center"].any()


def test_buckets_are_drawn_anew_each_round_and_by_seed() -> None:
    round_ = sample(7, shapes=SHAPES)

    def weights(rule: Rule, rounds: int) -> list[float]:
        memory = {"center": np.zeros(23), "rounds": np.array(rounds)}
        return [*rule.aggregate(memory, round_.before, round_.reports).weights]

    rule = CenteredClipping(clip=1e6)
    assert weights(rule, 0) == weights(rule, 0) == [*round_.aggregate(rule).weights]
    assert len({tuple(weights(rule, rounds)) for rounds in range(9)}) > 2
    assert any(weights(replace(rule, seed=7), r) != weights(rule, r) for r in range(4))


@pytest.mark.parametrize(
    "memory",
    [
        {"center": np.zeros(4), "rounds": np.array(1)},
        {"m": np.zeros(23)},
        {"center": np.zeros(23)},
        {"center": np.full(23, "a"), "rounds": np.array(1)},
    ],
    ids=["other model", "other rule", "no rounds", "words"],
)
def test_a_memory_of_something_else_is_refused(memory: Any) -> None:
    round_ = sample(3, shapes=SHAPES)
    with pytest.raises(FedcrfError, match="the memory is not of CenteredClipping"):
        CenteredClipping().aggregate(memory, round_.before, round_.reports)


def test_an_aggregate_that_leads_out_of_the_dtype_is_forgotten() -> None:
    state = {"w": np.full(2, 6e4, np.float16)}
    reports = [ClientReport(i, {"w": np.full(2, 6e4 + 32, np.float16)}, 1) for i in range(3)]
    rule = CenteredClipping(clip=100.0)
    memory = {"center": np.full(2, 1e5), "rounds": np.array(3)}
    with np.errstate(over="ignore"):
        got = rule.aggregate(memory, state, reports)
    assert_array_equal(got.state["w"], reports[0].state["w"])
    assert not got.excluded.any()


# --- FedAWA ---------------------------------------------------------------------------------


def test_fedawa_goes_on_from_each_client_s_own_logit() -> None:
    rule = FedAWA(iterations=2, learning_rate=0.2)
    memory, before = rule.begin(), sample(6, shapes=SHAPES).before
    logits: dict[int, float] = {}
    for number, present in enumerate([(0, 3, 6, 9), (3, 9, 15), (0, 6, 12), (15, 3, 0)]):
        whole = continued(Round(before, sample(6, shapes=SHAPES).reports), number, SHAPES)
        round_ = some(whole, present)
        shares = slow.shares(counts(round_.reports))
        clients = [report.client for report in round_.reports]
        known = [logits.get(c, share) for c, share in zip(clients, shares, strict=True)]
        vectors = slow.updates(before, states(round_.reports))
        weights, moved = more_rivals.fedawa(
            slow.vector(before), vectors, known, 2, 0.2, (rule.beta1, rule.beta2)
        )
        logits.update(zip(clients, moved, strict=True))
        result = rule.aggregate(memory, before, round_.reports)
        assert_allclose(result.weights, weights, rtol=1e-9)
        memory, before = result.memory, result.state
    assert dict(zip(memory["clients"], memory["logits"], strict=True)) == pytest.approx(logits)


def test_with_one_step_a_round_the_logits_move_by_the_learning_rate() -> None:
    round_ = sample(5)
    memory = FedAWA().aggregate({}, round_.before, round_.reports).memory
    moved = np.abs(memory["logits"] - slow.shares(counts(round_.reports)))
    assert_allclose(moved, 1e-3, rtol=1e-6)


@pytest.mark.parametrize("point", [0.0, 3.0])
def test_fedawa_s_gradient_is_the_loss_s(point: float) -> None:
    rng = np.random.default_rng(3)
    updates, unlike = rng.standard_normal((6, 9)), rng.uniform(0, 2, 6)
    t = torch.tensor(rng.standard_normal(6), requires_grad=True)
    p = torch.softmax(t, 0)
    rows = torch.tensor(updates)
    apart = torch.linalg.vector_norm(rows - p @ rows, dim=1)
    (p @ torch.tensor(unlike) + p @ apart).backward()
    moved = updates - point  # about any point
    got = loss_gradient(softmax(t.detach().numpy()), unlike, moved @ moved.T)
    assert_allclose(got, t.grad.numpy(), rtol=1e-9, atol=1e-12)  # type: ignore[union-attr]


def test_fedawa_refuses_another_rule_s_memory() -> None:
    round_ = sample(3)
    with pytest.raises(FedcrfError, match="the memory holds no 'logits'"):
        FedAWA().aggregate({"rounds": np.array(2)}, round_.before, round_.reports)


# --- FLTrust --------------------------------------------------------------------------------


def test_without_server_data_fltrust_says_what_is_missing() -> None:
    round_ = sample(3)
    for rule in (FLTrust(), Optimized(FLTrust(), Momentum())):
        assert rule.server_examples == 100
        with pytest.raises(FedcrfError, match=r"^FLTrust has no server data: give the model"):
            rule.aggregate({}, round_.before, round_.reports)
    assert FedAvg().server_examples == 0
    assert FedAvg().with_server_model(round_.before) == FedAvg()


def test_a_server_s_model_of_another_form_is_named() -> None:
    round_ = sample(3)
    with pytest.raises(FedcrfError, match="the server reports other tensors"):
        FLTrust().with_server_model({"w": np.zeros(2)}).aggregate({}, round_.before, round_.reports)


def test_behind_a_server_optimizer_the_server_s_model_reaches_the_rule() -> None:
    round_ = sample(5)
    plain = round_.aggregate(FLTrust())
    behind = round_.aggregate(Optimized(FLTrust(), Momentum(1.0, 0.0)))
    assert_same(behind.state, plain.state)
    assert_array_equal(behind.weights, plain.weights)
    assert plain.weights.max() < 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (-1.0, "no client's update points along the server's"),
        (0.0, "no client's update points along the server's"),
        (math.nan, "the server's own update is not finite"),
        (math.inf, "the server's own update is not finite"),
    ],
)
def test_where_nobody_is_trusted_the_model_stays(value: float, reason: str) -> None:
    state = {"w": np.zeros(3)}
    reports = [ClientReport(i, {"w": np.full(3, 1.0 + i)}, 1) for i in range(3)]
    rule = FLTrust().with_server_model({"w": np.full(3, value)})
    result = rule.aggregate({}, state, reports)
    assert_array_equal(result.state["w"], 0.0)
    assert_array_equal(result.weights, 0.0)
    assert not result.excluded.any()
    assert result.kept_reason == reason


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6, 1e120])
def test_an_update_s_length_does_not_count_and_the_step_is_no_longer_than_the_server_s(
    factor: float,
) -> None:
    round_ = sample(6, shapes=SHAPES)
    rule = FLTrust().with_server_model(round_.server)
    plain = rule.aggregate({}, round_.before, round_.reports)
    longer = {
        name: array + factor * (round_.reports[1].state[name] - array)
        for name, array in round_.before.items()
    }
    reports = [round_.reports[0], replace(round_.reports[1], state=longer), *round_.reports[2:]]
    got = rule.aggregate({}, round_.before, reports)
    assert_allclose(got.weights, plain.weights, rtol=1e-6)
    assert_allclose(slow.vector(got.state), slow.vector(plain.state), rtol=1e-6, atol=1e-6)
    origin = slow.vector(round_.before)
    step = slow.distance(slow.vector(got.state), origin)
    assert step <= slow.distance(slow.vector(round_.server), origin) * (1 + 1e-9)


# --- FedDisco -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("divergences", "discrepancy", "offset", "expected"),
    [
        # Σd = 4: 1/4 − .5·(0, 1/4, 2/4, 1/4) + .1, over their sum .9
        ([0.0, 1.0, 2.0, 1.0], 0.5, 0.1, np.array([0.35, 0.225, 0.1, 0.225]) / 0.9),
        ([0.0, 1.0, 2.0, 1.0], 2.0, 0.0, [1.0, 0.0, 0.0, 0.0]),
        ([None, None, None, None], 0.5, 0.1, [0.25] * 4),
        ([0.0, 0.0, 0.0, 0.0], 0.5, 0.1, [0.25] * 4),
        ([1.0, 1.0, 1.0, 1.0], 9.0, 0.1, [0.25] * 4),
        # Who says nothing, or what cannot be, has the mean of 1 and 3, so that d/Σd = 1/4.
        ([1.0, 3.0, None, -1.0], 0.5, 0.0, [0.375, 0.125, 0.25, 0.25]),
        ([1.0, 3.0, math.inf, math.nan], 0.5, 0.0, [0.375, 0.125, 0.25, 0.25]),
        ([1e308, 0.0, 1e308, 1e308], 0.6, 0.0, [0.125, 0.625, 0.125, 0.125]),
    ],
    ids=str,
)
def test_feddisco_by_hand(
    divergences: list[Any], discrepancy: float, offset: float, expected: Sequence[float]
) -> None:
    reports = [
        ClientReport(
            i,
            {"w": np.full(2, float(i))},
            5,
            evidence={} if given is None else {"label_divergence": given},
        )
        for i, given in enumerate(divergences)
    ]
    rule = FedDisco(discrepancy, offset)
    result = rule.aggregate({}, {"w": np.zeros(2)}, reports)
    assert_allclose(result.weights, expected, rtol=1e-12)
    assert_allclose(result.state["w"], np.dot(expected, range(4)), rtol=1e-12)
    assert rule.wanted_evidence == {"label_divergence"}


def test_where_all_report_no_divergence_the_offset_still_evens_the_shares() -> None:
    reports = [
        ClientReport(i, {"w": np.zeros(2)}, n, evidence={"label_divergence": 0.0})
        for i, n in enumerate((1, 3))
    ]
    result = FedDisco(0.5, 0.25).aggregate({}, {"w": np.zeros(2)}, reports)
    assert_allclose(result.weights, [0.5 / 1.5, 1.0 / 1.5], rtol=1e-12)


# --- GAS and FoundationFL -------------------------------------------------------------------


@pytest.mark.parametrize("base", ["bulyan", "krum", "median", "trimmed-mean"])
@pytest.mark.parametrize(("m", "f"), [(13, 3), (12, 4), (40, 9), (9, 2)])
def test_gas_in_groups_of_many_coordinates(base: str, m: int, f: int) -> None:
    """More clients than a sorting network takes, several blocks, and a last group that is less."""
    round_ = sample(m, seed=2, shapes={"weight": (211,), "bias": (12,)})
    rule = GAS(groups=31, base=base, num_byzantine=f, seed=6)
    vectors = slow.updates(round_.before, states(round_.reports))
    expected = more_rivals.gas(vectors, 31, base, f, 6)
    assert_allclose(round_.aggregate(rule).weights, expected, rtol=1e-12)


def test_gas_takes_blocks_of_groups_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    round_ = sample(8, shapes={"weight": (97,)})
    rule = GAS(groups=10, num_byzantine=2)
    whole = round_.aggregate(rule).weights
    monkeypatch.setattr("fedcrf.rules.gas.BLOCK_NUMBERS", 8 * 20)
    assert_array_equal(round_.aggregate(rule).weights, whole)


def test_gas_deals_anew_each_round() -> None:
    round_ = sample(8, shapes={"weight": (40,)}, common=0.0)
    rule = GAS(groups=8, num_byzantine=3)
    chosen = [
        tuple(rule.aggregate({"rounds": np.array(r)}, round_.before, round_.reports).weights)
        for r in (0, 0, *range(1, 20))
    ]
    assert chosen[0] == chosen[1] == tuple(round_.aggregate(rule).weights)
    assert len(set(chosen)) > 1
    assert int(round_.aggregate(rule).memory["rounds"]) == 1


@pytest.mark.parametrize("base", ["bulyan", "krum", "median", "trimmed-mean"])
def test_gas_excludes_far_attackers(base: str) -> None:
    round_ = sample(11, shapes={"weight": (60,)})
    far = {name: array - 40 for name, array in round_.before.items()}
    reports = [*round_.reports[:8], *(ClientReport(30 + i, far, 1) for i in range(3))]
    weights = Round(round_.before, reports).aggregate(GAS(6, base, num_byzantine=3)).weights
    assert_allclose(weights, [1 / 8] * 8 + [0] * 3, rtol=1e-12)


def test_gas_of_no_attackers_is_the_mean() -> None:
    round_ = spoilt(sample(5), {2: math.nan})
    assert_same(round_.aggregate(GAS()).state, round_.aggregate(Uniform()).state, 0)


def test_foundation_copies_the_least_extreme_update() -> None:
    rows = np.array([[0.0, 9.0], [9.0, 0.0], [5.0, 4.0], [9.0, 9.0], [0.0, 0.0]])
    reports = [ClientReport(i, {"w": row}, 1) for i, row in enumerate(rows)]
    state = {"w": np.zeros(2)}
    # The nearer extreme is 9 away from the first two, √41 from the third, 0 from the last two.
    got = FoundationFL("median", copies=20).aggregate({}, state, reports)
    assert_array_equal(got.state["w"], rows[0])
    assert_array_equal(got.weights, np.full(5, np.nan))
    plain = FoundationFL("median", copies=0).aggregate({}, state, reports)
    assert_array_equal(plain.state["w"], [5.0, 4.0])


# --- the passes -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "d"), [(1, 5), (3, 70_001), (40, 5_000)])
def test_the_passes_against_whole_arrays(m: int, d: int, dtype: Any) -> None:
    rng = np.random.default_rng(m)
    origin, direction = rng.standard_normal((2, d)).astype(dtype)
    rows = (origin + 0.01 * rng.standard_normal((m, d))).astype(dtype)
    cut = d // 3
    updates = rows.astype(np.float64) - origin
    clients = [[row[:cut], row[cut:]] for row in rows]
    split = [origin[:cut], origin[cut:]]
    squares, inner = projections(clients, split, [direction[:cut], direction[cut:]])
    assert_allclose(squares, (updates**2).sum(axis=1), rtol=1e-10)
    assert_allclose(inner, updates @ direction.astype(np.float64), rtol=1e-8, atol=1e-8)
    assert_array_equal(projections(clients, split)[1], 0.0)
    above, below = distances_to_extremes(clients, split)
    assert_allclose(above, np.linalg.norm(updates - updates.max(axis=0), axis=1), rtol=1e-10)
    assert_allclose(below, np.linalg.norm(updates - updates.min(axis=0), axis=1), rtol=1e-10)


def test_an_update_that_is_not_finite_changes_no_other_s_projection() -> None:
    rows = np.random.default_rng(0).standard_normal((4, 9))
    rows[2, 3] = math.nan
    origin = [np.zeros(9)]
    squares, inner = projections([[row] for row in rows], origin, [np.ones(9)])
    assert np.isfinite(squares).tolist() == np.isfinite(inner).tolist() == [True, True, False, True]
    kept = [0, 1, 3]
    assert_allclose(inner[kept], rows[kept].sum(axis=1), rtol=1e-12)


def test_signguard_keeps_all_if_nobody_has_moved() -> None:
    reports = [ClientReport(i, {"w": np.zeros(20)}, 5) for i in range(6)]
    result = SignGuard(seed=0).aggregate({}, {"w": np.zeros(20)}, reports)
    assert_allclose(result.weights, 1 / 6)
    assert result.kept_reason is None


def test_lasa_may_leave_nothing_of_few_numbers() -> None:
    reports = [ClientReport(i, {"w": np.array([[1.0, 2.0]])}, 5) for i in range(3)]
    result = LASA(sparsity=0.9).aggregate({}, {"w": np.zeros((1, 2))}, reports)
    assert not result.state["w"].any()


def test_columns_of_enormous_models_are_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnc, "MOST_DRAWN", 200_000)
    dimension, count = 300_000, 60_000
    chosen = dnc.drawn_columns(np.random.default_rng(0), dimension, count)
    assert int(chosen.sum()) == count
    parts = chosen[: 8 * dnc.PART].reshape(8, -1).mean(axis=1)
    assert_allclose(parts, 0.2, atol=0.02)
