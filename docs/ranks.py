"""Rules ranked over several published suites, for the pages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedcrf.experiments.analysis.conditions import Place, fewer, groups_of
from fedcrf.experiments.analysis.tables import (
    BASELINE,
    NO_NUMBER,
    Estimate,
    Table,
    paired_difference,
)
from fedcrf.experiments.settings import method_title

RANKED: Mapping[str, str | None] = {
    "worst case": None,
    "nobody wrong: Δ to FedAvg": "accuracy",
    "nobody wrong, worst client: Δ to FedAvg": "worst_client",
}
"""By title what rules are ranked by: the worst case, or a column where nobody is wrong."""


def rank_tables(places: Sequence[Place]) -> list[Table]:
    """Return tables with a row a method over several places: mean ranks, then each of `RANKED`.

    Rank 1 is the best; where a method is not run, it has no rank. Methods are in the order of their
    mean rank. An entry is a mean ± how far its 95 % interval reaches, and a rank; the mean alone
    where the seeds are too few for an interval. FedAvg has its own value where others are compared
    with it.
    """
    tables, means = [], {}
    for title, column in RANKED.items():
        shown = [place for place in places if column is not None or groups_of(place.suite)]
        table, means[title] = _ranked(title, shown, column)
        tables.append(table)
    run_in = Counter(method for place in places for method in place.suite.methods)
    order = sorted(run_in, key=lambda method: [mean.get(method, np.inf) for mean in means.values()])
    rows = tuple(
        (method_title(each), str(run_in[each]), *(_rank(mean, each) for mean in means.values()))
        for each in order
    )
    header = ("mean rank", "places", *(title.removesuffix(": Δ to FedAvg") for title in means))
    return [Table("", header, rows), *tables]


def means(places: Sequence[Place], column: str | None) -> pd.DataFrame:
    """Return a method's mean in each place, methods by places, in the order of their mean rank.

    It is the worst case, or by how much a column exceeds FedAvg's where nobody is wrong; see
    `RANKED`. NaN where a method is not run.
    """
    found = _estimates(places, column)
    numbers = pd.DataFrame(
        {
            place.title: {method: each.mean for method, each in known.items()}
            for place, known in zip(places, found, strict=True)
        },
        dtype=float,
    )
    order = numbers.rank(ascending=False, method="min").mean(axis="columns").sort_values().index
    numbers = numbers.loc[order].rename(index=method_title)
    return numbers.rename_axis(index="", columns="")


def _ranked(
    title: str, places: Sequence[Place], column: str | None
) -> tuple[Table, Mapping[str, float]]:
    """Return a table of methods by places and the methods' mean ranks; see `RANKED`."""
    methods = list(dict.fromkeys(method for place in places for method in place.suite.methods))
    ranks, texts = pd.DataFrame(index=methods), pd.DataFrame(index=methods)
    for number, (place, known) in enumerate(zip(places, _estimates(places, column), strict=True)):
        means = pd.Series({method: each.mean for method, each in known.items()}, dtype=float)
        ranks[number] = means.rank(ascending=False, method="min")
        texts[number] = {
            method: f"{_compared_text(place, method, each, column)} ({ranks[number][method]:.0f})"
            for method, each in known.items()
        }
    mean = ranks.mean(axis="columns").dropna().to_dict()
    rows = tuple(
        (method_title(each), _rank(mean, each), *texts.loc[each].fillna(NO_NUMBER))
        for each in sorted(methods, key=lambda method: mean.get(method, np.inf))
    )
    titles = (f"{place.title} (n = {len(place.suite.seeds)})" for place in places)
    return Table("", (f"{title} (rank)", "mean rank", *titles), rows), mean


def _estimates(places: Sequence[Place], column: str | None) -> list[dict[str, Estimate]]:
    """Return for each place what the methods that were run there are ranked by; see `RANKED`."""
    return [
        {
            method: found
            for method in place.suite.methods
            if (found := _compared(place, method, column)) is not None
        }
        for place in places
    ]


def _compared(place: Place, method: str, column: str | None) -> Estimate | None:
    """Return a method's worst case, or by how much a column exceeds FedAvg's with nobody wrong."""
    if column is None:
        found = place.worst(groups_of(place.suite)["all shown"], method)
        return None if found is None else found[1]
    own, baseline = (
        place.by_condition[place.suite.quiet, name][column].dropna() for name in (method, BASELINE)
    )
    return paired_difference(own, baseline)


def _compared_text(place: Place, method: str, found: Estimate, column: str | None) -> str:
    if column is None or method != BASELINE:
        text = _spread_text(found, ".3f" if column is None else "+.3f")
    else:
        mean = place.mean(place.suite.quiet, method, column)
        text = NO_NUMBER if mean is None else f"{mean.mean:.3f}"
    return f"{text}{fewer(found, len(place.suite.seeds))}"


def _rank(means: Mapping[str, float], method: str) -> str:
    return f"{means[method]:.1f}" if method in means else NO_NUMBER


def _spread_text(value: Estimate, form: str = ".3f") -> str:
    """Return the mean ± how far the 95 % interval reaches; the mean alone where it has none."""
    mean = f"{value.mean:{form}}"
    if math.isnan(value.low):
        return mean
    return f"{mean} ± {max(value.mean - value.low, value.high - value.mean):.3f}"
