"""Weights & Biases, through its own client; ``WANDB_MODE=offline`` keeps all on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fedcrf.loggers.base import LoggedCell


class WandbLogger:
    """A run of the project ``fedcrf`` (or ``WANDB_PROJECT``), grouped by the folder's name."""

    package: ClassVar[str] = "wandb"

    def __init__(self, logged: LoggedCell) -> None:
        import os

        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedcrf"),
            group=logged.folder.name,
            name=logged.cell.name,
            id=logged.identity,
            resume="allow",
            config=logged.cell.describe(),
            dir=str(logged.folder),
            reinit="create_new",
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the numbers of a round; see `CellLogger.log`."""
        self._run.log(dict(values), step=step)

    def finish(self, result: Mapping[str, float]) -> None:
        """Take the result; see `CellLogger.finish`."""
        self._run.summary.update(dict(result))
        self._run.finish(exit_code=0 if result else 1)
