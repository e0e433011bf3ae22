"""What to run: the description of a run, checked and complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedcrf.attacks import ATTACKS, RENAMED, Attack, Schedule, Threat, find_attack
from fedcrf.checks import current_names
from fedcrf.data import PartitionSettings, find_partition
from fedcrf.data.site_files import SITES, site_sizes
from fedcrf.errors import FedcrfError, failing, unknown_name
from fedcrf.experiments.settings import (
    DataSettings,
    Method,
    Options,
    RoundSettings,
    ServerSettings,
    build,
    check_own,
    convert,
    find_method,
    find_server_optimizer,
    folder_name,
    hashable,
    merge,
    plain,
    with_server_optimizer,
    without_name,
)
from fedcrf.extensions import AbsentError, is_outside, short_name, stand_in
from fedcrf.models import MODELS, FromFactory, ModelPlan, find_model
from fedcrf.objectives import OBJECTIVES, Objective, find_objective
from fedcrf.rules import RULES, SERVER_OPTIMIZERS, Optimized, Rule, ServerOptimizer, find_rule
from fedcrf.rules.base import informed_rule
from fedcrf.simulation.engine import check_evidence
from fedcrf.simulation.federation import check_participation
from fedcrf.simulation.local_training import LocalTraining


@dataclass(frozen=True)
class Kind:
    """What the names in a section of a run file stand for."""

    # The package's own, by name; a thing from outside may go by its short name, see `short_name`
    known: Mapping[str, type[Any]]
    find: Callable[[str], type[Any]]  # looks up a name, also outside the package
    base: type = object  # of what stands in for a thing that is gone, where a result is read


KINDS: Mapping[str, Kind] = {
    "rules": Kind(RULES, find_rule, Rule),
    "objectives": Kind(OBJECTIVES, find_objective),
    "server_optimizers": Kind(SERVER_OPTIMIZERS, find_server_optimizer),
    "attacks": Kind(ATTACKS, find_attack, Attack),
}
"""The sections of a run file whose subsections are settings of named things."""

MODEL = Kind(MODELS, find_model)
"""The section of the one model."""

DEFAULT_METHODS = ("fedavg", "fedprox", "crf-fedavg", "crf-fedprox")
DEFAULT_SEEDS = (0, 1, 2)


PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "digits": {
        "partition": {"alpha": 0.1},
        "model": {"name": "mlp", "hidden": [64]},
        "training": {"learning_rate": 0.05, "batch_size": 16},
    },
    "mnist": {
        "partition": {"alpha": 0.003},
        "model": {"name": "mlp"},
        "training": {"learning_rate": 0.01},
    },
    "cifar10": {
        "partition": {"alpha": 0.1},
        "model": {"name": "resnet9"},
        "training": {"learning_rate": 0.01},
    },
    "cifar100": {
        "partition": {"alpha": 0.1},
        "model": {"name": "resnet18"},
        "training": {"learning_rate": 0.005},
    },
}
"""By data set the settings that it has by default: the paper's, where it names them."""

OTHERS: Mapping[str, Mapping[str, Any]] = {"model": {"name": "resnet9"}}
"""For any other data set."""

AS_HELD = "as-held"
"""The partition of real sites."""

NOBODY = "none"
"""The attack of a run in which nobody attacks, and rules may be informed of ``attackers``."""

SHARED = ("data", "partition", "model", "training", "rounds")
"""Sections that the description of a run and those of its cells have in common."""

ATTACK = ("attack", "attacks")
"""Sections that only those of a run with an attack have."""

NOTHING: Mapping[str, Mapping[str, str]] = {}
"""What `from_outside` finds where nothing is from outside."""

CellKey = tuple[Any, ...]
"""A cell of a study: its value on each axis, its method and its seed."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a run and its cells have in common. Without a threat all clients are honest."""

    data: DataSettings
    partition: PartitionSettings
    model_name: str
    model: ModelPlan
    training: LocalTraining
    rounds: RoundSettings
    attack_name: str = ""
    threat: Threat | None = None

    @property
    def num_clients(self) -> int:
        """How many clients there are, additional attackers among them."""
        holders = self.partition.num_clients
        return holders if self.threat is None else self.threat.schedule.federation_size(holders)

    def sections(self) -> dict[str, Any]:
        """Return as plain values what a run file says of it: `SHARED`, with a threat `ATTACK`."""
        sections = {
            "data": plain(self.data),
            "partition": plain(self.partition),
            "model": {"name": self.model_name, **plain(self.model)},
            "training": plain(self.training),
            "rounds": plain(self.rounds),
        }
        if self.threat is not None:
            sections["attack"] = {"name": self.attack_name, **plain(self.threat.schedule)}
            sections["attacks"] = {self.attack_name: plain(self.threat.attack)}
        return sections


@dataclass(frozen=True, kw_only=True)
class CellSpec(Setup):
    """One cell of a run's grid: one method with one seed, everything resolved.

    The rule is informed of the attackers where it needs to be. Without a server optimizer the
    aggregate is the next model.
    """

    method: Method
    seed: int
    objective: Objective
    rule: Rule
    server_optimizer: ServerOptimizer | None

    @property
    def name(self) -> str:
        """The cell's name, and its folder's."""
        return f"{folder_name(self.method.name)}-seed-{self.seed}"

    @property
    def server_rule(self) -> Rule:
        """The rule, with the server optimizer behind it where there is one."""
        if self.server_optimizer is None:
            return self.rule
        return Optimized(self.rule, self.server_optimizer)

    def describe(self) -> dict[str, Any]:
        """Return the whole description as plain values; equal for equal cells."""
        method = self.method
        described = {
            "method": method.name,
            "seed": self.seed,
            "objective": {"name": method.objective, **plain(self.objective)},
            "rule": {"name": method.rule, **plain(self.rule)},
        }
        if (optimizer := self.server_optimizer) is not None:
            described["server_optimizer"] = {"name": method.server_optimizer, **plain(optimizer)}
        return described | self.sections()


@dataclass(frozen=True, kw_only=True)
class RunSpec(Setup):
    """The description of a run: methods × seeds on one data set and partition."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    # Rules, objectives, server optimizers and attacks in use, by section and short name
    things: Mapping[str, Mapping[str, Any]]

    def cells(self) -> list[CellSpec]:
        """Return the cells of the grid, seed by seed, so that paired results come early."""
        return [self.cell(method, seed) for seed in self.seeds for method in self.methods]

    def cell(self, method_name: str, seed: int) -> CellSpec:
        """Return one cell of the grid, of a method of the run."""
        method = find_method(method_name, known=False)
        rule = self._thing("rules", method.rule)
        return CellSpec(
            **{each.name: getattr(self, each.name) for each in fields(Setup)},
            method=method,
            seed=seed,
            objective=self._thing("objectives", method.objective),
            rule=self._informed(rule, self.threat.schedule if self.threat else None, seed),
            server_optimizer=self._thing("server_optimizers", method.server_optimizer),
        )

    def _thing(self, section: str, name: str | None) -> Any:
        return None if name is None else self.things[section][short_name(name)]

    def _informed(self, rule: Rule, schedule: Schedule | None, seed: int) -> Rule:
        """Return a rule informed of the seed, and how many attack; without a schedule nobody does.

        Raises:
            FedcrfError: The rule asks how many attack, and that is not known.
        """
        num_clients = self.num_clients
        drawn = self.rounds.clients_per_round or num_clients
        if schedule is None:
            return informed_rule(rule, 0, drawn, seed)
        informed = informed_rule(rule, schedule.count_among(drawn, num_clients), drawn, seed)
        asks_how_many = _changed(rule, informed).keys() - {"seed"}
        exact = schedule.is_count and drawn == num_clients
        if asks_how_many and self.partition.may_leave_empty and not exact:
            raise FedcrfError(
                f"partition {self.partition.scheme} may leave clients empty, and a rule that is to "
                "be informed how many attack would be informed wrong: give a number of attackers "
                "(--attackers 3) and all clients every round, or choose another partition"
            )
        return informed

    def expecting(self, schedule: Schedule) -> RunSpec:
        """Return a run in which nobody attacks, and rules expect the attackers of a schedule.

        What they would be informed of becomes settings of theirs, the seed excepted.
        """
        rules = {}
        for name, rule in self.things["rules"].items():
            quiet, ready = (self._informed(rule, each, seed=0) for each in (None, schedule))
            rules[name] = replace(rule, **_changed(quiet, ready))
        return replace(self, things={**self.things, "rules": rules})

    def describe(self) -> dict[str, Any]:
        """Return the whole description as plain values, as it stands in a run file.

        What a rule is informed of is no part of it: under another attack that is something else.
        `describe_informed` adds it.
        """
        methods = [find_method(method, known=False) for method in self.methods]
        objectives = [method.objective for method in methods]
        optimizers = [each.server_optimizer for each in methods if each.server_optimizer]
        sections = self.sections()
        described = {
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            **{key: sections[key] for key in SHARED},
            "rules": {each.rule: plain(self._thing("rules", each.rule)) for each in methods},
            "objectives": {name: plain(self._thing("objectives", name)) for name in objectives},
            **{key: sections[key] for key in ATTACK if key in sections},
        }
        if optimizers:
            described["server_optimizers"] = {
                name: plain(self._thing("server_optimizers", name)) for name in optimizers
            }
        return described

    def describe_informed(self) -> dict[str, Any]:
        """Return the description with the rules as they are informed in a run of seed 0."""
        cells = [self.cell(method, seed=0) for method in self.methods]
        rules = {short_name(cell.method.rule): plain(cell.rule) for cell in cells}
        return {**self.describe(), "rules": rules}


def _changed(before: Rule, after: Rule) -> dict[str, Any]:
    """Return the settings in which a rule differs from what it was before."""
    settings = {each.name: getattr(after, each.name) for each in fields(after) if each.init}
    return {name: value for name, value in settings.items() if value != getattr(before, name)}


def _built(kind: Kind, name: str, given: Options, where: str, reading: bool) -> Any:
    """Return a named thing with the settings that are given.

    If a stored result is read and the thing is gone, a stand-in is returned.
    """
    try:
        found = kind.find(name)
    except AbsentError:
        if not reading:
            raise
        found = stand_in(name, hashable(given), kind.base)
    if found is FromFactory:
        if given:
            raise FedcrfError(
                f"model {name} is no class of settings: leave {', '.join(given)} out (--set), or "
                "give a dataclass with a build method"
            )
        given = {"name": name}
    try:
        built: Any = build(found, given, where, stored=reading)
    except FedcrfError as error:
        if not reading or name in kind.known or "unknown key" not in str(error):
            raise
        raise FedcrfError(
            f"{error} Or name it in 'renamed' or 'gone' of {name}, or take its file away to look "
            "at the run"
        ) from None
    if not reading and name not in kind.known:
        check_own(built, where)
    if getattr(built, "sketch_seed", 0) is None:
        # Nobody attacks a simulation's sketches, and its run file says what repeats it.
        return replace(built, sketch_seed=0)
    return built


def with_current_names(description: Options, *, notice: bool = True) -> dict[str, Any]:
    """Return a description, or a layer of one, with today's names of settings and of attacks."""
    current = dict(description)
    for section, kind in KINDS.items():
        if not isinstance(current.get(section), Mapping):
            continue
        if section == "attacks":
            current[section] = current_names(current[section], RENAMED, section, notice=notice)
        for name, options in current[section].items():
            renamed = getattr(kind.known.get(name), "renamed", {})
            if renamed and isinstance(options, Mapping):
                now = current_names(options, renamed, f"{section}.{name}", notice=notice)
                current[section] = {**current[section], name: now}
    attack = current.get("attack")
    if isinstance(attack, Mapping) and str(attack.get("name")) in RENAMED:
        (name,) = current_names({attack["name"]: None}, RENAMED, "attack", notice=notice)
        current["attack"] = {**attack, "name": name}
    return current


def _section(layer: Options, name: str) -> Options:
    """Return a section of a layer; an empty one where it is none, which is said elsewhere."""
    section = layer.get(name, {})
    return section if isinstance(section, Mapping) else {}


def resolve(
    *layers: Options, reading: bool = False, beside: Mapping[str, Mapping[str, str]] = NOTHING
) -> RunSpec:
    """Return the checked and complete description from layers of a run file's shape.

    Args:
        layers: Nested mappings such as a run file's content and what the flags say; later ones
            win, and all of them win over the data set's preset. Earlier names are accepted.
        reading: Whether they are of a stored run, whose code may be gone.
        beside: What `from_outside` found in the runs beside it: settings of that go by its short
            name here too.

    Raises:
        FedcrfError: A key that does not exist, or a value that cannot be; the one at fault and
            the nearest key are named.
    """
    current = [with_current_names(layer, notice=not reading) for layer in layers]
    full_names = _take_short_names(current, beside)
    given = merge(*current)
    known = ["methods", "seeds", *SHARED, *KINDS, "attack", "server"]
    for key, value in given.items():
        if key not in known:
            raise unknown_name("key", key, known)
        if key not in ("methods", "seeds") and not isinstance(value, Mapping):
            raise FedcrfError(f"{key} is a section: write [{key}] and its settings below")
    given = _said_of_each(given, reading)
    dataset = str(given.get("data", {}).get("dataset", DataSettings.dataset))
    preset = PRESETS.get(dataset, OTHERS)
    if dataset.startswith(SITES):
        preset = _of_sites(dataset, given, reading)
    merged = merge(preset, given)
    model = merged["model"]
    if model["name"] != preset["model"]["name"]:
        model = given["model"]  # the preset's settings are for another model
    attack = _checked_attack(merged.get("attack", {}))
    attack_name = "" if attack["name"] == NOBODY else attack["name"]
    methods = [find_method(name, known=False) for name in merged["methods"]]
    used: dict[str, list[str | None]] = {
        "rules": [method.rule for method in methods],
        "objectives": [method.objective for method in methods],
        "server_optimizers": [method.server_optimizer for method in methods],
        "attacks": [attack_name],
    }
    things = {
        section: _things(section, names, merged.get(section, {}), full_names[section], reading)
        for section, names in used.items()
    }
    seeds = convert(tuple[int, ...], merged.get("seeds", DEFAULT_SEEDS), "seeds")
    schedule = build(Schedule, without_name(attack), "attack")
    threat = Threat(things["attacks"][short_name(attack_name)], schedule) if attack_name else None
    spec = RunSpec(
        methods=tuple(dict.fromkeys(merged["methods"])),
        seeds=tuple(dict.fromkeys(seeds)),
        data=build(DataSettings, merged.get("data", {}), "data"),
        partition=build(PartitionSettings, merged.get("partition", {}), "partition"),
        model_name=model["name"],
        model=_built(MODEL, str(model["name"]), without_name(model), "model", reading),
        training=build(LocalTraining, merged.get("training", {}), "training"),
        rounds=build(RoundSettings, merged.get("rounds", {}), "rounds"),
        things=things,
        attack_name=attack_name,
        threat=threat,
    )
    _check(spec, reading)
    if threat is None and "attackers" in attack:
        return spec.expecting(schedule)
    return spec


def from_outside(layers: Iterable[Options]) -> dict[str, dict[str, str]]:
    """Return the rules and attacks from outside that layers name, by section and short name."""
    found: dict[str, dict[str, str]] = {"rules": {}, "attacks": {}}
    for layer in layers:
        methods = convert(tuple[str, ...], layer.get("methods", ()), "methods")
        rules = [find_method(name, known=False).rule for name in methods]
        attack = str(_section(layer, "attack").get("name", ""))
        for section, names in (("rules", rules), ("attacks", [attack])):
            found[section] |= {short_name(name): name for name in names if is_outside(name)}
    return found


def _take_short_names(
    layers: Sequence[dict[str, Any]], beside: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Rename things in layers to their short names, in place; return the full ones by section.

    A short name may be that of a thing in ``beside``; then the full one is found there.
    """
    full_names: dict[str, dict[str, str]] = {section: {} for section in KINDS}
    for layer in layers:
        for section, names in full_names.items():
            if options := _section(layer, section):
                names |= {short_name(name): name for name in options}
                layer[section] = {short_name(name): each for name, each in options.items()}
    for section, outside in beside.items():
        names = full_names[section]
        for short, name in outside.items():
            if names.get(short) == short and short not in KINDS[section].known:
                names[short] = name
    return full_names


def _things(
    section: str,
    used: Iterable[str | None],
    settings: Mapping[str, Options],
    full_names: Mapping[str, str],
    reading: bool,
) -> dict[str, Any]:
    """Return the things in use of a section, with their settings, by short name.

    The settings of things that are not in use are checked all the same. Two things in use may not
    have one short name.
    """
    kind = KINDS[section]
    names: dict[str, str] = {}
    for name in filter(None, used):
        short = short_name(name)
        # A name of the package stands for its own thing, in use or not
        other = short if short != name and short in kind.known else name
        if names.setdefault(short, other) != name:
            raise FedcrfError(
                f"two of the {section} are called {short} ('{name}' and '{names[short]}'): "
                "give one of the classes another name"
            )
    built = {
        short: _built(kind, name, settings.get(short, {}), f"{section}.{short}", reading)
        for short, name in {**full_names, **names}.items()
    }
    return {short: built[short] for short in names}


def _check(spec: RunSpec, reading: bool) -> None:
    """Raise a `FedcrfError` where a run cannot be as a whole, though each of its parts can."""
    if not spec.methods or not spec.seeds:
        raise FedcrfError("a run needs at least one method and one seed")
    if min(spec.seeds) < 0:
        raise FedcrfError(f"seed {min(spec.seeds)}: give seeds of 0 or more")
    check_participation(spec.rounds.clients_per_round, spec.num_clients)
    if not reading:
        find_partition(spec.partition.scheme)
    if spec.threat is not None:
        spec.threat.check(spec.num_clients, spec.rounds.clients_per_round)
    for method in spec.methods:  # every name and setting is looked at before anything runs
        cell = spec.cell(method, spec.seeds[0])
        check_evidence(cell.rule.wanted_evidence)
        with failing(f"rule {type(cell.rule).__name__} failed ({{}})"):
            cell.rule.check_clients(spec.rounds.clients_per_round or spec.num_clients)


def check_used(settings: Iterable[Options], specs: Sequence[RunSpec]) -> None:
    """Raise a `FedcrfError` where none of the runs uses some setting of these layers.

    This is for the command line: a run file may hold settings of methods that are not run today.
    """
    partitions = {spec.partition for spec in specs}
    used = {section: merge(*(spec.things[section] for spec in specs)) for section in KINDS}
    for layer in map(with_current_names, settings):
        for section, things in used.items():
            for name, options in layer.get(section, {}).items():
                if short_name(name) not in things:
                    user = "no attack is" if section == "attacks" else "none of the methods uses"
                    keys = ", ".join(f"{section}.{name}.{key}" for key in options)
                    keys = keys or f"{section}.{name}"
                    raise FedcrfError(f"{user} '{name}': leave {keys} out, or choose what has it")
        for key in layer.get("partition", {}):
            if all(key in each.unused for each in partitions):
                schemes = ", ".join(sorted({each.scheme for each in partitions}))
                raise FedcrfError(
                    f"partition {schemes} does not use {key}: leave partition.{key} out, or "
                    "choose another partition"
                )


def cell_of(description: Options) -> CellSpec:
    """Return the cell that `CellSpec.describe` described.

    Settings that are new since have their defaults; things that are gone have a stand-in.
    """
    try:
        parts = ["rule", "objective"]
        if "server_optimizer" in description:
            parts.append("server_optimizer")
        named = {part: description[part] for part in parts}
        whole = {
            **{key: description[key] for key in SHARED},
            **{key: description[key] for key in ATTACK if key in description},
            "methods": [description["method"]],
            "seeds": [description["seed"]],
            **{f"{part}s": {each["name"]: without_name(each)} for part, each in named.items()},
        }
        spec = resolve(whole, reading=True)
    except (KeyError, TypeError) as error:
        raise FedcrfError(f"a cell's description is not complete: {error}") from None
    return spec.cells()[0]


def default_folder(spec: RunSpec) -> Path:
    """Return the results folder of a description: one for each setting of data and clients."""
    dataset = short_name(spec.data.dataset.removeprefix(SITES)).strip("./").replace("/", "-")
    name = f"{dataset}-{short_name(spec.model_name)}-{clients_name(spec.partition)}"
    if spec.threat is not None:
        name += f"-{short_name(spec.attack_name)}-{spec.threat.schedule.attackers:g}attackers"
    return Path("runs") / name


def clients_name(partition: PartitionSettings) -> str:
    """Return a name for how the examples are dealt out, fit for a file."""
    skew = "" if "alpha" in partition.unused else f"-alpha{partition.alpha:g}"
    return f"{short_name(partition.scheme)}{skew}-{partition.num_clients}clients"


def _of_sites(dataset: str, given: Options, reading: bool) -> Mapping[str, Mapping[str, Any]]:
    """Return the default settings of real sites, which are not to be dealt out or cut short."""
    model = {"model": {"name": "mlp"}}
    if reading:
        return model
    partition, data = (_section(given, name) for name in ("partition", "data"))
    if partition.get("scheme", AS_HELD) != AS_HELD or data.get("limit") is not None:
        raise FedcrfError(
            "the data are sites, each with examples of its own: leave --partition and --limit out"
        )
    sizes = site_sizes(dataset, data.get("label_column"))
    if partition.get("num_clients", len(sizes)) != len(sizes):
        raise FedcrfError(f"there are {len(sizes)} sites: leave --clients out")
    held = {"scheme": AS_HELD, "num_clients": len(sizes), "sizes": sizes, "min_examples": 1}
    return {**model, "partition": held}


def _said_of_each(given: Options, reading: bool) -> dict[str, Any]:
    """Return a description without [server]: its methods and optimizers say the same one by one."""
    server = build(ServerSettings, given.get("server", {}), "server")
    names = convert(tuple[str, ...], given.get("methods", DEFAULT_METHODS), "methods")
    methods = [find_method(name, known=not reading) for name in names]
    if server.optimizer is not None:
        if all(each.server_optimizer for each in methods):
            raise FedcrfError(
                f"[server] optimizer {server.optimizer}: every method names its own; leave it out "
                "(--server-optimizer)"
            )
        methods = [
            each if each.server_optimizer else with_server_optimizer(each, server.optimizer)
            for each in methods
        ]
    settings = {}
    if server.learning_rate is not None:
        used = {each.server_optimizer for each in methods if each.server_optimizer}
        settings = {name: {"learning_rate": server.learning_rate} for name in used}
        if not used:
            raise FedcrfError(
                f"[server] learning_rate {server.learning_rate}: no method has a server optimizer; "
                "name one (--server-optimizer)"
            )
    rest = {key: value for key, value in given.items() if key != "server"}
    said = {"methods": [each.name for each in methods], "server_optimizers": settings}
    return merge(rest, said)


def _checked_attack(options: Options) -> Options:
    """Return a section of the attack whose name is one, or `NOBODY`."""
    if not options:
        return {"name": NOBODY}
    if "name" not in options:
        raise FedcrfError("[attack] has no name: say which one, with --attack or attack.name")
    if options["name"] == NOBODY:
        for key in options:
            if key not in ("name", "attackers"):
                raise FedcrfError(f"nobody attacks: leave attack.{key} out, or name an attack")
    elif not (options["name"] and isinstance(options["name"], str)):
        raise unknown_name("attack", str(options["name"]), ATTACKS)
    return options
