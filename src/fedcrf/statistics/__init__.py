"""d-sized work: one pass over the clients' updates, and the weighted average after it."""

from fedcrf.statistics.average import weighted_average
from fedcrf.statistics.inputs import as_layers, as_numpy
from fedcrf.statistics.one_pass import EPSILON, UpdateStatistics, update_statistics

__all__ = [
    "EPSILON",
    "UpdateStatistics",
    "as_layers",
    "as_numpy",
    "update_statistics",
    "weighted_average",
]
