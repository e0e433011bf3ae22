"""Flower: the server rules as strategies of its Message API.

``CRFAvg`` is used exactly as Flower's ``FedAvg`` is; ``RuleStrategy`` makes a strategy of any rule.
The clients' code does not change.
"""

from fedcrf.extras import naming_extras

with naming_extras():
    import flwr  # noqa: F401

from fedcrf.integrations.flower.strategy import CRFAvg, RuleStrategy
from fedcrf.integrations.replies import MetricNames

__all__ = ["CRFAvg", "MetricNames", "RuleStrategy"]
