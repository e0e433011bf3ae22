"""One round in words: all its clients, or one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedcrf.experiments.analysis.tables import Table
from fedcrf.report.explanation import (
    causes_of,
    causes_table,
    clients_table,
    excluded_nodes_table,
    most_changed,
    neighbours_table,
    round_line,
    sentence,
    verdict_line,
    weight_lines,
)
from fedcrf.report.lookup import Explained, find_client, notices
from fedcrf.report.verdict import last_verdicts
from fedcrf.simulation.records import RoundRecord


@dataclass(frozen=True)
class InWords:
    """A round in words and numbers.

    Attributes:
        lines: In words.
        tables: In numbers, below them; each has rows.
    """

    lines: Sequence[str]
    tables: Sequence[Table]


def in_words(found: Explained, record: RoundRecord, client: int | str | None = None) -> InWords:
    """Return what happened in a round: a verdict in words, then the numbers.

    Args:
        found: The run.
        record: The round.
        client: One of its clients; all of them by default.

    Raises:
        FedcrfError: The client took no part.
    """
    causes = causes_of(record, found.rule, found.attackers)
    before = [each for each in found.records if each.round <= record.round]
    verdicts = last_verdicts(before, found.rule)
    last = " (the last)" if record is found.records[-1] else ""
    lines = [f"{found.title}, round {record.round}{last}", *notices(found)]
    if record.stayed is not None:
        lines.append(f"the model stayed as it was: {record.stayed}")
    if client is None:
        lines.append(sentence(round_line(record, verdicts)))
        chosen = most_changed(causes)
        tables = [clients_table(causes), excluded_nodes_table(record)]
    else:
        chosen = [find_client(causes, client, record.round)]
        tables = [causes_table(chosen[0]), neighbours_table(chosen[0])]
    lines += [sentence(verdict_line(each, verdicts[each.place])) for each in chosen]
    if client is not None:
        lines += [f"  - {line}" for line in weight_lines(chosen[0])]
    return InWords(lines, [table for table in tables if table.rows])
