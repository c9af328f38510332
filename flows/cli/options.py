"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError
from ..run.request import ExportRequest, describe
from . import completion

if TYPE_CHECKING:
    from ...artifacts.store import Store

FOLDER = Annotated[Path, typer.Option("--out", metavar="DIR", help=describe("out"))]

STORE = Annotated[str | None, typer.Option(metavar="URL", envvar="PTEFORGE_STORE", help=describe("store"))]

AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]

OUT = Annotated[Path, typer.Option("--out", "-o", metavar="OUT.pte", help="The file to write.", show_default=False)]

JOBS = Annotated[int | None, typer.Option(min=1, help=describe("jobs"))]

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


_OF_FIELDS: dict[str, Any] = {
    "zoo": Annotated[Path | None, typer.Argument(metavar="ZOO", help=describe("zoo"), show_default=False)],
    "models": Annotated[
        list[str] | None,
        typer.Option("--model", metavar="GLOB", help=describe("models"), autocompletion=completion.models),
    ],
    "recipes": Annotated[
        list[str] | None,
        typer.Option("--recipe", metavar="GLOB", help=describe("recipes"), autocompletion=completion.recipes),
    ],
    "store": STORE,
    "out": FOLDER,
    "overrides": Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=describe("overrides"))],
    "jobs": JOBS,
    "until": Annotated[
        str | None, typer.Option(metavar="STAGE", help=describe("until"), autocompletion=completion.stages)
    ],
    "publish": Annotated[str | None, typer.Option(metavar="URL", help=describe("publish"))],
}
"""How fields of a request are written, apart from those that are simply ``--NAME VALUE``."""


def takes_request(*without: str, optional: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes the first parameter of a command, a request, from an option for each field, apart from those named.

    Where it is `optional`, it is None without a zoo.
    """
    fields = {name: field for name, field in ExportRequest.model_fields.items() if name not in without}
    offered = []
    for name, field in fields.items():
        plain: Any = Annotated[field.annotation, typer.Option(f"--{name.replace('_', '-')}", help=describe(name))]
        default = None if isinstance(field.default, str | tuple) else field.default  # those take lists, or globs
        if field.is_required():
            default = None if optional else Parameter.empty
        offered.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=_OF_FIELDS.get(name, plain)))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            asked = {name: value for name in fields if (value := given.pop(name)) is not None}
            command(ExportRequest(**asked) if asked.get("zoo") else None, **given)

        own = [*signature(command, eval_str=True).parameters.values()][1:]
        run.__dict__["__signature__"] = Signature(
            [*offered, *(each.replace(kind=Parameter.KEYWORD_ONLY) for each in own)]
        )
        run.__annotations__ = {}
        return run

    return decorate


def open_existing_store(url: str | None) -> Store:
    """The store, for commands that must not create one; raises InputError if it does not exist."""
    from ...artifacts.store import open_store
    from ..run.session import store_url

    url = store_url(url)
    if url and "://" not in url and not Path(url).exists():
        raise InputError(f"there is no store at {url}")
    return open_store(url)
