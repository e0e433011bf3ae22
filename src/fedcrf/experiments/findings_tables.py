"""What a suite shows, written: tables and a heat map for each of its partitions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from fedcrf.experiments.compare import Estimate, PairedDifference, WorstCase
from fedcrf.experiments.figures import heat_map_figure, save
from fedcrf.experiments.findings import Findings
from fedcrf.experiments.methods import method_title
from fedcrf.experiments.suite import BASELINE
from fedcrf.experiments.tables import (
    Table,
    check_not_emptier,
    difference_text,
    interval_text,
)
from fedcrf.files import write_text

NOT_RUN = "–"

EVERYONE: Mapping[Literal["everyone", "worst_client"], str] = {
    "everyone": "none: all clients",
    "worst_client": "none: worst client",
}
"""What cells say of all clients, attackers included, by how it is called where nobody attacks."""


def _place(findings: Findings, partition: str) -> str:
    suite = findings.suite
    return f"{suite.dataset}, {partition}, {suite.numbers}"


def oracle_title(oracle: str) -> str:
    """Return how tables call an oracle, a method that is run without the wrong clients."""
    title = "oracle (attackers removed)"
    return title if oracle == BASELINE else f"{title}, {method_title(oracle)}"


def overview_table(findings: Findings) -> Table:
    """Return a row a method: nobody wrong, and the worst case of the first group, by partition.

    Both are over the same seeds. The first rows are the oracles', where the suite asks for them.
    """
    suite = findings.suite
    title = f"{suite.title}: {suite.dataset}, {suite.numbers}"
    if not findings.groups:
        return Table(title, ("method",), ())
    group, names = next(iter(findings.groups.items()))
    removed = [ideal for name in names if (ideal := suite.conditions[name].ideal)]
    oracles = suite.oracles if len(removed) == len(names) else ()

    def cell(partition: str, conditions: Sequence[str], method: str) -> str:
        found = findings.worst(partition, conditions, method)
        if found is None:
            alone = findings.estimate(partition, suite.reference, method)
            return f"{_mean_text(alone, len(suite.seeds))} / {NOT_RUN}"
        seeds = findings.shared_seeds(partition, conditions, method)
        quiet = findings.estimate(partition, suite.reference, method, seeds)
        worst = f"{found.mean:.3f} {interval_text(found)}{_fewer(found, len(suite.seeds))}"
        return f"{_mean_text(quiet)} / {worst}"

    asked = [
        (oracle_title(oracle), removed, oracle)
        for oracle in oracles
        if any(findings.worst(p, removed, oracle) for p in suite.partitions)
    ]
    asked += [(method_title(method), names, method) for method in suite.methods]
    rows = [
        (row, *(cell(partition, conditions, method) for partition in suite.partitions))
        for row, conditions, method in asked
    ]
    header = ("method", *(f"{p}: none / worst of {group} [95 %]" for p in suite.partitions))
    return Table(title, header, tuple(rows))


def summary_table(findings: Findings, partition: str) -> Table:
    """Return a row a method: nobody wrong, what that costs, and the worst case of each group.

    Where nobody is wrong it has beside the accuracy over those who are right under every condition
    that over all clients, and the worst client's; folders of old do not say them. n is the number
    of seeds where nobody is wrong; a worst case over others says over how many.
    """
    suite = findings.suite

    def worst(names: Sequence[str], method: str, seeds: int) -> str:
        found = findings.worst(partition, names, method)
        if found is None:
            return NOT_RUN
        which = suite.conditions[names[found.condition]].title
        said = which if found.seeds == seeds else f"{which}, n = {found.seeds}"
        return f"{found.mean:.3f} {interval_text(found)} ({said})"

    of_all = {
        (name, method): findings.over_everyone(name, partition, suite.reference, method)
        for name in EVERYONE
        for method in suite.methods
    }
    told = EVERYONE if any(of_all.values()) else {}
    rows = []
    for method in suite.methods:
        quiet = findings.estimate(partition, suite.reference, method)
        n = 0 if quiet is None else quiet.seeds
        rows.append(
            (
                method_title(method),
                str(n),
                _mean_text(quiet),
                *(_mean_text(of_all[name, method], n) for name in told),
                _difference_text(findings.difference(partition, suite.reference, method), n),
                *(worst(names, method, n) for names in findings.groups.values()),
            )
        )
    header = (
        "method",
        "n",
        "none",
        *told.values(),
        "Δ to FedAvg [95 %]",
        *(f"worst: {t} [95 %]" for t in findings.groups),
    )
    return Table(f"{suite.title}: {_place(findings, partition)}", header, tuple(rows))


def accuracy_table(findings: Findings, partition: str) -> Table:
    """Return every method and the oracles under every condition: mean accuracies."""
    suite, seeds = findings.suite, len(findings.suite.seeds)

    def mean(condition: str | None, method: str) -> str:
        found = condition and findings.estimate(partition, condition, method)
        return _mean_text(found or None, seeds)

    rows = [
        (
            suite.conditions[condition].title,
            *(mean(suite.conditions[condition].ideal, oracle) for oracle in suite.oracles),
            *(mean(condition, method) for method in suite.methods),
        )
        for condition in findings.tested
    ]
    header = ("condition", *map(oracle_title, suite.oracles), *map(method_title, suite.methods))
    return Table(f"{_place(findings, partition)}: mean accuracy", header, tuple(rows))


def difference_table(findings: Findings, partition: str) -> Table:
    """Return every method's and the oracles' paired differences to FedAvg under every condition."""
    suite, seeds = findings.suite, len(findings.suite.seeds)
    others = [method for method in suite.methods if method != BASELINE]
    rows = []
    for condition in findings.tested:
        possible = [findings.possible(partition, condition, oracle) for oracle in suite.oracles]
        found = [findings.difference(partition, condition, method) for method in others]
        texts = (_difference_text(each, seeds) for each in (*possible, *found))
        rows.append((suite.conditions[condition].title, *texts))
    header = ("condition", *map(oracle_title, suite.oracles), *map(method_title, others))
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
    """Write the tables as Markdown and CSV, and a heat map for each partition.

    Raises:
        FedcrfError: The folder's tables show more, and nothing is stale; nothing is written.
    """
    suite = findings.suite
    texts = [f"# {suite.title}: {suite.dataset}\n", _made_with(findings)]
    overview = overview_table(findings)
    if len(suite.partitions) > 1 and overview.rows:
        texts.append(overview.as_markdown())
    sheets = {}
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
        sheets[partition] = accuracies.as_csv()
    page = "\n".join(texts)
    check_not_emptier(folder / "tables.md", page, bool(findings.stale))
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for partition, sheet in sheets.items():
        paths.append(folder / f"accuracy-{partition}.csv")
        write_text(paths[-1], sheet)
        paths += save(heat_map(findings, partition), folder / f"heat-map-{partition}")
    paths.append(folder / "tables.md")
    write_text(paths[-1], page)
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
        return [math.nan if each is None else each.mean for each in found]

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
    commits = sorted({commit or "–" for each in provenances for commit in each.every_commit})
    machines = sorted({f"{each.processor}, torch {each.torch}" for each in provenances})
    made = f" {'; '.join(machines)}; commit {', '.join(commits)}." if provenances else ""
    return (
        f"{len(provenances)} of {len(findings.suite.cells)} cells; mean test accuracy of the last "
        f"{findings.suite.last_rounds} rounds on the examples of clients that are right; n seeds."
        f"{made}{''.join(f' {line}.' for line in findings.remarks)}\n"
    )


def _mean_text(found: Estimate | None, seeds: int = 0) -> str:
    """Return a mean; with the number of its seeds where there are not so many."""
    return NOT_RUN if found is None else f"{found.mean:.3f}{_fewer(found, seeds)}"


def _difference_text(found: PairedDifference | None, seeds: int) -> str:
    """Return a paired difference; with the number of its seeds where there are not so many."""
    return NOT_RUN if found is None else f"{difference_text(found)}{_fewer(found, seeds)}"


def _fewer(found: Estimate | PairedDifference | WorstCase, seeds: int) -> str:
    return f" (n = {found.seeds})" if found.seeds < seeds else ""
