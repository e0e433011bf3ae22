"""What to run: the description of a run, checked and complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedcrf.attacks import ATTACKS, RENAMED, Schedule, Threat
from fedcrf.checks import current_names
from fedcrf.data import PartitionSettings
from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.experiments.methods import Method, find_method, with_server_optimizer
from fedcrf.experiments.settings import (
    DataSettings,
    Options,
    RoundSettings,
    ServerSettings,
    T,
    build,
    convert,
    ignored,
    merge,
    plain,
    without_name,
)
from fedcrf.models import MODELS, ModelPlan
from fedcrf.objectives import OBJECTIVES, Objective
from fedcrf.rules import (
    RULES,
    SERVER_OPTIMIZERS,
    Optimized,
    Rule,
    ServerOptimizer,
    find_rule,
)
from fedcrf.simulation.federation import check_participation
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.work import check_evidence

REGISTRIES: Mapping[str, Mapping[str, type[Any]]] = {
    "rules": RULES,
    "objectives": OBJECTIVES,
    "server_optimizers": SERVER_OPTIMIZERS,
    "attacks": ATTACKS,
}
"""The sections of a run file whose subsections are settings of named things."""

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
"""By data set the settings that it has unless told otherwise: the paper's, where it names them."""

OTHERS: Mapping[str, Mapping[str, Any]] = {"model": {"name": "resnet9"}}
"""For any other data set."""

NOBODY = "none"
"""The attack of a run in which nobody attacks, and rules may be informed of ``attackers``."""


@dataclass(frozen=True)
class CellSpec:
    """One cell of a run's grid: one method with one seed, everything resolved.

    Attributes:
        method: Objective, rule and server optimizer, by name.
        seed: Fixes partition, initial model and client shuffles.
        data: Which images.
        partition: How they are dealt out.
        model_name: The model's name.
        model: Its plan.
        objective: What the clients minimise.
        rule: How the server aggregates; told of the attackers, where it is to be told.
        server_optimizer: What makes a step of the aggregate; None where it is the next model.
        training: The clients' local training.
        rounds: How long, and evaluated how.
        attack_name: The attack's name; None where all clients are honest.
        threat: The attack, who and when.
    """

    method: Method
    seed: int
    data: DataSettings
    partition: PartitionSettings
    model_name: str
    model: ModelPlan
    objective: Objective
    rule: Rule
    server_optimizer: ServerOptimizer | None
    training: LocalTraining
    rounds: RoundSettings
    attack_name: str | None = None
    threat: Threat | None = None

    @property
    def name(self) -> str:
        """The cell's name, and its folder's."""
        return f"{self.method.name}-seed-{self.seed}"

    @property
    def server_rule(self) -> Rule:
        """The rule, with the server optimizer behind it where there is one."""
        if self.server_optimizer is None:
            return self.rule
        return Optimized(self.rule, self.server_optimizer)

    def describe(self) -> dict[str, Any]:
        """Return the whole description as plain values; equal for equal cells."""
        optimizer: dict[str, Any] = {}
        if self.server_optimizer is not None:
            name = self.method.server_optimizer
            optimizer = {"server_optimizer": {"name": name, **plain(self.server_optimizer)}}
        return {
            "method": self.method.name,
            "seed": self.seed,
            "data": plain(self.data),
            "partition": plain(self.partition),
            "model": {"name": self.model_name, **plain(self.model)},
            "objective": {"name": self.method.objective, **plain(self.objective)},
            "rule": {"name": self.method.rule, **plain(self.rule)},
            **optimizer,
            "training": plain(self.training),
            "rounds": plain(self.rounds),
            **attack_sections(self.attack_name, self.threat),
        }


@dataclass(frozen=True)
class RunSpec:
    """The description of a run: methods × seeds on one data set and partition.

    Attributes:
        methods: Names of methods.
        seeds: Seeds; each gives its own partition, initial model and shuffles.
        data: Which images.
        partition: How they are dealt out.
        model: The model's name and settings.
        training: The clients' local training.
        rounds: How long, and evaluated how.
        rules: Settings of the rules in use, by rule.
        objectives: Settings of the objectives in use, by objective.
        attack: The attack's name, how many attack and when; empty where all clients are honest.
        attacks: Settings of the attack in use, by attack.
        server_optimizers: Settings of the server optimizers in use, by optimizer.
    """

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    data: DataSettings
    partition: PartitionSettings
    model: Options
    training: LocalTraining
    rounds: RoundSettings
    rules: Mapping[str, Options]
    objectives: Mapping[str, Options]
    server_optimizers: Mapping[str, Options]
    attack: Options = field(default_factory=dict)
    attacks: Mapping[str, Options] = field(default_factory=dict)

    @cached_property
    def threat(self) -> Threat | None:
        """The attack, who and when; None where all clients are honest."""
        if not self.attack:
            return None
        schedule = build(Schedule, without_name(self.attack), "attack")
        return Threat(_named("attacks", self.attacks, self.attack["name"]), schedule)

    def cells(self) -> list[CellSpec]:
        """Return the cells of the grid, seed by seed, so that paired results come early."""
        return [self.cell(method, seed) for seed in self.seeds for method in self.methods]

    def cell(self, method_name: str, seed: int) -> CellSpec:
        """Return one cell of the grid."""
        method = find_method(method_name)
        return CellSpec(
            method=method,
            seed=seed,
            data=self.data,
            partition=self.partition,
            model_name=self.model["name"],
            model=self._plan,
            objective=_named("objectives", self.objectives, method.objective),
            rule=self._informed(_named("rules", self.rules, method.rule), seed),
            server_optimizer=_named(
                "server_optimizers", self.server_optimizers, method.server_optimizer
            )
            if method.server_optimizer
            else None,
            training=self.training,
            rounds=self.rounds,
            attack_name=self.attack.get("name"),
            threat=self.threat,
        )

    @cached_property
    def _plan(self) -> ModelPlan:
        plan: ModelPlan = build(MODELS[self.model["name"]], without_name(self.model), "model")
        return plan

    def _informed(self, rule: Rule, seed: int) -> Rule:
        """Return a rule that knows of this run what it is to know."""
        num_clients, threat = self.partition.num_clients, self.threat
        drawn = self.rounds.clients_per_round or num_clients
        if threat is None:
            return rule.informed(0, drawn, seed)
        informed = rule.informed(threat.schedule.count_among(drawn, num_clients), drawn, seed)
        if (
            informed != rule
            and self.partition.may_leave_empty
            and not (threat.schedule.is_count and drawn == num_clients)
        ):
            raise FedcrfError(
                f"partition {self.partition.scheme} may leave clients empty, and a rule that is to "
                "be told how many attack would be told wrong: give a number of attackers "
                "(--attackers 3) and all clients every round, or choose another partition"
            )
        return informed

    @property
    def told_rules(self) -> dict[str, Options]:
        """By name the settings of the rules in use, with what a run of seed 0 tells them."""
        cells = [self.cell(method, 0) for method in self.methods]
        return {cell.method.rule: plain(cell.rule) for cell in cells}

    def describe(self) -> dict[str, Any]:
        """Return the whole description as plain values, as it stands in a run file.

        What a rule is told of the run is no part of it: another attack tells it something else.
        """
        cells = [self.cell(method, 0) for method in self.methods]
        optimizers = {
            cell.method.server_optimizer: plain(cell.server_optimizer)
            for cell in cells
            if cell.server_optimizer is not None
        }
        return {
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            "data": plain(self.data),
            "partition": plain(self.partition),
            "model": {"name": self.model["name"], **plain(cells[0].model)},
            "training": plain(self.training),
            "rounds": plain(self.rounds),
            "rules": {
                rule: plain(_named("rules", self.rules, rule))
                for rule in (cell.method.rule for cell in cells)
            },
            "objectives": {cell.method.objective: plain(cell.objective) for cell in cells},
            **attack_sections(cells[0].attack_name, cells[0].threat),
            **({"server_optimizers": optimizers} if optimizers else {}),
        }


def with_current_names(description: Options, *, notice: bool = True) -> dict[str, Any]:
    """Return a description, or a layer of one, with today's names of settings and of attacks.

    Args:
        description: Of a run file's shape; earlier names in it are accepted.
        notice: As for `fedcrf.checks.current_names`.

    Raises:
        FedcrfError: A setting, or an attack, is given by both of its names.
    """
    current = dict(description)
    for section, kinds in REGISTRIES.items():
        if not isinstance(current.get(section), Mapping):
            continue
        if section == "attacks":
            current[section] = current_names(current[section], RENAMED, section, notice=notice)
        for name, options in current[section].items():
            renamed = getattr(kinds.get(name), "renamed", {})
            if renamed and isinstance(options, Mapping):
                now = current_names(options, renamed, f"{section}.{name}", notice=notice)
                current[section] = {**current[section], name: now}
    attack = current.get("attack")
    if isinstance(attack, Mapping) and str(attack.get("name")) in RENAMED:
        (name,) = current_names({attack["name"]: None}, RENAMED, "attack", notice=notice)
        current["attack"] = {**attack, "name": name}
    return current


def resolve(*layers: Options) -> RunSpec:
    """Return the checked and complete description from layers of a run file's shape.

    Args:
        layers: Nested mappings such as a run file's content and what the flags say; later ones
            win, and all of them win over the data set's preset. Earlier names are accepted.

    Raises:
        FedcrfError: A key that does not exist, or a value that cannot be; the one at fault and
            the nearest key are named.
    """
    given = merge(*map(with_current_names, layers))
    known = [*(field.name for field in fields(RunSpec)), "server"]
    for key, value in given.items():
        if key not in known:
            raise unknown_name("key", key, known)
        if key not in ("methods", "seeds") and not isinstance(value, Mapping):
            raise FedcrfError(f"{key} is a section: write [{key}] and its settings below")
    given = _said_of_each(given)
    dataset = given.get("data", {}).get("dataset", DataSettings.dataset)
    preset = PRESETS.get(str(dataset), OTHERS)
    merged = merge(preset, given)
    attack = _checked_attack(merged.get("attack", {}))
    nobody = attack.get("name") == NOBODY
    model = merged["model"]
    if model["name"] != preset["model"]["name"]:
        model = given["model"]  # the preset's settings are for another model
    if str(model["name"]) not in MODELS:
        raise unknown_name("model", str(model["name"]), MODELS)
    for section in REGISTRIES:
        for name in merged.get(section, {}):
            _registered(section, name)
    spec = RunSpec(
        methods=_distinct(merged["methods"]),
        seeds=_distinct(convert(tuple[int, ...], merged.get("seeds", DEFAULT_SEEDS), "seeds")),
        data=build(DataSettings, merged.get("data", {}), "data"),
        partition=build(PartitionSettings, merged.get("partition", {}), "partition"),
        model=model,
        training=build(LocalTraining, merged.get("training", {}), "training"),
        rounds=build(RoundSettings, merged.get("rounds", {}), "rounds"),
        rules=merged.get("rules", {}),
        objectives=merged.get("objectives", {}),
        attack={} if nobody else attack,
        attacks=merged.get("attacks", {}),
        server_optimizers=merged.get("server_optimizers", {}),
    )
    if not spec.methods or not spec.seeds:
        raise FedcrfError("a run needs at least one method and one seed")
    if min(spec.seeds) < 0:
        raise FedcrfError(f"seed {min(spec.seeds)}: give seeds of 0 or more")
    check_participation(spec.rounds.clients_per_round, spec.partition.num_clients)
    for section in REGISTRIES:
        options = getattr(spec, section)
        for name in options:
            _named(section, options, name)
    if spec.threat is not None:
        spec.threat.check(spec.partition.num_clients, spec.rounds.clients_per_round)
    for method in spec.methods:  # every name and setting is looked at before anything runs
        cell = spec.cell(method, spec.seeds[0])
        check_evidence(cell.rule.wanted_evidence)
        cell.rule.check_clients(spec.rounds.clients_per_round or spec.partition.num_clients)
    return _ready(spec, attack) if nobody else spec


def check_used(settings: Iterable[Options], specs: Sequence[RunSpec]) -> None:
    """Raise a `FedcrfError` where some setting is of what none of the runs uses.

    A run file may hold settings of methods that are not run today; what is said on the command
    line is meant.

    Args:
        settings: Layers that `resolve` accepts.
        specs: The runs that they were said for.
    """
    used: dict[str, set[str | None]] = {section: set() for section in REGISTRIES}
    partitions = {spec.partition for spec in specs}
    for spec in specs:
        for method in map(find_method, spec.methods):
            used["rules"].add(method.rule)
            used["objectives"].add(method.objective)
            used["server_optimizers"].add(method.server_optimizer)
        used["attacks"].add(spec.attack.get("name"))
    for layer in map(with_current_names, settings):
        for section, names in used.items():
            for name, options in layer.get(section, {}).items():
                if name not in names:
                    user = "no attack is" if section == "attacks" else "none of the methods uses"
                    keys = ", ".join(f"{section}.{name}.{key}" for key in options)
                    raise FedcrfError(f"{user} '{name}': leave {keys} out, or choose what has it")
        for rule, options in layer.get("rules", {}).items():
            for key in options:
                if key in ignored(find_rule(rule)):
                    raise FedcrfError(
                        f"rule {rule} does not use {key}: leave rules.{rule}.{key} out"
                    )
        for key in layer.get("partition", {}):
            if all(key in each.ignored for each in partitions):
                schemes = ", ".join(sorted({each.scheme for each in partitions}))
                raise FedcrfError(
                    f"partition {schemes} does not use {key}: leave partition.{key} out, or "
                    "choose another partition"
                )


def cell_of(description: Options) -> CellSpec:
    """Return the cell that `CellSpec.describe` described; what is new since has its default.

    Raises:
        FedcrfError: It describes no cell.
    """
    try:
        shared = {key: description[key] for key in ("data", "partition", "training", "rounds")}
        shared |= {key: description[key] for key in ("attack", "attacks") if key in description}
        rule, objective = description["rule"], description["objective"]
        optimizer = description.get("server_optimizer")
        whole = {
            **shared,
            "methods": [description["method"]],
            "seeds": [description["seed"]],
            "model": description["model"],
            "rules": {rule["name"]: without_name(rule)},
            "objectives": {objective["name"]: without_name(objective)},
            "server_optimizers": {optimizer["name"]: without_name(optimizer)} if optimizer else {},
        }
        spec = resolve(with_current_names(whole, notice=False))
    except (KeyError, TypeError) as error:
        raise FedcrfError(f"a cell's description is not complete: {error}") from None
    return spec.cells()[0]


def attack_sections(name: str | None, threat: Threat | None) -> dict[str, Any]:
    """Return the sections of a description that only a run with an attack has."""
    if name is None or threat is None:
        return {}
    attack = {"name": name, **plain(threat.schedule)}
    return {"attack": attack, "attacks": {name: plain(threat.attack)}}


def default_folder(spec: RunSpec) -> Path:
    """Return the results folder of a description: one for each setting of data and clients."""
    dataset = spec.data.dataset.replace("/", "-")
    name = f"{dataset}-{spec.model['name']}-{clients_name(spec.partition)}"
    if spec.threat is not None:
        name += f"-{spec.attack['name']}-{spec.threat.schedule.attackers:g}attackers"
    return Path("runs") / name


def clients_name(partition: PartitionSettings) -> str:
    """Return a name for how the examples are dealt out, fit for a file."""
    skew = "" if "alpha" in partition.ignored else f"-alpha{partition.alpha:g}"
    return f"{partition.scheme}{skew}-{partition.num_clients}clients"


def _said_of_each(given: Options) -> dict[str, Any]:
    """Return a description in which every method and optimizer says itself what [server] does."""
    server = build(ServerSettings, given.get("server", {}), "server")
    names = convert(tuple[str, ...], given.get("methods", DEFAULT_METHODS), "methods")
    methods = [find_method(name) for name in names]
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
    """Return a section of the attack whose name is one, or `NOBODY`; empty where there is none."""
    if options and "name" not in options:
        raise FedcrfError("[attack] has no name: say which one, with --attack or attack.name")
    if options.get("name") == NOBODY:
        for key in options:
            if key not in ("name", "attackers"):
                raise FedcrfError(f"nobody attacks: leave attack.{key} out, or name an attack")
    elif options and str(options["name"]) not in ATTACKS:
        raise unknown_name("attack", str(options["name"]), ATTACKS)
    return options


def _ready(spec: RunSpec, nobody: Options) -> RunSpec:
    """Return a run without an attack, its rules informed as if there were so many attackers.

    Their settings say it from then on, and nothing else in the description does.

    Args:
        spec: The run.
        nobody: Its section of the attack, with or without a number of attackers.
    """
    if "attackers" not in nobody:
        return spec
    quiet = spec.told_rules
    attacked = replace(spec, attack={**nobody, "name": "not-finite"}).told_rules
    told = {
        rule: {key: value for key, value in settings.items() if value != quiet[rule].get(key)}
        for rule, settings in attacked.items()
    }
    return replace(spec, rules=merge(spec.rules, told))


def _registered(section: str, name: str) -> type[Any]:
    """Return what a name of one of the `REGISTRIES` stands for."""
    if section == "rules":
        return find_rule(name)
    registry = REGISTRIES[section]
    if name not in registry:
        raise unknown_name(section.removesuffix("s").replace("_", " "), name, registry)
    return registry[name]


def _named(section: str, options: Mapping[str, Options], name: str) -> Any:
    kind, given, where = _registered(section, name), options.get(name, {}), f"{section}.{name}"
    built = build(kind, given, where)
    # What is ignored is checked, and has its default, so that runs do not differ by it.
    used = {key: value for key, value in given.items() if key not in ignored(kind)}
    built = built if len(used) == len(given) else build(kind, used, where)
    # Nobody attacks a simulation's sketches, and its run file says what repeats it.
    return replace(built, sketch_seed=0) if getattr(built, "sketch_seed", 0) is None else built


def _distinct(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))
