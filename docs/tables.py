"""Writes the tables and figures that README.md and the pages show, between markers, from results/.

Usage: python docs/tables.py
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import byzfl_loop, report  # noqa: E402
from docs.ranks import means, rank_tables  # noqa: E402
from examples.frameworks import OWN, runs_of  # noqa: E402
from examples.least_weights import least_weights  # noqa: E402

from fedcrf.errors import cut, listed  # noqa: E402
from fedcrf.experiments.analysis.conditions import Place, groups_of  # noqa: E402
from fedcrf.experiments.analysis.figures import heat_map_figure, save  # noqa: E402
from fedcrf.experiments.analysis.paper import (  # noqa: E402
    PAIRS,
    PUBLISHED,
    Column,
    chosen_columns,
    claims_table,
    column_table,
    paper_study,
)
from fedcrf.experiments.analysis.tables import (  # noqa: E402
    NO_NUMBER,
    Estimate,
    Table,
    difference_text,
    estimate,
    estimate_text,
    method_difference,
    method_rows,
    of_method,
    paired_difference,
    tables_in,
)
from fedcrf.experiments.results import held, read_results, suite_cells  # noqa: E402
from fedcrf.experiments.results import table as table_of  # noqa: E402
from fedcrf.experiments.settings import averaging_method, method_title  # noqa: E402
from fedcrf.experiments.store import Store  # noqa: E402
from fedcrf.experiments.study import PROTOCOLS as PROTOCOL_NAMES  # noqa: E402
from fedcrf.experiments.study import read_suite  # noqa: E402
from fedcrf.files import write_text  # noqa: E402

RESULTS = ROOT / "results"
PAPER = RESULTS / "paper"
LIMITS = RESULTS / "limits"
ROBUSTNESS = RESULTS / "robustness"
IMAGES = ROOT / "docs" / "images"
SUITES = {
    "MNIST": "attacks-mnist",
    "MNIST, 6,000 images": "attacks-mnist-6000",
    "digits": "attacks-digits",
}
"""By title the folders of the published suites under attack."""

PARTITIONS = {"iid": "IID", "alpha-0.5": "skewed, α = 0.5", "alpha-0.1": "very skewed, α = 0.1"}
CLASSICAL = (
    "coordinate-median", "trimmed-mean", "geometric-median", "rfa", "krum", "multi-krum",
)  # fmt: skip
"""The rules of others, beside FedAvg, of which the best is shown."""


@cache
def results_of(folder: Path) -> pd.DataFrame:
    """Return the cells of a folder, which several blocks show."""
    return table_of(folder)


def published(folder: str) -> Iterator[Table]:
    """Yield the tables of a published suite."""
    page = ROBUSTNESS / folder / "tables.md"
    return tables_in(page.read_text(encoding="utf-8"))


def overview(folder: str) -> Table:
    """Return a suite's first table: by rule nobody wrong / worst of the first group."""
    return next(published(folder))


def worst(cell: str) -> float:
    """Return the worst case of a cell such as ``0.968 / 0.065 [0.044, 0.084]``; −1 if not run."""
    found = re.search(r"/ ([\d.]+)", cell)
    return float(found[1]) if found else -1.0


def headline() -> str:
    """Return FedAvg, the best of the other rules and ours, on every published data set."""
    rows = []
    for dataset, folder in SUITES.items():
        table = overview(folder)
        rules = {row[0]: row for row in table.rows}
        for at, column in enumerate(table.header[1:], start=1):
            partition = column.partition(":")[0]
            cells = {rule: row[at] for rule, row in rules.items()}
            best = max(map(method_title, CLASSICAL), key=lambda rule: worst(cells[rule]))
            fedavg, ours = (cells[method_title(name)] for name in ("fedavg", "crf-robust"))
            place = f"{dataset}, {PARTITIONS[partition]}"
            rows.append((place, fedavg, f"{cells[best]} ({best})", ours))
    header = ("nobody attacks / worst of 13 [95 %]", "FedAvg", "best other rule", "crf-robust")
    return Table("", header, tuple(rows)).as_markdown()


EIGHT = ("fedavg", *CLASSICAL, "crf-fedavg")
GROUPS = {
    "worst of thirteen attacks": "13 attacks",
    "hidden colluders": "hidden colluders",
    "other conditions": "others",
    "adaptive attackers": "adaptive attackers",
    "counts that lengths support": "supported claims",
    "drift to a near goal": "near goals",
}
"""By title the groups of the suite of attacks."""


def summaries(folder: str) -> list[Table]:
    """Return a suite's tables of what nobody wrong costs and of worst cases, by partition."""
    return [table for table in published(folder) if table.header[:2] == ("method", "n")]


def by_partition(folder: str, column: str, methods: Sequence[str]) -> str:
    """Return the best of some methods in a column of a suite, by partition."""
    shown = []
    for table in summaries(folder):
        places = [at for at, name in enumerate(table.header) if name.partition(" [")[0] == column]
        wanted = set(map(method_title, methods))
        cells = [row[at] for row in table.rows if row[0] in wanted for at in places]
        known = [cell.split()[0] for cell in cells if cell != NO_NUMBER]
        shown.append(max(known, key=float).removeprefix("0") if known else NO_NUMBER)
    return " / ".join(shown) if set(shown) != {NO_NUMBER} else NO_NUMBER


def home() -> str:
    """Return the worst cases of each group of attacks, ours and the best of eight others'."""
    lines: list[tuple[str, str, Sequence[str]]] = [
        ("nobody attacks: FedAvg", "none", ["fedavg"]),
        ("CRF-robust", "none", ["crf-robust"]),
    ]
    for title, group in GROUPS.items():
        lines += [
            (f"**{title}**: CRF-robust", f"worst: {group}", ["crf-robust"]),
            ("CRF-robust with evidence", f"worst: {group}", ["crf-robust-evidence"]),
            ("best of eight others", f"worst: {group}", EIGHT),
        ]
    rows = []
    for title, column, methods in lines:
        cells = [by_partition(folder, column, methods) for folder in SUITES.values()]
        if set(cells) != {NO_NUMBER}:
            rows.append((title, *cells))
    return Table("", ("IID / α = 0.5 / α = 0.1", *SUITES), tuple(rows)).as_markdown()


FEWER_OR_MORE = {
    "one of ten": "attacks-mnist-6000-1-of-10-clients",
    "two of ten": "attacks-mnist-6000-2-of-10-clients",
    "four of ten": "attacks-mnist-6000-4-of-10-clients",
    "thirty of a hundred": "attacks-mnist-6000-30-of-100-clients",
    "adaptive attackers, ten seeds": "adaptive-mnist-6000",
    "patient attackers, forty seeds": "patient-mnist-6000",
}
"""By title further suites on 6,000 images of MNIST."""


def fewer_or_more() -> str:
    """Return what fewer and more attackers leave of our robust rule."""
    rows = []
    for title, folder in FEWER_OR_MORE.items():
        page = ROBUSTNESS / folder / "tables.md"
        partitions = re.findall(r"^## (\S+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for partition, table in zip(partitions, summaries(folder), strict=True):
            (ours,) = (row for row in table.rows if row[0] == method_title("crf-robust"))
            quiet = ours[table.header.index("none")]
            rows.append((f"[{title}](robustness/{folder}/tables.md)", partition, quiet, ours[-1]))
    header = ("attackers", "clients' data", "nobody attacks", "worst of all shown")
    return Table("", header, tuple(rows)).as_markdown()


def suites() -> str:
    """Return the whole first table of each suite under attack, and those with wrong labels."""
    parts = []
    for dataset, folder in SUITES.items():
        parts.append(f"{dataset}:\n\n{overview(folder).as_markdown()}")
    shown = ("crf-evidence", "crf-robust-evidence", "rfa", "crf-fedavg", "crf-robust")
    differences = [
        table
        for table in published("noise-mnist-6000")
        if table.header[0] == "condition" and any("[" in cell for row in table.rows for cell in row)
    ]
    for partition, table in zip(PARTITIONS, differences, strict=True):
        if partition == "iid":
            continue
        kept = [0, 1, *(table.header.index(method_title(name)) for name in shown)]
        rows = [
            tuple(row[at] for at in kept)
            for row in table.rows
            if row[0] == "none" or "labels" in row[0]
        ]
        header = tuple(table.header[at] for at in kept)
        chosen = Table("", header, tuple(rows))
        title = f"MNIST, 6,000 images, wrong labels, {PARTITIONS[partition]}; differences to FedAvg"
        parts.append(f"{title}:\n\n{chosen.as_markdown()}")
    return "\n".join(parts)


LONGEST_COMMAND = 350
"""Characters of a command in the table; one that names many rules is whole in its file alone."""


def commands() -> str:
    """Return which command made which folder of results."""
    made_by = tomllib.loads((RESULTS / "commands.toml").read_text(encoding="utf-8"))
    rows = []
    for folder, how in made_by.items():
        shown = {command: cut(command, LONGEST_COMMAND) for command in how.get("commands", [])}
        parts = [
            f"`{short}`" + ("" if short == command else " ([whole](commands.toml))")
            for command, short in shown.items()
        ]
        parts += [how["note"]] if "note" in how else []
        if "unfinished" in how:
            cells = ", ".join(f"`{cell}`" for cell in how["unfinished"])
            parts.append(f"not finished: {cells}")
        if "outdated" in how:
            methods = ", ".join(f"`{method}`" for method in how["outdated"])
            parts.append(f"{methods} as it was before it changed, to be run again")
        rows.append((f"`{folder}/`", "; ".join(parts)))
    written = Table("", ("folder", "command"), tuple(rows)).as_markdown()
    return written.replace("| ---: |", "| --- |", 1)  # commands are no numbers


def paper() -> str:
    """Return the paper's tables beside ours, and the confirmation: its forty seeds, and claims."""
    cells = table_of(PAPER, paper_study(chosen_columns()))
    parts = [
        f"{column.title}:\n\n{column_table(cells, column).as_markdown()}"
        for column in chosen_columns("all", ["mnist"])
    ]
    cells = results_of(CONFIRMATION)
    header = ("method, seeds 100 to 139", "n", "ours", "Δ to FedAvg [95 %]")
    rows = tuple((method_title(method), *entries) for method, entries in method_rows(cells))
    confirmed = Table("", header, rows)
    parts.append(f"MNIST non-IID, the confirmation:\n\n{confirmed.as_markdown()}")
    claims = claims_table("", cells, iid=False).as_markdown()
    parts.append(f"The paper's claims, by the confirmation:\n\n{claims}")
    parts.append(f"The confirmation at 60 rounds, means of the last ten:\n\n{fixed_rounds()}")
    return "\n".join(parts)


LAST_TEN = "last ten rounds"


@cache
def last_rounds() -> dict[str, pd.DataFrame]:
    """Return by method the end of each run of the confirmation at 60 rounds, by seed."""
    rows = []
    for each in read_results(Store(CONFIRMATION.with_name("60-rounds"))).cells:
        tests = [record.test for record in each.records[-10:]]
        accuracies = pd.Series([test.accuracy for test in tests])
        rows.append({
            "method": each.cell.method.name,
            "seed": each.cell.seed,
            "last round": accuracies.iloc[-1],
            LAST_TEN: accuracies.mean(),
            "worst client": np.mean([test.worst_client for test in tests]),
            "sd from round to round": accuracies.std(),
        })  # fmt: skip
    cells = pd.DataFrame(rows).groupby("method", sort=False)
    return {method: own.set_index("seed").drop(columns="method") for method, own in cells}


def fixed_rounds() -> str:
    """Return what the methods come to without early stopping, and what the CRF adds to it."""
    ends = last_rounds()
    measures = ends["fedavg"].columns
    whole = [
        (method_title(method), str(len(own)), *(estimate_text(estimate(own[m])) for m in measures))
        for method, own in ends.items()
    ]
    added = [
        (
            f"{method_title(method)} − {method_title(plain)}",
            *(
                difference_text(paired_difference(ends[method][m], ends[plain][m]))
                for m in measures
            ),
        )
        for method, plain in (*PAIRS, ("rfa", "fedavg"))
    ]
    tables = (
        Table("", ("method", "n", *measures), tuple(whole)),
        Table("", ("difference [95 %]", *measures), tuple(added)),
    )
    return "\n".join(each.as_markdown() for each in tables)


CONFIRMATION = PAPER / "mnist-confirmation" / "early-stopping"
CIFAR: Mapping[str, tuple[str, ...]] = {
    "ResNet9": ("cifar10-precision", "cifar10-noniid"),
    "a quarter of the channels": tuple(
        f"cifar10-small/{run}" for run in ("precision", "fedavg", "fedprox", "rfa")
    ),
}
"""By network, the sweep over precision, and the runs of the paper's protocol on skewed CIFAR-10."""


def cifar10() -> str:
    """Return the accuracies of CIFAR-10 by network, and what precision does to them."""
    accuracies, precisions = [], []
    for network, (sweep, *runs) in CIFAR.items():
        accuracies += beside_paper("cifar10", network, runs)
        table = (PAPER / sweep / "sweep.md").read_text(encoding="utf-8")
        title = f"FedAvg on clients that hold alike data, five rounds, {network}"
        precisions.append(f"{title}:\n\n{table}")
    return "\n".join([*accuracies, *precisions])


def cifar100() -> str:
    """Return the accuracies of CIFAR-100."""
    return "\n".join(
        beside_paper("cifar100", "ResNet9, a quarter of the channels", ["cifar100-small"])
    )


def beside_paper(dataset: str, network: str, runs: Sequence[str]) -> list[str]:
    """Return the table of runs on skewed data beside the paper's, and what decided them."""
    cells = pd.concat(results_of(PAPER / run) for run in runs).query("complete")
    rounds = cells.groupby("method")[["best_round", "rounds"]].mean()
    rows = tuple(
        (
            method_title(method),
            *entries,
            " of ".join(f"{number:.0f}" for number in rounds.loc[method]),
            estimate_text(PUBLISHED[Column(dataset, "noniid")].get(method)),
        )
        for method, entries in method_rows(cells)
    )
    header = ("method", "n", network, "Δ to FedAvg [95 %]", "best round", "the paper")
    return [Table("", header, rows).as_markdown(), rounds_decide(cells, runs)]


def rounds_decide(cells: pd.DataFrame, runs: Sequence[str]) -> str:
    """Return how accuracy goes with when early stopping ends a run, and means before any end."""
    rho = cells["accuracy"].corr(cells["rounds"], "spearman")
    shared = int(cells["rounds"].min())
    early: dict[str, dict[int, float]] = {}
    for each in (cell for run in runs for cell in read_results(Store(PAPER / run)).cells):
        if each.records:
            accuracies = [record.test.accuracy for record in each.records[:shared]]
            early.setdefault(each.cell.method.name, {})[each.cell.seed] = np.mean(accuracies)
    seeds = sorted(set.intersection(*(set(own) for own in early.values())))
    means = ", ".join(
        f"{method_title(name)} {np.mean([own[seed] for seed in seeds]):.3f}"
        for name, own in early.items()
    )
    text = (
        f"Over these {len(cells)} cells accuracy goes with the number of rounds until early "
        f"stopping (Spearman's ρ {rho:.2f}). "
        if len(cells) > 2
        else ""
    )
    missing = any(len(own) > len(seeds) for own in early.values())
    of_seeds = f" of seed {listed(seeds)}" if missing else ""
    text += (
        f"In the first {shared} rounds{of_seeds}, which all have, the mean accuracies are {means}."
    )
    return f"{textwrap.fill(text, 128)}\n"


MINI_BATCHES = LIMITS / "mini-batches"
SIMILARITIES = {"gamma-0": "0", "gamma-0.33": "0.33"}
"""By the partition's name, γ."""


def mini_batches(partition: str) -> pd.DataFrame:
    """Return the cells of rounds of one mini-batch, of one similarity."""
    cells = results_of(MINI_BATCHES)
    return cells[(cells["partition"] == partition) & (cells["condition"] == "none")]


def linked_runs(pattern: str) -> dict[str, pd.DataFrame]:
    """Return the cells of the runs of a name, by a link to each."""
    folders = sorted(LIMITS.glob(pattern))
    return {f"[{each.name}]({each.name}/results.md)": results_of(each) for each in folders}


def method_table(first: str, runs: Mapping[str, pd.DataFrame]) -> Table:
    """Return accuracies and differences of the methods of runs, by what stands in column one."""
    rows = []
    for run, cells in runs.items():
        for method, (seeds, accuracy, difference) in method_rows(cells):
            worst = of_method(cells, method)["worst_client"].mean()
            rows.append((run, method_title(method), seeds, accuracy, f"{worst:.3f}", difference))
    header = (first, "rule", "seeds", "test accuracy", "worst client", "Δ to FedAvg [95 %]")
    return Table("", header, tuple(rows))


def limits() -> str:
    """Return all tables of the runs in which nobody is wrong."""
    similar = {gamma: mini_batches(partition) for partition, gamma in SIMILARITIES.items()}
    small = sorted(LIMITS.glob("iid-*"))
    tables = {
        "Rounds of one mini-batch": method_table("similarity γ", similar),
        "Clients that hold a label nearly alone": method_table("run", linked_runs("nobody-*")),
        "Sites of very unequal size": method_table("run", linked_runs("unequal-*")),
        "Small federations": method_table("run", linked_runs("iid-*")),
        "Sites with another scanner": method_table("run", linked_runs("scanners-*")),
        "Sites that do more local epochs": method_table("run", linked_runs("more-epochs-*")),
        "Two classes, and sites of two kinds": method_table("run", linked_runs("two-*")),
        "Under attack with a tolerance of 3": tolerances(),
        "The least weight of a client, CRF-robust": least_weights(small, "crf-robust"),
    }
    return "\n".join(f"### {title}\n\n{table.as_markdown()}" for title, table in tables.items())


def tolerances() -> Table:
    """Return the digits' worst cases by our robust rule, and by it with a tolerance of 3."""
    found = [
        of_method(results_of(ROBUSTNESS / each), "crf-robust")
        .groupby(["partition", "condition"])["accuracy"]
        .mean()
        for each in ("attacks-digits", "attacks-digits-tolerance-3")
    ]
    groups = read_suite("attacks").groups
    flipped = ["label-flip"]
    twelve = [name for name in groups["13 attacks"] if name not in flipped]
    titles = {"flipped labels": flipped, "worst of the other twelve": twelve}
    titles |= {title: groups[name] for title, name in GROUPS.items() if name != "13 attacks"}
    rows = [
        (title, *(_both(found, partition, names) for partition in PARTITIONS))
        for title, names in {"nobody wrong": ["none"], **titles}.items()
    ]
    return Table("", ("tolerance 1 / 3", *PARTITIONS.values()), tuple(rows))


def _both(found: Iterable[pd.Series], partition: str, names: Sequence[str]) -> str:
    worst = [means[partition].reindex(names).min(skipna=False) for means in found]
    return NO_NUMBER if np.isnan(worst).any() else " / ".join(f"{each:.3f}" for each in worst)


PLACES: Mapping[str, str] = {
    "labels held alone: digits, α = 0.5": "nobody-digits-alpha-0.5",
    "digits, α = 0.1": "nobody-digits-alpha-0.1",
    "very unequal sizes: MNIST, 6,000 images, α = 0.1": "unequal-alpha-0.1",
    "MNIST, 6,000 images, α = 0.05": "unequal-alpha-0.05",
    "nine of thirty sites turn the digits": "scanners-turned-30-clients",
    "nine of thirty sites do five local epochs": "more-epochs-iid-30-clients",
    "two classes: digits, odd or even, α = 0.5, ten sites": "two-classes-10-clients",
    "thirty sites": "two-classes-30-clients",
    "two kinds of sites: digits, four hold 0 to 4, six 5 to 9": "two-kinds",
    "thirty sites of two kinds": "two-kinds-30-clients",
    "thirty sites, nine hold negatives": "scanners-negative-30-clients",
}
"""By title the runs in which nobody is wrong."""


def nobody_wrong() -> str:
    """Return what our robust rule costs where nobody is wrong, in points."""
    found = {
        f"one mini-batch a round, {dealt}": mini_batches(partition)
        for (partition, _), dealt in zip(
            SIMILARITIES.items(), ("a class a client", "a third at random"), strict=True
        )
    }
    found |= {title: results_of(LIMITS / folder) for title, folder in PLACES.items()}
    rows = tuple(
        (
            title,
            f"{of_method(cells, 'fedavg')['accuracy'].mean():.3f}",
            points(method_difference(cells, "crf-robust")).replace(" points", ""),
        )
        for title, cells in found.items()
    )
    return Table("", ("nobody wrong", "FedAvg", "crf-robust"), rows).as_markdown()


def adaptive() -> str:
    """Return what attackers that know the rule leave of it, and of the best of the other rules."""
    robust, others, best = [], [], []
    for table in published("attacks-mnist-6000"):
        found = [at for at, name in enumerate(table.header) if "adaptive attackers" in name]
        if not found:
            continue
        cells = {row[0]: row[found[0]].partition(" (")[0] for row in table.rows}
        best.append(max(map(method_title, CLASSICAL), key=lambda rule: float(cells[rule][:5])))
        robust.append(cells[method_title("crf-robust")])
        others.append(cells[best[-1]])

    def places(iid: str, skewed: str, very: str) -> str:
        return f"{iid} IID, {skewed} at α = 0.5 and {very} at α = 0.1"

    return filled(
        "- *Attackers that know the rule* do more harm where data are skewed. On 6,000 images of "
        f"MNIST the worst of eight leaves crf-robust {places(*robust)}. The best other rule "
        f"({', '.join(dict.fromkeys(best))}), with attackers that know that one, has "
        f"{places(*others)}.",
        indent="  ",
    )


def gain() -> str:
    """Return what is known of the paper's gain: the confirmation, early stopping and without it."""
    cells, sixty = results_of(CONFIRMATION), last_rounds()
    stopped = [method_difference(cells, *pair) for pair in PAIRS]
    fixed = [paired_difference(*(sixty[each][LAST_TEN] for each in pair)) for pair in PAIRS]
    shown = [each is not None and each.low > 0 for each in stopped]
    verdict = {2: "a gain is shown", 0: "no gain is shown"}.get(
        sum(shown), "one of the two gains is shown"
    )
    averaged, proximal = map(points, stopped)
    return filled(
        "On MNIST with ten clients and label skew α = 0.003, on forty seeds that were announced "
        "before they were run (100 to 139), the accuracy of CRF-FedAvg less FedAvg's is "
        f"{averaged}, and that of CRF-FedProx less FedProx's {proximal}: {verdict}. "
        "Without early stopping, in the last ten of 60 rounds, they are "
        f"{' and '.join(map(points, fixed))}."
    )


PROTOCOLS = RESULTS / "protocols"


def places_of(
    folder: Path, suite: str, dataset: str, *, changed: bool = False, full: bool = False
) -> list[Place]:
    """Return the partitions of a published suite, at its small size where it has one.

    ``changed`` is of one that was run with settings of its own, ``full`` of one at its full size.
    """
    whole, store = read_suite(suite, dataset), Store(folder)
    quick = whole.quick is not None and not full
    shown = held(whole, whole.chosen(quick=quick, conditions=[], seeds=[]), store)
    cells = suite_cells(None if changed else shown, store)
    return [
        Place(shown, cells, partition, f"{folder.name.replace('-quick', '')}, {partition}")
        for partition in shown.partitions
        if len(cells[cells["partition"] == partition])
    ]


@cache
def protocol_places() -> list[Place]:
    """Return the places of all protocols."""
    places = []
    for name in sorted(PROTOCOL_NAMES):
        for dataset in read_suite(name).datasets:
            for size in ("quick-", ""):
                folder = PROTOCOLS / f"{name}-{size}{dataset}"
                if folder.exists():
                    places += places_of(folder, name, dataset, full=not size)
    return places


def protocols() -> str:
    """Return the rules of all protocols, by worst case and by cost where nobody is wrong."""
    return "\n".join(table.as_markdown() for table in rank_tables(protocol_places()))


def draw_protocols() -> None:
    """Draw rules by protocols, their worst case and what they cost where nobody is wrong."""
    places = protocol_places()
    attacked = [place for place in places if groups_of(place.suite)]
    for name, title, chosen, column in (
        ("worst", "Accuracy under the worst attack", attacked, None),
        ("cost", "Accuracy less FedAvg's, nobody wrong", places, "accuracy"),
    ):
        figure = heat_map_figure(means(chosen, column), title)
        _, raster = save(figure, IMAGES / f"protocols-{name}")
        raster.unlink()  # the pages show the vectors


JUDGED = {
    "digits": ("attacks: digits", "attacks", "digits"),
    "digits-40-rounds": ("noise: digits", "noise", "digits"),
    "hospitals": ("hospitals: mnist-6000", "hospitals", "mnist-6000"),
    "flpoison": ("flpoison: mnist", "flpoison", "mnist"),
    "byzfl": ("byzfl: mnist", "byzfl", "mnist"),
    "karimireddy": ("karimireddy: mnist", "karimireddy", "mnist"),
}
"""By folder the titles, suites and data sets on which the robust rule is judged."""

WORLDS = {
    "logistic": ("a linear classifier", "attacks", "mnist-6000"),
    "five-epochs": ("five epochs", "attacks", "mnist-6000"),
    "server-momentum": ("server momentum", "attacks", "mnist-6000"),
    "server-adam": ("FedAdam", "attacks", "mnist-6000"),
    "three-clients": ("three clients", "attacks", "mnist-6000"),
    "convolutions": ("convolutions", "attacks", "mnist-6000"),
    "cifar10": ("CIFAR-10", "attacks", "cifar10-8000"),
    "batch-norm": ("CIFAR-10, batch norm", "attacks", "cifar10-8000"),
    "ten-of-a-hundred": ("ten of a hundred a round", "attacks", "mnist-6000"),
    "ten-of-thirty": ("ten of thirty a round", "attacks", "mnist-6000"),
    "six-of-thirteen": ("six of thirteen a round, mini-batches", "byzfl", "mnist"),
}
"""The same of further worlds, which are unlike those that chose the rule."""

FAIR = 0.25
"""A client whose weight is below this part of its FedAvg weight is accused."""


def judged(folders: Mapping[str, tuple[str, str, str]], *, changed: bool) -> str:
    """Return what the robust rule costs where nobody is wrong, and its worst case and FedAvg's.

    It is a line for each place of suites that may be ``changed``, see `places_of`; FedAvg has the
    rule's server optimizer, if any.
    """
    places = [
        (title, RESULTS / "judged" / name, place)
        for name, (title, suite, dataset) in folders.items()
        for place in places_of(RESULTS / "judged" / name, suite, dataset, changed=changed)
    ]
    rows = []
    for title, folder, place in places:
        rule = next(name for name in place.own["method"] if name.startswith("crf-robust"))
        plain, quiet = averaging_method(rule), place.suite.quiet
        own, baseline = (place.by_condition[quiet, name]["accuracy"] for name in (rule, plain))
        rows.append(
            (
                f"{title}, {place.partition}",
                str(len(own)),
                f"{baseline.mean():.3f}",
                difference_text(paired_difference(own, baseline)),
                accused_text(Store(folder), place, rule),
                *(worst_text(place, method) for method in (plain, rule)),
            )
        )
    header = (
        "place", "seeds", "nobody wrong: FedAvg", "CRF-robust, Δ [95 %]", "accused",
        "worst attack: FedAvg", "CRF-robust",
    )  # fmt: skip
    return Table("", header, tuple(rows)).as_markdown()


def worst_text(place: Place, method: str) -> str:
    """Return a method's worst case among what a place shows, and which attack that is."""
    found = place.worst(groups_of(place.suite).get("all shown", ()), method)
    if found is None:
        return NO_NUMBER
    condition, least, _ = found
    return f"{estimate_text(least)} ({place.suite.conditions[condition].title})"


def accused_text(store: Store, place: Place, method: str) -> str:
    """Return the share of clients and rounds with too little weight where nobody is wrong."""
    run = store.packed(place.partition, place.suite.quiet)
    shares = [
        np.divide(record.weight, record.base_weight)[np.asarray(record.base_weight) > 0]
        for cell in run.read().cells()
        if cell.method.name == method
        for record in run.cell(cell).records()
    ]
    return f"{100 * (np.concatenate(shares) < FAIR).mean():.1f} %" if shares else NO_NUMBER


def source() -> str:
    """Return ByzFL's own results on its protocol beside ours, with the difference."""
    theirs = pd.read_csv(PROTOCOLS / "byzfl-source.csv", dtype={"gamma": str})
    ours = results_of(PROTOCOLS / "byzfl-against-source")
    ours = ours[ours["complete"]].groupby(["partition", "condition", "method"])
    rows = []
    for (gamma, attack, rule), cells in theirs.groupby(["gamma", "attack", "rule"], sort=False):
        same = byzfl_loop.ATTACKS[attack], byzfl_loop.RULES[rule]
        place = (f"gamma-{gamma}", *(each.ours for each in same))
        if place not in ours.groups:
            continue
        samples = cells["accuracy"], ours.get_group(place)["held_out_accuracy"]
        error = sum(each.var() / len(each) for each in samples) ** 0.5
        shown = (f"{each.mean():.3f} ± {each.std():.3f} (n = {len(each)})" for each in samples)
        difference = f"{(samples[1].mean() - samples[0].mean()) / error:+.1f}"
        rows.append((gamma, attack, rule, *shown, difference))
    header = ("γ", "attack", "rule", "ByzFL's loop", "fedcrf", "difference in standard errors")
    return Table("", header, tuple(rows)).as_markdown()


def frameworks(framework: str) -> str:
    """Return the accuracies of a framework's examples, with a hostile client and without."""
    runs = pd.DataFrame(runs_of(framework))
    rows = []
    for (app, strategy), cells in runs.groupby(["app", "strategy"], sort=False):
        accuracies = [cells[cells["hostile"] == hostile]["accuracy"] for hostile in (True, False)]
        shown = (f"{each.mean():.3f} ± {each.std():.3f} (n = {len(each)})" for each in accuracies)
        name = f"{strategy} (its own)" if strategy == OWN[framework] else strategy
        rows.append((app, name, *shown, f"{cells['seconds'].median():.0f}"))
    header = ("app", "strategy", "one client hostile", "none", "seconds of a run")
    return Table("", header, tuple(rows)).as_markdown()


def speed() -> str:
    """Return what ``make bench`` measured of rounds and of the rule."""
    measured = RESULTS / "benchmarks" / "benchmarks.json"
    return report.short(json.loads(measured.read_text(encoding="utf-8")))


def filled(text: str, indent: str = "") -> str:
    """Return a paragraph in lines of the pages' width, of which all but the first are indented."""
    lines = textwrap.wrap(
        text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
    return "\n".join(lines) + "\n"


def points(difference: Estimate | None) -> str:
    """Return a difference of accuracies in points, with its interval."""
    if difference is None:
        return NO_NUMBER
    mean, low, high = (
        f"{100 * value:+.1f}".replace("-", "−")
        for value in (difference.mean, difference.low, difference.high)
    )
    return f"{mean} points [{low}, {high}]"


BLOCKS: Mapping[tuple[str, str], Callable[[], str]] = {
    ("README.md", "robustness"): headline,
    ("docs/index.md", "robustness"): headline,
    ("README.md", "limits"): nobody_wrong,
    ("README.md", "adaptive"): adaptive,
    ("README.md", "gain"): gain,
    ("docs/attacks.md", "suites"): suites,
    ("docs/flower.md", "frameworks"): partial(frameworks, "flower"),
    ("docs/nvflare.md", "frameworks"): partial(frameworks, "nvflare"),
    ("docs/results.md", "gain"): gain,
    ("docs/protocols.md", "protocols"): protocols,
    ("docs/protocols.md", "source"): source,
    ("docs/speed.md", "benchmarks"): speed,
    ("docs/judged.md", "judged"): partial(judged, JUDGED, changed=False),
    ("docs/judged.md", "worlds"): partial(judged, WORLDS, changed=True),
    ("results/README.md", "commands"): commands,
    ("results/README.md", "paper"): paper,
    ("results/README.md", "cifar"): cifar10,
    ("results/README.md", "cifar100"): cifar100,
    ("results/README.md", "robustness"): home,
    ("results/README.md", "attackers"): fewer_or_more,
    ("results/limits/README.md", "limits"): limits,
}
"""By file and marker, what stands there."""


def with_block(text: str, name: str, block: str) -> str:
    """Return a page with what stands between two markers replaced."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"a page lacks {begin.strip()} or {end}")
    return f"{before}{begin}\n{block}\n{end}{after}"


def main() -> None:
    """Write every block."""
    for (page, name), block in BLOCKS.items():
        path = ROOT / page
        write_text(path, with_block(path.read_text(encoding="utf-8"), name, block()))
        print(f"wrote {name} of {page}")
    draw_protocols()
    print(f"drew the protocols in {IMAGES}")


if __name__ == "__main__":
    main()
