"""Fixtures for every test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import ChainMap
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing.context import BaseContext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from experiments.runs import carry_out, small_spec
from fedcrf.rules.byzfl import byzfl_part
from integration.command_line import CommandLine

if TYPE_CHECKING:
    from report.browser import Browser


CACHE = pytest.StashKey[Path]()

LONG = (
    "statistics/test_compiled.py",
    "integration/test_cli.py",
    "statistics/test_crowds.py",
    "test_readme.py",
    "docs/test_docs.py",
    "simulation/test_adversary.py",
)
"""Modules that begin first: no process is left with one at the end, and what the first compiles is
there for others."""


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests one cache folder, with all their processes; nobody's own is read or filled.

    What it holds of compiled code is kept for the next time: its names tell its sources, and its
    compiler looks whether it is for this processor.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # it has the folder from the process that started it
    config.stash[CACHE] = Path(tempfile.mkdtemp(prefix="fedcrf-tests-"))
    os.environ["FEDCRF_CACHE"] = str(config.stash[CACHE])
    os.environ["COLUMNS"] = "200"  # what is printed wraps alike wherever tests run
    if hasattr(config, "cache"):
        kept = config.cache.mkdir("fedcrf-kernels")
        (config.stash[CACHE] / "kernels").symlink_to(kept)


def pytest_unconfigure(config: pytest.Config) -> None:
    if CACHE in config.stash:
        shutil.rmtree(config.stash[CACHE], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what waits for a browser or real images as slow, and put long modules first."""
    for item in items:
        if {"chromium", "data_dir"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.slow)

    def place(item: pytest.Item) -> int:
        module = item.nodeid.partition("::")[0].removeprefix("tests/")
        return LONG.index(module) if module in LONG else len(LONG)

    items.sort(key=place)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder with the real data sets; skip the test where there is none."""
    folder = os.environ.get("FEDCRF_DATA")
    if not folder:
        pytest.skip("FEDCRF_DATA is not set: give the folder with mnist/, cifar10/, cifar100/")
    return Path(folder)


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run, to look at only."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    _, failed = carry_out(small_spec(), folder)
    assert failed == []
    return folder


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    """Return the folder of a finished run, to do with as a test likes."""
    return Path(shutil.copytree(finished_once, tmp_path / "run"))


@pytest.fixture(scope="session")
def fork_server() -> BaseContext:
    """Return a way to start child processes from one that has imported torch for all of them."""
    import torch.multiprocessing

    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedcrf.simulation.engine", "fedcrf.experiments.grid"])
    return context


@pytest.fixture
def quick_children(fork_server: BaseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start children where imports are done: for tests of what they do, not of how they begin."""
    monkeypatch.setattr("torch.multiprocessing.get_context", lambda _: fork_server)


@pytest.fixture(scope="session")
def command_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Return the command line, in a process that has imported everything."""
    with CommandLine(tmp_path_factory.mktemp("command-line")) as running:
        yield running


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a headless Chromium; skip the test where none is installed."""
    pytest.importorskip("selenium")
    from report import browser

    if browser.CHROMIUM is None or browser.DRIVER is None:
        pytest.skip("no Chromium: install the packages chromium and chromium-driver")
    with browser.open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def byzfl() -> SimpleNamespace:
    """ByzFL: its aggregators, attacks and federations, without what its package imports besides."""
    if find_spec("byzfl") is None:
        pytest.skip("ByzFL is not installed: nothing to compare with")
    parts = map(byzfl_part, ("aggregators", "attacks", "fed_framework"))
    return SimpleNamespace(**ChainMap(*map(vars, parts)))
