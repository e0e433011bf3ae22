"""The core installs NumPy alone; what else is missing is named with the extra that has it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest

from fedcrf.extras import mend

WITHOUT = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "fedcrf", *NAMES}:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


def run_without(program: str, *installed: str) -> subprocess.CompletedProcess[str]:
    """Run a program where of all packages only these can be imported."""
    program = WITHOUT.replace("NAMES", repr(set(installed))) + program
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("torch", "torch is not installed: pip install 'fedcrf[simulation]'"),
        ("PIL.Image", "PIL is not installed: pip install 'fedcrf[simulation]'"),
        ("sklearn", "sklearn is not installed: pip install 'fedcrf[simulation]'"),
        ("jinja2", "jinja2 is not installed: pip install 'fedcrf[report]'"),
        ("flwr", "flwr is not installed: pip install 'fedcrf[flower]'"),
        ("nvflare", "nvflare is not installed: pip install 'fedcrf[nvflare]'"),
        ("mlflow", "mlflow is not installed: pip install 'fedcrf[mlflow]'"),
        ("numba", "numba is not installed: pip install 'fedcrf[fast]'"),
        ("no_such_tool", "no_such_tool is not installed: pip install 'no-such-tool'"),
    ],
)
def test_what_is_missing_is_named_with_its_extra(package: str, said: str) -> None:
    assert mend(ModuleNotFoundError(name=package)) == said


def test_without_an_extra_numpy_alone_is_installed() -> None:
    installed = [each for each in requires("fedcrf") or [] if "extra ==" not in each]
    assert [each.partition(">")[0] for each in installed] == ["numpy"]


def test_own_vectors_need_numpy_alone() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    example = readme.partition("```python\n")[2].partition("```")[0]
    assert "RobustCRF" in example
    done = run_without(example, "numpy")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_names_the_extra_that_it_needs() -> None:
    program = "import sys\nfrom fedcrf.__main__ import main\nsys.argv = ['fedcrf', 'demo']\nmain()"
    done = run_without(program, "numpy")
    said = "fedcrf: error: typer is not installed: pip install 'fedcrf[simulation]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("fedcrf.integrations.flower", "flwr"),
        ("fedcrf.integrations.nvflare", "nvflare"),
        ("fedcrf.cli", "typer"),
        ("fedcrf.data", "PIL"),
        ("fedcrf.experiments.study", "pydantic"),
        ("fedcrf.loggers", "pydantic"),
        ("fedcrf.models", "torch"),
        ("fedcrf.objectives", "torch"),
        ("fedcrf.own.result", "pandas"),
        ("fedcrf.report.page", "pandas"),
        ("fedcrf.simulation.rounds", "pydantic"),
    ],
)
def test_a_module_names_the_extra_that_it_needs(module: str, package: str) -> None:
    done = run_without(f"import {module}", "numpy")
    extra = {"flwr": "flower", "nvflare": "nvflare"}.get(package, "simulation")
    said = f"ModuleNotFoundError: {package} is not installed: pip install 'fedcrf[{extra}]'"
    assert done.stderr.splitlines()[-1] == said


def test_neighbours_name_the_extra_that_they_need() -> None:
    program = """
import numpy as np
from fedcrf import ClientCRF, FedcrfError
try:
    ClientCRF(neighbours=2).infer(np.eye(4), [1] * 4)
except FedcrfError as error:
    print(error)
"""
    done = run_without(program, "numpy")
    said = "neighbours: scipy is not installed: pip install 'fedcrf[simulation]'\n"
    assert (done.stdout, done.stderr) == (said, "")


def test_what_is_missing_is_named_where_the_package_itself_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("fedcrf.extras.requires", missing)
    assert mend(ModuleNotFoundError(name="torch")) == "torch is not installed: pip install 'torch'"
