"""The networks: their size, what they take and give, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from fedcrf import FedcrfError
from fedcrf.models import (
    CNN,
    MLP,
    MODELS,
    ByzFLCNN,
    ImageShape,
    LeNet5,
    ModelPlan,
    ResNet9,
    ResNet18,
    ResNet20,
    SmallCNN,
)


@pytest.mark.parametrize(
    ("plan", "shape", "classes", "parameters"),
    [
        # 784·200 + 200 + 200·10 + 10
        (MLP(), (1, 28, 28), 10, 159_010),
        (MLP(()), (1, 28, 28), 10, 7_850),
        (CNN(), (1, 28, 28), 10, 1_663_370),  # McMahan et al. give the number
        (MLP((100,)), (1, 28, 28), 10, 79_510),  # fc_mnist of ByzFL
        (ByzFLCNN(), (1, 28, 28), 10, 431_080),  # cnn_mnist of ByzFL
        (LeNet5(), (1, 28, 28), 10, 61_706),  # lenet of FLPoison, of images resized to 32x32
        (LeNet5(), (3, 32, 32), 10, 62_006),
        (SmallCNN(), (3, 32, 32), 10, 356_810),
        (SmallCNN(batch_norm=True), (3, 32, 32), 10, 357_258),
        (ResNet9(), (3, 32, 32), 10, 6_573_130),
        (ResNet9(width=16), (3, 32, 32), 10, 412_954),
        (ResNet18(), (3, 32, 32), 100, 11_220_132),
        (ResNet20(), (3, 32, 32), 10, 272_474),  # of Karimireddy, He and Jaggi's experiments
    ],
)
def test_number_of_parameters(
    plan: ModelPlan, shape: ImageShape, classes: int, parameters: int
) -> None:
    model = plan.build(shape, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("plan", "shape"),
    [
        (MLP((7, 5)), (1, 16, 16)),
        (MLP((7,)), (3, 5, 9)),
        (CNN(), (1, 4, 4)),
        (CNN(channels=3, hidden=5), (3, 9, 14)),
        (ResNet9(), (1, 16, 16)),
        (ResNet9(), (3, 32, 32)),
        (ResNet9(), (3, 33, 47)),
        (ResNet18(), (1, 16, 16)),
        (ResNet18(), (3, 28, 28)),
        (ResNet20(width=4), (1, 28, 28)),
        (LeNet5(), (1, 16, 16)),
        (LeNet5(), (3, 33, 47)),
        (ByzFLCNN(), (1, 16, 16)),
        (SmallCNN((4,)), (1, 2, 3)),
    ],
)
def test_logits_have_one_row_an_image(plan: ModelPlan, shape: ImageShape) -> None:
    model = plan.build(shape, 7).eval()
    with torch.no_grad():
        logits = model(torch.randn(2, *shape))
        assert logits.shape == (2, 7)
        assert logits.isfinite().all()
        assert model(torch.empty(0, *shape)).shape == (0, 7), "an empty set can be evaluated"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn", (1, 3, 4)),
        ("lenet5", (1, 15, 16)),
        ("byzfl-cnn", (1, 15, 16)),
        ("small-cnn", (1, 7, 8)),
        ("resnet9", (1, 15, 16)),
        ("resnet18", (3, 15, 32)),
        ("resnet20", (3, 15, 32)),
    ],
)
def test_images_too_small_are_refused(name: str, shape: ImageShape, transposed: bool) -> None:
    shape = (shape[0], shape[2], shape[1]) if transposed else shape
    with pytest.raises(FedcrfError, match=f"{name} cannot take {shape[1]}x{shape[2]}"):
        MODELS[name]().build(shape, 10)


@pytest.mark.parametrize("plan", [ResNet9(), ResNet18(), ResNet20(), SmallCNN(batch_norm=True)])
def test_smallest_images_train_in_a_batch_of_one(plan: ModelPlan) -> None:
    # A client's last batch may hold one example; what the model takes, it must train on.
    model = plan.build((1, 16, 16), 10).train()
    model(torch.randn(1, 1, 16, 16)).sum().backward()
    assert all(bool(buffer.isfinite().all()) for buffer in model.buffers())


@pytest.mark.parametrize("hidden", [(0,), (5, -1)])
def test_layers_without_units_are_refused(hidden: tuple[int, ...]) -> None:
    with pytest.raises(FedcrfError, match="hidden"):
        MLP(hidden)


@pytest.mark.parametrize("name", MODELS)
def test_initialisation_is_the_seed_s(name: str) -> None:
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(MODELS[name]().build((1, 16, 16), 3).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not all(torch.equal(states[0][key], states[2][key]) for key in states[0])
