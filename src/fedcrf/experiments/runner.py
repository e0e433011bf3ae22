"""Runs the cells of a grid, several at once where there are cores, and goes on after a kill."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from fedcrf.data import ImageDataset, load_dataset
from fedcrf.errors import FedcrfError
from fedcrf.experiments.provenance import provenance
from fedcrf.experiments.spec import CellSpec, DataSettings, RunSpec
from fedcrf.experiments.store import CellStore, CellSummary, PartitionRecord, RunStore
from fedcrf.simulation.federation import build_federation, client_splits
from fedcrf.simulation.records import RoundRecord
from fedcrf.simulation.rounds import Simulation
from fedcrf.simulation.stopping import EarlyStopping


@dataclass(frozen=True)
class Workplace:
    """Where and with what a run is carried out; no part of its description.

    Attributes:
        data_dir: Folder of Parquet files; FEDCRF_DATA or the hub where left out.
        cache_dir: Folder for decoded images; FEDCRF_CACHE or the user's cache where left out.
        device: ``cpu``, ``cuda`` or ``auto``.
        jobs: Cells run at once, each in a process of one thread.
    """

    data_dir: Path | None = None
    cache_dir: Path | None = None
    device: str = "auto"
    jobs: int = 1

    def load(self, settings: DataSettings) -> ImageDataset:
        """Load a data set from here."""
        return load_dataset(
            settings.dataset,
            data_dir=self.data_dir,
            cache_dir=self.cache_dir,
            image_column=settings.image_column,
            label_column=settings.label_column,
            image_size=settings.image_size,
        )

    def torch_device(self) -> torch.device:
        """Return the device to train on.

        Raises:
            FedcrfError: CUDA is asked for and not there.
        """
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise FedcrfError("no CUDA device is available: use --device cpu")
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")


@dataclass(frozen=True)
class PartitionMade:
    """The clients of a seed have their examples."""

    partition: PartitionRecord


@dataclass(frozen=True)
class CellStarted:
    """A cell begins, or goes on after ``rounds_done`` rounds."""

    cell: CellSpec
    rounds_done: int


@dataclass(frozen=True)
class RoundFinished:
    """A round is on disk."""

    cell: CellSpec
    record: RoundRecord


@dataclass(frozen=True)
class CellFinished:
    """A cell's result is on disk."""

    cell: CellSpec
    summary: CellSummary


@dataclass(frozen=True)
class CellFailed:
    """A cell ended without a result; what it had finished is on disk."""

    cell: CellSpec
    reason: str


Event = PartitionMade | CellStarted | RoundFinished | CellFinished | CellFailed
Observer = Callable[[Event], None]


def run_grid(
    spec: RunSpec, store: RunStore, workplace: Workplace, observer: Observer
) -> list[CellFailed]:
    """Run every cell of the grid that is not finished yet.

    Args:
        spec: What to run.
        store: Where the results go; may hold an earlier part of the same run.
        workplace: Where the data lie, on what device, how many at once.
        observer: Is told everything that happens, in this process.

    Returns:
        The cells that failed; empty where all is well.

    Raises:
        FedcrfError: Anything the user can mend; nothing is written in that case.
    """
    workplace.torch_device()
    dataset = workplace.load(spec.data)
    whole = store.check(spec)
    splits = {
        seed: client_splits(dataset.train.labels, spec.partition, seed) for seed in spec.seeds
    }
    for cell in spec.cells():
        cell.model.build(dataset.image_shape, dataset.num_classes)
    with store.locked():
        store.write(whole)
        for seed in spec.seeds:
            made = store.write_partition(
                seed, splits[seed], dataset.train.labels, dataset.class_names
            )
            observer(PartitionMade(made))
        pending = []
        for cell in spec.cells():
            summary = store.cell(cell).summary()
            if summary is None:
                pending.append(cell)
                continue
            _check_same(store.cell(cell), summary, cell, dataset)
            observer(CellFinished(cell, summary))
        jobs = min(workplace.jobs, len(pending))
        if jobs <= 1:
            return _run_here(pending, store, workplace, dataset, observer)
        return _run_in_processes(pending, store, workplace, jobs, observer)


def run_cell(
    cell: CellSpec,
    store: CellStore,
    dataset: ImageDataset,
    device: torch.device,
    observer: Observer,
) -> None:
    """Run one cell from where it stands to its end.

    Raises:
        FedcrfError: Its folder is damaged, or its data cannot be dealt out.
    """
    with store.locked():
        splits = client_splits(dataset.train.labels, cell.partition, cell.seed)
        simulation = Simulation(
            federation=build_federation(dataset, splits, device),
            model=cell.model,
            objective=cell.objective,
            rule=cell.rule,
            training=cell.training,
            stopping=EarlyStopping(cell.rounds.patience, cell.rounds.min_improvement),
            max_rounds=cell.rounds.maximum,
            evaluation_batch_size=cell.rounds.evaluation_batch_size,
            seed=cell.seed,
        )
        state = store.resume() or simulation.start()
        observer(CellStarted(cell, state.round))
        for after, record in simulation.rounds(state):
            state = after
            store.append(state, record)
            observer(RoundFinished(cell, record))
        summary = _summarise(cell, store.records(), dataset, device)
        store.finish(state, summary)
        observer(CellFinished(cell, summary))


def _summarise(
    cell: CellSpec, records: Sequence[RoundRecord], dataset: ImageDataset, device: torch.device
) -> CellSummary:
    # A run whose loss was never finite has no best round: its last one is reported.
    finite = [record for record in records if record.validation.loss < float("inf")]
    best = min(finite, key=lambda record: record.validation.loss) if finite else records[-1]
    seconds = [record.seconds for record in records]
    return CellSummary(
        method=cell.method.name,
        seed=cell.seed,
        rounds=len(records),
        best_round=best.round,
        stopped_early=len(records) < cell.rounds.maximum,
        validation_loss=best.validation.loss,
        test_accuracy=best.test.accuracy,
        client_mean=best.test.client_mean,
        worst_client=best.test.worst_client,
        held_out_accuracy=None if best.held_out is None else best.held_out.accuracy,
        last_test_accuracy=records[-1].test.accuracy,
        seconds_per_round=statistics.median(each.total for each in seconds),
        aggregation_share=statistics.median(each.aggregation / each.total for each in seconds),
        description=cell.describe(),
        fingerprint=dataset.fingerprint,
        provenance=provenance(device),
    )


def _check_same(
    store: CellStore, summary: CellSummary, cell: CellSpec, dataset: ImageDataset
) -> None:
    if summary.description != cell.describe() or summary.fingerprint != dataset.fingerprint:
        raise FedcrfError(
            f"{store.path} holds the result of another description or other data: "
            "choose another folder with --output"
        )


def _run_here(
    cells: Sequence[CellSpec],
    store: RunStore,
    workplace: Workplace,
    dataset: ImageDataset,
    observer: Observer,
) -> list[CellFailed]:
    failed = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for cell in cells:
            try:
                run_cell(cell, store.cell(cell), dataset, workplace.torch_device(), observer)
            except FedcrfError as error:
                failed.append(CellFailed(cell, str(error)))
                observer(failed[-1])
    finally:
        torch.set_num_threads(threads)
    return failed


def _run_in_processes(
    cells: Sequence[CellSpec],
    store: RunStore,
    workplace: Workplace,
    jobs: int,
    observer: Observer,
) -> list[CellFailed]:
    """Hand the cells to worker processes, one at a time each; replace a worker that dies."""
    waiting = list(cells)
    workers: dict[Connection, _Worker] = {}
    failed: list[CellFailed] = []

    def fail(cell: CellSpec, reason: str) -> None:
        failed.append(CellFailed(cell, reason))
        observer(failed[-1])

    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                worker = _Worker(store, workplace)
                workers[worker.connection] = worker
                worker.give(waiting.pop(0))
            for connection in wait(list(workers)):
                assert isinstance(connection, Connection)
                worker = workers[connection]
                try:
                    event = connection.recv()
                except (EOFError, OSError):
                    del workers[connection]
                    worker.end()
                    fail(
                        worker.cell,
                        f"its worker process died (exit code {worker.exit_code}): "
                        "give the same command again to go on from its last round",
                    )
                    continue
                if isinstance(event, CellFailed):
                    fail(event.cell, event.reason)
                else:
                    observer(event)
                if isinstance(event, CellFinished | CellFailed):
                    if waiting:
                        worker.give(waiting.pop(0))
                    else:
                        del workers[connection]
                        worker.end()
    finally:
        for worker in workers.values():
            worker.end(now=True)
    return failed


class _Worker:
    """A process that runs the cells it is given, one after the other."""

    def __init__(self, store: RunStore, workplace: Workplace) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, store, workplace), daemon=True)
        self._process.start()
        theirs.close()
        self.cell: CellSpec

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def give(self, cell: CellSpec) -> None:
        self.cell = cell
        with contextlib.suppress(OSError):  # dead already? the next look at the connection tells
            self.connection.send(cell)

    def end(self, now: bool = False) -> None:
        self.connection.close()
        if now:
            self._process.terminate()
        self._process.join()


def _work(connection: Connection, store: RunStore, workplace: Workplace) -> None:
    """Run cells until the connection closes; a lost parent ends it at the next round."""
    torch.set_num_threads(1)
    dataset: ImageDataset | None = None
    try:
        while True:
            cell: CellSpec = connection.recv()
            try:
                dataset = dataset or workplace.load(cell.data)
                run_cell(cell, store.cell(cell), dataset, workplace.torch_device(), connection.send)
            except FedcrfError as error:
                connection.send(CellFailed(cell, str(error)))
            except BrokenPipeError:
                raise
            except Exception as error:
                connection.send(CellFailed(cell, f"{type(error).__name__}: {error}"))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        os._exit(0)  # the parent is gone, or is going: nothing is left to say
