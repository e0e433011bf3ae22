"""The package ByzFL: importing its aggregators alone, and seeding what they draw."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType

import numpy as np

from fedcrf.extras import check_installed


@cache
def byzfl_aggregators() -> ModuleType:
    """Import ByzFL's aggregators, and nothing else of it.

    The package imports its own federations, with torchvision, matplotlib and seaborn: that takes
    seconds, and fails where torchvision and torch are built for different devices.

    Raises:
        FedcrfError: It is not installed.
    """
    check_installed("byzfl")
    if "byzfl" in sys.modules:
        return import_module("byzfl.aggregators")
    spec = find_spec("byzfl")
    assert spec is not None
    sys.modules["byzfl"] = module_from_spec(spec)  # so that parts are found; it is not executed
    try:
        return import_module("byzfl.aggregators")
    finally:
        del sys.modules["byzfl"]  # a later import is still of the whole package


@contextmanager
def drawing(seed: int, rounds: int) -> Iterator[None]:
    """Seed torch's generator, from which ByzFL draws, and restore its state at the end."""
    import torch

    generator: torch.Generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(int(np.random.SeedSequence([seed, rounds]).generate_state(1)[0]))
    try:
        yield
    finally:
        generator.set_state(before)
