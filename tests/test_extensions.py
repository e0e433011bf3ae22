"""What comes from outside the package, as its users write and run it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedcrf import extensions
from fedcrf.errors import FedcrfError
from fedcrf.experiments.results import read_results
from fedcrf.experiments.settings import find_method, folder_name, method_title
from fedcrf.experiments.spec import resolve
from fedcrf.experiments.store import Store, described
from fedcrf.experiments.study import Study, parse_axis, read_suite
from fedcrf.extensions import is_outside, short_name
from integration.command_line import CommandLine, environment, fedcrf

MINE = '''
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from torch import nn

from fedcrf.attacks import Attack
from fedcrf.crf import base_weights
from fedcrf.data import PartitionScheme
from fedcrf.rules.base import Rule, finite_reports, num_examples, weighted_result
from neighbour import SIGNS


@dataclass(frozen=True)
class Capped(Rule):
    """FedAvg's weights, none above a share of the others' sum."""

    most: float = 0.2
    fails_in: int = 0

    def aggregate(self, memory, model, reports):
        finite = finite_reports(model, reports)
        weights = np.minimum(base_weights(num_examples(reports), finite), self.most)
        result = weighted_result(model, reports, weights / weights.sum(), finite)
        number = int(memory.get("round", np.zeros(1))[0]) + 1
        if number == self.fails_in:
            raise RuntimeError("no more\\nthan this")
        object.__setattr__(result, "memory", {"round": np.array([number])})
        return result


@dataclass(frozen=True)
class Lacking(Rule):
    """A rule without aggregate."""


@dataclass(frozen=True)
class Needing(Capped):
    """A rule with a setting that has no default."""

    most: float = field(kw_only=True)


@dataclass(frozen=True)
class Listing(Capped):
    """A rule with a setting that no run file holds as it is."""

    several: list = field(default_factory=list)


@dataclass(frozen=True)
class Array(Capped):
    """A rule with a setting of a type of which nothing is known."""

    several: np.ndarray = None


@dataclass(frozen=True)
class Inner:
    """Settings within a setting."""

    rate: float = 1.0
    least: float | None = None
    squared: float = field(init=False, default=1.0)


@dataclass(frozen=True)
class Nested(Capped):
    """A rule with numbers of NumPy's, and settings in settings and in tuples."""

    times: int = np.int64(3)
    inner: Inner = Inner()
    several: tuple[Inner, ...] = (Inner(2.0),)
    grid: tuple[tuple[float, ...], ...] = ((np.float32(0.5),),)


@dataclass(frozen=True)
class Holed(Capped):
    """A rule with a tuple that no run file holds."""

    pair: tuple[float | None, ...] = (None, 1.0)


@dataclass(frozen=True)
class Endless(Capped):
    """A rule with a number that no record holds."""

    most: float = float("inf")


@dataclass(frozen=True)
class Complex(Capped):
    """A rule with a number that no run file holds."""

    root: complex = np.complex64(1j)


class Undecorated(Capped):
    """A rule whose setting is none, for want of the decorator."""

    least: float = 0.1


@dataclass(frozen=True)
class Strict(Capped):
    """A rule with a check of its own, and a number that is no setting."""

    doubled: float = field(init=False, default=2.0)

    def __post_init__(self):
        super().__post_init__()
        if self.most > 1:
            raise ValueError("most must be at most 1")


@dataclass
class Thawed:
    """An objective that is not frozen."""

    def correct_gradients(self, parameters, global_parameters):
        pass


NETWORK = nn.Flatten()


@dataclass(frozen=True)
class Forgetful(Attack):
    """Returns nothing."""

    def updates(self, scene):
        pass


@dataclass(frozen=True)
class Coin(Attack):
    """Sends the honest mean, each number times c or -c as a coin falls."""

    fewest_honest: ClassVar[int] = 1
    factor: float = 1.0

    def updates(self, scene):
        return self.factor * scene.draw.choice(SIGNS, scene.honest_mean.shape) * scene.honest_mean


@dataclass(frozen=True)
class Decay:
    """Weight decay."""

    strength: float = 0.001

    def correct_gradients(self, parameters, global_parameters):
        for parameter in parameters:
            parameter.grad.add_(parameter, alpha=self.strength)


class Linear(nn.Sequential):
    def __init__(self, image_shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(int(np.prod(image_shape)), num_classes))


def seven():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))


@dataclass(frozen=True)
class Wide:
    """A hidden layer."""

    units: int = 16

    def build(self, image_shape, num_classes):
        first = nn.Linear(int(np.prod(image_shape)), self.units)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(self.units, num_classes))


@dataclass(frozen=True)
class Unbuilt(Wide):
    """A model that cannot be built."""

    def build(self, image_shape, num_classes):
        raise RuntimeError("not today")


def stripes():
    """Stripes that lie, or stand."""
    draw = np.random.default_rng(0)
    labels = draw.integers(2, size=240)
    lying = np.tile(np.array([[0], [200]]), (4, 8))
    images = np.where(labels[:, None, None] == 0, lying, lying.T) + draw.integers(50, size=(240, 8, 8))
    return images[:200], labels[:200], images[200:], labels[200:]


def nothing():
    assert False


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(63, 10)

    def forward(self, images):
        return self.layer(images.flatten(1))


class Reading(Linear):
    """A network that reads a file where it is trained."""

    def forward(self, images):
        return super().forward(images) if not self.training else open("no.csv")


def floats():
    return np.zeros((9, 8, 8)), np.zeros(9, int)


def shards(labels, settings, generator):
    """Two shards a client."""
    cut = np.array_split(np.argsort(labels, kind="stable"), 2 * settings.num_clients)
    dealt = generator.permutation(len(cut)).reshape(-1, 2)
    return [np.concatenate([cut[one], cut[other]]) for one, other in dealt]


def twice(labels, settings, generator):
    return [np.arange(5)] * settings.num_clients


def undrawn(labels, settings, generator):
    return np.array_split(np.random.permutation(len(labels)), settings.num_clients)


RESTED = PartitionScheme("all alike.", lambda labels, settings, generator: np.array_split(
    generator.permutation(len(labels)), settings.num_clients), ignores=frozenset({"alpha"}))
'''  # noqa: E501


def raised(text: str) -> str:
    """Return where the file raises an error, as one line of error has it."""
    (line,) = (number for number, line in enumerate(MINE.split("\n"), 1) if text in line)
    return f"at mine.py:{line}"


ALL = (
    "--methods", "fedavg,./mine.py:Capped,crf-robust+./mine.py:Decay",
    "--set", "rules.Capped.most=0.3",
    "--attack", "./mine.py:Coin", "--attackers", "1", "--set", "attacks.Coin.factor=3",
    "--model", "mine:Wide", "--set", "model.units=8", "--dataset", "./mine.py:stripes",
    "--partition", "./mine.py:shards", "--clients", "4", "--rounds", "2", "--device", "cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    folder.joinpath("mine.py").write_text(MINE, encoding="utf-8")
    folder.joinpath("neighbour.py").write_text("SIGNS = [-1.0, 1.0]\n", encoding="utf-8")
    imports = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    own = "import numpy as np\n\ndef make(): ...\n\nSIGN = -1.0\n"
    folder.joinpath("few.py").write_text(imports + own, encoding="utf-8")
    folder.joinpath("broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    folder.joinpath("script.py").write_text("raise SystemExit(0)\n", encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_run_of_what_is_outside_in_processes_is_shown_when_it_is_gone(
    home: Path, command_line: CommandLine
) -> None:
    made = command_line("run", *ALL, "--seeds", "0-1", "--jobs", "2", "-o", "run", cwd=home)
    assert (made.rc, made.err) == (0, "")
    cells = sorted(path.name for path in (home / "run" / "cells").iterdir())
    assert cells[:2] == ["Capped-seed-0", "Capped-seed-1"]
    assert "crf-robust+Decay-seed-1" in cells
    lines = (home / "run" / "cells" / cells[0] / "rounds.jsonl").read_text(encoding="utf-8")
    assert all(max(json.loads(line)["weight"]) <= 0.3 / 0.9 + 1e-3 for line in lines.splitlines())

    again = ("run", "run/run.toml", "--methods", "./mine.py:Capped", "-o", "run", "--jobs", "1")
    assert command_line(*again, cwd=home).rc == 0, "the others are settings of what is not run"
    looks = (("show", "run"), ("show", "run", "--latex"), ("report", "run"))
    shown = [command_line(*look, cwd=home) for look in looks]
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    (home / "run").rename(elsewhere / "run")
    gone = [command_line(*look, cwd=elsewhere) for look in looks]
    assert gone == shown
    assert all("Capped" in each.out for each in gone[:2])
    assert "\\toprule" in gone[1].out
    assert command_line("explain", "run", "--round", "2", cwd=elsewhere).rc == 0
    refused = command_line(*again, cwd=elsewhere)
    assert (refused.rc, refused.err.count("\n")) == (2, 1)
    assert "there is no file ./mine.py, looked for from" in refused.err
    run = read_results(Store(elsewhere / "run"))
    rule = next(each.cell.rule for each in run.cells if each.cell.method.name.endswith("Capped"))
    with pytest.raises(FedcrfError, match=r"mine.py:Capped' is not there any more: install it"):
        rule.aggregate({}, {}, [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "./no.py:Rule"], "there is no file ./no.py, looked for from"),
        (["--methods", "~nobody-1/no.py:Rule"], "there is no file ~nobody-1/no.py, looked for"),
        (["--methods", "./broken.py:Rule"], "cannot be imported (ModuleNotFoundError: No module"),
        (["--methods", "nowhere:Rule"], "rule 'nowhere:Rule' cannot be imported (ModuleNotFound"),
        (["--methods", "./few.py:Zebra"], "rule in ./few.py 'Zebra': choose from SIGN, make."),
        (["--methods", "./mine.py:Cappd"], "unknown rule in ./mine.py 'Cappd': did you mean 'Cap"),
        (
            ["--methods", "./mine.py:Coin"],
            "rule './mine.py:Coin' is no rule: give a frozen dataclass",
        ),
        (["--methods", "./mine.py:Lacking"], "lacks aggregate: give it that method"),
        (["--methods", "capped"], "unknown method 'capped'"),
        (["--methods", "./mine.py"], "name what is in the file, as in ./mine.py:NAME"),
        (["--methods", "./mine.py:Needing"], "rules.Needing.most has no value: give it one"),
        (["--methods", "crf+./mine.py:Linear"], "is no class of settings: give a frozen dataclass"),
        (
            ["--methods", "./script.py:Rule"],
            "cannot be imported (SystemExit: 0, at script.py:1)",
        ),
        (
            ["--methods", "./mine.py:Listing"],
            "rules.Listing.several is a list, which no setting can be",
        ),
        (
            ["--methods", "./mine.py:Holed"],
            "rules.Holed.pair is a tuple, which no setting can be: use numbers, text, truth",
        ),
        (["--methods", "./mine.py:Endless"], "rules.Endless.most is inf: give a finite number"),
        (["--methods", "./mine.py:Complex"], "rules.Complex.root is a complex64, which no setting"),
        (
            ["--methods", "./mine.py:Undecorated"],
            "is no class of settings: give a frozen dataclass, with @dataclass(frozen=True)",
        ),
        (
            ["--model", "./mine.py:Unbuilt"],
            f"./mine.py:Unbuilt failed (RuntimeError: not today, {raised('not today')})",
        ),
        (
            ["--model", "./mine.py:Narrow"],
            f"and 63x10), {raised('return self.layer')})",
        ),
        (
            ["--dataset", "./mine.py:nothing"],
            f"data set './mine.py:nothing' failed (AssertionError, {raised('assert False')})",
        ),
        (["--methods", "./mine.py:Array"], "has a setting of no known type (Unable to generate"),
        (
            ["--methods", "./mine.py:Strict", "--set", "rules.Strict.most=3"],
            "[rules.Strict] most must be at most 1",
        ),
        (["--methods", "crf+./mine.py:Thawed"], "is not frozen: give a frozen dataclass, with @da"),
        (["--model", "./mine.py:NETWORK"], "is a network: give the class or the function that"),
        (["--attack", "./mine.py:Capped"], "attack './mine.py:Capped' is no attack: give a frozen"),
        (["--model", "./mine.py:stripes"], "makes a tuple: give what returns a torch.nn.Module"),
        (["--model", "./mine.py:seven"], "makes outputs of shape (2, 7) of 2 images: give one"),
        (["--model", "mine:Linear", "--set", "model.a=3"], "is no class of settings: leave a out"),
        (["--dataset", "./mine.py:shards"], "failed (TypeError: shards() missing 3 required"),
        (["--dataset", "./mine.py:floats"], "makes images of shape (9, 8, 8), float64, and labels"),
        (
            ["--partition", "./mine.py:Coin"],
            "partition './mine.py:Coin' is no partition: give a fedcrf",
        ),
        (["--partition", "./mine.py:twice"], "gives no parts of 1437 examples: return an array"),
        (
            ["--partition", "./mine.py:undrawn"],
            "partition './mine.py:undrawn' gives other parts every time: draw by the gen",
        ),
        (
            ["--methods", "./mine.py:Capped", "--set", "rules.Capped.mst=1"],
            "unknown key in [rules.Capped] 'mst': did you mean 'most'?",
        ),
        (
            ["--methods", "./mine.py:Capped,fedavg", "--set", "rules.Cappd.most=1"],
            "unknown rule 'Cappd'",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    home: Path, command_line: CommandLine, arguments: list[str], said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    done = command_line("run", *arguments, "--seeds", "0", "--rounds", "1", "-o", folder, cwd=home)
    assert (done.rc, done.err.count("\n")) == (2, 1), done.err
    assert said in done.err
    assert not folder.exists()


def test_what_raises_in_a_round_ends_its_cell_alone(
    home: Path, command_line: CommandLine, tmp_path: Path
) -> None:
    done = command_line(
        "run", "--methods", "./mine.py:Capped,fedavg", "--set", "rules.Capped.fails_in=3",
        "--seeds", "0", "--rounds", "4", "--jobs", "1", "-o", tmp_path / "run", cwd=home,
    )  # fmt: skip
    assert done.rc == 2
    assert done.err.splitlines()[-1] == (
        "fedcrf: error: 1 of the cells failed: Capped-seed-0: rule 'Capped' failed in round 3 "
        f"(RuntimeError: no more than this, {raised('no more')})"
    )
    run = read_results(Store(tmp_path / "run"))
    assert [len(each.records) for each in run.cells] == [2, 4]


def test_a_file_that_a_network_does_not_find_is_named_with_the_line(
    home: Path, command_line: CommandLine, tmp_path: Path
) -> None:
    done = command_line(
        "run", "--methods", "fedavg", "--model", "./mine.py:Reading", "--rounds", 1,
        "--seeds", 0, "--jobs", 1, "-o", tmp_path / "run", cwd=home,
    )  # fmt: skip
    said = f"no.csv: No such file or directory, {raised('no.csv')}"
    assert done.err == f"fedcrf: error: 1 of the cells failed: fedavg-seed-0: {said}\n"


def test_each_cell_that_failed_is_named_with_its_reason(
    home: Path, command_line: CommandLine, tmp_path: Path
) -> None:
    """At the end of a sweep and of a suite, whose cells have the same names in other folders."""
    rule = ("--methods", "fedavg,./mine.py:Capped", "--seeds", 0, "--jobs", 1,
            "--set", "rounds.maximum=2")  # fmt: skip
    said = "rule 'Capped' failed in round {} (RuntimeError: no more than this, {})"
    first, second = (said.format(number, raised("no more")) for number in (1, 2))
    swept = command_line(
        "sweep", *rule, "--over", "rules.Capped.fails_in=0,1,2", "-o", tmp_path / "sweep", cwd=home
    )
    assert swept.err == (
        f"fedcrf: error: 2 of the cells failed: fails_in=1/Capped-seed-0: {first}; "
        f"fails_in=2/Capped-seed-0: {second}\n"
    )
    suite = command_line(
        "robustness", *rule, "--conditions", "ipm-2,alie-1", "--partitions", "iid",
        "--set", "rules.Capped.fails_in=1", "-o", tmp_path / "suite", cwd=home,
    )  # fmt: skip
    assert suite.err == (
        "fedcrf: error: 3 of the cells failed: iid/none/Capped-seed-0, iid/alie-1/Capped-seed-0, "
        f"iid/ipm-2/Capped-seed-0: {first}\n"
    )


@pytest.mark.parametrize("name", ["accuracy-iid.csv", "rounds", "tables.md"])
def test_cells_that_failed_are_named_where_a_file_cannot_be_written_either(
    name: str, home: Path, command_line: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / "suite"
    suite = ("robustness", "--conditions", "none", "--partitions", "iid", "--seeds", 0, "--jobs", 1,
             "--set", "rounds.maximum=2", "-o", folder)  # fmt: skip
    assert command_line(*suite, "--methods", "fedavg", cwd=home).rc == 0
    (folder / name).rename(tmp_path / name)
    if name == "tables.md":  # which shows more than there is, and is kept
        (folder / name).write_text("99 of 99 cells;\n")
    elif name == "rounds":  # of the other cell, which are packed there
        (folder / name).touch()
    else:
        (folder / name).mkdir()
    capped = ("--methods", "uniform,./mine.py:Capped", "--set", "rules.Capped.fails_in=1")
    done = command_line(*suite, *capped, cwd=home)
    said = "fedcrf: error: 1 of the cells failed: Capped-seed-0: rule 'Capped' failed in round 1 "
    assert (done.rc, done.err[: len(said)]) == (2, said)
    why = " is kept as it is, since its" if name == "tables.md" else r": \w"
    assert re.search(rf"; and \S*{name}\S*{why}.*\n$", done.err), "which file is said too"


def test_an_attack_that_fails_is_named(
    home: Path, command_line: CommandLine, tmp_path: Path
) -> None:
    done = command_line(
        "run", "--methods", "./mine.py:Strict", "--attack", "./mine.py:Forgetful", "--attackers", 1,
        "--seeds", 0, "--rounds", 1, "--jobs", 1, "-o", tmp_path / "run", cwd=home,
    )  # fmt: skip
    said = (
        "attack Forgetful failed in round 1 (TypeError: its updates are a NoneType: return floats"
    )
    assert said in done.err
    shown = command_line("show", tmp_path / "run", cwd=home)
    assert (shown.rc, shown.err) == (0, "")


def test_two_things_of_one_name_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    home.joinpath("other.py").write_text(MINE, encoding="utf-8")
    with pytest.raises(FedcrfError, match="two of the rules are called Capped"):
        resolve({"methods": ["./mine.py:Capped", "./other.py:Capped"]})


def test_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    name = "./mine.py:Capped+proximal+adam"
    method = find_method(name)
    assert (method.rule, method.objective, method.server_optimizer) == (
        "./mine.py:Capped",
        "proximal",
        "adam",
    )
    assert method_title(name) == folder_name(name) == "Capped+proximal+adam"
    assert [is_outside(each) for each in ("a:B", "./a.py:B", "crf", "a:", "dask:tcp://a:1")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert short_name("package.module:Thing") == "Thing"


def test_settings_by_either_name_are_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    asked = {"methods": ["./mine.py:Capped"]}
    long = resolve(asked, {"rules": {"./mine.py:Capped": {"most": 0.4}}})
    short = resolve(asked, {"rules": {"Capped": {"most": 0.4}}})
    assert long == short
    assert long.cells() == short.cells() == resolve(long.describe()).cells()


def test_settings_in_settings_are_kept_and_read_when_their_class_is_gone(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(home)
    spec = resolve({"methods": ["./mine.py:Nested"]})
    kept = tomllib.loads(described(spec))
    assert kept["rules"]["./mine.py:Nested"] == {
        "most": 0.2, "fails_in": 0, "times": 3, "inner": {"rate": 1.0},
        "several": [{"rate": 2.0}], "grid": [[0.5]],
    }  # fmt: skip
    assert resolve(kept) == spec
    assert resolve(kept).describe() == spec.describe() == kept
    monkeypatch.chdir(tmp_path)
    assert resolve(kept, reading=True).describe() == kept
    assert resolve(kept, reading=True) == resolve(kept, reading=True)


def test_settings_go_by_a_short_name_in_all_runs_of_a_study(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an attack beside another attack, and those of a rule where it is not asked."""
    monkeypatch.chdir(home)
    small = {"methods": ["fedavg"], "attack": {"attackers": 1}}
    axes = parse_axis("attack.name=ipm,./mine.py:Coin"), parse_axis("attacks.Coin.factor=2,3")
    sweep = Study((small,), axes)
    attacks = [spec.threat.attack for _, spec in sweep.points if spec.threat is not None]
    assert [getattr(each, "factor", None) for each in attacks] == [None, None, 2, 3]
    assert sweep.default_values() == (None, None), "without a name there is no attack"
    with pytest.raises(FedcrfError, match="unknown attack 'Coin'"):
        _ = Study((small,), (parse_axis("attack.name=ipm,alie"), axes[1])).points

    capped = "./mine.py:Capped"
    suite = read_suite("attacks").chosen(
        methods=["fedavg", capped],
        conditions=["ipm-2"],
        settings=[{"rules": {"Capped": {"most": 0.3}}}],
    )
    assert {key[1] for key in suite.cells} >= {"left-out"}, "where FedAvg alone is asked"
    assert {cell.rule.most for key, cell in suite.cells.items() if key[2] == capped} == {0.3}
    assert suite.numbers == read_suite("attacks").chosen(conditions=["ipm-2"]).numbers


@pytest.mark.slow
def test_results_are_shown_without_the_file_that_got_a_setting_after_them(
    home: Path, command_line: CommandLine, tmp_path: Path
) -> None:
    """Of a run, and of a suite whose seeds were run before and after it."""
    file, name = tmp_path / "mine.py", "./mine.py:Capped"
    shutil.copy(home / "neighbour.py", tmp_path)
    of_run = ("run", "--methods", f"fedavg,{name}", "--rounds", 1, "--seeds", 0, "--jobs", 1,
              "-o", "run")  # fmt: skip
    of_suite = ("robustness", "--methods", f"fedavg,{name}", "--partitions", "iid", "--jobs", 1,
                "--conditions", "ipm-2", "--set", "rounds.maximum=1", "-o", "suite")  # fmt: skip
    setting = "    most: float = 0.2\n"
    for seeds, text in (
        ("0", MINE),
        ("0-1", MINE.replace(setting, f"{setting}    least: float = 0.0\n")),
    ):
        file.write_text(text, encoding="utf-8")
        for command in (of_run, (*of_suite, "--seeds", seeds)):
            assert command_line(*command, cwd=tmp_path).rc == 0
    looks = [("show", folder) for folder in ("run", "suite/rounds/iid/ipm-2")]
    there = [command_line(*look, cwd=tmp_path) for look in looks]
    assert all(each.rc == 0 and "Capped" in each.out for each in there)
    file.unlink()
    assert [command_line(*look, cwd=tmp_path) for look in looks] == there
    described = tmp_path / "run" / "run.toml"
    described.write_text(described.read_text().replace("most = 0.2", "most = 0.3"))
    other = command_line(*looks[0], cwd=tmp_path)
    assert (other.rc, "rule.most is 0.2 there, 0.3 here" in other.out) == (1, True)


@pytest.mark.slow
def test_a_package_brings_its_own(home: Path, tmp_path: Path) -> None:
    """An installed package's entry points are names as those of this package are."""
    package = tmp_path / "packages"
    info = package / "capped-1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: capped\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text(
        "[fedcrf.rules]\ncapped = capped_package:Capped\n"
        "[fedcrf.attacks]\ncoin = capped_package:Coin\n"
        "[fedcrf.models]\nwide = capped_package:Wide\n"
        "[fedcrf.datasets]\nstripes = capped_package:stripes\n"
        "[fedcrf.partitions]\nshards = capped_package:shards\n"
    )
    package.joinpath("capped_package.py").write_text(MINE, encoding="utf-8")
    package.joinpath("neighbour.py").write_text("SIGNS = [-1.0, 1.0]\n", encoding="utf-8")
    env = environment(PYTHONPATH=f"{Path(extensions.__file__).parents[1]}:{package}")
    done = fedcrf(
        "run", "--methods", "capped", "--set", "rules.capped.most=0.3", "--attack", "coin",
        "--attackers", "1", "--model", "wide", "--dataset", "stripes", "--partition", "shards",
        "--clients", "4", "--seeds", "0", "--rounds", "1", "--jobs", "1", "-o", "run",
        cwd=tmp_path, env=env,
    )  # fmt: skip
    assert (done.rc, done.err) == (0, "")
    shown = fedcrf("show", "run", cwd=tmp_path, env=env)
    without = fedcrf("show", "run", cwd=tmp_path, env=environment())
    assert (without.rc, without.out) == (0, shown.out)
    refused = fedcrf("run", "run/run.toml", "-o", "run", cwd=tmp_path, env=environment())
    assert (refused.rc, refused.err.count("\n")) == (2, 1)


@pytest.mark.slow
def test_an_object_of_a_file_can_be_sent_to_any_process(home: Path) -> None:
    """Its class is found there by the path of its file, before anything of ours is imported."""
    program = (
        "import pickle, sys; from fedcrf.rules import find_rule; "
        "sys.stdout.buffer.write(pickle.dumps(find_rule('./mine.py:Capped')(most=0.4)))"
    )
    env = environment(PYTHONPATH=str(Path(extensions.__file__).parents[1]))
    sent = subprocess.run(
        [sys.executable, "-c", program], cwd=home, env=env, capture_output=True, check=True
    ).stdout
    reads = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()))"
    read = subprocess.run(
        [sys.executable, "-c", reads], input=sent, cwd="/", env=env, capture_output=True, check=True
    )
    assert read.stdout.decode().startswith("Capped(most=0.4")
