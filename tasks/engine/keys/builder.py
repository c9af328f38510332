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
from .search import FoundModule, ModuleOrigin, ModuleSearch


def find_builder(builder: str, finder: ModuleSearch) -> Path:
    """The file of ``package.module:name`` or ``package.module:Class.method``; SourceError if it cannot exist."""
    module, colon, qualname = builder.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *qualname.split(".")]):
        raise SourceError(f"builder {builder!r} is not written as package.module:name")
    found = finder.find(module)
    if found is None:
        raise SourceError(f"builder {builder!r}: {_missing_module(module, finder)}")
    if found.path is None:
        what = "part of Python" if found.origin is ModuleOrigin.STDLIB else "a folder without __init__.py"
        raise SourceError(f"builder {builder!r}: {module} is {what} and binds no names")
    below = any(found.path.is_relative_to(folder) for folder in finder.python_path)
    if below and found.origin is ModuleOrigin.LOCAL and (hides := _loaded_before(module.partition(".")[0])):
        problem = f"{found.path} is never imported, since {hides} has the same name; rename it"
        raise SourceError(f"builder {builder!r}: {problem}")
    if found.path.suffix == ".py":
        _check_bound(builder, qualname, found.path)
    return found.path


def _loaded_before(name: str) -> str:
    """The module or package that a worker imports under a name before the user's; empty for other names."""
    if name in sys.stdlib_module_names:
        return f"Python's module {name}"
    return f"the package {name}" if name in LOADED_PACKAGES else ""


LOADED_PACKAGES = frozenset(
    {
        *("annotated_types", "colorama", "dill", "executorch", "filelock", "flatbuffers", "functorch", "mpmath"),
        *("networkx", "numpy", "psutil", "pteforge", "pydantic", "pydantic_core", "ruamel", "sympy", "tabulate"),
        *("torch", "torchao", "torchgen", "tqdm", "typing_extensions", "typing_inspection", "wcwidth", "yaml"),
    }
)
"""Top-level modules of other distributions than Python that a worker loads: a user's file cannot have their names."""


@lru_cache(maxsize=1024)
def bound_names(scope: ast.Module | ast.ClassDef) -> Counter[str] | None:
    """How often each name is bound in a scope; None where ``import *``, ``globals()`` or the like may bind more."""
    names = Counter(_bindings(scope.body))
    return None if "*" in names or any(_binds_unseen(node) for node in ast.walk(scope)) else names


def _check_bound(builder: str, qualname: str, path: Path) -> None:
    """Raises SourceError if a module cannot bind a name, or a class in it has no such attribute."""
    try:
        tree = parsed(path.read_bytes(), str(path))
    except SyntaxError as error:
        where = Location(str(path), error.lineno, error.offset)
        raise SourceError(f"builder {builder!r}: {where}: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"builder {builder!r}: {path} cannot be read: {error}") from error
    name, _, member = qualname.partition(".")
    names = bound_names(tree)
    if names is None or "__getattr__" in names:
        return
    if name not in names:
        suggestion = _suggestion(name, names)
        raise SourceError(f"builder {builder!r}: {path} binds no {name!r} at its top level{suggestion}")
    definitions = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if member and len(definitions) == 1:
        definition, attribute = definitions[0], member.partition(".")[0]
        attributes = set(_bindings(definition.body))
        open_ended = _inherits(definition) or definition.keywords or definition.decorator_list
        if not open_ended and attribute not in attributes:
            where, suggestion = Location(str(path), definition.lineno), _suggestion(attribute, attributes)
            raise SourceError(f"builder {builder!r}: {where}: class {name} has no {attribute!r}{suggestion}")


_BINDS_UNSEEN = frozenset({"exec", "globals", "locals", "setattr", "vars"})


def _inherits(definition: ast.ClassDef) -> bool:
    """Whether a class has a base: an explicit `object` is the only one that adds no callable worth naming."""
    return any(not (isinstance(base, ast.Name) and base.id == "object") for base in definition.bases)


def _binds_unseen(node: ast.AST) -> bool:
    return isinstance(node, ast.Global) or (isinstance(node, ast.Name) and node.id in _BINDS_UNSEEN)


def _bindings(body: Sequence[ast.stmt]) -> Iterator[str]:
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
                continue
            case ast.Lambda() | ast.AnnAssign(value=None):
                continue
            case ast.Import():
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            case ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in node.names)
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
                yield name
            case ast.MatchMapping(rest=str() as name):
                yield name
        stack.extend(ast.iter_child_nodes(node))


def _missing_module(module: str, finder: ModuleSearch) -> str:
    parts = module.split(".")
    missing = next(count for count in range(1, len(parts) + 1) if finder.find(".".join(parts[:count])) is None)
    parent = finder.find(".".join(parts[: missing - 1])) if missing > 1 else None
    name = parts[missing - 1]
    if parent is None:
        folders = [str(folder) for folder in finder.python_path]
        where = " nor ".join(["in this Python's own folders", *(f"in {folder}" for folder in folders)])
        return f"there is no module {name!r} {where}{_suggestion(name, _modules_in(folders))}"
    if parent.locations is None:
        return f"{parent.name} ({parent.path}) is a module, not a package: it holds no {name!r}" + (
            "; write module:function, without `.py`" if name == "py" else ""
        )
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
    """The arguments that a call may pass."""

    positional: tuple[str, ...]  # names that can be passed by position, in order
    keywords: frozenset[str]  # names that can be passed by keyword
    required: frozenset[str]  # those without a default
    any_keyword: bool  # whether it takes any other keyword, too

    def problems(self, builder: str, kwargs: Mapping[str, Any], given: int = 0) -> Iterator[tuple[str | None, str]]:
        """The problems of a call, each with its keyword or None, when pteforge passes `given` arguments by position."""
        taken = self.positional[:given]
        open_names = [name for name in self.names if name not in taken]
        for name in kwargs:
            if name in taken and name in self.keywords:
                yield name, f"{builder} gets {name!r} from pteforge already"
            elif name not in self.keywords and not self.any_keyword:
                close = get_close_matches(name, open_names, n=1)
                advice = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(open_names) or 'none'}"
                yield name, f"{builder} takes no argument {name!r}; {advice}"
        if missing := [name for name in self.needed if name not in taken and name not in kwargs]:
            yield None, f"{builder} needs the argument{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}"
        if by_position := [name for name in self.positional[given:] if name in self.required - self.keywords]:
            yield None, f"{builder} takes {by_position[0]!r} by position only, and arguments are passed by keyword"

    @property
    def names(self) -> list[str]:
        """Names that can be passed by keyword, in order."""
        in_order = [name for name in self.positional if name in self.keywords]
        return [*in_order, *sorted(self.keywords - {*in_order})]

    @property
    def needed(self) -> list[str]:
        """Names that have no default, in order."""
        return [name for name in self.names if name in self.required]


def find_signature(builder: str, finder: ModuleSearch, imports: int = _MAX_IMPORTS) -> Signature | None:
    """The signature of ``package.module:name`` or ``package.module:Class.method``.

    None wherever the source leaves doubt: decorators, names that are bound twice or by an assignment, inherited
    constructors. Follows names through at most so many `imports`.
    """
    module, _, qualname = builder.partition(":")
    name, _, member = qualname.partition(".")
    found = finder.find(module)
    match _definition(found, name) if found else None:
        case ast.FunctionDef(decorator_list=[], args=arguments) if not member:
            return _of_arguments(arguments)
        case ast.ClassDef() as definition:
            return _of_method(definition, member) if member else _of_class(definition)
        case ast.ImportFrom() as statement if found and imports:
            source = imported_module(statement, found.package)
            original = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
            imported = f"{source}:{original}.{member}" if member else f"{source}:{original}"
            return find_signature(imported, finder, imports - 1) if source else None
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
    kinds = ast.FunctionDef | ast.ClassDef | ast.ImportFrom
    return next((node for node in tree.body if isinstance(node, kinds) and name in _bindings([node])), None)


def _of_class(definition: ast.ClassDef) -> Signature | None:
    """Signature of the constructor, where the class has its own or can inherit none."""
    bound = bound_names(definition)
    if bound is None or definition.decorator_list or definition.keywords or "__new__" in bound:
        return None
    if "__init__" in bound:
        constructor = _method(definition, "__init__")
        return _of_arguments(constructor.args, skip=1) if constructor and not constructor.decorator_list else None
    return None if _inherits(definition) else Signature((), frozenset(), frozenset(), any_keyword=False)


def _of_method(definition: ast.ClassDef, name: str) -> Signature | None:
    """Signature of a static method or a class method; others cannot be called with keywords only."""
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
    """Signature without the first `skip` arguments, which Python passes."""
    ordered = [*arguments.posonlyargs, *arguments.args]
    optional = {argument.arg for argument in ordered[len(ordered) - len(arguments.defaults) :]}
    by_keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    optional |= {argument.arg for argument, default in by_keyword if default}
    positional = tuple(argument.arg for argument in ordered)[skip:]
    only_by_position = {argument.arg for argument in arguments.posonlyargs}
    keywords = {*positional, *(argument.arg for argument in arguments.kwonlyargs)} - only_by_position
    required = {*positional, *keywords} - optional
    return Signature(positional, frozenset(keywords), frozenset(required), any_keyword=arguments.kwarg is not None)
