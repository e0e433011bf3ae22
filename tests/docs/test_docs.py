"""What the documentation shows a person to type does what it says, in the order of the page."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

from attacks.scenes import honest_updates, scene, updates
from experiments.runs import record, small_spec, summary
from fedcrf import RobustCRF
from fedcrf.cli import app
from fedcrf.data import PartitionSettings, partition
from fedcrf.experiments.grid import CellFinished, CellStarted, RoundFinished
from fedcrf.experiments.spec import CellKey, resolve
from fedcrf.experiments.store import Store
from fedcrf.experiments.study import Suite, read_suite
from fedcrf.loggers import LoggingObserver, find_loggers
from fedcrf.rules import ClientReport
from fedcrf.simulation.records import RoundRecord
from integration.command_line import CommandLine

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS.parent / "results"
FILE = re.compile(r'^```python title="([^"]*)"\n(.*?)^```', flags=re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(sh|python|toml)[^\n]*\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def page_text(page: str) -> str:
    """Return a page as it is written."""
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """Return language and text of a page's code, in order."""
    return BLOCK.findall(page_text(page))


def words(text: str) -> str:
    """Return a text in one line, any digit for any other."""
    return re.sub(r"\d", "0", " ".join(text.split()))


def python_of(page: str, section: str) -> dict[str, Any]:
    """Run the Python of one section, and return what it defines."""
    text = page_text(page).split(f"## {section}\n")[1]
    scope: dict[str, Any] = {}
    exec(next(code for language, code in BLOCK.findall(text) if language == "python"), scope)
    return scope


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(["tutorial", "see-a-run"], marks=pytest.mark.slow),
        ["own-updates"],
        ["own-model"],
    ],
    ids=" and ".join,
)
def test_what_pages_show_runs(
    pages: list[str], tmp_path: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Type the commands of a page, and of the page that goes on with its runs."""
    monkeypatch.chdir(tmp_path)
    for page in pages:
        check_what_is_shown(page, tmp_path, command_line)


def check_what_is_shown(page: str, home: Path, command_line: CommandLine) -> None:
    """Type what a page shows, in the order of the page."""
    scope: dict[str, Any] = {}
    said: list[str] = []
    shown = blocks(page)
    assert len(shown) >= 2
    for language, code in shown:
        if language == "python":
            exec(code, scope)
            continue
        for line in code.splitlines():
            name, *arguments = shlex.split(line)
            assert name == "fedcrf"
            if arguments[0] == "run":
                arguments += ["--jobs", "1"]  # the same numbers, without the start of processes
            result = command_line(*arguments, cwd=home)
            assert (result.rc, result.err) == (0, ""), line
            said.append(result.out)
    samples = re.findall(r"^```\n(Client .*?)^```", page_text(page), re.MULTILINE | re.DOTALL)
    assert len(samples) == (page == "see-a-run")
    for sample in samples:
        assert words(sample) in words(" ".join(said))


def test_a_study_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    for language, code in blocks("experiments"):
        if language == "python":
            exec(code, scope)
    assert scope["failed"] == []
    assert len(scope["cells"]) == 4
    assert scope["cells"].complete.all()


def commands(page: str) -> list[list[str]]:
    """Return the commands of a page, a comment behind them left out."""
    lines = [
        line
        for language, code in blocks(page)
        if language == "sh"
        for line in code.replace("\\\n", " ").splitlines()
    ]
    split = [shlex.split(each, comments=True) for line in lines for each in line.split(";")]
    return [words for words in split if words and words[0] == "fedcrf"]


@pytest.mark.parametrize("page", ["../README", "index", "experiments", "attacks", "protocols"])
def test_commands_are_such(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = commands(page)
    assert len(shown) >= 4
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for _, name, *arguments in shown:
        known[name].make_context(name, list(arguments))
        if name == "run":
            app(["run", *arguments, "--describe"], standalone_mode=False)
            spec = resolve(tomllib.loads(capsys.readouterr().out))
            assert spec.cells()


MADE_BY = tomllib.loads((RESULTS / "commands.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", MADE_BY)
def test_what_made_the_results_is_a_command(folder: str) -> None:
    assert (RESULTS / folder).is_dir()
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for command in MADE_BY[folder].get("commands", []):
        program, name, *arguments = shlex.split(command)
        if program == "fedcrf":
            known[name].make_context(name, list(arguments))
            assert name == "reproduce" or arguments[-2:] == ["-o", f"results/{folder}"]


class AskedError(Exception):
    """Ends a command at the cells that it would run."""


@pytest.mark.parametrize(
    "folder", [name for name in MADE_BY if (RESULTS / name / "cells.jsonl").exists()]
)
def test_the_commands_of_a_suite_make_its_cells(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[CellKey] = set()

    def note(suite: Suite, *_: object) -> None:
        asked.update(suite.cells)
        raise AskedError

    monkeypatch.setattr("fedcrf.experiments.grid.run_suite", note)
    monkeypatch.chdir(DOCS.parent)
    for command in MADE_BY[folder]["commands"]:
        _, *arguments = shlex.split(command)
        with pytest.raises(AskedError):
            app(arguments, standalone_mode=False)
    scores = Store(RESULTS / folder).scores()
    assert {(each.partition, each.condition, each.method, each.seed) for each in scores} == asked


def test_all_results_say_what_made_them() -> None:
    made = {path.parent for name in ("run.toml", "cells.jsonl") for path in RESULTS.rglob(name)}
    for folder in made:
        above = [folder, *folder.parents]
        assert any((RESULTS / name) in above for name in MADE_BY), folder


def test_the_run_files() -> None:
    whole, steps = (
        resolve(tomllib.loads(code))
        for language, code in blocks("experiments")
        if language == "toml"
    )
    assert [cell.method.rule for cell in whole.cells()[:3]] == ["fedavg", "crf", "uniform"]
    assert (steps.training.local_steps, steps.training.local_epochs) == (1, None)
    assert (steps.training.worker_momentum, steps.rounds.evaluate_every) == (0.9, 20)


def run_shown(section: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[RoundRecord]:
    """Write a section's file, run its command for two rounds; return the last cell's records."""
    text = page_text("extend").split(f"## {section}\n")[1]
    name, code = next(FILE.finditer(text)).groups()
    folder.joinpath(name).write_text(code, encoding="utf-8")
    monkeypatch.chdir(folder)
    line = next(code for language, code in BLOCK.findall(text) if language == "sh")
    shown = shlex.split(line)[1:]
    small = ["--seeds", "0", "--rounds", "2", "--jobs", "1", "--device", "cpu", "-o", "run"]
    app([*shown, *small], standalone_mode=False)
    store = Store(folder / "run")
    return store.cell(store.read().cells()[-1]).records()


def test_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = python_of("extend", "A server rule")["Capped"]
    for each in run_shown("A server rule", tmp_path, monkeypatch):
        base = np.minimum(each.base_weight, 0.15)
        assert each.weight == pytest.approx(base / base.sum(), rel=1e-4)
        assert max(each.base_weight) > 0.15
    reports = [ClientReport(i, {"w": np.full(2, x)}, 10) for i, x in enumerate([1.0, np.nan, 3.0])]
    assert rule().aggregate({}, {"w": np.zeros(2)}, reports).weights.tolist() == [0.5, 0.0, 0.5]


def test_a_rule_that_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = python_of("extend", "A rule that remembers")["Loyal"]
    for each in run_shown("A rule that remembers", tmp_path, monkeypatch):
        assert len(each.weight) == 5
    model, reports = {"w": np.zeros(2)}, [ClientReport(i, {"w": np.ones(2)}, 10) for i in range(3)]
    memory = rule().aggregate({}, model, reports[:1]).memory
    assert rule().aggregate(memory, model, reports).weights.tolist() == [0.5, 0.25, 0.25]


def test_a_robust_potential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = run_shown("A robust potential", tmp_path, monkeypatch)
    for each in records:
        attacks = np.isin(each.clients, each.attackers or [])
        short = np.array(each.reasons.causes["short"])
        assert attacks.sum() == 3
        assert np.all(short[attacks] > 10)  # an update of zeros: log 10⁻³⁰, less the median
        assert not short[~attacks].any()
        assert np.max(np.array(each.weight)[attacks]) < 1e-6


def test_an_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decay = python_of("extend", "A client objective")["Decay"]
    assert len(run_shown("A client objective", tmp_path, monkeypatch)) == 2
    weight = torch.nn.Parameter(torch.tensor([2.0, -1.0]))
    weight.grad = torch.tensor([1.0, 1.0])
    with torch.no_grad():
        decay(strength=0.5).correct_gradients([weight], [weight])
    assert weight.grad.tolist() == [2.0, 0.5]


def test_an_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coin = python_of("extend", "An attack")["Coin"]
    assert [
        len(each.attackers or []) for each in run_shown("An attack", tmp_path, monkeypatch)
    ] == [
        2,
        2,
    ]
    round_ = scene()
    mean = honest_updates(round_).mean(axis=0)
    sent = updates(round_, coin(factor=3.0).forge(round_).reports)
    assert np.abs(sent) == pytest.approx(np.tile(3 * np.abs(mean), (3, 1)))
    assert len(set(np.sign(sent * mean)[0])) == 2


def test_a_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_shown("A partition", tmp_path, monkeypatch)
    held = Store(tmp_path / "run").partition(0)
    assert held is not None
    assert len(held.clients) == 8
    # A shard of a sixteenth crosses at most one border between the ten sorted labels.
    assert all(sum(count > 0 for count in client.labels) <= 4 for client in held.clients)
    labels = np.random.default_rng(0).integers(10, size=333)
    settings = PartitionSettings("./shards.py:SHARDS", num_clients=8)
    parts = partition(labels, settings, np.random.default_rng(1))
    assert np.sort(np.concatenate(parts)).tolist() == list(range(333))


def test_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = python_of("extend", "A model")["ConvNet"]
    assert len(run_shown("A model", tmp_path, monkeypatch)) == 2
    assert plan(channels=3).build((3, 32, 32), 7)(torch.zeros(5, 3, 32, 32)).shape == (5, 7)


def test_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = run_shown("A data set", tmp_path, monkeypatch)[-1]
    assert last.held_out is not None
    assert last.held_out.accuracy > 0.9  # lying and standing are easily told apart


def test_a_suite(tmp_path: Path) -> None:
    text = page_text("extend").split("## A suite of conditions\n")[1]
    path = tmp_path / "mine.toml"
    path.write_text(next(code for language, code in BLOCK.findall(text) if language == "toml"))
    suite = read_suite(str(path), "digits")
    assert {condition for _, condition, *_ in suite.cells} == {"none", "oracle", "flip", "late"}
    assert len(suite.cells) == 3 * 2 * 3 + 3  # FedAvg alone shows what could be had


def test_a_logger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = small_spec(seeds=[0]).cells()[0]
    said: list[str] = []
    ((name, code),) = FILE.findall(page_text("see-a-run"))
    tmp_path.joinpath(name).write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    makers = find_loggers([f"./{name}:PrintLogger"])
    observer = LoggingObserver(makers, said.append)
    observer(CellStarted(cell, 0, tmp_path))
    observer(RoundFinished(cell, record(1, 0.5, accuracy=0.75), tmp_path))
    observer(CellFinished(cell, summary("fedavg", 0, 0.75), tmp_path))
    assert said == []
    assert "fedavg-seed-0, round 1: 0.750" in capsys.readouterr().out


def test_own_updates_names_every_cause() -> None:
    updates = np.random.default_rng(0).normal(1.0, 0.5, size=(5, 40))
    losses = {"residual_loss": [0.1] * 5}
    causes = RobustCRF().infer(updates, [1, 1, 1, 1, 90], evidence=losses).causes
    assert "counted" in causes
    assert [name for name in causes if f"`{name}`" not in page_text("own-updates")] == []


def test_no_example_multiplies_updates_that_may_hold_nan() -> None:
    sources = [*DOCS.glob("*.md"), *(DOCS.parent / "src").rglob("*.py")]
    sources += (DOCS.parent / "examples").rglob("*.py")
    product = re.compile(r"(weights|coefficients) @ updates")
    assert not [path for path in sources if product.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", [path.stem for path in sorted(DOCS.glob("*.md"))])
def test_pages_speak_of_what_there_is(page: str) -> None:
    text = page_text(page)
    for path in re.findall(r"`(src/[\w/.-]+)`", text):
        assert (DOCS.parent / path).exists(), path
    for name in re.findall(r"`fedcrf (\w[\w-]*)", text):
        assert name in {command.callback.__name__ for command in app.registered_commands}


@pytest.mark.parametrize("page", [path.stem for path in sorted(DOCS.glob("reference/*.md"))])
def test_the_reference_names_what_there_is(page: str) -> None:
    text = page_text(f"reference/{page}")
    for place, options in re.findall(r"^::: (\S+)\n((?: {4}.*\n)*)", text, flags=re.MULTILINE):
        assert find_spec(place) is not None, f"{page} names {place}, which there is not"
        module = pytest.importorskip(place)
        for name in re.findall(r"\w+", options.partition("members:")[2]):
            assert hasattr(module, name), f"{place}.{name}"
