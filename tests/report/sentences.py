"""What is said of one client in one line, and the page's table of clients, for tests to see."""

from __future__ import annotations

from collections.abc import Sequence

from fedcrf.report.explanation import (
    ClientCauses,
    _number,
    client_name,
    columns_of,
    title_of,
    weight_lines,
)


def sentence(causes: ClientCauses) -> str:
    return f"client {client_name(causes)}: {'; '.join(weight_lines(causes))}"


def columns_explained(columns: Sequence[str]) -> str:
    """What the columns of a table of clients are about, by their names in full."""
    titles = [title for title in map(title_of, columns) if title.about]
    return f"{'; '.join(f'{each.name}: {each.about}' for each in titles)}."


def page_table(causes: Sequence[ClientCauses]) -> list[list[str]]:
    """Return the page's table of clients with all that is known of them, its header first."""
    columns = columns_of(causes)

    def written(causes: ClientCauses, name: str) -> str:
        if name in ("client", "node"):
            return str(getattr(causes, name))
        if name == "num_examples":
            return str(causes.num_examples).removesuffix(".0")
        if name == "attacker":
            return "attacks" if causes.attacks else "not now" if causes.attacker else ""
        return _number(causes.value(name), title_of(name).digits)

    header = [title_of(name).column for name in columns]
    return [header, *([written(each, name) for name in columns] for each in causes)]
