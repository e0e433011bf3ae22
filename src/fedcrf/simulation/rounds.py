"""The federated loop: broadcast, local training, aggregation, evaluation, stopping."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedcrf.models import ModelPlan
from fedcrf.objectives import Objective
from fedcrf.rules import ClientReport, Rule, State
from fedcrf.simulation.evaluation import evaluate, evaluate_clients
from fedcrf.simulation.federation import Federation
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.randomness import Stream, generator, torch_seed
from fedcrf.simulation.records import (
    ClientMetrics,
    Metrics,
    RoundRecord,
    Seconds,
    brief,
    reasons_of,
)
from fedcrf.simulation.stopping import EarlyStopping
from fedcrf.simulation.training import Trainer, trainer
from fedcrf.statistics import as_numpy


@dataclass(frozen=True)
class RunState:
    """Everything a run needs to go on: with it and the settings, the rest is determined.

    Attributes:
        round: Rounds done.
        model: The global model.
        best_model: The global model of the round with the lowest validation loss.
        stopping: What early stopping has seen.
    """

    round: int
    model: State
    best_model: State
    stopping: EarlyStopping

    @property
    def reported_model(self) -> State:
        """The best model; the last one where no validation loss was ever finite."""
        return self.best_model if self.stopping.best_round else self.model


@dataclass(frozen=True)
class Simulation:
    """One federated run: who trains what on which data, and how the server decides.

    Attributes:
        federation: The clients' data.
        model: The network's plan.
        objective: What a client minimises.
        rule: How the server aggregates.
        training: The clients' local training.
        stopping: When to stop early.
        max_rounds: When to stop at the latest.
        evaluation_batch_size: Examples evaluated at once.
        seed: Fixes initial model and client shuffles; the partition too where it made the
            federation.
    """

    federation: Federation
    model: ModelPlan
    objective: Objective
    rule: Rule
    training: LocalTraining = field(default_factory=LocalTraining)
    stopping: EarlyStopping = field(default_factory=EarlyStopping)
    max_rounds: int = 150
    evaluation_batch_size: int = 256
    seed: int = 0

    def start(self) -> RunState:
        """Return the state before the first round: the seed's initial model."""
        model = _state_of(self._network())
        return RunState(round=0, model=model, best_model=model, stopping=self.stopping)

    def finished(self, state: RunState) -> bool:
        """Tell whether the run ends with this state."""
        return state.stopping.stopped or state.round >= self.max_rounds

    def rounds(self, state: RunState) -> Iterator[tuple[RunState, RoundRecord]]:
        """Run the rounds after ``state``, to the end; yield each one's state and record."""
        network = self._network()
        train = trainer(network, self.training)
        while not self.finished(state):
            state, record = self._round(network, train, state)
            yield state, record

    def _network(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(self.seed, Stream.MODEL))
            network = self.model.build(self.federation.image_shape, self.federation.num_classes)
        device = self.federation.validation.labels.device
        if device.type == "cuda" or self.training.precision == "bfloat16":
            # Convolutions are fastest in this layout there; torch types it for tensors only.
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network.to(device)

    def _round(
        self, network: nn.Module, train: Trainer, state: RunState
    ) -> tuple[RunState, RoundRecord]:
        number = state.round + 1
        started = time.perf_counter()
        reports, losses = self._train(network, train, state.model, number)
        trained = time.perf_counter()
        result = self.rule.aggregate(state.model, reports)
        aggregated = time.perf_counter()
        _load(network, result.state)
        batch_size = self.evaluation_batch_size
        validation = evaluate(network, self.federation.validation, batch_size)
        test = evaluate_clients(network, self.federation.test, batch_size)
        held_out = (
            None
            if self.federation.held_out is None
            else evaluate(network, self.federation.held_out, batch_size)
        )
        evaluated = time.perf_counter()

        stopping = state.stopping.observe(number, validation.loss)
        best = result.state if stopping.best_round == number else state.best_model
        counts = [report.num_examples for report in reports]
        record = RoundRecord(
            round=number,
            training_loss=float(np.average(losses, weights=counts)),
            validation=Metrics.of(validation),
            test=ClientMetrics.of(test),
            held_out=None if held_out is None else Metrics.of(held_out),
            clients=[report.client for report in reports],
            num_examples=counts,
            client_training_loss=brief(losses),
            weight=brief(result.weights),
            base_weight=brief(result.base_weights),
            excluded=[
                report.client for report, out in zip(reports, result.excluded, strict=True) if out
            ],
            kept_model=not result.weights.any(),
            reasons=reasons_of(result),
            seconds=Seconds(
                training=trained - started,
                aggregation=aggregated - trained,
                evaluation=evaluated - aggregated,
            ),
        )
        after = replace(state, round=number, model=result.state, best_model=best, stopping=stopping)
        return after, record

    def _train(
        self, network: nn.Module, train: Trainer, model: State, number: int
    ) -> tuple[list[ClientReport], list[float]]:
        """Train every client that has examples, from the global model."""
        reports, losses = [], []
        for client, examples in enumerate(self.federation.clients):
            if len(examples) == 0:
                continue
            _load(network, model)
            shuffle = generator(self.seed, Stream.SHUFFLE, number, client)
            with torch.random.fork_rng(devices=[]):  # dropout and the like draw from it
                torch.manual_seed(torch_seed(self.seed, Stream.TRAINING, number, client))
                losses.append(train(examples, self.objective, shuffle))
            reports.append(
                ClientReport(
                    client=client,
                    state=_state_of(network),
                    num_examples=len(examples),
                    effective_steps=self.training.effective_steps(len(examples)),
                )
            )
        return reports, losses


def _state_of(network: nn.Module) -> dict[str, NDArray[Any]]:
    """Copy the network's tensors out, in the network's order; bfloat16 becomes float32."""
    return {name: as_numpy(tensor).copy() for name, tensor in network.state_dict().items()}


def _load(network: nn.Module, state: State) -> None:
    network.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
