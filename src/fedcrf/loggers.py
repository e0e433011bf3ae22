"""Loggers: a run's numbers to the tools that people already watch their runs with.

A logger is a class with the two methods of `CellLogger`: a line in `LOGGERS`, or one of your own by
its name (`fedcrf.extensions`). It imports its tool when it is made, and names it in ``package``, so
that a missing tool is named before the run.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from fedcrf.errors import FedcrfError, in_a_line
from fedcrf.experiments.grid import (
    CellFailed,
    CellFinished,
    CellStarted,
    Event,
    RoundFinished,
)
from fedcrf.experiments.settings import flat
from fedcrf.experiments.spec import CellSpec
from fedcrf.experiments.store import CellSummary, PartitionRecord, described
from fedcrf.extensions import find
from fedcrf.extras import check_installed
from fedcrf.files import write_text
from fedcrf.rules.crf import LARGEST_AFFINITY
from fedcrf.simulation.records import Reasons, RoundRecord


@dataclass(frozen=True)
class LoggedCell:
    """The cell that a logger is made for."""

    folder: Path  # of the run
    cell: CellSpec
    rounds_done: int = 0  # rounds of an earlier execution, after which it goes on

    @property
    def identity(self) -> str:
        """The same whenever this cell of this folder goes on, and different for any other."""
        place = f"{self.folder.resolve()}/{self.cell.name}"
        return hashlib.sha256(place.encode()).hexdigest()[:16]


class CellLogger(Protocol):
    """Takes the numbers of one cell. Several exist at once where several cells run at once."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the finite numbers of a round by name; ``step`` is the round."""
        ...

    def finish(self, result: Mapping[str, float]) -> None:
        """Take the cell's result, empty where it failed; nothing comes after it."""
        ...


MakeLogger = Callable[[LoggedCell], CellLogger]
"""Begins to log a cell; raises an `ImportError` where its tool is not installed."""


def round_values(record: RoundRecord) -> dict[str, float]:
    """Return the finite numbers of a round by name; those of clients where they are few."""
    values: dict[str, float | None] = {
        "training/loss": record.training_loss,
        "validation/loss": record.validation.loss,
        "validation/accuracy": record.validation.accuracy,
        "test/accuracy": record.test.accuracy,
        "test/client_mean": record.test.client_mean,
        "test/worst_client": record.test.worst_client,
        "seconds/round": record.seconds.total,
        "seconds/aggregation": record.seconds.aggregation,
        "clients/excluded": float(len(record.excluded)),
        "held_out/accuracy": record.held_out.accuracy if record.held_out else None,
        "test/attack_success": record.attack_success,
    }
    if len(record.clients) <= LARGEST_AFFINITY:
        reasons = record.reasons or Reasons()
        by_client = {
            "weight": record.weight,
            "trust": reasons.trust,
            "reliability": reasons.reliability,
        }
        for name, numbers in by_client.items():
            if numbers:  # a field past the paper's infers no reliability
                named = zip(record.clients, numbers, strict=True)
                values |= {f"{name}/client_{client}": number for client, number in named}
    return _finite(values)


def result_values(summary: CellSummary) -> dict[str, float]:
    """Return the finite numbers of a cell's result by name."""
    names = ("test_accuracy", "validation_loss", "worst_client", "attack_success", "best_round")
    return _finite({f"result/{name}": getattr(summary, name) for name in names})


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the values that are known and finite."""
    return {
        name: float(each)
        for name, each in values.items()
        if each is not None and math.isfinite(each)
    }


class TensorBoardLogger:
    """TensorBoard, for ``tensorboard --logdir RUN``: event files in ``RUN/tensorboard/CELL``.

    Steps of lost rounds, and of a cell that begins anew, are written over.
    """

    package: ClassVar[str] = "tensorboard"

    def __init__(self, logged: LoggedCell) -> None:
        from torch.utils.tensorboard import SummaryWriter

        done = logged.rounds_done
        self._last = done
        self._writer = SummaryWriter(
            str(logged.folder / "tensorboard" / logged.cell.name),
            purge_step=done + 1,
        )
        description = described(logged.cell).replace("\n", "\n    ")
        self._writer.add_text("description", f"    {description}", global_step=done)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the numbers of a round; see `CellLogger.log`."""
        self._last = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)
        self._writer.flush()

    def finish(self, result: Mapping[str, float]) -> None:
        """Take the result; see `CellLogger.finish`."""
        self.log(result, self._last)
        self._writer.close()


class WandbLogger:
    """Weights & Biases: a run of the project ``fedcrf`` (or ``WANDB_PROJECT``), grouped by folder.

    ``WANDB_MODE=offline`` keeps all on this machine. A cell that goes on continues its run, whose
    id lies in ``RUN/wandb``; one that begins anew has a new run.
    """

    package: ClassVar[str] = "wandb"

    def __init__(self, logged: LoggedCell) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedcrf"),
            group=logged.folder.name,
            name=logged.cell.name,
            id=self.run_id(logged),
            resume="allow",
            config=logged.cell.describe(),
            dir=str(logged.folder),
            reinit="create_new",
        )

    @staticmethod
    def run_id(logged: LoggedCell) -> str:
        """Return the id of the cell's run: a new one where the cell begins."""
        kept = logged.folder / "wandb" / f"{logged.cell.name}.id"
        if logged.rounds_done:
            return kept.read_text() if kept.exists() else logged.identity  # of an earlier version
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, secrets.token_hex(8))
        return kept.read_text()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the numbers of a round; see `CellLogger.log`."""
        self._run.log(dict(values), step=step)

    def finish(self, result: Mapping[str, float]) -> None:
        """Take the result; see `CellLogger.finish`."""
        self._run.summary.update(dict(result))
        self._run.finish(exit_code=0 if result else 1)


class MlflowLogger:
    """MLflow: a run of the experiment ``fedcrf`` (or ``MLFLOW_EXPERIMENT_NAME``).

    ``MLFLOW_TRACKING_URI`` names the store.
    """

    package: ClassVar[str] = "mlflow"
    identity_tag: ClassVar[str] = "fedcrf.cell"

    def __init__(self, logged: LoggedCell) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedcrf")
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        earlier = self._client.search_runs(
            [experiment], f"tags.`{self.identity_tag}` = '{logged.identity}'", max_results=1
        )
        if earlier and logged.rounds_done:
            self._run = earlier[0].info.run_id
            return
        tags = {self.identity_tag: logged.identity, "fedcrf.folder": str(logged.folder)}
        run = self._client.create_run(experiment, tags=tags, run_name=logged.cell.name)
        self._run = run.info.run_id
        params = [Param(key, str(value)) for key, value in flat(logged.cell.describe())]
        self._client.log_batch(self._run, params=params)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the numbers of a round; see `CellLogger.log`."""
        now = int(time.time() * 1000)
        metrics = [
            self._metric(self.allowed(name), value, now, step) for name, value in values.items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, result: Mapping[str, float]) -> None:
        """Take the result; see `CellLogger.finish`."""
        self.log(result, 0)
        self._client.set_terminated(self._run, "FINISHED" if result else "FAILED")

    @staticmethod
    def allowed(name: str) -> str:
        """Return a name in MLflow's characters; a site's may have others, and be no path."""
        what, _, whose = name.partition("/")
        whose = re.sub(r"[^\w.\- ]", "_", whose)
        return f"{what}/{whose}"


LOGGERS: Mapping[str, MakeLogger] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}


class LoggingObserver:
    """An observer of the runner that logs every cell to some tools.

    A tool that fails is named once and then left alone: no run ends because of its log. ``say``
    takes a line for the user.
    """

    def __init__(self, makers: Mapping[str, MakeLogger], say: Callable[[str], None]) -> None:
        self._makers = dict(makers)
        self._say = say
        self._open: dict[tuple[Path, CellSpec, str], CellLogger] = {}

    def __call__(self, event: Event) -> None:
        """Log one event; a cell's loggers begin and end with it."""
        if isinstance(event, PartitionRecord):
            return
        cell, folder = event.cell, event.folder
        for name in list(self._makers):
            key = folder, cell, name
            try:
                match event:
                    case CellStarted(_, done):
                        self._open[key] = self._makers[name](LoggedCell(folder, cell, done))
                    case RoundFinished(_, record) if key in self._open:
                        self._open[key].log(round_values(record), record.round)
                    case CellFinished(_, summary) if key in self._open:
                        self._open.pop(key).finish(result_values(summary))
                    case CellFailed() if key in self._open:
                        self._open.pop(key).finish({})
            except (Exception, SystemExit) as error:  # whatever a tool of others raises
                del self._makers[name]
                self._say(f"{name}: {in_a_line(error)}; nothing more is logged to it")


def find_loggers(names: Sequence[str]) -> dict[str, MakeLogger]:
    """Return the loggers of those names, whose tools must be installed.

    Raises:
        FedcrfError: There is none of that name, it cannot be called, or its tool is missing.
    """
    makers = {name: find("logger", name, LOGGERS) for name in names}
    for name, maker in makers.items():
        lacking = isinstance(maker, type) and not (
            hasattr(maker, "log") and hasattr(maker, "finish")
        )
        if lacking or not callable(maker):
            raise FedcrfError(f"logger '{name}' is no logger: give a class with log and finish")
        package = getattr(maker, "package", None)
        if package is not None:
            if not (isinstance(package, str) and package):
                raise FedcrfError(f"logger '{name}': its package is {package!r}: give its name")
            check_installed(package, f"--log {name}: ")
    return makers
