"""ByzFL's own training loop on its own protocol: what our ``byzfl`` suite is held against.

Everything but the data is the source's code (https://github.com/LPD-EPFL/byzfl): clients with
worker momentum, the distribution of the data, attacks, rules, and the server's step. The images are
normalised once and held as tensors, which makes its loop faster than from files. A row of the CSV
is a cell: the mean accuracy of the last five evaluations on the held-out images, and its seconds.

    python -m benchmarks.byzfl_loop -o results/protocols/byzfl-source.csv
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import seconds, take_turns
from fedcrf.data import ImageDataset, LabelledImages, load_dataset
from fedcrf.experiments.grid import Job, run_cell
from fedcrf.experiments.provenance import provenance
from fedcrf.experiments.spec import CellSpec
from fedcrf.experiments.store import Store
from fedcrf.experiments.study import read_suite
from fedcrf.files import append_line
from fedcrf.rules.byzfl import byzfl_part

BATCH, LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 25, 0.1, 0.9, 1e-4
HONEST, ATTACKERS, EVERY = 10, 3, 20
ROUNDS = 400

COLUMNS = (
    "gamma", "attack", "rule", "seed", "accuracy", "seconds",
    "byzfl", "torch", "processor", "commit",
)  # fmt: skip

Described = Mapping[str, Any]
"""A part of the source's, as it reads it."""


@dataclass(frozen=True)
class Same:
    """A rule or an attack of the source's, and ours that is the same.

    Attributes:
        ours: The name of our method or condition.
        theirs: The source's aggregator or attack; empty without an attack.
        before: The source's pre-aggregators.
    """

    ours: str
    theirs: Described
    before: Sequence[Described] = ()


def _described(name: str, **parameters: Any) -> Described:
    return {"name": name, "parameters": parameters}


RULES: Mapping[str, Same] = {
    "average": Same("fedavg", _described("Average")),
    "trimmed-mean": Same("trimmed-mean", _described("TrMean", f=ATTACKERS)),
    "geometric-median": Same("byzfl-geometric-median", _described("GeometricMedian", nu=0.1, T=3)),
    "nnm-trimmed-mean": Same(
        "byzfl-nnm-trmean", _described("TrMean", f=ATTACKERS), [_described("NNM", f=ATTACKERS)]
    ),
}
"""The rules by name; f is the number of attackers that they are informed of."""

ATTACKS: Mapping[str, Same] = {
    "none": Same("none", {}),
    "sign-flip": Same("sign-flip", _described("SignFlipping")),
    "alie": Same("alie-1.5", _described("ALittleIsEnough", tau=1.5)),
}


class Images(torch.utils.data.TensorDataset):
    """Normalised images, with the labels where the source looks for them."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        super().__init__(images, labels)
        self.targets = labels


def normalised(data: ImageDataset) -> tuple[Images, Images]:
    """Return the images for training and those held out."""
    assert data.held_out is not None
    scale = data.train.normalisation()

    def images(part: LabelledImages) -> Images:
        mean, std = (torch.tensor(v).float()[:, None, None] for v in (scale.mean, scale.std))
        pixels = torch.from_numpy(np.array(part.images)).float().sub_(mean).div_(std)
        return Images(pixels, torch.from_numpy(np.array(part.labels)))

    return images(data.train), images(data.held_out)


def cell(
    source: ModuleType,
    train: Images,
    test: Images,
    rule: str,
    attack: str,
    gamma: float,
    seed: int,
    rounds: int = ROUNDS,
) -> tuple[float, float]:
    """Return the accuracy of a cell, as the source's loop finds it, and its seconds."""
    np.random.seed(seed)  # noqa: NPY002  (the source draws from it)
    torch.manual_seed(seed)
    random.seed(seed)
    indices = torch.randperm(len(train))[: int(0.8 * len(train))].tolist()
    loaders = source.DataDistributor(
        {
            "data_distribution_name": "gamma_similarity_niid",
            "distribution_parameter": gamma,
            "nb_honest": HONEST,
            "data_loader": torch.utils.data.Subset(train, indices),
            "batch_size": BATCH,
        }
    ).split_data()
    shared = {
        "model_name": "fc_mnist",
        "device": "cpu",
        "optimizer_name": "SGD",
        "learning_rate": LEARNING_RATE,
        "weight_decay": WEIGHT_DECAY,
        "milestones": [],
        "learning_rate_decay": 1.0,
    }
    clients = [
        source.Client(
            {
                **shared,
                "loss_name": "NLLLoss",
                "LabelFlipping": False,
                "training_dataloader": loader,
                "momentum": MOMENTUM,
                "nb_labels": 10,
                "store_per_client_metrics": False,
            }
        )
        for loader in loaders
    ]
    followed, threat = RULES[rule], ATTACKS[attack].theirs
    server = source.Server(
        {
            **shared,
            "test_loader": torch.utils.data.DataLoader(test, batch_size=1000),
            "aggregator_info": followed.theirs,
            "pre_agg_list": list(followed.before),
        }
    )
    attackers = source.ByzantineClient({**threat, "f": ATTACKERS}) if threat else None
    for client in clients:
        client.set_model_state(server.get_dict_parameters())
    scores, started, evaluating = [], time.perf_counter(), 0.0
    for number in range(1, rounds + 1):
        for client in clients:
            client.compute_gradients()
        honest = [client.get_flat_gradients_with_momentum() for client in clients]
        forged = attackers.apply_attack(honest) if attackers is not None else []
        server.update_model_with_gradients(honest + forged)
        for client in clients:
            client.set_model_state(server.get_dict_parameters())
        if number % EVERY == 0:
            since = time.perf_counter()
            scores.append(server.compute_test_accuracy())
            evaluating += time.perf_counter() - since
    return float(np.mean(scores[-5:])), time.perf_counter() - started - evaluating


def compare(turns: int = 3, rounds: int = 200) -> list[dict[str, Any]]:
    """Time whole cells of both loops in turns, evaluations and records included, on one core each.

    Ours are those of ``fedcrf robustness byzfl`` at γ = 0.33, all images, with as many rounds, and
    ``crf-robust`` beside the rules that both have.
    """
    gamma, seed = 0.33, 1000
    torch.set_num_threads(1)
    source, data = byzfl_part("fed_framework"), load_dataset("mnist")
    train, test = normalised(data)
    methods = {rule: same.ours for rule, same in RULES.items()} | {"crf-robust": "crf-robust"}
    suite = read_suite("byzfl").chosen(
        methods=list(methods.values()),
        conditions=[same.ours for same in ATTACKS.values()],
        partitions=[f"gamma-{gamma}"],
        seeds=[seed],
        settings=[{"rounds": {"maximum": rounds, "patience": rounds}}],
    )
    cells = {(condition, method): each for (_, condition, method, _), each in suite.cells.items()}

    def ours(asked: CellSpec) -> float:
        with tempfile.TemporaryDirectory() as folder:
            store, device = Store(Path(folder)), torch.device("cpu")
            job = Job(asked, store.cell(asked), data.fingerprint, store.path)
            return seconds(lambda: run_cell(job, data, device, lambda event: None))

    found = []
    for (attack, same), (rule, method) in product(ATTACKS.items(), methods.items()):
        works = {"fedcrf": partial(ours, cells[same.ours, method])}
        if rule in RULES:
            theirs = partial(cell, source, train, test, rule, attack, gamma, seed, rounds)
            works["byzfl"] = partial(seconds, theirs)
        timings = take_turns(works, turns)
        mine, its = timings["fedcrf"], timings.get("byzfl")
        found.append(
            {
                "attack": attack,
                "rule": rule,
                "rounds": rounds,
                "fedcrf_seconds": list(mine.seconds),
                "byzfl_seconds": None if its is None else list(its.seconds),
                "byzfl_times_ours": None if its is None else its.ratio(mine),
            }
        )
        print(f"{attack}, {rule} is measured")
    return found


def main() -> None:
    """Run the cells that the file does not hold yet, one after the other; add each to it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gammas", type=float, nargs="+", default=[0.33, 0.0])
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1000, 1001, 1002, 1003, 1004])
    parser.add_argument("-o", "--output", type=Path, required=True, help="a CSV file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    source = byzfl_part("fed_framework")
    train, test = normalised(load_dataset("mnist"))
    made = provenance(torch.device("cpu"))
    origin = (version("byzfl"), made.torch, made.processor, made.commit)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    known: set[tuple[str, ...]] = set()
    if given.output.exists():
        with given.output.open(newline="", encoding="utf-8") as file:
            known = {tuple(row[:4]) for row in csv.reader(file)}
    else:
        append_line(given.output, (",".join(COLUMNS) + "\n").encode())
    for seed, gamma, attack, rule in product(given.seeds, given.gammas, given.attacks, given.rules):
        key = (f"{gamma:g}", attack, rule, str(seed))
        if key not in known:
            accuracy, seconds = cell(source, train, test, rule, attack, gamma, seed)
            line = ",".join([*key, f"{accuracy:.4f}", f"{seconds:.2f}", *map(str, origin)])
            print(line, flush=True)
            append_line(given.output, f"{line}\n".encode())


if __name__ == "__main__":
    main()
