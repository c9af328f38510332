"""The command line, for programs that go on after it."""

from __future__ import annotations

from pteforge.flows.cli.main import app, exit_code
from pteforge.flows.cli.terminal import guarded_streams


@guarded_streams()
def run_command() -> int:
    """Runs the command in `sys.argv` as `main` does; returns the exit code."""
    with exit_code() as end:
        app(prog_name="pteforge")
    return end.code
