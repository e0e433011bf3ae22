"""Client objectives: what a client minimises in its local training.

An objective is a frozen dataclass in a file of its own and a line in `OBJECTIVES`; its fields are
its settings, and a run's description may set them by name.
"""

from collections.abc import Mapping

from fedcrf.errors import FedcrfError
from fedcrf.extensions import check_settings, find
from fedcrf.objectives.base import Objective
from fedcrf.objectives.plain import Plain
from fedcrf.objectives.proximal import Proximal

OBJECTIVES: Mapping[str, type[Objective]] = {
    "plain": Plain,
    "proximal": Proximal,
}


def find_objective(name: str) -> type[Objective]:
    """Return the objective of that name: one of `OBJECTIVES`, or from outside.

    Raises:
        FedcrfError: There is none, or it is no objective; see `fedcrf.extensions`.
    """
    found: type[Objective] = find("objective", name, OBJECTIVES)
    check_settings("objective", name, found)
    if not hasattr(found, "correct_gradients"):
        raise FedcrfError(f"objective '{name}' lacks correct_gradients: give it that method")
    return found


__all__ = ["OBJECTIVES", "Objective", "Plain", "Proximal", "find_objective"]
