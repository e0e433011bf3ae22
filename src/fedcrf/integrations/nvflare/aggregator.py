"""The adapter from NVFlare's ``FedAvg`` controller to the server rules."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import nvflare
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedcrf.checks import Text, check_given
from fedcrf.errors import FedcrfError
from fedcrf.experiments.settings import build
from fedcrf.integrations.nvflare.replies import SiteReply, as_state
from fedcrf.integrations.replies import MetricNames, about
from fedcrf.integrations.server import RuleServer
from fedcrf.rules import find_rule
from fedcrf.statistics.inputs import in_form_of, is_torch_tensor

LOGGER = logging.getLogger(__name__)

CONTROLLER = "controller"
"""The id that recipes give their controller."""


class _Texts(TypedDict):
    """The arguments that are texts, which a job's file can hold."""

    rule: Text
    weighted_by: Text
    record_to: Text | None
    checkpoint_to: Text | None


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
        record_to: A folder that gets one for the job's records; None for none. A relative path
            begins at the job's run folder on the server.
        checkpoint_to: A file with the memory, written after every round; None for none. If it is
            there when the job begins, the job continues from its memory. A relative path begins at
            the job's run folder: an absolute one is found by a job that is submitted again.

    Raises:
        FedcrfError: An unknown rule, or arguments that are none.
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
        texts = {"rule": rule, "weighted_by": weighted_by}
        paths = {"record_to": record_to, "checkpoint_to": checkpoint_to}
        check_given({**texts, **paths}, _Texts)
        given = {} if settings is None else settings
        if not isinstance(given, Mapping):
            raise FedcrfError(f"settings is {settings!r}: give the rule's settings by name")
        try:
            json.dumps(given)
        except (TypeError, ValueError):
            raise FedcrfError(
                f"settings is {settings!r}: give numbers, texts and lists, which a job's file holds"
            ) from None
        self._rule = build(find_rule(rule), dict(given), rule)
        # NVFlare reads the arguments of a job's file from the attributes of these names.
        self.rule, self.settings, self.weighted_by = rule, settings, weighted_by
        self.record_to, self.checkpoint_to = record_to, checkpoint_to
        self._server: RuleServer | None = None
        self._lock = threading.Lock()  # sites fetch their task in threads of their own
        self._number = 0
        self._sent: Mapping[str, Any] | None = None
        self._replies: dict[str, FLModel] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin the job, and each round when the first site fetches the model."""
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
        except FedcrfError as error:
            self.system_panic(str(error), fl_ctx)

    def begin(self, run_folder: Path) -> None:
        """Begin a job, without the events of one; relative paths begin at the run folder.

        Raises:
            FedcrfError: Records cannot be written there.
        """
        self._server = RuleServer(
            self._rule,
            MetricNames(partition_id=None),  # a site is its name, whatever it says
            framework=f"nvflare {nvflare.__version__}",
            strategy=type(self).__name__,
            log=LOGGER,
            named_nodes=True,
            record_to=None if self.record_to is None else run_folder / self.record_to,
            checkpoint_to=None if self.checkpoint_to is None else run_folder / self.checkpoint_to,
        )
        self._number = 0
        self.reset_stats()

    def sent(self, params: Mapping[str, Any], sites: list[str]) -> None:
        """Note that sites are sent the global model; the first time in a round begins it.

        Raises:
            FedcrfError: The checkpoint is damaged, or of another rule or model; or the global model
                holds something other than real numbers.
        """
        server = self._begun()
        with self._lock:
            if self._sent is None:
                with about("the global model"):
                    state = as_state(params)
                if self._number == 0 and self.checkpoint_to is not None:
                    saved = server.saved()
                    if saved is not None:
                        server.go_on(saved, state)
                        LOGGER.info("Continuing after round %d with its memory", saved.round)
                self._number += 1
                server.begin_round(self._number, state, ())
                self._sent = params
            server.ask_also(sites)

    def accept_model(self, model: FLModel) -> None:
        """Keep a site's result for the round's end."""
        with self._lock:
            self._replies[str((model.meta or {}).get("client_name"))] = model

    def aggregate_model(self) -> FLModel:
        """Return the next model; where the rule keeps the present one, no change of it.

        The round is recorded and saved before this returns.

        Raises:
            FedcrfError: No site was sent the model, it is the second round in a row without a
                usable result, or a file cannot be written.
        """
        server, params = self._begun(), self._sent
        if params is None:
            raise FedcrfError(
                "no site fetched the model in this round: are they connected to the server?"
            )
        state = as_state(params)
        replies = [
            SiteReply(site, model, state, self.weighted_by) for site, model in self._replies.items()
        ]
        decision, after = server.decide(replies, self.weighted_by)
        metrics = server.averaged(decision, self.weighted_by)
        server.finish(decision, after)
        self.reset_stats()
        if decision.kept_reason is not None:
            return FLModel(params_type=ParamsType.DIFF, params={}, metrics=metrics)
        full = {
            name: in_form_of(array, params[name]) if is_torch_tensor(params[name]) else array
            for name, array in after.items()
        }
        return FLModel(params_type=ParamsType.FULL, params=full, metrics=metrics)

    def reset_stats(self) -> None:
        """Forget the results of the round; what the rule remembers stays."""
        with self._lock:
            self._sent, self._replies = None, {}

    def _begun(self) -> RuleServer:
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
