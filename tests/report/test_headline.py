"""A report begins with what happened: its numbers are those of the tables and records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.runs import carry_out, small_spec
from fedcrf.experiments.analysis.tables import mean_accuracy, method_difference
from fedcrf.experiments.results import read_results
from fedcrf.experiments.store import Course, Store
from fedcrf.report.effects import last_verdicts
from fedcrf.report.explanation import find_rounds
from fedcrf.report.headline import Headline, distrusted_clients, headline_of, not_counted
from fedcrf.report.page import read_report, render


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
    assert tile.value == f"{low} of 4"
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
    from fedcrf.experiments.analysis.tables import Estimate

    gain = Estimate(0.01, 3, 0.001, 0.001 + low, 0.02)
    monkeypatch.setattr("fedcrf.report.headline.method_difference", lambda *_: gain)
    tile = headline(finished).tiles[-1]
    assert tile.title == title
    assert ("no clear difference" in headline(finished).sentence) == (low < 0)
