"""Checks, without importing it, that a model's builder exists and takes the arguments that it is given."""

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
from typing import Any

from ....errors import Location, SourceError
from .code import imported_module, parsed
from .search import FoundModule, ModuleSearch, Origin


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


_MAX_IMPORTS = 8  # from module to module


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call may pass.

    Attributes:
        positional: names that can be passed by position, in order.
        keywords: names that can be passed by keyword.
        required: those without a default.
        any_keyword: whether it takes any other keyword, too.
    """

    positional: tuple[str, ...]
    keywords: frozenset[str]
    required: frozenset[str]
    any_keyword: bool

    def problems(self, builder: str, kwargs: Mapping[str, Any], given: int = 0) -> Iterator[tuple[str | None, str]]:
        """What is wrong with a call: the keyword, or None where one is missing, and the problem.

        `given` is the number of arguments that pteforge passes by position.
        """
        taken = self.positional[:given]
        open_names = [name for name in self.names if name not in taken]
        for name in kwargs:
            if name in taken and name in self.keywords:
                yield name, f"{builder} gets {name!r} from pteforge already"
            elif name not in self.keywords and not self.any_keyword:
                close = get_close_matches(name, open_names, n=1)
                known = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(open_names) or 'none'}"
                yield name, f"{builder} takes no argument {name!r}; {known}"
        if missing := [name for name in self.needed if name not in taken and name not in kwargs]:
            yield None, f"{builder} needs the argument{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}"
        if by_position := [name for name in self.positional[given:] if name in self.required - self.keywords]:
            yield None, f"{builder} takes {by_position[0]!r} by position only, and arguments are passed by keyword"

    @property
    def names(self) -> list[str]:
        """What can be passed by keyword, in order."""
        in_order = [name for name in self.positional if name in self.keywords]
        return [*in_order, *sorted(self.keywords - {*in_order})]

    @property
    def needed(self) -> list[str]:
        """What has no default, in order."""
        return [name for name in self.names if name in self.required]


def find_signature(builder: str, search: ModuleSearch) -> Signature | None:
    """The signature of ``package.module:name`` or ``package.module:Class.method``.

    None wherever the source leaves doubt: decorators, names that are bound twice or by an assignment, inherited
    constructors. Names that other modules are imported for are followed.
    """
    module, _, qualname = builder.partition(":")
    return _in_module(module, qualname, search, _MAX_IMPORTS)


def _in_module(module: str, qualname: str, search: ModuleSearch, imports: int) -> Signature | None:
    """As `find_signature`, through at most so many imports."""
    name, _, member = qualname.partition(".")
    found = search.find(module)
    match _definition(found, name) if found else None:
        case ast.FunctionDef(decorator_list=[], args=arguments) if not member:
            return _of_arguments(arguments)
        case ast.ClassDef() as definition:
            return _of_method(definition, member) if member else _of_class(definition)
        case ast.ImportFrom() as statement if found and imports:
            source = imported_module(statement, found.package)
            original = next(each.name for each in statement.names if (each.asname or each.name) == name)
            there = f"{original}.{member}" if member else original
            return _in_module(source, there, search, imports - 1) if source else None
    return None


def _definition(found: FoundModule, name: str) -> ast.stmt | None:
    """The statement of a module that alone binds a name; None where that is in doubt."""
    if found.path is None or found.path.suffix != ".py":
        return None
    try:
        tree = parsed(found.path.read_bytes(), str(found.path))
    except (OSError, SyntaxError, ValueError):
        return None
    bound = bound_names(tree)
    if bound is None or bound[name] != 1:
        return None
    return next((node for node in tree.body if name in _names(node)), None)


def _names(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
    return []


def _of_class(definition: ast.ClassDef) -> Signature | None:
    """Of the constructor, where the class has its own or can inherit none."""
    bound = bound_names(definition)
    if bound is None or definition.decorator_list or definition.keywords or "__new__" in bound:
        return None
    if "__init__" in bound:
        constructor = _method(definition, "__init__")
        return _of_arguments(constructor.args, skip=1) if constructor and not constructor.decorator_list else None
    inherits = [base for base in definition.bases if not (isinstance(base, ast.Name) and base.id == "object")]
    return None if inherits else Signature((), frozenset(), frozenset(), any_keyword=False)


def _of_method(definition: ast.ClassDef, name: str) -> Signature | None:
    """Of a static method or a class method; others cannot be called with keywords only."""
    method = _method(definition, name)
    match method.decorator_list if method else []:
        case [ast.Name(id="staticmethod" | "classmethod" as kind)] if method:
            return _of_arguments(method.args, skip=1 if kind == "classmethod" else 0)
    return None


def _method(definition: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """The method of this name in a class's own body, if it is the only one."""
    bound = bound_names(definition)
    if bound is None or bound[name] != 1:
        return None
    return next((node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == name), None)


def _of_arguments(arguments: ast.arguments, *, skip: int = 0) -> Signature:
    """Without the first `skip` arguments, which Python passes."""
    ordered = [*arguments.posonlyargs, *arguments.args]
    optional = {each.arg for each in ordered[len(ordered) - len(arguments.defaults) :]}
    optional |= {each.arg for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default}
    positional = tuple(each.arg for each in ordered)[skip:]
    only_by_position = {each.arg for each in arguments.posonlyargs}
    keywords = {*positional, *(each.arg for each in arguments.kwonlyargs)} - only_by_position
    required = {*positional, *keywords} - optional
    return Signature(positional, frozenset(keywords), frozenset(required), any_keyword=arguments.kwarg is not None)
