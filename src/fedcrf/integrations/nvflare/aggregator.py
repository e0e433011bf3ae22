"""The adapter from NVFlare's ``FedAvg`` controller to the server rules; results as replies."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import nvflare
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedcrf.errors import FedcrfError
from fedcrf.integrations.jobs import Job, JobServer
from fedcrf.integrations.replies import Metrics, changed, in_form_of_sent, quoted, state_of
from fedcrf.rules import State

LOGGER = logging.getLogger(__name__)

CONTROLLER = "controller"
"""The id that recipes give their controller."""


class RuleAggregator(ModelAggregator):  # type: ignore[misc] # NVFlare has no types
    """The aggregation of any server rule, for ``FedAvgRecipe(aggregator=...)``.

    - A site is its name, which NVFlare has authenticated.
    - A result that cannot be used (other tensors than the global model's, no count of examples) is
      excluded and named in the log and the record, and so is a site that was sent the model and
      sent nothing back. A result that is not finite gets weight 0.
    - A round without a usable result keeps the model. A second one in a row ends the job.
    - ``FULL`` and ``DIFF`` parameters are read, NumPy arrays and torch tensors. The result is
      ``FULL``, of the global model's kind and dtypes.

    The result has the metrics' means by the rule's weights and no metadata, since NVFlare sends
    metadata to the sites. Weights, reasons and memory stay in the server's run folder.

    All arguments are JSON, so that a job with it can be exported.

    Args:
        rule: Name of the server rule, as of `fedcrf.rules.find_rule`.
        settings: Its settings by name; by default its own.
        weighted_by: Name of each site's count of examples, in its ``FLModel.meta`` or ``metrics``.
            ``NUM_STEPS_CURRENT_ROUND``, which NVFlare weighs by, counts steps.
        record_to: A folder in which the job's records get a folder of their own; None for none. A
            relative path begins at the job's run folder on the server.
        checkpoint_to: A file with the memory, written after every round; None for none. If it is
            there when the job begins, the job continues from its memory. A relative path begins at
            the job's run folder: an absolute one is found by a job that is submitted again.

    Raises:
        FedcrfError: An unknown rule, or an argument or setting that cannot be.
    """

    def __init__(
        self,
        rule: str = "crf-robust",
        settings: dict[str, Any] | None = None,
        weighted_by: str = "num-examples",
        record_to: str | None = "fedcrf",
        checkpoint_to: str | None = "fedcrf.npz",
    ) -> None:
        super().__init__()
        self._job = Job(rule, settings, weighted_by, record_to, checkpoint_to)
        # NVFlare reads the arguments of a job's file from the attributes of these names.
        self.rule, self.settings, self.weighted_by = rule, settings, weighted_by
        self.record_to, self.checkpoint_to = record_to, checkpoint_to
        self._server: JobServer | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin the job, and each round when the first site fetches the model; end the job."""
        super().handle_event(event_type, fl_ctx)
        try:
            if event_type == EventType.START_RUN:
                self.begin(Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id())))
            elif event_type == AppEventType.BEFORE_TRAIN_TASK:
                shareable = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE)
                peer = fl_ctx.get_peer_context()
                sites = [] if peer is None else [peer.get_identity_name()]
                params = FLModelUtils.from_shareable(shareable).params
                self.sent(params, [*sites, *_sampled(fl_ctx)])
            elif event_type == EventType.END_RUN and self._server is not None:
                self._server.release()
        except FedcrfError as error:
            self.system_panic(str(error), fl_ctx)

    def begin(self, run_folder: Path) -> None:
        """Begin a job, without the events of one; relative paths begin at the run folder.

        Raises:
            FedcrfError: Records cannot be written there.
        """
        self._server = JobServer(
            self._job,
            run_folder,
            framework=f"nvflare {nvflare.__version__}",
            strategy=type(self).__name__,
            log=LOGGER,
            read=as_state,
        )

    def sent(self, params: Mapping[str, Any], sites: list[str]) -> None:
        """Note that sites are sent the global model; the first time in a round begins it.

        Raises:
            FedcrfError: The checkpoint is damaged, or of another rule or model; or the global model
                holds something other than real numbers.
        """
        self._begun().fetched(params, sites)

    def accept_model(self, model: FLModel) -> None:
        """Keep a site's result for the round's end."""
        self._begun().replied(str((model.meta or {}).get("client_name")), model)

    def aggregate_model(self) -> FLModel:
        """Return the next model; where the rule keeps the present one, no change of it.

        The round is recorded and saved before this returns.

        Raises:
            FedcrfError: No site was sent the model, it is the second round in a row without a
                usable result, or a file cannot be written.
        """
        decision, after, metrics = self._begun().end_round(SiteReply)
        if decision.kept_reason is not None:
            return FLModel(params_type=ParamsType.DIFF, params={}, metrics=metrics)
        full = in_form_of_sent(after, decision.round.sent)
        return FLModel(params_type=ParamsType.FULL, params=full, metrics=metrics)

    def reset_stats(self) -> None:
        """Forget the results of the round; what the rule remembers stays."""
        if self._server is not None:
            self._server.forget()

    def _begun(self) -> JobServer:
        if self._server is None:
            raise FedcrfError("the job has not begun: NVFlare sends START_RUN, or call begin()")
        return self._server


def _sampled(fl_ctx: FLContext) -> list[str]:
    """Return the sites that the controller sends the round's model to; none where it hides them."""
    controller = fl_ctx.get_engine().get_component(CONTROLLER)
    tasks = getattr(getattr(controller, "communicator", None), "_tasks", ())  # has no public name
    return [
        site
        for task in tasks
        if task.name == AppConstants.TASK_TRAIN
        for site in task.targets or ()
    ]


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
        if not isinstance(given, Mapping):
            raise FedcrfError(f"gives metrics of type {type(given).__name__}, not by name")
        numbers = {name: value for name, value in given.items() if isinstance(value, Real)}
        count = meta.get(self.weighted_by, numbers.get(self.weighted_by))
        if not isinstance(count, Real):
            said = repr(count) if isinstance(count, str) else quoted(count)
            why = "no" if count is None else f"{said}, which is no number, as"
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
