"""Commands on produced files: `inspect`, `run`, `verify`."""

from __future__ import annotations

import typer

from . import inspect, run, verify


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("inspect")(inspect.inspect_file)
    app.command("run")(run.run_file)
    app.command("verify")(verify.verify_file)
