"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

STORE = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="PTEFORGE_STORE",
        help="Folder or URL (s3://bucket/prefix) of the artifact store.",
        show_default="in your cache folder",
    ),
]
