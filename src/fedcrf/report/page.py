"""The report as one HTML file that needs nothing else: data, program and Plotly lie in it.

Data and Plotly are compressed, and unpacked by the browser. Plotly is the bundle of its charts on
axes, ``plotly-cartesian.min.js`` of the npm package ``plotly.js-cartesian-dist-min``, under
``gzip -9n``; its licence lies beside it.
"""

from __future__ import annotations

import gzip
import math
import os
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import TypeAdapter

from fedcrf._version import __version__
from fedcrf.crf.potentials import SCORE_TERMS
from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.tables import UNDER_ATTACK, Table, comparison_table, mean_curve
from fedcrf.experiments.provenance import Provenance
from fedcrf.experiments.recorded import RecordedRun, evaluated, recorded_table
from fedcrf.experiments.results import RunResults, read_results, runs_in
from fedcrf.experiments.settings import method_title
from fedcrf.experiments.store import CellResult, Course, PartitionRecord, Store, described
from fedcrf.files import write_text
from fedcrf.objectives import ACCURACY, LOSS
from fedcrf.report.effects import Effects, Verdict, effects_of, verdicts_of
from fedcrf.report.explanation import (
    WORDS,
    ClientCauses,
    clients_of_nodes,
    columns_of,
    exclusion_lines,
    explained,
    title_of,
    verdict_line,
    weight_lines,
)
from fedcrf.report.headline import Headline, headline_of, recorded_headline
from fedcrf.rules import FedAvg
from fedcrf.simulation.records import Client, RoundRecord, Rounds, brief, reported_round


@dataclass(frozen=True)
class Curve:
    """A method's course over rounds: mean and standard deviation over its seeds, NaN of one."""

    name: str
    seeds: int
    rounds: Sequence[int]
    mean: Sequence[float]
    sd: Sequence[float]
    kept: float  # the mean where all seeds have stopped


@dataclass(frozen=True)
class RunContent:
    """What is shown of one run."""

    name: str  # of its folder
    title: str  # what it is about, in one line
    headline: Headline
    facts: Sequence[tuple[str, str]]  # what was run, as terms and what stands behind them
    notices: Sequence[str]  # what is not as it should be, a line each
    results: Table  # what came of it; without a row where nothing is finished
    details: Table | None  # what stands behind the results; None where that is not known
    damaged: bool  # whether files of it are damaged or do not belong to it
    description: str  # the resolved run file
    # By name what was measured on the validation parts: accuracy, loss, or a metric of the user's
    measured: Mapping[str, Sequence[Curve]]
    cells: Sequence[Mapping[str, Any]]  # who was trusted in each, as `_cell_trust` has it
    holdings: Sequence[PartitionRecord] = ()

    @property
    def curves(self) -> list[Table]:
        """What was measured over the rounds, in numbers."""
        return [_curves_table(*each) for each in self.measured.items()]


@dataclass(frozen=True)
class Report:
    """What a report shows."""

    title: str
    notices: Sequence[str]  # what could not be read at all, a line each
    comparison: Table | None  # the runs beside each other; None of one run
    runs: Sequence[RunContent]  # those that could be read

    def all_notices(self) -> list[str]:
        """Return what could not be read, and of each run what is not as it should be."""
        of_runs = [f"{run.name}: {line}" for run in self.runs for line in run.notices]
        return [*self.notices, *of_runs]

    @property
    def measured(self) -> list[str]:
        """Names of what was measured in any run, each once; a regression has no accuracy."""
        return list(dict.fromkeys(name for run in self.runs for name in run.measured))

    @property
    def over_seeds(self) -> bool:
        """Whether a curve is a mean over several seeds."""
        measured = (curves for run in self.runs for curves in run.measured.values())
        return any(curve.seeds > 1 for curves in measured for curve in curves)

    @property
    def damaged(self) -> bool:
        """Whether a run could not be read, or files of one are damaged."""
        return bool(self.notices) or any(run.damaged for run in self.runs)

    @property
    def drawn(self) -> dict[str, Any]:
        """What the page's program draws and says; each of what was measured has a figure."""
        drawn = ("name", "measured", "holdings", "cells")
        runs = [{name: getattr(run, name) for name in drawn} for run in self.runs]
        rounds = [each for run in self.runs for cell in run.cells for each in cell["rounds"]]
        causes = [each["causes"] for each in rounds if each["causes"] is not None]
        names = {name for each in causes for name in (*each["values"], *each["factors"])}
        return {
            "runs": runs,
            "measured": self.measured,
            "terms": SCORE_TERMS,  # what each cause counts in the score
            "titles": {name: title_of(name) for name in [*WORDS["titles"], *sorted(names)]},
            "signed": WORDS["signed"],
        }


def _curves_table(what: str, curves: Sequence[Curve]) -> Table:
    """Return a few rounds of the curves in numbers; a run that has stopped keeps its best."""
    length = max(len(curve.mean) for curve in curves)
    rounds = [number for number in (1, 2, 5, 10, 20, 50, 100) if number < length] + [length]
    form = ".3f" if what in (ACCURACY, LOSS) else ".4g"
    rows = []
    for curve in curves:
        mean = dict(enumerate(curve.mean, start=1))
        values = [mean.get(number, curve.kept) for number in rounds]
        texts = (f"{value:{form}}" if math.isfinite(value) else "–" for value in values)
        rows.append((curve.name, *texts))
    named = max((curve.rounds for curve in curves), key=len)
    header = ("method", *(f"round {named[number - 1]}" for number in rounds))
    return Table(f"Validation {what} over the rounds", header, tuple(rows))


UNKNOWN = "data, model and local training, which the server does not know"
"""Of a run that another framework carried out."""

MOST_NUMBERS = 4_000_000
"""Numbers about clients and rounds in one page; about 45 MB unpacked, with the words about them."""


def read_report(folders: Sequence[Path]) -> Report:
    """Read the runs in some folders; what cannot be read is named, and the rest still read."""
    notices: list[str] = []
    runs: list[RunContent] = []
    compared: list[tuple[str, RunResults]] = []
    room = _Room(MOST_NUMBERS)
    found = _find(folders)
    recorded = [run for _, run in found if isinstance(run, RecordedRun)]
    for name, store in found:
        try:
            if isinstance(store, RecordedRun):
                runs.append(_recorded_content(name, store, room, _fedavg_of(store, recorded)))
            else:
                run = read_results(store)
                runs.append(_run_content(name, store, run, room))
                compared.append((name, run))
        except FedcrfError as error:
            if len(found) == 1:
                raise
            notices.append(f"{name} could not be read: {error}")
    if not runs:
        raise FedcrfError(f"no run could be read: {'; '.join(notices)}")
    comparison = None
    if len(compared) > 1:
        attacked = any(run.spec.threat is not None for _, run in compared)
        tables = [(name, run.table) for name, run in compared]
        comparison = comparison_table(tables, UNDER_ATTACK if attacked else "")
    return Report(
        title=runs[0].title if len(runs) == 1 else f"{len(runs)} runs compared",
        notices=notices,
        comparison=comparison,
        runs=runs,
    )


@dataclass
class _Room:
    """How many more numbers the page takes."""

    left: int

    def take(self, records: Rounds) -> bool:
        """Take a cell's rounds, and return whether there was room for them."""
        needed = 0
        for record in records:
            m, reasons = len(record.clients), record.reasons
            needed += 4 * m
            if reasons is not None and reasons.causes:
                needed += (1 + 2 * len(reasons.causes)) * m
            elif reasons is not None:
                needed += 6 * m + (m * (m - 1) // 2 if reasons.affinity is not None else 0)
        if needed > self.left:
            return False
        self.left -= needed
        return True


def _run_content(name: str, store: Store, run: RunResults, room: _Room) -> RunContent:
    notices = _notices(store, run)
    holdings: list[PartitionRecord] = []
    for seed in run.spec.seeds:
        with suppress(FedcrfError):  # each cell of the seed says so
            holdings += filter(None, [store.partition(seed)])
    results, details = run.tables()
    return RunContent(
        name=name,
        title=run.title,
        headline=headline_of(run),
        facts=_facts(run),
        notices=notices,
        results=results,
        details=details,
        damaged=any(each.damage for each in run.cells),
        description=described(run.spec),
        holdings=holdings,
        **_drawn(run.records(), run.cells, room, notices),
    )


def _fedavg_of(run: RecordedRun, others: Iterable[RecordedRun]) -> Rounds:
    """Return the rounds of the same simulation with FedAvg, if it is one of some runs."""
    ours = run.description()
    if ours.made_of is None or ours.rule == FedAvg.__name__:
        return []
    for other in others:
        with suppress(FedcrfError):  # said where that run is read
            beside = other.description()
            alike = ours.made_of.items() ^ (beside.made_of or {}).items()
            if beside.rule == FedAvg.__name__ and {part for part, _ in alike} == {"rule"}:
                return other.course().records
    return []


def _recorded_content(name: str, run: RecordedRun, room: _Room, fedavg: Rounds) -> RunContent:
    """Return what is shown of a run that another framework carried out, beside FedAvg's rounds."""
    description, course = run.description(), run.course()
    made = description.provenance
    course = replace(course, records=evaluated(course.records))
    notices = [] if course.notice is None else [course.notice]
    return RunContent(
        name=name,
        title=f"{description.title} in {description.framework}",
        headline=recorded_headline(course, fedavg),
        facts=[
            ("Carried out by", description.framework),
            ("Strategy", description.strategy),
            ("Rule", description.rule),
            ("Recorded by", f"fedcrf {made.fedcrf}, {_commits(made)}"),
            ("With", f"Python {made.python}, numpy {made.numpy}"),
            *(description.about or [("Not recorded", UNKNOWN)]),
        ],
        notices=notices,
        results=recorded_table({name: run}),
        details=None,
        damaged=course.damage is not None,
        description=description.model_dump_json(indent=1),
        **_drawn({course.title: [course.records]}, [course], room, notices),
    )


def _find(folders: Sequence[Path]) -> list[tuple[str, Store | RecordedRun]]:
    """Return the runs in some folders, each under a name of its own."""
    found: list[tuple[str, Store | RecordedRun]] = []
    for folder, name in zip(folders, _names(folders), strict=True):
        recorded, stores = runs_in(folder)
        runs: dict[str, Store | RecordedRun] = {**recorded, **stores}
        for own_name, run in runs.items():
            within = own_name if len(folders) == 1 else f"{name}/{own_name}"
            below = isinstance(run, Store) and run.path.parent == folder
            found.append((_printable(within if below or len(runs) > 1 else name), run))
    return found


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the folders' names, with as much of their paths as tells them apart."""
    resolved = [Path(os.path.realpath(folder)) for folder in folders]
    longest = max(len(path.parts) for path in resolved)
    names = (["/".join(path.parts[-n:]) for path in resolved] for n in range(1, longest + 1))
    return next(each for each in names if len(set(each)) == len(set(resolved)))


def _printable(text: str) -> str:
    """Return a text with question marks for what UTF-8 lacks, as names of folders may hold it."""
    return text.encode(errors="replace").decode()


def _facts(run: RunResults) -> list[tuple[str, str]]:
    spec = run.spec
    partition, rounds = spec.partition, spec.rounds
    settings = spec.describe()["model"]
    model = ", ".join(f"{key} {value}" for key, value in settings.items() if key != "name")
    facts = [
        ("Data", spec.data.dataset),
        ("Clients", f"{partition.num_clients}, {partition.title}"),
        ("Model", settings["name"] + (f" ({model})" if model else "")),
        ("Methods", ", ".join(method_title(method) for method in spec.methods)),
        ("Seeds", ", ".join(map(str, spec.seeds))),
        ("Local training", spec.training.in_words()),
        ("Rounds", f"at most {rounds.maximum}; ends after {rounds.patience} without a better "
                   "validation loss"),
    ]  # fmt: skip
    made: dict[str, dict[str, None]] = {}  # by term what was said of the cells, each once
    for summary in run.finished:
        by = summary.provenance
        for term, fact in (
            ("Made by", f"fedcrf {by.fedcrf}, {_commits(by)}"),
            ("With", f"Python {by.python}, torch {by.torch}, numpy {by.numpy}"),
            ("On", f"{by.processor}, {by.cores} cores, {by.system}, {by.device}"),
            ("Fingerprint of the images", summary.fingerprint),
        ):
            made.setdefault(term, {})[fact] = None
    return facts + [(term, "; ".join(each)) for term, each in made.items()]


def _commits(made: Provenance) -> str:
    return "commit " + ", then ".join((each or "unknown")[:10] for each in made.every_commit)


def _notices(store: Store, run: RunResults) -> list[str]:
    notices = [f"{each.cell.name}: {each.notice}" for each in run.cells if each.notice]
    unknown = store.unknown_cells(run.spec)
    if unknown:
        notices.append(f"not of this run and left out: {', '.join(unknown)}")
    for what, values in (
        ("versions or commits of fedcrf", {(each.provenance.fedcrf, commit)
                                           for each in run.finished
                                           for commit in each.provenance.every_commit}),
        ("data sets", {each.fingerprint for each in run.finished}),
        ("devices", {(each.provenance.processor, each.provenance.device)
                     for each in run.finished}),
    ):  # fmt: skip
        if len(values) > 1:
            notices.append(f"mixed: its cells were made with {len(values)} different {what}")
    return notices


def _drawn(
    records: Mapping[str, Sequence[Rounds]],
    courses: Sequence[Course],
    room: _Room,
    notices: list[str],
) -> dict[str, Any]:
    """Return what was measured, and who was trusted in the cells that the page has room for.

    The others are named in a line that ``notices`` gets.
    """
    begun = [each for each in courses if each.records]
    shown = [each for each in begun if room.take(each.records)]
    if len(shown) < len(begun):
        left_out = (
            each.cell.name for each in begun if each not in shown and isinstance(each, CellResult)
        )
        of_cells = f" for {names}" if (names := ", ".join(left_out)) else ""
        less = "name fewer runs" if len(courses) > 1 else "ask fedcrf explain for one round"
        said = f"the page would be too large; {less}"
        notices.append(f"who was trusted is left out{of_cells}: {said}")
    rounds = [record for seeds in records.values() for each in seeds for record in each]
    measured = {}
    for what in dict.fromkeys(what for each in rounds for what in _validation(each)):
        curves = _curves(records, what)
        if any(math.isfinite(value) for curve in curves for value in curve.mean):
            measured[what] = curves
    return {"measured": measured, "cells": [_cell_trust(each) for each in shown]}


def _validation(record: RoundRecord) -> dict[str, float]:
    """Return by name what was measured on the validation parts, metrics of the user's too."""
    validation, others = record.validation, (record.metrics or {}).get("validation", {})
    return {ACCURACY: validation.accuracy, LOSS: validation.loss, **others}


def _curves(records: Mapping[str, Sequence[Rounds]], what: str) -> list[Curve]:
    def value(each: RoundRecord) -> float:
        return _validation(each).get(what, math.nan)

    curves = []
    for name, seeds in records.items():
        begun = [rounds for rounds in seeds if rounds]
        if begun:
            rounds, mean, sd = mean_curve(begun, value)
            kept = float(np.mean([value(reported_round(each)) for each in begun]))
            title = method_title(name)
            curves.append(Curve(title, len(begun), rounds, brief(mean), brief(sd), kept))
    return curves


def _cell_trust(course: Course) -> dict[str, Any]:
    """Return who was trusted in the rounds of one cell, as the page's program reads it."""
    effects = [effects_of(record, course.rule) for record in course.records]
    verdicts, clients = verdicts_of(course.records, effects), clients_of_nodes(course.records)
    rounds = list(zip(course.records, effects, verdicts, strict=True))
    distrusted = {  # when last, and why
        client: {"client": client, "place": place, "reason": verdict.reason}
        for place, (record, _, found) in enumerate(rounds)
        for client, verdict in zip(record.clients, found, strict=True)
        if verdict.kind == "distrusted"
    }
    return {
        "method": course.title,
        "seed": course.seed,
        "rounds": [
            _round_trust(record, seen, explained(record, seen, course.attackers), found, clients)
            for record, seen, found in rounds
        ],
        "attackers": course.attackers,
        "distrusted": list(distrusted.values()),
    }


def _round_trust(
    record: RoundRecord,
    effects: Effects,
    clients: Sequence[ClientCauses],
    verdicts: Sequence[Verdict],
    of_nodes: Mapping[Client, Client],
) -> dict[str, Any]:
    """Return who was trusted in one round and why; its lists run over the clients."""
    seen = None
    if effects.values:
        drawn = ("values", "medians", "factors", "factor_medians", "named", "scored")
        seen = {name: getattr(effects, name) for name in drawn}
        if effects.affinities is not None:
            seen["affinities"] = [brief(row, digits=2) for row in effects.affinities]
    kept = {"round", "clients", "weight", "base_weight", "excluded"}
    return {
        **record.model_dump(include=kept),
        "examples": record.num_examples,
        # As text: not every whole number is one in the page.
        "nodes": None if record.nodes is None else [str(node) for node in record.nodes],
        "attackers": record.attackers or [],
        "causes": seen,
        "columns": columns_of(clients),
        "said": [
            [verdict_line(each, verdict, record.round), *weight_lines(each)]
            for each, verdict in zip(clients, verdicts, strict=True)
        ],
        "exclusions": exclusion_lines(record, of_nodes),
    }


PROGRAM = ("base", "overview", "trust", "weights", "causes", "client", "clients", "begin")
"""The page's program, in the order in which its parts need each other."""


def write_page(report: Report, path: Path) -> None:
    """Write a report as one self-contained HTML file.

    Raises:
        FedcrfError: The file is there already, and is no page of HTML; or it is a folder, or lies
            in a file.
    """
    if path.is_dir():
        raise FedcrfError(f"report {path} is a folder: name a file in it")
    if path.is_file():
        with path.open("rb") as file:
            if not b"<!doctype html".startswith(file.read(14).lower()):  # an empty file may be
                raise FedcrfError(f"report {path}: this file is no page: name another")
    page = _printable(render(report))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FedcrfError(f"report {path} lies within a file: name another file") from None
    write_text(path, page)


def render(report: Report) -> str:
    """Return a report as HTML; every name in it is escaped."""
    environment = Environment(
        loader=PackageLoader("fedcrf.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = TypeAdapter(dict[str, Any]).dump_json(report.drawn).decode()  # NaN becomes null
    data = gzip.compress(drawn.translate(_escapes(r"\\")).encode(), mtime=0)
    page = environment.get_template("report.html").render(
        report=report,
        version=__version__,
        data=b64encode(data).decode(),
        style=Markup(_asset("report.css").decode()),
        program=Markup("\n".join(_asset(f"{name}.js").decode() for name in PROGRAM)),
        plotly=b64encode(_asset("plotly-cartesian.min.js.gz")).decode(),
    )
    return page.translate(_escapes("\\"))


TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Marks that turn the direction of what follows: behind a name with one, 0.01 would read 10.0."""


def _escapes(backslash: str) -> Mapping[int, str]:
    """Return by mark of `TURNS` the escape to show instead."""
    return {ord(mark): f"{backslash}u{ord(mark):04x}" for mark in TURNS}


def _asset(name: str) -> bytes:
    return (resources.files("fedcrf.report") / "templates" / name).read_bytes()
