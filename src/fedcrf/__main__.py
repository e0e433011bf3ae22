"""``python -m fedcrf``, and the command ``fedcrf``: it needs what the core does not install."""

import io
import os
import re
import sys
from pathlib import Path

from fedcrf.extras import mend
from fedcrf.files import naming

OUTPUT = Path("standard output")
"""What errors call it."""


class Output(io.TextIOWrapper):
    """Standard output, whose errors name it: on a full disk they would name no file, or another."""

    def write(self, text: str) -> int:
        """Write text."""
        with naming(OUTPUT):
            return super().write(text)

    def flush(self) -> None:
        """Write what is still held."""
        with naming(OUTPUT):
            super().flush()


def main() -> None:
    """Run the command line; a package that is missing is named with the extra that has it."""
    _ready_for_any_text()
    try:
        Path.cwd()  # without one torch's libraries end the program, and say that they are missing
    except OSError:
        print("fedcrf: error: the current folder is gone: go to another one", file=sys.stderr)
        sys.exit(2)
    try:
        from fedcrf.cli import main as command_line

        command_line()
    except KeyboardInterrupt:  # while packages are imported; later the command line says so
        print("fedcrf: error: interrupted; give the same command again", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "fedcrf":
            raise
        print(f"fedcrf: error: {mend(missing)}", file=sys.stderr)
        sys.exit(2)


def _ready_for_any_text() -> None:
    """Let nothing that is printed end a command: signs that a stream lacks are spelt as escapes.

    What is printed to a stream that was closed goes nowhere. A width that is none, or beyond all
    screens, does not count.
    """
    if not re.fullmatch("[1-9][0-9]{0,5}", os.environ.get("COLUMNS", "80")):
        del os.environ["COLUMNS"]  # tables 0 wide would have no lines
    for name in ("stdin", "stdout", "stderr"):  # in the order in which files take their places
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif name == "stdout" and isinstance(stream, io.TextIOWrapper):
            # The second is that of the locale C, where letters that it lacks would be errors too.
            refused = stream.errors in ("strict", "surrogateescape")
            sys.stdout = Output(
                stream.buffer,
                stream.encoding,
                "backslashreplace" if refused else stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )


if __name__ == "__main__":
    main()
