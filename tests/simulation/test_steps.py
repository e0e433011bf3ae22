"""Rounds of some steps: their batches, worker momentum, weight decay, and rounds unrecorded."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn import functional

from fedcrf import FedcrfError
from fedcrf.attacks import Backdoor, Schedule, Threat
from fedcrf.attacks.base import Images, Labels
from fedcrf.models import MLP, ImageShape
from fedcrf.objectives import Proximal, Task
from fedcrf.rules import CoordinateMedian, CRFRobust, FedAvg
from fedcrf.simulation.engine import MOMENTUM
from fedcrf.simulation.federation import PooledExamples, Stream, generator
from fedcrf.simulation.local_training import Batches, LocalTraining
from fedcrf.simulation.records import RoundRecord, rounds_of
from fedcrf.simulation.rounds import EarlyStopping, RunState, Simulation
from simulation.small import (
    BatchNormPlan,
    DropoutPlan,
    PartlyUsedPlan,
    TiedPlan,
    assert_resumes,
    federation,
    run,
    same_state,
    simulation,
    until_it_diverges,
    without_seconds,
)
from tolerance import alike

SIZES = (20, 7, 33)

STEPS = {
    "ByzFL": LocalTraining(
        0.1,
        batch_size=8,
        local_steps=1,
        worker_momentum=0.9,
        weight_decay=0.01,
        milestones=(3, 5),
        learning_rate_decay=0.5,
    ),
    "three steps": LocalTraining(0.1, batch_size=5, local_steps=3, worker_momentum=0.5),
    "without momentum": LocalTraining(0.1, batch_size=8, local_steps=2, worker_momentum=0.0),
    "clients' own decay": LocalTraining(0.1, 0.9, batch_size=8, local_steps=4, weight_decay=0.02),
    "epochs": LocalTraining(0.1, batch_size=8, local_epochs=2, worker_momentum=0.9),
}
every_way = pytest.mark.parametrize("training", STEPS.values(), ids=STEPS)


@dataclass(frozen=True)
class ConvolvedPlan:
    """Its weights lie in another order than their shape says: channels last."""

    def build(self, image_shape: ImageShape, num_classes: int) -> nn.Module:
        size = 4 * image_shape[1] * image_shape[2]
        return nn.Sequential(
            nn.Conv2d(image_shape[0], 3, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Flatten(),
            nn.Linear(size, num_classes),
        )


# Against loops by hand


def loaded(seed: int, client: int, count: int, size: int) -> Any:
    """Yield batches as a shuffled loader does that begins anew when it is through."""
    epoch = 0
    while True:
        epoch += 1
        order = generator(seed, Stream.SHUFFLE, epoch, client).permutation(count)
        for first in range(0, count, size):
            yield order[first : first + size]


def slow_model(whole: Simulation) -> dict[str, torch.Tensor]:
    """Return the last model of FedAvg in float64, from the formulas."""
    training, parts = whole.training, whole.federation.clients
    network = whole.model.build(whole.federation.image_shape, 3).double()
    network.load_state_dict({k: torch.from_numpy(v) for k, v in whole.start().model.items()})
    loaders = [loaded(whole.seed, i, len(p), training.batch_size) for i, p in enumerate(parts)]
    sizes = np.array([len(part) for part in parts])
    keeps = training.worker_momentum is not None
    beta = training.worker_momentum if keeps else training.momentum
    decay = training.weight_decay or 0.0
    kept = [[torch.zeros_like(w) for w in network.parameters()] for _ in parts]
    rate = training.learning_rate
    for number in range(1, whole.max_rounds + 1):
        start = copy.deepcopy(network.state_dict())
        after = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        for client, part in enumerate(parts):
            network.load_state_dict(start)
            momenta = kept[client]
            if not keeps:
                momenta = [torch.zeros_like(m) for m in momenta]
            steps = training.local_steps
            if steps is None:
                steps = training.local_epochs * math.ceil(len(part) / training.batch_size)
            for _ in range(steps):
                batch = next(loaders[client])
                network.zero_grad()
                logits = network(part.images[batch].double())
                functional.cross_entropy(logits, part.labels[batch]).backward()
                with torch.no_grad():
                    for w, m in zip(network.parameters(), momenta, strict=True):
                        assert w.grad is not None
                        if keeps:
                            m.mul_(beta).add_((1 - beta) * w.grad)
                        else:
                            m.mul_(beta).add_(w.grad + decay * w)
                        w.sub_(rate * m)
            for name, tensor in network.state_dict().items():
                after[name] += sizes[client] / sizes.sum() * tensor
        if keeps:
            after = {name: after[name] - rate * decay * start[name] for name in after}
        network.load_state_dict(after)
        if number in (training.milestones or ()):
            rate *= training.learning_rate_decay
    return network.state_dict()


@every_way
@pytest.mark.parametrize("plan", [MLP((6,)), ConvolvedPlan()], ids=["mlp", "convolved"])
def test_rounds_of_steps_are_those_of_a_loop_by_hand(plan: Any, training: LocalTraining) -> None:
    if training.local_epochs is not None:
        # Each round's epochs share the round's stream, which the loop does not know.
        training = replace(training, local_epochs=1)
    whole = simulation(model=plan, training=training, rule=FedAvg(), max_rounds=9)
    states, _ = run(whole)
    for name, expected in slow_model(whole).items():
        # float32 against float64 over a few dozen steps
        assert_allclose(states[-1].model[name], expected, rtol=2e-4, atol=2e-5, err_msg=name)


def test_worker_momentum_is_what_is_sent() -> None:
    """One step a round, seen by the rule: the client's m times the learning rate."""
    training = STEPS["ByzFL"]
    whole = simulation(training=training, max_rounds=4, rule=FedAvg())
    start = run(whole)[0][-1]
    again = replace(whole, max_rounds=5)
    (after,), (record,) = run(again, start)
    rows = after.personal[MOMENTUM] * (1.0 - 0.9)
    weights = np.array(record.weight)
    before, now = (np.concatenate([a.ravel() for a in s.model.values()]) for s in (start, after))
    rate = 0.1 * 0.5  # after milestone 3; 5 counts from round 6 on
    expected = before - rate * weights @ rows - rate * 0.01 * before
    assert_allclose(now, expected, rtol=1e-4, atol=1e-6)


def test_the_server_s_decay_is_of_the_tensors_that_it_has() -> None:
    head = frozenset({"3.weight", "3.bias"})
    task = Task(shared=frozenset({"1.weight", "1.bias"}), personal=head)
    plain = replace(STEPS["ByzFL"], weight_decay=None)
    decayed, kept = (
        simulation(training=training, task=task, max_rounds=1)
        for training in (STEPS["ByzFL"], plain)
    )
    (after,), (without,), before = run(decayed)[0], run(kept)[0], decayed.start()
    for name, array in before.model.items():
        expected = without.model[name] - 0.1 * 0.01 * array
        assert_allclose(after.model[name], expected, rtol=1e-5, atol=1e-7)
    assert same_state(after.personal, without.personal)


def test_the_server_s_decay_is_of_a_tied_tensor_by_each_of_its_names() -> None:
    whole = simulation(model=TiedPlan(), training=STEPS["ByzFL"], max_rounds=2)
    (first, second), _ = run(whole)
    plain = replace(whole, training=replace(STEPS["ByzFL"], weight_decay=None), max_rounds=1)
    (without,), before = run(plain)[0], whole.start()
    for state in (first, second):
        assert_allclose(state.model["1.weight"], state.model["3.weight"], rtol=0, atol=0)
    expected = without.model["3.weight"] - 0.1 * 0.01 * before.model["3.weight"]
    assert_allclose(first.model["3.weight"], expected, rtol=1e-5, atol=1e-7)


def test_the_server_s_decay_needs_no_weights() -> None:
    plain = replace(STEPS["ByzFL"], weight_decay=None)
    decayed, kept = (
        simulation(rule=CoordinateMedian(), training=training, max_rounds=1)
        for training in (STEPS["ByzFL"], plain)
    )
    (after,), (without,), before = run(decayed)[0], run(kept)[0], decayed.start()
    for name, array in before.model.items():
        expected = without.model[name] - 0.1 * 0.01 * array
        assert_allclose(after.model[name], expected, rtol=1e-5, atol=1e-7)


def test_a_model_that_stays_does_not_decay() -> None:
    whole = federation()
    broken = [replace(each, images=each.images * math.nan) for each in whole.clients]
    chosen = simulation(
        federation=replace(whole, clients=tuple(broken)), training=STEPS["ByzFL"], max_rounds=2
    )
    state, _ = next(iter(chosen.steps(chosen.start())))
    assert same_state(state.model, chosen.start().model)


# Batches


@pytest.mark.parametrize(("count", "size", "steps"), [(20, 8, 1), (20, 8, 2), (7, 3, 5), (4, 9, 2)])
def test_batches_go_on_over_rounds_and_an_epoch_repeats_nothing(
    count: int, size: int, steps: int
) -> None:
    training = LocalTraining(batch_size=size, local_steps=steps)
    batches = Batches(training, seed=3)
    expected = loaded(3, 1, count, size)
    for number in range(1, 30):
        found = []
        for order, sizes in batches.of(1, number, count):
            found += [batch.tolist() for batch in torch.split(order, list(sizes))]
        assert found == [next(expected).tolist() for _ in range(steps)]
    # Nothing is kept that a run that goes on would need, and other clients do not matter.
    other = Batches(training, seed=3)
    list(other.of(0, 1, count))
    for one, two in zip(batches.of(1, 29, count), other.of(1, 29, count), strict=True):
        assert torch.equal(one[0], two[0])
        assert list(one[1]) == list(two[1])


@pytest.mark.parametrize("plan", [MLP((6,)), BatchNormPlan(), DropoutPlan()])
def test_the_steps_of_an_epoch_are_an_epoch_to_the_bit(plan: Any) -> None:
    chosen = {"model": plan, "federation": federation((20, 23, 17)), "clients_per_round": 2}
    epochs = run(simulation(training=LocalTraining(0.05, batch_size=8), **chosen))
    steps = run(simulation(training=LocalTraining(0.05, batch_size=8, local_steps=3), **chosen))
    assert without_seconds(epochs[1]) == without_seconds(steps[1])
    assert same_state(epochs[0][-1].model, steps[0][-1].model)


# To the bit


@every_way
@pytest.mark.usefixtures("quick_children")
@pytest.mark.parametrize(
    "changes",
    [
        {"model": MLP((6,)), "evaluate_every": 3, "max_rounds": 7, "rule": CRFRobust()},
        {"model": ConvolvedPlan()},
        {"model": BatchNormPlan(), "objective": Proximal(0.1), "evaluate_every": 2},
        {"model": PartlyUsedPlan()},
        {"federation": federation((9, 4, 0, 6, 12, 5)), "clients_per_round": 2, "max_rounds": 6},
    ],
    ids=["mlp", "convolved", "batch norm", "partly used", "two of five"],
)
def test_resumed_or_shared_out_it_is_the_same(
    training: LocalTraining, changes: dict[str, Any], tmp_path: Path
) -> None:
    whole = simulation(training=training, **changes)
    states, records = assert_resumes(whole, tmp_path)
    assert len(records[-1].clients) in (2, 3)
    if "clients_per_round" not in changes:
        return
    shared, second = run(whole, workers=2)
    assert without_seconds(second) == without_seconds(records)
    assert same_state(shared[-1].personal, states[-1].personal)


def test_a_client_that_sits_a_round_out_keeps_its_momentum() -> None:
    training = LocalTraining(0.1, batch_size=4, local_steps=1, worker_momentum=0.9)
    whole = simulation(
        training=training, federation=federation((9, 4, 6, 12, 5)), clients_per_round=2
    )
    states, records = run(whole)
    for (before, after), record in zip(pairwise(states), records[1:], strict=True):
        moved = (before.personal[MOMENTUM] != after.personal[MOMENTUM]).any(axis=1)
        assert np.flatnonzero(moved).tolist() == record.clients


# Rounds without a record


def test_what_is_not_evaluated_goes_into_totals() -> None:
    chosen = {"training": STEPS["ByzFL"], "max_rounds": 8, "rule": CRFRobust()}
    chosen |= {"federation": federation((9, 4, 6, 12, 5)), "clients_per_round": 3}
    _, every = run(simulation(**chosen))
    whole = simulation(**chosen, evaluate_every=3)
    steps = list(whole.steps(whole.start()))
    assert [record is not None for _, record in steps] == [False, False, True] * 2 + [False, True]
    records = [record for _, record in steps if record is not None]
    assert [record.round for record in records] == [3, 6, 8]
    assert [record.first for record in records] == [1, 4, 7]
    assert rounds_of(records) == 8
    for record in records:
        same = every[record.round - 1]
        hidden = {"seconds", "totals"}
        assert record.model_dump_json(exclude=hidden) == same.model_dump_json(exclude=hidden)
        part, totals = every[record.first - 1 : record.round], record.totals
        assert totals is not None
        assert totals.rounds == len(part)
        assert totals.training_loss == pytest.approx(sum(each.training_loss for each in part))
        assert totals.clients == sorted({client for each in part for client in each.clients})
        for place, client in enumerate(totals.clients):
            present = [each for each in part if client in each.clients]
            weights = [each.weight[each.clients.index(client)] for each in present]
            assert totals.took_part[place] == len(present)
            assert totals.weight[place] == pytest.approx(sum(weights), rel=1e-5)
            assert totals.excluded[place] == 0
        assert record.mean_seconds.training == totals.seconds.training / len(part)
        text = record.model_dump_json()
        assert RoundRecord.model_validate_json(text).model_dump_json() == text


def test_patience_counts_evaluations() -> None:
    stopping = EarlyStopping(patience=2, reference_loss=0.0)  # nothing is an improvement
    states, records = run(simulation(stopping=stopping, evaluate_every=3, max_rounds=99))
    assert [record.round for record in records] == [3, 6]
    assert states[-1].stopping.best_round in (3, 6)


def test_a_run_that_diverges_between_evaluations_has_a_last_record() -> None:
    training = LocalTraining(1e30, 0.9, batch_size=8, local_steps=9)
    steps, said = until_it_diverges(
        simulation(training=training, evaluate_every=50, max_rounds=100)
    )
    assert [record.round for _, record in steps] == [3]
    assert "diverged by round 3: no client's update was finite for 3 rounds" in said
    totals = steps[-1][1].totals
    assert totals is not None
    assert (totals.lost_rounds, totals.kept_model, totals.excluded) == (3, 3, [3, 3, 3])


# A backdoor's success


@dataclass(frozen=True)
class Corner(Backdoor):
    """A bright corner means the target."""

    target: int = 1

    def poison(
        self, images: Images, labels: Labels, num_classes: int, draw: np.random.Generator
    ) -> tuple[Images, Labels]:
        self.check_data(images.shape[1:], num_classes)
        return self.trigger(images), np.full_like(labels, self.target)

    def _planted(
        self, images: Images, labels: Labels, replaced: np.ndarray, draw: np.random.Generator
    ) -> Images:
        return self.trigger(images[replaced])

    def trigger(self, images: Images) -> Images:
        stamped = images.copy()
        stamped[:, :, :2, :2] = 6.0
        return stamped


def slow_success(whole: Simulation, state: RunState) -> float:
    """Return the success of a model, one honest test example at a time."""
    network = whole.model.build(whole.federation.image_shape, 3)
    network.load_state_dict({k: torch.from_numpy(v) for k, v in state.model.items()})
    assert whole.adversary is not None
    test, hits = whole.federation.test, []
    for image, label, owner in zip(test.images, test.labels, test.owners, strict=True):
        if int(owner) not in whole.adversary.clients and int(label) != 1:
            stamped = torch.from_numpy(Corner().trigger(image[None].numpy()))
            hits.append(int(network.eval()(stamped).argmax()) == 1)
    return float(np.mean(hits))


def test_a_backdoor_s_success_is_that_on_stamped_examples_of_other_classes() -> None:
    chosen = {"federation": federation((40, 35, 33, 30, 25)), "rule": FedAvg(), "max_rounds": 6}
    whole = simulation(threat=Threat(Corner(), Schedule(2)), **chosen)
    states, records = run(whole)
    for state, record in zip(states, records, strict=True):
        assert record.attack_success == alike(slow_success(whole, state))
    assert records[-1].attack_success is not None
    assert records[-1].attack_success > 0.9
    _, quiet = run(simulation(threat=Threat(Corner(), Schedule(2, start_round=99)), **chosen))
    assert quiet[-1].attack_success is not None
    assert quiet[-1].attack_success < records[-1].attack_success
    assert all(record.attack_success is None for record in run(simulation(max_rounds=1))[1])


@dataclass(frozen=True)
class DoubleCorner(Corner):
    """A corner whose trigger makes other numbers than the images are."""

    def trigger(self, images: Any) -> Any:
        return super().trigger(images).astype(np.float64)


def test_images_with_a_trigger_are_of_the_test_images_kind() -> None:
    whole = simulation(threat=Threat(DoubleCorner(), Schedule(1)), max_rounds=1)
    other = replace(whole, threat=Threat(Corner(), Schedule(1)))
    assert without_seconds(run(whole)[1]) == without_seconds(run(other)[1])


def test_the_target_s_own_examples_do_not_count() -> None:
    whole = simulation(threat=Threat(Corner(), Schedule(1)))
    adversary = whole.adversary
    assert adversary is not None
    labels, owners = torch.tensor([1, 0, 1]), torch.tensor([3, 2, 4])
    images = torch.zeros(3, 1, 4, 4)
    triggered = adversary.triggered(PooledExamples(images, labels, owners))
    assert triggered is not None
    assert triggered.labels.tolist() == [1]
    assert triggered.owners.tolist() == [2]
    assert not triggered.images[0, 0, :2, :2].sub(6.0).any()
    assert adversary.triggered(PooledExamples(images[:2], labels[[0, 2]], owners[:2])) is None


def test_a_target_that_is_no_class_is_named_before_anybody_trains() -> None:
    whole = simulation(threat=Threat(Corner(3), Schedule(1)))
    with pytest.raises(FedcrfError, match="target 3: the data set has 3 classes; give one from"):
        whole.start()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"local_steps": 1, "local_epochs": 1}, "local_epochs 1 and local_steps 1: give one"),
        ({"local_steps": 0}, "local_steps 0: give a whole number, 1 to 1000000"),
        ({"momentum": 0.9, "worker_momentum": 0.9}, "momentum 0.9 and worker_momentum 0.9: give"),
        ({"worker_momentum": 1.0}, r"worker_momentum 1.0: give a number in \[0, 1\)"),
        ({"worker_momentum": math.nan}, "worker_momentum"),
        ({"weight_decay": -0.1}, "weight_decay -0.1: give a number of 0 or more"),
        ({"weight_decay": math.inf}, "weight_decay inf"),
        ({"milestones": (3,)}, "milestones and learning_rate_decay: give both"),
        ({"learning_rate_decay": 0.5}, "milestones and learning_rate_decay: give both"),
        ({"milestones": (0,), "learning_rate_decay": 0.5}, "milestones 0: give a whole number, 1"),
        (
            {"milestones": (3,), "learning_rate_decay": 0.0},
            "learning_rate_decay 0.0: give a number above 0 and up to 1",
        ),
        (
            {"milestones": (3,), "learning_rate_decay": 1.5},
            "learning_rate_decay 1.5: give a number above 0 and up to 1",
        ),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(FedcrfError, match=said):
        LocalTraining(**settings)


def test_evaluations_are_a_whole_number_of_rounds_apart() -> None:
    with pytest.raises(FedcrfError, match="evaluate_every 0: give a whole number, 1 or more"):
        simulation(evaluate_every=0)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (LocalTraining(), "1 epoch of SGD, learning rate 0.01, momentum 0.9, batches of 64"),
        (
            STEPS["ByzFL"],
            "1 step of SGD, learning rate 0.1, worker momentum 0.9, weight decay 0.01, batches of",
        ),
        (STEPS["three steps"], "3 steps of SGD, learning rate 0.1, worker momentum 0.5, batches"),
    ],
)
def test_how_clients_train_in_words(training: LocalTraining, said: str) -> None:
    assert training.in_words().startswith(said)


@pytest.mark.parametrize(
    ("training", "steps", "images"),
    [
        (LocalTraining(batch_size=8, local_epochs=2, worker_momentum=0.9), 6, 40),
        (LocalTraining(batch_size=8, local_steps=4, worker_momentum=0.9), 4, 32),
        (LocalTraining(momentum=0.0, batch_size=64, local_steps=2), 2, 40),
    ],
)
def test_what_a_round_of_steps_counts_for(
    training: LocalTraining, steps: int, images: float
) -> None:
    assert training.effective_steps(20) == steps
    assert training.images(20) == images
