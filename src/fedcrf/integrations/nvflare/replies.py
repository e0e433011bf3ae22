"""NVFlare's results of sites as replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedcrf.errors import FedcrfError
from fedcrf.integrations.replies import Metrics, check_numbers
from fedcrf.rules import State
from fedcrf.statistics import as_numpy
from fedcrf.statistics.inputs import NO_ARRAY


@dataclass(frozen=True)
class SiteReply:
    """A site's result, as `fedcrf.integrations.replies.Reply`.

    The site's name is what NVFlare has authenticated. ``sent`` is the global model, to which
    ``DIFF`` parameters are added; ``weighted_by`` names the count of examples, in ``FLModel.meta``
    or ``FLModel.metrics``.
    """

    node: str
    content: FLModel
    sent: State
    weighted_by: str

    def metrics(self) -> Metrics:
        """Return the numbers among its metrics, and its count of examples."""
        given = self.content.metrics or {}
        meta = self.content.meta or {}
        numbers = {name: value for name, value in given.items() if _is_number(value)}
        count = meta.get(self.weighted_by, numbers.get(self.weighted_by))
        if not _is_number(count):
            why = "no" if count is None else f"{count!r}, which is no number, as"
            raise FedcrfError(
                f"gives {why} '{self.weighted_by}': let it send FLModel(params=..., "
                f"meta={{'{self.weighted_by}': its count of examples}})"
            )
        return {**numbers, self.weighted_by: count}

    def model(self) -> State:
        """Return its tensors; those of ``DIFF`` parameters are added to the global model's."""
        state = as_state(self.content.params)
        if self.content.params_type != ParamsType.DIFF:
            return state
        with np.errstate(over="ignore", invalid="ignore"):  # no rule gives weight to infinities
            return {name: _added(self.sent.get(name), change) for name, change in state.items()}


def as_state(params: Any) -> State:
    """Return parameters as arrays; NumPy arrays and torch tensors of the host are not copied.

    Raises:
        FedcrfError: They are not arrays of real numbers by name.
    """
    if not isinstance(params, Mapping):
        raise FedcrfError(f"holds parameters of type {type(params).__name__}, not arrays by name")
    state = {}
    for name, value in params.items():
        materialize = getattr(value, "materialize", None)  # tensors that NVFlare left on disk
        try:
            array = as_numpy(materialize() if callable(materialize) else value)
        except NO_ARRAY:
            array = np.array(None)
        check_numbers(name, array)
        state[str(name)] = array
    return state


def _added(model: Any, change: Any) -> Any:
    """Return model + change; change alone where they do not fit, which is said later."""
    fits = model is not None and model.shape == change.shape
    return model + change if fits else change


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating)
