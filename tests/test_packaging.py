"""What the package asks of its environment."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if "==" in line
)


@pytest.mark.parametrize("name", ["torch", "numba"])
def test_what_depends_on_the_compiler_of_others_ends_at_the_version_tried(name: str) -> None:
    asked = [
        *PROJECT["optional-dependencies"]["simulation"],
        *PROJECT["optional-dependencies"]["fast"],
    ]
    versions = next(each.specifier for each in map(Requirement, asked) if each.name == name)
    assert PINNED[name] in versions
    major, minor, *_ = PINNED[name].split(".")
    assert f"{major}.{int(minor) + 1}.0" not in versions
