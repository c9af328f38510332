"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...artifacts.store import Store, open_store
from ...errors import InputError

STORE = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="PTEFORGE_STORE",
        help="Folder or URL (s3://bucket/prefix) of the artifact store.",
        show_default="in your cache folder",
    ),
]

CHANGES = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the zoo file, such as models.a.seed=3."),
]

JOBS = Annotated[int | None, typer.Option(min=1, help="Stages at once.", show_default="one per core")]

DATA = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE.ptd",
        help="Data that the file keeps outside; may be given again.",
        show_default="the one of the file's name beside it",
    ),
]

DATA_OUT = Annotated[
    Path | None,
    typer.Option(metavar="OUT.ptd", help="Put the weights there.", show_default="inside of the file"),
]


def open_existing_store(url: str | None) -> Store:
    """The store that a command only looks into.

    Raises:
        InputError: the folder named is not there; a mistyped name must not make a new store.
    """
    if url and "://" not in url and not Path(url).exists():
        raise InputError(f"there is no store at {url}")
    return open_store(url)
