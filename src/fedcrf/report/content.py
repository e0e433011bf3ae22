"""What a report shows, as plain values for the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcrf.crf.potentials import SCORE_TERMS
from fedcrf.experiments.analysis.tables import Table
from fedcrf.experiments.store import PartitionRecord
from fedcrf.report.effects import Effects, Scale
from fedcrf.report.explanation import WORDS
from fedcrf.report.headline import Headline
from fedcrf.report.verdict import Verdict
from fedcrf.simulation.task import ACCURACY

Series = Sequence[float]

LOSS = "loss"


@dataclass(frozen=True)
class Curve:
    """A method's course over rounds: mean over its seeds, and the standard deviation around it.

    The deviation of a single seed is NaN.
    """

    name: str
    seeds: int
    rounds: Sequence[int]
    mean: Series
    sd: Series


@dataclass(frozen=True)
class Measured:
    """What was measured on the validation parts: accuracy, loss, or a metric of the user's."""

    name: str
    curves: Sequence[Curve]


@dataclass(frozen=True)
class RoundTrust:
    """Who was trusted in one round; the lists run over ``clients``.

    ``nodes`` are the ids that the clients have in another framework, as text, since not every
    whole number is one in the page's language; ``excluded_nodes`` says why others of its nodes have
    no part in the round. ``attackers`` attacked in it, ``stayed`` says why the model stayed as it
    was. ``overflowed`` are those of the excluded whose updates are finite, but too large to be
    squared. ``causes`` say why they got their weights, if the record does. What is not finite is
    ``null`` in the page.
    """

    round: int
    clients: Sequence[int | str]
    nodes: Sequence[str] | None
    examples: Sequence[float]
    weight: Series
    base_weight: Series
    excluded: Sequence[int | str]
    overflowed: Sequence[int | str]
    excluded_nodes: Sequence[str]
    stayed: str | None
    attackers: Sequence[int | str]
    causes: Effects | None
    verdicts: Sequence[Verdict]


@dataclass(frozen=True)
class CellTrust:
    """Who was trusted in the rounds of one cell, and who attacks in it."""

    method: str
    seed: int
    rounds: Sequence[RoundTrust]
    attackers: Sequence[int | str]
    scales: Mapping[str, Scale]


@dataclass(frozen=True)
class Charts:
    """What the page draws of one run."""

    name: str
    measured: Sequence[Measured]
    holdings: Sequence[PartitionRecord]
    cells: Sequence[CellTrust]


@dataclass(frozen=True)
class Drawn:
    """What the page's program gets: the charts of every run, and the words for a weight.

    Attributes:
        runs: By run.
        measured: Names of what was measured in any of them; each has a figure.
        words: The words about a client's weight.
        terms: What each cause counts in the score of the reliability.
    """

    runs: Sequence[Charts]
    measured: Sequence[str]
    words: Mapping[str, Any]
    terms: Mapping[str, float]


@dataclass(frozen=True)
class RunContent:
    """What is shown of one run.

    Attributes:
        name: Of its folder.
        title: What it is about, in one line.
        headline: What happened.
        facts: What was run, as terms and what stands behind them.
        notices: What is not as it should be, a line each.
        results: What came of it; without a row where nothing is finished.
        details: What stands behind the results; None where that is not known.
        damaged: Whether files of it are damaged or do not belong to it.
        description: The resolved run file.
        charts: What is drawn.
    """

    name: str
    title: str
    headline: Headline
    facts: Sequence[tuple[str, str]]
    notices: Sequence[str]
    results: Table
    details: Table | None
    damaged: bool
    description: str
    charts: Charts

    @property
    def curves(self) -> list[Table]:
        """What was measured over the rounds, in numbers."""
        return [_curves_table(each) for each in self.charts.measured]


@dataclass(frozen=True)
class Report:
    """What a report shows.

    Attributes:
        title: What it is about.
        notices: What could not be read at all, a line each.
        comparison: The runs beside each other; None of one run.
        runs: Those that could be read.
    """

    title: str
    notices: Sequence[str]
    comparison: Table | None
    runs: Sequence[RunContent]

    def all_notices(self) -> list[str]:
        """Return what could not be read, and of each run what is not as it should be."""
        of_runs = [f"{run.name}: {line}" for run in self.runs for line in run.notices]
        return [*self.notices, *of_runs]

    @property
    def has_results(self) -> bool:
        """Whether a cell of a run is finished. Runs that a framework carried out have no cells."""
        return any(run.results.rows and run.details for run in self.runs)

    @property
    def measured(self) -> list[str]:
        """Names of what was measured in any run, each once; a regression has no accuracy."""
        return list(dict.fromkeys(each.name for run in self.runs for each in run.charts.measured))

    @property
    def over_seeds(self) -> bool:
        """Whether a curve is a mean over several seeds."""
        measured = (each for run in self.runs for each in run.charts.measured)
        return any(curve.seeds > 1 for each in measured for curve in each.curves)

    @property
    def has_cells(self) -> bool:
        """Whether the page has room for who was trusted in a cell."""
        return any(run.charts.cells for run in self.runs)

    @property
    def has_holdings(self) -> bool:
        """Whether it is known what the clients of a run hold."""
        return any(run.charts.holdings for run in self.runs)

    @property
    def damaged(self) -> bool:
        """Whether a run could not be read, or files of one are damaged."""
        return bool(self.notices) or any(run.damaged for run in self.runs)

    @property
    def drawn(self) -> Drawn:
        """What the page's program draws and says."""
        return Drawn([run.charts for run in self.runs], self.measured, WORDS, SCORE_TERMS)


def _curves_table(measured: Measured) -> Table:
    """Return a few rounds of the curves in numbers; a run that has stopped keeps its best."""
    curves = measured.curves
    length = max(len(curve.mean) for curve in curves)
    rounds = [number for number in (1, 2, 5, 10, 20, 50, 100) if number < length] + [length]
    form = ".3f" if measured.name in (ACCURACY, LOSS) else ".4g"
    rows = []
    for curve in curves:
        values = [curve.mean[min(number, len(curve.mean)) - 1] for number in rounds]
        texts = (f"{value:{form}}" if math.isfinite(value) else "–" for value in values)
        rows.append((curve.name, *texts))
    named = max((curve.rounds for curve in curves), key=len)
    header = ("method", *(f"round {named[number - 1]}" for number in rounds))
    return Table(f"Validation {measured.name} over the rounds", header, tuple(rows))
