"""Every server rule against its slow version, and the properties all of them share."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf import ClientCRF, FedcrfError
from fedcrf.rules import (
    CRF,
    RULES,
    Adam,
    AggregationResult,
    ClientReport,
    CRFEvidence,
    CRFRobust,
    CRFRobustEvidence,
    Deciding,
    FedAvg,
    FoolsGold,
    Krum,
    MultiKrum,
    Optimized,
    Rule,
)
from fedcrf.rules import Round as GivenRound
from paper import baselines as slow
from rules.rounds import (
    BASELINES,
    RIVALS,
    TESTED,
    Round,
    assert_rounded,
    assert_same,
    by_coordinate,
    changed_settings,
    counts,
    every_rule,
    is_made_sparse,
    name_of,
    sample,
    slack_of,
    slow_version,
    spoilt,
    states,
)


def test_every_rule_is_tested() -> None:
    assert set(RULES.values()) == {type(rule) for rule in TESTED}
    assert len({name_of(rule) for rule in TESTED}) == len(TESTED)


# --- against the slow versions --------------------------------------------------------------


@every_rule
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 10, 40])
def test_against_the_slow_version(rule: Rule, dtype: Any, m: int) -> None:
    # 40 clients are beyond what is ranked by a sorting network.
    for common, uneven in ((0.0, True), (1.0, False)):
        round_ = sample(m, dtype=dtype, common=common, uneven=uneven)
        if m > 2 and uneven:  # one of them has no examples
            round_ = round_.counting([n * (i != 1) for i, n in enumerate(counts(round_.reports))])
        result = round_.aggregate(rule)
        weights, model = slow_version(rule, round_)
        assert_rounded(result.state, model, round_.before, slack_of(rule))
        assert_allclose(result.weights, weights, rtol=1e-7, atol=1e-12)
        assert_allclose(result.base_weights, slow.shares(counts(round_.reports)), rtol=1e-12)
        assert not result.excluded.any()


@every_rule
@settings(max_examples=15, deadline=None)
@given(
    m=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
    common=st.sampled_from([0.0, 1.0, 30.0]),
    uneven=st.booleans(),
)
def test_against_the_slow_version_on_drawn_rounds(
    rule: Rule, m: int, seed: int, dtype: Any, common: float, uneven: bool
) -> None:
    round_ = sample(m, seed, dtype, common, uneven)
    if isinstance(rule, Krum):
        # With one neighbour the closest two tie exactly; which is first is tested on its own.
        tied = slow.krum_neighbours(m, rule.num_byzantine or 0) == 1 and m > 1
        if tied:
            assert_krum_chose_well(rule, round_)
            return
    _, model = slow_version(rule, round_)
    assert_rounded(round_.aggregate(rule).state, model, round_.before, 10 * slack_of(rule))


def assert_krum_chose_well(rule: Krum | MultiKrum, round_: Round) -> None:
    """No client that was left out has a better score than one that was kept."""
    before, reports = round_
    neighbours = slow.krum_neighbours(len(reports), rule.num_byzantine or 0)
    scores = np.array(slow.krum_scores(slow.updates(before, states(reports)), neighbours))
    kept = round_.aggregate(rule).weights > 0
    most = max(1, len(reports) - (rule.num_byzantine or 0)) if isinstance(rule, MultiKrum) else 1
    assert kept.sum() == most
    if not kept.all():
        assert scores[kept].max() <= scores[~kept].min() * (1 + 1e-9)


@pytest.mark.parametrize(
    "rule",
    [  # with its defaults; other settings wait for `make test-all`
        pytest.param(rule, marks=[pytest.mark.slow] if changed_settings(rule) else [])
        for rule in (*BASELINES, *RIVALS)
    ],
    ids=name_of,
)
@pytest.mark.parametrize(("m", "size"), [(5, 16500), (33, 2100)])
def test_a_layer_of_many_blocks_equals_its_slow_version(rule: Rule, m: int, size: int) -> None:
    """A layer wider than the blocks that the passes take: no column is lost or read twice."""
    round_ = sample(m, shapes={"a.weight": (3, 7), "b.weight": (size,)})
    _, model = slow_version(rule, round_)
    assert_rounded(round_.aggregate(rule).state, model, round_.before, slack_of(rule))


@every_rule
@pytest.mark.parametrize("tracked", [(7, 7, 8), (7, 9, 12), (7, 9, 13)], ids=str)
def test_integers_keep_their_dtype_and_are_rounded_not_cut(
    rule: Rule, tracked: Sequence[int]
) -> None:
    rows = np.array([[0.02, 0.01], [0.1, 0.0], [0.0, 0.1]])
    before = {"row": np.zeros(2), "num_batches_tracked": np.array(0), "table": np.zeros(1, int)}
    models = [
        {"row": row, "num_batches_tracked": np.array(number), "table": np.array([-number])}
        for row, number in zip(rows, tracked, strict=True)
    ]
    round_ = Round(before, [ClientReport(i, model, 5) for i, model in enumerate(models)])
    got, (_, exact) = round_.aggregate(rule).state, slow_version(rule, round_)
    for name in ("num_batches_tracked", "table"):
        assert (abs(exact[name] % 1 - 0.5) > 0.02).all(), "half-way either would do"
        assert_array_equal(got[name], np.round(exact[name]))
        assert (got[name].dtype, got[name].shape) == (np.int64, before[name].shape)


@every_rule
@pytest.mark.parametrize("more", [{}, {"none": np.zeros((0, 2), np.float32)}], ids=["", "none"])
def test_models_of_integers_alone_are_averaged_or_refused_in_words(
    rule: Rule, more: dict[str, Any]
) -> None:
    before = {"table": np.zeros((2, 2), np.uint8), **more}
    reports = [
        ClientReport(i, {"table": np.full((2, 2), i, np.uint8), **more}, 5) for i in range(3)
    ]
    refused = ""
    try:
        table = Round(before, reports).aggregate(rule).state["table"]
    except FedcrfError as error:
        refused = str(error)
    if refused:
        assert re.search("hold no numbers|no server data", refused)
    else:
        assert table.dtype == np.uint8
        assert (table <= 2).all()


# --- reports that are left out, and rounds that cannot be -----------------------------------


@every_rule
@pytest.mark.parametrize(
    "values",
    [
        {0: math.nan},
        {3: math.inf},
        {6: -math.inf},
        {1: math.nan, 3: math.nan},
        {1: -math.inf, 3: math.inf},
    ],
    ids=str,
)
def test_a_report_that_is_not_finite_has_no_effect(rule: Rule, values: Mapping[int, float]) -> None:
    round_ = sample(7, seed=1)
    # What else the broken clients say is large.
    state = {**round_.reports[2].state, "norm.num_batches_tracked": np.array(10**6)}
    reports = [
        replace(report, state=state, num_examples=10_000, effective_steps=700.0)
        if place in values
        else report
        for place, report in enumerate(round_.reports)
    ]
    got = spoilt(Round(round_.before, reports), values).aggregate(rule)
    kept = [place for place in range(7) if place not in values]
    want = Round(round_.before, [reports[place] for place in kept]).aggregate(rule)
    assert_array_equal(got.excluded, [place in values for place in range(7)])
    assert_array_equal(got.weights[list(values)], 0.0)
    assert_array_equal(got.base_weights[list(values)], 0.0)
    assert_allclose(got.weights[kept], want.weights, rtol=1e-12)
    assert_allclose(got.base_weights[kept], want.base_weights, rtol=1e-12)
    assert_same(got.state, want.state)


@every_rule
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers overflow on purpose
def test_who_is_excluded_for_an_overflow_has_no_weight(rule: Rule) -> None:
    round_ = spoilt(sample(7, seed=1, dtype=np.float64), {2: 1e200})
    result = round_.aggregate(rule)
    assert_array_equal(result.weights[result.excluded], 0.0)
    assert_array_equal(result.base_weights[result.excluded], 0.0)
    assert_allclose(result.base_weights.sum(), 1.0, rtol=1e-12)
    if not np.isnan(result.weights).any() and result.weights.any():
        assert abs(result.weights.sum() - 1.0) < 1e-9 or rule.needs_steps


@dataclass(frozen=True)
class Hasty(Deciding):
    """Asks who is finite before it asks for statistics, one after the other.

    It may ask a round of its own, ``apart``, as one that judges by some tensors does.
    """

    asked: tuple[str, ...]
    apart: bool = False

    def decide(self, given: GivenRound) -> AggregationResult:
        asked = given
        if self.apart:
            asked = GivenRound({}, given.model, given.reports, given.finite)
        chosen = np.ones(len(asked.used), bool)
        for name in self.asked:
            getattr(asked, name)
        return given.weighted(given.equal_weights(chosen))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers overflow on purpose
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("asked", [*itertools.permutations(("geometry", "products", "norms"), 2)])
def test_a_rule_may_ask_who_is_finite_before_a_pass_finds_it_out(
    asked: tuple[str, ...], apart: bool
) -> None:
    round_ = spoilt(sample(7, seed=1, dtype=np.float64), {2: 1e200, 5: math.nan})
    result = round_.aggregate(Hasty(asked, apart))
    assert np.flatnonzero(result.excluded).tolist() == [2, 5]
    assert_allclose(result.weights, np.where(result.excluded, 0.0, 0.2))


@every_rule
@pytest.mark.parametrize("m", [1, 3, 5])
def test_no_usable_report_keeps_the_global_model(rule: Rule, m: int) -> None:
    round_ = spoilt(sample(m), dict.fromkeys(range(m), math.nan))
    result = round_.aggregate(rule)
    assert_same(result.state, round_.before, 0)
    assert_array_equal(result.weights, np.zeros(m))
    assert_array_equal(result.excluded, np.ones(m, bool))


@every_rule
def test_no_weight_where_only_excluded_reports_hold_examples(rule: Rule) -> None:
    # With no examples among the usable, weights by examples have nothing to share out.
    round_ = spoilt(sample(2, seed=6), {0: math.nan}).counting((7, 0))
    result = round_.aggregate(rule)
    assert_array_equal(result.base_weights, 0.0)
    assert result.weights[0] == 0.0
    # Rules that do not count examples take the other one (a rule by coordinate says NaN).
    taken = result.weights[1] != 0.0
    if not is_made_sparse(rule):
        assert_same(result.state, round_.reports[1].state if taken else round_.before)


@every_rule
@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ((3, -1, 2), "of client 1 is -1"),
        ((0, 0, 0), "are all zero"),
        ((1, math.nan, 1), "of client 1 is nan"),
    ],
    ids=["negative", "all zero", "NaN"],
)
def test_counts_that_cannot_be(rule: Rule, counts: Sequence[Any], named: str) -> None:
    with pytest.raises(FedcrfError, match=f"num_examples {named}"):
        sample(3).counting(counts).aggregate(rule)


# --- what does not matter, and what stays as it is ------------------------------------------


@every_rule
@pytest.mark.parametrize("not_finite", [{}, {2: math.nan}], ids=["all finite", "one not"])
@pytest.mark.parametrize("m", [8, 35])
def test_the_order_of_the_reports_does_not_matter(
    rule: Rule, m: int, not_finite: Mapping[int, float]
) -> None:
    round_ = spoilt(sample(m, seed=4), not_finite)
    order = np.random.default_rng(m).permutation(m)
    result = round_.aggregate(rule)
    again = Round(round_.before, [round_.reports[place] for place in order]).aggregate(rule)
    assert_same(again.state, result.state, 1e-9)
    assert_allclose(again.weights, result.weights[order], rtol=1e-9, atol=1e-14)
    assert_allclose(again.base_weights, result.base_weights[order], rtol=1e-12)
    assert_array_equal(again.excluded, result.excluded[order])


@every_rule
@pytest.mark.parametrize("not_finite", [{}, {1: math.inf}], ids=["all finite", "one not"])
def test_nothing_that_goes_in_is_changed(rule: Rule, not_finite: Mapping[int, float]) -> None:
    round_ = spoilt(sample(5), not_finite)
    given, kept = list(round_.reports), copy.deepcopy(round_)
    models = [round_.before, *states(round_.reports)]
    for model in models:  # writing to any of them is an error, and so is needing to
        for array in model.values():
            array.flags.writeable = False
    result = round_.aggregate(rule)
    assert all(report is same for report, same in zip(round_.reports, given, strict=True))
    assert [report.evidence for report in given] == [report.evidence for report in kept.reports]
    for model, was in zip(models, [kept.before, *states(kept.reports)], strict=True):
        assert list(model) == list(was)
        for name, array in model.items():
            assert_array_equal(array, was[name])
            assert not np.shares_memory(array, result.state[name])


@every_rule
@pytest.mark.parametrize("m", [1, 2, 10, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_where_all_updates_are_equal_that_is_the_result(rule: Rule, m: int, dtype: Any) -> None:
    before, (only,) = sample(1, dtype=dtype, common=1e3)
    # FedNova scales updates by the steps they took: only equal steps leave a common one as it is.
    reports = [ClientReport(i, only.state, 10 + i, 3.0) for i in range(m)]
    got = Round(before, reports).aggregate(rule)
    if isinstance(rule, FoolsGold) and m > 1:  # which takes them for one attacker
        assert got.kept_reason == "the histories of all clients point the same way"
        assert_same(got.state, before, 0)
        return
    if is_made_sparse(rule):
        want = slow_version(rule, Round(before, reports))[1]
        assert_rounded(got.state, want, before, slack_of(rule))
        return
    assert_same(got.state, only.state, 0 if dtype is np.float32 else 1e-14)
    if not by_coordinate(rule):
        assert_allclose(got.weights.sum(), 1.0, rtol=1e-12)


@every_rule
@pytest.mark.parametrize("m", [1, 10])
def test_where_no_client_moved_the_global_model_stays(rule: Rule, m: int) -> None:
    before, _ = sample(1)
    reports = [ClientReport(i, copy.deepcopy(before), 10 + i, 1.0 + i) for i in range(m)]
    got = Round(before, reports).aggregate(rule)
    assert_same(got.state, before, 1e-14)
    assert not got.excluded.any()


@pytest.mark.parametrize("weight_by_examples", [True, False])
def test_crf_is_client_crf_on_the_differences(weight_by_examples: bool) -> None:
    before, reports = round_ = sample(5)
    crf = ClientCRF(weight_by_examples=weight_by_examples)
    posterior = crf.infer(slow.updates(before, states(reports)), counts(reports))
    result = round_.aggregate(CRF(weight_by_examples=weight_by_examples))
    assert result.posterior is not None
    for name in ("weights", "reliability", "marginals", "expected_label", "affinity", "cosine",
                 "distance", "norm_anomaly"):  # fmt: skip
        assert_allclose(
            getattr(result.posterior, name), getattr(posterior, name), rtol=1e-9, atol=1e-12
        )
    assert_array_equal(result.weights, result.posterior.weights)
    # What FedAvg would have given stands beside it, whatever the rule itself starts from.
    assert_allclose(result.base_weights, slow.shares(counts(reports)), rtol=1e-12)


@every_rule
@pytest.mark.parametrize("make", [torch.tensor, list])
def test_tensors_that_are_no_numpy_arrays_are_named(rule: Rule, make: Callable[..., Any]) -> None:
    state = {"w": np.zeros(2, np.float32)}
    bad = {"w": make([0.0, 1.0])}
    for before, sent, who in ((bad, state, "the global model"), (state, bad, "client 7")):
        with pytest.raises(FedcrfError, match=f"'w' of {who} is a .*: give NumPy arrays"):
            rule.aggregate({}, before, [ClientReport(7, sent, 10)])


@pytest.mark.parametrize(
    ("rule", "secret"),
    [
        (CRFRobust(), CRFRobust(sketch_seed=9)),
        (CRFRobustEvidence(clip=3.0), CRFRobustEvidence(clip=3.0, sketch_seed=9)),
        (CRFRobust(sketch_seed=4), CRFRobust(sketch_seed=4)),
        (CRFRobust(sketch_seed=0), CRFRobust(sketch_seed=0)),
        (CRF(neighbours=2, sketch_size=8), CRF(neighbours=2, sketch_size=8, sketch_seed=9)),
        (CRF(neighbours=2, sketch_size=8, sketch_seed=4),) * 2,
        (CRF(neighbours=2, sketch_size=8, sketch_seed=0),) * 2,
        (CRF(), CRF()),
        (Optimized(CRFRobust(), Adam()), Optimized(CRFRobust(sketch_seed=9), Adam())),
        (FedAvg(), FedAvg()),
    ],
)
def test_signs_that_are_left_open_become_secret_ones(rule: Rule, secret: Rule) -> None:
    assert rule.with_secret_signs({}, 9) == secret


@pytest.mark.parametrize(
    ("layout", "seed"), [([24, 64, 3, 1], 3), ([24, 64], 9), ([0.5, 1.0, 2.0, 1.0], 9), (None, 9)]
)
def test_signs_stay_those_of_the_memory(layout: Any, seed: int) -> None:
    rule, memory = CRFRobust(), {"layout": np.array(layout)}
    assert rule.with_secret_signs(memory, 9) == CRFRobust(sketch_seed=seed)
    behind = {f"rule.{name}": array for name, array in memory.items()}
    optimized = Optimized(rule, Adam()).with_secret_signs(behind, 9)
    assert optimized == Optimized(CRFRobust(sketch_seed=seed), Adam())


@pytest.mark.parametrize("unasked", [{}, {"accuracy": 1.0}, {1: 1.0}], ids=str)
def test_evidence_that_nobody_reports_leaves_the_rules_without(unasked: dict[Any, float]) -> None:
    round_ = sample(6)
    silent = Round(round_.before, [replace(report, evidence={}) for report in round_.reports])
    silent.reports[2] = replace(silent.reports[2], evidence=unasked)
    for rule, without in ((CRFEvidence(), FedAvg()), (CRFRobustEvidence(), CRFRobust())):
        expected = silent.aggregate(without)
        assert not np.allclose(round_.aggregate(rule).weights, expected.weights)
        assert_allclose(silent.aggregate(rule).weights, expected.weights, rtol=1e-12)
        assert_same(silent.aggregate(rule).state, expected.state, 1e-6)
        assert rule.wanted_evidence == {"residual_loss"}


@pytest.mark.parametrize("value", [None, "low", [0.1], math.inf, 10**400, True])
def test_evidence_that_is_no_number_is_none(value: Any) -> None:
    round_ = sample(6)
    for rule in (CRFEvidence(), CRFRobustEvidence()):
        results = []
        for evidence in ({}, {"residual_loss": value}):
            reports = [replace(round_.reports[0], evidence=evidence), *round_.reports[1:]]
            results.append(Round(round_.before, reports).aggregate(rule))
        assert_array_equal(results[1].weights, results[0].weights)


@every_rule
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {**state, "extra": state["a"]}, "'extra' is in one of them only"),
        (lambda state: {"a": state["a"]}, "'b' is in one of them only"),
        (lambda state: {**state, "b": state["b"][:-1]}, r"'b' as float32 \(2,\)"),
        (lambda state: {**state, "b": state["b"].astype(np.float64)}, "'b' as float64"),
    ],
    ids=["extra", "missing", "shape", "dtype"],
)
def test_a_report_that_is_not_of_the_model_is_named(
    rule: Rule, change: Callable[[Any], Any], message: str
) -> None:
    before = {"a": np.zeros((2, 2), np.float32), "b": np.zeros(3, np.float32)}
    reports = [ClientReport(client, dict(before), 1) for client in range(3)]
    reports[1] = ClientReport(7, change(before), 1)
    with pytest.raises(FedcrfError, match=f"client 7 reports .*{message}"):
        rule.aggregate({}, before, reports)


@every_rule
@pytest.mark.parametrize("dtype", ["complex64", "U1", "S1", "M8[s]", object])
def test_tensors_of_no_real_numbers_are_refused(rule: Rule, dtype: Any) -> None:
    before = {"w": np.zeros(2), "odd": np.zeros(3, dtype)}
    reports = [ClientReport(client, dict(before), 1) for client in range(3)]
    with pytest.raises(FedcrfError, match=r"'odd' of the global model holds .*: give real numbers"):
        rule.aggregate({}, before, reports)


@every_rule
def test_the_order_of_names_in_a_report_does_not_matter(rule: Rule) -> None:
    before, reports = round_ = sample(5)
    turned = [replace(each, state=dict(reversed(each.state.items()))) for each in reports]
    assert_same(Round(before, turned).aggregate(rule).state, round_.aggregate(rule).state, 0)


@pytest.mark.parametrize("name", [name for name in RULES if not name.startswith("crf")])
def test_every_rule_names_its_paper(name: str) -> None:
    assert re.search(r"\b(19|20)\d\d\b", RULES[name].__doc__ or ""), name


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (3, "a report is a int: give ClientReports"),
        (ClientReport(7, None, 10), "client 7 is a NoneType: give NumPy arrays by name"),  # type: ignore[arg-type]
        (
            ClientReport(7, {"w": np.zeros(2)}, 10, evidence=[1.0]),  # type: ignore[arg-type]
            "the evidence of client 7 is a list: give numbers by name",
        ),
    ],
)
def test_reports_that_are_none(report: Any, message: str) -> None:
    with pytest.raises(FedcrfError, match=message):
        FedAvg().aggregate({}, {"w": np.zeros(2)}, [report])


@every_rule
def test_a_memory_is_arrays_by_name(rule: Rule) -> None:
    before, reports = round_ = sample(5)
    rule = round_.served(rule)
    for none in ([1.0], 3):
        with pytest.raises(FedcrfError, match=f"the memory is a {type(none).__name__}: give the"):
            rule.aggregate(none, before, reports)  # type: ignore[arg-type]
    fresh = rule.aggregate({}, before, reports)
    assert_same(rule.aggregate(None, before, reports).state, fresh.state, 0)  # type: ignore[arg-type]
