"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...errors import InputError
from . import completion

if TYPE_CHECKING:
    from ...artifacts.store import Store

ZOO = Annotated[Path, typer.Argument(help="The zoo file.", show_default=False)]

ZOO_ARGUMENT = typer.Argument(
    metavar="ZOO",
    help="The zoo file; or, for one model, package.module:builder, hf:org/name or a .pt2 file.",
    show_default=False,
)

ZOO_OR_BUILDER = Annotated[Path, ZOO_ARGUMENT]

FOLDER = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files go: DIR/MODEL/RECIPE.pte.")]

STORE = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="PTEFORGE_STORE",
        help="Folder, URL (s3://bucket/prefix) or Prefect block (block:NAME) of the artifact store.",
        show_default="in your cache folder",
    ),
]

MODELS = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB",
        help="Only models whose names match; may be given again.",
        show_default="all",
        autocompletion=completion.models,
    ),
]

RECIPES = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB",
        help="Only recipes whose names match; may be given again.",
        show_default="all",
        autocompletion=completion.recipes,
    ),
]

CHANGES = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the zoo file, such as models.a.seed=3."),
]

UNTIL = Annotated[
    str | None,
    typer.Option(
        metavar="STAGE",
        help="Stop after this stage.",
        show_default="files are made",
        autocompletion=completion.stages,
    ),
]

DEBUG = Annotated[
    bool,
    typer.Option(
        "--debug", help="Keep stack traces in the files; write an ETRecord and maps of debug handles next to them."
    ),
]

PUBLISH = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Release the files there at the end.", show_default="as the zoo says"),
]

REFRESH = Annotated[bool, typer.Option("--refresh", help="Run stages again that are cached, each once.")]

AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]

OUT = Annotated[Path, typer.Option("--out", "-o", metavar="OUT.pte", help="The file to write.", show_default=False)]

JOBS = Annotated[int | None, typer.Option(min=1, help="Stages at once.", show_default="one per core")]

Place = Literal["local", "pool", "dask", "ray"]  # as in `configs.zoo`, which completion has no time to import

ON = Annotated[
    Place | None,
    typer.Option(
        help="Where stages run: here, as runs on a Prefect work pool, or on a cluster.", show_default="the zoo's `run`"
    ),
]

DATA = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE.ptd",
        help="External weights of the file; may be repeated.",
        show_default="the .ptd next to the file",
    ),
]

DATA_OUT = Annotated[
    Path | None,
    typer.Option(metavar="OUT.ptd", help="Put the weights there.", show_default="inside the file"),
]


def open_existing_store(url: str | None) -> Store:
    """The store, for commands that must not create one; raises InputError if it does not exist."""
    from ...artifacts.locations import open_store
    from ..session import store_url

    url = store_url(url)
    if url and "://" not in url and not Path(url).exists():
        raise InputError(f"there is no store at {url}")
    return open_store(url)
