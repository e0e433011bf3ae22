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

WHAT = "What to run"
DATA = "Data and clients"
TRAIN = "Training"
ATTACK = "Attack"
WHERE = "Where and how"

T = TypeVar("T")

MOST_SEEDS = 10_000
"""Seeds of one run; more can only be a slip."""

RunFileArgument = Annotated[
    Path | None, typer.Argument(help="TOML file that describes the run.", show_default=False)
]

DatasetFlag = Annotated[
    str | None,
    typer.Option(
        help="Data set: a name of [bold]fedcrf datasets[/bold], any image-classification set "
        "of the Hugging Face hub as OWNER/NAME, or FILE.py:NAME.",
        rich_help_panel=DATA,
    ),
]
DataDirFlag = Annotated[
    Path | None,
    typer.Option(
        help="Folder with a subfolder of Parquet files for each data set; "
        "else $FEDCRF_DATA, else the hub.",
        rich_help_panel=DATA,
    ),
]
ImageColumnFlag = Annotated[
    str | None, typer.Option(help="Column of images, if not detected.", rich_help_panel=DATA)
]
LabelColumnFlag = Annotated[
    str | None, typer.Option(help="Column of labels, if not detected.", rich_help_panel=DATA)
]
ImageSizeFlag = Annotated[
    int | None, typer.Option(help="Resize images to N pixels square.", rich_help_panel=DATA)
]
LimitFlag = Annotated[
    int | None, typer.Option(help="Use only N images to train, N held out.", rich_help_panel=DATA)
]
PartitionFlag = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="How examples are dealt out: a partition of [bold]fedcrf datasets[/bold], such as iid "
        "or label-skew, or FILE.py:NAME.",
        rich_help_panel=DATA,
    ),
]
ClientsFlag = Annotated[int | None, typer.Option(help="Number of clients.", rich_help_panel=DATA)]
AlphaFlag = Annotated[
    float | None,
    typer.Option(help="Dirichlet concentration; smaller is more skewed.", rich_help_panel=DATA),
]
MinExamplesFlag = Annotated[
    int | None, typer.Option(help="Fewest examples of a client.", rich_help_panel=DATA)
]
CacheDirFlag = Annotated[
    Path | None,
    typer.Option(help="Folder for decoded images; else $FEDCRF_CACHE.", rich_help_panel=WHERE),
]

SettingsFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Any key of a run file, such as rules.crf.bandwidth=0.3; may be repeated.",
        rich_help_panel=WHAT,
    ),
]
RunMissingFlag = Annotated[
    bool, typer.Option(help="Run what is missing, or only write the tables.", rich_help_panel=WHAT)
]

OutputFlag = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Results folder; else one under runs/.", rich_help_panel=WHERE
    ),
]
FolderFlag = Annotated[
    Path, typer.Option("--output", "-o", help="Results folder.", rich_help_panel=WHERE)
]
JobsFlag = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        help="Processes of one thread each, for cells and for the clients of large ones; "
        "else one for each core.",
        rich_help_panel=WHERE,
    ),
]
LogFlag = Annotated[
    str | None,
    typer.Option(
        help="Log to tensorboard, wandb or mlflow; comma-separated.", rich_help_panel=WHERE
    ),
]
ExecutorFlag = Annotated[
    str | None,
    typer.Option(
        metavar="dask:ADDRESS",
        help="Run the cells on the workers of a Dask scheduler (fedcrf\\[dask]); else here.",
        rich_help_panel=WHERE,
    ),
]
DeviceFlag = Annotated[str, typer.Option(help="cpu, cuda or auto.", rich_help_panel=WHERE)]


def if_given(parse: Callable[[str], T], text: str | None) -> T | None:
    """Return what a flag's text says; None where the flag was not given."""
    return None if text is None else parse(text)


def parse_attackers(text: str) -> int | float:
    """Return the number or fraction of ``3`` or ``0.3``.

    Raises:
        FedcrfError: Not of that form.
    """
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise FedcrfError(
            f"--attackers {text}: write a number such as 3, or a fraction such as 0.3"
        ) from None


def parse_names(flag: str, text: str) -> list[str]:
    """Return the names of ``fedavg, crf-fedavg``.

    Raises:
        FedcrfError: There is none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise FedcrfError(f"{flag} names nothing: give at least one name, or leave it out")
    return names


def names_if_given(flag: str, text: str | None) -> list[str] | None:
    """Return the names of a flag; None where it was not given.

    Raises:
        FedcrfError: It was given, and names nothing.
    """
    return None if text is None else parse_names(flag, text)


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of ``0-2,7``.

    Raises:
        FedcrfError: Not of that form.
    """
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
    data_dir: DataDirFlag = None
    image_column: ImageColumnFlag = None
    label_column: LabelColumnFlag = None
    image_size: ImageSizeFlag = None
    limit: LimitFlag = None
    scheme: PartitionFlag = None
    clients: ClientsFlag = None
    alpha: AlphaFlag = None
    min_examples: MinExamplesFlag = None

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return what they say in a run file, None where a flag was not given."""
        return {
            "data": {
                "dataset": self.dataset,
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
    device: DeviceFlag = "auto"
    executor: ExecutorFlag = None
    log: LogFlag = None
    cache_dir: CacheDirFlag = None


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of its dataclasses of flags, each as an option.

    Args:
        command: Its parameters are keywords: options, and dataclasses of options with defaults.
    """
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
