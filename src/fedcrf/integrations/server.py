"""A server's rounds with any rule, whatever the framework.

An adapter wraps its framework's messages as `Reply`, hands them over round by round, and sends the
models and metrics that are returned.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import check_path
from fedcrf.errors import FedcrfError, cut, in_a_line
from fedcrf.extras import mend
from fedcrf.integrations.checkpoint import (
    CLIENTS,
    MADE_BY,
    MEND,
    NODES,
    RULE,
    SIGNS,
    Checkpoint,
    Hold,
    check_writable,
    checked_memory,
)
from fedcrf.integrations.decision import Decision, TrainingRound, exclusions, few
from fedcrf.integrations.replies import (
    MOST_PARTITIONS,
    Identities,
    MetricNames,
    Metrics,
    Node,
    Reply,
    average_metrics,
    client_reports,
    evaluate_replies,
    numbers,
    train_replies,
)
from fedcrf.rules import ClientReport, Memory, Rule, State, aggregate_or_keep
from fedcrf.rules.base import misfit_of, named
from fedcrf.rules.state import floating_layers
from fedcrf.rules.wrappers import plain_rule

if TYPE_CHECKING:
    from fedcrf.integrations.recording import Recorder

MOST_UNUSABLE = 2
"""Rounds in a row without a usable reply, after which a run ends."""


class RuleServer:
    """A server's rounds, without the framework's messages.

    A round is `begin_round`, `decide`, `finish`, and `evaluated` for each evaluation of its model.
    Rounds have the framework's numbers, from 1 on in every run. From the first on the server holds
    the checkpoint, and no other process may write it. An adapter that is told when a run ends calls
    `release` then, or runs it within `until_the_end`.

    Args:
        rule: The server rule.
        metric_names: The names of the clients' metrics that the server reads.
        framework: Name and version of what carries the messages, for the records.
        strategy: Name of the adapter, for the records.
        log: Gets what becomes of replies.
        record_to: A folder in which the records of each run get a folder of their own.
        checkpoint_to: A file that is written after every round.
        memory: `memory` of the server of an earlier run, to continue from; by default none.
        named_nodes: Whether the ids of nodes are names instead of numbers.
        read: Returns the framework's global model as arrays by name; by default it is a mapping of
            them already.

    Raises:
        FedcrfError: Records cannot be written there, no metric is named for the rule's evidence, or
            the memory is not a server's, or of another rule.
    """

    # Of the present run; `_begin` makes them anew.
    _identities: Identities
    _memory: Memory
    _signs: int
    _secret_rule: Rule
    _unusable: int
    _warned: set[str]

    def __init__(
        self,
        rule: Rule,
        metric_names: MetricNames | None,
        *,
        framework: str,
        strategy: str,
        log: logging.Logger,
        record_to: str | Path | None = None,
        checkpoint_to: str | Path | None = None,
        memory: Memory | None = None,
        named_nodes: bool = False,
        read: Callable[[Any], State] = dict,
    ) -> None:
        if not isinstance(rule, Rule):
            raise FedcrfError(
                f"the rule is {cut(repr(rule), 50)}, which does not derive from "
                "fedcrf.rules.Rule: give a server rule, such as CRFRobust()"
            )
        if rule.server_examples:
            raise FedcrfError(
                f"{rule.name} needs a model that the server trains on its own examples each round, "
                "which no server here has: choose another rule"
            )
        names = MetricNames() if metric_names is None else metric_names
        if not isinstance(names, MetricNames):
            raise FedcrfError(f"metric_names is {names!r}: give MetricNames(...)")
        for evidence in rule.wanted_evidence:
            names.of_evidence(evidence)  # an error where there is none
        for name, path in {"record_to": record_to, "checkpoint_to": checkpoint_to}.items():
            if path is not None:
                check_path(name, path)
        self.rule = rule  # as it is logged and recorded, without what clients must not know
        self.metric_names = names
        # The one draw that must not repeat: nobody else may know it.
        self.secret_seed = 1 + secrets.randbits(62)
        self._log = log
        self._read = read
        self._named_nodes = named_nodes
        # What runs continue from; with a memory alone, the count of rounds begins anew.
        self._origin = Checkpoint(0, {}, checked_memory(rule, memory, names=named_nodes))
        self._begin()
        self._round: TrainingRound | None = None
        self._checkpoint = None if checkpoint_to is None else Path(checkpoint_to).absolute()
        self._hold: Hold | None = None  # of the checkpoint, from a run's begin to its end
        self._end_is_said = False
        self._recorder: Recorder | None = None
        if record_to is not None:
            try:
                from fedcrf.integrations.recording import Recorder
            except ModuleNotFoundError as missing:
                raise FedcrfError(f"record_to: {mend(missing)}") from None
            self._recorder = Recorder(Path(record_to).absolute(), framework, strategy, rule)

    @property
    def memory(self) -> Memory:
        """What the next round needs of the rounds before, as arrays by name for ``numpy.savez``.

        ``nodes`` are the nodes' ids, numbers or names, and ``clients`` the rule's number of each.
        The rest is the rule's, and the secret signs: keep it on the server.
        """
        by_node = self._identities.by_node
        return {
            NODES: np.array([*by_node], dtype=np.str_ if self._named_nodes else np.uint64),
            CLIENTS: np.array([*by_node.values()], dtype=np.int64),
            SIGNS: np.array([self._signs], dtype=np.int64),
            MADE_BY: np.array([self.rule.name]),
            **{f"{RULE}{name}": array for name, array in self._memory.items()},
        }

    @property
    def rounds_before(self) -> int:
        """The rounds that a resumed run had done, which the framework does not count."""
        return self._origin.round

    def saved(self) -> Checkpoint | None:
        """Return the checkpoint, its memory checked; None where there is none yet.

        Raises:
            FedcrfError: There is no ``checkpoint_to``, or the file is damaged, or of another rule.
        """
        if self._checkpoint is None:
            raise FedcrfError(
                "no checkpoint to resume from: make the strategy with a checkpoint_to"
            )
        try:
            if not self._checkpoint.exists():
                return None
        except OSError as error:  # a name that is too long
            raise FedcrfError(f"checkpoint {self._checkpoint}: {error.strerror}") from None
        saved = Checkpoint.load(self._checkpoint)
        mend = f"give that rule, or take the checkpoint {self._checkpoint} away to begin anew"
        memory = checked_memory(self.rule, saved.memory, names=self._named_nodes, mend=mend)
        return replace(saved, memory=memory)

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Within the context a run goes on; at its end other servers may have the checkpoint."""
        self._end_is_said = True
        try:
            yield
        finally:
            self._end_is_said = False
            self.release()

    def hold(self) -> None:
        """Let no other server have the checkpoint from now on; `begin_round` does so in the first.

        Another process may have it after `release`, or when this server is not used any more. In
        this process the next server that asks gets it, unless this is within `until_the_end`.

        Raises:
            FedcrfError: Another server holds it.
        """
        if self._checkpoint is None or (self._hold is not None and self._hold.release.alive):
            return
        try:
            self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
            self._hold = Hold(self._checkpoint, ends=self._end_is_said)
        except (OSError, ImportError) as error:
            mend = "let no other server have it as checkpoint_to"
            self._log.warning("%s cannot be locked (%s): %s", self._checkpoint, error, mend)

    def release(self) -> None:
        """Let other servers have the checkpoint, as the run has ended."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    @contextmanager
    def after(self, saved: Checkpoint, model: State, num_rounds: int) -> Iterator[None]:
        """Within the context, runs continue from a checkpoint; see `go_on`."""
        own = self._origin
        self.go_on(saved, model)
        self._log.info(
            "Resuming after round %d of %d: %s", saved.round, num_rounds, self._checkpoint
        )
        try:
            yield
        finally:
            self._origin = own

    def go_on(self, saved: Checkpoint, model: State) -> None:
        """Let all further runs continue from a checkpoint; ``model`` is any model of the run.

        Raises:
            FedcrfError: The checkpoint is of another model.
        """
        misfit = misfit_of(saved.model, model)
        if misfit is not None:
            raise FedcrfError(
                f"checkpoint {self._checkpoint} holds {misfit}: is it of another run?"
            )
        self._origin = replace(saved, model={})

    def begin_round(self, number: int, sent: Any, asked: Sequence[Node]) -> None:
        """Begin a round; the first begins a run.

        ``sent`` is the global model as the framework has it. It is read until the round is decided.
        More nodes than are asked now may follow; see `ask_also`.

        Raises:
            FedcrfError: The model holds something other than real numbers, or in the first round
                numbers that are not finite, or none that the rule can use; the memory is of another
                model; records or the checkpoint cannot be written; or another server holds the
                checkpoint.
        """
        model = self.model_of(sent)
        if number == 1:
            for name, tensor in model.items():
                if not np.isfinite(tensor).all():  # no client's update would be finite either
                    raise FedcrfError(
                        f"the global model is not finite in '{name}': mend that tensor, or do not "
                        "send it"
                    )
            self._begin()
            self._check_numbers(model)
            self._check_memory(model)
            self._warn([*self._uninformed()])
            if self._checkpoint is not None:
                check_writable(self._checkpoint)
                if not self.rounds_before and self._checkpoint.exists():
                    self._warn(
                        [f"the new run replaces what {self._checkpoint} holds; 'resume' goes on"]
                    )
            self.hold()
            if self._recorder is not None:
                self._begin_records(self._recorder)
        started = time.perf_counter()
        self._round = TrainingRound(number + self.rounds_before, sent, model, tuple(asked), started)

    def model_of(self, sent: Any) -> State:
        """Return the framework's global model as arrays.

        Raises:
            FedcrfError: It holds something other than real numbers.
        """
        try:
            return self._read(sent)
        except FedcrfError as error:
            raise FedcrfError(f"the global model {error}") from None

    def ask_also(self, nodes: Iterable[Node]) -> None:
        """Add nodes to those that the round's model is sent to; a node may be there already."""
        assert self._round is not None
        self._round = replace(self._round, asked=tuple({*self._round.asked, *nodes}))

    def is_in(self, number: int) -> bool:
        """Tell whether a round has begun, and no later one."""
        return self._round is not None and self._round.number == number + self.rounds_before

    def decide(
        self, replies: Iterable[Reply], weighted_by: str
    ) -> tuple[Decision, dict[str, NDArray[Any]]]:
        """Return what became of the round's replies, in any order, and the next model.

        The model is empty if the round had no usable reply. ``weighted_by`` is the name of the
        metric that counts examples.
        """
        assert self._round is not None
        current = self._round = replace(self._round, arrived=time.perf_counter())
        usable, excluded = train_replies(
            replies,
            current.asked,
            current.state,
            weighted_by,
            self.metric_names,
            needs_steps=self.rule.needs_steps,
        )
        reports = client_reports(
            usable, self._identities, self.metric_names, self.rule.wanted_evidence
        )
        result, state = None, {}
        if reports:
            result = aggregate_or_keep(self._secret_rule, self._memory, current.state, reports)
            self._memory = result.memory
            state, result = dict(result.state), replace(result, state={})
            # The views of the messages are not needed any more: of many nodes they are large.
            reports = [replace(report, state={}) for report in reports]
        decision = Decision(current, reports, excluded, result)
        self._log_round(decision)
        return decision, state

    def averaged(self, decision: Decision, weighted_by: str) -> dict[str, Any]:
        """Return the means of the replies' metrics by the rule's weights, without the counts."""
        names = self.metric_names
        uncounted = [weighted_by, names.effective_steps, names.partition_id or weighted_by]
        return average_metrics(decision.metrics, decision.shares, without=uncounted)

    def finish(self, decision: Decision, model: State) -> None:
        """Record the round, and save it with the next global model, before its evaluation.

        Where the rule keeps the present model, this is saved, whatever ``model`` is. An error ends
        the run.

        Raises:
            FedcrfError: It is the second round in a row without a usable reply, a file cannot be
                written, or another server of this process has taken the checkpoint over.
        """
        if self._hold is not None:
            self._hold.check()
        try:
            self._finish(decision, model)
        except BaseException:
            self.release()
            raise

    def _finish(self, decision: Decision, model: State) -> None:
        number = decision.round.number
        if self._recorder is not None:
            losses = numbers(decision.metrics, self.metric_names.training_loss)
            self._recorder.trained(decision, losses)
        if self._checkpoint is not None:
            run = None if self._recorder is None else self._recorder.name
            after = model if decision.kept_reason is None else decision.round.state
            Checkpoint(number, after, self.memory, run).save(self._checkpoint)
        asked = decision.replies or decision.excluded
        self._unusable = self._unusable + 1 if asked and not decision.finite else 0
        if self._unusable >= MOST_UNUSABLE:
            raise FedcrfError(
                f"rounds {number - MOST_UNUSABLE + 1} to {number} had no usable reply, and the run "
                f"ends; in the last, {decision.kept_reason}"
            )

    def evaluations(self, replies: Iterable[Reply], weighted_by: str) -> list[Any]:
        """Return the contents of the usable evaluations, by node; log the excluded nodes."""
        contents, excluded = evaluate_replies(replies, weighted_by)
        self._log.info("aggregate_evaluate: %d usable, %d excluded", len(contents), len(excluded))
        self._warn(exclusions(excluded, self._identities.by_node))
        return contents

    def evaluated(self, number: int, metrics: Metrics | None, *, by_clients: bool) -> None:
        """Add measurements of the round's model to its record, if there is one.

        They have loss and accuracy under the names in ``metric_names``; the clients measured them
        on what they hold, or the server did. Round 0 is the last one before a run that goes on; it
        is recorded unless it was measured already. For another round than it and the present one
        nothing is recorded.
        """
        if not metrics or self._recorder is None or not (number == 0 or self.is_in(number)):
            return
        (loss,) = numbers([metrics], self.metric_names.evaluation_loss)
        (accuracy,) = numbers([metrics], self.metric_names.evaluation_accuracy)
        found = (number + self.rounds_before, loss, accuracy)
        if number == 0:
            self._recorder.evaluated_late(self._origin.run, *found, by_clients=by_clients)
        else:
            self._recorder.evaluated(*found, by_clients=by_clients)

    def _begin(self) -> None:
        """Begin a run with the memory of an earlier one, and nothing else."""
        memory = self._origin.memory
        nodes, clients = memory[NODES].tolist(), memory[CLIENTS].tolist()
        self._identities = Identities(dict(zip(nodes, clients, strict=True)))
        self._memory = named(RULE, memory) or self.rule.begin()
        self._signs = int(memory[SIGNS][0]) if SIGNS in memory else self.secret_seed
        self._secret_rule = self.rule.with_secret_signs(self._memory, self._signs)
        self._unusable = 0
        self._warned = set()

    def _begin_records(self, recorder: Recorder) -> None:
        """Begin the run's records, or go on with those of the same rule with the same settings."""
        run = self._origin.run
        changed = recorder.changed(run)
        if changed is not None:
            self._log.info("The records begin in a new folder: %s", changed)
            run = None
        folder = recorder.begin(run, self._identities.by_node, self.rounds_before)
        self._log.info("Records: %s", folder)

    def _check_numbers(self, model: State) -> None:
        """Raise a `FedcrfError` before nodes train if the rule needs numbers that are not there."""
        if any(layer.size for layer in floating_layers(model)):
            return
        begun = self._secret_rule.begin()
        if self._refusal(begun, model) and not self._refusal(begun, {"a number": np.zeros(1)}):
            raise FedcrfError(
                f"the global model holds no floating-point number, and {self.rule.name} needs "
                "some: send its numbers as float32, or choose FedAvg()"
            )

    def _check_memory(self, model: State) -> None:
        """Raise a `FedcrfError` before nodes train if the rule refuses the memory."""
        # It may refuse any single report, whatever its memory.
        if not self._memory or self._refusal(self._secret_rule.begin(), model):
            return
        error = self._refusal(self._memory, model)
        if error is None:
            return
        if not isinstance(error, FedcrfError):
            error = FedcrfError(f"the memory is damaged ({in_a_line(error)}): {MEND}")
        if self.rounds_before:  # nobody gave the memory, nor can give another
            what = re.sub("[:;] give .*", "", str(error))
            error = FedcrfError(
                f"checkpoint {self._checkpoint}: {what}; give the rule the settings that it had, "
                "or take the checkpoint away to begin anew"
            )
        raise error

    def _refusal(self, memory: Memory, model: State) -> Exception | None:
        """Return the rule's error where it decides on one report that changes nothing, if any."""
        report = ClientReport(client=0, state=model, num_examples=1.0)
        try:
            self._secret_rule.aggregate(memory, model, [report])
        except Exception as error:
            return error
        return None

    def _log_round(self, decision: Decision) -> None:
        """Log what became of a round's replies, in few lines however many there are."""
        usable, excluded = len(decision.replies), len(decision.excluded)
        self._log.info("aggregate_train: %d usable, %d excluded", usable, excluded)
        self._warn(decision.lines(self._identities.by_node))
        reason = decision.kept_reason
        if reason is not None:
            level = logging.WARNING if decision.finite else logging.ERROR
            self._log.log(level, "\t> The model stays as it is: %s", reason)
        self._warn_of_partitions(decision)
        once = sorted({cast for reply in decision.replies for cast in reply.casts})
        once += [*self._unsuited_to(usable), *self._unknown(decision)]
        for name in self.rule.wanted_evidence:
            values = [reply.evidence[name] for reply in decision.replies]
            if values and not np.isfinite(values).any():
                given = self.metric_names.of_evidence(name)
                metric = given if isinstance(given, str) else given[0]
                once.append(
                    f"no client gives a finite train metric '{metric}': the rule weighs without "
                    f"the evidence '{name}'; let the clients send it, or name another in "
                    "MetricNames"
                )
        self._warn([line for line in once if line not in self._warned])
        self._warned.update(once)

    def _warn_of_partitions(self, decision: Decision) -> None:
        """Log which nodes give a partition that is ignored; of each node once."""
        partition = self.metric_names.partition_id or ""
        ignored = {
            str(reply.node): f"gives {cut(repr(reply.metrics[partition]), 50)} as '{partition}'"
            for reply in decision.replies
            if partition and reply.partition is None and partition in reply.metrics
        }
        mend = f"which is ignored: give a whole number from 0 to {MOST_PARTITIONS - 1:,}"
        new = [node for node in ignored if node not in self._warned]
        self._warn(few([f"Node {node} {ignored[node]}, {mend}" for node in new]))
        self._warned.update(new)

    def _unknown(self, decision: Decision) -> Iterator[str]:
        """Yield that no client is known by its partition, or from the run before."""
        partition, clients = self.metric_names.partition_id, self._identities.by_node.values()
        if partition and clients and min(clients) >= MOST_PARTITIONS:
            yield (
                f"no node gives a valid train metric '{partition}': clients have numbers in order "
                "of node id, which are not the framework's partitions; let the clients send it"
            )
        rule, before = plain_rule(self.rule), {*self._origin.memory[CLIENTS].tolist()}
        if decision.round.number != self.rounds_before + 1 or not (before and decision.replies):
            return
        strangers = before.isdisjoint(reply.client for reply in decision.replies)
        if strangers and isinstance(rule, Rule) and rule.remembers:
            mend = f"send '{partition}'" if partition else "keep their names"
            yield (
                "no client of the run before took part, so what the rule remembers of them does "
                f"not count; let the clients {mend}, or authenticate the nodes"
            )

    def _uninformed(self) -> Iterator[str]:
        """Yield that the rule does not know how many clients attack, if it has to."""
        given: Any = plain_rule(self.rule)
        try:
            informed = plain_rule(self.rule.informed(1, 1000, 0))
        except Exception:  # as where it is informed of too many for so few clients
            return
        for name in {field.name for field in fields(given)} - {"seed"}:
            if getattr(given, name) is None and getattr(informed, name) is not None:
                yield (
                    f"{self.rule.name} is not informed how many clients may attack, and assumes "
                    f"few or none: give its setting {name}"
                )

    def _unsuited_to(self, num_replies: int) -> Iterator[str]:
        """Yield why the rule does not suit a round of so many replies; usually nothing."""
        if not num_replies:
            return
        try:
            self.rule.check_clients(num_replies)
        except Exception as error:
            yield f"{self.rule.name} does not suit a round of {num_replies} clients: {error}"

    def _warn(self, lines: Collection[str]) -> None:
        for line in lines:
            self._log.warning("\t> %s", line)
