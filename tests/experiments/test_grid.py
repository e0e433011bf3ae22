"""The grid: one process or several, whole or broken off, it comes to the same."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.runs import Log, carry_out, full_disk, small_spec, snapshot
from fedcrf import FedcrfError
from fedcrf.experiments import grid, provenance
from fedcrf.experiments.grid import (
    CellFailed,
    CellFinished,
    CellStarted,
    Event,
    Job,
    RoundFinished,
    Workplace,
    executor_at,
    run_grids,
)
from fedcrf.experiments.results import read_results, table
from fedcrf.experiments.spec import RunSpec, resolve
from fedcrf.experiments.store import PartitionRecord, Store
from fedcrf.loggers import result_values, round_values
from fedcrf.simulation.rounds import Simulation
from integration.command_line import environment


def results(folder: Path) -> dict[str, tuple[list[Any], dict[str, Any], bytes]]:
    """Every cell's records, summary and model, without what was measured of the execution."""
    store = Store(folder)
    found = {}
    for spec in store.read().cells():
        cell = store.cell(spec)
        summary = cell.summary()
        assert summary is not None, spec.name
        timed = {"seconds_per_round", "aggregation_share", "images_per_second", "provenance"}
        found[spec.name] = (
            [record.model_dump(exclude={"seconds"}) for record in cell.records()],
            summary.model_dump(exclude=timed),
            (cell.path / "model.pt").read_bytes(),
        )
    return found


def test_what_the_observer_is_told(tmp_path: Path) -> None:
    spec = small_spec(seeds=[3])
    log, failed = carry_out(spec, tmp_path)
    assert failed == []
    kinds = [type(event) for event in log.events]
    cell = [CellStarted, *[RoundFinished] * 3, CellFinished]
    assert kinds == [PartitionRecord, *cell, *cell]
    assert log.of(PartitionRecord)[0].seed == 3
    assert [event.rounds_done for event in log.of(CellStarted)] == [0, 0]


@pytest.mark.parametrize("jobs", [1, 2])
def test_data_are_loaded_once_and_not_held_while_others_work(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, held = [], []
    load, work = grid.load_dataset, grid._run_in_processes
    monkeypatch.setattr(grid, "load_dataset", lambda *a, **b: loads.append(a) or load(*a, **b))
    monkeypatch.setattr(
        grid,
        "_run_in_processes",
        lambda *a: held.append(grid._dataset.cache_info().currsize) or work(*a),
    )
    spec = small_spec(seeds=[0], rounds={"maximum": 1})
    assert carry_out(spec, tmp_path, jobs=jobs)[1] == []
    assert loads == [("digits",)]
    assert held == ([0] if jobs == 2 else [])
    assert grid._dataset.cache_info().currsize == 0, "nor afterwards"


def test_the_speed_is_that_of_what_is_trained_on_and_not_of_false_counts(tmp_path: Path) -> None:
    attack = {"name": "inflated-count", "attackers": 1}
    spec = small_spec(methods=["fedavg"], seeds=[0], attack=attack)
    assert carry_out(spec, tmp_path)[1] == []
    store = Store(tmp_path)
    cell = store.cell(spec.cells()[0])
    summary, partition = cell.summary(), store.partition(0)
    assert summary is not None
    assert partition is not None
    examples = sum(client.train for client in partition.clients)
    speeds = [examples / record.seconds.training for record in cell.records()]
    assert summary.images_per_second == pytest.approx(statistics.median(speeds))


@pytest.mark.slow
def test_two_jobs_are_one_job_to_the_bit(tmp_path: Path, finished_once: Path) -> None:
    log, failed = carry_out(small_spec(), tmp_path / "two", jobs=2)
    assert failed == []
    assert len(log.of(CellFinished)) == 4
    assert results(tmp_path / "two") == results(finished_once)


@pytest.mark.usefixtures("quick_children")
def test_a_worker_that_dies_takes_one_cell_with_it(tmp_path: Path) -> None:
    # Cells long enough that a kill at a cell's third round cannot meet it finished.
    spec = small_spec(seeds=[0, 1], rounds={"maximum": 20, "patience": 20})
    killed = []

    def observer(event: Event) -> None:
        log(event)
        if isinstance(event, RoundFinished) and event.record.round == 3 and not killed:
            worker = multiprocessing.active_children()[0]
            killed.append(worker.pid)
            os.kill(worker.pid or 0, signal.SIGKILL)

    log, folder = Log(), tmp_path / "broken"
    failed = run_grids([(spec, Store(folder))], Workplace(device="cpu", jobs=2), observer)
    assert len(killed) == 1
    assert len(failed) == 1
    assert "exit code -9" in failed[0].reason
    lost = failed[0].cell.name
    assert [event.cell.name for event in log.of(CellFailed)] == [lost]
    finished = {event.cell.name for event in log.of(CellFinished)}
    assert finished == {cell.name for cell in spec.cells()} - {lost}
    assert multiprocessing.active_children() == []

    # The same again runs the lost cell alone, from where it was.
    again, failed = carry_out(spec, folder)
    assert failed == []
    assert {event.cell.name for event in again.of(RoundFinished)} == {lost}
    _, failed = carry_out(spec, tmp_path / "whole")
    assert failed == []
    assert results(folder) == results(tmp_path / "whole")


def test_a_cell_that_diverges_fails_and_the_others_finish(tmp_path: Path) -> None:
    pull = {"proximal": {"mu": 1e5}}  # a step multiplies what it has moved by thousands
    spec = small_spec(methods=["fedprox", "fedavg"], seeds=[0], objectives=pull)
    for rounds in ([1, 2, 3], []):  # the same again says the same, at once
        log, failed = carry_out(spec, tmp_path)
        (lost,) = failed
        assert lost.cell.name == "fedprox-seed-0"
        assert lost.reason.startswith("training diverged by round 3: no client's update was finite")
        finished = [event.cell.name for event in log.of(CellFinished)]
        assert finished == ["fedavg-seed-0"]
        trained = [event.record.round for event in log.of(RoundFinished) if event.cell == lost.cell]
        assert trained == rounds
    assert len(Store(tmp_path).cell(lost.cell).records()) == 3
    told = {each.cell.name: each.notice for each in read_results(Store(tmp_path)).cells}
    assert lost.reason.startswith(str(told[lost.cell.name])), "the store knows it too"
    assert told["fedavg-seed-0"] is None


def test_the_commit_is_that_of_the_code_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = ["0" * 40]

    def git(_: Path, command: str, *__: str) -> str:
        return head[0] if command == "rev-parse" else ""

    def observer(event: Event) -> None:
        log(event)
        if isinstance(event, RoundFinished):
            head[0] = "1" * 40  # committed while it runs

    monkeypatch.setattr("fedcrf.experiments.provenance._git", git)
    provenance._commit.cache_clear()
    log = Log()
    run_grids([(small_spec(), Store(tmp_path))], Workplace(device="cpu"), observer)
    provenance._commit.cache_clear()
    commits = {event.summary.provenance.commit for event in log.of(CellFinished)}
    assert (commits, head) == ({"0" * 40}, ["1" * 40])


@pytest.mark.usefixtures("quick_children")
def test_an_observer_that_raises_leaves_no_worker_behind(tmp_path: Path) -> None:
    # As when the user presses Ctrl-C: the exception comes out, and nothing trains on unseen.
    def interrupted(event: Event) -> None:
        if isinstance(event, CellStarted):
            raise KeyboardInterrupt

    spec = small_spec(rounds={"maximum": 1000, "patience": 1000})
    with pytest.raises(KeyboardInterrupt):
        run_grids([(spec, Store(tmp_path))], Workplace(device="cpu", jobs=2), interrupted)
    assert multiprocessing.active_children() == []


def test_an_error_in_one_cell_fails_that_cell_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the machine refuses one cell, it may not refuse the next.
    def break_down(self: Simulation) -> Any:
        if self.seed == 0:
            raise OSError(28, "No space left on device")
        return start(self)

    start = Simulation.start
    monkeypatch.setattr(Simulation, "start", break_down)
    log, failed = carry_out(small_spec(methods=["fedavg"]), tmp_path)
    assert [each.cell.name for each in failed] == ["fedavg-seed-0"]
    assert "No space left on device" in failed[0].reason
    assert [event.cell.name for event in log.of(CellFinished)] == ["fedavg-seed-1"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"partition": {"num_clients": 500}}, "500"),
        ({"model": {"name": "resnet9"}, "data": {"image_size": 4}}, "resnet9"),
        ({"partition": {"num_clients": 1437, "scheme": "iid", "min_examples": 0}}, "--clients"),
    ],
    ids=["too many clients", "too small images", "nothing to validate on"],
)
def test_what_cannot_be_run_writes_nothing(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(FedcrfError, match=named):
        carry_out(resolve({"methods": ["fedavg"], "seeds": [0]}, changes), folder)
    assert not folder.exists()


def test_the_reported_model_of_a_run_without_a_finite_loss(tmp_path: Path) -> None:
    # The attackers' model is beyond float32: what the summary tells of is what is left of it.
    attack = {
        "attack": {"name": "scaling", "attackers": 1},
        "attacks": {"scaling": {"factor": 1e38}},
    }
    log, failed = carry_out(small_spec(methods=["fedavg"], seeds=[0], **attack), tmp_path)
    assert failed == []
    (event,) = log.of(CellFinished)
    assert event.summary.rounds == 3
    assert 0 <= event.summary.test_accuracy <= 1
    records = [event.record for event in log.of(RoundFinished)]
    assert not any(math.isfinite(each.validation.loss) for each in records)
    assert all(each.kept_model for each in records[1:])
    saved = torch.load(Store(tmp_path).cell(event.cell).path / "model.pt", weights_only=True)
    assert max(float(each.abs().max()) for each in saved.values()) > 1e6, "the last, not the first"


@pytest.mark.parametrize("name", ["rounds.jsonl", "checkpoint.pt", "model.pt", "summary.json"])
def test_a_full_disk_is_named_with_the_file_and_the_mend(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(methods=["fedavg"], seeds=[0])
    with monkeypatch.context() as full:
        full_disk(full, name)
        _, (failed,) = carry_out(spec, tmp_path)
    path = Store(tmp_path).cell(failed.cell).path / name
    mend = "No space left on device: make room, and give the same command again"
    assert failed.reason == f"{path}: {mend}"
    log, none = carry_out(spec, tmp_path)
    assert none == []
    assert len(log.of(CellFinished)) == 1
    left = {each.name for each in path.parent.iterdir()}
    assert left == {".lock", "rounds.jsonl", "model.pt", "summary.json"}


def test_a_disk_without_room_leaves_what_is_finished(tmp_path: Path, finished_once: Path) -> None:
    folder = tmp_path / "run"
    carry_out(small_spec(seeds=[0]), folder)
    before = results(folder)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # Room for the description of a run, not for a state: as on a disk that is all but full.
        resource.setrlimit(resource.RLIMIT_FSIZE, (2500, unlimited[1]))
        _, failed = carry_out(small_spec(), folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert [each.cell.seed for each in failed] == [1, 1]
    assert all("File too large" in each.reason for each in failed)
    assert not list(folder.rglob(".*.pt.*")), "nothing half-written is left"
    for name, kept in before.items():
        store = Store(folder).cell(next(c for c in small_spec().cells() if c.name == name))
        assert (store.path / "model.pt").read_bytes() == kept[2]
    _, failed = carry_out(small_spec(), folder)
    assert failed == []
    assert results(folder) == results(finished_once)


def test_other_data_is_refused_before_anything_is_written(finished: Path) -> None:
    # As where another data folder is named for a run that was begun with the first.
    path = finished / "partitions" / "seed-0.json"
    path.write_text(path.read_text().replace(Store(finished).partition(0).fingerprint, "0" * 16))
    before = snapshot(finished)
    with pytest.raises(FedcrfError, match=r"is of other data \(seed 0: fingerprint 0000"):
        carry_out(small_spec(seeds=[0, 1, 2]), finished)
    assert snapshot(finished) == before


@pytest.mark.parametrize("damage", ["more", "fewer", "none"])
def test_a_finished_cell_whose_records_are_not_its_own(finished: Path, damage: str) -> None:
    records = finished / "cells" / "fedavg-seed-0" / "rounds.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    fourth = lines[-1].replace('"round":3', '"round":4')
    left = {"more": [*lines, fourth], "fewer": lines[:-1], "none": []}[damage]
    records.write_text("".join(left))
    _, (failed,) = carry_out(small_spec(), finished)
    assert failed.cell.name == "fedavg-seed-0"
    assert "the summary beside it speaks of 3" in failed.reason
    assert records.read_text() == "".join(left), "it is left alone"
    (damaged,) = (each for each in read_results(Store(finished)).cells if each.damage)
    assert damaged.cell.name == "fedavg-seed-0"
    assert len(damaged.records) == len(left), "what there is is shown"


SCRIPT = """
from pathlib import Path
from fedcrf.experiments.grid import Workplace, run_grids
from fedcrf.experiments.study import Study

def run():
    base = {"methods": ["fedavg", "uniform"], "seeds": [0], "rounds": {"maximum": 1}}
    place = Workplace(device="cpu", jobs=2)
    print(len(run_grids(Study((base,)).runs(Path("run")), place, lambda event: None)), "failed")

"""


@pytest.mark.parametrize(
    ("call", "printed"),
    [("run()", "2 failed\n"), ('if __name__ == "__main__": run()', "0 failed\n")],
    ids=["every process", "one process"],
)
def test_a_script_that_its_own_processes_would_begin_anew_is_told_so(
    call: str, printed: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(f"{SCRIPT}{call}\n")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, printed)
    told = "every process of a run imports the script that began it: let the script call what runs"
    assert (told in done.stderr) == (printed[0] == "2")
    assert "another process" not in done.stderr


@pytest.mark.parametrize("threads", [1, 3])
def test_an_executor_s_workers_come_to_the_same(
    tmp_path: Path, finished_once: Path, threads: int
) -> None:
    # Threads, which take turns: what is sent to a worker and back is all that a cell has.
    log = Log()
    with ThreadPoolExecutor(threads) as executor:
        place = Workplace(device="cpu", executor=executor)
        assert run_grids([(small_spec(), Store(tmp_path))], place, log) == []
    assert results(tmp_path) == results(finished_once)
    cell = [CellStarted, *[RoundFinished] * 3, CellFinished]
    assert [type(event) for event in log.events] == [*[PartitionRecord] * 2, *cell * 4]
    assert not list(tmp_path.glob("cells/*/checkpoint.pt"))


def test_an_executor_s_worker_goes_on_from_the_last_round(tmp_path: Path) -> None:
    spec = small_spec(methods=["fedavg"], seeds=[0], rounds={"maximum": 6, "patience": 6})

    def interrupted(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grids([(spec, Store(tmp_path / "parts"))], Workplace(device="cpu"), interrupted)
    log = Log()
    with ThreadPoolExecutor(1) as executor:
        place = Workplace(device="cpu", executor=executor)
        assert run_grids([(spec, Store(tmp_path / "parts"))], place, log) == []
    assert [event.rounds_done for event in log.of(CellStarted)] == [2]
    assert carry_out(spec, tmp_path / "whole")[1] == []
    assert results(tmp_path / "parts") == results(tmp_path / "whole")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("done", [0, 2])
@pytest.mark.parametrize("written", range(4))
def test_a_cell_that_was_sent_back_and_is_written_in_part_is_run_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: int,
    done: int,
    error: type[BaseException],
) -> None:
    spec = small_spec(methods=["fedavg"], seeds=[0])
    runs = [(spec, Store(tmp_path / "parts"))]
    seen: list[Event] = []

    def interrupted(event: Event) -> None:
        seen.append(event)
        if isinstance(event, CellStarted | RoundFinished) and len(seen) == 2 + done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grids(runs, Workplace(device="cpu"), interrupted)
    replaced, (cell,) = Path.replace, (tmp_path / "parts" / "cells").iterdir()
    left = iter(range(written))

    def replace(path: Path, target: Path) -> Path:
        if target.parent == cell and next(left, None) is None:
            raise error
        return replaced(path, target)

    with ThreadPoolExecutor(1) as executor:
        place = Workplace(device="cpu", executor=executor)
        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            patched.setattr(Path, "replace", replace)
            run_grids(runs, place, Log())
        assert run_grids(runs, place, Log()) == []
    assert carry_out(spec, tmp_path / "whole")[1] == []
    assert results(tmp_path / "parts") == results(tmp_path / "whole")


def test_what_an_executor_s_worker_cannot_do_fails_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(methods=["fedavg"], seeds=[0, 1])

    def elsewhere(job: Job, *arguments: Any) -> Any:
        if job.cell.seed == 0:
            raise RuntimeError("lost")
        return run_elsewhere(job, *arguments)

    run_elsewhere = grid._run_elsewhere
    monkeypatch.setattr(grid, "_run_elsewhere", elsewhere)
    with ThreadPoolExecutor(1) as executor:
        place = Workplace(device="cpu", executor=executor)
        (failed,) = run_grids([(spec, Store(tmp_path))], place, Log())
        assert (failed.cell.seed, failed.reason) == (0, "its worker failed (RuntimeError): lost")
        load = Workplace.load
        monkeypatch.setattr(grid, "_run_elsewhere", run_elsewhere)

        def other(self: Workplace, settings: Any) -> Any:
            dataset = load(self, settings)
            return dataset if self.executor else dataset.limited(300)

        monkeypatch.setattr(Workplace, "load", other)
        (failed,) = run_grids([(spec, Store(tmp_path))], place, Log())
    assert failed.reason.startswith("its worker has other data (fingerprint ")
    assert not (tmp_path / "cells" / "fedavg-seed-0" / "summary.json").exists()


def test_a_cell_that_an_executor_gives_up_or_that_cannot_be_written_here_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(methods=["fedavg"], seeds=[0])
    with ThreadPoolExecutor(1) as executor, monkeypatch.context() as patched:
        place = Workplace(device="cpu", executor=executor)
        patched.setattr(executor, "submit", lambda *_: given_up)
        given_up: Future[Any] = Future()
        given_up.cancel()
        given_up.set_running_or_notify_cancel()
        (failed,) = run_grids([(spec, Store(tmp_path))], place, Log())
    assert failed.reason.startswith("the executor gave it up")
    assert failed.reason.endswith("give the same command again to run it")
    replaced = Path.replace

    def replace(path: Path, target: Path) -> Path:
        if target.is_relative_to(tmp_path / "cells"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return replaced(path, target)

    with ThreadPoolExecutor(1) as executor, monkeypatch.context() as patched:
        place = Workplace(device="cpu", executor=executor)
        patched.setattr(Path, "replace", replace)
        (failed,) = run_grids([(spec, Store(tmp_path))], place, Log())
    assert failed.reason.startswith(f"{tmp_path / 'cells' / 'fedavg-seed-0'}/")
    assert "No space left on device: make room" in failed.reason
    assert failed.reason.count("make room") == 1, "of files that are written together"


@pytest.mark.slow
def test_cells_on_a_cluster_outlast_a_worker_that_dies(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        place = Workplace(device="cpu", executor=executor_at(f"dask:{cluster.scheduler_address}"))
        spec = small_spec(rounds={"maximum": 20, "patience": 20})
        killed = []

        def observer(event: Event) -> None:
            log(event)
            if isinstance(event, CellFinished) and not killed:
                killed.append(cluster.workers[0].pid)
                os.kill(killed[0], signal.SIGKILL)

        log = Log()
        assert run_grids([(spec, Store(tmp_path / "cluster"))], place, observer) == []
        place.executor._client.close()  # type: ignore[union-attr]
    assert killed
    assert carry_out(spec, tmp_path / "here")[1] == []
    assert results(tmp_path / "cluster") == results(tmp_path / "here")


@pytest.mark.parametrize("place", ["cluster", "dask:", "ray:here"])
def test_what_names_no_executor(place: str) -> None:
    with pytest.raises(FedcrfError, match="write dask:ADDRESS, such as"):
        executor_at(place)


def test_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    for address in ("nowhere://1", "tls://127.0.0.1:1"):  # TLS that is not set up
        with pytest.raises(FedcrfError, match=rf"dask:{address}: no scheduler answers there"):
            executor_at(f"dask:{address}")
    monkeypatch.setattr(grid, "PATIENCE", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # it listens, and says nothing
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(FedcrfError, match=r"what listens there said nothing for 1 seconds"):
            executor_at(f"dask:{address}")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(FedcrfError, match=r"pip install 'fedcrf\[dask\]'"):
        executor_at("dask:nowhere://1")


# A backdoor of the user's own

BACKDOOR = """
from dataclasses import dataclass

import numpy as np

from fedcrf.attacks import Backdoor


@dataclass(frozen=True)
class Corner(Backdoor):
    target: int = 1

    def poison(self, images, labels, num_classes, draw):
        return self.trigger(images), np.full_like(labels, self.target)

    def _planted(self, images, labels, replaced, draw):
        return images

    def trigger(self, images):
        stamped = images.copy()
        stamped[:, :, :2, :2] = 5.0
        return stamped
"""


def backdoored(folder: Path, **attack: Any) -> RunSpec:
    (folder / "mine.py").write_text(BACKDOOR)
    name = f"{folder / 'mine.py'}:Corner"
    return small_spec(
        methods=["fedavg"],
        seeds=[0],
        attack={"name": name, "attackers": 1},
        attacks={name: attack},
    )


def test_a_backdoor_s_success_is_in_every_table(tmp_path: Path) -> None:
    spec = backdoored(tmp_path)
    _, failed = carry_out(spec, tmp_path / "run")
    assert failed == []
    store = Store(tmp_path / "run")
    (cell,) = read_results(store).cells
    assert cell.summary is not None
    best = cell.records[cell.summary.best_round - 1]
    assert best.attack_success is not None
    assert cell.summary.attack_success == best.attack_success
    assert table(store.path)["attack_success"].tolist() == [best.attack_success]
    _, details = read_results(store).tables()
    (row,) = details.rows
    named = dict(zip(details.header, row, strict=True))
    assert named["backdoor"] == f"{best.attack_success:.3f}"
    assert result_values(cell.summary)["result/attack_success"] == best.attack_success
    assert round_values(best)["test/attack_success"] == best.attack_success


def test_a_target_that_is_no_class_is_named_before_anything_is_written(tmp_path: Path) -> None:
    spec = backdoored(tmp_path, target=10)
    with pytest.raises(FedcrfError, match="target 10: the data set has 10 classes; give one from"):
        carry_out(spec, tmp_path / "run")
    assert not (tmp_path / "run").exists()
