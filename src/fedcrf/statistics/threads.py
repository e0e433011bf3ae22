"""Tasks in threads, with their results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from fedcrf.cores import available_cores

AHEAD = 2
"""Tasks begun for each thread: the one it works on, and one that is done or waits for it."""

T = TypeVar("T")
R = TypeVar("R")


def default_threads() -> int:
    """Return OMP_NUM_THREADS where it is set, else the cores this process may use."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    return available_cores()


def in_order(task: Callable[[T], R], items: Sequence[T], threads: int | None) -> Iterable[R]:
    """Yield the results in the order of the items, whatever the number of threads.

    At most `AHEAD` tasks for each thread are begun and not yet asked for. So results, which may be
    large, do not pile up behind a task that takes long. By default threads are `default_threads`.
    """
    threads = min(threads or default_threads(), len(items))
    if threads <= 1:
        yield from map(task, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        begun: deque[Future[R]] = deque()
        for item in items:
            if len(begun) == AHEAD * threads:
                yield begun.popleft().result()
            begun.append(pool.submit(task, item))
        while begun:
            yield begun.popleft().result()
