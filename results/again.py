"""Run samples of published cells again with the code at hand: do they come to the same?

::

    python results/again.py results/robustness/attacks-digits results/crowd > results/again.csv

Of every method under every attack by every commit in a folder one cell is run, the first seed of
the most skewed clients. Of the rules that were still worked on all pairs with attacks are run, of
others only as many as have every method and every attack. A row is a cell; ``accuracy`` is what is
stored, of a suite's cell the mean over its last rounds.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedcrf.data import ImageDataset
from fedcrf.experiments.grid import Job, Workplace, run_cell
from fedcrf.experiments.settings import DataSettings
from fedcrf.experiments.spec import cell_of
from fedcrf.experiments.store import CellStore, CellSummary, Store
from fedcrf.processes import one_thread

COLUMNS = ("folder", "cell", "method", "attack", "commit", "cells", "accuracy", "now", "same")

WORKED_ON = ("crf-robust", "crf-evidence", "crf-robust-evidence")
"""Rules that changed between published cells."""

PLACE = Workplace(device="cpu")


@dataclass(frozen=True)
class Published:
    """A published cell.

    Attributes:
        place: Its partition and condition, or folder, and seed.
        description: As it is stored.
        commit: That made it.
        accuracy: Of its last rounds, or of the round that is reported.
        last_rounds: How many those are; None where a round is reported.
    """

    place: tuple[str, ...]
    description: Mapping[str, Any]
    commit: str
    accuracy: float
    last_rounds: int | None

    @property
    def method(self) -> str:
        """Its method."""
        return str(self.description["method"])

    @property
    def attack(self) -> str:
        """Its attack; a dash where nobody attacks."""
        return str(self.description.get("attack", {}).get("name", "–"))

    def again(self) -> float:
        """Return what the cell comes to today."""
        cell = cell_of(self.description)
        with tempfile.TemporaryDirectory() as folder, one_thread():
            store, data = CellStore(Path(folder)), dataset(cell.data)
            job = Job(cell, store, data.fingerprint, Path(folder))
            run_cell(job, data, PLACE.torch_device(), lambda _: None)
            if self.last_rounds is None:
                summary = store.summary()
                assert summary is not None
                return summary.test_accuracy
            last = store.records()[-self.last_rounds :]
            return float(np.mean([record.test.accuracy for record in last]))


@cache
def dataset(settings: DataSettings) -> ImageDataset:
    """Return a data set, loaded once."""
    return PLACE.load(settings)


def published(folder: Path) -> Iterator[Published]:
    """Yield the cells of a suite's folder, or of a run's and those below."""
    suite = Store(folder)
    scores = suite.scores()
    descriptions = suite.descriptions(scores)
    for score in scores:
        place = (score.partition, score.condition, f"{score.method}-seed-{score.seed}")
        description = {**descriptions[score.description], "seed": score.seed}
        commit = score.provenance.commit or ""
        yield Published(place, description, commit, score.accuracy, score.last_rounds)
    for path in sorted(folder.glob("**/cells/*/summary.json")):
        summary = CellSummary.model_validate_json(path.read_bytes())
        place = path.parent.relative_to(folder).parts
        commit, accuracy = summary.provenance.commit or "", summary.test_accuracy
        yield Published(place, summary.description, commit, accuracy, None)


def samples(cells: Sequence[Published]) -> list[tuple[Published, int]]:
    """Return the cells to run, each with the number of cells that it stands for."""
    groups: dict[tuple[str, str, str], list[Published]] = {}
    for cell in cells:
        groups.setdefault((cell.method, cell.attack, cell.commit), []).append(cell)
    chosen = [group for group in groups if group[0] in WORKED_ON]
    others = [group for group in groups if group[0] not in WORKED_ON]
    lacking = {part for method, attack, commit in others for part in parts(method, attack, commit)}
    while lacking:
        best = max(others, key=lambda group: len(lacking & parts(*group)))
        chosen.append(best)
        lacking -= parts(*best)
    return [(min(groups[group], key=skew_and_seed), len(groups[group])) for group in chosen]


def parts(method: str, attack: str, commit: str) -> set[tuple[str, str, str]]:
    """Return what a cell shows of a commit: its method, and its attack."""
    return {("method", method, commit), ("attack", attack, commit)}


def skew_and_seed(cell: Published) -> tuple[float, int]:
    """Return what cells are chosen by, the least first."""
    partition = cell.description["partition"]
    return partition.get("alpha", float("inf")), cell.description["seed"]


def main(folders: Sequence[str]) -> int:
    """Print a row for every sample; return the exit status."""
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(COLUMNS)
    other = 0
    for name in folders:
        for cell, number in samples(list(published(Path(name)))):
            now = cell.again()
            other += now != cell.accuracy
            place = "/".join(cell.place)
            about = (name, place, cell.method, cell.attack, cell.commit[:8], number)
            rows.writerow((*about, cell.accuracy, now, "yes" if now == cell.accuracy else "no"))
            sys.stdout.flush()
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
