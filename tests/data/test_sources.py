from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedcrf import FedcrfError
from fedcrf.data import DATASETS, load_dataset, sources

WriteParquet = Callable[..., Path]

LABELS = [0, 1, 0, 1, 2, 2]
CLASSES = ["ant", "bee", "cat"]


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


# What comes out


def test_grey_images_keep_one_channel(write_parquet: WriteParquet, grey: np.ndarray) -> None:
    write_parquet("mine", "train-0.parquet", grey, LABELS, classes=CLASSES)
    data = write_parquet("mine", "test.parquet", grey[:2], [2, 1], classes=CLASSES)
    dataset = load_dataset("mine", data_dir=data)
    assert dataset.name == "mine"
    assert dataset.class_names == tuple(CLASSES)
    assert dataset.num_classes == 3
    assert dataset.image_shape == (1, 5, 4)
    assert np.array_equal(dataset.train.images, grey[:, None])
    assert dataset.train.images.dtype == np.uint8
    assert dataset.train.labels.tolist() == LABELS
    assert dataset.train.labels.dtype == np.int64
    assert dataset.held_out is not None
    assert np.array_equal(dataset.held_out.images, grey[:2, None])
    assert dataset.held_out.labels.tolist() == [2, 1]


def test_colour_images_of_several_files_in_order(
    write_parquet: WriteParquet, colour: np.ndarray
) -> None:
    write_parquet("mine", "train-1.parquet", colour[4:], LABELS[4:], classes=CLASSES, image="img")
    data = write_parquet(
        "mine", "train-0.parquet", colour[:4], LABELS[:4], classes=CLASSES, image="img"
    )
    dataset = load_dataset("mine", data_dir=data)
    assert np.array_equal(dataset.train.images, colour.transpose(0, 3, 1, 2))
    assert dataset.train.labels.tolist() == LABELS
    assert dataset.held_out is None


def test_one_colour_image_makes_all_rgb(
    write_parquet: WriteParquet, grey: np.ndarray, colour: np.ndarray
) -> None:
    write_parquet("mine", "train.parquet", grey, LABELS)
    data = write_parquet("mine", "test.parquet", [grey[0], colour[1]], [0, 1])
    dataset = load_dataset("mine", data_dir=data)
    assert np.array_equal(dataset.train.images, np.repeat(grey[:, None], 3, axis=1))
    assert dataset.held_out is not None
    assert np.array_equal(dataset.held_out.images[1], colour[1].transpose(2, 0, 1))


GRADIENT = np.linspace(0, 255, 12, dtype=np.uint8).reshape(3, 4)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (encoded(Image.fromarray(GRADIENT)), GRADIENT[None]),
        (encoded(Image.fromarray(GRADIENT > 99)), np.where(GRADIENT > 99, 255, 0)[None]),
        (encoded(Image.fromarray(GRADIENT.astype(np.uint16) * 256 + 7)), GRADIENT[None]),
        (encoded(Image.fromarray(GRADIENT).convert("RGB"), "WEBP", lossless=True), [GRADIENT] * 3),
        (encoded(Image.fromarray(GRADIENT).convert("RGBA")), [GRADIENT] * 3),
        (encoded(Image.fromarray(GRADIENT).convert("P")), [GRADIENT] * 3),
        (encoded(Image.fromarray(GRADIENT).convert("LA")), [GRADIENT] * 3),
    ],
    ids=["L", "1", "I;16", "RGB as WebP", "RGBA", "P", "LA"],
)
def test_every_kind_of_image(
    write_parquet: WriteParquet, content: bytes, expected: np.ndarray
) -> None:
    data = write_parquet("mine", "train.parquet", [content], [0])
    assert np.array_equal(load_dataset("mine", data_dir=data).train.images[0], expected)


def test_image_size_resizes_bilinearly(write_parquet: WriteParquet, grey: np.ndarray) -> None:
    data = write_parquet("mine", "train.parquet", [*grey, grey[0][:3]], [*LABELS, 0])
    dataset = load_dataset("mine", data_dir=data, image_size=7)
    assert dataset.image_shape == (1, 7, 7)
    resized = Image.fromarray(grey[2]).resize((7, 7), Image.Resampling.BILINEAR)
    assert np.array_equal(dataset.train.images[2, 0], np.asarray(resized))


@pytest.mark.parametrize(("name", "count"), [("mine", "6"), ("digits", "1,437")])
def test_images_larger_than_the_memory_are_refused_before_they_are_decoded(
    write_parquet: WriteParquet, grey: np.ndarray, isolated: Path, name: str, count: str
) -> None:
    data = write_parquet("mine", "train.parquet", grey, LABELS)
    message = (
        rf"^{count} images of data set '{name}', decoded to 10000000x10000000 pixels, take [\d,.]+ "
        r"GiB, and this machine has [\d,.]+ GiB of memory; give a smaller --image-size .*$"
    )
    with pytest.raises(FedcrfError, match=message) as raised:
        load_dataset(name, data_dir=data, image_size=10_000_000)
    assert "\n" not in str(raised.value)
    assert not isolated.exists()


@pytest.mark.parametrize(("bytes_there", "refused"), [(119, True), (120, False), (None, False)])
def test_images_of_their_own_size_must_fit_into_the_memory(
    write_parquet: WriteParquet,
    grey: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    bytes_there: int | None,
    refused: bool,
) -> None:
    data = write_parquet("mine", "train.parquet", grey, LABELS)
    monkeypatch.setattr(sources, "_memory", lambda: bytes_there)
    with pytest.raises(FedcrfError, match="4x5 pixels") if refused else nullcontext():
        load_dataset("mine", data_dir=data)


def test_the_machine_says_how_much_memory_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    there = sources._memory()
    assert there is not None
    assert there > 2**28
    monkeypatch.setattr(os, "sysconf", lambda _: -1)  # what it does not know
    assert sources._memory() is None
    monkeypatch.delattr(os, "sysconf")
    assert sources._memory() is None


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        ([30, 4, 30, 4, 100, 7], ("4", "7", "30", "100"), [2, 0, 2, 0, 3, 1]),
        (["b", "a", "b", "c", "a", "a"], ("a", "b", "c"), [1, 0, 1, 2, 0, 0]),
    ],
)
def test_plain_labels_are_sorted_and_numbered(
    write_parquet: WriteParquet,
    grey: np.ndarray,
    labels: list[Any],
    names: tuple[str, ...],
    numbers: list[int],
) -> None:
    data = write_parquet("mine", "train.parquet", grey, labels)
    dataset = load_dataset("mine", data_dir=data)
    assert dataset.class_names == names
    assert dataset.train.labels.tolist() == numbers


def test_a_class_that_only_the_held_out_part_has_is_counted(
    write_parquet: WriteParquet, grey: np.ndarray
) -> None:
    write_parquet("mine", "train.parquet", grey, list("ccddcc"))
    data = write_parquet("mine", "test.parquet", grey[:1], ["a"])
    assert load_dataset("mine", data_dir=data).class_names == ("a", "c", "d")


@pytest.mark.parametrize("hidden", [-1, None])
@pytest.mark.parametrize("classes", [None, CLASSES])
def test_hidden_held_out_labels_mean_no_held_out_part(
    write_parquet: WriteParquet, grey: np.ndarray, hidden: int | None, classes: list[str] | None
) -> None:
    write_parquet("mine", "train.parquet", grey, LABELS, classes=classes)
    data = write_parquet("mine", "test.parquet", grey[:2], [hidden] * 2, classes=classes)
    dataset = load_dataset("mine", data_dir=data)
    assert dataset.held_out is None
    assert dataset.num_classes == 3


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (["test", "validation"], "test"),
        (["validation", "val"], "validation"),
        (["valid"], "valid"),
        (["val"], "val"),
        (["other"], None),
    ],
)
def test_which_files_are_held_out(
    write_parquet: WriteParquet, grey: np.ndarray, files: list[str], taken: str | None
) -> None:
    data = write_parquet("mine", "train.parquet", grey, LABELS)
    for number, file in enumerate(files):
        write_parquet("mine", f"{file}-0.parquet", grey[number : number + 1], [0])
    held_out = load_dataset("mine", data_dir=data).held_out
    if taken is None:
        assert held_out is None
    else:
        assert held_out is not None
        assert np.array_equal(held_out.images[0, 0], grey[files.index(taken)])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["train-00000-of-00002", "train-00001-of-00002-0af3"], None),
        (["train-00000-of-00002"], "1 of 2 files of train; copy train-00001-of-00002.parquet"),
        (
            ["train", "test-00002-of-00003"],
            "1 of 3 files of test; copy test-00000-of-00003.parquet",
        ),
        (["train", "other-00001-of-00002"], None),
        (["train-1-of-2", "train-2-of-2"], None),
        (
            ["train-00000-of-00001", "train-00000-of-00001-b42a"],
            "holds 'train-00000-of-00001-b42a.parquet' and 'train-00000-of-00001.parquet', which",
        ),
        (
            ["train-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002"],
            "which may be the same examples; keep the files of one version",
        ),
        (["train-0-of-99999999999"], "1 of 99999999999 files of train; copy train-00001-of-"),
    ],
)
def test_a_part_of_a_data_set_too_few_or_too_many_is_refused(
    write_parquet: WriteParquet, grey: np.ndarray, files: list[str], message: str | None
) -> None:
    for file in files:
        data = write_parquet("mine", f"{file}.parquet", grey, LABELS)
    with nullcontext() if message is None else pytest.raises(FedcrfError, match=message):
        load_dataset("mine", data_dir=data)


# Which columns


SHAPES = {"shape": ([0] * 6, datasets.ClassLabel(names=["round"]))}


@pytest.mark.parametrize(
    ("written", "asked", "class_names"),
    [
        ({"label": "kind", "classes": CLASSES}, {}, tuple(CLASSES)),
        ({"label": "labels"}, {}, ("0", "1", "2")),
        ({"label": "label", "classes": CLASSES, "more": SHAPES}, {}, tuple(CLASSES)),
        ({"label": "fine_label", "classes": CLASSES, "more": SHAPES}, {}, tuple(CLASSES)),
        ({"classes": CLASSES, "more": SHAPES}, {"label_column": "shape"}, ("round",)),
        ({"label": "anything"}, {"label_column": "anything"}, ("0", "1", "2")),
    ],
)
def test_the_label_column_is_found(
    write_parquet: WriteParquet,
    grey: np.ndarray,
    written: dict[str, Any],
    asked: dict[str, str],
    class_names: tuple[str, ...],
) -> None:
    data = write_parquet("mine", "train.parquet", grey, LABELS, **written)
    assert load_dataset("mine", data_dir=data, **asked).class_names == class_names


def test_the_image_column_can_be_chosen(write_parquet: WriteParquet, grey: np.ndarray) -> None:
    mask = encoded(Image.fromarray(GRADIENT))
    more = {"mask": ([{"bytes": mask, "path": None}] * 6, datasets.Image())}
    data = write_parquet("mine", "train.parquet", grey, LABELS, more=more)
    dataset = load_dataset("mine", data_dir=data, image_column="mask")
    assert np.array_equal(dataset.train.images[5, 0], GRADIENT)


TWO_IMAGES = {"mask": ([None] * 6, datasets.Image())}
TWO_LABELS = {"label": "colour", "classes": CLASSES, "more": SHAPES}


@pytest.mark.parametrize(
    ("written", "asked", "message"),
    [
        (
            {"more": TWO_IMAGES},
            {},
            r"more than one image column.*--image-column.*image, label, mask",
        ),
        (TWO_LABELS, {}, r"more than one label column.*--label-column.*image, colour, shape"),
        ({"label": "kind"}, {}, r"no obvious label column.*--label-column.*image, kind"),
        ({}, {"image_column": "imag"}, "unknown image column 'imag': did you mean 'image'"),
        ({}, {"label_column": "labl"}, "unknown label column 'labl': did you mean 'label'"),
        ({}, {"image_column": "label"}, "'label' .* does not hold images.*--image-column"),
        ({}, {"label_column": "image"}, "'image' .* does not hold class labels.*--label-column"),
        ({}, {"image_size": 0}, "--image-size must be at least 1, not 0"),
    ],
)
def test_columns_that_cannot_be_told(
    write_parquet: WriteParquet,
    grey: np.ndarray,
    written: dict[str, Any],
    asked: dict[str, Any],
    message: str,
) -> None:
    data = write_parquet("mine", "train.parquet", grey, LABELS, **written)
    with pytest.raises(FedcrfError, match=message):
        load_dataset("mine", data_dir=data, **asked)


# What is wrong with the data


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([0, -1, 1], [0], "1 training images without a label"),
        (["a", None, None], ["a"], "2 training images without a label"),
        ([0, 1, 0], [0, -1], "1 held-out images without a label .* among 2"),
        ([], [0], "no training images"),
    ],
)
def test_missing_labels_and_rows(
    write_parquet: WriteParquet, grey: np.ndarray, train: list[Any], test: list[Any], message: str
) -> None:
    write_parquet("mine", "train.parquet", grey[: len(train)], train)
    data = write_parquet("mine", "test.parquet", grey[: len(test)], test)
    with pytest.raises(FedcrfError, match=message):
        load_dataset("mine", data_dir=data)


def test_a_file_without_rows_among_others(write_parquet: WriteParquet, grey: np.ndarray) -> None:
    write_parquet("mine", "train-0.parquet", [], [], classes=CLASSES)
    data = write_parquet("mine", "train-1.parquet", grey, LABELS, classes=CLASSES)
    assert len(load_dataset("mine", data_dir=data).train) == 6


def test_a_label_beyond_the_class_names(write_parquet: WriteParquet, grey: np.ndarray) -> None:
    data = write_parquet("mine", "train.parquet", grey, LABELS)
    table = pq.read_table(data / "mine" / "train.parquet")
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a"]))
    pq.write_table(table.cast(features.arrow_schema), data / "mine" / "train.parquet")
    with pytest.raises(FedcrfError, match="has the label 1 but only 1 class names"):
        load_dataset("mine", data_dir=data)


def test_a_file_with_other_classes(write_parquet: WriteParquet, grey: np.ndarray) -> None:
    write_parquet("mine", "train.parquet", grey, LABELS, classes=CLASSES)
    data = write_parquet("mine", "test.parquet", grey, LABELS, classes=CLASSES[::-1])
    with pytest.raises(
        FedcrfError, match=r"'label' of '.*test.parquet' .* same columns and classes"
    ):
        load_dataset("mine", data_dir=data)


@pytest.mark.parametrize("where", ["train", "test"])
def test_images_of_two_sizes(write_parquet: WriteParquet, grey: np.ndarray, where: str) -> None:
    narrow = grey[:, :, :3]
    images = {"train": [*grey[:5], narrow[5]] if where == "train" else grey, "test": narrow}
    for split, of_split in images.items():
        data = write_parquet("mine", f"{split}.parquet", of_split, LABELS)
    with pytest.raises(FedcrfError, match=r"4x5 and 3x5 pixels .*--image-size N"):
        load_dataset("mine", data_dir=data)


@pytest.mark.parametrize("keep", [0, 3, 200, -8])
def test_a_parquet_file_cut_short(
    write_parquet: WriteParquet,
    grey: np.ndarray,
    keep: int,
    isolated: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_parquet("mine", "train.parquet", grey, LABELS)
    data = write_parquet("mine", "test.parquet", grey, LABELS)
    path = data / "mine" / "test.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    capfd.readouterr()
    with pytest.raises(FedcrfError, match=r"cannot read '.*test.parquet' .* fresh copy") as raised:
        load_dataset("mine", data_dir=data)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")
    assert not isolated.exists()


@pytest.mark.parametrize(
    "content",
    [b"no image", b"", encoded(Image.fromarray(GRADIENT))[:50]],
    ids=["text", "empty", "cut"],
)
def test_an_image_that_does_not_decode(
    write_parquet: WriteParquet, grey: np.ndarray, content: bytes, isolated: Path
) -> None:
    data = write_parquet("mine", "train.parquet", [grey[0], content], [0, 1])
    with pytest.raises(FedcrfError, match=r"image 1 of '.*train.parquet' does not .* fresh copy"):
        load_dataset("mine", data_dir=data)
    assert not isolated.exists()


def test_reading_leaves_nothing_behind_and_tells_no_one(
    write_parquet: WriteParquet,
    grey: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    data = write_parquet("mi[n]e", "train.parquet", grey, LABELS)
    capfd.readouterr()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    looked_up: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **_: looked_up.append(args) or [])
    load_dataset("mi[n]e", data_dir=data)
    assert looked_up == []
    assert list(scratch.iterdir()) == []
    assert capfd.readouterr() == ("", "")


# Where it is looked for


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "ylecun/mnist"),
        ("someone/birds", "someone/birds"),
        ("someone/birds", "birds"),
        ("cifar10", "uoft-cs/cifar10"),
    ],
)
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_where_a_name_is_looked_for(
    write_parquet: WriteParquet,
    grey: np.ndarray,
    name: str,
    folder: str,
    by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = write_parquet(folder, "train.parquet", grey, LABELS)
    monkeypatch.setenv("FEDCRF_DATA", "/nonexistent" if by == "argument" else str(data))
    dataset = load_dataset(name, data_dir=data if by == "argument" else None)
    assert np.array_equal(dataset.train.images, grey[:, None])


def no_hub(*_: Any, **__: Any) -> None:
    raise AssertionError("the hub was asked")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "mnist",
            r"'mnist': .* in '.*/mnist' or '.*/ylecun/mnist'; put .* --data-dir and FEDCRF_DATA",
        ),
        ("someone/birds", r"in '.*/someone/birds' or '.*/birds'"),
        ("mine", r"'mine': .* in '.*/mine'; put"),
        ("minne", "unknown data set 'minne': did you mean 'mine'"),
        ("mnits", "unknown data set 'mnits': did you mean 'mnist'"),
        ("/etc", "'/etc' is not a data set's name"),
        ("../mine", "is not a data set's name"),
    ],
)
def test_what_is_not_in_the_data_folder(
    tmp_path: Path, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(datasets, "load_dataset", no_hub)
    with pytest.raises(FedcrfError, match=message):
        load_dataset(name, data_dir=tmp_path)


def test_a_data_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(
        FedcrfError, match=r"data folder '.*/absent' does not exist; mend --data-dir"
    ):
        load_dataset("mnist", data_dir=tmp_path / "absent")


def test_an_unknown_name_without_a_data_folder() -> None:
    with pytest.raises(FedcrfError, match="unknown data set 'cifar-10': did you mean 'cifar10'"):
        load_dataset("cifar-10")


def test_every_source_has_one_line_of_description() -> None:
    for source in DATASETS.values():
        assert source.description
        assert "\n" not in source.description


# The hub


def split_of(grey: np.ndarray) -> datasets.Dataset:
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=CLASSES))
    cells = [{"bytes": encoded(Image.fromarray(one)), "path": None} for one in grey]
    columns = {"image": cells, "label": LABELS[: len(grey)]}
    return datasets.Dataset.from_dict(columns, features=features)


def test_the_hub_is_asked_once(grey: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def hub(name: str) -> datasets.DatasetDict:
        asked.append(name)
        return datasets.DatasetDict(train=split_of(grey), validation=split_of(grey[:2]))

    monkeypatch.setattr(datasets, "load_dataset", hub)
    first, second = load_dataset("mnist"), load_dataset("mnist")
    assert asked == ["ylecun/mnist"]
    assert first.held_out is not None
    assert np.array_equal(first.held_out.images, grey[:2, None])
    assert first.fingerprint == second.fingerprint


def test_images_that_the_hub_keeps_as_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(GRADIENT).save(tmp_path / "one.png")
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("string"))
    columns = {"image": [str(tmp_path / "one.png")], "label": ["a"]}
    train = datasets.Dataset.from_dict(columns, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda _: datasets.DatasetDict(train=train))
    assert np.array_equal(load_dataset("someone/files").train.images[0, 0], GRADIENT)


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def hub(name: str) -> None:
        raise ConnectionError(f"Couldn't reach '{name}' on the Hub (offline)\nand much more")

    monkeypatch.setattr(datasets, "load_dataset", hub)
    message = (
        r"'mnist' .* 'ylecun/mnist' \(Couldn't reach.*offline\)\); .* --data-dir or FEDCRF_DATA"
    )
    with pytest.raises(FedcrfError, match=message) as raised:
        load_dataset("mnist")
    assert "\n" not in str(raised.value)


def test_a_hub_set_without_training_images(
    grey: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = datasets.DatasetDict(test=split_of(grey))
    monkeypatch.setattr(datasets, "load_dataset", lambda _: splits)
    with pytest.raises(FedcrfError, match="no train split on the hub, only test"):
        load_dataset("someone/birds")


# Real data


def test_digits() -> None:
    dataset = load_dataset("digits")
    assert dataset.held_out is not None
    assert (len(dataset.train), len(dataset.held_out)) == (1437, 360)
    assert dataset.image_shape == (1, 8, 8)
    assert dataset.class_names == tuple("0123456789")
    assert dataset.train.images.max() == 16
    assert load_dataset("digits", image_size=16).image_shape == (1, 16, 16)


def test_digits_have_no_columns() -> None:
    with pytest.raises(FedcrfError, match="'digits' has no columns"):
        load_dataset("digits", label_column="label")


def test_mnist(data_dir: Path) -> None:
    dataset = load_dataset("mnist", data_dir=data_dir)
    assert dataset.held_out is not None
    assert (len(dataset.train), len(dataset.held_out)) == (60_000, 10_000)
    assert dataset.image_shape == (1, 28, 28)
    # The mean and standard deviation that everyone quotes, 0.1307 and 0.3081 of white.
    normalisation = dataset.train.normalisation()
    assert normalisation.mean / 255 == pytest.approx([0.1307], abs=5e-5)
    assert normalisation.std / 255 == pytest.approx([0.3081], abs=5e-5)
    assert np.bincount(dataset.train.labels).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949
    ]  # fmt: skip


def test_cifar100s_test_file(data_dir: Path, tmp_path: Path) -> None:
    [file] = (data_dir / "cifar100").glob("test*.parquet")
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "train.parquet").symlink_to(file)
    dataset = load_dataset("cifar100", data_dir=tmp_path)
    assert dataset.image_shape == (3, 32, 32)
    assert dataset.num_classes == 100
    assert dataset.class_names[:2] == ("apple", "aquarium_fish")
    assert np.bincount(dataset.train.labels).tolist() == [100] * 100


# What is imported


@pytest.mark.parametrize("name", ["mine", "digits"])
def test_a_second_start_imports_no_library_for_reading(
    write_parquet: WriteParquet, grey: np.ndarray, name: str
) -> None:
    data = write_parquet("mine", "train.parquet", grey, LABELS)
    dataset = load_dataset(name, data_dir=data)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fedcrf.data import load_dataset\n"
        f"dataset = load_dataset({name!r}, data_dir=Path({str(data)!r}))\n"
        "heavy = {'datasets', 'sklearn', 'pandas', 'torch', 'pyarrow'} & set(sys.modules)\n"
        "print(dataset.fingerprint, int(dataset.train.images.sum()), *heavy)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], env=os.environ, capture_output=True, text=True, check=True
    )
    total = int(dataset.train.images.sum())
    assert result.stdout.split() == [dataset.fingerprint, str(total)]


OWN = """
import numpy as np
from fedcrf.data import ImageDataset, LabelledImages

LABELS = np.array([0, 1, 0])


def sizes():
    return [np.zeros((8, 8), int), np.zeros((4, 4), int), np.zeros((8, 8), int)], LABELS


def no_pixels():
    return np.zeros((3, 8, 0), int), LABELS


def made(images, labels=LABELS):
    return ImageDataset("mine", LabelledImages(images, labels), None, ("a", "b"))


def good():
    return made(np.zeros((3, 1, 8, 8), np.uint8))


def flat():
    return made(np.zeros((3, 8, 8), np.uint8))


def infinite():
    return made(np.full((3, 1, 8, 8), np.inf, np.float32))


def beyond():
    return made(np.zeros((3, 1, 8, 8), np.uint8), np.array([0, 1, 2]))
"""


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        ("sizes", "makes no arrays .ValueError"),
        ("no_pixels", r"makes images of shape \(3, 8, 0\)"),
        ("flat", r"has images of shape \(3, 8, 8\), uint8, .* give \(n, C, H, W\) uint8"),
        ("infinite", r"has images of shape \(3, 1, 8, 8\), float32, .* or finite floats"),
        ("beyond", r"has .* labels of shape \(3,\), int64: give .* whole numbers from 0 to 1$"),
    ],
)
def test_what_is_wrong_with_a_data_set_of_ones_own(thing: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    assert load_dataset(f"{tmp_path}/mine.py:good").image_shape == (1, 8, 8)
    with pytest.raises(FedcrfError, match=f"data set .*mine.py:{thing}' {said}"):
        load_dataset(f"{tmp_path}/mine.py:{thing}")


def test_labels_of_a_function_that_are_no_numbers_of_classes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\n\ndef huge():\n"
        "    return np.zeros((200, 8, 8), int), np.arange(200) * 10**12\n",
        encoding="utf-8",
    )
    said = r"mine.py:huge' has label 199000000000000, and there are 200 different labels: number"
    with pytest.raises(FedcrfError, match=said):
        load_dataset(f"{tmp_path}/mine.py:huge")
