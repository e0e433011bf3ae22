"""TensorBoard: event files below the run's folder, for ``tensorboard --logdir RUN``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import tomli_w

from fedcrf.loggers.base import LoggedCell


class TensorBoardLogger:
    """Writes to ``RUN/tensorboard/CELL``; steps of lost rounds are written over."""

    package: ClassVar[str] = "tensorboard"

    def __init__(self, logged: LoggedCell) -> None:
        from torch.utils.tensorboard import SummaryWriter

        done = logged.rounds_done
        self._last = done
        self._writer = SummaryWriter(
            str(logged.folder / "tensorboard" / logged.cell.name),
            purge_step=done + 1 if done else None,
        )
        description = tomli_w.dumps(logged.cell.describe()).replace("\n", "\n    ")
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
