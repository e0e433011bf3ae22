"""A model whose numbers are one vector is a mapping like any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedcrf.rules import FoundationFL, Rule
from fedcrf.rules.base import misfit_of
from fedcrf.rules.state import FlatState, Layout, flattened, floating_layers, layers_alike, merged
from rules.rounds import Round, assert_same, every_rule, sample, spoilt

BEFORE, REPORTS = sample(3, dtype=np.float32)


def test_it_has_the_tensors_that_it_was_made_of() -> None:
    flat = flattened(BEFORE)
    assert isinstance(flat, FlatState)
    assert_same(flat, BEFORE, 0)
    assert len(flat) == len(BEFORE)
    assert_array_equal(flat.vector, np.concatenate(floating_layers(BEFORE)), strict=True)
    assert all(np.shares_memory(flat[name], flat.vector) for name in flat.layout.places)
    assert flattened(flat) is flat
    with pytest.raises(KeyError):
        flat["other"]


def test_tensors_of_several_dtypes_stay_by_name() -> None:
    mixed = {"a": np.zeros(2, np.float32), "b": np.ones(3), "c": np.arange(2)}
    assert flattened(mixed) is mixed
    doubled = merged(mixed, [mixed, mixed], lambda arrays: 2 * arrays[0], lambda arrays: arrays[1])
    assert_same(doubled, {"a": mixed["a"], "b": 2 * mixed["b"], "c": mixed["c"]}, 0)


def test_one_that_is_of_another_model_is_told() -> None:
    other = {**BEFORE, "head.weight": np.zeros((3, 2), np.float32)}
    assert misfit_of(flattened(BEFORE), flattened(BEFORE)) is None
    assert "'head.weight' as float32 (3, 2)" in str(misfit_of(flattened(other), BEFORE))
    assert Layout.of(dict(reversed(BEFORE.items()))) != Layout.of(BEFORE)


def test_vectors_and_layers_come_in_the_order_of_the_model() -> None:
    states = [report.state for report in REPORTS]
    flat = [flattened(state) for state in states]
    turned = flattened(dict(reversed(states[0].items())))
    assert [len(layers) for layers in layers_alike(BEFORE, [BEFORE, *flat])] == [1] * 4
    for given in ([BEFORE, *flat], [BEFORE, turned, *flat[1:]], [BEFORE, *states]):
        got = [np.concatenate(layers) for layers in layers_alike(BEFORE, given)]
        want = [np.concatenate(floating_layers(state)) for state in [BEFORE, *states]]
        assert_array_equal(got, want)


@every_rule
@pytest.mark.parametrize("values", [{}, {1: np.nan}], ids=["finite", "one is not"])
def test_what_a_rule_decides_does_not_depend_on_it(rule: Rule, values: dict[int, float]) -> None:
    before, reports = round_ = spoilt(sample(5), values)
    flat = [replace(report, state=flattened(report.state)) for report in reports]
    want = round_.aggregate(rule)
    for start in (before, flattened(before)):
        got = Round(start, flat).aggregate(rule)
        # Of eight rows and more NumPy sums a single column in another order than many.
        near = 1e-15 if isinstance(rule, FoundationFL) else 0
        assert_same(got.state, want.state, near)
        assert_array_equal(got.weights, want.weights)
