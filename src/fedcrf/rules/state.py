"""Models: tensors by name, and models whose floating-point numbers are one vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.statistics import is_floating
from fedcrf.statistics.inputs import Layers

State = Mapping[str, NDArray[Any]]
"""A model's tensors by name, as in torch's ``state_dict``; integer buffers keep their dtype."""


@dataclass(frozen=True)
class Layout:
    """The form of a model, and the place of each floating-point tensor in one vector.

    Attributes:
        tensors: Name, shape and dtype of each tensor, in order.
    """

    tensors: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]

    @classmethod
    def of(cls, state: State) -> Layout:
        """Return the layout of a model."""
        if isinstance(state, FlatState):
            return state.layout
        return cls(tuple((name, array.shape, array.dtype) for name, array in state.items()))

    @cached_property
    def places(self) -> Mapping[str, tuple[slice, tuple[int, ...]]]:
        """By name the columns and shape of floating-point tensors; empty if dtypes differ."""
        floats = [each for each in self.tensors if is_floating(each[2])]
        if len({dtype for _, _, dtype in floats}) > 1:
            return {}
        places, start = {}, 0
        for name, shape, _ in floats:
            places[name] = slice(start, start + math.prod(shape)), shape
            start = places[name][0].stop
        return places

    @cached_property
    def size(self) -> int:
        """The length d of the vector."""
        return sum(math.prod(shape) for _, shape in self.places.values())


class FlatState(Mapping[str, NDArray[Any]]):
    """A model whose floating-point tensors are views of one vector, made on access.

    Where their dtypes differ, all are among the others.

    Attributes:
        layout: The tensors' places in the vector.
        vector: (d,) their numbers.
        others: The other tensors by name.
    """

    def __init__(self, layout: Layout, vector: NDArray[Any], others: State) -> None:
        self.layout, self.vector, self.others = layout, vector, others

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.layout.places:
            return self.others[name]
        columns, shape = self.layout.places[name]
        return self.vector[columns].reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _, _ in self.layout.tensors)

    def __len__(self) -> int:
        return len(self.layout.tensors)


def flattened(state: State) -> State:
    """Return a copy of a model as a `FlatState`; one that is flat already as it is.

    A model without floating-point tensors, or with several of their dtypes, is returned as it is.
    """
    layout = Layout.of(state)
    if isinstance(state, FlatState) or not layout.places:
        return state
    vector = np.concatenate([state[name].reshape(-1) for name in layout.places])
    others = {name: state[name] for name in state if name not in layout.places}
    return FlatState(layout, vector, others)


def copied(state: State) -> State:
    """Return a copy of a model; it is flat if the model is."""
    others = state.others if isinstance(state, FlatState) else state
    copies = {name: np.array(array) for name, array in others.items()}
    if not isinstance(state, FlatState):
        return copies
    return FlatState(state.layout, state.vector.copy(), copies)


def floating_names(state: State) -> list[str]:
    """Return the names of a state's floating-point tensors; buffers are among them."""
    return [name for name, array in state.items() if is_floating(array.dtype)]


def floating_layers(state: State, order: State | None = None) -> Layers:
    """Return the floating-point tensors of a state, flat; buffers are among them.

    They are in the order of another model's names, if one is given.
    """
    names = state if order is None else order
    return [state[name].reshape(-1) for name in names if is_floating(state[name].dtype)]


def update_of(
    state: State, model: State, names: Sequence[str] | None = None, dtype: Any = np.float64
) -> NDArray[Any]:
    """Return (d,) w − w_t over all floating-point tensors, in the model's order, or over some."""
    names = floating_names(model) if names is None else names
    update = np.empty(sum(model[name].size for name in names), dtype)
    start = 0
    for name in names:
        before = model[name].reshape(-1)
        part = update[start : start + len(before)]
        np.subtract(state[name].reshape(-1), before, out=part, dtype=dtype)
        start += len(part)
    return update


def _vectors(model: State, states: Sequence[State]) -> list[NDArray[Any]]:
    """Return the states' vectors; none unless all but the model itself are flat, in its layout."""
    layout = Layout.of(model)
    alike = all(
        state is model or (isinstance(state, FlatState) and layout == state.layout)
        for state in states
    )
    if not alike or not layout.places:
        return []
    return [flattened(state).vector for state in states]  # type: ignore[attr-defined]


def layers_alike(model: State, states: Sequence[State]) -> list[Layers]:
    """Return each state's floating-point numbers: one vector if all are flat, else its tensors.

    They are in the order of the model's names.
    """
    vectors = _vectors(model, states)
    return [[each] for each in vectors] or [floating_layers(state, model) for state in states]


Reduce = Callable[[Sequence[NDArray[Any]]], NDArray[Any]]
"""From m arrays to one, number by number."""


def merged(model: State, states: Sequence[State], floats: Reduce, others: Reduce) -> State:
    """Return one model of m, number by number; it is flat if they are.

    The first one gives the order of names. ``floats`` reduces floating-point tensors, ``others``
    the rest.
    """
    layout, vectors = Layout.of(model), _vectors(model, states)
    rest = {
        name: (floats if is_floating(dtype) else others)([state[name] for state in states])
        for name, _, dtype in layout.tensors
        if not (vectors and name in layout.places)
    }
    return FlatState(layout, floats(vectors), rest) if vectors else rest
