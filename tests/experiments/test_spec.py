"""What to run: layers, presets, defaults, and a clear word on everything that cannot be."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedcrf import FedcrfError
from fedcrf.attacks import InnerProductManipulation, Schedule, Threat
from fedcrf.data import PartitionSettings
from fedcrf.experiments.settings import (
    METHODS,
    RoundSettings,
    find_method,
    ignored,
    merge,
    read_toml,
    setting,
)
from fedcrf.experiments.spec import cell_of, default_folder, resolve
from fedcrf.experiments.study import parse_axis
from fedcrf.models import MLP, ResNet9, ResNet18
from fedcrf.objectives import OBJECTIVES, Plain, Proximal
from fedcrf.rules import (
    CRF,
    RULES,
    SERVER_OPTIMIZERS,
    Adam,
    CRFRobust,
    FedAvg,
    Momentum,
    Optimized,
    Uniform,
    Yogi,
)
from fedcrf.simulation.local_training import LocalTraining


def test_defaults_are_those_of_the_method() -> None:
    spec = resolve()
    assert spec.methods == ("fedavg", "fedprox", "crf-fedavg", "crf-fedprox")
    assert spec.seeds == (0, 1, 2)
    assert spec.data.dataset == "digits"
    assert spec.rounds == RoundSettings(150, 5, 1e-4, 256)
    assert spec.partition.scheme == "label-skew"
    assert (spec.partition.num_clients, spec.partition.min_examples) == (10, 10)


@pytest.mark.parametrize(
    ("dataset", "alpha", "model", "learning_rate"),
    [
        ("mnist", 0.003, MLP((200,)), 0.01),
        ("cifar10", 0.1, ResNet9(), 0.01),
        ("cifar100", 0.1, ResNet18(), 0.005),
        ("owner/any", PartitionSettings().alpha, ResNet9(), LocalTraining().learning_rate),
    ],
)
def test_presets_are_the_paper_s(
    dataset: str, alpha: float, model: object, learning_rate: float
) -> None:
    spec = resolve({"data": {"dataset": dataset}})
    assert spec.partition.alpha == alpha
    assert spec.cell("fedavg", 0).model == model
    assert spec.training == LocalTraining(learning_rate, 0.9, 64, 1)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([], (0.1, 10)),
        ([{"partition": {"alpha": 1.0}}], (1.0, 10)),
        ([{"partition": {"alpha": 1.0, "num_clients": 3}}, {"partition": {"alpha": 2}}], (2.0, 3)),
        ([{"partition": {"alpha": 2.0}}, {"partition": {"num_clients": 3}}], (2.0, 3)),
        ([{"partition": {"alpha": 2.0}}, {}, {"partition": {"alpha": 3.0}}], (3.0, 10)),
    ],
)
def test_later_layers_win_key_by_key(layers: list[dict[str, Any]], expected: tuple[Any]) -> None:
    before = json.dumps(layers)
    partition = resolve(*layers).partition
    assert (partition.alpha, partition.num_clients) == expected
    assert json.dumps(layers) == before, "no layer is changed"


def test_another_model_forgets_the_preset_s_settings() -> None:
    # The digits' preset has hidden = [64], which is no setting of a ResNet.
    assert resolve({"model": {"name": "resnet9"}}).cell("fedavg", 0).model == ResNet9()
    assert resolve({"model": {"hidden": [5]}}).cell("fedavg", 0).model == MLP((5,))
    assert resolve({"model": {"name": "mlp"}}).cell("fedavg", 0).model == MLP((64,))


def test_settings_reach_the_cells_that_use_them() -> None:
    spec = resolve(
        {
            "methods": ["fedavg", "crf-fedprox", "uniform+proximal"],
            "seeds": [3, np.int64(1), 3],
            "rules": {"crf": {"bandwidth": np.float32(1), "labels": [0, 1]}},
            "objectives": {"proximal": {"mu": 0.5}},
        }
    )
    assert spec.seeds == (3, 1), "each once, in the order given"
    assert [cell.name for cell in spec.cells()] == [
        f"{method}-seed-{seed}"
        for seed in (3, 1)
        for method in ("fedavg", "crf-fedprox", "uniform+proximal")
    ]
    _, crf, uniform = (spec.cell(method, 3) for method in spec.methods)
    assert crf.rule == CRF(labels=(0.0, 1.0), bandwidth=1.0, sketch_seed=0)
    assert (uniform.rule, uniform.objective) == (Uniform(), Proximal(0.5))
    assert spec.cell("fedavg", 3).objective == Plain()


def test_a_method_may_name_a_server_optimizer() -> None:
    spec = resolve(
        {
            "methods": ["fedavg", "fedavgm", "crf-fedprox+adam", "uniform+proximal+yogi"],
            "server_optimizers": {"adam": {"learning_rate": 0.5, "beta1": 0}},
        }
    )
    plain, momentum, adam, yogi = (spec.cell(method, 3) for method in spec.methods)
    assert plain.server_rule == FedAvg()
    assert momentum.server_rule == Optimized(FedAvg(), Momentum())
    assert adam.server_rule == Optimized(CRF(sketch_seed=0), Adam(learning_rate=0.5, beta1=0.0))
    assert adam.objective == Proximal()
    assert yogi.server_rule == Optimized(Uniform(), Yogi())
    assert adam.name == "crf-fedprox+adam-seed-3"
    assert adam.method.title == "crf-fedprox+adam"


def test_what_is_said_of_the_server_is_said_of_each_method() -> None:
    spec = resolve(
        {
            "methods": ["fedavg", "fedadam", "crf+proximal", "fedavg+yogi"],
            "server": {"optimizer": "yogi", "learning_rate": 0.5},
            "server_optimizers": {"yogi": {"learning_rate": 0.1, "tau": 0.25}},
        }
    )
    assert spec.methods == ("fedavg+yogi", "fedadam", "crf+proximal+yogi"), "each once"
    described = spec.describe()
    assert "server" not in described
    assert described["server_optimizers"] == {
        "yogi": {"learning_rate": 0.5, "beta1": 0.9, "tau": 0.25, "beta2": 0.99},
        "adam": {"learning_rate": 0.5, "beta1": 0.9, "tau": 0.001, "beta2": 0.99},
    }
    # The methods' own optimizers take the learning rate too.
    alone = resolve({"methods": ["fedadam"], "server": {"learning_rate": 0.5}})
    assert alone.cell("fedadam", 0) == spec.cell("fedadam", 0)


def test_without_a_server_optimizer_nothing_is_said_of_it() -> None:
    # What was described before there were any describes the same cell now.
    for described in (resolve().describe(), resolve().cells()[0].describe()):
        assert not [key for key in described if key.startswith("server")]


@pytest.mark.parametrize("method", ["crf-fedavg", "fedavgm", "uniform+proximal+adagrad"])
def test_a_cell_s_description_describes_it(method: str) -> None:
    layers = {"methods": [method], "server_optimizers": {"momentum": {"momentum": 0.25}}}
    cell = resolve(layers).cell(method, 4)
    assert cell_of(json.loads(json.dumps(cell.describe()))) == cell


EVERYTHING = {
    "methods": ["crf-fedprox", "uniform+proximal"],
    "seeds": [5, 2],
    "data": {"dataset": "owner/name", "image_column": "img", "label_column": "y", "image_size": 9},
    "partition": {"scheme": "label-mix", "num_clients": 3, "alpha": 0.25, "min_examples": 0},
    "model": {"name": "mlp", "hidden": [7, 8]},
    "training": {"learning_rate": 0.5, "momentum": 0.0, "batch_size": 3, "local_epochs": 2},
    "rounds": {
        "maximum": 9,
        "patience": 2,
        "min_improvement": 0.5,
        "evaluation_batch_size": 4,
        "clients_per_round": 2,
    },
    "rules": {
        "crf": {
            "labels": [0, 2],
            "bandwidth": 2,
            "reliability_gate": False,
            "neighbours": 1,
            "sketch_size": 8,
        }
    },
    "objectives": {"proximal": {"mu": 1}},
    "attack": {"name": "ipm", "attackers": 0.4, "start_round": 3, "every": 2},
    "attacks": {"ipm": {"epsilon": 2, "noise": 0.5}},
}


@pytest.mark.parametrize(
    "given",
    [
        {},
        EVERYTHING,
        {"methods": list(METHODS)},
        {"methods": [f"{rule}+{objective}" for rule in RULES for objective in OBJECTIVES]},
        {"methods": [f"krum+plain+{name}" for name in SERVER_OPTIMIZERS]},
        {"methods": ["byzfl-bucketing-caf"], "attack": {"name": "ipm", "attackers": 0.2}},
        {"server": {"optimizer": "adam", "learning_rate": 2}},
        {"data": {"dataset": "cifar100"}},
        {"model": {"hidden": []}},
        {"training": {"learning_rate": 1e-300}, "partition": {"alpha": 1e22}},
        {
            "training": {
                "local_steps": 2,
                "worker_momentum": 0.9,
                "weight_decay": 1e-4,
                "milestones": [3, 5],
                "learning_rate_decay": 0.5,
            },
            "rounds": {"evaluate_every": 3},
        },
    ],
    ids=[
        "defaults", "everything", "methods", "pairs", "server optimizers", "byzfl", "server",
        "cifar100", "linear", "extremes", "steps",
    ],
)  # fmt: skip
def test_description_is_toml_that_describes_the_same_run(given: dict[str, Any]) -> None:
    spec = resolve(given)
    described = spec.describe()
    again = resolve(tomllib.loads(tomli_w.dumps(described)))
    assert again.describe() == described
    assert [cell.describe() for cell in again.cells()] == [cell.describe() for cell in spec.cells()]
    assert again.cells() == spec.cells()
    # What is kept with a result is JSON.
    assert json.loads(json.dumps(spec.cells()[0].describe())) == spec.cells()[0].describe()


@pytest.mark.parametrize("rule", ["crf", "crf-robust", "crf-robust-evidence"])
def test_a_run_says_by_which_signs_it_can_be_repeated(rule: str) -> None:
    left_open, said = (
        resolve({"methods": [f"{rule}+plain"], "rules": {rule: options}})
        for options in ({}, {"sketch_seed": 0})
    )
    assert left_open.describe() == said.describe()
    assert left_open.cells() == said.cells()
    assert said.describe()["rules"][rule]["sketch_seed"] == 0, "as in every published run"


@pytest.mark.parametrize("key", ["norm_strength", "norm_threshold", "labels", "evidence_limit"])
def test_a_setting_that_is_gone_is_refused_and_a_stored_one_is_read_over(key: str) -> None:
    given = {"methods": ["crf-robust"], "rules": {"crf-robust": {"tolerance": 2.0, key: 3.0}}}
    with pytest.raises(FedcrfError, match=rf"^rules.crf-robust.{key} is no setting any more: "):
        resolve(given)
    (cell,) = resolve(given, {"seeds": [0]}, reading=True).cells()
    assert cell.rule == CRFRobust(tolerance=2.0, sketch_seed=0)


def test_description_is_complete() -> None:
    # Every key of every section stands in it, so that a changed default cannot change a run.
    spec = resolve(EVERYTHING)
    described = spec.describe()
    for section in ("data", "partition", "training", "rounds"):
        assert described[section].items() >= EVERYTHING[section].items()
        settings = getattr(spec, section)
        given = {
            each.name
            for each in dataclasses.fields(settings)
            if getattr(settings, each.name) is not None and each.name not in ignored(settings)
        }
        assert described[section].keys() == given, "TOML has no null"
    assert described["model"] == EVERYTHING["model"]
    assert described["rules"]["crf"].keys() == {each.name for each in dataclasses.fields(CRF)}
    assert described["objectives"] == {"proximal": {"mu": 1.0}}
    assert described["attack"] == EVERYTHING["attack"]
    assert described["attacks"] == EVERYTHING["attacks"]
    assert "attack" not in resolve().describe(), "an honest run's description is as it ever was"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"methodes": ["fedavg"]}, ["methodes", "'methods'"]),
        ({"trainning": {}}, ["trainning", "'training'"]),
        ({"data": {"datset": "digits"}}, ["[data]", "datset", "'dataset'"]),
        ({"partition": {"alfa": 1}}, ["[partition]", "alfa", "'alpha'"]),
        ({"model": {"hiden": [3]}}, ["[model]", "hiden", "'hidden'"]),
        ({"model": {"name": "resnet9", "hidden": [3]}}, ["[model]", "hidden"]),
        ({"model": {"name": "resnet"}}, ["resnet", "'resnet9'"]),
        ({"model": {"name": ["mlp"]}}, ["mlp"]),
        ({"training": {"lr": 1}}, ["[training]", "lr", "learning_rate"]),
        ({"rounds": {"maximun": 1}}, ["[rounds]", "maximun", "'maximum'"]),
        ({"rules": {"cfr": {}}}, ["rule", "cfr", "'crf'"]),
        ({"rules": {"crf": {"bandwith": 1}}}, ["[rules.crf]", "bandwith", "'bandwidth'"]),
        ({"rules": {"fedavg": {"bandwidth": 1}}}, ["[rules.fedavg]", "bandwidth"]),
        ({"objectives": {"proximl": {}}}, ["objective", "proximl", "'proximal'"]),
        ({"objectives": {"proximal": {"nu": 1}}}, ["[objectives.proximal]", "nu", "mu"]),
        ({"methods": ["fedavgg"]}, ["fedavgg", "'fedavg'"]),
        ({"methods": ["cfr+plain"]}, ["rule", "cfr", "'crf'"]),
        ({"methods": ["crf+plane"]}, ["objective", "plane", "'plain'"]),
        ({"methods": []}, ["at least one method"]),
        ({"seeds": []}, ["one seed"]),
        ({"methods": "fedavg"}, ["methods", "fedavg"]),
        ({"methods": [1]}, ["methods", "1"]),
        ({"seeds": [0.5]}, ["seeds", "0.5"]),
        ({"seeds": ["zero"]}, ["seeds", "zero"]),
        ({"seeds": 3}, ["seeds", "3"]),
        ({"seeds": ["1"]}, ["seeds", "'1'", "integer"]),
        ({"seeds": [True]}, ["seeds", "True", "integer"]),
        ({"data": {"limit": True}}, ["data.limit", "True", "integer"]),
        ({"rules": {"crf": {"iterations": "3"}}}, ["rules.crf.iterations", "'3'", "integer"]),
        ({"rules": {"crf": {"bandwidth": True}}}, ["rules.crf.bandwidth", "True", "number"]),
        ({"attack": {"name": "ipm", "attackers": 1.0}}, ["attackers 1.0", "whole number"]),
        ({"training": {"learning_rate": 1e50}}, ["learning_rate 1e+50", "float32"]),
        (
            {"training": {"local_steps": 1, "local_epochs": 2}},
            ["[training] local_epochs 2 and local_steps 1: give one of them"],
        ),
        (
            {"training": {"momentum": 0.5, "worker_momentum": 0.9}},
            ["[training] momentum 0.5 and worker_momentum 0.9: give one of them"],
        ),
        ({"training": {"milestones": [3]}}, ["milestones and learning_rate_decay: give both"]),
        ({"training": {"local_steps": 0}}, ["local_steps 0", "1 to 1000000"]),
        ({"rounds": {"evaluate_every": 0}}, ["[rounds] evaluate_every 0", "1 or more"]),
        ({"partition": {"gamma": 1.5}}, ["[partition] gamma 1.5: give a number from 0 to 1"]),
        ({"training": {"batch_size": 10**12}}, ["batch_size", "2147483647 at most"]),
        ({"methods": ["crf-fedavg+sgd"]}, ["server optimizer", "sgd"]),
        (
            {"methods": ["fedyogi"], "server": {"optimizer": "adam"}},
            ["every method names its own", "--server-optimizer"],
        ),
        ({"seeds": [-1]}, ["seed", "-1"]),
        ({"seeds": np.arange(2)}, ["seeds is array", "what a run file can hold"]),
        ({"seeds": [np.True_]}, ["seeds is True", "integer"]),
        ({"rounds": {"maximum": np.zeros(2)}}, ["rounds is", "what a run file can hold"]),
        ({"data": 3}, ["[data]"]),
        ({"rules": {"crf": 3}}, ["[rules.crf]"]),
        ({"data": {"dataset": 3}}, ["data.dataset", "3"]),
        ({"partition": {"num_clients": 2.5}}, ["partition.num_clients", "2.5"]),
        ({"partition": {"num_clients": "many"}}, ["partition.num_clients", "many"]),
        ({"partition": {"num_clients": 0}}, ["0"]),
        ({"partition": {"alpha": float("nan")}}, ["alpha", "nan"]),
        ({"partition": {"scheme": "idd"}}, ["idd", "'iid'"]),
        ({"model": {"hidden": 3}}, ["model.hidden", "3"]),
        ({"model": {"hidden": [0]}}, ["[model]", "hidden", "0"]),
        ({"training": {"momentum": 1}}, ["[training]", "momentum", "1"]),
        ({"rounds": {"min_improvement": -1}}, ["[rounds]", "min_improvement", "-1"]),
        ({"rounds": {"clients_per_round": 0}}, ["clients_per_round", "0"]),
        ({"rounds": {"clients_per_round": 2.5}}, ["rounds.clients_per_round", "2.5"]),
        ({"rounds": {"clients_per_round": 11}}, ["clients_per_round 11", "10 clients"]),
        ({"attack": {"name": "ipmm"}}, ["attack", "ipmm", "'ipm'"]),
        ({"attack": {"name": "none", "every": 2}}, ["nobody attacks", "attack.every"]),
        ({"attack": {"name": "none", "attackers": 0}}, ["[attack]", "attackers 0"]),
        ({"attack": {"name": ["ipm"]}}, ["attack", "ipm"]),
        ({"attack": {"attackers": 3}}, ["[attack]", "--attack"]),
        ({"attack": {"name": "ipm", "atackers": 3}}, ["[attack]", "atackers", "'attackers'"]),
        ({"attack": {"name": "ipm", "attackers": "many"}}, ["attack.attackers is 'many': give"]),
        ({"attack": {"name": "ipm", "attackers": 10}}, ["attackers 10", "10 clients", "1 to 9"]),
        ({"attack": {"name": "ipm", "attackers": 11}}, ["attackers 11", "10 clients"]),
        ({"attack": {"name": "ipm", "attackers": 0}}, ["[attack]", "attackers 0"]),
        ({"attack": {"name": "ipm", "every": 0}}, ["[attack]", "every 0"]),
        ({"attack": {"name": "alie", "attackers": 7}}, ["7 attackers of 10", "quantile", "z"]),
        ({"attack": 3}, ["[attack]"]),
        ({"attacks": {"ipmm": {}}}, ["attack", "ipmm", "'ipm'"]),
        ({"attacks": {"ipm": {"eps": 1}}}, ["[attacks.ipm]", "eps"]),
        ({"attacks": {"opposed": {"cosine": 2}}}, ["[attacks.opposed]", "cosine 2"]),
        ({"attacks": {"min-max": {"deviation": "up"}}}, ["deviation", "up", "'unit'"]),
        (
            {"methods": ["crf-evidence"], "rules": {"crf-evidence": {"evidence": "train_loss"}}},
            ["evidence 'train_loss'", "'residual_loss'"],
        ),
        (
            {"rules": {"crf-robust": {"tolerance": float("nan")}}},
            ["[rules.crf-robust]", "tolerance nan"],
        ),
        ({"rules": {"crf": {"bandwidth": 0}}}, ["[rules.crf]", "bandwidth", "0"]),
        ({"rules": {"crf": {"labels": [0.5]}}}, ["[rules.crf]", "labels", "0.5"]),
        ({"rules": {"crf": {"reliability_gate": "perhaps"}}}, ["reliability_gate", "perhaps"]),
        ({"methods": ["fedavg+adm"]}, ["server optimizer", "adm", "'adam'"]),
        ({"methods": ["crf+plane+adam"]}, ["objective", "plane", "'plain'"]),
        ({"methods": ["cfr-fedavg+adam"]}, ["method", "cfr-fedavg", "'crf-fedavg'"]),
        ({"methods": ["fedadam+yogi"]}, ["fedadam+yogi", "already (adam)"]),
        ({"server": {"optimiser": "adam"}}, ["[server]", "optimiser", "'optimizer'"]),
        ({"server": {"optimizer": "adm"}}, ["[server]", "adm", "'adam'"]),
        ({"server": {"optimizer": 3}}, ["server.optimizer", "3"]),
        ({"server": {"learning_rate": 0.1}}, ["learning_rate 0.1", "--server-optimizer"]),
        ({"server": {"optimizer": "adam", "learning_rate": 0}}, ["adam", "learning_rate 0"]),
        ({"server": 3}, ["[server]"]),
        ({"methods": "fedavg"}, ["methods is 'fedavg'", "a list, in [brackets]"]),
        ({"model": {"hidden": 64}}, ["model.hidden is 64", "a list, in [brackets]"]),
        ({"server_optimizers": {"adm": {}}}, ["server optimizer", "adm", "'adam'"]),
        (
            {"server_optimizers": {"adam": {"momentum": 0}}},
            ["server_optimizers.adam", "momentum"],
        ),
        ({"server_optimizers": {"yogi": {"beta2": 1}}}, ["[server_optimizers.yogi]", "beta2 1"]),
        (
            {
                "methods": ["byzfl-krum"],
                "attack": {"name": "ipm", "attackers": 0.2},
                "partition": {"scheme": "label-skew-unbalanced"},
            },
            ["label-skew-unbalanced may leave clients empty", "give a number of attackers"],
        ),
        (
            {
                "methods": ["multi-krum"],
                "attack": {"name": "ipm"},
                "partition": {"scheme": "label-skew-unbalanced"},
            },
            ["label-skew-unbalanced may leave clients empty", "give a number of attackers"],
        ),
        (
            {"methods": ["multi-krum"], "rules": {"multi-krum": {"num_byzantine": 9}}},
            ["MultiKrum: 9 attackers of 10 clients are half or more", "4 at most"],
        ),
        (
            {
                "methods": ["krum+adam"],
                "rules": {"krum": {"num_byzantine": 2}},
                "rounds": {"clients_per_round": 4},
            },
            ["Krum: 2 attackers of 4 clients", "1 at most"],
        ),
        (
            {"methods": ["krum"], "attack": {"name": "ipm", "attackers": 5}},
            ["Krum: 5 attackers of 10 clients", "--attackers"],
        ),
        (
            {"methods": ["trimmed-mean"], "attack": {"name": "ipm", "attackers": 5}},
            ["TrimmedMean: 5 attackers of 10 clients", "4 at most (fraction, --attackers)"],
        ),
        # Also where no method of the run uses it.
        ({"methods": ["fedavg"], "objectives": {"proximal": {"mu": -1}}}, ["mu", "-1"]),
    ],
    ids=str,
)
def test_what_cannot_be_is_named(given: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(FedcrfError) as caught:
        resolve(given)
    message = str(caught.value)
    for name in named:
        assert name in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rules.crf.bandwidth=0.3", {"rules": {"crf": {"bandwidth": 0.3}}}),
        (" rounds.maximum = 5 ", {"rounds": {"maximum": 5}}),
        ("model.hidden=[3, 4]", {"model": {"hidden": [3, 4]}}),
        ("rules.crf.reliability_gate=false", {"rules": {"crf": {"reliability_gate": False}}}),
        ("data.dataset=cifar10", {"data": {"dataset": "cifar10"}}),
        ("data.dataset=owner/name", {"data": {"dataset": "owner/name"}}),
        ('data.dataset="a=b"', {"data": {"dataset": "a=b"}}),
        ("data.dataset=a=b", {"data": {"dataset": "a=b"}}),
        ("data.dataset=", {"data": {"dataset": ""}}),
        ('methods=["fedavg"]', {"methods": ["fedavg"]}),
    ],
)
def test_set(text: str, expected: dict[str, Any]) -> None:
    assert setting(text) == expected


@pytest.mark.parametrize("text", ["", "=", "=3", "a.b", "a b=3", "a..b=3", 'a="'])
def test_set_of_another_form(text: str) -> None:
    with pytest.raises(FedcrfError, match=r"section\.key=value"):
        setting(text)


def test_merge_leaves_its_layers_alone() -> None:
    first, second = {"a": {"b": 1, "c": {"d": 2}}}, {"a": {"c": {"e": 3}}, "f": 4}
    assert merge(first, second) == {"a": {"b": 1, "c": {"d": 2, "e": 3}}, "f": 4}
    assert first == {"a": {"b": 1, "c": {"d": 2}}}
    assert second == {"a": {"c": {"e": 3}}, "f": 4}


def test_every_method_is_a_rule_and_an_objective() -> None:
    for name, method in METHODS.items():
        assert find_method(name) == method
        assert method.name == name
        assert method.rule in RULES
        assert method.objective in OBJECTIVES
        assert method.server_optimizer is None or method.server_optimizer in SERVER_OPTIMIZERS
    assert len({method.title for method in METHODS.values()}) == len(METHODS)


NESTED = b"a = " + b"[" * 3000 + b"]" * 3000
NO_TOML = [b"methods = [", b"\xff\xfe", b"a = 1\na = 2", b"a = " + b"1" * 5000, NESTED]


@pytest.mark.parametrize("content", NO_TOML, ids=range(len(NO_TOML)))
def test_a_run_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(FedcrfError, match=r"mine\.toml is not valid TOML"):
        read_toml(path)


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 3000 + "]" * 3000])
def test_a_value_that_is_no_toml_is_text_and_shown_in_part(value: str) -> None:
    assert setting(f"rounds.maximum={value}") == {"rounds": {"maximum": value}}
    with pytest.raises(FedcrfError, match=r"rounds.maximum is '.{199}…: give a valid integer$"):
        resolve({"rounds": {"maximum": value}})
    axis = parse_axis(f"rounds.maximum={'1' * 5000}")
    assert [given for given, _ in axis.layers] == ["1" * 5000]


def test_a_run_file_of_an_editor_that_begins_with_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbfseeds = [3]")
    assert read_toml(path) == {"seeds": [3]}


def test_a_run_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FedcrfError, match=r"mine\.toml cannot be read: No such file"):
        read_toml(tmp_path / "mine.toml")


def test_a_run_file_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FedcrfError, match=r"is a folder: give a file, such as .*run\.toml"):
        read_toml(tmp_path)


def test_an_attack_reaches_the_cells_and_comes_back_from_their_descriptions() -> None:
    spec = resolve(EVERYTHING)
    threat = Threat(InnerProductManipulation(2.0, 0.5), Schedule(0.4, 3, 2))
    for cell in spec.cells():
        assert cell.threat == threat
        assert cell_of(cell.describe()) == cell
    honest = resolve().cells()[0]
    assert honest.threat is None
    assert cell_of(honest.describe()) == honest
    assert cell_of(spec.cells()[0].describe()) != cell_of(
        resolve(EVERYTHING, {"attack": {"every": 1}}).cells()[0].describe()
    )


@pytest.mark.parametrize("method", ["centered-clipping", "flame", "signguard"])
def test_a_rule_that_draws_is_no_rule_that_knows_how_many_attack(method: str) -> None:
    unknown = {
        "methods": [method],
        "attack": {"name": "ipm", "attackers": 0.2},
        "partition": {"scheme": "label-skew-unbalanced"},
    }
    (cell,) = resolve(unknown, {"seeds": [7]}).cells()
    assert cell.describe()["rule"]["seed"] == 7


@pytest.mark.parametrize(
    ("layers", "krum", "trimmed"),
    [
        ({}, 0, 0.1),
        ({"attack": {"name": "ipm", "attackers": 3}}, 3, 0.3),
        ({"attack": {"name": "label-flip"}}, 3, 0.3),
        ({"attack": {"name": "ipm", "attackers": 4}, "rounds": {"clients_per_round": 5}}, 2, 0.4),
        (
            {
                "attack": {"name": "ipm", "attackers": 0.2},
                "partition": {"scheme": "label-skew-unbalanced"},
                "rules": {
                    "krum": {"num_byzantine": 1},
                    "multi-krum": {"num_byzantine": 1},
                    "trimmed-mean": {"fraction": 0.0},
                },
            },
            1,
            0.0,
        ),
    ],
    ids=str,
)
def test_rules_are_told_how_many_attack_unless_the_run_says_otherwise(
    layers: dict[str, Any], krum: int, trimmed: float
) -> None:
    spec = resolve(layers, {"methods": ["krum", "multi-krum", "trimmed-mean"], "seeds": [0]})
    settings = [cell.describe()["rule"] for cell in spec.cells()]
    assert settings == [
        {"name": "krum", "num_byzantine": krum},
        {"name": "multi-krum", "num_byzantine": krum},
        {"name": "trimmed-mean", "fraction": trimmed},
    ]
    for cell in spec.cells():
        assert cell_of(cell.describe()) == cell
    # The run's own file leaves open what the run tells: another attack tells it something else.
    assert resolve(spec.describe()).cells() == spec.cells()
    said = spec.describe()["rules"]
    assert {name: said[name] for name in said if said[name]} == layers.get("rules", {})


def test_where_nobody_attacks_rules_may_be_informed_of_attackers() -> None:
    base = {"methods": ["krum", "byzfl-krum", "trimmed-mean", "crf-robust"], "seeds": [0, 1]}
    quiet, ready = (
        resolve(base, {"attack": {"name": "none", **attackers}})
        for attackers in ({}, {"attackers": 3})
    )
    assert quiet == resolve(base)
    assert ready.threat is None
    said = ready.describe()
    assert "attack" not in said, "their settings say it, and nothing else"
    assert said["rules"] == {
        **quiet.describe()["rules"],
        "krum": {"num_byzantine": 3},
        "byzfl-krum": {"attackers": 3},
        "trimmed-mean": {"fraction": 0.3},
    }
    assert resolve(said).cells() == ready.cells()
    one = resolve(base, {"attack": {"name": "none", "attackers": 3}, "rules": said["rules"]})
    assert one.cells() == ready.cells()
    other = {"rules": {"krum": {"num_byzantine": 1}}}
    said = resolve(base, {"attack": {"name": "none", "attackers": 3}}, other)
    assert said.things["rules"]["krum"].num_byzantine == 1


def test_an_attack_has_a_results_folder_of_its_own() -> None:
    honest, attacked = (default_folder(resolve(layer)) for layer in ({}, EVERYTHING))
    assert "attackers" not in honest.name
    assert attacked.name.endswith("-ipm-0.4attackers")
