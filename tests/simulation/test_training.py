"""Local training and its objectives against loops written by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn
from torch.nn import functional

from fedcrf import FedcrfError
from fedcrf.models import MLP
from fedcrf.objectives import OBJECTIVES, Objective, Plain, Proximal
from fedcrf.simulation import local_training
from fedcrf.simulation.federation import Examples
from fedcrf.simulation.local_training import (
    MOST_EXAMPLES,
    LocalTraining,
    NetworkTraining,
    epochs,
    fewest_in_a_step,
    trainer,
)
from simulation.small import (
    CLASSES,
    SHAPE,
    BatchNormPlan,
    DropoutPlan,
    FrozenPlan,
    HalvedPlan,
    NormedPlan,
    PartlyUsedPlan,
    TiedPlan,
    examples,
    federation,
    run,
    same_state,
    simulation,
)
from tolerance import alike


def built(plan: Any, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return plan.build(SHAPE, CLASSES)


# What an objective adds to the loss, for autograd to differentiate; a new objective is a row.
TERMS: dict[str, tuple[Objective, Callable[[list[Tensor], list[Tensor]], Tensor]]] = {
    "plain": (Plain(), lambda w, start: torch.zeros(())),
    "proximal": (
        Proximal(mu=0.3),
        lambda w, start: 0.15 * sum(((a - b) ** 2).sum() for a, b in zip(w, start, strict=True)),
    ),
}


def test_every_objective_has_a_row() -> None:
    assert set(TERMS) == set(OBJECTIVES)


@pytest.mark.parametrize("name", TERMS)
def test_gradient_is_that_of_the_whole_loss(name: str) -> None:
    objective, term = TERMS[name]
    model, start = built(MLP((5, 4))), list(built(MLP((5, 4)), seed=1).parameters())
    data = examples(11, seed=0)
    parameters = list(model.parameters())
    whole = functional.cross_entropy(model(data.images), data.labels) + term(parameters, start)
    expected = torch.autograd.grad(whole, parameters)

    functional.cross_entropy(model(data.images), data.labels).backward()
    with torch.no_grad():
        objective.correct_gradients(parameters, start)
    for parameter, gradient in zip(parameters, expected, strict=True):
        assert parameter.grad is not None
        assert_allclose(parameter.grad, gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mu", [-1e-9, math.nan, math.inf])
def test_mu_that_cannot_be(mu: float) -> None:
    with pytest.raises(FedcrfError, match="mu"):
        Proximal(mu)


# The ways to train: the general one, and what a run uses (a fast one for a perceptron, in which
# large products are oneDNN's on some processors)

Train = Callable[[nn.Module, Examples, Objective, LocalTraining, np.random.Generator], float]


def generally(
    model: nn.Module,
    data: Examples,
    objective: Objective,
    settings: LocalTraining,
    shuffle: np.random.Generator,
) -> float:
    passes = epochs(settings, len(data), shuffle)
    return NetworkTraining(model, settings)(data, objective, passes)


def as_a_run_does(
    model: nn.Module,
    data: Examples,
    objective: Objective,
    settings: LocalTraining,
    shuffle: np.random.Generator,
) -> float:
    train = trainer(model, settings)
    # Another client before, and the model put back: nothing of it may be left, momentum least.
    before = copy.deepcopy(model.state_dict())
    train(examples(9, 99), Proximal(1.0), epochs(settings, 9, np.random.default_rng(99)), None, 1)
    model.load_state_dict(before)
    return train(data, objective, epochs(settings, len(data), shuffle), None, 1)


def as_a_run_does_by_onednn(*given: Any) -> float:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_training, "ONEDNN_FROM", 1)
        patch.setattr(local_training, "onednn_is_faster", lambda: True)
        return as_a_run_does(*given)


every_way = pytest.mark.parametrize("train", [generally, as_a_run_does, as_a_run_does_by_onednn])


@pytest.mark.parametrize(
    ("processor", "capability", "faster"),
    [
        ("AMD EPYC 9B14", "AVX512", True),
        ("AMD EPYC 7B13", "AVX2", False),
        ("Intel(R) Xeon(R) Processor", "AVX512", False),
        ("AMD64", "AVX512", False),
        ("AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD", "AVX512", True),
    ],
)
def test_onednn_multiplies_where_mkl_makes_no_use_of_the_processor(
    monkeypatch: pytest.MonkeyPatch, processor: str, capability: str, faster: bool
) -> None:
    monkeypatch.setattr(local_training, "processor", lambda: processor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert local_training.onednn_is_faster.__wrapped__() is faster


def by_hand(
    model: nn.Module,
    data: Examples,
    term: Callable[[list[Tensor], list[Tensor]], Tensor],
    settings: LocalTraining,
    shuffle: np.random.Generator,
    steps: Sequence[slice] | None = None,
) -> float:
    """SGD with momentum as the textbook has it: v ← ρv + g, w ← w − ηv, from v = 0, in float64."""
    model.double().train()
    parameters = [each for each in model.parameters() if each.requires_grad]
    start = [each.detach().clone() for each in parameters]
    velocity = [torch.zeros_like(each) for each in parameters]
    seen = []
    size = settings.batch_size
    if steps is None:
        steps = [slice(first, first + size) for first in range(0, len(data), size)]
    for _ in range(settings.local_epochs):
        order = shuffle.permutation(len(data))
        for step in steps:
            batch = order[step]
            logits = model(data.images[batch].double())
            loss = functional.cross_entropy(logits, data.labels[batch])
            seen += [loss.item()] * len(batch)
            gradients = torch.autograd.grad(
                loss + term(parameters, start), parameters, allow_unused=True
            )
            with torch.no_grad():
                for w, v, g in zip(parameters, velocity, gradients, strict=True):
                    if g is not None:
                        v.mul_(settings.momentum).add_(g)
                        w.sub_(settings.learning_rate * v)
    return float(np.mean(seen))


@every_way
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize(
    ("plan", "settings", "count"),
    [
        (MLP((7,)), LocalTraining(0.1, 0.9, batch_size=4, local_epochs=1), 12),
        (MLP((7,)), LocalTraining(0.1, 0.9, batch_size=5, local_epochs=3), 12),  # 5, 5, 2
        (MLP((6, 5)), LocalTraining(0.2, 0.0, batch_size=3, local_epochs=2), 7),
        (MLP(()), LocalTraining(0.1, 0.9, batch_size=64, local_epochs=4), 10),  # one batch
        (MLP((7,)), LocalTraining(0.1, 0.9, batch_size=MOST_EXAMPLES, local_epochs=4), 10),
        (MLP((7,)), LocalTraining(0.1, 0.9, batch_size=4, local_epochs=2), 1),
        (BatchNormPlan(), LocalTraining(0.05, 0.9, batch_size=4, local_epochs=2), 10),
        (FrozenPlan(), LocalTraining(0.1, 0.9, batch_size=4, local_epochs=2), 10),
        (PartlyUsedPlan(), LocalTraining(0.1, 0.9, batch_size=4, local_epochs=2), 10),
        (TiedPlan(), LocalTraining(0.1, 0.9, batch_size=4, local_epochs=2), 10),
    ],
    ids=[
        "whole batches",
        "rest",
        "momentum 0",
        "linear",
        "any size",
        "single",
        "norm",
        "frozen",
        "unused",
        "tied",
    ],
)
def test_against_a_loop_by_hand(
    train: Train, name: str, plan: Any, settings: LocalTraining, count: int
) -> None:
    objective, term = TERMS[name]
    model, slow, data = built(plan), built(plan), examples(count, seed=5)
    loss = train(model, data, objective, settings, np.random.default_rng(3))
    expected = by_hand(slow, data, term, settings, np.random.default_rng(3))
    assert loss == alike(expected)
    for (key, tensor), truth in zip(
        model.state_dict().items(), slow.state_dict().values(), strict=True
    ):
        # float32 against float64 over at most a dozen steps
        assert_allclose(tensor, truth, rtol=1e-5, atol=2e-6, err_msg=key)


@pytest.mark.parametrize(
    ("count", "steps"),
    [(9, [slice(4), slice(4, 9)]), (5, [slice(5)]), (6, [slice(4), slice(4, 6)]), (3, [slice(3)])],
)
def test_a_last_example_alone_joins_the_step_before_it_where_batch_norm_needs_two(
    count: int, steps: list[slice]
) -> None:
    model, slow, data = built(NormedPlan()), built(NormedPlan()), examples(count, seed=5)
    settings = LocalTraining(0.05, 0.9, batch_size=4, local_epochs=3)
    fewest = fewest_in_a_step(built(NormedPlan()), torch.zeros(2, *SHAPE))
    passes = epochs(settings, len(data), np.random.default_rng(3), fewest)
    loss = trainer(model, settings)(data, Plain(), passes, None, 1)
    expected = by_hand(slow, data, TERMS["plain"][1], settings, np.random.default_rng(3), steps)
    assert loss == alike(expected)
    for (key, tensor), truth in zip(
        model.state_dict().items(), slow.state_dict().values(), strict=True
    ):
        assert_allclose(tensor, truth, rtol=1e-5, atol=2e-6, err_msg=key)
    assert model.state_dict()["2.num_batches_tracked"] == 3 * len(steps)
    plain = replace(settings, batch_size=len(data), local_epochs=3 * len(steps))
    assert settings.effective_steps(count, fewest=2) == plain.effective_steps(count)


@pytest.mark.parametrize(
    ("plan", "fewest"),
    [(MLP((7,)), 1), (DropoutPlan(), 1), (BatchNormPlan(), 1), (NormedPlan(), 2)],
    ids=["mlp", "dropout", "norm of pictures", "norm of numbers"],
)
def test_who_needs_two_examples_in_a_step(plan: Any, fewest: int) -> None:
    drawn = torch.get_rng_state()
    assert fewest_in_a_step(built(plan), torch.zeros(2, *SHAPE)) == fewest
    assert torch.equal(torch.get_rng_state(), drawn)
    # What needs but one trains on a client of one, and on a last batch of one.
    chosen = {"model": plan, "training": LocalTraining(0.05, batch_size=4), "max_rounds": 2}
    alone = simulation(federation=federation((9, 5, fewest)), **chosen)
    states, records = run(alone)
    assert all(not record.excluded for record in records)
    if fewest > 1:
        again, _ = run(alone, workers=2)
        assert all(same_state(one.model, two.model) for one, two in zip(states, again, strict=True))


@pytest.mark.parametrize(
    ("sizes", "batch_size", "said"),
    [
        ((9, 1, 5), 4, "client 1 has one example to train on, .* needs two in a step: .*--min-ex"),
        ((9, 4, 5), 1, "batch_size 1: batch norm in this model needs two in a step; give two or"),
    ],
)
def test_one_example_where_batch_norm_needs_two_is_named_before_anybody_trains(
    sizes: tuple[int, ...], batch_size: int, said: str
) -> None:
    chosen = simulation(
        federation=federation(sizes),
        model=NormedPlan(),
        training=LocalTraining(0.05, 0.9, batch_size),
    )
    with pytest.raises(FedcrfError, match=said):
        chosen.start()


@every_way
@pytest.mark.parametrize("plan", [MLP((7,)), BatchNormPlan()], ids=["mlp", "norm"])
def test_mu_of_zero_is_plain_to_the_bit(train: Train, plan: Any) -> None:
    settings = LocalTraining(0.1, 0.9, batch_size=4, local_epochs=2)
    states = []
    for objective in (Plain(), Proximal(0.0)):
        model = built(plan)
        train(model, examples(10, seed=5), objective, settings, np.random.default_rng(3))
        states.append(model.state_dict())
    for key, tensor in states[0].items():
        assert torch.equal(tensor, states[1][key]), key


@every_way
def test_a_step_too_large_ends_in_numbers_and_not_in_an_error(train: Train) -> None:
    model = built(MLP((7,)))
    settings = LocalTraining(1e30, 0.9, batch_size=2, local_epochs=5)
    loss = train(model, examples(10, seed=5), Plain(), settings, np.random.default_rng(3))
    assert not math.isfinite(loss)
    assert not all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


def test_dropout_is_on_in_training() -> None:
    model = built(DropoutPlan()).eval()  # as evaluation leaves it
    losses = set()
    for seed in (0, 1):
        torch.manual_seed(seed)
        settings = LocalTraining(1e-9, 0.0, batch_size=10)
        losses.add(generally(model, examples(10, 5), Plain(), settings, np.random.default_rng(3)))
    assert len(losses) == 2


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(
    ("count", "epochs", "steps"),
    [(1, 1, 1), (11, 1, 2), (30, 1, 3), (25, 3, 9), (161, 1, 17), (1500, 1, 150)],
)
def test_effective_steps_are_how_far_torchs_optimizer_goes_on_a_constant_slope(
    momentum: float, count: int, epochs: int, steps: int
) -> None:
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=momentum)
    for _ in range(steps):
        optimizer.zero_grad()
        (-2.0 * weight).sum().backward()
        optimizer.step()
    training = LocalTraining(0.5, momentum, batch_size=10, local_epochs=epochs)
    assert_allclose(weight.item(), 0.5 * 2.0 * training.effective_steps(count), rtol=1e-10)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("momentum", math.nan),
        ("batch_size", 0),
        ("local_epochs", 0),
    ],
)
def test_settings_that_cannot_be(key: str, value: float) -> None:
    with pytest.raises(FedcrfError, match=key):
        LocalTraining(**{key: value})


@pytest.mark.parametrize("plan", [MLP((16,)), BatchNormPlan()], ids=["mlp", "batch-norm"])
def test_mixed_precision_learns_alike(plan: Any) -> None:
    """bfloat16 keeps eight bits of a product; the weights and their momentum stay float32."""
    data = examples(200, seed=1)
    losses = {}
    for precision in ("float32", "bfloat16"):
        network = built(plan)
        settings = LocalTraining(0.05, batch_size=20, local_epochs=4, precision=precision)
        passes = epochs(settings, len(data), np.random.default_rng(0))
        losses[precision] = trainer(network, settings)(data, Plain(), passes, None, 1)
        assert all(parameter.dtype == torch.float32 for parameter in network.parameters())
    assert losses["float32"] != losses["bfloat16"], "it was not used at all"
    assert losses["float32"] == pytest.approx(losses["bfloat16"], rel=0.02)


@pytest.mark.parametrize("momenta", [None, "its own"])
def test_a_layer_in_half_precision_is_trained_like_any(momenta: str | None) -> None:
    data, half = examples(40, seed=5), built(HalvedPlan())
    whole = nn.Sequential(nn.Flatten(), nn.Linear(half.in_features, half.out_features))
    whole[1].load_state_dict(half.state_dict())
    for network in (half, whole):
        settings = LocalTraining(0.05, batch_size=8, local_epochs=3)
        passes = epochs(settings, len(data), np.random.default_rng(3))
        kept = [torch.zeros(each.shape) for each in network.parameters()] if momenta else None
        NetworkTraining(network, settings)(data, Plain(), passes, kept, 1)
    for name, tensor in half.state_dict().items():
        assert_allclose(tensor.float(), whole.state_dict()[f"1.{name}"], atol=0.02, err_msg=name)
