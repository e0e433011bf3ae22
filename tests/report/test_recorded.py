"""Runs that another framework carried out are reported and explained as far as they are known."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

import fedcrf
from experiments.runs import summary
from fedcrf.cli import app
from fedcrf.crf import ClientCRF
from fedcrf.errors import FedcrfError
from fedcrf.experiments.recorded import (
    Description,
    LaterEvaluation,
    RecordedRun,
    evaluated,
    recorded_rows,
    recorded_table,
    rule_settings,
)
from fedcrf.experiments.results import table
from fedcrf.report.explanation import causes_of, find_rounds, in_words, why_excluded
from fedcrf.report.page import read_report, render, write_page
from fedcrf.rules import CRFRobust
from fedcrf.simulation.records import ExcludedNode, Metrics, RoundRecord
from report.browser import Browser
from report.sentences import page_table, sentence
from report.test_content import page_data
from report.test_explanation import honest, one_round

BANDWIDTH = 0.3
NODE = 2**63 + 1  # no number of the page's language is so large and odd
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def record_run(folder: Path, rule: str = "CRF") -> Path:
    """Record three rounds: one whole, one with a node left out, one without any reply."""
    description = Description(
        framework="flwr 1.41.0",
        strategy="CRFAvg",
        rule=rule,
        settings={"bandwidth": BANDWIDTH},
        provenance=summary("fedavg", 0, 0.5).provenance,
    )
    RecordedRun.begin(folder.parent, description, BEGAN).path.rename(folder)
    run = RecordedRun(folder)
    from fedcrf.rules import CRF

    record, _ = one_round(honest(), CRF(bandwidth=BANDWIDTH))
    unknown = Metrics(loss=math.nan, accuracy=math.nan)
    lost = [ExcludedNode(node=17, reason="<b>no data</b>")]
    empty: dict[str, object] = {
        "clients": [], "num_examples": [], "client_training_loss": [], "weight": [],
        "base_weight": [], "reasons": None, "kept_model": True, "training_loss": math.nan,
    }  # fmt: skip
    nodes = {"nodes": [NODE + client for client in record.clients]}
    kept = {"kept_reason": "nobody was there"}
    run.append(record.model_copy(update={"round": 1, "excluded_nodes": [], **nodes}))
    run.append(
        record.model_copy(
            update={"round": 2, "excluded_nodes": lost, "validation": unknown, **nodes}
        )
    )
    run.append(record.model_copy(update={"round": 3, "excluded_nodes": lost, **kept, **empty}))
    return folder


def test_it_is_explained_with_its_own_rule(tmp_path: Path) -> None:
    found = find_rounds(record_run(tmp_path / "run"), None, None)
    records, rule = found.records, found.rule
    assert found.title == "run, CRFAvg"
    assert isinstance(rule, ClientCRF)
    assert rule.bandwidth == BANDWIDTH
    for each in causes_of(records[0], rule):
        assert np.isfinite(each.seen("own_trust"))
        assert "on its own evidence" in sentence(each)
    assert causes_of(records[2], rule) == []


def test_a_recorded_rule_is_read_without_the_settings_that_are_gone(tmp_path: Path) -> None:
    rule = CRFRobust(tolerance=2.0)
    settings = {**rule_settings(rule), "norm_strength": 3.0, "crowd": 1.0}
    description = Description(
        framework="flwr 1.41.0",
        strategy="RuleStrategy",
        rule=rule.name,
        settings=settings,
        provenance=summary("fedavg", 0, 0.5).provenance,
    )
    run = RecordedRun.begin(tmp_path, description, BEGAN)
    assert run.description().known_rule == rule


def test_nodes_are_told_and_why_they_were_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record_run(tmp_path / "run")
    record = RecordedRun(folder).records()[0]
    explain = partial(app, standalone_mode=False)
    explain(["explain", str(folder), "--round", "1"])
    printed = capsys.readouterr().out
    nodes = [f"9223…{str(NODE + client)[-4:]}" for client in record.clients]
    for client, node in zip(record.clients, nodes, strict=True):
        assert re.search(rf"^{client} +{node} ", printed, flags=re.MULTILINE)
    assert "Ask for a client by its name as it stands here, or by the whole one." in printed
    assert "excluded from the round" not in printed
    client = record.clients[1]
    for asked in (str(client), str(NODE + client), nodes[1]):
        explain(["explain", str(folder), "--round", "2", "--client", asked])
        told = capsys.readouterr().out
        assert f"client {client} is node {NODE + client}\n" in told
        assert f"Client {client}: trusted.\n  - weight " in told
    explain(["explain", str(folder), "--round", "3"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "the model stayed as it was: nobody was there" in printed
    assert "excluded from the round" in printed
    assert "17 <b>no data</b>" in printed


def test_a_node_that_was_excluded_is_told_so_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record_run(tmp_path / "run")
    explain = partial(app, standalone_mode=False)
    for asked in (["--round", "2"], ["--round", "3"], []):
        explain(["explain", str(folder), "--client", "17", *asked])
        number = "2" if "2" in asked else "3"
        said = f"Node 17 is excluded from round {number}: <b>no data</b>."
        assert said in capsys.readouterr().out.splitlines()
    with pytest.raises(FedcrfError, match="client 17 took no part in round 1: choose from 0, 3, "):
        explain(["explain", str(folder), "--client", "17", "--round", "1"])
    with pytest.raises(FedcrfError, match=r"^client 0 took no part in round 3$"):
        explain(["explain", str(folder), "--client", "0", "--round", "3"])
    # A site goes by its name: where it has a part after all, that is explained.
    (whole, *_), found = RecordedRun(folder).records(), find_rounds(folder, None, None)
    again = [ExcludedNode(node=3, reason="replied twice"), ExcludedNode(node=4, reason="is late")]
    both = whole.model_copy(update={"excluded_nodes": again, "nodes": None})
    assert why_excluded(both, "3", {}) is None
    assert why_excluded(both, "4", {}) == again[1]
    assert "Client 3: trusted." in in_words(found, both, 3)[0]


def test_an_excluded_node_goes_by_the_client_that_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record_run(tmp_path / "run")
    whole, *_, last = RecordedRun(folder).records()
    client, node = whole.clients[1], NODE + int(whole.clients[1])
    lost = [ExcludedNode(node=node, reason="replied twice")]
    RecordedRun(folder).append(last.model_copy(update={"round": 4, "excluded_nodes": lost}))
    explain = partial(app, standalone_mode=False)
    for asked in (str(client), str(node)):
        explain(["explain", str(folder), "--round", "4", "--client", asked])
        said = f"Node {node} (client {client}) is excluded from round 4: replied twice."
        assert said in capsys.readouterr().out.splitlines()
    explain(["explain", str(folder), "--round", "4"])
    assert f"{node} (client {client})" in capsys.readouterr().out
    (run,) = read_report([folder]).runs
    said = f"Round 4: node {node} (client {client}): replied twice."
    assert said in run.cells[0]["rounds"][3]["exclusions"]


def measured(loss: float = math.nan, accuracy: float = math.nan) -> Metrics:
    return Metrics(loss=loss, accuracy=accuracy)


def later(folder: Path, number: int, **by: Metrics) -> None:
    RecordedRun(folder).append(LaterEvaluation(evaluated_round=number, seconds=1.0, **by))


def test_a_later_evaluation_takes_nothing_away(tmp_path: Path) -> None:
    folder = record_run(tmp_path / "run")
    later(folder, 2, held_out=measured(accuracy=0.5))
    later(folder, 2, held_out=measured(loss=1.0))
    later(folder, 2, held_out=measured())
    later(folder, 1, validation=measured(accuracy=0.75))
    later(folder, 1, validation=measured(loss=0.25))
    later(folder, 1, validation=measured(loss=math.inf))
    first, second, third = RecordedRun(folder).records()
    assert first.validation == measured(0.25, 0.75)
    assert first.held_out is None
    assert second.held_out == measured(1.0, 0.5)
    assert all(math.isnan(value) for _, value in second.validation)
    assert third.held_out is None


def test_what_the_server_measured_comes_before_what_clients_send(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record_run(tmp_path / "run")

    def shown() -> list[tuple[float, float]]:
        rounds = evaluated(RecordedRun(folder).records())
        return [(each.validation.loss, each.validation.accuracy) for each in rounds]

    def alike(*rounds: tuple[float, float]) -> bool:
        return shown() == [pytest.approx(each, nan_ok=True) for each in rounds]

    nan = math.nan
    assert alike((0.5, 0.5), (nan, nan), (0.5, 0.5))  # the clients', who alone measured
    later(folder, 3, validation=measured(loss=-1e6, accuracy=125_000.0))
    later(folder, 2, validation=measured(accuracy=1 + 1e-12))
    assert alike((0.5, 0.5), (nan, 1.0), (-1e6, nan))  # what is no accuracy is none
    later(folder, 1, held_out=measured(accuracy=0.7))
    later(folder, 3, held_out=measured(accuracy=0.8))
    assert alike((0.5, 0.7), (nan, nan), (-1e6, 0.8))  # each of the two for itself
    (run,) = read_report([folder]).runs
    assert run.measured["accuracy"][0].mean == pytest.approx([0.7, nan, 0.8], nan_ok=True)
    later(folder, 3, held_out=measured(loss=0.3, accuracy=90.0))
    assert alike((nan, 0.7), (nan, nan), (0.3, nan))
    later(folder, 3, held_out=measured(accuracy=0.9))
    app(["show", str(folder), "--markdown"], standalone_mode=False)
    *_, header, _, row = capsys.readouterr().out.splitlines()
    assert header.split(" | ")[4:6] == ["accuracy", "at lowest loss"]
    assert row.split(" | ")[4:6] == ["0.900", "0.900"]
    assert (
        "by the server, else by the clients" in recorded_table({"run": RecordedRun(folder)}).title
    )


def test_every_client_of_the_run_is_counted(tmp_path: Path) -> None:
    folder = record_run(tmp_path / "run")
    whole = RecordedRun(folder).records()[0]
    others = [100, *whole.clients[1:]]
    RecordedRun(folder).append(whole.model_copy(update={"round": 4, "clients": others}))
    (row,) = recorded_rows({"run": RecordedRun(folder)})
    assert row["clients"] == len(whole.clients) + 1


def test_one_of_several_is_chosen_by_its_name(tmp_path: Path) -> None:
    record_run(tmp_path / "a", rule="SomethingElse")
    record_run(tmp_path / "b")
    assert find_rounds(tmp_path, None, None).title == "b, CRFAvg"
    found = find_rounds(tmp_path, "a", None)
    assert (found.title, found.rule) == ("a, CRFAvg", None)
    with pytest.raises(FedcrfError, match="unknown run 'c'"):
        find_rounds(tmp_path, "c", None)


def test_it_is_reported_beside_our_own(finished: Path, tmp_path: Path) -> None:
    report = read_report([finished, record_run(tmp_path / "flower")])
    assert not report.damaged
    own, recorded = page_data(render(report))["runs"]
    assert (len(own["cells"]), recorded["name"]) == (4, "flower")
    (cell,) = recorded["cells"]
    assert [len(each["clients"]) for each in cell["rounds"]] == [6, 6, 0]
    assert recorded["measured"]["accuracy"][0]["mean"] == [0.5, None, 0.5]


def test_runs_beside_recorded_ones_are_shown_too(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = tmp_path / "both"
    copytree(finished, both / "deep" / "own")
    record_run(both / "flower")
    assert [run.name for run in read_report([both]).runs] == ["flower", "deep/own"]
    app(["show", str(both)], standalone_mode=False)
    first, _, second = capsys.readouterr().out.partition("\ndeep/own:\n")
    assert "flower" in first
    assert "FedAvg" in second
    cells, own = table(both), table(finished)
    assert list(cells.folder) == [str(both / "flower"), *[str(both / "deep" / "own")] * len(own)]
    assert list(cells.accuracy[1:]) == pytest.approx(list(own.accuracy), nan_ok=True)


def test_columns_are_explained_where_they_are_shown(finished: Path, tmp_path: Path) -> None:
    """A recorded run has neither a best round by validation loss nor a difference to FedAvg."""
    explained = "the round with the lowest validation loss"
    assert explained in render(read_report([finished]))
    assert explained not in render(read_report([record_run(tmp_path / "flower")]))


def test_runs_of_several_folders_have_names_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        for name in ("CRFAvg", "CRFRobust"):
            folder.mkdir(exist_ok=True)
            record_run(folder / name)
    assert [run.name for run in read_report(folders[:1]).runs] == ["CRFAvg", "CRFRobust"]
    names = ["first/CRFAvg", "first/CRFRobust", "second/CRFAvg", "second/CRFRobust"]
    assert [run.name for run in read_report(folders).runs] == names
    # One that cannot be read is named, and the others still told.
    (folders[0] / "CRFAvg" / "description.json").write_text("{")
    for asked, left in ((folders, names[1:]), (folders[:1], ["CRFRobust"])):
        report = read_report(asked)
        assert [run.name for run in report.runs] == left
        (notice,) = report.notices
        assert "CRFAvg could not be read: " in notice
        assert "does not describe a recorded run" in notice
    with pytest.raises(FedcrfError, match=r"^\S+ does not describe a recorded run"):
        read_report([folders[0] / "CRFAvg"])


@pytest.mark.parametrize("damaged", ["a", "b", "c"])
def test_show_and_explain_name_a_run_that_cannot_be_read_and_tell_the_rest(
    damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abc":
        record_run(tmp_path / name)
    path = tmp_path / damaged / "description.json"
    path.write_text("{")
    first, other = sorted({*"abc"} - {damaged})
    said = f"{damaged} could not be read: {path} does not describe a recorded run"
    run = partial(app, standalone_mode=False)
    assert run(["show", str(tmp_path), "--markdown"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {first}", f"| {other}", said]
    run(["explain", str(tmp_path), "--round", "1"])
    assert capsys.readouterr().out.splitlines()[:2] == [f"{first}, CRFAvg, round 1", said]
    assert find_rounds(tmp_path, other, None).unread == []
    # Where it is the only one, or the one that is asked for, there is nothing else to tell.
    for arguments in (
        ["show", str(tmp_path / damaged)],
        ["explain", str(tmp_path / damaged), "--round", "1"],
        ["explain", str(tmp_path), "--round", "1", "--method", damaged],
    ):
        with pytest.raises(FedcrfError, match=r"^\S+ does not describe a recorded run$"):
            run(arguments)


@pytest.mark.parametrize("sound", [0, 1, 2])
def test_damage_is_named_and_the_rounds_before_it_shown(
    finished: Path, tmp_path: Path, sound: int
) -> None:
    folder = record_run(tmp_path / "flower")
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    lines[sound] = "{}"
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    report = read_report([finished, folder])
    assert report.damaged
    shown = f"shown up to round {sound}" if sound else "no rounds are shown"
    assert (
        f"flower: {shown}: {folder / 'rounds.jsonl'}, line {sound + 1}" in (report.all_notices()[0])
    )
    assert "take it and the lines after it away" in report.all_notices()[0]
    assert "cell" not in report.all_notices()[0], "it has none"
    cells = page_data(render(report))["runs"][1]["cells"]
    assert [len(cell["rounds"]) for cell in cells] == ([sound] if sound else [])
    if sound:
        assert len(find_rounds(folder, None, None).records) == sound
    else:
        with pytest.raises(FedcrfError, match="line 1, is not a round's record"):
            find_rounds(folder, None, None)


def test_the_page_of_it_opens(chromium: Browser, finished: Path, tmp_path: Path) -> None:
    for number, folders in enumerate(([], [finished])):
        folder = record_run(tmp_path / f"run{number}")
        write_page(read_report([folder, *folders]), tmp_path / "page.html")
        chromium.open(tmp_path / "page.html")
        for place in (2, 1, 0):
            chromium.run(f"at('round').value = {place}; trust()")
        assert chromium.text("because").startswith("Round 1, client ")
        excluded = chromium.text("excluded")
        assert "Round 2: node 17: <b>no data</b>." in excluded
        assert "Round 3: the model stayed as it was: nobody was there." in excluded
        record = RecordedRun(folder).records()[0]
        shown = chromium.run(
            "return [...document.querySelectorAll('#round-table tr')]"
            "  .map((row) => [...row.children].map((each) => each.textContent))"
        )
        rule = RecordedRun(folder).description().known_rule
        assert shown == page_table(causes_of(record, rule))
        assert shown[1][1] == str(NODE + record.clients[0])
        if folders:
            assert "What the clients hold is not recorded." in chromium.text("holdings-text")
        else:
            assert chromium.run("return at('labels')") is None, "no heading of nothing"
        assert chromium.errors() == []


def regression(folder: Path) -> Path:
    """Record a regression at two sites, with metrics of its own; return its folder."""
    draw = np.random.default_rng(0)
    inputs = [draw.normal(size=(30, 3)) for _ in range(2)]
    fedcrf.simulate(
        lambda: nn.Linear(3, 1),
        {name: (x, x[:, :1]) for name, x in zip(("north", "south"), inputs, strict=True)},
        rounds=3,
        loss=mse_loss,
        metrics={"absolute <b>error": l1_loss, "minus": lambda o, t: -mse_loss(o, t)},
        record_to=folder,
        progress=False,
    )
    return folder


def test_metrics_of_the_users_are_drawn(chromium: Browser, finished: Path, tmp_path: Path) -> None:
    folder = regression(tmp_path / "own")
    records = RecordedRun(folder).records()
    alone = read_report([folder])
    assert alone.measured == ["loss", "absolute <b>error", "minus"]
    (tile, _) = alone.runs[0].headline.tiles
    assert (tile.title, tile.value) == ("Test loss", f"{records[-1].test.loss:.4g}")
    assert records[-1].metrics is not None
    error = records[-1].metrics["test"]["absolute <b>error"]
    assert f"; absolute <b>error {error:.4g}; minus -" in tile.about
    write_page(alone, tmp_path / "page.html")
    chromium.open(tmp_path / "page.html")
    for place, name in enumerate(alone.measured):
        drawn = chromium.run(f"return at('measured-{place}').data.map((line) => line.y)")
        expected = [
            record.validation.loss if name == "loss" else (record.metrics or {})["validation"][name]
            for record in records
        ]
        assert drawn == [[pytest.approx(value, rel=1e-5) for value in expected]]
        assert chromium.text(f"measured-{place}-title") == f"Validation {name}"
        said = "Best: CRF-robust " if name == "loss" else "Last: CRF-robust "
        assert chromium.text(f"measured-{place}-text").startswith(said)
    assert chromium.run("return at('measured-3')") is None
    assert chromium.run("return document.querySelectorAll('main b').length") == 0
    table = alone.runs[0].curves[1]
    assert table.title == "Validation absolute <b>error over the rounds"
    assert table.rows[0][1:] == tuple(
        f"{(each.metrics or {})['validation']['absolute <b>error']:.4g}" for each in records
    )
    assert chromium.errors() == []

    beside = read_report([finished, folder])
    assert beside.measured == ["accuracy", "loss", "absolute <b>error", "minus"]
    write_page(beside, tmp_path / "page.html")
    chromium.open(tmp_path / "page.html")
    lines = "return at(arguments[0]).data.filter((line) => line.name).map((line) => line.name)"
    assert [len(chromium.run(lines, f"measured-{place}")) for place in range(4)] == [2, 3, 1, 1]
    assert chromium.errors() == []


def test_a_run_without_rounds(chromium: Browser, tmp_path: Path) -> None:
    folder = record_run(tmp_path / "run")
    (folder / "rounds.jsonl").unlink()
    report = read_report([folder])
    assert report.all_notices() == ["run: it has no rounds yet"]
    write_page(report, tmp_path / "page.html")
    chromium.open(tmp_path / "page.html")
    assert "CRFAvg has no rounds yet." in chromium.text("happened")
    assert chromium.run("return ['rounds', 'trust', 'labels'].map(at)") == [None] * 3
    assert chromium.errors() == []


def test_records_of_a_round_without_clients_are_records(tmp_path: Path) -> None:
    last = find_rounds(record_run(tmp_path / "run"), None, None).records[-1]
    assert RoundRecord.model_validate_json(last.model_dump_json()).clients == []
