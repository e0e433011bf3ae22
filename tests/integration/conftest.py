from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.command_line import CommandLine


@pytest.fixture(scope="session")
def command_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with CommandLine(tmp_path_factory.mktemp("command-line")) as running:
        yield running
