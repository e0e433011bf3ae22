"""What the second pass takes, and what it refuses in one line: the three of them alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from fedcrf.errors import FedcrfError
from fedcrf.statistics import median_of, trimmed_mean_of, weighted_average

WAYS = {
    "average": lambda arrays: weighted_average(arrays, np.full(len(arrays), 1 / 3)),
    "median": median_of,
    "trimmed mean": lambda arrays: trimmed_mean_of(arrays, 1),
}


@pytest.fixture(params=WAYS)
def reduce(request: pytest.FixtureRequest):
    return WAYS[request.param]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_arrays_keep_their_shape_and_dtype(reduce, dtype):
    arrays = [np.full((2, 3), value, dtype) for value in (1, 2, 3)]
    assert_array_equal(reduce(arrays), np.full((2, 3), 2, dtype), strict=True)
    assert reduce([array[0, 0] for array in arrays]) == 2


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ([], "no arrays"),
        ([torch.ones(3)] * 3, "array of client 0 is a Tensor: give NumPy arrays.*CUDA"),
        ([[1.0, 2.0]] * 3, "array of client 0 is a list: give NumPy arrays"),
        ([np.ones(3), torch.ones(3), np.ones(3)], "array of client 1 is a Tensor"),
        ([np.ones(3), np.ones(3), np.ones(4)], r"client 2 is float64 \(4,\), client 0's float64"),
        ([np.ones(3), np.ones(3, int), np.ones(3)], "client 1 is int64 .*one shape and dtype"),
    ],
    ids=["none", "tensors", "lists", "a tensor", "shapes", "dtypes"],
)
def test_others_are_refused(reduce, arrays, named):
    with pytest.raises(FedcrfError, match=named) as caught:
        reduce(arrays)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_each_array_has_a_weight(count):
    with pytest.raises(FedcrfError, match=f"{count} weights for 3 arrays: give one for each"):
        weighted_average([np.ones(2)] * 3, np.full(count, 0.25))


@pytest.mark.parametrize(
    ("m", "trim", "named"),
    [
        (2, 1, "trim 1 on each side leaves nothing of 2 clients: give at most 0"),
        (5, 3, "of 5 clients: give at most 2"),
        (5, -1, "trim -1: give a whole number, 0 or more"),
        (5, 0.5, "trim 0.5: give a whole number"),
    ],
)
def test_a_cut_that_leaves_nothing_is_refused(m, trim, named):
    with pytest.raises(FedcrfError, match=named):
        trimmed_mean_of([np.ones(3)] * m, trim)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.filterwarnings("error")
def test_an_integer_that_all_have_stays_however_large(reduce, dtype):
    limits = np.iinfo(dtype)
    numbers = np.array([limits.max, limits.max // 8, limits.min, 7, 1 << 53], dtype)
    found = reduce([numbers.copy() for _ in range(3)])
    assert_array_equal(found, numbers, strict=True)
