"""What a run looks like while it goes on: bars on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from fedcrf.errors import listed
from fedcrf.experiments.analysis.tables import Table
from fedcrf.experiments.grid import (
    CellEvent,
    CellFailed,
    CellFinished,
    CellStarted,
    Event,
    Observer,
    RoundFinished,
    Runs,
)
from fedcrf.experiments.spec import CellSpec
from fedcrf.experiments.store import PartitionRecord, Store

SMALL_CLIENT = 10
"""A client with fewer examples is named as small."""

Place = tuple[Path, CellSpec]
"""A cell of the run in a folder; runs of several folders may have equal cells."""

Failed = dict[str, list[str]]
"""The names of the cells that failed, by the reason."""


class RunDisplay:
    """Shows the events of a run; a context manager and an observer of the grid.

    If it is ``brief`` it prints one line for each cell, when the cell ends, instead of one for each
    round. ``also`` is called with every event after it is shown, such as to log it. ``failed`` is
    filled with the cells that fail, by the reason. ``clock`` tells the time, in seconds.
    """

    def __init__(
        self,
        runs: Runs,
        console: Console,
        *,
        brief: bool = False,
        also: Observer | None = None,
        failed: Failed | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failed = {} if failed is None else failed
        self._console = console
        self._brief = brief
        self._also = also
        self._names = {
            (store.path, cell): f"{_folder(store.path)}/{cell.name}" if len(runs) > 1 else cell.name
            for spec, store in runs
            for cell in spec.cells()
        }
        self._bars: dict[Place, TaskID] = {}
        self._started: set[Place] = set()
        self._finished_before = 0
        self._pace = _Pace(list(self._names), clock)
        self._folders = [store.path for _, store in runs]
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[scores]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("cells", total=len(self._names), scores="")

    def __enter__(self) -> RunDisplay:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Show one event; before the first one, where the results go."""
        while self._folders and not self._brief:
            self._say(f"results: {self._folders.pop(0)}")
        if isinstance(event, PartitionRecord):
            if not self._brief:
                for line in holdings_notices(event):
                    self._say(line)
        else:
            self._show(event)
        if self._also is not None:
            self._also(event)

    def _show(self, event: CellEvent) -> None:
        place = event.folder, event.cell
        name = self._names[place]
        match event:
            case CellStarted(cell, rounds_done):
                if not self._started and self._finished_before:
                    self._say(f"{self._finished_before} cells were finished before")
                self._started.add(place)
                self._pace.at(place, rounds_done, begun=True)
                if rounds_done:
                    self._say(f"{name}: goes on after round {rounds_done}")
                self._bars[place] = self._progress.add_task(
                    name, total=cell.rounds.maximum, completed=rounds_done, scores=""
                )
            case RoundFinished(cell, record):
                self._pace.at(place, record.round)
                validation = record.validation
                scores = (
                    f"validation loss {validation.loss:.4f}, accuracy {validation.accuracy:.4f}"
                )
                self._progress.update(self._bars[place], completed=record.round, scores=scores)
                self._progress.update(self._all, scores=self._pace.time_left())
                if not (self._console.is_terminal or self._brief):
                    done = f"round {record.round}/{cell.rounds.maximum}"
                    self._say(f"{name}: {done}, {scores}", self._pace.time_left())
                if not self._brief:
                    for client in record.excluded:
                        self._say(
                            f"{name}: round {record.round}: the update of client {client} "
                            "is not finite and was excluded"
                        )
            case CellFinished(_, summary):
                self._remove(place)
                if place in self._started:
                    end = "stopped early" if summary.stopped_early else "ended"
                    chosen = "" if summary.attackers is None else ", which the honest clients chose"
                    self._say(
                        f"{self._pace.count} {name}: {end} after {summary.rounds} rounds",
                        f"test accuracy {summary.test_accuracy:.4f} "
                        f"(round {summary.best_round}{chosen})",
                        self._pace.time_left(),
                    )
                else:
                    self._finished_before += 1
            case CellFailed(_, reason):
                self._remove(place)
                self._say(f"{self._pace.count} {name}: failed: {reason}")
                self.failed.setdefault(reason, []).append(name)

    def ran(self, store: Store) -> bool:
        """Tell whether a cell of the run in this folder was started."""
        return any(folder == store.path for folder, _ in self._started)

    def _remove(self, place: Place) -> None:
        self._pace.end(place)
        self._progress.update(self._all, advance=1, scores=self._pace.time_left())
        if place in self._bars:
            self._progress.remove_task(self._bars.pop(place))

    def _say(self, *parts: str) -> None:
        line = ", ".join(filter(None, parts))
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Pace:
    """How many cells have ended, and how long the others still take at the pace so far."""

    def __init__(self, places: Sequence[Place], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_cells = len(places)
        self._left = {(folder, cell): cell.rounds.maximum for folder, cell in places}
        self._began: float | None = None
        self._rounds = 0

    @property
    def count(self) -> str:
        """The cells that have ended, of all: ``"[3/12]"``."""
        return f"[{self._num_cells - len(self._left)}/{self._num_cells}]"

    def at(self, place: Place, rounds_done: int, *, begun: bool = False) -> None:
        """Note how far a cell is, or where it starts from if it has just ``begun``."""
        if self._began is None:
            self._began = self._clock()
        _, cell = place
        left = cell.rounds.maximum - rounds_done
        if not begun:  # a record may stand for several rounds
            self._rounds += self._left[place] - left
        self._left[place] = left

    def end(self, place: Place) -> None:
        self._left.pop(place, None)

    def time_left(self) -> str:
        """Return the time left in words; empty before the first round and after the last."""
        left = sum(self._left.values())
        if self._began is None or not self._rounds or not left:
            return ""
        may_stop_early = any(cell.rounds.patience < cell.rounds.maximum for _, cell in self._left)
        seconds = (self._clock() - self._began) / self._rounds * left
        minutes = round(seconds / 60)
        duration = f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
        if seconds < 90:
            duration = f"{seconds:.0f} s"
        return f"{'at most' if may_stop_early else 'about'} {duration} left"


def _folder(path: Path) -> str:
    """Return what tells one run's folder from the others.

    A suite's run lies in PARTITION/CONDITION/seed-S, and the seed is in its cells' names already.
    """
    return "/".join(path.parts[-3:-1]) if path.name.startswith("seed-") else path.name


def holdings_notices(partition: PartitionRecord) -> list[str]:
    """Return a line for each kind of client that holds too little, naming them."""
    held = {each.client: each.train + each.validation + each.test for each in partition.clients}
    empty = [each.client for each in partition.clients if each.train == 0]
    small = [client for client in held if held[client] < SMALL_CLIENT and client not in empty]
    lines = []
    for clients, few in (
        (empty, "no examples and will not take part"),
        (small, f"fewer than {SMALL_CLIENT} examples"),
    ):
        if clients:
            hold = "client {} holds" if len(clients) == 1 else "clients {} hold"
            lines.append(f"seed {partition.seed}: {hold.format(listed(clients))} {few}")
    return lines


def partition_table(partition: PartitionRecord, title: str) -> Table:
    """Return what each client holds as a table."""
    rows = []
    for each in partition.clients:
        held = sorted(
            ((count, name) for name, count in zip(partition.class_names, each.labels, strict=True)
             if count),
            reverse=True,
        )  # fmt: skip
        shown = ", ".join(f"{name}: {count}" for count, name in held[:6])
        more = f", {len(held) - 6} more" if len(held) > 6 else ""
        rows.append(
            (str(each.client), str(each.train), str(each.validation), str(each.test), shown + more)
        )
    return Table(title, ("client", "train", "validation", "test", "labels (train)"), tuple(rows))


def counts_table(partition: PartitionRecord) -> Table:
    """Return what each client holds, a column a label."""
    header = ("client", "train", "validation", "test", *partition.class_names)
    rows = [
        (each.client, each.train, each.validation, each.test, *each.labels)
        for each in partition.clients
    ]
    return Table("", header, tuple(tuple(map(str, row)) for row in rows))
