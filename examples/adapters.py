"""Four sites fine-tune a frozen network by low-rank adapters (LoRA), which alone are sent.

Each site keeps a head of its own to itself.

python examples/adapters.py             # needs fedcrf[simulation]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedcrf
from fedcrf.own.result import SimulationResult


class Adapted(nn.Module):
    """A frozen linear layer W and, beside it, B·A of low rank: x ↦ Wx + BAx."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, out) of (n, in)."""
        return self.frozen(inputs) + inputs @ self.lora_a.T @ self.lora_b.T


class Classifier(nn.Module):
    """Two adapted layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Adapted(nn.Linear(64, 64)), Adapted(nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, 10) logits of (n, 64) images."""
        return self.head(self.second(self.first(images).relu()).relu())


def run(rounds: int = 15, share: str = "*lora*", **more: object) -> SimulationResult:
    """Deal scikit-learn's digits to four sites, and train adapters and heads."""
    x, y = load_digits(return_X_y=True)
    dealt = np.array_split(np.random.default_rng(0).permutation(len(y)), 4)
    sites = {name: (x[part] / 16, y[part]) for name, part in zip("ABCD", dealt, strict=True)}
    return fedcrf.simulate(Classifier, sites, rounds=rounds, learning_rate=0.1, share=share, **more)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    result = run(parser.parse_args().rounds)
    print(result, result.metrics.to_string(), result.table().to_string(), sep="\n\n")
    print("\nkept by each site:", ", ".join(result.personal["A"]))
