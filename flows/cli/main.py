"""The command `pteforge`: its subcommands, options common to all, and exit codes."""

from __future__ import annotations

import gc
import logging
from typing import Annotated, NoReturn

import typer

from ... import __version__
from ..run.interrupt import leave
from .bisect import bisect_recipe
from .crashes import exit_code, in_child
from .deploy import deploy, serve
from .diff import diff
from .doctor import doctor
from .export import export
from .fat import extract_payload, merge_files, thin_file
from .init import init
from .inspect import inspect_file
from .metadata import show_metadata
from .plan import plan
from .release import app as release_app
from .release import publish, reproduce_file
from .run import run_file
from .store import app as store_app
from .terminal import guard_streams, print_json
from .verify import verify_files
from .why import runs, why

_OBJECTS = 50_000
"""New objects until the next garbage collection. A rerun of a large zoo makes many that live to its end, few cycles."""

app = typer.Typer(
    name="pteforge",
    help="Lowers zoos of PyTorch models to ExecuTorch: every stage cached by content, every file verified.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command()(export)
app.command()(plan)
app.command()(init)
app.command("inspect")(inspect_file)
app.command("metadata")(show_metadata)
app.command("run")(in_child(run_file))
app.command("verify")(verify_files)
app.command("thin")(thin_file)
app.command("extract")(extract_payload)
app.command("merge")(merge_files)
app.command("bisect")(bisect_recipe)
app.command()(doctor)
app.command()(publish)
app.add_typer(release_app, name="release")
app.command("reproduce")(reproduce_file)
app.command()(deploy)
app.command()(serve)
app.command()(runs)
app.command()(why)
app.command()(diff)
app.add_typer(store_app, name="store")


@app.command()
def schema() -> None:
    """Print the JSON Schema of zoo files, for editors that complete and check YAML."""
    from ...configs.zoo import zoo_schema

    print_json(zoo_schema())


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
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log progress.")] = False,
) -> None:
    """Options before the subcommand."""
    del version
    _log_to_stderr(logging.INFO if verbose else logging.WARNING)


def _log_to_stderr(level: int) -> None:
    """Shows pteforge's log only: Prefect logs to its server, and stages' output is captured."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    ours = logging.getLogger("pteforge")
    ours.handlers = [handler]
    ours.setLevel(level)
    ours.propagate = False


def main() -> NoReturn:
    """Entry point. Exit codes: 0 success, 1 something failed, 2 bad input, 130 interrupted.

    The process ends without Python's finalization, which would take a second to free all of Prefect.
    """
    guard_streams()  # until the end, for tracebacks too
    gc.set_threshold(_OBJECTS)
    with exit_code() as end:
        app(prog_name="pteforge")  # however it is started: completion depends on the name
    leave(end.code)
