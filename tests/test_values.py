"""Values that hold arrays are compared and hashed by identity: their arrays could not be."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re

import numpy as np
import pytest

from fedcrf import attacks, crf, rules, statistics
from fedcrf.crf import Observation
from fedcrf.rules import ClientReport
from fedcrf.statistics import as_layers, update_statistics

ARRAYS = re.compile(r"\b(NDArray|Layers|State|Memory|Vector|Matrix|Causes|Pairs)\b")
RUN_ELSEWHERE = ("fedcrf.statistics.kernels",)


def values_with_arrays() -> list[type]:
    """Dataclasses of the rooms that decide a round, of which a field is an array or holds some."""
    names = [
        each.name
        for room in (statistics, crf, rules, attacks)
        for each in pkgutil.walk_packages(room.__path__, room.__name__ + ".")
        if each.name not in RUN_ELSEWHERE
    ]
    found = {
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type)
        and dataclasses.is_dataclass(value)
        and any(ARRAYS.search(str(field.type)) for field in dataclasses.fields(value))
    }
    return sorted(found, key=lambda value: value.__qualname__)


@pytest.mark.parametrize("value", values_with_arrays())
def test_no_value_compares_arrays(value):
    assert value.__eq__ is object.__eq__
    assert value.__hash__ is object.__hash__


def test_a_round_s_values_can_be_compared_and_kept_in_a_set():
    one, same = (update_statistics(as_layers(np.eye(3))) for _ in range(2))
    seen = Observation(one, np.ones(3))
    report = ClientReport(0, {"weight": np.ones(3)}, 10)
    for value, other in ((one, same), (seen, Observation(one, np.ones(3))), (report, one)):
        assert value == value
        assert value != other
        assert len({value, other}) == 2
