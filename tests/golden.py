"""What everything with a behaviour number does on a tiny federation, beside its number.

``golden.json`` holds, of each, its number and what came out. Renew it with::

    python tests/golden.py

It refuses what came out otherwise under the same number: raise the ``behaviour`` of the class
first, so that cells of the old code read as stale.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedcrf.attacks import ATTACKS, Adaptive, DataAttack, Optimal, Scene, Schedule, Threat
from fedcrf.data import PARTITIONS, PartitionSettings
from fedcrf.data.partition import ClientSplit, partition, split_client
from fedcrf.models import MLP, MODELS
from fedcrf.objectives import OBJECTIVES, Plain
from fedcrf.processes import one_thread
from fedcrf.rules import (
    LABEL_DIVERGENCE,
    RESIDUAL_LOSS,
    RULES,
    SERVER_OPTIMIZERS,
    AggregationResult,
    ClientReport,
    CRFEvidence,
    CRFRobust,
    FedAvg,
    Optimized,
    Rule,
    State,
    find_rule,
)
from fedcrf.rules.byzfl import AGGREGATORS, PRE_AGGREGATORS
from fedcrf.simulation.engine import Scores, client_evaluation_of, evaluation_of, score
from fedcrf.simulation.local_training import LocalTraining, MLPTraining
from fedcrf.simulation.rounds import EarlyStopping, Simulation
from simulation import small

TABLE = Path(__file__).with_suffix(".json")

Outcome = list[float | None]
"""Numbers; None for those that are not finite, and for the weights of a rule that has none."""

RELATIVE, ABSOLUTE = 3e-4, 3e-5
"""What processors may differ by: they sum float32 in another order, and a few rounds amplify it."""


@dataclass(frozen=True)
class Case:
    """One thing with a behaviour number.

    Attributes:
        of: What the outcome depends on that has a number: the thing itself, then what it runs with.
        outcome: Returns what it does.
        where: What else a rule's number counts of; see `RobustCRF.behaviour_where`.
    """

    of: Sequence[Any]
    outcome: Callable[[], Outcome]
    where: Sequence[str] = ()

    @property
    def numbers(self) -> list[int]:
        """The behaviour numbers of all that it depends on."""
        numbers = [each.behaviour for each in self.of]
        for each in self.of:
            known = getattr(each, "behaviour_where", {})
            numbers += [known[place] for place in self.where if place in known]
        return numbers

    def computed(self) -> Outcome:
        """Return what it does, on one thread: two wait for each other beside other tests."""
        with one_thread():
            return self.outcome()


# --- a federation of quadratic losses: rules and attacks need no network ----------------------


def _state(flat: np.ndarray, seen: int) -> State:
    return {
        "weight": flat[:24].reshape(6, 4).astype(np.float32),
        "seen": np.array(seen),
        "bias": flat[24:].astype(np.float32),
    }


def _flat(state: State) -> np.ndarray:
    return np.concatenate([state["weight"].ravel(), state["bias"]]).astype(np.float64)


ATTACKED_FROM = 3
"""The first round of an attack."""


class Round(NamedTuple):
    """The model before a round, what attackers sent, and what the rule decided."""

    before: State
    sent: Sequence[ClientReport]
    result: AggregationResult


@dataclass(frozen=True)
class Quadratic:
    """Clients that each go towards a centre of their own, with noise.

    Attributes:
        clients: How many there are; the first ones are attackers.
        drawn: How many take part in a round.
        attackers: How many attack.
        number: How many rounds.
        rough: Whether clients differ in length and count, and attackers send copies and long steps
            as well, so that a robust rule has all that it guards against before it.
    """

    clients: int = 9
    drawn: int = 9
    attackers: int = 2
    number: int = 8
    rough: bool = False

    def rounds(self, rule: Rule, attack: Any = None) -> Iterator[Round]:
        """Yield what rounds come to; attackers oppose the mean, or do as is said."""
        draw = np.random.default_rng(self.clients)
        centres = draw.standard_normal(30) + 0.5 * draw.standard_normal((self.clients, 30))
        state, memory, kept = _state(np.zeros(30), 0), {}, {}
        for number in range(1, self.number + 1):
            present = np.sort(draw.permutation(self.clients)[: self.drawn])
            reports = [self._report(state, client, centres[client], draw) for client in present]
            scene = Scene(
                global_state=state,
                honest=[each for each in reports if each.client >= self.attackers],
                own=[each for each in reports if each.client < self.attackers],
                round=number,
                rule=rule,
                rule_memory=memory,
                memory=kept,
                draw=np.random.default_rng(number),
                active=number >= ATTACKED_FROM,
            )
            sent: Sequence[ClientReport] = scene.own
            if attack is None and scene.active:
                sent = scene.reports(self._opposed(scene))
            elif attack is not None and scene.own and (scene.active or attack.remembers):
                forgery = attack.forge(scene)
                kept, sent = forgery.memory, forgery.reports if scene.active else sent
            served = rule
            if rule.server_examples:  # the server goes the mean client's way, half as far
                own = _flat(state) + 0.15 * (centres.mean(axis=0) - _flat(state))
                served = rule.with_server_model(_state(own, 0))
            result = served.aggregate(memory, state, scene.round_with(sent))
            yield Round(state, sent, result)
            state, memory = result.state, result.memory

    def decided(self, rule: Rule) -> Outcome:
        """Return the last weights that a rule gives, and the model that it leads to."""
        *_, last = self.rounds(rule)
        state = last.result.state
        return _numbers([*last.result.weights, *_flat(state)[::5], int(state["seen"])])

    def forged(self, rule: Rule, attack: Any) -> Outcome:
        """Return what attackers send, round by round from the first attack on."""
        return _numbers(
            [
                value
                for each in islice(self.rounds(rule, attack), ATTACKED_FROM - 1, None)
                for report in each.sent
                for value in (
                    *(_flat(report.state) - _flat(each.before))[::13],
                    report.num_examples,
                    report.evidence[RESIDUAL_LOSS],
                )
            ]
        )

    def _opposed(self, scene: Scene) -> np.ndarray:
        """Return what attackers send where no attack is said: (f, 30) updates."""
        rows = np.tile(-0.7 * scene.honest_mean, (scene.num_attackers, 1))
        if self.rough:
            rows[::3] = scene.honest_updates[1]
            rows[1::3] = 2.5 * scene.own_updates[1::3] + 0.5 * scene.draw.standard_normal(30)
        return rows

    def _report(
        self, state: State, client: int, centre: np.ndarray, draw: np.random.Generator
    ) -> ClientReport:
        before = _flat(state)
        pace, large = (0.1 + 0.1 * (client % 7), 9 * (client % 5 == 0)) if self.rough else (0.3, 0)
        after = before + pace * (centre - before) + 0.05 * draw.standard_normal(30)
        return ClientReport(
            client=int(client),
            state=_state(after, 10 * int(client)),
            num_examples=(20 + 7 * int(client)) * (1 + large),
            effective_steps=3.0 + client % 4,
            evidence={
                RESIDUAL_LOSS: float(np.mean((centre - after) ** 2)) * (1 + client % 4) ** 3,
                LABEL_DIVERGENCE: 0.2 * float(client % 5),
            },
        )


SMALL = Quadratic()
CROWD = Quadratic(clients=60, drawn=30, attackers=9)
ROUGH = Quadratic(clients=12, drawn=11, attackers=4, number=12, rough=True)
FEW = Quadratic(clients=15, drawn=6, attackers=4)


def _informed(name: str) -> Rule:
    kind = find_rule(name)
    options: dict[str, Any] = {
        "krum": {"num_byzantine": 2},
        "multi-krum": {"num_byzantine": 2},
        "trimmed-mean": {"fraction": 0.25},
        "centered-clipping": {"clip": 0.5},
        "fedawa": {"learning_rate": 0.1},
    }
    rule = kind(**options.get(name, {}))
    return rule.informed(2, SMALL.clients, 5)


def _rules() -> Iterator[tuple[str, Case]]:
    byzfl = [f"byzfl-{name}" for name in AGGREGATORS]
    byzfl += [f"byzfl-{name}-average" for name in PRE_AGGREGATORS]
    for name in (*RULES, *byzfl):
        rule = _informed(name)
        yield f"rule {name}", Case([rule], partial(SMALL.decided, rule))
    everywhere = ("absence", "large_round")
    for name in ("crf", "crf-robust", "crf-evidence", "crf-robust-evidence"):
        rule = RULES[name](**{"neighbours": 5} if name == "crf" else {})
        yield f"rule {name}, in a crowd", Case([rule], partial(CROWD.decided, rule), everywhere)
        yield f"rule {name}, rough", Case([rule], partial(ROUGH.decided, rule), everywhere)
        yield f"rule {name}, few of all", Case([rule], partial(FEW.decided, rule), ("absence",))


def _attacks() -> Iterator[tuple[str, Case]]:
    robust = CRFRobust()
    for name, kind in ATTACKS.items():
        fewer: dict[str, Any] = {"evaluations": 4} if issubclass(kind, (Adaptive, Optimal)) else {}
        # So that they do in a few rounds, and to a small model, what takes many and a large one.
        sooner: dict[str, Any] = {
            "sleeper": {"until": 5},
            "poisonedfl": {"period": 3},
            "hybrid-sparse": {"share": 0.2},
        }
        attack = kind(**fewer, **sooner.get(name, {}))
        if isinstance(attack, DataAttack):
            yield f"attack {name}", Case([attack], partial(_poisoned, attack))
        elif isinstance(attack, Adaptive):  # looks at the rule
            yield f"attack {name}", Case([attack, robust], partial(SMALL.forged, robust, attack))
        else:
            fedavg = FedAvg()
            yield f"attack {name}", Case([attack, fedavg], partial(SMALL.forged, fedavg, attack))


def _poisoned(attack: DataAttack) -> Outcome:
    images, labels = attack.poison(
        small.examples(20, 0).images.numpy(),
        np.arange(20) % small.CLASSES,
        small.CLASSES,
        np.random.default_rng(0),
    )
    return _numbers([*labels, *images.reshape(20, -1)[::7, ::5].ravel()])


# --- networks ---------------------------------------------------------------------------------


def _simulated(**changes: Any) -> Outcome:
    """Return losses, accuracies and weights of some rounds of training, and where they led."""
    simulation = small.simulation(
        federation=small.federation((20, 7, 33, 15, 26)),
        **{"rule": FedAvg(), "max_rounds": 3, **changes},
    )
    states, records = small.run(simulation)
    last = records[-1]
    scores = [
        value
        for record in records
        for value in (record.training_loss, record.validation.loss, record.test.client_mean)
    ]
    moved = [float(np.linalg.norm(array.astype(np.float64))) for array in states[-1].model.values()]
    return _numbers([*scores, *last.clients, *last.weight, *(last.attackers or []), *moved])


def _initial(name: str) -> Outcome:
    """Return what a freshly made network says of some images."""
    torch.manual_seed(0)
    network = MODELS[name]().build((3, 32, 32), 4).eval()
    images = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 32, 32))).float()
    with torch.no_grad():
        return _numbers(network(images).flatten().tolist())


def _evaluated() -> Outcome:
    torch.manual_seed(0)
    network = MLP((6,)).build(small.SHAPE, small.CLASSES)
    pooled = small.pooled((9, 4, 12), 4)
    scores = score(network, pooled, 8)
    overall, by_client = evaluation_of(scores), client_evaluation_of(scores, pooled.owners)
    return _numbers([*overall.model_dump().values(), *by_client.model_dump().values()])


def _dealt(scheme: str) -> Outcome:
    labels = np.random.default_rng(1).integers(0, 5, 300)
    settings = PartitionSettings(
        scheme=scheme, num_clients=6, alpha=0.4, min_examples=10, sizes=(3, 1, 2, 1, 4, 1)
    )
    parts = partition(labels, settings, np.random.default_rng(2))
    return _numbers([value for part in parts for value in (len(part), *part[:3])])


def _split() -> Outcome:
    labels = np.random.default_rng(1).integers(0, 5, 90)
    split = split_client(np.arange(20, 90), labels, np.random.default_rng(3))
    return _numbers([*split.validation, *split.test, len(split.train)])


def cases() -> Mapping[str, Case]:
    """Return everything that has a behaviour number, by name."""
    found = {**dict(_rules()), **dict(_attacks())}
    for name, optimizer in SERVER_OPTIMIZERS.items():
        rule = Optimized(FedAvg(), optimizer())
        found[f"server optimizer {name}"] = Case([optimizer, FedAvg], partial(SMALL.decided, rule))
    around = [Simulation, Scores, FedAvg]
    for name, objective in OBJECTIVES.items():
        chosen = objective(**{"mu": 0.5} if name == "proximal" else {})
        found[f"objective {name}"] = Case(
            [objective, MLPTraining, MLP, *around], partial(_simulated, objective=chosen)
        )
    for name, scheme in PARTITIONS.items():
        found[f"partition {name}"] = Case([scheme], partial(_dealt, name))
    for name, model in MODELS.items():
        found[f"model {name}"] = Case([model], partial(_initial, name))
    found["split"] = Case([ClientSplit], _split)
    found["training of a perceptron"] = Case([MLPTraining, Plain, MLP, *around], _simulated)
    found["training of any network"] = Case(
        [LocalTraining, Plain, *around], partial(_simulated, model=small.BatchNormPlan())
    )
    steps = LocalTraining(
        0.1, batch_size=8, local_steps=2, worker_momentum=0.9, weight_decay=0.01,
        milestones=(2,), learning_rate_decay=0.5,
    )  # fmt: skip
    stepped = partial(_simulated, training=steps, evaluate_every=2, max_rounds=5)
    found["steps of a perceptron"] = Case([MLPTraining, Plain, MLP, *around], stepped)
    found["steps of any network"] = Case(
        [LocalTraining, Plain, *around], partial(stepped, model=small.BatchNormPlan())
    )
    found["evaluation"] = Case([Scores, MLP], _evaluated)
    flip = ATTACKS["label-flip"](hides=True)
    found["rounds"] = Case(
        [Simulation, Scores, CRFEvidence, MLPTraining, Plain, MLP, flip],
        partial(
            _simulated,
            rule=CRFEvidence(),
            clients_per_round=3,
            threat=Threat(flip, Schedule(2, start_round=2, every=2)),
            max_rounds=9,
            stopping=EarlyStopping(patience=2),
        ),
    )
    return found


# --- the table --------------------------------------------------------------------------------


def _numbers(values: Sequence[Any]) -> Outcome:
    """Return numbers to five significant digits, of which all processors agree on three."""
    return [float(f"{float(v):.5g}") if math.isfinite(v) else None for v in values]


def same(outcome: Outcome, other: Outcome) -> bool:
    """Tell whether two outcomes agree as far as processors do."""
    if len(outcome) != len(other):
        return False
    pairs = zip(outcome, other, strict=True)
    return all(
        a is b if a is None or b is None else math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        for a, b in pairs
    )


def read_table() -> dict[str, dict[str, Any]]:
    """Return what is stored: by name a number and an outcome."""
    return json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}


def complaint(
    name: str, numbers: Sequence[int], outcome: Outcome, row: Mapping[str, Any] | None
) -> str:
    """Return what is wrong with a row of the table; empty where nothing is."""
    renew = "python tests/golden.py"
    if row is None:
        return f"{name} has no row in {TABLE.name}: {renew} writes it"
    before = row["behaviour"]
    if not same(outcome, row["outcome"]) and numbers == before:
        return (
            f"{name} does something else than {TABLE.name} has under the same behaviour number, "
            f"{numbers[0]}: raise `behaviour` in its class, or in that of what it runs with, and "
            f"then {renew}; finished cells of it will read as stale"
        )
    if numbers != before:
        return f"{name} has behaviour {numbers}, and {before} in {TABLE.name}: {renew} renews it"
    return ""


def renewed(
    table: Mapping[str, Mapping[str, Any]], found: Mapping[str, tuple[Sequence[int], Outcome]]
) -> tuple[dict[str, Any], list[str]]:
    """Return the table with what was found, and complaints about what may not be written.

    Args:
        table: As it is stored.
        found: By name the behaviour numbers and the outcome.
    """
    rows: dict[str, Any] = {}
    refused = []
    for name, (numbers, outcome) in found.items():
        row = table.get(name)
        kept = row is not None and row["behaviour"] == numbers
        if kept and not same(outcome, row["outcome"]):
            refused.append(complaint(name, numbers, outcome, row))
        # What agrees stays as it is, so that a renewal changes what is new alone.
        rows[name] = row if kept else {"behaviour": numbers, "outcome": outcome}
    return rows, refused


def main() -> int:
    """Renew the table; return the exit status."""
    found = {name: (case.numbers, case.computed()) for name, case in cases().items()}
    rows, refused = renewed(read_table(), found)
    for line in refused:
        print(line, file=sys.stderr)
    if not refused:
        lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items())]
        TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
