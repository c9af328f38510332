"""`pteforge schema`."""

from __future__ import annotations

import json

import typer

from ...configs.schema import zoo_schema


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(schema)


def schema() -> None:
    """Print the JSON Schema of zoo files, for editors that complete and check YAML."""
    typer.echo(json.dumps(zoo_schema(), indent=2))
