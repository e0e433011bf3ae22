"""The finished cells of a suite on disk: a line each, what they were, and their rounds, packed.

::

    SUITE/cells.jsonl           the score of each cell, a line each
          descriptions.json     what the cells were, once for all seeds
          rounds/               their rounds, as `fedcrf.experiments.archive` packs them
          runs/                 working folders of cells that are not finished
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from fedcrf.errors import FedcrfError
from fedcrf.experiments.archive import SUFFIX, add, conditions
from fedcrf.experiments.behaviour import changes
from fedcrf.experiments.cell import CellSpec
from fedcrf.experiments.provenance import Provenance
from fedcrf.experiments.spec import cell_of
from fedcrf.experiments.store import RunStore, check_folder, check_free, folder_lock, make_folder
from fedcrf.experiments.suite import Point
from fedcrf.files import append_line, atomic_write, whole_lines, write_text
from fedcrf.simulation.records import Number, Record


class Score(Record):
    """The result of one cell of a suite.

    ``accuracy`` is the mean test accuracy of the last rounds, of so many as ``last_rounds`` says.
    ``everyone`` and ``worst_client`` are, over the same rounds, the accuracy over all clients, the
    attackers and all that they hold included, and that of the client with the lowest; None of a
    line that does not say it.
    ``separation`` has for each round in which clients were wrong the chance that one of them has a
    smaller share of its FedAvg weight than one that is right, the area under the curve; None where
    the rule infers no weights. ``behaviour`` has by part the behaviour numbers that are not 1.
    ``description`` is the name under which the folder keeps what the cell was, but for its seed;
    ``fingerprint`` is of its data.
    """

    partition: str
    condition: str
    method: str
    seed: Annotated[int, Field(ge=0)]
    accuracy: Annotated[float, Field(ge=0.0, le=1.0)]
    everyone: float | None = None
    worst_client: float | None = None
    last_rounds: int = 5  # of a line that does not say it
    separation: list[Number] | None = None
    description: str
    behaviour: dict[str, int] | None = None
    fingerprint: str
    provenance: Provenance

    @property
    def point(self) -> Point:
        """The cell of the suite's grid that it is of."""
        return Point(self.partition, self.condition, self.method, self.seed)


@dataclass(frozen=True)
class Ledger:
    """A folder's finished cells, and the working folders of those to come.

    Attributes:
        path: The folder.
    """

    path: Path

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder for writing.

        Raises:
            FedcrfError: Another process holds it, it cannot be a folder, or holds something else.
        """
        check_folder(self.path)
        if not self._lines.exists():
            check_free(self.path, self._lines.name, "cells of a suite")
        make_folder(self.path)
        return folder_lock(self.path, timeout=0.5)

    def exists(self) -> bool:
        """Tell whether the folder holds finished cells."""
        return self._lines.is_file()

    def check_begun(self) -> None:
        """Raise a `FedcrfError` where the folder holds no finished cells."""
        check_folder(self.path)
        if not self._lines.exists():
            raise FedcrfError(
                f"results folder {self.path} holds no finished cells: run them, without --no-run, "
                "or choose another with --output"
            )

    def scores(self) -> list[Score]:
        """Return what is finished; a line still being written is left out.

        Raises:
            FedcrfError: A line that is no score, or a file where the folder should be.
        """
        check_folder(self.path)
        try:
            lines = whole_lines(self._lines)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FedcrfError(f"{self._lines} cannot be read: {error}") from None
        scores = []
        for number, line in enumerate(lines, start=1):
            try:
                scores.append(Score.model_validate_json(line))
            except ValidationError:
                raise FedcrfError(
                    f"{self._lines}, line {number}, is not a cell's score: take the line out to "
                    "run that cell anew"
                ) from None
        return scores

    def told(self) -> list[str]:
        """Return how many finished cells there are, which are stale and where rounds are, in lines.

        Raises:
            FedcrfError: The cells or their descriptions are damaged.
        """
        scores = self.scores()
        counts = Counter(self.stale(scores, self.descriptions(scores)))
        stale = [f"{count} cells are stale: {reason}" for reason, count in counts.items() if reason]
        packed = conditions(self.path)
        return [
            f"{self.path} holds {len(scores)} finished cells of a suite; fedcrf robustness makes "
            "its tables, and runs again what is stale",
            *stale,
            f"for the rounds of its cells name a condition, such as {packed[0]}"
            if packed
            else "its cells have kept no rounds; those that are run from now on do",
        ]

    def stale(
        self, scores: Iterable[Score], descriptions: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[str]:
        """Yield for each of the scores why it is stale; empty where it is not."""
        reasons: dict[tuple[str, str, str], str] = {}
        for score in scores:
            kept, device = score.behaviour or {}, score.provenance.device
            key = score.description, str(kept), device
            if key not in reasons:
                reasons[key] = _stale({**descriptions[score.description], "seed": 0}, kept, device)
            yield reasons[key]

    def descriptions(self, scores: Iterable[Score] = ()) -> dict[str, dict[str, Any]]:
        """Return by name what cells were, but for their seeds.

        Args:
            scores: Those whose descriptions must be there.

        Raises:
            FedcrfError: The file is damaged, or lacks what one of the scores is of.
        """
        known = self._known_descriptions()
        names = [score.description for score in scores]
        sound = {name for name in {*names} & known.keys() if name_of(known[name]) == name}
        lacking = [name for name in names if name not in sound]
        if lacking:
            raise FedcrfError(
                f"{self._descriptions} does not describe {len(lacking)} of the finished cells "
                f"('{lacking[0]}'): put the file back, or take their lines out of "
                f"{self._lines.name} to run them anew"
            )
        return known

    def _known_descriptions(self) -> dict[str, dict[str, Any]]:
        damaged = FedcrfError(
            f"{self._descriptions} does not describe cells: move the folder away to begin anew"
        )
        try:
            found = json.loads(self._descriptions.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            raise damaged from None
        if not isinstance(found, dict) or any(
            not isinstance(each, dict) for each in found.values()
        ):
            raise damaged
        return found

    def check_data(self, cell: CellSpec, fingerprint: str, scores: Iterable[Score]) -> None:
        """Check that those scores of this folder that are of a cell's data are of the same images.

        Raises:
            FedcrfError: They are of others, or the folder's descriptions are damaged.
        """
        descriptions, data = self.descriptions(), cell.describe()["data"]
        for score in scores:
            same = descriptions[score.description].get("data") == data
            if same and score.fingerprint != fingerprint:
                raise FedcrfError(
                    f"results folder {self.path} is of other data (fingerprint "
                    f"{score.fingerprint} there, {fingerprint} here): choose another with --output"
                )

    def write(self, scores: Sequence[Score]) -> None:
        """Replace the finished cells by these."""
        with atomic_write(self._lines) as file:
            for score in scores:
                file.write(_line(score))

    def describe(self, cells: Iterable[CellSpec]) -> None:
        """Keep what cells are, before the first of them is finished."""
        known = self.descriptions()
        wanted = {name_of(each): each for each in map(_unseeded, cells)}
        if not wanted.items() <= known.items():
            write_text(self._descriptions, json.dumps(known | wanted, indent=1) + "\n")

    def append(self, score: Score) -> None:
        """Keep one more finished cell, of those described."""
        append_line(self._lines, _line(score))

    def run(self, partition: str, condition: str, seed: int) -> RunStore:
        """Return the working folder of one seed under one condition."""
        return RunStore(self._runs / partition / condition / f"seed-{seed}")

    def rounds(self, partition: str, condition: str) -> Path:
        """Return the folder of the archives of a condition, one a seed."""
        return self.path / "rounds" / partition / condition

    def pack(self, scored: Iterable[Point], same: Iterable[Sequence[Point]] = ()) -> None:
        """Move the rounds of finished cells from their working folders into archives.

        Args:
            scored: Cells that are among the scores; others stay where they are.
            same: Cells that are one cell, which was run in the place of the first.

        Raises:
            FedcrfError: The records of such a cell are damaged.
        """
        scored, places = set(scored), {points[0]: points for points in same}
        for described in sorted(self._runs.glob("*/*/seed-*/run.toml")):
            folder = described.parent
            store, (partition, condition) = RunStore(folder), folder.parts[-3:-1]
            packed: dict[Path, list[CellSpec]] = {}
            for cell in store.read().cells():
                point = Point(partition, condition, cell.method.name, cell.seed)
                if point not in scored or store.cell(cell).summary() is None:
                    continue
                for each in places.get(point, [point]):
                    place = self.rounds(each.partition, each.condition)
                    packed.setdefault(place / f"seed-{cell.seed}{SUFFIX}", []).append(cell)
            for path, cells in packed.items():
                add(path, store, cells)
            for cells in packed.values():
                for cell in cells:
                    shutil.rmtree(store.cell(cell).path, ignore_errors=True)
            if packed and not any((folder / "cells").iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
        for folder in (*self._runs.glob("*/*"), *self._runs.glob("*"), self._runs):
            with suppress(OSError):  # there is a working folder in it
                folder.rmdir()

    @property
    def _descriptions(self) -> Path:
        return self.path / "descriptions.json"

    @property
    def _lines(self) -> Path:
        return self.path / "cells.jsonl"

    @property
    def _runs(self) -> Path:
        return self.path / "runs"


def _stale(description: Mapping[str, Any], kept: Mapping[str, int], device: str) -> str:
    """Return why a cell is stale; empty where it is not, or where there are no such cells now."""
    try:
        return "; ".join(changes(cell_of(description), kept, device))
    except FedcrfError:
        return ""


def _unseeded(cell: CellSpec) -> dict[str, Any]:
    description = cell.describe()
    del description["seed"]
    return description


def digest(cell: CellSpec) -> str:
    """Return the name under which a ledger keeps what a cell is, the same for all its seeds."""
    return name_of(_unseeded(cell))


def name_of(description: Mapping[str, Any]) -> str:
    """Return the name of a description, by which a damaged one is known."""
    text = json.dumps(description, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _line(score: Score) -> bytes:
    return score.model_dump_json(exclude_none=True).encode() + b"\n"
