"""What is said of one client, and of a table's columns, in one line, for tests to look into."""

from __future__ import annotations

from collections.abc import Sequence

from fedcrf.report.explanation import ClientCauses, client_name, title_of, weight_lines


def sentence(causes: ClientCauses) -> str:
    return f"client {client_name(causes)}: {'; '.join(weight_lines(causes))}"


def columns_explained(columns: Sequence[str]) -> str:
    """What the columns of a table of clients are about."""
    titles = [title for title in map(title_of, columns) if title.about]
    return f"{'; '.join(f'{each.column}: {each.about}' for each in titles)}."
