"""Studies: a base run and named axes; and suites, which are studies from a file."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from fedcrf.checks import check_whole
from fedcrf.errors import FedcrfError, cut, unknown_name
from fedcrf.experiments.analysis.tables import BASELINE
from fedcrf.experiments.settings import (
    NO_TOML,
    Options,
    averaging_method,
    build,
    convert,
    flat,
    hashable,
    merge,
    nested,
    read_toml,
    setting,
)
from fedcrf.experiments.spec import (
    NOBODY,
    CellKey,
    CellSpec,
    RunSpec,
    check_used,
    from_outside,
    resolve,
    with_current_names,
)
from fedcrf.experiments.store import Store, check_folder, check_free
from fedcrf.extensions import short_name

PROTOCOLS = ("byzfl", "karimireddy", "flpoison", "honest-sites", "hospitals")
"""Suites of the field's protocols; each file names its source and its departures from it."""

SUITES = ("attacks", "noise", *PROTOCOLS)
"""The suites that come with the package; beside them is ``paper``, of the paper's tables."""

NOT_IN_FILES = {"name", "dataset", "settings"}
"""Fields of a suite that its file must not set."""

FOLDER_NAME = re.compile(r"\w[\w.\-]{0,99}")
"""What partitions and conditions may be called, as their cells have folders of these names."""

SAID_ELSEWHERE = {
    "methods": ("at the top of the file", "with --methods"),
    "seeds": ("at the top of the file", "with --seeds"),
    "attack": (
        "in the [[conditions]] that have one, or it would reach all of them",
        "with --conditions and --attackers, or in a suite of your own",
    ),
}
"""Keys that [run] must not set: where a suite's file sets them, and how they are chosen."""


@dataclass(frozen=True)
class Axis:
    """What varies in a study, and what each of its values stands for in a run file.

    Attributes:
        name: ``dataset``, ``partition``, ``condition``, or the key of a setting as in a run file,
            such as ``rules.crf.bandwidth``.
        layers: Each value with the sections of a run file that it stands for. Values that are lists
            in a run file are tuples.
    """

    name: str
    layers: tuple[tuple[Any, Options], ...]

    @classmethod
    def of_setting(cls, key: str, values: Sequence[Any]) -> Axis:
        """Return the axis of a setting, by its key in a run file."""
        different = {(isinstance(value, bool), value): value for value in values}  # True is 1
        return cls(key, tuple((value, nested(key, value)) for value in different.values()))

    @property
    def is_setting(self) -> bool:
        """Whether a setting varies; if not, the values are names, such as those of conditions."""
        return "." in self.name


def setting_folder(at: Mapping[str, Any]) -> str:
    """Return the folder of a combination, such as ``bandwidth=0.5,iterations=3``.

    Of an axis that is no setting it has the value alone.
    """
    named = zip(short_keys([*at]), at.items(), strict=True)
    parts = (f"{name}=" * ("." in key) + value_text(value, repr) for name, (key, value) in named)
    return ",".join(parts).replace("/", "-")  # a path is a value too


@dataclass(frozen=True)
class Study:
    """A base run of methods × seeds, and named axes.

    Attributes:
        base: The layers that all runs share, as for `resolve`.
        axes: What varies, beside methods and seeds.
        settings: Further layers, whose settings no axis may vary.
    """

    base: tuple[Options, ...]
    axes: tuple[Axis, ...] = ()
    settings: tuple[Options, ...] = ()

    @cached_property
    def points(self) -> list[tuple[dict[str, Any], RunSpec]]:
        """Every combination of the axes' values, by axis, with its run of methods × seeds."""
        said = [_current_key(axis.name) for axis in self.axes]
        layers = (with_current_names(layer, notice=False) for layer in self.settings)
        fixed = dict(flat(merge(*layers)))
        for key in said:
            if said.count(key) > 1:
                raise FedcrfError(f"--over {key} is said twice: give all its values at once")
            if key in fixed:
                raise FedcrfError(
                    f"--over {key} varies what --set fixes, or a flag: leave one of them out"
                )
        points = [(at, self._resolved(at, layers)) for at, layers in product(self.axes)]
        varied = [axis.layers[0][1] for axis in self.axes if axis.is_setting]
        check_used([*self.settings, *varied], [spec for _, spec in points])
        return points

    @cached_property
    def cells(self) -> Mapping[CellKey, CellSpec]:
        """Every cell of every point."""
        return {
            (*at.values(), cell.method.name, cell.seed): cell
            for at, spec in self.points
            for cell in spec.cells()
        }

    def runs(self, folder: Path) -> list[tuple[RunSpec, Store]]:
        """Return what is run, and where in a folder its results go: a run's folder a point."""
        names = [setting_folder(at) for at, _ in self.points]
        for name in names:
            if names.count(name) > 1:
                raise FedcrfError(
                    f"two values of --over make one folder, '{name}': name one otherwise"
                )
        return [
            (spec, Store(folder / name)) for name, (_, spec) in zip(names, self.points, strict=True)
        ]

    def check_folder(self, folder: Path, tables: str, what: str) -> None:
        """Raise a `FedcrfError` unless a folder has runs of the study or its tables, or is free.

        ``tables`` is the name of their file; an error calls the results ``what``.
        """
        check_folder(folder)
        of_study = [folder / tables, *(store.path for _, store in self.runs(folder))]
        if not any(path.exists() for path in of_study):
            check_free(folder, tables, what)

    def default_values(self) -> tuple[Any, ...]:
        """Return the default on each axis: its value in the description without the axes.

        All are None if the description is no run without them.
        """
        try:
            spec = self.resolve()
        except FedcrfError:
            return (None,) * len(self.axes)
        described = dict(flat(spec.describe_informed()))
        return tuple(hashable(described.get(_current_key(axis.name))) for axis in self.axes)

    def resolve(self, *layers: Options) -> RunSpec:
        """Return the run that the base and the settings describe, and some layers over them.

        Settings of what another run has from outside go by its short name here too.
        """
        return resolve(*self.base, *self.settings, *layers, beside=self._outside)

    @cached_property
    def _outside(self) -> Mapping[str, Mapping[str, str]]:
        varied = (layer for axis in self.axes for _, layer in axis.layers)
        return from_outside([*self.base, *self.settings, *varied])

    def _resolved(self, at: Mapping[str, Any], layers: Sequence[Options]) -> RunSpec:
        """Return the run of a combination.

        If the combination cannot be run, but could be without its value on some axis, the error
        names that axis and value. It does not where the value is a setting's: it names that anyway.
        """
        try:
            return self.resolve(*layers)
        except FedcrfError as error:
            fault = ""
            for number, axis in enumerate(self.axes):
                others = [*layers[:number], *layers[number + 1 :]]
                with suppress(FedcrfError):
                    self.resolve(*others)
                    fault = "" if axis.is_setting else f"{axis.name} {at[axis.name]}: "
                    break
            raise FedcrfError(f"{fault}{error}") from None


def product(axes: Sequence[Axis]) -> Iterator[tuple[dict[str, Any], list[Options]]]:
    """Yield every combination of the axes' values, with the layers of a run file that say it."""
    for chosen in itertools.product(*(axis.layers for axis in axes)):
        named = zip(axes, chosen, strict=True)
        yield {axis.name: value for axis, (value, _) in named}, [layer for _, layer in chosen]


def parse_axis(text: str) -> Axis:
    """Return the axis of ``section.key=v1,v2``; the values are read as TOML."""
    key, equals, values = text.partition("=")
    mend = f"--over {cut(text)}: write --over section.key=value,value"
    if not equals or "." not in key:
        raise FedcrfError(mend)
    try:
        parsed = tomllib.loads(f"values = [{values}]")["values"]
    except NO_TOML:
        words = filter(None, map(str.strip, values.split(",")))
        parsed = [setting(f"value={word}")["value"] for word in words]
    if not parsed or any(isinstance(value, dict) for value in parsed):
        raise FedcrfError(mend)
    return Axis.of_setting(key.strip(), [hashable(value) for value in parsed])


def _current_key(key: str) -> str:
    """Return the key of a setting by today's name; folders keep the name that was given."""
    ((now, _),) = flat(with_current_names(nested(key, None), notice=False))
    return now


def short_number(value: float) -> str:
    """Return a number in six digits, or in all of its digits if six would change it."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def value_text(value: Any, number: Callable[[float], str] = short_number) -> str:
    """Return a setting's value as it stands in tables and figures; ``number`` writes floats."""
    if isinstance(value, list | tuple):
        return "-".join(value_text(each, number) for each in value)
    return number(value) if isinstance(value, float) else str(value)


def short_keys(keys: Sequence[str]) -> list[str]:
    """Return the last part of each key; the whole key where two of them have the same last part."""
    last = [key.rpartition(".")[2] for key in keys]
    return [part if last.count(part) == 1 else key for key, part in zip(keys, last, strict=True)]


@dataclass(frozen=True)
class Condition:
    """What is wrong in a cell: an attack with its settings, or nothing."""

    name: str  # in results and on the command line
    title: str  # in tables
    attack: dict[str, Any] = field(default_factory=dict)  # as in a run file
    attacks: dict[str, dict[str, Any]] = field(default_factory=dict)  # likewise
    # The condition without the wrong clients, in which oracles show what could be reached
    ideal: str | None = None


@dataclass(frozen=True)
class Quick:
    """The small size of a suite, which takes ten minutes on two cores.

    It is run where nothing else is chosen. What it leaves out is as in the suite. Conditions may be
    given by the titles of their groups.
    """

    run: dict[str, Any] = field(default_factory=dict)  # over the suite's own
    methods: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    partitions: tuple[str, ...] | None = None
    conditions: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Suite:
    """Methods × seeds × partitions × conditions on one data set.

    Attributes:
        run: What all runs share, as for `resolve`; over it is what those of a data set share.
        partitions: By name, the section of a run file.
        conditions: By name; the first is the one in which nobody is wrong.
        groups: By title, conditions whose worst case is shown.
        last_rounds: The score is the mean test accuracy of so many rounds, the last ones.
        attackers: How many clients attack under a condition that does not say it itself. Where
            nobody attacks, informed rules expect as many, so that the tables show what that costs.
        additional: Whether they come in addition to the clients that hold the data; see
            `Schedule`. Where nobody attacks there are none.
        quick: The suite at its small size; None if it has none.
        lists: By name, methods that stand together among a file's ``methods``.
        dataset: Which of its data sets.
        settings: What was chosen of runs; it wins over the others.
    """

    title: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    run: dict[str, Any]
    datasets: dict[str, dict[str, Any]]
    partitions: dict[str, dict[str, Any]]
    conditions: dict[str, Condition]
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    last_rounds: PositiveInt = 5
    attackers: PositiveInt | None = None
    additional: bool | None = None
    quick: Quick | None = None
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)
    told: Any = None  # of older files: rules are informed of how many attack anyway
    # What a file does not say
    name: str = ""
    dataset: str = ""
    settings: tuple[Options, ...] = ()

    @property
    def layers(self) -> tuple[Options, ...]:
        """What all runs share, as for `resolve`."""
        return (self.run, self.datasets[self.dataset], *self.settings)

    def with_parts_of(self, complete: Suite) -> Suite:
        """Return what was chosen of a suite with all of its partitions and conditions."""
        return replace(self, partitions=complete.partitions, conditions=complete.conditions)

    @property
    def quiet(self) -> str:
        """The condition in which nobody is wrong."""
        return next(iter(self.conditions))

    @property
    def ideals(self) -> set[str]:
        """The conditions in which the wrong clients are left out."""
        return {each.ideal for each in self.conditions.values() if each.ideal is not None}

    @property
    def oracles(self) -> tuple[str, ...]:
        """The methods that are run without the wrong clients.

        They average as FedAvg does, with the objective and the server optimizer of the others.
        """
        return tuple(dict.fromkeys(map(averaging_method, self.methods)))

    @cached_property
    def numbers(self) -> str:
        """How many clients are wrong, of how many: ``"2 or 4 of 10 clients"``.

        Conditions that cannot be, such as 4 attackers of 4 clients, do not count.
        """
        specs = []
        one = {"methods": [BASELINE], "seeds": [0]}
        for _, layers in product(self.study.axes):
            with suppress(FedcrfError):  # `cells` says it of those that are to be run
                specs.append(self.study.resolve(*layers, one))
        attacked = [(spec.threat, spec.num_clients) for spec in specs if spec.threat is not None]
        sizes = {size for _, size in attacked} or {spec.num_clients for spec in specs}
        wrong = {threat.schedule.count(size) for threat, size in attacked}
        clients, attackers = (" or ".join(map(str, sorted(each))) for each in (sizes, wrong))
        return f"{attackers} of {clients} clients" if wrong else f"{clients} clients"

    @cached_property
    def study(self) -> Study:
        """The base run of methods × seeds on the data set, and the partitions and conditions."""
        asked = {"methods": list(self.methods), "seeds": list(self.seeds)}
        partitions = ((name, {"partition": said}) for name, said in self.partitions.items())
        conditions = ((name, self.layer(name)) for name in self.conditions)
        axes = Axis("partition", tuple(partitions)), Axis("condition", tuple(conditions))
        return Study((*self.layers, asked), axes)

    def layer(self, condition: str) -> dict[str, Any]:
        """Return what a condition says of a run.

        Where it leaves the wrong clients out, only the oracles are asked.
        """
        chosen = self.conditions[condition]
        shared = {} if self.attackers is None else {"attackers": self.attackers}
        if self.additional is not None and chosen.attack:
            shared["additional"] = self.additional
        attack = {**shared, **(chosen.attack or {"name": NOBODY})}
        asked = {"methods": list(self.oracles)} if condition in self.ideals else {}
        return {"attack": attack, "attacks": chosen.attacks, **asked}

    @cached_property
    def cells(self) -> Mapping[CellKey, CellSpec]:
        """The cells of the study: of each partition, condition, method and seed."""
        cells = self.study.cells
        for _, _, method, _ in cells:
            if method not in (*self.methods, *self.oracles):
                raise FedcrfError(
                    f"suite {self.name} compares methods by name, and server.optimizer makes one "
                    f"{method}: leave it out, and name that method"
                )
        return cells

    def chosen(
        self,
        *,
        methods: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        partitions: Sequence[str] | None = None,
        conditions: Sequence[str] | None = None,
        attackers: int | None = None,
        clients: int | None = None,
        settings: Sequence[Options] = (),
        quick: bool = False,
    ) -> Suite:
        """Return the suite with some of its parts, and with your methods, seeds and settings.

        What is not chosen is as in the suite, or as in its small size if ``quick``. Conditions are
        given by name, or by the titles of their groups, in upper or lower case. The quiet condition
        is always kept, and so are the ideals of those chosen. ``attackers`` is how many attack
        under every condition with an attack, and how many the rules expect.

        ``settings`` are layers for `resolve` that win over the suite's. Three things are an error
        in them: a key of `SAID_ELSEWHERE`, a setting that a chosen part says itself, and one that
        no method or condition uses.
        """
        small = self.quick if quick else Quick()  # which chooses nothing
        if small is None:
            raise FedcrfError(f"suite {self.name} has no small size: leave --quick out")
        suite = replace(
            self._of_parts(
                small.partitions if partitions is None else partitions,
                small.conditions if conditions is None else conditions,
            ),
            name=f"{self.name}-quick" if quick else self.name,
            methods=tuple(_first(methods, small.methods, self.methods)),
            seeds=tuple(_first(seeds, small.seeds, self.seeds)),
        )
        settings = [with_current_names(layer) for layer in settings]
        for key, (_, how) in SAID_ELSEWHERE.items():
            if any(key in layer for layer in settings):
                raise FedcrfError(f"{key} is no setting of a whole suite: choose it {how}")
        for layer in settings:
            suite._check_free(layer, "it")
        if attackers is not None:
            check_whole("attackers", attackers, least=1)
            suite._check_free({"attack": {"attackers": attackers}}, "--attackers")
        numbers: dict[str, Any] = {}
        if clients is not None:
            check_whole("clients", clients, least=2)
            numbers = {"partition": {"num_clients": clients}}
            suite._check_free(numbers, "--clients")
        suite = replace(
            suite,
            settings=(*self.settings, small.run, numbers, *settings),
            attackers=self.attackers if attackers is None else attackers,
        )
        if settings:
            check_used(settings, [spec for _, spec in replace(suite, seeds=(0,)).study.points])
        return suite

    def _of_parts(
        self, partitions: Sequence[str] | None, conditions: Sequence[str] | None
    ) -> Suite:
        """Return the suite with some of its partitions and conditions; all where left out."""
        chosen, kept = self.partitions, self.conditions
        if partitions is not None:
            if not partitions:
                raise FedcrfError(f"no partition is chosen: name one of suite {self.name} at least")
            for name in partitions:
                if name not in chosen:
                    raise unknown_name(f"partition of suite {self.name}", name, chosen)
            chosen = {name: each for name, each in chosen.items() if name in partitions}
        if conditions is not None:
            asked = [each for name in conditions for each in self._named(name)]
            names = {self.quiet, *asked, *(kept[name].ideal for name in asked)}
            kept = {name: each for name, each in kept.items() if name in names}
        return replace(self, partitions=chosen, conditions=kept)

    def _named(self, name: str) -> Sequence[str]:
        """Return the condition of a name, or those of the group of a title."""
        if name in self.conditions:
            return [name]
        groups = {title.casefold(): names for title, names in self.groups.items()}
        if name.casefold() not in groups:
            known = [*self.conditions, *self.groups]
            raise unknown_name(f"condition of suite {self.name}", name, known)
        return groups[name.casefold()]

    def _check_free(self, layer: Options, flag: str) -> None:
        """Raise a `FedcrfError` where a part of the suite says a setting of a layer itself.

        Parts are the data set, partitions and conditions, by whose names results go.
        """
        data = (f"data set {self.dataset}", {"data": self.datasets[self.dataset].get("data", {})})
        partitions = ((f"partition {k}", {"partition": v}) for k, v in self.partitions.items())
        conditions = (
            (f"condition {name}", {"attack": each.attack, "attacks": each.attacks})
            for name, each in self.conditions.items()
        )
        for part, section in (data, *partitions, *conditions):
            own = dict(flat(with_current_names(section)))
            for key in own.keys() & dict(flat(layer)).keys():
                raise FedcrfError(
                    f"{part} of suite {self.name} says {key} itself: leave {flag} out, or give a "
                    "suite of your own"
                )


def read_suite(name: str, dataset: str | None = None) -> Suite:
    """Return a suite of the package, or of a TOML file, on one of its data sets, else the first."""
    if name in (*SUITES, "paper"):
        said = _packaged(name)
    elif name.endswith(".toml"):
        said = read_toml(Path(name), "suite")
    else:
        raise unknown_name("suite", name, SUITES)
    try:
        suite = replace(_parsed({**_packaged("shared"), **said}), name=Path(name).stem)
        _check(suite)
    except FedcrfError as error:
        raise FedcrfError(f"suite {name}: {error}") from None
    dataset = next(iter(suite.datasets)) if dataset is None else dataset
    if dataset not in suite.datasets:
        raise unknown_name(f"data set of suite {name}", dataset, suite.datasets)
    return replace(suite, dataset=dataset)


def default_folder(suite: Suite, chosen: Suite) -> Path:
    """Return the results folder of what is chosen of a suite.

    There is one for each data set, and others for numbers of clients that are not the suite's.
    """
    name, numbers = f"{chosen.name}-{suite.dataset}", chosen.with_parts_of(suite).numbers
    if numbers != suite.numbers:
        name += f"-{numbers.replace(' ', '-')}"
    return Path("runs") / "robustness" / name


def _parsed(said: Mapping[str, Any]) -> Suite:
    """Return the suite that a file's content describes."""
    for key in NOT_IN_FILES & said.keys():
        raise FedcrfError(f"unknown key '{key}': leave it out")
    listed = convert(list[dict[str, Any]], said.get("conditions", []), "conditions")
    conditions = [build(Condition, each, f"conditions.{at}") for at, each in enumerate(listed)]
    named = {each.name: each for each in conditions}
    if not named or len(named) < len(conditions):
        raise FedcrfError(
            "it has no conditions or two of one name: give each a name of its own, the first to "
            "the one in which nobody is wrong"
        )
    parts: dict[str, Any] = {"conditions": named}
    if "quick" in said:
        parts["quick"] = build(Quick, said["quick"], "quick")
    suite = build(Suite, {**said, **parts}, "")
    listed_methods = (suite.lists.get(name, (name,)) for name in suite.methods)
    return replace(suite, methods=tuple(itertools.chain.from_iterable(listed_methods)))


def _check(suite: Suite) -> None:
    """Raise a `FedcrfError` where a part of a file's suite cannot be, or does not fit another."""
    shared_by_runs = {"run": suite.run} | {f"datasets.{k}": v for k, v in suite.datasets.items()}
    shared_by_runs["quick.run"] = {} if suite.quick is None else suite.quick.run
    for section, options in shared_by_runs.items():
        for key, (place, _) in SAID_ELSEWHERE.items():
            if key in options:
                raise FedcrfError(f"leave {section}.{key} out, and say {key} {place}")
    if not suite.partitions:
        raise FedcrfError("it has no partitions: name one, such as [partitions.iid]")
    if not suite.datasets:
        raise FedcrfError("it has no datasets: name one, such as [datasets.digits]")
    conditions = suite.conditions
    for each in (*suite.partitions, *conditions):
        if not FOLDER_NAME.fullmatch(each):
            raise FedcrfError(
                f"'{each}' is to name a folder: give at most 100 letters, digits, dots, dashes and "
                "underscores, the first no dot"
            )
    for title, names in suite.groups.items():
        for each in names:
            if each not in conditions:
                raise unknown_name(f"condition in group '{title}'", each, conditions)
    ideals = {name: each.ideal for name, each in conditions.items() if each.ideal is not None}
    for name, ideal in ideals.items():
        if ideal not in conditions:
            raise unknown_name(f"ideal of condition '{name}'", ideal, conditions)
    if suite.quick is not None:
        suite._of_parts(suite.quick.partitions, suite.quick.conditions)
    titles = [each.title for each in conditions.values()]
    choices = [each.casefold() for each in (*conditions, *suite.groups)]
    for what, called in (("title of two conditions", titles), ("name of two choices", choices)):
        if twice := [each for each in called if called.count(each) > 1]:
            raise FedcrfError(f"'{twice[0]}' is the {what}: give each one of its own")
    for name, ideal in ideals.items():
        if ideal in (name, suite.quiet, *ideals):
            raise FedcrfError(
                f"'{ideal}' cannot be what is ideal for '{name}': give a condition of its own, in "
                "which the wrong clients are left out"
            )
    for name, condition in conditions.items():
        for attack in condition.attacks:
            if short_name(attack) != short_name(condition.attack.get("name", "")):
                raise FedcrfError(
                    f"condition '{name}' has settings of '{attack}', which is not its attack: "
                    "leave them out"
                )


def _packaged(name: str) -> dict[str, Any]:
    place = resources.files("fedcrf.experiments") / "suites" / f"{name}.toml"
    return tomllib.loads(place.read_text(encoding="utf-8"))


def _first(*given: Any) -> Any:
    """Return the first that is given; None where none is."""
    return next((each for each in given if each is not None), None)
