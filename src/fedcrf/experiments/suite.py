"""Suites: the same methods under many conditions, such as attacks, and what is asked of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.experiments.spec import CellSpec, RunSpec, resolve

SUITES = ("attacks", "noise")
"""The suites that come with the package."""

BASELINE = "fedavg"
"""The method that the others are compared with."""


class Condition(BaseModel):
    """What befalls the clients.

    Attributes:
        name: How it is called in results and on the command line.
        title: How tables call it.
        attack: The section of a run file; empty where all clients are honest.
        attacks: Settings of the attack, likewise.
        ideal: The condition in which FedAvg shows what could be had here: without the clients
            that are wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    attack: dict[str, Any] = {}
    attacks: dict[str, dict[str, Any]] = {}
    ideal: str | None = None


class _SuiteFile(BaseModel):
    """A suite as its TOML file has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    methods: list[str]
    seeds: list[int]
    last_rounds: int = 5
    run: dict[str, Any]
    datasets: dict[str, dict[str, Any]]
    partitions: dict[str, dict[str, Any]]
    groups: dict[str, list[str]]
    conditions: list[Condition]


@dataclass(frozen=True)
class Point:
    """One cell of a suite's grid: a method with a seed on a partition under a condition."""

    partition: str
    condition: str
    method: str
    seed: int


@dataclass(frozen=True)
class Suite:
    """Methods × seeds × partitions × conditions on one data set.

    Attributes:
        name: Of the suite.
        title: What it shows.
        dataset: Which of its data sets.
        methods: Names of methods.
        seeds: Their seeds.
        last_rounds: The score is the mean test accuracy of so many rounds, the last ones.
        layers: What all runs share, as for `resolve`.
        partitions: By name, the section of a run file.
        conditions: By name; the first is the one in which nobody is wrong.
        groups: By title, conditions whose worst case is shown.
        complete: The partitions and conditions before some were chosen; its own where none were.
    """

    name: str
    title: str
    dataset: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    last_rounds: int
    layers: tuple[Mapping[str, Any], ...]
    partitions: Mapping[str, Mapping[str, Any]]
    conditions: Mapping[str, Condition]
    groups: Mapping[str, tuple[str, ...]]
    complete: Suite | None = None

    @property
    def whole(self) -> Suite:
        """The suite with all its partitions and conditions."""
        if self.complete is None:
            return self
        return replace(self.complete, layers=self.layers)

    @property
    def reference(self) -> str:
        """The condition in which nobody is wrong."""
        return next(iter(self.conditions))

    def spec(
        self, partition: str, condition: str, methods: Sequence[str], seeds: Sequence[int]
    ) -> RunSpec:
        """Return the run of some methods and seeds on a partition under a condition."""
        chosen = self.conditions[condition]
        return resolve(
            *self.layers,
            {"partition": self.partitions[partition]},
            {"attack": chosen.attack, "attacks": chosen.attacks},
            {"methods": list(methods), "seeds": list(seeds)},
        )

    @cached_property
    def cells(self) -> Mapping[Point, CellSpec]:
        """The whole grid.

        Where a condition leaves the wrong clients out, only FedAvg is asked.
        """
        ideals = {each.ideal for each in self.conditions.values()}
        return {
            Point(partition, condition, cell.method.name, cell.seed): cell
            for partition in self.partitions
            for condition in self.conditions
            for cell in self.spec(
                partition,
                condition,
                [BASELINE] if condition in ideals else self.methods,
                self.seeds,
            ).cells()
        }

    def chosen(
        self,
        *,
        methods: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        partitions: Sequence[str] | None = None,
        conditions: Sequence[str] | None = None,
        settings: Sequence[Mapping[str, Any]] = (),
    ) -> Suite:
        """Return the suite with only some of its parts, or with others of yours.

        Args:
            methods: Any methods.
            seeds: Any seeds.
            partitions: Names of the suite's.
            conditions: Names of the suite's; the reference and what is ideal for them stay.
            settings: Layers for `resolve` that win over the suite's.

        Raises:
            FedcrfError: The suite has no such partition or condition.
        """
        for name in partitions or ():
            if name not in self.partitions:
                raise unknown_name(f"partition of suite {self.name}", name, self.partitions)
        for name in conditions or ():
            if name not in self.conditions:
                raise unknown_name(f"condition of suite {self.name}", name, self.conditions)
        kept = dict(self.conditions)
        if conditions is not None:
            ideals = {self.conditions[name].ideal for name in conditions}
            names = {self.reference, *conditions, *ideals}
            kept = {name: each for name, each in kept.items() if name in names}
        return replace(
            self,
            methods=self.methods if methods is None else tuple(methods),
            seeds=self.seeds if seeds is None else tuple(seeds),
            partitions={
                name: section
                for name, section in self.partitions.items()
                if partitions is None or name in partitions
            },
            conditions=kept,
            complete=self.whole,
            layers=(*self.layers, *settings),
        )


def read_suite(name: str, dataset: str) -> Suite:
    """Return a suite that comes with the package, or that of a TOML file, on one of its data sets.

    Raises:
        FedcrfError: There is none of that name, it is no suite, or not for that data set.
    """
    if name in SUITES:
        place = resources.files("fedcrf.experiments") / "suites" / f"{name}.toml"
        text = place.read_text(encoding="utf-8")
    elif name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FedcrfError(f"suite {name} cannot be read: {error}") from None
    else:
        raise unknown_name("suite", name, SUITES)
    try:
        file = _SuiteFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise FedcrfError(f"suite {name} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place_of = ".".join(map(str, first["loc"]))
        raise FedcrfError(f"suite {name}: {place_of}: {first['msg']}") from None
    if dataset not in file.datasets:
        raise unknown_name(f"data set of suite {name}", dataset, file.datasets)
    conditions = {each.name: each for each in file.conditions}
    named = [each.ideal for each in file.conditions if each.ideal]
    for names in file.groups.values():
        named += names
    for each in named:
        if each not in conditions:
            raise unknown_name(f"condition of suite {name}", each, conditions)
    return Suite(
        name=Path(name).stem,
        title=file.title,
        dataset=dataset,
        methods=tuple(file.methods),
        seeds=tuple(file.seeds),
        last_rounds=file.last_rounds,
        layers=(file.run, file.datasets[dataset]),
        partitions=file.partitions,
        conditions=conditions,
        groups={title: tuple(names) for title, names in file.groups.items()},
    )
