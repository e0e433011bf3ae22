"""The demonstration: what three attackers among ten clients do to three rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.tables import Table
from fedcrf.experiments.settings import method_title
from fedcrf.experiments.store import ANOTHER
from fedcrf.experiments.study import Axis, Study, read_suite

SUITE, DATASET, PARTITION = "attacks", "digits", "alpha-0.5"
SEEDS = (20, 21, 22)
"""The first three of the published suite's."""

METHODS = ("fedavg", "geometric-median", "crf-robust")
"""FedAvg, the rule with the best worst case among those of others, and ours."""

HONEST = "honest"

ATTACKED = {"ipm": "ipm-2", "label-flip": "label-flip", "scaling": "scaling-50"}
"""By folder the suite's conditions: of its thirteen attacks the worst for each of the methods.

The rule and the attacks were chosen by the tables of ``results/robustness/attacks-digits``.
"""

WORST = "worst attack"


def demonstration(folder: Path) -> Study:
    """Return the study: the rules where nobody attacks, and under each attack; a run's folder each.

    Raises:
        FedcrfError: The folder is that of a run.
    """
    if (folder / "run.toml").exists():
        raise FedcrfError(f"{folder} holds a run, and the demonstration has several: {ANOTHER}")
    suite = read_suite(SUITE, DATASET)
    asked = {"methods": list(METHODS), "seeds": list(SEEDS)}
    attacked = ((name, suite.layer(condition)) for name, condition in ATTACKED.items())
    axis = Axis("condition", ((HONEST, {}), *attacked))
    base = (*suite.layers, {"partition": suite.partitions[PARTITION], **asked})
    return Study(base, (axis,))


def accuracies(folder: Path) -> pd.DataFrame:
    """Return mean test accuracies over the seeds and the last rounds, a row a rule.

    Behind the columns of the runs is that of the attack that is worst for each rule.
    """
    study, last_rounds = demonstration(folder), read_suite(SUITE, DATASET).last_rounds
    means = pd.Series(
        {
            (cell.method.name, store.path.name, cell.seed): np.mean(
                [each.test.accuracy for each in store.cell(cell).records()[-last_rounds:]]
            )
            for spec, store in study.runs(folder)
            for cell in spec.cells()
        }
    )
    found = means.groupby(level=[0, 1]).mean().unstack().loc[[*METHODS], [HONEST, *ATTACKED]]
    return found.assign(**{WORST: found[[*ATTACKED]].min(axis="columns")})


def demo_table(found: pd.DataFrame) -> Table:
    """Return a row a rule: nobody attacks, each attack, and the worst of them."""
    suite = read_suite(SUITE, DATASET)
    titles = [suite.conditions[condition].title for condition in ATTACKED.values()]
    rows = [
        (method_title(method), *(f"{value:.3f}" for value in values))
        for method, *values in found.itertuples(name=None)
    ]
    over = f"{len(SEEDS)} seeds and the last {suite.last_rounds} rounds"
    title = (
        f"Three attackers among ten clients: accuracy, mean of {over} "
        "(on the page: the round of the lowest validation loss)"
    )
    return Table(title, ("rule", "nobody attacks", *titles, WORST), tuple(rows))


def verdict(found: pd.DataFrame) -> str:
    """Return in one sentence what happened."""
    honest = 100 * found[HONEST]
    lost = honest - 100 * found[WORST]
    *costs, last = (f"{method_title(method)} {lost[method]:.1f}" for method in METHODS)
    base, ours = METHODS[0], METHODS[-1]
    gain = honest[ours] - honest[base]
    beside = f"{abs(gain):.1f} points {'more' if gain > 0 else 'less'} accurate than"
    return (
        f"At worst the three attackers cost {', '.join(costs)} and {last} points of accuracy; "
        f"where nobody attacks, {method_title(ours)} is "
        f"{beside if abs(gain) >= 0.05 else 'as accurate as'} {method_title(base)}."
    )
