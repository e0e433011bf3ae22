"""A report begins with what happened: its numbers are those of the tables and records."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from experiments.runs import carry_out, record, small_spec
from fedcrf.experiments.analysis.tables import Estimate, mean_accuracy, method_difference
from fedcrf.experiments.results import read_results
from fedcrf.experiments.store import Course, Store
from fedcrf.report.effects import last_verdicts
from fedcrf.report.explanation import find_rounds
from fedcrf.report.headline import (
    Headline,
    distrusted_clients,
    headline_of,
    not_counted,
    recorded_headline,
)
from fedcrf.report.page import read_report, render
from fedcrf.rules import CRF
from fedcrf.simulation.records import RoundRecord


def headline(folder: Path) -> Headline:
    return headline_of(read_results(Store(folder)))


def test_the_result_stands_beside_fedavgs(finished: Path) -> None:
    told = headline(finished)
    cells = read_results(Store(finished)).table
    accuracy = mean_accuracy(cells, "crf-fedavg")
    gain = method_difference(cells, "crf-fedavg")
    assert accuracy is not None
    assert gain is not None
    result, distrusted, difference = told.tiles
    assert result.value.startswith(f"{accuracy.mean:.3f} ± ")
    assert result.about.startswith("CRF-FedAvg, mean of 2 seeds; FedAvg 0.")
    assert distrusted.value.endswith(" of 4")
    assert difference.value == f"{100 * abs(gain.mean):.1f} points"
    assert difference.about == "of test accuracy; 95 % [too few seeds]"
    assert told.sentence.startswith(f"CRF-FedAvg reaches a test accuracy of {accuracy.mean:.3f}, ")
    page = render(read_report([finished]))
    assert told.sentence in page
    assert page.index(told.sentence) < page.index('id="rounds"') < page.index('id="trust"')
    assert page.index('id="trust"') < page.index('id="why"') < page.index('id="run"')


def test_who_is_distrusted_is_told_with_the_attackers(attacked: Path) -> None:
    found = find_rounds(attacked, "crf-robust", 0)
    verdicts = last_verdicts(found.records, found.rule)
    told = distrusted_clients(found)
    assert told is not None
    tile, said = told
    last = found.records[-1].round
    low = sum(each.is_low and last - each.since >= 2 for each in verdicts)
    assert tile.value == f"{low or 'none'} of 4"
    assert f" of {len(found.attackers)} attacker" in tile.about
    assert said == f"{low or 'none'} of 4 clients ({tile.about})"


def test_a_client_that_lost_its_trust_just_now_is_not_yet_named(attacked: Path) -> None:
    found = find_rounds(attacked, "crf-robust", 0)
    last = found.records[-1]
    fallen = last.model_copy(update={"weight": [0.0, *last.weight[1:]]})
    told = distrusted_clients(Course("", [*found.records[:-1], fallen], found.rule))
    assert told is not None
    tile, said = told
    assert "since round" not in tile.about
    assert "2 clients, distrusted for fewer than 3 rounds, are not counted" in tile.about
    assert said.endswith(f" of 4 clients ({tile.about})")
    assert last_verdicts([*found.records[:-1], fallen], found.rule)[0].is_low


@pytest.mark.parametrize(
    ("attackers", "weight", "value", "about"),
    [
        ([0, 1], 0.5, "none of 2", "2 attackers missed"),
        ([1], 0.5, "none of 2", "1 attacker missed"),
        ([], 0.5, "none of 2", ""),
        ([0], 0.0, "1 of 2", "client 0 since round 1; 1 of 1 attacker"),
        ([0, 1], 0.0, "1 of 2", "client 0 since round 1; 1 of 2 attackers"),
        ([1], 0.0, "1 of 2", "client 0 since round 1; 1 attacker missed"),
    ],
)
def test_attackers_that_nobody_found_are_missed(
    attackers: list[int], weight: float, value: str, about: str
) -> None:
    rounds = [
        judged(number, weight, [0, 1]).model_copy(update={"attackers": attackers})
        for number in (1, 2, 3)
    ]
    told = distrusted_clients(Course("", rounds, CRF()))
    assert told is not None
    assert (told[0].value, told[0].about) == (value, about)
    # One that attacks in some rounds alone is not missed while it is honest.
    honest_at_last = [*rounds[:2], rounds[2].model_copy(update={"attackers": []})]
    told = distrusted_clients(Course("", honest_at_last, CRF()))
    assert told is not None
    assert "missed" not in told[0].about


@pytest.mark.parametrize(
    ("attackers", "about"),
    [
        ([0], "1 attacker distrusted earlier"),
        ([0, 1], "1 attacker missed; 1 attacker distrusted earlier"),
        ([1], "1 attacker missed"),
    ],
)
def test_an_attacker_that_was_distrusted_for_long_is_not_called_missed(
    attackers: list[int], about: str
) -> None:
    rounds = [
        judged(number, weight, [0, 1]).model_copy(update={"attackers": attackers})
        for number, weight in enumerate([0.5, 0.0, 0.0, 0.0, 0.5], start=1)
    ]
    told = distrusted_clients(Course("", rounds, CRF()))
    assert told is not None
    assert (told[0].value, told[0].about) == ("none of 2", about)
    # Two rounds are no lasting verdict.
    short = distrusted_clients(Course("", [rounds[0], *rounds[2:]], CRF()))
    assert short is not None
    assert "earlier" not in short[0].about


def judged(number: int, first: float, clients: Sequence[int]) -> RoundRecord:
    """Return a round of two clients, of whom the first has so much of the weight."""
    update = {"clients": clients, "weight": [first, 1 - first], "base_weight": [0.5, 0.5]}
    return record(number, 1.0, crf=True).model_copy(update=update)


def of_nobody(number: int) -> RoundRecord:
    """Return a round without a usable reply."""
    lists = ("clients", "num_examples", "client_training_loss", "weight", "base_weight")
    update = {**{name: [] for name in lists}, "reasons": None, "kept_model": True}
    return record(number, 1.0).model_copy(update=update)


def test_who_is_distrusted_is_told_of_every_client_wherever_it_took_part() -> None:
    """A round is of a part of the clients, of the honest ones alone, or of nobody."""
    records = [
        judged(1, 0.0, [3, 4]),
        judged(2, 0.0, [5, 6]),
        judged(3, 0.5, [9, 1]),
        judged(4, 0.0, [9, 1]),
        judged(5, 0.0, [3, 5]),
        judged(6, 0.1, [5, 8]),
        judged(7, 0.0, [3, 7]),
        judged(8, 0.0, [2, 4]),
        judged(9, 0.4, [2, 8]),
        judged(10, 0.5, [1, 6]),
    ]
    said = "client 3 since round 1; client 9 since round 4"
    few = "distrusted for fewer than 3 rounds, {} not counted"
    for shown in (records, [*records, of_nobody(11)]):
        told = distrusted_clients(Course("", shown, CRF()))
        assert told is not None
        tile, who = told
        assert tile.value == "1 of 9"
        assert tile.about == f"client 3 since round 1; 2 more clients, {few.format('are')}"
        assert who == f"1 of 9 clients ({tile.about})"
    # One that was distrusted in its last round alone is named where it is again.
    again = [*records, judged(11, 0.0, [9, 1])]
    told = distrusted_clients(Course("", again, CRF()))
    assert told is not None
    assert told[1] == f"2 of 9 clients ({said}; 1 more client, {few.format('is')})"


def test_a_last_round_of_nobody_does_not_silence_the_headline() -> None:
    rounds = [judged(number, 0.0, [3, 4]) for number in (1, 2, 3)]
    told = recorded_headline(Course("x", [*rounds, of_nobody(4)], CRF()))
    assert told.sentence.endswith("; it distrusts 1 of 2 clients (client 3 since round 1).")
    assert told.tiles[-1].value == "1 of 2"


def test_a_run_without_any_usable_reply_is_said_to_be_one() -> None:
    told = recorded_headline(Course("x", [of_nobody(1), of_nobody(2)], CRF()))
    said = (
        "x has done 2 rounds, in which no client's reply was usable, so that the model never chan"
    )
    assert told.sentence.startswith(said)


def test_the_last_round_that_was_evaluated_has_the_accuracy() -> None:
    """A run may be evaluated in some rounds alone, or be under way."""
    nothing = {"loss": math.nan, "accuracy": math.nan}
    evaluated, other = record(2, 1.0), record(3, 1.0)
    assert math.isfinite(evaluated.validation.loss)
    unknown = {of: getattr(other, of).model_copy(update=nothing) for of in ("validation", "test")}
    told = recorded_headline(Course("x", [evaluated, other.model_copy(update=unknown)]))
    assert told.sentence.startswith("x has done 3 rounds, round 2 with a ")
    assert told.tiles[0].about.startswith("x, in round 2")


def test_who_is_excluded_is_counted_apart() -> None:
    rounds = [
        judged(number, 0.0, [3, 4]).model_copy(update={"excluded": [4]}) for number in (1, 2, 3)
    ]
    for shown, value, about in (
        (rounds, "1 of 2", "client 3 since round 1; 1 excluded: client 4 since round 1"),
        (rounds[:1], "1 of 2", "client 3 since round 1; 1 excluded: client 4 since round 1"),
        (
            [each.model_copy(update={"excluded": [3]}) for each in rounds],
            "none of 2",
            "1 excluded: client 3 since round 1",
        ),
    ):
        told = distrusted_clients(Course("", shown, CRF()))
        assert told is not None
        assert (told[0].value, told[0].about) == (value, about)


def test_a_rule_that_judges_nobody_is_not_said_to_after_an_exclusion() -> None:
    """An update that was no model in one round says nothing of the later ones."""
    out = record(1, 1.0).model_copy(update={"excluded": [0], "weight": [0.0, 1.0]})
    assert distrusted_clients(Course("", [out, record(2, 1.0)])) is None


@pytest.mark.parametrize(
    ("clients", "more", "said"),
    [
        (1, False, "1 client, distrusted for fewer than 3 rounds, is not counted"),
        (2, True, "2 more clients, distrusted for fewer than 3 rounds, are not counted"),
    ],
)
def test_who_is_not_counted_is_a_number_of_clients(clients: int, more: bool, said: str) -> None:
    assert not_counted(clients, more=more) == said


def test_without_a_result_it_says_so(finished: Path) -> None:
    for summary in finished.glob("cells/*/summary.json"):
        summary.unlink()
    told = headline(finished)
    assert told.sentence.startswith("No cell of this run is finished yet; so far CRF-FedAvg ")
    assert [tile.title for tile in told.tiles] == ["Distrusted clients"]


def test_a_rule_that_judges_nobody_has_no_such_tile(tmp_path: Path) -> None:
    carry_out(small_spec(methods=["fedavg"], seeds=[0]), tmp_path / "run")
    told = headline(tmp_path / "run")
    assert [tile.title for tile in told.tiles] == ["Test accuracy"]
    assert told.sentence.endswith(".")
    shutil.rmtree(tmp_path / "run" / "partitions")
    page = render(read_report([tmp_path / "run"]))
    assert 'id="labels"' not in page, "no heading of nothing"


@pytest.mark.parametrize(("low", "title"), [(0, "Gained over FedAvg"), (-2, "Beside FedAvg")])
def test_a_difference_that_seeds_may_have_made_is_not_called_clear(
    finished: Path, monkeypatch: pytest.MonkeyPatch, low: float, title: str
) -> None:
    gain = Estimate(0.01, 3, 0.001, 0.001 + low, 0.02)
    monkeypatch.setattr("fedcrf.report.headline.method_difference", lambda *_: gain)
    tile = headline(finished).tiles[-1]
    assert tile.title == title
    assert ("no clear difference" in headline(finished).sentence) == (low < 0)


@pytest.mark.parametrize(
    ("gain", "value", "about", "said"),
    [
        (Estimate(0.0, 3, 0.0, 0.0, 0.0), "no difference",
         "the same test accuracy in every seed", ", the same as FedAvg;"),
        (Estimate(0.0, 1), "no difference", "the same test accuracy", ", the same as FedAvg;"),
        (Estimate(0.0, 3, 0.1, -0.2, 0.2), "no clear difference",
         "0.0 points of test accuracy; 95 % [-20.0, +20.0]", ", the same as FedAvg on average;"),
        (Estimate(0.08, 3, 0.4, -0.9, 1.0, cut=True), "no clear difference",
         "8.0 points more of test accuracy; 95 % [too wide]", "8.0 points more than FedAvg, which"),
    ],
)  # fmt: skip
def test_a_result_like_fedavgs_is_said_in_words(
    finished: Path, monkeypatch: pytest.MonkeyPatch,
    gain: Estimate, value: str, about: str, said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("fedcrf.report.headline.method_difference", lambda *_: gain)
    told = headline(finished)
    assert (told.tiles[-1].value, told.tiles[-1].about) == (value, about)
    assert said in told.sentence
