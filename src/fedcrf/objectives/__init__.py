"""Client objectives: what a client minimises in its local training.

An objective is a frozen dataclass in a file of its own and a line in `OBJECTIVES`; its fields are
its settings, and a run's description may set them by name.
"""

from collections.abc import Mapping

from fedcrf.objectives.base import Objective
from fedcrf.objectives.plain import Plain
from fedcrf.objectives.proximal import Proximal

OBJECTIVES: Mapping[str, type[Objective]] = {
    "plain": Plain,
    "proximal": Proximal,
}

__all__ = ["OBJECTIVES", "Objective", "Plain", "Proximal"]
