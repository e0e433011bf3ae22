"""The finished cells of a suite: which of them count, and the tables and figures of those."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.conditions import (
    UnderConditions,
    accuracy_table,
    heat_map_grid,
    overview_table,
)
from fedcrf.experiments.analysis.tables import check_not_emptier
from fedcrf.experiments.methods import is_method
from fedcrf.experiments.packed import Ledger, Score
from fedcrf.experiments.provenance import changes
from fedcrf.experiments.spec import CellSpec, cell_of
from fedcrf.experiments.suite import Point, Suite
from fedcrf.files import write_text

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


class _Judged(NamedTuple):
    """A finished cell, why it is not of the suite, and what does something else since it was run.

    None and nothing where it counts.
    """

    score: Score
    why: str | None
    changed: Sequence[str]


@dataclass(frozen=True)
class Findings:
    """What the finished cells of a suite show, of the descriptions it has now.

    Attributes:
        suite: The suite.
        scores: Finished cells, some of which may be of other descriptions, or made by code that did
            something else than today's; they are left out.
        descriptions: By name what they were, but for their seeds.
    """

    suite: Suite
    scores: Sequence[Score]
    descriptions: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, suite: Suite, ledger: Ledger) -> Findings:
        """Return all that a folder holds of a suite, and the cells asked for that it does not hold.

        Scores of methods that there are no longer are left out.

        Raises:
            FedcrfError: The folder's cells or their descriptions are damaged.
        """
        scores = ledger.scores()

        def known(
            asked: Iterable[T], held: Iterable[T], among: Iterable[T] | None = None
        ) -> list[T]:
            names = dict.fromkeys([*asked, *held])
            return [name for name in among or names if name in names]

        whole = suite.whole
        held_methods = dict.fromkeys(
            score.method for score in scores if score.condition not in whole.ideals
        )
        return cls(
            whole.chosen(
                methods=known(suite.methods, filter(is_method, held_methods)),
                seeds=sorted(known(suite.seeds, (score.seed for score in scores))),
                partitions=known(
                    suite.partitions, (score.partition for score in scores), whole.partitions
                ),
                conditions=known(
                    suite.conditions, (score.condition for score in scores), whole.conditions
                ),
            ),
            scores,
            ledger.descriptions(scores),
        )

    @cached_property
    def by_point(self) -> Mapping[Point, Score]:
        """The finished cells; settings that are new since they were run have their defaults."""
        return {j.score.point: j.score for j in self._judged if j.why is None and not j.changed}

    @cached_property
    def stale(self) -> Mapping[Point, str]:
        """Cells that are only there as other code made them, and what has changed since."""
        return {
            judged.score.point: "; ".join(judged.changed)
            for judged in self._judged
            if judged.changed and judged.score.point not in self.by_point
        }

    @property
    def remarks(self) -> list[str]:
        """A line for every reason why cells are stale, with their number."""
        return [
            f"{count} cells are stale and left out: {reason}; the suite's command runs them again"
            for reason, count in Counter(self.stale.values()).items()
        ]

    @property
    def lasting(self) -> list[Score]:
        """The finished cells, but for stale ones that have been run again."""
        return [
            judged.score
            for judged in self._judged
            if not judged.changed or judged.score.point in self.stale
        ]

    @property
    def others(self) -> list[str]:
        """A line for every reason why finished cells are not of this suite, with their number."""
        reasons = Counter(judged.why for judged in self._judged if judged.why is not None)
        return [
            f"left out, not of this suite: {count} finished cells{why}"
            for why, count in reasons.items()
        ]

    @cached_property
    def _judged(self) -> Sequence[_Judged]:
        """The finished cells, and why those that do not count do not."""
        cells, rounds = self.suite.cells, self.suite.last_rounds
        settings: dict[tuple[str, str], str | None] = {}
        judged = []
        for score in self.scores:
            point = score.point
            place = f"{point.partition}/{point.condition}/{point.method}"
            changed: Sequence[str] = ()
            if point not in cells:
                why: str | None = f" of {place}"
            elif score.last_rounds != rounds:
                why = f", means of the last {score.last_rounds} rounds, not of {rounds}"
            else:
                key = score.description, place
                if key not in settings:
                    description = {**self.descriptions[score.description], "seed": point.seed}
                    settings[key] = _other_settings(description, cells[point])
                why = settings[key]
                if why is None:
                    kept, device = score.behaviour or {}, score.provenance.device
                    changed = changes(cells[point], kept, device)
            judged.append(_Judged(score, why, changed))
        return judged

    @property
    def cells(self) -> pd.DataFrame:
        """The finished cells as a table; see `fedcrf.experiments.table`."""
        from fedcrf.experiments.table import frame

        columns = {"method", "seed", "partition", "condition", "accuracy"}
        columns |= {"everyone", "worst_client", "separation"}
        rows = []
        for score in self.by_point.values():
            row = score.model_dump(include=columns, exclude_none=True)
            everyone = row.pop("everyone", math.nan)
            rows.append({**row, "everyone_accuracy": everyone, "complete": True})
        return frame(rows)

    @cached_property
    def results(self) -> UnderConditions:
        """What they show."""
        return UnderConditions(self.suite, self.cells)

    @property
    def made_with(self) -> str:
        """How many cells there are, by which machines and commits, in a line."""
        provenances = [score.provenance for score in self.by_point.values()]
        commits = sorted({commit or "–" for each in provenances for commit in each.every_commit})
        machines = sorted({f"{each.processor}, torch {each.torch}" for each in provenances})
        made = f" {'; '.join(machines)}; commit {', '.join(commits)}." if provenances else ""
        return (
            f"{len(provenances)} of {len(self.suite.cells)} cells; mean test accuracy of the last "
            f"{self.suite.last_rounds} rounds on the examples of clients that are right; n seeds."
            f"{made}{''.join(f' {line}.' for line in self.remarks)}\n"
        )


def write_findings(findings: Findings, folder: Path) -> list[Path]:
    """Write the tables as Markdown and CSV, and a heat map for each partition.

    Raises:
        FedcrfError: The folder's tables show more, and nothing is stale; nothing is written.
    """
    from fedcrf.experiments.analysis.figures import heat_map_figure, save

    suite, results = findings.suite, findings.results
    texts = [f"# {suite.title}: {suite.dataset}\n", findings.made_with]
    overview = overview_table(results)
    if len(suite.partitions) > 1 and overview.rows:
        texts.append(overview.as_markdown())
    for partition in suite.partitions:
        texts.append(f"## {partition}\n")
        texts += [f"{each.title}\n\n{each.as_markdown()}" for each in results.tables(partition)]
    page = "\n".join(texts)
    check_not_emptier(folder / "tables.md", page, bool(findings.stale))
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for partition in suite.partitions:
        paths.append(folder / f"accuracy-{partition}.csv")
        write_text(paths[-1], accuracy_table(results, partition).as_csv())
        title = f"{suite.title}: mean test accuracy\n{results.place(partition)}"
        figure = heat_map_figure(heat_map_grid(results, partition), title)
        paths += save(figure, folder / f"heat-map-{partition}")
    paths.append(folder / "tables.md")
    write_text(paths[-1], page)
    return paths


def _other_settings(description: Mapping[str, Any], cell: CellSpec) -> str | None:
    """Return how a description differs from a cell; None where it is that of the cell."""
    try:
        there = cell_of(description)
    except FedcrfError as error:
        return f" of settings that there are no longer ({error})"
    if there == cell:
        return None
    theirs, ours = (dict(_flat(each.describe())) for each in (there, cell))
    differences = [
        f"{key} is {theirs.get(key, 'not set')}, not {ours.get(key, 'not set')}"
        for key in dict.fromkeys([*ours, *theirs])
        if theirs.get(key) != ours.get(key)
    ]
    return f" of other settings ({'; '.join(differences)})"


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested sections by dotted name."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
