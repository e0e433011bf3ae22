"""Attackers in a run: who they are, what they may see, and that they count nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf import FedcrfError
from fedcrf.attacks import (
    ALIE,
    ATTACKS,
    FeatureNoise,
    InflatedCount,
    InnerProductManipulation,
    LabelFlip,
    Mimic,
    NotFinite,
    Opposed,
    Scaling,
    Schedule,
    SignFlip,
    StaleFreeRider,
    Threat,
)
from fedcrf.models import MLP
from fedcrf.rules import FedAvg
from fedcrf.simulation.engine import client_evaluation_of, evaluation_of, score
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.rounds import RunState, Simulation
from simulation import small
from simulation.small import (
    BatchNormPlan,
    Recording,
    assert_resumes,
    federation,
    run,
    same_state,
    until_it_diverges,
    without_seconds,
)
from tolerance import alike, assert_alike

SIZES = (20, 9, 0, 33, 12, 15)  # number 2 has nothing to train on


def simulation(attack: Any = None, **changes: Any) -> Simulation:
    schedule = Schedule(
        **{
            key: changes.pop(key)
            for key in ("attackers", "start_round", "every", "additional")
            if key in changes
        }
    )
    given: dict[str, Any] = {
        "federation": federation(SIZES),
        "training": LocalTraining(0.05, 0.9, batch_size=8),
        "threat": None if attack is None else Threat(attack, schedule),
    }
    return small.simulation(**(given | changes))


def attackers_of(chosen: Simulation) -> list[int]:
    assert chosen.adversary is not None
    return list(chosen.adversary.clients)


every_attack = pytest.mark.parametrize("kind", ATTACKS.values(), ids=list(ATTACKS))


# Who attacks


def test_the_attackers_are_the_seed_s_and_no_method_s() -> None:
    first = attackers_of(simulation(SignFlip(), attackers=2))
    assert first == attackers_of(simulation(Mimic(), attackers=2, rule=FedAvg(), max_rounds=1))
    others = [attackers_of(simulation(SignFlip(), attackers=2, seed=seed)) for seed in range(60)]
    assert all(len(set(each)) == 2 and each == sorted(each) for each in others)
    counts = np.bincount(np.concatenate(others), minlength=6)
    assert counts[2] == 0, "who has nothing to train on is no attacker"
    assert counts[[0, 1, 3, 4, 5]].min() > 10, "24 are expected of each, ± 4"


def test_additional_attackers_hold_others_examples_and_are_the_last() -> None:
    of = federation(SIZES)
    joined = of.joined_by(2, seed=5)
    assert joined.clients[:6] == of.clients
    assert joined.validation is of.validation
    assert joined.names is None
    named = replace(of, names=tuple("abcdef")).joined_by(2, seed=5)
    assert named.called([0, 5, 6, 7]) == ["a", "f", 6, 7]
    pool = {(image.numpy().tobytes(), int(y)) for c in of.clients for image, y in _pairs(c)}
    for sample in joined.clients[6:]:
        held = {(image.numpy().tobytes(), int(y)) for image, y in _pairs(sample)}
        assert len(held) == len(sample) == round(sum(SIZES) / len(SIZES))
        assert held <= pool
    assert not torch.equal(joined.clients[6].images, joined.clients[7].images)
    again = of.joined_by(2, seed=5).clients[6]
    assert torch.equal(joined.clients[6].images, again.images)
    chosen = simulation(SignFlip(), attackers=2, additional=True, federation=joined)
    assert attackers_of(chosen) == [6, 7]
    _, records = run(chosen)
    assert all(record.attackers == [6, 7] for record in records)
    assert all(set(record.clients) == {0, 1, 3, 4, 5, 6, 7} for record in records)
    honest, alone = run(simulation())[1][0], records[0]
    assert alone.client_training_loss[:5] == honest.client_training_loss


def _pairs(examples: Any) -> Any:
    return zip(examples.images, examples.labels, strict=True)


def test_before_anybody_attacks_it_is_the_same_run() -> None:
    """Models and training are those of a run without attack; validation and test are not."""
    honest, _ = run(simulation())
    asleep, records = run(simulation(SignFlip(), attackers=2, start_round=5))
    assert all(same_state(a.model, b.model) for a, b in zip(honest, asleep, strict=True))
    assert [record.attackers for record in records] == [[]] * 4


@every_attack
def test_sleepers_and_pulses_attack_in_their_rounds(kind: Any) -> None:
    recording = Recording(FedAvg())
    chosen = simulation(
        kind(), rule=recording, attackers=2, start_round=2, every=2, max_rounds=5,
        training=LocalTraining(0.01, 0.0, batch_size=8),
    )  # fmt: skip
    attackers, alone = attackers_of(chosen), simulation(training=chosen.training)
    for _, record in chosen.rounds(chosen.start()):
        model, reports = recording.seen[-1]  # an adaptive attack asks the rule before
        assert record.attackers == (attackers if record.round in (2, 4) else [])
        honest = honestly_trained(alone, model, record.round)
        for report in reports:
            state, count = honest[report.client]
            same = same_state(report.state, state) and report.num_examples == count
            assert same == (report.client not in record.attackers)


def honestly_trained(chosen: Simulation, model: Any, number: int) -> dict[int, Any]:
    """What every client would report of a round."""
    recording = Recording(FedAvg())
    alone = replace(chosen, rule=recording, max_rounds=number)
    list(alone.rounds(RunState(number - 1, model, model, chosen.stopping)))
    (_, reports), *_ = recording.seen
    return {
        each.client: ({k: v.copy() for k, v in each.state.items()}, each.num_examples)
        for each in reports
    }


# What they do


def test_a_round_under_attack_by_hand() -> None:
    recording, trained = Recording(FedAvg()), Recording(FedAvg())
    chosen = simulation(
        InnerProductManipulation(2.0), rule=recording, attackers=2, max_rounds=1,
        model=BatchNormPlan(),
    )  # fmt: skip
    _, (record,) = run(chosen)
    run(simulation(rule=trained, model=BatchNormPlan(), max_rounds=1))
    (start, sent), (_, honest) = recording.seen[0], trained.seen[0]
    attackers = attackers_of(chosen)
    assert [report.client for report in sent] == record.clients == [0, 1, 3, 4, 5]
    for report, own in zip(sent, honest, strict=True):
        if report.client not in attackers:
            assert same_state(report.state, own.state)
            continue
        for name, array in report.state.items():
            updates = [
                each.state[name] - start[name] for each in honest if each.client not in attackers
            ]
            if array.dtype.kind == "f":
                expected = start[name] - 2 * np.mean(updates, axis=0)
                assert_allclose(array, expected, rtol=1e-4, atol=1e-5)
            else:
                assert_array_equal(array, own.state[name])


def test_poisoned_examples_are_trained_on_and_change_nothing_else() -> None:
    """An attacker trains as if it held flipped labels, and the others as ever."""
    chosen = simulation(LabelFlip(), attackers=2, max_rounds=1)
    attackers = attackers_of(chosen)
    whole = federation(SIZES)
    flipped = [
        replace(each, labels=2 - each.labels) if client in attackers else each
        for client, each in enumerate(whole.clients)
    ]
    by_hand = simulation(federation=replace(whole, clients=tuple(flipped)), max_rounds=1)
    assert same_state(run(chosen)[0][0].model, run(by_hand)[0][0].model)
    for client, each in enumerate(chosen.federation.clients):
        assert torch.equal(each.labels, whole.clients[client].labels), "the user's data stay"


def test_each_attacker_has_noise_of_its_own() -> None:
    adversary = simulation(FeatureNoise(), attackers=2).adversary
    assert adversary is not None
    clients = federation(SIZES).clients
    first, second = (
        adversary.poisoned[client].images - clients[client].images for client in adversary.clients
    )
    count = min(len(first), len(second))
    assert (first[:count] - second[:count]).abs().min() > 0


def test_reported_counts_are_in_the_record_and_do_not_move_the_training_loss() -> None:
    chosen = simulation(InflatedCount(100.0), attackers=2, max_rounds=1, rule=FedAvg())
    (record,), (honest,) = run(chosen)[1], run(simulation(max_rounds=1))[1]
    for client, count in zip(record.clients, record.num_examples, strict=True):
        assert count == SIZES[client] * (100 if client in attackers_of(chosen) else 1)
    assert record.training_loss == honest.training_loss
    shares = dict(zip(record.clients, record.weight, strict=True))
    assert sum(shares[client] for client in attackers_of(chosen)) > 0.9


def test_attackers_that_send_no_numbers_are_left_out() -> None:
    chosen = simulation(NotFinite(), attackers=2)
    states, records = run(chosen)
    assert all(record.excluded == attackers_of(chosen) for record in records)
    assert all(np.isfinite(array).all() for array in states[-1].model.values())


# Where they do not count


def test_attackers_examples_are_in_neither_validation_nor_test() -> None:
    whole = federation(SIZES)
    chosen = simulation(SignFlip(), attackers=2, federation=whole, max_rounds=1)
    (state,), (record,) = run(chosen)
    honest = [client for client in range(6) if client not in attackers_of(chosen)]
    network = MLP((6,)).build(whole.image_shape, whole.num_classes)
    network.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in state.model.items()})
    parts = []
    for pooled in (whole.validation, whole.test):
        kept = torch.tensor([int(owner) in honest for owner in pooled.owners])
        parts.append(
            replace(
                pooled,
                images=pooled.images[kept],
                labels=pooled.labels[kept],
                owners=pooled.owners[kept],
            )
        )
    validation = evaluation_of(score(network, parts[0], 256))
    test = client_evaluation_of(score(network, parts[1], 256), parts[1].owners)
    assert record.validation.loss == alike(validation.loss)
    assert record.validation.accuracy == validation.accuracy
    assert (record.test.accuracy, record.test.client_mean, record.test.worst_client) == (
        test.accuracy,
        pytest.approx(test.client_mean),
        test.worst_client,
    )


def test_what_attackers_hold_for_validation_and_test_does_not_matter() -> None:
    whole = federation(SIZES)
    chosen = simulation(ALIE(1.0), attackers=2, federation=whole)
    attackers = torch.tensor(attackers_of(chosen))
    spoilt = [
        replace(each, labels=torch.where(torch.isin(each.owners, attackers), 0, each.labels))
        for each in (whole.validation, whole.test)
    ]
    other = replace(whole, validation=spoilt[0], test=spoilt[1])
    assert not torch.equal(whole.validation.labels, other.validation.labels)
    again = simulation(ALIE(1.0), attackers=2, federation=other)
    first, second = run(chosen)[1], run(again)[1]
    assert [each.everyone for each in first] != [each.everyone for each in second]
    alone = [[each.model_copy(update={"everyone": None}) for each in of] for of in (first, second)]
    assert without_seconds(alone[0]) == without_seconds(alone[1])


@pytest.mark.parametrize("start_round", [1, 1_000], ids=["attacked", "nobody attacks"])
def test_beside_the_honest_clients_all_are_scored(start_round: int) -> None:
    chosen = simulation(LabelFlip(), attackers=2, start_round=start_round)
    whole, attackers = chosen.federation, attackers_of(chosen)
    network = chosen.model.build(whole.image_shape, whole.num_classes)
    states, records = run(chosen)
    for state, record in zip(states, records, strict=True):
        network.load_state_dict(
            {name: torch.from_numpy(array) for name, array in state.model.items()}
        )
        expected = client_evaluation_of(score(network, whole.test, 256), whole.test.owners)
        assert record.everyone is not None
        for name, value in expected.model_dump().items():
            assert getattr(record.everyone, name) == alike(value)
        honest = ~torch.isin(whole.test.owners, torch.tensor(attackers))
        right = score(network, whole.test, 256)["accuracy"][honest]
        assert record.test.accuracy == alike(float(right.mean()))
        assert record.everyone.worst_client <= record.test.worst_client
    assert all(record.everyone is None for record in run(simulation())[1]), "test is of all of them"


def test_honest_clients_without_validation_examples() -> None:
    whole = federation(SIZES)
    attackers = torch.tensor(attackers_of(simulation(SignFlip(), attackers=2)))
    kept = torch.isin(whole.validation.owners, attackers)
    theirs = replace(
        whole.validation,
        images=whole.validation.images[kept],
        labels=whole.validation.labels[kept],
        owners=whole.validation.owners[kept],
    )
    chosen = simulation(SignFlip(), attackers=2, federation=replace(whole, validation=theirs))
    with pytest.raises(FedcrfError, match="nothing to validate on: give fewer attackers"):
        run(chosen)


# The same to the bit


@pytest.mark.slow
@every_attack
@pytest.mark.parametrize("drawn", [None, 3])
def test_resumed_after_any_round_it_ends_the_same(kind: Any, drawn: int | None, tmp_path: Path):
    chosen = simulation(kind(), attackers=2, clients_per_round=drawn, start_round=2)
    _, records = assert_resumes(chosen, tmp_path)
    assert any(record.attackers for record in records)


@pytest.mark.usefixtures("quick_children")
@pytest.mark.parametrize(
    "attack",
    [LabelFlip(), StaleFreeRider()],
    ids=lambda each: type(each).__name__,
)
def test_any_number_of_workers_gives_the_same_bits(attack: Any) -> None:
    chosen = simulation(attack, attackers=2, every=2, max_rounds=3)
    (alone, first), (shared, second) = run(chosen), run(chosen, workers=2)
    assert without_seconds(first) == without_seconds(second)
    assert same_state(alone[-1].model, shared[-1].model)


# Some of the clients a round


def test_of_the_drawn_the_attackers_attack() -> None:
    recording = Recording(FedAvg())
    chosen = simulation(
        InnerProductManipulation(), rule=recording, attackers=2, clients_per_round=2, max_rounds=30,
        stopping=replace(simulation().stopping, patience=99),
    )  # fmt: skip
    _, records = run(chosen)
    found = set()
    for record, (start, reports) in zip(records, recording.seen, strict=True):
        drawn = [client for client in record.clients if client in attackers_of(chosen)]
        found.add(len(drawn))
        # Two attackers alone have no honest mean to turn around, and report honestly.
        assert record.attackers == (drawn if len(drawn) < 2 else [])
        if record.attackers:
            of = {report.client: report.state["1.weight"] - start["1.weight"] for report in reports}
            (attacker,) = record.attackers
            (honest,) = of.keys() - {attacker}
            assert_allclose(of[attacker], -of[honest] / 2, rtol=1e-3, atol=1e-6)
    assert found == {0, 1, 2}


def test_a_stale_free_rider_looks_on_while_it_is_not_drawn() -> None:
    recording = Recording(FedAvg())
    chosen = simulation(
        StaleFreeRider(), rule=recording, attackers=1, clients_per_round=2, max_rounds=20,
        stopping=replace(simulation().stopping, patience=99),
    )  # fmt: skip
    _, records = run(chosen)
    seen = 0
    for index, record in enumerate(records):
        for report in recording.seen[index][1]:
            if report.client in (record.attackers or []) and index:
                start, before = recording.seen[index][0], recording.seen[index - 1][0]
                for name, array in report.state.items():
                    expected = start[name] + (start[name] - before[name])
                    assert_alike(array, expected)
                seen += 1
    assert seen > 2


def test_a_run_that_diverges_by_itself_says_so_also_under_attack() -> None:
    steps, _ = until_it_diverges(
        simulation(ALIE(), attackers=2, training=LocalTraining(1e30, 0.9, 8, 3))
    )
    assert len(steps) == 3
    assert all(record.kept_model and record.attackers == [] for _, record in steps)
    asleep = simulation(
        Scaling(), attackers=2, start_round=4, training=LocalTraining(1e30, 0.9, 8, 3)
    )
    assert len(until_it_diverges(asleep)[0]) == 3


def test_a_model_that_an_attack_destroyed_is_a_result() -> None:
    attack = Scaling(factor=1e37)
    states, records = run(simulation(attack, attackers=2, rule=FedAvg(), max_rounds=6))
    honest = [{*record.clients} - {*(record.attackers or [])} for record in records]
    lost = [each <= {*record.excluded} for each, record in zip(honest, records, strict=True)]
    assert len(lost) > 3
    assert all(lost[-3:])
    assert {state.lost_rounds for state in states} == {0}


def test_rounds_of_attackers_alone_say_nothing_of_the_others() -> None:
    chosen = simulation(
        NotFinite(), attackers=4, clients_per_round=1, max_rounds=30,
        stopping=replace(simulation().stopping, patience=99),
    )  # fmt: skip
    states, records = run(chosen)
    lost = [record.excluded == record.clients for record in records]
    assert any(all(lost[start : start + 3]) for start in range(28)), "three in a row"
    assert {state.lost_rounds for state in states} == {0}


@dataclass(frozen=True)
class Case:
    attack: Any
    changes: dict[str, Any]
    named: str


@pytest.mark.parametrize(
    "case",
    [
        Case(SignFlip(), {"attackers": 5}, "of 5 clients .* give from 1 to 4"),
        Case(ALIE(), {"attackers": 4}, "leave no quantile"),
        Case(Opposed(), {"attackers": 4}, "two honest clients"),
        Case(Mimic(), {"attackers": 2, "clients_per_round": 1}, "a round has none"),
    ],
    ids=lambda case: case.named,
)
def test_what_the_federation_does_not_have(case: Case) -> None:
    """One of the six clients has nothing to train on, so five count."""
    with pytest.raises(FedcrfError, match=case.named):
        simulation(case.attack, **case.changes)
