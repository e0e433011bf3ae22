"""The flags that several commands share, and what is read from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from fedcrf.errors import FedcrfError


def _panel(title: str) -> Callable[..., Any]:
    """Return what makes an option in a panel of a command's help: its help, and its names."""

    def option(text: str, *names: str, **how: Any) -> Any:
        return typer.Option(*names, help=text, rich_help_panel=title, **how)

    return option


what_option = _panel("What to run")
data_option = _panel("Data and clients")
training_option = _panel("Training")
attacks_option = _panel("Attack")
where_option = _panel("Where and how")

T = TypeVar("T")

MOST_SEEDS = 10_000
"""Of one run; more seeds are taken for a slip of the keyboard."""

RunFileArgument = Annotated[
    Path | None, typer.Argument(help="TOML file that describes the run.", show_default=False)
]

DatasetFlag = Annotated[
    str | None,
    data_option(
        "Data set: a name of [bold]fedcrf datasets[/bold], any image-classification set "
        "of the Hugging Face hub as OWNER/NAME, or FILE.py:NAME."
    ),
]
DataDirFlag = Annotated[
    Path | None,
    data_option(
        "Folder with a subfolder of Parquet files for each data set; "
        "else $FEDCRF_DATA, else the hub."
    ),
]
CacheDirFlag = Annotated[
    Path | None, where_option("Folder for decoded images; else $FEDCRF_CACHE.")
]

SettingsFlag = Annotated[
    list[str] | None,
    what_option(
        "Any key of a run file, such as rules.crf.bandwidth=0.3; may be repeated.",
        "--set",
        metavar="SECTION.KEY=VALUE",
    ),
]
RunMissingFlag = Annotated[bool, what_option("Run what is missing, or only write the tables.")]

LatexFlag = Annotated[bool, typer.Option(help="Print the tables in LaTeX, with booktabs.")]

OutputFlag = Annotated[
    Path | None, where_option("Results folder; else one under runs/.", "--output", "-o")
]
FolderFlag = Annotated[Path, where_option("Results folder.", "--output", "-o")]
JobsFlag = Annotated[
    int | None,
    where_option(
        "Processes of one thread each, for cells and for the clients of large ones; "
        "else one for each core.",
        "--jobs",
        "-j",
    ),
]


def if_given(parse: Callable[[str], T], text: str | None) -> T | None:
    """Return what a flag's text says; None where the flag was not given."""
    return None if text is None else parse(text)


def parse_attackers(text: str) -> int | float:
    """Return the number or fraction of ``3`` or ``0.3``."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise FedcrfError(
            f"--attackers {text}: write a number such as 3, or a fraction such as 0.3"
        ) from None


def parse_names(flag: str, text: str) -> list[str]:
    """Return the names of ``fedavg, crf-fedavg``, one at least."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise FedcrfError(f"{flag} names nothing: give at least one name, or leave it out")
    return names


def names_if_given(flag: str, text: str | None) -> list[str] | None:
    """Return the names of a flag; None where it was not given."""
    return None if text is None else parse_names(flag, text)


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of ``0-2,7``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            numbers = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise FedcrfError(f"--seeds {text}: write seeds such as 0-2 or 0,3,7") from None
        if len(numbers) > MOST_SEEDS:
            raise FedcrfError(f"--seeds {text}: give at most {MOST_SEEDS} seeds")
        if not numbers:
            raise FedcrfError(f"--seeds {text}: {part} holds no seed; write the smaller first")
        seeds += numbers
    return seeds


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that were given."""
    found = {
        key: given(value) if isinstance(value, dict) else value for key, value in flags.items()
    }
    return {key: value for key, value in found.items() if value not in (None, {})}


@dataclass(frozen=True)
class DataFlags:
    """Which images, and how they are dealt out."""

    dataset: DatasetFlag = None
    sites: Annotated[
        Path | None,
        data_option(
            "Real sites, in the place of data set and partition: an .npz file, or a folder with a "
            ".csv, .parquet or .npz file for each."
        ),
    ] = None
    data_dir: DataDirFlag = None
    image_column: Annotated[str | None, data_option("Column of images, if not detected.")] = None
    label_column: Annotated[str | None, data_option("Column of labels, if not detected.")] = None
    image_size: Annotated[int | None, data_option("Resize images to N pixels square.")] = None
    limit: Annotated[int | None, data_option("Use only N images to train, N held out.")] = None
    scheme: Annotated[
        str | None,
        data_option(
            "How examples are dealt out: a partition of [bold]fedcrf datasets[/bold], such as iid "
            "or label-skew, or FILE.py:NAME.",
            "--partition",
        ),
    ] = None
    clients: Annotated[int | None, data_option("Number of clients.")] = None
    alpha: Annotated[
        float | None, data_option("Dirichlet concentration; smaller is more skewed.")
    ] = None
    min_examples: Annotated[int | None, data_option("Fewest examples of a client.")] = None

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return what they say in a run file, None where a flag was not given."""
        if self.sites is not None and self.dataset is not None:
            raise FedcrfError("--sites and --dataset: give one of them")
        return {
            "data": {
                "dataset": self.dataset if self.sites is None else f"sites:{self.sites}",
                "image_column": self.image_column,
                "label_column": self.label_column,
                "image_size": self.image_size,
                "limit": self.limit,
            },
            "partition": {
                "scheme": self.scheme,
                "num_clients": self.clients,
                "alpha": self.alpha,
                "min_examples": self.min_examples,
            },
        }


@dataclass(frozen=True)
class PlaceFlags:
    """Where and how cells are run, and what logs them."""

    jobs: JobsFlag = None
    device: Annotated[str, where_option("cpu, cuda or auto.")] = "auto"
    executor: Annotated[
        str | None,
        where_option(
            "Run the cells on the workers of a Dask scheduler (fedcrf\\[dask]); else here.",
            metavar="dask:ADDRESS",
        ),
    ] = None
    log: Annotated[
        str | None, where_option("Log to tensorboard, wandb or mlflow; comma-separated.")
    ] = None
    cache_dir: CacheDirFlag = None


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of its dataclasses of flags, each as an option."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))
            continue
        options = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, kind, default=field.default, annotation=options[field.name]
            )
            for field in fields(groups[name])
        ]

    @wraps(command)
    def taking_each(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    # What Typer reads.
    taking_each.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    taking_each.__annotations__ = {each.name: each.annotation for each in parameters}
    return taking_each
