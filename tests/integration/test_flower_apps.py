"""The three apps for real: in simulation, on SuperNodes, and with a server that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from fedcrf.experiments.recorded import recorded_runs
from fedcrf.integrations.checkpoint import Checkpoint
from fedcrf.rules import CRFRobust
from integration.flower_processes import Processes, free_port
from integrations.hostile import COUNT, Answer, server_of

APP = Path(__file__).parents[2] / "examples" / "flower-apps"
TASKS = ("logistic", "convolution", "adapters")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as running:
        yield running


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The app's module of tasks."""
    monkeypatch.syspath_prepend(str(APP))
    import apps.tasks

    yield apps.tasks
    for name in [name for name in sys.modules if name.partition(".")[0] == "apps"]:
        del sys.modules[name]


def alone(tasks: Any, name: str, clients: int, rounds: int, **places: Any) -> SimpleNamespace:
    """Run the app's rounds in this process: what it comes to without Flower."""
    task, parts = tasks.TASKS[name], tasks.dealt(0, clients)
    model, server = task.initial(), server_of(CRFRobust())
    server.secret_seed = places.get("signs", 1)
    for number in range(1, rounds + 1):
        server.begin_round(number, model, range(clients))
        answers = []
        for client in range(clients):
            own = parts[2 + client]
            after = task.trained(model, own, seed=1000 * number + client)
            if client == 0:
                after = {k: np.asarray(model[k] - 5 * (after[k] - model[k])) for k in model}
            metrics = {COUNT: len(own[1]), "partition-id": client}
            answers.append(Answer(client, {"metrics": metrics, "model": after}))
        decision, state = server.decide(answers, COUNT)
        model = model if decision.kept_reason is not None else dict(state)
        server.finish(decision, model)
    weights = {reply.node: share for reply, share in zip(decision.replies, decision.shares)}  # noqa: B905
    return SimpleNamespace(model=model, weights=weights, accuracy=task.accuracy(model, parts[0]))


@pytest.mark.parametrize("name", TASKS)
def test_a_hostile_client_does_not_spoil_an_app(tasks: Any, name: str) -> None:
    first, last = tasks.TASKS[name].initial(), alone(tasks, name, clients=5, rounds=6)
    held_out = tasks.dealt(0, 5)[0]
    assert last.weights[0] < 0.02
    assert last.accuracy > 0.8
    assert last.accuracy > tasks.TASKS[name].accuracy(first, held_out)


def config(task: str, rounds: int, nodes: int, output: Path) -> str:
    return (
        f'task="{task}" num-server-rounds={rounds} min-nodes={nodes} round-timeout=120 '
        f'output="{output}"'
    )


def check(output: Path, rounds: int, nodes: int) -> list[Any]:
    """Check that a run ended with its records and its model; return the records."""
    (run,) = recorded_runs(output).values()
    records = run.records()
    assert [record.round for record in records] == list(range(1, rounds + 1))
    assert all(len(record.weight) == nodes for record in records)
    accuracies = json.loads((output / "accuracies.json").read_text(encoding="utf-8"))
    assert [*accuracies][-1] == str(rounds)
    with np.load(output / "model.npz") as model:
        assert all(np.isfinite(model[name]).all() for name in model)
    return records


@pytest.mark.slow
def test_every_app_in_simulation(processes: Processes, tmp_path: Path) -> None:
    processes.superlink("sim", "--simulation")
    for task in TASKS:
        run = processes.flwr_run(
            APP, "sim", "--federation-config", "num-supernodes=4 client-resources-num-cpus=1",
            "--run-config", config(task, 3, 4, tmp_path / task),
        )  # fmt: skip
        run.wait(timeout=240)
        assert "Strategy execution finished" in processes.log("run"), processes.log("run")[-3000:]
        last = check(tmp_path / task, rounds=3, nodes=4)[-1]
        assert last.clients[0] == 0
        assert last.weight[0] < min(last.weight[1:])


def supernodes(processes: Processes, port: int, *options: tuple[str, ...]) -> list[Any]:
    """Start a SuperNode for each of these options."""
    return [
        processes.start(
            f"node{number}", "flower-supernode", "--superlink", f"127.0.0.1:{port}", "--host",
            "127.0.0.1", "--port", free_port(), *more,
        )
        for number, more in enumerate(options)
    ]  # fmt: skip


@pytest.mark.slow
def test_every_app_on_supernodes(processes: Processes, tmp_path: Path) -> None:
    port = processes.superlink("dep")
    here = ("--insecure", "--node-config")
    supernodes(processes, port, *((*here, f"partition-id={n} num-partitions=2") for n in range(2)))
    for task in TASKS:
        run = processes.flwr_run(APP, "dep", "--run-config", config(task, 2, 2, tmp_path / task))
        run.wait(timeout=240)
        assert "Strategy execution finished" in processes.log("run"), processes.log("run")[-3000:]
        assert check(tmp_path / task, rounds=2, nodes=2)[-1].clients == [0, 1]


def certificates(folder: Path) -> None:
    """Make an authority, the SuperLink's certificate and two SuperNodes' keys, as the page does."""
    script = """
openssl req -x509 -newkey rsa:2048 -sha256 -days 2 -nodes -keyout ca.key -out ca.crt \
    -subj "/CN=federation" -addext "basicConstraints=critical,CA:TRUE"
openssl req -newkey rsa:2048 -nodes -keyout superlink.key -out superlink.csr -subj "/CN=superlink"
openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -sha256 \
    -out superlink.pem -extfile <(printf "subjectAltName=IP:127.0.0.1")
for node in 0 1; do ssh-keygen -q -t ecdsa -b 384 -N "" -f node$node; done
"""
    subprocess.run(["bash", "-ec", script], cwd=folder, check=True, capture_output=True)


@pytest.mark.slow
def test_a_server_that_is_killed_goes_on_to_the_same_bits_with_the_same_clients(
    processes: Processes, tmp_path: Path, tasks: Any
) -> None:
    certificates(tmp_path)
    port, ports = free_port(), (free_port(), free_port())
    with (tmp_path / "home" / "config.toml").open("a", encoding="utf-8") as file:
        file.write(f'[superlink.tls]\naddress = "127.0.0.1:{port}"\n')
        file.write(f'root-certificates = "{tmp_path / "ca.crt"}"\n')

    def superlink() -> Any:
        started = processes.start(
            "superlink", "flower-superlink", "--ssl-ca-certfile", "ca.crt", "--ssl-certfile",
            "superlink.pem", "--ssl-keyfile", "superlink.key", "--enable-supernode-auth",
            "--host", "127.0.0.1", "--port", port, "--database", "superlink.db",
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        processes.wait_for("superlink", "server", 60)
        return started

    def nodes(*partitions: int) -> list[Any]:
        return [
            processes.start(
                f"node-{number}", "flower-supernode", "--root-certificates", "ca.crt",
                "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1", "--port", ports[number],
                "--auth-supernode-private-key", f"node{number}",
                "--node-config", f"partition-id={partition} num-partitions=2",
            )
            for number, partition in enumerate(partitions)
        ]  # fmt: skip

    output, first = tmp_path / "out", superlink()
    for number in range(2):
        registered = processes.start(
            "register", "flwr", "supernode", "register", f"node{number}.pub", "tls"
        )
        assert registered.wait(timeout=60) == 0, processes.log("register")
    running = nodes(0, 1)
    run = processes.flwr_run(APP, "tls", "--run-config", config("adapters", 4, 2, output))
    processes.wait_for("run", "[ROUND 3/4]", 240)
    for each in psutil.Process(first.pid).children(recursive=True):
        each.kill()  # the app first, or it would end its round without the nodes
    for each in running:
        processes.end(each)  # an ended node that does not say so is taken for active for a minute
    for each in (first, run):
        processes.end(each, signal.SIGKILL)
    done = Checkpoint.load(output / "run.npz").round
    assert done in (2, 3)
    superlink()
    nodes(0, 1)
    again = processes.flwr_run(APP, "tls", "--run-config", config("adapters", 4, 2, output))
    again.wait(timeout=300)
    log = processes.log("run")
    assert f"Resuming after round {done} of 4" in log, log[:3000]
    assert "Strategy execution finished" in log, log[-3000:]
    records = check(output, rounds=4, nodes=2)
    assert len({tuple(record.nodes) for record in records}) == 1  # a node's id belongs to its key
    signs = int(Checkpoint.load(output / "run.npz").memory["signs"][0])
    expected = alone(tasks, "adapters", clients=2, rounds=4, signs=signs).model
    with np.load(output / "model.npz") as model:
        assert {*model} == {*expected}
        for name, array in expected.items():
            assert np.array_equal(model[name], array), name
