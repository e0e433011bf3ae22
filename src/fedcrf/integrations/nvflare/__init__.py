"""NVFlare: the server rules as a ``ModelAggregator`` for its ``FedAvg`` controller and recipes.

The sites' code does not change, except that it has to say how many examples it trained on.
"""

from fedcrf.extras import naming_extras

with naming_extras():
    import nvflare  # noqa: F401

from fedcrf.integrations.nvflare.aggregator import RuleAggregator

__all__ = ["RuleAggregator"]
