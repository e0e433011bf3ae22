"""The rules of ByzFL: its robust aggregators, with its pre-aggregators before them, by name.

A rule is called ``byzfl-AGGREGATOR``, with any pre-aggregators between the two in the order in
which they work, as in ``byzfl-nnm-krum`` or ``byzfl-arc-nnm-geometric-median``. Its settings are
ByzFL's own, except that f is ``attackers``. The package (``fedcrf[byzfl]``) is imported only when
a rule aggregates.
"""

from fedcrf.rules.byzfl.catalogue import AGGREGATORS, BYZFL_RULES, PRE_AGGREGATORS, PREFIX, Part
from fedcrf.rules.byzfl.package import byzfl_aggregators
from fedcrf.rules.byzfl.rule import ByzFLRule, bucket_size, byzfl_rule

__all__ = [
    "AGGREGATORS",
    "BYZFL_RULES",
    "PREFIX",
    "PRE_AGGREGATORS",
    "ByzFLRule",
    "Part",
    "bucket_size",
    "byzfl_aggregators",
    "byzfl_rule",
]
