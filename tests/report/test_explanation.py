"""A weight is explained by its record, in true words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from experiments.runs import small_spec
from fedcrf.crf import ClientCRF
from fedcrf.crf.potentials import SCORE_TERMS, reliability
from fedcrf.errors import FedcrfError
from fedcrf.experiments.store import Course
from fedcrf.report.explanation import (
    WORDS,
    ClientCauses,
    _signed,
    causes_of,
    causes_table,
    find_cell,
    find_client,
    find_round,
    most_changed,
)
from fedcrf.rules import CRF, RULES, Adam, ClientReport, CRFRobust, Optimized
from fedcrf.simulation.records import (
    ClientMetrics,
    Metrics,
    RoundRecord,
    Seconds,
    decided,
    reasons_of,
)
from report.sentences import page_table, sentence

NAN = math.nan
NOBODY = (0.0, 1e-30)
"""Labels of which all expected ones are numerically zero."""


def one_round(updates: Any, rule: Any = None, counts: Any = None) -> tuple[RoundRecord, Any]:
    """Return the record of a real round: these updates, aggregated by this rule."""
    updates = np.asarray(updates, dtype=np.float64)
    rule = rule or CRF()
    counts = counts or [10] * len(updates)
    reports = [
        ClientReport(client=3 * i, state={"w": update}, num_examples=count)
        for i, (update, count) in enumerate(zip(updates, counts, strict=True))
    ]
    result = rule.aggregate({}, {"w": np.zeros(updates.shape[1])}, reports)
    record = RoundRecord(
        round=4,
        training_loss=0.5,
        validation=Metrics(loss=0.5, accuracy=0.5),
        test=ClientMetrics(loss=0.5, accuracy=0.5, client_mean=0.5, worst_client=0.5),
        clients=[report.client for report in reports],
        num_examples=counts,
        client_training_loss=[0.5] * len(reports),
        weight=result.weights.tolist(),
        base_weight=result.base_weights.tolist(),
        excluded=[r.client for r, out in zip(reports, result.excluded, strict=True) if out],
        overflowed=decided(reports, [report.client for report in reports], result)["overflowed"],
        kept_model=not result.weights.any(),
        kept_reason=result.kept_reason,
        reasons=reasons_of(result),
        seconds=Seconds(training=1, aggregation=1, evaluation=1),
    )
    return record, rule


def honest(m: int = 6, d: int = 400) -> np.ndarray:
    return np.random.default_rng(0).normal(1.0, 0.5, size=(m, d))


def test_the_terms_make_the_reliability() -> None:
    record, rule = one_round(honest())
    for each in causes_of(record, rule):
        score = sum(factor * each.seen(cause) for cause, factor in SCORE_TERMS.items())
        assert 1 / (1 + math.exp(-score)) == pytest.approx(each.seen("reliability"), rel=1e-4)
    assert reliability(np.array([0.3]), np.array([2.0]), np.array([1.5])) == pytest.approx(
        1 / (1 + math.exp(-(2 * 0.3 - 2.0 - 0.5 * 1.5)))
    )


def test_causes_are_the_posteriors() -> None:
    updates = honest()
    record, rule = one_round(updates)
    posterior = ClientCRF().infer(updates, [10] * 6)
    alone = ClientCRF(pairwise_strength=0.0).infer(updates, [10] * 6)
    for i, each in enumerate(causes_of(record, rule)):
        assert each.client == 3 * i
        assert each.weight == pytest.approx(posterior.weights[i])
        assert each.multiple == pytest.approx(6 * posterior.weights[i])
        assert each.seen("trust") == pytest.approx(posterior.expected_label[i], rel=1e-5)
        # Without coupling, mean field stays at each client's own potential.
        assert each.seen("own_trust") == pytest.approx(alone.expected_label[i], rel=1e-4)
        nearest = [client // 3 for client, _ in each.neighbours]
        assert sorted(nearest) == [j for j in range(6) if j != i]
        affinities = [posterior.affinity[i, j] for j in nearest]
        assert affinities == sorted(affinities, reverse=True)
        assert [value for _, value in each.neighbours] == pytest.approx(affinities, rel=1e-5)


def test_a_client_that_points_the_other_way_is_told_so() -> None:
    updates = honest()
    updates[2] *= -1
    record, rule = one_round(updates)
    told = sentence(find_client(causes_of(record, rule), 6, 4))
    assert told.startswith("client 6: weight 0.")
    assert "instead of FedAvg's 0.167" in told
    assert "points away from the others (cosine −0." in told
    assert "very far away" in told


def spoilt() -> np.ndarray:
    updates = honest()
    updates[1, 0] = NAN
    return updates


@pytest.mark.parametrize(
    ("updates", "rule", "client", "words"),
    [
        (spoilt(), None, 1, "client 3: weight 0; its update is not finite"),
        (np.full((3, 5), NAN), None, 0, "client 0: weight 0; its update is not finite"),
        (1e200 * spoilt(), None, 1, "client 3: weight 0; its update is not finite"),
        (1e200 * spoilt(), None, 2, "client 6: weight 0; its update is finite, but its squared"),
        (1e200 * spoilt(), CRFRobust(), 2, "client 6: weight 0; its update is finite, but its"),
        (honest(), RULES["trimmed-mean"](), 0, "client 0: no weight of its own"),
        (honest(), RULES["fedavg"](), 5, "client 15: weight 0.167, FedAvg's is 0.167; no reasons"),
        (honest(), CRF(labels=(0.0, 1e-30)), 0, "client 0: weight 0.167, its base weight; the"),
        (honest(1), None, 0, "client 0: weight 1.000 instead of FedAvg's 1.000; points the way"),
        (np.ones((3, 4)) + np.eye(3, 4), None, 0, "usual length (0.0 deviations"),
    ],
)
def test_every_case_has_its_words(updates: Any, rule: Any, client: int, words: str) -> None:
    record, rule = one_round(updates, rule)
    told = sentence(causes_of(record, rule)[client])
    assert words in told
    assert "{" not in told
    assert "nan" not in told


@pytest.mark.parametrize(
    ("rule", "weight"),
    [
        (CRF(labels=NOBODY), 50 / 55),
        (CRF(labels=NOBODY, weight_by_examples=False), 1 / 6),
    ],
)
def test_what_a_weight_falls_back_on_is_not_always_the_share_of_examples(
    rule: Any, weight: float
) -> None:
    counts = [1, 1, 1, 1, 1, 50]
    record, _ = one_round(np.random.default_rng(0).normal(size=(6, 4000)), rule, counts)
    told = sentence(causes_of(record, rule)[5])
    assert told == (
        f"client 15: weight {weight:.3f}, its base weight; the trust in all clients was zero"
    )


@pytest.mark.parametrize(
    ("kind", "cause"), [(k, c) for k in ("causes", "phrases") for c in WORDS[k]]
)
def test_words_cover_every_value(kind: str, cause: str) -> None:
    choices = WORDS[kind][cause]
    if isinstance(choices, str):
        return
    bounds = [bound for bound, _ in choices]
    assert bounds == sorted(bounds)
    assert bounds[-1] == math.inf
    assert all(("{}" if kind == "causes" else "{value}") in words for _, words in choices)


def test_tables_leave_out_what_is_not_known() -> None:
    record, rule = one_round(honest(), RULES["fedavg"]())
    causes = causes_of(record, rule)
    header, *_ = page_table(causes)
    assert header == ["client", "examples", "weight", "FedAvg's", "multiple"]
    assert causes_table(causes[0]).rows == ()
    record, rule = one_round(spoilt())
    row = page_table(causes_of(record, rule))[2]
    assert row[2:] == ["0.000", "0.000", "–", "0.000", "–", "–", "–", *row[-2:]]


@pytest.mark.parametrize(
    ("value", "written"),
    [(9998.0, "+9998.00"), (1e300, "over 9999"), (-9998.0, "−9998.00"), (-1e300, "under −9999")],
)
def test_a_huge_number_of_either_sign_is_no_row_of_digits(value: float, written: str) -> None:
    assert _signed(value) == written
    assert _signed(NAN) == "–"


def test_few_sentences_and_the_telling_ones() -> None:
    causes = [ClientCauses(i, 1, weight=0.01, base_weight=0.01) for i in range(100)]
    causes[70] = ClientCauses(70, 1, weight=0.001, base_weight=0.01)
    causes[71] = ClientCauses(71, 1, weight=0.0, base_weight=0.01)
    chosen = most_changed(causes)
    assert len(chosen) == 10
    assert {70, 71} <= {each.client for each in chosen}
    assert most_changed(causes[:5]) == causes[:5]


def told_of(records: Any, damage: str | None = None) -> Course:
    return Course("x", records, CRF(), damage=damage)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (lambda: find_round(told_of([]), 1), "x has no rounds yet"),
        (
            lambda: find_round(told_of([one_round(honest())[0]]), 9),
            "no round 9: choose from 4 to 4",
        ),
        (lambda: find_round(told_of([one_round(honest())[0]], "torn"), 9), r"from 4 to 4 \(torn\)"),
        (lambda: find_client(causes_of(*one_round(honest())), 1, 4), "choose from 0, 3, 6"),
        (lambda: find_client([], 1, 4), "^client 1 took no part in round 4$"),
        (lambda: find_cell(small_spec(), "krum", None), "unknown method of this run 'krum'"),
        (lambda: find_cell(small_spec(), None, 7), "no seed 7: choose from 0, 1"),
    ],
)
def test_what_is_not_there_is_named(asked: Any, named: str) -> None:
    with pytest.raises(FedcrfError, match=named):
        asked()


def test_the_cell_by_default_is_one_that_infers() -> None:
    assert find_cell(small_spec(), None, None).name == "crf-fedavg-seed-0"
    assert find_cell(small_spec(), "fedavg", 1).name == "fedavg-seed-1"
    assert find_cell(small_spec(), "CRF-FedAvg", 1).name == "crf-fedavg-seed-1"
    assert find_cell(small_spec(methods=["krum"]), None, None).name == "krum-seed-0"
    for name in ("crf-robust", "crf-evidence+adam"):
        spec = small_spec(methods=["fedavg", name])
        assert find_cell(spec, None, None).name == f"{name}-seed-0"


def test_weights_behind_a_server_optimizer_are_explained_by_its_rule() -> None:
    record, rule = one_round(honest())
    plain = [each.seen("own_trust") for each in causes_of(record, rule)]
    assert [each.seen("own_trust") for each in causes_of(record, Optimized(rule, Adam()))] == plain
