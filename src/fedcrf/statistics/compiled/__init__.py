"""The passes over the updates as compiled code, where there is a compiler and much to do.

Sums are float64 from block to block. Within a block of a few hundred columns squares are too, since
norms are compared with each other and must not lose a digit; other products are summed in the
updates' own precision, some twenty in each lane of a register. Differences to the global model have
the models' own precision, float32 at least.
"""

from fedcrf.statistics.compiled.passes import (
    average_columns,
    greatest_places,
    median_columns,
    products_at,
    sketch_columns,
    suits,
    sum_centred,
    sum_columns,
    trimmed_mean_columns,
)

__all__ = [
    "average_columns",
    "greatest_places",
    "median_columns",
    "products_at",
    "sketch_columns",
    "suits",
    "sum_centred",
    "sum_columns",
    "trimmed_mean_columns",
]
