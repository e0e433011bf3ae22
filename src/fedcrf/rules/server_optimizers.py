"""Server optimizers: how far the server goes along a round's pseudo-gradient (FedOpt).

A server optimizer is a frozen dataclass here and a line in `SERVER_OPTIMIZERS`; its fields are its
settings, and a run's description may set them by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Positive, Settings, Share

Tensor = NDArray[np.float64]
"""Numbers for one tensor of the model, in its shape."""

Moments = Mapping[str, Tensor]
"""By name, what an optimizer keeps for one tensor."""


@dataclass(frozen=True)
class ServerOptimizer(Settings, ABC):
    """A first-order optimizer as a value: it gets its moments and returns the next ones."""

    @property
    def initial(self) -> Mapping[str, float]:
        """By name, the initial value of every moment."""
        return {}

    @abstractmethod
    def step(self, update: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        """Return what to add to a tensor of the model, and its next moments.

        Args:
            update: Δ = w_agg − w_t of the tensor, the negative of its pseudo-gradient.
            moments: The tensor's moments after the round before.
        """


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """Server momentum, FedAvgM: m ← βm + Δ, w ← w + ηm (Hsu et al., 2019).

    Attributes:
        learning_rate: η, above 0.
        momentum: β in [0, 1); 0 for none.
    """

    learning_rate: Positive = 1.0
    momentum: Share = 0.9

    @property
    def initial(self) -> Mapping[str, float]:
        """Start at m = 0; see `ServerOptimizer.initial`."""
        return {"momentum": 0.0}

    def step(self, update: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        """Return ηm and m; see `ServerOptimizer.step`."""
        momentum = self.momentum * moments["momentum"] + update
        return self.learning_rate * momentum, {"momentum": momentum}


@dataclass(frozen=True)
class _Adaptive(ServerOptimizer):
    """m ← β₁m + (1 − β₁)Δ, w ← w + ηm/(√v + τ); subclasses update v.

    As in algorithm 2 of Reddi et al. (ICLR 2021), v starts at τ² and no bias is corrected.

    Attributes:
        learning_rate: η, above 0.
        beta1: β₁ in [0, 1).
        tau: τ, above 0; a smaller one is more adaptive.
    """

    learning_rate: Positive = 0.01
    beta1: Share = 0.9
    tau: Positive = 1e-3

    @property
    def initial(self) -> Mapping[str, float]:
        """Start at m = 0 and v = τ²; see `ServerOptimizer.initial`."""
        return {"first_moment": 0.0, "second_moment": self.tau**2}

    def step(self, update: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        """Return ηm/(√v + τ), m and v; see `ServerOptimizer.step`."""
        first = self.beta1 * moments["first_moment"] + (1.0 - self.beta1) * update
        second = self._second_moment(moments["second_moment"], update * update)
        step = self.learning_rate * first / (np.sqrt(second) + self.tau)
        return step, {"first_moment": first, "second_moment": second}

    @abstractmethod
    def _second_moment(self, before: Tensor, squared: Tensor) -> Tensor:
        """Return v from the last one and Δ²."""


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """FedAdagrad: v ← v + Δ² (Reddi et al., ICLR 2021); no momentum unless β₁ is set."""

    learning_rate: Positive = 0.1
    beta1: Share = 0.0

    def _second_moment(self, before: Tensor, squared: Tensor) -> Tensor:
        return before + squared


@dataclass(frozen=True)
class Adam(_Adaptive):
    """FedAdam: v ← β₂v + (1 − β₂)Δ² (Reddi et al., ICLR 2021).

    Attributes:
        beta2: β₂ in [0, 1).
    """

    beta2: Share = 0.99

    def _second_moment(self, before: Tensor, squared: Tensor) -> Tensor:
        return self.beta2 * before + (1.0 - self.beta2) * squared


@dataclass(frozen=True)
class Yogi(Adam):
    """FedYogi: v ← v − (1 − β₂)Δ² sign(v − Δ²) (Reddi et al., ICLR 2021)."""

    def _second_moment(self, before: Tensor, squared: Tensor) -> Tensor:
        return np.asarray(before - (1.0 - self.beta2) * squared * np.sign(before - squared))


@dataclass(frozen=True)
class FedExP(ServerOptimizer):
    """w ← w + η Δ with η = max(1, Σ p_i‖u_i‖² / (2(‖Δ‖² + ε))) (Jhunjhunwala et al., ICLR 2023).

    The u_i are the updates, clipped if the rule clips them, and the p_i the rule's weights. Of a
    rule without weights the median of ‖u_i‖² counts. Both norms are over the trained tensors
    of the whole model. The paper's equation divides by the number of clients instead of weighting
    by p_i; the authors' code (Divyansh03/FedExP) weights by counts, as here behind FedAvg, and
    multiplies ε by the number of clients and by .998² a round. The paper has neither, and so has
    this. The paper evaluates the mean of the last two models; here the last one counts.

    Attributes:
        epsilon: ε, above 0; the source has 0.001 for CIFAR and 0.1 for EMNIST.
    """

    behaviour: ClassVar[int] = 2

    epsilon: Positive = 1e-3

    def step(self, update: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
        """Return Δ, which is still to be multiplied by `rate`; see `ServerOptimizer.step`."""
        return update, {}

    def rate(self, mean_square: float, square: float) -> float:
        """Return η from the mean square Σ p_i‖u_i‖² and the square ‖Δ‖²."""
        return max(1.0, mean_square / (2.0 * (square + self.epsilon)))


SERVER_OPTIMIZERS: Mapping[str, type[ServerOptimizer]] = {
    "momentum": Momentum,
    "adagrad": Adagrad,
    "adam": Adam,
    "yogi": Yogi,
    "fedexp": FedExP,
}
