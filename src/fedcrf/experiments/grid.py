"""Runs the missing cells of any study, several at once, and goes on after a kill.

Cells are idempotent: one that was broken off goes on from its last round, and one that is run twice
comes to the same. They are run by processes of this machine, which write into the results folder
round by round, or by any `concurrent.futures.Executor`, whose workers need share no disk with it:
what a cell has come to is sent back, and written here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedcrf.attacks import DataAttack
from fedcrf.data import ImageDataset, PartitionSettings, load_dataset
from fedcrf.errors import FedcrfError, failing, in_a_line, of_file, own_line
from fedcrf.experiments.provenance import FIRST, provenance
from fedcrf.experiments.settings import DataSettings
from fedcrf.experiments.spec import CellKey, CellSpec, RunSpec
from fedcrf.experiments.store import (
    AXES,
    Begun,
    CellStore,
    CellSummary,
    PartitionRecord,
    Score,
    Store,
    name_of,
    partition_record,
    unseeded,
)
from fedcrf.extras import check_installed, mend
from fedcrf.models import check_outputs, made_by
from fedcrf.processes import Child, check_not_imported_anew, in_child, in_turn, one_thread
from fedcrf.rules.byzfl import ByzFLRule
from fedcrf.simulation.federation import build_federation, check_splits, client_splits
from fedcrf.simulation.records import RoundRecord, Rounds, reported_round, rounds_of
from fedcrf.simulation.rounds import EarlyStopping, Simulation

if TYPE_CHECKING:
    from fedcrf.experiments.study import Suite

WORTH_PROCESSES = 10_000
"""Training images a round from which processes for the clients repay their start."""

CELLS_TOGETHER = 64
"""Seeds of a suite are run together until they have so many cells, so that no core waits.

More are not run together, since each cell holds open files.
"""


@dataclass(frozen=True)
class Workplace:
    """Where and with what a run is carried out; no part of its description.

    Attributes:
        data_dir: Folder of Parquet files; FEDCRF_DATA or the hub where left out.
        cache_dir: Folder for decoded images; FEDCRF_CACHE or the user's cache where left out.
        device: ``cpu``, ``cuda`` or ``auto``.
        jobs: Processes of one thread each: cells run at once, and where there are fewer cells, the
            clients within them.
        executor: Runs the cells instead of processes of this machine, as many at once as it has
            workers. Each loads the data itself, and one cell at a time in a process of one thread
            has the same bits as here.
    """

    data_dir: Path | None = None
    cache_dir: Path | None = None
    device: str = "auto"
    jobs: int = 1
    executor: Executor | None = None

    def load(self, settings: DataSettings) -> ImageDataset:
        """Load a data set from here."""
        dataset = load_dataset(
            settings.dataset,
            data_dir=self.data_dir,
            cache_dir=self.cache_dir,
            image_column=settings.image_column,
            label_column=settings.label_column,
            image_size=settings.image_size,
        )
        return dataset if settings.limit is None else dataset.limited(settings.limit)

    def torch_device(self) -> torch.device:
        """Return the device to train on; a `FedcrfError` where CUDA is asked for and not there."""
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise FedcrfError("no CUDA device is available: use --device cpu")
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")


PATIENCE = 10
"""Seconds that a scheduler has to answer."""


async def _greet(address: str) -> None:
    """Wait for a scheduler's answer; Dask waits for ever where something else listens."""
    from distributed import Security
    from distributed.comm import connect

    async with asyncio.timeout(PATIENCE + 1):  # of nothing that listens Dask says more
        secured = Security().get_connection_args("client")
        comm = await connect(address, timeout=PATIENCE, **secured)
        await comm.close()


def executor_at(place: str) -> Executor:
    """Return the executor of ``dask:ADDRESS``, which ends with this process."""
    kind, _, address = place.partition(":")
    if kind != "dask" or not address:
        raise FedcrfError(
            f"--executor {place}: write dask:ADDRESS, such as dask:tcp://10.0.0.1:8786"
        )
    try:
        from distributed import Client
    except ModuleNotFoundError as missing:
        raise FedcrfError(f"--executor dask: {mend(missing)}") from None
    try:
        with ThreadPoolExecutor(1) as thread:  # a loop may run in this one
            thread.submit(asyncio.run, _greet(address)).result()
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError, TypeError) as error:  # the last where TLS is not set up
        said = str(error) or f"what listens there said nothing for {PATIENCE} seconds"
        raise FedcrfError(f"--executor {place}: no scheduler answers there ({said})") from None
    # A cell is no pure function of its arguments to Dask: the same one may be run anew.
    executor: Executor = client.get_executor(pure=False)
    return executor


@dataclass(frozen=True)
class CellStarted:
    """A cell begins, or goes on after ``rounds_done`` rounds."""

    cell: CellSpec
    rounds_done: int
    folder: Path  # of the run, as several may have an equal cell


@dataclass(frozen=True)
class RoundFinished:
    """A round's record is on disk."""

    cell: CellSpec
    record: RoundRecord
    folder: Path


@dataclass(frozen=True)
class CellFinished:
    """A cell's result is on disk."""

    cell: CellSpec
    summary: CellSummary
    folder: Path


@dataclass(frozen=True)
class CellFailed:
    """A cell ended without a result; what it had finished is on disk."""

    cell: CellSpec
    reason: str
    folder: Path


CellEvent = CellStarted | RoundFinished | CellFinished | CellFailed
Event = PartitionRecord | CellEvent  # the former where the clients of a seed have their examples
Observer = Callable[[Event], None]
CellObserver = Callable[[CellEvent], None]

Runs = Sequence[tuple[RunSpec, Store]]
"""What is run, and where the results go."""

ObserverOf = Callable[[Runs], AbstractContextManager[Observer]]
"""Returns, for some runs, the context that holds their observer."""


@dataclass(frozen=True)
class Job:
    """One cell to run, and where its results go."""

    cell: CellSpec
    store: CellStore
    fingerprint: str
    folder: Path  # of the run


@lru_cache(maxsize=1)  # the runs of a suite share data, and cells come one after the other
def _dataset(workplace: Workplace, settings: DataSettings) -> ImageDataset:
    return workplace.load(settings)


@contextmanager
def _data_let_go() -> Iterator[None]:
    """Let go of the data that are loaded at the end."""
    try:
        yield
    finally:
        _dataset.cache_clear()


@_data_let_go()
def run_grids(runs: Runs, workplace: Workplace, observer: Observer) -> list[CellFailed]:
    """Run every cell of the grids that is not finished yet, or is stale; return those that failed.

    A folder may hold an earlier part of its run. The observer is called in this process.

    Raises:
        FedcrfError: Anything the user can mend; nothing is run in that case.
    """
    check_not_imported_anew()
    workplace.torch_device()
    made = _checked(runs, workplace)
    failed: list[CellFailed] = []

    def tell(event: Event) -> None:
        if isinstance(event, CellFailed):
            failed.append(event)
        observer(event)

    with ExitStack() as held:
        for _, store in runs:
            held.enter_context(store.locked())
        claimed = (_claim(*run, each, tell) for run, each in zip(runs, made, strict=True))
        pending = [job for jobs in claimed for job in jobs]
        num_workers = min(workplace.jobs, len(pending))
        if workplace.executor is not None or num_workers > 1:
            _dataset.cache_clear()  # each worker has its own
        if workplace.executor is not None:
            _run_on(workplace.executor, pending, workplace, tell)
        elif num_workers <= 1:
            with one_thread():
                for job in pending:
                    _attempt(job, workplace, tell)
        else:
            # Cores that the cells leave over go to the clients within them.
            within = replace(workplace, jobs=workplace.jobs // num_workers)
            _run_in_processes(pending, within, num_workers, tell)
        return failed


@in_turn()  # models are made
def _checked(runs: Runs, workplace: Workplace) -> list[list[PartitionRecord]]:
    """Look at all that can be wrong before anything is written; return what clients will hold."""

    @lru_cache  # the runs of a suite share partitions
    def made(data: DataSettings, partition: PartitionSettings, seed: int) -> PartitionRecord:
        dataset = _dataset(workplace, data)
        splits = client_splits(dataset.train.labels, partition, seed)
        check_splits(splits)
        return partition_record(seed, splits, dataset)

    for spec, store in runs:
        _check(spec, store, _dataset(workplace, spec.data))
    return [[made(spec.data, spec.partition, seed) for seed in spec.seeds] for spec, _ in runs]


def _check(spec: RunSpec, store: Store, dataset: ImageDataset) -> None:
    store.check(spec)
    store.check_data(spec.seeds, dataset.fingerprint)
    form = (dataset.image_shape, dataset.num_classes)
    network = made_by(spec.model.build, f"model {spec.model_name}", *form)
    check_outputs(spec.model_name, network, *form)
    if spec.threat is not None and isinstance(spec.threat.attack, DataAttack):
        with failing(f"attack {type(spec.threat.attack).__name__} failed ({{}})"):
            spec.threat.attack.check_data(*form)
    if any(isinstance(cell.rule, ByzFLRule) for cell in spec.cells()):
        check_installed("byzfl")


def _claim(
    spec: RunSpec, store: Store, made: Sequence[PartitionRecord], observer: Observer
) -> list[Job]:
    """Write the description into the folder, which is locked, and return the cells to run."""
    store.write(store.check(spec))
    for each in made:
        store.write_partition(each)
        observer(each)
    pending = []
    for cell in spec.cells():
        job = Job(cell, store.cell(cell), made[0].fingerprint, store.path)
        found = job.store.look(cell, job.fingerprint)
        if found.damage is not None:  # its files are left alone, and the other cells still run
            observer(CellFailed(cell, found.damage, store.path))
        elif found.summary is None:
            pending.append(job)
        else:
            job.store.remove_unneeded()
            observer(CellFinished(cell, found.summary, store.path))
    return pending


def run_cell(
    job: Job,
    dataset: ImageDataset,
    device: torch.device,
    observer: CellObserver,
    workers: int = 1,
) -> None:
    """Run one cell from where it stands to its end, with so many processes for its clients."""
    cell, store = job.cell, job.store
    if device.type == "cuda":  # the same result every time, as the CPU gives it with one thread
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    origin = provenance(device)
    with store.locked():
        splits = client_splits(dataset.train.labels, cell.partition, cell.seed)
        federation = build_federation(dataset, splits, device)
        if cell.threat is not None and cell.threat.schedule.additional:
            federation = federation.joined_by(int(cell.threat.schedule.attackers), cell.seed)
        simulation = Simulation(
            federation=federation,
            model=cell.model,
            objective=cell.objective,
            rule=cell.server_rule,
            training=cell.training,
            stopping=EarlyStopping(cell.rounds.patience, cell.rounds.min_improvement),
            max_rounds=cell.rounds.maximum,
            evaluation_batch_size=cell.rounds.evaluation_batch_size,
            seed=cell.seed,
            clients_per_round=cell.rounds.clients_per_round,
            threat=cell.threat,
            evaluate_every=cell.rounds.evaluate_every or 1,
        )
        earlier, begun = store.begin(cell, origin)
        state = earlier or simulation.start()
        observer(CellStarted(cell, state.round, job.folder))
        for after, record in simulation.steps(state, workers):
            state = after
            store.append(state, record)
            if record is not None:
                observer(RoundFinished(cell, record, job.folder))
        summary = _summarise(cell, store.records(), job.fingerprint, begun, simulation)
        store.finish(state, summary)
        observer(CellFinished(cell, summary, job.folder))


def _summarise(
    cell: CellSpec, records: Rounds, fingerprint: str, begun: Begun, simulation: Simulation
) -> CellSummary:
    federation, adversary = simulation.federation, simulation.adversary
    called = federation.called(range(len(federation.clients)))
    examples = dict(zip(called, map(len, federation.clients), strict=True))
    best = reported_round(records)
    seconds = [record.mean_seconds for record in records]
    rounds = rounds_of(records)
    return CellSummary(
        method=cell.method.name,
        seed=cell.seed,
        rounds=rounds,
        best_round=best.round,
        stopped_early=rounds < cell.rounds.maximum,
        validation_loss=best.validation.loss,
        test_accuracy=best.test.accuracy,
        client_mean=best.test.client_mean,
        worst_client=best.test.worst_client,
        held_out_accuracy=None if best.held_out is None else best.held_out.accuracy,
        attack_success=best.attack_success,
        last_test_accuracy=records[-1].test.accuracy,
        seconds_per_round=statistics.median(each.total for each in seconds),
        aggregation_share=statistics.median(each.aggregation / each.total for each in seconds),
        images_per_second=statistics.median(
            # Not of the counts that clients report, which may be false.
            sum(cell.training.images(examples[client]) for client in record.clients) / each.training
            for record, each in zip(records, seconds, strict=True)
        ),
        attackers=None if adversary is None else federation.called(adversary.clients),
        description=cell.describe(),
        fingerprint=fingerprint,
        behaviour=begun.behaviour,
        provenance=begun.provenance,
    )


def _attempt(job: Job, workplace: Workplace, observer: CellObserver) -> None:
    """Run one cell; an error ends only this cell."""
    try:
        dataset = _dataset(workplace, job.cell.data)
        if dataset.fingerprint != job.fingerprint:
            raise FedcrfError(
                f"its worker has other data (fingerprint {dataset.fingerprint} there, "
                f"{job.fingerprint} here): give it the same data"
            )
        holders = job.cell.num_clients
        drawn = job.cell.rounds.clients_per_round or holders
        images = drawn * job.cell.training.images(len(dataset.train) / holders)
        workers = workplace.jobs if images >= WORTH_PROCESSES else 1
        run_cell(job, dataset, workplace.torch_device(), observer, workers)
    except FedcrfError as error:
        observer(CellFailed(job.cell, str(error), job.folder))
    except ConnectionError:
        raise  # the observer's, not the cell's
    except OSError as error:
        observer(CellFailed(job.cell, _of_file(job, error), job.folder))
    except Exception as error:
        logging.getLogger(__name__).debug("%s failed", job.cell.name, exc_info=True)
        observer(CellFailed(job.cell, in_a_line(error), job.folder))


def _of_file(job: Job, error: OSError) -> str:
    """Return which file of a cell's could not be read or written, and why."""
    return f"{of_file(error, job.store.path)}{own_line(error)}"


def _run_on(
    executor: Executor, jobs: Sequence[Job], workplace: Workplace, observer: Observer
) -> None:
    """Run cells on an executor's workers; each is written here when it has ended."""
    place = replace(workplace, executor=None, jobs=1)
    futures = {
        executor.submit(_run_elsewhere, job, job.store.content(), place): job for job in jobs
    }
    try:
        for future in as_completed(futures):
            for event in _sent_back(futures.pop(future), future):
                observer(event)
    finally:
        for future in futures:
            future.cancel()


def _sent_back(
    job: Job, future: Future[tuple[Mapping[str, bytes], list[CellEvent]]]
) -> list[CellEvent]:
    """Write what a cell has come to elsewhere; return its events, or why there are none."""
    try:
        files, events = future.result()
    except CancelledError:
        reason = "the executor gave it up, as Dask does where its scheduler is gone"
        reason += ": give the same command again to run it"
    except Exception as error:
        reason = str(error) or "it said no more"
        if not isinstance(error, FedcrfError):
            reason = f"its worker failed ({type(error).__name__}): {reason}"
    else:
        try:
            with job.store.locked():
                job.store.replace(files)
            return events
        except FedcrfError as error:
            reason = str(error)
        except OSError as error:
            reason = _of_file(job, error)
    return [CellFailed(job.cell, reason, job.folder)]


def _run_elsewhere(
    job: Job, begun: Mapping[str, bytes], place: Workplace
) -> tuple[Mapping[str, bytes], list[CellEvent]]:
    """Run one cell from its files in a folder that is thrown away; return files and events."""
    events: list[CellEvent] = []
    with tempfile.TemporaryDirectory() as folder, one_thread():
        store = CellStore(Path(folder))
        store.replace(begun)
        _attempt(replace(job, store=store), place, events.append)
        return store.content(), events


def _run_in_processes(
    jobs: Sequence[Job], workplace: Workplace, num_workers: int, observer: Observer
) -> None:
    """Hand the cells to worker processes, one at a time each; replace a worker that dies."""
    waiting = list(jobs)
    idle: list[Child] = []
    busy: dict[Connection, tuple[Child, Job]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < num_workers:
                child = idle.pop() if idle else Child(_work, workplace, daemon=False)
                busy[child.connection] = child, waiting.pop(0)
                child.send(busy[child.connection][1])
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                child, job = busy[connection]
                try:
                    event = connection.recv()
                except (EOFError, OSError):
                    child.end()
                    event = CellFailed(
                        job.cell,
                        f"its worker process died (exit code {child.exit_code}): "
                        "give the same command again to go on from its last round",
                        job.folder,
                    )
                observer(event)
                if isinstance(event, CellFinished | CellFailed):
                    del busy[connection]
                    if waiting and child.exit_code is None:
                        idle.append(child)
                    else:
                        child.end()
    finally:
        for child in (*idle, *(child for child, _ in busy.values())):
            child.end(now=True)


def _work(connection: Connection, workplace: Workplace) -> None:
    """Run cells until the connection closes; a lost parent ends it at the next round."""
    try:
        with in_child():
            while True:
                job: Job = connection.recv()
                _attempt(job, workplace, connection.send)
    except (EOFError, ConnectionError):
        os._exit(0)  # the parent is gone, or is going: nothing is left to say


@_data_let_go()
def run_suite(
    suite: Suite, store: Store, workplace: Workplace, observer_of: ObserverOf
) -> list[CellFailed]:
    """Run every cell of a suite that is missing or stale; return those that failed.

    Seeds follow one another, several at once where they have few cells, so that no core waits.
    ``observer_of`` returns, for the runs of all seeds, who is called with everything that happens.
    """
    from fedcrf.experiments.results import keys_of, score_table  # tables, which no worker needs

    check_not_imported_anew()
    cells = suite.cells  # what cannot be run is said before there is a folder
    store.check_suite()
    if not store.is_suite:  # likewise of their data
        _checked(_runs_of_seed(suite, store, cells, suite.seeds[0]), workplace)
    with store.locked():
        scores = store.scores()
        known = score_table(scores, store.descriptions(scores), suite)
        done = keys_of(known)
        store.write_scores(scores[place] for place in known.index)  # no line that a kill cut off
        store.pack(done)  # whose command was killed before it did
        missing = [key for key in cells if key not in done]
        if not missing:
            return []
        any_cell = cells[missing[0]]  # all have the suite's data
        store.check_scored_data(any_cell, _dataset(workplace, any_cell.data).fingerprint)
        for seed in dict.fromkeys(suite.seeds):
            store.check_archives(_runs_of_seed(suite, store, {*missing}, seed))
        store.describe(cells[key] for key in missing)
        return _run_missing(suite, store, missing, workplace, observer_of)


def _run_missing(
    suite: Suite,
    store: Store,
    missing: Iterable[CellKey],
    workplace: Workplace,
    observer_of: ObserverOf,
) -> list[CellFailed]:
    """Run cells of a suite, and keep the score and the rounds of each; return those that failed."""
    keys_by_cell: dict[CellSpec, list[CellKey]] = {}
    for key in missing:  # with other settings, conditions may come to the same
        keys_by_cell.setdefault(suite.cells[key], []).append(key)
    to_run = {keys[0] for keys in keys_by_cell.values()}
    seeds = dict.fromkeys(suite.seeds)
    runs_by_seed = [_runs_of_seed(suite, store, to_run, seed) for seed in seeds]
    all_runs = [run for runs in runs_by_seed for run in runs]
    failed: list[CellFailed] = []
    scored: list[CellKey] = []
    with observer_of(all_runs) as observer:

        def keep(event: Event) -> None:  # the score of a finished cell
            if isinstance(event, CellFinished):
                records = Store(event.folder).cell(event.cell).records()
                for key in keys_by_cell[event.cell]:
                    store.append(_score(suite, key, event, records))
                    scored.append(key)
            observer(event)

        for runs in _together(runs_by_seed):
            failed += run_grids(runs, workplace, keep)
            store.pack(scored, keys_by_cell.values())
    return failed


def _together(runs_by_seed: Iterable[Runs]) -> Iterator[Runs]:
    """Yield the runs of one seed, or of as many as come to `CELLS_TOGETHER` cells."""
    runs: list[tuple[RunSpec, Store]] = []
    for of_seed in runs_by_seed:
        runs += of_seed
        if sum(len(spec.methods) for spec, _ in runs) >= CELLS_TOGETHER:
            yield runs
            runs = []
    if runs:
        yield runs


def _runs_of_seed(suite: Suite, store: Store, wanted: Container[CellKey], seed: int) -> Runs:
    """Return the runs of those cells that have a seed, and their working folders."""
    runs = []
    for at, spec in suite.study.points:
        methods = [name for name in spec.methods if (*at.values(), name, seed) in wanted]
        if methods:
            chosen = replace(spec, methods=tuple(methods), seeds=(seed,))
            runs.append((chosen, store.under_way(at["partition"], at["condition"], seed)))
    return runs


def _score(suite: Suite, key: CellKey, finished: CellFinished, records: Rounds) -> Score:
    from fedcrf.experiments.analysis.conditions import separation

    last, summary = records[-suite.last_rounds :], finished.summary
    everyone = [record.everyone or record.test for record in last]
    behaviour = {part: number for part, number in summary.behaviour.items() if number != FIRST}
    separations = None
    if any(record.reasons is not None for record in records):
        areas = map(separation, records)
        separations = [round(each, 4) for each in areas if each is not None]

    def mean(values: Iterable[float | None]) -> Any:
        found: list[Any] = list(values)
        return None if None in found else float(np.mean(found))

    return Score(
        **dict(zip(AXES, key, strict=True)),
        accuracy=mean(record.test.accuracy for record in last),
        everyone=mean(each.accuracy for each in everyone),
        worst_client=mean(each.worst_client for each in everyone),
        held_out_accuracy=mean(each.held_out.accuracy if each.held_out else None for each in last),
        attack_success=mean(record.attack_success for record in last),
        last_rounds=suite.last_rounds,
        separation=separations,
        description=name_of(unseeded(finished.cell)),
        behaviour=behaviour or None,
        fingerprint=summary.fingerprint,
        provenance=summary.provenance,
    )
