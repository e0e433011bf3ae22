"""The flags that several commands share, and what is read from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from fedcrf.errors import FedcrfError


def _option(panel: str, text: str, *names: str, **how: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **how)


WHAT, DATA, TRAINING = "What to run", "Data and clients", "Training"
ATTACK, WHERE = "Attack", "Where and how"
"""Panels of a command's help."""

what_option, where_option = partial(_option, WHAT), partial(_option, WHERE)

MOST_SEEDS = 10_000
"""Of one run; more seeds are taken for a slip of the keyboard."""


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


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of ``0-2,7``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            numbers = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise FedcrfError(f"--seeds {text}: write seeds such as 0-2 or 0,3,7") from None
        if numbers.stop - numbers.start > MOST_SEEDS:  # a length may be beyond all sizes
            raise FedcrfError(f"--seeds {text}: give at most {MOST_SEEDS} seeds")
        if not numbers:
            raise FedcrfError(f"--seeds {text}: {part} holds no seed; write the smaller first")
        seeds += numbers
    return seeds


@dataclass(frozen=True)
class Setting:
    """A flag that says a setting of a run."""

    key: str  # of the setting, as in a run file; the flag is named by its last part
    kind: type
    about: str
    panel: str = WHAT
    called: str = ""  # the flag, if otherwise
    parse: Callable[[Any], Any] | None = None  # makes the setting of what is given
    names: tuple[str, ...] = ()  # on the command line, if not its own alone
    metavar: str | None = None

    @property
    def flag(self) -> str:
        """The flag's name, as an argument's."""
        return self.called or self.key.rpartition(".")[2]


def names_setting(key: str, about: str) -> Setting:
    """Return the flag of some names, such as those of methods."""
    return Setting(key, str, about, parse=partial(parse_names, f"--{key}"))


def seeds_setting(about: str) -> Setting:
    """Return the flag of the seeds."""
    return Setting("seeds", str, about, parse=parse_seeds)


DATASET = Setting(
    "data.dataset", str, "Data set: a name of [bold]fedcrf datasets[/bold], any "
    "image-classification set of the Hugging Face hub as OWNER/NAME, or FILE.py:NAME.", DATA,
)  # fmt: skip

OF_DATA = (
    DATASET,
    Setting("data.dataset", Path, "Real sites, in the place of data set and partition: an .npz "
            "file, or a folder with a .csv, .parquet or .npz file for each.", DATA, "sites",
            lambda path: f"sites:{path}"),
    Setting("data.image_column", str, "Column of images, if not detected.", DATA),
    Setting("data.label_column", str, "Column of labels, if not detected.", DATA),
    Setting("data.image_size", int, "Resize images to N pixels square.", DATA),
    Setting("data.limit", int, "Use only N images to train, N held out.", DATA),
    Setting("partition.scheme", str, "How examples are dealt out: a partition of "
            "[bold]fedcrf datasets[/bold], such as iid or label-skew, or FILE.py:NAME.", DATA,
            "partition"),
    Setting("partition.num_clients", int, "Number of clients.", DATA, "clients"),
    Setting("partition.alpha", float, "Dirichlet concentration; smaller is more skewed.", DATA),
    Setting("partition.min_examples", int, "Fewest examples of a client.", DATA),
)  # fmt: skip
"""Which images, and how they are dealt out."""

RUN_SETTINGS = (
    Setting("model.name", str, "Model: a name of [bold]fedcrf models[/bold], or FILE.py:NAME.",
            called="model"),
    *OF_DATA,
    Setting("rounds.maximum", int, "Rounds at most.", TRAINING, "rounds"),
    Setting("rounds.clients_per_round", int, "Clients drawn for each round; else all.", TRAINING),
    Setting("rounds.patience", int, "Rounds without improvement before stopping.", TRAINING),
    Setting("training.learning_rate", float, "Step size of local SGD.", TRAINING),
    Setting("training.batch_size", int, "Examples in a step.", TRAINING),
    Setting("training.local_epochs", int, "Local epochs in a round.", TRAINING),
    Setting("objectives.proximal.mu", float, "Strength of FedProx's proximal term.", TRAINING),
    Setting("server.optimizer", str, "Server optimizer of the methods that name none: momentum, "
            "adagrad, adam, yogi, fedexp.", TRAINING, "server_optimizer"),
    Setting("server.learning_rate", float, "Step size of the server optimizers.", TRAINING,
            "server_learning_rate"),
    Setting("attack.name", str, "What attackers do: a name of [bold]fedcrf attacks[/bold], or "
            "FILE.py:NAME.", ATTACK, "attack"),
    Setting("attack.attackers", str, "How many: a number such as 3, or a fraction such as 0.3.  "
            "[dim]\\[default: 0.3][/dim]", ATTACK, parse=parse_attackers),
)  # fmt: skip
"""What a run says beside its methods and seeds."""

JOBS = Setting("jobs", int, "Processes of one thread each, for cells and for the clients of large "
               "ones; else one for each core.", WHERE, names=("--jobs", "-j"))  # fmt: skip

SOURCE = (
    Setting("data_dir", Path, "Folder with a subfolder of Parquet files for each data set; else "
            "$FEDCRF_DATA, else the hub.", DATA),
    Setting("cache_dir", Path, "Folder for decoded images; else $FEDCRF_CACHE.", WHERE),
)  # fmt: skip
"""Where the data lie."""

PLACE = (
    SOURCE[0],
    JOBS,
    Setting("device", str, "cpu, cuda or auto. [dim]\\[default: auto][/dim]", WHERE),
    Setting("executor", str, "Run the cells on the workers of a Dask scheduler (fedcrf\\[dask]); "
            "else here.", WHERE, metavar="dask:ADDRESS"),
    Setting("log", str, "Log to tensorboard, wandb or mlflow; comma-separated.", WHERE),
    SOURCE[1],
)  # fmt: skip
"""Where and how cells are run, and what logs them."""

Said = Mapping[str, Any]
"""What flags say, in the shape of a run file."""

RunFileArgument = Annotated[
    Path | None, typer.Argument(help="TOML file that describes the run.", show_default=False)
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


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer, with an option for each flag of its parameters.

    A parameter that is annotated with a tuple of `Setting` stands for all of their flags. It gets
    those that were given, in the shape of a run file.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Sequence[Setting]] = {}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        *_, about = get_args(hints[name])  # of Annotated, as all parameters are
        if not isinstance(about, tuple):
            options.append(parameter.replace(annotation=hints[name]))
            continue
        groups[name] = about
        for each in about:
            option = _option(each.panel, each.about, *each.names, metavar=each.metavar)
            options.append(
                parameter.replace(
                    name=each.flag, annotation=Annotated[each.kind | None, option], default=None
                )
            )

    @wraps(command)
    def taking_each(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = _said(group, {each.flag: given.pop(each.flag) for each in group})
        command(**given)

    # What Typer reads.
    taking_each.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    taking_each.__annotations__ = {each.name: each.annotation for each in options}
    return taking_each


def _said(settings: Sequence[Setting], given: Mapping[str, Any]) -> Said:
    """Return what was given in the shape of a run file; an error where two flags say the same."""
    said: dict[str, Any] = {}
    by_key: dict[str, str] = {}
    for each in settings:
        if (value := given[each.flag]) is None:
            continue
        if each.key in by_key:
            raise FedcrfError(f"--{each.flag} and --{by_key[each.key]}: give one of them")
        by_key[each.key] = each.flag
        *sections, last = each.key.split(".")
        place = said
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value if each.parse is None else each.parse(value)
    return said
