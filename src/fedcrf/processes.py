"""Child processes of one thread each, and the turns that threads of one process take."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing
from threadpoolctl import threadpool_limits

from fedcrf.errors import FedcrfError


class Child:
    """A process that answers over a connection. It ignores Ctrl-C, which its parent handles.

    ``target`` is called with the child's end of the connection and ``arguments``; tensors among
    them lie in shared memory. A daemon dies with its parent and may have no children of its own.
    """

    def __init__(self, target: Callable[..., None], *arguments: Any, daemon: bool) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments), daemon=daemon)
        with _interrupts_ignored():
            self._process.start()
        theirs.close()

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.exitcode

    def send(self, message: Any) -> None:
        """Send a message; if the child is dead, the next look at its connection tells."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def end(self, now: bool = False) -> None:
        """Close the connection and wait for the end; ``now`` does not let it finish its work."""
        self.connection.close()
        if now:
            self._process.terminate()
        self._process.join()


def check_not_imported_anew() -> None:
    """Raise a `FedcrfError` in a child that imports its parent's script, and begins it once more.

    `multiprocessing` itself looks at the same mark, and refuses only children of such a child.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise FedcrfError(
            "every process of a run imports the script that began it: let the script call what "
            "runs cells below 'if __name__ == \"__main__\":', or give jobs=1"
        )


_TURN = threading.RLock()


def _renew_turn() -> None:
    """Let a child that was forked while the lock of `in_turn` was held have one of its own."""
    global _TURN
    _TURN = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_turn)


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """Let threads that train take turns: torch's generator is one for the whole process.

    So is its number of threads. Two that seed the generator at once draw each other's numbers.
    """
    with _TURN:
        yield


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch and NumPy to one thread each: the last bit of a product depends on it.

    Threads of this process take turns at it, see `in_turn`.
    """
    with in_turn():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with threadpool_limits(1):
                yield
        finally:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def in_child() -> Iterator[None]:
    """Keep a child process to one thread throughout, compiled code of ours included."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with one_thread():
        yield


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let a child process that is started here ignore Ctrl-C, from its start on."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say so
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
