"""What a run has to show so far: its table and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.paper import published_column
from fedcrf.experiments.analysis.tables import (
    UNDER_ATTACK,
    Table,
    check_not_emptier,
    details_table,
    results_table,
)
from fedcrf.experiments.spec import CellSpec, RunSpec
from fedcrf.experiments.store import CellSummary, DamagedRecordsError, RunStore, StaleCellError
from fedcrf.simulation.records import RoundRecord


@dataclass(frozen=True)
class CellStanding:
    """How far one cell is.

    Attributes:
        cell: Which.
        records: Its rounds so far; where a record is damaged, those before it.
        summary: Its result, where it is finished.
        damage: What is wrong with its files, where something is.
        stale: What does something else than when it was run; nothing is told of such a cell.
    """

    cell: CellSpec
    records: Sequence[RoundRecord]
    summary: CellSummary | None
    damage: str | None = None
    stale: str | None = None

    @property
    def stale_told(self) -> str | None:
        """That it is stale, and why; None where it is not."""
        return self.stale and f"stale, and left out until it is run again: {self.stale}"

    @property
    def damage_told(self) -> str:
        """What is wrong, and how far the cell is told all the same."""
        shown = f"shown up to round {self.records[-1].round}" if self.records else "left out"
        return f"{shown}: {self.damage}"


@dataclass(frozen=True)
class RunStanding:
    """How far a run is."""

    spec: RunSpec
    cells: Sequence[CellStanding]

    @property
    def title(self) -> str:
        """What the run is about, in one line."""
        partition, each_round = self.spec.partition, self.spec.rounds.clients_per_round
        drawn = "" if each_round is None else f", {each_round} of them a round"
        return (
            f"{self.spec.data.dataset}, {self.spec.model['name']}, "
            f"{partition.num_clients} clients{drawn}, {partition.title}{self._attack}"
        )

    @property
    def _attack(self) -> str:
        if self.spec.threat is None:
            return ""
        schedule = self.spec.threat.schedule
        count = schedule.count(self.spec.partition.num_clients)
        start = f" from round {schedule.start_round}" if schedule.start_round > 1 else ""
        pulse = f", every {schedule.every} rounds" if schedule.every > 1 else ""
        return f", {self.spec.attack['name']} by {count}{start}{pulse}"

    @property
    def stale(self) -> list[CellStanding]:
        """The cells that other code made."""
        return [each for each in self.cells if each.stale]

    @property
    def finished(self) -> list[CellSummary]:
        """The results of the finished cells."""
        return [each.summary for each in self.cells if each.summary is not None]

    def tables(self) -> tuple[Table, Table]:
        """Return the results over the finished cells, and what stands behind them."""
        from fedcrf.experiments.table import frame, run_rows

        cells, methods = frame(run_rows(self, Path(), {})), self.spec.methods
        published = published_column(self.spec)
        note = "" if self.spec.threat is None else UNDER_ATTACK
        results = results_table(self.title, cells, methods, published, note)
        return results, details_table(cells, methods)

    def records(self) -> dict[str, list[Sequence[RoundRecord]]]:
        """Return the rounds of every cell by method, seed by seed."""
        return {
            method: [each.records for each in self.cells if each.cell.method.name == method]
            for method in self.spec.methods
        }


def standing(store: RunStore) -> RunStanding:
    """Read how far a run is; a damaged cell is named, and the rest still told.

    Raises:
        FedcrfError: The folder holds no run.
    """
    spec = store.read()
    return RunStanding(spec, [_cell_standing(store, cell) for cell in spec.cells()])


def write_standing(store: RunStore, folder: Path | None = None) -> list[Path]:
    """Write the run's tables (Markdown, CSV) and figures (SVG, PNG).

    Args:
        store: The run.
        folder: Where; the run's own where left out.

    Raises:
        FedcrfError: The folder's tables show more, and nothing is stale; nothing is written.
    """
    from fedcrf.experiments.analysis.figures import save_run_figures

    run, folder = standing(store), folder or store.path
    paths = []
    tables = dict(zip(("results", "details"), run.tables(), strict=True))
    for name, table in tables.items():
        check_not_emptier(folder / f"{name}.md", table.as_markdown(), bool(run.stale))
    for name, table in tables.items():
        paths += table.write(folder / name)
    seed = f"seed {run.spec.seeds[0]}"
    return paths + save_run_figures(folder, run.records(), run.title, f"{run.title}, {seed}")


def _cell_standing(store: RunStore, cell: CellSpec) -> CellStanding:
    folder = store.cell(cell)
    try:
        partition = store.partition(cell.seed)
        fingerprint = (partition.fingerprint or None) if partition is not None else None
        return CellStanding(cell, *folder.read(cell, fingerprint))
    except StaleCellError as error:
        return CellStanding(cell, [], None, stale=str(error))
    except DamagedRecordsError as error:  # and nothing else is wrong: the rounds are this cell's
        return CellStanding(cell, error.sound, None, damage=str(error))
    except FedcrfError as error:
        return CellStanding(cell, [], None, damage=str(error))
