"""The example app for real: in simulation, and with a SuperLink and SuperNodes on loopback."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcrf.data import PartitionSettings, load_dataset
from fedcrf.experiments.recorded import recorded_runs
from fedcrf.simulation.federation import client_splits
from fedcrf.simulation.records import RoundRecord
from integration.flower_processes import Processes, free_port

APP = Path(__file__).parents[2] / "examples" / "flower-quickstart"

pytestmark = pytest.mark.slow  # it waits for servers

SLEEPER = '''

@app.train()  # what follows stands for a client that is at work when its machine goes down
def sleeping(message: Message, context: Context) -> Message:
    """Train, but in round 2 client 1 does not end."""
    if message.content["config"]["server-round"] == 2 and context.node_config["partition-id"] == 1:
        import time
        time.sleep(3600)
    return train(message, context)
'''

FAULTS = '''

@app.train()  # what follows stands for clients that go wrong in round 2
def faulty(message: Message, context: Context) -> Message:
    """Train, but in round 2 raise, or send NaN, a wrong shape, or no examples."""
    reply = train(message, context)
    number, client = message.content["config"]["server-round"], context.node_config["partition-id"]
    if number == 2 and client == 3:
        raise RuntimeError("no data today")
    if number == 2 and client in (4, 5):
        state = reply.content["arrays"].to_torch_state_dict()
        name = next(iter(state))
        state[name] = state[name] * float("nan") if client == 4 else state[name][:1]
        reply.content["arrays"] = ArrayRecord(state)
    if number == 2 and client == 6:
        reply.content["metrics"]["num-examples"] = 0
    return reply
'''


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as running:
        yield running


def sizes(clients: int) -> list[int]:
    """Return how many examples each client of the app has to train on."""
    labels = load_dataset("digits").train.labels
    splits = client_splits(labels, PartitionSettings(num_clients=clients, alpha=0.1), seed=0)
    return [len(split.train) for split in splits]


def app_with(training: str, folder: Path) -> Path:
    """Return a copy of the app whose clients train in another way."""
    app = folder / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    client = app / "quickstart" / "client_app.py"
    client.write_text(client.read_text().replace("@app.train()\n", "") + training)
    return app


def check(output: Path, rounds: int) -> list[RoundRecord]:
    """Check that a run left a model and the record of every round."""
    state: dict[str, Tensor] = torch.load(output / "model.pt", weights_only=True)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "1.weight": (64, 64), "1.bias": (64,), "3.weight": (10, 64), "3.bias": (10,),
    }  # fmt: skip
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
    (run,) = recorded_runs(output).values()
    records = run.records()
    assert [record.round for record in records] == list(range(1, rounds + 1))
    return records


def test_in_simulation_with_faulty_clients(processes: Processes, tmp_path: Path) -> None:
    app = app_with(FAULTS, tmp_path)
    processes.superlink("sim", "--simulation")
    run = processes.flwr_run(
        app, "sim", "--federation-config", "num-supernodes=10 client-resources-num-cpus=1",
        "--run-config", f'num-server-rounds=3 output="{tmp_path / "out"}"',
    )  # fmt: skip
    run.wait(timeout=240)
    log = processes.log("run")
    assert "Strategy execution finished" in log, log[-3000:]
    records = check(tmp_path / "out", rounds=3)
    assert [record.clients for record in records] == [
        list(range(10)), [0, 1, 2, 4, 7, 8, 9], list(range(10)),
    ]  # fmt: skip
    assert records[0].num_examples == sizes(10)
    assert records[1].excluded == [4]
    assert records[1].weight[3] == 0
    said = sorted(each.reason for each in records[1].excluded_nodes or [])
    assert "no data today" in said[0]
    assert said[1:] == [
        "gives 0 as 'num-examples', which must be above 0",
        "reports '1.weight' as float32 (1, 64), the global model has float32 (64, 64)",
    ]
    assert all(sum(record.weight) == pytest.approx(1, abs=1e-5) for record in records)
    assert records[2].validation.accuracy > records[0].validation.accuracy > 0.2
    assert records[2].training_loss < records[0].training_loss


def test_in_simulation_with_hostile_clients(processes: Processes, tmp_path: Path) -> None:
    processes.superlink("sim", "--simulation")
    run = processes.flwr_run(
        APP, "sim", "--federation-config", "num-supernodes=10 client-resources-num-cpus=1",
        "--run-config",
        f'strategy="crf-robust" attackers=3 num-server-rounds=20 output="{tmp_path / "out"}"',
    )  # fmt: skip
    run.wait(timeout=240)
    log = processes.log("run")
    assert "Strategy execution finished" in log, log[-3000:]
    records = check(tmp_path / "out", rounds=20)
    first, last = (np.array(record.weight) for record in (records[0], records[-1]))
    assert first[:3].sum() > 0.2
    assert last[:3].sum() < 0.05
    assert last[3:].min() > 0.05
    assert records[-1].validation.accuracy > records[0].validation.accuracy + 0.3


def test_in_deployment_with_a_supernode_that_is_killed(
    processes: Processes, tmp_path: Path
) -> None:
    port = processes.superlink("dep")
    nodes = [
        processes.start(
            f"node{number}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}",
            "--host", "127.0.0.1", "--port", free_port(),
            "--node-config", f"partition-id={number} num-partitions=2",
        )
        for number in range(2)
    ]  # fmt: skip
    run = processes.flwr_run(
        app_with(SLEEPER, tmp_path), "dep", "--run-config",
        "num-server-rounds=2 min-nodes=2 fraction-evaluate=0.0 round-timeout=200 "
        f'output="{tmp_path / "out"}"',
    )  # fmt: skip
    processes.wait_for("run", "[ROUND 2/2]", 120)
    processes.wait_for("run", "aggregate_train: 2 usable, 0 excluded", 5)
    processes.end(nodes[1], signal.SIGKILL)
    run.wait(timeout=240)
    log = processes.log("run")
    assert "Strategy execution finished" in log, log[-3000:]
    first, second = check(tmp_path / "out", rounds=2)
    assert (first.clients, first.num_examples) == ([0, 1], sizes(2))
    assert first.excluded_nodes == []
    assert second.clients == [0]
    assert second.weight == [1.0]
    (lost,) = second.excluded_nodes or []  # its link answers for it once heartbeats are missed
    assert lost.node == (first.nodes or [])[1]
    assert "Node Unavailable" in lost.reason
    assert second.training_loss < first.training_loss
