"""The federated loop: the same to the bit however often it is run, stopped or resumed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from fedcrf import FedcrfError
from fedcrf.models import MLP
from fedcrf.objectives import Plain, Proximal, Task
from fedcrf.rules import CRF, RESIDUAL_LOSS, RULES, SERVER_OPTIMIZERS, Adam, FedAvg, Optimized, Rule
from fedcrf.rules.base import named
from fedcrf.simulation.engine import client_evaluation_of, evaluation_of, score
from fedcrf.simulation.federation import Examples, Stream, generator
from fedcrf.simulation.local_training import LocalTraining, NetworkTraining, epochs
from fedcrf.simulation.records import RoundRecord
from fedcrf.simulation.rounds import EarlyStopping, load_checkpoint, save_checkpoint
from simulation.small import (
    Asking,
    BatchNormPlan,
    DropoutPlan,
    FrozenPlan,
    PartlyUsedPlan,
    Recording,
    assert_resumes,
    federation,
    run,
    same_progress,
    same_state,
    simulation,
    until_it_diverges,
    without_seconds,
)
from tolerance import alike, assert_alike

PLANS: dict[str, Any] = {
    "mlp": MLP((6,)),
    "batch norm": BatchNormPlan(),
    "dropout": DropoutPlan(),
    "frozen": FrozenPlan(),
    "unused": PartlyUsedPlan(),
}
DIVERGING = LocalTraining(1e30, 0.9, batch_size=8, local_epochs=3)
every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


FIVE = (9, 4, 0, 6, 12, 5)  # number 2 has nothing to train on


@every_plan
@pytest.mark.parametrize("objective", [Plain(), Proximal(0.1)])
def test_two_runs_are_one_to_the_bit_and_learn(plan: Any, objective: Any) -> None:
    # Another plan in between, and the user's own draws: neither may leave a trace.
    first = run(simulation(model=plan, objective=objective))
    run(simulation(model=DropoutPlan(), seed=9))
    torch.manual_seed(123)
    second = run(simulation(model=plan, objective=objective))
    assert without_seconds(first[1]) == without_seconds(second[1])
    assert all(map(same_progress, first[0], second[0]))
    assert [record.round for record in first[1]] == [1, 2, 3, 4]
    assert first[1][-1].validation.loss < math.log(3), "better than a guess among three"


@every_plan
@pytest.mark.parametrize(
    "changes",
    [{}, {"federation": federation(FIVE), "clients_per_round": 2}],
    ids=["all clients", "two of five"],
)
def test_resumed_after_any_round_it_ends_the_same(
    plan: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    assert_resumes(simulation(model=plan, **changes), tmp_path)


def test_a_finished_run_has_no_more_rounds() -> None:
    whole = simulation(max_rounds=2)
    states, _ = run(whole)
    assert whole.finished(states[-1])
    assert run(whole, states[-1]) == ([], [])


@pytest.mark.parametrize("plan", [MLP((6,)), DropoutPlan()], ids=["mlp", "dropout"])
def test_the_user_s_random_numbers_are_untouched(plan: Any) -> None:
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    run(simulation(model=plan, max_rounds=2))
    drawn = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    assert torch.equal(drawn[0], torch.rand(3))
    assert np.array_equal(drawn[1], np.random.rand(3))  # noqa: NPY002


def test_methods_under_one_seed_share_the_initial_model_and_the_batches() -> None:
    seen = []
    for rule in (FedAvg(), CRF()):
        recording = Recording(rule)
        run(simulation(rule=recording, max_rounds=1))
        seen.append(recording.seen[0])
    (first, first_reports), (second, second_reports) = seen
    assert same_state(first, second)
    for one, other in zip(first_reports, second_reports, strict=True):
        assert same_state(one.state, other.state), "before the rules differ, nothing does"
    proximal = run(simulation(rule=FedAvg(), objective=Proximal(0.0)))
    plain = run(simulation(rule=FedAvg()))
    assert without_seconds(proximal[1]) == without_seconds(plain[1])


def test_seeds_and_rounds_differ() -> None:
    assert not same_state(simulation(seed=1).start().model, simulation(seed=2).start().model)
    # A seed fixes the initial model, not the settings: two models of one seed start alike.
    again = simulation(seed=1, rule=FedAvg(), training=LocalTraining()).start()
    assert same_state(simulation(seed=1).start().model, again.model)
    orders = {
        tuple(generator(seed, Stream.SHUFFLE, number, client).permutation(20))
        for seed in (0, 1)
        for number in (1, 2)
        for client in (0, 1)
    }
    assert len(orders) == 8


def test_a_round_is_what_it_says() -> None:
    # One round by hand: every client from the global model, FedAvg, then evaluation.
    whole = simulation(rule=FedAvg(), model=BatchNormPlan(), max_rounds=1)
    start = whole.start()
    (state,), (record,) = run(whole)
    network = BatchNormPlan().build(whole.federation.image_shape, whole.federation.num_classes)
    sizes = [len(client) for client in whole.federation.clients]
    total = {name: np.zeros(array.shape) for name, array in start.model.items()}
    losses = []
    for client, data in enumerate(whole.federation.clients):
        network.load_state_dict({k: torch.from_numpy(v) for k, v in start.model.items()})
        shuffle = generator(5, Stream.SHUFFLE, 1, client)
        passes = epochs(whole.training, len(data), shuffle)
        losses.append(NetworkTraining(network, whole.training)(data, Plain(), passes))
        for name, tensor in network.state_dict().items():
            total[name] += sizes[client] / sum(sizes) * tensor.numpy().astype(np.float64)
    for name, array in state.model.items():
        expected = np.rint(total[name]) if array.dtype.kind == "i" else total[name]
        assert_alike(array, expected, name)
        assert array.dtype == start.model[name].dtype
    assert record.client_training_loss == alike(losses)
    assert record.training_loss == alike(np.average(losses, weights=sizes))
    assert record.clients == [0, 1, 2]
    assert record.num_examples == sizes
    assert record.weight == alike(np.array(sizes) / sum(sizes))

    network.load_state_dict({k: torch.from_numpy(v) for k, v in state.model.items()})
    parts = whole.federation
    assert parts.held_out is not None
    validation, test, held_out = (
        score(network, part, 256) for part in (parts.validation, parts.test, parts.held_out)
    )
    # A run lays convolutions out channels last, which other kernels carry out.
    assert vars(record.validation) == alike(vars(evaluation_of(validation)))
    assert vars(record.test) == alike(vars(client_evaluation_of(test, parts.test.owners)))
    assert record.held_out is not None
    assert vars(record.held_out) == alike(vars(evaluation_of(held_out)))


def small_rule(name: str) -> Rule:
    """The rule of a name; its server has no more examples than these clients."""
    return RULES[name](**{"server_examples": 20} if name == "fltrust" else {})


@pytest.mark.parametrize("name", RULES)
def test_a_client_without_examples_is_skipped(name: str) -> None:
    _, records = run(simulation(federation=federation((20, 0, 33, 0, 9)), rule=small_rule(name)))
    for record in records:
        assert record.clients == [0, 2, 4]
        assert record.num_examples == [20, 33, 9]
        assert len(record.weight) == len(record.client_training_loss) == 3
        assert record.excluded == []
        assert not record.kept_model


def test_the_others_train_as_if_the_empty_client_were_not_there() -> None:
    # Streams depend on the client's number, not on how many come before it.
    recordings = [Recording(FedAvg()), Recording(FedAvg())]
    whole = federation((20, 7, 33))
    empty = federation((0,)).clients[0]
    emptied = replace(whole, clients=(whole.clients[0], empty, whole.clients[2]))
    run(simulation(federation=whole, rule=recordings[0], max_rounds=1))
    run(simulation(federation=emptied, rule=recordings[1], max_rounds=1))
    (_, all_reports), (_, some_reports) = recordings[0].seen[0], recordings[1].seen[0]
    assert [report.client for report in some_reports] == [0, 2]
    for report in some_reports:
        assert same_state(report.state, all_reports[report.client].state)


def test_no_held_out_set() -> None:
    _, records = run(simulation(federation=federation(held_out=False), max_rounds=1))
    assert records[0].held_out is None


def test_it_stops_early_and_keeps_the_best_model() -> None:
    # The clients' labels are wrong: the more they learn, the worse the model gets.
    right = federation()
    wrong = [replace(data, labels=(data.labels + 1) % 3) for data in right.clients]
    whole = simulation(
        federation=replace(right, clients=tuple(wrong)),
        stopping=EarlyStopping(patience=3, min_improvement=1e-4),
        max_rounds=60,
    )
    states, records = run(whole)
    losses = [record.validation.loss for record in records]
    best = int(np.argmin(losses))
    last = states[-1]
    assert len(records) == best + 1 + 3
    assert last.stopping.best_round == best + 1
    assert same_state(last.best_model, states[best].model)
    assert not same_state(last.best_model, last.model)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("plan", [MLP((6,)), BatchNormPlan()], ids=["mlp", "batch norm"])
def test_a_diverging_run_says_so_and_leaves_what_there_was(
    name: str, plan: Any, tmp_path: Path
) -> None:
    whole = simulation(rule=small_rule(name), model=plan, training=DIVERGING, max_rounds=20)
    start = whole.start()
    steps, said = until_it_diverges(whole)
    assert said.startswith("training diverged by round 3: no client's update was finite for 3 ")
    assert "--learning-rate, here 1e+30" in said
    # No client ever sends a finite model: the first one stands.
    assert len(steps) == 3
    for state, record in steps:
        assert record.excluded == record.clients
        assert record.kept_model
        assert record.kept_reason == "no client's update is finite"
        assert record.weight == [0.0, 0.0, 0.0]
        assert same_state(state.model, start.model)
        assert RoundRecord.model_validate_json(record.model_dump_json()).round == record.round
    # The same again comes to the same, from wherever it goes on.
    for state, record in steps:
        save_checkpoint(tmp_path / "checkpoint.pt", state)
        restored = load_checkpoint(tmp_path / "checkpoint.pt")
        rest, again = until_it_diverges(whole, restored)
        assert (len(rest), again) == (3 - record.round, said)


@pytest.mark.parametrize(
    ("changes", "rounds"),
    [({"max_rounds": 1}, 1), ({"max_rounds": 2}, 2), ({"stopping": EarlyStopping(1)}, 2)],
    ids=str,
)
def test_a_run_that_ends_without_a_finite_update_has_diverged(
    changes: dict[str, Any], rounds: int
) -> None:
    steps, said = until_it_diverges(simulation(training=DIVERGING, **changes))
    assert len(steps) == rounds
    assert f"diverged by round {rounds}: " in said


def test_a_loss_without_end_is_no_divergence_while_updates_are_finite() -> None:
    """One round too many is no reason to throw away those that went well."""
    good = simulation(training=LocalTraining(0.05, 0.9, batch_size=8), max_rounds=2)
    state = run(good)[0][-1]
    bad = replace(good, training=DIVERGING, max_rounds=4)
    states, records = run(bad, state)
    assert [each.lost_rounds for each in states] == [1, 2]
    assert all(record.kept_model for record in records)
    assert states[-1].stopping.best_round
    assert len(until_it_diverges(replace(bad, max_rounds=5), state)[0]) == 3
    states, _ = run(replace(good, max_rounds=6), states[-1])
    assert [each.lost_rounds for each in states] == [0, 0], "they have to follow each other"


def test_one_diverging_client_does_not_touch_the_model() -> None:
    # One client's images are not finite; the round goes on with the other two.
    whole = federation()
    bad = replace(whole.clients[1], images=whole.clients[1].images * math.nan)
    broken = replace(whole, clients=(whole.clients[0], bad, whole.clients[2]))
    states, records = run(simulation(federation=broken))
    for record in records:
        assert record.excluded == [1]
        assert record.weight[1] == 0.0
        assert sum(record.weight) == pytest.approx(1.0, abs=1e-5)
        assert math.isfinite(record.validation.loss)
        assert not record.kept_model
        assert record.kept_reason is None
    assert all(np.isfinite(array).all() for array in states[-1].model.values())


# What clients report of themselves


def slow_loss(plan: Any, state: Any, data: Examples) -> float:
    """Mean cross-entropy of a model, in evaluation mode, one example at a time."""
    network = plan.build(tuple(data.images.shape[1:]), 3).double().eval()
    network.load_state_dict({k: torch.from_numpy(np.asarray(v)) for k, v in state.items()})
    total = 0.0
    for image, label in zip(data.images.double(), data.labels, strict=True):
        logits = network(image[None])[0].tolist()
        total += math.log(sum(map(math.exp, logits))) - logits[int(label)]
    return total / len(data)


@every_plan
@pytest.mark.parametrize("clients_per_round", [None, 2])
def test_the_residual_loss_is_that_of_the_client_s_model_on_its_own_examples(
    plan: Any, clients_per_round: int | None
) -> None:
    recording = Recording(Asking())
    whole = simulation(
        model=plan,
        rule=Optimized(recording, Adam()),
        federation=federation(FIVE),
        clients_per_round=clients_per_round,
        evaluation_batch_size=5,
    )
    for _, record in whole.rounds(whole.start()):
        assert record.evidence is not None
        for place, report in enumerate(recording.seen[-1][1]):
            expected = slow_loss(plan, report.state, whole.federation.clients[report.client])
            assert report.evidence == {RESIDUAL_LOSS: alike(expected)}
            assert record.evidence[RESIDUAL_LOSS][place] == alike(expected)
        losses = np.array(record.evidence[RESIDUAL_LOSS])
        assert (np.array(record.weight) > 0).tolist() == (losses <= np.median(losses)).tolist()


@dataclass(frozen=True)
class Curious(FedAvg):
    """Asks and does not care."""

    wanted_evidence: frozenset[str] = frozenset({RESIDUAL_LOSS})


@every_plan
def test_asking_for_evidence_changes_nothing_else(plan: Any) -> None:
    (states, records), (asked_states, asked_records) = (
        run(simulation(model=plan, rule=rule)) for rule in (FedAvg(), Curious())
    )
    assert all(map(same_progress, states, asked_states))
    for record, asked in zip(records, asked_records, strict=True):
        assert record.evidence is None
        assert asked.evidence is not None
        assert without_seconds([asked.model_copy(update={"evidence": None})]) == without_seconds(
            [record]
        )


def test_a_client_that_diverges_reports_a_loss_that_is_not_finite() -> None:
    whole = federation()
    bad = replace(whole.clients[1], images=whole.clients[1].images * math.nan)
    broken = replace(whole, clients=(whole.clients[0], bad, whole.clients[2]))
    _, records = run(simulation(federation=broken, rule=Asking()))
    for record in records:
        assert record.evidence is not None
        finite = np.isfinite(record.evidence[RESIDUAL_LOSS])
        assert finite.tolist() == [True, False, True]
        assert record.excluded == [1]
        assert not record.kept_model


def test_evidence_that_clients_do_not_report_is_named() -> None:
    with pytest.raises(FedcrfError, match="unknown evidence 'residual_los': did you mean"):
        simulation(rule=Optimized(Asking(FedAvg(), frozenset({"residual_los"})), Adam()))


# Some of the clients a round


def test_the_rule_sees_the_clients_that_were_drawn() -> None:
    recording = Recording(FedAvg())
    whole = federation(FIVE)
    _, records = run(
        simulation(federation=whole, rule=recording, clients_per_round=3, max_rounds=12)
    )
    for record, (_, reports) in zip(records, recording.seen, strict=True):
        assert [report.client for report in reports] == record.clients == sorted(record.clients)
        assert len(set(record.clients)) == 3
        assert record.num_examples == [FIVE[client] for client in record.clients]
        assert sum(record.weight) == pytest.approx(1.0, abs=1e-5)
    drawn = [tuple(record.clients) for record in records]
    assert len(set(drawn)) > 3, "each round draws anew"
    assert {client for clients in drawn for client in clients} == {0, 1, 3, 4, 5}


def test_the_draw_depends_on_the_seed_and_the_round_alone() -> None:
    def drawn(**changes: Any) -> list[list[int]]:
        chosen = simulation(federation=federation(FIVE), clients_per_round=2, **changes)
        return [record.clients for record in run(chosen)[1]]

    assert drawn() == drawn(rule=FedAvg(), model=BatchNormPlan(), objective=Proximal(0.1))
    assert drawn(seed=6) != drawn()
    assert drawn(max_rounds=2) == drawn()[:2]


def test_every_client_is_drawn_equally_often() -> None:
    work = simulation(federation=federation(FIVE), clients_per_round=2)
    count = np.bincount(np.concatenate([work.participants(n) for n in range(2000)]), minlength=6)
    # 2000 rounds, two of five: 800 each, standard deviation 22.
    assert count[2] == 0
    assert_allclose(count[[0, 1, 3, 4, 5]], 800, atol=110)


def test_a_client_trains_the_same_whoever_else_is_drawn() -> None:
    recordings = [Recording(FedAvg()), Recording(FedAvg())]
    for recording, count in zip(recordings, (2, None), strict=True):
        chosen = federation(FIVE)
        run(simulation(federation=chosen, rule=recording, clients_per_round=count, max_rounds=1))
    some, everybody = ({r.client: r for r in each.seen[0][1]} for each in recordings)
    assert len(some) == 2
    assert len(everybody) == 5
    for client, report in some.items():
        assert same_state(report.state, everybody[client].state)


@pytest.mark.parametrize("count", [5, 6])
def test_as_many_as_can_train_are_all_of_them(count: int) -> None:
    everybody = run(simulation(federation=federation(FIVE)))
    drawn = run(simulation(federation=federation(FIVE), clients_per_round=count))
    assert without_seconds(drawn[1]) == without_seconds(everybody[1])
    assert same_progress(drawn[0][-1], everybody[0][-1])


@pytest.mark.parametrize("count", [7, 0, -1, 1.5])
def test_a_number_of_clients_that_cannot_be_drawn(count: Any) -> None:
    with pytest.raises(FedcrfError, match=rf"clients_per_round {count}: .*give"):
        simulation(federation=federation(FIVE), clients_per_round=count)


@dataclass(frozen=True)
class Momentum(Rule):
    """A rule that remembers: it goes on by half of the step before."""

    def aggregate(self, memory: Any, global_state: Any, reports: Any) -> Any:
        result = FedAvg().aggregate({}, global_state, reports)
        steps = {
            name: np.asarray(result.state[name] - array + memory.get(name, np.float32(0)) / 2)
            for name, array in global_state.items()
        }
        state = {
            name: np.asarray(array + steps[name], dtype=array.dtype)
            for name, array in global_state.items()
        }
        return replace(result, state=state, memory=steps)


@pytest.mark.parametrize(
    "rule",
    [
        Momentum(),
        *(Optimized(CRF(), kind()) for kind in SERVER_OPTIMIZERS.values() if kind().initial),
        Optimized(Momentum(), Adam()),
    ],
    ids=repr,
)
def test_what_a_rule_remembers_is_handed_on_and_kept_in_the_checkpoint(
    rule: Any, tmp_path: Path
) -> None:
    whole = simulation(rule=rule, model=BatchNormPlan())
    states, _ = assert_resumes(whole, tmp_path)
    forgetful = replace(states[1], memory={})
    assert not same_state(states[2].model, run(whole, forgetful)[0][0].model)


@pytest.mark.parametrize("plan", [MLP((6,)), BatchNormPlan()])
def test_what_is_neither_sent_nor_kept_is_named(plan: Any) -> None:
    names = list(plan.build((1, 4, 4), 3).state_dict())
    with pytest.raises(FedcrfError, match=f"'{names[2]}' is neither sent nor kept: name it as"):
        simulation(model=plan, task=Task(shared=frozenset(names[:2]))).start()


def total(*states: Any) -> float:
    return sum(float(np.abs(array).sum()) for state in states for array in state.values())


@dataclass(frozen=True)
class Elected(Rule):
    """The last client's model becomes the next one, and the first client's is remembered."""

    seen: list[float] = field(default_factory=list)

    def aggregate(self, memory: Any, model: Any, reports: Any) -> Any:
        self.seen.append(total(model, memory))
        result = FedAvg().aggregate({}, model, reports)
        return replace(result, state=reports[-1].state, memory=dict(reports[0].state))


@pytest.mark.parametrize("plan", [MLP((6,)), BatchNormPlan()])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_rule_takes_from_a_report_stays_as_it_was(plan: Any, workers: int) -> None:
    rule = Elected()
    states, _ = run(simulation(rule=rule, model=plan), workers=workers)
    assert rule.seen[1:] == [total(state.model, state.memory) for state in states[:-1]]


def test_what_a_rule_before_a_server_optimizer_remembers_stays_as_it_was() -> None:
    rule = Elected()
    states, _ = run(simulation(rule=Optimized(rule, Adam())))
    remembered = [named("rule.", state.memory) for state in states[:-1]]
    models = [state.model for state in states[:-1]]
    assert rule.seen[1:] == [total(*both) for both in zip(models, remembered, strict=True)]


@pytest.mark.parametrize("name", ["crf-robust", "crf-robust-evidence"])
@pytest.mark.parametrize("clients_per_round", [None, 2])
def test_a_robust_run_killed_after_any_round_goes_on_to_the_bit(
    name: str, clients_per_round: int | None, tmp_path: Path
) -> None:
    whole = simulation(
        rule=small_rule(name), federation=federation(FIVE), clients_per_round=clients_per_round
    )
    _, records = assert_resumes(whole, tmp_path)
    last = records[-1].reasons
    assert last is not None
    assert {"opposition", "curvature_response", "norm", "remembered", "clip"} <= set(last.causes)
    assert np.isfinite(last.causes["curvature_response"]).any()
