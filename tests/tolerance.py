"""What is compared to the bit, and how near the rest must be.

Equal to the bit is what one machine computes twice in the same way: a run resumed, shared out among
workers or threads, or started again. Its batches have the same examples in the same order and
memory, so that the same kernels sum them in the same order.

Whatever is computed in two ways is `alike`. A processor has kernels for other shapes of a batch,
for images laid out channels last, and for each of its instruction sets, and these sum in another
order: each sum is then off by some units in the last place of float32, 6e-8 of it.
"""

from __future__ import annotations

from typing import Any

import pytest
from numpy.testing import assert_allclose

KERNELS = 1e-5
"""Relative difference between kernels: above what a few rounds of training make of 6e-8, and far
below what a mistake in a formula does."""

NEAR_ZERO = 1e-6
"""The same for numbers that are what is left of a sum of larger ones, about 1."""


def alike(expected: Any) -> Any:
    """Return what equals numbers that other kernels made by the same formula."""
    return pytest.approx(expected, rel=KERNELS)


def assert_alike(got: Any, expected: Any, named: str = "") -> None:
    """Compare arrays that two kernels made by the same formula."""
    assert_allclose(got, expected, rtol=KERNELS, atol=NEAR_ZERO, err_msg=named)
