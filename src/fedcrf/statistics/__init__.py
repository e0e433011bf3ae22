"""d-sized work: one pass over the clients' updates, and the weighted average after it."""

from fedcrf.statistics.average import median_of, trimmed_mean_of, weighted_average
from fedcrf.statistics.crowds import (
    CrowdStatistics,
    NeighbourSearch,
    Statistics,
    crowd_statistics,
    with_nearest,
)
from fedcrf.statistics.inputs import as_layers, as_numpy, is_floating
from fedcrf.statistics.median import coordinate_median, coordinate_trimmed_mean
from fedcrf.statistics.one_pass import (
    EPSILON,
    ModelGeometry,
    UpdateGeometry,
    UpdateStatistics,
    centred_geometry,
    model_geometry,
    update_statistics,
)
from fedcrf.statistics.sketches import sketch
from fedcrf.statistics.sums import distances_to_extremes, projections

__all__ = [
    "EPSILON",
    "CrowdStatistics",
    "ModelGeometry",
    "NeighbourSearch",
    "Statistics",
    "UpdateGeometry",
    "UpdateStatistics",
    "as_layers",
    "as_numpy",
    "centred_geometry",
    "coordinate_median",
    "coordinate_trimmed_mean",
    "crowd_statistics",
    "distances_to_extremes",
    "is_floating",
    "median_of",
    "model_geometry",
    "projections",
    "sketch",
    "trimmed_mean_of",
    "update_statistics",
    "weighted_average",
    "with_nearest",
]
