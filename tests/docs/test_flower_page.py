"""What the page about Flower shows does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs fedcrf[flower]")

from docs.test_docs import blocks
from fedcrf.experiments.recorded import recorded_runs
from integrations.flower_messages import MODEL, Nodes, arrays, reply


@pytest.fixture
def _in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.usefixtures("_in_a_run")
def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    grid = Nodes({node: lambda asked: reply(asked.metadata.dst_node_id) for node in range(1, 9)})
    scope: dict[str, Any] = {"grid": grid, "arrays": arrays(MODEL)}
    shown = [code for language, code in blocks("flower") if language == "python"]
    for code in shown:
        exec(code.replace("/srv", str(tmp_path)), scope)
    assert len(scope["result"].train_metrics_clientapp) == 20
    assert (tmp_path / "run.npz").is_file()
    (run,) = recorded_runs(tmp_path / "runs").values()
    assert len(run.records()) == 20
    result = scope["EveryOther"](fraction_evaluate=0.0).start(grid, arrays(MODEL), num_rounds=2)
    asked = [each["fedcrf.node-id"] for each in result.train_metrics_clientapp.values()]
    assert asked == [[2, 4, 6, 8], [1, 3, 5, 7]]
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert scope["residual_loss"](model, torch.randn(8, 3), torch.arange(8) % 4) > 0
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
