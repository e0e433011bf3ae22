"""Passes what happens in a run on to loggers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

CellEvent = CellStarted | RoundFinished | CellFinished | CellFailed


class LoggingObserver:
    """An observer of the runner that logs every cell to some tools.

    A tool that fails is named once and then left alone: no run ends because of its log.

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
        self._open: dict[tuple[CellSpec, str], CellLogger] = {}

    def __call__(self, event: Event) -> None:
        """Log one event."""
        if not isinstance(event, CellEvent):
            return
        for name in list(self._makers):
            try:
                self._log(name, event)
            except Exception as error:  # whatever a tool of others raises
                del self._makers[name]
                self._say(f"{name}: {type(error).__name__}: {error}; nothing more is logged to it")

    def _log(self, name: str, event: CellEvent) -> None:
        """Pass an event on to one cell's logger, which begins and ends with the cell."""
        place = (event.cell, name)
        if isinstance(event, CellStarted):
            logged = LoggedCell(self._folders[event.cell], event.cell, event.rounds_done)
            self._open[place] = self._makers[name](logged)
        elif place in self._open and isinstance(event, RoundFinished):
            self._open[place].log(round_values(event.record), event.record.round)
        elif place in self._open:
            result = result_values(event.summary) if isinstance(event, CellFinished) else {}
            self._open.pop(place).finish(result)


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
