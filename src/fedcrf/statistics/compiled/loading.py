"""From source to compiled functions, once for a machine: both are kept in the cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import sys
import time
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fedcrf.files import cache_folder, write_text
from fedcrf.statistics.compiled.few import TILE, write_source, write_trimmed_mean

LOGGER = logging.getLogger("fedcrf")


@lru_cache(maxsize=64)
def load(num_clients: int | None, trim: int | None = None) -> ModuleType | None:
    """Return the functions for so many clients; None without Numba or a place to keep them.

    Args:
        num_clients: m to have them written out for; None for those that take any m.
        trim: To have the mean without so many values on each side.
    """
    try:
        import numba  # noqa: F401
    except ImportError:
        return None
    if num_clients is None:
        return _module("many", (Path(__file__).parent / "many.py").read_text("utf-8"), TILE)
    if trim is not None:
        return _module(f"trimmed_{num_clients}_{trim}", write_trimmed_mean(num_clients, trim))
    return _module(f"few_{num_clients}", write_source(num_clients))


def call(module: ModuleType, name: str, *arguments: Any) -> Any:
    """Call a function of a module; say how long it took where it had to be compiled first."""
    function = getattr(module, name)
    known, started = sum(function.stats.cache_misses.values()), time.perf_counter()
    result = function(*arguments)
    compiled = sum(function.stats.cache_misses.values())
    told = vars(module).setdefault("told", set())
    if compiled > known and (name, compiled) not in told:
        told.add((name, compiled))  # tasks beside this one waited for the same
        LOGGER.warning(
            "compiled the statistics (%s of %s) in %.1f s; kept for later",
            name,
            module.__name__.rpartition("_")[0],
            time.perf_counter() - started,
        )
    return result


def _module(name: str, source: str, *imported: int) -> ModuleType | None:
    """Write a source beside Numba's compiled code and import it from there.

    Args:
        name: Of what it is; what follows it tells the source.
        source: Python.
        imported: Constants that it imports. They are compiled in, so that the name must tell them.
    """
    told = source + "".join(f"\n{constant}" for constant in imported)
    name = f"{name}_{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    try:
        path = cache_folder() / "kernels" / f"{name}.py"
        # Whatever lies there otherwise is not what would be run.
        if not path.exists() or path.read_bytes() != source.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where Numba looks for it when it loads what it has kept
        spec.loader.exec_module(module)
    except Exception as error:  # an aid that fails in whatever way must not stop a round
        LOGGER.warning("the compiled statistics cannot be had: %s", error)
        return None
    return module
