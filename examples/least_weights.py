"""How little an honest client counts: the least weight of each round, from the records of runs.

python examples/least_weights.py results/limits/iid-10-sites results/limits/iid-5-sites
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedcrf.experiments.analysis.tables import Table
from fedcrf.experiments.store import Store

ROUNDS = (1, 2, 4, 6, 8, 12, 16, 20)


def least_weights(runs: Sequence[Path], method: str, rounds: Sequence[int] = ROUNDS) -> Table:
    """Return a row a run: the least weight of a client, in parts of its FedAvg weight.

    Each cell is the mean over the seeds and, in brackets, the least of any seed.
    """
    rows = []
    for folder in runs:
        store = Store(folder)
        cells = [cell for cell in store.read().cells() if cell.method.name == method]
        seeds = []
        for cell in cells:
            records = {record.round: record for record in store.cell(cell).records()}
            chosen = [records[number] for number in rounds]
            seeds.append([min(np.divide(each.weight, each.base_weight)) for each in chosen])
        by_round = zip(np.mean(seeds, axis=0), np.min(seeds, axis=0), strict=True)
        texts = (f"{mean:.2f} ({least:.2f})" for mean, least in by_round)
        rows.append((folder.name, str(len(seeds)), *texts))
    header = ("run", "seeds", *(f"round {number}" for number in rounds))
    return Table(f"The least weight of a client, {method}", header, tuple(rows))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="results folders of fedcrf run")
    parser.add_argument("--method", default="crf-robust")
    given = parser.parse_args()
    print(least_weights(given.runs, given.method).as_markdown(), end="")


if __name__ == "__main__":
    main()
