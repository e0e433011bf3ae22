"""The package ByzFL: as little of it as is needed, and that as a seed says."""

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
    sys.modules["byzfl"] = module_from_spec(spec)  # where its parts lie; it is not executed
    try:
        return import_module("byzfl.aggregators")
    finally:
        del sys.modules["byzfl"]  # for others the whole package is still to be imported


@contextmanager
def drawing(seed: int, rounds: int) -> Iterator[None]:
    """Let torch, which ByzFL draws from, draw as this seed and round say, and then go on."""
    import torch

    generator: torch.Generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(int(np.random.SeedSequence([seed, rounds]).generate_state(1)[0]))
    try:
        yield
    finally:
        generator.set_state(before)
