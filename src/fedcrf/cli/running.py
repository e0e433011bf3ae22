"""The commands that run something: run, demo, reproduce, sweep and robustness."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcrf.cli.flags import (
    DataDirFlag,
    DataFlags,
    DatasetFlag,
    FolderFlag,
    JobsFlag,
    LatexFlag,
    OutputFlag,
    PlaceFlags,
    RunFileArgument,
    RunMissingFlag,
    SettingsFlag,
    attacks_option,
    given,
    if_given,
    names_if_given,
    parse_attackers,
    parse_names,
    parse_seeds,
    training_option,
    what_option,
    with_flags,
)
from fedcrf.cli.output import console, list_files, print_table, print_tables, say
from fedcrf.cores import available_cores
from fedcrf.errors import FedcrfError

if TYPE_CHECKING:
    from fedcrf.cli.display import RunDisplay
    from fedcrf.experiments.grid import CellFailed, Runs, Workplace
    from fedcrf.experiments.store import Store
    from fedcrf.loggers import MakeLogger

MEMORY_OF_CELL = 8 << 30
"""Bytes of GPU memory that a cell of the largest model takes, amply."""

MOST_ON_GPU = 4
"""Cells on one GPU beyond which they wait for each other."""


@with_flags
def run(
    *,
    run_file: RunFileArgument = None,
    methods: Annotated[
        str | None,
        what_option(
            "Methods, comma-separated: names of [bold]fedcrf methods[/bold], FILE.py:RULE of "
            "your own, or any RULE+OBJECTIVE; with +OPTIMIZER for a server optimizer.  "
            "[dim]\\[default: fedavg,fedprox,crf-fedavg,crf-fedprox][/dim]"
        ),
    ] = None,
    seeds: Annotated[
        str | None, what_option("Seeds, such as 0-2 or 0,3,7.  [dim]\\[default: 0-2][/dim]")
    ] = None,
    model: Annotated[
        str | None, what_option("Model: a name of [bold]fedcrf models[/bold], or FILE.py:NAME.")
    ] = None,
    settings: SettingsFlag = None,
    data: DataFlags,
    rounds: Annotated[int | None, training_option("Rounds at most.")] = None,
    clients_per_round: Annotated[
        int | None, training_option("Clients drawn for each round; else all.")
    ] = None,
    patience: Annotated[
        int | None, training_option("Rounds without improvement before stopping.")
    ] = None,
    learning_rate: Annotated[float | None, training_option("Step size of local SGD.")] = None,
    batch_size: Annotated[int | None, training_option("Examples in a step.")] = None,
    local_epochs: Annotated[int | None, training_option("Local epochs in a round.")] = None,
    mu: Annotated[float | None, training_option("Strength of FedProx's proximal term.")] = None,
    attack: Annotated[
        str | None,
        attacks_option(
            "What attackers do: a name of [bold]fedcrf attacks[/bold], or FILE.py:NAME."
        ),
    ] = None,
    attackers: Annotated[
        str | None,
        attacks_option(
            "How many: a number such as 3, or a fraction such as 0.3.  [dim]\\[default: 0.3][/dim]"
        ),
    ] = None,
    server_optimizer: Annotated[
        str | None,
        training_option(
            "Server optimizer of the methods that name none: momentum, adagrad, adam, yogi."
        ),
    ] = None,
    server_learning_rate: Annotated[
        float | None, training_option("Step size of the server optimizers.")
    ] = None,
    output: OutputFlag = None,
    place: PlaceFlags,
    describe: Annotated[
        bool,
        what_option(
            "Print the resolved description, defaults too, as a run file; run nothing.",
            "--describe",
        ),
    ] = False,
) -> None:
    """Run methods × seeds on one data set and partition; go on where an earlier run stopped."""
    flags = {
        "methods": names_if_given("--methods", methods),
        "seeds": if_given(parse_seeds, seeds),
        "model": {"name": model},
        **data.sections(),
        "rounds": {"maximum": rounds, "patience": patience, "clients_per_round": clients_per_round},
        "training": {
            "learning_rate": learning_rate,
            "batch_size": batch_size,
            "local_epochs": local_epochs,
        },
        "objectives": {"proximal": {"mu": mu}},
        "attack": {"name": attack, "attackers": if_given(parse_attackers, attackers)},
        "server": {"optimizer": server_optimizer, "learning_rate": server_learning_rate},
    }
    import tomli_w

    from fedcrf.experiments.settings import read_run_file, setting
    from fedcrf.experiments.spec import check_used, default_folder, resolve

    described = [] if run_file is None else [read_run_file(run_file)]
    chosen = [given(flags), *(setting(text) for text in settings or [])]
    spec = resolve(*described, *chosen)
    check_used(chosen, [spec])
    if describe:
        print(tomli_w.dumps(spec.describe()), end="")
        return
    workplace = _workplace(data.data_dir, place)
    from fedcrf.experiments.results import read_results, write_results
    from fedcrf.experiments.store import Store

    store = Store(output or default_folder(spec))
    failed, _ = _carry_out([(spec, store)], workplace, place.log)
    print_tables(read_results(store).tables())
    with _failing(failed):
        list_files(write_results(store))


def demo(output: FolderFlag = Path("runs/demo"), jobs: JobsFlag = None) -> None:
    """Show the point: three rules on the digits, with three attackers among ten and without."""
    workplace = _workplace(None, PlaceFlags(jobs=jobs, device="cpu"))
    from fedcrf.experiments.demo import Demonstration
    from fedcrf.report.page import write_page
    from fedcrf.report.reading import read_report

    shown = Demonstration(output)
    failed, _ = _carry_out(shown.study.runs(output), workplace, None, brief=True)
    with _failing(failed):
        page = output / "report.html"
        write_page(read_report([output]), page)
        print_table(shown.table())
        say(shown.verdict())
        say(f"Who was trusted, and why: {shlex.quote(str(page))}")


@with_flags
def reproduce(
    *,
    which: Annotated[
        str, what_option("noniid (table 1), iid (table 2) or all.", "--table")
    ] = "all",
    dataset: Annotated[
        str, what_option("Columns to run: mnist, cifar10, cifar100, comma-separated, or all.")
    ] = "mnist",
    seeds: Annotated[str, what_option("Seeds, such as 0-2; the paper has three.")] = "0-2",
    methods: Annotated[str | None, what_option("Methods; else the paper's eight.")] = None,
    run: RunMissingFlag = True,
    data_dir: DataDirFlag = None,
    output: FolderFlag = Path("results/paper"),
    place: PlaceFlags,
) -> None:
    """Make the paper's tables and figures: run what is missing, say which cells are not run."""
    workplace = _workplace(data_dir, place)
    from fedcrf.experiments import reproduce as paper
    from fedcrf.experiments.analysis.paper import PAPER_METHODS, column_run
    from fedcrf.experiments.results import write_results

    names = names_if_given("--methods", methods) or list(PAPER_METHODS)
    datasets = None if dataset == "all" else parse_names("--dataset", dataset)
    chosen = paper.columns(which, datasets)
    paper.check_tables_folder(output)
    runs = [
        (column_run(column, names, parse_seeds(seeds)), paper.column_store(output, column))
        for column in chosen
    ]
    failed: list[CellFailed] = []
    changed: list[Store] = []
    if run:
        failed, display = _carry_out(runs, workplace, place.log)
        changed = [
            store
            for spec, store in runs
            if display.ran(spec) or not (store.path / "results.md").exists()
        ]
    cells = paper.paper_cells(output)
    for table in paper.paper_tables(cells).values():
        print_table(table)
    for column in paper.columns("all"):
        for table in paper.column_tables(cells, column):
            print_table(table)
    for line in paper.cell_notices(cells):
        say(line)
    with _failing(failed):
        for store in changed:
            write_results(store)
        list_files(paper.write_tables(output, cells))


@with_flags
def sweep(
    *,
    over: Annotated[
        list[str],
        what_option(
            "A setting of a run and its values; give it twice for a heat map.",
            metavar="SECTION.KEY=V1,V2,…",
        ),
    ],
    run_file: RunFileArgument = None,
    methods: Annotated[
        str | None, what_option("Methods; else the run file's, else crf-fedavg.")
    ] = None,
    seeds: Annotated[str | None, what_option("Seeds, such as 0-2.")] = None,
    dataset: DatasetFlag = None,
    settings: SettingsFlag = None,
    latex: LatexFlag = False,
    data_dir: DataDirFlag = None,
    output: FolderFlag = Path("runs/sweep"),
    place: PlaceFlags,
) -> None:
    """Run every combination of some settings' values: a table, and a heat map of two settings."""
    workplace = _workplace(data_dir, place)
    from fedcrf.experiments.results import table
    from fedcrf.experiments.settings import read_run_file, setting
    from fedcrf.experiments.study import Study, parse_axis, sweep_table, write_sweep

    flags = {
        "methods": names_if_given("--methods", methods),
        "seeds": if_given(parse_seeds, seeds),
        "data": {"dataset": dataset},
    }
    described = [{"methods": ["crf-fedavg"]}] if run_file is None else [read_run_file(run_file)]
    chosen = tuple(setting(text) for text in settings or [])
    axes = tuple(parse_axis(text) for text in over)
    study = Study((*described, given(flags)), axes, chosen)
    failed, _ = _carry_out(study.runs(output), workplace, place.log)
    results = table(output, study)
    print_tables([sweep_table(study, results)], "latex" if latex else "terminal")
    with _failing(failed):
        list_files(write_sweep(study, results, output))


@with_flags
def robustness(
    *,
    suite: Annotated[
        str,
        typer.Argument(
            help="attacks or noise; byzfl, karimireddy, flpoison, honest-sites or hospitals, the "
            "field's protocols; or a TOML file of a suite."
        ),
    ] = "attacks",
    dataset: Annotated[str | None, what_option("Of the suite's data sets; else its first.")] = None,
    partitions: Annotated[str | None, what_option("Of the suite's partitions; else all.")] = None,
    conditions: Annotated[
        str | None, what_option("Conditions, or titles of their groups; else all.")
    ] = None,
    methods: Annotated[str | None, what_option("Methods; else the suite's.")] = None,
    seeds: Annotated[str | None, what_option("Seeds; else the suite's.")] = None,
    attackers: Annotated[
        int | None,
        what_option(
            "How many attack under every condition with an attack; else as the suite says."
        ),
    ] = None,
    clients: Annotated[int | None, what_option("Number of clients; else the suite's.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The suite at its small size: ten minutes on two cores.")
    ] = False,
    settings: SettingsFlag = None,
    run: RunMissingFlag = True,
    latex: LatexFlag = False,
    data_dir: DataDirFlag = None,
    output: OutputFlag = None,
    place: PlaceFlags,
) -> None:
    """Compare rules under attack, or with unreliable clients: tables, worst cases, heat maps."""
    workplace = _workplace(data_dir, place)
    from fedcrf.experiments import robustness as suites
    from fedcrf.experiments.analysis.conditions import summary_table
    from fedcrf.experiments.settings import setting
    from fedcrf.experiments.store import Store
    from fedcrf.experiments.suite import default_folder, read_suite

    whole = read_suite(suite, dataset)
    chosen = whole.chosen(
        methods=names_if_given("--methods", methods),
        seeds=if_given(parse_seeds, seeds),
        partitions=names_if_given("--partitions", partitions),
        conditions=names_if_given("--conditions", conditions),
        attackers=attackers,
        clients=clients,
        settings=[setting(text) for text in settings or []],
        quick=quick,
    )
    store = Store(output or default_folder(whole, chosen))

    _loggers(place.log)  # a name that is none is said before there is a folder
    failed: list[CellFailed] = []
    if run:
        failed = suites.run_suite(
            chosen, store, workplace, lambda runs: _display(runs, place.log, brief=True)
        )
    else:
        store.check_suite(begun=True)
    shown = suites.held(whole, chosen, store)
    cells = suites.suite_cells(shown, store)
    tables = [summary_table(shown, cells, partition) for partition in shown.partitions]
    print_tables(tables, "latex" if latex else "terminal")
    for line in [*suites.other_notices(cells), *suites.stale_notices(cells)]:
        say(line)
    with _failing(failed):
        list_files(suites.write_suite(shown, cells, store.path))


def _carry_out(
    runs: Runs, workplace: Workplace, log: str | None, *, brief: bool = False
) -> tuple[list[CellFailed], RunDisplay]:
    """Run what is missing of some runs; return the cells that failed, and what was shown."""
    from fedcrf.experiments.grid import run_grids

    with _display(runs, log, brief=brief) as display:
        return run_grids(runs, workplace, display), display


def _display(runs: Runs, log: str | None, *, brief: bool = False) -> RunDisplay:
    """Return what shows every event, and passes it to the loggers that are asked for."""
    from fedcrf.cli.display import RunDisplay

    loggers, logging = _loggers(log), None
    if loggers:
        from fedcrf.loggers import LoggingObserver

        folders = {cell: store.path for spec, store in runs for cell in spec.cells()}
        logging = LoggingObserver(loggers, folders, say)
    return RunDisplay(runs, console, brief=brief, also=logging)


def _loggers(log: str | None) -> Mapping[str, MakeLogger]:
    if log is None:
        return {}
    from fedcrf.loggers import LOGGERS, find_loggers

    return find_loggers(parse_names("--log", log), LOGGERS)


def _workplace(data_dir: Path | None, place: PlaceFlags) -> Workplace:
    if place.device not in ("cpu", "cuda", "auto"):
        raise FedcrfError(f"--device {place.device}: choose cpu, cuda or auto")
    if place.jobs is not None and place.jobs < 1:
        raise FedcrfError(f"--jobs {place.jobs}: give 1 or more")
    from fedcrf.experiments.grid import Workplace, executor_at

    jobs = place.jobs or default_jobs(place.device)
    elsewhere = None if place.executor is None else executor_at(place.executor)
    return Workplace(data_dir, place.cache_dir, place.device, jobs, elsewhere)


@contextmanager
def _failing(failed: list[CellFailed]) -> Iterator[None]:
    """Write what there is, and then fail where cells did; that comes before what writing says."""
    try:
        yield
    except FedcrfError:
        if not failed:
            raise
    if failed:
        names = ", ".join(each.cell.name for each in failed)
        raise FedcrfError(f"{len(failed)} of the cells failed: {names}; {failed[0].reason}")


def default_jobs(device: str) -> int:
    """Return how many cells to run at once: one a core, or as many as a GPU's memory carries."""
    cores = available_cores()
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            memory = torch.cuda.get_device_properties(0).total_memory
            return max(1, min(MOST_ON_GPU, cores, memory // MEMORY_OF_CELL))
    return cores
