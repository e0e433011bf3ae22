"""What a rule needs besides updates: the server's own examples, and the clients' label shares."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedcrf.attacks import ATTACKS, Schedule, Threat
from fedcrf.errors import FedcrfError
from fedcrf.objectives import Task
from fedcrf.rules import Adam, FedAvg, FedDisco, FLTrust, Optimized
from fedcrf.simulation.engine import engine_for, label_divergence
from fedcrf.simulation.federation import Examples, Federation
from fedcrf.simulation.local_training import LocalTraining
from simulation import small
from simulation.small import NormedPlan, assert_resumes, federation, run

simulation = partial(small.simulation, federation=federation((20, 0, 7, 33)))


def keys(examples: Examples) -> Counter[bytes]:
    """Each example, as bytes of its image and label."""
    pairs = zip(examples.images.numpy(), examples.labels.numpy(), strict=True)
    return Counter(image.tobytes() + label.tobytes() for image, label in pairs)


def union(whole: Federation) -> Counter[bytes]:
    return sum((keys(client) for client in whole.clients), Counter())


@pytest.mark.parametrize("count", [1, 17, 60])
def test_the_server_s_examples_are_drawn_once_from_the_clients_training_parts(count: int) -> None:
    whole = federation((20, 0, 7, 33))
    root = keys(simulation(federation=whole, rule=FLTrust(count)).root)
    assert root.total() == count
    assert not root - union(whole)
    assert max(root.values()) == 1
    if count == 60:
        assert root == union(whole)


def test_the_draw_depends_on_the_seed_alone() -> None:
    def drawn(**changes: Any) -> Counter[bytes]:
        return keys(simulation(rule=FLTrust(20), **changes).root)

    assert drawn() == drawn(clients_per_round=2, training=LocalTraining(0.5))
    assert drawn() != drawn(seed=6)


def test_over_seeds_every_client_gives_its_share() -> None:
    whole = federation((20, 0, 7, 33))
    owners = [keys(client) for client in whole.clients]
    found = np.zeros(4)
    for seed in range(40):
        root = keys(simulation(rule=FLTrust(12), seed=seed).root)
        found += [(root & owner).total() for owner in owners]
    # 480 draws of 60: shares of 20, 0, 7 and 33, within four standard errors.
    shares = np.array([20, 0, 7, 33]) / 60
    assert (np.abs(found / 480 - shares) <= 4 * np.sqrt(shares * (1 - shares) / 480)).all()


def test_the_server_s_examples_are_clean_under_an_attack_on_the_data() -> None:
    threat = Threat(ATTACKS["label-flip"](), Schedule(1))
    attacked = simulation(rule=FLTrust(30), threat=threat)
    assert keys(attacked.root) == keys(simulation(rule=FLTrust(30)).root)


def test_the_server_trains_as_a_client_of_these_examples_does() -> None:
    whole = federation()
    chosen = small.simulation(federation=whole, rule=FLTrust(20))
    work, start = chosen, chosen.start().model
    with engine_for(work, 1) as engine:
        reports, _ = engine.train(start, 1)
        trained = [{name: array.copy() for name, array in r.state.items()} for r in reports]
        server = {name: array.copy() for name, array in engine.train_server(1).items()}
        for report, before in zip(reports, trained, strict=True):  # and disturbs no client's
            assert small.same_state(report.state, before)
    # A fourth client that holds the server's examples comes to the same model.
    larger = replace(whole, clients=(*whole.clients, work.root))
    with engine_for(small.simulation(federation=larger, rule=FedAvg()), 1) as engine:
        reports, _ = engine.train(start, 1)
        assert small.same_state(dict(reports[3].state), server)


@pytest.mark.parametrize("rule", [FLTrust(15), Optimized(FLTrust(15), Adam())], ids=["", "adam"])
def test_a_run_with_server_data_resumes(rule: Any, tmp_path: Path) -> None:
    _, records = assert_resumes(simulation(rule=rule), tmp_path)
    assert any(record.weight != records[0].weight for record in records)


def test_clients_of_a_run_with_server_data_train_as_in_any_other() -> None:
    first = [run(simulation(rule=rule))[1][0] for rule in (FLTrust(15), FedAvg())]
    assert first[0].client_training_loss == first[1].client_training_loss


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rule": FLTrust(61)}, "FLTrust needs 61 examples on the server, .* train on 60: give"),
        (
            {"rule": FLTrust(9), "task": Task(personal=frozenset({"a"}))},
            "FLTrust needs a model of the server's own, and clients keep 1 tensors",
        ),
        (
            {"rule": FedDisco(), "federation": replace(federation(), num_classes=0)},
            "FedDisco weighs clients by their labels, and these data have no classes",
        ),
    ],
)
def test_data_that_have_not_what_a_rule_needs(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FedcrfError, match=said):
        simulation(**changes)


def test_one_example_on_the_server_is_too_few_for_batch_norm() -> None:
    chosen = simulation(rule=FLTrust(1), model=NormedPlan())
    with pytest.raises(FedcrfError, match="server_examples 1: batch norm in this model needs two"):
        chosen.rounds(chosen.start()).__next__()


# --- label shares ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 1, 2, 3], 0.0),
        ([2, 2, 2], math.log(4)),
        ([0, 0, 1], math.log(4) + 2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)),
    ],
)
def test_the_divergence_of_labels(labels: list[int], expected: float) -> None:
    assert label_divergence(torch.tensor(labels), 4) == pytest.approx(expected, abs=1e-12)


def test_clients_report_the_divergence_of_what_they_train_on() -> None:
    threat = Threat(ATTACKS["label-flip"](), Schedule(1))
    chosen = simulation(rule=FedDisco(), threat=threat, max_rounds=2)
    _, records = run(chosen)
    assert records[0].evidence is not None
    adversary = chosen.adversary
    assert adversary is not None
    for client, reported in zip(
        records[0].clients, records[0].evidence["label_divergence"], strict=True
    ):
        held = adversary.poisoned.get(client, chosen.federation.clients[client])
        shares = np.bincount(held.labels.numpy(), minlength=3) / len(held)
        expected = sum(p * math.log(3 * p) for p in shares if p > 0)
        assert reported == pytest.approx(expected, abs=1e-5)
