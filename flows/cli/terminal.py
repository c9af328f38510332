"""Output of commands: consoles, tables, JSON, text that is safe for terminals, and silence from libraries."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from .. import figures_text

if TYPE_CHECKING:
    from rich.console import Console

_log = logging.getLogger(__name__)

format_size = figures_text.format_size


def open_console() -> Console:
    """Standard output, wide enough for tables: a pipe has no width of its own."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with unprintable characters escaped, as in ``\x1b``, except those in `keep`."""
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses standard error, from Python and from C, unless ``--verbose``.

    Importing torchao and loading the runtime write lines that mean nothing to the user.
    """
    if _log.isEnabledFor(logging.INFO):
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
