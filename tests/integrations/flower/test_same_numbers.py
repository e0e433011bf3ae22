"""The example's clients under a Flower strategy, and the project's own engine: the same weights."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy

from fedcrf.data import PartitionSettings, load_dataset
from fedcrf.integrations.flower import CRFAvg, RuleStrategy
from fedcrf.models import MLP
from fedcrf.objectives import Plain
from fedcrf.rules import RULES, Rule
from fedcrf.simulation.federation import build_federation, client_splits
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.rounds import Simulation
from integrations.flower_messages import Nodes, arrays, tensors

APP = Path(__file__).parents[3] / "examples" / "flower-quickstart"
CLIENTS, SEED = 10, 3

States = list[dict[str, np.ndarray]]


@dataclass(frozen=True)
class Setting:
    """What both are given."""

    dataset: str
    alpha: float
    hidden: int
    learning_rate: float
    batch_size: int
    rounds: int

    @property
    def run_config(self) -> dict[str, Any]:
        """The app's own, with this instead."""
        text = (APP / "pyproject.toml").read_text()
        config: dict[str, Any] = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
        mine = {name.replace("_", "-"): value for name, value in asdict(self).items()}
        return config | {"seed": SEED} | mine


DIGITS = Setting("digits", 0.1, 64, 0.05, 16, rounds=4)
MNIST = Setting("mnist", 0.003, 200, 0.01, 64, rounds=1)


def own(rule: Rule, setting: Setting) -> tuple[Mapping[str, Any], States]:
    """Return the initial model, and the one after each round of the project's own engine."""
    data = load_dataset(setting.dataset)
    settings = PartitionSettings(num_clients=CLIENTS, alpha=setting.alpha)
    simulation = Simulation(
        federation=build_federation(data, client_splits(data.train.labels, settings, SEED)),
        model=MLP((setting.hidden,)),
        objective=Plain(),
        rule=rule,
        training=LocalTraining(learning_rate=setting.learning_rate, batch_size=setting.batch_size),
        max_rounds=setting.rounds,
        seed=SEED,
    )
    start = simulation.start()
    return start.model, [dict(state.model) for state, _ in simulation.rounds(start)]


def in_flower(
    strategy: Strategy,
    setting: Setting,
    start: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> States:
    """Return the model after each round of a strategy with the example's clients."""
    monkeypatch.syspath_prepend(APP)
    client_app = import_module("quickstart.client_app").app

    def node(partition: int) -> Callable[[Message], Message]:
        context = Context(
            run_id=1,
            node_id=partition,
            node_config={"partition-id": partition, "num-partitions": CLIENTS},
            state=RecordDict(),
            run_config=setting.run_config,
        )
        return lambda message: client_app(message, context)

    ids = np.random.default_rng().choice(10**6, CLIENTS, replace=False).tolist()  # as in Flower
    grid = Nodes({number: node(partition) for partition, number in enumerate(ids)})
    seen: States = []

    def keep(number: int, record: ArrayRecord) -> None:
        if number > 0:
            seen.append(tensors(record))

    strategy.start(grid, arrays(start), num_rounds=setting.rounds, evaluate_fn=keep)
    return seen


@pytest.mark.parametrize(
    ("rule", "make", "setting"),
    [
        ("crf", CRFAvg, DIGITS),
        ("fedavg", FedAvg, DIGITS),
        ("fedavg", lambda: RuleStrategy(RULES["fedavg"]()), DIGITS),
        pytest.param("crf", CRFAvg, MNIST, marks=pytest.mark.slow),
    ],
    ids=["CRF", "Flower's FedAvg", "FedAvg", "CRF on MNIST"],
)
def test_the_weights_are_the_same_round_by_round(
    rule: str,
    make: Callable[[], Strategy],
    setting: Setting,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if setting.dataset == "mnist":
        data_dir = request.getfixturevalue("data_dir")
        if not list(data_dir.glob("mnist/train*.parquet")):
            pytest.skip(f"{data_dir} holds no MNIST")
    start, expected = own(RULES[rule](), setting)
    given = in_flower(make(), setting, start, monkeypatch)
    assert len(given) == len(expected) == setting.rounds
    before = start
    for ours, theirs in zip(given, expected, strict=True):
        for name, tensor in theirs.items():
            assert ours[name].dtype == np.float32
            rounding = 8 * np.finfo(np.float32).eps * np.abs(tensor).max()
            np.testing.assert_allclose(ours[name], tensor, rtol=0, atol=rounding)
            assert np.abs(tensor - before[name]).max() > 1000 * rounding
        before = theirs
