"""Attacks: what hostile clients do, or clients that harm without meaning to.

An attack is a frozen dataclass in the file of its family and a line in `ATTACKS`; its fields are
its settings, and a run's description may set them by name. `Schedule` says in which rounds.
"""

from collections.abc import Mapping

from fedcrf.attacks.adaptive import (
    Adaptive,
    FalseResponse,
    Opportunist,
    Optimal,
    OptimalALIE,
    OptimalInnerProductManipulation,
    Sleeper,
    Stealthy,
)
from fedcrf.attacks.base import Attack, DataAttack, Forgery, Scene, Schedule, Threat
from fedcrf.attacks.data import (
    Backdoor,
    BadNets,
    DistributedBackdoor,
    EdgeCase,
    FeatureNoise,
    LabelFlip,
    LabelNoise,
)
from fedcrf.attacks.simple import (
    FreeRider,
    GaussianNoise,
    InflatedCount,
    NotFinite,
    PoisonedFL,
    Scaling,
    SignFlip,
    StaleFreeRider,
    StatisticalMimicry,
)
from fedcrf.attacks.statistical import (
    ALIE,
    Drift,
    HybridSparse,
    InnerProductManipulation,
    Mimic,
    MinMax,
    MinSum,
    Opposed,
)
from fedcrf.extensions import check_class, find

ATTACKS: Mapping[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "scaling": Scaling,
    "gaussian": GaussianNoise,
    "poisonedfl": PoisonedFL,
    "mimicry": StatisticalMimicry,
    "alie": ALIE,
    "hybrid-sparse": HybridSparse,
    "ipm": InnerProductManipulation,
    "opposed": Opposed,
    "drift": Drift,
    "min-max": MinMax,
    "min-sum": MinSum,
    "mimic": Mimic,
    "free-rider": FreeRider,
    "stale-free-rider": StaleFreeRider,
    "inflated-count": InflatedCount,
    "not-finite": NotFinite,
    "label-flip": LabelFlip,
    "label-noise": LabelNoise,
    "feature-noise": FeatureNoise,
    "badnets": BadNets,
    "dba": DistributedBackdoor,
    "edge-case": EdgeCase,
    "optimal-ipm": OptimalInnerProductManipulation,
    "optimal-alie": OptimalALIE,
    "adaptive": Adaptive,
    "stealthy": Stealthy,
    "false-response": FalseResponse,
    "sleeper": Sleeper,
    "opportunist": Opportunist,
}

RENAMED: Mapping[str, str] = {"false-answer": "false-response", "flatterer": "sleeper"}
"""Today's names of attacks by their earlier ones, which are accepted."""


def find_attack(name: str) -> type[Attack]:
    """Return the attack of that name: one of `ATTACKS`, or from outside.

    A `FedcrfError` says that there is none, or that it is no such class; see `fedcrf.extensions`.
    """
    found: type[Attack] = find("attack", name, ATTACKS)
    check_class("attack", name, found, Attack)
    return found


__all__ = [
    "ALIE",
    "ATTACKS",
    "RENAMED",
    "Adaptive",
    "Attack",
    "Backdoor",
    "BadNets",
    "DataAttack",
    "DistributedBackdoor",
    "Drift",
    "EdgeCase",
    "FalseResponse",
    "FeatureNoise",
    "Forgery",
    "FreeRider",
    "GaussianNoise",
    "HybridSparse",
    "InflatedCount",
    "InnerProductManipulation",
    "LabelFlip",
    "LabelNoise",
    "Mimic",
    "MinMax",
    "MinSum",
    "NotFinite",
    "Opportunist",
    "Opposed",
    "Optimal",
    "OptimalALIE",
    "OptimalInnerProductManipulation",
    "PoisonedFL",
    "Scaling",
    "Scene",
    "Schedule",
    "SignFlip",
    "Sleeper",
    "StaleFreeRider",
    "StatisticalMimicry",
    "Stealthy",
    "Threat",
    "find_attack",
]
