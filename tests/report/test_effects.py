"""What each cause made of a weight: held against integrals over whole marginals, and in words."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcrf.crf import Energy, Field, LinearPart, Observation, Posterior, RobustCRF
from fedcrf.report.effects import LEAST, Effects, effects_of
from fedcrf.report.explanation import (
    causes_of,
    causes_table,
    columns_of,
    find_rounds,
    phrases,
)
from fedcrf.rules import RULES, Adam, ClientReport, CRFRobustEvidence, Optimized
from fedcrf.simulation.records import Reasons, RoundRecord, reasons_of
from integration.command_line import CommandLine
from report.sentences import columns_explained, page_table, sentence
from report.test_explanation import one_round

NAN = math.nan
ATTACKERS = (2, 5)
ROBUST = RULES["crf-robust-evidence"]()
PARTS = {  # what the equations of the parts multiply with the label
    "curvature_response": ("unresponsive", 10.0),
    "update_consistency": ("inconsistent", 10.0),
    "goal_distance": ("distant", 8.0),
    "camp_fit": ("minority", 8.0),
    "opposition": ("opposed", 2 * 2.0),
    "norm": ("norm", 8.0),
}

OF_UPDATES = ("clip", "counted", "copies")
"""Causes whose factors are not the expected label's."""


def rounds(
    rule: Any = ROBUST, number: int = 4, loud: float = 1.0
) -> list[tuple[RoundRecord, Posterior, Any]]:
    """Return records of real rounds under attack, with the posteriors and the memories before."""
    rng = np.random.default_rng(3)
    goals = 1.0 + rng.normal(size=(8, 300))
    losses = [0.1, 0.2, 0.0, 0.1, 2.0, 0.1, NAN, 0.1]
    model, memory, found = np.zeros(300), {}, []
    for count in range(1, number + 1):
        updates = 0.3 * (goals - model)
        others = [i for i in range(8) if i not in ATTACKERS]
        updates[list(ATTACKERS)] = -1.5 * updates[others].mean(axis=0)
        updates[0] *= loud
        reports = [
            ClientReport(i, {"w": model + update}, 10 + i, evidence={"residual_loss": loss})
            for i, (update, loss) in enumerate(zip(updates, losses, strict=True))
        ]
        result = rule.aggregate(memory, {"w": model}, reports)
        record, _ = one_round(updates)
        assert isinstance(result.posterior, Posterior)
        found.append((of(record, count, result), result.posterior, memory))
        model, memory = np.asarray(result.state["w"]), result.memory
    return found


def of(record: RoundRecord, number: int, result: Any) -> RoundRecord:
    return record.model_copy(
        update={
            "round": number,
            "clients": list(range(len(result.weights))),
            "weight": result.weights.tolist(),
            "base_weight": result.base_weights.tolist(),
            "reasons": reasons_of(result),
        }
    )


def unknown_prior() -> np.ndarray:
    prior = np.array([math.exp(2.0 * label) for label in ROBUST.labels])
    return prior / prior.sum()


def expected(prior: np.ndarray, energies: Any) -> float:
    """The expected label under a prior and energies q·E, by loops."""
    mass = [
        p * math.exp(-label * sum(energies)) for p, label in zip(prior, ROBUST.labels, strict=True)
    ]
    return sum(m * label for m, label in zip(mass, ROBUST.labels, strict=True)) / sum(mass)


@pytest.mark.parametrize("loud", [1.0, 8.0])
def test_factors_are_the_integrals_of_the_evidence(loud: float) -> None:
    """Along the path from no evidence to all of it, by the midpoint rule and differences."""
    steps, nudge, checked = 400, 1e-5, 0
    for record, posterior, memory in rounds(loud=loud):
        effects = effects_of(record, ROBUST)
        for i in range(8):
            prior = unknown_prior()
            if memory:
                before = memory["beliefs"][i]
                stay = 0.9 ** (1.0 / posterior.causes["window"][i])
                prior = stay * before + (1.0 - stay) * prior
            start = expected(unknown_prior(), [0.0])
            assert effects.factors["remembered"][i] == pytest.approx(
                expected(prior, [0.0]) / start, rel=1e-4
            )
            energies = [
                strength * float(np.nan_to_num(posterior.causes[evidence][i]))
                if evidence in posterior.causes
                else 0.0
                for evidence, strength in PARTS.values()
            ]
            for part, cause in enumerate(PARTS):
                gained = 0.0
                for step in range(steps):
                    here = [(step + 0.5) / steps * energy for energy in energies]
                    more, less = here.copy(), here.copy()
                    more[part] += nudge
                    less[part] -= nudge
                    slope = math.log(expected(prior, more)) - math.log(expected(prior, less))
                    gained += slope / (2 * nudge) * energies[part] / steps
                if cause in effects.factors:
                    assert effects.factors[cause][i] == pytest.approx(math.exp(gained), rel=2e-3)
                    checked += energies[part] > 0
    assert checked > 10, "there was evidence to check"


def test_a_record_without_a_cause_is_told_as_far_as_it_goes() -> None:
    record, *_ = rounds()[-1]
    assert record.reasons is not None
    causes = record.reasons.causes
    assert set(effects_of(record, ROBUST).factors["remembered"]) != {1.0}
    for lost in causes:
        rest = {name: values for name, values in causes.items() if name != lost}
        reasons = record.reasons.model_copy(update={"causes": rest})
        effects = effects_of(record.model_copy(update={"reasons": reasons}), ROBUST)
        assert effects.values.keys() == {"trust", *rest}
        assert (set(effects.factors["remembered"]) == {1.0}) == (lost == "remembered")


def test_all_factors_multiply_to_the_expected_label() -> None:
    start = expected(unknown_prior(), [0.0])
    for record, posterior, _ in rounds(loud=8.0):
        factors = effects_of(record, ROBUST).factors
        for i, label in enumerate(posterior.expected_label):
            of_label = [each[i] for name, each in factors.items() if name not in OF_UPDATES]
            assert math.prod(of_label) == pytest.approx(label / start, rel=1e-4)


def test_a_count_counts_as_three_medians_where_nobody_responds_yet() -> None:
    rule = RULES["crf-robust"]()
    updates = np.random.default_rng(0).normal(1.0, 0.5, size=(5, 200))
    record, _ = one_round(updates, rule, counts=[10, 10, 10, 20, 900])
    effects = effects_of(record, rule)
    assert effects.factors["counted"] == pytest.approx([1.0] * 4 + [3 * 10 / 900])
    told = sentence(causes_of(record, rule)[4])
    assert "only 3.3 % of the examples it claims count" in told
    assert_factors_make_the_weights(record, effects)


def assert_factors_make_the_weights(record: RoundRecord, effects: Effects) -> None:
    """Together the factors make the weights out of the examples."""
    raw = [
        base * math.prod(each[i] for name, each in effects.factors.items() if name != "clip")
        for i, base in enumerate(record.base_weight)
    ]
    assert np.array(raw) / sum(raw) == pytest.approx(record.weight, rel=1e-4)


def test_what_is_told_is_what_lowered_most_first() -> None:
    for record, _, _ in rounds(loud=8.0):
        effects = effects_of(record, ROBUST)
        for i, told in enumerate(effects.named):
            lowering = [name for name in told if name in effects.factors]
            factors = [effects.factors[name][i] for name in lowering]
            assert factors == sorted(factors)
            assert set(lowering) == {
                name for name, each in effects.factors.items() if each[i] <= 1 - LEAST
            }
    for attacker in ATTACKERS:
        assert effects.named[attacker][0] in ("curvature_response", "remembered", "opposition")
        assert "vote" in effects.named[attacker]
    assert effects.named[4] == ["reported residual_loss"]
    assert effects.named[6] == ["missing residual_loss"]
    assert [effects.named[i] for i in (1, 3, 7)] == [[], [], []]


def by_hand(causes: dict[str, list[float]], label: list[float], **changes: Any) -> RoundRecord:
    """Return a record of two clients with these causes; the second has nothing against it."""
    record, _ = one_round(np.ones((2, 3)))
    reasons = Reasons(trust=label, causes=causes, **changes)
    return record.model_copy(
        update={"clients": [7, 8], "weight": [0.2, 0.8], "base_weight": [0.5, 0.5],
                "reasons": reasons}
    )  # fmt: skip


QUIET: dict[str, list[float]] = {
    "norm": [0, 0], "opposition": [0.1, 0.1], "opposed": [0, 0], "vote": [1, 1],
    "curvature_response": [NAN, NAN], "unresponsive": [0, 0],
    "remembered": [NAN, NAN], "clip": [1, 1],
    "update_consistency": [NAN, NAN], "inconsistent": [0, 0],
}  # fmt: skip
TRUSTED = 0.777
MEMORY = 0.9 * 0.05 + 0.1 * TRUSTED


@pytest.mark.parametrize(
    ("rule", "causes", "label", "words"),
    [
        (
            "crf-robust",
            {"curvature_response": [0.41, -0.52], "unresponsive": [0.67, 0.0]},
            0.05 * TRUSTED,
            "its update pushes on in the direction of the model's last step, where honest clients' "
            "push back (response +0.41; median −0.06): × 0.050",
        ),
        (
            "crf-robust",
            {"curvature_response": [0.02, -0.52], "unresponsive": [0.15, 0.0]},
            0.25 * TRUSTED,
            "its update does not respond to the model's last step, where honest clients' push back "
            "(response +0.02; median −0.25): × 0.25",
        ),
        (
            "crf-robust",
            {"curvature_response": [-0.2, -0.8], "unresponsive": [0.05, 0.0]},
            0.9 * TRUSTED,
            "its update pushes back too little against the model's last step (response −0.20; "
            "median −0.50): × 0.90",
        ),
        (
            "crf-robust",
            {
                "update_consistency": [-0.1, 0.7],
                "inconsistent": [0.25, 0.0],
                "curvature_response": [-0.5, -0.5],
            },
            0.3 * TRUSTED,
            "its update turned away from its last one, where honest clients' stay consistent "
            "(cosine −0.10; median +0.30): × 0.30",
        ),
        (
            "crf-robust",
            {
                "update_consistency": [0.0, 0.7],
                "inconsistent": [0.25, 0.0],
                "curvature_response": [-0.5, -0.5],
            },
            0.3 * TRUSTED,
            "its update or its last one is zero: it sent the model back unchanged, where honest "
            "clients' stay consistent (cosine +0.00; median +0.35): × 0.30",
        ),
        (
            "crf-robust",
            {"opposition": [1.25, 0.3], "opposed": [0.65, 0.0]},
            0.5 * TRUSTED,
            "trusted clients oppose it more than the median client (opposition 1.25; median 0.78): "
            "× 0.50",
        ),
        (
            "crf-robust",
            {"norm": [0.7, 0.0]},
            0.02 * TRUSTED,
            "2.0 times as long as its examples and the others' spread explain: × 0.020",
        ),
        (
            "crf-robust",
            {"norm": [2.0, 0.0]},
            1e-7 * TRUSTED,
            "7.4 or more times as long as its examples and the others' spread explain: "
            "× under 0.001",
        ),
        (
            "crf-robust",
            {"remembered": [0.05, TRUSTED]},
            MEMORY,
            f"little trusted in earlier rounds (0.05 remembered): × {MEMORY / TRUSTED:.2f}",
        ),
        (
            "crf-robust",
            {"remembered": [0.6, TRUSTED]},
            0.9 * 0.6 + 0.1 * TRUSTED,
            "less trusted in earlier rounds (0.60 remembered): × 0.79",
        ),
        (  # nobody responds, so that the response is not known: the goal's distance still is
            "crf-robust",
            {"goal_distance": [2.0, -2.0], "distant": [1.0, 0.0]},
            0.5 * TRUSTED,
            "for its length it changes little as the model moves, as if its goal were 7.4 times as "
            "far away as others': × 0.50",
        ),
        (
            "crf-robust",
            {"camp_fit": [-0.25, 0.2], "minority": [0.5, 0.0]},
            0.5 * TRUSTED,
            "clients are two camps that oppose each other, and it is in the lighter one "
            "(fit −0.25): × 0.50",
        ),
        ("crf-robust", {"clip": [0.62, 1.0]}, TRUSTED, "update clipped to 62 % of its length"),
        (
            "crf-robust",
            {"vote": [1 / 3, 1.0]},
            TRUSTED,
            "similar to other updates, so its vote against others counts 0.33",
        ),
        (
            "crf-robust-evidence",
            {"reported residual_loss": [1.4, 0.0]},
            math.exp(-1.4) * TRUSTED,
            "its loss is still high after local training (1.23 deviations above the median): "
            "× 0.25",
        ),
        (
            "crf-evidence",
            {"reported residual_loss": [6.0, 0.0]},
            math.exp(-6.0),
            "its loss is still high after local training (2.00 or more deviations above the "
            "median): × 0.002",
        ),
        (
            "crf-evidence",
            {"reported residual_loss": [NAN, 0.0]},
            1.0,
            "reported no residual loss, which counts neither for nor against it",
        ),
        (
            "crf-evidence",
            {"reported train_loss": [1.0, 0.0]},
            math.exp(-1.0),
            "reports a high train loss (1.17 deviations above the median): × 0.37",
        ),
    ],
)
def test_every_cause_has_its_words(
    rule: str, causes: dict[str, list[float]], label: float, words: str
) -> None:
    made_by = RULES[rule]()
    alone = rule == "crf-evidence"
    if "reported train_loss" in causes:
        made_by = replace(made_by, evidence="train_loss")
    seen = causes if alone else QUIET | causes
    record = by_hand(seen, [label, 1.0 if alone else TRUSTED])
    first, second = causes_of(record, made_by)
    assert phrases(first) == [words]
    assert phrases(second) == []
    assert sentence(first) == (
        f"client 7: weight 0.200 instead of FedAvg's 0.500; {words}; trust {label:.2f}"
    )
    assert "; no evidence against it; " in sentence(second)
    optimized = causes_of(record, Optimized(made_by, Adam()))
    assert [phrases(each) for each in optimized] == [[words], []]


@pytest.mark.parametrize(
    ("response", "consistency", "said"),
    [(NAN, 0.5, True), (-0.5, 0.5, False), (NAN, NAN, False)],
    ids=["nobody responds", "they respond", "all are new"],
)
def test_it_is_said_where_nobody_responds(response: float, consistency: float, said: bool) -> None:
    seen = {"curvature_response": [response] * 2, "update_consistency": [consistency] * 2}
    record = by_hand(QUIET | seen, [TRUSTED] * 2)
    for causes in causes_of(record, ROBUST):
        assert ("the response says nothing in this round: " in sentence(causes)) == said


def test_several_causes_are_told_in_the_order_of_their_effect() -> None:
    causes = QUIET | {
        "norm": [0.1, 0.0], "opposed": [0.5, 0.0], "opposition": [1.0, 0.1], "clip": [0.9, 1.0],
        "reported residual_loss": [0.3, NAN],
    }  # fmt: skip
    record = by_hand(causes, [0.1 * TRUSTED, TRUSTED])
    first, second = causes_of(record, ROBUST)
    starts = ["trusted clients oppose", "1.1 times as", "its loss is", "update clipped"]
    assert [each.startswith(start) for each, start in zip(phrases(first), starts, strict=True)]
    left = 0.1 / math.exp(-0.3)  # energies of 4·0.5 and 8·0.1, so 5/7 and 2/7 of the logarithm
    assert first.factor("opposition") == pytest.approx(left ** (5 / 7), rel=2e-3)
    assert first.factor("norm") == pytest.approx(left ** (2 / 7), rel=2e-3)
    assert phrases(second) == ["reported no residual loss, which counts neither for nor against it"]


@pytest.mark.parametrize(
    ("shares", "rule", "said"),
    [
        ([0.8, 0.2], ROBUST, True),
        ([0.8, 0.2], replace(ROBUST, counts="attested"), False),
        ([0.5, 0.5], ROBUST, False),
        ([0.2, 0.8], ROBUST, False),
    ],
)
def test_who_claims_most_and_is_opposed_may_be_believed(
    shares: list[float], rule: RobustCRF, said: bool
) -> None:
    opposed = QUIET | {"opposition": [1.25, 0.3], "opposed": [0.65, 0.0]}
    record = by_hand(opposed, [0.5 * TRUSTED, TRUSTED])
    first, second = causes_of(record.model_copy(update={"base_weight": shares}), rule)
    assert any('counts = "attested"' in each for each in phrases(first)) == said
    assert phrases(second) == []


@pytest.mark.parametrize(
    ("changes", "weight", "said"),
    [
        ({}, 0.1, True),
        ({}, 0.2, False),  # doubted, not distrusted
        ({"curvature_response": [0.1, -0.5]}, 0.1, False),
        ({"curvature_response": [NAN, NAN]}, 0.1, False),
        ({"unresponsive": [0.1, 0.0]}, 0.1, False),
        ({"inconsistent": [0.1, 0.0]}, 0.1, False),
        ({"reported residual_loss": [1.0, 0.0]}, 0.1, False),
    ],
)
def test_who_is_distrusted_and_trains_may_hold_wrong_labels_or_other_data(
    changes: dict[str, list[float]], weight: float, said: bool
) -> None:
    opposed = {"opposition": [1.25, 0.3], "opposed": [0.65, 0.0]}
    trains = {"curvature_response": [-0.4, -0.5]}
    record = by_hand(QUIET | opposed | trains | changes, [0.05 * TRUSTED, TRUSTED])
    first, second = causes_of(record.model_copy(update={"weight": [weight, 1 - weight]}), ROBUST)
    assert any("wrong, or its data of another kind" in each for each in phrases(first)) == said
    assert phrases(second) == []


@pytest.mark.parametrize(
    ("changes", "rule", "client", "words"),
    [
        ({"excluded": [7]}, ROBUST, 0, "its update is not finite"),
        ({"reasons": {"fell_back": True}}, ROBUST, 0, "the trust in all clients was zero"),
        ({}, None, 0, "the rule is not known, only what it saw"),
        ({}, RULES["fedavg"](), 0, "the rule is not known, only what it saw"),
    ],
)
def test_other_cases_have_their_words(
    changes: dict[str, Any], rule: Any, client: int, words: str
) -> None:
    record = by_hand(QUIET, [0.0, 0.0], **changes.pop("reasons", {}))
    record = record.model_copy(update=changes)
    causes = causes_of(record, rule)
    told = sentence(causes[client])
    assert words in told
    assert "{" not in told
    assert "nan" not in told


@pytest.mark.parametrize(
    ("attacking", "attackers", "name", "cell"),
    [
        ([7], [7], "client 7 (attacks): ", "attacks"),
        ([], [7], "client 7 (an attacker, not in this round): ", "not now"),
        ([8], [8], "client 7: ", ""),
    ],
)
def test_attackers_are_named(
    attacking: list[int], attackers: list[int], name: str, cell: str
) -> None:
    record = by_hand(QUIET, [TRUSTED, TRUSTED]).model_copy(update={"attackers": attacking})
    causes = causes_of(record, ROBUST, attackers)
    assert sentence(causes[0]).startswith(name)
    header, first, _ = page_table(causes)
    assert (header[1], first[1]) == ("attacker", cell)


def test_tables_hold_the_causes() -> None:
    record, posterior, _ = rounds()[-1]
    causes = causes_of(record, ROBUST)
    header, *rows = page_table(causes)
    column = header.index("opposition")
    assert [row[column] for row in rows] == [
        f"{value:.2f}" for value in posterior.causes["opposition"]
    ]
    assert "attacker" not in header
    terms = {row[0]: row for row in causes_table(causes[4]).rows}
    factor = math.exp(-posterior.causes["reported residual_loss"][4])
    assert terms["reported residual loss"][3] == f"× {factor:.3f}"
    assert terms["all but the clipping"][3].startswith("× ")
    assert terms["vote"][3] == ""


def test_a_cause_that_is_not_known_goes_by_its_own_name() -> None:
    record = by_hand({"share of {me}": [1.0, 2.0]}, [0.5, 0.5])
    causes = causes_of(record, None)
    assert page_table(causes)[0][-1] == "share of {me}"
    assert columns_explained(columns_of(causes)).endswith("; share of {me}: as its rule calls it.")
    assert causes_table(causes[0]).rows[0][0] == "share of {me}"


class FewExamples(LinearPart):
    """Evidence of a rule of one's own: fewer examples than the median client has."""

    cause, evidence = "examples", "few"

    def energy(self, seen: Observation, labels: np.ndarray) -> Energy:
        few = (seen.num_examples < np.median(seen.num_examples)).astype(float)
        return self.against(few, labels, {"examples": seen.num_examples})


class WithFewExamples(CRFRobustEvidence):
    @cached_property
    def field(self) -> Field:
        own = super().field
        return replace(own, evidence=(*own.evidence, FewExamples(strength=1.0)))


def test_a_potential_of_ones_own_is_explained_without_words_of_its_own() -> None:
    rule = WithFewExamples()
    record, posterior, _ = rounds(rule)[-1]
    factors = effects_of(record, rule).factors
    start = expected(unknown_prior(), [0.0])
    for i, label in enumerate(posterior.expected_label):
        of_label = [each[i] for name, each in factors.items() if name not in OF_UPDATES]
        assert math.prod(of_label) == pytest.approx(label / start, rel=1e-4)
        assert (factors["examples"][i] < 0.95) == (i < 4)
    told = phrases(causes_of(record, rule)[0])
    assert any(line.startswith("examples, as its rule calls it (") for line in told)


def test_the_commands_tell_causes_attackers_and_damage(
    command_line: CommandLine, attacked: Path, tmp_path: Path
) -> None:
    (attacker,) = find_rounds(attacked, "crf-robust", 0).attackers
    asked = ("--round", 3, "--method", "crf-robust", "--client", attacker)
    whole = command_line("explain", attacked, *asked)
    assert (whole.rc, whole.err) == (0, "")
    assert f"attackers of the run: {attacker}\n" in whole.out
    assert f"Client {attacker} (attacks): " in whole.out
    assert "\n  - weight " in whole.out
    assert "what makes its weight" in whole.out
    torn = Path(shutil.copytree(attacked, tmp_path / "torn"))
    path = torn / "cells" / "crf-robust-seed-0" / "rounds.jsonl"
    path.write_bytes(b"\n".join([*path.read_bytes().splitlines()[:2], b"{}", b""]))
    assert command_line("explain", torn, *asked).rc == 2
    before = command_line("explain", torn, "--round", 2, *asked[2:])
    assert before.rc == 0
    assert "shown up to round 2: " in before.out
    assert f"attackers of the run: {attacker}\n" in before.out
    shown = command_line("show", torn)
    assert shown.rc == 1
    assert "crf-robust-seed-0: shown up to round 2: " in shown.out
