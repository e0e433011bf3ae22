"""The aggregator with NVFlare's own results, and a job in its simulator."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'fedcrf[nvflare]'")

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedcrf.errors import FedcrfError
from fedcrf.experiments.recorded import recorded_runs
from fedcrf.files import lock_beside
from fedcrf.integrations.nvflare import RuleAggregator

ROOT = Path(__file__).parents[3]
SITES = ["site-1", "site-2", "site-3", "site-4"]
MODEL = {"w": np.arange(20, dtype=np.float32), "b": np.zeros((2, 2), dtype=np.float32)}


def change(site: str) -> dict[str, Any]:
    draw = np.random.default_rng(SITES.index(site))
    return {k: draw.normal(1, 0.1, v.shape).astype(np.float32) for k, v in MODEL.items()}


def result(site: str, model: dict[str, Any] = MODEL, **other: Any) -> FLModel:
    given = {
        "params_type": ParamsType.FULL,
        "params": {name: model[name] + each for name, each in change(site).items()},
        "meta": {"client_name": site, "num-examples": 10 + SITES.index(site)},
    } | other
    return FLModel(**given)


def begun(folder: Path, rule: str = "fedavg", **arguments: Any) -> RuleAggregator:
    aggregator = RuleAggregator(rule, **arguments)
    aggregator.begin(folder)
    return aggregator


def round_of(
    aggregator: RuleAggregator, results: list[FLModel], model: dict[str, Any] = MODEL
) -> FLModel:
    aggregator.reset_stats()
    aggregator.sent(model, SITES)
    for each in results:
        aggregator.accept_model(each)
    return aggregator.aggregate_model()


def mean(sites: list[str]) -> dict[str, np.ndarray]:
    counts = np.array([10.0 + SITES.index(site) for site in sites])
    changes = [change(site) for site in sites]
    return {
        name: MODEL[name]
        + sum(c * each[name] for c, each in zip(counts / counts.sum(), changes, strict=True))
        for name in MODEL
    }


def diff(site: str) -> FLModel:
    return result(site, params_type=ParamsType.DIFF, params=change(site))


def tensors(params: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in params.items()}


@pytest.mark.parametrize("kind", [result, diff])
@pytest.mark.parametrize("torch_too", [False, True])
def test_the_average_of_full_and_diff_parameters(
    tmp_path: Path, kind: Any, torch_too: bool
) -> None:
    results, model = [kind(site) for site in SITES], dict(MODEL)
    if torch_too:
        model = tensors(MODEL)
        for each in results:
            each.params = tensors(each.params)
    after = round_of(begun(tmp_path), results, model)
    assert after.params_type == ParamsType.FULL
    assert after.meta == {}  # it goes to the sites
    for name, expected in mean(SITES).items():
        assert isinstance(after.params[name], torch.Tensor if torch_too else np.ndarray)
        np.testing.assert_allclose(np.asarray(after.params[name]), expected, rtol=1e-5)


def test_a_sampled_site_that_never_fetches_the_model_is_named(tmp_path: Path) -> None:
    task = SimpleNamespace(name="train", targets=SITES[:3])
    other = SimpleNamespace(name="validate", targets=SITES)
    controller = SimpleNamespace(communicator=SimpleNamespace(_tasks=[other, task]))
    engine = SimpleNamespace(get_component=lambda name: {"controller": controller}[name])
    context = FLContext()
    context.get_engine = lambda: engine
    shareable = FLModelUtils.to_shareable(FLModel(ParamsType.FULL, params=MODEL))
    context.set_prop(AppConstants.TRAIN_SHAREABLE, shareable)
    aggregator = begun(tmp_path)
    aggregator.handle_event(AppEventType.BEFORE_TRAIN_TASK, context)
    aggregator.accept_model(result("site-1"))
    aggregator.accept_model(result("site-3"))
    after = aggregator.aggregate_model()
    np.testing.assert_allclose(after.params["w"], mean(["site-1", "site-3"])["w"], rtol=1e-5)
    (run,) = recorded_runs(tmp_path / "fedcrf").values()
    (record,) = run.records()
    assert [each.node for each in record.excluded_nodes or ()] == ["site-2"]


def test_a_job_holds_its_checkpoint_to_its_end(tmp_path: Path) -> None:
    aggregator = begun(tmp_path)
    round_of(aggregator, [result(site) for site in SITES])
    assert lock_beside(tmp_path / "fedcrf.npz") is None
    aggregator.handle_event(EventType.END_RUN, FLContext())
    free = lock_beside(tmp_path / "fedcrf.npz")
    assert free is not None
    free()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"params": {"w": MODEL["w"]}}, "b"),
    ({"params": {**MODEL, "w": np.zeros(3, dtype=np.float32)}}, "w"),
    ({"params": {**MODEL, "w": "text"}}, "holds <U4 as 'w': give real numbers"),
    ({"params_type": ParamsType.DIFF, "params": {**MODEL, "w": np.zeros(3)}}, "w"),
    ({"meta": {"client_name": "site-2"}}, "gives no 'num-examples': let it send FLModel"),
    ({"meta": {"client_name": "site-2", "num-examples": -1}}, "must be above 0"),
    ({"meta": {"client_name": "site-2", "num-examples": "9"}}, "gives '9', which is no number"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_site_whose_result_cannot_be_used_is_named(
    tmp_path: Path, bad: dict[str, Any], reason: str
) -> None:
    results = [result("site-1"), result("site-2", **bad), result("site-3")]
    after = round_of(begun(tmp_path), results)
    for name, expected in mean(["site-1", "site-3"]).items():
        np.testing.assert_allclose(after.params[name], expected, rtol=1e-5)
    (run,) = recorded_runs(tmp_path / "fedcrf").values()
    (record,) = run.records()
    assert record.clients == ["site-1", "site-3"]
    excluded = {each.node: each.reason for each in record.excluded_nodes or ()}
    assert reason in excluded["site-2"]
    assert excluded["site-4"] == "did not reply"


def test_changes_of_integers_are_added_and_no_fraction_is_cut_off(tmp_path: Path) -> None:
    model = MODEL | {"steps": np.array(7), "mask": np.array([True, False])}
    results = [
        result(
            site, params_type=ParamsType.DIFF,
            params={**change(site), "steps": np.array(steps), "mask": np.array([-1, 0], np.int8)},
        )
        for site, steps in {"site-1": 2, "site-2": 0.5, "site-3": 2.0}.items()
    ]  # fmt: skip
    after = round_of(begun(tmp_path), results, model)
    assert (after.params["steps"], after.params["steps"].dtype) == (9, np.int64)
    assert after.params["mask"].tolist() == [False, False]
    (run,) = recorded_runs(tmp_path / "fedcrf").values()
    (record,) = run.records()
    excluded = {each.node: each.reason for each in record.excluded_nodes or ()}
    assert excluded["site-2"].startswith("reports 7.5 in 'steps', which is int64 in the global")


def test_a_model_that_is_not_finite_gets_no_weight(tmp_path: Path) -> None:
    broken = result("site-2")
    broken.params["w"][3] = np.nan
    after = round_of(begun(tmp_path), [result("site-1"), broken, result("site-3")])
    np.testing.assert_allclose(after.params["w"], mean(["site-1", "site-3"])["w"], rtol=1e-5)


def test_a_round_without_a_usable_result_keeps_the_model_and_a_second_ends_the_job(
    tmp_path: Path,
) -> None:
    aggregator = begun(tmp_path)
    kept = round_of(aggregator, [])
    assert (kept.params_type, kept.params) == (ParamsType.DIFF, {})
    with pytest.raises(FedcrfError, match="rounds 1 to 2 had no usable reply, and the run ends"):
        round_of(aggregator, [])


def test_a_site_is_its_name_whatever_partition_it_gives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = begun(tmp_path)
    for partitions in ([0, 1, 2, 3], [3, 3, 0, 1]):
        results = [
            result(site, metrics={"partition-id": given, "accuracy": 0.5})
            for site, given in zip(SITES, partitions, strict=True)
        ]
        after = round_of(aggregator, results)
    assert "partition" not in caplog.text
    assert after.metrics == {"partition-id": pytest.approx(1.7, abs=0.2), "accuracy": 0.5}
    (run,) = recorded_runs(tmp_path / "fedcrf").values()
    first, second = run.records()
    assert first.clients == second.clients == SITES


@pytest.mark.parametrize("submitted_again", [False, True])
def test_the_memory_survives_a_restart(tmp_path: Path, submitted_again: bool) -> None:
    def rounds(aggregator: RuleAggregator, number: int) -> FLModel:
        for _ in range(number):
            after = round_of(aggregator, [result(site) for site in SITES])
        return after

    settings = {"sketch_seed": 1}
    whole = rounds(begun(tmp_path / "whole", "crf-robust", settings=settings), 4)
    kept = {"checkpoint_to": str(tmp_path / "kept.npz")} if submitted_again else {}
    rounds(begun(tmp_path / "cut", "crf-robust", settings=settings, **kept), 2)
    folder = tmp_path / ("again" if submitted_again else "cut")
    resumed = rounds(begun(folder, "crf-robust", settings=settings, **kept), 2)
    assert all(np.array_equal(resumed.params[name], whole.params[name]) for name in MODEL)
    (run,) = recorded_runs(folder / "fedcrf").values()
    assert run.course().title == "RuleAggregator(CRFRobust)"
    numbers = [record.round for record in run.records()]
    assert numbers == ([3, 4] if submitted_again else [1, 2, 3, 4])


def test_the_memory_of_another_rule_or_model_is_refused(tmp_path: Path) -> None:
    round_of(begun(tmp_path, "crf-robust"), [result(site) for site in SITES])
    before = (tmp_path / "fedcrf.npz").read_bytes()
    said = "of another rule, CRFRobust, not of CRF: .*take the checkpoint .*npz away to begin anew"
    with pytest.raises(FedcrfError, match=said):
        round_of(begun(tmp_path, "crf"), [])
    with pytest.raises(FedcrfError, match="is it of another run"):
        round_of(begun(tmp_path, "crf-robust"), [], {"w": MODEL["w"]})
    assert (tmp_path / "fedcrf.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"rule": "crf-robst"}, "crf-robust"),
        ({"rule": 3}, "rule is 3: give a text"),
        ({"settings": {"colour": 1}}, "unknown key in"),
        ({"settings": [1]}, "give the rule's settings by name"),
        ({"settings": {"bandwidth": object()}}, "which a job's file holds"),
        ({"record_to": Path("here")}, "record_to is"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(FedcrfError, match=line) as caught:
        RuleAggregator(**arguments)
    assert "\n" not in str(caught.value)


def test_a_job_can_be_exported(tmp_path: Path) -> None:
    recipe = NumpyFedAvgRecipe(
        name="job",
        model=[0.0],
        min_clients=2,
        train_script=str(ROOT / "examples" / "nvflare-hospitals" / "hospital.py"),
        aggregator=RuleAggregator("crf", settings={"bandwidth": 0.5}),
    )
    recipe.export(str(tmp_path))
    (path,) = tmp_path.rglob("config_fed_server.json")
    workflows = json.loads(path.read_text(encoding="utf-8"))["workflows"]
    given = workflows[0]["args"]["aggregator"]
    assert given["path"] == "fedcrf.integrations.nvflare.aggregator.RuleAggregator"
    assert given["args"] == {"rule": "crf", "settings": {"bandwidth": 0.5}}
    RuleAggregator(**given["args"])


def test_secret_signs_are_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    aggregator = begun(tmp_path, "crf-robust")
    round_of(aggregator, [result(site) for site in SITES])
    server = aggregator._server
    assert server is not None
    assert str(server.secret_seed) not in caplog.text


@pytest.mark.slow
def test_the_example_in_the_simulator(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "nvflare-hospitals" / "job.py", "--rounds", "3",
         "--folder", tmp_path],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "crf-robust, hostile: site-3" in done.stdout
    (folder,) = tmp_path.rglob("simulate_job/fedcrf")
    (run,) = recorded_runs(folder).values()
    last = run.records()[-1]
    assert last.round == 3
    weights = dict(zip(last.clients, last.weight, strict=True))
    assert weights["site-3"] < 0.01
    assert min(weight for site, weight in weights.items() if site != "site-3") > 0.1
