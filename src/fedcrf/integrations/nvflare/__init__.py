"""NVFlare: the server rules as a ``ModelAggregator`` for its ``FedAvg`` controller and recipes.

The sites' code does not change, except that it has to say how many examples it trained on.
"""

from fedcrf.extras import mend

try:
    import nvflare  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "nvflare":
        raise
    raise ModuleNotFoundError(mend(error), name=error.name) from None

from fedcrf.integrations.nvflare.aggregator import RuleAggregator

__all__ = ["RuleAggregator"]
