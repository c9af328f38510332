"""The arguments that a callable of the user's takes, read from its source without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from .builder import bound_names
from .code import imported_module, parsed
from .search import FoundModule, ModuleSearch

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
