"""Rounds made up out of hand, as attackers see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.attacks import Attack, Forgery, Scene
from fedcrf.rules import ClientReport, FedAvg, State

Matrix = NDArray[np.float64]

ATTACKING = (1, 4, 6)


def model(flat: Matrix, count: int, dtype: str) -> State:
    """Ten numbers as tensors of a model, with an integer buffer between them."""
    return {
        "weight": flat[:6].reshape(2, 3).astype(dtype),
        "tracked": np.array(count),
        "bias": flat[6:10].astype(dtype),
    }


def flat(state: State) -> Matrix:
    return np.concatenate([state["weight"].ravel(), state["bias"]]).astype(float)


def scene(
    honest: int = 6,
    attackers: Sequence[int] = ATTACKING,
    seed: int = 0,
    dtype: str = "float64",
    **changes: Any,
) -> Scene:
    """A global model and clients around a common step; the attackers among them by number."""
    rng = np.random.default_rng([seed, honest, len(attackers)])
    start = rng.standard_normal(10)
    step = rng.standard_normal(10)
    reports = [
        ClientReport(
            client,
            model(start + step + rng.standard_normal(10), 100 + client, dtype),
            num_examples=10 + client,
            effective_steps=2.0 + client,
        )
        for client in range(honest + len(attackers))
    ]
    given: dict[str, Any] = {
        "global_state": model(start, 7, dtype),
        "honest": [report for report in reports if report.client not in attackers],
        "own": [report for report in reports if report.client in attackers],
        "round": 1,
        "rule": FedAvg(),
        "rule_memory": {},
        "memory": {},
        "draw": np.random.default_rng(seed),
    }
    return Scene(**(given | changes))


def updates(of: Scene, reports: Sequence[ClientReport]) -> Matrix:
    """The updates of reports, taken by hand."""
    return np.array([flat(report.state) - flat(of.global_state) for report in reports])


def honest_updates(of: Scene) -> Matrix:
    return updates(of, of.honest)


def own_updates(of: Scene) -> Matrix:
    return updates(of, of.own)


def sent(attack: Attack, of: Scene) -> Matrix:
    """The updates that the attackers send."""
    return updates(of, attack.forge(of).reports)


def next_round(of: Scene, forgery: Forgery, **changes: Any) -> Scene:
    return replace(of, round=of.round + 1, memory=forgery.memory, **changes)
