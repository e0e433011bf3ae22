"""Loggers: a run's numbers to the tools that people already watch their runs with.

A logger is a class with the two methods of `CellLogger`, in a file of its own, and a line in
`LOGGERS`; it imports its tool when it is made, and names it in ``package``, so that it can be said
before the run that it is not installed.
"""

from collections.abc import Mapping

from fedcrf.loggers.base import CellLogger, LoggedCell, MakeLogger
from fedcrf.loggers.mlflow import MlflowLogger
from fedcrf.loggers.observer import LoggingObserver, find_loggers
from fedcrf.loggers.tensorboard import TensorBoardLogger
from fedcrf.loggers.wandb import WandbLogger

LOGGERS: Mapping[str, MakeLogger] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}

__all__ = ["LOGGERS", "CellLogger", "LoggedCell", "LoggingObserver", "MakeLogger", "find_loggers"]
