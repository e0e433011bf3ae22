"""What results folders hold: how far runs are, and one tidy table of results, a row a cell.

The table's columns are `COLUMNS`, and behind them the axes of the study that are none of these,
such as ``rules.crf.bandwidth``. Strings are empty and numbers NaN where a cell does not say them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.paper import published_column
from fedcrf.experiments.analysis.tables import (
    UNDER_ATTACK,
    Table,
    counted,
    details_table,
    results_table,
    write_tables,
)
from fedcrf.experiments.provenance import changes
from fedcrf.experiments.recorded import (
    RecordedRun,
    check_there,
    recorded_rows,
    recorded_runs,
    runs_within,
)
from fedcrf.experiments.settings import differences, flat, is_method
from fedcrf.experiments.spec import CellKey, CellSpec, RunSpec, cell_of
from fedcrf.experiments.store import (
    AXES,
    DESCRIPTION,
    CellResult,
    CellSummary,
    Score,
    Store,
    check_same_settings,
)
from fedcrf.experiments.study import Study, Suite
from fedcrf.extensions import short_name
from fedcrf.simulation.records import Rounds, reported_round, rounds_of

COLUMNS: Mapping[str, Any] = {
    "method": "",
    "seed": -1,
    "dataset": "",
    "partition": "",
    "condition": "",
    "attack": "",
    "attackers": None,
    "accuracy": math.nan,
    "validation_accuracy": math.nan,
    "validation_loss": math.nan,
    "best_round": -1,
    "rounds": 0,
    "everyone_accuracy": math.nan,
    "worst_client": math.nan,
    "client_mean": math.nan,
    "attack_success": math.nan,
    "held_out_accuracy": math.nan,
    "seconds_per_round": math.nan,
    "aggregation_share": math.nan,
    "images_per_second": math.nan,
    "separation": None,
    "curve": None,
    "last_rounds": 0,
    "commit": "",
    "fingerprint": "",
    "stale": "",
    "damage": "",
    "complete": False,
    "folder": "",
}
"""The columns that every table has, with what stands where a cell does not say it.

``accuracy`` is the number reported: the test accuracy of the reported round, or, of a suite's cell,
the mean over its last ``last_rounds`` evaluated ones. ``attack_success`` is a backdoor's, likewise.
``curve`` has the validation accuracy of each evaluated round of a run's finished cell. ``stale``
says why a cell is stale, ``complete`` whether it has a result that counts.
"""


SETTINGS_OF_ALL = ("data.", "partition.", "training.", "rounds.")
"""Sections whose settings every run has; a description leaves out those that are unset."""


@dataclass(frozen=True)
class RunResults:
    """How far a run is."""

    spec: RunSpec
    cells: Sequence[CellResult]

    @property
    def title(self) -> str:
        """What the run is about, in one line."""
        spec, attack = self.spec, ""
        each_round = spec.rounds.clients_per_round
        drawn = "" if each_round is None else f", {each_round} of them a round"
        if spec.threat is not None:
            schedule = spec.threat.schedule
            more = " additional clients" if schedule.additional else ""
            start = f" from round {schedule.start_round}" if schedule.start_round > 1 else ""
            pulse = f", every {schedule.every} rounds" if schedule.every > 1 else ""
            by = f"{schedule.count(spec.num_clients)}{more}{start}{pulse}"
            attack = f", {short_name(spec.attack_name)} by {by}"
        return (
            f"{short_name(spec.data.dataset)}, {short_name(spec.model_name)}, "
            f"{spec.partition.num_clients} clients{drawn}, {spec.partition.title}{attack}"
        )

    @property
    def finished(self) -> list[CellSummary]:
        """The results of the finished cells."""
        return [each.summary for each in self.cells if each.summary is not None]

    @cached_property
    def table(self) -> pd.DataFrame:
        """Its cells, a row each; see `frame`."""
        return frame(run_rows(self, Path(), {}))

    def tables(self) -> tuple[Table, Table]:
        """Return the results over the finished cells, and what stands behind them."""
        published = published_column(self.spec)
        note = "" if self.spec.threat is None else UNDER_ATTACK
        results = results_table(self.title, self.table, published, note)
        return results, details_table(self.table)

    def records(self) -> dict[str, list[Rounds]]:
        """Return the rounds of every cell by method, seed by seed.

        They are those that figures may have. If a cell of a method is finished, its unfinished
        ones have none. If none is finished, all are cut to the shortest.
        """
        return {
            method: _comparable([each for each in self.cells if each.cell.method.name == method])
            for method in self.spec.methods
        }


def _comparable(cells: Sequence[CellResult]) -> list[Rounds]:
    """Return the rounds of a method's cells; see `RunResults.records`."""
    if any(each.summary is not None for each in cells):
        return [() if each.summary is None else each.records for each in cells]
    shortest = min((len(each.records) for each in cells if each.records), default=0)
    return [each.records[:shortest] for each in cells]


def read_results(store: Store) -> RunResults:
    """Read how far a run is; a damaged cell is named, and the rest still read."""
    check_there(store.path)
    spec = store.read()
    return RunResults(spec, [_cell_result(store, cell) for cell in spec.cells()])


def write_results(store: Store) -> list[Path]:
    """Write a run's tables and figures into its folder, unless the tables there show more."""
    from fedcrf.experiments.analysis.figures import save_run_figures

    run = read_results(store)
    results, details = run.tables()
    texts = results.files("results") | details.files("details")
    paths = write_tables(store.path, texts, run.table)
    trust_title = f"{run.title}, seed {run.spec.seeds[0]}"
    firsts = {each.cell.method.name: [each.records] for each in reversed(run.cells)}
    trust = {method: firsts[method] for method in run.spec.methods}, trust_title
    return paths + save_run_figures(store.path, run.records(), run.title, trust)


def _cell_result(store: Store, cell: CellSpec) -> CellResult:
    try:
        partition = store.partition(cell.seed)
    except FedcrfError as error:
        found = store.cell(cell).look(cell, None)
        return replace(found, damage=found.damage or str(error), summary=None)
    fingerprint = "" if partition is None else partition.fingerprint  # older ones do not say it
    return store.cell(cell).look(cell, fingerprint or None)


def frame(rows: Iterable[Mapping[str, Any]], **more: Any) -> pd.DataFrame:
    """Return rows as a table with all `COLUMNS`, in their order, and ``more`` with their defaults.

    What is None in a row is as good as missing.
    """
    said = ({key: value for key, value in row.items() if value is not None} for row in rows)
    whole = [{**COLUMNS, **more, **row} for row in said]
    found = pd.DataFrame(whole, columns=None if whole else [*COLUMNS, *more])
    return found.astype({"complete": bool})  # of no rows too


def table(folder: Path, study: Study | None = None) -> pd.DataFrame:
    """Return what a folder holds: a run, runs up to two folders below, or a suite's cells.

    If there are several runs, the settings in which they differ are columns, by their keys in a run
    file. A setting that a run leaves unset is missing there. A run that another framework carried
    out has one row. If a ``study`` is given, its axes are columns, and only its own runs are looked
    at, as far as they were begun.

    Raises:
        FedcrfError: In the place of a run of the study is one of other settings.
    """
    if study is not None:
        rows: list[Mapping[str, Any]] = []
        for (at, _), (spec, store) in zip(study.points, study.runs(folder), strict=True):
            if (store.path / DESCRIPTION).exists():
                run = read_results(store)
                check_same_settings(run.spec, spec, f"results folder {store.path}")
                rows += run_rows(run, store.path, at)
        return frame(rows, **{axis.name: None for axis in study.axes})
    if (suite := Store(folder)).is_suite:
        return suite_cells(None, suite).assign(folder=str(folder))[[*COLUMNS]]
    recorded, stores = runs_in(folder)
    runs, unread = [], []
    for store in stores.values():
        try:
            runs.append((store, read_results(store)))
        except FedcrfError as error:  # of one among several it is said in the table
            if len(stores) == 1 and not recorded:
                raise
            unread.append({"damage": str(error), "folder": str(store.path)})
    described = [dict(flat(run.spec.describe())) for _, run in runs]
    varied = [
        key
        for key in dict.fromkeys(key for each in described for key in each)
        if key not in ("methods", "seeds", "data.dataset")
        and (key.startswith(SETTINGS_OF_ALL) or all(key in each for each in described))
        and len({str(each.get(key)) for each in described}) > 1
    ]
    found = [
        row
        for (store, run), each in zip(runs, described, strict=True)
        for row in run_rows(run, store.path, {key: each.get(key) for key in varied})
    ]
    return frame([*recorded_rows(recorded), *found, *unread], **dict.fromkeys(varied))


def runs_in(folder: Path) -> tuple[dict[str, RecordedRun], dict[str, Store]]:
    """Return by name the recorded runs in a folder, up to two below it, and the others.

    A folder that is a run itself, or that has none, is the one other.
    """
    whole = {folder.name: Store(folder)}
    if (folder / DESCRIPTION).exists():
        return {}, whole
    recorded, others = recorded_runs(folder), runs_within(folder, DESCRIPTION)
    stores = {name: Store(path) for name, path in others.items()}
    return recorded, stores if recorded or stores else whole


def run_rows(run: RunResults, folder: Path, at: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each cell of a run: what it came to, or how far it is.

    ``at`` is its place in a study.
    """
    for each in run.cells:
        cell, summary = each.cell, each.summary
        row = {
            "method": cell.method.name,
            "seed": cell.seed,
            "dataset": cell.data.dataset,
            "attack": cell.attack_name,
            "rounds": rounds_of(each.records),
            "stale": each.stale,
            "damage": each.damage,
            "folder": str(folder),
        }
        if summary is not None:
            row |= summary.model_dump(include=COLUMNS.keys() - {"method", "seed"})
            row["complete"] = True
            row["accuracy"] = summary.test_accuracy
            row["commit"] = summary.provenance.commit
            if each.records:
                rounds = (record for record in each.records if record.round == summary.best_round)
                reported = next(rounds, None) or reported_round(each.records)
                row["curve"] = [record.validation.accuracy for record in each.records]
                row["validation_accuracy"] = reported.validation.accuracy
                if reported.everyone is not None:
                    row["everyone_accuracy"] = reported.everyone.accuracy
                elif not summary.attackers:  # else packed rounds do not say it
                    row["everyone_accuracy"] = reported.test.accuracy
        yield {**row, **at}


def suite_cells(suite: Suite | None, store: Store) -> pd.DataFrame:
    """Return the table of a suite's finished cells in a folder; see `score_table`."""
    scores = store.scores()
    return score_table(scores, store.descriptions(scores), suite)


def score_table(
    scores: Sequence[Score],
    descriptions: Mapping[str, Mapping[str, Any]],
    suite: Suite | None = None,
) -> pd.DataFrame:
    """Return the finished cells of a suite's folder; complete are those that count.

    Settings that are new since a cell was run have their defaults. The index is the place among the
    scores. Behind `COLUMNS` are ``other``, which says why a cell is not of ``suite``, and the
    ``machine`` and ``commits`` that made it. If a ``suite`` is given, the stale cells that were run
    again are left out.
    """
    cells: dict[str, CellSpec | FedcrfError] = {}
    rows = []
    for score in scores:
        description = descriptions.get(score.description, {})
        if score.description not in cells:
            try:
                cells[score.description] = cell_of({**description, "seed": 0})
            except FedcrfError as error:
                cells[score.description] = error
        cell, made = cells[score.description], score.provenance
        other = "" if suite is None else _not_of(suite, score, cell)
        stale = ""
        if not other and not isinstance(cell, FedcrfError):
            stale = "; ".join(changes(cell, score.behaviour or {}, made.device))
        rows.append(
            {
                **score.model_dump(include=set(COLUMNS)),
                "dataset": description.get("data", {}).get("dataset", ""),
                "attack": description.get("attack", {}).get("name", ""),
                "everyone_accuracy": score.everyone,
                "commit": made.commit,
                "stale": stale,
                "complete": not stale and not other,
                "other": other,
                "machine": f"{made.processor}, torch {made.torch}",
                "commits": made.every_commit,
            }
        )
    found = frame(rows, other="", machine="", commits=())
    if suite is None:
        return found
    # Of the cells of one key that which counts comes last, else that which was kept last.
    last = found.sort_values("complete", kind="stable")
    own = last[last["other"] == ""].drop_duplicates([*AXES], keep="last").index
    return found[(found["other"] != "") | found.index.isin(own)]


def _not_of(suite: Suite, score: Score, cell: CellSpec | FedcrfError) -> str:
    """Return why a finished cell is none of a suite; empty where it is one."""
    if (wanted := suite.cells.get(score.key)) is None:
        return f" of {score.partition}/{score.condition}/{score.method}"
    if score.last_rounds != suite.last_rounds:
        return f", means of the last {score.last_rounds} rounds, not of {suite.last_rounds}"
    if isinstance(cell, FedcrfError):
        return f" of settings that there are no longer ({cell})"
    if (own := replace(cell, seed=score.seed)) == wanted:
        return ""
    found = differences(wanted.describe(), own.describe())
    said = "; ".join(f"{key} is {theirs}, not {ours}" for key, ours, theirs in found)
    return f" of other settings ({said})"


def keys_of(cells: pd.DataFrame) -> set[CellKey]:
    """Return which cells of a suite are complete."""
    return set(cells[cells["complete"]][[*AXES]].itertuples(index=False, name=None))


def held(complete: Suite, asked: Suite, store: Store) -> Suite:
    """Return the suite of all that is asked for, and of all that a folder holds beside it.

    ``complete`` has all partitions and conditions. Their order, and that of the methods, is its
    own. Methods that are gone are left out.
    """
    scores, whole = store.scores(), asked.with_parts_of(complete)
    scored = [score for score in scores if score.condition not in whole.ideals]
    methods = {*asked.methods, *(each.method for each in scored if is_method(each.method))}
    in_order = [*complete.methods, *(each.method for each in scored), *asked.methods]
    partitions = {*asked.partitions, *(score.partition for score in scores)}
    conditions = {*asked.conditions, *(score.condition for score in scores)}
    return whole.chosen(
        methods=[name for name in dict.fromkeys(in_order) if name in methods],
        seeds=sorted({*asked.seeds, *(score.seed for score in scores)}),
        partitions=[name for name in whole.partitions if name in partitions],
        conditions=[name for name in whole.conditions if name in conditions],
    )


def suite_notices(suite: Store) -> list[str]:
    """Return lines on a suite: its number of finished cells, the stale ones, where rounds are."""
    cells, packed = table(suite.path), suite.packed_runs()
    stale = counted(cells["stale"])
    return [
        f"{suite.path} holds {len(cells)} finished cells of a suite; fedcrf robustness makes its "
        "tables, and runs again what is stale",
        *(f"{count} cells are stale: {reason}" for reason, count in stale.items()),
        f"for the rounds of its cells name a condition, such as {packed[0].path}"
        if packed
        else "its cells have kept no rounds; those that are run from now on do",
    ]
