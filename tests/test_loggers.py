"""What a run logs arrives in each tool, without any network."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.runs import Log, record, small_spec, summary
from fedcrf.errors import FedcrfError
from fedcrf.experiments.grid import (
    CellFailed,
    CellFinished,
    CellStarted,
    Event,
    RoundFinished,
    Workplace,
    run_grids,
)
from fedcrf.experiments.store import Store
from fedcrf.loggers import (
    LOGGERS,
    LoggedCell,
    LoggingObserver,
    MlflowLogger,
    WandbLogger,
    find_loggers,
    round_values,
)
from fedcrf.simulation.records import Reasons

CELL = small_spec(methods=["crf-fedavg"], seeds=[0]).cells()[0]
NAMES = {"validation/loss", "validation/accuracy", "weight/client_2", "reliability/client_0"}


def read_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard" / CELL.name)).Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def read_mlflow(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("fedcrf").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == CELL.name
    assert run.data.params["rule.pairwise_strength"] == "0.5"
    return {
        name: [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def read_wandb(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in wandb_records(folder):
        for item in line.history.item:
            logged = found.setdefault("/".join(item.nested_key) or item.key, [])
            logged.append((line.history.step.num, json.loads(item.value_json)))
        for item in line.summary.update:
            name = "/".join(item.nested_key) or item.key
            if name.startswith("result"):  # the client repeats every round's numbers here
                found[name] = [(0, json.loads(item.value_json))]
    return found


def wandb_records(folder: Path) -> list[Any]:
    """Return what lies in an offline log, once the tool's own process has written it to its end."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    for _ in range(300):
        lines = [Record.FromString(message) for message in leveldb_records(path.read_bytes())]
        if lines and lines[-1].WhichOneof("record_type") == "exit":
            return lines
        time.sleep(0.1)
    raise AssertionError(f"{path} was not written to its end in half a minute")


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Yield the messages of an offline log: after 7 bytes, LevelDB's log format."""
    place, message = 7, b""
    while place + 7 <= len(data):
        left = LEVELDB_BLOCK - place % LEVELDB_BLOCK
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        message += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield message
            message = b""


LEVELDB_BLOCK = 32768

SLOW = ("wandb", "mlflow")  # they wait for processes of their own

READ: Mapping[str, Callable[[Path], dict[str, list[tuple[int, float]]]]] = {
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
}


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for folder in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / "wandb-own"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def log(name: str, *events: Event) -> list[str]:
    said: list[str] = []
    observer = LoggingObserver({name: LOGGERS[name]}, said.append)
    for event in events:
        observer(event)
    return said


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.slow if each in SLOW else ()) for each in LOGGERS],
)
def test_every_number_arrives(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    losses = [1.0, 0.5, 0.25]
    rounds = [
        RoundFinished(CELL, record(n, loss, crf=True), tmp_path) for n, loss in enumerate(losses, 1)
    ]
    end = CellFinished(CELL, summary("crf-fedavg", 0, 0.75), tmp_path)
    said = log(name, CellStarted(CELL, 0, tmp_path), *rounds, end)
    assert said == []
    found = READ[name](tmp_path)
    assert found.keys() >= NAMES
    assert found["validation/loss"] == list(enumerate(losses, start=1))
    assert found["weight/client_2"] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert found["result/test_accuracy"][-1][1] == 0.75


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_run_goes_on_in_its_log(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    first = [RoundFinished(CELL, record(n, 1.0 / n, crf=True), tmp_path) for n in (1, 2)]
    assert log(name, CellStarted(CELL, 0, tmp_path), *first) == []
    # The second round was lost, and is run anew.
    again = [RoundFinished(CELL, record(n, 0.5 / n, crf=True), tmp_path) for n in (2, 3)]
    end = CellFinished(CELL, summary("crf-fedavg", 0, 0.75), tmp_path)
    assert log(name, CellStarted(CELL, 1, tmp_path), *again, end) == []
    losses = READ[name](tmp_path)["validation/loss"]
    assert dict(losses) == {1: 1.0, 2: 0.25, 3: pytest.approx(0.5 / 3)}


def test_a_cell_that_begins_anew_does_not_go_on_in_its_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for loss, rounds in ((1.0, 3), (0.5, 2)):
        each = [RoundFinished(CELL, record(n, loss), tmp_path) for n in range(1, rounds + 1)]
        assert log("tensorboard", CellStarted(CELL, 0, tmp_path), *each) == []
    assert read_tensorboard(tmp_path)["validation/loss"] == [(1, 0.5), (2, 0.5)]


def test_a_cell_that_goes_on_has_its_run_s_id_and_one_that_begins_anew_a_new_one(
    tmp_path: Path,
) -> None:
    old = LoggedCell(tmp_path, CELL, 2)
    assert WandbLogger.run_id(old) == old.identity, "of a run that has no file"
    ids = [WandbLogger.run_id(LoggedCell(tmp_path, CELL, done)) for done in (0, 2, 0, 1)]
    assert ids[0] == ids[1] != ids[2] == ids[3]


@pytest.mark.parametrize(
    ("site", "allowed"), [("St. Mary's", "St. Mary_s"), ("A/../B", "A_.._B"), (3, "3")]
)
def test_a_site_s_name_is_made_one_that_mlflow_takes(site: int | str, allowed: str) -> None:
    assert MlflowLogger.allowed(f"trust/client_{site}") == f"trust/client_{allowed}"


def test_the_whole_of_a_real_run_is_logged(tmp_path: Path) -> None:
    spec = small_spec(seeds=[0])
    events, said = Log(), []
    logging = LoggingObserver({"tensorboard": LOGGERS["tensorboard"]}, said.append)

    def observe(event: Event) -> None:
        events(event)
        logging(event)

    assert run_grids([(spec, Store(tmp_path))], Workplace(device="cpu"), observe) == []
    assert said == []
    logged = read_tensorboard(tmp_path)
    for each in events.of(RoundFinished):
        if each.cell == CELL:
            for name, value in round_values(each.record).items():
                assert dict(logged[name])[each.record.round] == pytest.approx(value, rel=1e-6)
    assert {path.name for path in (tmp_path / "tensorboard").iterdir()} == {
        cell.name for cell in spec.cells()
    }


class Failing:
    """A logger whose tool breaks in the second round."""

    ending: type[BaseException] = ConnectionError

    def __init__(self, logged: LoggedCell) -> None:
        self.identity = logged.identity

    def log(self, values: Mapping[str, float], step: int) -> None:
        if step > 1:
            raise self.ending("the server is gone")

    def finish(self, result: Mapping[str, float]) -> None:
        raise AssertionError("nothing is logged to a tool that has failed")


class WithoutItsTool(Failing):
    package = "no_such_tool"


class Leaving(Failing):
    ending = SystemExit


@pytest.mark.parametrize("failing", [Failing, Leaving])
def test_a_failing_tool_is_left_alone_and_the_others_go_on(
    failing: type[Failing], tmp_path: Path
) -> None:
    said: list[str] = []
    makers = {"failing": failing, "tensorboard": LOGGERS["tensorboard"]}
    observer = LoggingObserver(makers, said.append)
    observer(CellStarted(CELL, 0, tmp_path))
    for number in (1, 2, 3):
        observer(RoundFinished(CELL, record(number, 1.0), tmp_path))
    observer(CellFailed(CELL, "for a reason", tmp_path))
    place = f"at test_loggers.py:{Failing.log.__code__.co_firstlineno + 2}"
    ending = f"{failing.ending.__name__}: the server is gone, {place}"
    assert said == [f"failing: {ending}; nothing more is logged to it"]
    assert len(read_tensorboard(tmp_path)["validation/loss"]) == 3


def test_numbers_that_are_none_are_left_out() -> None:
    values = round_values(record(1, math.nan, crf=True))
    assert "validation/loss" not in values
    assert all(math.isfinite(value) for value in values.values())


def test_a_field_without_reliabilities_is_logged_by_its_expected_labels() -> None:
    reasons = Reasons(trust=[0.6, 0.3], causes={"norm": [0.0, 1.0]})
    values = round_values(record(1, 1.0).model_copy(update={"reasons": reasons}))
    assert values["trust/client_2"] == 0.3
    assert not any(name.startswith("reliability") for name in values)


def test_the_identity_is_the_cells(tmp_path: Path) -> None:
    other = small_spec(methods=["crf-fedavg"], seeds=[1]).cells()[0]
    elsewhere = tmp_path / "b"
    places = [(tmp_path, CELL, 0), (tmp_path, CELL, 3), (elsewhere, CELL, 0), (tmp_path, other, 0)]
    names = [LoggedCell(folder, cell, done).identity for folder, cell, done in places]
    assert names[0] == names[1]
    assert len(set(names)) == 3


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["tensorbord"], "unknown logger 'tensorbord': did you mean 'tensorboard'"),
        (["no_such_tool"], "pip install 'no-such-tool'"),
        (["math:pi"], "logger 'math:pi' is no logger: give a class with log and finish"),
        (["unnamed"], "logger 'unnamed': its package is 5: give its name"),
        (["pathlib:Path"], "logger 'pathlib:Path' is no logger: give a class with log and finish"),
    ],
)
def test_a_tool_that_is_not_there_is_named(
    names: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unnamed = type("Unnamed", (Failing,), {"package": 5})
    known = {**LOGGERS, "no_such_tool": WithoutItsTool, "unnamed": unnamed}
    monkeypatch.setattr("fedcrf.loggers.LOGGERS", known)
    with pytest.raises(FedcrfError, match=message):
        find_loggers(names)
