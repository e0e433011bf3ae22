"""Real sites from files are run, shown, reported and explained by their names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedcrf.data import load_dataset
from fedcrf.errors import FedcrfError

NAMES = ("Aarau", "Bern", "Chur", "Davos")
RUN = (
    "--methods", "crf-robust", "--seeds", "0", "--rounds", "3", "--jobs", "1",
    "--set", "model.hidden=[8]",
)  # fmt: skip


def hospitals(folder: Path, label: str = "illness") -> Path:
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number, name in enumerate(NAMES):
        ill = draw.integers(0, 2, 30 + number)
        table = {
            "age": 50 + 10 * draw.standard_normal(len(ill)) + 10 * ill,
            "sex": draw.integers(0, 2, len(ill)),
            "same": 7,
            label: np.where(ill, "yes", "no"),
        }
        pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
    return folder


def test_they_are_known_by_their_names(tmp_path: Path, command_line: Any) -> None:
    hospitals(tmp_path / "hospitals")
    flags = ("--sites", "hospitals", "--label-column", "illness")
    ran = command_line("run", *flags, *RUN, "-o", "run", cwd=tmp_path)
    assert ran.rc == 0, ran.err
    again = command_line("run", *flags, *RUN, "-o", "run", cwd=tmp_path)
    assert again.rc == 0, again.err
    shutil.rmtree(tmp_path / "hospitals")  # what was run is shown without it
    for command in (("show",), ("report",), ("explain", "--client", "Chur")):
        done = command_line(command[0], "run", *command[1:], cwd=tmp_path)
        assert done.rc == 0, done.err
    assert "Client Chur" in done.out
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "hospitals" in page


def test_each_number_is_normalised_by_itself(tmp_path: Path) -> None:
    folder = hospitals(tmp_path / "hospitals", label="y")
    dataset = load_dataset(f"sites:{folder}")
    assert dataset.sites == NAMES
    assert dataset.class_names == ("no", "yes")
    assert dataset.image_shape == (3, 1, 1)
    whole = pd.concat([pd.read_csv(folder / f"{name}.csv") for name in NAMES])
    scale = dataset.train.normalisation(np.arange(40))
    ages = whole["age"].to_numpy()[:40]
    assert scale.mean[0] == pytest.approx(ages.mean(), rel=1e-6)
    assert scale.std[0] == pytest.approx(ages.std(), rel=1e-6)
    assert scale.std[2] == 1.0, "what is the same everywhere is not divided by 0"


WRONG = {
    "a partition": (["--partition", "iid"], "leave --partition and --limit out"),
    "a limit": (["--limit", "10"], "leave --partition and --limit out"),
    "clients": (["--clients", "3"], "there are 4 sites: leave --clients out"),
    "a data set": (["--dataset", "digits"], "--sites and --dataset: give one of them"),
    "image size": (["--image-size", "8"], "hold no images of bytes: leave --image-column and"),
    "a column": (["--label-column", "age"], "column 'illness' is no numbers"),
    "no column": (["--label-column", "wage"], "Aarau.csv has no column 'wage': there are age, sex"),
    "numbers": (["--label-column", "same", "--sites", "other"], "there are no such sites"),
}


@pytest.mark.parametrize(("flags", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_a_line_and_nothing_is_written(
    flags: list[str], said: str, tmp_path: Path, command_line: Any
) -> None:
    hospitals(tmp_path / "hospitals")
    given = ["--sites", "hospitals", *([] if "--label-column" in flags else ["--label-column",
             "illness"]), *flags]  # fmt: skip
    done = command_line("run", *given, *RUN, "-o", "run", cwd=tmp_path)
    assert (done.rc, done.err.count("\n")) == (2, 1), done.err
    assert said in done.err
    assert not (tmp_path / "run").exists()


def test_targets_that_are_no_labels(tmp_path: Path, command_line: Any) -> None:
    hospitals(tmp_path / "hospitals")
    for name in NAMES:
        path = tmp_path / "hospitals" / f"{name}.csv"
        pd.read_csv(path)[["sex", "age"]].to_csv(path, index=False)
    flags = ("--sites", "hospitals", "--label-column", "age")
    done = command_line("run", *flags, *RUN, "-o", "run", cwd=tmp_path)
    assert done.rc == 2
    assert (
        "targets of site 'Aarau' are no labels from 0 on: give such, or use fedcrf.sim" in done.err
    )


def dated(folder: Path) -> None:
    for name in NAMES:
        table = pd.read_csv(folder / f"{name}.csv")
        table["label"] = 20240101 + (table["label"] == "yes")
        table.to_csv(folder / f"{name}.csv", index=False)


def without_inputs(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    np.savez(folder / "Bern.npz", x=np.zeros((9, 0)), y=np.zeros(9, int))


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "dates for labels": (
        dated,
        "site 'Aarau' has label 20240102, and there are 2 different labels: number them from 0, or "
        "name another column of tables by --label-column",
    ),
    "a link to nothing": (
        lambda folder: (folder / "Elm.csv").symlink_to("nowhere"),
        "Elm.csv is no file, nor a link to one: put the site's file there, or take it away",
    ),
    "a folder": (
        lambda folder: (folder / "Elm.parquet").mkdir(), "Elm.parquet is no file, nor a link to one"
    ),
    "a name that is not UTF-8": (
        lambda folder: os.replace(folder / "Bern.csv", folder / os.fsdecode(b"caf\xe9.csv")),
        r"the name 'caf\udce9.csv' is not UTF-8: rename the file or folder",
    ),
    "no inputs": (without_inputs, "inputs of site 'Bern' have shape (0,), float64: give (n, "),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), ODD.values(), ids=ODD)
def test_files_that_cannot_be_sites(
    change: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    folder = hospitals(tmp_path / "hospitals", label="label")
    change(folder)
    with pytest.raises(FedcrfError) as caught:
        load_dataset(f"sites:{folder}")
    assert said in str(caught.value)


def test_the_name_of_a_folder_that_is_not_utf8(tmp_path: Path) -> None:
    folder = hospitals(tmp_path / os.fsdecode(b"caf\xe9"), label="label")
    with pytest.raises(FedcrfError, match=r"caf\\udce9' is not UTF-8: rename the file or folder"):
        load_dataset(f"sites:{folder}")
