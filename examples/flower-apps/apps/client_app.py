"""The client: trains the model it is sent on its own part; it knows nothing of the strategy."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from apps.tasks import TASKS, dealt

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for a round and send the model back; the hostile client sends the opposite."""
    config, node = context.run_config, context.node_config
    client, seed = int(node["partition-id"]), int(config["seed"])
    own = dealt(seed, int(node["num-partitions"]))[2 + client]
    before = {name: array.numpy() for name, array in message.content["arrays"].items()}
    number = int(message.content["config"]["server-round"])
    after = TASKS[str(config["task"])].trained(before, own, seed=1000 * number + client)
    if client == int(config["hostile"]):
        after = {
            name: np.asarray(before[name] - 5 * (after[name] - before[name])) for name in before
        }
    arrays = ArrayRecord({name: Array(np.asarray(each, order="C")) for name, each in after.items()})
    metrics = MetricRecord({"num-examples": len(own[1]), "partition-id": client})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
