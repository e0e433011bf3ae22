"""A client's tensors in the dtypes of the global model, as far as no number changes its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError
from fedcrf.rules import State
from fedcrf.statistics import is_floating


@dataclass(frozen=True, order=True)
class Cast:
    """A dtype that a client sent, and that of the global model which its numbers were given."""

    sent: str
    model: str

    @property
    def told(self) -> str:
        """What was done, in words."""
        return f"replies hold {self.sent} where the global model has {self.model}: they are cast"


def cast_as(state: State, global_state: State) -> tuple[State, frozenset[Cast]]:
    """Return a client's model in the dtypes of the global model, and what was cast for it.

    Any real number becomes a floating-point one, rounded where the global model is of less
    precision; what overflows is infinite, which no rule gives weight. Numbers become integers or
    booleans only where these hold them exactly. A tensor of the global model's dtype is not
    copied; one of another name or shape is left for the check of the whole model.

    Raises:
        FedcrfError: A number that the global model's integers or booleans do not hold.
    """
    cast: dict[str, NDArray[Any]] = dict(state)
    casts = set()
    for name, expected in global_state.items():
        sent = state.get(name)
        if sent is not None and sent.dtype != expected.dtype and sent.shape == expected.shape:
            cast[name] = _cast(name, sent, expected.dtype)
            casts.add(Cast(str(sent.dtype), str(expected.dtype)))
    return cast, frozenset(casts)


def _cast(name: str, sent: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        cast = sent.astype(dtype)
    if not is_floating(dtype) and not np.array_equal(cast, sent):
        odd = sent[cast != sent].flat[0]
        raise FedcrfError(
            f"reports {odd} in '{name}', which is {dtype} in the global model: send whole numbers "
            "that it holds"
        )
    return cast
