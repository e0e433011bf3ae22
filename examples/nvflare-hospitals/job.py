"""Five hospitals in NVFlare, one of which sends the opposite of what it learnt.

python job.py                             # in NVFlare's simulator, with crf-robust
python job.py --rule average --hostile ""  # NVFlare's own averaging, without a hostile site
python job.py --poc                       # server and sites as processes
python job.py --export jobs               # the job's folder, for an administrator to submit
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import PocEnv, SimEnv

from fedcrf.errors import FedcrfError
from fedcrf.integrations.nvflare import RuleAggregator

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from hospital import HOSPITALS, accuracy, dealt  # noqa: E402

PATIENCE = 3.0
"""Seconds that a round waits for a site that the server has removed."""

WAITS = ("dead_client_grace_period", "dead_client_check_lead_time")
"""NVFlare's settings of it: in the round in which a site is lost, 60 by default; later, 30."""


def recipe(
    rule: str, seed: int, hostile: str, rounds: int, state: str, least: int
) -> NumpyFedAvgRecipe:
    """Return the job; ``average`` is NVFlare's own averaging."""
    paths = {"checkpoint_to": str(Path(state).absolute())} if state else {}
    job = NumpyFedAvgRecipe(
        name="hospitals",
        model=[0.0] * 31,
        min_clients=least,
        num_rounds=rounds,
        train_script=str(HERE / "hospital.py"),
        train_args=f"--seed {seed}" + (f" --hostile {hostile}" if hostile else ""),
        aggregator=None if rule == "average" else RuleAggregator(rule, **paths),
    )
    if least < HOSPITALS:  # a site may be lost: the others need not wait for it for long
        job.add_server_config(dict.fromkeys(WAITS, PATIENCE))
    return job


def main() -> None:
    """Run the job, and measure its model on examples that no hospital has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", default="crf-robust", help="or average, NVFlare's own")
    parser.add_argument("--hostile", default="site-3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the dealing")
    parser.add_argument("--folder", default="nvflare-runs", help="gets the simulator's workspace")
    parser.add_argument("--state", default="", help="file with the memory, for a job begun again")
    parser.add_argument("--least", type=int, default=HOSPITALS, help="min_clients of the job")
    parser.add_argument("--poc", action="store_true", help="server and sites as processes")
    parser.add_argument("--export", help="write the job into this folder, and do not run it")
    given = parser.parse_args()
    try:
        job = recipe(given.rule, given.seed, given.hostile, given.rounds, given.state, given.least)
    except FedcrfError as error:
        sys.exit(f"error: {error}")
    if given.export:
        job.export(given.export)
        return
    sites = [f"site-{i + 1}" for i in range(HOSPITALS)]
    folder = str(Path(given.folder).absolute())
    if given.poc:
        environment = PocEnv(num_clients=HOSPITALS, clients=sites)
    else:
        environment = SimEnv(clients=sites, workspace_root=folder)
    started = time.monotonic()
    run = job.execute(environment)
    result = run.get_result(clean_up=False)  # what is downloaded lies in what would be removed
    seconds = time.monotonic() - started
    models = [*Path(str(result)).rglob("server.npy")]
    if not models:
        sys.exit(f"error: the job left no model: {run.get_status()}")
    x, y, rows = dealt(given.seed)
    measured = accuracy(np.load(models[0]).astype(float), x[rows[0]], y[rows[0]])
    print(f"{run.get_status()}; the job's folder: {result}")
    print(f"{given.rule}, hostile: {given.hostile or 'none'}, seed {given.seed}: "
          f"held-out accuracy {measured:.3f}, {seconds:.1f} s")  # fmt: skip


if __name__ == "__main__":
    main()
