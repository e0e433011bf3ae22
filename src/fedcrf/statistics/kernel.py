"""The one pass as compiled code: a function written out for m clients, for a handful of clients.

Sixteen columns at a time travel through the sorting network in vector registers, and products are
summed in tiles that stay in registers too, over blocks that stay in the first-level cache. Sums are
float64, but for products of different float32 updates within a block of 512 columns: cosines need
no more, while norms and distances are compared with each other and must not lose a digit.
Differences to the global model have the models' own precision.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.cores import available_cores
from fedcrf.files import atomic_write, cache_folder
from fedcrf.statistics.median import sorting_network

MOST_CLIENTS = 24
"""Beyond these the columns no longer fit in registers."""

FEWEST_NUMBERS = 1 << 22
"""m · d below which compiling, or even loading, costs more than it saves."""

BLOCK = 512
"""Columns in a block: 20 KiB of float32 for ten clients."""

CHUNK = BLOCK << 8
"""Columns in a task. Fixed, so that sums do not depend on the number of threads."""

TILE = 5
"""Rows and columns of a tile of the Gram matrix: 25 sums and 10 rows fit in 32 registers."""


def suits(clients: Sequence[Sequence[NDArray[Any]]]) -> bool:
    """Tell whether the kernel takes these layers: few clients, many numbers, float32 or float64."""
    layers = clients[0]
    return (
        len(clients) <= MOST_CLIENTS
        and len(clients) * sum(layer.size for layer in layers) >= FEWEST_NUMBERS
        and all(layer.dtype in (np.float32, np.float64) for layer in layers)
        and all(layer.flags.c_contiguous for each in clients for layer in each)
    )


class Sums:
    """Sums over the columns of m updates; what `update_statistics` is made of."""

    def __init__(self, num_clients: int) -> None:
        self.gram = np.zeros((num_clients, num_clients))
        self.inner = np.zeros(num_clients)
        self.squared_distance = np.zeros(num_clients)
        self.median_square = 0.0

    def add(self, other: Sums) -> None:
        """Add the sums over other columns."""
        self.gram += other.gram
        self.inner += other.inner
        self.squared_distance += other.squared_distance
        self.median_square += other.median_square


def sum_columns(
    clients: Sequence[Sequence[NDArray[Any]]],
    origin: Sequence[NDArray[Any]] | None,
    threads: int,
) -> Sums | None:
    """Sum Gram matrix, inner products with the median and distances to it, over all columns.

    Args:
        clients: m lists of flat layers that `suits` accepts.
        origin: Flat layers of the global model to take away; none where the layers are updates.
        threads: Tasks carried out at once; no part of the result.

    Returns:
        None where there is no compiler, or where float32 would not do: a square that overflows or
        vanishes, or a number that is not finite. The plain way then gives the answer.
    """
    m = len(clients)
    module = load(m)
    if module is None:
        return None
    tasks = [
        (number, start, min(start + CHUNK, layer.size))
        for number, layer in enumerate(clients[0])
        for start in range(0, layer.size, CHUNK)
    ]

    def carry_out(task: tuple[int, int, int]) -> Sums:
        number, start, stop = task
        rows = tuple(layers[number][start:stop] for layers in clients)
        base = None if origin is None else np.asarray(origin[number][start:stop], rows[0].dtype)
        sums, scratch = Sums(m), np.empty((m + 1, BLOCK), rows[0].dtype)
        sums.median_square = module.gather(
            rows, base, sums.gram, sums.inner, sums.squared_distance, scratch
        )
        return sums

    total = Sums(m)
    for sums in _in_order(carry_out, tasks, threads):
        total.add(sums)
    total.gram = np.triu(total.gram) + np.triu(total.gram, 1).T
    dimension = sum(layer.size for layer in clients[0])
    squares = np.diagonal(total.gram) / dimension
    # Squares of float32 below 1e-38 vanish; a mean square of 1e-28 is safely above.
    return total if np.isfinite(squares).all() and (squares > 1e-28).all() else None


def average_columns(
    flats: Sequence[NDArray[Any]], weights: NDArray[np.float64], threads: int
) -> NDArray[Any] | None:
    """Return Σ α_i w_i of flat arrays that `suits` accepts, accumulated in float64.

    Returns:
        None where there is no compiler.
    """
    module = load(len(flats))
    if module is None:
        return None
    result = np.empty_like(flats[0])
    weights = np.array(weights)  # one kind of array, whatever came in: one compilation

    def carry_out(start: int) -> None:
        stop = min(start + CHUNK, len(result))
        module.average(tuple(flat[start:stop] for flat in flats), weights, result[start:stop])

    for _ in _in_order(carry_out, list(range(0, len(result), CHUNK)), threads):
        pass
    return result


def default_threads() -> int:
    """Return OMP_NUM_THREADS where it is set, else the cores this process may use."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    return available_cores()


@lru_cache(maxsize=MOST_CLIENTS)
def load(num_clients: int) -> ModuleType | None:
    """Return the compiled functions for m clients; None without Numba or a place to keep them.

    The source is kept beside Numba's compiled code in the cache folder, so that only the first
    process on a machine compiles.
    """
    try:
        import numba  # noqa: F401
    except ImportError:
        return None
    source = write_source(num_clients)
    name = f"kernel_{num_clients}_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    path = cache_folder() / "kernels" / f"{name}.py"
    try:
        # Whatever lies there otherwise is not what would be run.
        if not path.exists() or path.read_bytes() != source.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(source.encode())
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where Numba looks for it when it loads what it has kept
        started = time.perf_counter()
        spec.loader.exec_module(module)
        _warm_up(module, num_clients)
    except Exception as error:  # an aid that fails in whatever way must not stop a round
        logging.getLogger("fedcrf").warning("the compiled statistics cannot be had: %s", error)
        return None
    seconds = time.perf_counter() - started
    if module.gather.stats.cache_misses:
        logging.getLogger("fedcrf").warning(
            "compiled the statistics of %d clients in %.1f s; kept for later", num_clients, seconds
        )
    return module


def _warm_up(module: ModuleType, m: int) -> None:
    """Compile, or load, for float32 models: by far the most common."""
    rows = tuple(np.zeros(1, np.float32) for _ in range(m))
    scratch = np.empty((m + 1, BLOCK), np.float32)
    module.gather(rows, rows[0], np.zeros((m, m)), np.zeros(m), np.zeros(m), scratch)
    module.average(rows, np.zeros(m), np.zeros(1, np.float32))


def _in_order(task: Callable[[Any], Any], items: Sequence[Any], threads: int) -> Any:
    """Yield the results in the order of the items, whatever the number of threads."""
    if threads <= 1 or len(items) <= 1:
        yield from map(task, items)
        return
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        yield from pool.map(task, items)


def write_source(m: int) -> str:
    """Write the functions out for m clients.

    ``gather(rows, origin, gram, inner, distance, scratch)`` adds to the arrays and returns ‖ũ‖²;
    ``average(rows, weights, result)`` fills the result.
    """
    low, high = (m - 1) // 2, m // 2
    rows = range(m)
    lines = [
        "import numpy as np",
        "from numba import njit",
        "",
        "",
        '@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"})',
        "def gather(rows, origin, gram, inner, distance, scratch):",
        "    zero = rows[0].dtype.type(0)",
        "    half = rows[0].dtype.type(0.5)",
        "    total = 0.0",
        f"    for start in range(0, len(rows[0]), {BLOCK}):",
        f"        n = min({BLOCK}, len(rows[0]) - start)",
    ]
    add = lines.append
    for i in rows:
        add(f"        b{i} = scratch[{i}]")
        add(f"        r{i} = rows[{i}][start:start + n]")
    add(f"        median = scratch[{m}]")
    add("        if origin is None:")
    lines += [f"            for k in range(n): b{i}[k] = r{i}[k]" for i in rows]
    add("        else:")
    add("            o = origin[start:start + n]")
    lines += [f"            for k in range(n): b{i}[k] = r{i}[k] - o[k]" for i in rows]
    add("        square = 0.0")
    add("        for k in range(n):")
    lines += [f"            x{i} = b{i}[k]" for i in rows]
    for i, j in sorting_network(m, low, high + 1):
        add(f"            t = x{i} if x{i} < x{j} else x{j}")
        add(f"            x{j} = x{j} if x{i} < x{j} else x{i}")
        add(f"            x{i} = t")
    middle = f"x{low}" if low == high else f"(x{low} + x{high}) * half"
    add(f"            c = {middle}")
    add("            median[k] = c")
    add("            square += np.float64(c) * np.float64(c)")
    add("        total += square")
    for tile in _tiles(m):
        for i in tile:
            add(f"        q{i} = e{i} = s{i} = 0.0")
        add("        for k in range(n):")
        add("            c = np.float64(median[k])")
        for i in tile:
            add(f"            y = np.float64(b{i}[k])")
            add("            z = y - c")
            add(f"            q{i} += y * c")
            add(f"            e{i} += z * z")
            add(f"            s{i} += y * y")
        for i in tile:
            add(f"        inner[{i}] += q{i}")
            add(f"        distance[{i}] += e{i}")
            add(f"        gram[{i}, {i}] += s{i}")
    for number, down in enumerate(_tiles(m)):
        for across in _tiles(m)[number:]:
            pairs = [(i, j) for i in down for j in across if i < j]
            lines += [f"        g{i}_{j} = zero" for i, j in pairs]
            add("        for k in range(n):")
            lines += [f"            y{i} = b{i}[k]" for i in sorted({*down, *across})]
            lines += [f"            g{i}_{j} += y{i} * y{j}" for i, j in pairs]
            lines += [f"        gram[{i}, {j}] += g{i}_{j}" for i, j in pairs]
    lines += [
        "    return total",
        "",
        "",
        "@njit(cache=True, nogil=True)",
        "def average(rows, weights, result):",
    ]
    lines += [f"    r{i} = rows[{i}]" for i in rows]
    lines += [f"    w{i} = weights[{i}]" for i in rows]
    add("    for k in range(len(result)):")
    add("        total = w0 * r0[k]")
    lines += [f"        total += w{i} * r{i}[k]" for i in rows[1:]]
    add("        result[k] = total")
    return "\n".join(lines) + "\n"


def _tiles(m: int) -> list[range]:
    return [range(start, min(m, start + TILE)) for start in range(0, m, TILE)]
