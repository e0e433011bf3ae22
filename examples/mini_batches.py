"""Rounds of one mini-batch: crf-robust beside a plain average where nobody attacks.

The protocol of ByzFL's benchmark (https://github.com/LPD-EPFL/byzfl): ten clients, in each round
one batch of 25 a client, worker momentum 0.9, learning rate 0.1, weight decay 0.0001, a perceptron
with 100 hidden units. A share of the data (the similarity γ) is dealt out at random; the rest is
sorted by label, so that at γ = 0 a client holds one class. The engine of fedcrf trains whole
epochs; this is a loop of its own around `RobustCRF`.

    python examples/mini_batches.py --seeds 300 301 302 303 304 -o results/limits/mini-batches.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedcrf import RobustCRF
from fedcrf.data import LabelledImages, load_dataset
from fedcrf.experiments.analysis.tables import Table
from fedcrf.experiments.provenance import provenance
from fedcrf.models.mlp import MLP

BATCH, LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 25, 0.1, 0.9, 1e-4
RULES = ("average", "crf-robust")
EVALUATIONS = 20
"""In a run; the accuracy is the mean of the last five."""


@dataclass(frozen=True)
class Examples:
    """Images (n, C, H, W), normalised, and their labels (n,)."""

    images: Tensor
    labels: Tensor

    def __getitem__(self, chosen: NDArray[np.int64]) -> Examples:
        return Examples(self.images[chosen], self.labels[chosen])


def deal(
    labels: NDArray[np.int64], similarity: float, clients: int, draw: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return each client's examples: a share dealt at random, the rest sorted by label."""
    order = draw.permutation(len(labels))
    alike, rest = np.split(order, [int(similarity * len(labels))])
    by_label = rest[np.argsort(labels[rest], kind="stable")]
    parts = zip(np.array_split(alike, clients), np.array_split(by_label, clients), strict=True)
    return [np.concatenate(part) for part in parts]


def batches(part: NDArray[np.int64], draw: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Return batches without end, in a new order each time all examples have had their turn."""
    while True:
        order = draw.permutation(part)
        yield from (order[at : at + BATCH] for at in range(0, len(order), BATCH))


def run(
    rule: str,
    train: Examples,
    test: Examples,
    parts: Sequence[NDArray[np.int64]],
    model: nn.Module,
    rounds: int,
    draw: np.random.Generator,
) -> tuple[float, float, float]:
    """Train for so many rounds by one rule.

    Returns:
        Accuracy and that of the worst class, the mean of the last five evaluations; and the share
        of weights that were below a tenth of an equal share.
    """
    queues = [batches(part, draw) for part in parts]
    weights = parameters_to_vector(model.parameters()).detach().clone()
    momenta = torch.zeros(len(parts), len(weights))
    memory, starved, scores = None, [], []
    for number in range(1, rounds + 1):
        for momentum, queue in zip(momenta, queues, strict=True):
            vector_to_parameters(weights, model.parameters())
            batch = train[next(queue)]
            loss = cross_entropy(model(batch.images), batch.labels)
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            momentum.mul_(MOMENTUM).add_(parameters_to_vector(gradient), alpha=1 - MOMENTUM)
        updates = -LEARNING_RATE * momenta
        if rule == "average":
            step = updates.mean(dim=0)
        else:
            posterior = RobustCRF().infer(updates, memory=memory, model=weights)
            memory = posterior.memory
            step = posterior.combine(updates)
            starved.append(np.mean(posterior.weights * len(parts) < 0.1))
        weights = weights + step - LEARNING_RATE * WEIGHT_DECAY * weights
        if number % max(1, rounds // EVALUATIONS) == 0:
            vector_to_parameters(weights, model.parameters())
            scores.append(score(model, test))
    accuracy, worst = np.mean(scores[-5:], axis=0)
    return float(accuracy), float(worst), float(np.mean(starved)) if starved else 0.0


@torch.no_grad()
def score(model: nn.Module, test: Examples) -> tuple[float, float]:
    """Return the accuracy, and that of the worst class."""
    right = (model(test.images).argmax(dim=1) == test.labels).double()
    by_class = [
        float(right[test.labels == label].mean()) for label in range(int(test.labels.max()) + 1)
    ]
    return float(right.mean()), min(by_class)


def main() -> None:
    """Run all rules on the same draws, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--similarity", type=float, nargs="+", default=[0.0, 0.33])
    parser.add_argument("--seeds", type=int, nargs="+", default=[300, 301, 302, 303, 304])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path, help="a CSV file")
    given = parser.parse_args()

    torch.set_num_threads(1)
    data = load_dataset(given.dataset)
    assert data.held_out is not None
    scale = data.train.normalisation()

    def examples(part: LabelledImages) -> Examples:
        mean, std = (torch.tensor(v).float()[:, None, None] for v in (scale.mean, scale.std))
        images = torch.from_numpy(np.array(part.images)).float().sub_(mean).div_(std)
        return Examples(images, torch.from_numpy(np.array(part.labels)))

    train, test = examples(data.train), examples(data.held_out)
    rows = []
    for similarity in given.similarity:
        for seed in given.seeds:
            for rule in RULES:
                draw = np.random.default_rng([seed, 0])
                parts = deal(np.asarray(data.train.labels), similarity, given.clients, draw)
                torch.manual_seed(seed)
                model = MLP(hidden=(100,)).build(data.image_shape, data.num_classes)
                found = run(rule, train, test, parts, model, given.rounds, draw)
                rows.append((f"{similarity:g}", str(seed), rule, *(f"{x:.3f}" for x in found)))
                print(*rows[-1], flush=True)
    header = ("similarity", "seed", "rule", "accuracy", "worst class", "starved")
    made = provenance(torch.device("cpu"))
    table = Table("Rounds of one mini-batch", header, tuple(rows))
    print(f"\n{table.as_markdown()}\n{made.processor}, torch {made.torch}, commit {made.commit}")
    if given.output:
        given.output.write_text(table.as_csv(), encoding="utf-8")


if __name__ == "__main__":
    main()
