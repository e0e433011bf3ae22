"""How many tasks are worked on at once, and their results in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fedcrf.cores import available_cores

T = TypeVar("T")
R = TypeVar("R")


def default_threads() -> int:
    """Return OMP_NUM_THREADS where it is set, else the cores this process may use."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    return available_cores()


def in_order(task: Callable[[T], R], items: Sequence[T], threads: int | None) -> Iterable[R]:
    """Yield the results in the order of the items, whatever the number of threads."""
    threads = min(threads or default_threads(), len(items))
    if threads <= 1:
        yield from map(task, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(task, items)
