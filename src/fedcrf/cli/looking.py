"""The commands that only look: show, report, explain, partition, and the lists of what there is."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcrf.cli.flags import (
    CacheDirFlag,
    DataFlags,
    LatexFlag,
    given,
    what_option,
    where_option,
    with_flags,
)
from fedcrf.cli.output import TableForm, list_entries, list_files, print_table, print_tables, say
from fedcrf.errors import FedcrfError

if TYPE_CHECKING:
    from fedcrf.experiments.recorded import RecordedRun
    from fedcrf.rules.byzfl import Part


def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's results folder.")],
    markdown: Annotated[bool, typer.Option(help="Print the tables in Markdown.")] = False,
    latex: LatexFlag = False,
    figures: Annotated[
        bool, typer.Option(help="Write tables and figures into the folder anew.")
    ] = False,
) -> None:
    """Show the tables of a finished or running run; of a suite, how many cells it has."""
    from fedcrf.experiments.recorded import recorded_runs
    from fedcrf.experiments.results import read_results, suite_notices, write_results
    from fedcrf.experiments.store import Store

    if markdown and latex:
        raise FedcrfError("--markdown and --latex: give one of them")
    form: TableForm = "markdown" if markdown else "latex" if latex else "terminal"
    if recorded := recorded_runs(folder):
        _show_recorded(folder, recorded, form, figures=figures)
        return
    store = Store(folder)
    if store.is_suite:
        for line in suite_notices(store):
            say(line)
        return
    run_so_far = read_results(store)
    print_tables(run_so_far.tables(), form)
    for each in run_so_far.cells:
        if each.notice:
            say(f"{each.cell.name}: {each.notice}")
    if figures:
        list_files(write_results(store))
    if any(each.damage for each in run_so_far.cells):
        raise typer.Exit(1)


def _show_recorded(
    folder: Path, runs: Mapping[str, RecordedRun], form: TableForm, *, figures: bool
) -> None:
    from fedcrf.experiments.recorded import readable, recorded_table, write_recorded_figures

    runs, lines = readable(runs)
    print_tables([recorded_table(runs)], form)
    if figures:
        list_files(write_recorded_figures(folder, runs))
    damages = {name: run.sound_records()[1] for name, run in runs.items()}
    lines += [f"{name}: {damage}" for name, damage in damages.items() if damage]
    for line in lines:
        say(line)
    if lines:
        raise typer.Exit(1)


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
    from fedcrf.report.page import write_page
    from fedcrf.report.reading import read_report

    content = read_report(folders)
    path = output or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    write_page(content, path)
    for line in content.all_notices():
        say(line)
    list_files([path])
    if content.damaged:
        raise typer.Exit(1)


def explain(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's results folder.")],
    number: Annotated[int | None, what_option("The round; else the last.", "--round")] = None,
    client: Annotated[
        str | None, what_option("One client, by its number or name; else all.")
    ] = None,
    method: Annotated[
        str | None,
        what_option("The method, or a recorded run's name; else the first that infers weights."),
    ] = None,
    seed: Annotated[int | None, what_option("The seed; else the run's first.")] = None,
) -> None:
    """Explain the clients' weights in one round: a verdict in words, then the numbers."""
    from fedcrf.report.lookup import find_round, find_rounds, in_words

    found = find_rounds(folder, method, seed)
    said = in_words(found, find_round(found, number, client), client)
    for line in said.lines:
        say(line)
    say("")
    for table in said.tables:
        print_table(table)


@with_flags
def partition(
    *,
    data: DataFlags,
    seed: Annotated[int, what_option("The run's seed.", min=0)] = 0,
    output: Annotated[
        Path | None, where_option("Stem of the files; else one under runs/.", "--output", "-o")
    ] = None,
    cache_dir: CacheDirFlag = None,
) -> None:
    """Show what each client holds: a table of counts and a picture."""
    from fedcrf.cli.display import counts_table, holdings_notices, partition_table
    from fedcrf.experiments.analysis.figures import partition_figure, save
    from fedcrf.experiments.grid import Workplace
    from fedcrf.experiments.spec import check_used, clients_name, resolve
    from fedcrf.experiments.store import partition_record
    from fedcrf.files import write_text
    from fedcrf.simulation.federation import client_splits

    flags = given(data.sections())
    spec = resolve(flags)
    check_used([flags], [spec])
    images = Workplace(data_dir=data.data_dir, cache_dir=cache_dir).load(spec.data)
    splits = client_splits(images.train.labels, spec.partition, seed)
    record = partition_record(seed, splits, images)
    title = f"{images.name}, {spec.partition.scheme}, seed {seed}"
    print_table(partition_table(record, title))
    for line in holdings_notices(record):
        say(line)
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
    from fedcrf.experiments.methods import METHODS
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
        key if default is None else f"{key} = {default}" for key, default in part.settings.items()
    ]
    return f"{name} ({', '.join(settings)})" if settings else name
