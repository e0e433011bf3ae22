"""What the one pass tells of updates, as a value that parts of a field share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedcrf.errors import FedcrfError
from fedcrf.statistics import EPSILON, as_layers, centred_geometry, update_statistics
from fedcrf.statistics.crowds import CrowdStatistics, NeighbourSearch, crowd_statistics
from fedcrf.statistics.inputs import Layers


@pytest.mark.parametrize("gather", [update_statistics, centred_geometry])
def test_cosines_are_divided_once_and_nobody_can_change_them(gather):
    updates = np.random.default_rng(0).standard_normal((4, 6))
    updates[2, 1] = np.nan
    found = gather(as_layers(updates))
    size = np.sqrt(np.diagonal(found.gram))
    assert_allclose(found.cosines, found.gram / (np.outer(size, size) + EPSILON), rtol=1e-15)
    assert np.isnan(found.cosines[2]).all()
    assert found.cosines is found.cosines
    with pytest.raises(ValueError, match="read-only"):
        found.cosines[0, 0] = 2.0


HUGE = np.array([[1e200, 1.0], [np.nan, 1.0], [1.0, 2.0], [-1e155, 1e155], [1e200, np.inf]])


@pytest.mark.parametrize("wide", [1, 1000], ids=["narrow", "several blocks"])
def of_a_crowd(size: int | None) -> Callable[..., CrowdStatistics]:
    def gather(rows: list[Layers], origin: Layers | None = None) -> CrowdStatistics:
        return crowd_statistics(rows, NeighbourSearch(2, size), origin)

    return gather


@pytest.mark.parametrize(
    "gather", [update_statistics, centred_geometry, of_a_crowd(None), of_a_crowd(1)]
)
def test_what_cannot_be_squared_is_told_apart_from_nan(gather, caplog):
    rows = as_layers(HUGE)
    found = gather(rows)
    assert found.finite.tolist() == [False, False, True, False, False]
    assert found.overflowed.tolist() == [True, False, False, True, False]
    (said,) = caplog.messages
    assert "places 0, 3 of the round are finite, but their squared lengths overflow" in said
    caplog.clear()
    origin = [np.full(2, np.nan)]
    assert not gather(rows, origin).overflowed.any(), "no difference is a number"
    assert not gather(as_layers(np.float32([[3e38, 1], [1, 2]]))).overflowed.any()
    assert not gather(as_layers(HUGE[1:3])).overflowed.any()
    assert not caplog.messages


@pytest.mark.parametrize("gather", [update_statistics, centred_geometry])
def test_no_updates_are_named(gather: Callable[[list[Any]], Any]) -> None:
    with pytest.raises(FedcrfError, match="there are no updates: give one for each client"):
        gather([])


@pytest.mark.filterwarnings("error")
def test_updates_whose_squares_are_barely_numbers_overflow_nowhere_else() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 50)) * 1e151
    assert np.isfinite(centred_geometry(as_layers(rows)).gram).all()
