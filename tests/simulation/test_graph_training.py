"""Training by CUDA graphs gives what training step by step gives; on a GPU where one is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from devices import DEVICES
from fedcrf.models import MLP, ResNet9, ResNet20, SmallCNN
from fedcrf.objectives import Plain, Proximal, Task
from fedcrf.simulation import local_training
from fedcrf.simulation.federation import Examples, Federation, PooledExamples
from fedcrf.simulation.local_training import (
    MOST_EXAMPLES,
    GraphTraining,
    LocalTraining,
    MLPTraining,
    NetworkTraining,
    epochs,
    repeats,
    trainer,
)
from fedcrf.simulation.rounds import Simulation, seeded_network
from simulation import small
from simulation.small import CLASSES, same_state

SHAPE = (3, 16, 16)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Give a GPU with kernels that repeat, or the CPU, where a step stands for a graph."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if request.param == "cpu":
        monkeypatch.setattr(GraphTraining, "_captured", lambda training: Replayed(training))
        monkeypatch.setattr(local_training, "is_on_gpu", lambda _: True)
    return torch.device(request.param)


class Replayed:
    """A graph's replay on the CPU, behind the same warm-up: the step itself."""

    def __init__(self, training: Any) -> None:
        training._warm_up()
        self._training = training

    def replay(self) -> None:
        training = self._training
        training._loss = training._step(training._inputs, training._labels)


def examples(count: int, seed: int, device: torch.device) -> Examples:
    each = small.examples(count, seed, SHAPE)
    return Examples(each.images.to(device), each.labels.to(device))


def pooled(counts: list[int], seed: int, device: torch.device) -> PooledExamples:
    return PooledExamples.of(
        [examples(count, seed + place, device) for place, count in enumerate(counts)]
    )


PLANS = {
    "mlp": MLP((16,)),
    "small-cnn": SmallCNN((4, 8), hidden=8, batch_norm=True),
    "resnet9": ResNet9(width=8),
    "resnet20": ResNet20(width=8),  # with 4 oneDNN corrupts memory on AVX2
}

SETTINGS = {
    "the paper's": LocalTraining(batch_size=8),
    "no momentum": LocalTraining(0.05, momentum=0.0, batch_size=8, weight_decay=0.01),
    "epochs": LocalTraining(batch_size=8, local_epochs=2, weight_decay=0.1),
    "one batch": LocalTraining(batch_size=MOST_EXAMPLES),
}


def assert_same(network: nn.Module, expected: nn.Module) -> None:
    for name, tensor in expected.state_dict().items():
        found = network.state_dict()[name]
        torch.testing.assert_close(
            found, tensor, rtol=1e-4, atol=1e-5, msg=lambda text, of=name: f"{of}: {text}"
        )


@pytest.mark.parametrize("objective", [Plain(), Proximal(0.3)], ids=["plain", "proximal"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_steps_are_those_of_the_general_training(device, plan, settings, objective) -> None:
    """Of two clients one after the other; the second starts from the global model anew."""
    settings = SETTINGS[settings]
    start = seeded_network(PLANS[plan], 0, device, SHAPE, CLASSES)
    trained = copy.deepcopy(start)
    training = GraphTraining(trained, settings)
    for client, count in enumerate((30, 21)):
        data = examples(count, client, device)
        kept = data.images.clone()
        expected = copy.deepcopy(start)
        general = NetworkTraining(expected, settings)
        trained.load_state_dict(start.state_dict())
        losses = [
            train(data, objective, epochs(settings, count, np.random.default_rng(1)))
            for train in (general, training)
        ]
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
        assert_same(trained, expected)
        assert torch.equal(data.images, kept), "the client's examples"


@pytest.mark.parametrize(
    "settings",
    [
        LocalTraining(0.1, batch_size=5, milestones=(1,), learning_rate_decay=0.1),
        LocalTraining(0.1, batch_size=5, worker_momentum=0.9),
    ],
    ids=["milestones", "worker-momentum"],
)
def test_what_changes_from_round_to_round(device, settings) -> None:
    """The global model; and of two clients in turn, each its own momentum."""
    start = seeded_network(MLP((4,)), 0, device, SHAPE, CLASSES)
    networks = copy.deepcopy(start), copy.deepcopy(start)
    trainings = NetworkTraining(networks[0], settings), GraphTraining(networks[1], settings)
    kept = [
        [[torch.zeros_like(each) for each in start.parameters()] for _ in range(2)]
        for _ in trainings
    ]
    for number, count in ((1, 20), (2, 20), (3, 13)):
        start = seeded_network(MLP((4,)), number, device, SHAPE, CLASSES)
        for client in range(2):
            for training, network, momenta in zip(trainings, networks, kept, strict=True):
                network.load_state_dict(start.state_dict())
                own = momenta[client] if settings.worker_momentum else None
                passes = epochs(settings, count, np.random.default_rng(number))
                training(examples(count, client, device), Proximal(0.3), passes, own, number)
            assert_same(networks[1], networks[0])
            for one, other in zip(*(momenta[client] for momenta in kept), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Stand in for a GPU that another thread uses during every capture; give the captures tried."""
    tried: list[object] = []

    @contextmanager
    def capture(graph: object, stream: object) -> Iterator[None]:
        tried.append(graph)
        raise RuntimeError("CUDA error: operation failed due to a previous\nerror during capture")
        yield

    for name in ("CUDAGraph", "Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return tried


@pytest.mark.parametrize(
    "settings",
    [LocalTraining(batch_size=5), LocalTraining(0.1, batch_size=5, worker_momentum=0.9)],
    ids=["sgd", "worker-momentum"],
)
def test_where_a_capture_fails_steps_are_taken_one_by_one(captures, settings, caplog) -> None:
    """In that round and all later ones; it is said once."""
    cpu = torch.device("cpu")
    start = seeded_network(PLANS["small-cnn"], 0, cpu, SHAPE, CLASSES)
    networks = copy.deepcopy(start), copy.deepcopy(start)
    trainings = NetworkTraining(networks[0], settings), GraphTraining(networks[1], settings)
    kept = [[torch.zeros_like(each) for each in start.parameters()] for _ in trainings]
    for number in (1, 2):
        losses = []
        for training, momenta in zip(trainings, kept, strict=True):
            own = momenta if settings.worker_momentum else None
            passes = epochs(settings, 17, np.random.default_rng(number))
            losses.append(training(examples(17, 0, cpu), Plain(), passes, own, number))
        assert losses[0] == losses[1]
        tensors = ([*networks[at].state_dict().values(), *kept[at]] for at in range(2))
        assert all(map(torch.equal, *tensors))
    assert len(captures) == 1
    (said,) = (record.getMessage() for record in caplog.records)
    assert "CUDA error: operation failed due to a previous error during capture" in said
    assert "training goes on without graphs" in said


def test_bfloat16_learns_alike(device) -> None:
    losses = {}
    for precision in ("float32", "bfloat16"):
        settings = LocalTraining(0.01, batch_size=20, local_epochs=4, precision=precision)
        network = seeded_network(PLANS["small-cnn"], 0, device, SHAPE, CLASSES)
        data, passes = examples(200, 1, device), epochs(settings, 200, np.random.default_rng(0))
        losses[precision] = GraphTraining(network, settings)(data, Plain(), passes)
        assert all(parameter.dtype == torch.float32 for parameter in network.parameters())
    assert losses["float32"] != losses["bfloat16"], "it was not used at all"
    assert losses["float32"] == pytest.approx(losses["bfloat16"], rel=0.05)


def run(device: torch.device, **changes: Any) -> tuple[Any, list[Any]]:
    """Return the last state and the records of three rounds of five clients."""
    sizes = [20, 7, 33, 16, 3]
    federation = Federation(
        clients=tuple(examples(size, 10 + place, device) for place, size in enumerate(sizes)),
        validation=pooled([4] * 5, 1, device),
        test=pooled([4] * 5, 6, device),
        held_out=None,
        image_shape=SHAPE,
        num_classes=CLASSES,
    )
    base = small.simulation(model=ResNet9(width=8), objective=Plain())
    whole: Simulation = replace(base, federation=federation, max_rounds=3, **changes)
    rounds = list(whole.rounds(whole.start()))
    return rounds[-1][0], [record for _, record in rounds]


@pytest.mark.parametrize(
    "training",
    [LocalTraining(batch_size=8), LocalTraining(batch_size=8, worker_momentum=0.9)],
    ids=["sgd", "worker-momentum"],
)
def test_a_run_repeats_to_the_bit_and_is_that_of_the_general_training(
    device, monkeypatch, training
) -> None:
    (state, records), (again, others) = (run(device, training=training) for _ in range(2))
    assert same_state(state.model, again.model)
    assert [each.training_loss for each in others] == [each.training_loss for each in records]
    monkeypatch.setattr(local_training, "is_on_gpu", lambda _: False)
    other, general = run(device, training=training)
    assert [each.training_loss for each in general] == pytest.approx(
        [each.training_loss for each in records], rel=1e-3
    )
    for name, array in state.model.items():
        np.testing.assert_allclose(other.model[name], array, rtol=0.01, atol=0.01)


def dropout(layers: nn.Sequential) -> None:
    layers.append(nn.Dropout())


def cumulative(layers: nn.Sequential) -> None:
    layers.append(nn.BatchNorm1d(CLASSES, momentum=None))


def hook_forward(layers: nn.Sequential) -> None:
    layers[0].register_forward_hook(lambda *_: None)


def hook_backward(layers: nn.Sequential) -> None:
    layers[0].register_full_backward_hook(lambda *_: None)


def hook_before_backward(layers: nn.Sequential) -> None:
    layers[0].register_full_backward_pre_hook(lambda *_: None)


def hook_accumulated(layers: nn.Sequential) -> None:
    next(layers.parameters()).register_post_accumulate_grad_hook(lambda _: None)


def replace_forward(layers: nn.Sequential) -> None:
    layers[0].forward = lambda images: images


def hook_gradient(layers: nn.Sequential) -> None:
    next(layers.parameters()).register_hook(lambda gradient: gradient)


HOOKED = (
    hook_forward,
    hook_backward,
    hook_before_backward,
    hook_gradient,
    hook_accumulated,
    replace_forward,
)
"""What makes a function of a user's run in a step."""


@pytest.mark.parametrize(
    "change",
    [
        dropout,
        cumulative,
        *HOOKED,
    ],
)
def test_what_draws_or_runs_python_in_a_step_is_no_graph(change) -> None:
    layers = ResNet9(width=4).build(SHAPE, CLASSES)
    assert repeats(layers)
    change(layers)
    assert not repeats(layers)


@pytest.mark.parametrize(
    "change",
    [
        *HOOKED,
        lambda layers: layers.register_forward_hook(lambda *_: None),
    ],
)
def test_a_perceptron_with_a_user_s_function_is_trained_by_autograd(change) -> None:
    layers = MLP((4,)).build(SHAPE, CLASSES)
    assert type(trainer(layers, LocalTraining())) is MLPTraining
    change(layers)
    assert type(trainer(layers, LocalTraining())) is NetworkTraining


def test_hooks_of_every_module_are_no_graph() -> None:
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not repeats(ResNet9(width=4).build(SHAPE, CLASSES))
    finally:
        hook.remove()


@pytest.mark.parametrize(
    "task", [Task(loss=nn.functional.cross_entropy), Task(optimizer=torch.optim.Adam)]
)
def test_a_task_of_a_user_s_is_no_graph(monkeypatch, task) -> None:
    monkeypatch.setattr(local_training, "is_on_gpu", lambda _: True)
    network = ResNet9(width=4).build(SHAPE, CLASSES)
    assert type(trainer(network, LocalTraining(), task)) is NetworkTraining


def test_a_graph_is_for_a_gpu(monkeypatch) -> None:
    network = ResNet9(width=4).build(SHAPE, CLASSES)
    assert type(trainer(network, LocalTraining())) is NetworkTraining
    monkeypatch.setattr(local_training, "is_on_gpu", lambda _: True)
    assert type(trainer(network, LocalTraining())) is GraphTraining
    assert type(trainer(network.append(nn.Dropout()), LocalTraining())) is NetworkTraining


@dataclass(frozen=True)
class Counting:
    """An objective of a user's that does something in every step."""

    steps: list[int]

    def correct_gradients(self, parameters: Any, global_parameters: Any) -> None:
        self.steps.append(len(parameters))


def test_an_objective_of_a_user_s_is_asked_in_every_step(device) -> None:
    network = seeded_network(MLP((4,)), 0, device, SHAPE, CLASSES)
    settings, counting = LocalTraining(batch_size=5), Counting([])
    passes = epochs(settings, 17, np.random.default_rng(0))
    GraphTraining(network, settings)(examples(17, 0, device), counting, passes)
    assert counting.steps == [4] * 4
