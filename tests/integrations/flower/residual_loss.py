"""Measure whom each residual loss accuses: the example's clients in Flower's strategy, without Ray.

Usage, in the repository's root: ``python tests/.../residual_loss.py [SEEDS [ROUNDS]]``

Ten clients share the digits, by label skew; nobody, or three of them, have labels drawn at random.
The rule is CRF-evidence. Printed are, over seeds, the share of an honest client's rounds in which
evidence leaves it less than half of its weight, and of a noisy client's.
"""

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from torch import Tensor, nn
from torch.nn import functional

ROOT = Path(__file__).parents[3]
APP = ROOT / "examples" / "flower-quickstart"
sys.path[:0] = [str(ROOT / "tests"), str(APP)]

from fedcrf.integrations.flower import MetricNames, RuleStrategy  # noqa: E402
from fedcrf.rules import CRFEvidence  # noqa: E402
from integrations.flower_messages import Nodes  # noqa: E402

CLIENTS, NOISY = 10, 3

ACCUSED = 0.5
"""A client's evidence accuses it where it leaves less of its weight."""

LOSSES = ("train_loss", "evaluation", "training", "residual-loss")
"""Over the training; after it in either mode of the network; the lower of these, the app's own."""


def perceptron() -> nn.Module:
    """The app's own."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def normalised_perceptron() -> nn.Module:
    """Four hidden layers with batch norm."""
    hidden = [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    more = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, *more, nn.Linear(64, 10))


def normalised_convolutions() -> nn.Module:
    """Two convolutions with batch norm."""

    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*layer(1, 8), *layer(8, 16), nn.Flatten(), nn.Linear(64, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": perceptron,
    "perceptron, batch norm": normalised_perceptron,
    "convolutions, batch norm": normalised_convolutions,
}


@dataclass(frozen=True)
class Setting:
    """One run: who trains what, and what the rule looks at."""

    network: str
    alpha: float
    noisy: int
    loss: str
    seed: int
    rounds: int
    batch_size: int = 16

    @property
    def run_config(self) -> dict[str, Any]:
        """The app's own, with this instead."""
        text = (APP / "pyproject.toml").read_text()
        config: dict[str, Any] = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
        mine = {"alpha": self.alpha, "seed": self.seed, "batch-size": self.batch_size}
        return config | mine


@dataclass(frozen=True)
class Outcome:
    """Of one run: shares of client-rounds in which a client is accused, and the last accuracy."""

    honest: float
    noisy: float
    accuracy: float


def run(setting: Setting) -> Outcome:
    """Carry out a run, and count who was accused."""
    from quickstart import task
    from quickstart.client_app import app

    names = MetricNames(residual_loss=setting.loss)
    strategy = RuleStrategy(CRFEvidence(), metric_names=names, min_evaluate_nodes=1)
    with (
        in_a_run(),
        patch.multiple(task, build_model=lambda _: network(setting), load_part=parts(setting)),
    ):
        nodes = {client: node(client, setting, app) for client in range(CLIENTS)}
        result = strategy.start(
            Nodes(nodes), ArrayRecord(network(setting).state_dict()), num_rounds=setting.rounds
        )
    accused = np.array(
        [
            np.array(metrics["fedcrf.trust"]) < ACCUSED
            for metrics in result.train_metrics_clientapp.values()
        ]
    )
    accuracy = result.evaluate_metrics_clientapp[setting.rounds]["eval_acc"]
    assert isinstance(accuracy, float)
    noisy = accused[:, : setting.noisy]
    return Outcome(
        honest=float(accused[:, setting.noisy :].mean()),
        noisy=float(noisy.mean()) if noisy.size else np.nan,
        accuracy=accuracy,
    )


def network(setting: Setting) -> nn.Module:
    """Build the network; the seed fixes its first parameters."""
    torch.manual_seed(setting.seed)
    return NETWORKS[setting.network]()


def parts(setting: Setting) -> Callable[..., Any]:
    """Return the app's way to load a client's part, with the labels of noisy ones at random."""
    from quickstart import task

    load = task.load_part

    @cache
    def noisy(*of: Any) -> Any:
        part, client = load(*of), of[-1]
        labels = part.train.labels
        if client < setting.noisy:
            rng = np.random.default_rng([setting.seed, client])
            labels = torch.from_numpy(rng.integers(0, 10, len(labels)))
        # A last batch of one example is none for batch norm.
        count = len(labels) - (len(labels) % setting.batch_size == 1)
        return task.Part(task.Examples(part.train.images[:count], labels[:count]), part.validation)

    return noisy


def node(client: int, setting: Setting, app: Any) -> Callable[[Message], Message | None]:
    """Return a node that answers as the app's client, with each of `LOSSES`."""
    from quickstart import task

    context = Context(
        run_id=1, node_id=client, state=RecordDict(), run_config=setting.run_config,
        node_config={"partition-id": client, "num-partitions": CLIENTS},
    )  # fmt: skip

    def answer(message: Message) -> Message | None:
        if message.metadata.message_type == "evaluate" and client < setting.noisy:
            return None  # what it holds tells nothing of the model
        reply: Message = app(message, context)
        if message.metadata.message_type == "train":
            model = network(setting)
            model.load_state_dict(reply.content["arrays"].to_torch_state_dict())
            part = task.load_part("digits", "", CLIENTS, setting.alpha, setting.seed, client)
            metrics = reply.content["metrics"]
            for training, name in ((False, "evaluation"), (True, "training")):
                model.train(training)
                metrics[name] = loss_of(model, part.train, setting.batch_size)
        return reply

    return answer


@torch.no_grad()
def loss_of(model: nn.Module, examples: Any, batch_size: int) -> float:
    """Return the mean loss of a network in the mode it is in."""
    losses: list[Tensor] = [
        functional.cross_entropy(model(images), labels, reduction="sum")
        for images, labels in zip(
            examples.images.split(batch_size), examples.labels.split(batch_size), strict=True
        )
    ]
    return float(sum(losses)) / len(examples.labels)


@contextmanager
def in_a_run() -> Iterator[None]:
    """Let this process make messages, as only one that carries out a run can."""
    identity = import_module("flwr.supercore.task_identity").TaskIdentity
    with patch.multiple(identity, _task_id=1, _run_id=1, _node_id=1):
        yield


def main(seeds: str = "5", rounds: str = "10") -> None:
    """Print the table."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    print("| network | skew α | noisy | loss | honest accused | noisy found | accuracy |")
    print("|---|---:|---:|---|---:|---:|---:|")
    for name, alpha, noisy, loss in product(NETWORKS, (0.5, 0.1), (0, NOISY), LOSSES):
        outcomes = [
            run(Setting(name, alpha, noisy, loss, seed, int(rounds))) for seed in range(int(seeds))
        ]
        honest, found, accuracy = (
            np.mean([getattr(each, what) for each in outcomes])
            for what in ("honest", "noisy", "accuracy")
        )
        caught = "–" if np.isnan(found) else f"{found:.3f}"
        print(f"| {name} | {alpha} | {noisy} | {loss} | {honest:.3f} | {caught} | {accuracy:.3f} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
