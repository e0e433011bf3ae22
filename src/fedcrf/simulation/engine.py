"""The engine of rounds: it trains clients and scores models, in this process or in several.

A worker process has one thread and works for some clients at a time. Data, models and scores are in
shared memory. A client's training depends only on the global model and its own random stream, so
the results are the same to the bit for any number of workers.
"""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from fedcrf.crf.memory import ClientMemory
from fedcrf.errors import FedcrfError, in_a_line, own_line, unknown_name
from fedcrf.objectives import ACCURACY, CLASSIFICATION, LOSS, Outputs, Task
from fedcrf.processes import Child, in_child
from fedcrf.rules import LABEL_DIVERGENCE, RESIDUAL_LOSS, ClientReport, State
from fedcrf.rules.state import FlatState, Layout, copied
from fedcrf.simulation.federation import Examples, PooledExamples, Stream, torch_seed
from fedcrf.simulation.local_training import Batches, MLPTraining, momentum_of, trained, trainer
from fedcrf.simulation.records import ClientMetrics, Metrics
from fedcrf.statistics import as_numpy

if TYPE_CHECKING:
    from fedcrf.simulation.rounds import Simulation

EVIDENCE = (RESIDUAL_LOSS, LABEL_DIVERGENCE)
"""Names of the evidence that clients can report."""


def check_evidence(names: Iterable[str]) -> None:
    """Raise a `FedcrfError` if clients cannot report evidence of one of these names."""
    for name in names:
        if name not in EVIDENCE:
            raise unknown_name("evidence", name, EVIDENCE)


class Scores(dict[str, Tensor]):
    """A model's scores on every example, (n,) float32 each, by the names of `Task.measured`.

    The loss is the cross-entropy, the accuracy 1 if an example is classified correctly, else 0. In
    a user's task every example has its client's scores as a whole, NaN without such a metric.
    """

    behaviour: ClassVar[int] = 1


def evaluation_of(scores: Scores) -> Metrics:
    """Return loss and accuracy from every example's score."""
    return Metrics(loss=_mean(scores[LOSS]), accuracy=_mean(scores[ACCURACY]))


def metrics_of(sets: Mapping[str, Scores]) -> dict[str, dict[str, float]] | None:
    """Return by set and name the means of a task's other metrics; None without any."""
    found = {
        of: {name: _mean(each) for name, each in scores.items() if name not in (LOSS, ACCURACY)}
        for of, scores in sets.items()
    }
    return found if any(found.values()) else None


def client_evaluation_of(scores: Scores, owners: Tensor) -> ClientMetrics:
    """Return loss and accuracy from every example's score, and by the client that owns it."""
    owners = owners.to(scores[ACCURACY].device)
    counts = torch.bincount(owners)
    right = torch.bincount(owners, weights=scores[ACCURACY].double(), minlength=len(counts))
    accuracies = (right / counts)[counts > 0]
    return ClientMetrics(
        **evaluation_of(scores).model_dump(),
        client_mean=_mean(accuracies),
        worst_client=float(accuracies.min()) if len(accuracies) else math.nan,
    )


@torch.no_grad()
def score(
    model: nn.Module,
    examples: Examples,
    batch_size: int,
    task: Task = CLASSIFICATION,
    begin: Callable[[int], None] = lambda at: None,
) -> Scores:
    """Score every example, ``batch_size`` at a time; with a user's loss all as a whole.

    ``begin`` is called before each batch, with the place of its first example. A network, loss or
    metric that changes what it is given in place gets copies.
    """
    model.eval()
    if task.loss is not None:
        begin(0)
        return _score_as_one(model, examples, batch_size, task)
    empty = torch.empty(0, device=examples.labels.device)
    losses, correct = [empty], [empty]
    for start in range(0, len(examples), batch_size):
        begin(start)
        batch = examples[start : start + batch_size]
        logits = model(batch.images.clone()).float()
        losses.append(functional.cross_entropy(logits, batch.labels, reduction="none"))
        correct.append((logits.argmax(dim=1) == batch.labels).float())
    return Scores({LOSS: torch.cat(losses), ACCURACY: torch.cat(correct)})


def _score_as_one(model: nn.Module, examples: Examples, batch_size: int, task: Task) -> Scores:
    """Give every example the loss and the metrics of all of them."""
    found = dict.fromkeys(task.measured, math.nan)
    if len(examples):
        outputs = _outputs(model, examples.images, batch_size)
        found[LOSS] = float(task.loss_of(cloned(outputs), examples.labels.clone()))
        for name, metric in task.metrics.items():
            found[name] = float(metric(cloned(outputs), examples.labels.clone()))
    return Scores({name: torch.full((len(examples),), value) for name, value in found.items()})


def cloned(outputs: Outputs) -> Outputs:
    """Return outputs with tensors of their own: a user's function may change what it is given."""
    return tree_map_only(Tensor, Tensor.clone, outputs)


def _outputs(model: nn.Module, inputs: Tensor, batch_size: int) -> Outputs:
    """Return what a network makes of all inputs, in batches if each row is of one example.

    That is assumed if every output has as many rows as its batch, which are alike in all batches.
    The batches are cut so that the last one is smaller, unless each has one example: outputs with
    a fixed number of rows are then noticed.
    """
    if len(inputs) <= batch_size:
        return model(inputs.clone())
    size = next(each for each in range(batch_size, 0, -1) if each == 1 or len(inputs) % each)
    columns: list[list[Tensor]] = []
    forms: list[Any] = []
    for batch in torch.split(inputs, size):
        leaves, structure = tree_flatten(model(batch.clone()))
        rows = [
            each.shape[1:] if isinstance(each, Tensor) and each.shape[:1] == (len(batch),) else None
            for each in leaves
        ]
        forms = forms or rows
        if not rows or None in rows or rows != forms:
            return model(inputs.clone())
        columns.append(leaves)
    return tree_unflatten([torch.cat(each) for each in zip(*columns, strict=True)], structure)


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else math.nan


MOMENTUM = "worker momentum"
"""The name of the clients' momenta among what they keep; a row is what `momentum_of` reads."""


class RoundMemory:
    """The global model, the models of a round's clients and the scores, used again every round.

    Attributes:
        model: The global model's tensors by name.
        layout: Where a client's floating-point tensors lie in its row.
        clients: One row for each client of a round, the numbers of these tensors.
        others: By name of any other tensor, one row for each client of a round.
        scores: By name of a set, every example's score.
        personal: By name of a tensor that clients keep to themselves, and for `MOMENTUM`, one row
            for each client of the federation.
    """

    def __init__(self, simulation: Simulation, shared: bool = False) -> None:
        """Reserve the memory for a simulation; other processes see it where it is shared."""

        def place(tensor: Tensor) -> Tensor:
            if simulation.federation.device.type == "cuda":  # copied to and fro at full speed
                return tensor.pin_memory()
            if shared:  # it is freed with the last process that sees it
                tensor.share_memory_()  # type: ignore[no-untyped-call]
            return tensor

        network, task = simulation.network(), simulation.task
        state = state_of(task.shared_tensors(network))
        self.layout = Layout.of(state)
        self.model = {name: place(torch.from_numpy(array)) for name, array in state.items()}
        server = int(simulation.rule.server_examples > 0)
        count = simulation.most_participants + server
        of_floats = next((self.model[name].dtype for name in self.layout.places), torch.float32)
        self.clients = place(torch.empty((count, self.layout.size), dtype=of_floats))
        self.others = {
            name: place(torch.empty((count, *tensor.shape), dtype=tensor.dtype))
            for name, tensor in self.model.items()
            if name not in self.layout.places
        }
        self.scores = {
            name: Scores((of, place(torch.empty(len(each)))) for of in task.measured)
            for name, each in simulation.evaluated().items()
        }
        personal = task.personal_tensors(network)
        if simulation.training.worker_momentum:  # of a client that has not trained yet
            size = sum(each.numel() for each in trained(network))
            personal = {**personal, MOMENTUM: torch.zeros(size)}
        kept = len(simulation.federation.clients) + server
        self.personal = {
            name: place(tensor.cpu().repeat(kept, *[1] * tensor.dim()))
            for name, tensor in personal.items()
        }

    def publish(self, model: State, personal: State | None = None) -> None:
        """Make this the global model, and give clients what they kept where a run goes on."""
        for tensors, arrays in ((self.model, model), (self.personal, personal or {})):
            for name, array in arrays.items():
                tensors[name].copy_(tensor_of(array))

    def state(self, slot: int) -> State:
        """Return the model of one client of the round; nothing is copied."""
        others = {name: rows[slot].numpy() for name, rows in self.others.items()}
        return FlatState(self.layout, self.clients[slot].numpy(), others)

    def kept(self, arrays: State) -> State:
        """Return arrays by name, copied if one of them is a client's, which a later round changes.

        The memory of a robust CRF is not looked at, since it hands out copies alone.
        """
        if isinstance(arrays, ClientMemory):
            return arrays
        rows = [each.numpy() for each in (self.clients, *self.others.values())]
        own = (as_numpy(each) for each in arrays.values())
        theirs = any(np.may_share_memory(each, row) for each in own for row in rows)
        return copied(arrays) if theirs else arrays


Trained = tuple[float, Mapping[str, float]]
"""A client's mean loss over the steps of a round, and the evidence that it reports."""

_Numbers = tuple[Tensor | None, Tensor | None]
"""A buffer, and a copy of its first numbers."""


class Worker:
    """Works for one client after the other, with one network."""

    def __init__(self, simulation: Simulation, memory: RoundMemory) -> None:
        self._simulation, self.memory = simulation, memory
        self._network = simulation.network()
        self._trainer = trainer(self._network, simulation.training, simulation.task)
        # Each layer, the names of its buffers, and the numbers of those that its state lacks
        self._buffers: list[tuple[nn.Module, set[str], dict[str, _Numbers]]] = []
        state = self._network.state_dict()
        for path, layer in self._network.named_modules():
            held = _buffers_of(layer)
            unsaved = {
                name: (buffer, None if buffer is None else buffer.clone())
                for name, buffer in held.items()
                if f"{path}.{name}".removeprefix(".") not in state
            }
            self._buffers.append((layer, {*held}, unsaved))
        self._batches = Batches(simulation.training, simulation.seed, simulation.fewest_in_a_step)
        self._momenta = [
            momentum_of(row, trained(self._network)) for row in memory.personal.get(MOMENTUM, ())
        ]

    def train(self, clients: Sequence[tuple[int, int]], number: int) -> dict[int, Trained]:
        """Train clients, by slot of the memory and number, from the published model.

        Returns by slot what a client reports beside its model.
        """
        simulation = self._simulation
        by_slot: dict[int, Trained] = {}
        with torch.random.fork_rng(devices=[]):  # dropout and the like draw from it
            for slot, client in clients:
                self._load(client)
                if not isinstance(self._trainer, MLPTraining):  # which draws nothing
                    self._seed(torch_seed(simulation.seed, Stream.TRAINING, number, client))
                examples = simulation.examples(client, number)
                passes = self._batches.of(client, number, len(examples))
                momenta = self._momenta[client] if self._momenta else None
                loss = self._trainer(examples, simulation.objective, passes, momenta, number)
                places = map(torch.from_numpy, self.memory.state(slot).values())
                torch._foreach_copy_(list(places), self._tensors())
                for name, tensor in simulation.task.personal_tensors(self._network).items():
                    self.memory.personal[name][client] = tensor
                by_slot[slot] = loss, self._evidence(examples)
        return by_slot

    def score(self, name: str, start: int, stop: int) -> None:
        """Score the published model on some of the examples of a set, into the memory."""
        sets = self._simulation.evaluated()
        part = sets[name][start:stop]
        seed = torch_seed(self._simulation.seed, Stream.EVALUATION, list(sets).index(name))
        owned: Iterable[tuple[int | None, slice]] = [(None, slice(0, len(part)))]
        if self._simulation.task.by_client and isinstance(part, PooledExamples):
            owned = part.by_owner()
        places = {of: scores[start:stop] for of, scores in self.memory.scores[name].items()}
        with torch.random.fork_rng(devices=[]):
            for owner, where in owned:
                self._load(owner)
                begin = partial(self._seed, seed + start + where.start)
                for of, values in self._scores(part[where], begin).items():
                    places[of][where] = values

    def _scores(self, examples: Examples, begin: Callable[[int], None] = lambda at: None) -> Scores:
        simulation = self._simulation
        batch_size = simulation.evaluation_batch_size
        return score(self._network, examples, batch_size, simulation.task, begin)

    def _evidence(self, examples: Examples) -> dict[str, float]:
        """Return a client's evidence about the model that it trained, which the network holds."""
        evidence = {}
        if RESIDUAL_LOSS in self._simulation.rule.wanted_evidence:
            evidence[RESIDUAL_LOSS] = evaluation_of(self._scores(examples)).loss
        if LABEL_DIVERGENCE in self._simulation.rule.wanted_evidence:
            num_classes = self._simulation.federation.num_classes
            evidence[LABEL_DIVERGENCE] = label_divergence(examples.labels, num_classes)
        return evidence

    def _load(self, client: int | None = None) -> None:
        self._begin_anew()
        torch._foreach_copy_(self._tensors(), list(self.memory.model.values()))
        if client is not None and self._simulation.task.personal:
            for name, tensor in self._simulation.task.personal_tensors(self._network).items():
                tensor.copy_(self.memory.personal[name][client])

    def _begin_anew(self) -> None:
        """Put the buffers back that are in no state: a client's examples change them for no other.

        A layer may have put others in their place, or have made more.
        """
        for layer, names, unsaved in self._buffers:
            for name in _buffers_of(layer).keys() - names:
                delattr(layer, name)
            for name, (buffer, numbers) in unsaved.items():
                if buffer is not None and numbers is not None:
                    buffer.copy_(numbers)
                if getattr(layer, name) is not buffer:
                    setattr(layer, name, buffer)

    def _seed(self, first: int, place: int = 0) -> None:
        """Seed what a network draws, by ``first`` and the place of an example."""
        seed = first + place
        # torch.manual_seed keeps a note for every device there might be, a trace of the stack each.
        torch.default_generator.manual_seed(seed)
        if self._simulation.federation.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _tensors(self) -> list[Tensor]:
        """Return the network's tensors; asked anew, since a module may replace a buffer."""
        return list(self._simulation.task.shared_tensors(self._network).values())


def _buffers_of(layer: nn.Module) -> dict[str, Tensor | None]:
    """Return a layer's own buffers by name; of a scripted one they are no dictionary."""
    return dict(layer._buffers.items())


def frozen_names(network: nn.Module) -> set[str]:
    """Return the names of the parameters that training leaves as they are."""
    parameters = network.named_parameters(remove_duplicate=False)
    return {name for name, each in parameters if not each.requires_grad}


def label_divergence(labels: Tensor, num_classes: int) -> float:
    """Return Σ p_c log(C p_c), the divergence of label shares p from uniform ones, in nats.

    The labels are (n,), from 0 to C − 1.
    """
    shares = torch.bincount(labels, minlength=num_classes).double() / len(labels)
    return float(torch.xlogy(shares, num_classes * shares).sum())


def tensor_of(array: Any) -> Tensor:
    """Return any array as a tensor, which shares its memory if torch can read it there."""
    held = np.asarray(array)
    native = np.require(held, held.dtype.newbyteorder("="), ["W"])
    odd = any(each < 0 or each % native.itemsize for each in native.strides)
    return torch.from_numpy(native.copy() if odd else native)


def state_of(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Copy tensors by name, such as a network's, out; bfloat16 becomes float32."""
    return {
        name: as_numpy(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).copy()
        for name, tensor in tensors.items()
    }


PIECES = 8
"""Pieces of a round's clients for each worker: few messages, and all workers end together."""

EVALUATION_BATCHES = 4
"""Batches that a worker process evaluates at a time, where there are many."""


class Engine:
    """Trains the clients of a round and scores a global model, here or in ``processes`` beside it.

    ``memory`` has models, scores and clients' personal tensors.
    """

    def __init__(self, simulation: Simulation, processes: int = 0) -> None:
        self._simulation, self.processes = simulation, processes
        self.memory = RoundMemory(simulation, shared=processes > 0)
        self._worker = None if processes else Worker(simulation, self.memory)
        children = [Child(_serve, simulation, self.memory, daemon=True) for _ in range(processes)]
        self._children = {child.connection: child for child in children}

    def train(self, model: State, number: int) -> tuple[list[ClientReport], list[float]]:
        """Return every participant's report and mean training loss, in the order of clients.

        The reports' arrays are valid until the next call.
        """
        self.memory.publish(model)
        clients = self._simulation.participants(number)
        sizes = [len(self._simulation.federation.clients[client]) for client in clients]
        shares = shared_out(sizes, self.processes) if self.processes else [[*range(len(clients))]]
        tasks = [("train", [(slot, clients[slot]) for slot in share], number) for share in shares]
        by_slot = {slot: each for found in self._carry_out(tasks) for slot, each in found.items()}
        reports = [
            ClientReport(
                client=client,
                state=self.memory.state(slot),
                num_examples=size,
                effective_steps=self._simulation.effective_steps(size),
                evidence=by_slot[slot][1],
            )
            for slot, (client, size) in enumerate(zip(clients, sizes, strict=True))
        ]
        return reports, [by_slot[slot][0] for slot in range(len(clients))]

    def train_server(self, number: int) -> State:
        """Return the server's own model, trained from the global one that `train` got."""
        slot = self._simulation.most_participants
        self._carry_out([("train", [(slot, self._simulation.server)], number)])
        return self.memory.state(slot)

    def score(self, model: State) -> Mapping[str, Scores]:
        """Return the scores of a model on every evaluated set."""
        self.memory.publish(model)
        tasks: list[tuple[str, str, int, int]] = []
        for name, examples in self._simulation.evaluated().items():
            width = self._evaluated_at_once(len(examples))
            starts = range(0, len(examples), width)
            tasks += [("score", name, start, start + width) for start in starts]
        self._carry_out(tasks)
        return self.memory.scores

    def close(self) -> None:
        """End the processes."""
        for child in self._children.values():
            child.end(now=True)

    def _evaluated_at_once(self, count: int) -> int:
        """Return how many of so many examples a task scores.

        Without processes it is all of them. Else it is whole batches, `EVALUATION_BATCHES` at most,
        and so few that each process gets four tasks if there are enough.
        """
        if not self.processes:
            return max(count, 1)
        batch_size = self._simulation.evaluation_batch_size
        batches = count // (batch_size * 4 * self.processes)
        return batch_size * min(max(batches, 1), EVALUATION_BATCHES)

    def _carry_out(self, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Give tasks out, one at a time to each process, and return their answers in order.

        A task is the name of a worker's method, and its arguments. If a worker dies the round is
        lost, the run is not.
        """
        if self._worker is not None:
            return [getattr(self._worker, kind)(*arguments) for kind, *arguments in tasks]
        answers: dict[int, Any] = {}
        waiting = list(enumerate(tasks))
        busy: dict[Connection, int] = {}
        idle = list(self._children)
        while waiting or busy:
            while waiting and idle:
                number, task = waiting.pop(0)
                connection = idle.pop()
                busy[connection] = number
                self._children[connection].send(task)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                try:
                    answer = ready.recv()
                except (EOFError, OSError):
                    child = self._children[ready]
                    child.end()
                    raise FedcrfError(
                        f"a training process died (exit code {child.exit_code}): "
                        "give the same command again to go on from the last round"
                    ) from None
                if isinstance(answer, Exception):
                    raise answer
                answers[busy.pop(ready)] = answer
                idle.append(ready)
        return [answers[number] for number in range(len(tasks))]


def engine_for(simulation: Simulation, num_workers: int) -> contextlib.closing[Engine]:
    """Return an engine of so many processes, which is closed in the end.

    It has none where one would do the work alone, on a GPU, and for a user's task, which is
    measured client by client and may be made of what cannot be sent.
    """
    num_workers = min(num_workers, simulation.most_participants)
    on_gpu = simulation.federation.device.type == "cuda"
    alone = num_workers <= 1 or on_gpu or simulation.task is not CLASSIFICATION
    return contextlib.closing(Engine(simulation, 0 if alone else num_workers))


def shared_out(sizes: Sequence[int], num_workers: int) -> list[list[int]]:
    """Return the pieces in which workers fetch clients: places in the (m,) sizes.

    Large and small clients are spread over them, so that they are about as much work each.
    """
    places = sorted(range(len(sizes)), key=lambda place: -sizes[place])
    count = min(len(places), PIECES * num_workers)
    return [places[first::count] for first in range(count)]


def _serve(connection: Connection, simulation: Simulation, memory: RoundMemory) -> None:
    with in_child(), contextlib.suppress(EOFError, ConnectionError):
        worker = Worker(simulation, memory)
        while True:
            kind, *arguments = connection.recv()
            try:
                answer = getattr(worker, kind)(*arguments)
            except Exception as error:
                answer = _to_be_sent(error)
            connection.send(answer)


def _to_be_sent(error: Exception) -> Exception:
    """Return an error that can be sent to another process.

    One that cannot becomes a `FedcrfError` with its text. Tracebacks are not sent, so a note names
    the line in the user's files.
    """
    if line := own_line(error):
        error.add_note(line)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return FedcrfError(in_a_line(error))
    return error
