"""The command `pteforge`: what all subcommands share."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, NoReturn

import typer

from ... import __version__
from ...errors import InputError, PteforgeError
from ..interrupt import leave
from . import bisect, export, files, schema, store, why
from .printable import printable

app = typer.Typer(
    name="pteforge",
    help="Lowers zoos of PyTorch models to ExecuTorch: every stage cached by content, every file verified.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
export.register(app)
files.register(app)
bisect.register(app)
why.register(app)
store.register(app)
schema.register(app)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"pteforge {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens on the way.")] = False,
) -> None:
    """Options before the subcommand."""
    del version
    _log_to_stderr(logging.INFO if verbose else logging.WARNING)


def _log_to_stderr(level: int) -> None:
    """Our own log, and nobody else's: Prefect tells its server, stages are captured."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    ours = logging.getLogger("pteforge")
    ours.handlers = [handler]
    ours.setLevel(level)
    ours.propagate = False


def main() -> NoReturn:
    """Entry point. Exit codes: 0 all well, 1 something failed, 2 what was given cannot be used, 130 interrupted.

    The process ends without Python's finalization, which frees all of Prefect piece by piece and takes a second.
    """
    leave(run_command())


def run_command() -> int:
    """Runs the command that `sys.argv` has and gives the exit code."""
    try:
        app()
    except PteforgeError as error:
        message = printable(str(error), keep="\n\t")  # it may have names that a file came with
        sys.stderr.write(f"error: {message}\n")
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; finished stages are kept, run the same command to go on\n")
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0
