from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcrf.data import ImageDataset, LabelledImages, load_dataset
from fedcrf.data.dataset import cached_dataset

WriteParquet = Callable[..., Path]


class Builder:
    """Builds a small data set, and counts how often."""

    def __init__(self, *, held_out: bool = True) -> None:
        self.calls = 0
        self._held_out = held_out

    def __call__(self) -> ImageDataset:
        self.calls += 1
        images = np.random.default_rng(0).integers(0, 256, size=(40, 3, 8, 8), dtype=np.uint8)
        labels = np.arange(40, dtype=np.int64) % 4
        train = LabelledImages(images[:30], labels[:30])
        held_out = LabelledImages(images[30:], labels[30:])
        classes = ("a", "b", "ć", "d")
        return ImageDataset("x", train, held_out if self._held_out else None, classes)


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "datasets").iterdir())


def assert_same(one: ImageDataset, other: ImageDataset) -> None:
    assert one.fingerprint == other.fingerprint
    assert one.class_names == other.class_names
    assert (one.held_out is None) == (other.held_out is None)
    for a, b in ((one.train, other.train), (one.held_out, other.held_out)):
        if a is None or b is None:
            continue
        assert np.array_equal(a.images, b.images)
        assert np.array_equal(a.labels, b.labels)


@pytest.mark.parametrize("held_out", [True, False])
def test_the_second_time_it_comes_from_disk(isolated: Path, held_out: bool) -> None:
    build = Builder(held_out=held_out)
    first, second = (cached_dataset("x", {"key": 1}, build) for _ in range(2))
    assert build.calls == 1
    assert_same(first, build())
    assert_same(first, second)
    for dataset in (first, second):
        assert isinstance(dataset.train.images, np.memmap)
        assert not dataset.train.images.flags.writeable
    assert len(entries(isolated)) == 1


def test_another_identity_is_another_entry(isolated: Path) -> None:
    build = Builder()
    for key in (1, 2):
        cached_dataset("owner/x", {"key": key}, build)
    assert build.calls == 2
    assert [entry.name[:8] for entry in entries(isolated)] == ["owner-x-"] * 2


def test_the_argument_comes_before_the_environment(tmp_path: Path, isolated: Path) -> None:
    cached_dataset("x", {}, Builder(), cache_dir=tmp_path / "other")
    assert len(entries(tmp_path / "other")) == 1
    assert not isolated.exists()


@pytest.mark.parametrize("file", ["entry.json", "train_images.npy", "held_out_labels.npy"])
@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "noise"])
def test_a_damaged_entry_is_built_again(isolated: Path, file: str, damage: str) -> None:
    build = Builder()
    first = cached_dataset("x", {}, build)
    [entry] = entries(isolated)
    content = (entry / file).read_bytes()
    (entry / file).unlink()
    if damage != "missing":
        kept = {"cut": content[:-5], "empty": b"", "noise": b"\x00\xff" * 40}[damage]
        (entry / file).write_bytes(kept)
    assert_same(cached_dataset("x", {}, build), first)
    assert build.calls == 2
    cached_dataset("x", {}, build)
    assert build.calls == 2
    assert entries(isolated) == [entry]


def test_arrays_that_do_not_fit_together_are_damage(isolated: Path) -> None:
    build = Builder()
    cached_dataset("x", {}, build)
    [entry] = entries(isolated)
    np.save(entry / "train_labels.npy", np.zeros(29, dtype=np.int64))
    assert len(cached_dataset("x", {}, build).train) == 30
    assert build.calls == 2


def test_a_folder_that_cannot_be_written_only_costs_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    build = Builder()
    with caplog.at_level(logging.WARNING):
        dataset = cached_dataset("x", {}, build, cache_dir=tmp_path / "file")
    assert_same(dataset, build())
    [record] = caplog.records
    assert "cannot keep the decoded data set 'x'" in record.getMessage()
    assert "FEDCRF_CACHE" in record.getMessage()


def test_two_at_the_same_time_agree(isolated: Path, caplog: pytest.LogCaptureFixture) -> None:
    both_are_building = threading.Barrier(2)
    results: list[ImageDataset] = []

    class Slow(Builder):
        def __call__(self) -> ImageDataset:
            both_are_building.wait(timeout=10)
            return super().__call__()

    def load() -> None:
        results.append(cached_dataset("x", {}, Slow()))

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same(*results)
    assert len(entries(isolated)) == 1
    assert caplog.records == []


def test_a_build_that_fails_leaves_nothing(isolated: Path) -> None:
    def build() -> ImageDataset:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cached_dataset("x", {}, build)
    assert not isolated.exists()


def test_a_changed_file_is_read_again(write_parquet: WriteParquet, grey: np.ndarray) -> None:
    data = write_parquet("mine", "train.parquet", grey, [0, 1] * 3)
    first = load_dataset("mine", data_dir=data)
    write_parquet("mine", "train.parquet", grey[::-1], [0, 1] * 3)
    path = data / "mine" / "train.parquet"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))
    second = load_dataset("mine", data_dir=data)
    assert second.fingerprint != first.fingerprint
    assert np.array_equal(second.train.images, grey[::-1, None])
