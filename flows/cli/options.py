"""Options that several commands share, and the requests, stores and output files that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError
from ..run.request import ExportRequest, describe, fields_for
from . import completion

if TYPE_CHECKING:
    from ...artifacts.store import Store


def option(
    text: str, metavar: str, default: bool | str = True, *, name: str = "", complete: completion.Completer | None = None
) -> Any:
    """An option with a value; help shows `metavar` and `default` in place of the value and its default."""
    names = [name] if name else []
    return typer.Option(*names, metavar=metavar, help=text, show_default=default, autocompletion=complete)


def flag(name: str, text: str, *others: str) -> Any:
    """An option without a value; `others` are more names of it."""
    return typer.Option(name, *others, help=text)


def argument(text: str, metavar: str | None = None, *, complete: completion.Completer | None = None) -> Any:
    """A required argument."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, autocompletion=complete)


FOLDER = Annotated[Path, option(describe("out"), "DIR", name="--out")]

STORE = Annotated[str | None, typer.Option(metavar="URL", envvar="PTEFORGE_STORE", help=describe("store"))]

AS_JSON = Annotated[bool, flag("--json", "Print JSON to standard output.")]

OUT = Annotated[Path, typer.Option("--out", "-o", metavar="OUT.pte", help="The file to write.", show_default=False)]

JOBS = Annotated[int | None, typer.Option(min=1, help=describe("jobs"))]

DATA = Annotated[
    list[Path] | None, option("External weights of the file; may be repeated.", "FILE.ptd", "the .ptd next to the file")
]

DATA_OUT = Annotated[Path | None, option("Put the weights there.", "OUT.ptd", "inside the file")]


_OF_FIELDS: dict[str, Any] = {
    "zoo": Annotated[Path | None, argument(describe("zoo"), "ZOO")],
    "models": Annotated[
        list[str] | None, option(describe("models"), "GLOB", name="--model", complete=completion.models)
    ],
    "recipes": Annotated[
        list[str] | None, option(describe("recipes"), "GLOB", name="--recipe", complete=completion.recipes)
    ],
    "store": STORE,
    "out": FOLDER,
    "overrides": Annotated[list[str] | None, option(describe("overrides"), "KEY=VALUE", name="--set")],
    "places": Annotated[list[str] | None, option(describe("places"), "PLACE", name="--place")],
    "until": Annotated[str | None, option(describe("until"), "STAGE", complete=completion.stages)],
    "publish": Annotated[str | None, option(describe("publish"), "URL")],
}
"""The options of a request's fields, except for those that are simply ``--NAME VALUE``."""


def takes_request(
    examining: str = "", *, optional: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes the first parameter of a command, a request, from an option for each field.

    A command that starts no run is named, and takes fields that name it, too (`Also`); None for no zoo, if `optional`.
    """
    fields = fields_for(examining) if examining else ExportRequest.model_fields
    offered = []
    for name, field in fields.items():
        least = next((limit.ge for limit in field.metadata if hasattr(limit, "ge")), None)
        plain = typer.Option(f"--{name.replace('_', '-')}", min=least, help=describe(name))
        annotation: Any = _OF_FIELDS.get(name, Annotated[field.annotation, plain])
        default = None if isinstance(field.default, str | tuple) else field.default  # those take lists, or globs
        if field.is_required():
            default = None if optional else Parameter.empty
        offered.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**options: Any) -> None:
            requested = {name: value for name in fields if (value := options.pop(name)) is not None}
            command(ExportRequest(**requested) if requested.get("zoo") else None, **options)

        others = [*signature(command, eval_str=True).parameters.values()][1:]
        others = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in others]
        run.__dict__["__signature__"] = Signature([*offered, *others])
        run.__annotations__ = {}
        return run

    return decorate


def open_existing_store(url: str | None) -> Store:
    """Opens a store without creating it; raises InputError if it does not exist."""
    from ...artifacts.store import open_store
    from ..prefect.settings import store_url

    url = store_url(url)
    if url and "://" not in url and not Path(url).exists():
        raise InputError(f"there is no store at {url}")
    return open_store(url)


def split_names(options: Iterable[str] | None) -> tuple[str, ...]:
    """The names in options like ``--keep xnnpack,portable``, without repeats."""
    names = (name.strip() for option in options or () for name in option.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def check_output(*paths: Path | None) -> None:
    """Checks, before any work, that files can be written; raises InputError if not."""
    for path in filter(None, paths):
        if path.is_dir() or not path.parent.is_dir():
            raise InputError(f"output cannot be written to {path}: name a file in an existing folder")
