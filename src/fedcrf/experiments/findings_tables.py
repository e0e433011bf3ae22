"""What a suite shows, written: tables and a heat map for each of its partitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedcrf.experiments.compare import Estimate
from fedcrf.experiments.figures import heat_map_figure, save
from fedcrf.experiments.findings import Findings
from fedcrf.experiments.methods import method_title
from fedcrf.experiments.suite import BASELINE
from fedcrf.experiments.tables import Table, difference_text
from fedcrf.files import write_text

NOT_RUN = "–"


def _place(findings: Findings, partition: str) -> str:
    suite = findings.suite
    return f"{suite.dataset}, {partition}, {suite.numbers}"


def overview_table(findings: Findings) -> Table:
    """Return a row a method: nobody wrong, and the worst case of the first group, by partition.

    The first row is what leaving out the wrong clients gives, where the suite asks for that.
    """
    suite = findings.suite
    title = f"{suite.title}: {suite.dataset}, {suite.numbers}"
    if not findings.groups:
        return Table(title, ("method",), ())
    group, names = next(iter(findings.groups.items()))

    def cell(partition: str, worst: float | None, method: str) -> str:
        quiet = findings.estimate(partition, suite.reference, method)
        return f"{_mean_text(quiet)} / {NOT_RUN if worst is None else format(worst, '.3f')}"

    def ideal(partition: str) -> float | None:
        means = [_ideal(findings, partition, name) for name in names]
        known = [each.mean for each in means if each is not None]
        return min(known) if len(known) == len(means) else None

    def worst(partition: str, method: str) -> float | None:
        found = findings.worst(partition, names, method)
        return None if found is None else found[0]

    ideals = {partition: ideal(partition) for partition in suite.partitions}
    rows = [
        (method_title(method), *(cell(p, worst(p, method), method) for p in suite.partitions))
        for method in suite.methods
    ]
    if any(each is not None for each in ideals.values()):
        rows.insert(0, ("left out", *(cell(p, each, BASELINE) for p, each in ideals.items())))
    header = ("method", *(f"{p}: none / worst of {group}" for p in suite.partitions))
    return Table(title, header, tuple(rows))


def summary_table(findings: Findings, partition: str) -> Table:
    """Return a row a method: nobody wrong, what that costs, and the worst case of each group."""
    suite = findings.suite
    rows = []
    for method in suite.methods:
        quiet = findings.estimate(partition, suite.reference, method)
        worst = [findings.worst(partition, names, method) for names in findings.groups.values()]
        rows.append(
            (
                method_title(method),
                "0" if quiet is None else str(quiet.seeds),
                _mean_text(quiet),
                difference_text(findings.difference(partition, suite.reference, method)),
                *(
                    NOT_RUN
                    if found is None
                    else f"{found[0]:.3f} ({suite.conditions[found[1]].title})"
                    for found in worst
                ),
            )
        )
    header = (
        "method",
        "n",
        "none",
        "Δ to FedAvg [95 %]",
        *(f"worst: {t}" for t in findings.groups),
    )
    return Table(f"{suite.title}: {_place(findings, partition)}", header, tuple(rows))


def accuracy_table(findings: Findings, partition: str) -> Table:
    """Return every method under every condition: mean accuracies."""
    suite, seeds = findings.suite, len(findings.suite.seeds)
    rows = [
        (
            suite.conditions[condition].title,
            _mean_text(_ideal(findings, partition, condition), seeds),
            *(_mean_text(findings.estimate(partition, condition, m), seeds) for m in suite.methods),
        )
        for condition in findings.tested
    ]
    header = ("condition", "left out", *map(method_title, suite.methods))
    return Table(f"{_place(findings, partition)}: mean accuracy", header, tuple(rows))


def difference_table(findings: Findings, partition: str) -> Table:
    """Return every method's paired difference to FedAvg under every condition."""
    suite = findings.suite
    others = [method for method in suite.methods if method != BASELINE]
    rows = [
        (
            suite.conditions[condition].title,
            difference_text(findings.possible(partition, condition)),
            *(difference_text(findings.difference(partition, condition, m)) for m in others),
        )
        for condition in findings.tested
    ]
    header = ("condition", "left out", *map(method_title, others))
    return Table(f"{_place(findings, partition)}: Δ to FedAvg [95 %]", header, tuple(rows))


def separation_table(findings: Findings, partition: str) -> Table:
    """Return how well the weights tell who is wrong; methods that infer weights only."""
    suite = findings.suite
    found = {
        (condition, method): findings.separation(partition, condition, method)
        for condition in findings.tested
        for method in suite.methods
    }
    inferring = [m for m in suite.methods if any(found[c, m] for c in findings.tested)]
    rows = []
    for condition in findings.tested:
        areas = [found[condition, method] for method in inferring]
        if any(areas):
            texts = (
                NOT_RUN if each is None else f"{each[0]:.2f} ({each[1]:.2f})" for each in areas
            )
            rows.append((suite.conditions[condition].title, *texts))
    title = f"{_place(findings, partition)}: area under the curve, mean (least) over rounds"
    return Table(title, ("condition", *map(method_title, inferring)), tuple(rows))


def write_findings(findings: Findings, folder: Path) -> list[Path]:
    """Write the tables as Markdown and CSV, and a heat map for each partition."""
    suite = findings.suite
    texts = [f"# {suite.title}: {suite.dataset}\n", _made_with(findings)]
    overview = overview_table(findings)
    if len(suite.partitions) > 1 and overview.rows:
        texts.append(overview.as_markdown())
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for partition in suite.partitions:
        texts.append(f"## {partition}\n")
        accuracies = accuracy_table(findings, partition)
        tables = (
            summary_table(findings, partition),
            accuracies,
            difference_table(findings, partition),
            separation_table(findings, partition),
        )
        texts += [f"{each.title}\n\n{each.as_markdown()}" for each in tables if each.rows]
        paths.append(folder / f"accuracy-{partition}.csv")
        write_text(paths[-1], accuracies.as_csv())
        paths += save(heat_map(findings, partition), folder / f"heat-map-{partition}")
    paths.append(folder / "tables.md")
    write_text(paths[-1], "\n".join(texts))
    return paths


def heat_map(findings: Findings, partition: str) -> Figure:
    """Draw mean accuracies and worst cases; of methods and conditions, the more go downwards."""
    suite = findings.suite
    groups = findings.groups

    def means(condition: str) -> list[float]:
        found = [findings.estimate(partition, condition, method) for method in suite.methods]
        return [math.nan if each is None else each.mean for each in found]

    def worst(conditions: Sequence[str]) -> list[float]:
        found = [findings.worst(partition, conditions, method) for method in suite.methods]
        return [math.nan if each is None else each[0] for each in found]

    conditions = [suite.conditions[name].title for name in findings.tested]
    conditions += [f"worst: {title}" for title in groups]
    methods = [method_title(method) for method in suite.methods]
    values = [*map(means, findings.tested), *map(worst, groups.values())]
    across, down = methods, conditions
    if len(across) > len(down):
        across, down, values = down, across, np.transpose(values).tolist()
    return heat_map_figure(
        values,
        rows=("", down),
        columns=("", across),
        title=f"{suite.title}: mean test accuracy\n{_place(findings, partition)}",
        marked=None,
    )


def _made_with(findings: Findings) -> str:
    provenances = [score.provenance for score in findings.by_point.values()]
    commits = sorted({each.commit or "–" for each in provenances})
    machines = sorted({f"{each.processor}, torch {each.torch}" for each in provenances})
    made = f" {'; '.join(machines)}; commit {', '.join(commits)}." if provenances else ""
    return (
        f"{len(provenances)} of {len(findings.suite.cells)} cells; mean test accuracy of the last "
        f"{findings.suite.last_rounds} rounds on the examples of clients that are right; n seeds."
        f"{made}\n"
    )


def _ideal(findings: Findings, partition: str, condition: str) -> Estimate | None:
    ideal = findings.suite.conditions[condition].ideal
    return None if ideal is None else findings.estimate(partition, ideal, BASELINE)


def _mean_text(found: Estimate | None, seeds: int = 0) -> str:
    """Return a mean; with the number of its seeds where there are not so many."""
    if found is None:
        return NOT_RUN
    return f"{found.mean:.3f}" + (f" (n = {found.seeds})" if found.seeds < seeds else "")
