"""Runs command lines one after the other, each in a process of its own forked from this one.

Most of what a command line costs is the import of torch. This pays it once: every request is a
JSON line on standard input, is carried out by the real ``main`` in a forked child with its own
working directory, environment, standard output and error, and is answered by its exit status.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback

import datasets  # noqa: F401
import pyarrow.parquet  # noqa: F401
import sklearn.datasets  # noqa: F401

import fedcrf.cli
import fedcrf.cli.display
import fedcrf.experiments.analysis.figures
import fedcrf.experiments.grid
import fedcrf.experiments.results


def become(request: dict) -> None:
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    streams = ((os.devnull, os.O_RDONLY), (request["out"], os.O_WRONLY), (request["err"], 1))
    for descriptor, (path, mode) in enumerate(streams):
        os.dup2(os.open(path, mode | os.O_CREAT), descriptor)
    sys.argv = ["fedcrf", *request["arguments"]]


def carry_out(request: dict) -> int:
    """Return the status that the interpreter would end with."""
    become(request)
    try:
        fedcrf.cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


gc.freeze()  # a child that leaves the imported modules alone need not copy them
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        status = carry_out(json.loads(line))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # taking torch apart would cost more than the command
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
