"""The demonstration: what three attackers among ten clients do to three rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedcrf.errors import FedcrfError
from fedcrf.experiments.analysis.tables import Table
from fedcrf.experiments.settings import method_title
from fedcrf.experiments.study import Axis, Study
from fedcrf.experiments.suite import Suite, read_suite

SUITE, DATASET, PARTITION = "attacks", "digits", "alpha-0.5"
SEEDS = (20, 21, 22)
"""The first three of the published suite's."""

METHODS = ("fedavg", "geometric-median", "crf-robust")
"""FedAvg, the rule with the best worst case among those of others, and ours."""

HONEST = "honest"

ATTACKED = {"ipm": "ipm-2", "opposed": "opposed", "scaling": "scaling-50"}
"""By folder the suite's conditions: of its thirteen attacks the worst for each of the methods.

The rule and the attacks were chosen by the tables of ``results/robustness/attacks-digits``.
"""


@dataclass(frozen=True)
class Demonstration:
    """Three rules on the digits, where nobody attacks and under three attacks."""

    folder: Path  # has a run's folder for each of them

    @cached_property
    def study(self) -> Study:
        """The rules where nobody attacks, and under each attack; not in the folder of a run."""
        if (self.folder / "run.toml").exists():
            raise FedcrfError(
                f"{self.folder} holds a run, and the demonstration has several: choose another "
                "folder with --output"
            )
        suite, asked = self._suite, {"methods": list(METHODS), "seeds": list(SEEDS)}
        attacked = ((name, suite.layer(condition)) for name, condition in ATTACKED.items())
        shared = {"partition": suite.partitions[PARTITION], **asked}
        axis = Axis("condition", ((HONEST, {}), *attacked))
        return Study((*suite.layers, shared), (axis,), folder_name=lambda at: at["condition"])

    @cached_property
    def accuracies(self) -> Mapping[tuple[str, str], float]:
        """The mean test accuracy over the seeds and the last five rounds, by run and method."""
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for at, spec in self.study.points:
            for cell in spec.cells():
                rounds = self.study.store(self.folder, at).cell(cell).records()
                last = [each.test.accuracy for each in rounds[-self._suite.last_rounds :]]
                found[at["condition"], cell.method.name].append(float(np.mean(last)))
        return {key: float(np.mean(values)) for key, values in found.items()}

    def worst(self, method: str) -> float:
        """Return a method's accuracy under the attack that is worst for it."""
        return min(self.accuracies[name, method] for name in ATTACKED)

    def table(self) -> Table:
        """Return a row a method: nobody attacks, each attack, and the worst of them."""
        titles = [self._suite.conditions[condition].title for condition in ATTACKED.values()]
        rows = []
        for method in METHODS:
            values = [self.accuracies[name, method] for name in (HONEST, *ATTACKED)]
            texts = (f"{value:.3f}" for value in (*values, self.worst(method)))
            rows.append((method_title(method), *texts))
        over = f"{len(SEEDS)} seeds and the last {self._suite.last_rounds} rounds"
        title = f"Three attackers among ten clients: accuracy, mean of {over}"
        return Table(title, ("rule", "nobody attacks", *titles, "worst attack"), tuple(rows))

    def verdict(self) -> str:
        """Return in one sentence what happened."""
        honest = {method: 100 * self.accuracies[HONEST, method] for method in METHODS}
        costs = [
            f"{method_title(method)} {honest[method] - 100 * self.worst(method):.1f}"
            for method in METHODS
        ]
        base, ours = METHODS[0], METHODS[-1]
        gain = honest[ours] - honest[base]
        beside = f"{abs(gain):.1f} points {'more' if gain > 0 else 'less'} accurate than"
        return (
            f"At worst the three attackers cost {', '.join(costs[:-1])} and {costs[-1]} points of "
            f"accuracy; where nobody attacks, {method_title(ours)} is "
            f"{beside if abs(gain) >= 0.05 else 'as accurate as'} {method_title(base)}."
        )

    @property
    def _suite(self) -> Suite:
        return read_suite(SUITE, DATASET)
