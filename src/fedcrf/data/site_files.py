"""What real sites hold, from files: an NPZ file of all of them, or a folder with a file a site."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import LARGEST_FLOAT32
from fedcrf.data.dataset import ImageDataset, LabelledImages, numbered_classes
from fedcrf.errors import FedcrfError, failing, listed

if TYPE_CHECKING:
    import pandas as pd

SITES = "sites:"
"""Stands before the path of real sites' files, where a data set's name is taken."""

TARGETS = ("label", "labels", "target", "targets", "y")
"""Columns of a table that hold the targets, where none is named."""

INPUTS, TARGET = "x", "y"
"""Arrays of an NPZ file; behind the site's name and an underscore where it holds all sites."""

SUFFIXES = (".csv", ".parquet", ".npz")
"""Of files that are read as a site."""


Pair = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class SiteFiles:
    """What the sites of a file or a folder hold: by name inputs (n, ...) and targets (n, ...).

    ``class_names`` are those of targets that were words, in the order of their numbers; else None.
    """

    sites: Mapping[str, Pair]
    class_names: tuple[str, ...] | None = None


def read_site_files(path: Path, label_column: str | None = None) -> SiteFiles:
    """Read what sites hold.

    An ``.npz`` file has two arrays for each site, ``NAME_x`` and ``NAME_y``. In a folder each file
    is a site of its name: ``.npz`` with ``x`` and ``y``, or a table, ``.csv`` or ``.parquet``, of
    which ``label_column``, by default the only one named label, labels, target, targets or y, is
    the target and all others, numbers, are the inputs. Sites are in the order of their names.
    """
    if path.is_dir():
        files = sorted(
            (each for each in path.iterdir() if each.suffix.lower() in SUFFIXES),
            key=lambda each: (_natural(each.stem), each.name),
        )
        held: dict[str, Pair] = {}
        columns: list[str] = []
        for file in files:
            _check_name(file.name)
            if not file.is_file():
                raise FedcrfError(
                    f"{file} is no file, nor a link to one: put the site's file there, or take "
                    "it away"
                )
            if file.stem in held:
                raise FedcrfError(f"{path}: site '{file.stem}' is there twice: keep one file of it")
            with failing(f"{file} cannot be read ({{}})"):
                held[file.stem] = _one_site(file, label_column, columns)
    elif path.suffix.lower() == ".npz" and path.is_file():
        held = _all_sites(path, label_column)
    else:
        raise FedcrfError(
            f"{path}: there are no such sites; give an .npz file, or a folder of .csv, .parquet or "
            ".npz files, one for each site"
        )
    if not held:
        raise FedcrfError(
            f"{path} holds no .csv, .parquet or .npz file: put one there for each site"
        )
    return _numbered(held)


def site_sizes(name: str, label_column: str | None) -> list[int]:
    """Return how many examples each real site of a data set's name holds."""
    return [len(targets) for _, targets in _read(name, label_column).sites.values()]


def site_dataset(name: str, label_column: str | None) -> ImageDataset:
    """Return what real sites hold, one behind the other, as a data set of that name."""
    read = _read(name, label_column)
    held = {f"site '{name}'": pair for name, pair in read.sites.items()}
    for called, (inputs, targets) in held.items():
        if inputs.ndim not in (2, 4) or inputs.dtype.kind not in "biuf" or not inputs.size:
            raise FedcrfError(
                f"inputs of {called} have shape {inputs.shape[1:]}, {inputs.dtype}: give "
                "(n, numbers) or (n, C, H, W)"
            )
        if not np.isfinite(inputs).all():
            raise FedcrfError(f"inputs of {called} are NaN or infinite: fill them in")
        check_range(inputs, f"inputs of {called}")
        if targets.ndim != 1 or targets.dtype.kind not in "biuf" or not _are_labels(targets):
            raise FedcrfError(
                f"targets of {called} are no labels from 0 on: give such, or use "
                "fedcrf.simulate, which takes any targets and any loss"
            )
    check_alike("inputs", {called: inputs.shape[1:] for called, (inputs, _) in held.items()})
    names = read.class_names or numbered_classes(
        {called: targets for called, (_, targets) in held.items()},
        mend=", or name another column of tables by --label-column",
    )
    inputs, labels = (np.concatenate(each) for each in zip(*read.sites.values(), strict=True))
    labels = labels.astype(np.int64)
    numbers_as_channels = (*inputs.shape, 1, 1)[:4]
    examples = LabelledImages(inputs.astype(np.float32).reshape(numbers_as_channels), labels)
    return ImageDataset(name, examples, None, names, sites=tuple(read.sites))


def _read(name: str, label_column: str | None) -> SiteFiles:
    """Read the sites of a data set's name, of which each must have examples, with targets."""
    path = name.removeprefix(SITES)
    _check_name(path)
    read = read_site_files(Path(path), label_column)
    for site, pair in read.sites.items():
        check_pair(*pair, f"site '{site}'")
    return read


def check_pair(inputs: Any, targets: Any, called: str) -> None:
    """Raise a `FedcrfError` unless a site, called so, has some inputs and a target for each."""
    counts = [len(each) if each.ndim else "no" for each in (inputs, targets)]
    if "no" in counts or counts[0] != counts[1]:
        raise FedcrfError(
            f"{called} has {counts[0]} inputs and {counts[1]} targets: give one target for each"
        )
    if not counts[0]:
        raise FedcrfError(f"{called} has no examples: leave it out, or give it some")


def check_alike(what: str, forms: Mapping[str, object]) -> None:
    """Raise a `FedcrfError` if a site's examples have another form than the first site's.

    ``forms`` has each site's shape or dtype, by what errors call the site; ``what`` is what they
    call the thing that is compared, such as ``inputs``.
    """
    whose, expected = next(iter(forms.items()))
    for called, form in forms.items():
        if form != expected:
            verb = "have shape" if isinstance(form, tuple) else "are"
            raise FedcrfError(
                f"{what} of {called} {verb} {form}, those of {whose} {expected}: give all sites "
                "the same"
            )


def check_range(values: NDArray[Any], what: str) -> None:
    """Raise a `FedcrfError` for a finite number that float32 cannot hold."""
    if float(np.abs(values).max(initial=0, where=np.isfinite(values))) > LARGEST_FLOAT32:
        raise FedcrfError(
            f"{what} are beyond {LARGEST_FLOAT32:.3g}: give numbers that float32 can hold"
        )


def _are_labels(targets: NDArray[Any]) -> bool:
    """Tell whether targets are whole numbers from 0 on, in any form."""
    numbers = targets.astype(np.float64)
    return bool(np.isfinite(numbers).all() and (numbers >= 0).all() and not (numbers % 1).any())


def _check_name(name: str) -> None:
    """Raise a `FedcrfError` for a name that no record of a run could hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FedcrfError(f"the name {name!r} is not UTF-8: rename the file or folder") from None


def _all_sites(path: Path, label_column: str | None) -> dict[str, Pair]:
    arrays = _arrays(path, label_column)
    names = sorted({name.rpartition("_")[0] for name in arrays})
    names.sort(key=_natural)
    wanted = {f"{name}_{part}" for name in names for part in (INPUTS, TARGET)}
    odd, lacking = sorted(arrays.keys() - wanted), sorted(wanted - arrays.keys())
    if odd or lacking:
        what = f"holds '{odd[0]}'" if odd else f"lacks '{lacking[0]}'"
        raise FedcrfError(f"{path} {what}: give two arrays for each site, NAME_x and NAME_y")
    return {name: (arrays[f"{name}_{INPUTS}"], arrays[f"{name}_{TARGET}"]) for name in names}


def _arrays(path: Path, label_column: str | None) -> dict[str, NDArray[Any]]:
    if label_column is not None:
        raise FedcrfError(
            f"{path} has arrays and no columns: leave --label-column (data.label_column) out"
        )
    with failing(f"{path} cannot be read ({{}})"), np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _one_site(path: Path, label_column: str | None, columns: list[str]) -> Pair:
    """Return what a site's file holds, of which tables have the columns of the first one."""
    suffix = path.suffix.lower()
    if suffix != ".npz":
        import pandas as pd

        table = _read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
        return _table(path, table, label_column, columns)
    arrays = _arrays(path, label_column)
    if not {INPUTS, TARGET} <= set(arrays):
        there = ", ".join(arrays) or "nothing"
        raise FedcrfError(f"{path} holds {there}: give it two arrays, x and y")
    return arrays[INPUTS], arrays[TARGET]


def _read_csv(path: Path) -> pd.DataFrame:
    """Return a table in which words such as None or NA are words, and what is empty is missing."""
    import pandas as pd

    table = pd.read_csv(path)
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes what is too much for row names
        raise FedcrfError(
            f"{path}: its rows have more fields than its header: name every column, or take what "
            "is too much away"
        )
    unnamed = [name for name in table.columns if re.fullmatch(r"Unnamed: \d+", str(name))]
    if unnamed:
        place = table.columns.get_loc(unnamed[0]) + 1
        raise FedcrfError(
            f"{path}: column {place} has no name: leave it out, as pandas does with index=False, "
            "or name it"
        )
    for name, column in table.items():
        missing = column.isna()
        if missing.all() or (column.dtype.kind not in "biuf" and missing.any()):
            words = pd.read_csv(path, usecols=[name], dtype=str, keep_default_na=False)[name]
            if (words != "").any():
                table[name] = words.mask(words == "")
    return table


def _table(path: Path, table: pd.DataFrame, label_column: str | None, columns: list[str]) -> Pair:
    """Return inputs and targets of a table.

    ``columns`` are those of the sites before it, in whose order they are taken; the first fills it.
    """
    names = [str(name).strip() for name in table.columns]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise FedcrfError(
            f"{path}: column '{twice[0]}' is there twice: rename one, or leave it out"
        )
    table.columns = names
    separators = [each for each in (";", "\t") if len(names) == 1 and each in names[0]]
    if separators:
        raise FedcrfError(
            f"{path}: its columns are separated by {separators[0]!r}: save it with commas"
        )
    if not len(table):
        raise FedcrfError(f"{path} has no rows: leave it out, or give it some")
    if label_column is None:
        found = [name for name in names if name.lower() in TARGETS]
        if len(found) != 1:
            raise FedcrfError(
                f"{path}: {len(found) or 'no'} columns are named as a target "
                f"({', '.join(TARGETS)}); there are {listed(names)}: name it by --label-column, "
                "or rename it"
            )
        label_column = found[0]
    elif label_column not in names:
        raise FedcrfError(f"{path} has no column '{label_column}': there are {listed(names)}")
    inputs = [name for name in names if name != label_column]
    if not inputs:
        raise FedcrfError(
            f"{path} has no column but the label, '{label_column}': give it columns of inputs"
        )
    if not columns:
        columns.extend(inputs)
    odd = sorted(set(columns) ^ set(inputs))
    if odd:
        raise FedcrfError(
            f"{path}: column '{odd[0]}' is not in all sites' files: give all the same columns"
        )
    for name in [*columns, label_column]:
        if name in columns and table[name].dtype.kind not in "biuf":
            raise FedcrfError(
                f"{path}: column '{name}' is no numbers: make it some, or leave it out"
            )
        missing = table[name].isna().to_numpy()
        if missing.any():
            raise FedcrfError(
                f"{path}: column '{name}' is empty in row {int(missing.argmax()) + 1}: fill it in, "
                "or leave the row out"
            )
    targets = table[label_column].to_numpy()
    if targets.dtype == object:
        targets = targets.astype(str)
    return table[columns].to_numpy(np.float64), targets


def _numbered(held: Mapping[str, Pair]) -> SiteFiles:
    """Number targets that are words, alike at all sites."""
    words = [name for name, (_, targets) in held.items() if targets.dtype.kind in "US"]
    if not words:
        return SiteFiles(held)
    others = [name for name in held if name not in words]
    if others:
        raise FedcrfError(
            f"targets of site '{words[0]}' are words, those of site '{others[0]}' numbers: give "
            "all sites the same"
        )
    targets = {}
    for name, (_, each) in held.items():
        with failing(f"targets of site '{name}' are no UTF-8 ({{}})"):
            text = np.char.decode(each, "utf-8") if each.dtype.kind == "S" else each
        targets[name] = text.astype(str).ravel()
    names = np.unique(np.concatenate(list(targets.values())))
    return SiteFiles(
        {
            name: (inputs, np.searchsorted(names, targets[name]).astype(np.int64))
            for name, (inputs, _) in held.items()
        },
        tuple(names.tolist()),
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which 'site 2' comes before 'site 10'."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
