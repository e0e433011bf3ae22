"""The server: any rule or Flower's FedAvg, and the accuracy on examples that no client has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from apps.tasks import TASKS, dealt
from fedcrf.integrations.flower import RuleStrategy
from fedcrf.rules import find_rule

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, or those that are left of a run that was stopped."""
    config, nodes = context.run_config, int(context.run_config["min-nodes"])
    name, output = str(config["strategy"]), str(config["output"])
    task, held_out = TASKS[str(config["task"])], dealt(int(config["seed"]), nodes)[0]
    accuracies: dict[int, float] = {}
    folder = Path(output)
    if output:
        folder.mkdir(parents=True, exist_ok=True)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        accuracies[number] = task.accuracy(model, held_out)
        if output:
            (folder / "accuracies.json").write_text(json.dumps(accuracies))
        return MetricRecord({"accuracy": accuracies[number]})

    initial = ArrayRecord({name: Array(array) for name, array in task.initial().items()})
    arguments = {
        "num_rounds": int(config["num-server-rounds"]),
        "timeout": float(config["round-timeout"]),
        "evaluate_fn": evaluate,
    }
    sampling = {"min_train_nodes": nodes, "min_available_nodes": nodes, "fraction_evaluate": 0.0}
    if name == "FedAvg":
        result = FedAvg(**sampling).start(grid, initial, **arguments)
    else:
        places = {"record_to": output, "checkpoint_to": f"{output}/run.npz"} if output else {}
        strategy = RuleStrategy(find_rule(name)(), **places, **sampling)
        run = strategy.resume if output else strategy.start
        result = run(grid, initial, **arguments)
    if output:
        np.savez(folder / "model.npz", **{k: v.numpy() for k, v in result.arrays.items()})
