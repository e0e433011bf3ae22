"""Who carries out a round's work on the clients' data: this process, or several beside it.

A worker process has one thread and works for one client at a time, the largest first; data, models
and scores lie in shared memory. Every client's training depends on nothing but the global model and
its own random stream, so the results are the same to the bit however many workers there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedcrf.rules import RESIDUAL_LOSS, ClientReport, State
from fedcrf.simulation.evaluation import Scores, evaluation_of, score
from fedcrf.simulation.federation import Examples, PooledExamples
from fedcrf.simulation.mlp_training import trainer
from fedcrf.simulation.randomness import Stream, generator, torch_seed
from fedcrf.simulation.round_memory import RoundMemory
from fedcrf.simulation.work import Trained, Work


class Engine(Protocol):
    """Trains the clients of a round and scores a global model.

    Attributes:
        memory: Where models, scores and what clients keep to themselves lie.
    """

    memory: RoundMemory

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
        self.memory = memory or RoundMemory.of(work)
        self._network = work.network()
        self._trainer = trainer(self._network, work.training, work.fewest_in_a_step, work.task)

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Train every participant; see `Engine.train`."""
        self.memory.publish(model)
        clients = self._work.participants(number)
        trained = self.train_clients(list(enumerate(clients)), number)
        return self.memory.reports(self._work, clients, trained)

    def score(self, model: State) -> Mapping[str, Scores]:
        """Score a model; see `Engine.score`."""
        self.memory.publish(model)
        for name, examples in self._work.evaluated().items():
            self.score_part(name, 0, len(examples))
        return self.memory.scores

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
                self._load(client)
                shuffle = generator(work.seed, Stream.SHUFFLE, number, client)
                self._seed(torch_seed(work.seed, Stream.TRAINING, number, client))
                examples = work.examples(client, number)
                loss = self._trainer(examples, work.objective, shuffle)
                torch._foreach_copy_(self.memory.client(slot), self._tensors())
                self._keep(client)
                trained.append(Trained(loss, self._evidence(examples)))
        return trained

    def score_part(self, name: str, start: int, stop: int) -> None:
        """Score the published model on some of the examples of a set, into the memory."""
        part = self._work.evaluated()[name].part(start, stop)
        owned: Iterable[tuple[int | None, slice]] = [(None, slice(0, len(part)))]
        if self._work.task.by_client and isinstance(part, PooledExamples):
            owned = part.by_owner()
        for owner, where in owned:
            self._load(owner)
            found = self._scores(part.part(where.start, where.stop))
            self.memory.scores[name].fill(slice(start + where.start, start + where.stop), found)

    def _scores(self, examples: Examples) -> Scores:
        work = self._work
        return score(self._network, examples, work.evaluation_batch_size, work.task)

    def _evidence(self, examples: Examples) -> dict[str, float]:
        """Return what a client reports of the model that it trained, which the network holds."""
        if RESIDUAL_LOSS not in self._work.evidence:
            return {}
        return {RESIDUAL_LOSS: evaluation_of(self._scores(examples)).loss}

    def _load(self, client: int | None = None) -> None:
        """Put the published model into the network, and what a client keeps to itself."""
        torch._foreach_copy_(self._tensors(), list(self.memory.model.values()))
        if client is not None:
            for name, tensor in self._work.task.personal_tensors(self._network).items():
                tensor.copy_(self.memory.personal[name][client])

    def _keep(self, client: int) -> None:
        """Take what a client keeps to itself out of the network."""
        for name, tensor in self._work.task.personal_tensors(self._network).items():
            self.memory.personal[name][client] = tensor

    def _seed(self, seed: int) -> None:
        # torch.manual_seed keeps a note for every device there might be, a trace of the stack each.
        torch.default_generator.manual_seed(seed)
        if self._work.on_gpu:
            torch.cuda.manual_seed(seed)

    def _tensors(self) -> list[Tensor]:
        """Return the network's tensors; asked anew, since a module may replace a buffer."""
        return list(self._work.task.shared_tensors(self._network).values())
