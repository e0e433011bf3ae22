"""What is told of one client in one line, for tests to look into."""

from __future__ import annotations

from fedcrf.report.explanation import ClientCauses, client_name, numbers_told


def sentence(causes: ClientCauses) -> str:
    return f"client {client_name(causes)}: {'; '.join(numbers_told(causes))}"
