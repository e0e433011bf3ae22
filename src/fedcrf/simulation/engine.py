"""Who carries out a round's work on the clients' data: this process, or several beside it.

A worker process has one thread and works for one client at a time, the largest first; data, models
and scores lie in shared memory. Every client's training depends on nothing but the global model and
its own random stream, so the results are the same to the bit however many workers there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedcrf.rules import RESIDUAL_LOSS, ClientReport, State
from fedcrf.simulation.evaluation import Scores, evaluation_of, score
from fedcrf.simulation.federation import Examples
from fedcrf.simulation.mlp_training import trainer
from fedcrf.simulation.randomness import Stream, generator, torch_seed
from fedcrf.simulation.round_memory import RoundMemory
from fedcrf.simulation.work import Trained, Work


class Engine(Protocol):
    """Trains the clients of a round and scores a global model."""

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Return every participant's report and mean training loss, in the order of clients.

        The reports' arrays hold until the next call.
        """
        ...

    def score(self, model: State) -> Mapping[str, Scores]:
        """Return the scores of a model on every evaluated set."""
        ...


class LocalEngine:
    """Does everything in this process, one client after the other."""

    def __init__(self, work: Work, memory: RoundMemory | None = None) -> None:
        self._work = work
        self._memory = memory or RoundMemory.of(work)
        self._network = work.network()
        self._trainer = trainer(self._network, work.training, work.fewest_in_a_step)

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Train every participant; see `Engine.train`."""
        self._memory.publish(model)
        clients = self._work.participants(number)
        trained = self.train_clients(list(enumerate(clients)), number)
        return self._memory.reports(self._work, clients, trained)

    def score(self, model: State) -> Mapping[str, Scores]:
        """Score a model; see `Engine.score`."""
        self._memory.publish(model)
        for name, examples in self._work.evaluated().items():
            self.score_part(name, 0, len(examples))
        return self._memory.scores

    def train_clients(self, clients: Sequence[tuple[int, int]], number: int) -> list[Trained]:
        """Train clients from the published model, each into its slot of the memory.

        Args:
            clients: Slot and number of each client.
            number: The round.

        Returns:
            What each client's training came to.
        """
        work, trained = self._work, []
        with torch.random.fork_rng(devices=[]):  # dropout and the like draw from it
            for slot, client in clients:
                self._load()
                shuffle = generator(work.seed, Stream.SHUFFLE, number, client)
                self._seed(torch_seed(work.seed, Stream.TRAINING, number, client))
                examples = work.examples(client, number)
                loss = self._trainer(examples, work.objective, shuffle)
                torch._foreach_copy_(self._memory.client(slot), self._tensors())
                trained.append(Trained(loss, self._evidence(examples)))
        return trained

    def score_part(self, name: str, start: int, stop: int) -> None:
        """Score the published model on some of the examples of a set, into the memory."""
        self._load()
        examples, scores = self._work.evaluated()[name], self._memory.scores[name]
        part = Examples(examples.images[start:stop], examples.labels[start:stop])
        found = score(self._network, part, self._work.evaluation_batch_size)
        scores.losses[start:stop] = found.losses
        scores.correct[start:stop] = found.correct

    def _evidence(self, examples: Examples) -> dict[str, float]:
        """Return what a client reports of the model that it trained, which the network holds."""
        if RESIDUAL_LOSS not in self._work.evidence:
            return {}
        scores = score(self._network, examples, self._work.evaluation_batch_size)
        return {RESIDUAL_LOSS: evaluation_of(scores).loss}

    def _load(self) -> None:
        """Put the published model into the network."""
        torch._foreach_copy_(self._tensors(), list(self._memory.model.values()))

    def _seed(self, seed: int) -> None:
        # torch.manual_seed keeps a note for every device there might be, a trace of the stack each.
        torch.default_generator.manual_seed(seed)
        if self._work.on_gpu:
            torch.cuda.manual_seed(seed)

    def _tensors(self) -> list[Tensor]:
        """Return the network's tensors; asked anew, since a module may replace a buffer."""
        return list(self._network.state_dict().values())
