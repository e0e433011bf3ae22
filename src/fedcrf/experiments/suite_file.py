"""Suites as files have them: those of the package, and of one's own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError
from pydantic_core import ErrorDetails

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.experiments.settings import wanted
from fedcrf.experiments.suite import LAST_ROUNDS, Condition, Suite

SUITES = ("attacks", "noise")
"""The suites that come with the package."""

FOLDER_NAME = re.compile(r"\w[\w.\-]{0,99}")
"""What partitions and conditions may be called, as their cells have folders of these names."""

SAID_ELSEWHERE = {
    "methods": "at the top of the file",
    "seeds": "at the top of the file",
    "attack": "in the [[conditions]] that have one, or it would reach all of them",
}
"""Where a suite says what does not belong into the sections that all runs share."""


class _SuiteFile(BaseModel):
    """A suite as its TOML file has it, with the sections of `shared.toml` that it leaves out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    methods: list[str]
    seeds: list[int]
    last_rounds: PositiveInt = LAST_ROUNDS
    attackers: PositiveInt | None = None
    told: dict[str, Any] = {}  # of older files: rules that are told how many attack know it anyway
    run: dict[str, Any]
    datasets: dict[str, dict[str, Any]]
    partitions: dict[str, dict[str, Any]]
    groups: dict[str, list[str]] = {}
    conditions: list[Condition]


def read_suite(name: str, dataset: str | None = None) -> Suite:
    """Return a suite that comes with the package, or that of a TOML file, on one of its data sets.

    Args:
        name: Of the suite, or of its file.
        dataset: Of its data sets; the first where left out.

    Raises:
        FedcrfError: There is none of that name, it is no suite, or not for that data set.
    """
    file = _parsed(name)
    _check_sections(name, file)
    if dataset is None:
        dataset = next(iter(file.datasets))
    if dataset not in file.datasets:
        raise unknown_name(f"data set of suite {name}", dataset, file.datasets)
    return Suite(
        name=Path(name).stem,
        title=file.title,
        dataset=dataset,
        methods=tuple(file.methods),
        seeds=tuple(file.seeds),
        last_rounds=file.last_rounds,
        layers=(file.run, file.datasets[dataset]),
        partitions=file.partitions,
        conditions=_conditions(name, file),
        groups={title: tuple(names) for title, names in file.groups.items()},
        attackers=file.attackers,
    )


def _parsed(name: str) -> _SuiteFile:
    """Return the content of a suite's file, over what all suites share."""
    if name in SUITES:
        text = _packaged(name)
    elif name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FedcrfError(f"suite {name} cannot be read: {error}") from None
    else:
        raise unknown_name("suite", name, SUITES)
    try:
        shared = tomllib.loads(_packaged("shared"))
        return _SuiteFile.model_validate({**shared, **tomllib.loads(text)})
    except tomllib.TOMLDecodeError as error:
        raise FedcrfError(f"suite {name} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise FedcrfError(f"suite {name}: {_mend(error.errors()[0])}") from None


def _check_sections(name: str, file: _SuiteFile) -> None:
    """Raise a `FedcrfError` where what all runs share is not theirs, or there is nowhere to run."""
    shared_by_runs = {"run": file.run} | {f"datasets.{k}": v for k, v in file.datasets.items()}
    for section, options in shared_by_runs.items():
        for key, place in SAID_ELSEWHERE.items():
            if key in options:
                raise FedcrfError(f"suite {name}: leave {section}.{key} out, and say {key} {place}")
    for kind, given in (("partitions.iid", file.partitions), ("datasets.digits", file.datasets)):
        if not given:
            sections = kind.partition(".")[0]
            raise FedcrfError(f"suite {name} has no {sections}: name one, such as [{kind}]")
    for each in (*file.partitions, *(condition.name for condition in file.conditions)):
        if not FOLDER_NAME.fullmatch(each):
            raise FedcrfError(
                f"suite {name}: '{each}' is to name a folder: give at most 100 letters, "
                "digits, dots, dashes and underscores, the first no dot"
            )


def _conditions(name: str, file: _SuiteFile) -> Mapping[str, Condition]:
    """Return the conditions by name, and check what is said of them."""
    conditions = {each.name: each for each in file.conditions}
    if len(conditions) < len(file.conditions) or not conditions:
        raise FedcrfError(
            f"suite {name} has no conditions or two of one name: give each a name of its own, the "
            "first to the one in which nobody is wrong"
        )
    for each in [name for names in file.groups.values() for name in names]:
        if each not in conditions:
            raise unknown_name(f"condition of suite {name}", each, conditions)
    reference = file.conditions[0].name
    for condition in file.conditions:
        ideal = condition.ideal
        if ideal is None:
            continue
        if ideal not in conditions:
            raise unknown_name(f"condition of suite {name}", ideal, conditions)
        if ideal in (condition.name, reference) or conditions[ideal].ideal is not None:
            raise FedcrfError(
                f"suite {name}: '{ideal}' cannot be what is ideal for '{condition.name}': give a "
                "condition of its own, in which the wrong clients are left out"
            )
    for condition in file.conditions:
        for attack in condition.attacks:
            if attack != condition.attack.get("name"):
                raise FedcrfError(
                    f"suite {name}: condition '{condition.name}' has settings of '{attack}', which "
                    "is not its attack: leave them out"
                )
    return conditions


def _packaged(name: str) -> str:
    """Return a file of the package's suites."""
    place = resources.files("fedcrf.experiments") / "suites" / f"{name}.toml"
    return place.read_text(encoding="utf-8")


def _mend(error: ErrorDetails) -> str:
    """Return in a line what is wrong with a suite's file, and what to give."""
    place, kind = ".".join(map(str, error["loc"])), error["type"]
    if kind == "missing":
        return f"{place} is missing: give it"
    if kind == "extra_forbidden":
        fields = Condition.model_fields if len(error["loc"]) > 1 else _SuiteFile.model_fields
        return str(unknown_name("key", place, fields))
    return f"{place} is {error['input']!r}: give {wanted(error)}"
