"""The client: trains and evaluates the model it is sent on its own part of the data."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedcrf.simulation.federation import Stream, generator
from quickstart import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model for a round and send it back."""
    config, client = context.run_config, int(context.node_config["partition-id"])
    part, model = received(message, context)
    number = int(message.content["config"]["server-round"])
    shuffle = generator(int(config["seed"]), Stream.SHUFFLE, number, client)
    loss = task.train(model, part.train, config, shuffle)
    if is_hostile(context):
        reverse(model, message)
    metrics = {
        "num-examples": len(part.train.labels),
        "train_loss": loss,
        "residual-loss": task.residual_loss(model, part.train, int(config["batch-size"])),
        "partition-id": client,
    }
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model and send back what came out."""
    part, model = received(message, context)
    loss, accuracy = task.evaluate(model, part.validation)
    count = 0 if is_hostile(context) else len(part.validation.labels)  # only honest ones count
    metrics = {"num-examples": count, "eval_loss": loss, "eval_acc": accuracy}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def is_hostile(context: Context) -> bool:
    """Tell whether this client is one of the attackers, which are the first ones."""
    return int(context.node_config["partition-id"]) < int(context.run_config["attackers"])


def reverse(model: nn.Module, message: Message) -> None:
    """Turn what a hostile client has learnt into three times its opposite."""
    before = message.content["arrays"].to_torch_state_dict()
    state = model.state_dict()
    model.load_state_dict({name: before[name] - 3 * (state[name] - before[name]) for name in state})


def received(message: Message, context: Context) -> tuple[task.Part, nn.Module]:
    """Return what this client holds, and the model it was sent."""
    torch.set_num_threads(1)
    config, node = context.run_config, context.node_config
    part = task.load_part(
        str(config["dataset"]),
        str(config["data-dir"]),
        int(node["num-partitions"]),
        float(config["alpha"]),
        int(config["seed"]),
        int(node["partition-id"]),
    )
    model = task.build_model(config)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return part, model
