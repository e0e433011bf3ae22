"""`fedcrf.simulate`: any model, data and loss; the examples; and what is wrong, in a line."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import json
import multiprocessing
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, l1_loss, mse_loss
from torch.nn.utils import prune

import fedcrf
from fedcrf.attacks import (
    Attack,
    DataAttack,
    Forgery,
    GaussianNoise,
    Schedule,
    SignFlip,
    Threat,
)
from fedcrf.data.site_files import read_site_files, site_dataset
from fedcrf.errors import EarlierNameWarning, FedcrfError
from fedcrf.experiments.store import folder_lock
from fedcrf.report.explanation import find_rounds
from fedcrf.report.page import read_report
from fedcrf.rules import FedAvg, Rule
from fedcrf.simulation.federation import Stream, generator, torch_seed
from tolerance import assert_alike

ROOT = Path(__file__).parents[1]
NAMES = ("north", "south", "east", "west")


def example(name: str) -> ModuleType:
    pytest.importorskip("sklearn", reason="needs scikit-learn's data sets")
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sites(size: int = 30, names: Any = NAMES, seed: int = 0) -> dict[str, Any]:
    """Two noisy classes of five numbers."""
    draw = np.random.default_rng(seed)
    held = {}
    for name in names:
        y = draw.integers(0, 2, size)
        held[name] = (draw.standard_normal((size, 5)) + 2.0 * y[:, None], y)
    return held


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))


def simulate(**changed: Any) -> Any:
    given = {"model": net, "sites": sites(), "rounds": 3, "learning_rate": 0.05} | changed
    return fedcrf.simulate(**given)


def assert_same(one: Any, other: Any) -> None:
    assert list(one.model) == list(other.model)
    for name, tensor in one.model.items():
        assert torch.equal(tensor, other.model[name]), name
    assert one.metrics.equals(other.metrics)
    assert one.trust.equals(other.trust)


# The examples.


def test_hospitals_and_one_that_is_hostile(tmp_path: Path) -> None:
    hospitals = example("hospitals")
    result = hospitals.run(rounds=6)
    assert list(result.trust.columns) == list(hospitals.HOSPITALS)
    assert list(result.trust.index) == [1, 2, 3, 4, 5, 6]
    assert result.metrics["test_accuracy"].iloc[-1] > 0.85
    last = result.weights.iloc[-1]
    assert last["Davos"] < 0.03
    assert last.drop("Davos").min() > 0.15
    told = result.explain(site="Davos")
    assert "Client Davos (attacks): distrusted since round" in told
    assert result.table().loc["Davos", "verdict"] == "distrusted"
    page = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "1 of 6 clients" in page
    assert "Davos" in page


def test_sequences_with_batch_norm() -> None:
    result = example("sequences").run(rounds=4)
    assert result.metrics["test_accuracy"].iloc[-1] > 0.6
    assert result.model["1.num_batches_tracked"].dtype == torch.int64
    assert result.model["1.running_mean"].abs().max() > 0


@pytest.mark.parametrize(
    "around",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no gradients", "inference", "autocast"],
)
def test_training_has_gradients_wherever_it_is_called(around: Any) -> None:
    alone = simulate(rounds=1)
    with around():
        within = simulate(rounds=1)
    assert_same(alone, within)
    assert repr(within).startswith("<CRF-robust, 4 sites, 1 round: test loss ")
    assert ": validation loss 0." in repr(simulate(rounds=1, test=0.0))


def test_a_regression() -> None:
    result = example("diabetes").run(rounds=8)
    assert "test_accuracy" not in result.metrics
    measured = result.metrics["test_absolute error"]
    assert measured.iloc[-1] < 0.9 * measured.iloc[0]
    assert repr(result).count("accuracy") == 0
    assert dict(result.description.about)["Local training"].startswith("1 epoch of Adam, ")


def test_adapters_alone_are_sent() -> None:
    adapters = example("adapters")
    result = adapters.run(rounds=2)
    with torch.random.fork_rng():
        torch.manual_seed(torch_seed(0, Stream.MODEL))
        start = adapters.Classifier().state_dict()
    for name, tensor in result.model.items():
        assert torch.equal(tensor, start[name]) == ("lora" not in name), name
    heads = [result.personal[site]["head.weight"] for site in "ABCD"]
    assert not any(torch.equal(heads[0], other) for other in heads[1:])
    assert torch.equal(result.model_of("B")["head.weight"], heads[1])
    assert "head.weight" in dict(result.description.about)["Kept by each site"]


# What it computes.


def by_hand(rounds: int, seed: int = 0) -> tuple[dict[str, Tensor], list[float]]:
    """FedAvg over all examples of the sites, written out, in batches of 32 of their own order."""
    with torch.random.fork_rng():
        torch.manual_seed(torch_seed(seed, Stream.MODEL))
        network = net()
    state = {name: each.clone() for name, each in network.state_dict().items()}
    losses = []
    for number in range(1, rounds + 1):
        sent, lost = [], []
        for client, (x, y) in enumerate(sites().values()):
            network.load_state_dict(state)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
            order = generator(seed, Stream.SHUFFLE, number, client).permutation(len(y))
            for batch in np.array_split(order, [32] if len(order) > 32 else []):
                outputs = network(torch.tensor(x[batch], dtype=torch.float32))
                loss = cross_entropy(outputs, torch.tensor(y[batch]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                lost.append(loss.item() * len(batch) / len(y))
            sent.append({name: each.clone() for name, each in network.state_dict().items()})
        state = {name: sum(each[name] for each in sent) / len(sent) for name in state}
        losses.append(sum(lost) / len(sent))
    return state, losses


@pytest.mark.parametrize("loss", [None, cross_entropy], ids=["left out", "given"])
def test_it_is_fedavg_written_out(loss: Any) -> None:
    held = {"validation": sites(seed=1)["north"], "test": sites(seed=2)["north"]}
    result = simulate(rule="fedavg", loss=loss, **held)
    state, losses = by_hand(3)
    for name, tensor in result.model.items():
        assert_alike(tensor, state[name], name)
    assert_alike(result.metrics["training_loss"], losses)
    x, y = held["test"]
    network = net()
    network.load_state_dict(dict(result.model))
    outputs = network(torch.tensor(x, dtype=torch.float32))
    found = float(cross_entropy(outputs, torch.tensor(y)).detach())
    assert_alike(result.metrics["test_loss"].iloc[-1], found)


def test_a_metric_is_measured_over_each_site_as_a_whole() -> None:
    seen: list[int] = []

    def largest(outputs: Tensor, targets: Tensor) -> float:
        seen.append(len(targets))
        return float(outputs.max())

    sizes = {"a": 300, "b": 700}
    held = {name: sites(size, [name])[name] for name, size in sizes.items()}
    result = simulate(sites=held, rule="fedavg", rounds=1, metrics=largest, validation=0.9, test=0)
    assert set(seen[1:]) == {270, 630}, "more than a batch of evaluation"
    network = net()
    network.load_state_dict(dict(result.model))
    assert "validation_largest" in result.metrics


def test_a_metric_without_any_number_is_shown_and_an_accuracy_that_nobody_measures_is_not() -> None:
    metrics = {"auc": lambda outputs, targets: float("nan")}
    given = simulate(metrics=metrics, rounds=1).metrics
    measured = ["validation_loss", "validation_auc", "test_loss", "test_auc"]
    assert list(given) == ["training_loss", *measured]
    assert given[["validation_auc", "test_auc"]].isna().all(axis=None)


def test_several_outputs_frozen_parts_and_tensors() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(5, 3).requires_grad_(False)
            self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            hidden = self.body(x)
            return {"class": self.one(hidden), "size": self.other(hidden)}

    def loss(outputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        labels, sizes = targets[:, 0].long(), targets[:, 1:]
        return cross_entropy(outputs["class"], labels) + mse_loss(outputs["size"], sizes)

    held = [
        (torch.tensor(x).float(), torch.tensor(np.stack([y, x.sum(axis=1)], axis=1)).float())
        for x, y in sites(40).values()
    ]
    result = simulate(model=Two, sites=held, loss=loss, rounds=4)
    assert list(result.trust.columns) == [0, 1, 2, 3]
    assert result.metrics["training_loss"].is_monotonic_decreasing
    with torch.random.fork_rng():
        torch.manual_seed(torch_seed(0, Stream.MODEL))
        start = Two().state_dict()
    changed = [name for name in start if not torch.equal(start[name], result.model[name])]
    assert changed == ["one.weight", "one.bias", "other.weight", "other.bias"]


class WithMore(nn.Linear):
    """Returns more than a row for each example, in one of several forms."""

    def __init__(self, more: Any) -> None:
        super().__init__(5, 2)
        self.more = more

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return logits, self.more(self, logits)


@pytest.mark.parametrize("size", [250, 257, 512, 600])
@pytest.mark.parametrize(
    "more",
    [
        lambda network, logits: network.weight.square().sum(dim=1),
        lambda network, logits: logits.square().mean(),
        lambda network, logits: logits.square().mean(dim=0, keepdim=True),
        lambda network, logits: logits.unsqueeze(0),
    ],
    ids=["weights", "a mean", "a row", "examples second"],
)
def test_outputs_of_any_form_are_measured_as_a_whole(more: Any, size: int) -> None:
    def loss(outputs: Any, targets: Tensor) -> Tensor:
        return cross_entropy(outputs[0], targets) + outputs[1].mean()

    held_out = sites(size)["north"]
    result = simulate(model=lambda: WithMore(more), loss=loss, validation=held_out, rounds=1)
    network = WithMore(more)
    network.load_state_dict(result.model)
    x, y = (torch.as_tensor(each) for each in held_out)
    expected = float(loss(network(x.float()), y).detach())
    assert result.metrics["validation_loss"].iloc[-1] == pytest.approx(expected, rel=1e-5)


class Noisy(nn.Linear):
    """Draws whenever it is asked."""

    def __init__(self) -> None:
        super().__init__(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


class Counting(nn.Linear):
    """Changes a buffer that its state does not have."""

    def __init__(self) -> None:
        super().__init__(5, 2)
        self.register_buffer("mean", torch.zeros(5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean += 0.1 * (x.detach().mean(dim=0) - self.mean)
        return super().forward(x - self.mean)


class Seeing(nn.Linear):
    """Puts another buffer in the place of one that its state lacks, or makes it."""

    def __init__(self, first: Tensor | None, *, made_late: bool = False) -> None:
        super().__init__(5, 2)
        if not made_late:
            self.register_buffer("seen", first, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "seen"):
            self.register_buffer("seen", None, persistent=False)
        if self.training:
            self.seen = x.detach() if self.seen is None else torch.cat([self.seen, x.detach()])
        return super().forward(x if self.seen is None else x - self.seen.mean(dim=0))


class Parted(nn.Module):
    """Real and imaginary parts beside each other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.real, x.imag], dim=1)


class Standardised(nn.Linear):
    """Standardises its inputs, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__(5, 2)
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(1.0).div_(2.0) if self.in_place else (x - 1.0) / 2.0)


def loss_in_place(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets.mul_(0))


def loss_beside(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets * 0)


def metric_in_place(outputs: Tensor, targets: Tensor) -> Tensor:
    return l1_loss(outputs.mul_(0)[:, 0], targets.mul_(0).float()) + outputs.sum()


def metric_beside(outputs: Tensor, targets: Tensor) -> Tensor:
    return l1_loss(outputs[:, 0] * 0, targets.float() * 0) + (outputs * 0).sum()


def metric_after(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum() + targets.sum()


@pytest.mark.parametrize("rule", ["crf-robust", "crf-robust-evidence"])
@pytest.mark.parametrize("batch_size", [8, 200])
def test_what_a_users_functions_change_in_place_is_a_copy(rule: str, batch_size: int) -> None:
    given = {"rule": rule, "batch_size": batch_size}
    results = [
        [simulate(model=partial(Standardised, each), **given) for each in (False, True)],
        [simulate(loss=loss, **given) for loss in (loss_beside, loss_in_place)],
        [
            simulate(metrics={"first": metric, "then": metric_after}, **given)
            for metric in (metric_beside, metric_in_place)
        ],
    ]
    for beside, in_place in results:
        assert_same(in_place, beside)


class Looking(nn.Sequential):
    """Sees what its first layer makes by a hook that knows this network and no copy of it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 4), nn.Linear(4, 2))
        self.seen: Tensor | None = None
        self[0].register_forward_hook(lambda _, __, made: setattr(self, "seen", made))

    def forward(self, x: Tensor) -> Tensor:
        self[0](x)
        return self[1](self.seen)


def pruned() -> nn.Module:
    made = net()
    prune.l1_unstructured(made[0], "weight", 0.5)
    return made


def normed() -> nn.Module:
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(5, 4)), nn.Linear(4, 2))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("model", [Looking, pruned, normed])
def test_a_network_that_cannot_be_copied_is_made_anew(model: Any) -> None:
    result = simulate(model=model)
    assert result.metrics["training_loss"].is_monotonic_decreasing


class Centred(nn.Conv2d):
    """A convolution whose weights sum to 0, by a view of them."""

    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight.view(len(self.weight), -1).mean(dim=1)
        return conv2d(x, self.weight - mean[:, None, None, None], self.bias)


def test_a_layer_looks_at_its_weights_as_in_torch() -> None:
    held = {name: (np.resize(x, (len(x), 2, 5, 5)), y) for name, (x, y) in sites().items()}
    simulate(model=lambda: nn.Sequential(Centred(2, 4, 5), nn.Flatten()), sites=held)


@pytest.mark.parametrize("whole", [True, False], ids=["a network", "a part of it"])
def test_what_a_function_hands_out_every_time_is_copied(whole: bool) -> None:
    kept = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    network = nn.Sequential(kept, nn.Linear(4, 2))
    before = copy.deepcopy(network.state_dict())
    given = {"model": lambda: network if whole else nn.Sequential(kept, nn.Linear(4, 2))}
    result = simulate(share="!0.*", **given)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name
        if name.startswith("0."):
            assert torch.equal(result.model[name], tensor), name
    assert_same(simulate(share="!0.*", **given), result)


def test_state_that_is_no_tensor_stays_where_it_is() -> None:
    class Noted(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"note": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    assert list(simulate(model=lambda: Noted(5, 2)).model) == ["weight", "bias"]


def test_text_as_whole_numbers_and_a_data_set_of_items() -> None:
    class Words(torch.utils.data.Dataset[Any]):
        def __init__(self, seed: int) -> None:
            self.words = np.random.default_rng(seed).integers(0, 9, (20, 6))

        def __len__(self) -> int:
            return len(self.words)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return self.words[index], int(self.words[index, 0] > 4)

    result = simulate(
        model=lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 2)),
        sites={name: Words(seed) for seed, name in enumerate("ab")}, rounds=8, learning_rate=0.2,
    )  # fmt: skip
    assert result.metrics["training_loss"].iloc[-1] < 0.6


def test_a_trial_of_training_is_of_the_model_as_it_begins() -> None:
    """After a long step it may fail; and it may ask for gradients."""

    class Positive(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 2)
            self.least = nn.Parameter(torch.ones(()))

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                assert self.least > 0.9
                torch.autograd.grad(self.least.exp(), self.least)
            return super().forward(inputs) / self.least

    assert simulate(model=Positive, rounds=1, learning_rate=1e-4).records


def test_a_batch_norm_of_ones_own_may_take_more_than_its_inputs() -> None:
    class Scaled(nn.BatchNorm1d):
        def forward(self, inputs: Tensor, scale: float = 1.0) -> Tensor:
            return scale * super().forward(inputs)

    class Both(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 2)
            self.norm = Scaled(2)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.norm(super().forward(inputs), 2.0)

    assert simulate(model=Both, rounds=1).records


def test_outputs_of_all_pairs_are_of_all_examples_at_once() -> None:
    """They have as many rows as their batch, and as many columns."""

    class Pairs(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            outputs = super().forward(inputs)
            return outputs @ outputs.T

    draw = np.random.default_rng(0)
    held = {name: (draw.normal(size=(400, 5)), draw.normal(size=400)) for name in "abc"}
    result = simulate(
        model=lambda: Pairs(5, 2), sites=held, rounds=1, validation=(held["a"][0], held["a"][1]),
        loss=lambda pairs, targets: (pairs - torch.outer(targets, targets)).square().mean(),
    )  # fmt: skip
    assert np.isfinite(result.metrics["validation_loss"]).all()


def test_what_is_judged_and_what_is_averaged() -> None:
    """A site whose buffers are far off is not told by its weights, and is by its buffers."""

    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 2))

    held = sites()
    x, y = held["west"]
    held["west"] = (x + 1e4, y)
    both = simulate(model=normed, sites=held)
    weights = simulate(model=normed, sites=held, judge="!*running*")
    assert both.weights["west"].iloc[-1] < 0.05
    assert weights.weights["west"].iloc[-1] > 0.15
    assert weights.model["0.running_mean"].min() > 100, "it is averaged all the same"


def test_batch_norm_that_each_site_keeps_to_itself() -> None:
    """One of its tensors is a single number, how many batches there were."""

    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 2))

    result = simulate(model=normed, share="!0.*", rounds=2)
    means = [result.model_of(site)["0.running_mean"] for site in NAMES]
    assert not any(torch.equal(means[0], other) for other in means[1:])
    batches = result.personal["north"]["0.num_batches_tracked"]
    assert (batches.dtype, batches.item()) == (torch.int64, 2)


class Precise(nn.Linear):
    """A layer of double precision, and a whole number that float32 does not hold."""

    def __init__(self) -> None:
        super().__init__(5, 2, dtype=torch.float64)
        self.register_buffer("number", torch.tensor(2**24 + 1))


def test_a_model_of_double_precision() -> None:
    held = {name: (torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in sites().items()}
    result = simulate(model=Precise, sites=held)
    assert result.model["weight"].dtype == torch.float64
    assert result.model["number"] == 2**24 + 1


@pytest.mark.parametrize("rate", [Fraction(1, 20), Decimal("0.05"), torch.tensor(0.05).double()])
def test_a_learning_rate_of_another_kind_of_number(rate: Any) -> None:
    assert_same(simulate(learning_rate=rate), simulate())


@pytest.mark.parametrize("given", ["all", "some"])
def test_judging_all_is_no_choice(given: str) -> None:
    judge = None if given == "all" else "*"
    assert_same(simulate(judge=judge), simulate())


def test_the_same_seed_is_the_same_and_another_another() -> None:
    first = simulate(attack="gaussian", attackers=1)
    assert_same(first, simulate(attack=GaussianNoise(), attackers=1))
    assert_same(first, simulate(attack=GaussianNoise, attackers=1))
    other = simulate(attack="gaussian", attackers=1, seed=1)
    assert not torch.equal(first.model["0.weight"], other.model["0.weight"])


def slow_net() -> nn.Module:
    """The same network; another thread has time to draw between its layers."""
    first = nn.Linear(5, 4)
    time.sleep(0.01)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(4, 2))


def in_threads() -> list[Any]:
    with ThreadPoolExecutor(3) as threads:
        return [*threads.map(lambda _: simulate(model=slow_net), range(3))]


def in_a_fork_beside_a_thread() -> list[Any]:
    """A simulation in a process that was forked while a thread of its parent was at one."""
    begun, ended = threading.Event(), threading.Event()

    def waiting() -> nn.Module:
        begun.set()
        ended.wait()
        return net()

    with ThreadPoolExecutor(1) as thread:
        beside = thread.submit(simulate, model=waiting)
        begun.wait()
        try:
            with multiprocessing.get_context("fork").Pool(1) as forked:
                return [forked.apply_async(simulate).get(timeout=60)]
        finally:
            ended.set()
            beside.result()


async def in_a_loop() -> list[Any]:
    calls = (asyncio.to_thread(simulate, model=slow_net) for _ in range(2))
    return [simulate(), *await asyncio.gather(*calls)]


@pytest.mark.parametrize(
    "called", [in_threads, in_a_fork_beside_a_thread, lambda: asyncio.run(in_a_loop())],
    ids=["threads", "a fork", "a loop"],
)  # fmt: skip
def test_simulations_at_once_do_not_draw_each_others_numbers(called: Callable[[], Any]) -> None:
    threads, alone = torch.get_num_threads(), simulate()
    for each in called():
        assert_same(alone, each)
    assert torch.get_num_threads() == threads


def test_some_sites_each_round_and_an_attack_by_its_schedule() -> None:
    result = simulate(rounds=6, clients_per_round=2, attack=PULSE, attackers=["west"], seed=1)
    assert list(result.trust.count(axis="columns")) == [2] * 6
    west = result.weights["west"].notna()
    attacked = {record.round: record.attackers for record in result.records}
    assert attacked == {
        number: ["west"] if west[number] and number in (2, 4, 6) else [] for number in attacked
    }
    assert west.any()
    facts = dict(result.description.about)
    assert facts["Sites"].endswith("examples; 2 in each round")
    assert facts["Attack"] == "SignFlip by west, from round 2, every 2 rounds"
    table = result.table()
    for site in result.sites:
        last = result.weights[site].last_valid_index()
        if last is None:
            assert site not in table.index
            continue
        assert (table.loc[site, "round"], table.loc[site, "weight"]) == (
            last, result.weights.loc[last, site],
        )  # fmt: skip
        assert f", round {last}" in result.explain(site).splitlines()[0]


def test_what_is_asked_of_a_result_and_is_not_there_is_a_line(tmp_path: Path) -> None:
    result = simulate(rounds=1)
    (tmp_path / "file").write_text("", encoding="utf-8")
    for ask, said in (
        (lambda: result.explain("nort"), "unknown site 'nort': did you mean 'north'"),
        (lambda: result.explain(round="1"), "round '1': give its number, or none for the last"),
        (lambda: result.explain(round=2), "has no round 2: choose from 1 to 1"),
        (lambda: result.explain(round=1, number=1), "earlier name of round: leave number out"),
        (
            lambda: result.explain("n…th…"),
            "client n…th… took no part in round [0-9]*: choose from north",
        ),
        (lambda: result.model_of("z"), "unknown site 'z': choose from east"),
        (lambda: result.model_of("n…h"), "unknown site 'n…h'"),
        (lambda: result.report(tmp_path), "is a folder: name a file in it"),
        (lambda: result.report(3), "the report's path is 3: give a path"),
        (lambda: result.report(tmp_path / "file" / "a.html"), "name another file"),
    ):
        with pytest.raises(FedcrfError, match=said):
            ask()


def test_the_earlier_name_of_a_round_is_accepted_with_a_notice() -> None:
    result = simulate(rounds=2)
    with pytest.warns(EarlierNameWarning, match="explain: number is now called round") as noticed:
        told = result.explain(number=1)
    assert [each.filename for each in noticed] == [__file__]
    assert told == result.explain(round=1) == result.explain(None, 1)
    assert told.splitlines()[0] == "CRF-robust, round 1"


def test_the_table_of_sites_has_the_words_of_the_explanation() -> None:
    result = simulate(attack="sign-flip", attackers=["west"], rounds=4)
    table = result.table()
    assert table["since_round"].dtype == "Int64"
    in_doubt = table["verdict"].isin(["distrusted", "doubted"])
    assert in_doubt["west"]
    assert (table["since_round"].notna() == in_doubt).all()
    for site, row in table.iterrows():
        since = f" since round {row['since_round']}" if in_doubt[site] else ""
        told = result.explain(site)
        assert re.search(rf"^Client {site}[^:]*: {row['verdict']}{since}\.", told, re.MULTILINE)
        assert row["reason"] in told


def test_the_table_of_all_sites_fits_a_terminal_whatever_their_names() -> None:
    names = [f"the hospital of Sankt Gallen, ward {number}" for number in range(4)]
    result = simulate(sites=sites(names=names), attack="sign-flip", attackers=names[-1:])
    told = result.explain()
    table = told[told.index("every client of the round") :].splitlines()
    assert max(map(len, table)) <= 80
    assert len(table) == 3 + len(names) + 2, "a line each, and what the shortened names are"
    short = table[-3].partition("  ")[0]
    assert "…" in short
    assert result.explain(short) == result.explain(names[-1])


def test_sites_whose_names_are_numbers() -> None:
    result = simulate(sites=dict(enumerate(sites().values(), start=1)), attack="ipm", attackers=[3])
    assert list(result.trust.columns) == ["1", "2", "3", "4"]
    assert result.explain(site=3) == result.explain(site="3")
    assert "Client 3 (attacks)" in result.explain(site=3)


def test_threads_do_not_matter() -> None:
    before = torch.get_num_threads()
    one = simulate()
    torch.set_num_threads(before + 1)
    try:
        assert_same(one, simulate())
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


# Records.


PULSE = Threat(SignFlip(), Schedule(start_round=2, every=2))


def kinds() -> dict[str, dict[str, Any]]:
    return {
        "names": {"attack": "sign-flip", "attackers": ["west"]},
        "what sites keep": {"share": "!2.*"},
        "a server optimizer": {"rule": "crf-robust+adam"},
        "a loss": {"loss": cross_entropy, "metrics": {"l1": lambda o, _: o.abs().mean()}},
        "a metric of NaN": {"metrics": {"auc": lambda o, t: float("nan")}},
        "an optimizer": {"optimizer": lambda p: torch.optim.Adam(p, 0.01)},
        "a network that draws": {"model": Noisy},
        "one that draws, with a loss": {"model": Noisy, "loss": cross_entropy},
        "a buffer that is in no state": {"model": Counting},
        "a buffer of nothing at first": {"model": lambda: Seeing(None)},
        "a buffer that grows": {"model": lambda: Seeing(torch.zeros(1, 5))},
        "a buffer that is made on the way": {"model": lambda: Seeing(None, made_late=True)},
        "conjugate numbers": {
            "model": lambda: nn.Sequential(Parted(), nn.Linear(10, 2)),
            "sites": {name: (torch.from_numpy(x).cfloat().conj(), torch.from_numpy(y))
                      for name, (x, y) in sites().items()},
        },
        "some sites each round": {"clients_per_round": 2, "attack": PULSE, "attackers": ["west"]},
        "no reasons": {"rule": "coordinate-median"},
    }  # fmt: skip


@pytest.mark.parametrize("given", kinds().values(), ids=kinds())
def test_a_recorded_run_goes_on_as_if_it_had_not_stopped(
    given: dict[str, Any], tmp_path: Path
) -> None:
    whole = simulate(rounds=4, **given)
    folder = tmp_path / "run"
    simulate(rounds=2, record_to=folder, **given)
    lines = (folder / "rounds.jsonl").read_bytes()
    half = lines.splitlines()[1].replace(b'"round":2', b'"round":3') + b"\n"
    (folder / "rounds.jsonl").write_bytes(lines + half + b'{"round":4')  # as a kill leaves it
    again = simulate(rounds=4, record_to=folder, **given)
    assert_same(again, whole)
    for site in again.sites:
        for name, tensor in again.model_of(site).items():
            assert torch.equal(tensor, whole.model_of(site)[name]), name
    assert_same(simulate(rounds=4, record_to=folder, **given), whole)
    kept = torch.load(folder / "model.pt", weights_only=True)
    assert all(torch.equal(kept[name], tensor) for name, tensor in whole.model.items())


def test_a_record_is_shown_reported_and_explained(tmp_path: Path, command_line: Any) -> None:
    folder = tmp_path / "run"
    result = simulate(rounds=4, attack="sign-flip", attackers="west", record_to=folder)
    found = find_rounds(folder, None, None)
    assert found.attackers == ["west"]
    content = read_report([folder])
    facts = dict(content.runs[0].facts)
    assert facts["Sites"].startswith("4: north (30), south (30), ")
    assert facts["Attack"] == "SignFlip by west"
    assert "Not recorded" not in facts
    for arguments in (("show",), ("report",), ("explain",), ("explain", "--client", "west")):
        done = command_line(arguments[0], folder, *arguments[1:])
        assert done.rc == 0, done.err
    assert "Client west (attacks): " in done.out
    assert done.out.splitlines()[1:4] == result.explain("west").splitlines()[1:4]
    done = command_line("explain", folder, "--client", "noth")
    assert done.rc == 2
    assert "client noth took no part in round 4: choose from north, south" in done.err


def test_a_regression_is_shown_by_its_loss(tmp_path: Path, command_line: Any) -> None:
    held = {name: (x, x[:, :1] + 1) for name, (x, _) in sites().items()}
    run = {"model": lambda: nn.Linear(5, 1), "loss": mse_loss, "metrics": {"error": l1_loss}}
    result = simulate(sites=held, record_to=tmp_path / "run", **run)
    loss = result.records[-1].validation.loss
    shown = command_line("show", tmp_path / "run", "--markdown", "--figures")
    assert f"| run | CRF-robust | 3 | 4 | {loss:.4g} |" in shown.out
    assert "accuracy" not in shown.out
    latex = command_line("show", tmp_path / "run", "--latex").out
    assert latex.count("\\toprule") == latex.count("\\bottomrule") == 1


def test_a_report_of_two_rules_stands_beside_fedavg(tmp_path: Path) -> None:
    given = {"attack": "sign-flip", "attackers": ["west"], "rounds": 4}
    for rule, more in (("fedavg", {}), ("crf-robust", {}), ("rfa", {"seed": 1})):
        simulate(rule=rule, record_to=tmp_path / rule, **given, **more)
    ours, fedavg, other = read_report(
        [tmp_path / name for name in ("crf-robust", "fedavg", "rfa")]
    ).runs
    accuracies = [
        find_rounds(tmp_path / name, None, None).records[-1].test.accuracy
        for name in ("crf-robust", "fedavg")
    ]
    result, distrusted, beside = ours.headline.tiles
    assert (result.value, distrusted.value) == (f"{accuracies[0]:.3f}", "1 of 4")
    assert result.about.endswith(f"; FedAvg {accuracies[1]:.3f}")
    assert beside.value == f"{100 * (accuracies[0] - accuracies[1]):+.1f} points"
    assert beside.about == "of test accuracy; one seed"
    for run in (fedavg, other):
        assert "Beside FedAvg" not in [tile.title for tile in run.headline.tiles], "another seed"


def percent(outputs: Tensor, targets: Tensor) -> Tensor:
    return 100.0 * (outputs.argmax(1) == targets).float().mean()


def test_what_is_no_accuracy_is_compared_with_no_fedavg(tmp_path: Path) -> None:
    for rule in ("fedavg", "crf-robust"):
        simulate(rule=rule, rounds=2, metrics={"accuracy": percent}, record_to=tmp_path / rule)
    ours, _ = read_report([tmp_path / "crf-robust", tmp_path / "fedavg"]).runs
    result, beside = ours.headline.tiles[0], ours.headline.tiles[-1]
    assert result.title == "Test loss"
    assert beside.about == "of test loss; one seed"


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "sites": ({"sites": sites(seed=5)}, "of other sites"),
    "a rule": ({"rule": "fedavg"}, "of other rule"),
    "a seed": ({"seed": 1}, "of other"),
    "training": ({"batch_size": 8}, "of other training"),
    "fewer rounds": ({"rounds": 1}, "holds 3 rounds: give rounds=3 or more"),
}


@pytest.mark.parametrize(("changed", "said"), OTHERS.values(), ids=OTHERS)
def test_a_folder_takes_no_other_run(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    simulate(record_to=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(FedcrfError, match=said):
        simulate(record_to=tmp_path / "run", **changed)
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def flat(factor: float) -> Callable[..., Any]:
    """Return a model whose code says what its parts do not."""

    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return factor * super().forward(x)

    return lambda: Scaled(5, 2)


FUNCTIONS: dict[str, tuple[Callable[[float], dict[str, Any]], str]] = {
    "loss": (lambda by: {"loss": lambda o, t: by * cross_entropy(o, t)}, "loss, optimizer"),
    "class weights": (
        lambda by: {"loss": nn.CrossEntropyLoss(torch.tensor([1.0, by]))},
        "loss, optimizer",
    ),
    "metric": (lambda by: {"metrics": {"f": lambda o, t: by}}, "metric f"),
    "optimizer": (lambda by: {"optimizer": lambda p: torch.optim.Adam(p, by)}, "optimizer"),
    "momentum": (
        lambda by: {"optimizer": lambda p: torch.optim.SGD(p, 0.1, momentum=by / 4)},
        "optimizer's second step",
    ),
    "averages": (
        lambda by: {"optimizer": lambda p: torch.optim.Adam(p, 0.1, betas=(by / 4, 0.9))},
        "optimizer's second step",
    ),
    "model": (lambda by: {"model": flat(by)}, "outputs"),
    "a part of the model": (
        lambda by: {"model": lambda: nn.Sequential(nn.Dropout(by / 4), nn.Linear(5, 2))},
        "model",
    ),
}


@pytest.mark.parametrize(("given", "said"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_are_known_by_what_they_compute(
    given: Callable[[float], dict[str, Any]], said: str, tmp_path: Path
) -> None:
    """A function that computes the same goes on under any name, and another one under none."""
    more = {"optimizer": lambda p: torch.optim.SGD(p, 0.1)} if said.startswith("loss, ") else {}
    folder = tmp_path / "run"
    simulate(rounds=1, record_to=folder, **more, **given(2.0))
    assert simulate(rounds=2, record_to=folder, **more, **given(2.0)).records[-1].round == 2
    with pytest.raises(FedcrfError, match=f"holds a run of other {said}: name another folder"):
        simulate(rounds=2, record_to=folder, **more, **given(2.2))


def test_a_record_of_one_step_of_the_optimizer_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    given = {"record_to": folder, "optimizer": lambda p: torch.optim.SGD(p, 0.1)}
    simulate(rounds=1, **given)
    description = json.loads((folder / "description.json").read_text(encoding="utf-8"))
    assert description["made_of"].pop("optimizer's second step")
    (folder / "description.json").write_text(json.dumps(description), encoding="utf-8")
    assert simulate(rounds=2, **given).records[-1].round == 2


def test_a_folder_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    simulate(record_to=tmp_path / "run", rounds=1)
    said = (
        "is being written by another process: wait for it, or choose another folder as record_to="
    )
    with folder_lock(tmp_path / "run"), pytest.raises(FedcrfError, match=said):
        simulate(record_to=tmp_path / "run")
    assert len(find_rounds(tmp_path / "run", None, None).records) == 1


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(
        FedcrfError, match="is not empty and holds no such run: choose another folder as"
    ):
        simulate(record_to=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


# Sites from files.


def write_sites(folder: Path, kind: str, held: Mapping[str, Any]) -> Path:
    """Write sites as files of a kind, and return what to give."""
    folder.mkdir()
    if kind == "one npz":
        arrays = {f"{name}_{part}": array for name, pair in held.items()
                  for part, array in zip("xy", pair, strict=True)}  # fmt: skip
        np.savez(folder / "sites.npz", **arrays)
        return folder / "sites.npz"
    for name, (x, y) in held.items():
        if kind == "npz":
            np.savez(folder / f"{name}.npz", x=x, y=y)
            continue
        table = pd.DataFrame(x, columns=[f"c{i}" for i in range(x.shape[1])])
        table.insert(2, "Label", np.where(y, "ill", "healthy") if kind == "words" else y)
        if name == "south":
            table = table[table.columns[::-1]]
        if kind == "parquet":
            table.to_parquet(folder / f"{name}.parquet")
        else:
            table.to_csv(folder / f"{name}.csv", index=False)
    (folder / "README.txt").write_text("not a site", encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", ["one npz", "npz", "csv", "words", "parquet"])
def test_sites_from_files(kind: str, tmp_path: Path) -> None:
    held = {name: (x.round(6), y) for name, (x, y) in sites(12, names=sorted(NAMES)).items()}
    place = write_sites(tmp_path / "sites", kind, held)
    given = {"rounds": 2, "validation": 0.2}
    assert_same(simulate(sites=str(place), **given), simulate(sites=held, **given))


@pytest.mark.parametrize("kind", ["one npz", "csv"])
def test_sites_are_in_the_order_of_their_numbers(kind: str, tmp_path: Path) -> None:
    ordered = ["annex", "site 02", "site 2", "site 10", "site ²"]
    held = sites(12, names=[*ordered[::-1]])
    found = read_site_files(write_sites(tmp_path / "sites", kind, held)).sites
    assert list(found) == ordered


def test_labels_of_bytes_are_utf_8(tmp_path: Path) -> None:
    x = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["é".encode(), b"b", b"b"]))
    assert read_site_files(tmp_path).class_names == ("b", "é")
    np.savez(tmp_path / "b.npz", x=x, y=np.array(["é".encode("latin-1"), b"b", b"b"]))
    with pytest.raises(FedcrfError, match=r"targets of site 'b' are no UTF-8 \(UnicodeDecodeError"):
        read_site_files(tmp_path)


@pytest.mark.parametrize(
    ("targets", "labels"),
    [
        (["None", "mild", "None"], ["None", "mild", "None"]),
        (["NA", "no", "nan"], ["NA", "no", "nan"]),
        (["None", "None", "None"], ["None", "None", "None"]),
        (["True", "False", "True"], [True, False, True]),
        (["0.0", "1.0", "1.0"], [0.0, 1.0, 1.0]),
    ],
)
def test_targets_as_tables_have_them(targets: list[str], labels: list[Any], tmp_path: Path) -> None:
    lines = [f"{number},{number},{target}" for number, target in enumerate(targets)]
    (tmp_path / "a.csv").write_text("\n".join(["c, d, y", *lines]) + "\n", encoding="utf-8")
    read = read_site_files(tmp_path)
    found = read.sites["a"][1].tolist()
    assert [read.class_names[each] if read.class_names else each for each in found] == labels
    assert site_dataset(f"sites:{tmp_path}", None).train.labels.tolist() == [
        sorted(set(labels)).index(label) for label in labels
    ]


LINE = "1,2,0\n"
FILES: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({}, "holds no .csv, .parquet or .npz file: put one there for each site"),
    "no target": ({"a": "c,d\n1,2\n"}, "no columns are named as a target .*: rename it$"),
    "two targets": ({"a": "c,y,label\n1,2,3\n"}, "2 columns are named as a target"),
    "words": ({"a": "c,d,y\n1,two,0\n"}, r"a.csv: column 'd' is no numbers: make it some"),
    "a hole": ({"a": "c,d,y\n1,2,0\n1,,0\n"}, r"a.csv: column 'd' is empty in row 2: fill it in"),
    "a hole among the targets": ({"a": "c,d,y\n1,2,\n"}, "column 'y' is empty in row 1"),
    "a column of holes": ({"a": "c,d,y\n1,,0\n1,,0\n"}, "column 'd' is empty in row 1: fill it in"),
    "a column without a name": (
        {"a": ",d,y\n0,2,0\n"},
        "a.csv: column 1 has no name: leave it out",
    ),
    "a field too many": (
        {"a": "c,d,y\n9,1,2,0\n"},
        "a.csv: its rows have more fields than its header: name every column, or take",
    ),
    "a column twice": ({"a": "c,c ,y\n1,2,0\n"}, "column 'c' is there twice: rename one, or leave"),
    "other columns": (
        {"a": f"c,d,y\n{LINE}", "b": f"c,e,y\n{LINE}"},
        "b.csv: column 'd' is not in all sites' files: give all the same columns",
    ),
    "other targets": (
        {"a": f"c,d,y\n{LINE}", "b": "c,d,y\n1,2,no\n"},
        "targets of site 'b' are words, those of site 'a' numbers",
    ),
    "no table": ({"a": ""}, "a.csv cannot be read"),
    "no rows": (
        {"a": f"c,d,y\n{LINE}", "b": "c,d,y\n"},
        "b.csv has no rows: leave it out, or give it some",
    ),
    "semicolons": ({"a": "c;d;y\n1;2;0\n"}, "a.csv: its columns are separated by ';': save it wit"),
    "a column that is none of these": ({"a": "c,d\n1,2\n"}, "; there are c, d: rename it$"),
    "a target alone": ({"a": "y\n0\n"}, "a.csv has no column but the label, 'y': give it columns"),
}


@pytest.mark.parametrize(("files", "said"), FILES.values(), ids=FILES)
def test_what_is_wrong_with_files_is_a_line(
    files: dict[str, str], said: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    with pytest.raises(FedcrfError, match=said) as caught:
        simulate(sites=tmp_path)
    assert "\n" not in str(caught.value)


def test_what_is_wrong_with_arrays_is_a_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "sites.npz", north_x=np.ones(3), north_z=np.ones(3))
    with pytest.raises(FedcrfError, match="holds 'north_z': give two arrays for each site"):
        simulate(sites=tmp_path / "sites.npz")
    np.savez(tmp_path / "sites.npz", north_x=np.ones(3))
    with pytest.raises(FedcrfError, match="lacks 'north_y': give two arrays for each site"):
        simulate(sites=tmp_path / "sites.npz")
    (tmp_path / "sites.npz").write_bytes(b"no archive")
    with pytest.raises(FedcrfError, match=r"sites\.npz cannot be read"):
        simulate(sites=tmp_path / "sites.npz")
    with pytest.raises(FedcrfError, match=r"there are no such sites; give an \.npz file"):
        simulate(sites=tmp_path / "nowhere")
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    with pytest.raises(FedcrfError, match=r"a\.npz holds x: give it two arrays, x and y"):
        simulate(sites=tmp_path)
    for place in (tmp_path, tmp_path / "a.npz"):
        with pytest.raises(FedcrfError, match=r"a\.npz has arrays and no columns: leave --label-"):
            read_site_files(place, label_column="y")


@dataclass(frozen=True)
class Scored(FedAvg):
    """Has a setting that is described by its place in memory."""

    score: Any = None


def test_a_run_goes_on_where_a_setting_is_a_function_and_a_kill_left_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    simulate(rule=Scored(lambda update: update), rounds=1, record_to=folder)
    left = folder / ".checkpoint.pt.123-0a1b2c3d"
    left.touch()
    result = simulate(rule=Scored(lambda update: update), rounds=2, record_to=folder)
    assert result.records[-1].round == 2
    assert not left.exists()


# What is wrong.


@dataclass(frozen=True)
class Tired(FedAvg):
    """Raises in the third round."""

    def aggregate(self, memory: Any, model: Any, reports: Any) -> Any:
        count = int(memory.get("count", np.zeros(1))[0])
        if count == 2:
            raise RuntimeError("no more\nthan this")
        result = super().aggregate({}, model, reports)
        object.__setattr__(result, "memory", {"count": np.array([count + 1.0])})
        return result


def test_a_rule_that_raises_in_the_third_round(tmp_path: Path) -> None:
    with pytest.raises(FedcrfError) as caught:
        simulate(rule=Tired(), rounds=5, record_to=tmp_path / "run")
    assert str(caught.value).startswith("rule 'Tired' failed in round 3 (RuntimeError: no more")
    assert "\n" not in str(caught.value)
    rounds = find_rounds(tmp_path / "run", None, None).records
    assert [record.round for record in rounds] == [1, 2]


@dataclass(frozen=True)
class Bare(FedAvg):
    """Returns the next model alone."""

    def aggregate(self, memory: Any, model: Any, reports: Any) -> Any:
        return super().aggregate(memory, model, reports).state


def test_a_rule_that_returns_no_result_is_named() -> None:
    said = r"rule 'Bare' failed in round 1 \(TypeError: it returned a \w+: return weighted_result"
    with pytest.raises(FedcrfError, match=said):
        simulate(rule=Bare(), rounds=2)


@dataclass(frozen=True)
class Odd(FedAvg):
    """Returns a result of which something is replaced."""

    def aggregate(self, memory: Any, model: Any, reports: Any) -> Any:
        result = super().aggregate(memory, model, reports)
        for name, value in self.changes(result).items():
            object.__setattr__(result, name, value)
        return result

    def changes(self, result: Any) -> dict[str, Any]:
        raise NotImplementedError


ODD_RESULTS: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "doubles": (
        lambda it: {"state": {name: each.astype(np.float64) for name, each in it.state.items()}},
        "its next model has '0.weight' as float64",
    ),
    "a tensor less": (
        lambda it: {"state": dict(list(it.state.items())[1:])},
        "its next model has other tensors than the global model has: '0.weight'",
    ),
    "a weight less": (
        lambda it: {"weights": it.weights[1:]},
        r"its weights have shape \(3,\): give",
    ),
    "a column": (lambda it: {"weights": it.weights[:, None]}, r"its weights have shape \(4, 1\)"),
    "a memory without names": (
        lambda it: {"memory": [1.0]},
        "its memory is a list: keep arrays by",
    ),
    "a memory of dicts": (
        lambda it: {"memory": {"n": {}}},
        "its memory 'n' is a dict: keep an arr",
    ),
}


@pytest.mark.parametrize(("changes", "said"), ODD_RESULTS.values(), ids=ODD_RESULTS)
def test_a_rule_that_returns_another_form_is_named(changes: Any, said: str) -> None:
    rule = dataclass(frozen=True)(type("Mine", (Odd,), {"changes": lambda self, it: changes(it)}))
    with pytest.raises(FedcrfError, match=f"rule 'Mine' failed in round 1 .*{said}"):
        simulate(rule=rule(), rounds=2)


ODD_ATTACKS: dict[str, tuple[type[Attack], str, Any, str]] = {
    "a list": (Attack, "forge", lambda scene: scene.own, "TypeError: it returned a list: return F"),
    "nothing": (Attack, "forge", lambda scene: None, "it returned a NoneType"),
    "honest clients' reports": (
        Attack, "forge", lambda scene: Forgery(scene.honest[:1]), r"reports of clients \[0\]: give",
    ),
    "no reports": (Attack, "forge", lambda scene: Forgery([]), r"of clients \[\]: give those of"),
    "a memory of lists": (
        Attack, "forge", lambda scene: Forgery(scene.own, [1]), "its memory is a list: keep array",
    ),
    "a memory of words": (
        Attack, "forge", lambda scene: Forgery(scene.own, {"n": np.array(["a"])}),
        "its memory 'n' is a ndarray of <U1: keep an array of numbers",
    ),
    "no examples": (DataAttack, "poison", lambda x, y, *_: None, "cannot poison .TypeError"),
    "an error": (DataAttack, "poison", lambda x, y, *_: {}["k"], "cannot poison .KeyError: 'k'"),
    "labels beyond": (
        DataAttack, "poison", lambda x, y, *_: (x, y + 99), "labels that are not 0 to 1, or none",
    ),
    "labels less": (
        DataAttack, "poison", lambda x, y, *_: (x, y[1:]), r"images of shape \(24, 5\) and labels",
    ),
    "other images": (
        DataAttack, "poison", lambda x, y, *_: (x[:, 1:], y), r"images of shape \(24, 4\) and",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("base", "method", "does", "said"), ODD_ATTACKS.values(), ids=ODD_ATTACKS)
def test_an_attack_that_returns_another_form_is_named(
    base: Any, method: str, does: Any, said: str
) -> None:
    attack = type("Mine", (base,), {method: lambda self, *given: does(*given)})
    with pytest.raises(FedcrfError, match=f"attack Mine .*{said}"):
        simulate(attack=dataclass(frozen=True)(attack)(), attackers=["south"], rounds=1)


def test_what_an_attack_trains_on_has_the_form_of_its_examples() -> None:
    attack = type(
        "Mine",
        (DataAttack,),
        {"poison": lambda self, x, y, *_: (x.astype(float), 1.0 - y)},
    )
    flipped = simulate(attack=dataclass(frozen=True)(attack)(), attackers=["south"])
    assert_same(flipped, simulate(attack="label-flip", attackers=["south"]))


def odd(name: str, inputs: Any = None, targets: Any = None) -> dict[str, Any]:
    held = sites()
    x, y = held[name]
    held[name] = (x if inputs is None else inputs(x), y if targets is None else targets(y))
    return held


def with_nan(x: Any) -> Any:
    x = x.copy()
    x[17, 2] = np.nan
    return x


def in_round(number: int) -> Callable[..., Tensor]:
    """Return a loss that raises after it was called so often."""
    calls = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > number:
            raise KeyError("lost")
        return cross_entropy(outputs, targets)

    return loss


class Random(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 2)
        self.weight.data += torch.from_numpy(np.random.default_rng().random((2, 5))).float()


class Masking(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 2)
        drawn = np.random.default_rng().random(5)
        self.register_buffer("mask", torch.from_numpy(drawn).cfloat(), persistent=False)


class Tied(nn.Sequential):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 5), nn.Linear(5, 5))
        self[1].weight = self[0].weight


class Kept(nn.Linear):
    """A layer with a buffer of these numbers."""

    def __init__(self, numbers: Tensor) -> None:
        super().__init__(5, 2)
        self.register_buffer("kept", numbers)


class TupleInTraining(nn.Linear):
    """Returns a pair, but in training alone."""

    def __init__(self) -> None:
        super().__init__(5, 2)

    def forward(self, inputs: Tensor) -> Any:
        outputs = super().forward(inputs)
        return (outputs, outputs) if self.training else outputs


class CopiedState(nn.Linear):
    """Hands out copies of its tensors."""

    def __init__(self) -> None:
        super().__init__(5, 2)

    def state_dict(self, *given: Any, **named: Any) -> Any:
        return {name: each.clone() for name, each in super().state_dict(*given, **named).items()}


@dataclass(frozen=True)
class Hooks(FedAvg):
    """Fails in one of what a rule may do beside aggregating."""

    fails: str = ""

    def _may_fail(self, hook: str) -> None:
        if hook == self.fails:
            {}["k"]

    def informed(self, attackers: int, num_clients: int, seed: int) -> Any:
        self._may_fail("informed")
        return self

    def check_clients(self, num_clients: int) -> None:
        self._may_fail("check_clients")

    def begin(self) -> Any:
        self._may_fail("begin")
        return {}


class Informed(FedAvg):
    """Forgets to return itself."""

    def informed(self, attackers: int, num_clients: int, seed: int) -> Any:
        return None


class Obstructed(Attack):
    """Cannot tell whether it is possible."""

    def obstacle(self, num_clients: int, attackers: int) -> Any:
        return {}["k"]


class Words(torch.utils.data.Dataset[Any]):
    """Items whose target is a word."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.ones(5), "ill"


class Masked(Words):
    """Items with a mask."""

    def __getitem__(self, index: int) -> Any:
        return np.ma.masked_less(np.zeros(5), 1.0), index


NORMED = lambda: nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2))  # noqa: E731

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no sites": ({"sites": {}}, "there are no sites: give each"),
    "sites that are none": ({"sites": 3}, "the sites are a int: give a dictionary such as"),
    "a site without examples": (
        {"sites": odd("east", lambda x: x[:0], lambda y: y[:0])},
        "site 'east' has no examples: leave it out",
    ),
    "a site of few": (
        {"sites": odd("east", lambda x: x[:1], lambda y: y[:1]), "validation": 0.6},
        "site 'east' has 1 examples, and none is left to train on",
    ),
    "other shapes": (
        {"sites": odd("east", lambda x: x[:, :4])},
        r"inputs of site 'east' have shape \(4,\), those of site 'north' \(5,\): give all sites",
    ),
    "other kinds of inputs": (
        {"sites": odd("east", lambda x: x.astype(int))},
        "inputs of site 'east' are int64, those of site 'north' float32",
    ),
    "other kinds of labels": (
        {"sites": odd("west", targets=lambda y: y + 0.5)},
        "targets of site 'west' are float32, those of site 'north' int64",
    ),
    "labels of words": (
        {"sites": odd("north", targets=lambda y: np.where(y, "ill", "well"))},
        "targets of site 'north' are str.*, not numbers",
    ),
    "NaN": ({"sites": odd("west", with_nan)}, "site 'west' are NaN or infinite in example 17"),
    "more inputs than targets": (
        {"sites": odd("west", targets=lambda y: y[:7])},
        "site 'west' has 30 inputs and 7 targets: give one target for each",
    ),
    "sparse inputs": (
        {"sites": odd("west", lambda x: torch.from_numpy(x).to_sparse())},
        "inputs of site 'west' are sparse, or a tensor without numbers: give a dense one",
    ),
    "a data set of words": (
        {"sites": {"north": Words()}}, "site 'north': its data set cannot be read .*: give one"
    ),
    "labels of another kind": (
        {"sites": {name: (torch.tensor(x), torch.tensor(y).int()) for name, (x, y) in
                   sites().items()}},
        "targets are int32, and .*: make them int64, as targets.long",
    ),
    "labels of a kind that torch barely has": (
        {"sites": {name: (torch.tensor(x), torch.tensor(y).to(torch.uint16)) for name, (x, y) in
                   sites().items()}},
        "targets are uint16, and .*: make them int64, as targets.long",
    ),
    "inputs of a kind that torch barely has": (
        {"sites": odd("north", lambda x: torch.tensor(x).to(torch.float8_e4m3fn))},
        r"inputs of site 'north' are float8_e4m3fn \(\w+Error: .*: give float32",
    ),
    "a model that fails in training": (
        {"model": TupleInTraining},
        r"the model fails in training \(\w+Error: .*: let it do the same as in evaluation",
    ),
    "a model with batch norm that fails in training": (
        {"model": lambda: nn.Sequential(TupleInTraining(), nn.BatchNorm1d(2))},
        r"the model \w+ \w+ .*\(\w+Error: ",
    ),
    "a trained tensor that is copied": (
        {"model": CopiedState},
        r"training changes 'weight', which the model's state_dict\(\) lacks or copies",
    ),
    "a rule that fails where it is informed": (
        {"rule": Hooks("informed")}, r"rule Hooks failed \(KeyError: 'k', at test_simulate.py:\d+\)"
    ),
    "a rule that is informed and gone": (
        {"rule": Informed()}, r"rule Informed failed \(its informed\(\) returns a NoneType\): ret"
    ),
    "a rule that fails where clients are counted": (
        {"rule": Hooks("check_clients")}, "rule Hooks failed .KeyError: 'k'"
    ),
    "a rule that cannot begin": ({"rule": Hooks("begin")}, "rule Hooks failed .KeyError: 'k'"),
    "an attack whose obstacle fails": (
        {"attack": Obstructed(), "attackers": ["south"]}, "attack Obstructed failed .KeyError: 'k'"
    ),
    "no pair": ({"sites": {"north": 3}}, "site 'north' holds a int: give a pair"),
    "a name and its number": (
        {"sites": {1: sites()["north"], "1": sites()["south"]}}, "'1' is there twice: give each"
    ),
    "a label too many": (
        {"sites": odd("west", targets=lambda y: y + 5 * (y > 0))},
        "site 'west' has label 6 and the model makes 2 logits: make 7, or mend the labels",
    ),
    "targets that are no labels": (
        {"sites": {name: (x, y + 0.5) for name, (x, y) in sites().items()}},
        "targets are float32, and cross-entropy takes labels from 0 on: give loss=",
    ),
    "labels below 0": (
        {"sites": {name: (x, y - 1) for name, (x, y) in sites().items()}},
        "site 'north' has label -1, .* from 0 on: number the labels from 0, or give loss=",
    ),
    "labels below 0 at one site": (
        {"sites": odd("east", targets=lambda y: 2 * y - 1)},
        "site 'east' has label -1, and cross-entropy takes labels from 0 on: number the labels",
    ),
    "masked inputs": (
        {"sites": odd("west", lambda x: np.ma.masked_less(x, 0.0))},
        "inputs of site 'west' are masked: fill what is missing, or leave those examples out",
    ),
    "masked targets": (
        {"sites": odd("west", targets=lambda y: np.ma.masked_less(y, 1))},
        "targets of site 'west' are masked: fill what is missing, or leave those examples out",
    ),
    "masked inputs of the server's": (
        {"test": (np.ma.masked_less(np.zeros((3, 5)), 1.0), np.zeros(3, int))},
        "inputs of the server's test are masked: fill what is missing",
    ),
    "a data set of masked items": (
        {"sites": {"north": Masked()}}, "inputs of site 'north' are masked: fill what is missing"
    ),
    "the server's of another shape": (
        {"test": (np.zeros((3, 4)), np.zeros(3, int))},
        r"inputs of the server's test have shape \(4,\)",
    ),
    "the server's labels below 0": (
        {"validation": (np.zeros((3, 5)), np.array([0, 1, -1]))},
        "the server's validation has label -1, .* takes labels from 0 on: number the labels from 0",
    ),
    "a share of all": ({"validation": 1.0}, r"validation 1.0: give a share in \[0, 1\), or inputs"),
    "nothing to validate on": ({"validation": 0.001}, "too few examples to validate on: give val"),
    "no model": ({"model": 3}, "the model is a int: give a function or class"),
    "a function of no model": ({"model": lambda: 3}, "the model's function makes a int: give"),
    "a model that cannot be made": ({"model": lambda: nn.Linear(1)}, r"function failed \(TypeErr"),
    "a layer without a size": (
        {"model": lambda: nn.LazyLinear(2)}, "makes a network whose 'weight' has no numbers yet"
    ),
    "a mask that is infinite": (
        {"model": lambda: Kept(torch.tensor([-torch.inf]))},
        "the model's 'kept' is not finite before any training: .* share='!kept'",
    ),
    "a model of complex numbers": (
        {"model": lambda: Kept(torch.tensor([1j]))}, "the model's 'kept' is complex64: give real"
    ),
    "a model of other inputs": (
        {"model": lambda: nn.Linear(4, 2)},
        r"the model cannot take inputs of shape \(32, 5\) and float32 \(RuntimeError",
    ),
    "a model of other outputs": (
        {"model": lambda: nn.Unflatten(1, (5, 1))},
        "the model has no parameter to train",
    ),
    "outputs that do not fit": (
        {"model": lambda: nn.Sequential(nn.Linear(5, 2), nn.Unflatten(1, (2, 1)))},
        r"the model makes a tensor of shape \(32, 2, 1\) of 32 examples: make logits of shape",
    ),
    "two outputs": (
        {"model": lambda: nn.LSTM(5, 2)},
        "the model makes a tuple of 32 examples: make logits",
    ),
    "weights that no seed decides": ({"model": Random}, "gives 'weight' other numbers every time"),
    "frozen weights that no seed decides": (
        {"model": lambda: nn.Sequential(Random().requires_grad_(False), nn.Linear(2, 2))},
        "gives '0.weight' other numbers every time: draw them by torch's own generator",
    ),
    "a buffer that is in no state and that no seed decides": (
        {"model": Masking}, "gives 'mask' other numbers every time"
    ),
    "all frozen": ({"model": lambda: net().requires_grad_(False)}, "no parameter to train"),
    "a loss of no scalar": (
        {"loss": nn.CrossEntropyLoss(reduction="none")},
        r"the loss returns a tensor of shape \(32,\): return a scalar tensor, such as its mean",
    ),
    "a loss of one number in a row": (
        {"loss": lambda o, t: cross_entropy(o, t)[None]}, r"returns a tensor of shape \(1,\): ret"
    ),
    "a complex loss": ({"loss": lambda o, t: o.mean() * 1j}, "the loss returns a complex number:"),
    "a loss of a number": ({"loss": lambda o, t: 1.0}, "the loss returns a float: return a scalar"),
    "a loss of nothing": (
        {"loss": lambda o, t: o.detach().mean()},
        "the loss does not depend on a trained parameter: return what the outputs make",
    ),
    "a loss that raises": ({"loss": lambda o, t: o[7, 7].mean()}, "loss cannot be computed of a t"),
    "a loss that is broadcast": (
        {"loss": mse_loss, "model": lambda: nn.Linear(5, 1),
         "sites": {name: (x, y + 0.5) for name, (x, y) in sites().items()}},
        r"the loss cannot be computed of a tensor of shape \(32, 1\) and targets of shape \(32,\)",
    ),
    "a class of losses": (
        {"loss": nn.CrossEntropyLoss},
        "loss is the class CrossEntropyLoss: give CrossEntropyLoss()",
    ),
    "an optimizer": (
        {"optimizer": torch.optim.SGD([torch.zeros(1)], 0.1)},
        "optimizer is of type SGD: give a function, or leave it out",
    ),
    "a loss that is none": (
        {"loss": "mse"}, "loss is of type str: give a function, or leave it out"
    ),
    "a loss that raises later": (
        {"loss": in_round(9)}, r"round \d failed \(KeyError: 'lost', at test_simulate\.py:\d+\)"
    ),
    "a metric of no number": ({"metrics": {"f1": lambda o, t: None}}, "'f1' gives no number"),
    "a metric's name alone": ({"metrics": "acc"}, "metrics is 'acc': give a function of"),
    "metrics twice": ({"metrics": [l1_loss, l1_loss]}, "metric 'l1_loss' is there twice"),
    "metrics whose names are alike": (
        {"metrics": {1: l1_loss, "1": l1_loss}}, "metric '1' is there twice: give metrics by name"
    ),
    "an optimizer of another network": (
        {"optimizer": lambda p: torch.optim.Adam(nn.Linear(5, 2).parameters())},
        "the optimizer steps none of the parameters it is given: make it of those",
    ),
    "an optimizer that is none": ({"optimizer": lambda p: p}, "function returns a list"),
    "an optimizer that asks for more": (
        {"optimizer": lambda p: torch.optim.LBFGS(p)},
        r"the optimizer makes no step \(TypeError",
    ),
    "no such rule": ({"rule": "crf-robst"}, "unknown method 'crf-robst': did you mean"),
    "a rule that is no method": ({"rule": "crf"}, "crf is a rule, and no .*: choose from crf-fed"),
    "a keyword that is none": (
        {"lerning_rate": 1}, "fedcrf.simulate 'lerning_rate': did you mean 'learning_rate'"
    ),
    "a keyword like none": (
        {"zzz": 1}, "'zzz': choose from attack, .*, clients_per_round, judge, .*, validation.$"
    ),
    "a setting of the rule": (
        {"rule": "krum", "num_byzantine": 1},
        r"num_byzantine is a setting of Krum, and no .*: give rule=Krum\(num_byzantine=…\)",
    ),
    "a setting of the rule, misspelt": (
        {"rule": "krum", "num_byzantin": 1}, "'num_byzantin': did you mean 'num_byzantine'"
    ),
    "a rule that is none": ({"rule": 3}, "rule is a int: give a method's name"),
    "a class of rules that lacks a method": (
        {"rule": Rule}, r"rule Rule cannot be made \(TypeError: .*\): give an object of the class"
    ),
    "a rule for fewer attackers": (
        {"rule": "krum", "attack": "sign-flip", "attackers": ["north", "south"]},
        "Krum: 2 attackers of 4 clients are half or more",
    ),
    "no such attack": ({"attack": "signflip"}, "unknown attack 'signflip'"),
    "attackers without an attack": ({"attackers": 2}, "attackers without an attack: give attack="),
    "an unknown attacker": (
        {"attack": "sign-flip", "attackers": ["noth"]},
        "unknown site among the attackers 'noth': did you mean 'north'",
    ),
    "an attacker twice": (
        {"attack": "sign-flip", "attackers": ["north", "north"]},
        "attackers: site 'north' is there twice",
    ),
    "an attacker twice, by number and name": (
        {"attack": "sign-flip", "attackers": [1, "1"], "sites": list(sites().values())},
        "attackers: site '1' is there twice",
    ),
    "attackers that are no number": (
        {"attack": "sign-flip", "attackers": float("nan")}, "attackers is nan: give sites by name"
    ),
    "attackers in a tensor of no list": (
        {"attack": "sign-flip", "attackers": torch.tensor(2)},
        r"attackers cannot be read \(TypeError: .*\): give sites by name, or how many of them",
    ),
    "attackers beside the sites": (
        {"attack": Threat(SignFlip(), Schedule(attackers=1, additional=True))},
        r"additional attackers hold samples .*: leave additional out, .* attack \(attackers=\)",
    ),
    "all attack": ({"attack": SignFlip(), "attackers": list(NAMES)}, "one be honest"),
    "labels flipped of none": (
        {"attack": "label-flip", "loss": mse_loss, "model": lambda: nn.Linear(5, 1),
         "sites": {name: (x, y[:, None] + 0.5) for name, (x, y) in sites().items()}},
        "attack LabelFlip poisons labels or images, and targets are no labels",
    ),
    "pixels stamped on no images": (
        {"attack": "badnets"}, r"BadNets stamps pixels, and inputs of shape \(5,\) are no images"
    ),
    "judging by a number": ({"judge": 3}, r"judge is 3: give patterns of names: there are"),
    "judging by a tensor": ({"judge": torch.tensor(2)}, r"judge cannot be read \(.*: give patt"),
    "sharing by a tensor": ({"share": torch.tensor(2)}, r"share cannot be read \(.*: give patt"),
    "progress that is no truth value": (
        {"progress": np.zeros(3)}, "^progress array.*: give True or False$"
    ),
    "judging nothing": ({"judge": "*lora*"}, r"no tensor is named like '\*lora\*': there are"),
    "sharing nothing": ({"share": ["!0.*", "!2.*"]}, "share leaves no tensor: there are 0.weight"),
    "a head that the server has not": (
        {"share": "!2.*", "test": sites(seed=2)["north"]},
        "share= leaves tensors to the sites, which the server does not have",
    ),
    "judging by a rule without weights": (
        {"judge": "0.*", "rule": "coordinate-median"},
        "gives clients no weights, which tensors that are not judged",
    ),
    "no rounds": ({"rounds": 0}, "rounds"),
    "gradients that are sparse": (
        {
            "model": lambda: nn.EmbeddingBag(9, 2, sparse=True),
            "sites": {"a": (np.ones((30, 5), int), np.ones(30, int))},
        },
        "the optimizer makes no step .*not support sparse gradients.*: give one, as optimizer=",
    ),
    "numbers beyond": (
        {"sites": odd("west", lambda x: x * 1e300)},
        r"inputs of site 'west' are beyond 3.4e\+38: give numbers that float32 can hold",
    ),
    "a number for targets": ({"sites": odd("west", None, lambda y: 3.0)}, "inputs and no targets"),
    "sharing half of a tied tensor": (
        {"model": Tied, "share": "!1.*"},
        r"share parts '0\.weight' from '1\.weight', which are one tensor: share both, or neither",
    ),
    "no pattern": ({"share": []}, "share has no pattern: give one, or leave it out: there are 0.w"),
    "a loss of NaN": ({"loss": lambda o, t: o.mean() * float("nan")}, "the loss is nan before any"),
    "a metric of many numbers": ({"metrics": lambda o, t: o}, "gives no number .*: return one, of"),
    "a folder that is a file": (
        {"record_to": __file__},
        "test_simulate.py is a file; choose another folder as record_to=",
    ),
    "a folder whose name is too long": (
        {"record_to": Path(__file__).with_name("x" * 300)},
        "xxx/description.json: File name too long; name another folder as record_to",
    ),
    "a folder that is none": ({"record_to": 3}, "record_to is 3: give a path"),
    "a folder of no name": ({"record_to": "a\0b"}, r"record_to is 'a\\x00b': give a path"),
    "shares of more than all": ({"validation": 0.6, "test": 0.6}, "sum to less than 1, not"),
    "inputs that are text": (
        {"sites": odd("west", targets=lambda y: y.astype(object))}, "site 'west' are object, not n"
    ),
    "inputs of no one shape": ({"sites": {"a": ([[1], [1, 2]], [0, 1])}}, "are no array .*: give"),
    "a batch of nothing": ({"batch_size": 0}, "batch_size"),
    "a metric called loss": ({"metrics": {"loss": l1_loss}}, "is called 'loss', as the loss is"),
    "a rule of no file": ({"rule": "./no.py:Rule"}, "there is no file ./no.py"),
    "a rule that cannot be imported": ({"rule": "nowhere:Rule"}, "'nowhere:Rule' cannot be impor"),
    "a rule that is no rule": ({"rule": "torch:nn"}, "rule 'torch:nn' is no rule: give a frozen"),
    "an attack that is none": ({"attack": "torch:nn"}, "attack 'torch:nn' is no attack: give a"),
    "an attack of another kind": ({"attack": 3}, "attack is a int: give a name"),
    "more sites than there are": (
        {"clients_per_round": 5},
        r"give at most so many \(clients_per_round=\), or more clients \(sites=\)",
    ),
    "all but none attack": (
        {"attack": "ipm", "attackers": 4}, r"one be honest; give from 1 to 3 \(attackers=\)"
    ),
    "nothing to validate on beside attackers": (
        {"attack": "ipm", "attackers": ["west"], "validation": 0.03,
         "sites": {name: sites(60 if name == "west" else 9)[name] for name in NAMES}},
        r"hold nothing to validate on: give fewer attackers \(attackers=\)",
    ),
    "batches of one and batch norm": (
        {"batch_size": 1, "model": NORMED},
        r"give two or more \(batch_size=\) or another model \(model=\)",
    ),
    "a site of one and batch norm": (
        {"model": NORMED, "sites": odd("west", lambda x: x[:1], lambda y: y[:1])},
        r"client west has one example .* give clients more \(sites=\), or choose .*\(model=\)",
    ),
    "training that diverges": (
        {"learning_rate": 1e30, "local_epochs": 5},
        r"a smaller learning rate \(learning_rate=, here 1e\+30\)",
    ),
    "an optimizer that diverges": (
        {"optimizer": lambda p: torch.optim.SGD(p, 1e30), "local_epochs": 5},
        "give an optimizer of smaller steps",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "said"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_a_line(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(FedcrfError, match=said) as caught:
        simulate(**{"record_to": folder, **changed})
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value), "a flag of the command line"
    if not re.search(r"round \d|judge=", str(caught.value)):
        assert not folder.exists(), "nothing is written before all is checked"


def test_an_extra_that_is_missing_is_named() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import fedcrf\n"
        "try:\n    fedcrf.simulate(None, {})\n"
        "except fedcrf.FedcrfError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == (
        "fedcrf.simulate: torch is not installed: pip install 'fedcrf[simulation]'\n"
    ), done.stderr


def test_importing_the_package_imports_numpy_alone() -> None:
    code = "import sys, fedcrf; print({'torch', 'pandas', 'scipy', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr
