"""Training by CUDA graphs and in lanes gives what `train_client` gives; on a GPU where one is."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedcrf.models import MLP, ResNet9, ResNet18, ResNet20, SmallCNN
from fedcrf.objectives import CLASSIFICATION, Plain, Proximal, Task
from fedcrf.simulation import engine
from fedcrf.simulation.federation import Examples, Federation, PooledExamples
from fedcrf.simulation.graph_training import GraphTraining, can_be_graph
from fedcrf.simulation.local_training import LocalTraining, epochs, train_client
from fedcrf.simulation.rounds import Simulation, seeded_network
from simulation.small import Broken, DropoutPlan, same_state, simulation

SHAPE, CLASSES = (3, 16, 16), 3

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Give a device whose networks are trained as on a GPU; there with kernels that repeat."""
    monkeypatch.setattr(engine, "can_be_graph", lambda *_: True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return torch.device(request.param)


def examples(count: int, seed: int, device: torch.device) -> Examples:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((CLASSES, *SHAPE))
    labels = rng.integers(0, CLASSES, count)
    images = centres[labels] + rng.standard_normal((count, *SHAPE))
    return Examples(
        torch.from_numpy(images).float().to(device), torch.from_numpy(labels).to(device)
    )


def pooled(counts: list[int], seed: int, device: torch.device) -> PooledExamples:
    return PooledExamples.of(
        [examples(count, seed + place, device) for place, count in enumerate(counts)]
    )


PLANS = {
    "mlp": MLP((16,)),
    "small-cnn": SmallCNN((4, 8), hidden=8, batch_norm=True),
    "resnet9": ResNet9(width=8),
    "resnet18": ResNet18(),
    "resnet20": ResNet20(width=4),
}

SETTINGS = {
    "the paper's": LocalTraining(batch_size=8),
    "no momentum": LocalTraining(0.05, momentum=0.0, batch_size=8, weight_decay=0.01),
    "epochs": LocalTraining(batch_size=8, local_epochs=2, weight_decay=0.1),
}


def tolerance(device: torch.device) -> dict[str, float]:
    return {"rtol": 1e-3, "atol": 1e-4} if device.type == "cuda" else {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize("objective", [Plain(), Proximal(0.3)], ids=["plain", "proximal"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_steps_are_those_of_the_general_training(device, plan, settings, objective) -> None:
    """Of two clients one after the other; the second starts from the global model anew."""
    settings = SETTINGS[settings]
    start = seeded_network(PLANS[plan], 0, device, SHAPE, CLASSES)
    trained = copy.deepcopy(start)
    training = GraphTraining(trained, settings, objective)
    for client, count in enumerate((30, 21)):
        data = examples(count, client, device)
        expected, passes = copy.deepcopy(start), epochs(settings, count, np.random.default_rng(1))
        loss = train_client(expected, data, objective, passes, settings=settings)
        trained.load_state_dict(start.state_dict())
        passes = epochs(settings, count, np.random.default_rng(1))
        found, steps = to_the_end(training, data, passes)
        assert found == pytest.approx(loss, rel=1e-3)
        assert steps == settings.num_steps(count)
        for name, tensor in expected.state_dict().items():
            torch.testing.assert_close(
                trained.state_dict()[name], tensor, **tolerance(device), msg=name
            )


def to_the_end(training: GraphTraining, *arguments: Any) -> tuple[float, int]:
    """Return the loss of a round, and how many steps it had."""
    work, steps = training.steps(*arguments), 0
    with torch.cuda.stream(training.stream):
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value, steps
            steps += 1


def test_a_learning_rate_that_falls_is_used(device) -> None:
    settings = LocalTraining(0.1, batch_size=5, milestones=(1,), learning_rate_decay=0.1)
    data = examples(20, 0, device)
    start = seeded_network(MLP((4,)), 0, device, SHAPE, CLASSES)
    expected, trained = copy.deepcopy(start), copy.deepcopy(start)
    training = GraphTraining(trained, settings, Plain())
    for number in (1, 2, 3):
        passes = [epochs(settings, 20, np.random.default_rng(number)) for _ in range(2)]
        train_client(expected, data, Plain(), passes[0], None, number, settings=settings)
        to_the_end(training, data, passes[1], None, number)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], tensor, **tolerance(device))


def test_bfloat16_learns_alike(device) -> None:
    losses = {}
    for precision in ("float32", "bfloat16"):
        settings = LocalTraining(0.01, batch_size=20, local_epochs=4, precision=precision)
        network = seeded_network(PLANS["small-cnn"], 0, device, SHAPE, CLASSES)
        data, passes = examples(200, 1, device), epochs(settings, 200, np.random.default_rng(0))
        losses[precision], _ = to_the_end(GraphTraining(network, settings, Plain()), data, passes)
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
    small = simulation(model=ResNet9(width=8), objective=Plain())
    whole: Simulation = replace(small, federation=federation, max_rounds=3, **changes)
    rounds = list(whole.rounds(whole.start()))
    return rounds[-1][0], [record for _, record in rounds]


@pytest.mark.parametrize(
    "training", [LocalTraining(batch_size=8), LocalTraining(batch_size=8, worker_momentum=0.9)]
)
def test_lanes_change_nothing(device, monkeypatch, training) -> None:
    """Clients that train side by side have the bits of those that train one after the other."""
    found = []
    for lanes in (1, 2, 4, 4):
        monkeypatch.setattr(engine, "LANES", lanes)
        found.append(run(device, training=training))
    expected, records = found[0]
    for state, others in found[1:]:
        assert same_state(state.model, expected.model)
        assert [each.training_loss for each in others] == [each.training_loss for each in records]
    monkeypatch.setattr(engine, "can_be_graph", lambda *_: False)
    general, others = run(device, training=training)
    assert [each.training_loss for each in others] == pytest.approx(
        [each.training_loss for each in records], rel=1e-2
    )
    assert general.model.keys() == expected.model.keys()


def test_what_is_no_graph() -> None:
    """What draws, is a user's, or is not on a GPU, is trained by the general code."""
    network = ResNet9(width=4).build(SHAPE, CLASSES)
    assert not can_be_graph(network, Plain(), CLASSIFICATION), "it is on the CPU"
    if not torch.cuda.is_available():
        return
    network = network.cuda()
    assert can_be_graph(network, Plain(), CLASSIFICATION)
    assert not can_be_graph(network, Broken(), CLASSIFICATION)
    assert not can_be_graph(network, Plain(), Task(loss=nn.functional.cross_entropy))
    assert not can_be_graph(DropoutPlan().build(SHAPE, CLASSES).cuda(), Plain(), CLASSIFICATION)
    network.register_forward_hook(lambda *_: None)
    assert not can_be_graph(network, Plain(), CLASSIFICATION)
