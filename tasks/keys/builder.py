"""Checks that a model's builder exists, without importing it."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from ...errors import Location, SourceError
from .code import parsed
from .search import ModuleSearch, Origin


@dataclass(frozen=True, slots=True)
class BuilderLocation:
    """The place of a builder.

    Attributes:
        qualname: its name within the module, dotted for a class's method.
        line: the line, counted from 1, that binds its first name; None where the source does not show it.
    """

    module: str
    qualname: str
    path: Path
    line: int | None


def find_builder(builder: str, search: ModuleSearch) -> BuilderLocation:
    """Finds ``package.module:name`` or ``package.module:Class.method``; SourceError if it cannot exist."""
    module, colon, qualname = builder.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *qualname.split(".")]):
        raise SourceError(f"builder {builder!r} is not written as package.module:name")
    found = search.find(module)
    if found is None:
        raise SourceError(f"builder {builder!r}: {_missing_module(module, search)}")
    if found.path is None:
        what = "part of Python" if found.origin is Origin.STDLIB else "a folder without __init__.py"
        raise SourceError(f"builder {builder!r}: {module} is {what} and binds no names")
    below = any(found.path.is_relative_to(folder) for folder in search.python_path)
    if below and (hides := _loaded_before(module.partition(".")[0])):
        raise SourceError(
            f"builder {builder!r}: {found.path} is never imported, since {hides} has the same name; rename it"
        )
    line = _bound_line(builder, qualname, found.path) if found.path.suffix == ".py" else None
    return BuilderLocation(module, qualname, found.path, line)


def _loaded_before(name: str) -> str:
    """What a worker has imported under a name before it sees the user's folders; empty for other names."""
    if name in sys.stdlib_module_names:
        return f"Python's module {name}"
    return f"the package {name}" if name in LOADED_PACKAGES else ""


LOADED_PACKAGES = frozenset(
    {
        "annotated_types",
        "colorama",
        "executorch",
        "filelock",
        "flatbuffers",
        "functorch",
        "mpmath",
        "networkx",
        "numpy",
        "psutil",
        "pteforge",
        "pydantic",
        "pydantic_core",
        "ruamel",
        "sympy",
        "tabulate",
        "torch",
        "torchao",
        "torchgen",
        "tqdm",
        "typing_extensions",
        "typing_inspection",
        "yaml",
    }
)
"""Top-level modules of other distributions than Python that a worker loads: a user's file cannot have their names."""


@lru_cache(maxsize=1024)
def bound_names(scope: ast.Module | ast.ClassDef) -> Counter[str] | None:
    """How often each name is bound in a scope; None where more may be bound than the source shows."""
    names = Counter(name for name, _ in _bindings(scope.body))
    return None if "*" in names or any(_binds_unseen(node) for node in ast.walk(scope)) else names


def _bound_line(builder: str, qualname: str, path: Path) -> int | None:
    try:
        tree = parsed(path.read_bytes(), str(path))
    except SyntaxError as error:
        where = Location(str(path), error.lineno, error.offset)
        raise SourceError(f"builder {builder!r}: {where}: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"builder {builder!r}: {path} cannot be read: {error}") from error
    name, _, member = qualname.partition(".")
    bindings = _module_bindings(tree)
    bindings.require(name, f"builder {builder!r}: {path} binds no {name!r} at its top level")
    definitions = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if member and len(definitions) == 1 and bindings.complete:
        attribute = member.partition(".")[0]
        where = Location(str(path), definitions[0].lineno)
        problem = f"builder {builder!r}: {where}: class {name} has no {attribute!r}"
        _class_bindings(definitions[0]).require(attribute, problem)
    return bindings.lines.get(name)


@dataclass(frozen=True, slots=True)
class _Bindings:
    """The names that a body of statements binds in its own scope.

    Attributes:
        lines: name to the first line that binds it.
        complete: whether no other name can be bound. A star import, a ``__getattr__`` or the use of something like
            ``globals()`` may bind more.
    """

    lines: Mapping[str, int]
    complete: bool

    def require(self, name: str, problem: str) -> None:
        if self.complete and name not in self.lines:
            raise SourceError(problem + _suggestion(name, self.lines))


_BINDS_UNSEEN = frozenset({"exec", "globals", "locals", "setattr", "vars"})


@lru_cache(maxsize=256)
def _module_bindings(tree: ast.Module) -> _Bindings:
    lines = _bound_names(tree.body)
    unseen = "*" in lines or "__getattr__" in lines or any(_binds_unseen(node) for node in ast.walk(tree))
    return _Bindings(lines, not unseen)


def _class_bindings(definition: ast.ClassDef) -> _Bindings:
    # An explicit `object` is the only base that adds no callable worth naming.
    bases = [base for base in definition.bases if not (isinstance(base, ast.Name) and base.id == "object")]
    open_ended = bases or definition.keywords or definition.decorator_list
    return _Bindings(_bound_names(definition.body), not open_ended)


def _binds_unseen(node: ast.AST) -> bool:
    return isinstance(node, ast.Global) or (isinstance(node, ast.Name) and node.id in _BINDS_UNSEEN)


def _bound_names(body: Sequence[ast.stmt]) -> dict[str, int]:
    lines: dict[str, int] = {}
    for name, line in _bindings(body):
        lines[name] = min(line, lines.get(name, line))
    return lines


def _bindings(body: Sequence[ast.stmt]) -> Iterator[tuple[str, int]]:
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
                continue
            case ast.Lambda() | ast.AnnAssign(value=None):
                continue
            case ast.Import():
                yield from ((alias.asname or alias.name.partition(".")[0], alias.lineno) for alias in node.names)
            case ast.ImportFrom():
                yield from ((alias.asname or alias.name, alias.lineno) for alias in node.names)
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
                yield name, node.lineno
            case ast.MatchMapping(rest=str() as name):
                yield name, node.lineno
        stack.extend(ast.iter_child_nodes(node))


def _missing_module(module: str, search: ModuleSearch) -> str:
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
    close = get_close_matches(name, [other for other in known if other != "*"], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
