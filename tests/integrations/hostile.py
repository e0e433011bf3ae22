"""Replies of any framework, honest and hostile, and what must hold of every round of a server."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcrf.errors import FedcrfError
from fedcrf.integrations.decision import Decision
from fedcrf.integrations.server import RuleServer
from fedcrf.rules import RULES, Rule

LOG = logging.getLogger("a framework under attack")
LOG.disabled = True  # a hundred thousand rounds log a lot
COUNT = "n"
MANY = 10**400
"""A whole number beyond all floats."""

State = dict[str, np.ndarray]
Rng = np.random.Generator


@dataclass(frozen=True)
class Answer:
    """A message of the framework, which is a dictionary."""

    node: int | str
    content: Mapping[str, Any]

    def metrics(self) -> Mapping[str, Any]:
        if "failed" in self.content:
            raise FedcrfError(f"failed: {self.content['failed']}")
        return self.content["metrics"]

    def model(self) -> Mapping[str, Any]:
        return self.content["model"]


def server_of(rule: Rule, **arguments: Any) -> RuleServer:
    return RuleServer(rule, None, framework="none 1", strategy="Loop", log=LOG, **arguments)


USABLE = [name for name, kind in RULES.items() if not kind().server_examples]
DTYPES = ("float32", "float64", "float16", "int64", "uint8", "bool")
ODD_NUMBERS = (
    np.nan, np.inf, -np.inf, 1e300, -1e300, 3e38, 6e4, 1e-310, 5e-324, 1e-45, -0.0, 7.5, 2**63, -1,
)  # fmt: skip
ODD_METRICS = (
    0, -1, -MANY, MANY, np.nan, np.inf, -np.inf, 1e308, 5e-324, 1e-45, True, 2**63, 0.5, 7, [],
    [1.0], [np.nan, MANY], np.float32(3), np.int64(-2), np.uint8(200), None,
)  # fmt: skip


def a_model(rng: Rng) -> State:
    """Return a small global model: some tensors of any shape and dtype, at any scale."""
    shapes = [(3, 2), (5,), (), (0,), (1, 1, 2), (7,)]
    kinds = rng.choice(DTYPES, 3)
    if rng.random() < 0.8:  # most models train something
        kinds[0] = rng.choice(DTYPES[:3])
    scale = rng.choice([0.0, 1e-3, 1.0, 1e3])
    state = {}
    for at, kind in enumerate(kinds[: rng.integers(1, 4)]):
        numbers = rng.normal(0, scale, shapes[rng.integers(len(shapes))])
        state[f"layer{at}.weight"] = np.asarray(np.abs(numbers) if kind == "uint8" else numbers)
        state[f"layer{at}.weight"] = state[f"layer{at}.weight"].astype(kind)
    return state


def trained(model: Mapping[str, Any], rng: Rng, size: float = 0.1) -> State:
    """Return what an honest client sends."""
    after = {}
    for name, array in model.items():
        floating = array.dtype.kind == "f"
        moved = array + rng.normal(size, size, array.shape) if floating else array
        after[name] = np.asarray(moved).astype(array.dtype)
    return after


def _odd_tensor(state: State, rng: Rng) -> None:
    """Change a tensor's shape or dtype, leave it out, or send another."""
    name = str(rng.choice([*state]))
    array = state[name]
    changes: Sequence[Callable[[], object]] = (
        lambda: state.pop(name),
        lambda: state.update({"w\n[ERROR] node 3\x1b[2J": array}),
        lambda: state.update({name: array[..., None]}),
        lambda: state.update({name: array.reshape(-1)}),
        lambda: state.update({name: array.T}),
        lambda: state.update({name: np.zeros((2, 9))}),
        lambda: state.update({name: array.astype(rng.choice(DTYPES))}),
        lambda: state.update({name: array.astype(array.dtype.newbyteorder())}),
        lambda: state.update({name: np.broadcast_to(array.dtype.type(1), array.shape)}),
        lambda: state.clear(),
    )
    with np.errstate(all="ignore"):
        changes[rng.integers(len(changes))]()


def _odd_numbers(state: State, rng: Rng) -> None:
    """Put numbers into a tensor that it may or may not hold."""
    name = str(rng.choice([*state]))
    odd = np.array(ODD_NUMBERS)[rng.integers(len(ODD_NUMBERS))]
    array = np.array(state[name], dtype="float64" if rng.random() < 0.3 else state[name].dtype)
    with np.errstate(all="ignore"):
        one = rng.random() < 0.5
        array[tuple(0 for _ in array.shape) if one and array.size else ...] = (
            odd if array.dtype.kind == "f" else np.float64(odd).astype(array.dtype)
        )
    state[name] = array


def an_answer(
    node: int, model: Mapping[str, Any], others: Sequence[State], rng: Rng, hostile: float
) -> Answer:
    """Return what a node sends: with a probability, something hostile or broken."""
    state: State = trained(model, rng)
    metrics: dict[str, Any] = {COUNT: int(rng.integers(1, 100)), "partition-id": node}
    metrics |= {"loss": 0.5, "residual-loss": 0.1 * node, "label-divergence": 1.0}
    metrics["effective-steps"] = 3.0
    if rng.random() >= hostile:
        return Answer(node, {"metrics": metrics, "model": _frozen(state)})
    if rng.random() < 0.05:
        return Answer(node, {"failed": "\n".join(["no data"] * int(rng.integers(1, 90)))})
    for _ in range(rng.integers(1, 4)):
        kind = rng.integers(6)
        if kind == 0 and state:
            _odd_tensor(state, rng)
        elif kind == 1 and state:
            _odd_numbers(state, rng)
        elif kind == 2:
            name = str(rng.choice([*metrics]))
            metrics[name] = ODD_METRICS[rng.integers(len(ODD_METRICS))]
            if metrics[name] is None:
                del metrics[name]
        elif kind == 3:  # opposite, or far away
            with np.errstate(all="ignore"):
                far = rng.choice([-3.0, -1.0, 0.0, 30.0, 1e10, 1e36])
                state = {
                    name: (array + far * (state.get(name, array) - array)).astype(array.dtype)
                    if array.dtype.kind == "f" and state.get(name, array).shape == array.shape
                    else array
                    for name, array in model.items()
                }
        elif kind == 4 and others:
            state = dict(others[rng.integers(len(others))])
        elif kind == 5:
            metrics["partition-id"] = int(rng.integers(-1, 12))
    return Answer(node, {"metrics": metrics, "model": _frozen(state)})


def _frozen(state: State) -> State:
    """Return arrays that may not be written, as views of a message's bytes are."""
    frozen = {name: np.asarray(array) for name, array in state.items()}
    for array in frozen.values():
        array.flags.writeable = False
    return frozen


@dataclass
class Seen:
    """What happened in the rounds so far."""

    rounds: int = 0
    kept: int = 0
    excluded: int = 0
    refused: int = 0
    reasons: set[str] = field(default_factory=set)


def check_round(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    decision: Decision,
    server: RuleServer,
    *,
    tampered: bool = False,
) -> None:
    """Check what must hold of any round, whoever replied with what.

    The model is finite and has the form that it had; weights sum to 1, or the model is kept; who is
    not finite has no weight; nobody counts twice; what is logged and sent on is JSON. FedNova's
    weights have another sum.
    """
    assert after.keys() == before.keys()
    for name, array in before.items():
        assert (after[name].shape, after[name].dtype) == (array.shape, array.dtype), name
        assert array.dtype.kind != "f" or np.isfinite(after[name]).all(), name
    nodes = [reply.node for reply in decision.replies]
    assert len({*nodes}) == len(nodes)
    clients = [reply.client for reply in decision.replies]
    assert clients == sorted({*clients})
    reason = decision.kept_reason or ""
    # The rule itself must not fail by an error that is not named, unless its memory was damaged.
    assert tampered or not re.match(r"the rule failed: \w+(Error|Exception): ", reason), reason
    assert tampered or "the weights sum to" not in reason, server.rule  # of a user's rule alone
    if decision.kept_reason is not None:
        assert all(np.array_equal(after[name], array) for name, array in before.items())
    result = decision.result
    if result is not None:
        weights = result.weights
        assert np.isfinite(result.base_weights).all()
        assert (result.base_weights >= 0).all()
        if decision.kept_reason is None and not np.isnan(weights).any():
            assert abs(weights.sum() - 1) < 1e-6 or server.rule.needs_steps, weights
            assert tampered or (weights >= 0).all()
            assert not weights[result.excluded].any()
    metrics = server.averaged(decision, COUNT)
    json.dumps([metrics, decision.reasons()], allow_nan=False, default=float)
    assert all(len(line) < 2000 and line.isprintable() for line in decision.lines({}))
    assert tampered or all(array.dtype.kind != "O" for array in server.memory.values())
