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

from fedcrf.files import CACHE_VARIABLE, cache_folder, write_text
from fedcrf.statistics.compiled.few import TILE, write_source, write_trimmed_mean

LOGGER = logging.getLogger("fedcrf")

WARNED: set[str] = set()
"""What has been warned of in this process."""


@lru_cache(maxsize=64)
def load(num_clients: int | None, trim: int | None = None) -> ModuleType | None:
    """Return the functions for so many clients; None without Numba or a place to keep them.

    Why there are none is said once.

    Args:
        num_clients: m to have them written out for; None for those that take any m.
        trim: To have the mean without so many values on each side.
    """
    try:
        import numba  # noqa: F401
    except Exception as error:  # a Numba that does not go with this NumPy may raise anything
        missing = isinstance(error, ModuleNotFoundError) and error.name == "numba"
        mend = "pip install 'fedcrf[fast]'" if missing else "mend or remove Numba"
        warn_once("Numba", error, mend)
        return None
    if num_clients is None:
        return _module("many", (Path(__file__).parent / "many.py").read_text("utf-8"), TILE)
    if trim is not None:
        return _module(f"trimmed_{num_clients}_{trim}", write_trimmed_mean(num_clients, trim))
    return _module(f"few_{num_clients}", write_source(num_clients))


def warn_once(what: str, error: Exception, mend: str = "the plain pass does the same") -> None:
    """Say why there is no compiled pass; once in a process for each thing that can fail."""
    if what not in WARNED:
        WARNED.add(what)
        lines = str(error).strip().splitlines()
        reason = ": ".join([type(error).__name__, *lines[:1]])
        LOGGER.warning("rounds are aggregated by the slower, plain pass (%s): %s", reason, mend)


def call(module: ModuleType, name: str, *arguments: Any) -> Any:
    """Call a function of a module; say how long it took where it had to be compiled first.

    A function that failed is not tried again: to compile takes seconds, also in vain.

    Raises:
        Exception: Whatever the function, or its compilation, raises.
        RuntimeError: It failed before.
    """
    function, failed = getattr(module, name), vars(module).setdefault("failed", set())
    if name in failed:
        raise RuntimeError(f"{name} failed before")
    known, started = sum(function.stats.cache_misses.values()), time.perf_counter()
    try:
        result = function(*arguments)
    except Exception:
        failed.add(name)
        raise
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
        warn_once("cache", error, f"name a folder that can be written in {CACHE_VARIABLE}")
        return None
    return module
