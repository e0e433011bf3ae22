"""Runs command lines one after the other, each in a process of its own forked from this one.

Most of what a command line costs is the import of torch. This pays it once: every request is a
JSON line on standard input, is carried out by the real ``main`` in a forked child with its own
working directory, environment, standard output and error, and is answered by its exit status.
"""

from __future__ import annotations

import json
import os
import sys

import fedcrf.cli
import fedcrf.console
import fedcrf.experiments.figures
import fedcrf.experiments.report
import fedcrf.experiments.runner  # noqa: F401


def become(request: dict) -> None:
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    streams = ((os.devnull, os.O_RDONLY), (request["out"], os.O_WRONLY), (request["err"], 1))
    for descriptor, (path, mode) in enumerate(streams):
        os.dup2(os.open(path, mode | os.O_CREAT), descriptor)
    sys.argv = ["fedcrf", *request["arguments"]]


for line in sys.stdin:
    child = os.fork()
    if child == 0:
        become(json.loads(line))
        fedcrf.cli.main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
