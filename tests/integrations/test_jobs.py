"""A job of any framework: sites fetch the model and hand in dictionaries, each in its thread."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcrf.errors import FedcrfError
from fedcrf.experiments.recorded import recorded_runs
from fedcrf.files import lock_beside
from fedcrf.integrations.checkpoint import Checkpoint
from fedcrf.integrations.jobs import Job, JobServer
from fedcrf.integrations.replies import (
    average_metrics,
    changed,
    in_form_of_sent,
    numbers,
    state_of,
    usable_model,
)
from integrations.hostile import COUNT, Answer

LOG = logging.getLogger("a framework with jobs")
MODEL = {"w": np.zeros(8, dtype=np.float32)}
SITES = ["Aarau", "Bern", "Chur"]


def job(**other: Any) -> Job:
    given = {"rule": "fedavg", "settings": None, "weighted_by": COUNT}
    return Job(**({"record_to": "runs", "checkpoint_to": "run.npz"} | given | other))


def server_of(folder: Path, **other: Any) -> JobServer:
    return JobServer(job(**other), folder, framework="none 1", strategy="Jobs", log=LOG, read=dict)


def wrapped(site: str, content: Any, sent: Any, weighted_by: str) -> Answer:
    return Answer(site, {"metrics": {weighted_by: 10}, "model": changed(sent, content)})


def round_of(
    server: JobServer, sites: Sequence[str] = SITES, model: Mapping[str, Any] = MODEL
) -> Any:
    """Run a round in which all sites fetch the model and some of them hand in ones."""
    server.forget()

    def site(name: str) -> None:
        server.fetched(model, [name])
        if name in sites:
            server.replied(name, {key: np.ones_like(each) for key, each in model.items()})

    with ThreadPoolExecutor(len(SITES)) as threads:
        list(threads.map(site, SITES))
    return server.end_round(wrapped)


def test_sites_come_one_by_one_and_who_hands_in_nothing_is_named(tmp_path: Path) -> None:
    decision, after, _ = round_of(server_of(tmp_path), ["Chur", "Aarau"])
    assert np.array_equal(after["w"], np.ones(8))
    assert decision.round.number == 1
    assert [reply.node for reply in decision.replies] == ["Aarau", "Chur"]
    assert [(each.node, each.reason) for each in decision.excluded] == [("Bern", "did not reply")]
    (run,) = recorded_runs(tmp_path / "runs").values()
    assert [record.clients for record in run.records()] == [["Aarau", "Chur"]]


def test_a_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    for _ in range(2):
        server = server_of(tmp_path)
        round_of(server)
        round_of(server)
    (run,) = recorded_runs(tmp_path / "runs").values()
    assert [record.round for record in run.records()] == [1, 2, 3, 4]


def test_no_second_job_writes_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "kept.npz"
    server = server_of(tmp_path / "one", checkpoint_to=str(path))
    round_of(server)
    assert lock_beside(path) is None
    server.release()
    another_process = lock_beside(path)
    assert another_process is not None
    second = server_of(tmp_path / "two", checkpoint_to=str(path))
    for site in SITES:
        with pytest.raises(FedcrfError, match=f"checkpoint {path} is being written by another"):
            second.fetched(MODEL, [site])
    assert not (tmp_path / "two").exists()
    another_process()
    assert round_of(second)[0].round.number == 2


@pytest.mark.parametrize("rule", ["crf-robust", "fedavg"])
def test_a_job_goes_on_with_a_model_of_bfloat16(rule: str, tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    model = {"w": np.zeros((2, 4), ml_dtypes.bfloat16), "b": np.array(0, ml_dtypes.bfloat16)}
    for number in (1, 2):
        decision, after, _ = round_of(server_of(tmp_path, rule=rule), model=model)
        assert decision.round.number == number
        saved = Checkpoint.load(tmp_path / "run.npz").model
        assert {name: each.dtype.name for name, each in saved.items()} == dict.fromkeys(
            model, "bfloat16"
        )
        assert all(np.array_equal(saved[name], after[name]) for name in model)


def test_a_round_that_nobody_fetched_is_an_error(tmp_path: Path) -> None:
    server = server_of(tmp_path, record_to=None, checkpoint_to=None)
    round_of(server)
    with pytest.raises(FedcrfError, match="no site fetched the model in this round"):
        server.end_round(wrapped)
    assert not [*tmp_path.iterdir()]


def test_a_job_that_cannot_begin_is_refused_to_every_site(tmp_path: Path) -> None:
    server = server_of(tmp_path)
    for site in SITES:
        with pytest.raises(FedcrfError, match="the global model is not finite in 'w'"):
            server.fetched({"w": np.array([np.nan])}, [site])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"rule": "fedag"}, "fedag"),
        ({"rule": None}, "rule is None: give a text"),
        ({"weighted_by": 3}, "weighted_by is 3: give a text"),
        ({"record_to": Path("here")}, "record_to is"),
        ({"settings": {"colour": 1}}, "unknown key in"),
        ({"settings": [1]}, "give the rule's settings by name"),
        ({"settings": {"bandwidth": object()}}, "which a job's file holds"),
    ],
)
def test_what_no_job_can_be(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(FedcrfError, match=line):
        job(**arguments)


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ([1.0], "holds parameters of type list, not arrays by name"),
        ({"w": "text"}, "holds <U4 as 'w': give real numbers"),
        ({"w": [[1.0], [2.0, 3.0]]}, "holds a 'w' that cannot be read .*: give real numbers"),
    ],
)
def test_what_no_model_can_be(arrays: Any, line: str) -> None:
    with pytest.raises(FedcrfError, match=line):
        state_of(arrays, lambda value: value)


def test_a_model_goes_back_in_the_form_in_which_it_was_sent() -> None:
    torch = pytest.importorskip("torch")
    sent = {"w": torch.ones(2, 2, dtype=torch.bfloat16), 3: np.arange(2)}
    state = state_of(sent, lambda value: value)
    assert state["3"] is sent[3]
    back = in_form_of_sent(changed(state, state), {"w": sent["w"], "3": sent[3]})
    assert torch.equal(back["w"], 2 * sent["w"])
    assert back["w"].dtype == torch.bfloat16
    assert back["3"].tolist() == [0, 2]


def test_a_reply_that_comes_while_the_round_ends_is_late(tmp_path: Path) -> None:
    server = server_of(tmp_path)
    server.fetched(MODEL, SITES)
    server.replied("Aarau", {"w": np.ones(8, dtype=np.float32)})

    def meanwhile(site: str, content: Any, sent: Any, weighted_by: str) -> Answer:
        server.replied("Bern", content)
        return wrapped(site, content, sent, weighted_by)

    decision, _, _ = server.end_round(meanwhile)
    assert [reply.node for reply in decision.replies] == ["Aarau"]
    assert [each.node for each in decision.excluded] == ["Bern", "Chur"]


def ones() -> dict[str, np.ndarray]:
    return {"w": np.ones(8, dtype=np.float32)}


def test_a_reply_after_its_round_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_of(tmp_path)
    server.fetched(MODEL, SITES)
    server.replied("Aarau", ones())
    server.end_round(wrapped)
    server.replied("Bern", ones())  # nobody has fetched the next model yet
    server.fetched(MODEL, ["Aarau", "Chur"])
    server.replied("Bern", ones())  # others have
    server.replied("Chur", ones())
    decision, _, _ = server.end_round(wrapped)
    assert [reply.node for reply in decision.replies] == ["Chur"]
    assert [each.node for each in decision.excluded] == ["Aarau"]
    refused = "a result of Bern is refused: it came after the end of the round it is of"
    assert caplog.text.count(refused) == 2


def test_a_setting_that_is_gone_is_refused() -> None:
    with pytest.raises(FedcrfError, match=r"^crf-robust\.norm_strength is no setting any more: "):
        job(rule="crf-robust", settings={"norm_strength": 3.0})


@pytest.mark.parametrize("shape", [(3,), (1, 1), ()], ids=str)
def test_a_change_that_could_be_broadcast_is_no_model(shape: tuple[int, ...]) -> None:
    model = {"w": np.zeros((2, 3), np.float32)}
    with pytest.raises(FedcrfError, match="reports 'w' as"):
        usable_model(changed(model, {"w": np.ones(shape, np.float32)}), model)


def test_nodes_without_weight_keep_no_metric_out() -> None:
    records = [{"loss": 1.0}, {"loss": 3.0}, {"other": 9.0}, {"other": 9.0}]
    assert average_metrics(records, [1.0, 1.0, 0.0, 0.0]) == {"loss": 2.0}


def test_a_metric_that_is_none_is_no_number() -> None:
    records = [{"note": None, "loss": 1.0}, {"note": None, "loss": 2.0}, {"loss": None}]
    assert average_metrics(records, [1.0, 1.0, 2.0]) == {"loss": 1.5}


def test_of_several_metrics_the_first_counts() -> None:
    assert numbers([{"a": 1.0, "b": 2.0}], ("a", "b")) == [1.0]
    assert numbers([{"a": math.nan, "b": 2.0}], ("a", "b")) == [2.0]
