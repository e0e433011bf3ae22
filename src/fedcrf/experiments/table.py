"""One tidy table of results, a row a cell, whatever folder they lie in.

Its columns are `COLUMNS`, and behind them the axes of the study that are none of these, such as
``rules.crf.bandwidth``. Strings are empty and numbers NaN where a cell does not say them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcrf.experiments.packed import Ledger
from fedcrf.experiments.settings import flat
from fedcrf.experiments.standing import CellStanding, RunStanding, standing
from fedcrf.experiments.store import RunStore, runs_below
from fedcrf.simulation.records import reported_round

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Mapping[str, Any] = {
    "method": "",
    "seed": -1,
    "dataset": "",
    "partition": "",
    "condition": "",
    "attack": "",
    "accuracy": math.nan,
    "validation_accuracy": math.nan,
    "validation_loss": math.nan,
    "best_round": -1,
    "rounds": 0,
    "everyone_accuracy": math.nan,
    "worst_client": math.nan,
    "client_mean": math.nan,
    "held_out_accuracy": math.nan,
    "seconds_per_round": math.nan,
    "aggregation_share": math.nan,
    "images_per_second": math.nan,
    "separation": None,
    "last_rounds": 0,
    "commit": "",
    "fingerprint": "",
    "stale": "",
    "damage": "",
    "complete": False,
    "folder": "",
}
"""The columns that every table has, with what stands where a cell does not say it.

``accuracy`` is the number reported: the test accuracy of the reported round, or, of a suite's cell,
the mean over its last ``last_rounds``. ``stale`` says why a cell is stale, ``complete`` whether it
has a result that counts.
"""


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table with all `COLUMNS`, in their order, and the others behind them."""
    import pandas as pd

    whole = [{**COLUMNS, **row} for row in rows]
    found = pd.DataFrame(whole, columns=None if whole else list(COLUMNS))
    return found.astype({"complete": bool})  # of no rows too


def table(folder: Path) -> pd.DataFrame:
    """Return what a folder holds: a run, runs in folders of their own, or a suite's cells.

    Of several runs the settings in which they differ are columns, by their keys in a run file.

    Raises:
        FedcrfError: It holds none of these, or its descriptions are damaged.
    """
    if (suite := Ledger(folder)).exists():
        return frame(suite_rows(suite))
    stores = [RunStore(folder)]
    if not (folder / "run.toml").exists():
        stores = runs_below(folder) or stores
    runs = [(store, standing(store)) for store in stores]
    described = [dict(flat(run.spec.describe())) for _, run in runs]
    keys = dict.fromkeys(key for each in described for key in each)
    varied = [
        key
        for key in keys
        if key not in ("methods", "seeds", "data.dataset")
        and all(key in each for each in described)
        and len({str(each.get(key)) for each in described}) > 1
    ]
    return frame(
        row
        for (store, run), each in zip(runs, described, strict=True)
        for row in run_rows(run, store.path, {key: each.get(key) for key in varied})
    )


def run_rows(run: RunStanding, folder: Path, at: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each cell of a run, finished or not.

    Args:
        run: The run.
        folder: Where it lies.
        at: Its value on each axis of the study that it is of.
    """
    for each in run.cells:
        cell = each.cell
        yield {
            "method": cell.method.name,
            "seed": cell.seed,
            "dataset": cell.data.dataset,
            "attack": cell.attack_name or "",
            "stale": each.stale or "",
            "damage": each.damage or "",
            "folder": str(folder),
            **_measured(each),
            **at,
        }


def _measured(each: CellStanding) -> dict[str, Any]:
    """Return what a finished cell came to; of another one how far it is."""
    summary = each.summary
    if summary is None:
        return {"rounds": len(each.records)}
    held_out = summary.held_out_accuracy
    found = {
        "complete": True,
        "accuracy": summary.test_accuracy,
        "validation_loss": summary.validation_loss,
        "best_round": summary.best_round,
        "rounds": summary.rounds,
        "worst_client": summary.worst_client,
        "client_mean": summary.client_mean,
        "held_out_accuracy": math.nan if held_out is None else held_out,
        "seconds_per_round": summary.seconds_per_round,
        "aggregation_share": summary.aggregation_share,
        "images_per_second": summary.images_per_second,
        "commit": summary.provenance.commit or "",
        "fingerprint": summary.fingerprint,
    }
    if each.records:
        reported = reported_round(each.records)
        found["validation_accuracy"] = reported.validation.accuracy
        found["everyone_accuracy"] = (reported.everyone or reported.test).accuracy
    return found


def suite_rows(suite: Ledger) -> Iterator[dict[str, Any]]:
    """Yield a row for each finished cell of a suite's folder.

    Raises:
        FedcrfError: The cells or their descriptions are damaged.
    """
    scores = suite.scores()
    descriptions = suite.descriptions(scores)
    for score, stale in zip(scores, suite.stale(scores, descriptions), strict=True):
        description = descriptions[score.description]
        yield {
            "method": score.method,
            "seed": score.seed,
            "dataset": description.get("data", {}).get("dataset", ""),
            "partition": score.partition,
            "condition": score.condition,
            "attack": description.get("attack", {}).get("name", ""),
            "accuracy": score.accuracy,
            "everyone_accuracy": math.nan if score.everyone is None else score.everyone,
            "worst_client": math.nan if score.worst_client is None else score.worst_client,
            "separation": score.separation,
            "last_rounds": score.last_rounds,
            "commit": score.provenance.commit or "",
            "fingerprint": score.fingerprint,
            "stale": stale,
            "complete": not stale,
            "folder": str(suite.path),
        }
