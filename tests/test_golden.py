"""What has a behaviour number does what it did when it got that number."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from fedcrf.rules.byzfl import ByzFLRule
from golden import Outcome, cases, complaint, read_table, renewed

CASES = cases()
TABLE = read_table()

ROW = {"behaviour": [1, 4], "outcome": [0.5, None]}


@pytest.mark.parametrize("name", CASES)
def test_it_does_what_it_did_under_its_behaviour_number(name: str) -> None:
    case = CASES[name]
    if isinstance(case.of[0], ByzFLRule) and find_spec("byzfl") is None:
        pytest.skip("byzfl is not installed")
    told = complaint(name, case.numbers, case.computed(), TABLE.get(name))
    assert not told, told


def test_the_table_has_rows_of_what_there_is_alone() -> None:
    assert sorted(TABLE) == sorted(CASES), "python tests/golden.py renews the table"


@pytest.mark.parametrize(
    ("numbers", "outcome", "row", "told"),
    [
        ([1, 4], [0.5, None], ROW, ""),
        ([1, 4], [0.5000001, None], ROW, ""),
        ([1, 4], [0.51, None], ROW, "raise `behaviour`"),
        ([1, 4], [0.5, 0.0], ROW, "raise `behaviour`"),
        ([1, 4], [0.5], ROW, "raise `behaviour`"),
        ([2, 4], [0.51, None], ROW, "[2, 4], and [1, 4] in golden.json"),
        ([1, 5], [0.5, None], ROW, "[1, 5], and [1, 4] in golden.json"),
        ([1, 4], [0.5, None], None, "has no row"),
    ],
)
def test_a_row_must_have_its_number_and_outcome(
    numbers: list[int], outcome: Outcome, row: dict[str, Any] | None, told: str
) -> None:
    said = complaint("rule x", numbers, outcome, row)
    assert told in said
    assert bool(said) == bool(told)


def test_a_renewal_takes_another_outcome_under_another_number_alone() -> None:
    table = {"same": ROW, "raised": ROW, "changed": ROW, "gone": ROW}
    found = {
        "same": ([1, 4], [0.5000001, None]),
        "raised": ([2, 4], [0.7, None]),
        "changed": ([1, 4], [0.7, None]),
        "new": ([1], [0.1]),
    }
    rows, refused = renewed(table, found)
    assert rows["same"] == ROW
    assert rows["raised"] == {"behaviour": [2, 4], "outcome": [0.7, None]}
    assert rows["new"] == {"behaviour": [1], "outcome": [0.1]}
    assert "gone" not in rows
    assert len(refused) == 1
    assert refused[0].startswith("changed does something else")
