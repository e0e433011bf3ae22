"""The server: sends the model out, and makes the next one of what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fedcrf.integrations.flower import CRFAvg, RuleStrategy
from fedcrf.rules import find_rule
from quickstart.task import build_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; keep the last model and the evaluations where there is a folder for them."""
    config, output = context.run_config, str(context.run_config["output"])
    nodes = int(config["min-nodes"])
    strategy = build_strategy(
        str(config["strategy"]),
        output,
        fraction_evaluate=float(config["fraction-evaluate"]),
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
    )
    result = strategy.start(
        grid,
        initial_arrays=ArrayRecord(build_model(config).state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["round-timeout"]),
    )
    if output:
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(result.arrays.to_torch_state_dict(), folder / "model.pt")
        evaluations = {k: dict(each) for k, each in result.evaluate_metrics_clientapp.items()}
        (folder / "evaluations.json").write_text(json.dumps(evaluations, indent=1))


def build_strategy(name: str, output: str, **arguments: Any) -> Strategy:
    """Build the strategy of that name; fedcrf's write their round records into the folder."""
    if name == "FedAvg":
        return FedAvg(**arguments)
    if name == "CRFAvg":
        return CRFAvg(**arguments, record_to=output or None)
    return RuleStrategy(find_rule(name)(), **arguments, record_to=output or None)
