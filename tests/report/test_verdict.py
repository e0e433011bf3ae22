"""A verdict says since when a client is distrusted, and what spoke most against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from experiments.runs import record
from fedcrf.report.effects import Effects, Verdict, last_verdicts, verdicts_of
from fedcrf.report.explanation import (
    ClientCauses,
    causes_of,
    round_line,
    since_when,
    verdict_line,
    weight_lines,
)
from fedcrf.rules import RULES
from report.test_explanation import honest, one_round, spoilt

EVEN = 0.5
OTHERS = "and others"


def verdicts(
    weights: Sequence[float | None],
    factors: Sequence[dict[str, float]] | None = None,
    excluded: Sequence[int] = (),
) -> list[Verdict]:
    """Return the verdicts on a client whose weight beside FedAvg's half is given round by round.

    None is a round in which it takes no part.
    """
    factors = factors or [{}] * len(weights)
    records, effects = [], []
    for number, (weight, seen) in enumerate(zip(weights, factors, strict=True), 1):
        clients = [7, 8] if weight is not None else [8, 9]
        own = EVEN if weight is None else weight
        each = record(number, 1.0).model_copy(
            update={
                "clients": clients,
                "weight": [own, 1 - own],
                "base_weight": [EVEN, EVEN],
                "excluded": [7] if number in excluded else [],
            }
        )
        records.append(each)
        factors = {name: [value, 1.0] for name, value in seen.items()}
        effects.append(Effects(values={"trust": [1.0, 1.0]}, factors=factors))
    told = zip(records, verdicts_of(records, effects), strict=True)
    return [verdict for each, (verdict, _) in told if 7 in each.clients]


def test_a_verdict_begins_with_the_first_round_in_a_row() -> None:
    weights = [0.5, 0.1, 0.3, 0.05, None, 0.02, 0.6]
    found = [(each.kind, each.since) for each in verdicts(weights)]
    assert found == [
        ("trusted", 1), ("distrusted", 2), ("doubted", 3), ("distrusted", 4), ("distrusted", 4),
        ("trusted", 7),
    ]  # fmt: skip


def test_a_client_is_excluded_since_its_update_is_not_finite() -> None:
    found = verdicts([0.1, 0.0, 0.0, 0.1, 0.5], excluded=[2, 3])
    assert [(each.kind, each.since) for each in found] == [
        ("distrusted", 1), ("excluded", 2), ("excluded", 2), ("distrusted", 1), ("trusted", 5),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("factors", "reason"),
    [
        (
            [{"norm": 0.5, "curvature_response": 0.4}, {"norm": 0.9, "curvature_response": 0.4}],
            "curvature_response",
        ),
        (
            [{"norm": 0.3, "curvature_response": 0.4}, {"norm": 0.9, "curvature_response": 0.5}],
            "curvature_response",
        ),
        (
            [{"norm": 0.1, "curvature_response": 0.4}, {"norm": 0.9, "curvature_response": 0.5}],
            "norm",
        ),
        # What is remembered has its own reason in earlier rounds.
        ([{"norm": 0.9, "remembered": 1.0}, {"norm": 1.0, "remembered": 0.1}], "norm"),
        ([{"norm": 1.0, "remembered": 1.0}, {"norm": 1.0, "remembered": 0.1}], "remembered"),
        (
            [{"norm": 1.0, "curvature_response": 1.2}, {"norm": 0.99, "curvature_response": 1.0}],
            None,
        ),
        # Clipping takes nothing from a weight.
        ([{"norm": 0.9, "clip": 0.1}] * 2, "norm"),
        ([{"norm": float("nan"), "curvature_response": 0.4}] * 2, "curvature_response"),
    ],
)
def test_the_main_reason_is_that_of_all_rounds_of_the_verdict(
    factors: list[dict[str, float]], reason: str | None
) -> None:
    before = {"opposition": 1e-3}  # of a round before the client was trusted again
    found = verdicts([0.1, 0.5, 0.1, 0.1], [before, {}, *factors])
    assert found[0].reason == "opposition"
    assert found[-1][:3] == ("distrusted", 3, reason)


def test_what_is_remembered_comes_with_its_own_reason() -> None:
    factors = [{"opposition": 0.1}, {"norm": 0.5}, {"remembered": 0.3}, {"remembered": 0.3}]
    found = verdicts([0.1, 0.1, 0.3, 0.3], factors)
    assert found[1] == Verdict("distrusted", 1, "opposition")
    assert found[3] == Verdict("doubted", 3, "remembered", ("norm", 2))
    told = verdict_line(ClientCauses(3, 10, weight=0.3, base_weight=0.5), found[3], 4)
    assert told.endswith(
        "it was little trusted in earlier rounds (remembered trust); the last cause of that on "
        "record, in round 2: its update is larger than its examples explain (excess length)"
    )
    assert verdicts([0.1], [{"remembered": 0.3}]) == [Verdict("distrusted", 1, "remembered")]


def test_the_papers_reason_is_what_lowers_the_reliability_most() -> None:
    updates = honest()
    updates[2] *= -1
    made, rule = one_round(updates)
    found = last_verdicts([made], rule)
    assert found[2].reason in ("cosine", "distance")
    told = verdict_line(causes_of(made, rule)[2], found[2], made.round)
    assert told.startswith("client 6: doubted since round 4. Main reason: its update ")


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("trusted", "none of 6 clients is distrusted; 1 excluded: client 3 since round 4"),
        (
            "distrusted",
            "1 of 6 clients is distrusted: client 0 since round 2; "
            "1 excluded: client 3 since round 4",
        ),
    ],
)
def test_a_round_is_told_in_one_line(first: Any, said: str) -> None:
    made, rule = one_round(spoilt())
    _, *others = last_verdicts([made], rule)
    assert round_line(made, [Verdict(first, 2), *others]) == said


@pytest.mark.parametrize(
    ("first", "named"),
    [
        ({}, []),
        ({2: 5}, ["client 2 since round 5"]),
        ({0: 4, "Davos": 1, 3: 4}, ["client Davos since round 1", "clients 0, 3 since round 4"]),
        (
            {0: 4, 1: 4, 2: 1, 3: 4},
            ["client 2 since round 1", "clients 0, 1 since round 4", OTHERS],
        ),
    ],
)
def test_clients_are_told_from_rounds_and_counts(
    first: dict[int | str, int], named: list[str]
) -> None:
    assert since_when(first, 3) == named


@pytest.mark.parametrize(
    ("updates", "rule", "client", "told"),
    [
        (
            spoilt(),
            None,
            1,
            "client 3: excluded since round 4. Main reason: its update is no",
        ),
        (
            1e200 * spoilt(),
            None,
            2,
            "client 6: excluded since round 4. Main reason: its update is",
        ),
        (honest(), RULES["fedavg"](), 0, "client 0: not judged"),
        (honest(), RULES["trimmed-mean"](), 0, "client 0: not weighed"),
        (honest(1), None, 0, "client 0: trusted"),
    ],
)
def test_every_verdict_has_its_words(updates: object, rule: object, client: int, told: str) -> None:
    made, by = one_round(updates, rule)
    causes = causes_of(made, by)[client]
    verdict = last_verdicts([made], by)[client]
    assert verdict_line(causes, verdict, made.round).startswith(told)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "curvature_response",
            "it keeps pushing in one direction whatever the model does (curvature ",
        ),
        ("reported residual_loss", "its model does not fit its own examples, even after training "),
        ("reported train_loss", "it reports a high train loss (reported evidence)"),
        ("mood", "mood, as its rule calls it"),
    ],
)
def test_every_reason_has_its_words(reason: str, words: str) -> None:
    causes = ClientCauses(3, 10, weight=0.0, base_weight=0.1, attacks=True)
    told = verdict_line(causes, Verdict("distrusted", 4, reason), 4)
    assert told.startswith(f"client 3 (attacks): distrusted since round 4. Main reason: {words}")


@pytest.mark.parametrize(
    ("kind", "now", "said"),
    [
        ("distrusted", 4, "distrusted since round 4. Main reason: it "),
        ("distrusted", 5, "distrusted since round 4. Main reason in these rounds: it "),
        ("doubted", 9, "doubted since round 4. Main reason in these rounds: it "),
        # What is wrong with an update is of this round alone.
        ("excluded", 9, "excluded since round 4. Main reason: its update is no model"),
    ],
)
def test_a_reason_over_several_rounds_says_so(kind: Any, now: int, said: str) -> None:
    causes = ClientCauses(3, 10, weight=0.0, base_weight=0.1, excluded=kind == "excluded")
    told = verdict_line(causes, Verdict(kind, 4, "opposition"), now)
    assert told.startswith(f"client 3: {said}")


@pytest.mark.parametrize(
    ("factor", "now", "said"), [(1.0, 5, True), (0.5, 5, False), (1.0, 4, False)]
)
def test_a_reason_of_earlier_rounds_alone_says_so(factor: float, now: int, said: bool) -> None:
    effects = Effects(factors={"opposition": [factor]})
    causes = ClientCauses(3, 10, weight=0.0, base_weight=0.1, effects=effects)
    told = verdict_line(causes, Verdict("distrusted", 4, "opposition"), now)
    assert told.endswith("(opposition), which had no effect in the last of them") == said


def test_of_nobody_distrusted_it_is_said() -> None:
    made, rule = one_round(honest())
    assert round_line(made, last_verdicts([made], rule)) == "none of 6 clients is distrusted"
    made, rule = one_round(honest(), RULES["fedavg"]())
    assert round_line(made, last_verdicts([made], rule)) == "nobody is judged in this round"
    assert weight_lines(causes_of(made, rule)[0])[1] == "no reasons are recorded"
