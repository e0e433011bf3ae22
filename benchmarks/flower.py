"""What aggregation costs in Flower beside Flower's own strategies, on the same replies."""

from __future__ import annotations

import logging
import os
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.aggregation import use_threads
from benchmarks.timing import Timing, seconds, take_turns
from fedcrf.rules import RULES

FLOWER, OURS = "Flower FedAvg", "fedcrf CRFAvg"


@dataclass(frozen=True)
class Load:
    """How many nodes send a model of which shapes, and to which strategies; by default to all."""

    clients: int
    turns: int
    shapes: Mapping[str, tuple[int, ...]]
    strategies: tuple[str, ...] = ()


PERCEPTRON = Load(10, 15, {"1.weight": (1000, 784), "1.bias": (1000,), "3.weight": (400, 1000),
                           "3.bias": (400,), "5.weight": (10, 400), "5.bias": (10,)})  # fmt: skip
MANY = Load(
    200,
    5,
    {f"{k}.weight": (250, 400) for k in range(10)},
    (FLOWER, OURS, "fedcrf fedavg", "fedcrf crf-robust"),
)

Model = Mapping[str, NDArray[np.float32]]


def flower(threads: int, load: Load = PERCEPTRON) -> dict[str, Any]:
    """Time ``aggregate_train`` of every strategy in turns, and take its peak of memory.

    A turn has replies of its own, since some of Flower's strategies consume them, and is the next
    round of one federation. The peak is beyond the replies, in multiples of the model.
    """
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    use_threads(threads)
    from flwr.supercore.task_identity import TaskIdentity

    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as within a run
    generator = np.random.default_rng(0)
    model = {
        name: generator.standard_normal(s, dtype=np.float32) for name, s in load.shapes.items()
    }
    contents = [_trained(model, generator) for _ in range(load.clients)]
    rounds = {
        name: partial(_prepared, each, count(1), model, contents)
        for name, each in _strategies()
        if name in load.strategies or not load.strategies
    }
    timings = take_turns(
        {name: partial(_seconds, each) for name, each in rounds.items()}, load.turns
    )
    size = sum(array.nbytes for array in model.values())
    found = {name: _described(timings, name, _peak(each) / size) for name, each in rounds.items()}
    ratio = found[OURS]["times_fedavg"]
    print(
        f"m = {load.clients}, d = {size / 4:.2e}, {threads} thread(s): {OURS} "
        f"{1e3 * timings[OURS].median:.1f} ms, {ratio['median']:.2f} x {FLOWER} "
        f"({ratio['least']:.2f} to {ratio['greatest']:.2f}), peak {found[OURS]['peak']:.2f} models"
    )
    return {"clients": load.clients, "numbers": size // 4, "threads": threads, "strategies": found}


def _strategies() -> list[tuple[str, Any]]:
    from flwr.serverapp.strategy import FedAvg, FedMedian, Krum

    from fedcrf.integrations.flower import CRFAvg, RuleStrategy

    rules = [
        (f"fedcrf {name}", RuleStrategy(kind()))
        for name, kind in RULES.items()
        if name != "crf" and not kind().server_examples  # which a Flower server has not
    ]
    peers = [(FLOWER, FedAvg()), ("Flower FedMedian", FedMedian()), ("Flower Krum", Krum())]
    return [(OURS, CRFAvg()), *peers, *rules]


def _trained(model: Model, generator: np.random.Generator) -> Any:
    """Return what a node sends back."""
    from flwr.app import MetricRecord, RecordDict

    state = {
        name: array + np.float32(0.01) * generator.standard_normal(array.shape, dtype=np.float32)
        for name, array in model.items()
    }
    metrics = {
        "num-examples": int(generator.integers(50, 150)),
        "effective-steps": 10.0,
        "residual-loss": generator.random(),
        "label-divergence": generator.random(),
    }
    return RecordDict({"arrays": _record(state), "metrics": MetricRecord(metrics)})


def _record(state: Model) -> Any:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(array) for name, array in state.items()})


@dataclass(frozen=True)
class _Nodes:
    """As much of a grid as sampling needs."""

    clients: int

    def get_node_ids(self) -> list[int]:
        """Return the nodes' ids."""
        return list(range(1, self.clients + 1))


def _prepared(
    strategy: Any, numbers: Iterator[int], model: Model, contents: list[Any]
) -> Callable[[], object]:
    """Return the aggregation of fresh replies to a model that the strategy has sent."""
    from flwr.app import ConfigRecord, Message, RecordDict

    number = next(numbers)
    asked = strategy.configure_train(number, _record(model), ConfigRecord(), _Nodes(len(contents)))
    replies = [
        Message(RecordDict({key: value.copy() for key, value in content.items()}), reply_to=message)
        for content, message in zip(contents, asked, strict=True)
    ]
    return partial(strategy.aggregate_train, number, replies)


def _seconds(prepare: Callable[[], Callable[[], object]]) -> float:
    return seconds(prepare())


def _peak(prepare: Callable[[], Callable[[], object]]) -> int:
    aggregate = prepare()
    tracemalloc.start()
    aggregate()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _described(timings: Mapping[str, Timing], name: str, peak: float) -> dict[str, Any]:
    return {
        "seconds": list(timings[name].seconds),
        "median": timings[name].median,
        "times_fedavg": timings[name].ratio(timings[FLOWER]),
        "peak": peak,
    }
