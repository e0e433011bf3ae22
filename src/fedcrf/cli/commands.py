"""The commands: those that run something, those that look at it, and the lists of what there is."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from fedcrf.cli.flags import (
    JOBS,
    OF_DATA,
    PLACE,
    RUN_SETTINGS,
    SOURCE,
    FolderFlag,
    LatexFlag,
    OutputFlag,
    RunFileArgument,
    RunMissingFlag,
    Said,
    Setting,
    SettingsFlag,
    names_setting,
    parse_names,
    parse_seeds,
    seeds_setting,
    what_option,
    where_option,
    with_flags,
)
from fedcrf.cores import available_cores
from fedcrf.errors import FedcrfError, listed, of_file

if TYPE_CHECKING:
    from fedcrf.cli.display import Failed, RunDisplay
    from fedcrf.experiments.analysis.tables import Table
    from fedcrf.experiments.grid import Runs, Workplace
    from fedcrf.experiments.recorded import RecordedRun
    from fedcrf.experiments.store import Store
    from fedcrf.loggers import MakeLogger
    from fedcrf.rules.byzfl import Part


TableForm = Literal["terminal", "markdown", "latex"]

# In a pipe lines are as long as they need to be, unless COLUMNS says otherwise.
console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200)


def say(*lines: str) -> None:
    """Print lines as they are, however long."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def list_files(paths: list[Path]) -> None:
    """Print a line for each file that was written."""
    say(*(f"wrote {shlex.quote(str(path))}" for path in paths))


def list_entries(title: str, entries: dict[str, str]) -> None:
    """Print names and what each is, below a title."""
    width = max(map(len, entries))
    say(f"{title}:", *(f"  {name:<{width}}  {line}" for name, line in entries.items()))


def print_tables(tables: Iterable[Table], form: TableForm = "terminal") -> None:
    """Print the tables that have rows, one after the other."""
    shown = [table for table in tables if table.rows]
    if form == "terminal":
        for table in shown:
            print_table(table)
    else:
        texts = (each.as_markdown() if form == "markdown" else each.as_latex() for each in shown)
        print("\n".join(texts), end="")


def print_table(table: Table) -> None:
    """Print a table, its note and an empty line."""
    console.print(table.for_terminal())
    if table.note:
        console.print(table.note, markup=False, highlight=False)
    console.print()


MEMORY_OF_CELL = 8 << 30
"""Bytes of GPU memory that a cell of the largest model takes, amply."""

MOST_ON_GPU = 4
"""Cells on one GPU; more are no faster together."""

MOST_FAILED = 10
"""Reasons for which cells failed that are said at the end, and cells of each."""


@with_flags
def run(
    *,
    run_file: RunFileArgument = None,
    said: Annotated[
        Said,
        (
            names_setting(
                "methods",
                "Methods, comma-separated: names of [bold]fedcrf methods[/bold], FILE.py:RULE of "
                "your own, or any RULE+OBJECTIVE; with +OPTIMIZER for a server optimizer.  "
                "[dim]\\[default: fedavg,fedprox,crf-fedavg,crf-fedprox][/dim]",
            ),
            seeds_setting("Seeds, such as 0-2 or 0,3,7.  [dim]\\[default: 0-2][/dim]"),
            *RUN_SETTINGS,
        ),
    ],
    settings: SettingsFlag = None,
    place: Annotated[Said, PLACE],
    output: OutputFlag = None,
    describe: Annotated[
        bool,
        what_option(
            "Print the resolved description, defaults too, as a run file; run nothing.",
            "--describe",
        ),
    ] = False,
) -> None:
    """Run methods × seeds on one data set and partition; go on where an earlier run stopped."""
    from fedcrf.experiments.settings import read_toml, setting
    from fedcrf.experiments.spec import default_folder
    from fedcrf.experiments.store import described
    from fedcrf.experiments.study import Study

    base = () if run_file is None else (read_toml(run_file),)
    study = Study(base, settings=(said, *(setting(text) for text in settings or [])))
    ((_, spec),) = study.points
    if describe:
        print(described(spec), end="")
        return
    runs = study.runs(output or default_folder(spec))
    ((_, store),) = runs
    display = _carry_out(runs, place)
    from fedcrf.experiments.results import read_results, write_results

    print_tables(read_results(store).tables())
    with _failing(display.failed):
        list_files(write_results(store))


@with_flags
def demo(*, output: FolderFlag = Path("runs/demo"), place: Annotated[Said, (JOBS,)]) -> None:
    """Show the point: three rules on the digits, with three attackers among ten and without."""
    from fedcrf.experiments.demo import accuracies, demo_table, demonstration, verdict
    from fedcrf.report.page import read_report, write_page

    runs = demonstration(output).runs(output)
    display = _carry_out(runs, {**place, "device": "cpu"}, brief=True)
    with _failing(display.failed):
        page = output / "report.html"
        write_page(read_report([output]), page)
        found = accuracies(output)
        print_table(demo_table(found))
        say(verdict(found), f"Who was trusted, and why: {shlex.quote(str(page))}")


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
    place: Annotated[Said, PLACE],
    output: FolderFlag = Path("results/paper"),
) -> None:
    """Make the paper's tables and figures: run what is missing, say which cells are not run."""
    from fedcrf.experiments.analysis import paper
    from fedcrf.experiments.results import table, write_results

    names = paper.PAPER_METHODS if methods is None else parse_names("--methods", methods)
    datasets = None if dataset == "all" else parse_names("--dataset", dataset)
    chosen = paper.chosen_columns(which, datasets)
    whole = paper.paper_study(paper.chosen_columns())
    whole.check_folder(output, "table-noniid.csv", "tables of the paper")
    runs = paper.paper_study(chosen, names, parse_seeds(seeds)).runs(output)
    failed: Failed = {}
    changed: list[Store] = []
    if run:
        display = _carry_out(runs, place)
        failed = display.failed
        changed = [
            store
            for _, store in runs
            if display.ran(store) or not (store.path / "results.md").exists()
        ]
    cells = table(output, whole)
    print_tables(paper.all_tables(cells))
    say(*paper.cell_notices(cells))
    with _failing(failed):
        for store in changed:
            write_results(store)
        list_files(paper.write_paper(output, cells))


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
    said: Annotated[
        Said,
        (
            names_setting("methods", "Methods; else the run file's, else crf-fedavg."),
            seeds_setting("Seeds, such as 0-2."),
            *RUN_SETTINGS,
        ),
    ],
    settings: SettingsFlag = None,
    latex: LatexFlag = False,
    place: Annotated[Said, PLACE],
    output: FolderFlag = Path("runs/sweep"),
) -> None:
    """Run every combination of some settings' values: a table, and a heat map of two settings."""
    from fedcrf.experiments.analysis.conditions import check_same_axes, sweep_table, write_sweep
    from fedcrf.experiments.results import table
    from fedcrf.experiments.settings import read_toml, setting
    from fedcrf.experiments.study import Study, parse_axis

    base = [{"methods": ["crf-fedavg"]}] if run_file is None else [read_toml(run_file)]
    axes = tuple(parse_axis(text) for text in over)
    study = Study(tuple(base), axes, (said, *(setting(text) for text in settings or [])))
    study.check_folder(output, "sweep.csv", "sweep")
    check_same_axes(study, output)
    display = _carry_out(study.runs(output), place)
    results = table(output, study)
    print_tables([sweep_table(study, results)], "latex" if latex else "terminal")
    with _failing(display.failed):
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
    chosen: Annotated[
        Said,
        (
            names_setting("partitions", "Of the suite's partitions; else all."),
            names_setting("conditions", "Conditions, or titles of their groups; else all."),
            names_setting("methods", "Methods; else the suite's."),
            seeds_setting("Seeds; else the suite's."),
            Setting(
                "attackers",
                int,
                "How many attack under every condition with an attack; else as the suite says.",
            ),
            Setting("clients", int, "Number of clients; else the suite's."),
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="The suite at its small size: ten minutes on two cores.")
    ] = False,
    settings: SettingsFlag = None,
    run: RunMissingFlag = True,
    latex: LatexFlag = False,
    place: Annotated[Said, PLACE],
    output: OutputFlag = None,
) -> None:
    """Compare rules under attack, or with unreliable clients: tables, worst cases, heat maps."""
    workplace = _workplace(place)
    from fedcrf.experiments.analysis import conditions
    from fedcrf.experiments.grid import run_suite
    from fedcrf.experiments.results import held, suite_cells
    from fedcrf.experiments.settings import setting
    from fedcrf.experiments.store import Store
    from fedcrf.experiments.study import default_folder, read_suite

    whole = read_suite(suite, dataset)
    asked = whole.chosen(**chosen, settings=[setting(text) for text in settings or []], quick=quick)
    store = Store(output or default_folder(whole, asked))

    _loggers(place.get("log"))  # a name that is none is said before there is a folder
    failed: Failed = {}
    with _failing(failed):
        if run:
            shown_by = partial(_display, log=place.get("log"), brief=True, failed=failed)
            run_suite(asked, store, workplace, shown_by)
        else:
            store.check_suite(begun=True)
        shown = held(whole, asked, store)
        cells = suite_cells(shown, store)
        places = [conditions.Place(shown, cells, partition) for partition in shown.partitions]
        print_tables(map(conditions.summary_table, places), "latex" if latex else "terminal")
        say(*conditions.other_notices(cells), *conditions.stale_notices(cells))
        list_files(conditions.write_suite(shown, cells, store.path))


def _carry_out(runs: Runs, place: Said, *, brief: bool = False) -> RunDisplay:
    """Run what is missing of some runs; return what was shown, and knows what failed."""
    from fedcrf.experiments.grid import run_grids

    workplace = _workplace(place)
    with _display(runs, place.get("log"), brief=brief) as display:
        run_grids(runs, workplace, display)
        return display


def _display(
    runs: Runs, log: str | None, *, brief: bool = False, failed: Failed | None = None
) -> RunDisplay:
    """Return what shows every event, and passes it to the loggers that are asked for."""
    from fedcrf.cli.display import RunDisplay

    loggers, logging = _loggers(log), None
    if loggers:
        from fedcrf.loggers import LoggingObserver

        logging = LoggingObserver(loggers, say)
    return RunDisplay(runs, console, brief=brief, also=logging, failed=failed)


def _loggers(log: str | None) -> Mapping[str, MakeLogger]:
    if log is None:
        return {}
    from fedcrf.loggers import find_loggers

    return find_loggers(parse_names("--log", log))


def _workplace(place: Said) -> Workplace:
    """Return where and with what cells are run, of the flags in `PLACE`."""
    device, jobs, executor = place.get("device", "auto"), place.get("jobs"), place.get("executor")
    if device not in ("cpu", "cuda", "auto"):
        raise FedcrfError(f"--device {device}: choose cpu, cuda or auto")
    if jobs is not None and jobs < 1:
        raise FedcrfError(f"--jobs {jobs}: give 1 or more")
    from fedcrf.experiments.grid import Workplace, executor_at

    return Workplace(
        data_dir=place.get("data_dir"),
        cache_dir=place.get("cache_dir"),
        device=device,
        executor=None if executor is None else executor_at(executor),
        jobs=default_jobs(device) if jobs is None else jobs,
    )


@contextmanager
def _failing(failed: Failed) -> Iterator[None]:
    """Raise an error after the block if cells failed, and say what went wrong in it beside."""
    then = ""
    try:
        yield
    except BrokenPipeError:
        raise  # who reads what is printed is gone
    except (FedcrfError, OSError) as error:
        if not failed:
            raise
        then = f"; and {of_file(error) if isinstance(error, OSError) else error}"
    if failed:
        count = sum(map(len, failed.values()))
        why = [f"{listed(names, MOST_FAILED)}: {reason}" for reason, names in failed.items()]
        said = listed(why, MOST_FAILED, between="; ")
        raise FedcrfError(f"{count} of the cells failed: {said}{then}")


def default_jobs(device: str) -> int:
    """Return how many cells to run at once: one a core, or as many as a GPU's memory carries."""
    cores = available_cores()
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            memory = torch.cuda.get_device_properties(0).total_memory
            return max(1, min(MOST_ON_GPU, cores, memory // MEMORY_OF_CELL))
    return cores


def show(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's results folder, or one of several runs.")
    ],
    markdown: Annotated[bool, typer.Option(help="Print the tables in Markdown.")] = False,
    latex: LatexFlag = False,
    figures: Annotated[
        bool, typer.Option(help="Write tables and figures into the folder anew.")
    ] = False,
) -> None:
    """Show the tables of finished or running runs; of a suite, how many cells it has."""
    from fedcrf.experiments.results import runs_in, suite_notices
    from fedcrf.experiments.store import Store

    if markdown and latex:
        raise FedcrfError("--markdown and --latex: give one of them")
    form: TableForm = "markdown" if markdown else "latex" if latex else "terminal"
    sound, store = True, Store(folder)
    recorded, others = runs_in(folder)
    if recorded:
        sound = _show_recorded(folder, recorded, form, figures=figures)
    if store.is_suite and not recorded:
        say(*suite_notices(store))
    elif others:
        sound = _show_runs(others, form, figures=figures, beside=bool(recorded)) and sound
    if not sound:
        raise typer.Exit(1)


def _show_recorded(
    folder: Path, recorded: Mapping[str, RecordedRun], form: TableForm, *, figures: bool
) -> bool:
    """Print one table of runs that another framework carried out; tell whether all are sound."""
    from fedcrf.experiments.recorded import readable, recorded_table, write_recorded_figures

    runs, lines = readable(recorded)
    damages = {name: run.course().damage for name, run in runs.items()}
    lines += [f"{name}: {damage}" for name, damage in damages.items() if damage]
    print_tables([recorded_table(runs)], form)
    say(*lines)
    if figures:
        list_files(write_recorded_figures(folder, runs))
    return not lines


HEADINGS: Mapping[TableForm, str] = {
    "terminal": "{}:",
    "markdown": "## {}\n",
    "latex": "% {}",
}
"""What stands above the tables of one run among several."""


def _show_runs(runs: Mapping[str, Store], form: TableForm, *, figures: bool, beside: bool) -> bool:
    """Print the tables of runs, several under their names; tell whether all are sound.

    ``beside`` tells whether something stands above them already.
    """
    from fedcrf.experiments.results import read_results, write_results

    sound, several = True, beside or len(runs) > 1
    for place, (name, store) in enumerate(runs.items()):
        if place > 0 or beside:
            print()
        if several:
            print(HEADINGS[form].format(name))
        try:
            run = read_results(store)
            print_tables(run.tables(), form)
            say(*(f"{each.cell.name}: {each.notice}" for each in run.cells if each.notice))
            if figures:
                list_files(write_results(store))
            sound = sound and not any(each.damage for each in run.cells)
        except FedcrfError as error:
            if not several:
                raise
            say(f"{name} could not be read: {error}")
            sound = False
    return sound


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Results folders of one run or several.")
    ],
    output: Annotated[
        Path | None,
        where_option(
            "The page; else report.html in the run's folder, or here for several runs.",
            "--output",
            "-o",
        ),
    ] = None,
) -> None:
    """Write what runs show as one HTML page: results, curves, who was trusted and why."""
    from fedcrf.report.page import read_report, write_page

    content = read_report(folders)
    path = output or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    write_page(content, path)
    say(*content.all_notices())
    list_files([path])
    if content.damaged:
        raise typer.Exit(1)


def explain(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's results folder.")],
    number: Annotated[int | None, what_option("The round; else the last.", "--round")] = None,
    client: Annotated[
        str | None,
        what_option("One client, by its number or name, with all its causes; else a line each."),
    ] = None,
    method: Annotated[
        str | None,
        what_option("The method, or a recorded run's name; else the first that infers weights."),
    ] = None,
    seed: Annotated[int | None, what_option("The seed; else the run's first.")] = None,
) -> None:
    """Explain the clients' weights in one round: a verdict in words, then the numbers."""
    from fedcrf.report.explanation import find_round, find_rounds, in_words

    found = find_rounds(folder, method, seed)
    lines, tables = in_words(found, find_round(found, number, client), client)
    say(*lines, "")
    print_tables(tables)


@with_flags
def partition(
    *,
    said: Annotated[Said, OF_DATA],
    seed: Annotated[int, what_option("The run's seed.", min=0)] = 0,
    output: Annotated[
        Path | None, where_option("Stem of the files; else one under runs/.", "--output", "-o")
    ] = None,
    source: Annotated[Said, SOURCE],
) -> None:
    """Show what each client holds: a table of counts and a picture."""
    from fedcrf.cli.display import counts_table, holdings_notices, partition_table
    from fedcrf.experiments.analysis.figures import partition_figure, save
    from fedcrf.experiments.grid import Workplace
    from fedcrf.experiments.spec import clients_name
    from fedcrf.experiments.store import partition_record
    from fedcrf.experiments.study import Study
    from fedcrf.files import write_text
    from fedcrf.simulation.federation import client_splits

    if output is not None and (not output.name.strip(".") or output.is_dir()):
        raise FedcrfError(f"--output {output} is a folder: give the stem of a file's name")
    ((_, spec),) = Study((), settings=(said,)).points
    images = Workplace(**source).load(spec.data)
    splits = client_splits(images.train.labels, spec.partition, seed)
    record = partition_record(seed, splits, images)
    title = f"{images.name}, {spec.partition.scheme}, seed {seed}"
    print_table(partition_table(record, title))
    say(*holdings_notices(record))
    name = f"{re.sub('[/:]', '-', images.name)}-{clients_name(spec.partition)}-seed-{seed}"
    stem = output or Path("runs") / f"partition-{name}"
    if stem.suffix in (".png", ".svg", ".csv"):
        stem = stem.with_suffix("")
    stem.parent.mkdir(parents=True, exist_ok=True)
    table = stem.with_name(f"{stem.name}.csv")
    write_text(table, counts_table(record).as_csv())
    list_files([table, *save(partition_figure(record, title), stem)])


def methods() -> None:
    """List the methods, and what they are made of, with its settings."""
    from fedcrf.experiments.settings import METHODS
    from fedcrf.objectives import OBJECTIVES
    from fedcrf.rules import RULES, SERVER_OPTIMIZERS
    from fedcrf.rules.byzfl import AGGREGATORS, PRE_AGGREGATORS

    list_entries(
        "methods (or any RULE+OBJECTIVE, and any of them +OPTIMIZER; "
        "a rule or an objective of your own is FILE.py:NAME)",
        {name: method.parts for name, method in METHODS.items()},
    )
    list_entries("rules", _described(RULES, "rules") | _installed("rule"))
    list_entries(
        "rules of ByzFL, which are methods too (fedcrf[byzfl]): byzfl-AGGREGATOR, or "
        "byzfl-PRE-AGGREGATOR-AGGREGATOR such as byzfl-nnm-krum",
        {
            "aggregators": ", ".join(map(_part, AGGREGATORS.items())),
            "pre-aggregators": ", ".join(map(_part, PRE_AGGREGATORS.items())),
        },
    )
    list_entries("objectives", _described(OBJECTIVES, "objectives") | _installed("objective"))
    list_entries("server optimizers", _described(SERVER_OPTIMIZERS, "server_optimizers"))


def attacks() -> None:
    """List the attacks, with their settings and when they are carried out."""
    from fedcrf.attacks import ATTACKS, Schedule

    known = _described(ATTACKS, "attacks") | _installed("attack")
    list_entries("attacks (or FILE.py:NAME)", known)
    list_entries("any of them", _described({"attack": Schedule}, "attack"))


def datasets() -> None:
    """List the data sets that have a name of their own, and the ways to deal them out."""
    from fedcrf.data import DATASETS, PARTITIONS

    list_entries(
        "data sets (or any of the Hugging Face hub as OWNER/NAME, or FILE.py:NAME)",
        {name: source.description for name, source in DATASETS.items()} | _installed("dataset"),
    )
    schemes = {name: scheme.description for name, scheme in PARTITIONS.items()}
    list_entries("partitions (or FILE.py:NAME)", schemes | _installed("partition"))


def models() -> None:
    """List the models, with their settings."""
    from fedcrf.models import MODELS

    list_entries("models (or FILE.py:NAME)", _described(MODELS, "model") | _installed("model"))


def _installed(what: str) -> dict[str, str]:
    from fedcrf.extensions import installed

    found = installed(what).items()
    return {name: f"{each.value}, of an installed package" for name, each in found}


def _described(registry: Mapping[str, type[Any]], section: str) -> dict[str, str]:
    """Return what each entry is, and its settings with their defaults as a run file has them."""
    from fedcrf.experiments.settings import ignored

    lines = {}
    for name, kind in registry.items():
        where = section if section in ("model", "attack") else f"{section}.{name}"
        settings = [
            f"\n      {where}.{field.name} = {json.dumps(field.default)}"
            for field in dataclasses.fields(kind)
            if field.name not in ignored(kind)
        ]
        lines[name] = (kind.__doc__ or "").strip().splitlines()[0] + "".join(settings)
    return lines


def _part(entry: tuple[str, Part]) -> str:
    name, part = entry
    settings = [
        key if default is None else f"{key} = {default}"
        for key, (_, default) in part.settings.items()
    ]
    return f"{name} ({', '.join(settings)})" if settings else name
