"""The command line: parsing and calls, nothing else. Heavy imports wait for the command's body."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from fedcrf._version import __version__
from fedcrf.errors import FedcrfError

if TYPE_CHECKING:
    from fedcrf.experiments.report import RunStanding
    from fedcrf.experiments.runner import CellFailed, Workplace
    from fedcrf.experiments.spec import RunSpec

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated learning whose server decides by inference how much to trust each client.\n\n"
    "Start with [bold]fedcrf demo[/bold]: ten clients, four methods, three seeds, a minute.",
    epilog="A run is described by a TOML file, by flags, or both; flags win. "
    "The same command again goes on where a stopped run was.",
)
console = Console()
# Typer carries a click of its own in new versions and uses the installed one in old ones; this is
# the ClickException of whichever it is.
ClickException = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])

WHAT = "What to run"
DATA = "Data and clients"
TRAIN = "Training"
WHERE = "Where and how"

DatasetFlag = Annotated[
    str | None,
    typer.Option(
        help="Data set: a name of [bold]fedcrf datasets[/bold], or any image-classification set "
        "of the Hugging Face hub as OWNER/NAME.",
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
        help="How examples are dealt out: iid, label-skew, label-skew-unbalanced, label-mix.",
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


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedcrf {__version__}")
        raise typer.Exit


SettingsFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Any key of a run file, such as rules.crf.bandwidth=0.3; may be repeated.",
        rich_help_panel=WHAT,
    ),
]
JobsFlag = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        help="Cells run at once, one thread each; else one for each core.",
        rich_help_panel=WHERE,
    ),
]
DeviceFlag = Annotated[str, typer.Option(help="cpu, cuda or auto.", rich_help_panel=WHERE)]


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of every command."""


@app.command()
def run(
    run_file: Annotated[
        Path | None, typer.Argument(help="TOML file that describes the run.", show_default=False)
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, comma-separated: names of [bold]fedcrf methods[/bold], or any "
            "RULE+OBJECTIVE.  [dim]\\[default: fedavg,fedprox,crf-fedavg,crf-fedprox][/dim]",
            rich_help_panel=WHAT,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Seeds, such as 0-2 or 0,3,7.  [dim]\\[default: 0-2][/dim]", rich_help_panel=WHAT
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model: a name of [bold]fedcrf models[/bold].", rich_help_panel=WHAT),
    ] = None,
    settings: SettingsFlag = None,
    dataset: DatasetFlag = None,
    data_dir: DataDirFlag = None,
    image_column: ImageColumnFlag = None,
    label_column: LabelColumnFlag = None,
    image_size: ImageSizeFlag = None,
    limit: LimitFlag = None,
    partition: PartitionFlag = None,
    clients: ClientsFlag = None,
    alpha: AlphaFlag = None,
    min_examples: MinExamplesFlag = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds at most.", rich_help_panel=TRAIN)
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Rounds without improvement before stopping.", rich_help_panel=TRAIN),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Step size of local SGD.", rich_help_panel=TRAIN)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Examples in a step.", rich_help_panel=TRAIN)
    ] = None,
    local_epochs: Annotated[
        int | None, typer.Option(help="Local epochs in a round.", rich_help_panel=TRAIN)
    ] = None,
    mu: Annotated[
        float | None,
        typer.Option(help="Strength of FedProx's proximal term.", rich_help_panel=TRAIN),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Results folder; else one under runs/.", rich_help_panel=WHERE
        ),
    ] = None,
    jobs: JobsFlag = None,
    device: DeviceFlag = "auto",
    cache_dir: CacheDirFlag = None,
) -> None:
    """Run methods × seeds on one data set and partition; go on where an earlier run stopped."""
    flags = {
        "methods": methods and methods.split(","),
        "seeds": seeds and parse_seeds(seeds),
        "model": {"name": model},
        "data": {
            "dataset": dataset,
            "image_column": image_column,
            "label_column": label_column,
            "image_size": image_size,
            "limit": limit,
        },
        "partition": {
            "scheme": partition,
            "num_clients": clients,
            "alpha": alpha,
            "min_examples": min_examples,
        },
        "rounds": {"maximum": rounds, "patience": patience},
        "training": {
            "learning_rate": learning_rate,
            "batch_size": batch_size,
            "local_epochs": local_epochs,
        },
        "objectives": {"proximal": {"mu": mu}},
    }
    from fedcrf.experiments.spec import read_run_file, resolve, setting

    described = [] if run_file is None else [read_run_file(run_file)]
    chosen = [setting(text) for text in settings or []]
    spec = resolve(*described, _given(flags), *chosen)
    _run(spec, output, data_dir, cache_dir, jobs, device)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Results folder.")] = Path(
        "runs/demo"
    ),
    jobs: JobsFlag = None,
) -> None:
    """Run the demonstration: digits, ten clients of few labels each, four methods, three seeds."""
    from importlib import resources

    from fedcrf.experiments.spec import read_run_file, resolve

    with resources.as_file(resources.files("fedcrf.experiments") / "demo.toml") as path:
        spec = resolve(read_run_file(path))
    _run(spec, output, None, None, jobs, "cpu")


@app.command()
def reproduce(
    table: Annotated[
        str, typer.Option(help="noniid (table 1), iid (table 2) or all.", rich_help_panel=WHAT)
    ] = "all",
    dataset: Annotated[
        str,
        typer.Option(
            help="Columns to run, comma-separated: mnist, cifar10, cifar100.", rich_help_panel=WHAT
        ),
    ] = "mnist",
    seeds: Annotated[
        str, typer.Option(help="Seeds, such as 0-2; the paper has three.", rich_help_panel=WHAT)
    ] = "0-2",
    methods: Annotated[
        str | None,
        typer.Option(help="Methods; else the paper's eight.", rich_help_panel=WHAT),
    ] = None,
    run: Annotated[
        bool,
        typer.Option(help="Run what is missing, or only write the tables.", rich_help_panel=WHAT),
    ] = True,
    data_dir: DataDirFlag = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Results folder.", rich_help_panel=WHERE)
    ] = Path("results/paper"),
    jobs: JobsFlag = None,
    device: DeviceFlag = "auto",
    cache_dir: CacheDirFlag = None,
) -> None:
    """Make the paper's tables and figures: run what is missing, say which cells are not run."""
    workplace = _workplace(data_dir, cache_dir, jobs, device)
    from fedcrf.console import RunDisplay
    from fedcrf.experiments import reproduce as paper
    from fedcrf.experiments.report import write_report
    from fedcrf.experiments.runner import run_grids

    names = methods.split(",") if methods else list(paper.PAPER_METHODS)
    chosen = paper.columns(output, table, dataset.split(","))
    specs = [column.spec(names, parse_seeds(seeds)) for column in chosen]
    failed: list[CellFailed] = []
    if run:
        runs = [(spec, column.store) for spec, column in zip(specs, chosen, strict=True)]
        with RunDisplay(runs, console) as display:
            failed = run_grids(runs, workplace, display)
        for spec, column in zip(specs, chosen, strict=True):
            if display.ran(spec) or not (column.store.path / "results.md").exists():
                write_report(column.store)
    everything = paper.columns(output, "all")
    for column in everything:
        console.print(paper.column_table(column).for_terminal())
        differences = paper.differences_table(column)
        if differences.rows:
            console.print(differences.for_terminal())
    _list_files(paper.write_tables(output, everything))
    _raise_if_failed(failed)


@app.command()
def sweep(
    over: Annotated[
        list[str],
        typer.Option(
            metavar="SECTION.KEY=V1,V2,…",
            help="A setting of a run and its values; give it twice for a heat map.",
            rich_help_panel=WHAT,
        ),
    ],
    run_file: Annotated[
        Path | None, typer.Argument(help="TOML file that describes the run.", show_default=False)
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Methods, comma-separated.", rich_help_panel=WHAT)
    ] = "crf-fedavg",
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, such as 0-2.", rich_help_panel=WHAT)
    ] = None,
    dataset: DatasetFlag = None,
    settings: SettingsFlag = None,
    data_dir: DataDirFlag = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Results folder.", rich_help_panel=WHERE)
    ] = Path("runs/sweep"),
    jobs: JobsFlag = None,
    device: DeviceFlag = "auto",
    cache_dir: CacheDirFlag = None,
) -> None:
    """Run every combination of some settings' values: a table, and a heat map of two settings."""
    workplace = _workplace(data_dir, cache_dir, jobs, device)
    from fedcrf.console import RunDisplay
    from fedcrf.experiments.runner import run_grids
    from fedcrf.experiments.spec import read_run_file, setting
    from fedcrf.experiments.sweep import Sweep, parse_axis, sweep_table, write_sweep

    flags = {
        "methods": methods.split(","),
        "seeds": seeds and parse_seeds(seeds),
        "data": {"dataset": dataset},
    }
    described = [] if run_file is None else [read_run_file(run_file)]
    layers = [*described, _given(flags), *(setting(text) for text in settings or [])]
    plan = Sweep(output, tuple(layers), tuple(parse_axis(text) for text in over))
    runs = [(point.spec, point.store) for point in plan.points()]
    with RunDisplay(runs, console) as display:
        failed = run_grids(runs, workplace, display)
    console.print(sweep_table(plan).for_terminal())
    _list_files(write_sweep(plan))
    _raise_if_failed(failed)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's results folder.")],
    markdown: Annotated[bool, typer.Option(help="Print the table in Markdown.")] = False,
    figures: Annotated[
        bool, typer.Option(help="Write tables and figures into the folder anew.")
    ] = False,
) -> None:
    """Show the table of a finished or running run."""
    from fedcrf.experiments.report import standing, write_report
    from fedcrf.experiments.store import RunStore

    store = RunStore(folder)
    run_so_far = standing(store)
    if markdown:
        print("\n".join(table.as_markdown() for table in run_so_far.tables()), end="")
    else:
        _print_tables(run_so_far)
    for each in run_so_far.cells:
        if each.damage:
            _say(f"{each.cell.name}: {each.damage}")
        elif each.summary is None:
            last = each.records[-1] if each.records else None
            done = (
                f"round {last.round}, validation accuracy {last.validation.accuracy:.4f}"
                if last
                else "not started"
            )
            _say(f"{each.cell.name}: not finished, {done}")
    if figures:
        _list_files(write_report(store))


@app.command()
def partition(
    dataset: DatasetFlag = None,
    data_dir: DataDirFlag = None,
    image_column: ImageColumnFlag = None,
    label_column: LabelColumnFlag = None,
    image_size: ImageSizeFlag = None,
    limit: LimitFlag = None,
    scheme: Annotated[
        str | None,
        typer.Option("--partition", help=PartitionFlag.__metadata__[0].help, rich_help_panel=DATA),
    ] = None,
    clients: ClientsFlag = None,
    alpha: AlphaFlag = None,
    min_examples: MinExamplesFlag = None,
    seed: Annotated[int, typer.Option(min=0, help="The run's seed.", rich_help_panel=WHAT)] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Stem of the pictures; else one under runs/.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    cache_dir: CacheDirFlag = None,
) -> None:
    """Show what each client holds: a table of counts and a picture."""
    from fedcrf.console import partition_table, remarks
    from fedcrf.experiments.figures import partition_figure, save
    from fedcrf.experiments.runner import Workplace
    from fedcrf.experiments.spec import resolve
    from fedcrf.experiments.store import partition_record
    from fedcrf.simulation.federation import client_splits

    flags = {
        "data": {
            "dataset": dataset,
            "image_column": image_column,
            "label_column": label_column,
            "image_size": image_size,
            "limit": limit,
        },
        "partition": {
            "scheme": scheme,
            "num_clients": clients,
            "alpha": alpha,
            "min_examples": min_examples,
        },
    }
    spec = resolve(_given(flags))
    data = Workplace(data_dir=data_dir, cache_dir=cache_dir).load(spec.data)
    splits = client_splits(data.train.labels, spec.partition, seed)
    record = partition_record(seed, splits, data.train.labels, data.class_names)
    title = f"{data.name}, {spec.partition.scheme}, seed {seed}"
    console.print(partition_table(record, title).for_terminal())
    for line in remarks(record):
        _say(line)
    stem = output or Path("runs") / f"partition-{data.name.replace('/', '-')}-seed-{seed}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    _list_files(save(partition_figure(record, title), stem))


@app.command()
def methods() -> None:
    """List the methods, and the rules and objectives they are made of."""
    from fedcrf.experiments.methods import METHODS
    from fedcrf.objectives import OBJECTIVES
    from fedcrf.rules import RULES

    _list(
        "methods (or any RULE+OBJECTIVE)",
        {name: f"{method.rule} + {method.objective}" for name, method in METHODS.items()},
    )
    _list("rules", {name: _first_line(rule) for name, rule in RULES.items()})
    _list("objectives", {name: _first_line(kind) for name, kind in OBJECTIVES.items()})


@app.command()
def datasets() -> None:
    """List the data sets that have a name of their own, and the ways to deal them out."""
    from fedcrf.data import DATASETS, PARTITIONS

    _list(
        "data sets (or any of the Hugging Face hub as OWNER/NAME)",
        {name: source.description for name, source in DATASETS.items()},
    )
    _list("partitions", {name: scheme.description for name, scheme in PARTITIONS.items()})


@app.command()
def models() -> None:
    """List the models."""
    from fedcrf.models import MODELS

    _list("models", {name: _first_line(plan) for name, plan in MODELS.items()})


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
        if not numbers:
            raise FedcrfError(f"--seeds {text}: {part} holds no seed; write the smaller first")
        seeds += numbers
    return seeds


def main() -> None:
    """Run the command line; every mistake of the user ends in one line and a non-zero status."""
    try:
        status = app(standalone_mode=False)
    except ClickException as error:
        said = error.format_message()  # nothing where no command was given: the help is out by then
        status = _fail(f"{said} See --help.", 2) if said else 2
    except FedcrfError as error:
        status = _fail(str(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        status = _fail("interrupted; give the same command again to go on", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    except OSError as error:
        status = _fail(f"{error.filename or 'file'}: {error.strerror or error}", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _run(
    spec: RunSpec,
    output: Path | None,
    data_dir: Path | None,
    cache_dir: Path | None,
    jobs: int | None,
    device: str,
) -> None:
    workplace = _workplace(data_dir, cache_dir, jobs, device)
    from fedcrf.console import RunDisplay
    from fedcrf.experiments.report import standing, write_report
    from fedcrf.experiments.runner import run_grid
    from fedcrf.experiments.store import RunStore

    store = RunStore(output or default_folder(spec))
    _say(f"results: {store.path}")
    with RunDisplay([(spec, store)], console) as display:
        failed = run_grid(spec, store, workplace, display)
    _print_tables(standing(store))
    _list_files(write_report(store))
    _raise_if_failed(failed)


def _workplace(
    data_dir: Path | None, cache_dir: Path | None, jobs: int | None, device: str
) -> Workplace:
    if device not in ("cpu", "cuda", "auto"):
        raise FedcrfError(f"--device {device}: choose cpu, cuda or auto")
    if jobs is not None and jobs < 1:
        raise FedcrfError(f"--jobs {jobs}: give 1 or more")
    from fedcrf.experiments.runner import Workplace

    return Workplace(data_dir, cache_dir, device, jobs or _cores())


def _raise_if_failed(failed: list[CellFailed]) -> None:
    if failed:
        names = ", ".join(each.cell.name for each in failed)
        raise FedcrfError(f"{len(failed)} of the cells failed: {names}; {failed[0].reason}")


def default_folder(spec: RunSpec) -> Path:
    """Return the results folder of a description: one for each setting of data and clients."""
    name = [spec.data.dataset.replace("/", "-"), spec.model["name"], spec.partition.scheme]
    if spec.partition.scheme != "iid":
        name.append(f"alpha{spec.partition.alpha:g}")
    name.append(f"{spec.partition.num_clients}clients")
    return Path("runs") / "-".join(name)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that were given."""
    given = {
        key: _given(value) if isinstance(value, dict) else value for key, value in flags.items()
    }
    return {key: value for key, value in given.items() if value not in (None, {})}


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def _list(title: str, entries: dict[str, str]) -> None:
    _say(f"{title}:")
    width = max(map(len, entries))
    for name, line in entries.items():
        _say(f"  {name:<{width}}  {line}")


def _list_files(paths: list[Path]) -> None:
    for path in paths:
        _say(f"wrote {shlex.quote(str(path))}")


def _print_tables(run_so_far: RunStanding) -> None:
    for table in run_so_far.tables():
        if table.rows:
            console.print(table.for_terminal())


def _say(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _fail(message: str, status: int) -> int:
    print(f"fedcrf: error: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
