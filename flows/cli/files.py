"""Commands on produced files, plain and fat."""

from __future__ import annotations

import typer

from . import extract, inspect, merge, run, thin, verify


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("inspect")(inspect.inspect_file)
    app.command("run")(run.run_file)
    app.command("verify")(verify.verify_file)
    app.command("thin")(thin.thin_file)
    app.command("extract")(extract.extract_payload)
    app.command("merge")(merge.merge_files)
