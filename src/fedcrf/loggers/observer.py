"""Passes what happens in a run on to loggers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.experiments.grid import (
    CellFailed,
    CellFinished,
    CellStarted,
    Event,
    RoundFinished,
)
from fedcrf.experiments.spec import CellSpec
from fedcrf.extras import mend
from fedcrf.loggers.base import CellLogger, LoggedCell, MakeLogger, result_values, round_values


class LoggingObserver:
    """An observer of the runner that logs every cell to some tools.

    A tool that fails is told about once and left alone from then on: no run ends for its log.

    Args:
        makers: The loggers by name.
        folders: The run's folder of each cell.
        say: Takes a line for the user.
    """

    def __init__(
        self,
        makers: Mapping[str, MakeLogger],
        folders: Mapping[CellSpec, Path],
        say: Callable[[str], None],
    ) -> None:
        self._makers = dict(makers)
        self._folders = folders
        self._say = say
        self._open: dict[CellSpec, dict[str, CellLogger]] = {}

    def __call__(self, event: Event) -> None:
        """Log one event."""
        match event:
            case CellStarted(cell, rounds_done):
                logged = LoggedCell(self._folders[cell], cell, rounds_done)
                self._open[cell] = {}
                for name in list(self._makers):
                    self._attempt(name, partial(self._make, name, logged))
            case RoundFinished(cell, record):
                values = round_values(record)
                self._each(cell, lambda logger: logger.log(values, record.round))
            case CellFinished(cell, summary):
                result = result_values(summary)
                self._each(cell, lambda logger: logger.finish(result))
                self._open.pop(cell, None)
            case CellFailed(cell, _):
                self._each(cell, lambda logger: logger.finish({}))
                self._open.pop(cell, None)

    def _make(self, name: str, logged: LoggedCell) -> None:
        self._open[logged.cell][name] = self._makers[name](logged)

    def _each(self, cell: CellSpec, do: Callable[[CellLogger], None]) -> None:
        for name, logger in list(self._open.get(cell, {}).items()):
            if name in self._makers:
                self._attempt(name, partial(do, logger))

    def _attempt(self, name: str, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # whatever a tool of others raises
            del self._makers[name]
            self._say(f"{name}: {type(error).__name__}: {error}; nothing more is logged to it")


def find_loggers(names: Sequence[str], known: Mapping[str, MakeLogger]) -> dict[str, MakeLogger]:
    """Return the loggers of those names.

    Raises:
        FedcrfError: No such logger, or its tool is not installed.
    """
    for name in names:
        if name not in known:
            raise unknown_name("logger", name, known)
        package = getattr(known[name], "package", None)
        if package is not None and find_spec(package) is None:
            missing = ModuleNotFoundError(name=package)
            raise FedcrfError(f"--log {name}: {mend(missing)}")
    return {name: known[name] for name in names}
