"""ByzFL's aggregators and pre-aggregators, and the names of the rules they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedcrf.errors import unknown_name

PREFIX = "byzfl-"
"""Prefix of the names of ByzFL's rules."""


@dataclass(frozen=True)
class Part:
    """An aggregator or a pre-aggregator.

    Attributes:
        kind: Its class in ByzFL.
        settings: The class's parameters but for f, with their defaults; None for a whole number
            that is computed unless given.
        takes_f: Whether the class takes f.
        draws: Whether it draws random numbers.
        remembers: Whether it starts from its last result.
        of_arrays: Whether it gets NumPy arrays instead of tensors: torch's quantile takes at most
            16 million numbers.
    """

    kind: str
    settings: Mapping[str, int | float | None] = field(default_factory=dict)
    takes_f: bool = False
    draws: bool = False
    remembers: bool = False
    of_arrays: bool = False


AGGREGATORS: Mapping[str, Part] = {
    "average": Part("Average"),
    "median": Part("Median", of_arrays=True),
    "trmean": Part("TrMean", takes_f=True),
    "geometric-median": Part("GeometricMedian", {"nu": 0.1, "T": 3}),
    "krum": Part("Krum", takes_f=True),
    "multi-krum": Part("MultiKrum", takes_f=True),
    "centered-clipping": Part("CenteredClipping", {"L": 1, "tau": 100.0}, remembers=True),
    "mda": Part("MDA", takes_f=True),
    "monna": Part("MoNNA", {"idx": 0}, takes_f=True),
    "meamed": Part("Meamed", takes_f=True, of_arrays=True),
    "caf": Part("CAF", takes_f=True, draws=True),
    "smea": Part("SMEA", takes_f=True, draws=True),
}
"""ByzFL's aggregators by name; of MoNNA's ``idx`` see `ByzFLRule`."""

PRE_AGGREGATORS: Mapping[str, Part] = {
    "clipping": Part("Clipping", {"c": 2.0}),
    "arc": Part("ARC", takes_f=True),
    "nnm": Part("NNM", takes_f=True),
    "bucketing": Part("Bucketing", {"s": None}, draws=True),
}
"""ByzFL's pre-aggregators by name."""

BYZFL_RULES: Sequence[str] = tuple(
    f"{PREFIX}{before}{aggregator}"
    for before in ("", *(f"{name}-" for name in PRE_AGGREGATORS))
    for aggregator in AGGREGATORS
)
"""Every aggregator, alone and after each pre-aggregator; longer chains have names too."""


def parts_of(name: str) -> tuple[tuple[str, ...], str]:
    """Return the pre-aggregators and the aggregator in a name such as ``byzfl-nnm-krum``.

    Raises:
        FedcrfError: There is none.
    """
    before: list[str] = []
    rest = name.removeprefix(PREFIX)
    while (first := _first_pre_aggregator(rest)) not in (None, *before):
        before.append(str(first))
        rest = rest.removeprefix(f"{first}-")
    if not name.startswith(PREFIX) or rest not in AGGREGATORS:
        raise unknown_name("rule of ByzFL", name, BYZFL_RULES)
    return tuple(before), rest


def _first_pre_aggregator(rest: str) -> str | None:
    return next((name for name in PRE_AGGREGATORS if rest.startswith(f"{name}-")), None)
