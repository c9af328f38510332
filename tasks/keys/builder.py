"""Checks that a model's builder is there, without importing it."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ...errors import Location, SourceError
from .bindings import Bindings, class_bindings, module_bindings
from .code import parse_module
from .search import ModuleSearch, Origin


@dataclass(frozen=True, slots=True)
class BuilderLocation:
    """Where a builder stands.

    Attributes:
        module: dotted name of its module.
        qualname: its name within the module, dotted for a class's method.
        path: the module's file.
        line: where its first name is bound, counted from 1; None where reading the source does not tell.
    """

    module: str
    qualname: str
    path: Path
    line: int | None


def find_builder(builder: str, search: ModuleSearch) -> BuilderLocation:
    """Finds ``package.module:name`` or ``package.module:Class.method``; SourceError where it cannot be there."""
    module, colon, qualname = builder.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *qualname.split(".")]):
        raise SourceError(f"builder {builder!r} is not written as package.module:name")
    found = search.find(module)
    if found is None:
        raise SourceError(f"builder {builder!r}: {_missing_module(module, search)}")
    if found.path is None:
        what = "part of Python" if found.origin is Origin.STDLIB else "a folder without __init__.py"
        raise SourceError(f"builder {builder!r}: {module} is {what} and binds no names")
    if found.path.suffix != ".py":
        return BuilderLocation(module, qualname, found.path, None)
    return BuilderLocation(module, qualname, found.path, _bound_line(builder, qualname, found.path))


def _bound_line(builder: str, qualname: str, path: Path) -> int | None:
    try:
        tree = parse_module(path.read_bytes(), str(path))
    except SyntaxError as error:
        where = Location(str(path), error.lineno, error.offset)
        raise SourceError(f"builder {builder!r}: {where}: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"builder {builder!r}: {path} cannot be read: {error}") from error
    name, _, member = qualname.partition(".")
    bindings = module_bindings(tree)
    _must_bind(bindings, name, f"builder {builder!r}: {path} binds no {name!r} at its top level")
    definitions = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if member and len(definitions) == 1 and bindings.complete:
        attribute = member.partition(".")[0]
        where = Location(str(path), definitions[0].lineno)
        _must_bind(
            class_bindings(definitions[0]),
            attribute,
            f"builder {builder!r}: {where}: class {name} has no {attribute!r}",
        )
    return bindings.lines.get(name)


def _must_bind(bindings: Bindings, name: str, problem: str) -> None:
    if bindings.complete and name not in bindings.lines:
        raise SourceError(problem + _suggestion(name, bindings.lines))


def _missing_module(module: str, search: ModuleSearch) -> str:
    """Why there is no such module: which part of the name is missing, from where."""
    parts = module.split(".")
    missing = next(count for count in range(1, len(parts) + 1) if search.find(".".join(parts[:count])) is None)
    parent = search.find(".".join(parts[: missing - 1])) if missing > 1 else None
    name = parts[missing - 1]
    if parent is None:
        folders = [str(folder) for folder in search.python_path]
        where = " nor ".join(["in this Python's own folders", *(f"in {folder}" for folder in folders)])
        return f"there is no module {name!r} {where}{_suggestion(name, _modules_in(folders))}"
    if parent.locations is None:
        return f"{parent.name} ({parent.path}) is a module, not a package: it holds no {name!r}"
    where = " nor ".join(parent.locations)
    return f"package {parent.name} has no module {name!r} in {where}{_suggestion(name, _modules_in(parent.locations))}"


def _modules_in(folders: Iterable[str]) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(list(folders))]


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, [one for one in known if one != "*"], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
