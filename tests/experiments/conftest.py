from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.runs import carry_out, small_spec


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCRF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    _, failed = carry_out(small_spec(), folder)
    assert failed == []
    return folder


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    """The folder of a finished run, to do with as a test likes."""
    return Path(shutil.copytree(finished_once, tmp_path / "run"))
