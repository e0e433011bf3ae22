"""The table of all clients of a round can be read on a narrow terminal, whoever they are."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.tables import Table
from fedcrf.report.effects import Effects, Verdict, effects_of, last_verdicts, verdicts_of
from fedcrf.report.explanation import (
    WIDTH,
    ClientCauses,
    causes_of,
    clients_table,
    find_client,
    find_round,
    find_rounds,
    in_words,
    shortened,
    whole_name,
)
from fedcrf.rules import RULES
from fedcrf.simulation.records import Client
from integration.command_line import CommandLine
from report.test_explanation import honest, one_round, spoilt, told_of

ALL = ("client", "weight", "FedAvg's", "multiple", "trust", "verdict", "main reason")
NODES = [2**64 - 1 - place for place in range(6)]
LONG = [f"the hospital of Sankt Gallen, ward {place}" for place in range(6)]
LOW = Verdict("distrusted", 2, "curvature_response")


def printed(table: Table, width: int = WIDTH) -> list[str]:
    """Return the lines that a terminal shows, without the title."""
    text = io.StringIO()
    Console(file=text, width=width).print(table.for_terminal())
    return [line.rstrip() for line in text.getvalue().splitlines()[1:]]


def clients(
    names: Sequence[Client] = range(6), nodes: Sequence[Client] | None = None
) -> list[ClientCauses]:
    """Return clients of whom all columns are known."""
    effects = Effects(values={"trust": [0.5] * len(names)})
    return [
        ClientCauses(
            name, 10, 0.01, 0.167, effects=effects, place=i, node=nodes[i] if nodes else None
        )
        for i, name in enumerate(names)
    ]


def assert_readable(table: Table) -> None:
    """Every client has one line, in which every cell is whole."""
    header, rule, *lines = printed(table)
    assert max(map(len, (header, rule, *lines))) <= WIDTH
    for cells, line in zip((table.header, *table.rows), (header, *lines), strict=True):
        assert line.split() == " ".join(cells).split()


@pytest.mark.parametrize("method", ["fedavg", "crf-fedavg", "crf-robust", "crf-robust-evidence"])
def test_real_rounds_fit_the_terminal(attacked: Path, method: str) -> None:
    found = find_rounds(attacked, method, 0)
    seen = [effects_of(record, found.rule) for record in found.records]
    for record, verdicts in zip(found.records, verdicts_of(found.records, seen), strict=True):
        table = clients_table(causes_of(record, found.rule, found.attackers), verdicts)
        assert_readable(table)
        assert len(table.rows) == len(record.clients)
        assert table.note == ""
        if method == "fedavg":
            assert table.header == ALL[:4]
        else:
            assert table.header[:6] == ALL[:6]


@pytest.mark.parametrize(
    ("updates", "rule", "header", "second"),
    [
        (spoilt(), None, ALL, ("3", "0.000", "0.000", "–", "0.125", "excluded", "not finite")),
        (honest(), None, ALL[:-1], None),
        (honest(), RULES["fedavg"](), ALL[:4], ("3", "0.167", "0.167", "1.00")),
        (honest(), RULES["trimmed-mean"](), ALL[:4], ("3", "–", "0.167", "–")),
    ],
)
def test_what_says_nothing_is_left_out(
    updates: object, rule: object, header: tuple[str, ...], second: tuple[str, ...] | None
) -> None:
    record, rule = one_round(updates, rule)
    table = clients_table(causes_of(record, rule), last_verdicts([record], rule))
    assert table.header == header
    assert second is None or table.rows[1] == second
    assert_readable(table)


@pytest.mark.parametrize(
    ("names", "nodes", "reason", "left_out"),
    [
        (range(6), None, "curvature_response", set()),
        (range(6), NODES, "curvature_response", {"multiple"}),
        (range(6), NODES, "reported residual_loss", {"multiple"}),
        (["a site of 20 letters", "Zug"], None, "norm", {"multiple"}),
        (LONG, None, "curvature_response", {"multiple", "trust"}),
        (LONG, NODES, "reported a_measure_of_ones_own_with_a_name", {"multiple", "trust"}),
    ],
)
def test_long_names_leave_less_beside_them(
    names: Sequence[Client], nodes: Sequence[Client] | None, reason: str, left_out: set[str]
) -> None:
    causes = clients(names, nodes)
    table = clients_table(causes, [LOW._replace(reason=reason)] * len(causes))
    assert_readable(table)
    assert {*ALL} - {*table.header} == left_out
    cut = nodes is not None or names is LONG
    assert ("Ask for a client by its name" in table.note) == cut
    for place, each in enumerate(causes):
        for cell in table.rows[place][: 1 + (nodes is not None)]:
            assert find_client(causes, cell, 1) is each, "it can be asked for as it is shown"


@pytest.mark.parametrize(
    ("names", "most", "short"),
    [
        ([], 3, []),
        (["north", "south"], 5, ["north", "south"]),
        (["123456789", "1"], 5, ["12…89", "1"]),
        (["1234567890", "1299999990"], 5, ["123…90", "129…90"]),
        (["aaaaaaaa", "aaaaaaa"], 5, ["aaa…aaa", "aaaaaaa"]),
        (["same-name", "same-name"], 5, ["sa…me", "sa…me"]),
    ],
)
def test_shortened_names_are_told_apart(names: list[str], most: int, short: list[str]) -> None:
    assert shortened(names, most) == short
    assert [whole_name(each, names) for each in short] == names


@pytest.mark.parametrize(
    ("asked", "whole"),
    [
        (3, "3"),
        ("12…89", "123456789"),
        ("12…", "123456789"),
        ("1…", "1…"),  # of which there are two
        ("…", "…"),
        ("1…7", "1…7"),  # which is a name
        ("12", "12"),
        ("12...89", "12...89"),
    ],
)
def test_a_shortened_name_stands_for_the_only_one_it_fits(asked: object, whole: str) -> None:
    assert whole_name(asked, ["123456789", "1987", "3", "1…7"]) == whole


def test_a_shortened_name_finds_the_last_round_of_its_client() -> None:
    first = one_round(honest())[0].model_copy(update={"round": 1, "nodes": NODES})
    last = one_round(honest(5))[0].model_copy(update={"round": 2})
    found = told_of([first, last])
    short = shortened([str(node) for node in NODES], 9)
    assert find_round(found, None, short[5]) is first
    with pytest.raises(FedcrfError, match="client 1844…9999 took no part in round 2"):
        find_client(causes_of(last, found.rule), "1844…9999", 2)


def test_not_a_number_is_a_dash() -> None:
    causes = [replace(each, base_weight=0.0, weight=math.nan) for each in clients()]
    table = clients_table(causes, [Verdict("unjudged", 1)] * len(causes))
    assert {row[1:] for row in table.rows} == {("–", "0.000", "–", "0.500")}


def test_the_terminal_names_who_is_in_doubt_and_shows_all(
    command_line: CommandLine, attacked: Path
) -> None:
    found = find_rounds(attacked, "crf-robust", 0)
    (attacker,) = found.attackers
    told = command_line("explain", attacked, "--method", "crf-robust").out
    assert told.count("Client ") == told.count(f"Client {attacker} (attacks): distrusted") == 1
    assert told.count(" trusted ") == len(found.records[-1].clients) - 1
    first = command_line("explain", attacked, "--method", "crf-robust", "--round", 1).out
    assert f"attackers of the run: {attacker}; in this round: none\n" in first


def test_who_is_in_doubt_is_told_beside_many_of_more_weight() -> None:
    record = one_round(honest(14))[0]
    multiples = [0.7] * 2 + [1.6] * 12
    weights = [
        multiple * base for multiple, base in zip(multiples, record.base_weight, strict=True)
    ]
    found = told_of([record.model_copy(update={"weight": weights})])
    lines, _ = in_words(found, find_round(found, None, None))
    assert [line for line in lines if "Client 0: doubted" in line or "Client 1: doubted" in line]
