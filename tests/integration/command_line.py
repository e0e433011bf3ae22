"""The command line as a user meets it: exit status, standard output, standard error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType


@dataclass(frozen=True)
class Result:
    rc: int
    out: str
    err: str


def others_than_compiling(errors: str) -> list[str]:
    """Return the lines of standard error but those of compiling, which large models do once."""
    return [line for line in errors.splitlines() if not line.startswith("compiled the statistics")]


def environment(**more: str) -> dict[str, str]:
    """Return what a command runs with: the tests' cache, no data folder, no CUDA, a wide pipe."""
    own = {name: value for name, value in os.environ.items() if name != "FEDCRF_DATA"}
    return own | {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"} | more


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fedcrf", *map(str, arguments)]


def fedcrf(*arguments: object, cwd: Path, env: Mapping[str, str]) -> Result:
    """Run the command in a fresh interpreter."""
    done = subprocess.run(
        command(*arguments), cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )
    return Result(done.returncode, done.stdout, done.stderr)


class CommandLine:
    """Runs commands in forks of one process that has imported everything; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = environment()

    def __enter__(self) -> CommandLine:
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
            env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.communicate()

    def __call__(self, *arguments: object, cwd: Path | None = None, **env: str) -> Result:
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            request = {
                "arguments": [str(argument) for argument in arguments],
                "cwd": str(cwd or self.folder),
                "env": env,
                "out": str(out),
                "err": str(err),
            }
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            return Result(int(self._server.stdout.readline()), out.read_text(), err.read_text())
