"""Three tasks on the digits: what is sent, how clients train, and how a model is measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

Arrays = Mapping[str, NDArray[Any]]
Examples = tuple[NDArray[np.float32], NDArray[np.int64]]

HELD_OUT, PUBLIC = 360, 100
"""Examples that the server measures with, and those that the adapters' network was trained on."""


def dealt(seed: int, clients: int) -> list[Examples]:
    """Return the examples held out, the public ones, then each client's, skewed by label."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    held_out, public, rest = np.split(order, [HELD_OUT, HELD_OUT + PUBLIC])
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in range(10):
        own = rest[y[rest] == label]
        shares = np.cumsum(rng.dirichlet(np.full(clients, 5.0)))[:-1]
        for part, rows in zip(parts, np.split(own, (shares * len(own)).astype(int)), strict=True):
            part.extend(rows)
    return [(x[rows], y[rows]) for rows in (held_out, public, *map(np.array, parts))]


class Task(Protocol):
    """A model as arrays by name."""

    def initial(self) -> Arrays:
        """Return the first model."""
        ...

    def trained(self, before: Arrays, examples: Examples, seed: int) -> Arrays:
        """Return the model after a client's training."""
        ...

    def accuracy(self, model: Arrays, examples: Examples) -> float:
        """Return the share of examples that a model gets right."""
        ...


class Logistic:
    """Scikit-learn's logistic regression, a few iterations a round."""

    def initial(self) -> Arrays:
        """Return zeros."""
        return {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}

    def trained(self, before: Arrays, examples: Examples, seed: int) -> Arrays:
        """Return the coefficients after five iterations from where the server is."""
        model = LogisticRegression(max_iter=5, warm_start=True)
        model.coef_, model.intercept_ = before["coef"].copy(), before["intercept"].copy()
        model.classes_ = np.arange(10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the rounds go on
            model.fit(*examples)
        return {"coef": model.coef_, "intercept": model.intercept_}

    def accuracy(self, model: Arrays, examples: Examples) -> float:
        """Return the share of examples with the largest score at their label."""
        x, y = examples
        return float(np.mean((x @ model["coef"].T + model["intercept"]).argmax(axis=1) == y))


@dataclass(frozen=True)
class Network:
    """A torch network, of which the tensors with this text in their names are sent."""

    build: Callable[[], nn.Module]
    sent: str = ""

    def initial(self) -> Arrays:
        """Return what is sent of a new network."""
        return self._arrays(self.build())

    def trained(self, before: Arrays, examples: Examples, seed: int) -> Arrays:
        """Return what is sent after an epoch of SGD with momentum."""
        model = self._loaded(before)
        fit(model, examples, epochs=1, seed=seed)
        return self._arrays(model)

    @torch.no_grad()
    def accuracy(self, model: Arrays, examples: Examples) -> float:
        """Return the share of examples with the largest logit at their label."""
        x, y = map(torch.from_numpy, examples)
        return float((self._loaded(model).eval()(x).argmax(dim=1) == y).float().mean())

    def _arrays(self, model: nn.Module) -> Arrays:
        return {k: v.numpy() for k, v in model.state_dict().items() if self.sent in k}

    def _loaded(self, arrays: Arrays) -> nn.Module:
        model = self.build()
        state = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        model.load_state_dict(model.state_dict() | state)
        return model


def fit(model: nn.Module, examples: Examples, epochs: int, seed: int) -> None:
    """Train what is not frozen, in batches of 16."""
    torch.set_num_threads(1)
    x, y = map(torch.from_numpy, examples)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05, 0.9)
    rng = np.random.default_rng(seed)
    model.train()
    for _ in range(epochs):
        for batch in torch.from_numpy(rng.permutation(len(y))).split(16):
            if len(batch) == 1:
                continue  # batch norm knows no spread of one example
            optimizer.zero_grad()
            functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


def convolution() -> nn.Module:
    """Return a small convolution network with batch norm."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


class Adapted(nn.Module):
    """A frozen linear layer W and, beside it, B·A of low rank: x ↦ Wx + BAx (LoRA)."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, out) of (n, in)."""
        return self.frozen(inputs) + inputs @ self.lora_a.T @ self.lora_b.T


@cache
def pretrained() -> tuple[nn.Linear, nn.Linear]:
    """Return two layers that everybody has: trained on a few public examples, then frozen."""
    torch.manual_seed(0)
    first, second = nn.Linear(64, 64), nn.Linear(64, 10)
    fit(nn.Sequential(first, nn.ReLU(), second), dealt(0, 1)[1], epochs=5, seed=0)
    return first, second


def adapters() -> nn.Module:
    """Return the frozen network with adapters, which alone are trained and sent."""
    first, second = pretrained()
    torch.manual_seed(1)
    return nn.Sequential(Adapted(first), nn.ReLU(), Adapted(second))


TASKS: Mapping[str, Task] = {
    "logistic": Logistic(),
    "convolution": Network(convolution),
    "adapters": Network(adapters, sent="lora"),
}
