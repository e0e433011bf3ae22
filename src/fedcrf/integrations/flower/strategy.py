"""The one adapter from Flower's strategies to the server rules, and the CRF by its own name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, ClassVar, TypedDict, Unpack

import flwr
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedcrf.checks import (
    Checked,
    Fraction,
    Natural,
    Settings,
    Text,
    check_function,
    check_given,
    check_whole,
)
from fedcrf.errors import FedcrfError
from fedcrf.integrations.flower.messages import (
    as_record,
    as_state,
    average_by_counts,
    flower_replies,
)
from fedcrf.integrations.replies import MetricNames
from fedcrf.integrations.server import RuleServer
from fedcrf.rules import CRF, Memory, Rule

LOGGER = logging.getLogger("flwr")

AverageMetrics = Callable[[list[RecordDict], str], MetricRecord]
EvaluateModel = Callable[[int, ArrayRecord], MetricRecord | None]


class FedAvgArguments(TypedDict, total=False):
    """The arguments of Flower's ``FedAvg``, whose documentation and defaults they keep."""

    fraction_train: Fraction
    fraction_evaluate: Fraction
    min_train_nodes: Natural
    min_evaluate_nodes: Natural
    min_available_nodes: Natural
    weighted_by_key: Text
    arrayrecord_key: Text
    configrecord_key: Text
    train_metrics_aggr_fn: Annotated[AverageMetrics, Checked(check_function)] | None
    evaluate_metrics_aggr_fn: Annotated[AverageMetrics, Checked(check_function)] | None


class RuleStrategy(Settings, FedAvg):
    """Flower's federated averaging with the aggregation of any server rule.

    Nodes are sampled and messages built as ``FedAvg`` does. Replies are read in one order, neither
    copied nor changed; real numbers of another dtype than the global model's are cast.

    - A train reply that cannot be used (an error, other tensors than the global model's, a count
      that is not above 0) is excluded and named in the log. One that is not finite gets weight 0.
    - A round without a usable reply keeps the model. A second one in a row ends the run.

    Train metrics are averaged with the rule's weights, evaluations by counts of examples,
    capped at three medians. Each round has these further metrics, none of which holds NaN:

    - ``fedcrf.num-usable``, ``fedcrf.num-excluded`` and ``fedcrf.kept-model`` (0 or 1);
    - in rounds of at most 20 nodes, lists over the usable nodes in one order: ``fedcrf.node-id``,
      ``fedcrf.partition-id`` (−1 without one), ``fedcrf.weight``, ``fedcrf.base-weight``
      (FedAvg's), and with a CRF ``fedcrf.trust`` and its causes, such as ``fedcrf.reliability``;
    - there too the ids of nodes in ``fedcrf.excluded`` and ``fedcrf.not-finite``.

    A rule that remembers identifies a client by its node, and from run to run by the partition that
    its node gave first; see `Identities`.

    Round 1 begins a new run: each ``start`` finds the strategy as it was made, whatever ran before.
    To continue from the run of another strategy, ``first``, hand over its memory:
    ``RuleStrategy(rule, memory=first.memory).start(grid, result.arrays)``. `resume` continues a
    run after a kill.

    A rule that compares clients by sketches, as ``CRFRobust()`` does, gets secret random signs.
    They are in the memory, but in no log or record. Give a ``sketch_seed`` to repeat a run to the
    bit.

    Args:
        rule: The server rule, such as ``CRFRobust()``, or ``Optimized(CRF(), Adam())``.
        metric_names: The names of the clients' metrics that the server reads.
        record_to: A folder in which each run's records get one of their own when its first round
            begins, for ``fedcrf show``. A relative path is the server process's.
        checkpoint_to: A file that is written after every round, for `resume`.
        memory: `memory` of the strategy of an earlier run, to continue from; by default none.
        **arguments: Those of Flower's ``FedAvg``.

    Raises:
        FedcrfError: An argument is unknown or not possible, ``record_to`` cannot be written, no
            metric is named for the rule's evidence, or the memory is not a strategy's, or of
            another rule.
    """

    gone: ClassVar[Mapping[str, str]] = {  # of strategies of Flower's earlier API
        "evaluate_fn": "give it to start()",
        "initial_parameters": "give the model to start(), as initial_arrays",
    }

    def __init__(
        self,
        rule: Rule,
        *,
        metric_names: MetricNames | None = None,
        record_to: str | Path | None = None,
        checkpoint_to: str | Path | None = None,
        memory: Memory | None = None,
        **arguments: Unpack[FedAvgArguments],
    ) -> None:
        check_given(arguments, FedAvgArguments)
        super().__init__(**arguments)
        self._server = RuleServer(
            rule,
            metric_names,
            framework=f"flwr {flwr.__version__}",
            strategy=type(self).__name__,
            log=LOGGER,
            record_to=record_to,
            checkpoint_to=checkpoint_to,
            memory=memory,
            read=as_state,
        )
        self.rule, self.metric_names = self._server.rule, self._server.metric_names
        self._sent: list[Metadata] = []  # of the last messages; Flower gives them ids as they go
        if arguments.get("train_metrics_aggr_fn") is None:
            self.train_metrics_aggr_fn = average_by_counts
        if arguments.get("evaluate_metrics_aggr_fn") is None:
            self.evaluate_metrics_aggr_fn = average_by_counts

    @property
    def memory(self) -> Memory:
        """What the next round needs of the rounds before; see `RuleServer.memory`."""
        return self._server.memory

    @property
    def rounds_before(self) -> int:
        """The rounds that a resumed run had done; Flower counts from 1 again."""
        return self._server.rounds_before

    def summary(self) -> None:
        """Log the rule with its settings, then what ``FedAvg`` logs."""
        LOGGER.info("\t├──> Rule: %s", self.rule)
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateModel | None = None,
    ) -> Result:
        """Run the rounds as ``FedAvg`` does; what ``evaluate_fn`` returns is recorded too.

        Raises:
            FedcrfError: Two rounds in a row without a usable reply, ``num_rounds`` is no whole
                number, or ``initial_arrays`` is no ``ArrayRecord``.
        """
        check_whole("num_rounds", num_rounds, least=0)
        _check_arrays(initial_arrays)

        def evaluated(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            assert evaluate_fn is not None
            metrics = evaluate_fn(number + self.rounds_before, arrays)
            self.record_evaluation(number, metrics)
            return metrics

        with self._server.until_the_end():
            return super().start(
                grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config,
                None if evaluate_fn is None else evaluated,
            )  # fmt: skip

    def resume(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateModel | None = None,
    ) -> Result:
        """Continue from the checkpoint if there is one, else start.

        Nodes are sent the numbers of the rounds still to do. The result has those rounds alone,
        under these numbers. Records continue in the folder of the run, if it is still there and of
        the same settings. ``evaluate_fn`` measures the checkpoint's model first, which is recorded
        if a kill came before it. The model is the same to the bit as without the stop, if the same
        nodes take part and their training depends only on what they are sent.

        Arguments are those of ``start``: the arrays of the run's start, which the checkpoint's
        replace, and the rounds of the whole run.

        Raises:
            FedcrfError: There is no ``checkpoint_to``; the file is damaged, of another rule or
                model, or being written by another server; or as ``start``.
        """
        check_whole("num_rounds", num_rounds, least=0)
        _check_arrays(initial_arrays)
        others = (timeout, train_config, evaluate_config, evaluate_fn)
        with self._server.until_the_end():
            self._server.hold()
            saved = self._server.saved()
            if saved is None:
                return self.start(grid, initial_arrays, num_rounds, *others)
            with self._server.after(saved, self._server.model_of(initial_arrays), num_rounds):
                arrays = as_record(dict(saved.model))
                if saved.round >= num_rounds:
                    result = Result(arrays=arrays)
                    metrics = None if evaluate_fn is None else evaluate_fn(saved.round, arrays)
                    if metrics is not None:
                        self.record_evaluation(0, metrics)
                        result.evaluate_metrics_serverapp[saved.round] = metrics
                    return result
                result = self.start(grid, arrays, num_rounds - saved.round, *others)
        return _counted_from(saved.round, result)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of ``FedAvg``, and keep their model for the aggregation.

        An override that does not call this method ends with `begin_round`.

        Raises:
            FedcrfError: As `begin_round`.
        """
        number = server_round + self.rounds_before
        return self.begin_round(
            server_round, arrays, super().configure_train(number, arrays, config, grid)
        )

    def begin_round(
        self, server_round: int, arrays: ArrayRecord, messages: Iterable[Message]
    ) -> list[Message]:
        """Begin a round, and return its messages.

        A ``configure_train`` that does not call this class's own ends with it::

            def configure_train(self, server_round, arrays, config, grid):
                messages = ...  # to any nodes, with any content
                return self.begin_round(server_round, arrays, messages)

        The messages go to the nodes that train, and carry the arrays of the global model.

        Raises:
            FedcrfError: The model holds something other than real numbers, or none that the rule
                can use; the memory is of another model; records or the checkpoint cannot be
                written; or another server is writing the checkpoint.
        """
        # Also where a run begins: strategies that wrap this one replace ``start``.
        messages = self.note_sent(messages)
        asked = [each.dst_node_id for each in self._sent]
        self._server.begin_round(server_round, arrays, asked)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next model, or the present one where the rule keeps it, and metrics.

        The round is recorded and saved before this returns, and so before its evaluation.

        Raises:
            FedcrfError: The round was not begun by `configure_train` or `begin_round`, it is the
                second in a row without a usable reply, or a file cannot be written.
        """
        if not self._server.is_in(server_round):
            raise FedcrfError(
                f"aggregate_train of round {server_round}: call configure_train of it first; one's "
                "own configure_train ends with return self.begin_round(server_round, arrays, "
                "messages)"
            )
        decision, state = self._server.decide(
            flower_replies(replies, self._sent), self.weighted_by_key
        )
        metrics = MetricRecord()
        if self.train_metrics_aggr_fn is average_by_counts:
            metrics.update(self._server.averaged(decision, self.weighted_by_key))
        elif finite := [reply.content for reply in decision.finite]:
            metrics.update(self.train_metrics_aggr_fn(finite, self.weighted_by_key) or {})
        metrics.update(decision.reasons())
        arrays = as_record(state) if decision.kept_reason is None else decision.round.sent
        self._server.finish(decision, as_state(arrays))
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of ``FedAvg``.

        An override that does not call this method ends with `note_sent`.
        """
        number = server_round + self.rounds_before
        return self.note_sent(super().configure_evaluate(number, arrays, config, grid))

    def note_sent(self, messages: Iterable[Message]) -> list[Message]:
        """Return the messages, and note to which nodes they go.

        Where a node is lost, Flower's SuperLink answers for it, under an id of its own.
        """
        messages = list(messages)
        self._sent = [message.metadata for message in messages]
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the averaged metrics of the usable evaluations; None without any."""
        contents = self._server.evaluations(
            flower_replies(replies, self._sent), self.weighted_by_key
        )
        if not contents:
            return None
        metrics = self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)
        self.record_evaluation(server_round, metrics, by_clients=True)
        return metrics

    def record_evaluation(
        self, server_round: int, metrics: MetricRecord | None, *, by_clients: bool = False
    ) -> None:
        """Add measurements of a round's model to its record, if there is one.

        `aggregate_evaluate` does so, and ``start`` for its ``evaluate_fn``. Call it in an
        ``aggregate_evaluate`` of your own, with ``by_clients=True``, or in a strategy around this
        one.

        The round is the present one, as Flower counts it; for others see `RuleServer.evaluated`.
        """
        self._server.evaluated(server_round, metrics, by_clients=by_clients)


class CRFAvg(RuleStrategy):
    """Flower's federated averaging with CRF-refined weights, and the reason for each of them.

    A drop-in for Flower's ``FedAvg``: its arguments, in its order and with its defaults, then
    the CRF's, which `fedcrf.ClientCRF` explains, and those of `RuleStrategy`. The CRF remembers
    nothing: the memory holds only the clients' identities and the signs of sketches.
    """

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: AverageMetrics | None = None,
        evaluate_metrics_aggr_fn: AverageMetrics | None = None,
        *,
        labels: tuple[float, ...] = CRF.labels,
        pairwise_strength: float = CRF.pairwise_strength,
        bandwidth: float = CRF.bandwidth,
        iterations: int = CRF.iterations,
        reliability_gate: bool = CRF.reliability_gate,
        weight_by_examples: bool = CRF.weight_by_examples,
        neighbours: int | None = CRF.neighbours,
        sketch_size: int | None = CRF.sketch_size,
        sketch_seed: int | None = CRF.sketch_seed,
        metric_names: MetricNames | None = None,
        record_to: str | Path | None = None,
        checkpoint_to: str | Path | None = None,
        memory: Memory | None = None,
    ) -> None:
        given = {n: each for n, each in locals().items() if n not in ("self", "__class__")}
        rule = CRF(**{each.name: given.pop(each.name) for each in fields(CRF)})
        super().__init__(rule, **given)


def _check_arrays(initial_arrays: object) -> None:
    """Raise a `FedcrfError` where a run's first model is not in Flower's form."""
    if not isinstance(initial_arrays, ArrayRecord):
        kind = type(initial_arrays).__name__
        raise FedcrfError(f"initial_arrays is of type {kind}: give the model as an ArrayRecord")


def _counted_from(rounds: int, result: Result) -> Result:
    """Return a result with so many rounds added to its rounds' numbers."""
    metrics = (
        {rounds + number: record for number, record in each.items()}
        for each in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        )
    )
    return Result(result.arrays, *metrics)
