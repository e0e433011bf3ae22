"""The passes by torch give what the plain ones give; on the CPU too, and on a GPU where one is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from devices import DEVICES
from fedcrf import ClientCRF, RobustCRF
from fedcrf.crf import posterior
from fedcrf.errors import FedcrfError
from fedcrf.statistics import (
    average,
    centred_geometry,
    inputs,
    median_of,
    model_geometry,
    sketch,
    trimmed_mean_of,
    update_statistics,
    weighted_average,
)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give a device whose tensors go the way of the GPU's, in blocks of a few columns."""
    monkeypatch.setattr(inputs, "GPU_NUMBERS", 3000)
    for module in (inputs, average, posterior):
        monkeypatch.setattr(module, "is_on_gpu", inputs.is_torch_tensor)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("m", [1, 2, 7, 40])
def test_updates_on_the_device_are_judged_as_on_the_host(device, dtype, m):
    updates = torch.randn(m, 1000, generator=torch.Generator().manual_seed(m)).to(dtype)
    if m > 2:
        updates[1, 5] = float("nan")
    counts = np.arange(1, m + 1)
    expected = ClientCRF().infer(updates.double().numpy(), counts)
    got = ClientCRF().infer(updates.to(device), counts)
    for name in ("weights", "reliability", "affinity", "cosine", "distance", "excluded"):
        assert_allclose(getattr(got, name), getattr(expected, name), rtol=1e-9, atol=1e-12)


def test_layers_and_a_global_model_are_taken_as_they_lie(device):
    generator = torch.Generator().manual_seed(0)
    layers = [[torch.randn(40, generator=generator), torch.randn(7, generator=generator)]
              for _ in range(5)]  # fmt: skip
    host = [[layer.numpy() for layer in each] for each in layers]
    there = [[layer.to(device) for layer in each] for each in layers]
    for gather in (update_statistics, centred_geometry, model_geometry):
        got, expected = gather(there[1:], there[0]), gather(host[1:], host[0])
        assert_allclose(got.gram, expected.gram, rtol=1e-10, atol=1e-12)
    assert_array_equal(sketch(there, 16, seed=1), sketch(host, 16, seed=1))
    weights = np.array([0.5, 0.5, 0.0])
    tensors = [torch.tensor([[1, 2]]), torch.tensor([[2, 4]]), torch.tensor([[9, 9]])]
    tensors = [tensor.to(device) for tensor in tensors]
    assert weighted_average(tensors, weights).tolist() == [[2, 3]]
    reals = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0]), torch.tensor([np.nan, 0.0])]
    assert weighted_average([real.to(device) for real in reals], weights).tolist() == [2.0, 3.5]


@pytest.mark.parametrize("m", [1, 2, 7, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_medians_and_trimmed_means_are_those_of_the_host(device, dtype, m):
    generator = torch.Generator().manual_seed(m)
    tensors = [(9 * torch.randn(30, 50, generator=generator)).to(dtype) for _ in range(m)]
    host, there = [each.numpy() for each in tensors], [each.to(device) for each in tensors]
    found = median_of(there)
    assert (found.device.type, found.dtype) == (device, dtype)
    assert_array_equal(found.cpu().numpy(), median_of(host))
    trim = (m - 1) // 3
    trimmed = trimmed_mean_of(there, trim)
    assert (trimmed.device.type, trimmed.dtype) == (device, dtype)
    assert_allclose(trimmed.cpu().numpy(), trimmed_mean_of(host, trim), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("crf", [ClientCRF(), RobustCRF()])
def test_updates_on_the_device_are_combined_there(device, dtype, crf):
    generator = torch.Generator().manual_seed(2)
    rows = [[torch.randn(6, 7, generator=generator).to(dtype), torch.ones(3, dtype=dtype)]
            for _ in range(5)]  # fmt: skip
    rows[2][0][1, 1] = float("nan")
    start = [torch.ones(6, 7), torch.ones(3)]
    there = [[layer.to(device) for layer in each] for each in rows]
    inferred = crf.infer(rows)
    step, after = inferred.combine(there), inferred.next_model([x.to(device) for x in start], there)
    for i, layer in enumerate(start):
        given = torch.stack([each[i].double() for each in rows]).nan_to_num()
        expected = np.tensordot(inferred.coefficients, given.numpy(), 1)
        assert (step[i].device.type, step[i].dtype, step[i].shape) == (device, dtype, layer.shape)
        assert (after[i].device.type, after[i].dtype) == (device, torch.float32)
        assert_allclose(step[i].double().cpu(), expected, rtol=1e-2, atol=1e-6)
        assert_allclose(after[i].cpu(), 1.0 + expected, atol=2e-2)  # a bfloat16 step


def test_integers_beside_real_numbers_are_rounded_there(device):
    rows = [[torch.full((3,), 1.0 + i, device=device), torch.tensor(5 * i, device=device)]
            for i in range(4)]  # fmt: skip
    start = [torch.zeros(3, device=device), torch.tensor(7, device=device)]
    inferred = RobustCRF().infer(rows, model=start)
    assert_array_equal(inferred.weights, RobustCRF().infer([row[:1] for row in rows]).weights)
    _, counter = inferred.next_model(start, rows)
    assert (counter.device.type, counter.dtype) == (device, torch.int64)
    assert int(counter) == round(7 + inferred.weights @ (5.0 * np.arange(4)))


def test_updates_on_two_devices_are_refused(device):
    with pytest.raises(FedcrfError, match="one device"):
        ClientCRF().infer([torch.zeros(3, device=device), torch.zeros(3, device="meta")])
    with pytest.raises(FedcrfError, match="client 1 lies elsewhere than client 0's"):
        median_of([torch.zeros(3, device=device), np.zeros(3)])
