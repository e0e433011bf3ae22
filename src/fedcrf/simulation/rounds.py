"""The federated loop, when it ends, and its state between two rounds, also on disk."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedcrf.attacks import Threat
from fedcrf.checks import Count, Natural, NotNegative, Settings
from fedcrf.errors import FedcrfError, failing
from fedcrf.files import atomic_write
from fedcrf.models import ModelPlan
from fedcrf.objectives import CLASSIFICATION, Objective, Task
from fedcrf.rules import LABEL_DIVERGENCE, AggregationResult, Memory, Rule, State
from fedcrf.rules.base import check_result, num_examples
from fedcrf.rules.state import copied
from fedcrf.simulation.adversary import Adversary
from fedcrf.simulation.engine import (
    Engine,
    Scores,
    check_evidence,
    client_evaluation_of,
    engine_for,
    evaluation_of,
    frozen_names,
    metrics_of,
    state_of,
    tensor_of,
)
from fedcrf.simulation.federation import (
    Examples,
    Federation,
    Stream,
    check_participation,
    generator,
    torch_seed,
)
from fedcrf.simulation.local_training import LocalTraining, fewest_in_a_step
from fedcrf.simulation.records import Client, RoundRecord, Seconds, Totals, brief, decided

TRIGGERED = "triggered"
"""The evaluated set on which accuracy is the success of a backdoor."""

DIVERGED = 3
"""Rounds in a row without a finite update after which a run has diverged."""


@dataclass(frozen=True)
class EarlyStopping(Settings):
    """Stops after ``patience`` rounds in a row without an improvement; a value, not an object.

    An improvement is a loss more than ``min_improvement`` below that of the last improvement; NaN
    is never one. The best round is the one with the lowest loss, by any difference.

    Attributes:
        patience: Rounds without improvement before the run stops.
        min_improvement: The least improvement, in units of the loss.
        reference_loss: The loss of the last improvement.
        rounds_without: Rounds since then.
        best_loss: The lowest loss so far.
        best_round: Its round, from 1; 0 before any finite loss.
    """

    patience: Count = 5
    min_improvement: NotNegative = 1e-4
    reference_loss: float = float("inf")
    rounds_without: int = 0
    best_loss: float = float("inf")
    best_round: int = 0

    @property
    def stopped(self) -> bool:
        """Whether the run should end here."""
        return self.rounds_without >= self.patience

    def observe(self, round_number: int, loss: float) -> EarlyStopping:
        """Return the state after the validation loss of one more round."""
        after = self
        if loss < self.best_loss:
            after = replace(after, best_loss=loss, best_round=round_number)
        if self.reference_loss - loss > self.min_improvement:
            return replace(after, reference_loss=loss, rounds_without=0)
        return replace(after, rounds_without=self.rounds_without + 1)


def lost_rounds(
    before: int,
    number: int,
    clients: Iterable[Client],
    attackers: Iterable[Client] | None,
    excluded: Iterable[Client],
    threat: Threat | None,
) -> int:
    """Return how many rounds in a row, up to this one, no honest client had a finite update.

    The outcome of an attack is a result, not divergence: rounds count only if nobody had attacked
    before the first of them. ``before`` is this number for the round before; ``excluded`` are those
    whose update was not finite.
    """
    honest = set(clients) - set(attackers or ())
    if not honest:
        return before
    if not honest <= set(excluded):
        return 0
    attacked = threat is not None and any(map(threat.schedule.active, range(1, number)))
    return 0 if attacked and not before else before + 1


def lost_so_far(before: int, record: RoundRecord, threat: Threat | None) -> int:
    """Return `lost_rounds` from the record of a round, ``before`` that of the record before."""
    if record.totals is not None:
        return record.totals.lost_rounds
    return lost_rounds(
        before, record.round, record.clients, record.attackers, record.excluded, threat
    )


def divergence(lost: int, done: int, ended: bool) -> str | None:
    """Return the message that the clients' training has diverged; None if it has not.

    It has after `DIVERGED` lost rounds, or in a run that ends and never had a finite update.
    """
    if lost < DIVERGED and not (lost and lost == done and ended):
        return None
    rounds = "a round" if lost == 1 else f"{lost} rounds in a row"
    return f"training diverged by round {done}: no client's update was finite for {rounds}"


@dataclass(frozen=True)
class RunState:
    """A run's state: with it and the settings, all later rounds are determined.

    Attributes:
        round: Rounds done.
        model: The global model.
        best_model: The global model of the round with the lowest validation loss.
        stopping: The state of early stopping.
        memory: What the rule keeps from round to round.
        attack_memory: What the attackers keep from round to round.
        lost_rounds: See the function of this name.
        personal: By name the tensors that clients keep without sending them, a row a client; their
            momenta too.
        totals: What the rounds since the last record came to; None right after a record.
    """

    round: int
    model: State
    best_model: State
    stopping: EarlyStopping
    memory: Memory = field(default_factory=dict)
    attack_memory: Memory = field(default_factory=dict)
    lost_rounds: int = 0
    personal: State = field(default_factory=dict)
    totals: Totals | None = None

    @property
    def reported_model(self) -> State:
        """The best model; the last one if no validation loss was ever finite."""
        return self.best_model if self.stopping.best_round else self.model


@dataclass(frozen=True)
class Simulation(Settings):
    """One federated run: data, model, local training, and the server's rule.

    Attributes:
        federation: The clients' data.
        model: The network's plan.
        objective: What a client minimises.
        rule: The server's rule.
        training: The clients' local training.
        stopping: When to stop early.
        max_rounds: The last round at the latest.
        evaluation_batch_size: Examples evaluated at once.
        seed: Determines the initial model, each round's clients and their shuffles; the partition
            too if the federation was made with it.
        clients_per_round: Clients drawn for each round, among those that have examples to train
            on; None for all of them.
        threat: The attack and its schedule; None if all clients are honest. The seed draws the
            attackers, whose data take no part in validation and test.
        attackers: The attackers, if the seed does not draw them.
        task: The loss, the metrics, and which tensors clients send.
        evaluate_every: Evaluate the model of every so many rounds, and that of the last one. Only
            these rounds have a record, and early stopping counts only them.

    Raises:
        FedcrfError: More clients a round than there are, an impossible attack, a rule with evidence
            that clients do not report, or too few clients for the rule.
    """

    federation: Federation
    model: ModelPlan
    objective: Objective
    rule: Rule
    training: LocalTraining = field(default_factory=LocalTraining)
    stopping: EarlyStopping = field(default_factory=EarlyStopping)
    max_rounds: Count = 150
    evaluation_batch_size: Count = 256
    seed: Natural = 0
    clients_per_round: int | None = None
    threat: Threat | None = None
    attackers: tuple[int, ...] | None = None
    task: Task = CLASSIFICATION
    evaluate_every: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_participation(self.clients_per_round, len(self.federation.clients))
        if self.threat is not None:
            self.threat.check(len(self.federation.eligible), self.clients_per_round)
        check_evidence(self.rule.wanted_evidence)
        self._check_data()
        with failing(f"rule {type(self.rule).__name__} failed ({{}})"):
            self.rule.check_clients(self.clients_per_round or len(self.federation.clients))

    def _check_data(self) -> None:
        """Raise a `FedcrfError` if the data lack what the rule needs."""
        if LABEL_DIVERGENCE in self.rule.wanted_evidence and not self.federation.num_classes:
            raise FedcrfError(
                f"{self.rule.name} weighs clients by their labels, and these data have no classes: "
                "choose another rule"
            )
        wanted, held = self.rule.server_examples, sum(map(len, self.federation.clients))
        if wanted > held:
            raise FedcrfError(
                f"{self.rule.name} needs {wanted} examples on the server, and the clients train on "
                f"{held}: give fewer (server_examples) or a larger data set"
            )
        if wanted and self.task.personal:
            raise FedcrfError(
                f"{self.rule.name} needs a model of the server's own, and clients keep "
                f"{len(self.task.personal)} tensors to themselves: choose another rule"
            )

    @cached_property
    def adversary(self) -> Adversary | None:
        """The attackers of this seed; None where all are honest."""
        if self.threat is None:
            return None
        return Adversary.of(self.threat, self.federation, self.seed, self.attackers)

    @cached_property
    def judged(self) -> Federation:
        """The federation, whose attackers take no part in validation and test."""
        if self.adversary is None:
            return self.federation
        return self.federation.judged_without(self.adversary.clients)

    def start(self) -> RunState:
        """Return the state before the first round: the seed's initial model."""
        self._check_training()
        network = self.network()
        shared = self.task.shared_tensors(network)
        named = {*shared, *self.task.personal, *frozen_names(network)}
        held = network.state_dict()
        state = {name: each for name, each in held.items() if isinstance(each, Tensor)}
        if others := [name for name in state if name not in named]:
            raise FedcrfError(
                f"'{others[0]}' is neither sent nor kept: name it as shared or personal"
            )
        places = {each.data_ptr() for each in state.values()}
        for name, each in network.named_parameters():
            if each.requires_grad and each.numel() and each.data_ptr() not in places:
                raise FedcrfError(
                    f"training changes '{name}', which the model's state_dict() lacks or copies, "
                    "so that it would pass from client to client: let state_dict() hold it itself"
                )
        model = state_of(shared)
        with failing(f"rule {type(self.rule).__name__} failed ({{}})"):
            memory = self.rule.begin()
        return RunState(
            round=0, model=model, best_model=model, stopping=self.stopping, memory=memory
        )

    def finished(self, state: RunState) -> bool:
        """Return whether the run ends with this state."""
        return state.stopping.stopped or state.round >= self.max_rounds

    def rounds(self, state: RunState, workers: int = 1) -> Iterator[tuple[RunState, RoundRecord]]:
        """Run the rounds after ``state``, to the end, as `steps`; yield those that are recorded."""
        for after, record in self.steps(state, workers):
            if record is not None:
                yield after, record

    def steps(
        self, state: RunState, workers: int = 1
    ) -> Iterator[tuple[RunState, RoundRecord | None]]:
        """Run the rounds after ``state``, to the end; yield each round's state and record, if any.

        The results do not depend on ``workers``, the number of processes that train the clients.

        Raises:
            FedcrfError: A worker process died, or training diverged; the last state shows that too.
        """
        self._check_training()
        self._check_converging(state)
        with engine_for(self, workers) as engine:
            engine.memory.publish(state.model, state.personal)
            while not self.finished(state):
                state, record = self._round(engine, state)
                yield state, record
                self._check_converging(state)

    def _check_converging(self, state: RunState) -> None:
        diverged = divergence(state.lost_rounds, state.round, self.finished(state))
        if diverged is not None:
            mend = (
                f"a smaller learning rate (--learning-rate, here {self.training.learning_rate:g})"
                if self.task.optimizer is None
                else "an optimizer of smaller steps"
            )
            raise FedcrfError(f"{diverged}; give {mend}")

    def network(self) -> nn.Module:
        """Return the seed's initial network, on the federation's device."""
        held = self.federation
        return seeded_network(
            self.model, self.seed, held.device, held.image_shape, held.num_classes
        )

    @cached_property
    def _trained_names(self) -> frozenset[str]:
        """The names of the parameters that training changes."""
        named = self.network().named_parameters(remove_duplicate=False)  # tied ones by each name
        return frozenset(name for name, each in named if each.requires_grad)

    @cached_property
    def fewest_in_a_step(self) -> int:
        """How many examples a step of the network's training needs."""
        first = self.federation.clients[self.federation.eligible[0]].images[:1]
        return fewest_in_a_step(self.network(), torch.cat([first, first]))

    def _check_training(self) -> None:
        """Raise a `FedcrfError` if nothing validates, or a step of one example needs two."""
        held = self.judged  # refuses attackers who leave nothing to validate on
        if self.fewest_in_a_step == 1:
            return
        needs = "batch norm in this model needs two in a step"
        if self.training.batch_size == 1:
            raise FedcrfError(
                f"batch_size 1: {needs}; give two or more (--batch-size) or another model (--model)"
            )
        if self.rule.server_examples == 1:
            raise FedcrfError(f"server_examples 1: {needs}; give two or more")
        for client in held.eligible:
            if len(held.clients[client]) == 1:
                (called,) = held.called([client])
                raise FedcrfError(
                    f"client {called} has one example to train on, and {needs}: give clients more "
                    "(--min-examples, --clients), or choose another model (--model)"
                )

    @property
    def most_participants(self) -> int:
        """How many clients train in a round: at most all that have examples."""
        all_of_them = len(self.federation.eligible)
        return min(self.clients_per_round or all_of_them, all_of_them)

    def participants(self, number: int) -> list[int]:
        """Return the clients that train in a round, in order; they are drawn anew each round."""
        draw = generator(self.seed, Stream.PARTICIPATION, number)
        drawn = draw.choice(self.federation.eligible, self.most_participants, replace=False)
        return sorted(drawn.tolist())

    @property
    def server(self) -> int:
        """The number under which the server trains a model itself: that after the clients'."""
        return len(self.federation.clients)

    @cached_property
    def root(self) -> Examples:
        """The server's own examples, drawn uniformly from the union of the clean training parts.

        Clients keep them (FLTrust's root data: Cao et al., NDSS 2021, section VI).
        """
        parts = self.federation.clients
        ends = np.cumsum([len(part) for part in parts])
        draw = generator(self.seed, Stream.SERVER)
        drawn = np.zeros(ends[-1], np.bool_)
        drawn[draw.choice(ends[-1], self.rule.server_examples, replace=False)] = True
        chosen = zip(parts, np.split(drawn, ends[:-1]), strict=True)
        return Examples.joined([part[those] for part, those in chosen])

    def examples(self, client: int, number: int) -> Examples:
        """Return what a client trains on in a round, or the server."""
        if client == self.server:
            return self.root
        if self.adversary is not None and self.adversary.poisons(client, number):
            return self.adversary.poisoned[client]
        return self.federation.clients[client]

    def evaluated(self) -> Mapping[str, Examples]:
        """Return the sets of examples that every global model is evaluated on, by name."""
        held = self.judged
        sets: dict[str, Examples | None] = {
            "validation": held.validation,
            "test": held.test,
            "held_out": held.held_out,
            "set_aside": held.set_aside,
            TRIGGERED: self._triggered,
        }
        return {name: examples for name, examples in sets.items() if examples is not None}

    @cached_property
    def _triggered(self) -> Examples | None:
        """The test examples with a backdoor's trigger and its target as their label."""
        return None if self.adversary is None else self.adversary.triggered(self.judged.test)

    def effective_steps(self, num_examples: int) -> float:
        """Return what a client of so many examples reports as the steps of its update."""
        training, fewest = self.training, self.fewest_in_a_step
        if self.task.optimizer is None:
            return training.effective_steps(num_examples, fewest)
        return float(training.num_steps(num_examples, fewest))

    def _round(self, engine: Engine, state: RunState) -> tuple[RunState, RoundRecord | None]:
        number = state.round + 1
        started = time.perf_counter()
        trained_reports, losses = engine.train(state.model, number)
        rule = self.rule
        if rule.server_examples:
            rule = rule.with_server_model(engine.train_server(number))
        trained = time.perf_counter()
        reports, attackers = trained_reports, None
        attack_memory: Memory = {}
        if self.adversary is not None:
            reports, attackers, attack_memory = self.adversary.act(
                number, state.model, reports, rule, state.memory, state.attack_memory
            )
        attacked = time.perf_counter()
        with failing(f"rule '{self.rule.name}' failed in round {number} ({{}})"):
            result = rule.aggregate(state.memory, state.model, reports)
            check_result(result, state.model, len(reports), kept="c")
        model = engine.memory.kept(self._decayed(number, state.model, result))
        aggregated = time.perf_counter()
        clients = self.federation.called(report.client for report in reports)
        attacking = None if attackers is None else self.federation.called(attackers)
        excluded = compress(clients, result.excluded)
        lost = lost_rounds(state.lost_rounds, number, clients, attacking, excluded, self.threat)
        loss = float(np.average(losses, weights=num_examples(trained_reports)))
        personal = state_of(engine.memory.personal)
        recorded = self._is_recorded(number, lost)
        scores = engine.score(model) if recorded else {}
        seconds = Seconds(
            training=trained - started,
            aggregation=aggregated - attacked,
            evaluation=time.perf_counter() - aggregated,
        )
        totals = None
        if self.evaluate_every > 1:
            totals = Totals.of(state.totals, clients, result, loss, lost, seconds)
        after = replace(
            state,
            round=number,
            model=model,
            memory=engine.memory.kept(result.memory),
            attack_memory=engine.memory.kept(attack_memory),
            lost_rounds=lost,
            personal=personal,
            totals=None if recorded else totals,
        )
        if not recorded:
            return after, None
        record = RoundRecord(
            round=number,
            training_loss=loss,
            client_training_loss=brief(losses),
            attackers=attacking,
            kept_model=not result.weights.any(),
            kept_reason=result.kept_reason,
            seconds=seconds,
            totals=totals,
            **self._evaluation(scores),
            **decided(reports, clients, result),
        )
        stopping = state.stopping.observe(number, record.validation.loss)
        best = model if stopping.best_round == number else state.best_model
        return replace(after, best_model=best, stopping=stopping), record

    def _is_recorded(self, number: int, lost: int) -> bool:
        """Return whether a round is evaluated and has a record; ``lost`` as in `divergence`."""
        last = number >= self.max_rounds
        diverged = divergence(lost, number, last) is not None
        return last or diverged or number % self.evaluate_every == 0

    def _evaluation(self, scores: Mapping[str, Scores]) -> dict[str, Any]:
        """Return the fields of a record that follow from the scores of the round's model."""
        held, test = self.judged, scores["test"]
        fields: dict[str, Any] = {
            "validation": evaluation_of(scores["validation"]),
            "test": client_evaluation_of(test, held.test.owners),
            "metrics": metrics_of(scores),
        }
        if "held_out" in scores:
            fields["held_out"] = evaluation_of(scores["held_out"])
        if held.set_aside is not None:
            both = {of: torch.cat([each, scores["set_aside"][of]]) for of, each in test.items()}
            owners = torch.cat([held.test.owners, held.set_aside.owners])
            fields["everyone"] = client_evaluation_of(Scores(both), owners)
        if TRIGGERED in scores:
            fields["attack_success"] = evaluation_of(scores[TRIGGERED]).accuracy
        return fields

    def _decayed(self, number: int, before: State, result: AggregationResult) -> State:
        """Return the round's model, with the weight decay of the server's step."""
        decay = self.training.server_decay(number)
        if not decay or not result.weights.any():
            return result.state
        model = copied(result.state)
        for name in self._trained_names & model.keys():  # the server has no personal tensors
            model[name][...] -= model[name].dtype.type(decay) * before[name]
        return model


def seeded_network(
    plan: ModelPlan, seed: int, device: torch.device, image_shape: Any = (), num_classes: int = 0
) -> nn.Module:
    """Return a seed's initial network, on a device.

    ``image_shape`` is that of any inputs for a plan that takes them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, Stream.MODEL))
        network = plan.build(image_shape, num_classes)
    # Convolutions of images are fastest in this layout; those of volumes have no such layout. Other
    # layers may look at their tensors in a way that it does not allow.
    if all(tensor.dim() < 5 for tensor in (*network.parameters(), *network.buffers())):
        for layer in network.modules():
            if type(layer) in (nn.Conv2d, nn.ConvTranspose2d):
                layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network.to(device)


DIGEST_SIZE = 32


def save_checkpoint(path: Path, state: RunState) -> None:
    """Write the state of a run, atomically, and a digest behind it."""
    content = io.BytesIO()
    values = vars(state)
    arrays = {name: _tensors(each) for name, each in values.items() if isinstance(each, Mapping)}
    totals = None if state.totals is None else state.totals.model_dump()
    torch.save({**values, **arrays, "stopping": vars(state.stopping), "totals": totals}, content)
    with atomic_write(path) as file:
        file.write(content.getbuffer())
        file.write(_digest(content.getbuffer()))


def load_checkpoint(path: Path) -> RunState:
    """Read the state of a run."""
    mend = "delete its folder to run that cell anew"
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise FedcrfError(f"checkpoint {path} cannot be read ({error.strerror}): {mend}") from None
    saved, seal = whole[:-DIGEST_SIZE], whole[-DIGEST_SIZE:]
    if seal != _digest(saved):
        raise FedcrfError(f"checkpoint {path} is damaged, or none: {mend}")
    content = torch.load(io.BytesIO(saved), weights_only=True)  # older ones lack the last fields
    stopping, totals = EarlyStopping(**content.pop("stopping")), content.pop("totals", None)
    unknown = content.keys() - {each.name for each in fields(RunState)}
    if unknown:
        raise FedcrfError(
            f"checkpoint {path} has '{min(unknown)}', as of a later version: use the version that "
            f"wrote it, or {mend}"
        )
    for name, value in content.items():
        if isinstance(value, Mapping):  # arrays by name
            content[name] = {each: tensor.numpy() for each, tensor in value.items()}
    totals = None if totals is None else Totals(**totals)
    return RunState(**content, stopping=stopping, totals=totals)


def save_model(path: Path, state: Mapping[str, Any]) -> None:
    """Write a model as a torch ``state_dict``, atomically."""
    content = io.BytesIO()  # torch raises no error on a full disk
    torch.save(_tensors(state), content)
    with atomic_write(path) as file:
        file.write(content.getbuffer())


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_SIZE).digest()


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {
        name: each if isinstance(each, torch.Tensor) else tensor_of(each)
        for name, each in state.items()
    }
