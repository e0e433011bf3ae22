from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedcrf import FedcrfError
from fedcrf.integrations.flower.messages import as_record, as_state, view

DTYPES = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.floating_dtypes()
)
TENSORS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0))


@given(TENSORS, st.booleans())
def test_there_and_back_is_flowers_own_form(tensor: np.ndarray, in_fortran_order: bool) -> None:
    tensor = np.asarray(tensor, order="F" if in_fortran_order else "C")
    seen = as_state(ArrayRecord({"w": Array(tensor)}))["w"]
    assert seen.dtype == tensor.dtype
    np.testing.assert_array_equal(seen, tensor)
    back = as_record({"w": seen})["w"]
    assert back == Array(np.ascontiguousarray(tensor).reshape(tensor.shape))


def test_a_view_takes_no_memory_and_cannot_be_written() -> None:
    array = Array(np.zeros(1_000_000, dtype=np.float32))
    tracemalloc.start()
    seen = view(array)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (Array("float32", (3,), "numpy.ndarray", b""), "holds a 'w' that cannot be read"),
        (Array("float32", (3,), "numpy.ndarray", b"junk" * 99), "holds a 'w' that cannot be read"),
        (Array("float32", (3,), "tensor", Array(np.ones(3)).data), "type.*'tensor'"),
        (
            Array("float32", (9,), "numpy.ndarray", Array(np.ones(9)).data[:-1]),
            "holds a 'w' that cannot be read",
        ),
        (Array(np.array(["a"])), "holds <U1 as 'w': give real numbers"),
        (Array(np.ones(2, dtype=complex)), "holds complex128 as 'w'"),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(array: Any, said: str) -> None:
    with pytest.raises(FedcrfError, match=said):
        as_state(ArrayRecord({"w": array}))


def test_a_header_of_the_second_kind_is_read() -> None:
    from io import BytesIO

    from numpy.lib import format as npy

    stream = BytesIO()
    npy.write_array(stream, np.arange(3.0), version=(2, 0))
    array = Array("float64", (3,), "numpy.ndarray", stream.getvalue())
    assert view(array).tolist() == [0, 1, 2]
