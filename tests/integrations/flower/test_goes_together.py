"""What a rule in Flower goes together with, and what it does not: the table of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import mod
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)
from flwr.supercore.privacy_accounting import SamplingMethod

from fedcrf.experiments.recorded import recorded_runs
from fedcrf.integrations.flower import RuleStrategy
from fedcrf.rules import CRFRobust
from integrations.flower_messages import Nodes, arrays, failure, reply, tensors

PAGE = Path(__file__).parents[3] / "docs" / "flower.md"
CLIENTS, ROUNDS, HOSTILE = 8, 12, 7
GOALS = 1.0 + np.random.default_rng(0).normal(size=(CLIENTS, 40))
GOAL = GOALS[:HOSTILE].mean(axis=0)
START = {"weight": np.zeros(40), "steps": np.array(0)}
"""A model with batch norm's counter."""


def plain(**arguments: Any) -> RuleStrategy:
    return RuleStrategy(CRFRobust(sketch_seed=3), fraction_evaluate=0.0, **arguments)


class Scheduled(RuleStrategy):
    """A strategy that sends a learning rate which falls."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["learning-rate"] = 0.3 / server_round**0.5
        return super().configure_train(server_round, arrays, config, grid)


class Rounded(RuleStrategy):
    """A strategy that changes the next model."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        after, metrics = super().aggregate_train(server_round, replies)
        state = {name: np.round(array, 6) for name, array in tensors(after).items()}
        return arrays(state), metrics


def node(mods: Sequence[Any] = ()) -> Callable[[Message], Message]:
    """Return a client behind Flower's modifiers; the hostile one sends the opposite, and more."""

    def train(asked: Message, _: Context) -> Message:
        client, config = asked.metadata.dst_node_id, asked.content["config"]
        state = tensors(asked.content["arrays"])  # type: ignore[arg-type]
        rate = float(config.get("learning-rate", 0.3))  # type: ignore[arg-type]
        step = rate * (GOALS[client] - state["weight"]) * (-3.0 if client == HOSTILE else 1.0)
        after = {"weight": state["weight"] + step, "steps": state["steps"] + 1}
        return reply(client, after, num_examples=10, partition_id=client)

    app = train
    for each in reversed(mods):
        app = lambda asked, context, each=each, inner=app: each(asked, context, inner)  # noqa: E731
    return lambda asked: app(asked, Context(0, 0, {}, RecordDict(), {}))


@dataclass(frozen=True)
class Together:
    """A row of the page's table that works: what is named there, and how it is set up."""

    named: str
    wrap: Callable[[RuleStrategy], Strategy] = field(default=lambda strategy: strategy)
    mods: tuple[Any, ...] = ()
    strategy: Callable[..., RuleStrategy] = plain


WORKS = [
    Together("`fraction_train`", strategy=lambda **places: plain(fraction_train=0.75, **places)),
    Together(
        "a learning rate in the config",
        strategy=lambda **places: Scheduled(
            CRFRobust(sketch_seed=3), fraction_evaluate=0, **places
        ),
    ),
    Together(
        "a subclass that overrides `aggregate_train`",
        strategy=lambda **places: Rounded(CRFRobust(sketch_seed=3), fraction_evaluate=0, **places),
    ),
    Together(
        "`LocalDpMod`", mods=(mod.LocalDpMod(5.0, sensitivity=0.005, epsilon=1.0, delta=1e-5),)
    ),
    Together("`arrays_size_mod`", mods=(mod.arrays_size_mod, mod.message_size_mod)),
    Together(
        "`DifferentialPrivacyClientSideFixedClipping`",
        lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 0.01, 5.0, CLIENTS),
        (mod.fixedclipping_mod,),
    ),
    Together(
        "`DifferentialPrivacyClientSideAdaptiveClipping`",
        lambda inner: DifferentialPrivacyClientSideAdaptiveClipping(
            inner, 0.05, CLIENTS, initial_clipping_norm=1.0
        ),
        (mod.adaptiveclipping_mod,),
    ),
    Together(
        "`DifferentialPrivacyServerSideFixedClipping`",
        lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 0.01, 5.0, CLIENTS),
    ),
    Together(
        "`DifferentialPrivacyServerSideAdaptiveClipping`",
        lambda inner: DifferentialPrivacyServerSideAdaptiveClipping(
            inner, 0.05, CLIENTS, initial_clipping_norm=1.0
        ),
    ),
]


def rows(section: str = "What goes together") -> str:
    return PAGE.read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("row", WORKS, ids=lambda row: row.named.strip("`"))
def test_it_goes_together(row: Together, tmp_path: Path) -> None:
    np.random.seed(0)  # noqa: NPY002 - Flower draws its noise from there
    strategy = row.strategy(record_to=tmp_path)
    result = row.wrap(strategy).start(
        Nodes(dict.fromkeys(range(CLIENTS), node(row.mods))), arrays(START), num_rounds=ROUNDS
    )
    off = np.linalg.norm(tensors(result.arrays)["weight"] - GOAL) / np.linalg.norm(GOAL)
    assert off < 0.7, off
    (run,) = recorded_runs(tmp_path).values()
    records = run.records()
    assert [record.round for record in records] == list(range(1, ROUNDS + 1))
    shares = [dict(zip(each.nodes or [], each.weight, strict=True)) for each in records]
    last = [share[HOSTILE] for share in shares if HOSTILE in share][-1]
    assert last < 0.5 / CLIENTS
    assert row.named in rows()


def test_the_server_s_evaluation_is_recorded(tmp_path: Path) -> None:
    seen: list[int] = []

    def evaluate(number: int, now: ArrayRecord) -> MetricRecord:
        seen.append(number)
        off = float(np.linalg.norm(tensors(now)["weight"] - GOAL))
        return MetricRecord({"loss": off, "accuracy": 1 / (1 + off)})

    grid = Nodes(dict.fromkeys(range(CLIENTS), node()))
    plain(record_to=tmp_path).start(grid, arrays(START), num_rounds=3, evaluate_fn=evaluate)
    assert seen == [0, 1, 2, 3]
    (run,) = recorded_runs(tmp_path).values()
    losses = [record.held_out.loss for record in run.records() if record.held_out]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert "`evaluate_fn`" in rows()


WRAPPERS = [row for row in WORKS if "DifferentialPrivacy" in row.named]


@pytest.mark.parametrize("row", WRAPPERS, ids=lambda row: row.named.strip("`"))
def test_a_wrapper_lets_one_failure_end_the_round(row: Together, tmp_path: Path) -> None:
    # Flower's wrapper looks before the strategy does, and returns no model.
    def broken(asked: Message) -> Message:
        return failure(3, "no data")

    def grid(*mods: Any) -> Nodes:
        return Nodes(dict.fromkeys(range(CLIENTS), node(mods)) | {3: broken})

    result = row.wrap(plain(record_to=tmp_path)).start(grid(*row.mods), arrays(START), num_rounds=2)
    assert list(result.arrays) == []
    (run,) = recorded_runs(tmp_path).values()
    assert run.records() == []
    alone = plain().start(grid(), arrays(START), num_rounds=2)
    assert tensors(alone.arrays)["weight"].any()
    assert "**One reply that failed** ends the round in all four" in rows()


def test_a_wrapper_that_clips_on_the_server_stops_at_another_shape() -> None:
    def short(asked: Message) -> Message:
        client = asked.metadata.dst_node_id
        return reply(client, {"weight": np.ones(3), "steps": np.array(1)}) if client == 3 else (
            node()(asked)
        )  # fmt: skip

    grid = Nodes(dict.fromkeys(range(CLIENTS), short))
    wrapped = DifferentialPrivacyServerSideFixedClipping(plain(), 0.0, 5.0, CLIENTS)
    with pytest.raises(ValueError, match="broadcast"):
        wrapped.start(grid, arrays(START), num_rounds=1)
    assert tensors(plain().start(grid, arrays(START), num_rounds=1).arrays)["weight"].any()


def test_flower_s_accountant_refuses_any_rule_but_its_mean() -> None:
    config = SimpleNamespace(sampling_method=SamplingMethod.NO_AMPLIFICATION)
    accountant: Any = SimpleNamespace(config=config)
    with pytest.raises(ValueError, match=r"requires a strategy using FedAvg.aggregate_train"):
        DifferentialPrivacyServerSideFixedClipping(
            plain(), 1.0, 1.0, CLIENTS, accountant=accountant
        )
    assert "`accountant`" in rows()


def test_secure_aggregation_is_not_there_for_any_strategy_of_flower_s_message_api() -> None:
    assert not [name for name in dir(mod) if "secagg" in name.lower()]
    with pytest.raises(TypeError, match="Expect a LegacyContext"):
        SecAggPlusWorkflow(3, 2)(Nodes({}), Context(0, 0, {}, RecordDict(), {}))
    assert "Secure aggregation" in rows()
