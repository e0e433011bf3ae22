"""Losses and accuracies against a direct computation, example by example."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedcrf.simulation.engine import client_evaluation_of, evaluation_of, score
from fedcrf.simulation.federation import Examples
from simulation.small import CLASSES, SHAPE, BatchNormPlan, DropoutPlan, examples
from tolerance import alike


def network() -> nn.Module:
    torch.manual_seed(0)
    return BatchNormPlan().build(SHAPE, CLASSES)


def directly(model: nn.Module, data: Examples) -> tuple[list[float], list[bool]]:
    """Cross-entropy and hit of every example, alone, in float64."""
    model = model.double().eval()
    losses, hits = [], []
    for image, label in zip(data.images, data.labels.tolist(), strict=True):
        logits = model(image[None].double())[0].tolist()
        losses.append(math.log(sum(math.exp(each) for each in logits)) - logits[label])
        hits.append(max(range(CLASSES), key=logits.__getitem__) == label)
    model.float()
    return losses, hits


@pytest.mark.parametrize("batch_size", [1, 7, 20, 256])
def test_loss_and_accuracy(batch_size: int) -> None:
    model, data = network(), examples(20, seed=0)
    losses, hits = directly(model, data)
    found = evaluation_of(score(model.train(), data, batch_size))
    assert found.loss == alike(np.mean(losses))
    assert found.accuracy == pytest.approx(np.mean(hits))
    assert 0 < found.accuracy < 1, "the case tells hits from misses"


def test_client_by_client() -> None:
    # Client 2 has no examples; client 0 is large and good, so mean, union and worst all differ.
    model = network()
    data = examples(40, seed=0)
    _, hits = directly(model, data)
    order = sorted(range(40), key=lambda place: not hits[place])
    sizes = [sum(hits) - 1, 4, 0, 40 - sum(hits) - 3]
    owners = np.repeat(np.arange(4), sizes)
    mine = torch.tensor(order)
    union = Examples(data.images[mine], data.labels[mine])
    found = client_evaluation_of(score(model, union, 16), torch.from_numpy(owners))
    accuracies = [
        np.mean([hits[order[place]] for place in np.flatnonzero(owners == client)])
        for client in (0, 1, 3)
    ]
    assert found.accuracy == pytest.approx(np.mean(hits))
    assert found.client_mean == pytest.approx(np.mean(accuracies))
    assert found.worst_client == pytest.approx(min(accuracies))
    assert len({found.accuracy, found.client_mean, found.worst_client}) == 3


def test_no_examples_are_nan_and_no_error() -> None:
    scores = score(network(), examples(0, seed=0), 16)
    nobody = torch.empty(0, dtype=torch.int64)
    for found in (evaluation_of(scores), client_evaluation_of(scores, nobody)):
        assert all(map(math.isnan, vars(found).values()))


def test_dropout_and_running_statistics_are_at_rest() -> None:
    torch.manual_seed(0)
    data = examples(20, seed=0)
    dropout = DropoutPlan().build(SHAPE, CLASSES).train()
    once, again = (evaluation_of(score(dropout, data, 16)) for _ in range(2))
    assert once == again
    norm = network().train()
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    score(norm, data, 16)
    for name, tensor in norm.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_model_of_nan_is_wrong_and_not_an_error() -> None:
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    assert math.isnan(evaluation_of(score(model, examples(9, seed=0), 4)).loss)
