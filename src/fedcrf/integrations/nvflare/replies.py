"""NVFlare's results of sites as replies."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedcrf.errors import FedcrfError
from fedcrf.integrations.replies import Metrics, changed, state_of
from fedcrf.rules import State


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
        numbers = {name: value for name, value in given.items() if isinstance(value, Real)}
        count = meta.get(self.weighted_by, numbers.get(self.weighted_by))
        if not isinstance(count, Real):
            why = "no" if count is None else f"{count!r}, which is no number, as"
            raise FedcrfError(
                f"gives {why} '{self.weighted_by}': let it send FLModel(params=..., "
                f"meta={{'{self.weighted_by}': its count of examples}})"
            )
        return {**numbers, self.weighted_by: count}

    def model(self) -> State:
        """Return its tensors; those of ``DIFF`` parameters are added to the global model's."""
        state = as_state(self.content.params)
        return changed(self.sent, state) if self.content.params_type == ParamsType.DIFF else state


def as_state(params: Any) -> State:
    """Return parameters as arrays; NumPy arrays and torch tensors of the host are not copied.

    Raises:
        FedcrfError: They are not arrays of real numbers by name.
    """
    return state_of(params, _materialized)


def _materialized(value: Any) -> Any:
    """Return a tensor that NVFlare may have left on disk."""
    materialize = getattr(value, "materialize", None)
    return materialize() if callable(materialize) else value
