"""A round's record survives its line of JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedcrf.rules import CRF, ClientReport, CRFEvidence, CRFRobust, FedAvg
from fedcrf.rules.crf import LARGEST_AFFINITY
from fedcrf.simulation.records import (
    ClientMetrics,
    ExcludedNode,
    Metrics,
    Reasons,
    RoundRecord,
    Seconds,
    brief,
    decided,
    in_order,
    reasons_of,
)

NAN = math.nan


def record(**changes: Any) -> RoundRecord:
    fields: dict[str, Any] = {
        "round": 3,
        "training_loss": 0.5,
        "validation": Metrics(loss=0.25, accuracy=0.9),
        "test": ClientMetrics(loss=0.3, accuracy=0.8, client_mean=0.7, worst_client=0.1),
        "held_out": Metrics(loss=0.2, accuracy=0.6),
        "clients": [0, 2],
        "num_examples": [10, 20],
        "client_training_loss": [0.5, 0.6],
        "weight": [0.4, 0.6],
        "base_weight": [1 / 3, 2 / 3],
        "reasons": Reasons(
            reliability=[0.5, 0.6],
            cosine=[0.1, -1.0],
            distance=[1e-9, 2.0],
            norm_anomaly=[0.0, 1e12],
            trust=[0.2, 0.9],
            affinity=[[0.3]],
        ),
        "seconds": Seconds(training=0.1, aggregation=0.01, evaluation=0.05),
    }
    return RoundRecord(**(fields | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"held_out": None},
        {"clients": ["north", 2], "excluded": ["north"], "attackers": [2]},
        {"reasons": None},
        {"evidence": {"residual_loss": [0.25, NAN], "other": [1.0, 2.0]}},
        {"excluded": [0, 2], "overflowed": [2], "weight": [0.0, 0.0]},
        {"excluded": [2], "weight": [1.0, 0.0], "client_training_loss": [0.5, NAN]},
        {
            "training_loss": NAN,
            "validation": Metrics(loss=NAN, accuracy=0.1),
            "held_out": Metrics(loss=NAN, accuracy=NAN),
            "kept_model": True,
            "kept_reason": "no client's update is finite",
        },
        {
            "reasons": Reasons(
                reliability=[1e-12, 0.5],
                cosine=[NAN, 0.5],
                distance=[NAN, 0.5],
                norm_anomaly=[NAN, 0.5],
                trust=[0.125, 0.5],
                affinity=None,
                fell_back=True,
            )
        },
    ],
    ids=[
        "whole",
        "no held-out",
        "names",
        "no reasons",
        "evidence",
        "overflowed",
        "excluded",
        "NaN",
        "reasons of NaN",
    ],
)
def test_round_trip(changes: dict[str, Any]) -> None:
    before = record(**changes)
    line = before.model_dump_json(exclude_none=True)  # as the store writes it
    assert "\n" not in line
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    after = RoundRecord.model_validate_json(line)
    # NaN is unequal to itself; the text of it is not.
    assert repr(after) == repr(before)
    assert after.model_dump_json(exclude_none=True) == line


def test_clients_come_once_numbers_first() -> None:
    assert in_order([10, "south", 2, 10, "north"]) == [2, 10, "north", "south"]


@pytest.mark.parametrize(
    "damage",
    [
        {"round": "three"},
        {"evidence": {"residual_loss": [0.5]}},
        {"validation": None},
        {"surprise": 1},
        {"weight": "all"},
    ],
)
def test_what_is_no_record_is_refused(damage: dict[str, Any]) -> None:
    content = json.loads(record().model_dump_json()) | damage
    with pytest.raises(ValidationError):
        RoundRecord.model_validate_json(json.dumps(content))


def test_six_significant_digits() -> None:
    assert brief([1 / 3, 123456789.0, 1e-9 / 3]) == [0.333333, 123457000.0, 3.33333e-10]
    assert math.isnan(brief([NAN])[0])


@pytest.mark.parametrize("m", [1, 3, LARGEST_AFFINITY, LARGEST_AFFINITY + 1])
def test_reasons_are_the_posterior_s(m: int) -> None:
    rng = np.random.default_rng(0)
    reports = [ClientReport(client, {"w": rng.standard_normal(4)}, 5) for client in range(m)]
    result = CRF().aggregate({}, {"w": np.zeros(4)}, reports)
    reasons, posterior = reasons_of(result), result.posterior
    assert reasons is not None
    assert posterior is not None
    for name in ("reliability", "cosine", "distance", "norm_anomaly", "trust"):
        np.testing.assert_allclose(getattr(reasons, name), getattr(posterior, name), rtol=1e-5)
    if m > LARGEST_AFFINITY:
        assert reasons.affinity is None
    else:
        assert reasons.affinity is not None
        assert [len(row) for row in reasons.affinity] == list(range(m - 1, 0, -1))
        for i, row in enumerate(reasons.affinity):
            np.testing.assert_allclose(row, posterior.affinity[i, i + 1 :], rtol=1e-5)


def test_evidence_is_what_the_clients_reported_of_themselves() -> None:
    def report(client: int, **evidence: float) -> ClientReport:
        return ClientReport(client, {"w": np.ones(2)}, 5, evidence=evidence)

    def recorded(*reports: ClientReport) -> Any:
        return decided(reports, [each.client for each in reports], None)["evidence"]

    assert recorded(report(0), report(1)) is None
    found = recorded(report(0, a=1 / 3, b=1), report(4, a=math.inf), report(2, b=NAN))
    assert repr(found) == "{'a': [0.333333, inf, nan], 'b': [1.0, nan, nan]}"


def test_a_record_says_nothing_of_what_there_is_none_of() -> None:
    # As lines were before there was any.
    line = json.loads(record().model_dump_json(exclude_none=True))
    assert not {"evidence", "overflowed", "kept_reason"} & set(line)
    assert RoundRecord.model_validate(line | {"kept_model": True}).kept_reason is None


@pytest.mark.parametrize("rule", [CRFRobust(), CRFEvidence()])
def test_the_causes_of_other_fields_are_kept_by_name(rule: Any) -> None:
    rng = np.random.default_rng(0)
    reports = [
        ClientReport(
            client, {"w": rng.standard_normal(5)}, 1 + client, evidence={"residual_loss": client}
        )
        for client in range(4)
    ]
    reports[1].state["w"][0] = NAN
    result = rule.aggregate({}, {"w": np.zeros(5)}, reports)
    reasons = reasons_of(result)
    assert reasons is not None
    assert reasons.reliability == []
    np.testing.assert_allclose(reasons.trust, result.posterior.expected_label, rtol=1e-5)
    assert set(reasons.causes) == set(result.posterior.causes)
    for name, values in result.posterior.causes.items():
        np.testing.assert_allclose(reasons.causes[name], values, rtol=1e-5, err_msg=name)
    again = Reasons.model_validate_json(reasons.model_dump_json())
    assert again.model_dump_json() == reasons.model_dump_json()


def test_a_rule_without_inference_has_no_reasons() -> None:
    reports = [ClientReport(0, {"w": np.ones(2)}, 5)]
    assert reasons_of(FedAvg().aggregate({}, {"w": np.zeros(2)}, reports)) is None


@pytest.mark.parametrize("excluded", [False, True])
def test_few_neighbours_take_little_room_and_are_told_whole(excluded: bool) -> None:
    rng, m = np.random.default_rng(0), LARGEST_AFFINITY
    reports = [ClientReport(client, {"w": rng.standard_normal(30)}, 5) for client in range(m)]
    if excluded:
        reports[3].state["w"][0] = NAN
    result = CRF(neighbours=4).aggregate({}, {"w": np.zeros(30)}, reports)
    reasons, posterior = reasons_of(result), result.posterior
    assert reasons is not None
    assert reasons.affinity is not None
    assert sum(len(row) for row in reasons.affinity) == posterior.affinity.nnz / 2
    again = Reasons.model_validate_json(reasons.model_dump_json(exclude_none=True))
    assert again == reasons or excluded  # NaN is unequal to itself
    whole = posterior.affinity.toarray()
    for i, row in enumerate(again.affinities or []):
        np.testing.assert_allclose(row, whole[i, i + 1 :], rtol=1e-5)
    dense = reasons_of(CRF().aggregate({}, {"w": np.zeros(30)}, reports))
    assert dense is not None
    assert dense.affinity_columns is None
    assert dense.affinities == dense.affinity  # as all records were before


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([[0.5]], [[2]]),
        ([[0.5]], [[0]]),
        ([[0.5, 0.5]], [[1]]),
        ([[0.5, 0.5]], [[1, 1]]),
        ([], []),
        (None, [[1]]),
    ],
)
def test_affinities_in_columns_that_there_are_not_are_refused(rows: Any, columns: Any) -> None:
    content = json.loads(record().model_dump_json())
    content["reasons"] |= {"affinity": rows, "affinity_columns": columns}
    with pytest.raises(ValidationError, match="affinity is not of"):
        RoundRecord.model_validate_json(json.dumps(content))


def test_names_of_earlier_versions_are_read_and_not_written() -> None:
    now = Reasons(
        trust=[0.5], causes={"curvature_response": [1.0], "update_consistency": [2.0], "norm": [3]}
    )
    text = now.model_dump_json()
    assert "expected_label" not in text
    earlier = text.replace("trust", "expected_label").replace("curvature_response", "response")
    earlier = earlier.replace("update_consistency", "steadiness")
    assert Reasons.model_validate_json(earlier) == now
    assert Reasons.model_validate_json(text) == now
    lost = {"node": 3, "reason": "did not answer"}
    whole = record().model_copy(update={"excluded_nodes": [ExcludedNode.model_validate(lost)]})
    text = whole.model_dump_json()
    assert "left_out" not in text
    assert RoundRecord.model_validate_json(text) == whole
    assert RoundRecord.model_validate_json(text.replace("excluded_nodes", "left_out")) == whole
