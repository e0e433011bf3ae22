"""The command line: parsing and calls, nothing else. Heavy imports wait for the command's body."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, cast

from fedcrf._version import __version__
from fedcrf.errors import EarlierNameWarning, FedcrfError, of_file
from fedcrf.extras import naming_extras

with naming_extras():
    import typer

from fedcrf.cli import commands

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated learning whose server decides by inference how much to trust each client.\n\n"
    "Start with [bold]fedcrf demo[/bold]: three attackers among ten clients, half a minute.",
    epilog="A run is described by a TOML file, by flags, or both; flags win. "
    "The same command again goes on where a stopped run was.",
)
# Typer carries a click of its own in new versions and uses the installed one in old ones; this is
# the ClickException of whichever it is.
ClickException = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedcrf {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of every command."""


for command in (
    commands.run,
    commands.demo,
    commands.reproduce,
    commands.sweep,
    commands.robustness,
    commands.show,
    commands.report,
    commands.explain,
    commands.partition,
    commands.methods,
    commands.attacks,
    commands.datasets,
    commands.models,
):
    app.command()(command)


INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended."""

NOBODY_READS = 141
"""The exit status of a program whose output has no reader any more, as the shell has it."""


def main() -> None:
    """Run the command line; every mistake of the user ends in one line and a non-zero status."""
    warnings.simplefilter("once", EarlierNameWarning)
    warnings.showwarning = _notice_of(warnings.showwarning)
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except ClickException as error:
        said = error.format_message()  # nothing where no command was given: the help is out by then
        said = re.sub(r"( Did you mean .*\?)\1", r"\1", said)  # typer and click both say so
        status = _fail(f"{said} See --help.", 2) if said else 2
    except FedcrfError as error:
        status = _fail(str(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except BrokenPipeError:
        status = NOBODY_READS
    except OSError as error:
        status = _fail(of_file(error), 1)
    except SystemExit as end:  # click's and rich's, where nobody reads what they print
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        status = NOBODY_READS
    try:
        sys.stdout.flush()
    except OSError:  # which is said by now: let the interpreter not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if status == INTERRUPTED:  # which typer may also return by itself
        _fail("interrupted; give the same command again to go on", INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _notice_of(show: Callable[..., None]) -> Callable[..., None]:
    """Return what shows a warning: that of an earlier name in a line, others as they were."""

    def notice(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, EarlierNameWarning):
            print(f"fedcrf: note: {message}", file=sys.stderr)
        else:
            show(message, category, *place)

    return notice


def _fail(message: str, status: int) -> int:
    line = " ".join(message.split())
    shown = (each if each.isprintable() else ascii(each)[1:-1] for each in line)
    print(f"fedcrf: error: {''.join(shown)}", file=sys.stderr)
    return status
