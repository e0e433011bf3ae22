"""Fixtures for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder with the real data sets; skip the test where there is none."""
    folder = os.environ.get("FEDCRF_DATA")
    if not folder:
        pytest.skip("FEDCRF_DATA is not set: give the folder with mnist/, cifar10/, cifar100/")
    return Path(folder)
