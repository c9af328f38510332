"""The command `pteforge`: its subcommands, options common to all, exit codes, and crashes of native code."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, NoReturn, ParamSpec

import typer

from ...errors import InputError, PteforgeError
from ..run.interrupt import INTERRUPTED, MESSAGE, leave, noticed_interrupts
from ..run.json_log import print_error
from .contracts import check_file, print_contract
from .examine import bisect_recipe, doctor
from .export import deploy, export, init, plan, serve
from .fat import extract_payload, merge_files, thin_file
from .generate import generate_text
from .inspect import inspect_file, show_metadata
from .options import flag
from .release import app as release_app
from .release import diff, publish, reproduce_file, upgrade
from .run import bench_files, run_file, runtime_app, verify_files
from .store import app as store_app
from .store import runs, why
from .terminal import guard_streams, print_json

_Options = ParamSpec("_Options")


@contextmanager
def exit_code() -> Iterator[SimpleNamespace]:
    """Runs a command, prints its errors to standard error, and turns exceptions into the `code` of what it yields.

    A failure after Ctrl-C counts as an interruption: libraries turn it into other errors, as imports of C code do.
    """
    end = SimpleNamespace(code=0)
    with noticed_interrupts() as interrupts:
        try:
            yield end
        except PteforgeError as error:
            print_error(f"error: {error}")
            end.code = 2 if isinstance(error, InputError) else 1
        except KeyboardInterrupt:
            print_error(MESSAGE)
            end.code = INTERRUPTED
        except typer.Exit as error:
            end.code = error.exit_code
        except SystemExit as error:
            end.code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except Exception:
            if not interrupts:
                raise
            end.code = 1
        if interrupts and end.code == 1:
            print_error(MESSAGE)
            end.code = INTERRUPTED


def in_child(command: Callable[_Options, None]) -> Callable[_Options, None]:
    """Runs a command in a child process, so that a crash of ExecuTorch's runtime is reported, with the signal.

    Where a fork is not safe (a process with several threads, or not Linux), the command runs in this process.
    """

    @functools.wraps(command)
    def run(*args: _Options.args, **options: _Options.kwargs) -> None:
        from ...tasks.engine.workers.server import count_threads, die_with_parent, process_control

        if sys.platform != "linux" or count_threads() > 1:
            command(*args, **options)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        parent, child = os.getpid(), os.fork()
        if child == 0:
            die_with_parent(process_control(), parent)
            with exit_code() as end:
                command(*args, **options)
            leave(end.code)
        _end_like(child, options.get("file"))

    return run


def _end_like(child: int, file: object) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child has got it, too
    try:
        _, status = os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise PteforgeError(
            f"ExecuTorch's runtime crashed ({name}) while it loaded or ran {file}: the file is damaged, or was made "
            "for another version of ExecuTorch; export it again"
        )
    raise typer.Exit(os.WEXITSTATUS(status))


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
app.command("contract")(print_contract)
app.command("check")(check_file)
app.command("run")(in_child(run_file))
app.command("generate")(generate_text)
app.command("verify")(verify_files)
app.command("bench")(in_child(bench_files))
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
app.command()(upgrade)
app.add_typer(store_app, name="store")
app.add_typer(runtime_app, name="runtime")


@app.command()
def schema() -> None:
    """Print the JSON Schema of zoo files, for editors that complete and check YAML."""
    from ...configs.zoo import zoo_schema

    print_json(zoo_schema())


def _show_version(value: bool) -> None:
    if value:
        from ..run.origin import version_in

        typer.echo(f"pteforge {version_in(Path(__file__).parents[2])}")
        raise typer.Exit


@app.callback()
def _common(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, flag("--verbose", "Log progress.", "-v")] = False,
) -> None:
    """Options before the subcommand."""
    del version
    # only pteforge's log is shown: Prefect logs to its server, and stages' output is captured
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    log = logging.getLogger("pteforge")
    log.handlers = [handler]
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    log.propagate = False


def main() -> NoReturn:
    """Entry point. Exit codes: 0 success, 1 something failed, 2 bad input, 130 interrupted.

    The process ends without Python's finalization, which would take a second to free all of Prefect.
    """
    guard_streams()  # until the end, for tracebacks too
    gc.set_threshold(50_000)  # objects: a rerun of a large zoo makes many that live to its end, and few cycles
    with exit_code() as end:
        app(prog_name="pteforge")  # however it is started: completion depends on the name
    leave(end.code)
