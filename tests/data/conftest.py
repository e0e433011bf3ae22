"""Small Parquet folders, and a cache that no other test shares."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

WriteParquet = Callable[..., Path]


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the cache to an empty folder and forget the user's data folder."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("FEDCRF_CACHE", str(cache))
    monkeypatch.delenv("FEDCRF_DATA", raising=False)
    return cache


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def write_parquet(tmp_path: Path) -> WriteParquet:
    """Write ``data/<folder>/<file>`` with an image and a label column; returns the data folder.

    ``images`` are pixel arrays, or bytes to store as they are; ``classes`` makes the labels a
    ClassLabel; ``more`` are further columns as (values, feature).
    """
    import datasets

    def write(
        folder: str,
        file: str,
        images: Sequence[Any],
        labels: Sequence[Any],
        *,
        classes: Sequence[str] | None = None,
        image: str = "image",
        label: str = "label",
        more: dict[str, tuple[Sequence[Any], Any]] | None = None,
    ) -> Path:
        encoded = [i if isinstance(i, bytes) else png(i) for i in images]
        cells = [{"bytes": one, "path": None} for one in encoded]
        value = datasets.Value("string" if any(isinstance(v, str) for v in labels) else "int64")
        features: dict[str, Any] = {
            image: datasets.Image(),
            label: datasets.ClassLabel(names=list(classes)) if classes else value,
        }
        columns: dict[str, Any] = {image: cells, label: list(labels)}
        for name, (values, feature) in (more or {}).items():
            columns[name], features[name] = list(values), feature
        path = tmp_path / "data" / folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        with path.open("wb") as out:
            rows.to_parquet(out)
        return tmp_path / "data"

    return write


@pytest.fixture
def grey() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=(6, 5, 4), dtype=np.uint8)


@pytest.fixture
def colour() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, size=(6, 5, 4, 3), dtype=np.uint8)
