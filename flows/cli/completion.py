"""Values that the shell completes: names of models, recipes, stages, runs, payloads, methods and releases.

A completion has a fraction of a second: zoo files are read as plain YAML without validation, and each value imports
only what it needs. A file that cannot be read completes nothing, without a message.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...artifacts.files import LocalFiles, open_input

if TYPE_CHECKING:
    from ...artifacts.runs import Runs

Completer = Callable[[typer.Context, str], list[str]]
"""Finds values for the arguments so far; Typer drops those that do not begin with the text that is there."""

_PACKAGE = Path(__file__).parents[2]
_SAFE = re.compile(r"[\w./:,=+@-]+", re.ASCII)  # shells evaluate what they are given
_LATEST_RUNS = 20
_ZOO_LIMIT = 1 << 20  # bytes: more could not be read in time


def completer(find: Callable[[typer.Context], Iterable[str]]) -> Completer:
    """Wraps a function for Typer. Where the function fails, there is no completion."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        first, comma, _ = incomplete.rpartition(",")  # several values of an option may have commas between
        logging.disable()  # a warning would end up in the line that is being written
        try:
            return list(dict.fromkeys(f"{first}{comma}{name}" for name in find(ctx) if _SAFE.fullmatch(name)))
        except Exception:  # noqa: BLE001 - files may contain anything
            return []
        finally:
            logging.disable(logging.NOTSET)

    return complete


@completer
def models(ctx: typer.Context) -> Iterable[str]:
    """The models of the zoo file."""
    return _recipes_of_models(ctx)


@completer
def recipes(ctx: typer.Context) -> Iterable[str]:
    """The recipes that the zoo's models use; the shipped ones for a builder, which is no file."""
    if not _first_argument(ctx).exists():
        return shipped_recipes(ctx, "")
    return (recipe for recipes in _recipes_of_models(ctx).values() for recipe in recipes)


@completer
def files(ctx: typer.Context) -> Iterable[str]:
    """``MODEL/RECIPE`` of the zoo file."""
    return (f"{model}/{recipe}" for model, recipes in _recipes_of_models(ctx).items() for recipe in recipes)


@completer
def shipped_recipes(_ctx: typer.Context) -> Iterable[str]:
    return sorted(path.stem for path in (_PACKAGE / "configs" / "presets").glob("*.yaml"))


@completer
def stages(_ctx: typer.Context) -> Iterable[str]:
    """All stages; each has a module of its name."""
    return sorted(path.stem for path in (_PACKAGE / "tasks").glob("*/stages/[!_]*.py"))


@completer
def recorded(ctx: typer.Context) -> Iterator[str]:
    """Models of the store's latest runs, and ``MODEL/RECIPE``."""
    for run in islice(_runs(ctx), _LATEST_RUNS):
        for model, outcomes in run.models.items():
            yield from (model, *(f"{model}/{recipe}" for outcome in outcomes for recipe in outcome.recipes))


@completer
def runs(ctx: typer.Context) -> Iterable[str]:
    """Ids of the store's latest runs, as short as `pteforge runs` prints them."""
    return (str(name) for name, _ in islice(_runs(ctx).with_names(), _LATEST_RUNS))


def begun_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes like `runs` once an id has begun; until then, shells offer files."""
    return runs(ctx, incomplete) if incomplete else []


@completer
def payloads(ctx: typer.Context) -> Iterable[str]:
    """The payloads of a fat file."""
    from .weights import open_fat_file

    return (payload.name for payload in open_fat_file(_first_argument(ctx), ctx.params["data"]).container.payloads)


@completer
def methods(ctx: typer.Context) -> Iterable[str]:
    """The methods of a `.pte`."""
    from ...formats.pte.reader import open_pte

    return (method.name for method in open_pte(_first_argument(ctx)).methods)


@completer
def channels(ctx: typer.Context) -> Iterable[str]:
    """The channels of a folder of releases."""
    return _stems(ctx, "channels")


@completer
def releases(ctx: typer.Context) -> Iterable[str]:
    """Channels and releases in a folder."""
    return (*_stems(ctx, "channels"), *_stems(ctx, "releases"))


def _first_argument(ctx: typer.Context) -> Path:
    """The zoo or file that a command is about; the parser leaves it over while an option still lacks its value."""
    first = next(param.name for param in ctx.command.params if param.param_type_name == "argument")
    return Path(ctx.params.get(first or "") or ctx.args[0])


def _recipes_of_models(ctx: typer.Context) -> dict[str, Sequence[str]]:
    """The models of the zoo and of the files that it includes, with the names of their recipes."""
    import yaml

    recipes_of: dict[str, Sequence[str]] = {}
    seen: set[Path] = set()
    pending: list[tuple[Path, Sequence[str]]] = [(_first_argument(ctx).absolute(), ())]
    while pending:
        path, inherited = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        with open_input(path) as file:
            zoo = yaml.load(file.read(_ZOO_LIMIT), Loader=yaml.CSafeLoader)
        defaults = (zoo.get("defaults") or {}).get("recipes") or inherited
        for name, model in (zoo.get("models") or {}).items():
            recipes_of[name] = model.get("recipes") or defaults
        pending[:0] = [((path.parent / name).resolve(), defaults) for name in zoo.get("include") or ()]
    return recipes_of


def _runs(ctx: typer.Context) -> Runs:
    """The runs of a store on this machine; another one would take too long."""
    from ...artifacts.runs import Runs
    from ...artifacts.store import cache_folder

    return Runs(LocalFiles(Path(ctx.params["store"] or cache_folder() / "store")))


def _stems(ctx: typer.Context, folder: str) -> list[str]:
    return sorted(path.stem for path in (_first_argument(ctx) / folder).glob("*.json"))
