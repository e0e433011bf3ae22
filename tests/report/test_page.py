"""The report in a real browser: it opens offline, answers mouse and keyboard, and is true."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.support.ui import WebDriverWait

from experiments.runs import carry_out, small_spec
from fedcrf.experiments.store import Store
from fedcrf.report.explanation import (
    WORDS,
    ClientCauses,
    causes_of,
    columns_of,
    find_rounds,
    in_words,
    title_of,
)
from fedcrf.report.page import read_report, write_page
from report.browser import Browser
from report.sentences import columns_explained, page_table
from report.test_content import NASTY, break_record

CHARTS = ("measured-0", "measured-1", "holdings", "weights", "causes", "course", "graph")
PHONE = 360


def spoil_a_client(folder: Path) -> None:
    """Let the last round of a cell be one in which client 2's update was not finite."""
    path = folder / "cells" / "crf-fedavg-seed-0" / "rounds.jsonl"
    *before, last = path.read_text().splitlines()
    record = json.loads(last)
    place = record["clients"].index(2)
    record["excluded"] = [2]
    record["weight"][place] = record["base_weight"][place] = 0.0
    for name in ("cosine", "distance", "norm_anomaly"):
        record["reasons"][name][place] = None
    path.write_text("\n".join([*before, json.dumps(record)]) + "\n")


@pytest.fixture(scope="module")
def folder(finished_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with a client left out and a label whose name is an attack."""
    copy = Path(shutil.copytree(finished_once, tmp_path_factory.mktemp("shown") / "run"))
    spoil_a_client(copy)
    for path in copy.glob("partitions/*.json"):
        partition = json.loads(path.read_text())
        partition["class_names"][3] = NASTY
        path.write_text(json.dumps(partition))
    return copy


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    write_page(read_report([folder]), folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def several(finished_once: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a run with a damaged cell, a whole one and one that is not there."""
    home = tmp_path_factory.mktemp("several")
    damaged = Path(shutil.copytree(folder, home / "<i>damaged"))
    break_record(damaged)
    write_page(read_report([damaged, finished_once, home / "missing"]), home / "report.html")
    return home / "report.html"


def focus(browser: Browser) -> str:
    return str(browser.run("return document.activeElement.id || document.activeElement.value"))


def tab_to(browser: Browser, element: str) -> None:
    """Go to a control as a keyboard does."""
    for _ in range(60):
        if focus(browser) == element:
            return
        press(browser, Keys.TAB)
    raise AssertionError(f"{element} cannot be reached by the keyboard")


def press(browser: Browser, *keys: str) -> None:
    ActionChains(browser.driver).send_keys(*keys).perform()


@pytest.mark.parametrize(
    ("which", "width", "dark"),
    [
        ("page", 1280, False),
        ("page", PHONE, True),
        ("several", 1280, True),
        ("several", PHONE, False),
    ],
)
def test_it_opens(
    chromium: Browser, request: pytest.FixtureRequest, which: str, width: int, dark: bool
) -> None:
    chromium.open(request.getfixturevalue(which), dark=dark, width=width)
    assert chromium.errors() == []
    assert chromium.run("return document.documentElement.scrollWidth") <= width
    for chart in CHARTS:
        box = chromium.run(
            "const svg = document.querySelector(`#${arguments[0]} .main-svg`);"
            "return svg && svg.getBoundingClientRect().toJSON()",
            chart,
        )
        assert box, chart
        assert 0 <= box["left"] < box["right"] <= width
        assert len(chromium.text(f"{chart}-text")) > 20, chart
    paper, ink = chromium.run(
        "const paper = getComputedStyle(document.body).backgroundColor;"
        "return [paper, getComputedStyle(document.querySelector('#course .xtick text')).fill]"
    )
    assert (brightness(paper) < 60, brightness(ink) > 180) == (dark, dark)


def brightness(colour: str) -> float:
    numbers = colour[colour.index("(") + 1 : -1].split(",")[:3]
    return sum(map(float, numbers)) / 3


def test_every_figure_says_what_it_is(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    for chart in CHARTS:
        role, title, text = chromium.run(
            "const chart = document.getElementById(arguments[0]);"
            "const named = chart.getAttribute('aria-labelledby').split(' ');"
            "return [chart.getAttribute('role'), ...named.map("
            "  (id) => document.getElementById(id).textContent)]",
            chart,
        )
        assert (role, bool(title), bool(text)) == ("img", True, True)


def test_the_keyboard_chooses(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    tab_to(chromium, "trust-method")
    assert chromium.run("return chosenName(document.activeElement)") == "CRF-FedAvg"
    tab_to(chromium, "client")
    press(chromium, Keys.HOME)
    press(chromium, Keys.ARROW_DOWN)
    assert "client 1: " in chromium.text("because")
    tab_to(chromium, "round")
    press(chromium, Keys.HOME)
    assert chromium.text("because").startswith("Round 1, client 1: ")
    press(chromium, Keys.ARROW_RIGHT)
    assert chromium.text("because").startswith("Round 2, client 1: ")
    assert chromium.text("round-shown") == "2 of 3"
    tab_to(chromium, "multiple")
    press(chromium, Keys.ARROW_RIGHT)
    drawn = (
        "return document.getElementById('weights').data.filter((t) => t.type === 'heatmap').length"
    )
    assert chromium.run(drawn) == 2
    assert chromium.errors() == []


def test_a_click_chooses_client_and_round(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    for client, number in ((3, 2), (0, 1)):
        point = chromium.run(
            "const chart = document.getElementById('weights');"
            "chart.scrollIntoView({block: 'center'});"
            "const {xaxis, yaxis} = chart._fullLayout, box = chart.getBoundingClientRect();"
            "return [box.left + xaxis._offset + xaxis.d2p(arguments[1]),"
            "        box.top + yaxis._offset + yaxis.d2p(String(arguments[0]))].map(Math.round)",
            client,
            number,
        )
        mouse = ActionChains(chromium.driver)
        mouse.w3c_actions.pointer_action.move_to_location(*point)
        mouse.click().perform()
        assert chromium.text("because").startswith(f"Round {number}, client {client}: ")
        row = chromium.run("return document.querySelector('#round-table .chosen th').textContent")
        assert row == str(client)
        assert chromium.run("return chosenName(document.getElementById('client'))") == str(client)
    assert chromium.errors() == []


@pytest.mark.parametrize("which", ["folder", "attacked"])
def test_it_says_what_the_terminal_says(
    chromium: Browser, request: pytest.FixtureRequest, tmp_path: Path, which: str
) -> None:
    shown: Path = request.getfixturevalue(which)
    write_page(read_report([shown]), tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    for cell in Store(shown).read().cells():
        found = find_rounds(shown, cell.method.name, cell.seed)
        choose(chromium, "trust-method", cell.method.title)
        choose(chromium, "trust-seed", str(cell.seed))
        for place, record in enumerate(found.records):
            for client in record.clients:
                chromium.run("choose(arguments[0], arguments[1])", str(client), place)
                verdict, *lines = chromium.run(
                    "return [...at('because').querySelectorAll('p, li')].map((e) => e.textContent)"
                )
                terminal, _ = in_words(found, record, client)
                said = verdict.removeprefix(f"Round {record.round}, ")
                expected = terminal[-1 - len(lines) :]
                assert f"{said[0].upper()}{said[1:]}" == expected[0]
                assert [f"  - {each}".replace("\u00a0", " ") for each in lines] == expected[1:]


def test_the_table_of_a_round_has_all_causes(
    chromium: Browser, attacked: Path, tmp_path: Path
) -> None:
    write_page(read_report([attacked]), tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    for cell in Store(attacked).read().cells():
        found = find_rounds(attacked, cell.method.name, cell.seed)
        record = found.records[-1]
        choose(chromium, "trust-method", cell.method.title)
        shown = chromium.run(
            f"at('round').value = {len(found.records) - 1}; trust();"
            "return [...document.querySelectorAll('#round-table tr')]"
            "  .map((row) => [...row.children].map((each) => each.textContent))"
        )
        causes = causes_of(record, found.rule, found.attackers)
        header, *_ = expected = page_table(causes)
        assert shown == expected, cell.name
        columns = columns_of(causes)
        assert meanings(chromium) == columns_explained(columns)
        for name, title in zip(columns[1:], header[1:], strict=True):
            assert title in title_of(name).name
            assert f"{title_of(name).name}: " in meanings(chromium), "every column is described"


def test_numbers_are_written_alike(chromium: Browser, page: Path) -> None:
    # The first are halfway between two of three digits, and exactly so in binary.
    values = [1 / 16, 3 / 16, 0.3125, -1 / 16, -1e-9, 0.0, 1 / 3, 9998.9995, 9999.0, 1e30, math.nan]
    values += [-9998.9995, -9999.0, -1e300]
    _, *rows = page_table([ClientCauses(0, 1, weight=value, base_weight=1.0) for value in values])
    chromium.open(page)
    written = chromium.run(
        "return arguments[0].map((value) => text(value, 3))",
        [None if math.isnan(value) else value for value in values],
    )
    assert written == [row[2] for row in rows]


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (PHONE, False)])
def test_the_causes_of_other_fields_are_drawn(
    chromium: Browser, attacked: Path, width: int, dark: bool
) -> None:
    write_page(read_report([attacked]), attacked / "report.html")
    chromium.open(attacked / "report.html", dark=dark, width=width)
    titles = chromium.run("return DATA.titles")
    for method, cause, remembers in (
        ("CRF-robust", "curvature response", True),
        ("CRF-evidence", "reported residual loss", False),
        ("CRF-robust-evidence", "remembered trust", True),
        ("CRF-FedAvg", "distance", False),
    ):
        choose(chromium, "trust-method", method)
        choose(chromium, "cause", cause)
        chromium.run(WHOSE_WEIGHT_CHANGED)
        for chart in ("cause-map", "causes", *(["memory"] if remembers else [])):
            box = chromium.run(
                "return document.querySelector(`#${arguments[0]} .main-svg`)"
                ".getBoundingClientRect().toJSON()",
                chart,
            )
            assert 0 <= box["left"] < box["right"] <= width, (method, chart)
            assert len(chromium.text(f"{chart}-text")) > 20
        assert chromium.run("return at('memory-figure').hidden") != remembers
        said = meanings(chromium).lower()
        for label in chromium.run("return at('causes').data[0].y"):
            title = next(each for each in titles.values() if each["name"] == label.split("<br>")[0])
            assert f"{title['name']}: {title['about']}".lower() in said, "every bar is described"
    choose(chromium, "trust-method", "FedAvg")
    assert chromium.run("return at('cause-figure').hidden") is True
    assert chromium.run("return document.documentElement.scrollWidth") <= width
    assert chromium.errors() == []


WHOSE_WEIGHT_CHANGED = """
for (const [place, { clients, causes }] of chosenCell().rounds.entries())
  for (const [i, client] of clients.entries())
    if (Object.values(causes.factors).some((each) => each[i] < 0.9))
      return choose(String(client), place);
"""
"""Chooses a client for which a cause lowered the weight, and the round."""


def test_only_causes_that_changed_a_weight_have_a_bar(
    chromium: Browser, attacked: Path, tmp_path: Path
) -> None:
    write_page(read_report([attacked]), tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    choose(chromium, "trust-method", "CRF-robust")
    found = find_rounds(attacked, "crf-robust", 0)
    counts = set()
    for place, record in enumerate(found.records):
        effects = causes_of(record, found.rule)[0].effects
        for i, client in enumerate(record.clients):
            chromium.run("choose(arguments[0], arguments[1])", str(client), place)
            changed = [
                title_of(name).name
                for name, factors in effects.factors.items()
                if not all(0.995 <= each < 1.005
                           for each in (factors[i], effects.factor_medians[name]))
            ]  # fmt: skip
            counts.add(len(changed))
            if changed:
                bars = chromium.run("return at('causes').data[0].y")
                assert [bar.split("<br>")[0] for bar in bars] == changed
            else:
                assert "No cause changed its weight" in chromium.text("causes-text")
    assert 0 in counts
    assert len(counts) > 1


def meanings(browser: Browser) -> str:
    """Return what the list below the table of a round says, in one line."""
    pairs = browser.run(
        "return [...at('meanings').children].map((each) =>"
        "  [...each.children].map((part) => part.textContent))"
    )
    return f"{'; '.join(': '.join(pair) for pair in pairs)}."


def choose(browser: Browser, select: str, *names: str) -> None:
    """Choose an option by its name, as a reader does; of several names, all at once in turn."""
    browser.run(
        "const [id, ...names] = arguments;"
        "const select = at(id);"
        "for (const name of names) {"
        "  select.value = [...select.options].find((o) => o.textContent === name).value;"
        "  select.dispatchEvent(new Event('change'));"
        "}",
        select,
        *names,
    )


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("CRF-FedAvg", "FedAvg"),
        ("CRF-FedAvg", "CRF-robust"),
        ("CRF-robust", "FedAvg"),
        ("FedAvg", "CRF-FedAvg"),
        ("CRF-robust", "CRF-FedAvg"),
    ],
)
def test_of_methods_chosen_in_a_hurry_the_last_is_drawn(
    chromium: Browser, attacked: Path, first: str, last: str
) -> None:
    """One chosen before the other's charts are finished, of which some are then taken away."""
    write_page(read_report([attacked]), attacked / "report.html")
    chromium.open(attacked / "report.html")
    choose(chromium, "trust-method", first, last)
    chromium.run("return new Promise(requestAnimationFrame)")
    # FedAvg keeps no reasons, and the paper's field alone knows affinities.
    expected = [last != "FedAvg", last == "CRF-FedAvg"]
    shown = "return ['causes', 'graph'].map((id) => at(id).querySelector('.main-svg') !== null)"
    WebDriverWait(chromium.driver, 30).until(lambda _: chromium.run(shown) == expected)
    assert chromium.errors() == []


def test_a_cause_and_the_memory_are_drawn_as_recorded(chromium: Browser, attacked: Path) -> None:
    write_page(read_report([attacked]), attacked / "report.html")
    chromium.open(attacked / "report.html")
    choose(chromium, "trust-method", "CRF-robust")
    records = find_rounds(attacked, "crf-robust", 0).records
    for title, cause in (
        ("curvature response", "curvature_response"),
        ("remembered trust", "remembered"),
        ("vote", "vote"),
    ):
        choose(chromium, "cause", title)
        drawn = chromium.run("return at('cause-map').data[0].z")
        for place, record in enumerate(records):
            assert record.reasons is not None
            for client, value in zip(record.clients, record.reasons.causes[cause], strict=True):
                shown = drawn[client][place]
                assert shown == (None if math.isnan(value) else pytest.approx(value)), (
                    cause,
                    place,
                )
    lines = chromium.run("return at('memory').data.map((line) => line.y)")
    assert len(lines) == 4
    tab_to(chromium, "cause")  # by the keyboard too
    press(chromium, Keys.HOME)
    assert chromium.text("cause-map-text").startswith("Trust: from 0 to 1; ")


def view(browser: Browser) -> list[str]:
    """Return run, method, seed, client and round that are shown, and the cause over the rounds."""
    shown = browser.run(
        "return [...['trust-run', 'trust-method', 'trust-seed', 'client'].map(at)"
        "  .map((each) => each && chosenName(each)), at('round').value, chosenName(at('cause'))]"
    )
    return [str(each) for each in shown]


def test_it_opens_where_most_attackers_are_distrusted(
    chromium: Browser, finished: Path, attacked: Path, tmp_path: Path
) -> None:
    folders = [finished, attacked]
    report = read_report(folders)
    low = {
        (number, cell["method"], cell["seed"]): [
            each for each in cell["distrusted"] if each["client"] in cell["attackers"]
        ]
        for number, run in enumerate(report.runs)
        for cell in run.cells
    }
    where = max(low, key=lambda each: len(low[each]))  # the first of equal ones
    number, method, seed = where
    (attacker,) = low[where]  # the run has one
    records = find_rounds(folders[number], method, seed).records
    record = records[attacker["place"]]
    place = record.clients.index(attacker["client"])
    assert record.weight[place] < 0.25 * record.base_weight[place]
    write_page(report, tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    *shown, cause = view(chromium)
    run = report.runs[number].name
    assert shown == [run, method, str(seed), str(attacker["client"]), str(attacker["place"])]
    assert cause == title_of(attacker["reason"]).name
    assert f"client {attacker['client']} (attacks): distrusted" in chromium.text("because")


def test_it_opens_on_the_lowest_multiple_of_those_distrusted(chromium: Browser, page: Path) -> None:
    """Without attackers any distrusted client counts; where there is none, the least trusted."""
    chromium.open(page)
    cell = "{attackers: %s, rounds: [%s], distrusted: %s, method: 'x', seed: 1}"
    round_ = "{clients: [4, 5, 6], weight: [0.1, 0.02, 0.3], base_weight: [0.3, 0.3, 0.3]}"
    of_4, of_5 = "{client: 4, place: 1}", "{client: 5, place: 0}"
    rounds = f"{round_}, {round_}"
    for cells, expected in (
        ([cell % ("[]", rounds, "[]")], [0, 5, 0]),
        ([cell % ("[]", rounds, f"[{of_4}, {of_5}]")], [0, 5, 0]),
        ([cell % ("[4]", rounds, f"[{of_4}, {of_5}]")], [0, 4, 1]),
        ([cell % ("[]", rounds, "[]"), cell % ("[]", rounds, f"[{of_4}]")], [1, 4, 1]),
        ([cell % ("[]", rounds, f"[{of_4}, {of_5}]"), cell % ("[4]", rounds, f"[{of_4}]")],
         [1, 4, 1]),
    ):  # fmt: skip
        runs = ", ".join(f"{{cells: [{each}]}}" for each in cells)
        shown = chromium.run(
            f"const before = DATA; DATA = {{runs: [{runs}]}};"
            "const {run, client, place} = opening(); DATA = before; return [run, client, place]"
        )
        assert shown == expected


def test_attackers_are_marked(chromium: Browser, attacked: Path) -> None:
    (attacker,) = find_rounds(attacked, "crf-robust", 0).attackers
    write_page(read_report([attacked]), attacked / "report.html")
    chromium.open(attacked / "report.html")
    choose(chromium, "trust-method", "CRF-robust")
    assert f"Attackers of the run: {attacker}. A triangle" in chromium.text("attackers")
    marked = chromium.run("return at('weights').data.at(-1)")
    assert (marked["x"], marked["y"]) == ([2, 3], [str(attacker)] * 2)
    for chart in ("weights", "cause-map"):
        ticks = chromium.run("return at(arguments[0]).layout.yaxis.ticktext", chart)
        assert [tick for tick in ticks if "attacks" in tick] == [f"{attacker} (attacks)"]
    for place, words in ((0, "(an attacker, not in this round)"), (1, "(attacks)")):
        chromium.run("choose(arguments[0], arguments[1])", str(attacker), place)
        assert f"client {attacker} {words}: " in chromium.text("because")
        row = chromium.run(
            "return [...document.querySelector('#round-table .chosen').children]"
            "  .map((each) => each.textContent)"
        )
        assert row[:2] == [str(attacker), ("not now", "attacks")[place]]


def test_without_attackers_none_are_marked(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    assert chromium.run("return at('attackers').hidden") is True
    shown = chromium.run("return at('weights').textContent + at('because').textContent")
    assert "attacks" not in shown
    assert chromium.run("return at('weights').data.at(-1).x") == []


def test_who_was_left_out_is_told(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    assert "Round 3: client 2, whose update is not finite" in chromium.text("excluded")
    chromium.run("choose('2', 2)")
    assert "was excluded" in chromium.text("because")
    assert "not finite" in chromium.text("causes-text")
    chromium.run("at('trust-method').value = 0; chooseMethod()")
    assert "no reasons are recorded" in chromium.text("because")
    assert chromium.text("excluded") == "No client was excluded in any round."
    assert chromium.errors() == []


def test_a_round_that_fell_back_is_told(
    chromium: Browser, finished_once: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished_once, tmp_path / "run"))
    path = folder / "cells" / "crf-fedavg-seed-0" / "rounds.jsonl"
    *before, last = path.read_text().splitlines()
    record = json.loads(last)
    record["reasons"]["fell_back"] = True
    path.write_text("\n".join([*before, json.dumps(record)]) + "\n")
    write_page(read_report([folder]), tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    chromium.run("choose('2', 2)")
    assert "its base weight" in chromium.text("because")
    assert "the trust in all clients was zero" in chromium.text("because")
    assert chromium.text("excluded") == f"Round 3: {WORDS['exclusions']['fell_back']}."
    assert chromium.errors() == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"methods": ["krum"]},
            "client {} got the least, 0.00 times its FedAvg weight, and client ",
        ),
        (
            {"methods": ["crf-fedavg"], "partition": {"num_clients": 1}},
            "client 0 got 1.00 times its FedAvg weight.",
        ),
        ({"methods": ["coordinate-median"]}, ""),
    ],
)
def test_who_got_least_is_said_of_all_rounds(
    chromium: Browser, tmp_path: Path, settings: dict, said: str
) -> None:
    carry_out(small_spec(seeds=[0], **settings), tmp_path / "run")
    write_page(read_report([tmp_path / "run"]), tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    records = find_rounds(tmp_path / "run", None, None).records
    idle = [c for c in records[0].clients if not any(r.weight[c] for r in records)]
    begin = "Over all rounds " if said else "This rule gives no client a weight of its own."
    assert chromium.text("weights-text").startswith(begin + said.format(*idle[:1]))
    assert chromium.errors() == []


def test_a_click_in_the_graph_chooses_a_client_of_any_name(
    chromium: Browser, folder: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    path = copy / "cells" / "crf-fedavg-seed-1" / "rounds.jsonl"
    names = {0: "R&D", 1: "<b>"}
    lines = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        record["clients"] = [names.get(each, f"site {each}") for each in record["clients"]]
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    write_page(read_report([copy]), tmp_path / "report.html")
    chromium.open(tmp_path / "report.html")
    choose(chromium, "trust-method", "CRF-FedAvg")
    choose(chromium, "trust-seed", "1")
    for place, name in names.items():
        chromium.run(
            "const points = at('graph').data.map((each, curve) => ({"
            "  curveNumber: curve, pointNumber: arguments[0], text: each.text?.[arguments[0]]}));"
            "at('graph').emit('plotly_click', { points: [points.at(-1)] })",
            place,
        )
        assert chromium.run("return chosenName(at('client'))") == name
    assert chromium.errors() == []


def test_no_two_methods_of_a_run_are_drawn_alike(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    drawn = chromium.run(
        "const [run] = DATA.runs, [curve] = run.measured.accuracy;"
        "run.measured.accuracy = [...Array(32).keys()].map((n) => ({ ...curve, name: `${n}` }));"
        "drawCurves('measured-0', 'accuracy', -1, null);"
        "return at('measured-0').data.map(({ line }) => `${line.color} ${line.dash}`)"
    )
    assert len(set(drawn)) == 32


def test_names_are_only_names(chromium: Browser, page: Path, several: Path) -> None:
    for each in (page, several):
        chromium.open(each)
        assert chromium.driver.title.endswith(" · fedcrf")
        assert chromium.run("return document.querySelectorAll('img, main i').length") == 0
        assert NASTY in chromium.text("holdings-table")
        assert chromium.errors() == []


def test_colours_are_methods_and_dashes_runs(chromium: Browser, several: Path) -> None:
    chromium.open(several)
    drawn = (
        "return at('measured-0').data.filter((each) => each.name)"
        "  .map(({ name, line, showlegend }) => [name, line.color, line.dash, showlegend])"
    )
    names, colours, dashes, named = zip(*chromium.run(drawn), strict=True)
    assert names == ("FedAvg", "CRF-FedAvg") * 2
    assert colours == colours[:2] * 2
    assert dashes == ("solid", "solid", "dash", "dash")
    assert named == (True, True, False, False), "each method once"
    said = chromium.text("measured-0-text")
    assert said.startswith("Best mean: from ")
    assert said.endswith(" Solid lines: <i>damaged. Dashed lines: run.")
    titles = chromium.run("return [0, 1].map((i) => at(`measured-${i}`).layout.yaxis.title.text)")
    assert titles == ["accuracy", "loss (logarithmic scale)"]
    # Four bands would hide one another; those of one run are drawn.
    traces = "return at('measured-0').data.length"
    assert chromium.run(traces) == 4
    choose(chromium, "curves-run", "run")
    assert chromium.run(traces) == 2 * 3
    assert chromium.text("measured-0-text").startswith("Best mean: run: FedAvg ")
    assert chromium.errors() == []


def test_several_runs_are_chosen_and_told_apart(chromium: Browser, several: Path) -> None:
    chromium.open(several)
    notices = chromium.run(
        "return [...document.querySelectorAll('.notices')].map((each) => each.textContent).join()"
    )
    assert "missing could not be read" in notices
    assert "crf-fedavg-seed-1: shown up to round 3: " in notices
    assert chromium.run("return [chosenName(at('trust-run')), trustRun().cells.length]") == [
        "<i>damaged", 4
    ]  # fmt: skip
    lines = "return at('measured-0').data.filter((trace) => trace.name).length"
    both = chromium.run(lines)
    tab_to(chromium, "curves-run")
    press(chromium, Keys.ARROW_DOWN)
    assert (both, chromium.run(lines)) == (4, 2)
    tab_to(chromium, "trust-run")
    press(chromium, Keys.ARROW_DOWN)
    assert chromium.run("return [chosenName(at('trust-run')), trustRun().cells.length]") == [
        "run", 4
    ]  # fmt: skip
    assert chromium.errors() == []
