"""Evidence that the example's clients send names the noisy ones, with batch norm and without."""

from __future__ import annotations

import pytest

from integrations.flower.residual_loss import NOISY, Setting, run


@pytest.mark.parametrize("network", ["perceptron", "perceptron, batch norm"])
def test_the_residual_loss_accuses_noisy_clients_and_hardly_an_honest_one(network: str) -> None:
    outcome = run(Setting(network, 0.1, NOISY, "residual-loss", seed=0, rounds=3))
    assert outcome.noisy >= 0.9
    assert outcome.honest <= 0.1


def test_the_mean_over_the_training_does_not_find_them_with_batch_norm() -> None:
    outcome = run(Setting("perceptron, batch norm", 0.1, NOISY, "train_loss", seed=0, rounds=3))
    assert outcome.noisy <= 0.5
