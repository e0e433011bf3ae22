"""MLflow, through its own client; ``MLFLOW_TRACKING_URI`` names the store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from fedcrf.experiments.settings import flat
from fedcrf.loggers.base import LoggedCell

IDENTITY = "fedcrf.cell"


class MlflowLogger:
    """A run of the experiment ``fedcrf`` (or ``MLFLOW_EXPERIMENT_NAME``)."""

    package: ClassVar[str] = "mlflow"

    def __init__(self, logged: LoggedCell) -> None:
        import os

        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedcrf")
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        earlier = self._client.search_runs(
            [experiment], f"tags.`{IDENTITY}` = '{logged.identity}'", max_results=1
        )
        if earlier and logged.rounds_done:
            self._run = earlier[0].info.run_id
            return
        tags = {IDENTITY: logged.identity, "fedcrf.folder": str(logged.folder)}
        run = self._client.create_run(experiment, tags=tags, run_name=logged.cell.name)
        self._run = run.info.run_id
        params = [Param(key, str(value)) for key, value in flat(logged.cell.describe())]
        self._client.log_batch(self._run, params=params)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the numbers of a round; see `CellLogger.log`."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, result: Mapping[str, float]) -> None:
        """Take the result; see `CellLogger.finish`."""
        self.log(result, 0)
        self._client.set_terminated(self._run, "FINISHED" if result else "FAILED")
